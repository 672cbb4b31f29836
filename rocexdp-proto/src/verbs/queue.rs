//! Send and receive queues: bounded rings that any thread posts to and the endpoint takes from.
//!
//! The depth counts every request that has not completed, those on the wire included, as `ibv_post_send(3)` does: so a full
//! queue shows at the posting side, and the endpoint's own lists never grow.
//!
//! One lock is held for as long as a request is moved, so that none is posted behind a change of state that refuses it. Whether
//! something waits is seen without it. Room for all requests is there from the beginning.
//!
//! Must not: know packets, or hold the lock while anyone else's code runs (memory is dropped outside of it).

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rocexdp_common::opcode::Transport;

use super::srq::Shared;
use super::state::QpState;
use super::wr::{MAX_MESSAGE, RecvWr, SendOp, SendWr};
use crate::mem::SgList;

/// Why a request was not taken. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// As many requests as the queue is deep have not completed.
    #[error("queue full: poll completions first, or make the queue deeper")]
    Full,
    /// The QP's state does not take such requests: sends need RTS (or ERR, which flushes), receives INIT or later.
    #[error("the QP is in state {0}, which takes no such request")]
    QpState(QpState),
    /// Message over 2^31 bytes.
    #[error("message longer than 2^31 bytes")]
    TooLong,
    /// The QP's service has no such operation.
    #[error("the QP's service has no such operation")]
    Unsupported,
    /// UD: the message is longer than the path MTU, and would not fit into its one packet.
    #[error("UD message longer than the path MTU: a message is one packet")]
    LongerThanMtu,
    /// UD: no destination, or the destination is a group and its QPN is not 0xffffff, or the reverse. Not UD: a destination.
    #[error("a UD request, and only that, says to whom; to a group with QPN 0xffffff")]
    Destination,
    /// The range lies outside its memory.
    #[error("the range lies outside its memory")]
    InvalidSegment,
    /// More ranges than the queue takes, or, of a READ, than the device.
    #[error(
        "the list has more ranges than the {0} that the queue was made for, or, of a READ, that the device takes"
    )]
    TooManySegments(u32),
    /// More inline data than the queue takes.
    #[error("more inline data than the {0} bytes that the queue was made for")]
    InlineTooLong(u32),
}

/// Why not all requests of a list were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("request {posted} of the list was not posted: {why}")]
pub struct ListError {
    /// So many were posted: the index of the first that was not.
    pub posted: u32,
    /// Why it was not.
    pub why: PostError,
}

/// What a queue takes, besides its depth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueCaps {
    /// The QP's service.
    pub(crate) transport: Transport,
    /// Ranges of a list.
    pub(crate) max_sge: u32,
    /// Ranges of a READ's list.
    pub(crate) max_sge_rd: u32,
    /// Bytes of inline data.
    pub(crate) max_inline: u32,
    /// Bytes of a message.
    pub(crate) max_message: u32,
    /// Success of every send makes a completion.
    pub(crate) signal_all: bool,
}

impl Default for QueueCaps {
    fn default() -> Self {
        Self {
            transport: Transport::Rc,
            max_sge: u32::MAX,
            max_sge_rd: u32::MAX,
            max_inline: u32::MAX,
            max_message: MAX_MESSAGE,
            signal_all: false,
        }
    }
}

impl QueueCaps {
    fn check(&self, list: &SgList, reads: bool) -> Result<(), PostError> {
        if list.len() > self.max_message {
            return Err(PostError::TooLong);
        }
        let most = if reads { self.max_sge_rd } else { self.max_sge };
        if list.segments().len() > most as usize && !list.is_empty() {
            return Err(PostError::TooManySegments(most));
        }
        if list
            .inline_len()
            .is_some_and(|n| n > self.max_inline as usize)
        {
            return Err(PostError::InlineTooLong(self.max_inline));
        }
        Ok(())
    }
}

/// What both queues share.
struct Ring<T> {
    /// Posted and not taken, oldest first.
    posted: Mutex<VecDeque<T>>,
    /// How many those are.
    waiting: AtomicU32,
    outstanding: AtomicU32,
    depth: AtomicU32,
    /// Changed only under the lock.
    state: AtomicU8,
    caps: QueueCaps,
    /// Bytes of a UD message: its QP's path MTU.
    max_datagram: AtomicU32,
    /// Of a shared receive queue.
    shared: Option<Box<Shared>>,
}

impl<T> Ring<T> {
    fn new(depth: u32) -> Self {
        Self {
            posted: Mutex::new(VecDeque::with_capacity(depth as usize)),
            waiting: AtomicU32::new(0),
            outstanding: AtomicU32::new(0),
            depth: AtomicU32::new(depth),
            state: AtomicU8::new(QpState::Reset as u8),
            caps: QueueCaps::default(),
            max_datagram: AtomicU32::new(MAX_MESSAGE),
            shared: None,
        }
    }

    fn state(&self) -> QpState {
        QpState::from_u8(self.state.load(Ordering::Acquire))
    }

    fn depth(&self) -> u32 {
        self.depth.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_state(&self, state: QpState) {
        let _held = self.lock();
        self.state.store(state as u8, Ordering::Release);
    }

    fn post(&self, wr: T, accepts: impl Fn(QpState) -> bool) -> Result<(), PostError> {
        let mut posted = self.lock();
        let state = self.state();
        if !accepts(state) {
            return Err(PostError::QpState(state));
        }
        // Only completions change it meanwhile, and make it less.
        if self.outstanding.load(Ordering::Acquire) >= self.depth() {
            return Err(PostError::Full);
        }
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        posted.push_back(wr);
        self.waiting.store(posted.len() as u32, Ordering::Release);
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn completed(&self, n: u32) {
        self.outstanding.fetch_sub(n, Ordering::AcqRel);
    }

    /// Another depth. Gives what does not fit: how many are outstanding.
    fn resize(&self, depth: u32) -> Result<(), u32> {
        let mut posted = self.lock();
        let outstanding = self.outstanding.load(Ordering::Acquire);
        if outstanding > depth {
            return Err(outstanding);
        }
        let held = posted.len();
        posted.reserve((depth as usize).saturating_sub(held));
        posted.shrink_to(depth as usize);
        self.depth.store(depth, Ordering::Release);
        Ok(())
    }
}

impl<T: Posted> Ring<T> {
    /// Whether requests are taken at all: in SQD, sends wait.
    fn gives(&self) -> bool {
        !(T::DRAINS && self.state() == QpState::Sqd)
    }

    fn take(&self) -> Option<T> {
        if !self.is_waiting() || !self.gives() {
            return None;
        }
        let mut posted = self.lock();
        let wr = posted.pop_front()?;
        let left = posted.len();
        self.waiting.store(left as u32, Ordering::Release);
        drop(posted);
        if let Some(shared) = &self.shared {
            shared.taken(left);
        }
        Some(wr)
    }
}

/// A kind of request.
trait Posted {
    /// Whether SQD holds back those that nobody has taken.
    const DRAINS: bool;
    /// Whether it is a READ.
    fn reads(&self) -> bool;
    /// Whether success makes a completion in any case.
    fn signal(&mut self);
}

impl Posted for SendWr {
    const DRAINS: bool = true;
    fn reads(&self) -> bool {
        matches!(self.op, SendOp::Read { .. })
    }
    fn signal(&mut self) {
        self.signaled = true;
    }
}

impl Posted for RecvWr {
    const DRAINS: bool = false;
    fn reads(&self) -> bool {
        false
    }
    fn signal(&mut self) {}
}

macro_rules! queue {
    ($(#[$doc:meta])* $name:ident, $wr:ty, $accepts:ident) => {
        $(#[$doc])*
        pub struct $name(Ring<$wr>);

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({} of {})", stringify!($name), self.len(), self.capacity())
            }
        }

        impl $name {
            pub(crate) fn new(depth: u32) -> Self {
                Self(Ring::new(depth))
            }

            /// Posts a request. Tell the endpoint afterwards (`Endpoint::work_posted`).
            ///
            /// # Errors
            /// See [`PostError`].
            pub fn post(&self, mut wr: $wr) -> Result<(), PostError> {
                let state = self.0.state();
                if !state.$accepts() {
                    return Err(PostError::QpState(state));
                }
                self.0.caps.check(&wr.local, wr.reads())?;
                let most = self.0.max_datagram.load(Ordering::Acquire);
                wr.check(self.0.caps.transport, most)?;
                if !wr.local.is_valid() {
                    return Err(PostError::InvalidSegment);
                }
                if self.0.caps.signal_all {
                    wr.signal();
                }
                self.0.post(wr, QpState::$accepts)
            }

            /// Posts requests in order, up to the first that is not taken.
            ///
            /// # Errors
            /// How many were posted, and why the next one was not.
            pub fn post_list(
                &self,
                wrs: impl IntoIterator<Item = $wr>,
            ) -> Result<u32, ListError> {
                let mut posted = 0;
                for wr in wrs {
                    self.post(wr).map_err(|why| ListError { posted, why })?;
                    posted += 1;
                }
                Ok(posted)
            }

            pub(crate) fn caps(&self) -> &QueueCaps {
                &self.0.caps
            }

            pub(crate) fn with_caps(mut self, caps: QueueCaps) -> Self {
                self.0.caps = caps;
                self
            }

            /// Ranges that a request's list may have.
            pub fn max_sge(&self) -> u32 {
                self.0.caps.max_sge
            }

            /// Requests posted and not completed.
            pub fn len(&self) -> u32 {
                self.0.outstanding.load(Ordering::Acquire)
            }

            /// Whether all posted requests have completed.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Requests that may be outstanding at once.
            pub fn capacity(&self) -> u32 {
                self.0.depth()
            }

            /// The QP has changed its state. A shared queue has no state of any QP.
            pub(crate) fn set_state(&self, state: QpState) {
                if self.0.shared.is_none() {
                    self.0.set_state(state);
                }
            }

            /// The oldest request not taken yet.
            pub(crate) fn take(&self) -> Option<$wr> {
                self.0.take()
            }

            /// Whether a request waits to be taken.
            #[allow(dead_code)] // The responder looks by taking.
            pub(crate) fn has_posted(&self) -> bool {
                self.0.is_waiting() && self.0.gives()
            }

            /// `n` taken requests have completed (or were thrown away): their places are free.
            pub(crate) fn completed(&self, n: u32) {
                self.0.completed(n);
            }
        }
    };
}

queue! {
    /// A QP's send queue.
    SendQueue, SendWr, takes_sends
}
impl SendQueue {
    /// The longest UD message from now on: one packet.
    pub(crate) fn set_max_datagram(&self, bytes: u32) {
        self.0.max_datagram.store(bytes, Ordering::Release);
    }
}

queue! {
    /// A QP's receive queue, or one that several QPs share (SRQ, `ibv_create_srq(3)`).
    RecvQueue, RecvWr, takes_receives
}

impl RecvQueue {
    /// A queue that several QPs share.
    pub(super) fn with_shared(depth: u32, caps: QueueCaps, shared: Shared) -> Self {
        let ring = Ring {
            // Its QPs' states are none of its own.
            state: AtomicU8::new(QpState::Rts as u8),
            caps,
            shared: Some(Box::new(shared)),
            ..Ring::new(depth)
        };
        Self(ring)
    }

    /// What makes it a shared one, if it is.
    pub(super) fn shared_part(&self) -> Option<&Shared> {
        self.0.shared.as_deref()
    }

    /// Requests posted that no QP has taken.
    pub fn available(&self) -> usize {
        self.0.waiting.load(Ordering::Acquire) as usize
    }

    /// Another depth. Gives how many are outstanding, if those are more.
    pub(crate) fn resize(&self, depth: u32) -> Result<(), u32> {
        self.0.resize(depth)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Segment, SgList};
    use super::*;
    use crate::ids::WrId;
    use crate::mem::Bare;
    use std::sync::Arc;

    fn wr(n: u64) -> RecvWr {
        RecvWr {
            wr_id: WrId(n),
            local: SgList::empty(),
        }
    }

    #[test]
    fn depth_counts_requests_that_have_not_completed() {
        let q = RecvQueue::new(2);
        assert_eq!(q.post(wr(0)), Err(PostError::QpState(QpState::Reset)));
        q.set_state(QpState::Init);
        q.post(wr(1)).unwrap();
        q.post(wr(2)).unwrap();
        assert_eq!(q.post(wr(3)), Err(PostError::Full));
        assert_eq!(q.take().unwrap().wr_id, WrId(1));
        assert_eq!(q.post(wr(3)), Err(PostError::Full));
        q.completed(1);
        q.post(wr(3)).unwrap();
        assert_eq!((q.len(), q.capacity()), (2, 2));
        assert_eq!(q.take().unwrap().wr_id, WrId(2));
        assert_eq!(q.take().unwrap().wr_id, WrId(3));
        assert!(!q.has_posted());
    }

    #[test]
    fn a_range_outside_its_memory_is_refused() {
        let q = RecvQueue::new(1);
        q.set_state(QpState::Init);
        let post = |len| {
            let mem = Arc::new(Bare(8));
            q.post(RecvWr::new(WrId(0), Segment::new(mem, 4, len)))
        };
        assert_eq!(post(5), Err(PostError::InvalidSegment));
        assert_eq!(post(MAX_MESSAGE + 1), Err(PostError::TooLong));
        assert!(q.is_empty());
    }
}
