//! The completer: turns answers and silence into completions, or into sending again.
//!
//! An ACK covers every packet up to its PSN; a NAK or an RNR NAK covers every packet before its PSN; a READ response or an atomic
//! acknowledge covers every SEND and WRITE before it. None of them covers a READ or an atomic that has not got its own
//! response: that one was lost, which is an implied NAK, and all is sent again from there, a READ from its first missing byte.
//! An implied NAK is acted on once until something is answered, since the rest of the answers behind it says the same (rdmavt:
//! `RVT_R_RDMAR_SEQ`, rxe: `started_retry`).
//!
//! The retry counters are reloaded whenever a packet is newly acknowledged. An RNR NAK's timer is a minimum: until it has passed
//! the QP sends nothing, whatever else arrives (rxe once sent early). Any credit code is an ACK.
//!
//! Responses pass [`check_psn`] -> [`check_response`] -> [`place`]. Until the last one nothing is written.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_comp.c (`check_psn`, `check_ack`, `do_read`, `do_atomic`, `complete_ack`,
//! `COMPST_ERROR_RETRY`, `COMPST_RNR_RETRY`). Must not: build packets (the requester does) or change the QP's state: it reports
//! what is fatal.

pub(super) mod selective;

use rocexdp_common::headers::{Aeth, Syndrome};
use rocexdp_common::opcode::{Operation, Position};

use super::attr::rnr_delay;
use super::completions::Completions;
use super::send::{SendState, Wqe};
use crate::drop::DropReason;
use crate::time::{Timestamp, nanos};
use crate::verbs::{CqeOpcode, SendOp, SendQueue, Status};
use crate::wire::Packet;

/// `rnr_retry` that means "for ever".
const INFINITE: u8 = 7;

/// What an answer or a timeout came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Nothing new.
    Nothing,
    /// Packets were acknowledged.
    Progress,
    /// Sends again from the oldest packet, by a NAK or by the ACK timer.
    Retry,
    /// Sends again from the oldest READ or atomic, whose response was overtaken.
    ImpliedRetry,
    /// Waits for the peer's RNR timer, then sends again.
    Wait,
    /// The request that holds packet `at` has failed so, and with it the QP.
    Fatal {
        /// Number of the packet.
        at: u64,
        /// How.
        status: Status,
    },
}

/// A packet from the peer's responder.
///
/// # Errors
/// It answers nothing that was sent, or was answered before, or its syndrome is reserved; nothing has changed.
pub(crate) fn answered(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    p: &Packet<'_>,
    now: Timestamp,
) -> Result<Outcome, DropReason> {
    let Some((operation, position)) = p.bth.opcode.decode() else {
        return Err(DropReason::UnexpectedResponse);
    };
    match (operation, p.aeth) {
        (Operation::Acknowledge, Some(aeth)) if s.selective.is_some() => {
            selective::acknowledged(s, sq, cq, p, aeth, now)
        }
        (Operation::ReadResponse | Operation::AtomicAcknowledge, _) if s.selective.is_some() => {
            selective::responded(s, sq, cq, p, (operation, position), now)
        }
        (Operation::Acknowledge, Some(aeth)) => {
            let packet = check_psn(s, p).ok_or(DropReason::GhostAck)?;
            acknowledged(s, sq, cq, packet, aeth, now)
        }
        (Operation::ReadResponse | Operation::AtomicAcknowledge, aeth) => {
            let packet = check_psn(s, p).ok_or(DropReason::UnexpectedResponse)?;
            match aeth {
                // Soft-RoCE refuses an atomic by an acknowledgement (opcode 0x11), others do it in its own kind of answer.
                Some(aeth) if !matches!(aeth.syndrome, Syndrome::Ack(_)) => {
                    acknowledged(s, sq, cq, packet, aeth, now)
                }
                _ => responded(s, sq, cq, packet, p, (operation, position), now),
            }
        }
        _ => Err(DropReason::UnexpectedResponse),
    }
}

/// The number of a packet that was sent.
fn check_psn(s: &SendState, p: &Packet<'_>) -> Option<u64> {
    s.packet(p.bth.psn).filter(|packet| *packet < s.high)
}

/// An ACK, NAK or RNR NAK arrived.
fn acknowledged(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    packet: u64,
    aeth: Aeth,
    now: Timestamp,
) -> Result<Outcome, DropReason> {
    // Up to here it may reach: what wants a response of its own is not answered by this.
    let limit = s.unanswered().unwrap_or(u64::MAX);
    let status = match aeth.syndrome {
        Syndrome::Ack(_) if packet >= limit && !mutant!("ack_completes_read") => {
            return Ok(implied(s, sq, cq, limit, now));
        }
        Syndrome::Ack(_) => {
            let early = u64::from(mutant!("complete_before_ack"));
            let reach = (packet + 1 + early).min(s.high);
            let news = advance(s, sq, cq, reach, now);
            return Ok(progress(news));
        }
        Syndrome::Reserved(_) | Syndrome::NakInvalidRd => return Err(DropReason::ReservedSyndrome),
        // A NAK of something acknowledged since: an old one, overtaken.
        _ if packet < s.una => return Ok(Outcome::Nothing),
        // They have overtaken a response, which is asked for first.
        Syndrome::RnrNak(code) if packet > limit => {
            return Ok(overtaken_not_ready(s, sq, cq, limit, code, now));
        }
        Syndrome::NakSequence if packet > limit => return Ok(implied(s, sq, cq, limit, now)),
        Syndrome::RnrNak(code) => {
            advance(s, sq, cq, packet, now);
            return Ok(not_ready(s, code, now));
        }
        Syndrome::NakSequence => {
            let news = advance(s, sq, cq, packet, now);
            // While it waits, the peer has already said what to send next and when. When nothing was sent since the last
            // going back, this is the same news again, or what is going to be done anyway: it costs no retry.
            return Ok(if s.rnr_until.is_none() && s.next != s.una {
                retry(s)
            } else {
                progress(news)
            });
        }
        Syndrome::NakInvalidRequest => Status::RemInvReqErr,
        Syndrome::NakRemoteAccess => Status::RemAccessErr,
        Syndrome::NakRemoteOperational => Status::RemOpErr,
    };
    // The peer is in ERR and answers nothing any more, so a response that was lost before can't be had.
    advance(s, sq, cq, packet.min(limit), now);
    Ok(Outcome::Fatal { at: packet, status })
}

/// A READ response or an atomic acknowledge arrived.
fn responded(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    packet: u64,
    p: &Packet<'_>,
    kind: (Operation, Position),
    now: Timestamp,
) -> Result<Outcome, DropReason> {
    if packet < s.una {
        return Err(DropReason::DuplicateResponse);
    }
    let expected = match s.unanswered() {
        Some(expected) if packet >= expected => expected,
        // Of a SEND or WRITE.
        _ => {
            return Ok(Outcome::Fatal {
                at: packet,
                status: Status::BadRespErr,
            });
        }
    };
    if packet > expected {
        return Ok(implied(s, sq, cq, expected, now));
    }
    Ok(take(s, sq, cq, packet, p, kind, now))
}

/// The response that is expected next.
fn take(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    packet: u64,
    p: &Packet<'_>,
    kind: (Operation, Position),
    now: Timestamp,
) -> Outcome {
    // SENDs and WRITEs before it have been carried out before it.
    advance(s, sq, cq, packet, now);
    let Some(wqe) = s.wqes.front() else {
        return Outcome::Nothing;
    };
    let index = packet.saturating_sub(wqe.first) as u32;
    if let Err(status) =
        check_response(s, wqe, index, p, kind).and_then(|()| place(s, wqe, index, p))
    {
        return Outcome::Fatal { at: packet, status };
    }
    advance(s, sq, cq, packet + 1, now);
    Outcome::Progress
}

/// Whether the response is one to packet `index` of the request: of the request's kind, at its place and of its length.
///
/// A READ's responses begin anew where it was asked for again (rxe_comp.c `check_ack`), and end where the READ, or the chunk
/// of it that was asked for, does. What is wrong by itself is a bad response; one that is well-formed, but not as long as the
/// request, is a length error (rdmavt: `ack_len_err`).
fn check_response(
    s: &SendState,
    wqe: &Wqe,
    index: u32,
    p: &Packet<'_>,
    (operation, position): (Operation, Position),
) -> Result<(), Status> {
    use Position::{First, Last, Only};
    let bad = Err(Status::BadRespErr);
    let (len, mtu) = (p.payload.len(), s.path_mtu.bytes());
    if u32::from(p.bth.pad) != len.wrapping_neg() & 3 {
        return bad;
    }
    match wqe.wr.op {
        SendOp::Read { .. } => {}
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
            let atomic = operation == Operation::AtomicAcknowledge;
            return if atomic && len == 0 { Ok(()) } else { bad };
        }
        // An empty READ response (rxe_resp.c `process_flush`, `atomic_write_reply`).
        _ if operation != Operation::ReadResponse || position != Only || len > mtu => return bad,
        _ => {
            return if len == 0 {
                Ok(())
            } else {
                Err(Status::LocLenErr)
            };
        }
    }
    if operation != Operation::ReadResponse {
        return bad;
    }
    let (start, end) = s.chunk(wqe, index);
    // Selective repeat: its answer is the same whenever a packet of it is sent.
    let asked_here = p.sreth.is_none() && wqe.first + u64::from(index) == s.restart;
    if p.sreth.is_some_and(|sreth| sreth.index != index - start) {
        return bad;
    }
    let (begins, ends) = (
        matches!(position, First | Only),
        matches!(position, Last | Only),
    );
    let placed = if begins {
        index == start || asked_here
    } else {
        index != start
    };
    if !placed || ends != (index + 1 == end) || !s.path_mtu.allows(position, len) {
        return bad;
    }
    let left = wqe.wr.local.len().saturating_sub(index.saturating_mul(mtu));
    if len == left.min(mtu) {
        Ok(())
    } else {
        Err(Status::LocLenErr)
    }
}

/// Puts what came into the request's memory.
fn place(s: &SendState, wqe: &Wqe, index: u32, p: &Packet<'_>) -> Result<(), Status> {
    let local = &wqe.wr.local;
    let written = match p.original {
        // In the host's order, as the memory that it comes from holds it.
        Some(original) => local.write(0, &original.to_ne_bytes()),
        None if p.payload.is_empty() => Ok(()),
        None => p
            .payload
            .write_to_list(local, index.saturating_mul(s.path_mtu.bytes())),
    };
    written.map_err(|_| Status::LocProtErr)
}

/// The time of `SendState::ack_deadline` or `SendState::rnr_until` may have come.
pub(crate) fn timeout(s: &mut SendState, now: Timestamp) -> Outcome {
    if s.rnr_until.is_some_and(|t| t <= now) {
        s.rnr_until = None;
        s.waits_from(now);
        return Outcome::Progress;
    }
    if s.rnr_until.is_none()
        && let Some(sr) = &mut s.selective
        && sr.probe(s.una, now)
    {
        return Outcome::Progress;
    }
    if s.overdue().is_some_and(|t| t <= now) {
        s.ask_for_oldest(now);
        return Outcome::Progress;
    }
    if s.ack_deadline.is_some_and(|t| t <= now) {
        // Whatever is overtaken from now on was sent after this.
        s.implied = false;
        if s.ack_timer.expired() {
            return retry(s);
        }
        s.go_back();
        return Outcome::Retry;
    }
    Outcome::Nothing
}

fn progress(news: bool) -> Outcome {
    if news {
        Outcome::Progress
    } else {
        Outcome::Nothing
    }
}

/// An answer has overtaken the response with number `expected`.
fn implied(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    expected: u64,
    now: Timestamp,
) -> Outcome {
    let news = advance(s, sq, cq, expected, now);
    // As for a NAK, and besides while the answer to what was sent again has not come.
    if s.rnr_until.is_some() || s.next == s.una || s.implied {
        return progress(news);
    }
    match retry(s) {
        Outcome::Retry => {
            s.implied = true;
            Outcome::ImpliedRetry
        }
        other => other,
    }
}

/// An RNR NAK has overtaken the response with number `expected`. It counts as an implied NAK, not as an RNR NAK: what is sent
/// again first is not what the peer was not ready for. All the same nothing leaves before its timer, and one such NAK may
/// have been on its way already when that was found out.
fn overtaken_not_ready(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    expected: u64,
    code: u8,
    now: Timestamp,
) -> Outcome {
    let news = advance(s, sq, cq, expected, now);
    if s.rnr_until.is_some() {
        return progress(news);
    }
    let outcome = if s.implied && !s.implied_waited {
        s.implied_waited = true;
        s.go_back();
        Outcome::Wait
    } else {
        match retry(s) {
            Outcome::Retry => Outcome::ImpliedRetry,
            other => return other,
        }
    };
    s.implied = true;
    s.rnr_until = Some(now + rnr_delay(code));
    outcome
}

/// Everything before `packet` is acknowledged: completes what ends there.
fn advance(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    packet: u64,
    now: Timestamp,
) -> bool {
    if !s.acknowledge(packet) {
        return false;
    }
    s.waits_from(now);
    if let Some(time) = s.take_round_trip(packet, now) {
        cq.stats.rtt.take(nanos(time));
        s.ack_timer.measured(time);
    }
    complete(s, sq, cq);
    if !mutant!("retries_not_reloaded") {
        s.reload_retries();
    }
    // The timer runs while an answer is due, from the last one on.
    s.ack_deadline = if s.una < s.asked {
        s.ack_timer.timeout().map(|t| now + t)
    } else {
        None
    };
    true
}

/// Completes the oldest requests that are answered, or were carried out here.
pub(crate) fn complete(s: &mut SendState, sq: &SendQueue, cq: &mut Completions<'_>) {
    while let Some(wqe) = s.pop_complete() {
        if mutant!("completions_swapped")
            && let Some(next) = s.pop_complete()
        {
            finish(&next, sq, cq, Status::Success);
        }
        finish(&wqe, sq, cq, Status::Success);
    }
}

/// Sends again, if it may still be tried.
fn retry(s: &mut SendState) -> Outcome {
    let Some(left) = s.retry_left.checked_sub(1) else {
        return exhausted(s);
    };
    if !mutant!("retries_endless") {
        s.retry_left = left;
    }
    s.go_back();
    Outcome::Retry
}

fn exhausted(s: &SendState) -> Outcome {
    Outcome::Fatal {
        at: s.una,
        status: Status::RetryExcErr,
    }
}

fn not_ready(s: &mut SendState, code: u8, now: Timestamp) -> Outcome {
    // The same news again, by a packet that was in flight: the first timer counts.
    if s.rnr_until.is_some() {
        return Outcome::Nothing;
    }
    if s.rnr_retry != INFINITE {
        let Some(left) = s.rnr_left.checked_sub(1) else {
            return Outcome::Fatal {
                at: s.una,
                status: Status::RnrRetryExcErr,
            };
        };
        s.rnr_left = left;
    }
    s.go_back();
    let wait = !mutant!("rnr_timer_ignored");
    s.rnr_until = Some(if wait { now + rnr_delay(code) } else { now });
    Outcome::Wait
}

/// Completes every request, taken or not, with `flush`, but the one that holds packet `at` with `status`.
pub(crate) fn fail(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    at: u64,
    status: Status,
) {
    while let Some(wqe) = s.pop() {
        let failed = wqe.first <= at && at < wqe.end();
        finish(
            &wqe,
            sq,
            cq,
            if failed { status } else { Status::WrFlushErr },
        );
    }
    flush(s, sq, cq);
}

/// Completes the oldest request with `status`, and all others, taken or not, with [`Status::WrFlushErr`].
pub(crate) fn fail_oldest(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    status: Status,
) {
    if let Some(wqe) = s.pop() {
        finish(&wqe, sq, cq, status);
    }
    flush(s, sq, cq);
}

/// Completes every request, taken or not, with [`Status::WrFlushErr`].
pub(crate) fn flush(s: &mut SendState, sq: &SendQueue, cq: &mut Completions<'_>) {
    while let Some(wqe) = s.pop() {
        finish(&wqe, sq, cq, Status::WrFlushErr);
    }
    // At most as many as the ring holds: whoever posts meanwhile rings the doorbell.
    let capacity = if mutant!("posted_sends_not_flushed") {
        0
    } else {
        sq.capacity()
    };
    for _ in 0..capacity {
        let Some(wr) = sq.take() else { break };
        let wqe = Wqe {
            wr,
            first: 0,
            packets: 0,
            done: false,
            failed: None,
        };
        finish(&wqe, sq, cq, Status::WrFlushErr);
    }
    s.reset();
}

fn finish(wqe: &Wqe, sq: &SendQueue, cq: &mut Completions<'_>, status: Status) {
    let opcode = match wqe.wr.op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => CqeOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => CqeOpcode::Write,
        SendOp::Read { .. } => CqeOpcode::Read,
        SendOp::CompareSwap { .. } => CqeOpcode::CompareSwap,
        SendOp::FetchAdd { .. } => CqeOpcode::FetchAdd,
        SendOp::AtomicWrite { .. } => CqeOpcode::AtomicWrite,
        SendOp::Flush { .. } => CqeOpcode::Flush,
        SendOp::BindMw { .. } => CqeOpcode::BindMw,
        SendOp::LocalInvalidate(_) => CqeOpcode::LocalInvalidate,
    };
    // Its place is free before the completion shows, so that who sees it may post.
    sq.completed(1);
    cq.done(status);
    let lost = mutant!("completion_lost") && wqe.packets == 3;
    let signaled = wqe.wr.signaled || mutant!("unsignaled_completes");
    if (signaled && !lost) || status != Status::Success {
        cq.push(
            wqe.wr.wr_id,
            opcode,
            status,
            wqe.wr.local.len(),
            None,
            false,
        );
    }
}
