//! One ring shared with the kernel: index arithmetic, publication, wake-up flag.
//!
//! A ring is a power-of-two array of entries with a producer and a consumer index in shared memory. Indexes run freely
//! over `u32` and wrap; the slot is the index modulo the size. Each side caches the other's index and reads it again
//! only when the cached one is exhausted, as `xsk.h` of xdp-tools and `net/xdp/xsk_queue.h` of the kernel do.
//!
//! This file must not know what an entry means: descriptors are checked in [`super::umem`]. What it does promise is
//! that whatever the other side writes into the shared indexes, no access leaves the ring: a difference greater than
//! the size is cut to the size (consumer) or taken as "full" (producer).
//!
//! Ordering: entries are written before the producer index is stored with `Release`, and read after it was loaded with
//! `Acquire`; the consumer index mirrors that. It pairs with `smp_store_release`/`smp_load_acquire` in `xsk_queue.h`.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// `XDP_RING_NEED_WAKEUP` of `linux/if_xdp.h`.
const NEED_WAKEUP: u32 = libc::XDP_RING_NEED_WAKEUP;

/// What may stand in a ring: plain old data that any bit pattern makes valid.
pub(super) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

/// Memory that holds a ring; dropping it makes the ring's pointers dangle, so each half owns one.
pub(super) trait Backing: Send {}

/// Where a ring's parts are. Built by [`super::sys::map_ring`], or over plain memory in tests.
pub(super) struct RingParts<T: Entry> {
    /// The producer index.
    pub producer: NonNull<AtomicU32>,
    /// The consumer index.
    pub consumer: NonNull<AtomicU32>,
    /// The flags word; `None` on kernels before 5.4.
    pub flags: Option<NonNull<AtomicU32>>,
    /// The first of `size` entries.
    pub entries: NonNull<T>,
    /// Entries, a power of two.
    pub size: u32,
    /// Keeps all of the above mapped.
    pub _backing: Box<dyn Backing>,
}

// SAFETY: the pointers lead into `_backing`, which is owned and `Send`; the indexes behind them are atomics, and the
// entries are touched only by the one half that owns these parts.
unsafe impl<T: Entry> Send for RingParts<T> {}

impl<T: Entry> RingParts<T> {
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: valid and aligned while `_backing` lives, which `self` owns.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn slot(&self, index: u32) -> *mut T {
        // `& (size - 1)` keeps the offset below `size` whatever the index is.
        self.entries
            .as_ptr()
            .wrapping_add((index & (self.size - 1)) as usize)
    }

    fn read(&self, index: u32) -> T {
        // SAFETY: `slot` lies within the array, and any bit pattern is a `T`. Volatile: the copy is taken once, so
        // what is checked later is what is used.
        unsafe { self.slot(index).read_volatile() }
    }

    fn write(&mut self, index: u32, entry: T) {
        // SAFETY: `slot` lies within the array; the slot is ours until the producer index is published.
        unsafe { self.slot(index).write_volatile(entry) }
    }

    fn needs_wakeup(&self) -> bool {
        self.flags.is_some_and(|flags| {
            // SAFETY: as in `producer`.
            let flags = unsafe { flags.as_ref() };
            flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
        })
    }
}

/// The half that puts entries in: fill and TX rings.
pub(super) struct Producer<T: Entry> {
    parts: RingParts<T>,
    /// Index of the next entry to write; runs ahead of the published one until [`publish`](Self::publish).
    next: u32,
    /// The producer index in shared memory.
    published: u32,
    /// The consumer index as last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    pub(super) fn new(parts: RingParts<T>) -> Self {
        let next = parts.producer().load(Ordering::Relaxed);
        let consumed = parts.consumer().load(Ordering::Acquire);
        Self {
            parts,
            next,
            published: next,
            consumed,
        }
    }

    /// Entries that may be pushed; reads the shared index only if the cached one gives fewer than `wanted`.
    pub(super) fn free(&mut self, wanted: u32) -> u32 {
        let free = self.cached_free();
        if free >= wanted {
            return free;
        }
        self.consumed = self.parts.consumer().load(Ordering::Acquire);
        self.cached_free()
    }

    fn cached_free(&self) -> u32 {
        self.parts
            .size
            .saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Writes an entry into the next slot, unpublished. Gives it back if the ring is full.
    pub(super) fn push(&mut self, entry: T) -> Result<(), T> {
        if self.free(1) == 0 {
            return Err(entry);
        }
        self.parts.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Hands every pushed entry to the consumer. True if there were any.
    pub(super) fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.parts.producer().store(self.next, Ordering::Release);
        self.published = self.next;
        // The kernel sets the wake-up flag, then looks at the producer index once more; we store the index, then look
        // at the flag. Without a full barrier between the two, both could miss the other.
        fence(Ordering::SeqCst);
        true
    }

    /// Published entries that the consumer has not taken yet.
    pub(super) fn outstanding(&mut self) -> u32 {
        self.consumed = self.parts.consumer().load(Ordering::Acquire);
        self.published
            .wrapping_sub(self.consumed)
            .min(self.parts.size)
    }

    /// The kernel asks for a system call before it looks at the ring again.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.parts.needs_wakeup()
    }
}

/// The half that takes entries out: completion and RX rings.
pub(super) struct Consumer<T: Entry> {
    parts: RingParts<T>,
    /// Index of the next entry to read; runs ahead of the released one until [`release`](Self::release).
    next: u32,
    /// The consumer index in shared memory.
    released: u32,
    /// The producer index as last read.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    pub(super) fn new(parts: RingParts<T>) -> Self {
        let next = parts.consumer().load(Ordering::Relaxed);
        let produced = parts.producer().load(Ordering::Acquire);
        Self {
            parts,
            next,
            released: next,
            produced,
        }
    }

    /// Entries that may be popped; reads the shared index only if the cached one says none.
    pub(super) fn available(&mut self) -> u32 {
        if self.next == self.produced {
            self.produced = self.parts.producer().load(Ordering::Acquire);
        }
        let available = self.produced.wrapping_sub(self.next);
        if available > self.parts.size {
            // A broken producer index. Every slot may be read; what is in them is checked by whoever reads it.
            self.produced = self.next.wrapping_add(self.parts.size);
            return self.parts.size;
        }
        available
    }

    /// Entries that wait, as the producer says now, and how many there may be.
    pub(super) fn fill(&mut self) -> (u32, u32) {
        let produced = self.parts.producer().load(Ordering::Acquire);
        let waiting = produced.wrapping_sub(self.next).min(self.parts.size);
        (waiting, self.parts.size)
    }

    /// Copies the next entry out. Its slot is the producer's again only after [`release`](Self::release).
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        let entry = self.parts.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the slots of every popped entry back to the producer. True if there were any.
    pub(super) fn release(&mut self) -> bool {
        if self.next == self.released {
            return false;
        }
        self.parts.consumer().store(self.next, Ordering::Release);
        self.released = self.next;
        true
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
