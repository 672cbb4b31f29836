//! The requester: turns send requests into packets, one at a time.
//!
//! It segments a message at the path MTU, asks for an acknowledgement on the last packet of each message, on every
//! `ack_interval`-th packet and on the one that fills the window (rxe: `RXE_MAX_PKT_PER_ACK`; mlx5: `MLX5_IB_ACK_REQ_FREQ`),
//! and starts the ACK timer when it does: a packet that asks for nothing need not be answered, however slowly the next one
//! follows. Sending again is sending: the same function, from an older packet on.
//!
//! A READ is asked for in chunks, so that the responses on their way fit the window too, and as a whole at most `max_rd_atomic`
//! requests that want a response of their own are unanswered (rxe_req.c `check_init_depth`). A fenced request waits for those
//! before it (rxe_req.c `rxe_wqe_is_fenced`). Requests that never leave the host are carried out when their turn comes.
//!
//! Credits in acknowledgements are not used: a message that finds no receive request is answered by an RNR NAK.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_req.c (`next_opcode`, `init_req_packet`, `update_state`, `rxe_do_local_ops`). Must
//! not: read acknowledgements (the completer does), complete requests, or know how a packet is carried.

use rocexdp_common::headers::{AtomicEth, Deth, Feth, Reth, Sreth};
use rocexdp_common::opcode::{Opcode, rc};

use super::local::Local;
use super::send::{SendState, Wqe, wants_response};
use crate::ids::{Psn, RKey};
use crate::time::Timestamp;
use crate::verbs::{SendOp, SendQueue, Status};

/// One request packet: what its headers say, and which bytes it carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) solicited: bool,
    /// Extension headers.
    pub(crate) sreth: Option<Sreth>,
    pub(crate) deth: Option<Deth>,
    pub(crate) feth: Option<Feth>,
    pub(crate) reth: Option<Reth>,
    pub(crate) atomic: Option<AtomicEth>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidate: Option<RKey>,
    /// Index of its request among those taken.
    pub(crate) wqe: usize,
    /// Payload: where in the message, and how much.
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// It was sent before.
    pub(crate) again: bool,
}

/// What the requester came to.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing may leave now.
    Nothing,
    /// A request that never leaves the host was carried out, or one could not be: look at the oldest ones.
    Local,
    /// This packet leaves.
    Packet(Request),
}

/// Whether there is something that may leave, or be carried out. The ACK timer or an answer changes that, or a post.
pub(crate) fn may_send(s: &SendState, sq: &SendQueue) -> bool {
    s.rnr_until.is_none()
        && match s.wqes.get(s.cursor) {
            _ if s.may_repeat() => true,
            _ if s.is_stopped() => false,
            Some(wqe) => may_go(s, wqe),
            None => !s.is_window_full() && s.has_span(1) && sq.has_posted(),
        }
}

/// Whether fence, window and initiator depth let the request's next packet out.
fn may_go(s: &SendState, wqe: &Wqe) -> bool {
    if wqe.failed.is_some() {
        return false;
    }
    if wqe.done {
        return true;
    }
    if wqe.wr.fence && s.waits_before(wqe.first) && !mutant!("fence_ignored") {
        return false;
    }
    if wqe.stays() {
        // A key that a request before still uses must not go (rxe_req.c `rxe_wqe_is_fenced`).
        return !matches!(wqe.wr.op, SendOp::LocalInvalidate(_)) || s.cursor == 0;
    }
    let index = s.next.saturating_sub(wqe.first) as u32;
    if s.is_window_full() || !s.has_span(numbers(s, wqe, index)) {
        return false;
    }
    if !wqe.wants_response() {
        return true;
    }
    // One that was taken before the depth was lowered to 0 would wait for ever.
    let depth = s.max_rd_atomic.max(1) + usize::from(mutant!("initiator_depth_exceeded"));
    s.responses_asked() < depth && s.has_room_for(numbers(s, wqe, index))
}

/// How many numbers the packet with number `index` of the request takes: those of the responses that a READ asks for.
fn numbers(s: &SendState, wqe: &Wqe, index: u32) -> u32 {
    if matches!(wqe.wr.op, SendOp::Read { .. }) {
        s.chunk(wqe, index).1.saturating_sub(index)
    } else {
        1
    }
}

/// The next packet, which counts as sent at `now`, or local operation.
pub(crate) fn next(
    s: &mut SendState,
    sq: &SendQueue,
    local: &mut Local<'_>,
    now: Timestamp,
) -> Step {
    if !may_send(s, sq) {
        return Step::Nothing;
    }
    if let Some(request) = repeat(s, now) {
        return Step::Packet(request);
    }
    // Local operations that were carried out before the last going back are behind us.
    while s.wqes.get(s.cursor).is_some_and(|w| w.done) {
        s.cursor += 1;
    }
    if s.cursor == s.wqes.len() && !take(s, sq, local) {
        return Step::Nothing;
    }
    let Some(wqe) = s.wqes.get(s.cursor) else {
        return Step::Nothing;
    };
    if wqe.failed.is_some() {
        return Step::Local;
    }
    if !may_go(s, wqe) {
        return Step::Nothing;
    }
    if wqe.stays() {
        let done = local.carry_out(&wqe.wr.op);
        let cursor = s.cursor;
        if let Some(wqe) = s.wqes.get_mut(cursor) {
            wqe.done = done.is_ok();
            wqe.failed = done.err();
            s.cursor += usize::from(wqe.done);
        }
        return Step::Local;
    }
    let index = s.next.saturating_sub(wqe.first) as u32;
    let numbers = numbers(s, wqe, index);
    let (end, responds) = (s.next + u64::from(numbers), wqe.wants_response());
    let ack_req = responds || index + 1 == wqe.packets || s.fills_window() || s.asks(s.next);
    let ack_req = ack_req && !mutant!("last_packet_asks_nothing");
    let mut request = Request {
        ack_req,
        wqe: s.cursor,
        again: s.next < s.high,
        ..packet(s, wqe, index, numbers)
    };
    if request.again && mutant!("retry_payload_from_start") {
        request.offset = 0;
    }
    if end == wqe.end() {
        s.cursor += 1;
    }
    if responds {
        s.ask_for_response(end);
    }
    let number = s.next;
    select(s, &mut request, number, index, now);
    sent(s, &request, end, now);
    Step::Packet(request)
}

/// Selective repeat: a packet that was found lost, again. It asks for an acknowledgement, since all behind it may have come.
fn repeat(s: &mut SendState, now: Timestamp) -> Option<Request> {
    if !s.may_repeat() {
        return None;
    }
    let number = s.selective.as_ref()?.next_lost()?;
    let cursor = s.wqes.partition_point(|w| w.end() <= number);
    let wqe = s.wqes.get(cursor)?;
    let index = number.saturating_sub(wqe.first) as u32;
    let mut request = Request {
        ack_req: true,
        wqe: cursor,
        again: true,
        ..packet(s, wqe, index, numbers(s, wqe, index))
    };
    select(s, &mut request, number, index, now);
    // Which of the two is answered could not be told (Karn's rule).
    s.timed.take_if(|(timed, _)| *timed == number);
    s.latest = number;
    if s.ack_deadline.is_none() {
        s.ack_deadline = s.ack_timer.timeout().map(|t| now + t);
    }
    Some(request)
}

/// Gives a packet, with `index` in its message, the form that selective repeat has for it, and books its transmission.
fn select(s: &mut SendState, request: &mut Request, number: u64, index: u32, now: Timestamp) {
    let Some(sr) = &mut s.selective else { return };
    let (path, serial) = sr.sent(number, now);
    request.ack_req = sr.asks(path, now, request.ack_req);
    request.opcode = request.opcode.selective();
    request.sreth = Some(Sreth {
        serial,
        path,
        // The rest of a READ is a READ.
        index: if request.opcode == rc::READ_REQUEST.selective() {
            0
        } else {
            index
        },
    });
}

/// Books a packet as sent: the next one is number `end`.
fn sent(s: &mut SendState, request: &Request, end: u64, now: Timestamp) {
    let number = s.next;
    if number == s.una {
        s.waits_from(now);
    }
    s.latest = number;
    s.next = end;
    s.high = s.high.max(end);
    if request.ack_req {
        s.asked = s.asked.max(end);
        if !request.again && s.timed.is_none() {
            s.timed = Some((number, now));
        }
        if s.ack_deadline.is_none() {
            s.ack_deadline = s.ack_timer.timeout().map(|t| now + t);
        }
    }
}

/// Takes the next request from the send queue. False if there is none.
fn take(s: &mut SendState, sq: &SendQueue, local: &Local<'_>) -> bool {
    let Some(wr) = sq.take() else { return false };
    let failed = unsendable(s, &wr.op, wr.local.len()).or_else(|| local.check(&wr).err());
    let packets = match wr.op {
        _ if failed.is_some() || wr.op.is_local() => 0,
        SendOp::Read { .. } => s.path_mtu.packets(wr.local.len()),
        _ if wants_response(&wr.op) => 1,
        _ => s.path_mtu.packets(wr.local.len()),
    };
    s.cursor = s.wqes.len();
    s.wqes.push_back(Wqe {
        wr,
        first: s.tail,
        packets,
        done: false,
        failed,
    });
    s.tail += u64::from(packets);
    true
}

/// Why a request can't be sent at all. An initiator depth of 0 would have it wait for ever (rxe does; rdmavt refuses it when
/// it is posted, qp.c `rvt_qp_valid_operation`, which the queue here can't know); memory that is not 8 bytes does not hold
/// what an atomic brings or takes (rdmavt, the same function).
fn unsendable(s: &SendState, op: &SendOp, len: u32) -> Option<Status> {
    if wants_response(op) && s.max_rd_atomic == 0 {
        return Some(Status::LocQpOpErr);
    }
    let atomic = matches!(
        op,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. }
    );
    (atomic && len != 8).then_some(Status::LocLenErr)
}

/// What packet `index` of a request is, `numbers` long. Says nothing of when it is sent.
fn packet(s: &SendState, wqe: &Wqe, index: u32, numbers: u32) -> Request {
    let mtu = s.path_mtu.bytes();
    let (first, last) = (index == 0, index + 1 == wqe.packets);
    let total = wqe.wr.local.len();
    let offset = index.saturating_mul(mtu);
    let left = total.saturating_sub(offset);
    let mut r = Request {
        opcode: rc::SEND_ONLY,
        psn: s.psn(wqe.first + u64::from(index)),
        ack_req: false,
        solicited: false,
        sreth: None,
        deth: None,
        feth: None,
        reth: None,
        atomic: None,
        imm: None,
        invalidate: None,
        wqe: 0,
        offset,
        len: 0,
        again: false,
    };
    // Selective repeat: each packet says where it belongs.
    let named = first || s.selective.is_some();
    let reth = |va, rkey: RKey, length| {
        Some(Reth {
            va,
            rkey: rkey.0,
            length,
        })
    };
    let fragments: [Opcode; 4] = match wqe.wr.op {
        SendOp::Send => SEND,
        SendOp::SendImm(imm) => {
            r.imm = last.then_some(imm);
            if last { SEND_IMM } else { SEND }
        }
        SendOp::SendInvalidate(key) => {
            r.invalidate = last.then_some(key);
            if last { SEND_INVALIDATE } else { SEND }
        }
        SendOp::Write { va, rkey } => {
            r.reth = reth(va, rkey, total).filter(|_| named);
            WRITE
        }
        SendOp::WriteImm { va, rkey, imm } => {
            r.reth = reth(va, rkey, total).filter(|_| named);
            r.imm = last.then_some(imm);
            if last { WRITE_IMM } else { WRITE }
        }
        SendOp::Read { va, rkey } => {
            let length = left.min(numbers.saturating_mul(mtu));
            let mut from = va.wrapping_add(u64::from(offset));
            if mutant!("read_retry_not_advanced") && s.restart == s.next {
                from = va;
            }
            r.reth = reth(from, rkey, length);
            r.opcode = rc::READ_REQUEST;
            return r;
        }
        SendOp::CompareSwap {
            va,
            rkey,
            compare,
            swap,
        } => {
            r.atomic = Some(AtomicEth {
                va,
                rkey: rkey.0,
                swap_or_add: swap,
                compare,
            });
            r.opcode = rc::COMPARE_SWAP;
            return r;
        }
        SendOp::FetchAdd { va, rkey, add } => {
            r.atomic = Some(AtomicEth {
                va,
                rkey: rkey.0,
                swap_or_add: add,
                compare: 0,
            });
            r.opcode = rc::FETCH_ADD;
            return r;
        }
        SendOp::AtomicWrite { va, rkey } => {
            r.reth = reth(va, rkey, total);
            r.opcode = rc::ATOMIC_WRITE;
            r.len = total;
            return r;
        }
        SendOp::Flush {
            va,
            rkey,
            len,
            what,
        } => {
            r.feth = Some(what);
            r.reth = reth(va, rkey, len);
            r.opcode = rc::FLUSH;
            return r;
        }
        // These have no packets.
        SendOp::BindMw { .. } | SendOp::LocalInvalidate(_) => return r,
    };
    let [begin, middle, end, only] = fragments;
    r.opcode = match (first, last) {
        (true, false) => begin,
        (false, false) => middle,
        (false, true) => end,
        (true, true) => only,
    };
    // A WRITE without immediate makes no completion that could be solicited.
    let completes = !matches!(wqe.wr.op, SendOp::Write { .. });
    r.solicited = wqe.wr.solicited && last && completes;
    r.len = left.min(mtu);
    r
}

/// Opcodes of a message's packets: first, middle, last, only.
const SEND: [Opcode; 4] = [
    rc::SEND_FIRST,
    rc::SEND_MIDDLE,
    rc::SEND_LAST,
    rc::SEND_ONLY,
];
const SEND_IMM: [Opcode; 4] = [
    rc::SEND_FIRST,
    rc::SEND_MIDDLE,
    rc::SEND_LAST_IMM,
    rc::SEND_ONLY_IMM,
];
const SEND_INVALIDATE: [Opcode; 4] = [
    rc::SEND_FIRST,
    rc::SEND_MIDDLE,
    rc::SEND_LAST_INVALIDATE,
    rc::SEND_ONLY_INVALIDATE,
];
const WRITE: [Opcode; 4] = [
    rc::WRITE_FIRST,
    rc::WRITE_MIDDLE,
    rc::WRITE_LAST,
    rc::WRITE_ONLY,
];
const WRITE_IMM: [Opcode; 4] = [
    rc::WRITE_FIRST,
    rc::WRITE_MIDDLE,
    rc::WRITE_LAST_IMM,
    rc::WRITE_ONLY_IMM,
];
