//! A BPF array map made with `BPF_F_MMAPABLE`, read and written as memory.
//!
//! XDP programs and other processes change the entries at any time, so an entry is never a Rust
//! reference: it is copied in and out in 8-byte words, each atomic by itself. One entry has one
//! writer (rocexdp-common, `maps`), so a reader sees each counter whole, and two counters of one
//! entry at most some packets apart.

use std::{
    io,
    marker::PhantomData,
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
};

use bytemuck::Pod;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// An mmapable array map of `T`, mapped into this process.
#[derive(Debug)]
pub struct SharedArray<T> {
    base: *mut u8,
    map_len: usize,
    entries: u32,
    writable: bool,
    value: PhantomData<T>,
}

// SAFETY: the mapping is shared memory with no thread affinity; all access goes through atomics.
unsafe impl<T: Send> Send for SharedArray<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedArray<T> {}

impl<T: Pod> SharedArray<T> {
    const WORDS: usize = size_of::<T>() / 8;

    /// Maps the `entries` entries of an array map by its descriptor.
    ///
    /// # Errors
    /// The error of mmap(2): EPERM for a map without `BPF_F_MMAPABLE`, EINVAL for too many entries.
    pub fn map(fd: BorrowedFd<'_>, entries: u32, writable: bool) -> io::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8) && size_of::<T>() > 0) };
        let page = rustix::param::page_size();
        let map_len = (size_of::<T>() * entries as usize).next_multiple_of(page);
        let mut prot = ProtFlags::READ;
        if writable {
            prot |= ProtFlags::WRITE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
        let base = unsafe { mmap(std::ptr::null_mut(), map_len, prot, MapFlags::SHARED, fd, 0) }?;
        Ok(Self {
            base: base.cast(),
            map_len,
            entries,
            writable,
            value: PhantomData,
        })
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    fn word(&self, index: u32, word: usize) -> Option<&AtomicU64> {
        if index >= self.entries || word >= Self::WORDS {
            return None;
        }
        let at = self
            .base
            .wrapping_add(index as usize * size_of::<T>() + word * 8);
        // SAFETY: the word lies in the mapping (checked above), is 8-byte aligned since the base is
        // page-aligned and entries are multiples of 8 bytes, and is only accessed atomically.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// A copy of entry `index`; `None` outside the array.
    pub fn load(&self, index: u32) -> Option<T> {
        let mut out = T::zeroed();
        let bytes = bytemuck::bytes_of_mut(&mut out);
        for (i, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(index, i)?.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(out)
    }

    /// The `u64` at byte `offset` of entry `index`, for a look at one counter without copying the rest.
    pub fn load_u64(&self, index: u32, offset: usize) -> Option<u64> {
        debug_assert!(offset.is_multiple_of(8));
        Some(self.word(index, offset / 8)?.load(Ordering::Relaxed))
    }

    /// Writes entry `index`; `false` outside the array, or when the map was mapped read-only.
    pub fn store(&self, index: u32, value: &T) -> bool {
        if !self.writable || index >= self.entries {
            return false;
        }
        for (i, chunk) in bytemuck::bytes_of(value).chunks_exact(8).enumerate() {
            let (Some(word), Ok(bytes)) = (self.word(index, i), chunk.try_into()) else {
                return false;
            };
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        true
    }

    /// Writes entry `index` in such a way that XDP never acts on a half-written one: its first four
    /// bytes are a generation word that is 0 meanwhile and gets its new value last.
    pub fn publish(&self, index: u32, value: &T) -> bool {
        let bytes = bytemuck::bytes_of(value);
        let (Some(generation), Some(Ok(new))) = (
            self.u32_at(index, 0),
            bytes.get(..4).map(<[u8; 4]>::try_from),
        ) else {
            return false;
        };
        if !self.writable {
            return false;
        }
        generation.store(0, Ordering::SeqCst);
        // The words after the first, then the second half of the first, then the generation.
        for (i, chunk) in bytes.chunks_exact(8).enumerate().skip(1) {
            if let (Some(word), Ok(b)) = (self.word(index, i), chunk.try_into()) {
                word.store(u64::from_ne_bytes(b), Ordering::Relaxed);
            }
        }
        if let (Some(second), Some(Ok(b))) = (
            self.u32_at(index, 4),
            bytes.get(4..8).map(<[u8; 4]>::try_from),
        ) {
            second.store(u32::from_ne_bytes(b), Ordering::Relaxed);
        }
        generation.store(u32::from_ne_bytes(new), Ordering::Release);
        true
    }

    /// Writes entry `index`, whose first eight bytes are a number that is not 0, so that [`Self::load_numbered`] never takes a
    /// half-written one: the number is 0 meanwhile and stored last.
    pub fn store_numbered(&self, index: u32, value: &T) -> bool {
        let bytes = bytemuck::bytes_of(value);
        let (Some(number), Some(Ok(new))) =
            (self.word(index, 0), bytes.get(..8).map(<[u8; 8]>::try_from))
        else {
            return false;
        };
        if !self.writable {
            return false;
        }
        number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (i, chunk) in bytes.chunks_exact(8).enumerate().skip(1) {
            if let (Some(word), Ok(b)) = (self.word(index, i), chunk.try_into()) {
                word.store(u64::from_ne_bytes(b), Ordering::Relaxed);
            }
        }
        number.store(u64::from_ne_bytes(new), Ordering::Release);
        true
    }

    /// A copy of entry `index` that was written by [`Self::store_numbered`]; `None`: it is being written, never was, or
    /// was written again meanwhile.
    pub fn load_numbered(&self, index: u32) -> Option<T> {
        let number = self.word(index, 0)?;
        let before = number.load(Ordering::Acquire);
        let copy = self.load(index)?;
        fence(Ordering::Acquire);
        (before != 0 && number.load(Ordering::Relaxed) == before).then_some(copy)
    }

    /// The `u32` at byte `offset` of entry `index`.
    pub fn u32_at(&self, index: u32, offset: usize) -> Option<&AtomicU32> {
        if index >= self.entries || !offset.is_multiple_of(4) || offset + 4 > size_of::<T>() {
            return None;
        }
        let at = self
            .base
            .wrapping_add(index as usize * size_of::<T>() + offset);
        // SAFETY: inside the mapping and 4-byte aligned (checked above), only accessed atomically.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// The byte at `offset` of entry `index`.
    pub fn u8_at(&self, index: u32, offset: usize) -> Option<&AtomicU8> {
        if index >= self.entries || offset >= size_of::<T>() {
            return None;
        }
        let at = self
            .base
            .wrapping_add(index as usize * size_of::<T>() + offset);
        // SAFETY: inside the mapping (checked above), only accessed atomically.
        Some(unsafe { AtomicU8::from_ptr(at) })
    }
}

impl<T> Drop for SharedArray<T> {
    fn drop(&mut self) {
        // SAFETY: base and map_len are those of our mapping, and no reference outlives self.
        let _ = unsafe { munmap(self.base.cast(), self.map_len) };
    }
}
