//! One line of what `monitor` and `top` show: two ends that talk, and what goes each way.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use rocexdp_common::ids::Gid;

use super::value::{NO_PACKET, NO_ROUND_TRIP, Reason, RttValue, Value, sum};

/// Of two reasons, `nothing` if one of them is: that there was nothing to measure says more than that it could not be seen.
fn lesser(a: Reason, b: Reason, nothing: Reason) -> Reason {
    if b == nothing { b } else { a }
}

/// One end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct End {
    /// Its address as a GID.
    pub gid: Gid,
    /// Its QP number; `None`: nothing that was seen names it.
    pub qpn: Option<u32>,
}

impl End {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.gid);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.qpn {
            Some(qpn) => write!(f, "{}/0x{qpn:06x}", self.address()),
            None => write!(f, "{}/?", self.address()),
        }
    }
}

/// What tells one line from another, from interval to interval.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey {
    /// The interface.
    pub iface: Arc<str>,
    /// Whether `a` is a QP of this host's endpoint.
    pub local: bool,
    /// The local QP; of a flow, the end with the lower address.
    pub a: End,
    /// The other end.
    pub b: End,
}

/// What goes one way, each per second unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    /// Packets.
    pub packets: Value,
    /// Bits: of frames without FCS where XDP or TCX counted, of payload where our engine sent.
    pub bits: Value,
    /// CE-marked packets.
    pub ce: Value,
    /// Share of the interval's packets that carried a CE mark, 0 to 1.
    pub ce_share: Value,
    /// CNPs that go this way.
    pub cnp: Value,
    /// Gaps in the sequence numbers.
    pub gaps: Value,
    /// Packets that were missing at the gaps.
    pub missing: Value,
    /// Packets sent again: as the engine counts, or as packets behind the expected number.
    pub resent: Value,
    /// NAKs that go this way, RNR aside.
    pub naks: Value,
    /// RNR NAKs that go this way.
    pub rnr: Value,
    /// From requests that go this way to their answers.
    pub rtt: RttValue,
    /// NAKs by code in the interval, not per second: sequence, invalid request, remote access, remote operational, other.
    pub nak_codes: [u64; 5],
    /// Packets since the counters began.
    pub total_packets: u64,
    /// Bytes since the counters began.
    pub total_bytes: u64,
}

impl Direction {
    /// Nothing can be known.
    #[must_use]
    pub const fn unknown(why: Reason) -> Self {
        Self {
            packets: Err(why),
            bits: Err(why),
            ce: Err(why),
            ce_share: Err(why),
            cnp: Err(why),
            gaps: Err(why),
            missing: Err(why),
            resent: Err(why),
            naks: Err(why),
            rnr: Err(why),
            rtt: Err(why),
            nak_codes: [0; 5],
            total_packets: 0,
            total_bytes: 0,
        }
    }
}

/// Two ends that talk.
#[derive(Clone, Debug)]
pub struct Row {
    /// What tells it from others.
    pub key: RowKey,
    /// From `a` to `b`.
    pub forth: Direction,
    /// From `b` to `a`.
    pub back: Direction,
    /// State of the local QP, as in `QpEngine::state`.
    pub state: Option<u32>,
    /// Rate that DCQCN allows the local QP, bit/s.
    pub dcqcn: Value,
    /// Work requests posted and not completed, of a local QP.
    pub outstanding: Option<u64>,
    /// Path MTU, B; 0: not known.
    pub path_mtu: u32,
    /// Last packet, ns of CLOCK_MONOTONIC; 0: none.
    pub last_seen_ns: u64,
}

impl Row {
    /// Whether `b` sends the bulk: then it is shown as the source.
    #[must_use]
    pub fn turned(&self) -> bool {
        // Near balance the order stays as it is, so that a line does not turn to and fro.
        let (forth, back) = (self.forth.total_bytes, self.back.total_bytes);
        back > forth.saturating_mul(2)
    }

    /// Source, destination, what goes there, what comes back: as shown.
    #[must_use]
    pub fn oriented(&self) -> (&End, &End, &Direction, &Direction) {
        let RowKey { a, b, .. } = &self.key;
        if self.turned() {
            (b, a, &self.back, &self.forth)
        } else {
            (a, b, &self.forth, &self.back)
        }
    }

    /// A number of both directions together, as far as known.
    pub fn both(&self, pick: impl Fn(&Direction) -> Value) -> Value {
        sum(pick(&self.forth), pick(&self.back))
    }

    /// Share of packets with a CE mark, of the direction that has more of it.
    pub fn ce_share(&self) -> Value {
        match (self.forth.ce_share, self.back.ce_share) {
            (Ok(a), Ok(b)) => Ok(a.max(b)),
            (Ok(known), Err(_)) | (Err(_), Ok(known)) => Ok(known),
            (Err(a), Err(b)) => Err(lesser(a, b, NO_PACKET)),
        }
    }

    /// Round trips, of the direction whose requests took more of them.
    ///
    /// # Errors
    /// Why none is known.
    pub fn rtt(&self) -> RttValue {
        let (_, _, there, back) = self.oriented();
        match (there.rtt, back.rtt) {
            (Ok(a), Ok(b)) => Ok(if b.samples > a.samples { b } else { a }),
            (Ok(known), Err(_)) | (Err(_), Ok(known)) => Ok(known),
            (Err(a), Err(b)) => Err(lesser(a, b, NO_ROUND_TRIP)),
        }
    }

    /// Packets in the interval, both ways, as far as known.
    #[must_use]
    pub fn active(&self) -> bool {
        self.both(|d| d.packets).is_ok_and(|packets| packets > 0.0)
    }
}
