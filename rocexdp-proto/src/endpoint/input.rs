//! Inputs: frames, congestion signals, the time, doorbells.
//!
//! A frame is checked from the outside in; until all checks that need no transport have passed, its ICRC last, nothing but a
//! counter changes. Must not: send anything.

use rocexdp_common::opcode::Transport;

use super::{CongestionSignal, Endpoint, EndpointConfig, EndpointCounters, Event, IcrcMode, qp_at};
use crate::drop::DropReason;
use crate::ids::Qpn;
use crate::qp::{Qp, QpState, Service};
use crate::time::Timestamp;
use crate::timer::TimerKind;
use crate::verbs::MULTICAST_QPN;
use crate::wire::{Frags, Head, IcrcSeen, Origin, Packet, RxMeta, is_multicast};

/// ECN codepoint Congestion Experienced.
const CE: u8 = 3;
/// Zero bytes behind the BTH of a CNP.
const CNP_PAYLOAD: u32 = 16;

impl Endpoint {
    /// A frame was received, in one or more pieces, from its Ethernet header on.
    ///
    /// # Errors
    /// Why it was not accepted; counted already.
    pub fn handle_frame(
        &mut self,
        now: Timestamp,
        meta: &RxMeta,
        frame: Frags<'_>,
    ) -> Result<(), DropReason> {
        // The queue means nothing to the transport; drivers count by it.
        self.pauses.look(now);
        let result = self.receive(now, meta, frame);
        match result {
            Ok(()) => self.counters.accepted += 1,
            Err(DropReason::Icrc) => self.counters.icrc_errors += 1,
            Err(reason) => {
                if let Some(n) = self.counters.drops.get_mut(reason.index()) {
                    *n += 1;
                }
            }
        }
        result
    }

    fn receive(
        &mut self,
        now: Timestamp,
        meta: &RxMeta,
        frame: Frags<'_>,
    ) -> Result<(), DropReason> {
        let origin = meta.origin;
        let head = Head::of(frame);
        let p = Packet::parse(&head, frame)?;
        if p.bth.dest_qpn == MULTICAST_QPN || is_multicast(&p.dst) {
            let result = self.receive_group(&head, &p, meta);
            if origin == Origin::Wire {
                match result {
                    Ok(()) => self.counters.group_accepted += 1,
                    Err(_) => self.counters.group_dropped += 1,
                }
            }
            return result;
        }
        let slot = *self
            .slots
            .get(&p.bth.dest_qpn.get())
            .ok_or(DropReason::UnknownQpn)?;
        let qp = qp_at(&mut self.qps, slot).ok_or(DropReason::UnknownQpn)?;
        let checked = check(qp, &p).and_then(|()| {
            let right = icrc_is_right(&self.config, &mut self.counters, &p, &head, meta.icrc);
            qp.stats.icrc_errors += u64::from(right.is_err());
            right
        });
        let cnp = p.bth.opcode.transport() == Transport::Cnp;
        let result = checked.and_then(|()| {
            if cnp {
                if p.payload.len() != CNP_PAYLOAD || p.bth.pad != 0 {
                    return Err(DropReason::CnpMalformed);
                }
                qp.congestion.cnps(now, 1, &mut qp.stats);
                return Ok(());
            }
            if p.ecn == CE
                && self.config.ecn_from_frames
                && self.config.cnp_enabled
                && qp.cnp_wanted
                && qp.route.is_some()
                && qp.congestion.np.on_ce(now, 1)
            {
                qp.cnp_owed = true;
            }
            if p.bth.opcode.transport() == Transport::Ud {
                let grh = p.grh(&head).ok_or(DropReason::NotIp)?;
                return qp.datagram(&mut self.regions, &p, &grh);
            }
            if p.bth.opcode.is_response() {
                qp.response(now, &p)
            } else {
                qp.request(now, &mut self.regions, &p)
            }
        });
        if origin != Origin::Wire {
            qp.stats.rx_looped += 1;
        }
        match result {
            Ok(()) => {
                qp.stats.rx_accepted += 1;
                // A CNP is the network's answer to what we sent: the peer may have sent nothing of its own yet.
                if !cnp && qp.take_established() {
                    self.events
                        .push_back(Event::CommunicationEstablished { qpn: qp.qpn });
                }
            }
            Err(_) => qp.stats.rx_dropped += 1,
        }
        self.settle(slot);
        result
    }

    /// CE marks and CNPs of a QP were counted elsewhere (by XDP, in the QP's map entry).
    pub fn handle_congestion(&mut self, now: Timestamp, qpn: Qpn, signal: CongestionSignal) {
        let Some(&slot) = self.slots.get(&qpn.get()) else {
            return;
        };
        let Some(qp) = qp_at(&mut self.qps, slot) else {
            return;
        };
        // Without a peer there is nobody to notify.
        if signal.ce_marks > 0
            && qp.route.is_some()
            && self.config.cnp_enabled
            && qp.cnp_wanted
            && qp.state().receives()
            && qp.congestion.np.on_ce(now, signal.ce_marks)
        {
            qp.cnp_owed = true;
        }
        if signal.cnps > 0 {
            qp.congestion.cnps(now, signal.cnps, &mut qp.stats);
        }
        self.settle(slot);
    }

    /// The time of [`Endpoint::poll_timeout`] may have come. Returns how many timers of QPs were due.
    pub fn handle_timeout(&mut self, now: Timestamp) -> usize {
        let mut due = 0;
        // Those that are over are so for who asks next.
        let _ = self.pauses.bits(now);
        while let Some(entry) = self.timers.pop_due(now) {
            let (_, slot, kind) = entry;
            let Some(qp) = qp_at(&mut self.qps, slot) else {
                self.timers.was_stale();
                continue;
            };
            if !self.timers.is_due(&mut qp.timers, now, entry) {
                continue;
            }
            due += 1;
            let mut put_off = None;
            match kind {
                TimerKind::Ack | TimerKind::Rnr => {
                    if kind == TimerKind::Ack {
                        put_off = self.pauses.excuse(now, qp.priority, qp.paused_mark);
                    }
                    match put_off {
                        Some((time, _)) => qp.send.put_off(time),
                        None => qp.handle_timeout(now),
                    }
                }
                TimerKind::Pace => qp.waiting.pace = false,
                TimerKind::Rate => qp.congestion.handle_timeout(now, &mut qp.stats),
                TimerKind::Cnp => {
                    qp.cnp_owed |= qp.congestion.np.handle_timeout(now) && qp.state().receives()
                }
            }
            self.settle(slot);
            if let Some((_, mark)) = put_off
                && let Some(qp) = qp_at(&mut self.qps, slot)
            {
                qp.paused_mark = mark;
            }
        }
        due
    }

    /// Someone posted to one of the QP's queues.
    pub fn work_posted(&mut self, now: Timestamp, qpn: Qpn) {
        // Sending starts with the next poll_transmit; the time is for later use (a fence, an adaptive timer).
        let _ = now;
        let Some(&slot) = self.slots.get(&qpn.get()) else {
            return;
        };
        if let Some(qp) = qp_at(&mut self.qps, slot) {
            match qp.state() {
                QpState::Err => qp.flush(),
                QpState::Sqe => qp.flush_stopped(),
                _ => {}
            }
        }
        self.settle(slot);
    }
}

/// The ICRC, as far as the mode asks for a right one.
pub(super) fn icrc_is_right(
    config: &EndpointConfig,
    counters: &mut EndpointCounters,
    p: &Packet<'_>,
    head: &Head,
    seen: IcrcSeen,
) -> Result<(), DropReason> {
    let right = match seen {
        IcrcSeen::No => p.icrc_is_right(head),
        IcrcSeen::As(right) => right,
    };
    if right || mutant!("icrc_unchecked") {
        return Ok(());
    }
    if config.icrc == IcrcMode::Ignore {
        counters.icrc_ignored += 1;
        return Ok(());
    }
    Err(DropReason::Icrc)
}

/// The checks that need the QP but neither the ICRC nor the transport (rxe_recv.c `check_addr`, `check_keys`,
/// `check_type_state`).
fn check(qp: &Qp, p: &Packet<'_>) -> Result<(), DropReason> {
    if let Service::Datagram(local) = &qp.service {
        // Anyone may send.
        if !qp.state().receives() {
            return Err(DropReason::QpState);
        }
        // QP 1 is that of all the host's addresses: whoever gave it the frame knows them.
        if p.dst != local.address && !local.is_everywhere() {
            return Err(DropReason::LocalAddress);
        }
    } else {
        let route = qp.route.as_ref().ok_or(DropReason::QpState)?;
        if p.dst != route.path.src {
            return Err(DropReason::LocalAddress);
        }
        if p.src != route.path.dst {
            return Err(DropReason::PeerAddress);
        }
    }
    check_member(qp, p)
}

/// Those of them that are made of a group's packets, too.
pub(super) fn check_member(qp: &Qp, p: &Packet<'_>) -> Result<(), DropReason> {
    // The low 15 bits name the partition.
    if p.bth.pkey & 0x7fff != 0x7fff {
        return Err(DropReason::PKey);
    }
    let opcode = p.bth.opcode;
    // A peer that agreed to selective repeat sends nothing else, and no other peer sends it.
    let ours = opcode.service() == qp.service.transport()
        && opcode.is_selective() == qp.selective.is_some();
    if !ours && opcode.transport() != Transport::Cnp {
        return Err(DropReason::TransportMismatch);
    }
    if !qp.state().receives() {
        return Err(DropReason::QpState);
    }
    Ok(())
}
