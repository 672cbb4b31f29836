//! Whom to tell when a worker dies of a fault: what waits for its completions would wait for ever.
//!
//! Must not: know what waits.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

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
}
