//! The responder of UC: RC's chain of checks with other ends. Nobody is told of a refusal: the message is dropped as a whole,
//! the QP goes on, and the next FIRST or ONLY begins a new message, whatever its PSN.
//!
//! The receive request of a dropped SEND serves the next one; out of a shared receive queue it completes in error instead,
//! since others wait for its memory. Only local memory that fails ends the QP.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_resp.c (`check_psn`, `check_op_seq`, `check_op_valid`, `do_class_d1e_error` and the
//! error states of `rxe_responder`, UC branches), but for one thing: where a message was cut short, rxe drops the FIRST or ONLY
//! that shows it (`RESPST_ERR_MISSING_OPCODE_LAST_D1E`), "could be valid" as it is, and with it one message more than was
//! lost. Here it begins its message.
//!
//! Must not: owe an answer.

use rocexdp_common::opcode::{Operation, Position};

use super::check::{check_length, check_op_valid, check_resource, check_rkey};
use super::execute::execute;
use super::{Context, RecvState, Refusal, Served};
use crate::drop::DropReason;
use crate::verbs::Status;
use crate::wire::Packet;

/// Serves a request packet whose ICRC, addresses and service are right.
pub(crate) fn serve(s: &mut RecvState, cx: &mut Context<'_>, p: &Packet<'_>) -> Served {
    // The parser knows the opcode.
    let Some((operation, position)) = p.bth.opcode.decode() else {
        return Served::Refused(DropReason::UnknownOpcode);
    };
    let in_order = check_psn(s, cx, p);
    let checked = check_op_seq(s, cx, operation, position, in_order);
    // Whatever becomes of it: the packet behind it is in order.
    let next = p.bth.psn.add(1);
    if let Err(reason) = checked {
        s.expected = next;
        return Served::Refused(reason);
    }
    let served = match chain(s, cx, p, operation, position) {
        Ok(()) => Served::Accepted,
        Err(refusal) => refuse(s, cx, operation, refusal),
    };
    s.expected = next;
    served
}

/// Whether the packet is the one behind the last one that came (rxe_resp.c `check_psn`).
fn check_psn(s: &mut RecvState, cx: &mut Context<'_>, p: &Packet<'_>) -> bool {
    let in_order = p.bth.psn == s.expected;
    cx.stats.out_of_sequence += u64::from(!in_order);
    s.expected = p.bth.psn;
    in_order
}

/// FIRST and ONLY begin a message; MIDDLE and LAST go on with one of their own kind, without a gap (rxe_resp.c
/// `check_op_seq`). What was begun and is not gone on with is dropped.
fn check_op_seq(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    operation: Operation,
    position: Position,
    in_order: bool,
) -> Result<(), DropReason> {
    let begins = matches!(position, Position::First | Position::Only);
    let Some(under_way) = s.message.map(|m| m.operation) else {
        return if begins {
            Ok(())
        } else {
            Err(DropReason::MessageDropped)
        };
    };
    let in_order = in_order || mutant!("uc_gap_delivered");
    if !begins && in_order && under_way == operation {
        return Ok(());
    }
    abandon(s, cx, Status::RemInvReqErr);
    match (begins, in_order) {
        (true, _) => Ok(()),
        (false, false) => Err(DropReason::OutOfSequence),
        (false, true) => Err(DropReason::InvalidRequest),
    }
}

/// The rest of the chain, which is RC's.
fn chain(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<(), Refusal> {
    check_op_valid(s, p, operation)?;
    check_resource(s, cx, p, operation, position)?;
    let message = check_length(s, p, operation, position)?;
    check_rkey(s, cx, p, &message)?;
    execute(s, cx, p, message, position)
}

/// The message is not served, this packet and what follows of it.
fn refuse(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    operation: Operation,
    refusal: Refusal,
) -> Served {
    let (reason, status) = match refusal {
        Refusal::NotReady => (DropReason::NoReceive, Status::RemInvReqErr),
        Refusal::Fatal { reason, status, .. } => (reason, status),
        // RC's alone.
        _ => (DropReason::OutOfSequence, Status::RemInvReqErr),
    };
    // The memory of the receive request (rxe: `RESPST_ERR_MALFORMED_WQE`, class A). That of a WRITE is the region's matter.
    if reason == DropReason::RemoteOperational && operation == Operation::Send {
        s.message = None;
        end_current(s, cx, status);
        return Served::Fatal(reason);
    }
    abandon(s, cx, status);
    Served::Refused(reason)
}

/// The message under way is dropped.
fn abandon(s: &mut RecvState, cx: &mut Context<'_>, status: Status) {
    s.message = None;
    if cx.shared && !mutant!("uc_shared_receive_kept") {
        end_current(s, cx, status);
    }
}

/// The receive request in use, if any, ends in error.
fn end_current(s: &mut RecvState, cx: &mut Context<'_>, status: Status) {
    if let Some(wr) = s.current.take() {
        cx.fail(&wr, status);
    }
}
