//! The responder: serves the peer's requests.
//!
//! A request passes, in this order: [`check_psn`] -> [`check_op_seq`] -> [`check_op_valid`] -> [`check_resource`] ->
//! [`check_length`] -> [`check_rkey`] -> [`execute`] -> [`acknowledge`], as in drivers/infiniband/sw/rxe/rxe_resp.c. Until
//! `execute` nothing has changed but counters and the answer that is owed, so a refused packet can come again.
//!
//! Acknowledgements are cumulative, so one is owed at a time: it is made when it leaves, from what has arrived by then. That
//! coalesces them by itself: a batch of packets that ask makes one ACK. A NAK that has not left when its gap is filled moves on
//! to the next packet that has to come again; once it has left, the peer sends all of them again, and nothing more is owed.
//!
//! Must not: know of our own requests, or change the QP's state: it reports what is fatal.

use std::sync::Arc;

use rocexdp_common::headers::{Aeth, Bth, Syndrome};
use rocexdp_common::maps::QpEngine;
use rocexdp_common::opcode::{Opcode, Operation, Position, rc};

use super::completions::Completions;
use crate::drop::DropReason;
use crate::ids::{PathMtu, Pd, Psn, Qpn, RKey};
use crate::mem::{Access, Memory, RegionTable};
use crate::verbs::{CompletionQueue, CqeOpcode, MAX_MESSAGE, RecvQueue, RecvWr, Status};
use crate::wire::Packet;

/// The answer that is owed to the peer. Later ones are stronger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Owed {
    /// None.
    #[default]
    Nothing,
    /// ACK of all that has arrived.
    Ack,
    /// NAK: the expected PSN is missing.
    NakSequence,
    /// RNR NAK of the expected PSN.
    NotReady,
    /// NAK of the expected PSN that ends the connection.
    Fatal(Syndrome),
}

/// What has happened since the last answer left; any answer covers it.
#[derive(Clone, Copy, Debug, Default)]
struct Unanswered {
    /// Someone asked for an answer, by a packet that was accepted or by one that was dropped.
    asked: bool,
    /// The highest PSN that was dropped behind the gap which the answer reports: up to there packets have to come again.
    dropped: Option<Psn>,
}

/// A message that has begun and not ended.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    operation: Operation,
    /// WRITE: where the next byte goes, and under which key.
    va: u64,
    rkey: RKey,
    /// WRITE: bytes to come. SEND: bytes that came.
    bytes: u32,
    /// WRITE: bytes of the message.
    total: u32,
}

/// State of the receive side.
#[derive(Debug)]
pub(crate) struct RecvState {
    /// PSN of the next request.
    pub(crate) expected: Psn,
    /// Messages completed, 24 bits.
    pub(crate) msn: u32,
    /// The present gap, or unreadiness, was reported: more of it is dropped in silence.
    nak_sent: bool,
    /// What the answer that is owed has to cover besides.
    unanswered: Unanswered,
    message: Option<Incoming>,
    /// The receive request that the message (SEND), or its end (WRITE with immediate), consumes.
    current: Option<RecvWr>,
    pub(crate) owed: Owed,
    /// Attributes.
    pub(crate) path_mtu: PathMtu,
    pub(crate) access: Access,
    pub(crate) min_rnr_timer: u8,
}

impl Default for RecvState {
    fn default() -> Self {
        Self {
            expected: Psn::new(0),
            msn: 0,
            nak_sent: false,
            unanswered: Unanswered::default(),
            message: None,
            current: None,
            owed: Owed::Nothing,
            path_mtu: PathMtu::Mtu1024,
            access: Access::NONE,
            min_rnr_timer: 0,
        }
    }
}

/// What the responder works with besides its state.
pub(crate) struct Context<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) pd: Pd,
    pub(crate) regions: &'a mut RegionTable,
    pub(crate) rq: &'a RecvQueue,
    pub(crate) cq: &'a CompletionQueue,
    pub(crate) stats: &'a mut QpEngine,
    /// A completion was lost: the queue was full.
    pub(crate) lost: bool,
}

/// Why a request is not served.
enum Refusal {
    /// Before the expected PSN: answered again.
    Duplicate,
    /// Behind a gap.
    Gap,
    /// No receive request.
    NotReady,
    /// Ends the connection: what the peer is told, and how the receive request in use ends.
    Fatal {
        syndrome: Syndrome,
        reason: DropReason,
        status: Status,
    },
}

impl Refusal {
    const INVALID: Self = Self::Fatal {
        syndrome: Syndrome::NakInvalidRequest,
        reason: DropReason::InvalidRequest,
        status: Status::RemInvReqErr,
    };
    const TOO_LONG: Self = Self::Fatal {
        syndrome: Syndrome::NakInvalidRequest,
        reason: DropReason::InvalidRequest,
        status: Status::LocLenErr,
    };
    const ACCESS: Self = Self::Fatal {
        syndrome: Syndrome::NakRemoteAccess,
        reason: DropReason::RemoteAccess,
        status: Status::RemAccessErr,
    };
    const FAULT: Self = Self::Fatal {
        syndrome: Syndrome::NakRemoteOperational,
        reason: DropReason::RemoteOperational,
        status: Status::LocProtErr,
    };
}

/// How a request was dealt with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// Executed, or a duplicate.
    Accepted,
    /// Refused; the connection goes on.
    Refused(DropReason),
    /// Refused, and the QP has failed.
    Fatal(DropReason),
}

/// Serves a request packet whose ICRC, addresses and transport are right.
pub(crate) fn serve(s: &mut RecvState, cx: &mut Context<'_>, p: &Packet<'_>) -> Served {
    // The parser knows the opcode.
    let Some((operation, position)) = p.bth.opcode.decode() else {
        return Served::Refused(DropReason::UnknownOpcode);
    };
    match chain(s, cx, p, operation, position) {
        Ok(()) => Served::Accepted,
        Err(refusal) => refuse(s, cx, &p.bth, refusal),
    }
}

fn chain(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<(), Refusal> {
    check_psn(s, p)?;
    check_op_seq(s, operation, position)?;
    check_op_valid(s, operation)?;
    check_resource(s, cx, p, operation, position)?;
    let message = check_length(s, p, operation, position)?;
    check_rkey(s, cx, p, &message)?;
    execute(s, cx, p, message, position)?;
    acknowledge(s, &p.bth);
    Ok(())
}

/// The packet must be the one that is expected (rxe_resp.c `check_psn`).
fn check_psn(s: &RecvState, p: &Packet<'_>) -> Result<(), Refusal> {
    match p.bth.psn.diff(s.expected) {
        0 => Ok(()),
        1.. => Err(Refusal::Gap),
        _ => Err(Refusal::Duplicate),
    }
}

/// FIRST and ONLY begin a message, MIDDLE and LAST go on with one of their own kind (rxe_resp.c `check_op_seq`).
fn check_op_seq(s: &RecvState, operation: Operation, position: Position) -> Result<(), Refusal> {
    let begins = matches!(position, Position::First | Position::Only);
    let fits = match &s.message {
        None => begins,
        Some(m) => !begins && m.operation == operation,
    };
    if fits { Ok(()) } else { Err(Refusal::INVALID) }
}

/// The QP must serve such requests at all (rxe_resp.c `check_op_valid`). READ and atomics come with a later issue.
fn check_op_valid(s: &RecvState, operation: Operation) -> Result<(), Refusal> {
    match operation {
        Operation::Send => Ok(()),
        Operation::Write if s.access.contains(Access::REMOTE_WRITE) => Ok(()),
        _ => Err(Refusal::INVALID),
    }
}

/// A SEND needs a receive request when it begins, a WRITE with immediate when it ends (rxe_resp.c `check_resource`).
fn check_resource(
    s: &mut RecvState,
    cx: &Context<'_>,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<(), Refusal> {
    let needed = match operation {
        Operation::Send => matches!(position, Position::First | Position::Only),
        _ => p.imm.is_some(),
    };
    if needed && s.current.is_none() {
        s.current = cx.rq.take();
        if s.current.is_none() {
            return Err(Refusal::NotReady);
        }
    }
    Ok(())
}

/// FIRST and MIDDLE are full, LAST is not empty, ONLY is at most full, pad fills up to four bytes, and the message is as long
/// as was said and as there is room for (rxe_resp.c `check_length`, `check_rkey`). Gives the message as of before the packet.
fn check_length(
    s: &RecvState,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<Incoming, Refusal> {
    let (len, mtu) = (p.payload.len(), s.path_mtu.bytes());
    let sized = match position {
        Position::First | Position::Middle => len == mtu,
        Position::Last => (1..=mtu).contains(&len),
        Position::Only => len <= mtu,
    };
    if !sized || u32::from(p.bth.pad) != len.wrapping_neg() & 3 {
        return Err(Refusal::INVALID);
    }
    let message = match (&s.message, p.reth) {
        (Some(m), _) => *m,
        (None, Some(r)) => Incoming {
            operation,
            va: r.va,
            rkey: RKey(r.rkey),
            bytes: r.length,
            total: r.length,
        },
        (None, None) => Incoming {
            operation,
            va: 0,
            rkey: RKey(0),
            bytes: 0,
            total: 0,
        },
    };
    if operation == Operation::Write {
        let ends = matches!(position, Position::Last | Position::Only);
        if message.total > MAX_MESSAGE || len > message.bytes || ends != (len == message.bytes) {
            return Err(Refusal::INVALID);
        }
    } else {
        let room = s.current.as_ref().map_or(0, |wr| wr.local.len());
        if message.bytes.checked_add(len).is_none_or(|n| n > room) {
            return Err(Refusal::TOO_LONG);
        }
    }
    Ok(message)
}

/// A WRITE must stay within a region that may be written, over this QP (rxe_resp.c `check_rkey`); the whole message at its begin, the rest
/// of it at each packet, since the region may have gone meanwhile. Without any bytes the key is not looked at (C9-88).
fn check_rkey(
    s: &RecvState,
    cx: &Context<'_>,
    p: &Packet<'_>,
    m: &Incoming,
) -> Result<(), Refusal> {
    if m.operation != Operation::Write || m.total == 0 {
        return Ok(());
    }
    let len = if s.message.is_none() {
        m.total
    } else {
        p.payload.len()
    };
    match cx
        .regions
        .reach(m.rkey, cx.pd, cx.qpn)
        .and_then(|r| r.locate(m.va, u64::from(len), Access::REMOTE_WRITE))
    {
        Some(_) => Ok(()),
        None => Err(Refusal::ACCESS),
    }
}

/// Carries the packet out: the payload to memory, then the state (rxe_resp.c `execute`, `do_complete`).
fn execute(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    mut m: Incoming,
    position: Position,
) -> Result<(), Refusal> {
    let len = p.payload.len();
    if m.operation == Operation::Write {
        if len > 0 {
            let reach = cx.regions.reach(m.rkey, cx.pd, cx.qpn);
            let (mem, at) = reach
                .ok_or(Refusal::ACCESS)?
                .locate(m.va, u64::from(len), Access::REMOTE_WRITE)
                .ok_or(Refusal::ACCESS)?;
            p.payload
                .write_to(mem.as_ref(), at)
                .map_err(|_| Refusal::FAULT)?;
        }
        m.va = m.va.wrapping_add(u64::from(len));
        m.bytes -= len;
    } else {
        if let Some(wr) = s.current.as_ref().filter(|_| len > 0) {
            p.payload
                .write_to_list(&wr.local, m.bytes)
                .map_err(|_| Refusal::FAULT)?;
        }
        m.bytes += len;
    }
    s.expected = s.expected.add(1);
    s.nak_sent = false;
    cx.stats.rx_bytes += u64::from(len);
    if matches!(position, Position::First | Position::Middle) {
        s.message = Some(m);
        return Ok(());
    }
    s.message = None;
    s.msn = (s.msn + 1) & 0xff_ffff;
    let (opcode, bytes) = match m.operation {
        Operation::Write => (CqeOpcode::RecvWriteImm, m.total),
        _ => (CqeOpcode::Recv, m.bytes),
    };
    if let Some(wr) = s.current.take() {
        finish(
            cx,
            &wr,
            opcode,
            Status::Success,
            bytes,
            p.imm,
            p.bth.solicited,
        );
    }
    Ok(())
}

/// Owes an ACK if the packet asks for one, or one before did. What was missing has come: a NAK that has not left yet is void
/// if nothing was dropped behind the gap that has not come again, and else names the next packet, which was.
fn acknowledge(s: &mut RecvState, bth: &Bth) {
    s.unanswered.asked |= bth.ack_req;
    if s.unanswered
        .dropped
        .is_some_and(|p| p.diff(s.expected) >= 0)
    {
        s.nak_sent = true;
        s.owed = Owed::NakSequence;
        return;
    }
    s.unanswered.dropped = None;
    s.owed = if s.unanswered.asked {
        Owed::Ack
    } else {
        Owed::Nothing
    };
}

/// A packet behind a gap was dropped. If the gap's NAK has left, the peer sends it again anyway.
fn note_dropped(s: &mut RecvState, bth: &Bth) {
    if !s.nak_sent {
        s.nak_sent = true;
        s.owed = Owed::NakSequence;
    }
    if matches!(s.owed, Owed::NakSequence | Owed::NotReady) {
        s.unanswered.asked |= bth.ack_req;
        let before = s.unanswered.dropped;
        if before.is_none_or(|p| bth.psn.diff(p) > 0) {
            s.unanswered.dropped = Some(bth.psn);
        }
    }
}

/// The other way out of the chain: the answer to a request that is not served.
fn refuse(s: &mut RecvState, cx: &mut Context<'_>, bth: &Bth, refusal: Refusal) -> Served {
    match refusal {
        // Always, even without AckReq: the ACK may have been lost (C9-105; rxe_resp.c `duplicate_request`).
        Refusal::Duplicate => {
            cx.stats.duplicate_request += 1;
            s.unanswered.asked = true;
            if s.owed == Owed::Nothing {
                s.owed = Owed::Ack;
            }
            Served::Accepted
        }
        Refusal::Gap => {
            cx.stats.out_of_sequence += 1;
            note_dropped(s, bth);
            Served::Refused(DropReason::OutOfSequence)
        }
        Refusal::NotReady => {
            s.nak_sent = true;
            s.unanswered.asked |= bth.ack_req;
            s.owed = Owed::NotReady;
            Served::Refused(DropReason::ReceiverNotReady)
        }
        Refusal::Fatal {
            syndrome,
            reason,
            status,
        } => {
            s.owed = Owed::Fatal(syndrome);
            if let Some(wr) = s.current.take() {
                finish(cx, &wr, CqeOpcode::Recv, status, 0, None, false);
            }
            Served::Fatal(reason)
        }
    }
}

/// An answer as it leaves.
pub(crate) struct Answer {
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) aeth: Option<Aeth>,
    /// Atomic acknowledge: what stood in the memory.
    pub(crate) original: Option<u64>,
    /// READ response: what the peer reads.
    pub(crate) data: Option<AnswerData>,
}

/// Memory that a READ response carries.
pub(crate) struct AnswerData {
    pub(crate) mem: Arc<dyn Memory>,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Takes the answer that is owed, which counts as sent.
pub(crate) fn answer(s: &mut RecvState) -> Option<Answer> {
    s.unanswered = Unanswered::default();
    let (psn, syndrome) = match core::mem::take(&mut s.owed) {
        Owed::Nothing => return None,
        // 0x1f: credits are not used.
        Owed::Ack => (s.expected.sub(1), Syndrome::Ack(0x1f)),
        Owed::NakSequence => (s.expected, Syndrome::NakSequence),
        Owed::NotReady => (s.expected, Syndrome::RnrNak(s.min_rnr_timer)),
        Owed::Fatal(syndrome) => (s.expected, syndrome),
    };
    Some(Answer {
        opcode: rc::ACKNOWLEDGE,
        psn,
        aeth: Some(Aeth {
            syndrome,
            msn: s.msn,
        }),
        original: None,
        data: None,
    })
}

/// Completes every receive request with [`Status::WrFlushErr`].
pub(crate) fn flush(s: &mut RecvState, cx: &mut Context<'_>) {
    s.message = None;
    if let Some(wr) = s.current.take() {
        finish(cx, &wr, CqeOpcode::Recv, Status::WrFlushErr, 0, None, false);
    }
    for _ in 0..cx.rq.capacity() {
        let Some(wr) = cx.rq.take() else { break };
        finish(cx, &wr, CqeOpcode::Recv, Status::WrFlushErr, 0, None, false);
    }
}

/// Forgets everything, receive requests included, and completes nothing.
pub(crate) fn reset(s: &mut RecvState, rq: &RecvQueue) {
    if s.current.take().is_some() {
        rq.completed(1);
    }
    for _ in 0..rq.capacity() {
        if rq.take().is_none() {
            break;
        }
        rq.completed(1);
    }
    *s = RecvState::default();
}

fn finish(
    cx: &mut Context<'_>,
    wr: &RecvWr,
    opcode: CqeOpcode,
    status: Status,
    bytes: u32,
    imm: Option<u32>,
    solicited: bool,
) {
    cx.rq.completed(1);
    let mut cq = Completions {
        qpn: cx.qpn,
        cq: cx.cq,
        stats: cx.stats,
        lost: false,
    };
    cq.done(status);
    cq.push(wr.wr_id, opcode, status, bytes, imm, solicited);
    cx.lost |= cq.lost;
}
