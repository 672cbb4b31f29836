//! The regions and windows of an endpoint by key, and what is done to them by key: bind, invalidate, reach.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_mw.c (`rxe_bind_mw`, `rxe_check_bind_mw`, `rxe_invalidate_mw`, `rxe_lookup_mw`) and
//! rxe_mr.c (`lookup_mr`, `rxe_invalidate_mr`, `rxe_dereg_mr`). Must not: know how a refusal shows (requester and responder do).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::window::Binding;
use super::{Access, Memory, Region, RegionError, Window, WindowKind};
use crate::hash::NumberHash;
use crate::ids::{Pd, Qpn, RKey};
use crate::rng::SecretRng;

/// Draws before the table is walked through for a free key.
const DRAWS: u32 = 64;

/// What a bind asks for (`SendOp::BindMw`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowBind {
    /// The window's key as it is now.
    pub(crate) window: RKey,
    /// Its key from then on; the upper 24 bits are the same.
    pub(crate) rkey: RKey,
    /// Key of the region. Means nothing with length 0.
    pub(crate) region: RKey,
    pub(crate) va: u64,
    /// 0: unbinds a type 1 window.
    pub(crate) len: u64,
    pub(crate) access: Access,
}

/// Why a window was not bound, or a key not invalidated. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyError {
    /// No window has this key now.
    NoWindow,
    /// No region has this key.
    NoRegion,
    /// The new key is another window's, or type 1: the old one again.
    NewKey,
    /// Not a right that a window can give; type 1 can't be zero-based.
    Access,
    /// QP, window and region are not of one protection domain.
    Pd,
    /// Type 2: bound already, or not bound, or by another QP.
    Bound,
    /// Type 2: a window of no bytes.
    Empty,
    /// The region does not allow it: no MW_BIND, no LOCAL_WRITE for what changes memory, or zero-based.
    RegionAccess,
    /// The region is restricted to one QP, and the window would open it to another.
    Restricted,
    /// Not all in the region.
    Range,
    /// The key is a region's, or a type 1 window's: those are not withdrawn so.
    Kind,
}

/// A region as this endpoint knows it.
#[derive(Debug)]
struct Known {
    region: Arc<Region>,
    /// The only QP over which it may be reached; `None`: any.
    qpn: Option<Qpn>,
}

/// Memory that a key reaches. That of a window is held, since another endpoint may unbind it.
pub(crate) enum Place<'a> {
    Borrowed(&'a Arc<dyn Memory>),
    Held(Arc<dyn Memory>),
}

impl core::ops::Deref for Place<'_> {
    type Target = Arc<dyn Memory>;
    fn deref(&self) -> &Arc<dyn Memory> {
        match self {
            Self::Borrowed(mem) => mem,
            Self::Held(mem) => mem,
        }
    }
}

/// What a key lets a QP reach.
pub(crate) enum Reach<'a> {
    Region(&'a Region),
    Window(&'a Window),
}

impl<'a> Reach<'a> {
    /// The memory, and where in it `len` bytes from `va` on lie, if they are all within what the key names and it allows
    /// `access`.
    pub(crate) fn locate(&self, va: u64, len: u64, access: Access) -> Option<(Place<'a>, u64)> {
        match self {
            Self::Region(region) => {
                let offset = region.offset(va, len)?;
                let right = mutant!("access_unchecked") || region.access().contains(access);
                right.then(|| (Place::Borrowed(region.memory()), offset))
            }
            Self::Window(window) => {
                let state = window.state();
                let (region, offset) = state.binding.as_ref()?.locate(va, len, access)?;
                Some((Place::Held(Arc::clone(region.memory())), offset))
            }
        }
    }

    /// First address and bytes of all that the key names: what a FLUSH of the whole region covers.
    pub(crate) fn whole(&self) -> Option<(u64, u64)> {
        match self {
            Self::Region(region) => Some((region.va(), region.len())),
            Self::Window(window) => window.state().binding.as_ref().map(Binding::range),
        }
    }
}

/// The regions and windows of an endpoint.
#[derive(Default, Debug)]
pub(crate) struct RegionTable {
    regions: HashMap<u32, Known, NumberHash>,
    /// By the upper 24 bits of their keys, which no region's key shares.
    windows: HashMap<u32, Arc<Window>, NumberHash>,
    /// QPNs and the type 2 windows bound over them here: they go with their QP.
    bound: BTreeSet<(u32, u32)>,
}

impl RegionTable {
    /// Regions.
    pub(crate) fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Windows.
    pub(crate) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// A random key that is free for a region, never 0.
    pub(crate) fn draw_region(&self, rng: &mut SecretRng) -> RKey {
        self.draw(rng, |t, key| t.takes_region(RKey(key)))
    }

    /// A random key that is free for a window.
    pub(crate) fn draw_window(&self, rng: &mut SecretRng) -> RKey {
        self.draw(rng, |t, key| t.takes_window(key >> 8))
    }

    fn draw(&self, rng: &mut SecretRng, free: impl Fn(&Self, u32) -> bool) -> RKey {
        for _ in 0..DRAWS {
            let key = rng.next_u32();
            if free(self, key) {
                return RKey(key);
            }
        }
        // Tables are limited far below 2^24 entries: this is never far.
        let start = rng.next_u32();
        let key = (0..=u32::MAX)
            .map(|n| start.wrapping_add(n.wrapping_mul(0x101)))
            .find(|key| free(self, *key));
        RKey(key.unwrap_or(0))
    }

    fn takes_region(&self, key: RKey) -> bool {
        key.0 != 0
            && !self.regions.contains_key(&key.0)
            && !self.windows.contains_key(&(key.0 >> 8))
    }

    fn takes_window(&self, index: u32) -> bool {
        index != 0
            && !self.windows.contains_key(&index)
            // Its key may become any of these.
            && (0..=0xff).all(|low| !self.regions.contains_key(&(index << 8 | low)))
    }

    /// Adds a region; false if its key is taken.
    pub(crate) fn add_region(&mut self, region: &Arc<Region>) -> bool {
        let free = self.takes_region(region.rkey());
        if free {
            let region = Arc::clone(region);
            self.regions
                .insert(region.rkey().0, Known { region, qpn: None });
        }
        free
    }

    /// Adds a window; false if its key, or one that it may come to have, is taken.
    pub(crate) fn add_window(&mut self, window: &Arc<Window>) -> bool {
        let free = self.takes_window(window.index());
        if free {
            self.windows.insert(window.index(), Arc::clone(window));
        }
        free
    }

    /// The region of a key.
    pub(crate) fn region(&self, key: RKey) -> Option<&Arc<Region>> {
        self.regions.get(&key.0).map(|known| &known.region)
    }

    /// Withdraws a region, everywhere, and forgets it here. The peer's next packet for it is refused.
    ///
    /// # Errors
    /// Windows are bound to it. A region that another endpoint has withdrawn is only forgotten.
    pub(crate) fn deregister(&mut self, key: RKey) -> Result<Option<Arc<Region>>, RegionError> {
        let Some(known) = self.regions.get(&key.0) else {
            return Ok(None);
        };
        match known.region.withdraw() {
            Ok(()) | Err(RegionError::Withdrawn) => {}
            Err(e) => return Err(e),
        }
        Ok(self.regions.remove(&key.0).map(|known| known.region))
    }

    /// Frees a window, everywhere, bound or not, and forgets it here (rxe: `rxe_mw_cleanup`).
    pub(crate) fn free_window(&mut self, key: RKey) -> Option<Arc<Window>> {
        let window = self.windows.get(&(key.0 >> 8))?;
        let known = window.rkey() == key;
        let window = known.then(|| Arc::clone(window))?;
        self.forget_window(&window).then_some(window)
    }

    /// As [`RegionTable::free_window`], whatever its key is by now. False if this table does not know it; it is freed all the same.
    pub(crate) fn forget_window(&mut self, window: &Arc<Window>) -> bool {
        let index = window.index();
        {
            let mut state = window.state();
            state.dead = true;
            // Where another endpoint was faster, the entry goes with its QP.
            if let Some(qpn) = state.binding.take().and_then(|b| b.qpn) {
                self.bound.remove(&(qpn.get(), index));
            }
        }
        let known = self.windows.get(&index);
        let known = known.is_some_and(|known| Arc::ptr_eq(known, window));
        if known {
            self.windows.remove(&index);
        }
        known
    }

    /// Restricts a region to one QP, or lifts that; false if there is none.
    pub(crate) fn restrict(&mut self, rkey: RKey, qpn: Option<Qpn>) -> bool {
        let Some(known) = self.regions.get_mut(&rkey.0) else {
            return false;
        };
        known.qpn = qpn;
        true
    }

    /// What a key lets the QP `over`, of protection domain `pd`, reach. `None`: nothing has the key, or it is another
    /// domain's or QP's, or was withdrawn.
    pub(crate) fn reach(&self, rkey: RKey, pd: Pd, over: Qpn) -> Option<Reach<'_>> {
        if let Some(known) = self.regions.get(&rkey.0) {
            let region = &known.region;
            let may = (region.pd() == Some(pd) || mutant!("domain_unchecked"))
                && known.qpn.is_none_or(|q| q == over)
                && region.is_live();
            return may.then_some(Reach::Region(region));
        }
        let window = self.windows.get(&(rkey.0 >> 8))?;
        let state = window.state();
        let may = (state.key == rkey || mutant!("stale_window_key_accepted"))
            && !state.dead
            && window.pd() == pd
            && state
                .binding
                .as_ref()
                .is_some_and(|b| b.qpn.is_none_or(|q| q == over) || mutant!("window_over_any_qp"));
        drop(state);
        may.then_some(Reach::Window(window))
    }

    /// Carries out a bind of QP `qpn`, of protection domain `pd`.
    ///
    /// # Errors
    /// What the rules of rxe_mw.c `rxe_check_bind_mw` forbid, and three things that rxe does not look at: the region's
    /// protection domain; for type 1, that of the QP and the old key given again, by which peers of the old binding would
    /// reach the new one; and a region that is restricted to one QP, which the window would open to another.
    pub(crate) fn bind_window(
        &mut self,
        pd: Pd,
        qpn: Qpn,
        bind: WindowBind,
    ) -> Result<(), KeyError> {
        let index = bind.window.0 >> 8;
        let window = self.windows.get(&index).ok_or(KeyError::NoWindow)?;
        let mut state = window.state();
        if state.key != bind.window || state.dead {
            return Err(KeyError::NoWindow);
        }
        if bind.rkey.0 >> 8 != index {
            return Err(KeyError::NewKey);
        }
        if window.pd() != pd {
            return Err(KeyError::Pd);
        }
        let zero_based = bind.access.contains(Access::ZERO_BASED);
        if !bind.access.fits_window() {
            return Err(KeyError::Access);
        }
        match window.kind() {
            WindowKind::Type1 if zero_based => return Err(KeyError::Access),
            WindowKind::Type1 if bind.len > 0 && bind.rkey == state.key => {
                return Err(KeyError::NewKey);
            }
            WindowKind::Type2 if state.binding.is_some() => return Err(KeyError::Bound),
            WindowKind::Type2 if bind.len == 0 => return Err(KeyError::Empty),
            _ => {}
        }
        let binding = if bind.len == 0 {
            None
        } else {
            let known = self.regions.get(&bind.region.0).ok_or(KeyError::NoRegion)?;
            let region = &known.region;
            if region.pd() != Some(pd) && !mutant!("bind_domain_unchecked") {
                return Err(KeyError::Pd);
            }
            // Any QP of the domain reaches a type 1 window, whichever bound it.
            let only = |q| q == qpn && window.kind() == WindowKind::Type2;
            if !known.qpn.is_none_or(only) {
                return Err(KeyError::Restricted);
            }
            let allowed = region.access();
            if allowed.contains(Access::ZERO_BASED)
                || !allowed.contains(Access::MW_BIND)
                || (bind.access.changes_memory() && !allowed.contains(Access::LOCAL_WRITE))
            {
                return Err(KeyError::RegionAccess);
            }
            region.offset(bind.va, bind.len).ok_or(KeyError::Range)?;
            let over = (window.kind() == WindowKind::Type2).then_some(qpn);
            let binding = Binding::new(region, bind.va, bind.len, bind.access, over)
                .ok_or(KeyError::NoRegion)?;
            Some(binding)
        };
        if binding.as_ref().is_some_and(|b| b.qpn.is_some()) {
            self.bound.insert((qpn.get(), index));
        }
        state.key = bind.rkey;
        state.binding = binding;
        Ok(())
    }

    /// Withdraws a type 2 window's binding, by LOCAL INVALIDATE of QP `qpn`, or by its peer's SEND with invalidate.
    ///
    /// # Errors
    /// The key is no type 2 window's that this QP has bound. Of regions, only those registered by a work request can be
    /// invalidated (rxe: `rxe_invalidate_mr`), and there are none such here. rxe lets any QP withdraw a window; it is the one
    /// that has bound it here, since a peer must not withdraw another's.
    pub(crate) fn invalidate(&mut self, pd: Pd, qpn: Qpn, rkey: RKey) -> Result<(), KeyError> {
        self.may_invalidate(pd, qpn, rkey)?;
        let index = rkey.0 >> 8;
        if let Some(window) = self.windows.get(&index)
            && !mutant!("window_not_invalidated")
        {
            window.state().binding = None;
        }
        self.bound.remove(&(qpn.get(), index));
        Ok(())
    }

    /// Whether [`RegionTable::invalidate`] would do it.
    pub(crate) fn may_invalidate(&self, pd: Pd, qpn: Qpn, rkey: RKey) -> Result<(), KeyError> {
        if self.regions.contains_key(&rkey.0) {
            return Err(KeyError::Kind);
        }
        let window = self.windows.get(&(rkey.0 >> 8)).ok_or(KeyError::NoWindow)?;
        let state = window.state();
        if state.key != rkey || state.dead {
            return Err(KeyError::NoWindow);
        }
        if window.kind() == WindowKind::Type1 {
            return Err(KeyError::Kind);
        }
        if window.pd() != pd {
            return Err(KeyError::Pd);
        }
        let ours = state.binding.as_ref().is_some_and(|b| b.qpn == Some(qpn));
        if ours { Ok(()) } else { Err(KeyError::Bound) }
    }

    /// The QP is gone: so are the windows bound over it, since its number may be another's soon.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        let range = (qpn.get(), 0)..=(qpn.get(), u32::MAX);
        while let Some(&(q, index)) = self.bound.range(range.clone()).next() {
            self.bound.remove(&(q, index));
            if let Some(window) = self.windows.get(&index) {
                let mut state = window.state();
                if state.binding.as_ref().is_some_and(|b| b.qpn == Some(qpn)) {
                    state.binding = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bare;
    use super::*;

    const PD: Pd = Pd(3);
    const QPN: Qpn = Qpn::new(17);

    fn table(len: u64, va: u64, access: Access) -> (RegionTable, Arc<Region>, SecretRng) {
        let (mut t, mut rng) = (RegionTable::default(), SecretRng::new(1));
        let key = t.draw_region(&mut rng);
        let region = Region::new(key, PD, Arc::new(Bare(len)), va, access).unwrap();
        assert!(t.add_region(&region) && !t.add_region(&region));
        (t, region, rng)
    }

    #[test]
    fn a_revoked_region_is_not_reached_through_a_window_either() {
        let rights = Access::LOCAL_WRITE | Access::MW_BIND;
        let (mut t, region, mut rng) = table(4096, 0x1000, rights);
        let key = t.draw_window(&mut rng);
        let window = Window::new(key, PD, WindowKind::Type1).unwrap();
        assert!(t.add_window(&window));
        let bind = WindowBind {
            window: key,
            rkey: window.next_rkey(),
            region: region.rkey(),
            va: 0x1000,
            len: 8,
            access: Access::REMOTE_READ,
        };
        t.bind_window(PD, QPN, bind).unwrap();
        let reached = |t: &RegionTable| {
            let reach = t.reach(window.rkey(), PD, QPN);
            reach.is_some_and(|r| r.locate(0x1000, 8, Access::REMOTE_READ).is_some())
        };
        assert!(reached(&t));
        assert_eq!(region.withdraw(), Err(RegionError::WindowsBound(1)));
        region.revoke();
        assert!(!reached(&t) && !region.is_live());
        assert_eq!(region.withdraw(), Err(RegionError::Withdrawn));
        assert!(t.deregister(region.rkey()).unwrap().is_some());
        // Another endpoint's table, which knows it too, forgets it by itself.
        let mut other = RegionTable::default();
        assert!(other.add_window(&window));
        assert!(t.forget_window(&window) && !window.is_bound());
        assert!(other.forget_window(&window) && !other.forget_window(&window));
        assert_eq!((t.windows(), other.windows()), (0, 0));
    }

    #[test]
    fn ranges_that_overflow_are_outside_every_region() {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (mut t, region, _) = table(4096, 0x1000, access);
        let key = region.rkey();
        {
            let r = t.reach(key, PD, QPN).unwrap();
            let offset = |va, len| r.locate(va, len, Access::REMOTE_WRITE).map(|(_, o)| o);
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
        }
        assert!(t.deregister(key).unwrap().is_some() && t.deregister(key).unwrap().is_none());
        assert!(t.reach(key, PD, QPN).is_none() && !region.is_live());
    }

    #[test]
    fn a_region_whose_addresses_pass_the_end_is_refused() {
        let new = |key, len, va, access| {
            Region::new(RKey(key), PD, Arc::new(Bare(len)), va, access).map(|r| r.va())
        };
        assert_eq!(new(1, 8, u64::MAX - 8, Access::NONE), Ok(u64::MAX - 8));
        assert_eq!(
            new(1, 8, u64::MAX - 7, Access::NONE),
            Err(RegionError::Range)
        );
        assert_eq!(new(1, 8, u64::MAX, Access::ZERO_BASED), Ok(0));
        assert_eq!(new(0, 8, 0, Access::NONE), Err(RegionError::ReservedKey));
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(new(1, 8, 0, access), Err(RegionError::NeedsLocalWrite));
        }
    }

    #[test]
    fn keys_of_regions_and_windows_never_meet() {
        let (mut t, mut rng) = (RegionTable::default(), SecretRng::new(2));
        let region = |key| Region::new(RKey(key), PD, Arc::new(Bare(8)), 0, Access::NONE).unwrap();
        let window = |key| Window::new(RKey(key), PD, WindowKind::Type2).unwrap();
        assert!(t.add_region(&region(0x1234_5678)));
        assert!(
            !t.add_window(&window(0x1234_5600)),
            "its key may become the region's"
        );
        assert!(t.add_window(&window(0x0000_0100)));
        assert!(
            !t.add_region(&region(0x0000_01ff)),
            "the window's key may become this"
        );
        assert!(Window::new(RKey(0xff), PD, WindowKind::Type1).is_none());
        for _ in 0..1000 {
            let (r, w) = (t.draw_region(&mut rng), t.draw_window(&mut rng));
            assert!(t.add_region(&region(r.0)));
            assert_eq!(t.add_window(&window(w.0)), r.0 >> 8 != w.0 >> 8);
        }
        assert_eq!(t.regions(), 1001);
    }

    #[test]
    fn a_key_is_found_even_where_draws_always_meet_taken_ones() {
        let mut rng = SecretRng::new(3);
        let t = RegionTable::default();
        // Nothing but one key is free.
        let key = t.draw(&mut rng, |_, key| key % 0x10_0000 == 77);
        assert_eq!(key.0 % 0x10_0000, 77);
    }
}
