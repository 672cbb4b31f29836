//! Receive requests that end without a message, and answers that are not given any more.
//!
//! A receive queue that is shared with other QPs is left alone: only the request that this QP has taken from it ends
//! (drivers/infiniband/sw/rxe/rxe_resp.c `check_resource`, `rxe_drain_req_pkts`).
//!
//! Must not: decide when.

use super::answer::Owed;
use super::{Context, RecvState};
use crate::verbs::{RecvQueue, Status};

/// Completes every receive request with [`Status::WrFlushErr`].
pub(crate) fn flush(s: &mut RecvState, cx: &mut Context<'_>) {
    s.message = None;
    if let Some(wr) = s.current.take() {
        cx.fail(&wr, Status::WrFlushErr);
    }
    if cx.shared || mutant!("receives_not_flushed") {
        return;
    }
    // At most as many as the queue holds: whoever posts meanwhile rings the doorbell.
    for _ in 0..cx.rq.capacity() {
        let Some(wr) = cx.rq.take() else { break };
        cx.fail(&wr, Status::WrFlushErr);
    }
}

/// Nothing more is answered.
pub(crate) fn forget_answers(s: &mut RecvState) {
    s.owed = Owed::Nothing;
    s.selective = None;
    s.answers = None;
    s.resources.clear();
}

/// Forgets everything, receive requests included, and completes nothing.
pub(crate) fn reset(s: &mut RecvState, rq: &RecvQueue, shared: bool) {
    if s.current.take().is_some() {
        rq.completed(1);
    }
    if !shared {
        for _ in 0..rq.capacity() {
            if rq.take().is_none() {
                break;
            }
            rq.completed(1);
        }
    }
    *s = RecvState::default();
}
