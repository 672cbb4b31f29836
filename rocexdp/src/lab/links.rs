//! Links of a lab, by netlink: veth pairs, addresses, neighbours, queues, and what they need for XDP in the middle.
//!
//! - hosts fill checksums in themselves and don't leave segmentation to the device: a redirected frame loses the note
//!   that its checksum is still missing (drivers/net/veth.c turns the skb into an XDP frame);
//! - VLAN tags are in the frame, not beside it;
//! - GRO on the hosts' side makes veth run NAPI there, without which a frame redirected to it is lost
//!   (drivers/net/veth.c, `veth_xdp_xmit`);
//! - a `pfifo` queue makes veth hold the sender back when the other end's ring is full, where
//!   without a queueing discipline it drops (drivers/net/veth.c, `veth_xmit`, since Linux 6.16).
//!
//! All of it acts in the calling thread's namespace.

use std::{fs, io, net::IpAddr};

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage as Message,
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{
        InfoData, InfoKind, InfoVeth, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    },
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    tc::{TcAttribute, TcHandle, TcMessage},
};

use super::Error;
use crate::{
    net::{IfIndex, Link, Mac, netlink::Socket},
    sys::{
        ethtool::{self, Offload},
        netns::NetNs,
    },
};

/// Packets that a `pfifo` queue holds, as many as a NIC's transmit ring.
const QUEUE_PACKETS: u32 = 1024;
const TCA_OPTIONS: u16 = 2;

/// The ports of a wire or switch must not talk themselves. A kernel without IPv6 has no such switch.
pub(super) fn silence_ipv6() {
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

/// A veth pair: `near` here, `far` in the namespace of that descriptor.
pub(super) fn create_pair(
    near: (&str, Mac),
    far: (&str, Mac),
    far_namespace: i32,
    mtu: u32,
) -> io::Result<()> {
    let mut peer = end(far.0, far.1, mtu);
    peer.attributes.push(LinkAttribute::NetNsFd(far_namespace));
    let mut link = end(near.0, near.1, mtu);
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    Socket::route(0)?.request(Message::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)?;
    Ok(())
}

pub(super) fn set_up(index: IfIndex) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index.0;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    Socket::route(0)?.request(Message::SetLink(message), 0)?;
    Ok(())
}

pub(super) fn delete(index: IfIndex) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index.0;
    Socket::route(0)?.request(Message::DelLink(message), 0)?;
    Ok(())
}

/// Makes a host's end of a veth pair ready and sets it up.
pub(super) fn open_host_end(name: &str, qdisc: bool) -> Result<Link, Error> {
    let link = Link::by_name(name)?;
    for (offload, on) in [
        (Offload::TxChecksum, false),
        (Offload::Tso, false),
        (Offload::Vlan, false),
        (Offload::Gro, true),
    ] {
        ethtool::set_offload(name, offload, on)
            .map_err(Error::step("setting offloads (ethtool -K)"))?;
    }
    if qdisc {
        add_pfifo(link.index).map_err(Error::step("adding a pfifo queue"))?;
    }
    set_up(link.index).map_err(Error::step("setting a host's interface up"))?;
    Ok(link)
}

pub(super) fn add_vlan(name: &str, parent: IfIndex, id: u16) -> io::Result<()> {
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

pub(super) fn add_address(index: IfIndex, address: IpAddr, prefix: u8) -> io::Result<()> {
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

/// False where the kernel has no IPv6, or it is disabled.
pub(super) fn add_ipv6_address(index: IfIndex, address: IpAddr, prefix: u8) -> Result<bool, Error> {
    match add_address(index, address, prefix) {
        Ok(()) => Ok(true),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES | libc::EPERM)
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(Error::Step("adding an IPv6 address", error)),
    }
}

/// An entry of the neighbour table that never has to be asked for.
pub(super) fn add_neighbour(index: IfIndex, address: IpAddr, mac: Mac) -> io::Result<()> {
    let mut message = NeighbourMessage::default();
    message.header.family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    message.header.ifindex = index.0;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        }),
        NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()),
    ];
    Socket::route(0)?.request(Message::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)?;
    Ok(())
}

pub(super) fn add_pfifo(index: IfIndex) -> io::Result<()> {
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

/// Removes those namespaces that exist: links first, so that they go even when a process lives on in one. Returns their
/// names.
///
/// # Errors
/// The first thing that could not be removed; the rest is still tried.
pub(super) fn remove_namespaces(
    names: impl IntoIterator<Item = String>,
) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    let mut first_error = Ok(());
    for name in names {
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
