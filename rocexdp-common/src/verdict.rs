//! The XDP program as a function: what happens to a frame, and what every map holds after it.
//!
//! [`run`] is the program's body, over [`Env`], the maps and helpers it uses: the eBPF crate implements it with BPF
//! maps, tests and the simulator with plain memory, so the two can't differ in a decision. It follows "The kernel
//! side" of the design: whose packet it is, refusals with a reason, accounting, CNPs consumed, the rest to a socket.

use network_types::eth::EthHdr;

use crate::{
    account::CE,
    bytes::Bytes,
    dissect::{ETH_LLDP, ETH_MAC_CONTROL, Found, mac_control},
    headers::{Bth, ICRC_LEN},
    icrc,
    ids::{Gid, Psn, is_multicast},
    maps::{
        FlowKey, FlowState, LinkControl, MULTICAST_QPN, QpConfig, QpCounters, QueueCounters,
        Reason, local_addr,
    },
    news::News,
    opcode::{Operation, Transport},
    parse::{self, NotParsed, Packet},
    stray,
    track::AtGap,
};

const RC: u8 = Transport::Rc as u8;
const UC: u8 = Transport::Uc as u8;

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
    /// CLOCK_MONOTONIC, ns; with `exact` false it may be that of the last tick of the kernel, at most 10 ms ago, which
    /// costs less.
    fn now_ns(&self, exact: bool) -> u64;
    /// [`local_addr`] flags of an address; 0: not ours.
    fn local_address(&self, gid: &Gid) -> u32;
    /// Reads the configuration in a slot; `None`: the slot is free, or was written meanwhile, so that what was read
    /// may be of two publications.
    fn with_config<R>(&self, slot: u32, read: impl FnOnce(&QpConfig) -> R) -> Option<R>;
    /// Entry `index` of `QP_COUNTERS`; `None`: there is none.
    fn qp(&mut self, index: u32) -> Option<&mut QpCounters>;
    /// A flow, entered if need be (then `bool` is true); `None`: it can't be had.
    fn flow(&mut self, key: &FlowKey) -> Option<(&mut FlowState, bool)>;
    /// Counts an entry made in `FLOWS`.
    fn flow_inserted(&mut self);
    /// Marks a slot for the engine. Comes after the counters were written.
    fn mark_dirty(&mut self, slot: u32);
    /// Picoseconds of a pause quantum; 0: not known.
    fn quantum_ps(&self) -> u32;
    /// This queue's entry of `LINK_CONTROL`; `None`: there is none.
    fn link_control(&mut self) -> Option<&mut LinkControl>;
    /// Sends a rare event, if the rate allows it.
    fn event(&mut self, news: News, packet: &Packet);
    /// Hands the frame to the recorder, if one listens; `headers`: its bytes before the payload.
    fn tap(&mut self, headers: u32);
    /// Names the socket for the frame: entry `index` of `XSKS`. False: there is none.
    fn redirect(&mut self, index: u32) -> bool;
}

/// Decides about one frame and accounts for it in the QP's or flow's entry; the caller books the outcome.
#[inline(always)]
pub fn run<B: Bytes + ?Sized, E: Env>(frame: &B, env: &mut E) -> Outcome {
    let mut packet = Packet::EMPTY;
    let outcome = match parse::parse_into(frame, &mut packet) {
        Ok(()) => roce(frame, &packet, env),
        Err(NotParsed::Other) => {
            link_control(frame, env);
            Outcome::PassedOther(None)
        }
        Err(NotParsed::Malformed(reason)) if reason.is_rocev2() => {
            Outcome::PassedRoce(Some(reason))
        }
        Err(NotParsed::Malformed(reason)) => Outcome::PassedOther(Some(reason)),
    };
    if let Some(news) = News::of(outcome.reason(), &packet) {
        env.event(news, &packet);
    }
    outcome
}

/// Counts pause frames and LLDP; the kernel gets them all the same.
#[inline(always)]
fn link_control<B: Bytes + ?Sized, E: Env>(frame: &B, env: &mut E) {
    let at = EthHdr::LEN;
    let Some(ether_type) = frame.load_rare(at - 2) else {
        return;
    };
    match u16::from_be_bytes(ether_type) {
        ETH_LLDP => {
            if let Some(link) = env.link_control() {
                link.lldp += 1;
            }
        }
        ETH_MAC_CONTROL => {
            let found = mac_control(frame, at as u32);
            let (now, quantum) = (env.now_ns(true), env.quantum_ps());
            let Some(link) = env.link_control() else {
                return;
            };
            match found {
                Ok(Found::Pfc(pfc)) => link.take_pfc(pfc.class_enable, pfc.quanta, quantum, now),
                Ok(Found::GlobalPause { quanta }) => link.global.take(quanta, quantum, now),
                _ => link.other_mac_control += 1,
            }
        }
        _ => {}
    }
}

#[inline(always)]
fn roce<B: Bytes + ?Sized, E: Env>(frame: &B, packet: &Packet, env: &mut E) -> Outcome {
    let behind = packet.payload + packet.bth.pad as u32 + ICRC_LEN as u32;
    env.tap(packet.end.saturating_sub(behind));
    let slot = packet.flow.dest_qpn & env.slot_mask();
    let claim = env.with_config(slot, |config| claim(packet, config));
    match claim.unwrap_or(Claim::None) {
        Claim::Accepted(terms) if is_at(packet, &terms, env) => {
            local(frame, packet, slot, &terms, env)
        }
        Claim::Refused(reason) => Outcome::Dropped(reason),
        other => {
            let elsewhere = matches!(other, Claim::Elsewhere);
            match unclaimed(env.local_address(&packet.flow.dst), elsewhere) {
                Some(reason) => Outcome::Dropped(reason),
                None => foreign(packet, env),
            }
        }
    }
}

/// Whether the packet was sent to where a QP is that has no one address.
#[inline(always)]
fn is_at<E: Env>(packet: &Packet, terms: &Terms, env: &E) -> bool {
    terms.address_flags == 0 || env.local_address(&packet.flow.dst) & terms.address_flags != 0
}

/// What a QP says to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Mine; if [`Terms::address_flags`] are set, only if the destination is an address of that kind.
    Accepted(Terms),
    /// Sent to me, but not for me to take.
    Refused(Reason),
    /// My QP number, another address.
    Elsewhere,
    /// Another QP number.
    None,
}

/// What of its configuration a QP's packet is treated by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// [`QpConfig::owner`].
    pub owner: u32,
    /// [`QpConfig::address_flags`].
    pub address_flags: u32,
    /// Path MTU, bytes.
    pub path_mtu: u32,
    /// How it meets a gap.
    pub at_gap: AtGap,
    /// [`QpConfig::resync`].
    pub resync: u32,
    /// [`QpConfig::resync_request_psn`].
    pub request_psn: Psn,
    /// [`QpConfig::resync_response_psn`].
    pub response_psn: Psn,
}

/// Whether a packet is the QP's: its number, its address, its peer's address, its transport service. A UD QP hears everybody: the
/// Q_Key, and whose QP the sender is, are the transport's to check.
#[inline(always)]
pub fn claim(packet: &Packet, config: &QpConfig) -> Claim {
    if config.qpn != packet.flow.dest_qpn {
        return Claim::None;
    }
    if config.address_flags == 0 && !same(config.local_gid, packet.flow.dst) {
        return Claim::Elsewhere;
    }
    let connected = matches!(config.transport, RC | UC);
    if connected && !same(config.peer_gid, packet.flow.src) {
        return Claim::Refused(Reason::PeerAddress);
    }
    match packet.operation {
        None => return Claim::Refused(Reason::UnknownOpcode),
        // Told by the opcode alone: real ones differ in DSCP, UDP source port and the bits beside.
        Some((Operation::Cnp, _)) => {
            if packet.udp_len() != CNP_UDP_LEN {
                return Claim::Refused(Reason::CnpMalformed);
            }
        }
        Some(_) => {
            if packet.bth.opcode.service() as u8 != config.transport {
                return Claim::Refused(Reason::TransportMismatch);
            }
        }
    }
    Claim::Accepted(Terms {
        owner: config.owner,
        address_flags: config.address_flags as u32,
        path_mtu: 1 << (config.path_mtu_log2 & 31),
        // Selective repeat fills the gaps behind what has come.
        at_gap: if config.transport == RC && !packet.bth.opcode.is_selective() {
            AtGap::Wait
        } else {
            AtGap::Skip
        },
        resync: config.resync,
        request_psn: Psn::new(config.resync_request_psn),
        response_psn: Psn::new(config.resync_response_psn),
    })
}

/// Compares by words. The arrays come by value, since the compiler then knows how they are aligned where they lie: by
/// reference it would have the BPF program load and compare byte by byte.
#[inline(always)]
fn same(a: Gid, b: Gid) -> bool {
    u128::from_ne_bytes(a) == u128::from_ne_bytes(b)
}

/// Why a packet that no QP claims must not reach the kernel, which would answer "port unreachable"; `None`: its
/// destination address is not ours, or not ours alone.
#[inline(always)]
pub const fn unclaimed(address_flags: u32, qpn_is_ours_elsewhere: bool) -> Option<Reason> {
    let shared = address_flags & local_addr::SHARED != 0;
    if shared || address_flags & local_addr::EXCLUSIVE == 0 {
        None
    } else if qpn_is_ours_elsewhere {
        Some(Reason::LocalAddress)
    } else {
        Some(Reason::UnknownQpn)
    }
}

/// Whether its time shall be exact: it tells of congestion.
#[inline(always)]
const fn is_news(packet: &Packet) -> bool {
    packet.ecn == CE || matches!(packet.operation, Some((Operation::Cnp, _)))
}

/// A packet that a local QP takes.
#[inline(always)]
fn local<B: Bytes + ?Sized, E: Env>(
    frame: &B,
    packet: &Packet,
    slot: u32,
    terms: &Terms,
    env: &mut E,
) -> Outcome {
    if env.queue() >= env.queues() {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    }
    let index = slot.wrapping_mul(env.queues()).wrapping_add(env.queue());
    let now = env.now_ns(is_news(packet));
    if matches!(packet.operation, Some((Operation::Cnp, _))) {
        return cnp(frame, packet, slot, index, terms, now, env);
    }
    let socket = terms
        .owner
        .wrapping_mul(env.queues())
        .wrapping_add(env.queue());
    let redirected = env.redirect(socket);
    let Some(counters) = env.qp(index) else {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    };
    counters.count_local(packet, terms, now);
    if redirected {
        counters.redirected += 1;
    } else {
        counters.no_socket += 1;
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
    terms: &Terms,
    now: u64,
    env: &mut E,
) -> Outcome {
    let Some(right) = icrc::check(frame, packet) else {
        return Outcome::Dropped(Reason::CnpMalformed);
    };
    let Some(counters) = env.qp(index) else {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    };
    if !right {
        counters.cnp_bad_icrc += 1;
        return Outcome::Dropped(Reason::CnpIcrc);
    }
    counters.count_cnp(packet, terms, now);
    env.mark_dirty(slot);
    Outcome::Consumed
}

/// Another's flow: counted, and passed whatever it is.
#[inline(always)]
fn foreign<E: Env>(packet: &Packet, env: &mut E) -> Outcome {
    let now = env.now_ns(is_news(packet));
    let Some((flow, inserted)) = env.flow(&packet.flow) else {
        return Outcome::PassedRoce(Some(Reason::MapFull));
    };
    let mut notes = stray::Notes::default();
    stray::judge(flow, packet, &mut notes);
    flow.count(packet, now);
    stray::settle(flow, &notes);
    if inserted {
        env.flow_inserted();
    }
    let reason = if packet.operation.is_none() {
        Some(Reason::UnknownOpcode)
    } else if packet.flow.dest_qpn == MULTICAST_QPN && is_multicast(&packet.flow.dst) {
        Some(Reason::UnknownGroup)
    } else {
        None
    };
    Outcome::PassedRoce(reason)
}
