//! Commands: protection domains, memory regions and windows come and go.
//!
//! Where several endpoints (workers) serve one address, each must know them: one draws the key, the others add the same object.
//! A domain's number must be known to all as well.
//!
//! Must not: touch a QP.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::limit::{at_most, room};
use super::{DeviceAttr, Endpoint, VerbsError};
use crate::ids::{Pd, Qpn, RKey};
use crate::mem::{Access, Memory, MemoryRegion, Region, RegionError, Window, WindowKind};

/// The protection domains and how many objects are in each. [`Pd::default`] is always there.
#[derive(Default)]
pub(super) struct Pds {
    users: BTreeMap<Pd, u32>,
    /// Where to look for a number.
    next: u32,
}

impl Pds {
    /// # Errors
    /// There is no such domain.
    pub(super) fn check(&self, pd: Pd) -> Result<(), VerbsError> {
        if pd == Pd::default() || self.users.contains_key(&pd) {
            Ok(())
        } else {
            Err(VerbsError::UnknownPd(pd))
        }
    }

    /// # Errors
    /// As many as the device has are there. The default one counts once something is in it.
    fn room(&self, limits: &DeviceAttr) -> Result<(), VerbsError> {
        room(
            "protection domains (max_pd)",
            self.users.len(),
            limits.max_pd,
        )
    }

    /// An object was made in the domain.
    pub(super) fn used(&mut self, pd: Pd) {
        *self.users.entry(pd).or_default() += 1;
    }

    /// An object of the domain is gone.
    pub(super) fn unused(&mut self, pd: Pd) {
        if let Some(n) = self.users.get_mut(&pd) {
            *n = n.saturating_sub(1);
        }
    }
}

impl Endpoint {
    /// The limits of this device, as configured.
    #[must_use]
    pub fn device_attr(&self) -> &DeviceAttr {
        &self.config.limits
    }

    /// A new protection domain (`ibv_alloc_pd(3)`).
    ///
    /// # Errors
    /// As many as the device has are there.
    pub fn alloc_pd(&mut self) -> Result<Pd, VerbsError> {
        self.pds.room(&self.config.limits)?;
        loop {
            self.pds.next = self.pds.next.wrapping_add(1);
            let pd = Pd(self.pds.next);
            if pd != Pd::default() && !self.pds.users.contains_key(&pd) {
                self.pds.users.insert(pd, 0);
                return Ok(pd);
            }
        }
    }

    /// A protection domain under a number that another endpoint, or the owner, drew. One that is there already stays.
    ///
    /// # Errors
    /// As many as the device has are there.
    pub fn alloc_pd_as(&mut self, pd: Pd) -> Result<(), VerbsError> {
        if self.pds.check(pd).is_ok() {
            return Ok(());
        }
        self.pds.room(&self.config.limits)?;
        self.pds.users.insert(pd, 0);
        Ok(())
    }

    /// Removes a protection domain (`ibv_dealloc_pd(3)`). The default one stays.
    ///
    /// # Errors
    /// It is unknown, or QPs, regions, windows or shared receive queues are in it.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), VerbsError> {
        self.pds.check(pd)?;
        match self.pds.users.get(&pd) {
            Some(&users) if users > 0 => Err(VerbsError::PdBusy { pd, users }),
            _ => {
                self.pds.users.remove(&pd);
                Ok(())
            }
        }
    }

    /// Registers all of `mem` in a protection domain, under a new random key and addresses from `va` on (`ibv_reg_mr(3)`).
    ///
    /// # Errors
    /// The domain is unknown, the region is longer than the device allows or one too many, its addresses pass 2^64, or
    /// `access` needs [`Access::LOCAL_WRITE`].
    pub fn register_region(
        &mut self,
        pd: Pd,
        mem: Arc<dyn Memory>,
        va: u64,
        access: Access,
    ) -> Result<Arc<Region>, VerbsError> {
        let key = self.regions.draw_region(&mut self.rng);
        let region = Region::new(key, pd, mem, va, access)
            .map_err(|why| VerbsError::Region { key: RKey(0), why })?;
        self.add_region(&region)?;
        Ok(region)
    }

    /// Lets the endpoint know a region that its owner, or another endpoint, made.
    ///
    /// # Errors
    /// As [`Endpoint::register_region`]; or its key is taken, or it was withdrawn.
    pub fn add_region(&mut self, region: &Arc<Region>) -> Result<(), VerbsError> {
        let pd = region.pd().unwrap_or_default();
        self.pds.check(pd)?;
        let limits = &self.config.limits;
        room(
            "memory regions (max_mr)",
            self.regions.regions(),
            limits.max_mr,
        )?;
        let key = region.rkey();
        at_most(
            "max_mr_size: the bytes of a memory region",
            region.len(),
            limits.max_mr_size,
        )?;
        if !region.is_live() {
            let why = RegionError::Withdrawn;
            return Err(VerbsError::Region { key, why });
        }
        if !self.regions.add_region(region) {
            return Err(VerbsError::KeyTaken(key));
        }
        self.pds.used(pd);
        Ok(())
    }

    /// The region of a key (of its lkey as well).
    #[must_use]
    pub fn region(&self, key: RKey) -> Option<&Arc<Region>> {
        self.regions.region(key)
    }

    /// Withdraws a region (`ibv_dereg_mr(3)`): the next packet that names it is refused, at every endpoint that knows it, and
    /// local requests that use it fail. Each other endpoint that knows it is to be told too, so that it forgets it.
    ///
    /// # Errors
    /// Nothing has this key here, or memory windows are bound to the region.
    pub fn deregister_region(&mut self, key: RKey) -> Result<(), VerbsError> {
        let gone = self
            .regions
            .deregister(key)
            .map_err(|why| VerbsError::Region { key, why })?
            .ok_or(VerbsError::UnknownKey(key))?;
        self.pds.unused(gone.pd().unwrap_or_default());
        Ok(())
    }

    /// A memory window (`ibv_alloc_mw(3)`) under a new random key, not bound.
    ///
    /// # Errors
    /// The domain is unknown, or as many windows as the device has are there.
    pub fn alloc_window(&mut self, pd: Pd, kind: WindowKind) -> Result<Arc<Window>, VerbsError> {
        let key = self.regions.draw_window(&mut self.rng);
        let window = Window::new(key, pd, kind).ok_or(VerbsError::KeyTaken(key))?;
        self.add_window(&window)?;
        Ok(window)
    }

    /// Lets the endpoint know a window that its owner, or another endpoint, made.
    ///
    /// # Errors
    /// As [`Endpoint::alloc_window`]; or a key that it has or may come to have is taken.
    pub fn add_window(&mut self, window: &Arc<Window>) -> Result<(), VerbsError> {
        self.pds.check(window.pd())?;
        let limits = &self.config.limits;
        room(
            "memory windows (max_mw)",
            self.regions.windows(),
            limits.max_mw,
        )?;
        if !self.regions.add_window(window) {
            return Err(VerbsError::KeyTaken(window.rkey()));
        }
        self.pds.used(window.pd());
        Ok(())
    }

    /// Frees a window, bound or not (`ibv_dealloc_mw(3)`), everywhere. Each other endpoint that knows it is to be told too, so
    /// that it forgets it.
    ///
    /// # Errors
    /// No window has this key now.
    pub fn dealloc_window(&mut self, key: RKey) -> Result<(), VerbsError> {
        let gone = self.regions.free_window(key);
        let window = gone.ok_or(VerbsError::UnknownKey(key))?;
        self.pds.unused(window.pd());
        Ok(())
    }

    /// As [`Endpoint::dealloc_window`], for a window that several endpoints know: each frees and forgets it, whatever its key is by now.
    /// False if this one does not know it.
    pub fn forget_window(&mut self, window: &Arc<Window>) -> bool {
        let known = self.regions.forget_window(window);
        if known {
            self.pds.unused(window.pd());
        }
        known
    }

    /// As [`Endpoint::register_region`] in the default protection domain, with [`Access::LOCAL_WRITE`] where `access` needs it.
    /// Gives what a peer needs.
    ///
    /// # Errors
    /// As there.
    pub fn register_memory(
        &mut self,
        mem: Arc<dyn Memory>,
        va: u64,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let region = self.register_region(Pd::default(), mem, va, access.completed())?;
        Ok(region.remote())
    }

    /// Restricts a region to the peer of one QP: over any other QP its key is refused (NAK remote access), from the next
    /// packet on. `None`: any QP may reach it again, as after registration. False if there is no such region.
    ///
    /// Only a type 2 window can be bound to it, and only by that QP. Windows that are bound to it already stay as they are.
    ///
    /// The QP need not exist. The restriction is to its number and outlives it: withdraw the region with the QP.
    pub fn bind_region(&mut self, rkey: RKey, qpn: Option<Qpn>) -> bool {
        self.regions.restrict(rkey, qpn)
    }

    /// Withdraws a region: the next packet that names it is refused. False if there is none, or windows are bound to it.
    pub fn deregister_memory(&mut self, rkey: RKey) -> bool {
        self.deregister_region(rkey).is_ok()
    }
}
