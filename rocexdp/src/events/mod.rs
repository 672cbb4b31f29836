//! Rare events, of all origins in one form: the XDP program's ring buffer, the engine, the network, PFC storms.
//!
//! [`Hub`] keeps the latest and hands them to whoever follows; `rocexdp events` asks for them over the control socket of
//! `rocexdp run` or `rocexdp monitor`. The kernel's ring has one consumer, so the process that holds the program reads it
//! ([`feed`]), and nobody else. Decides nothing.

mod hub;
mod ring;
mod storms;

use std::{fmt, net::IpAddr, time::SystemTime};

use rocexdp_common::{
    headers::Syndrome,
    maps::{self, EGRESS, EventKind, REASON_ALL, REASON_NAMES, Reason},
    opcode::{self, Opcode},
};
use rocexdp_proto::{ids::Qpn, qp::ErrorCause, verbs::Status};
use serde::{Deserialize, Serialize};

pub use hub::{Followed, HISTORY, Hub};
pub use ring::feed;
pub use storms::watch_storms;

use crate::{
    loader::address_of,
    node::NodeEvent,
    pfc::{Certainty, Change, StormEvent},
    sys::clock,
};

/// Version of [`Event`]'s JSON: goes up when a key is removed or means something else.
pub const VERSION: u32 = 1;

/// All kinds of events.
pub const KINDS: [&str; 30] = [
    "nak",
    "rnr_nak",
    "unknown_qpn",
    "policy_drop",
    "malformed",
    "bad_cnp",
    "unknown",
    "retry_exceeded",
    "rnr_retry_exceeded",
    "qp_error",
    "established",
    "cq_overflow",
    "srq_limit_reached",
    "last_wqe_reached",
    "sq_drained",
    "device",
    "refused",
    "link_up",
    "link_down",
    "link_gone",
    "mtu",
    "address_gone",
    "address_new",
    "neighbour_moved",
    "unreachable",
    "network",
    "pfc_storm",
    "pfc_storm_suspected",
    "pfc_storm_over",
    "events_lost",
];

/// Who noticed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// XDP or TCX, at the packet.
    Packet,
    /// The transport.
    Engine,
    /// The interface and what it is connected to.
    Network,
    /// Pause frames or the NIC's counters of them.
    Pfc,
    /// The reading of events itself.
    Events,
}

/// One event. A key that is absent does not apply, or is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// [`VERSION`].
    pub version: u32,
    /// When, ns since 1970.
    pub time_ns: u64,
    /// Interface.
    pub iface: String,
    /// Who noticed it.
    pub origin: Origin,
    /// What: one of [`KINDS`].
    pub kind: String,
    /// Our QP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qpn: Option<u32>,
    /// Of a packet: from where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<IpAddr>,
    /// To where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<IpAddr>,
    /// To which QP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dest_qpn: Option<u32>,
    /// Its PSN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Its opcode, by Wireshark's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opcode: Option<String>,
    /// Receive queue; absent for a packet that was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// Why, by the name of the counter or of the NAK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// All of it in words.
    pub text: String,
}

/// What two clocks show at one moment, to tell one's time by the other.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    monotonic_ns: u64,
    real_ns: u64,
}

impl Clocks {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            monotonic_ns: clock::monotonic_ns(),
            real_ns: real.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    /// ns since 1970 of a time of CLOCK_MONOTONIC.
    fn real(self, monotonic_ns: u64) -> u64 {
        self.real_ns
            .saturating_sub(self.monotonic_ns.saturating_sub(monotonic_ns))
    }
}

impl Event {
    fn new(iface: &str, origin: Origin, kind: &str, text: String) -> Self {
        debug_assert!(KINDS.contains(&kind), "{kind} is missing from KINDS");
        Self {
            version: VERSION,
            time_ns: Clocks::now().real_ns,
            iface: iface.to_owned(),
            origin,
            kind: kind.to_owned(),
            qpn: None,
            src: None,
            dst: None,
            dest_qpn: None,
            psn: None,
            opcode: None,
            queue: None,
            reason: None,
            text,
        }
    }

    /// A record of the program's ring buffer.
    #[must_use]
    pub fn of_packet(iface: &str, record: &maps::Event, clocks: Clocks) -> Self {
        let kind = maps::EVENT_NAMES.get(record.kind as usize).copied();
        let nak = [EventKind::Nak as u32, EventKind::RnrNak as u32].contains(&record.kind);
        let reason = if nak {
            syndrome(record.detail as u8)
        } else {
            REASON_NAMES
                .get(record.detail as usize)
                .map_or_else(|| format!("reason {}", record.detail), |r| (*r).to_owned())
        };
        // A packet that was not parsed so far has none of these.
        let parsed = record.dst != [0; 16];
        let unread = !nak
            && REASON_ALL
                .get(record.detail as usize)
                .is_some_and(|r| matches!(r, Reason::UdpLength | Reason::BthTruncated));
        let (src, dst) = (address_of(record.src), address_of(record.dst));
        let opcode = opcode::name(Opcode(record.opcode as u8));
        let kind = kind.unwrap_or("unknown");
        let sent = record.queue == EGRESS;
        let what = if parsed && unread {
            format!("{src} -> {dst}")
        } else if parsed {
            format!(
                "{src} -> {dst} QP {}, {opcode}, PSN {}",
                Qpn::new(record.dest_qpn),
                record.psn
            )
        } else {
            "packet cut short before its addresses".to_owned()
        };
        let read = parsed && !unread;
        let way = if sent { "sent" } else { "received" };
        Self {
            time_ns: clocks.real(record.time_ns),
            src: parsed.then_some(src),
            dst: parsed.then_some(dst),
            dest_qpn: read.then_some(record.dest_qpn),
            psn: read.then_some(record.psn),
            opcode: read.then(|| opcode.to_owned()),
            queue: (!sent).then_some(record.queue),
            text: format!("{kind} ({reason}) {way}: {what}"),
            reason: Some(reason),
            ..Self::new(iface, Origin::Packet, kind, String::new())
        }
    }

    /// Something that the node tells.
    #[must_use]
    pub fn of_node(iface: &str, event: &NodeEvent) -> Self {
        use rocexdp_proto::Event as Transport;
        let (origin, kind, qpn) = match event {
            NodeEvent::Link { running: true, .. } => (Origin::Network, "link_up", None),
            NodeEvent::Link { .. } => (Origin::Network, "link_down", None),
            NodeEvent::LinkGone(_) => (Origin::Network, "link_gone", None),
            NodeEvent::Mtu { .. } => (Origin::Network, "mtu", None),
            NodeEvent::AddressGone(_) => (Origin::Network, "address_gone", None),
            NodeEvent::AddressNew(_) => (Origin::Network, "address_new", None),
            NodeEvent::NeighbourMoved { .. } => (Origin::Network, "neighbour_moved", None),
            NodeEvent::Unreachable(_) => (Origin::Network, "unreachable", None),
            NodeEvent::Network(_) => (Origin::Network, "network", None),
            NodeEvent::Device(_) => (Origin::Engine, "device", None),
            NodeEvent::Refused(_) => (Origin::Packet, "refused", None),
            NodeEvent::Qp(Transport::CommunicationEstablished { qpn }) => {
                (Origin::Engine, "established", Some(qpn))
            }
            NodeEvent::Qp(Transport::CqOverflow { .. }) => (Origin::Engine, "cq_overflow", None),
            NodeEvent::Qp(Transport::SrqLimitReached { .. }) => {
                (Origin::Engine, "srq_limit_reached", None)
            }
            NodeEvent::Qp(Transport::LastWqeReached { qpn }) => {
                (Origin::Engine, "last_wqe_reached", Some(qpn))
            }
            NodeEvent::Qp(Transport::SqDrained { qpn }) => {
                (Origin::Engine, "sq_drained", Some(qpn))
            }
            NodeEvent::Qp(Transport::QpError { qpn, cause }) => {
                let kind = match cause {
                    ErrorCause::Request(Status::RetryExcErr) => "retry_exceeded",
                    ErrorCause::Request(Status::RnrRetryExcErr) => "rnr_retry_exceeded",
                    _ => "qp_error",
                };
                (Origin::Engine, kind, Some(qpn))
            }
        };
        Self {
            qpn: qpn.map(|q| q.get()),
            ..Self::new(iface, origin, kind, event.to_string())
        }
    }

    /// A PFC storm.
    #[must_use]
    pub fn of_storm(event: &StormEvent) -> Self {
        let kind = match event.change {
            Change::Flagged {
                certainty: Certainty::Storm,
                ..
            } => "pfc_storm",
            Change::Flagged { .. } => "pfc_storm_suspected",
            Change::Released { .. } => "pfc_storm_over",
        };
        Self {
            time_ns: Clocks::now().real(event.time_ns),
            ..Self::new(&event.iface, Origin::Pfc, kind, event.to_string())
        }
    }

    /// Events that nobody will see.
    fn of_loss(iface: &str, suppressed: u64, lost: u64) -> Self {
        let text = format!(
            "{suppressed} events held back by the rate limit ({} in {} ms on a queue), {lost} lost because the ring was full",
            maps::EVENTS_PER_WINDOW,
            maps::EVENT_WINDOW_NS / 1_000_000
        );
        Self::new(iface, Origin::Events, "events_lost", text)
    }
}

/// A NAK's name, as the counters have it.
fn syndrome(byte: u8) -> String {
    match Syndrome::from_byte(byte) {
        Syndrome::NakSequence => "packet_seq_err".to_owned(),
        Syndrome::NakInvalidRequest => "invalid_request".to_owned(),
        Syndrome::NakRemoteAccess => "remote_access".to_owned(),
        Syndrome::NakRemoteOperational => "remote_operational".to_owned(),
        Syndrome::NakInvalidRd => "invalid_rd_request".to_owned(),
        Syndrome::RnrNak(timer) => format!("rnr, timer {timer}"),
        Syndrome::Ack(_) | Syndrome::Reserved(_) => format!("syndrome {byte:#04x}"),
    }
}

/// `HH:MM:SS.mmm` of UTC, then what happened.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.time_ns / 1_000_000;
        let (s, m, h) = (ms / 1000 % 60, ms / 60_000 % 60, ms / 3_600_000 % 24);
        write!(f, "{h:02}:{m:02}:{s:02}.{:03} ", ms % 1000)?;
        // What names the interface itself need not do so twice.
        if !self.text.starts_with(&self.iface) {
            write!(f, "{}: ", self.iface)?;
        }
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocexdp_common::ids::gid_from_ipv4;

    fn record() -> maps::Event {
        maps::Event {
            time_ns: 1000,
            kind: EventKind::Nak as u32,
            queue: 2,
            src: gid_from_ipv4([10, 0, 0, 1]),
            dst: gid_from_ipv4([10, 0, 0, 2]),
            dest_qpn: 0x11,
            psn: 77,
            detail: 0x60,
            opcode: 0x11,
        }
    }

    #[test]
    fn a_nak_is_named_with_its_packet() {
        let clocks = Clocks {
            monotonic_ns: 3000,
            real_ns: 3_723_004_000_000 + 2000,
        };
        let event = Event::of_packet("eth0", &record(), clocks);
        assert_eq!(event.kind, "nak");
        assert_eq!(event.reason.as_deref(), Some("packet_seq_err"));
        assert_eq!((event.psn, event.dest_qpn), (Some(77), Some(0x11)));
        assert_eq!(
            event.to_string(),
            "01:02:03.004 eth0: nak (packet_seq_err) received: 10.0.0.1 -> 10.0.0.2 QP 0x000011, RC Acknowledge, PSN 77"
        );
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let cut = maps::Event {
            kind: EventKind::Malformed as u32,
            detail: Reason::BthTruncated as u32,
            queue: EGRESS,
            ..maps::Event::default()
        };
        let event = Event::of_packet("eth0", &cut, Clocks::now());
        let json = serde_json::to_value(&event).unwrap();
        for key in ["src", "dst", "psn", "opcode", "queue"] {
            assert!(json.get(key).is_none(), "{key}");
        }
        assert_eq!(json["reason"], "bth_truncated");
        assert!(event.text.contains("sent"), "{}", event.text);
        // A program that is newer than this tool.
        let odd = maps::Event {
            kind: 999,
            detail: 999,
            ..record()
        };
        assert_eq!(
            Event::of_packet("eth0", &odd, Clocks::now()).kind,
            "unknown"
        );
    }

    #[test]
    fn every_kind_that_the_program_raises_has_its_name() {
        for name in maps::EVENT_NAMES {
            assert!(KINDS.contains(&name), "{name}");
        }
    }

    #[test]
    fn every_kind_that_the_transport_raises_has_its_name() {
        use rocexdp_proto::Event as Transport;
        let qpn = Qpn::new(5);
        for event in [
            Transport::LastWqeReached { qpn },
            Transport::SqDrained { qpn },
            Transport::CommunicationEstablished { qpn },
        ] {
            let event = Event::of_node("eth0", &NodeEvent::Qp(event));
            assert!(KINDS.contains(&event.kind.as_str()), "{}", event.kind);
        }
        for kind in ["cq_overflow", "srq_limit_reached"] {
            assert!(KINDS.contains(&kind));
        }
    }

    #[test]
    fn exhausted_retries_have_kinds_of_their_own() {
        let kind = |status| {
            let qpn = Qpn::new(5);
            let cause = ErrorCause::Request(status);
            let event = NodeEvent::Qp(rocexdp_proto::Event::QpError { qpn, cause });
            let event = Event::of_node("eth0", &event);
            assert_eq!(event.qpn, Some(5));
            event.kind
        };
        assert_eq!(kind(Status::RetryExcErr), "retry_exceeded");
        assert_eq!(kind(Status::RnrRetryExcErr), "rnr_retry_exceeded");
        assert_eq!(kind(Status::RemAccessErr), "qp_error");
    }
}
