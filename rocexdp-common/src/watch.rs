//! The monitor's programs as a function: what a frame that passes adds to the maps. Nothing is decided about the frame.
//!
//! [`find`], then [`count`], are the body of the XDP program and of both TCX programs, over [`WatchEnv`], the maps and helpers they use:
//! the eBPF crate implements it with BPF maps, tests with plain memory. It counts every RoCE packet as a flow that is not
//! ours ([`crate::account`]), through tunnels and RoCEv1 too ([`crate::dissect`]); link control by port and
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

pub mod tap;

use crate::{
    account::{CE, kind},
    bytes::Bytes,
    dissect::{Found, Start, Way, step},
    headers::{Bth, ICRC_LEN},
    icrc,
    maps::{FlowKey, FlowState, Kind, LinkControl, Pending, PendingKey, Reason},
    news::News,
    opcode::{Operation, Position},
    parse::Packet,
    stray,
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

/// The maps and helpers of the monitor's programs, as one frame on one hook sees them.
pub trait WatchEnv {
    /// Whether the frame was sent, not received.
    fn egress(&self) -> bool;
    /// CLOCK_MONOTONIC, ns; with `exact` false it may be that of the last tick of the kernel, which costs less.
    fn now_ns(&self, exact: bool) -> u64;
    /// Picoseconds of a pause quantum; 0: not known.
    fn quantum_ps(&self) -> u32;
    /// A flow, entered if need be (then `bool` is true); `None`: it can't be had.
    fn flow(&mut self, key: &FlowKey) -> Option<(&mut FlowState, bool)>;
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
    /// Sends a rare event, if the rate allows it.
    fn event(&mut self, news: News, packet: &Packet);
    /// Hands the frame to the tap, if somebody listens. `headers`: its bytes before the payload, `None`: not known.
    fn tap(&mut self, headers: Option<u32>);
}

/// What a frame is; `None`: it is in a tunnel, and another call says. At first `packet` shall be [`Packet::EMPTY`] and
/// `way` [`Way::NEW`].
#[inline(always)]
pub fn find<B: Bytes + ?Sized>(frame: &B, packet: &mut Packet, way: &mut Way) -> Option<Found> {
    step(frame, Start::Ethernet(0), packet, way)
}

/// Counts what [`find`] found in the frame; the caller books the outcome, which is to pass it always.
#[inline(always)]
pub fn count<B: Bytes + ?Sized, E: WatchEnv>(
    frame: &B,
    found: Found,
    packet: &Packet,
    notes: &mut Notes,
    env: &mut E,
) -> Outcome {
    match found {
        Found::RoceV2 => roce(frame, packet, true, notes, env),
        Found::RoceV1 => roce(frame, packet, false, notes, env),
        Found::Pfc(pfc) => {
            if !env.egress() {
                let (now, quantum) = (env.now_ns(true), env.quantum_ps());
                env.with_link(|link| {
                    link.take_pfc(pfc.class_enable, pfc.quanta, quantum, now);
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
            if let Some(news) = News::of(Some(reason), packet) {
                env.event(news, packet);
            }
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
const fn answers(packet: &Packet) -> bool {
    match kind(packet) {
        Kind::Ack | Kind::AtomicAck => true,
        Kind::ReadResponse => matches!(
            packet.operation,
            Some((_, Position::First | Position::Only))
        ),
        _ => false,
    }
}

/// What one step finds out for the next ones. Numbers in memory, and each step a function of its own: what a step branched
/// on is then forgotten, and the BPF verifier walks the sum of the steps' ways, not their product.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notes {
    /// When.
    now_ns: u64,
    /// The request that waits under the packet's key.
    pending: Pending,
    /// 1: there is one.
    waits: u32,
    /// 1: the responder will answer it.
    asks: u32,
    /// 1: it answers a request.
    answers: u32,
    /// 0: nothing is wrong; else of a CNP: 1 its form, 2 its ICRC.
    bad_cnp: u32,
    /// 1: a request that was sent before.
    again: u32,
    /// What the trackers do with it.
    stray: stray::Notes,
}

const BAD_FORM: u32 = 1;
const BAD_ICRC: u32 = 2;

#[inline(always)]
fn roce<B: Bytes + ?Sized, E: WatchEnv>(
    frame: &B,
    packet: &Packet,
    v2: bool,
    notes: &mut Notes,
    env: &mut E,
) -> Outcome {
    let payload = packet.payload + u32::from(packet.bth.pad) + ICRC_LEN as u32;
    env.tap(packet.end.checked_sub(payload));
    look(packet, notes, env);
    // RoCEv1 has no CNP of a form that is known.
    notes.bad_cnp = if v2 && matches!(packet.operation, Some((Operation::Cnp, _))) {
        check_cnp(frame, packet)
    } else {
        0
    };
    wait(packet, notes, env);
    let Some((flow, inserted)) = env.flow(&packet.flow) else {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    };
    if notes.bad_cnp == 0 {
        stray::judge(flow, packet, &mut notes.stray);
        tally(flow, packet, notes);
    } else {
        flow.counters.cnp_bad_icrc += 1;
    }
    answer(flow, notes);
    if inserted {
        env.flow_inserted();
    }
    ask(packet, notes, env);
    tell(packet, notes, env)
}

/// What the packet is, and when.
#[inline(never)]
fn look<E: WatchEnv>(packet: &Packet, notes: &mut Notes, env: &mut E) {
    notes.asks = u32::from(asks(packet));
    notes.answers = u32::from(answers(packet));
    notes.waits = 0;
    notes.again = 0;
    let exact = notes.asks | notes.answers != 0
        || packet.ecn == CE
        || matches!(packet.operation, Some((Operation::Cnp, _)));
    notes.now_ns = env.now_ns(exact);
}

/// What is wrong with a CNP.
#[inline(always)]
fn check_cnp<B: Bytes + ?Sized>(frame: &B, packet: &Packet) -> u32 {
    if packet.udp_len() != CNP_UDP_LEN {
        return BAD_FORM;
    }
    match icrc::check(frame, packet) {
        Some(true) => 0,
        Some(false) => BAD_ICRC,
        None => BAD_FORM,
    }
}

/// Looks for a request under the packet's key; an answer takes it out.
#[inline(never)]
fn wait<E: WatchEnv>(packet: &Packet, notes: &mut Notes, env: &mut E) {
    if notes.asks | notes.answers == 0 {
        return;
    }
    let psn = packet.bth.psn.get();
    let key = if notes.answers != 0 {
        PendingKey::answered(&packet.flow, psn)
    } else {
        PendingKey::request(&packet.flow, psn)
    };
    if let Some(pending) = env.pending(&key) {
        notes.pending = pending;
        notes.waits = 1;
        if notes.answers != 0 {
            env.clear_pending(&key);
        }
    }
}

/// Counts the packet in its flow.
#[inline(never)]
fn tally(flow: &mut FlowState, packet: &Packet, notes: &mut Notes) {
    let before = flow.counters.requests.duplicates;
    flow.count(packet, notes.now_ns);
    notes.again = u32::from(flow.counters.requests.duplicates != before);
    stray::settle(flow, &notes.stray);
}

/// Takes a round trip into the answer's flow.
///
/// The key does not name the requester's QP, which no request carries: an answer of one QP can find the request of
/// another with the same PSN between the same hosts. So a time counts only where the answer before it came from the same
/// QP; the first of each flow is lost by this.
#[inline(never)]
fn answer(flow: &mut FlowState, notes: &Notes) {
    let request = &notes.pending;
    let waited = notes.now_ns.wrapping_sub(request.time_ns);
    if notes.answers & notes.waits == 0 || request.time_ns == 0 || waited >= PENDING_NS {
        return;
    }
    if flow.sender_qpn == request.dest_qpn {
        flow.rtt.take(waited);
    }
    flow.sender_qpn = request.dest_qpn;
}

/// Stamps a request, unless which of several will be answered could not be told.
#[inline(never)]
fn ask<E: WatchEnv>(packet: &Packet, notes: &Notes, env: &mut E) {
    if notes.asks == 0 {
        return;
    }
    let then = notes.pending.time_ns;
    let waits = notes.waits != 0 && (then == 0 || notes.now_ns.wrapping_sub(then) < PENDING_NS);
    let value = Pending {
        time_ns: if waits || notes.again != 0 {
            0
        } else {
            notes.now_ns
        },
        dest_qpn: packet.flow.dest_qpn,
        reserved: 0,
    };
    let key = PendingKey::request(&packet.flow, packet.bth.psn.get());
    env.set_pending(&key, &value);
}

/// Sends what is news; says how to book the packet.
#[inline(always)]
fn tell<E: WatchEnv>(packet: &Packet, notes: &Notes, env: &mut E) -> Outcome {
    let reason = match notes.bad_cnp {
        BAD_FORM => Some(Reason::CnpMalformed),
        BAD_ICRC => Some(Reason::CnpIcrc),
        _ if packet.operation.is_none() => Some(Reason::UnknownOpcode),
        _ => None,
    };
    if let Some(news) = News::of(reason, packet) {
        env.event(news, packet);
    }
    Outcome::PassedRoce(reason)
}
