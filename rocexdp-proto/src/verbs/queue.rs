//! Send and receive queues: bounded rings that any thread posts to and the endpoint takes from.
//!
//! The depth counts every request that has not completed, those on the wire included, as `ibv_post_send(3)` does: so a full
//! queue shows at the posting side, and the endpoint's own lists never grow.
//!
//! Must not: know packets or wait.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;

use super::state::QpState;
use super::wr::{MAX_MESSAGE, RecvWr, SendWr};

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
    /// The range lies outside its memory.
    #[error("the range lies outside its memory")]
    InvalidSegment,
}

/// What both queues share.
struct Ring<T> {
    ring: ArrayQueue<T>,
    outstanding: AtomicU32,
    depth: u32,
    state: AtomicU8,
}

impl<T> Ring<T> {
    fn new(depth: u32) -> Self {
        Self {
            ring: ArrayQueue::new(depth.max(1) as usize),
            outstanding: AtomicU32::new(0),
            depth,
            state: AtomicU8::new(QpState::Reset as u8),
        }
    }

    fn state(&self) -> QpState {
        QpState::from_u8(self.state.load(Ordering::Acquire))
    }

    fn post(&self, wr: T) -> Result<(), PostError> {
        // The place is taken first, so the push below finds room: the ring never holds more than is outstanding.
        self.outstanding
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
                (n < self.depth).then_some(n + 1)
            })
            .map_err(|_| PostError::Full)?;
        self.ring.push(wr).map_err(|_| {
            self.outstanding.fetch_sub(1, Ordering::AcqRel);
            PostError::Full
        })
    }

    fn completed(&self, n: u32) {
        self.outstanding.fetch_sub(n, Ordering::AcqRel);
    }
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
            pub fn post(&self, wr: $wr) -> Result<(), PostError> {
                let state = self.0.state();
                if !state.$accepts() {
                    return Err(PostError::QpState(state));
                }
                if wr.local.len() > MAX_MESSAGE {
                    return Err(PostError::TooLong);
                }
                if !wr.is_supported() {
                    return Err(PostError::Unsupported);
                }
                if !wr.local.is_valid() {
                    return Err(PostError::InvalidSegment);
                }
                self.0.post(wr)
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
                self.0.depth
            }

            pub(crate) fn set_state(&self, state: QpState) {
                self.0.state.store(state as u8, Ordering::Release);
            }

            /// The oldest request not taken yet.
            pub(crate) fn take(&self) -> Option<$wr> {
                self.0.ring.pop()
            }

            /// Whether a request waits to be taken.
            #[allow(dead_code)] // The responder looks by taking.
            pub(crate) fn has_posted(&self) -> bool {
                !self.0.ring.is_empty()
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
queue! {
    /// A QP's receive queue.
    RecvQueue, RecvWr, takes_receives
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
