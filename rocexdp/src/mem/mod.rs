//! Application memory as the transport sees it: [`Memory`] over raw mappings.
//!
//! The peer's WRITEs and the application change these bytes while we read them, so they are never
//! a Rust slice: every access is a copy between the mapping and memory of our own. Bounds are
//! checked here; rights and keys are the transport's.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rocexdp_proto::mem::{Atomic, Memory, MemoryFault};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping that is unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory with no thread affinity; all access is by bounded copies.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent copies may tear, which RDMA memory semantics allow.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn range(&self, offset: u64, len: usize) -> Result<*mut u8, MemoryFault> {
        let start = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let end = start.checked_add(len).ok_or(MemoryFault)?;
        if end > self.len {
            return Err(MemoryFault);
        }
        Ok(self.base.wrapping_add(start))
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
        let to = self.range(offset, src.len())?;
        // SAFETY: `to..to + src.len()` lies in the writable mapping (checked by `range`), which
        // lives as long as self; `src` is ours, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), to, src.len()) };
        Ok(())
    }

    fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
        let at = self.range(offset, 8)?.cast::<u64>();
        if !at.is_aligned() {
            return Err(MemoryFault);
        }
        // SAFETY: 8 aligned bytes of the mapping (checked above), which lives as long as self; everyone else's access to them
        // is by copies that may tear, or atomic.
        let word = unsafe { AtomicU64::from_ptr(at) };
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
        if self.len == 0 {
            return;
        }
        // SAFETY: base and len are those of a mapping that we made, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// Anonymous memory, zeroed, to be registered with the transport.
#[derive(Debug)]
pub struct Buffer(Mapping);

impl Buffer {
    /// Maps `len` bytes (rounded up to whole pages by the kernel; only `len` are accessible).
    ///
    /// # Errors
    /// The error of mmap(2), usually ENOMEM.
    pub fn new(len: usize) -> io::Result<Arc<Self>> {
        if len == 0 {
            return Ok(Arc::new(Self(Mapping {
                base: std::ptr::null_mut(),
                len: 0,
            })));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, MapFlags::PRIVATE) }?;
        Ok(Arc::new(Self(Mapping {
            base: base.cast(),
            len,
        })))
    }
}

impl Memory for Buffer {
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
}

/// A file's pages, mapped shared: what is written is in the page cache at once.
///
/// Access beyond the file's end would raise SIGBUS, so the file's blocks must be allocated and no
/// one else may shrink it: give it a file that has no name yet (O_TMPFILE) and was allocated. Two limits remain: an I/O
/// error of the disk under a page raises SIGBUS all the same, and when the system throttles writers of dirty pages
/// (mm/page-writeback.c, `balance_dirty_pages`) the engine's worker is throttled with them. Memory of another kind
/// ([`Buffer`]) has neither.
#[derive(Debug)]
pub struct MappedFile(Mapping);

impl MappedFile {
    /// Maps the first `len` bytes of `file` for reading and writing.
    ///
    /// # Errors
    /// `InvalidInput` when the file is shorter than `len`; else the error of mmap(2) or fstat(2).
    pub fn map_rw(file: &File, len: u64) -> io::Result<Arc<Self>> {
        let have = file.metadata()?.len();
        if have < len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the file has {have} B, {len} B were to be mapped; allocate it first"),
            ));
        }
        let len = usize::try_from(len)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "file too large to map"))?;
        if len == 0 {
            return Ok(Arc::new(Self(Mapping {
                base: std::ptr::null_mut(),
                len: 0,
            })));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }?;
        Ok(Arc::new(Self(Mapping {
            base: base.cast(),
            len,
        })))
    }
}

impl Memory for MappedFile {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_outside_the_buffer_fault() {
        let b = Buffer::new(10).unwrap();
        assert!(b.write(0, &[1; 10]).is_ok());
        assert!(b.write(10, &[]).is_ok());
        for (offset, len) in [(1, 10), (11, 0), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            assert_eq!(
                b.write(offset, &vec![0; len]),
                Err(MemoryFault),
                "{offset} {len}"
            );
            assert_eq!(
                b.read(offset, &mut vec![0; len]),
                Err(MemoryFault),
                "{offset} {len}"
            );
        }
        let mut back = [0; 10];
        b.read(0, &mut back).unwrap();
        assert_eq!(back, [1; 10]);
    }

    #[test]
    fn a_mapped_file_shows_what_was_written() {
        let file = tempfile::tempfile().unwrap();
        assert!(
            MappedFile::map_rw(&file, 5000).is_err(),
            "longer than the file"
        );
        file.set_len(5000).unwrap();
        let m = MappedFile::map_rw(&file, 5000).unwrap();
        m.write(4090, b"across a page").unwrap();
        let mut back = vec![0; 13];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, 4090).unwrap();
        assert_eq!(&back, b"across a page");
        assert_eq!(MappedFile::map_rw(&file, 0).unwrap().len(), 0);
    }
}
