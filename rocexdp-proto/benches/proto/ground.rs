//! What the measurements stand on and needs `unsafe`: an allocator that counts, and application memory without a lock.
//!
//! Must not: know the transport's packets.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

use rocexdp_proto::mem::{Atomic, Memory, MemoryFault};

/// Calls to the allocator that gave memory.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// Bytes that are allocated now.
static LIVE: AtomicI64 = AtomicI64::new(0);
/// Whether single allocations are noted.
static NOTING: AtomicBool = AtomicBool::new(false);
/// The sizes noted, up to as many as there is room for.
static NOTED: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];
/// How many.
static NOTES: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count(bytes: i64) {
    LIVE.fetch_add(bytes, Ordering::Relaxed);
    if bytes > 0 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        if NOTING.load(Ordering::Relaxed) {
            let n = NOTES.fetch_add(1, Ordering::Relaxed) as usize;
            if let Some(place) = NOTED.get(n) {
                place.store(bytes as u64, Ordering::Relaxed);
            }
        }
    }
}

// SAFETY: every call goes to the system's allocator unchanged; the counts touch no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(-(layout.size() as i64));
        count(size as i64);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls so far that gave memory.
pub fn allocations() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Bytes that are allocated now.
pub fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// The sizes of what `body` allocates, largest first; at most 32 of them.
pub fn noted(body: impl FnOnce()) -> Vec<u64> {
    NOTES.store(0, Ordering::Relaxed);
    NOTING.store(true, Ordering::Relaxed);
    body();
    NOTING.store(false, Ordering::Relaxed);
    let n = (NOTES.load(Ordering::Relaxed) as usize).min(NOTED.len());
    let mut sizes: Vec<u64> = NOTED[..n]
        .iter()
        .map(|s| s.load(Ordering::Relaxed))
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Application memory as the product has it: copies of plain bytes, no lock. One thread uses it here.
pub struct Raw(Box<[UnsafeCell<u8>]>);

// SAFETY: plain bytes without thread affinity.
unsafe impl Send for Raw {}
// SAFETY: all access is by bounded copies, from the one thread of these measurements.
unsafe impl Sync for Raw {}

impl Raw {
    /// `len` bytes, none of them like the next.
    pub fn new(len: usize) -> Self {
        Self((0..len).map(|i| UnsafeCell::new((i * 7) as u8)).collect())
    }

    fn range(&self, offset: u64, len: usize) -> Result<*mut u8, MemoryFault> {
        let start = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let end = start.checked_add(len).ok_or(MemoryFault)?;
        let cells = self.0.get(start..end).ok_or(MemoryFault)?;
        Ok(UnsafeCell::raw_get(cells.as_ptr()))
    }
}

impl Memory for Raw {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        let from = self.range(offset, dst.len())?;
        // SAFETY: `range` checked that the bytes are ours; `dst` is not among them.
        unsafe { std::ptr::copy_nonoverlapping(from, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
        let to = self.range(offset, src.len())?;
        // SAFETY: `range` checked that the bytes are ours; `src` is not among them.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), to, src.len()) };
        Ok(())
    }

    fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
        let at = self.range(offset, 8)?.cast::<u64>();
        if !at.is_aligned() {
            return Err(MemoryFault);
        }
        // SAFETY: 8 aligned bytes that are ours and live as long as self.
        let word = unsafe { AtomicU64::from_ptr(at) };
        Ok(match op {
            Atomic::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|there| there),
            Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
            Atomic::Write(value) => word.swap(value, Ordering::SeqCst),
        })
    }

    fn flush(&self, _: u64, _: u64, _: bool) -> Result<(), MemoryFault> {
        Ok(())
    }
}
