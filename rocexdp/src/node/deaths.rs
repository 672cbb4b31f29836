//! Whom to tell when a worker dies of a fault: what waits for its completions would wait for ever.
//!
//! Must not: know what waits.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use anyhow::{Result, anyhow};
use rocexdp_proto::verbs::CompletionQueue;
use tokio::sync::Notify;

/// Told, on the dying thread, why nothing will complete any more. Keep it short.
pub trait OnDeath: Send + Sync {
    /// A worker has died; `why` names its device and queue.
    fn died(&self, why: &Arc<str>);
}

/// Those to be told.
#[derive(Default)]
pub struct Deaths {
    list: Mutex<Vec<Weak<dyn OnDeath>>>,
    first: OnceLock<Arc<str>>,
}

impl std::fmt::Debug for Deaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Deaths").field(&self.first.get()).finish()
    }
}

impl Deaths {
    /// Tells `whom` when a worker dies, or at once if one has.
    pub fn tell(&self, whom: Weak<dyn OnDeath>) {
        {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            if list.len() == list.capacity() {
                list.retain(|one| one.strong_count() > 0);
            }
            list.push(Weak::clone(&whom));
        }
        // Behind the push: a death between the two is told twice, and none is missed.
        if let (Some(why), Some(whom)) = (self.first.get(), whom.upgrade()) {
            whom.died(why);
        }
    }

    /// A worker has died.
    pub fn died(&self, why: &Arc<str>) {
        let why = self.first.get_or_init(|| Arc::clone(why));
        let list = std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner));
        for whom in list.iter().filter_map(Weak::upgrade) {
            whom.died(why);
        }
    }

    /// Why, if one has.
    pub fn why(&self) -> Option<&Arc<str>> {
        self.first.get()
    }
}

/// Wakes who waits for completions of one queue, and knows why none may come any more.
#[derive(Debug, Default)]
pub struct Bell {
    news: Notify,
    dead: OnceLock<Arc<str>>,
}

impl OnDeath for Bell {
    fn died(&self, why: &Arc<str>) {
        let _ = self.dead.set(Arc::clone(why));
        self.news.notify_one();
    }
}

impl Bell {
    /// Of this queue, whose workers' deaths these are.
    pub fn of(queue: &CompletionQueue, deaths: &Deaths) -> Arc<Self> {
        let bell = Arc::new(Self::default());
        let rung = Arc::clone(&bell);
        queue.set_waker(Box::new(move || rung.news.notify_one()));
        let whom: Weak<Self> = Arc::downgrade(&bell);
        deaths.tell(whom);
        bell
    }

    /// What `poll` gives, waited for. May be dropped at any time without losing anything; several tasks may wait at once.
    ///
    /// # Errors
    /// There is nothing, and a worker has died of a fault: nothing may ever come.
    pub async fn next<T>(&self, poll: impl Fn() -> Option<T>) -> Result<T> {
        loop {
            // Before the look: what completed before the death is given first.
            let dead = self.dead.get();
            // A completion between the two lines leaves a permit.
            if let Some(next) = poll() {
                // One call tells of all until the queue was found empty: another waiter looks for the rest.
                self.news.notify_one();
                return Ok(next);
            }
            if let Some(why) = dead {
                self.news.notify_one();
                return Err(anyhow!("nothing completes any more: {why}"));
            }
            self.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counts(AtomicU32);

    impl OnDeath for Counts {
        fn died(&self, why: &Arc<str>) {
            assert_eq!(&**why, "the first reason");
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_asks_before_or_after_a_death_is_told_and_who_has_gone_is_not_kept() {
        let deaths = Deaths::default();
        let (before, after) = (Arc::new(Counts::default()), Arc::new(Counts::default()));
        let weak = |counts: &Arc<Counts>| {
            let weak: Weak<Counts> = Arc::downgrade(counts);
            weak as Weak<dyn OnDeath>
        };
        deaths.tell(weak(&before));
        for _ in 0..1000 {
            deaths.tell(weak(&Arc::new(Counts::default())));
        }
        assert!(deaths.list.lock().unwrap().len() < 100);
        assert_eq!(deaths.why(), None);
        deaths.died(&"the first reason".into());
        deaths.died(&"another".into());
        deaths.tell(weak(&after));
        assert_eq!(before.0.load(Ordering::Relaxed), 1);
        assert_eq!(after.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn all_who_wait_for_a_dead_worker_are_told_after_what_had_completed() {
        let (queue, deaths) = (CompletionQueue::new(4), Deaths::default());
        let bell = Bell::of(&queue, &deaths);
        let left = AtomicU32::new(2);
        let poll = || {
            let taken =
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            taken.ok()
        };
        let wait = || bell.next(poll);
        let die = async { deaths.died(&"worker 0 of eth0".into()) };
        let (a, b, c, d, ()) = tokio::join!(wait(), wait(), wait(), wait(), die);
        let told = [a, b, c, d].map(|one| one.map_err(|error| error.to_string()));
        assert_eq!(told.iter().filter(|one| one.is_ok()).count(), 2, "{told:?}");
        let why = "nothing completes any more: worker 0 of eth0";
        assert_eq!(
            told.iter()
                .filter(|one| one.as_ref().err().is_some_and(|e| e == why))
                .count(),
            2
        );
    }
}
