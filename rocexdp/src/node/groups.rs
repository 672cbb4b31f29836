//! Multicast groups that the host is in for QPs of a node: the kernel's membership (IGMP, MLD, the NIC's filter), and XDP's list.
//!
//! A membership is a socket's, which is held open and never bound: the kernel gives it nothing. XDP takes a group's packets under the
//! multicast QPN; which QPs get a copy is the engine's to know. One interface, one RoCE stack: packets of a group that rocexdp has
//! joined do not reach another stack.
//!
//! Must not: know QPs.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, Ipv4Addr},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use rocexdp_common::maps::{MULTICAST_QPN, QpConfig, local_addr};
use rocexdp_proto::{Transport, ids::Qpn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::Shared;
use crate::{
    loader::gid_of,
    maps::ControlMaps,
    net::{IfIndex, Link},
};

/// The groups of an interface. Dropped, the host leaves them.
pub(super) struct Groups {
    iface: String,
    index: IfIndex,
    shared: Arc<Shared>,
    control: Arc<Mutex<ControlMaps>>,
    held: HashMap<IpAddr, Membership>,
}

struct Membership {
    users: HashSet<Qpn>,
    _socket: OwnedFd,
}

/// Makes the host a member, as long as the socket is open.
fn member(group: IpAddr, IfIndex(index): IfIndex) -> rustix::io::Result<OwnedFd> {
    let family = match group {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    match group {
        IpAddr::V4(group) => sockopt::set_ip_add_membership_with_ifindex(
            &socket,
            &group,
            &Ipv4Addr::UNSPECIFIED,
            index,
        )?,
        IpAddr::V6(group) => sockopt::set_ipv6_add_membership(&socket, &group, index)?,
    }
    Ok(socket)
}

impl Groups {
    /// None, on the interface that holds the addresses.
    pub(super) fn new(link: &Link, shared: Arc<Shared>, control: Arc<Mutex<ControlMaps>>) -> Self {
        Self {
            iface: link.name.clone(),
            index: link.index,
            shared,
            control,
            held: HashMap::new(),
        }
    }

    /// This QP is in the group. To be called in the interface's network namespace.
    pub(super) fn join(&mut self, group: IpAddr, user: Qpn) -> Result<()> {
        if let Some(membership) = self.held.get_mut(&group) {
            membership.users.insert(user);
            return Ok(());
        }
        let iface = &self.iface;
        let socket = member(group, self.index).with_context(|| {
            format!("joining {group} on {iface}: the kernel does not make the host a member")
        })?;
        self.control()
            .add_address(gid_of(group), local_addr::GROUP)
            .with_context(|| format!("joining {group} on {iface}"))?;
        self.shared.publish(
            MULTICAST_QPN & (self.shared.maps.slots - 1),
            QpConfig {
                qpn: MULTICAST_QPN,
                transport: Transport::Ud as u8,
                path_mtu_log2: self.shared.path_mtu.trailing_zeros() as u8,
                address_flags: local_addr::GROUP as u8,
                ..QpConfig::default()
            },
        );
        let membership = Membership {
            users: HashSet::from([user]),
            _socket: socket,
        };
        self.held.insert(group, membership);
        Ok(())
    }

    /// It no longer is.
    pub(super) fn leave(&mut self, group: IpAddr, user: Qpn) {
        let Some(membership) = self.held.get_mut(&group) else {
            return;
        };
        if membership.users.remove(&user) && membership.users.is_empty() {
            self.held.remove(&group);
            self.control().remove_address(gid_of(group));
        }
    }

    fn control(&self) -> std::sync::MutexGuard<'_, ControlMaps> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
