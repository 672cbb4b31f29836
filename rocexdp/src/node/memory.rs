//! Protection domains and memory regions of a node: each is made known to all workers, since a QP of any may be asked for it.
//!
//! Keys come from the system's generator: a peer that has one must not guess another's. Must not: know QPs' states.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, bail};
use rand::RngExt as _;
use rocexdp_proto::{
    VerbsError,
    ids::{Pd, Qpn, RKey, SrqNum},
    mem::{Access, Memory, MemoryRegion, Region, Window, WindowKind},
    verbs::{RecvQueue, SrqAttr},
};

use super::Node;
use crate::engine::{Core, LINE};

/// Ranges of a request of a shared receive queue: as of a QP's own.
const SRQ_SGE: u32 = 16;
/// The next protection domain; 0 is that of QPs without one. Of all nodes of the process, so that no region of one passes for one of
/// another's domain.
static PDS: AtomicU32 = AtomicU32::new(1);

impl Node {
    /// Runs `f` on each worker in turn; ends with the first error.
    fn on_workers<E: Send + 'static>(
        &self,
        f: impl Fn(&mut Core) -> Result<(), E> + Clone + Send + 'static,
    ) -> Result<Result<(), E>> {
        let engine = &self.shared.engine;
        for worker in 0..engine.workers() {
            let f = f.clone();
            let done = engine.call_blocking(worker * LINE, move |core, _| f(core))?;
            if done.is_err() {
                return Ok(done);
            }
        }
        Ok(Ok(()))
    }

    /// Runs `f` on each worker in turn. A worker that has ended holds up none of the others.
    fn on_all_workers<R: Send + 'static>(
        &self,
        f: impl Fn(&mut Core) -> R + Clone + Send + 'static,
    ) {
        let engine = &self.shared.engine;
        for worker in 0..engine.workers() {
            let f = f.clone();
            // A worker that has ended knows nothing any more.
            let _ = engine.call_blocking(worker * LINE, move |core, _| f(core));
        }
    }

    /// A new protection domain.
    ///
    /// # Errors
    /// As many as the device has are there, or the engine has ended.
    pub fn alloc_pd(&self) -> Result<Pd> {
        let pd = Pd(PDS.fetch_add(1, Ordering::Relaxed));
        self.on_workers(move |core| core.endpoint.alloc_pd_as(pd))?
            .with_context(|| format!("a protection domain on {}", self.shared.iface))?;
        Ok(pd)
    }

    /// Removes a protection domain. One that is still in use stays until the node ends.
    pub fn dealloc_pd(&self, pd: Pd) {
        self.on_all_workers(move |core| core.endpoint.dealloc_pd(pd));
    }

    /// A region of `memory` in a protection domain, which peers can reach from now on. Its addresses start at 0: where it is
    /// mapped here is none of the peers' business.
    ///
    /// # Errors
    /// `access` gives peers rights to change the memory without [`Access::LOCAL_WRITE`], a limit of the device is reached, or the
    /// engine has ended.
    pub fn register_region(
        &self,
        pd: Pd,
        memory: &Arc<dyn Memory>,
        access: Access,
    ) -> Result<Arc<Region>> {
        let with_iface = || format!("registering {} B on {}", memory.len(), self.shared.iface);
        loop {
            let region = Self::local_region(pd, memory, access).with_context(with_iface)?;
            let theirs = Arc::clone(&region);
            match self.on_workers(move |core| core.endpoint.add_region(&theirs))? {
                Ok(()) => return Ok(region),
                Err(VerbsError::KeyTaken(_)) => self.forget(&region),
                Err(e) => {
                    self.forget(&region);
                    return Err(e).with_context(with_iface);
                }
            }
        }
    }

    /// Withdraws a region at the workers that know it, and not another one with its key; windows bound to it reach nothing any more.
    pub fn forget(&self, region: &Arc<Region>) {
        region.revoke();
        let region = Arc::clone(region);
        self.on_all_workers(move |core| {
            let known = core.endpoint.region(region.rkey());
            if known.is_some_and(|known| Arc::ptr_eq(known, &region)) {
                core.endpoint.deregister_memory(region.rkey());
            }
        });
    }

    /// A region that no worker knows: for local requests only.
    ///
    /// # Errors
    /// `access` gives peers rights to change the memory without [`Access::LOCAL_WRITE`].
    pub fn local_region(
        pd: Pd,
        memory: &Arc<dyn Memory>,
        access: Access,
    ) -> Result<Arc<Region>, rocexdp_proto::mem::RegionError> {
        // 0 is no key.
        let key = RKey(rand::rng().random_range(1..=u32::MAX));
        Region::new(key, pd, Arc::clone(memory), 0, access)
    }

    /// Registers memory for the peers' access, in the default protection domain; with [`Access::LOCAL_WRITE`] where it needs it.
    ///
    /// # Errors
    /// As [`Self::register_region`].
    pub fn register(&self, memory: Arc<dyn Memory>, access: Access) -> Result<MemoryRegion> {
        let access = access | Access::LOCAL_WRITE;
        let region = self.register_region(Pd::default(), &memory, access)?;
        Ok(region.remote())
    }

    /// Lets a region be reached over one QP only.
    ///
    /// # Errors
    /// When there is no such region, or the engine has ended.
    pub fn bind(&self, rkey: RKey, qpn: Qpn) -> Result<()> {
        let bound = self.on_workers(move |core| {
            let bound = core.endpoint.bind_region(rkey, Some(qpn));
            bound.then_some(()).ok_or(())
        })?;
        if bound.is_err() {
            bail!("no memory region has key {rkey}: it was withdrawn");
        }
        Ok(())
    }

    /// Withdraws a region: when this returns, no later access of peers is served.
    pub fn deregister(&self, rkey: RKey) {
        self.on_all_workers(move |core| core.endpoint.deregister_memory(rkey));
    }

    /// A memory window in a protection domain, not bound, which QPs of all workers may bind and peers of all may reach.
    ///
    /// # Errors
    /// As many as the device has are there, or the engine has ended.
    pub fn alloc_window(&self, pd: Pd, kind: WindowKind) -> Result<Arc<Window>> {
        let with_iface = || format!("a memory window on {}", self.shared.iface);
        loop {
            // Keys below 256 name no window.
            let Some(window) = Window::new(RKey(rand::rng().random()), pd, kind) else {
                continue;
            };
            let theirs = Arc::clone(&window);
            match self.on_workers(move |core| core.endpoint.add_window(&theirs))? {
                Ok(()) => return Ok(window),
                Err(VerbsError::KeyTaken(_)) => self.free_window(&window),
                Err(e) => {
                    self.free_window(&window);
                    return Err(e).with_context(with_iface);
                }
            }
        }
    }

    /// Frees a window, bound or not: peers reach nothing through it any more.
    pub fn free_window(&self, window: &Arc<Window>) {
        let window = Arc::clone(window);
        self.on_all_workers(move |core| core.endpoint.forget_window(&window));
    }

    /// A shared receive queue in a protection domain, for QPs of any worker.
    ///
    /// # Errors
    /// A limit of the device (queues, depth) is reached, or the engine has ended.
    pub fn create_srq(&self, pd: Pd, depth: u32) -> Result<Arc<RecvQueue>> {
        let attr = SrqAttr {
            num: SrqNum(self.srqs.fetch_add(1, Ordering::Relaxed)),
            pd,
            max_wr: depth,
            max_sge: SRQ_SGE,
            limit: 0,
        };
        // One worker keeps the count of them; the queue itself is nobody's.
        let made = self
            .shared
            .engine
            .call_blocking(0, move |core, _| core.endpoint.create_srq(&attr))?;
        made.with_context(|| format!("a shared receive queue on {}", self.shared.iface))
    }

    /// Removes a shared receive queue. One that QPs still take from stays until the node ends.
    pub fn destroy_srq(&self, srq: &Arc<RecvQueue>) {
        let srq = Arc::clone(srq);
        // An engine that has ended has no queues.
        let _ = self
            .shared
            .engine
            .call_blocking(0, move |core, _| core.endpoint.destroy_srq(&srq));
    }
}
