//! Answers of a peer that repeats selectively.
//!
//! Such answers come in any order, over several paths: none says by overtaking another one that this one was lost. An
//! acknowledgement, or a response, tells how far the peer has carried out requests; what wants a response of its own is answered by
//! that alone, as in RC. The peer sends lost responses again by itself, from what it is told of those that have come.
//!
//! A response ahead of a missing one is placed at once if it belongs to the READ in progress and is not its end; the READ's end
//! and everything of later requests is kept aside until all before it has come, and then goes the way of any response. So the
//! memory of a request that is complete, or was flushed, is never written to, and who sees the last byte of a READ sees all of
//! it.
//!
//! A transmission is recorded as arrived only when it was placed, was kept, or had come before. Must not: see a packet of another
//! peer.

use rocexdp_common::headers::{Aeth, Sack, Syndrome};
use rocexdp_common::opcode::{Operation, Position};

use super::{INFINITE, Outcome, advance, check_psn, check_response, place, progress, take};
use crate::drop::DropReason;
use crate::qp::attr::rnr_delay;
use crate::qp::completions::Completions;
use crate::qp::send::SendState;
use crate::qp::sr::{Receiver, SPAN};
use crate::time::Timestamp;
use crate::verbs::{SendOp, SendQueue, Status};
use crate::wire::Packet;

/// Whether an acknowledgement is one of something that was sent: the number of the packet behind that.
///
/// # Errors
/// It is not, or its syndrome is reserved.
pub(crate) fn check(s: &SendState, p: &Packet<'_>) -> Result<u64, DropReason> {
    let aeth = p.aeth.ok_or(DropReason::UnexpectedResponse)?;
    if matches!(
        aeth.syndrome,
        Syndrome::Reserved(_) | Syndrome::NakInvalidRd
    ) {
        return Err(DropReason::ReservedSyndrome);
    }
    // Counted from behind it: an ACK of nothing yet names the packet before the first one.
    let behind = s.packet(p.bth.psn.add(1)).ok_or(DropReason::GhostAck)?;
    let acks = matches!(aeth.syndrome, Syndrome::Ack(_));
    if behind > s.high || (behind == 0 && !acks) {
        return Err(DropReason::GhostAck);
    }
    Ok(behind)
}

/// An ACK, NAK or RNR NAK: cumulative as any, and it tells of transmissions.
pub(super) fn acknowledged(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    p: &Packet<'_>,
    aeth: Aeth,
    now: Timestamp,
) -> Result<Outcome, DropReason> {
    let behind = check(s, p)?;
    let acks = matches!(aeth.syndrome, Syndrome::Ack(_));
    let status = match aeth.syndrome {
        Syndrome::NakInvalidRequest => Some(Status::RemInvReqErr),
        Syndrome::NakRemoteAccess => Some(Status::RemAccessErr),
        Syndrome::NakRemoteOperational => Some(Status::RemOpErr),
        _ => None,
    };
    let executed = if acks { behind } else { behind - 1 };
    let sack = p.sack.ok_or(DropReason::UnexpectedResponse)?;
    let covered = executed.min(s.unanswered().unwrap_or(u64::MAX)).max(s.una);
    let lost = if sack.answers {
        false
    } else {
        transmissions(s, &sack, covered, now)?
    };
    let reach = s.answered_up_to(executed);
    let news = advance(s, sq, cq, reach, now);
    // A NAK of something acknowledged since: an old one, overtaken.
    let packet = behind.saturating_sub(1);
    if !acks && packet >= s.una {
        if let Some(status) = status {
            // The peer is in ERR and answers nothing any more, so a response that was lost before can't be had.
            return Ok(Outcome::Fatal { at: packet, status });
        }
        if let Syndrome::RnrNak(code) = aeth.syndrome {
            return Ok(not_ready(s, packet, code, &sack, now));
        }
    }
    Ok(if lost { Outcome::Retry } else { progress(news) })
}

/// Takes in which transmissions of requests have arrived. True: some are lost.
fn transmissions(
    s: &mut SendState,
    sack: &Sack,
    covered: u64,
    now: Timestamp,
) -> Result<bool, DropReason> {
    let ghost = DropReason::GhostAck;
    let sr = s.selective.as_mut().ok_or(ghost)?;
    let had = sr.has_arrived(s.una);
    let news = sr.sack(sack, covered, now).ok_or(ghost)?;
    if sr.has_arrived(s.una) && !had {
        // From now on its answer is waited for. How often it was asked for again stays: an answer may never come.
        sr.waits_since = now;
    }
    if news.arrived {
        s.heard(now);
    }
    Ok(news.lost > 0)
}

/// An RNR NAK: its time is waited for in any case. It counts only if it refuses the packet's last transmission (a later one,
/// which was sent because nothing was heard, is not refused yet, and may have been taken) and all before it is answered (as in
/// RC, where such an answer is asked for first).
fn not_ready(s: &mut SendState, packet: u64, code: u8, sack: &Sack, now: Timestamp) -> Outcome {
    let waits = s.rnr_until.is_some();
    let wait = !mutant!("rnr_timer_ignored");
    let until = if wait { now + rnr_delay(code) } else { now };
    let latest = s
        .selective
        .as_ref()
        .is_some_and(|sr| sr.is_latest(packet, sack.path, sack.mark));
    if !latest {
        s.rnr_until.get_or_insert(until);
        return Outcome::Nothing;
    }
    let oldest = packet == s.una;
    if s.rnr_retry != INFINITE && oldest {
        let Some(left) = s.rnr_left.checked_sub(1) else {
            let status = Status::RnrRetryExcErr;
            return Outcome::Fatal { at: packet, status };
        };
        s.rnr_left = left;
    }
    // What came behind it is kept.
    if let Some(sr) = &mut s.selective {
        sr.again(packet);
    }
    if oldest {
        s.ack_deadline = None;
    }
    s.rnr_until.get_or_insert(until);
    if waits {
        Outcome::Nothing
    } else {
        Outcome::Wait
    }
}

/// A READ response or an atomic acknowledge.
pub(super) fn responded(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    p: &Packet<'_>,
    kind: (Operation, Position),
    now: Timestamp,
) -> Result<Outcome, DropReason> {
    let packet = check_psn(s, p).ok_or(DropReason::UnexpectedResponse)?;
    let mut rx = s.answers.take().ok_or(DropReason::UnexpectedResponse)?;
    let outcome = receive(s, &mut rx, sq, cq, packet, p, kind, now);
    s.answers = Some(rx);
    outcome
}

#[allow(clippy::too_many_arguments)] // The state, in its parts, and a packet, in its.
fn receive(
    s: &mut SendState,
    rx: &mut Receiver,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    packet: u64,
    p: &Packet<'_>,
    kind: (Operation, Position),
    now: Timestamp,
) -> Result<Outcome, DropReason> {
    let sreth = p.sreth.ok_or(DropReason::UnexpectedResponse)?;
    if !rx.arrivals.has_path(sreth.path) {
        return Err(DropReason::UnknownPath);
    }
    if !rx.arrivals.is_near(sreth.path, sreth.serial) {
        return Err(DropReason::BeyondWindow);
    }
    // The peer keeps nothing so old.
    if packet + u64::from(SPAN) < s.una {
        return Err(DropReason::BeyondWindow);
    }
    if packet < s.una || rx.reorder.has(p.bth.psn) {
        rx.arrivals.record(sreth.path, sreth.serial, true);
        return Err(DropReason::DuplicateResponse);
    }
    let (Some(first), Some(expected)) = (s.asked_with(packet), s.unanswered()) else {
        // Of a SEND or WRITE.
        let status = Status::BadRespErr;
        return Ok(Outcome::Fatal { at: packet, status });
    };
    if packet > expected && !rx.reorder.has_room() {
        return Err(DropReason::ReorderFull);
    }
    if let Some(sr) = &mut s.selective {
        sr.answered(first, now);
    }
    if first <= expected {
        s.waits_from(now);
    }
    if packet > expected {
        let placed = early(s, packet, expected, p, kind).is_some();
        rx.reorder.keep(p, placed);
        rx.arrivals.record(sreth.path, sreth.serial, false);
        s.heard(now);
        return Ok(Outcome::Nothing);
    }
    let outcome = in_turn(s, sq, cq, packet, p, kind, now);
    if outcome != Outcome::Progress {
        return Ok(outcome);
    }
    rx.arrivals.record(sreth.path, sreth.serial, false);
    // What was kept behind it is in turn now, up to the next one that is missing.
    while let Some(next) = s.unanswered()
        && let Some(held) = rx.reorder.take(s.psn(next))
    {
        let outcome = held.with(|p| match p.bth.opcode.decode() {
            Some(kind) => in_turn(s, sq, cq, next, p, kind, now),
            None => Outcome::Nothing,
        });
        rx.reorder.done(held);
        if outcome != Outcome::Progress {
            return Ok(outcome);
        }
    }
    Ok(Outcome::Progress)
}

/// The response that is expected next; its request and all before it have been carried out.
fn in_turn(
    s: &mut SendState,
    sq: &SendQueue,
    cq: &mut Completions<'_>,
    packet: u64,
    p: &Packet<'_>,
    kind: (Operation, Position),
    now: Timestamp,
) -> Outcome {
    let outcome = take(s, sq, cq, packet, p, kind, now);
    if outcome == Outcome::Progress {
        let reach = s.answered_up_to(packet + 1);
        advance(s, sq, cq, reach, now);
    }
    outcome
}

/// Places a response ahead of its turn, if it may be. `None`: it may not, or it would be refused in its turn; nothing was
/// written.
fn early(
    s: &SendState,
    packet: u64,
    expected: u64,
    p: &Packet<'_>,
    kind: (Operation, Position),
) -> Option<()> {
    let wqe = s.holder(packet)?;
    let index = packet.saturating_sub(wqe.first) as u32;
    let in_progress = wqe.first <= expected && index + 1 < wqe.packets;
    if !in_progress || !matches!(wqe.wr.op, SendOp::Read { .. }) {
        return None;
    }
    check_response(s, wqe, index, p, kind).ok()?;
    place(s, wqe, index, p).ok()
}
