//! What an idle QP does without: counters and DCQCN's state come with the first packet that needs them, so that a QP that only
//! waits costs little memory. They stay until the QP goes (counters) or is reset (DCQCN).
//!
//! Must not: be written to without need: the first write allocates.

use core::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use rocexdp_common::maps::QpEngine;

/// A QP's counters: all 0 until one is counted.
#[derive(Debug, Default)]
pub(crate) struct Stats(Option<Box<QpEngine>>);

impl Deref for Stats {
    type Target = QpEngine;
    fn deref(&self) -> &QpEngine {
        static NOTHING: OnceLock<QpEngine> = OnceLock::new();
        match &self.0 {
            Some(stats) => stats,
            None => NOTHING.get_or_init(QpEngine::default),
        }
    }
}

impl DerefMut for Stats {
    fn deref_mut(&mut self) -> &mut QpEngine {
        self.0.get_or_insert_default()
    }
}

/// A state that begins as a copy of one that all QPs share, at the first change.
#[derive(Debug)]
pub(crate) struct Lazy<T> {
    fresh: Arc<T>,
    own: Option<Box<T>>,
}

impl<T> Lazy<T> {
    pub(crate) fn new(fresh: &Arc<T>) -> Self {
        Self {
            fresh: Arc::clone(fresh),
            own: None,
        }
    }

    /// As it was at first.
    pub(crate) fn reset(&mut self) {
        self.own = None;
    }
}

impl<T> Deref for Lazy<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.own.as_deref().unwrap_or(&self.fresh)
    }
}

impl<T: Clone> DerefMut for Lazy<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.own
            .get_or_insert_with(|| Box::new((*self.fresh).clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_allocates_nothing_and_writing_is_its_own() {
        let fresh = Arc::new(5u64);
        let (mut a, b) = (Lazy::new(&fresh), Lazy::new(&fresh));
        assert!(*a == 5 && a.own.is_none());
        *a += 1;
        assert_eq!((*a, *b, *fresh), (6, 5, 5));
        a.reset();
        assert_eq!(*a, 5);
        let mut stats = Stats::default();
        assert!(stats.tx_packets == 0 && stats.0.is_none());
        stats.tx_packets += 1;
        assert_eq!(stats.tx_packets, 1);
    }
}
