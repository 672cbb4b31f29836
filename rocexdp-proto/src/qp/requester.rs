//! The requester: turns send requests into packets, one at a time.
//!
//! It segments a message at the path MTU, asks for an acknowledgement on the last packet of each message, on every
//! `ack_interval`-th packet and on the one that fills the window (rxe: `RXE_MAX_PKT_PER_ACK`; mlx5: `MLX5_IB_ACK_REQ_FREQ`),
//! and starts the ACK timer when it does: a packet that asks for nothing need not be answered, however slowly the next one
//! follows. Sending again is sending: the same function, from an older packet on.
//!
//! Credits in acknowledgements are not used: a message that finds no receive request is answered by an RNR NAK.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_req.c (`next_opcode`, `init_req_packet`, `update_state`). Must not: read
//! acknowledgements (the completer does) or know how a packet is carried.

use rocexdp_common::headers::Reth;
use rocexdp_common::opcode::{Opcode, rc};

use super::send::{SendState, Wqe};
use crate::ids::Psn;
use crate::time::Timestamp;
use crate::verbs::{SendOp, SendQueue};

/// One request packet: what its headers say, and which bytes it carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) solicited: bool,
    pub(crate) reth: Option<Reth>,
    pub(crate) imm: Option<u32>,
    /// Index of its request among those taken.
    pub(crate) wqe: usize,
    /// Payload: where in the message, and how much.
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// It was sent before.
    pub(crate) again: bool,
}

/// Whether there is a packet that the window lets out. The ACK timer or an acknowledgement changes that, or a post.
pub(crate) fn may_send(s: &SendState, sq: &SendQueue) -> bool {
    s.rnr_until.is_none() && s.next - s.una < s.window && (s.next < s.tail || sq.has_posted())
}

/// The next packet, which counts as sent at `now`.
pub(crate) fn next(s: &mut SendState, sq: &SendQueue, now: Timestamp) -> Option<Request> {
    if !may_send(s, sq) {
        return None;
    }
    if s.next == s.tail {
        take(s, sq)?;
    }
    let wqe = s.wqes.get(s.cursor)?;
    let index = s.next.checked_sub(wqe.first)? as u32;
    let fills_window = s.next - s.una + 1 == s.window;
    let ack_req =
        index + 1 == wqe.packets || fills_window || (s.next + 1).is_multiple_of(s.ack_interval);
    let mut request = packet(s, wqe, index, ack_req);
    request.wqe = s.cursor;

    s.next += 1;
    if s.next == wqe.end() {
        s.cursor += 1;
    }
    s.high = s.high.max(s.next);
    if ack_req {
        s.asked = s.asked.max(s.next);
        if !request.again && s.timed.is_none() {
            s.timed = Some((s.next - 1, now));
        }
        if s.ack_deadline.is_none() {
            s.ack_deadline = s.timeout.map(|t| now + t);
        }
    }
    Some(request)
}

/// Takes the next request from the send queue.
fn take(s: &mut SendState, sq: &SendQueue) -> Option<()> {
    let wr = sq.take()?;
    let packets = s.path_mtu.packets(wr.local.len());
    s.cursor = s.wqes.len();
    s.wqes.push_back(Wqe {
        wr,
        first: s.tail,
        packets,
    });
    s.tail += u64::from(packets);
    Some(())
}

/// Packet `index` of a message.
fn packet(s: &SendState, wqe: &Wqe, index: u32, ack_req: bool) -> Request {
    let (first, last) = (index == 0, index + 1 == wqe.packets);
    let total = wqe.wr.local.len();
    let offset = index * s.path_mtu.bytes();
    let (imm, write) = match wqe.wr.op {
        SendOp::Send => (None, None),
        SendOp::SendImm(imm) => (Some(imm), None),
        SendOp::Write { va, rkey } => (None, Some((va, rkey))),
        SendOp::WriteImm { va, rkey, imm } => (Some(imm), Some((va, rkey))),
        // Refused when posted.
        _ => (None, None),
    };
    let imm = imm.filter(|_| last);
    let opcode = match (write.is_some(), first, last, imm.is_some()) {
        (false, true, false, _) => rc::SEND_FIRST,
        (false, false, false, _) => rc::SEND_MIDDLE,
        (false, false, true, false) => rc::SEND_LAST,
        (false, false, true, true) => rc::SEND_LAST_IMM,
        (false, true, true, false) => rc::SEND_ONLY,
        (false, true, true, true) => rc::SEND_ONLY_IMM,
        (true, true, false, _) => rc::WRITE_FIRST,
        (true, false, false, _) => rc::WRITE_MIDDLE,
        (true, false, true, false) => rc::WRITE_LAST,
        (true, false, true, true) => rc::WRITE_LAST_IMM,
        (true, true, true, false) => rc::WRITE_ONLY,
        (true, true, true, true) => rc::WRITE_ONLY_IMM,
    };
    Request {
        opcode,
        psn: s.psn(s.next),
        ack_req,
        // A WRITE without immediate makes no completion that could be solicited.
        solicited: wqe.wr.solicited && last && (write.is_none() || imm.is_some()),
        reth: write.filter(|_| first).map(|(va, rkey)| Reth {
            va,
            rkey: rkey.0,
            length: total,
        }),
        imm,
        wqe: 0,
        offset,
        len: (total - offset).min(s.path_mtu.bytes()),
        again: s.next < s.high,
    }
}
