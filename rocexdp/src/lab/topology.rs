//! The lab's namespaces and links: made, looked at, removed.
//!
//! Two hosts, each with one interface `eth0`, and a wire between with a port for each, `port-a` and `port-b`. What is set on the
//! links is what a redirecting XDP program in the middle needs:
//! - hosts fill checksums in themselves and don't leave segmentation to the device: a redirected frame loses the note
//!   that its checksum is still missing (drivers/net/veth.c turns the skb into an XDP frame);
//! - VLAN tags are in the frame, not beside it;
//! - GRO on the hosts' side makes veth run NAPI there, without which a frame redirected to it is lost
//!   (drivers/net/veth.c, `veth_xdp_xmit`);
//! - a `pfifo` queue makes veth hold the sender back when the other end's ring is full, where
//!   without a queueing discipline it drops (drivers/net/veth.c, `veth_xmit`, since Linux 6.16).
//!
//! With a VLAN the hosts' addresses are on a VLAN device `eth0.ID`, whose tags the kernel adds and removes; rocexdp
//! attaches to the parent `eth0`, sees the tags and adds its own. On a kernel without VLAN devices (`CONFIG_VLAN_8021Q`)
//! the addresses are on `eth0`: then only rocexdp's frames are tagged, and it must be told the id.

use std::{
    fs, io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
};

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage as Message,
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{
        InfoData, InfoKind, InfoVeth, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    },
    tc::{TcAttribute, TcHandle, TcMessage},
};

use super::{Error, Host, LabConfig};
use crate::{
    net::{IfIndex, Link, Mac, features::XdpFeatures, netlink::Socket},
    sys::{
        ethtool::{self, Offload},
        netns::NetNs,
    },
};

/// The interface of a host.
pub const HOST_INTERFACE: &str = "eth0";
/// Packets that a host's `pfifo` queue holds, as many as a NIC's transmit ring.
const QUEUE_PACKETS: u32 = 1024;
const TCA_OPTIONS: u16 = 2;

/// The three namespaces.
#[derive(Debug)]
pub struct Topology {
    /// The hosts, a and b.
    pub hosts: [NetNs; 2],
    /// The wire.
    pub wire: NetNs,
    /// The wire's ports, towards a and b.
    pub ports: [IfIndex; 2],
    /// The hosts' interface that has the addresses.
    pub interface: String,
    /// Whether the hosts have IPv6 addresses: a kernel without IPv6 is no obstacle.
    pub ipv6: bool,
}

impl Topology {
    /// Makes all of it, or nothing.
    ///
    /// # Errors
    /// The name is in use, a right is missing, or a step failed: it is named.
    pub fn create(config: &LabConfig) -> Result<Self, Error> {
        check_free(&config.name)?;
        Self::build(config).inspect_err(|_| {
            // The first error is the one to report.
            let _ = remove(&config.name);
        })
    }

    fn build(config: &LabConfig) -> Result<Self, Error> {
        let [a, b, wire] = namespaces(&config.name);
        let make = |name: &str| NetNs::create(name).map_err(Error::step("creating a namespace"));
        let (wire, hosts) = (make(&wire)?, [make(&a)?, make(&b)?]);
        let fds = [hosts[0].as_fd().as_raw_fd(), hosts[1].as_fd().as_raw_fd()];
        let ports = wire
            .run(|| -> Result<_, Error> {
                silence_ipv6();
                Ok([
                    add_port(Host::A, fds[0], config)?,
                    add_port(Host::B, fds[1], config)?,
                ])
            })
            .map_err(Error::step("entering the wire's namespace"))??;
        let mut ipv6 = true;
        let mut interface = String::new();
        for host in [Host::A, Host::B] {
            let addressed = hosts[host.index()]
                .run(|| configure_host(host, config))
                .map_err(Error::step("entering a host's namespace"))??;
            ipv6 &= addressed.ipv6;
            interface = addressed.interface;
        }
        Ok(Self {
            hosts,
            wire,
            ports,
            interface,
            ipv6,
        })
    }
}

impl Topology {
    /// Sets the wire's ports up: now frames pass, so the program must be there. Only now, when the hosts have GRO:
    /// `veth_open` looks at the other side to see whether this one can be redirected to (`veth_set_xdp_features`).
    ///
    /// # Errors
    /// The kernel can't redirect frames in fragments to veth.
    pub fn open_ports(&self) -> Result<(), Error> {
        self.wire
            .run(|| {
                for port in self.ports {
                    set_up(port).map_err(Error::step("setting a port of the wire up"))?;
                    if XdpFeatures::of(port)?.is_some_and(|found| !found.redirect_target_frags()) {
                        return Err(Error::NoRedirect(Link::by_index(port)?.name));
                    }
                }
                Ok(())
            })
            .map_err(Error::step("entering the wire's namespace"))?
    }
}

/// The names of a lab's namespaces: host a, host b, wire.
pub fn namespaces(lab: &str) -> [String; 3] {
    [
        format!("{lab}-a"),
        format!("{lab}-b"),
        format!("{lab}-wire"),
    ]
}

/// That no lab has this name.
///
/// # Errors
/// [`Error::Exists`].
pub fn check_free(lab: &str) -> Result<(), Error> {
    let existing = NetNs::names(lab).map_err(Error::step("listing namespaces"))?;
    if namespaces(lab).iter().any(|name| existing.contains(name)) {
        return Err(Error::Exists(lab.to_owned()));
    }
    Ok(())
}

/// Removes what exists of a lab: links first, so that they go even when a process lives on in a namespace. Returns the
/// namespaces removed.
///
/// # Errors
/// The first thing that could not be removed; the rest is still tried.
pub fn remove(lab: &str) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    let mut first_error = Ok(());
    for name in namespaces(lab) {
        let namespace = match NetNs::open(&name) {
            Ok(namespace) => namespace,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                first_error = first_error.and(Err(error));
                continue;
            }
        };
        // A name whose namespace was never mounted can't be entered.
        let _ = namespace.run(|| {
            for link in Link::all().unwrap_or_default() {
                if link.kind.as_deref() == Some("veth") {
                    // It may be gone with its peer already.
                    let _ = delete(link.index);
                }
            }
        });
        drop(namespace);
        match NetNs::delete(&name) {
            Ok(()) => removed.push(name),
            Err(error) => first_error = first_error.and(Err(error)),
        }
    }
    first_error.map(|()| removed)
}

/// The wire's ports must not talk themselves. A kernel without IPv6 has no such switch.
fn silence_ipv6() {
    for which in ["default", "all"] {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
}

fn end(name: &str, mac: Mac, mtu: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Address(mac.0.to_vec()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::NumTxQueues(1),
        LinkAttribute::NumRxQueues(1),
    ];
    message
}

fn create_pair(host: Host, host_fd: i32, mtu: u32) -> io::Result<()> {
    let mut peer = end(HOST_INTERFACE, host.mac(), mtu);
    peer.attributes.push(LinkAttribute::NetNsFd(host_fd));
    let [a, b, c, d, _, last] = host.mac().0;
    let mut link = end(host.port(), Mac([a, b, c, d, 0xff, last]), mtu);
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    Socket::route(0)?.request(Message::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)?;
    Ok(())
}

fn set_up(index: IfIndex) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index.0;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    Socket::route(0)?.request(Message::SetLink(message), 0)?;
    Ok(())
}

fn delete(index: IfIndex) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index.0;
    Socket::route(0)?.request(Message::DelLink(message), 0)?;
    Ok(())
}

fn add_port(host: Host, fd: i32, config: &LabConfig) -> Result<IfIndex, Error> {
    create_pair(host, fd, config.mtu).map_err(Error::step("creating a veth pair"))?;
    let link = Link::by_name(host.port())?;
    if config.qdisc {
        // For what the userspace wire sends: a redirect passes a queueing discipline by.
        add_pfifo(link.index).map_err(Error::step("adding a pfifo queue"))?;
    }
    Ok(link.index)
}

struct Addressed {
    interface: String,
    ipv6: bool,
}

fn configure_host(host: Host, config: &LabConfig) -> Result<Addressed, Error> {
    let loopback = Link::by_name("lo")?;
    set_up(loopback.index).map_err(Error::step("setting lo up"))?;
    let link = Link::by_name(HOST_INTERFACE)?;
    for (offload, on) in [
        (Offload::TxChecksum, false),
        (Offload::Tso, false),
        (Offload::Vlan, false),
        (Offload::Gro, true),
    ] {
        ethtool::set_offload(HOST_INTERFACE, offload, on)
            .map_err(Error::step("setting offloads (ethtool -K)"))?;
    }
    if config.qdisc {
        add_pfifo(link.index).map_err(Error::step("adding a pfifo queue"))?;
    }
    set_up(link.index).map_err(Error::step("setting a host's interface up"))?;
    let vlan = config.vlan.map(|id| (id, format!("{HOST_INTERFACE}.{id}")));
    let addressed = match vlan {
        None => link,
        Some((id, name)) => match add_vlan(&name, link.index, id) {
            Ok(()) => Link::by_name(&name)?,
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => link,
            Err(error) => return Err(Error::Step("creating a VLAN device", error)),
        },
    };
    set_up(addressed.index).map_err(Error::step("setting a host's interface up"))?;
    let [ipv4, ipv6] = host.addresses();
    add_address(addressed.index, ipv4, 24).map_err(Error::step("adding an IPv4 address"))?;
    let ipv6 = match add_address(addressed.index, ipv6, 64) {
        Ok(()) => true,
        // IPv6 is not built in, or disabled.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES | libc::EPERM)
            ) =>
        {
            false
        }
        Err(error) => return Err(Error::Step("adding an IPv6 address", error)),
    };
    Ok(Addressed {
        interface: addressed.name,
        ipv6,
    })
}

fn add_vlan(name: &str, parent: IfIndex, id: u16) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Link(parent.0),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vlan),
            LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(id)])),
        ]),
    ];
    Socket::route(0)?.request(Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)?;
    Ok(())
}

fn add_address(index: IfIndex, address: IpAddr, prefix: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    message.header.prefix_len = prefix;
    message.header.index = index.0;
    message.attributes = vec![
        AddressAttribute::Local(address),
        AddressAttribute::Address(address),
    ];
    if address.is_ipv6() {
        // Usable at once: no duplicate address detection.
        message
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    Socket::route(0)?.request(Message::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)?;
    Ok(())
}

fn add_pfifo(index: IfIndex) -> io::Result<()> {
    let mut message = TcMessage::default();
    message.header.index = i32::try_from(index.0).map_err(io::Error::other)?;
    message.header.parent = TcHandle::ROOT;
    message.attributes = vec![
        TcAttribute::Kind("pfifo".to_owned()),
        // struct tc_fifo_qopt
        TcAttribute::Other(DefaultNla::new(
            TCA_OPTIONS,
            QUEUE_PACKETS.to_ne_bytes().to_vec(),
        )),
    ];
    Socket::route(0)?.request(
        Message::NewQueueDiscipline(message),
        NLM_F_CREATE | NLM_F_REPLACE,
    )?;
    Ok(())
}
