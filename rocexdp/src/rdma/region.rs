//! Registered memory, and the parts of it that requests name.
//!
//! The engine and the peers read and write a region's bytes at any time, so there is no `&[u8]` of them: [`Region::read`] and
//! [`Region::write`] copy, [`Word`] is atomic. [`Region::as_mut_slice`] gives the bytes themselves while that is safe: no peer has a
//! right, no request is outstanding, and it can't become otherwise as long as the slice is borrowed.
//!
//! Must not: know queue pairs.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Bound, RangeBounds},
    sync::{Arc, OnceLock},
};

use rocexdp_proto::{
    mem::{Access, Atomic, Memory, Region as Object, Segment},
    verbs::MAX_MESSAGE,
};

use super::{Error, OutOfRange, ProtectionDomain, QueuePair, RemoteRegion, Service, ViewError};
use crate::mem::Registrable;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ReadOnly {}
    impl Sealed for super::ReadWrite {}
}

/// What this host's requests may do with a region: [`ReadOnly`] or [`ReadWrite`].
pub trait LocalAccess: sealed::Sealed + fmt::Debug + Send + Sync + 'static {}

/// The region may be sent from.
#[derive(Clone, Copy, Debug)]
pub struct ReadOnly;

/// The region may be sent from, and received, READ and fetched into.
#[derive(Clone, Copy, Debug)]
pub struct ReadWrite;

impl LocalAccess for ReadOnly {}
impl LocalAccess for ReadWrite {}

/// Registered memory. Dropping it withdraws the peers' rights, at once, also those through windows bound to it; requests outstanding keep the memory until they complete.
pub struct Region<A: LocalAccess> {
    pd: ProtectionDomain,
    memory: Arc<dyn Registrable>,
    /// What local requests hold. Made when first asked for, so that nobody has it while [`Self::as_mut_slice`] is out.
    local: OnceLock<Arc<Object>>,
    /// What peers reach.
    remote: Option<Arc<Object>>,
    access: Access,
    _access: PhantomData<A>,
}

impl<A: LocalAccess> fmt::Debug for Region<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("memory", &self.memory)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

impl<A: LocalAccess> Drop for Region<A> {
    fn drop(&mut self) {
        if let Some(remote) = &self.remote {
            self.pd.device().node().forget(remote);
        }
    }
}

/// First byte and number of bytes of a range of a region of `all` bytes; an end before the start is no bytes at all.
pub(super) fn part(range: impl RangeBounds<u64>, all: u64) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(at) => *at,
        Bound::Excluded(at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(at) => at.saturating_add(1),
        Bound::Excluded(at) => *at,
        Bound::Unbounded => all,
    };
    // Backwards: nowhere in the region.
    let start = if start > end { u64::MAX } else { start };
    (start, end.saturating_sub(start))
}

impl<A: LocalAccess> Region<A> {
    /// `access` is that of local requests, with what the peers need; `remote` only the peers'.
    pub(super) fn new<M: Registrable>(
        pd: &ProtectionDomain,
        memory: M,
        access: Access,
        remote: Access,
    ) -> Result<Self, Error> {
        let memory: Arc<dyn Registrable> = Arc::new(memory);
        let whole: Arc<dyn Memory> = Arc::<dyn Registrable>::clone(&memory);
        let node = pd.device().node();
        let remote = (remote != Access::NONE)
            .then(|| node.register_region(pd.domain.pd, &whole, access))
            .transpose()
            .map_err(Error::Device)?;
        Ok(Self {
            pd: pd.clone(),
            memory,
            local: OnceLock::new(),
            remote,
            access,
            _access: PhantomData,
        })
    }

    /// Its protection domain.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.memory.len()
    }

    /// True without any bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a peer needs in order to reach it, to be sent to it; `None` if peers have no rights but through windows.
    #[must_use]
    pub fn remote(&self) -> Option<RemoteRegion> {
        let region = self.remote.as_ref()?;
        let direct = region.access().bits() & Access::peers().bits() != 0;
        direct.then(|| RemoteRegion::of(region))
    }

    /// Lets peers reach it over one queue pair only, from their next packet on; the last one that it was restricted to. Memory windows
    /// bound to it are not affected.
    ///
    /// # Errors
    /// Peers have no rights to it, or the engine has ended.
    pub fn restrict_to<S: Service, State>(&self, qp: &QueuePair<S, State>) -> Result<(), Error> {
        let remote = self.remote.as_ref().ok_or(Error::Access(
            "peers have no rights to the region: there is nothing to restrict",
        ))?;
        let node = self.pd.device().node();
        node.bind(remote.rkey(), qp.qpn()).map_err(Error::Device)
    }

    /// What windows are bound to, if they may be.
    pub(super) fn bindable(&self) -> Option<&Arc<Object>> {
        let region = self.remote.as_ref()?;
        region.access().contains(Access::MW_BIND).then_some(region)
    }

    /// Copies `dst.len()` bytes from `offset` on. Bytes that a peer writes meanwhile may be from before and after, mixed.
    ///
    /// # Errors
    /// The range is not in the region.
    pub fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), OutOfRange> {
        let len = dst.len() as u64;
        self.memory
            .read(offset, dst)
            .map_err(|_| self.outside(offset, len))
    }

    /// The 64 bits at `offset`, in host order, by an acquire load: who finds there what a WRITE of the peer put last also finds all
    /// that it put before.
    ///
    /// # Errors
    /// The place is not in the region, or no multiple of 8 B in it.
    pub fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.memory
            .load(offset)
            .map_err(|_| self.outside(offset, 8))
    }

    /// A part of it, for requests.
    ///
    /// # Errors
    /// The range is not in the region, or longer than a message can be (2^31 B).
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Slice<A>, OutOfRange> {
        let (start, len) = part(range, self.len());
        let outside = self.outside(start, len);
        let inside = start.checked_add(len).is_some_and(|end| end <= self.len());
        if !inside || len > u64::from(MAX_MESSAGE) {
            return Err(outside);
        }
        Ok(Slice {
            object: self.object().ok_or(outside)?,
            offset: start,
            len: len as u32,
            _access: PhantomData,
        })
    }

    fn object(&self) -> Option<Arc<Object>> {
        if let Some(object) = self.local.get() {
            return Some(Arc::clone(object));
        }
        let whole: Arc<dyn Memory> = Arc::<dyn Registrable>::clone(&self.memory);
        // It was registered with the same rights before: there is no error left.
        let made = crate::node::Node::local_region(self.pd.domain.pd, &whole, self.access).ok()?;
        Some(Arc::clone(self.local.get_or_init(|| made)))
    }

    pub(super) fn outside(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange {
            offset,
            len,
            region: self.len(),
            rkey: self.remote.as_ref().map(|remote| remote.rkey().0),
        }
    }

    /// The bytes themselves, as long as nobody else can reach them.
    ///
    /// # Errors
    /// Peers have rights; a slice, a word or an outstanding request of it exists; or it is memory that others than this process may
    /// change (a file's, borrowed). See [`ViewError`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], ViewError> {
        if self.remote.is_some() {
            return Err(ViewError::Remote);
        }
        if let Some(object) = self.local.take()
            && let Err(object) = Arc::try_unwrap(object)
        {
            // Just taken out: there is room.
            let _ = self.local.set(object);
            return Err(ViewError::InUse);
        }
        let memory = Arc::get_mut(&mut self.memory).ok_or(ViewError::InUse)?;
        memory.exclusive().ok_or(ViewError::NotOurs)
    }
}

impl Region<ReadWrite> {
    /// Copies `src` to `offset` on. Peers see the bytes in the order of their addresses, the last aligned word last.
    ///
    /// # Errors
    /// The range is not in the region.
    pub fn write(&self, offset: u64, src: &[u8]) -> Result<(), OutOfRange> {
        self.memory
            .write(offset, src)
            .map_err(|_| self.outside(offset, src.len() as u64))
    }

    /// 64 bits of it, for atomics.
    ///
    /// # Errors
    /// The place is not in the region, or no multiple of 8 B in it.
    pub fn word(&self, offset: u64) -> Result<Word, OutOfRange> {
        let outside = self.outside(offset, 8);
        // Also that the memory's own address is a multiple of 8.
        self.load(offset)?;
        Ok(Word {
            memory: Arc::clone(&self.memory),
            object: self.object().ok_or(outside)?,
            offset,
        })
    }
}

/// A part of a region, as requests name it. It keeps the memory, not the peers' rights.
pub struct Slice<A: LocalAccess> {
    object: Arc<Object>,
    offset: u64,
    len: u32,
    _access: PhantomData<A>,
}

impl<A: LocalAccess> Clone for Slice<A> {
    fn clone(&self) -> Self {
        Self {
            object: Arc::clone(&self.object),
            ..*self
        }
    }
}

impl<A: LocalAccess> fmt::Debug for Slice<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} B at {})", self.len, self.offset)
    }
}

impl<A: LocalAccess> Slice<A> {
    /// Bytes, at most 2^31.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True for no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn segment(&self) -> Segment {
        let memory: Arc<dyn Memory> = Arc::<Object>::clone(&self.object);
        Segment::new(memory, self.offset, self.len)
    }
}

/// 64 bits of a region, on an 8-byte boundary: where the answer to an atomic goes, and what local threads and peers change in single
/// steps. Values are in host order.
#[derive(Clone)]
pub struct Word {
    memory: Arc<dyn Registrable>,
    object: Arc<Object>,
    offset: u64,
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({} at {})", self.load(), self.offset)
    }
}

impl Word {
    // The place was checked when the word was made, and memory does not shrink.

    /// The value, by an acquire load.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.memory.load(self.offset).unwrap_or_default()
    }

    /// Puts a value there; what was written before is visible to who sees it.
    pub fn store(&self, value: u64) {
        self.atomic(Atomic::Write(value));
    }

    /// Adds, modulo 2^64; gives what stood there.
    pub fn fetch_add(&self, add: u64) -> u64 {
        self.atomic(Atomic::FetchAdd(add))
    }

    /// Puts `swap` there if `compare` stood there; gives what stood there.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> u64 {
        self.atomic(Atomic::CompareSwap { compare, swap })
    }

    fn atomic(&self, op: Atomic) -> u64 {
        self.memory.atomic(self.offset, op).unwrap_or_default()
    }

    pub(super) fn segment(&self) -> Segment {
        let memory: Arc<dyn Memory> = Arc::<Object>::clone(&self.object);
        Segment::new(memory, self.offset, 8)
    }
}
