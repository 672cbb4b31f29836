//! The XDP program as a function: what happens to a frame, and what every map holds after it.
//!
//! [`run`] is the program's body, over [`Env`], the maps and helpers it uses: the eBPF crate implements it with BPF
//! maps, tests and the simulator with plain memory, so the two can't differ in a decision. It follows "The kernel
//! side" of the design: whose packet it is, refusals with a reason, accounting, CNPs consumed, the rest to a socket.

use crate::{
    account::CE,
    bytes::Bytes,
    headers::{Bth, ICRC_LEN},
    icrc,
    ids::Gid,
    maps::{FlowKey, FlowState, QpConfig, QpCounters, QueueCounters, Reason, local_addr},
    opcode::{Operation, Transport},
    parse::{self, NotParsed, Packet},
};

/// UDP length of a CNP: UDP header, BTH, 16 reserved bytes, ICRC (a ConnectX-4 Lx CNP is in the shared ICRC vectors).
const CNP_UDP_LEN: u32 = (8 + Bth::LEN + 16 + ICRC_LEN) as u32;

/// What XDP does with the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The kernel's stack gets it.
    Pass,
    /// Nobody gets it: refused, or a CNP that was counted.
    Drop,
    /// The AF_XDP socket that [`Env::redirect`] named gets it.
    Redirect,
}

/// How one frame is booked on its queue: exactly one of redirected, consumed, dropped and passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// To the socket.
    Redirected,
    /// CNP of a local QP, counted there.
    Consumed,
    /// Refused.
    Dropped(Reason),
    /// RoCEv2 that is not for a local QP, or that has no socket; with what was wrong, if anything.
    PassedRoce(Option<Reason>),
    /// Not RoCEv2, or not known to be; with what was wrong, if anything.
    PassedOther(Option<Reason>),
}

impl Outcome {
    /// What XDP shall do.
    pub const fn action(self) -> Action {
        match self {
            Self::Redirected => Action::Redirect,
            Self::Consumed | Self::Dropped(_) => Action::Drop,
            Self::PassedRoce(_) | Self::PassedOther(_) => Action::Pass,
        }
    }

    /// The reason counted, if any.
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Dropped(reason) => Some(reason),
            Self::PassedRoce(reason) | Self::PassedOther(reason) => reason,
            Self::Redirected | Self::Consumed => None,
        }
    }
}

impl QueueCounters {
    /// Books one frame.
    #[inline(always)]
    pub fn book(&mut self, outcome: Outcome) {
        self.frames += 1;
        if !matches!(outcome, Outcome::PassedOther(_)) {
            self.rocev2 += 1;
        }
        match outcome {
            Outcome::Redirected => self.redirected += 1,
            Outcome::Consumed => self.consumed += 1,
            Outcome::Dropped(_) => self.dropped += 1,
            Outcome::PassedRoce(_) => self.passed_rocev2 += 1,
            Outcome::PassedOther(_) => self.passed_other += 1,
        }
        if let Some(reason) = outcome.reason()
            && let Some(count) = self.reasons.get_mut(reason as usize)
        {
            *count += 1;
        }
    }
}

/// The maps and helpers that the program uses, as seen from one receive queue.
pub trait Env {
    /// The receive queue of this frame.
    fn queue(&self) -> u32;
    /// Queues that the maps have room for.
    fn queues(&self) -> u32;
    /// QP slots - 1.
    fn slot_mask(&self) -> u32;
    /// CLOCK_MONOTONIC, ns.
    fn now_ns(&self) -> u64;
    /// [`local_addr`] flags of an address; 0: not ours.
    fn local_address(&self, gid: &Gid) -> u32;
    /// The configuration in a slot, as one publication; `None`: the slot is free or being written.
    fn qp_config(&self, slot: u32) -> Option<QpConfig>;
    /// Works on entry `index` of `QP_COUNTERS`; `None`: there is none.
    fn with_qp<R>(&mut self, index: u32, work: impl FnOnce(&mut QpCounters) -> R) -> Option<R>;
    /// Works on a flow, entered if need be (then `bool` is true); `None`: it can't be had.
    fn with_flow(&mut self, key: &FlowKey, work: impl FnOnce(&mut FlowState)) -> Option<bool>;
    /// Counts an entry made in `FLOWS`.
    fn flow_inserted(&mut self);
    /// Marks a slot for the engine. Comes after the counters were written.
    fn mark_dirty(&mut self, slot: u32);
    /// Names the socket for the frame: entry `index` of `XSKS`. False: there is none.
    fn redirect(&mut self, index: u32) -> bool;
}

/// Decides about one frame and accounts for it in the QP's or flow's entry; the caller books the outcome.
#[inline(always)]
pub fn run<B: Bytes + ?Sized, E: Env>(frame: &B, env: &mut E) -> Outcome {
    match parse::parse(frame) {
        Ok(packet) => roce(frame, &packet, env),
        Err(NotParsed::Other) => Outcome::PassedOther(None),
        Err(NotParsed::Malformed(reason)) if reason.is_rocev2() => {
            Outcome::PassedRoce(Some(reason))
        }
        Err(NotParsed::Malformed(reason)) => Outcome::PassedOther(Some(reason)),
    }
}

#[inline(always)]
fn roce<B: Bytes + ?Sized, E: Env>(frame: &B, packet: &Packet, env: &mut E) -> Outcome {
    let qpn = packet.bth.dest_qpn.get();
    let slot = qpn & env.slot_mask();
    let config = env.qp_config(slot).filter(|config| config.qpn == qpn);
    match config {
        Some(config) if config.local_gid == packet.dst => local(frame, packet, slot, &config, env),
        other => match owner(env.local_address(&packet.dst), other.is_some()) {
            Some(reason) => Outcome::Dropped(reason),
            None => foreign(packet, env),
        },
    }
}

/// Why a packet that is for no QP of ours at its destination address must not reach the kernel, which would answer
/// "port unreachable". `None`: the address is not ours alone.
#[inline(always)]
pub const fn owner(address_flags: u32, qpn_is_ours_elsewhere: bool) -> Option<Reason> {
    if address_flags & local_addr::SHARED != 0 || address_flags & local_addr::EXCLUSIVE == 0 {
        None
    } else if qpn_is_ours_elsewhere {
        Some(Reason::LocalAddress)
    } else {
        Some(Reason::UnknownQpn)
    }
}

/// Why the QP does not accept a packet that was sent to its address; `None`: it does.
#[inline(always)]
pub fn refusal(packet: &Packet, config: &QpConfig) -> Option<Reason> {
    let connected =
        config.transport == Transport::Rc as u8 || config.transport == Transport::Uc as u8;
    if connected && packet.src != config.peer_gid {
        return Some(Reason::PeerAddress);
    }
    match packet.operation {
        None => Some(Reason::UnknownOpcode),
        // Told by the opcode alone: real ones differ in DSCP, UDP source port and the bits beside.
        Some((Operation::Cnp, _)) if packet.udp_len() != CNP_UDP_LEN => Some(Reason::CnpMalformed),
        Some((Operation::Cnp, _)) => None,
        Some(_) if packet.bth.opcode.transport() as u8 != config.transport => {
            Some(Reason::TransportMismatch)
        }
        Some(_) => None,
    }
}

#[inline(always)]
fn local<B: Bytes + ?Sized, E: Env>(
    frame: &B,
    packet: &Packet,
    slot: u32,
    config: &QpConfig,
    env: &mut E,
) -> Outcome {
    if let Some(reason) = refusal(packet, config) {
        return Outcome::Dropped(reason);
    }
    if env.queue() >= env.queues() {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    }
    let index = slot.wrapping_mul(env.queues()).wrapping_add(env.queue());
    let now = env.now_ns();
    if matches!(packet.operation, Some((Operation::Cnp, _))) {
        return cnp(frame, packet, slot, index, config, now, env);
    }
    let socket = config
        .owner
        .wrapping_mul(env.queues())
        .wrapping_add(env.queue());
    let redirected = env.redirect(socket);
    let counted = env.with_qp(index, |counters| {
        counters.count_local(packet, config, now);
        if redirected {
            counters.redirected += 1;
        } else {
            counters.no_socket += 1;
        }
    });
    if counted.is_none() {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    }
    if packet.ecn == CE {
        env.mark_dirty(slot);
    }
    if redirected {
        Outcome::Redirected
    } else {
        Outcome::PassedRoce(Some(Reason::NoSocket))
    }
}

/// A CNP ends here, when its ICRC is right.
#[inline(always)]
fn cnp<B: Bytes + ?Sized, E: Env>(
    frame: &B,
    packet: &Packet,
    slot: u32,
    index: u32,
    config: &QpConfig,
    now: u64,
    env: &mut E,
) -> Outcome {
    let Some(right) = icrc::check(frame, packet) else {
        return Outcome::Dropped(Reason::CnpMalformed);
    };
    let counted = env.with_qp(index, |counters| {
        if right {
            counters.count_local(packet, config, now);
        } else {
            counters.cnp_bad_icrc += 1;
        }
    });
    if counted.is_none() {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    }
    if !right {
        return Outcome::Dropped(Reason::CnpIcrc);
    }
    env.mark_dirty(slot);
    Outcome::Consumed
}

/// Another's flow: counted, and passed whatever it is.
#[inline(always)]
fn foreign<E: Env>(packet: &Packet, env: &mut E) -> Outcome {
    let key = FlowKey {
        src: packet.src,
        dst: packet.dst,
        dest_qpn: packet.bth.dest_qpn.get(),
        reserved: 0,
    };
    let now = env.now_ns();
    match env.with_flow(&key, |flow| flow.count(packet, now)) {
        None => return Outcome::PassedRoce(Some(Reason::MapFull)),
        Some(true) => env.flow_inserted(),
        Some(false) => {}
    }
    let unknown = packet.operation.is_none().then_some(Reason::UnknownOpcode);
    Outcome::PassedRoce(unknown)
}
