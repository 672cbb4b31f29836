//! Application memory as the transport sees it, and the regions and windows through which peers reach it.
//!
//! Others write to application memory while it is read, so it is never a Rust slice here: [`Memory`] copies in and out.
//! Nothing received is written before the ICRC of its packet has been verified.
//!
//! A [`Region`] is memory under a key; a [`Window`] is a part of a region under a key of its own, which can be withdrawn
//! without the kernel's or the device's help. The rules of both follow drivers/infiniband/sw/rxe/rxe_mr.c and rxe_mw.c.
//!
//! Must not: decide what a failed check means on the wire (the responder does).

mod access;
mod region;
mod sg;
mod table;
mod window;

pub use access::Access;
pub use region::{MemoryRegion, Region, RegionError};
pub use sg::{Segment, SgList};
pub(crate) use table::{Place, Reach, RegionTable, WindowBind};
pub use window::{Window, WindowKind};

use crate::ids::Pd;

/// The bytes could not be copied: range outside the memory, or its owner took it away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memory fault: the bytes are outside the memory or no longer there")]
pub struct MemoryFault;

/// What is done to 64 bits at once. Values are in host order, as the memory holds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomic {
    /// If they equal `compare`, `swap` takes their place.
    CompareSwap {
        /// What to compare with.
        compare: u64,
        /// What to put there.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd(u64),
    /// Puts this there.
    Write(u64),
}

impl Atomic {
    /// What stands there afterwards if `original` stood there before.
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if original == compare => swap,
            Self::CompareSwap { .. } => original,
            Self::FetchAdd(add) => original.wrapping_add(add),
            Self::Write(value) => value,
        }
    }
}

/// Memory that packets are filled from and written to.
///
/// Any thread may call, at the same time; torn reads of bytes that someone writes meanwhile are allowed.
pub trait Memory: Send + Sync {
    /// Bytes.
    fn len(&self) -> u64;

    /// True without any bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `dst.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// [`MemoryFault`] if they are not all there; `dst` may be partly written.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault>;

    /// Copies `src` to `offset` on.
    ///
    /// # Errors
    /// [`MemoryFault`] if there is no room for all of it; the memory may be partly written.
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault>;

    /// Does `op` to the 8 bytes from `offset` on, in one step for everyone who looks at them, and gives what stood there.
    ///
    /// # Errors
    /// [`MemoryFault`] if they are not there, or do not lie on an 8-byte boundary of the host; nothing has changed.
    fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault>;

    /// Makes what was written to `len` bytes from `offset` on last, if `persistent`; else visible to everyone, which memory of
    /// a host is already.
    ///
    /// # Errors
    /// [`MemoryFault`] if that can't be had.
    fn flush(&self, offset: u64, len: u64, persistent: bool) -> Result<(), MemoryFault> {
        let _ = (offset, len);
        if persistent { Err(MemoryFault) } else { Ok(()) }
    }

    /// The protection domain that work requests on this memory must belong to; `None`: any, since who holds the memory itself
    /// needs no key.
    fn pd(&self) -> Option<Pd> {
        None
    }

    /// Whether local work requests may use it: read it, or write to it too. Not so with a region that was withdrawn, or one
    /// without [`Access::LOCAL_WRITE`] that is to be written to.
    fn permits(&self, write: bool) -> bool {
        let _ = write;
        true
    }
}

/// Memory of tests that holds nothing.
#[cfg(test)]
pub(crate) struct Bare(pub(crate) u64);
#[cfg(test)]
impl Memory for Bare {
    fn len(&self) -> u64 {
        self.0
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MemoryFault> {
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), MemoryFault> {
        Ok(())
    }
    fn atomic(&self, _: u64, _: Atomic) -> Result<u64, MemoryFault> {
        Err(MemoryFault)
    }
}
