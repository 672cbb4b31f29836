//! Application memory as the transport sees it, and the table of regions that peers may reach.
//!
//! Others write to application memory while it is read, so it is never a Rust slice here: [`Memory`] copies in and out.
//! Nothing received is written before the ICRC of its packet has been verified.
//!
//! Must not: decide what a failed check means on the wire (the responder does).

mod sg;

pub use sg::{Segment, SgList};

use std::collections::HashMap;
use std::sync::Arc;

use crate::hash::NumberHash;
use crate::ids::{Pd, Qpn, RKey};
use crate::rng::Rng;

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
}

/// Who may do what with a region, or with what a QP serves: a set of bits (values of `enum ibv_access_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access(u16);

impl Access {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Receives may write here. Enforced once lkeys exist.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may WRITE.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may READ.
    pub const REMOTE_READ: Self = Self(4);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(16);
    /// Peers may FLUSH it to visibility.
    pub const FLUSH_GLOBAL: Self = Self(256);
    /// Peers may FLUSH it to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(512);

    /// Whether all of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What the peer needs in order to reach a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRegion {
    /// The key.
    pub rkey: RKey,
    /// Virtual address of the first byte, as the peer names it.
    pub va: u64,
    /// Bytes.
    pub len: u64,
}

/// A registered region.
pub(crate) struct Region {
    mem: Arc<dyn Memory>,
    va: u64,
    len: u64,
    access: Access,
    /// The only QP over which it may be reached; `None`: any.
    qpn: Option<Qpn>,
}

impl Region {
    /// The memory, and where in it `len` bytes from `va` on lie, if they are all in the region and it allows `access`.
    pub(crate) fn locate(
        &self,
        va: u64,
        len: u64,
        access: Access,
    ) -> Option<(&Arc<dyn Memory>, u64)> {
        let offset = va.checked_sub(self.va)?;
        let end = offset.checked_add(len)?;
        (end <= self.len && self.access.contains(access)).then_some((&self.mem, offset))
    }
}

/// The regions of an endpoint, by rkey.
#[derive(Default)]
pub(crate) struct RegionTable {
    regions: HashMap<u32, Region, NumberHash>,
}

impl RegionTable {
    /// Adds `mem` under a fresh random rkey, never 0. `va + len` may not pass 2^64.
    pub(crate) fn register(
        &mut self,
        rng: &mut Rng,
        mem: Arc<dyn Memory>,
        va: u64,
        access: Access,
    ) -> MemoryRegion {
        let mut key = rng.next_u32();
        while key == 0 || self.regions.contains_key(&key) {
            key = rng.next_u32();
        }
        self.insert(RKey(key), mem, va, access)
    }

    /// Adds `mem` under a key drawn elsewhere; `None` if the key is taken.
    pub(crate) fn register_as(
        &mut self,
        rkey: RKey,
        mem: Arc<dyn Memory>,
        va: u64,
        access: Access,
    ) -> Option<MemoryRegion> {
        (!self.regions.contains_key(&rkey.0)).then(|| self.insert(rkey, mem, va, access))
    }

    fn insert(
        &mut self,
        rkey: RKey,
        mem: Arc<dyn Memory>,
        va: u64,
        access: Access,
    ) -> MemoryRegion {
        // A range that would wrap is cut off: addresses behind 2^64 can't be named.
        let len = mem.len().min(u64::MAX - va);
        self.regions.insert(
            rkey.0,
            Region {
                mem,
                va,
                len,
                access,
                qpn: None,
            },
        );
        MemoryRegion { rkey, va, len }
    }

    /// Removes a region; false if there is none. The peer's next packet for it is refused.
    pub(crate) fn deregister(&mut self, rkey: RKey) -> bool {
        self.regions.remove(&rkey.0).is_some()
    }

    /// Restricts a region to one QP, or lifts that; false if there is none.
    pub(crate) fn bind(&mut self, rkey: RKey, qpn: Option<Qpn>) -> bool {
        let Some(region) = self.regions.get_mut(&rkey.0) else {
            return false;
        };
        region.qpn = qpn;
        true
    }

    /// The region, if it may be reached over this QP.
    pub(crate) fn get(&self, rkey: RKey, over: Qpn) -> Option<&Region> {
        let region = self.regions.get(&rkey.0)?;
        region.qpn.is_none_or(|q| q == over).then_some(region)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overflow_are_outside_every_region() {
        let (mut t, mut rng) = (RegionTable::default(), Rng::new(1));
        let w = Access::REMOTE_WRITE;
        let mr = t.register(&mut rng, Arc::new(Bare(4096)), 0x1000, w);
        let qpn = Qpn::new(17);
        let r = t.get(mr.rkey, qpn).unwrap();
        let offset = |va, len| r.locate(va, len, w).map(|(_, o)| o);
        assert_eq!(offset(0x1000, 4096), Some(0));
        assert_eq!(offset(0x1fff, 1), Some(4095));
        assert_eq!(offset(0x2000, 0), Some(4096));
        for (va, len) in [
            (0xfff, 1),
            (0x1000, 4097),
            (0x2000, 1),
            (0x1001, u64::MAX),
            (u64::MAX, 2),
            (0, u64::MAX),
        ] {
            assert_eq!(offset(va, len), None, "{va:x}+{len:x}");
        }
        assert!(r.locate(0x1000, 1, Access::REMOTE_READ).is_none());
        let high = t.register(&mut rng, Arc::new(Bare(u64::MAX)), u64::MAX - 8, w);
        assert_eq!(high.len, 8);
        assert!(
            t.get(high.rkey, qpn)
                .unwrap()
                .locate(u64::MAX - 1, 2, w)
                .is_none()
        );
        assert!(t.deregister(mr.rkey) && !t.deregister(mr.rkey));
        assert!(t.get(mr.rkey, qpn).is_none());
    }
}
