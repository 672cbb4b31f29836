//! Rings in plain memory, for tests: both halves are ours, so the kernel's part can be played.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::ring::{Backing, Consumer, Entry, Producer, RingParts};

/// A ring whose indexes and flags a test can reach.
pub(super) struct Plain<T> {
    pub producer: AtomicU32,
    pub consumer: AtomicU32,
    pub flags: AtomicU32,
    entries: Box<[UnsafeCell<T>]>,
}

// SAFETY: entries are accessed only by the two ring halves, under the protocol that the tests are about.
unsafe impl<T: Send> Sync for Plain<T> {}

impl<T: Send> Backing for Arc<Plain<T>> {}

impl<T: Entry + Send + 'static> Plain<T> {
    /// A ring of `size` entries, all `value`, whose indexes start at `start`.
    pub(super) fn new(size: u32, start: u32, value: T) -> Arc<Self> {
        Arc::new(Self {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            flags: AtomicU32::new(0),
            entries: (0..size).map(|_| UnsafeCell::new(value)).collect(),
        })
    }

    pub(super) fn producer_half(self: &Arc<Self>) -> Producer<T> {
        Producer::new(self.parts())
    }

    pub(super) fn consumer_half(self: &Arc<Self>) -> Consumer<T> {
        Consumer::new(self.parts())
    }

    fn parts(self: &Arc<Self>) -> RingParts<T> {
        RingParts {
            producer: NonNull::from(&self.producer),
            consumer: NonNull::from(&self.consumer),
            flags: Some(NonNull::from(&self.flags)),
            entries: NonNull::new(self.entries.as_ptr().cast_mut().cast()).unwrap(),
            size: self.entries.len() as u32,
            _backing: Box::new(Arc::clone(self)),
        }
    }
}
