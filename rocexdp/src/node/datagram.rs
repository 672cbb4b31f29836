//! What a UD QP has that others have not: an address and a Q_Key instead of a peer, address handles, multicast groups.
//!
//! Must not: resolve anything (`net` does), or know packets.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result, bail};
use rocexdp_common::maps::{QpConfig, local_addr};
use rocexdp_proto::{
    ModifyQp, QpState, QpTransition, Transport, VerbsError, ids::Gid, time::Timestamp,
};

use super::{AddressHandle, HandleAttr, RawQp};
use crate::{
    engine::{Core, worker_of},
    loader::gid_of,
};

impl RawQp {
    /// UD: gives it one of our addresses and a Q_Key, tells XDP of it, and takes it from INIT to RTS. From then on it takes what anyone
    /// sends to it with this Q_Key, and sends. A Q_Key with the top bit set is like any other here, though hardware gives it to privileged
    /// users only.
    ///
    /// # Errors
    /// It is not UD or has been opened before, `local` is no address of the node, or the engine has ended.
    pub async fn open_datagram(&self, local: IpAddr, qkey: u32) -> Result<()> {
        let (qpn, shared) = (self.qpn(), &self.shared);
        if self.transport != Transport::Ud {
            bail!("QP {qpn} is not UD: connect it with its peer");
        }
        if !shared.addresses.contains(&local) {
            bail!(
                "{local} is no address that rocexdp answers for on {}",
                shared.iface
            );
        }
        if self.state().await? != Some(QpState::Init) {
            bail!("QP {qpn} is open, or was: make a new one");
        }
        self.publish_datagram(gid_of(local), 0);
        let own = ModifyQp {
            state: Some(QpState::Init),
            address: Some(gid_of(local)),
            qkey: Some(qkey),
            ..ModifyQp::default()
        };
        let ready = self.to_rts(Some(own));
        shared
            .engine
            .call(self.slot, ready)
            .await?
            .with_context(|| format!("opening QP {qpn} at {local}"))
    }

    /// QP 1: at all addresses.
    pub(super) fn open_gsi(&self) -> Result<()> {
        self.publish_datagram([0; 16], local_addr::EXCLUSIVE);
        let ready = self.to_rts(None);
        self.shared
            .engine
            .call_blocking(self.slot, ready)?
            .context("opening QP 1")
    }

    fn to_rts(
        &self,
        own: Option<ModifyQp>,
    ) -> impl FnOnce(&mut Core, Timestamp) -> Result<(), VerbsError> + Send + 'static {
        let (qpn, sq_psn) = (self.qpn(), self.psn());
        move |core, now| {
            let endpoint = &mut core.endpoint;
            if let Some(own) = own {
                endpoint.modify_qp(now, qpn, own)?;
            }
            endpoint.modify_qp(now, qpn, QpTransition::RtrUd)?;
            endpoint.modify_qp(now, qpn, QpTransition::RtsUd { sq_psn })
        }
    }

    fn publish_datagram(&self, local_gid: Gid, address_flags: u32) {
        self.shared.publish(
            self.slot,
            QpConfig {
                qpn: self.qpn().get(),
                local_gid,
                transport: self.transport as u8,
                path_mtu_log2: self.shared.path_mtu.trailing_zeros() as u8,
                address_flags: address_flags as u8,
                ..QpConfig::default()
            },
        );
    }

    /// As [`Node::address_handle`](super::Node::address_handle), for who has the QP only.
    ///
    /// # Errors
    /// As there.
    pub async fn address_handle(&self, attr: HandleAttr) -> Result<AddressHandle> {
        AddressHandle::resolve(&self.shared, &self.resolver, attr).await
    }

    /// Joins a multicast group: from now on it takes what is sent to the group with its Q_Key, by hosts on the link and by QPs of this
    /// node, itself included. The kernel makes the host a member (IGMP or MLD) on the interface. Joining again changes nothing; to
    /// send to a group, no QP need be in it.
    ///
    /// # Errors
    /// It is not UD, the address is no group's, the kernel refuses, there are too many groups or QPs in one, or the engine has ended.
    pub async fn join(&self, group: IpAddr) -> Result<()> {
        let (qpn, shared) = (self.qpn(), &self.shared);
        if !group.is_multicast() {
            bail!("{group} is no multicast group");
        }
        let gid = gid_of(group);
        let joining = || format!("QP {qpn} joining {group} on {}", shared.iface);
        // One at a time, so that what one takes back is not another's.
        let _one = self.joining.lock().await;
        if self.groups().contains(&group) {
            return Ok(());
        }
        let mut undo = Joining {
            qp: self,
            group,
            so_far: SoFar::Attaching,
        };
        let worker = worker_of(self.slot, shared.engine.workers());
        let attached = shared.engine.call(self.slot, move |core, _| {
            core.endpoint.attach_mcast(qpn, gid)
        });
        attached.await?.with_context(joining)?;
        shared.engine.groups().join(gid, worker);
        undo.so_far = SoFar::Attached;
        let joined = self.resolver.join(group, qpn).await;
        joined.with_context(joining)?;
        self.groups().insert(group);
        undo.so_far = SoFar::Joined;
        Ok(())
    }

    /// Leaves a group; nothing happens if it is not in it.
    pub fn leave(&self, group: IpAddr) {
        if self.groups().remove(&group) {
            self.left(group);
        }
    }

    pub(super) fn leave_all(&self) {
        let all = std::mem::take(&mut *self.groups());
        for group in all {
            self.left(group);
        }
    }

    fn left(&self, group: IpAddr) {
        let gid = gid_of(group);
        self.resolver.leave(group, self.qpn());
        self.detach(gid);
        let engine = &self.shared.engine;
        engine
            .groups()
            .leave(&gid, worker_of(self.slot, engine.workers()));
    }

    fn detach(&self, gid: Gid) {
        let qpn = self.qpn();
        // An engine that has ended has no groups.
        let _ = self.shared.engine.call_qp(qpn, move |core, _| {
            // It is attached as long as self says so.
            let _ = core.endpoint.detach_mcast(qpn, gid);
        });
    }

    fn groups(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A group that is being joined. Dropped before it is, also with the future that does it, all is as before.
struct Joining<'a> {
    qp: &'a RawQp,
    group: IpAddr,
    so_far: SoFar,
}

enum SoFar {
    /// The engine may know of it.
    Attaching,
    /// It does, and the kernel may.
    Attached,
    Joined,
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        match self.so_far {
            SoFar::Attaching => self.qp.detach(gid_of(self.group)),
            SoFar::Attached => self.qp.left(self.group),
            SoFar::Joined => {}
        }
    }
}
