//! Application memory as the transport sees it: [`Memory`] over raw mappings.
//!
//! The peer's WRITEs and the application change these bytes while we read them, so they are never
//! a Rust slice: every access is a copy between the mapping and memory of our own, or an atomic. Bounds are
//! checked here; rights and keys are the transport's.
//!
//! Every write becomes visible in the order of its addresses, its last word last (`order`): who polls the end of what a
//! peer WRITEs, by [`Buffer::load`] or an atomic of its own, finds all before it.

mod order;

use std::{
    any::Any,
    fs::File,
    io,
    os::fd::AsFd,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rocexdp_proto::mem::{Atomic, Memory, MemoryFault};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, msync, munmap};

/// What ends with a mapping.
enum Release {
    /// The mapping itself.
    Unmap,
    /// Who owns memory that is only borrowed here.
    Owner(#[expect(dead_code, reason = "held to be dropped")] Box<dyn Any + Send + Sync>),
}

/// Bytes that nobody moves or frees as long as this lives.
struct Mapping {
    base: *mut u8,
    len: usize,
    writable: bool,
    release: Release,
}

// SAFETY: the mapping is plain memory with no thread affinity; all access is by bounded copies and atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent copies may tear, which RDMA memory semantics allow.
unsafe impl Sync for Mapping {}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.writable { "" } else { ", read-only" };
        write!(f, "{} B{kind}", self.len)
    }
}

impl Mapping {
    /// A mapping of our own; any address for no bytes.
    fn ours(base: *mut u8, len: usize, writable: bool) -> Self {
        Self {
            base,
            len,
            writable,
            release: Release::Unmap,
        }
    }

    fn range(&self, offset: u64, len: usize) -> Result<*mut u8, MemoryFault> {
        let start = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let end = start.checked_add(len).ok_or(MemoryFault)?;
        if end > self.len {
            return Err(MemoryFault);
        }
        Ok(self.base.wrapping_add(start))
    }

    fn writable(&self) -> Result<(), MemoryFault> {
        if self.writable {
            Ok(())
        } else {
            Err(MemoryFault)
        }
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64, MemoryFault> {
        let at = self.range(offset, 8)?.cast::<u64>();
        if !at.is_aligned() {
            return Err(MemoryFault);
        }
        // SAFETY: 8 aligned bytes of the mapping (checked above), which lives as long as self; everyone else's access to them
        // is by copies that may tear, or atomic.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    fn bytes(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: `len` initialised bytes from `base` on, which lives as long as self; `&mut self` proves that nobody else reaches
        // them, since all access goes through a reference to self. Not called for memory that others map or own.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Memory for Mapping {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        let from = self.range(offset, dst.len())?;
        // SAFETY: `from..from + dst.len()` lies in the mapping (checked by `range`), which lives as
        // long as self; `dst` is ours, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.writable()?;
        let to = self.range(offset, src.len())?;
        // SAFETY: `to..to + src.len()` lies in the writable mapping (checked by `range`), which
        // lives as long as self; `src` is ours, so the two do not overlap.
        unsafe { order::copy_in_order(to, src) };
        Ok(())
    }

    fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
        self.writable()?;
        let word = self.word(offset)?;
        Ok(match op {
            Atomic::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|there| there),
            Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
            Atomic::Write(value) => word.swap(value, Ordering::SeqCst),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len == 0 || matches!(self.release, Release::Owner(_)) {
            return;
        }
        // SAFETY: base and len are those of a mapping that we made, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

mod sealed {
    /// Only memory of this module promises the order of its bytes.
    pub trait Sealed {}
}

/// Memory of this module: what an application can register.
pub trait Registrable: Memory + sealed::Sealed + std::fmt::Debug + 'static {
    /// The 8 bytes from `offset` on, in host order, by an acquire load: who sees what a WRITE put there last also sees all that it
    /// put before.
    ///
    /// # Errors
    /// [`MemoryFault`] outside the memory, or if the place is no multiple of 8 bytes in it.
    fn load(&self, offset: u64) -> Result<u64, MemoryFault>;

    /// The bytes themselves; `None` where others than this process's engine may change them (files, borrowed memory).
    fn exclusive(&mut self) -> Option<&mut [u8]>;
}

/// Memory that can be written to: may be registered for receives, READs, and the peers' WRITEs and atomics.
pub trait Writable: Registrable {}

macro_rules! memory {
    ($name:ident, $flush:expr) => {
        impl Memory for $name {
            fn len(&self) -> u64 {
                self.0.len()
            }
            fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
                self.0.read(offset, dst)
            }
            fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
                self.0.write(offset, src)
            }
            fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
                self.0.atomic(offset, op)
            }
            fn flush(&self, offset: u64, len: u64, persistent: bool) -> Result<(), MemoryFault> {
                if persistent {
                    let flush: fn(&Mapping, u64, u64) -> Result<(), MemoryFault> = $flush;
                    return flush(&self.0, offset, len);
                }
                Ok(())
            }
        }

        impl sealed::Sealed for $name {}

        impl $name {
            /// See [`Registrable::load`].
            ///
            /// # Errors
            /// See [`Registrable::load`].
            pub fn load(&self, offset: u64) -> Result<u64, MemoryFault> {
                Ok(self.0.word(offset)?.load(Ordering::Acquire))
            }
        }
    };
}

fn never_persistent(_: &Mapping, _: u64, _: u64) -> Result<(), MemoryFault> {
    Err(MemoryFault)
}

/// Anonymous memory, zeroed, to be registered with the transport.
#[derive(Debug)]
pub struct Buffer(Mapping);

memory!(Buffer, never_persistent);

impl Buffer {
    /// Maps `len` bytes (rounded up to whole pages by the kernel; only `len` are accessible).
    ///
    /// # Errors
    /// The error of mmap(2), usually ENOMEM.
    pub fn new(len: usize) -> io::Result<Arc<Self>> {
        Self::map(len).map(Arc::new)
    }

    /// As [`Self::new`], not shared yet: to be registered, or to be filled first.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn map(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self(Mapping::ours(std::ptr::null_mut(), 0, true)));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) }?;
        Ok(Self(Mapping::ours(base.cast(), len, true)))
    }

    /// The bytes themselves, as long as nobody else has this buffer.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.bytes()
    }
}

impl Registrable for Buffer {
    fn load(&self, offset: u64) -> Result<u64, MemoryFault> {
        self.load(offset)
    }
    fn exclusive(&mut self) -> Option<&mut [u8]> {
        Some(self.as_mut_slice())
    }
}

impl Writable for Buffer {}

fn map_file(file: &File, len: u64, writable: bool) -> io::Result<Mapping> {
    let have = file.metadata()?.len();
    if have < len {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the file has {have} B, {len} B were to be mapped; allocate it first"),
        ));
    }
    let len = usize::try_from(len)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "file too large to map"))?;
    let null = std::ptr::null_mut::<std::ffi::c_void>();
    if len == 0 {
        return Ok(Mapping::ours(null.cast(), 0, writable));
    }
    let prot = if writable {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::READ
    };
    // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
    let base = unsafe { mmap(null, len, prot, MapFlags::SHARED, file.as_fd(), 0) }?;
    Ok(Mapping::ours(base.cast(), len, writable))
}

/// A file's pages, mapped shared: what is written is in the page cache at once, and on the disk after a FLUSH to persistence,
/// which stops the engine's worker until the disk has it (msync(2)).
///
/// Access beyond the file's end would raise SIGBUS, so the file's blocks must be allocated and no
/// one else may shrink it: give it a file that has no name yet (O_TMPFILE) and was allocated. Two limits remain: an I/O
/// error of the disk under a page raises SIGBUS all the same, and when the system throttles writers of dirty pages
/// (mm/page-writeback.c, `balance_dirty_pages`) the engine's worker is throttled with them. Memory of another kind
/// ([`Buffer`]) has neither.
#[derive(Debug)]
pub struct MappedFile(Mapping);

memory!(MappedFile, |mapping, offset, len| {
    let len = usize::try_from(len).map_err(|_| MemoryFault)?;
    let start = mapping.range(offset, len)?;
    // msync(2) wants a page's address; the mapping begins with one.
    let into_page = start.addr() % rustix::param::page_size();
    let from = start.wrapping_sub(into_page);
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the range lies in the mapping, rounded down to the page that it begins in.
    unsafe { msync(from.cast(), len + into_page, MsyncFlags::SYNC) }.map_err(|_| MemoryFault)
});

impl MappedFile {
    /// Maps the first `len` bytes of `file` for reading and writing.
    ///
    /// # Errors
    /// `InvalidInput` when the file is shorter than `len`; else the error of mmap(2) or fstat(2).
    pub fn map_rw(file: &File, len: u64) -> io::Result<Arc<Self>> {
        Self::map(file, len).map(Arc::new)
    }

    /// As [`Self::map_rw`], not shared yet.
    ///
    /// # Errors
    /// As [`Self::map_rw`].
    pub fn map(file: &File, len: u64) -> io::Result<Self> {
        map_file(file, len, true).map(Self)
    }
}

impl Registrable for MappedFile {
    fn load(&self, offset: u64) -> Result<u64, MemoryFault> {
        self.load(offset)
    }
    fn exclusive(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Writable for MappedFile {}

/// A file's pages, mapped shared for reading only: what peers may READ, and nobody writes through it. As for [`MappedFile`], no one
/// may shrink the file.
#[derive(Debug)]
pub struct ReadOnlyFile(Mapping);

memory!(ReadOnlyFile, never_persistent);

impl ReadOnlyFile {
    /// Maps the first `len` bytes of `file`, which may be open for reading only.
    ///
    /// # Errors
    /// As [`MappedFile::map_rw`].
    pub fn map(file: &File, len: u64) -> io::Result<Self> {
        map_file(file, len, false).map(Self)
    }
}

impl Registrable for ReadOnlyFile {
    fn load(&self, offset: u64) -> Result<u64, MemoryFault> {
        self.load(offset)
    }
    fn exclusive(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// Memory that belongs to someone else: a library's buffer, shared memory, a device's.
#[derive(Debug)]
pub struct Borrowed(Mapping);

memory!(Borrowed, never_persistent);

impl Borrowed {
    /// `len` bytes from `base` on. `owner` is dropped after the last use: once the region is withdrawn and every request and packet
    /// that names it is done; by whichever thread that is, often the engine's, which serves nobody meanwhile. It must not hold the
    /// [`Device`](crate::rdma::Device), which could not end itself.
    ///
    /// # Safety
    /// Until `owner` is dropped the bytes are mapped, initialised, may be read and written, and no Rust reference to them is used:
    /// everyone accesses them by atomics or by copies through raw pointers that may tear.
    ///
    /// # Examples
    /// ```
    /// # use std::ptr::NonNull;
    /// # use rocexdp::mem::Borrowed;
    /// # use rocexdp_proto::mem::Memory as _;
    /// let bytes: &'static mut [u8] = Box::leak(vec![7; 4096].into_boxed_slice());
    /// // SAFETY: leaked, so it is there for ever; the only reference to it was consumed.
    /// let memory = unsafe { Borrowed::new(NonNull::from(bytes).cast(), 4096, ()) };
    /// assert_eq!(memory.len(), 4096);
    /// ```
    pub unsafe fn new(base: NonNull<u8>, len: usize, owner: impl Any + Send + Sync) -> Self {
        Self(Mapping {
            base: base.as_ptr(),
            len,
            writable: true,
            release: Release::Owner(Box::new(owner)),
        })
    }
}

impl Registrable for Borrowed {
    fn load(&self, offset: u64) -> Result<u64, MemoryFault> {
        self.load(offset)
    }
    fn exclusive(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Writable for Borrowed {}

#[cfg(test)]
mod tests;
