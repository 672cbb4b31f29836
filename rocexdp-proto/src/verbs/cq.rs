//! Completion queues: where finished work requests show.
//!
//! One queue may serve several QPs and endpoints (workers); any thread polls. A full queue loses the completion and says so
//! ([`CompletionQueue::overflowed`]); the QP then goes to ERR, as `ibv_create_cq(3)` has it.
//!
//! Must not: know packets or block. Waiting is the waker's matter.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crossbeam_queue::ArrayQueue;

use crate::ids::{Qpn, RKey, WrId};

/// How a work request ended: meaning and order of `enum ibv_wc_status`, those that RC, UC and UD can give.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// Message longer than the receive request's memory.
    LocLenErr = 1,
    /// The QP could not carry the request out.
    LocQpOpErr = 2,
    /// Local memory could not be read or written.
    LocProtErr = 4,
    /// The QP went to ERR before the request was carried out.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The answer was not the one to this request.
    BadRespErr = 7,
    /// The region does not allow this locally.
    LocAccessErr = 8,
    /// The peer called the request invalid.
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    RemAccessErr = 10,
    /// The peer could not carry the request out.
    RemOpErr = 11,
    /// No answer within all retries.
    RetryExcErr = 12,
    /// The peer had no receive request within all RNR retries.
    RnrRetryExcErr = 13,
}

impl Status {
    /// All statuses.
    pub const ALL: [Self; 13] = [
        Self::Success,
        Self::LocLenErr,
        Self::LocQpOpErr,
        Self::LocProtErr,
        Self::WrFlushErr,
        Self::MwBindErr,
        Self::BadRespErr,
        Self::LocAccessErr,
        Self::RemInvReqErr,
        Self::RemAccessErr,
        Self::RemOpErr,
        Self::RetryExcErr,
        Self::RnrRetryExcErr,
    ];
}

/// The text of `ibv_wc_status_str(3)`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error",
            Self::LocQpOpErr => "local QP operation error",
            Self::LocProtErr => "local protection error",
            Self::WrFlushErr => "Work Request Flushed Error",
            Self::MwBindErr => "memory bind operation error",
            Self::BadRespErr => "bad response error",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "remote invalid request error",
            Self::RemAccessErr => "remote access error",
            Self::RemOpErr => "remote operation error",
            Self::RetryExcErr => "transport retry counter exceeded",
            Self::RnrRetryExcErr => "RNR retry counter exceeded",
        })
    }
}

/// What kind of request completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CqeOpcode {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// WRITE, with or without immediate.
    Write,
    /// READ.
    Read,
    /// COMPARE_SWAP.
    CompareSwap,
    /// FETCH_ADD.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// Bind of a memory window.
    BindMw,
    /// Local invalidate.
    LocalInvalidate,
    /// A message came by SEND.
    Recv,
    /// A WRITE with immediate came.
    RecvWriteImm,
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// The request's.
    pub wr_id: WrId,
    /// The local QP.
    pub qpn: Qpn,
    /// Kind of request. For a failed receive always [`CqeOpcode::Recv`].
    pub opcode: CqeOpcode,
    /// How it ended. Unless [`Status::Success`], only `wr_id`, `qpn` and this mean anything.
    pub status: Status,
    /// Bytes of the message. UD receive: with the 40 bytes of the GRH.
    pub byte_len: u32,
    /// The peer's 32 bits.
    pub imm: Option<u32>,
    /// The key that the peer's SEND with invalidate has withdrawn.
    pub invalidated: Option<RKey>,
    /// UD receive: the sender's QP.
    pub src_qpn: Option<Qpn>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
}

/// Called when a completion comes after the queue was found empty.
type Waker = Box<dyn Fn() + Send + Sync>;

/// A completion queue.
pub struct CompletionQueue {
    ring: ArrayQueue<Cqe>,
    overflowed: AtomicBool,
    /// Set once the waker was called, cleared by a poll that finds nothing: so one call covers a burst and none is lost.
    told: AtomicBool,
    waker: RwLock<Option<Waker>>,
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({} of {})", self.len(), self.capacity())
    }
}

impl CompletionQueue {
    /// A queue for `depth` completions (at least 1).
    #[must_use]
    pub fn new(depth: u32) -> Self {
        Self {
            ring: ArrayQueue::new(depth.max(1) as usize),
            overflowed: AtomicBool::new(false),
            told: AtomicBool::new(false),
            waker: RwLock::new(None),
        }
    }

    /// The oldest completion.
    ///
    /// After `None` the next completion calls the waker, so a thread may sleep then.
    pub fn poll(&self) -> Option<Cqe> {
        if let Some(cqe) = self.ring.pop() {
            return Some(cqe);
        }
        // Look again: what was pushed before the store may have skipped the call.
        self.told.store(false, Ordering::SeqCst);
        self.ring.pop()
    }

    /// Completions not polled yet.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Completions that fit.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Whether a completion was ever lost because the queue was full.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// Sets what is called when a completion comes after a poll found the queue empty. It runs on the engine's thread: keep
    /// it short (an eventfd write), and don't call into the endpoint.
    pub fn set_waker(&self, waker: Box<dyn Fn() + Send + Sync>) {
        *self.waker.write().unwrap_or_else(PoisonError::into_inner) = Some(waker);
        self.told.store(false, Ordering::SeqCst);
    }

    /// Adds a completion; false if it was lost.
    pub(crate) fn push(&self, cqe: Cqe) -> bool {
        if self.ring.push(cqe).is_err() {
            self.overflowed.store(true, Ordering::Release);
            return false;
        }
        if !self.told.swap(true, Ordering::SeqCst)
            && let Some(wake) = self
                .waker
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .as_ref()
        {
            wake();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::sync::Arc;

    fn cqe(n: u64) -> Cqe {
        Cqe {
            wr_id: WrId(n),
            qpn: Qpn::new(1),
            opcode: CqeOpcode::Send,
            status: Status::Success,
            byte_len: 0,
            imm: None,
            invalidated: None,
            src_qpn: None,
            solicited: false,
        }
    }

    #[test]
    fn the_waker_is_called_once_after_each_time_the_queue_was_found_empty() {
        let cq = CompletionQueue::new(4);
        let calls = Arc::new(AtomicU32::new(0));
        let seen = calls.clone();
        cq.set_waker(Box::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        }));
        assert!(cq.push(cqe(1)) && cq.push(cqe(2)));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(cq.poll().unwrap().wr_id, WrId(1));
        assert!(cq.push(cqe(3)));
        assert_eq!(
            calls.load(Ordering::Relaxed),
            1,
            "the poller has not seen it empty yet"
        );
        while cq.poll().is_some() {}
        assert!(cq.push(cqe(4)));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_full_queue_reports_what_it_lost() {
        let cq = CompletionQueue::new(1);
        assert!(cq.push(cqe(1)) && !cq.overflowed());
        assert!(!cq.push(cqe(2)) && cq.overflowed());
    }

    #[test]
    fn statuses_have_the_numbers_of_ibv_wc_status() {
        assert_eq!(
            Status::ALL.map(|s| s as u8),
            [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
        );
        assert_eq!(
            Status::RetryExcErr.to_string(),
            "transport retry counter exceeded"
        );
    }
}
