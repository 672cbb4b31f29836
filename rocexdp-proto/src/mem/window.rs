//! Memory windows: a part of a region under a key that work requests give and take.
//!
//! A type 1 window belongs to a protection domain, and any QP of it may bind it or be reached through it. A type 2 window (2B)
//! belongs, while bound, to the QP that bound it; only LOCAL INVALIDATE and the peer's SEND with invalidate withdraw it.
//! The upper 24 bits of the key name the window for its whole life, the low 8 bits are new with each binding.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_mw.c. Where rxe is more lenient it is said. Must not: know packets.

use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Access, Region};
use crate::ids::{Pd, Qpn, RKey};

/// Type of a memory window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowKind {
    /// Bound again or unbound (length 0) by another bind.
    Type1,
    /// 2B: bound when unbound, by one QP; withdrawn by invalidation.
    Type2,
}

/// A memory window (`ibv_alloc_mw(3)`). One object may be known to several endpoints.
pub struct Window {
    /// Upper 24 bits of its keys.
    index: u32,
    pd: Pd,
    kind: WindowKind,
    state: Mutex<State>,
}

/// What changes of a window.
pub(super) struct State {
    pub(super) key: RKey,
    pub(super) binding: Option<Binding>,
    /// Freed.
    pub(super) dead: bool,
}

/// What a window is bound to. Counts at its region for as long as it lives.
pub(super) struct Binding {
    region: Arc<Region>,
    va: u64,
    len: u64,
    access: Access,
    /// Type 2: over which QP only.
    pub(super) qpn: Option<Qpn>,
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.region.window_unbound();
    }
}

impl Binding {
    /// `None` if the region was withdrawn meanwhile.
    pub(super) fn new(
        region: &Arc<Region>,
        va: u64,
        len: u64,
        access: Access,
        qpn: Option<Qpn>,
    ) -> Option<Self> {
        region.window_bound().then(|| Self {
            region: Arc::clone(region),
            va,
            len,
            access,
            qpn,
        })
    }

    /// First address, as peers name it, and bytes.
    pub(super) fn range(&self) -> (u64, u64) {
        if self.access.contains(Access::ZERO_BASED) {
            (0, self.len)
        } else {
            (self.va, self.len)
        }
    }

    /// The region, and where in it `len` bytes from `va` on lie, if they are all in the window, it allows `access`, and the region was not
    /// revoked.
    pub(super) fn locate(&self, va: u64, len: u64, access: Access) -> Option<(&Arc<Region>, u64)> {
        let offset = va.checked_sub(self.range().0)?;
        let inside = offset.checked_add(len)? <= self.len;
        let inside = inside || mutant!("window_range_unchecked");
        let allowed = self.access.contains(access) || mutant!("window_access_unchecked");
        if !inside || !allowed || !self.region.is_live() {
            return None;
        }
        let offset = self.region.offset(self.va.checked_add(offset)?, len)?;
        Some((&self.region, offset))
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        let what = match (&state.binding, state.dead) {
            (_, true) => "freed",
            (Some(_), false) => "bound",
            (None, false) => "not bound",
        };
        write!(f, "Window({:?}, PD {}, {what})", self.kind, self.pd.0)
    }
}

impl Window {
    /// A window, not bound, under a key that the caller drew at random; `None` if no key below it could be used (the upper
    /// 24 bits are 0). Add it to each endpoint that is to know it ([`crate::Endpoint::add_window`]).
    #[must_use]
    pub fn new(key: RKey, pd: Pd, kind: WindowKind) -> Option<Arc<Self>> {
        let index = key.0 >> 8;
        (index != 0).then(|| {
            Arc::new(Self {
                index,
                pd,
                kind,
                state: Mutex::new(State {
                    key,
                    binding: None,
                    dead: false,
                }),
            })
        })
    }

    /// Its key as it is now. Peers may use it while the window is bound.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        self.state().key
    }

    /// A key that the next bind may give it: the low 8 bits counted on (`ibv_inc_rkey(3)`).
    #[must_use]
    pub fn next_rkey(&self) -> RKey {
        let key = self.rkey().0;
        RKey((key & !0xff) | (key.wrapping_add(1) & 0xff))
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> Pd {
        self.pd
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Whether it is bound.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.state().binding.is_some()
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Locked for as long as it is looked at: another endpoint may bind or free it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
