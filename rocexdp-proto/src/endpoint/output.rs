//! Output: which packet leaves next.
//!
//! CNPs before answers without data before data; of data, by their traffic classes; in a class QPs in turn, one packet each.
//! What has a paused priority waits. Data are requests, those sent again too, and
//! READ responses: paced together, in turn where a QP has both. Must not: touch payload (the driver copies it from the
//! application's memory into the frame).

use rocexdp_common::headers::{Aeth, AtomicEth, Bth, Feth, ICRC_LEN, Reth, Sack, Sreth, Syndrome};
use rocexdp_common::opcode::{Opcode, ext, extensions_len, rc};

use super::traffic::{Marking, highest};
use super::{Endpoint, datagram, qp_at};
use crate::ids::{Psn, Qpn};
use crate::mem::RegionTable;
use crate::qp::{Answer, Due, Qp, Request, Service};
use crate::time::Timestamp;
use crate::timer::TimerKind;
use crate::wire::{HeaderBuf, HeaderTemplate, Source, Transmit, TransmitKind};

impl Endpoint {
    /// The next packet, which counts as sent at `now`: ask only with room for it. `None`: nothing to send, or not yet.
    pub fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit<'_>> {
        self.answer = None;
        self.finish_handed();
        if !self.port.opens(now) {
            return None;
        }
        let paused = self.pauses.bits(now);
        if let Some(qpn) = self.next_cnp(paused) {
            self.leaves(now, ICRC_LEN as u32);
            return Some(self.headers_only(qpn, TransmitKind::Cnp, self.cnp_priority));
        }
        if let Some((qpn, kind, priority)) = self.next_answer(now, paused) {
            self.leaves(now, ICRC_LEN as u32);
            return Some(self.headers_only(qpn, kind, priority));
        }
        match self.next_data(now, paused)? {
            Data::Response(qpn, priority) => {
                let Some(data) = &self.answer else {
                    return Some(self.headers_only(qpn, TransmitKind::Acknowledge, priority));
                };
                Some(Transmit {
                    headers: &self.headers,
                    payload: Source::Memory(data.mem.as_ref(), data.offset),
                    payload_len: data.len as usize,
                    qpn,
                    kind: TransmitKind::Response,
                    priority,
                })
            }
            Data::Request(slot, request) => {
                let qp = self.qps.get(slot as usize)?.as_deref()?;
                let local = &qp.send.wqes.get(request.wqe)?.wr.local;
                Some(Transmit {
                    headers: &self.headers,
                    payload: Source::List(local, request.offset),
                    payload_len: request.len as usize,
                    qpn: qp.qpn,
                    kind: if request.again {
                        TransmitKind::Retransmission
                    } else {
                        TransmitKind::Request
                    },
                    priority: qp.priority,
                })
            }
        }
    }

    /// The payload of the packet that [`Endpoint::poll_transmit`] gave last could not be read. A request fails with
    /// [`crate::verbs::Status::LocProtErr`]; in place of a READ response, the peer gets a NAK (remote operational error). The QP
    /// goes to ERR.
    pub fn transmit_failed(&mut self, now: Timestamp, qpn: Qpn) {
        let _ = now;
        let Some(&slot) = self.slots.get(&qpn.get()) else {
            return;
        };
        let response = self.answer.take().is_some();
        if let Some(qp) = qp_at(&mut self.qps, slot) {
            if response {
                qp.response_failed();
            } else {
                qp.payload_failed();
            }
        }
        self.handed = None;
        self.settle(slot);
    }

    /// Whoever asks for a packet is done with the one before, whose memory may change now.
    fn finish_handed(&mut self) {
        let Some(slot) = self.handed.take() else {
            return;
        };
        if let Some(qp) = qp_at(&mut self.qps, slot) {
            qp.handed_out();
        }
        self.settle(slot);
    }

    fn headers_only(&self, qpn: Qpn, kind: TransmitKind, priority: u8) -> Transmit<'_> {
        Transmit {
            headers: &self.headers,
            payload: Source::Nothing,
            payload_len: 0,
            qpn,
            kind,
            priority,
        }
    }

    fn next_cnp(&mut self, paused: u8) -> Option<Qpn> {
        if paused & 1 << (self.cnp_priority & 7) != 0 {
            return None;
        }
        while let Some(slot) = self.cnps.pop_front() {
            let Some(qp) = qp_at(&mut self.qps, slot) else {
                continue;
            };
            if !core::mem::replace(&mut qp.waiting.cnp, false)
                || !core::mem::replace(&mut qp.cnp_owed, false)
            {
                continue;
            }
            let Some(route) = &qp.route else { continue };
            let np = &self.config.np;
            HeaderTemplate::cnp(&route.path, np.cnp_dscp, np.cnp_802p_prio)
                .cnp_packet(&mut self.headers, route.peer);
            qp.stats.np_cnp_sent += 1;
            return Some(qp.qpn);
        }
        None
    }

    /// An answer of headers only.
    fn next_answer(&mut self, now: Timestamp, paused: u8) -> Option<(Qpn, TransmitKind, u8)> {
        while let Some(priority) = highest(self.acks.waiting() & !paused) {
            let slot = self.acks.pop(priority)?;
            let Some(qp) = qp_at(&mut self.qps, slot) else {
                continue;
            };
            if qp.waiting.ack && qp.answer_priority != priority {
                // It has another priority now, or stands where a former QP of the slot stood.
                self.acks.push(slot, qp.answer_priority);
                continue;
            }
            if !core::mem::replace(&mut qp.waiting.ack, false) || qp.answer_due() != Due::Control {
                continue;
            }
            let marking = self.config.classes.answers;
            let answer = answer(qp, now, &self.regions, &mut self.headers, marking);
            let qpn = qp.qpn;
            // More may be owed, and a QP that fails with its answer reports that.
            self.settle(slot);
            if let Some(answer) = answer {
                let kind = match answer.opcode {
                    rc::ACKNOWLEDGE => TransmitKind::Acknowledge,
                    _ => TransmitKind::Response,
                };
                return Some((qpn, kind, priority));
            }
        }
        None
    }

    /// A packet with data, if the QP whose turn it is may send one now.
    fn next_data(&mut self, now: Timestamp, paused: u8) -> Option<Data> {
        // Each QP once: one that has nothing to say after all may still wait for its turn.
        let mut left = self.senders.lens();
        let mut open = !paused;
        while let Some(priority) = self.scheduler.choose(self.senders.waiting() & open) {
            let slot = self.senders.pop(priority)?;
            if let Some(left) = left.get_mut(usize::from(priority)) {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    open &= !(1 << priority);
                }
            }
            let Some(qp) = qp_at(&mut self.qps, slot) else {
                continue;
            };
            if qp.waiting.send && qp.priority != priority {
                self.senders.push(slot, qp.priority);
                if let Some(left) = left.get_mut(usize::from(qp.priority)) {
                    *left += 1;
                    open |= 1 << (qp.priority & 7) & !paused;
                }
                continue;
            }
            if !core::mem::replace(&mut qp.waiting.send, false) {
                continue;
            }
            let (requests, responds) = (qp.may_send(), qp.answer_due() == Due::Data);
            if !requests && !responds {
                continue;
            }
            if !qp.congestion.pacer.ready(now) {
                qp.waiting.pace = true;
                let at = qp.congestion.pacer.earliest(now);
                self.timers
                    .set(&mut qp.timers, slot, TimerKind::Pace, Some(at));
                continue;
            }
            qp.requested_last = requests && !(responds && qp.requested_last);
            let mut sent = None;
            if qp.requested_last {
                sent = self.send_request(now, slot);
            }
            // Local operations may have been all there was to request.
            if sent.is_none() && responds {
                sent = self.send_response(now, slot);
            }
            self.settle(slot);
            if sent.is_some() {
                return sent;
            }
        }
        None
    }

    fn send_response(&mut self, now: Timestamp, slot: u32) -> Option<Data> {
        let qp = qp_at(&mut self.qps, slot)?;
        let answer = answer(qp, now, &self.regions, &mut self.headers, None)?;
        let behind =
            ICRC_LEN as u32 + (answer.data.as_ref()).map_or(0, |data| data.len.next_multiple_of(4));
        if answer.data.is_some() {
            let len = self.headers.bytes().len() as u32 + behind;
            qp.congestion.sent(now, len);
            self.scheduler.charge(qp.priority, len);
        }
        self.answer = answer.data;
        let sent = Data::Response(qp.qpn, qp.priority);
        self.leaves(now, behind);
        Some(sent)
    }

    fn send_request(&mut self, now: Timestamp, slot: u32) -> Option<Data> {
        let qp = qp_at(&mut self.qps, slot)?;
        let request = qp.next_request(now, &mut self.regions)?;
        let len = match &qp.service {
            Service::Datagram(_) => {
                datagram::build(qp, &mut self.headers, &request, self.config.data_dscp)?
            }
            _ => build(qp, &mut self.headers, &request)?,
        };
        if !qp.service.is_reliable() {
            self.handed = Some(slot);
        }
        qp.congestion.sent(now, len);
        self.scheduler.charge(qp.priority, len);
        let stats = &mut qp.stats;
        stats.tx_packets += 1;
        stats.tx_bytes += u64::from(request.len);
        if request.again {
            stats.retransmitted_packets += 1;
            stats.retransmitted_bytes += u64::from(request.len);
        }
        self.leaves(now, request.len.next_multiple_of(4) + ICRC_LEN as u32);
        Some(Data::Request(slot, request))
    }
}

/// A packet with data that leaves.
enum Data {
    /// A READ response of this QP, or the NAK that takes its place, and its priority.
    Response(Qpn, u8),
    /// A request of the QP in this slot.
    Request(u32, Request),
}

/// Takes the QP's answer, counts it and builds its headers, with this marking instead of its data's.
fn answer(
    qp: &mut Qp,
    now: Timestamp,
    regions: &RegionTable,
    out: &mut HeaderBuf,
    marking: Option<Marking>,
) -> Option<Answer> {
    let answer = qp.answer(now, regions)?;
    build_answer(qp, out, &answer)?;
    if let Some(marking) = marking {
        out.remark(marking.dscp, marking.pcp);
    }
    let stats = &mut qp.stats;
    match answer.aeth.map(|a| a.syndrome) {
        _ if answer.opcode != rc::ACKNOWLEDGE => {
            let len = u64::from(answer.data.as_ref().map_or(0, |d| d.len));
            stats.tx_packets += 1;
            stats.tx_bytes += len;
            if answer.again {
                stats.retransmitted_packets += 1;
                stats.retransmitted_bytes += len;
            }
        }
        Some(Syndrome::Ack(_)) | None => stats.tx_acks += 1,
        Some(Syndrome::RnrNak(_)) => stats.tx_rnr_naks += 1,
        Some(_) => stats.tx_naks += 1,
    }
    Some(answer)
}

/// Starts a packet of the QP with `behind` bytes between BTH and ICRC.
fn start(
    qp: &Qp,
    out: &mut HeaderBuf,
    opcode: Opcode,
    psn: Psn,
    path: u8,
    behind: usize,
    set: impl FnOnce(&mut Bth),
) -> Option<()> {
    let route = qp.route.as_ref()?;
    let template = match path.checked_sub(1) {
        Some(n) => route.others.get(usize::from(n))?,
        None => &route.data,
    };
    template.start(out, Bth::LEN + behind + ICRC_LEN);
    let mut bth = bth(opcode, route.peer, psn);
    set(&mut bth);
    out.push_bth(&bth);
    Some(())
}

/// The base header of what has neither pad nor AckReq.
pub(super) const fn bth(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Bth {
    Bth {
        opcode,
        solicited: false,
        // As hardware does; no receiver is known to check it.
        mig_req: true,
        pad: 0,
        version: 0,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qpn,
        ack_req: false,
        psn,
    }
}

/// Bytes of a request's extension headers.
pub(super) fn extensions(r: &Request) -> usize {
    r.opcode.extensions().map_or(0, extensions_len)
}

/// The headers of a request. Gives the bytes of the whole frame.
fn build(qp: &Qp, out: &mut HeaderBuf, r: &Request) -> Option<u32> {
    let pad = r.len.wrapping_neg() & 3;
    let behind = extensions(r) + (r.len + pad) as usize;
    let path = r.sreth.map_or(0, |sreth| sreth.path);
    start(qp, out, r.opcode, r.psn, path, behind, |bth| {
        bth.pad = pad as u8 ^ u8::from(mutant!("pad_wrong"));
        bth.ack_req = r.ack_req;
        bth.solicited = r.solicited;
    })?;
    if let Some(sreth) = &r.sreth {
        let mut bytes = [0; Sreth::LEN];
        sreth.emit(&mut bytes);
        out.push(&bytes);
    }
    // In the order in which they stand (rxe_opcode.c).
    if let Some(feth) = &r.feth {
        let mut bytes = [0; Feth::LEN];
        feth.emit(&mut bytes);
        out.push(&bytes);
    }
    if let Some(reth) = &r.reth {
        let mut bytes = [0; Reth::LEN];
        reth.emit(&mut bytes);
        out.push(&bytes);
    }
    if let Some(atomic) = &r.atomic {
        let mut bytes = [0; AtomicEth::LEN];
        atomic.emit(&mut bytes);
        out.push(&bytes);
    }
    if let Some(imm) = r.imm {
        out.push(&imm.to_be_bytes());
    }
    if let Some(key) = r.invalidate {
        out.push(&key.0.to_be_bytes());
    }
    Some(out.bytes().len() as u32 + r.len + pad + ICRC_LEN as u32)
}

/// Before the first packet of all.
const NOTHING_ARRIVED: Sack = Sack {
    path: 0,
    answers: false,
    mark: 0,
    highest: u32::MAX,
    below: [0; 4],
};

/// The headers of an answer.
fn build_answer(qp: &Qp, out: &mut HeaderBuf, a: &Answer) -> Option<()> {
    let len = a.data.as_ref().map_or(0, |d| d.len);
    let pad = len.wrapping_neg() & 3;
    let opcode = match qp.selective {
        Some(_) => a.opcode.selective(),
        None => a.opcode,
    };
    let extensions = opcode.extensions()?;
    let behind = extensions_len(extensions) + (len + pad) as usize;
    let path = a.sreth.map_or(0, |sreth| sreth.path);
    start(qp, out, opcode, a.psn, path, behind, |bth| {
        bth.pad = pad as u8;
    })?;
    if extensions & ext::SRETH != 0 {
        let mut bytes = [0; Sreth::LEN];
        if let Some(sreth) = &a.sreth {
            sreth.emit(&mut bytes);
        }
        out.push(&bytes);
    }
    if let Some(aeth) = &a.aeth {
        let mut bytes = [0; Aeth::LEN];
        aeth.emit(&mut bytes);
        out.push(&bytes);
    }
    if let Some(original) = a.original {
        out.push(&original.to_be_bytes());
    }
    if extensions & ext::SACK != 0 {
        let mut bytes = [0; Sack::LEN];
        a.sack.unwrap_or(NOTHING_ARRIVED).emit(&mut bytes);
        out.push(&bytes);
    }
    Some(())
}
