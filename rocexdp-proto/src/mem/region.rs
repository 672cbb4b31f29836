//! A registered region: memory under a key, in a protection domain.
//!
//! One object may be known to several endpoints (workers of one address); withdrawing it at one withdraws it at all, since all
//! look at the object's own mark. As [`Memory`], it is memory for local work requests under the rules of its lkey.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_mr.c (`lookup_mr`, `mr_check_range`, `rxe_dereg_mr`) and `ib_check_mr_access`
//! (include/rdma/ib_verbs.h). Must not: know QPs or packets.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use super::{Access, Atomic, Memory, MemoryFault, Segment};
use crate::ids::{LKey, Pd, RKey};

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

/// Why memory can't be registered, or a region withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// Key 0 names nothing.
    #[error("key 0 is reserved: draw another")]
    ReservedKey,
    /// `va + len` passes 2^64.
    #[error("the region's addresses pass 2^64: register it at a lower address")]
    Range,
    /// Peers may change it, but the host may not.
    #[error("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE")]
    NeedsLocalWrite,
    /// Memory windows are bound to it.
    #[error("{0} memory windows are bound to the region: invalidate or free them first")]
    WindowsBound(u32),
    /// It was withdrawn before.
    #[error("the region was withdrawn before")]
    Withdrawn,
}

/// In [`Region::state`]: withdrawn. The other bits count windows.
const DEAD: u32 = 1 << 31;

/// A registered region.
pub struct Region {
    key: u32,
    pd: Pd,
    va: u64,
    len: u64,
    access: Access,
    mem: Arc<dyn Memory>,
    /// Windows bound to it, or [`DEAD`].
    state: AtomicU32,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Region({} B at {:#x}, {:?}, PD {}{})",
            self.len,
            self.va,
            self.access,
            self.pd.0,
            if self.is_live() { "" } else { ", withdrawn" }
        )
    }
}

impl Region {
    /// All of `mem` under a key that the caller drew, at random. Add it to each endpoint that is to know it
    /// ([`crate::Endpoint::add_region`]). With [`Access::ZERO_BASED`] its first address is 0, whatever `va` says.
    ///
    /// # Errors
    /// Key 0, addresses that pass 2^64, or rights that need [`Access::LOCAL_WRITE`] without it.
    pub fn new(
        key: RKey,
        pd: Pd,
        mem: Arc<dyn Memory>,
        va: u64,
        access: Access,
    ) -> Result<Arc<Self>, RegionError> {
        if key.0 == 0 {
            return Err(RegionError::ReservedKey);
        }
        if access.completed() != access {
            return Err(RegionError::NeedsLocalWrite);
        }
        let va = if access.contains(Access::ZERO_BASED) {
            0
        } else {
            va
        };
        let len = mem.len();
        if va.checked_add(len).is_none() {
            return Err(RegionError::Range);
        }
        Ok(Arc::new(Self {
            key: key.0,
            pd,
            va,
            len,
            access,
            mem,
            state: AtomicU32::new(0),
        }))
    }

    /// The key by which peers name it.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// The key by which scatter/gather entries name it: the same number, as rxe has it.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        LKey(self.key)
    }

    /// Address of the first byte.
    #[must_use]
    pub fn va(&self) -> u64 {
        self.va
    }

    /// What may be done with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// What a peer needs in order to reach it.
    #[must_use]
    pub fn remote(&self) -> MemoryRegion {
        MemoryRegion {
            rkey: self.rkey(),
            va: self.va,
            len: self.len,
        }
    }

    /// False once it was withdrawn.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) & DEAD == 0
    }

    /// Memory windows bound to it.
    #[must_use]
    pub fn windows(&self) -> u32 {
        self.state.load(Ordering::Acquire) & !DEAD
    }

    /// `len` bytes from address `addr` on, for a work request (`ibv_sge`); `None` if they are not all in the region.
    #[must_use]
    pub fn segment(self: &Arc<Self>, addr: u64, len: u32) -> Option<Segment> {
        let offset = self.offset(addr, u64::from(len))?;
        Some(Segment::new(
            Arc::clone(self) as Arc<dyn Memory>,
            offset,
            len,
        ))
    }

    /// Where in the region `len` bytes from `va` on lie, if all are in it.
    pub(super) fn offset(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.checked_sub(self.va)?;
        let end = offset.checked_add(len)?;
        let slack = u64::from(mutant!("range_unchecked")) * 64;
        (end <= self.len + slack).then_some(offset)
    }

    /// The memory, whoever may do what with it.
    pub(super) fn memory(&self) -> &Arc<dyn Memory> {
        &self.mem
    }

    /// Nobody reaches it from now on.
    ///
    /// # Errors
    /// Windows are bound to it (rxe: `rxe_dereg_mr`), or it was withdrawn before.
    pub fn withdraw(&self) -> Result<(), RegionError> {
        match self
            .state
            .compare_exchange(0, DEAD, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(state) if state & DEAD != 0 => Err(RegionError::Withdrawn),
            Err(windows) => Err(RegionError::WindowsBound(windows)),
        }
    }

    /// As [`Region::withdraw`], whatever windows are bound to it: nobody reaches it through them either from now on. They stay bound until
    /// they are invalidated, bound elsewhere, or freed.
    pub fn revoke(&self) {
        self.state.fetch_or(DEAD, Ordering::AcqRel);
    }

    /// A window is being bound to it; false if it was withdrawn.
    pub(super) fn window_bound(&self) -> bool {
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |s| {
                (s + 1 < DEAD).then_some(s + 1)
            })
            .is_ok()
    }

    /// A window was unbound.
    pub(super) fn window_unbound(&self) {
        self.state.fetch_sub(1, Ordering::AcqRel);
    }

    fn check(&self, write: bool) -> Result<(), MemoryFault> {
        if self.permits(write) {
            Ok(())
        } else {
            Err(MemoryFault)
        }
    }
}

/// Memory of local work requests: reads while the region lives, writes with [`Access::LOCAL_WRITE`]. Offsets count from the
/// region's first byte.
impl Memory for Region {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), MemoryFault> {
        self.check(false)?;
        self.mem.read(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<(), MemoryFault> {
        self.check(true)?;
        self.mem.write(offset, src)
    }

    fn atomic(&self, offset: u64, op: Atomic) -> Result<u64, MemoryFault> {
        self.check(true)?;
        self.mem.atomic(offset, op)
    }

    fn flush(&self, offset: u64, len: u64, persistent: bool) -> Result<(), MemoryFault> {
        self.check(false)?;
        self.mem.flush(offset, len, persistent)
    }

    fn pd(&self) -> Option<Pd> {
        Some(self.pd)
    }

    fn permits(&self, write: bool) -> bool {
        self.is_live() && (!write || self.access.contains(Access::LOCAL_WRITE))
    }
}
