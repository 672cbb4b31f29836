//! The ways to peers' QP 1: address handles, kept for as long as they are used, resolved where they are not known.
//!
//! Must not: know what is sent.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use rocexdp_common::mad::GSI_QPN;
use rocexdp_proto::cm::{MadBytes, Outgoing, Route};
use tokio::{runtime::Handle, sync::Semaphore};

use crate::node::{AddressHandle, Gsi, HandleAttr, Node};

/// Ways that are known; of more, those that were used last long ago are forgotten.
const MOST: usize = 256;
/// Ways that are being resolved at once; what is to be sent over more is not sent. Its sender asks again.
const RESOLVING: usize = 32;
/// A way that was not used so long is resolved anew.
const KEPT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Ways {
    node: Weak<Node>,
    gsi: Weak<Gsi>,
    known: Mutex<HashMap<Route, (AddressHandle, Instant)>>,
    resolving: Arc<Semaphore>,
}

impl Ways {
    pub(super) fn new(node: &Arc<Node>, gsi: &Arc<Gsi>) -> Arc<Self> {
        Arc::new(Self {
            node: Arc::downgrade(node),
            gsi: Arc::downgrade(gsi),
            known: Mutex::default(),
            resolving: Arc::new(Semaphore::new(RESOLVING)),
        })
    }

    fn known(&self, route: Route) -> Option<AddressHandle> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (handle, used) = known.get_mut(&route)?;
        *used = Instant::now();
        Some(handle.clone())
    }

    fn keep(&self, route: Route, handle: AddressHandle) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (_, used)| used.elapsed() < KEPT);
        if known.len() >= MOST
            && let Some(oldest) = known.iter().min_by_key(|(_, (_, used))| *used)
        {
            let oldest = *oldest.0;
            known.remove(&oldest);
        }
        known.insert(route, (handle, Instant::now()));
    }

    pub(super) async fn resolve(&self, route: Route) -> Result<AddressHandle> {
        if let Some(handle) = self.known(route) {
            return Ok(handle);
        }
        let node = self.node.upgrade();
        let node = node.ok_or_else(|| anyhow!("the node was closed"))?;
        let attr = HandleAttr::new(super::local(route), super::peer(route));
        let handle = node.address_handle(attr).await?;
        self.keep(route, handle.clone());
        Ok(handle)
    }

    /// Sends at once where the way is known, else when it is.
    pub(super) fn send(self: &Arc<Self>, runtime: &Handle, out: Outgoing) {
        if let Some(handle) = self.known(out.route) {
            return self.post(&handle, &out.mad);
        }
        let Ok(place) = Arc::clone(&self.resolving).try_acquire_owned() else {
            return;
        };
        let ways = Arc::clone(self);
        runtime.spawn(async move {
            let _place = place;
            // To whom there is no way nothing is sent.
            if let Ok(handle) = ways.resolve(out.route).await {
                ways.post(&handle, &out.mad);
            }
        });
    }

    fn post(&self, handle: &AddressHandle, mad: &MadBytes) {
        if let Some(gsi) = self.gsi.upgrade() {
            // A full queue loses it, as the network does: it is sent again.
            let _ = gsi.send(0, handle, GSI_QPN, mad);
        }
    }
}
