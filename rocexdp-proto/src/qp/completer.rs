//! The completer: turns acknowledgements and silence into completions, or into sending again.
//!
//! An ACK covers every packet up to its PSN; a NAK or an RNR NAK covers every packet before its PSN. The retry counters are
//! reloaded whenever a packet is newly acknowledged. An RNR NAK's timer is a minimum: until it has passed the QP sends
//! nothing, whatever else arrives (rxe once sent early). Any credit code is an ACK.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_comp.c (`check_psn`, `check_ack`, `complete_ack`, `COMPST_ERROR_RETRY`,
//! `COMPST_RNR_RETRY`). Must not: build packets (the requester does) or change the QP's state: it reports what is fatal.

use rocexdp_common::headers::{Aeth, Syndrome};

use super::attr::rnr_delay;
use super::completions::Completions;
use super::send::{SendState, Wqe};
use crate::drop::DropReason;
use crate::ids::Psn;
use crate::time::{Timestamp, nanos};
use crate::verbs::{CqeOpcode, SendOp, SendQueue, Status};

/// `rnr_retry` that means "for ever".
const INFINITE: u8 = 7;

/// What an acknowledgement or a timeout came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Nothing new.
    Nothing,
    /// Packets were acknowledged.
    Progress,
    /// Sends again from the oldest packet, by a NAK or by the ACK timer.
    Retry,
    /// Waits for the peer's RNR timer, then sends again.
    Wait,
    /// The oldest request has failed so, and with it the QP.
    Fatal(Status),
}

/// An ACK, NAK or RNR NAK arrived.
///
/// # Errors
/// The PSN is of no packet that was sent, or the syndrome is reserved; nothing has changed.
pub(crate) fn acknowledged(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    psn: Psn,
    aeth: Aeth,
    now: Timestamp,
) -> Result<Outcome, DropReason> {
    let packet = s.packet(psn).ok_or(DropReason::GhostAck)?;
    if packet >= s.high {
        return Err(DropReason::GhostAck);
    }
    let status = match aeth.syndrome {
        Syndrome::Ack(_) => {
            let news = advance(s, sq, cq, packet + 1, now);
            return Ok(if news {
                Outcome::Progress
            } else {
                Outcome::Nothing
            });
        }
        Syndrome::Reserved(_) | Syndrome::NakInvalidRd => return Err(DropReason::ReservedSyndrome),
        // A NAK of something acknowledged since: an old one, overtaken.
        _ if packet < s.una => return Ok(Outcome::Nothing),
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
            } else if news {
                Outcome::Progress
            } else {
                Outcome::Nothing
            });
        }
        Syndrome::NakInvalidRequest => Status::RemInvReqErr,
        Syndrome::NakRemoteAccess => Status::RemAccessErr,
        Syndrome::NakRemoteOperational => Status::RemOpErr,
    };
    advance(s, sq, cq, packet, now);
    Ok(Outcome::Fatal(status))
}

/// The time of `SendState::ack_deadline` or `SendState::rnr_until` may have come.
pub(crate) fn timeout(s: &mut SendState, now: Timestamp) -> Outcome {
    if s.rnr_until.is_some_and(|t| t <= now) {
        s.rnr_until = None;
        return Outcome::Progress;
    }
    if s.ack_deadline.is_some_and(|t| t <= now) {
        return retry(s);
    }
    Outcome::Nothing
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
    if let Some(time) = s.take_round_trip(packet, now) {
        cq.stats.rtt.take(nanos(time));
    }
    while s.wqes.front().is_some_and(|w| w.end() <= packet) {
        if let Some(wqe) = s.pop() {
            finish(&wqe, sq, cq, Status::Success);
        }
    }
    s.reload_retries();
    // The timer runs while an answer is due, from the last one on.
    s.ack_deadline = if s.una < s.asked {
        s.timeout.map(|t| now + t)
    } else {
        None
    };
    true
}

/// Sends again, if it may still be tried.
fn retry(s: &mut SendState) -> Outcome {
    let Some(left) = s.retry_left.checked_sub(1) else {
        return Outcome::Fatal(Status::RetryExcErr);
    };
    s.retry_left = left;
    s.go_back();
    Outcome::Retry
}

fn not_ready(s: &mut SendState, code: u8, now: Timestamp) -> Outcome {
    // The same news again, by a packet that was in flight: the first timer counts.
    if s.rnr_until.is_some() {
        return Outcome::Nothing;
    }
    if s.rnr_retry != INFINITE {
        let Some(left) = s.rnr_left.checked_sub(1) else {
            return Outcome::Fatal(Status::RnrRetryExcErr);
        };
        s.rnr_left = left;
    }
    s.go_back();
    s.rnr_until = Some(now + rnr_delay(code));
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

/// Completes every request, taken or not, with [`Status::WrFlushErr`].
pub(crate) fn flush(s: &mut SendState, sq: &SendQueue, cq: &mut Completions<'_>) {
    while let Some(wqe) = s.pop() {
        finish(&wqe, sq, cq, Status::WrFlushErr);
    }
    // At most as many as the ring holds: whoever posts meanwhile rings the doorbell.
    for _ in 0..sq.capacity() {
        let Some(wr) = sq.take() else { break };
        finish(
            &Wqe {
                wr,
                first: 0,
                packets: 0,
            },
            sq,
            cq,
            Status::WrFlushErr,
        );
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
    if wqe.wr.signaled || status != Status::Success {
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
