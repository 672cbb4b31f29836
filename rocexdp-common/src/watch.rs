//! The monitor's programs as a function: what a frame that passes adds to the maps. Nothing is decided about the frame.
//!
//! [`watch`] is the body of the XDP program and of both TCX programs, over [`WatchEnv`], the maps and helpers they use:
//! the eBPF crate implements it with BPF maps, tests with plain memory. It counts every RoCE packet as a flow that is not
//! ours ([`crate::account`]), through tunnels and RoCEv1 too ([`crate::dissect::trace`]); link control by port and
//! priority; rare events; and round trips where a request and its answer pass the same interface. It must not drop,
//! change or redirect anything.
//!
//! Beside the endpoint's maps of the same names and layouts ([`crate::maps`]) there are:
//!
//! | map | type | key | value | writer |
//! |---|---|---|---|---|
//! | `TCX_COUNTERS` | array, mmapable | CPU; + CPUs for egress | [`QueueCounters`](crate::maps::QueueCounters) | TCX on that CPU |
//! | `PENDING` | LRU hash | [`PendingKey`] | [`Pending`] | XDP, TCX |
//! | `TAP_CONTROL`, `TAP`, `TAP_BOOK` | see [`tap`] | | | |
//!
//! `LINK_CONTROL` has, behind the entries of the receive queues and the one for queues that came later, one for each CPU
//! of TCX ingress.

pub mod stray;
pub mod tap;

use crate::{
    account::{CE, kind},
    bytes::Bytes,
    dissect::{Found, Start, Way, trace},
    headers::{Aeth, Bth, ICRC_LEN},
    icrc,
    maps::{EventKind, FlowKey, FlowState, Kind, LinkControl, Pending, PendingKey, Reason},
    opcode::{Operation, Position},
    parse::Packet,
    verdict::Outcome,
};

/// The map of what TCX counted, by CPU: ingress, then egress.
pub const TCX_COUNTERS: &str = "TCX_COUNTERS";
/// The map of requests that wait for their answer.
pub const PENDING: &str = "PENDING";
/// Global in the object: CPUs that `TCX_COUNTERS` has room for, `u32`.
pub const GLOBAL_CPUS: &str = "N_CPUS";

/// XDP program for frames of several buffers. (The kernel keeps 15 bytes of a name.)
pub const XDP_FRAGS: &str = "rocexdp_mon_f";
/// XDP program for all other devices.
pub const XDP_PLAIN: &str = "rocexdp_mon";
/// TCX program on ingress.
pub const TCX_INGRESS: &str = "rocexdp_mon_in";
/// TCX program on egress.
pub const TCX_EGRESS: &str = "rocexdp_mon_out";
/// All of them.
pub const PROGRAMS: [&str; 4] = [XDP_FRAGS, XDP_PLAIN, TCX_INGRESS, TCX_EGRESS];

/// Entries of `PENDING` unless asked otherwise.
pub const DEFAULT_PENDING: u32 = 8192;

/// A request that waited longer than this was answered by a later acknowledgement, or never: its PSN may be in use again.
pub const PENDING_NS: u64 = 10_000_000_000;

/// UDP length of a CNP, as in [`crate::verdict`].
const CNP_UDP_LEN: u32 = (8 + Bth::LEN + 16 + ICRC_LEN) as u32;

/// What a rare event tells beside its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// Which.
    pub kind: EventKind,
    /// As the kind says.
    pub detail: u32,
}

/// The maps and helpers of the monitor's programs, as one frame on one hook sees them.
pub trait WatchEnv {
    /// Whether the frame was sent, not received.
    fn egress(&self) -> bool;
    /// CLOCK_MONOTONIC, ns; with `exact` false it may be that of the last tick of the kernel, which costs less.
    fn now_ns(&self, exact: bool) -> u64;
    /// Picoseconds of a pause quantum; 0: not known.
    fn quantum_ps(&self) -> u32;
    /// Works on a flow, entered if need be (then `bool` is true); `None`: it can't be had.
    fn with_flow(&mut self, key: &FlowKey, work: impl FnOnce(&mut FlowState)) -> Option<bool>;
    /// Counts an entry made in `FLOWS`.
    fn flow_inserted(&mut self);
    /// Works on this queue's link control.
    fn with_link(&mut self, work: impl FnOnce(&mut LinkControl));
    /// The request that waits under this key.
    fn pending(&mut self, key: &PendingKey) -> Option<Pending>;
    /// Enters or replaces one.
    fn set_pending(&mut self, key: &PendingKey, value: &Pending);
    /// Takes one out.
    fn clear_pending(&mut self, key: &PendingKey);
    /// Sends a rare event, if the rate allows it. Without a packet: it was not parsed so far.
    fn event(&mut self, news: News, packet: Option<&Packet>);
    /// Hands the frame to the tap, if somebody listens. `headers`: its bytes before the payload, `None`: not known.
    fn tap(&mut self, headers: Option<u32>);
}

/// Counts one frame; the caller books the outcome, which is to pass it always. `packet` shall be [`Packet::EMPTY`] and
/// `way` [`Way::NEW`]: they are the caller's, because BPF's stack has little room.
#[inline(always)]
pub fn watch<B: Bytes + ?Sized, E: WatchEnv>(
    frame: &B,
    packet: &mut Packet,
    way: &mut Way,
    env: &mut E,
) -> Outcome {
    match trace(frame, Start::Ethernet(0), packet, way) {
        Found::RoceV2 => roce(frame, packet, true, env),
        Found::RoceV1 => roce(frame, packet, false, env),
        Found::Pfc(pfc) => {
            if !env.egress() {
                let (now, quantum) = (env.now_ns(true), env.quantum_ps());
                env.with_link(|link| {
                    link.pfc_frames += 1;
                    let mut enabled = pfc.class_enable;
                    for (priority, quanta) in link.pfc.iter_mut().zip(pfc.quanta) {
                        if enabled & 1 != 0 {
                            priority.take(quanta, quantum, now);
                        }
                        enabled >>= 1;
                    }
                });
            }
            Outcome::PassedOther(None)
        }
        Found::GlobalPause { quanta } => {
            if !env.egress() {
                let (now, quantum) = (env.now_ns(true), env.quantum_ps());
                env.with_link(|link| link.global.take(quanta, quantum, now));
            }
            Outcome::PassedOther(None)
        }
        Found::Lldp => {
            if !env.egress() {
                env.with_link(|link| link.lldp += 1);
            }
            Outcome::PassedOther(None)
        }
        Found::Other => Outcome::PassedOther(None),
        Found::Stopped(reason) => {
            if let Reason::PauseMalformed = reason
                && !env.egress()
            {
                env.with_link(|link| link.other_mac_control += 1);
            }
            if !reason.is_rocev2() {
                return Outcome::PassedOther(Some(reason));
            }
            let news = News {
                kind: EventKind::Malformed,
                detail: reason as u32,
            };
            env.event(news, None);
            env.tap(None);
            Outcome::PassedRoce(Some(reason))
        }
    }
}

/// Whether the responder will answer the packet by itself, with an acknowledgement or with data.
#[inline(always)]
const fn asks(packet: &Packet) -> bool {
    match packet.operation {
        Some((Operation::Send | Operation::Write, _)) => packet.bth.ack_req,
        Some((
            Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite,
            _,
        )) => true,
        _ => false,
    }
}

/// Whether it answers a request for the first time. NAKs don't count: what they name will be sent again.
#[inline(always)]
const fn answers(packet: &Packet, kind: Kind) -> bool {
    match kind {
        Kind::Ack | Kind::AtomicAck => true,
        Kind::ReadResponse => matches!(
            packet.operation,
            Some((_, Position::First | Position::Only))
        ),
        _ => false,
    }
}

/// The syndrome of an acknowledgement, as an event's detail.
#[inline(always)]
fn syndrome(aeth: Option<Aeth>) -> u32 {
    aeth.map_or(0, |aeth| u32::from(aeth.syndrome.to_byte()))
}

#[inline(always)]
fn roce<B: Bytes + ?Sized, E: WatchEnv>(
    frame: &B,
    packet: &Packet,
    v2: bool,
    env: &mut E,
) -> Outcome {
    let payload = packet.payload + u32::from(packet.bth.pad) + ICRC_LEN as u32;
    env.tap(packet.end.checked_sub(payload));
    let kind = kind(packet);
    let mut bad = None;
    if let Kind::Cnp = kind
        && v2
    {
        // RoCEv1 has no CNP of a form that is known.
        bad = if packet.udp_len() != CNP_UDP_LEN {
            Some(Reason::CnpMalformed)
        } else {
            match icrc::check(frame, packet) {
                Some(true) => None,
                Some(false) => Some(Reason::CnpIcrc),
                None => Some(Reason::CnpMalformed),
            }
        };
    }
    let (asks, answers) = (asks(packet), answers(packet, kind));
    let now = env.now_ns(asks || answers || packet.ecn == CE || matches!(kind, Kind::Cnp));
    let key = if answers {
        PendingKey::answered(&packet.flow, packet.bth.psn.get())
    } else {
        PendingKey::request(&packet.flow, packet.bth.psn.get())
    };
    let waited = if answers || asks {
        env.pending(&key)
    } else {
        None
    };
    if answers && waited.is_some() {
        env.clear_pending(&key);
    }
    let mut again = false;
    let counted = env.with_flow(&packet.flow, |flow| {
        match bad {
            None => again = stray::count(flow, packet, now),
            Some(_) => flow.counters.cnp_bad_icrc += 1,
        }
        if answers && let Some(request) = waited {
            answer(flow, &request, now);
        }
    });
    if asks {
        ask(env, &key, packet, waited, again, now);
    }
    match counted {
        None => return Outcome::PassedRoce(Some(Reason::MapFull)),
        Some(true) => env.flow_inserted(),
        Some(false) => {}
    }
    let news = match (kind, bad) {
        (Kind::Nak, _) => Some((EventKind::Nak, syndrome(packet.aeth))),
        (Kind::RnrNak, _) => Some((EventKind::RnrNak, syndrome(packet.aeth))),
        (_, Some(reason)) => Some((EventKind::BadCnp, reason as u32)),
        _ if packet.operation.is_none() => {
            Some((EventKind::Malformed, Reason::UnknownOpcode as u32))
        }
        _ => None,
    };
    if let Some((kind, detail)) = news {
        env.event(News { kind, detail }, Some(packet));
    }
    if packet.operation.is_none() {
        bad = Some(Reason::UnknownOpcode);
    }
    Outcome::PassedRoce(bad)
}

/// Stamps a request, unless which of several will be answered could not be told.
#[inline(always)]
fn ask<E: WatchEnv>(
    env: &mut E,
    key: &PendingKey,
    packet: &Packet,
    waits: Option<Pending>,
    again: bool,
    now: u64,
) {
    let ambiguous = again
        || match waits {
            Some(p) => p.time_ns == 0 || now.wrapping_sub(p.time_ns) < PENDING_NS,
            None => false,
        };
    let value = Pending {
        time_ns: if ambiguous { 0 } else { now },
        dest_qpn: packet.flow.dest_qpn,
        reserved: 0,
    };
    env.set_pending(key, &value);
}

/// Takes a round trip into the answer's flow.
///
/// The key does not name the requester's QP, which no request carries: an answer of one QP can find the request of
/// another with the same PSN between the same hosts. So a time counts only where the answer before it came from the same
/// QP; the first of each flow is lost by this.
#[inline(always)]
fn answer(flow: &mut FlowState, request: &Pending, now: u64) {
    let waited = now.wrapping_sub(request.time_ns);
    if request.time_ns == 0 || waited >= PENDING_NS {
        return;
    }
    if flow.sender_qpn == request.dest_qpn {
        flow.rtt.take(waited);
    }
    flow.sender_qpn = request.dest_qpn;
}
