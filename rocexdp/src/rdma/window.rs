//! Memory windows: rights to a part of a region, given and taken by requests, without the cost of registering.
//!
//! The peer's side of a window is a [`RemoteRegion`] as any other. Must not: reach anything.

use std::{
    fmt,
    marker::PhantomData,
    ops::RangeBounds,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rocexdp_proto::{
    ids::RKey,
    mem::{Access, Window as Object, WindowKind},
    verbs::{SendOp, SgList},
};

use super::{
    Error, LocalAccess, PostFault, ProtectionDomain, Region, RemoteRegion, Wr, region::part,
    request::Operation,
};

mod sealed {
    pub trait Sealed {
        const KIND: rocexdp_proto::mem::WindowKind;
    }
}

/// A type of memory window: [`Type1`] or [`Type2`].
pub trait WindowType: sealed::Sealed + fmt::Debug + Send + Sync + 'static {}

/// Belongs to its protection domain: every queue pair of it may bind the window anew or unbind it, and be used to reach it.
#[derive(Clone, Copy, Debug)]
pub struct Type1;

/// Belongs, while bound, to the queue pair that bound it (type 2B): only its peer reaches it, and it is bound again only after it was
/// invalidated, by a request of ours or with a SEND of the peer's.
#[derive(Clone, Copy, Debug)]
pub struct Type2;

impl sealed::Sealed for Type1 {
    const KIND: WindowKind = WindowKind::Type1;
}
impl sealed::Sealed for Type2 {
    const KIND: WindowKind = WindowKind::Type2;
}
impl WindowType for Type1 {}
impl WindowType for Type2 {}

struct Inner {
    pd: ProtectionDomain,
    object: Arc<Object>,
    /// The key once all binds that were made have been carried out.
    key: AtomicU32,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.pd.device().node().free_window(&self.object);
    }
}

/// A memory window (`ibv_alloc_mw(3)`): made by [`ProtectionDomain::window`], bound by a request ([`Wr::bind`]). Dropping it takes the
/// peers' rights, at once; so does dropping the region that it is bound to.
pub struct MemoryWindow<T: WindowType> {
    inner: Arc<Inner>,
    _type: PhantomData<T>,
}

impl<T: WindowType> fmt::Debug for MemoryWindow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.object.fmt(f)
    }
}

impl<T: WindowType> MemoryWindow<T> {
    pub(super) fn new(pd: &ProtectionDomain) -> Result<Self, Error> {
        let node = pd.device().node();
        let object = node
            .alloc_window(pd.domain.pd, T::KIND)
            .map_err(Error::Device)?;
        let inner = Inner {
            pd: pd.clone(),
            key: AtomicU32::new(object.rkey().0),
            object,
        };
        Ok(Self {
            inner: Arc::new(inner),
            _type: PhantomData,
        })
    }

    /// Its protection domain.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Whether peers reach something through it now.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.inner.object.is_bound()
    }

    /// Its key as of all binds that were made. It changes with each, so that who has an old one reaches nothing.
    #[must_use]
    pub fn key(&self) -> WindowKey {
        WindowKey(self.inner.key.load(Ordering::Acquire))
    }

    /// Begins anew after a bind that was made and not posted, or that failed: the next bind then is of the key as it is now. Not while a
    /// bind is outstanding.
    pub fn resync(&self) {
        let now = self.inner.object.rkey().0;
        self.inner.key.store(now, Ordering::Release);
    }

    /// The key now, and the one that the next bind gives: its low 8 bits counted on (`ibv_inc_rkey(3)`).
    fn next_key(&self) -> (RKey, RKey) {
        let next = |key: u32| (key & !0xff) | (key.wrapping_add(1) & 0xff);
        let key = &self.inner.key;
        let now = key
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |key| Some(next(key)))
            .unwrap_or_else(|key| key);
        (RKey(now), RKey(next(now)))
    }
}

/// A window's key, as its owner compares and invalidates it. Peers get a [`RemoteRegion`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowKey(pub(super) u32);

impl WindowKey {
    /// The number on the wire.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// BIND: lets peers reach a part of a region through a window. Carried out at this host, in its turn among the queue pair's requests.
#[derive(Clone, Debug)]
pub struct Bind {
    window: RKey,
    region: RKey,
    remote: RemoteRegion,
}

impl Wr<Bind> {
    /// Binds `window` to `range` of `region`, which must have [`Access::MW_BIND`] and be of the same domain; peers may then do what `access`
    /// says: any of [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`], [`Access::REMOTE_ATOMIC`], [`Access::FLUSH_GLOBAL`] and
    /// [`Access::FLUSH_PERSISTENT`], whatever rights the region's own key has.
    ///
    /// [`Self::remote`] is what peers need, once the request has completed. Binds of one window continue from one another: post them in
    /// the order in which they were made ([`MemoryWindow::resync`] puts right what was not).
    ///
    /// Fails with [`Status::MwBindErr`](super::Status::MwBindErr) where the queue pair is of another domain, a type 2 window is bound
    /// already, or the region was dropped.
    ///
    /// # Errors
    /// The region has no [`Access::MW_BIND`]; `access` has something else, or would change a region that is for reading only; the range is
    /// empty or not in the region.
    pub fn bind<T: WindowType, A: LocalAccess>(
        window: &MemoryWindow<T>,
        region: &Region<A>,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Result<Self, Error> {
        let object = region.bindable().ok_or(Error::Access(
            "a window is bound to a region with Access::MW_BIND only: register it with that",
        ))?;
        if access.bits() & !Access::peers().bits() != 0 {
            return Err(Error::Access(
                "a window gives rights to peers only: REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC, FLUSH_GLOBAL, FLUSH_PERSISTENT",
            ));
        }
        if access.changes_memory() && !object.access().contains(Access::LOCAL_WRITE) {
            return Err(Error::Access(
                "peers can't have rights to change a region that is for reading only: use register",
            ));
        }
        let (offset, len) = part(range, region.len());
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= region.len());
        if !inside || len == 0 {
            return Err(region.outside(offset, len).into());
        }
        let va = object.va() + offset;
        let (now, next) = window.next_key();
        Ok(Self::of(Bind {
            window: now,
            region: object.rkey(),
            remote: RemoteRegion::new(next.0, va, len, access),
        }))
    }

    /// Unbinds a type 1 window. Of a type 2 window, see [`Wr::local_invalidate`].
    pub fn unbind(window: &MemoryWindow<Type1>) -> Self {
        let (now, next) = window.next_key();
        Self::of(Bind {
            window: now,
            region: RKey(0),
            remote: RemoteRegion::new(next.0, 0, 0, Access::NONE),
        })
    }

    /// What a peer needs in order to reach the window, to be sent to it once this has completed.
    #[must_use]
    pub fn remote(&self) -> RemoteRegion {
        self.op.remote
    }

    /// The window's key from then on: by which it is invalidated.
    #[must_use]
    pub fn key(&self) -> WindowKey {
        WindowKey(self.op.remote.rkey())
    }
}

impl Operation for Bind {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let op = SendOp::BindMw {
            window: self.window,
            rkey: RKey(self.remote.rkey()),
            region: self.region,
            va: self.remote.va(),
            len: self.remote.len(),
            access: self.remote.access(),
        };
        Ok((op, SgList::empty()))
    }
}

/// LOCAL INVALIDATE: takes a type 2 window from the peer. Carried out at this host, in its turn among the queue pair's requests.
#[derive(Clone, Debug)]
pub struct LocalInvalidate(WindowKey);

impl Wr<LocalInvalidate> {
    /// Withdraws the binding that has this key ([`Wr::<Bind>::key`](Wr::key)), by the queue pair that bound it: once it has completed, no
    /// request of the peer reaches the window. Requests behind it wait for it; fence it ([`Wr::fenced`]) where READs into the same memory
    /// are outstanding.
    ///
    /// Fails with [`Status::LocQpOpErr`](super::Status::LocQpOpErr) where no type 2 window that this queue pair bound has the key.
    pub fn local_invalidate(key: WindowKey) -> Self {
        Self::of(LocalInvalidate(key))
    }
}

impl Operation for LocalInvalidate {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        Ok((SendOp::LocalInvalidate(RKey(self.0.0)), SgList::empty()))
    }
}
