//! Address handles of a node: the ways of UD requests, resolved, and kept right while they are held.
//!
//! A handle of the transport's ([`verbs::AddressHandle`]) is headers put together once. When the next hop gets another Ethernet
//! address or the route another next hop, the handle here is given a new one of those; requests posted from then on take it.
//!
//! Must not: send anything.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result, anyhow, bail};
use rocexdp_proto::{
    ids::{PathMtu, Qpn},
    verbs::{self, Datagram},
    wire::{Grh, Path},
};

use super::{
    DEFAULT_HOP_LIMIT, Shared,
    resolve::{Resolver, User},
};
use crate::{
    loader::{address_of, gid_of, mtu_needed},
    net::Mac,
};

/// TTL and hop limit of what is sent to groups, unless asked otherwise: not beyond the link (cma.c, `cma_iboe_join_multicast`).
const GROUP_HOP_LIMIT: u8 = 1;

/// Where a handle leads, as `ibv_ah_attr` says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandleAttr {
    /// Our address.
    pub local: IpAddr,
    /// The peer's, another one of ours, or a multicast group's; of the same family.
    pub peer: IpAddr,
    /// TTL or hop limit; 64 unless set, 1 to a group.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits, and the source of the UDP source port by the kernel's `rdma_flow_label_to_udp_sport`; 0, unless set:
    /// computed from the two QPNs of each request (`rdma_calc_flow_label`), so that each pair of QPs is a flow of its own.
    pub flow_label: u32,
    /// DSCP, 0 to 63; `None`, unless set: the device's.
    pub dscp: Option<u8>,
}

impl HandleAttr {
    /// From one of our addresses to a peer, or a multicast group.
    #[must_use]
    pub const fn new(local: IpAddr, peer: IpAddr) -> Self {
        Self {
            local,
            peer,
            hop_limit: if peer.is_multicast() {
                GROUP_HOP_LIMIT
            } else {
                DEFAULT_HOP_LIMIT
            },
            flow_label: 0,
            dscp: None,
        }
    }

    /// Back to who sent a message (`ibv_create_ah_from_wc(3)`): `grh` is what stands before it in the receive request's memory. `local`
    /// is our address, which need not be where the message was sent to: that may be a group.
    #[must_use]
    pub fn answering(local: IpAddr, grh: &Grh) -> Self {
        Self {
            flow_label: grh.flow_label(),
            ..Self::new(local, address_of(grh.src()))
        }
    }
}

/// The way to a UD peer or group. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct AddressHandle(Arc<Way>);

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressHandle").field(&self.0.attr).finish()
    }
}

pub(super) struct Way {
    attr: HandleAttr,
    id: u64,
    path_mtu: PathMtu,
    current: RwLock<Arc<verbs::AddressHandle>>,
    ways: Arc<Ways>,
    resolver: Resolver,
}

/// The handles of a node, for those who learn of a change.
#[derive(Default)]
pub(super) struct Ways {
    next: AtomicU64,
    held: Mutex<HashMap<u64, Weak<Way>>>,
}

impl fmt::Debug for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ways").finish_non_exhaustive()
    }
}

impl Ways {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Weak<Way>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next hop of a handle has this Ethernet address now.
    pub(super) fn moved(&self, id: u64, mac: Mac) {
        let way = self.lock().get(&id).and_then(Weak::upgrade);
        if let Some(way) = way {
            way.moved(mac);
        }
    }
}

impl Way {
    fn moved(&self, mac: Mac) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let mut path = *current.path();
        if path.dst_mac != mac.0 {
            path.dst_mac = mac.0;
            if let Some(new) = verbs::AddressHandle::new(path) {
                *current = Arc::new(new);
            }
        }
    }
}

/// A next hop that is kept alive for a handle to be.
struct Hold<'a> {
    resolver: &'a Resolver,
    user: Option<User>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(user) = self.user.take() {
            self.resolver.forget(user);
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.ways.lock().remove(&self.id);
        self.resolver.forget(User::Handle(self.id));
    }
}

impl AddressHandle {
    pub(super) async fn resolve(
        shared: &Arc<Shared>,
        resolver: &Resolver,
        attr: HandleAttr,
    ) -> Result<Self> {
        let HandleAttr { local, peer, .. } = attr;
        if !shared.addresses.contains(&local) {
            bail!(
                "{local} is no address that rocexdp answers for on {}",
                shared.iface
            );
        }
        let ways = Arc::clone(&shared.ways);
        if ways.lock().len() >= shared.max_ah as usize {
            bail!(
                "{}: all {} address handles of the device are in use: drop some",
                shared.iface,
                shared.max_ah
            );
        }
        let id = ways.next.fetch_add(1, Ordering::Relaxed);
        // Forgotten again unless a handle comes of it; also if this future is dropped.
        let mut hold = Hold {
            resolver,
            user: Some(User::Handle(id)),
        };
        let way = resolver.resolve(local, peer, User::Handle(id)).await?;
        let handle = verbs::AddressHandle::new(Path {
            src_mac: shared.mac,
            dst_mac: way.mac.0,
            vlan: shared.vlan,
            sl: shared.pcp,
            src: gid_of(local),
            dst: gid_of(peer),
            hop_limit: attr.hop_limit,
            flow_label: attr.flow_label,
            dscp: attr.dscp,
        });
        let path_mtu = PathMtu::ALL
            .into_iter()
            .rfind(|mtu| mtu.bytes() <= shared.path_mtu && mtu_needed(*mtu) <= way.mtu);
        let made = handle.zip(path_mtu).with_context(|| {
            format!(
                "no way from {local} to {peer} on {}: they are of two families, or the route's MTU of {} is below {}, or the flow label \
                 above 20 bits",
                shared.iface,
                way.mtu,
                mtu_needed(PathMtu::Mtu256)
            )
        });
        let (handle, path_mtu) = made?;
        hold.user = None;
        let way = Arc::new(Way {
            attr,
            id,
            path_mtu,
            current: RwLock::new(Arc::new(handle)),
            ways: Arc::clone(&ways),
            resolver: resolver.clone(),
        });
        ways.lock().insert(id, Arc::downgrade(&way));
        // A change since it was resolved is made up for.
        resolver.confirm(User::Handle(id));
        Ok(Self(way))
    }

    /// Where it leads.
    #[must_use]
    pub fn attr(&self) -> HandleAttr {
        self.0.attr
    }

    /// Whether it leads to a multicast group.
    #[must_use]
    pub fn is_group(&self) -> bool {
        self.0.attr.peer.is_multicast()
    }

    /// The largest message that the way carries.
    #[must_use]
    pub fn path_mtu(&self) -> PathMtu {
        self.0.path_mtu
    }

    /// For [`verbs::SendWr::to`]: to this QP of the peer, [`verbs::MULTICAST_QPN`] of a group, with this Q_Key.
    #[must_use]
    pub fn to(&self, qpn: Qpn, qkey: u32) -> Datagram {
        let current = self
            .0
            .current
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        Datagram {
            ah: Arc::clone(&current),
            qpn,
            qkey,
        }
    }
}

impl super::Node {
    /// The way from one of our addresses to a peer or a multicast group: the next hop is resolved now, and its Ethernet address kept
    /// right while the handle is held.
    ///
    /// # Errors
    /// No such address here, no route, or no answer from the next hop: each names address and interface. All handles that the device
    /// has are in use.
    pub async fn address_handle(&self, attr: HandleAttr) -> Result<AddressHandle> {
        let resolver = self.network.resolver();
        let resolver = resolver.ok_or_else(|| anyhow!("the node was closed"))?;
        AddressHandle::resolve(&self.shared, &resolver, attr).await
    }
}
