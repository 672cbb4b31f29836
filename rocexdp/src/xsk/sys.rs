//! The system calls of AF_XDP that need raw memory: mappings, and the one socket option that rustix does not have.
//!
//! Everything else goes through rustix, which is safe. This file knows no packets and keeps no state.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::XdpRingOffset;

use super::ring::{Backing, Entry, RingParts};

/// `XDP_MAX_TX_SKB_BUDGET` of `linux/if_xdp.h` (kernel 6.17), in neither libc nor rustix.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// A memory mapping, unmapped on drop.
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; who may touch which bytes is its owner's matter.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Private zeroed memory, populated at once so that no packet pays for a page fault.
    pub(super) fn anonymous(len: usize) -> rustix::io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        Self::new(start, len)
    }

    fn of_fd(fd: BorrowedFd<'_>, len: usize, offset: u64) -> rustix::io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as in `anonymous`.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                fd,
                offset,
            )
        }?;
        Self::new(start, len)
    }

    fn new(start: *mut libc::c_void, len: usize) -> rustix::io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A pointer to a `T` at `offset` with `count` of them in bounds and aligned.
    fn at<T>(&self, offset: u64, count: usize) -> rustix::io::Result<NonNull<T>> {
        let offset = usize::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
        let end = count
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > self.len) || offset % align_of::<T>() != 0 {
            return Err(Errno::OVERFLOW);
        }
        NonNull::new(self.start.as_ptr().wrapping_add(offset).cast()).ok_or(Errno::OVERFLOW)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; whoever holds pointers into it owns it too.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Backing for Mapping {}

/// Maps a ring of `size` entries of the socket. `page_offset` says which (`XDP_PGOFF_RX_RING` and its sisters).
///
/// # Errors
/// What `mmap` says; `EOVERFLOW` if the kernel's offsets lead outside the mapping.
pub(super) fn map_ring<T: Entry>(
    socket: BorrowedFd<'_>,
    offsets: &XdpRingOffset,
    page_offset: u64,
    size: u32,
) -> rustix::io::Result<RingParts<T>> {
    let entries = size as usize * size_of::<T>();
    let start = usize::try_from(offsets.desc).map_err(|_| Errno::OVERFLOW)?;
    let len = start.checked_add(entries).ok_or(Errno::OVERFLOW)?;
    let mapping = Mapping::of_fd(socket, len, page_offset)?;
    Ok(RingParts {
        producer: mapping.at::<AtomicU32>(offsets.producer, 1)?,
        consumer: mapping.at::<AtomicU32>(offsets.consumer, 1)?,
        flags: offsets
            .flags
            .map(|flags| mapping.at::<AtomicU32>(flags, 1))
            .transpose()?,
        entries: mapping.at::<T>(offsets.desc, size as usize)?,
        size,
        _backing: Box::new(mapping),
    })
}

/// Raises how many descriptors one send call handles in copy mode.
///
/// # Errors
/// `ENOPROTOOPT` before kernel 6.17; `EACCES` below 32 or above the TX ring's size.
pub(super) fn set_tx_budget(socket: impl AsFd, budget: u32) -> rustix::io::Result<()> {
    // SAFETY: the option takes a u32 by pointer and length; `budget` outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const budget).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO);
    Err(Errno::from_raw_os_error(errno))
}
