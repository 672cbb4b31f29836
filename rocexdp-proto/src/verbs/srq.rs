//! Shared receive queues: one queue from which the QPs of several endpoints (workers) take receive requests.
//!
//! Any thread posts. The limit is armed by the owner and fires once, when fewer requests are left than it says
//! (rxe_resp.c `get_srq_wqe`); the endpoint of the QP that took the request reports it. Requests are checked against the queue's
//! own protection domain, whatever the QP's is.
//!
//! Must not: know QPs' states: a QP in ERR leaves the queue alone.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use super::queue::{QueueCaps, RecvQueue};
use crate::ids::{Pd, SrqNum};

/// A new shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// The owner's number for it; comes back in events.
    pub num: SrqNum,
    /// Its protection domain.
    pub pd: Pd,
    /// Depth, in requests.
    pub max_wr: u32,
    /// Ranges in the list of a request.
    pub max_sge: u32,
    /// Requests below which [`crate::Event::SrqLimitReached`] comes, once; 0: not armed.
    pub limit: u32,
}

/// What a shared queue has besides its ring.
pub(super) struct Shared {
    num: SrqNum,
    pd: Pd,
    /// 0: not armed.
    limit: AtomicU32,
    /// The limit was reached and nobody has reported it.
    reached: AtomicBool,
    /// QPs that take from it.
    users: AtomicU32,
}

impl Shared {
    /// A request was taken, and so many are left.
    pub(super) fn taken(&self, left: usize) {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit != 0
            && left < limit as usize + usize::from(mutant!("srq_limit_too_early"))
            && self
                .limit
                .compare_exchange(limit, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            self.reached
                .store(!mutant!("srq_limit_lost"), Ordering::Release);
        }
    }
}

/// The limit is larger than the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the limit must be at most the queue's depth, {0}, and only a shared receive queue has one"
)]
pub struct LimitError(pub u32);

impl RecvQueue {
    /// A queue that several QPs may share.
    pub(crate) fn shared(attr: &SrqAttr) -> Arc<Self> {
        let caps = QueueCaps {
            max_sge: attr.max_sge,
            ..QueueCaps::default()
        };
        let shared = Shared {
            num: attr.num,
            pd: attr.pd,
            limit: AtomicU32::new(attr.limit),
            reached: AtomicBool::new(false),
            users: AtomicU32::new(0),
        };
        Arc::new(Self::with_shared(attr.max_wr, caps, shared))
    }

    /// Whether several QPs may share it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared_part().is_some()
    }

    /// Of a shared queue: its number.
    #[must_use]
    pub fn srq_num(&self) -> Option<SrqNum> {
        self.shared_part().map(|s| s.num)
    }

    /// Of a shared queue: its protection domain, by which the memory of its requests is checked.
    #[must_use]
    pub fn pd(&self) -> Option<Pd> {
        self.shared_part().map(|s| s.pd)
    }

    /// Of a shared queue: the limit as it is armed; 0 if it is not, or has fired (`ibv_query_srq(3)`).
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.shared_part()
            .map_or(0, |s| s.limit.load(Ordering::Acquire))
    }

    /// Arms the limit of a shared queue anew, or disarms it by 0 (`ibv_modify_srq(3)`, `IBV_SRQ_LIMIT`). It is looked at when a
    /// request is taken, not now.
    ///
    /// # Errors
    /// It is larger than the queue's depth, or the queue is not shared.
    pub fn arm_limit(&self, limit: u32) -> Result<(), LimitError> {
        match self.shared_part() {
            Some(shared) if limit <= self.capacity() => {
                shared.limit.store(limit, Ordering::Release);
                Ok(())
            }
            _ => Err(LimitError(self.capacity())),
        }
    }

    /// Of a shared queue: QPs that take from it.
    #[must_use]
    pub fn users(&self) -> u32 {
        self.shared_part()
            .map_or(0, |s| s.users.load(Ordering::Acquire))
    }

    /// A QP takes from it from now on.
    pub(crate) fn enter(&self) {
        if let Some(shared) = self.shared_part() {
            shared.users.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A QP is gone.
    pub(crate) fn leave(&self) {
        if let Some(shared) = self.shared_part() {
            shared.users.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The number, once each time that the limit was reached.
    pub(crate) fn take_limit_reached(&self) -> Option<SrqNum> {
        let shared = self.shared_part()?;
        (shared.reached.load(Ordering::Relaxed) && shared.reached.swap(false, Ordering::AcqRel))
            .then_some(shared.num)
    }
}
