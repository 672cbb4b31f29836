//! Completion channels: where completion queues that were armed say that a completion has come (`ibv_create_comp_channel(3)`).
//!
//! Several queues, of several endpoints, may share one. Each event is told to a hook, which wakes whoever sleeps (a write to
//! an eventfd, made by whoever has file descriptors).
//!
//! Must not: block, or know file descriptors.

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use super::cq::CompletionQueue;

/// Called once for each event, on the engine's thread.
type Hook = Box<dyn Fn() + Send + Sync>;

/// A completion channel.
#[derive(Default)]
pub struct CompletionChannel {
    events: Mutex<VecDeque<Weak<CompletionQueue>>>,
    hook: RwLock<Option<Hook>>,
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionChannel({} events)", self.len())
    }
}

impl CompletionChannel {
    /// A channel without events or hook.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets what is called after each event was queued: keep it short, and don't call into the endpoint or the channel. It is
    /// called at once for each event that is queued already.
    pub fn set_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        let mut place = self.hook.write().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..self.len() {
            hook();
        }
        *place = Some(Box::new(hook));
    }

    /// The queue of the oldest event (`ibv_get_cq_event(3)`). It is not armed any more: arm it again, then poll it.
    /// Events of queues that are gone are left out, although the hook was called for them.
    pub fn next_event(&self) -> Option<Arc<CompletionQueue>> {
        let mut events = self.events();
        loop {
            if let Some(cq) = events.pop_front()?.upgrade() {
                return Some(cq);
            }
        }
    }

    /// Events not taken yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the events of a queue that is about to go (`ibv_destroy_cq(3)` takes none of them along). Gives their number.
    pub fn forget(&self, cq: &Arc<CompletionQueue>) -> usize {
        let mut events = self.events();
        let before = events.len();
        events.retain(|e| !core::ptr::eq(e.as_ptr(), Arc::as_ptr(cq)));
        before - events.len()
    }

    /// A queue joins: room for its event, so that queueing does not allocate.
    pub(super) fn join(&self) {
        self.events().reserve(1);
    }

    pub(super) fn notify(&self, cq: &Weak<CompletionQueue>) {
        // Held for as long as it takes, so that a hook set meanwhile counts each event once.
        let hook = self.hook.read().unwrap_or_else(PoisonError::into_inner);
        self.events().push_back(Weak::clone(cq));
        if let Some(hook) = hook.as_ref() {
            hook();
        }
    }

    fn events(&self) -> std::sync::MutexGuard<'_, VecDeque<Weak<CompletionQueue>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
