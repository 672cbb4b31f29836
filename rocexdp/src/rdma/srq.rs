//! Shared receive queues: receive requests that several queue pairs take from.
//!
//! Must not: know queue pairs.

use std::{fmt, sync::Arc};

use rocexdp_proto::{
    ids::WrId,
    verbs::{RecvQueue, RecvWr},
};

use super::{Error, PostError, ProtectionDomain, QueueName, Target};

/// A shared receive queue, for queue pairs that are built with it
/// ([`QueuePairBuilder::shared_receive_queue`](super::QueuePairBuilder::shared_receive_queue)). A request is of the queue's protection
/// domain, whatever the queue pair's is. Cloning gives another handle to the same queue; requests still in it when its last queue pair
/// and handle are dropped never complete.
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Queue>);

struct Queue {
    queue: Arc<RecvQueue>,
    pd: ProtectionDomain,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.pd.device().node().destroy_srq(&self.queue);
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared{:?}", self.0.queue)
    }
}

impl SharedReceiveQueue {
    pub(super) fn new(pd: &ProtectionDomain, depth: u32) -> Result<Self, Error> {
        let node = pd.device().node();
        let queue = node
            .create_srq(pd.domain.pd, depth)
            .map_err(Error::Device)?;
        let pd = pd.clone();
        Ok(Self(Arc::new(Queue { queue, pd })))
    }

    pub(super) fn queue(&self) -> &Arc<RecvQueue> {
        &self.0.queue
    }

    /// Posts a receive request: a next message of any of its queue pairs goes into `into`, and completes with `id` at that queue pair's
    /// queue.
    ///
    /// # Errors
    /// As many as the queue is deep have not completed, or the slices are more than 16 or have more than 2^31 B.
    pub fn post_recv(&self, id: u64, into: impl Into<Target>) -> Result<(), PostError> {
        let wr = RecvWr::new(WrId(id), into.into().0);
        self.0.queue.post(wr).map_err(|why| PostError {
            queue: QueueName::Srq(self.0.queue.srq_num().map_or(0, |num| num.0)),
            why: why.into(),
        })
    }

    /// Requests posted and not completed.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.queue.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.queue.is_empty()
    }

    /// Has the device tell, once, when fewer than `limit` requests are left (an event `SrqLimitReached` of
    /// [`Device::events`](super::Device::events)); 0: not any more.
    ///
    /// # Errors
    /// The limit is larger than the queue is deep.
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        let armed = self.0.queue.arm_limit(limit);
        armed.map_err(|error| Error::Device(error.into()))
    }
}
