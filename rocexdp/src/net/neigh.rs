//! From a peer's address to the next hop's Ethernet address, and keeping that alive.
//!
//! The kernel resolves: we only ask. A route lookup gives interface, source address and next hop; `RTM_NEWNEIGH` with
//! `NTF_USE` makes the kernel do what it does for a packet it wants to send (net/core/neighbour.c, `neigh_add` calls
//! `neigh_event_send`): an unknown entry is resolved, a stale one probed. AF_XDP traffic passes the stack by and never
//! confirms an entry, so [`Neighbour::refresh`] must be called every [`REFRESH_INTERVAL`]: it leaves nothing behind when
//! the process is killed, unlike `NTF_EXT_MANAGED`.
//!
//! An IPv4 peer is resolved with IPv4 means only: a host without IPv6 is no obstacle.

use std::{
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage as Message,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia},
};

use super::{
    Error, IfIndex, Link, Mac, Unreachable,
    netlink::Socket,
    watch::{Event, Watch},
};

/// How often a neighbour in use must be refreshed. The kernel holds an entry reachable for at least 15 s (half of
/// `base_reachable_time`), and probes 5 s after a stale entry is used.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The kernel gives up after three probes one second apart (`ucast_solicit`, `mcast_solicit`, `retrans_time`).
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(4);

/// How packets to a peer leave this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer.
    pub peer: IpAddr,
    /// The interface.
    pub interface: IfIndex,
    /// Its name.
    pub name: String,
    /// The address to send from.
    pub source: IpAddr,
    /// Whose Ethernet address is needed: the peer on a shared network, else the gateway.
    pub next_hop: IpAddr,
    /// The peer is this host.
    pub local: bool,
    /// The largest IP packet on the way as far as this host knows, bytes: the route's MTU or the interface's.
    pub mtu: u32,
}

impl Route {
    /// Looks up the route to `peer`, from `source` if given, through the interface `through` if given.
    ///
    /// # Errors
    /// [`Error::NoRoute`], or a netlink failure.
    pub fn lookup(
        peer: IpAddr,
        source: Option<IpAddr>,
        through: Option<IfIndex>,
    ) -> Result<Self, Error> {
        let mut message = RouteMessage::default();
        let bits = if peer.is_ipv4() { 32 } else { 128 };
        message.header.address_family = if peer.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        message.header.destination_prefix_length = bits;
        message
            .attributes
            .push(RouteAttribute::Destination(peer.into()));
        if let Some(source) = source {
            message.header.source_prefix_length = bits;
            message
                .attributes
                .push(RouteAttribute::Source(source.into()));
        }
        if let Some(IfIndex(index)) = through {
            message.attributes.push(RouteAttribute::Oif(index));
        }
        let no_route = |error| Error::NoRoute(peer, error);
        let answers = Socket::route(0)?
            .request(Message::GetRoute(message), 0)
            .map_err(no_route)?;
        let route = answers
            .iter()
            .find_map(|answer| match answer {
                Message::NewRoute(route) => Some(route),
                _ => None,
            })
            .ok_or_else(|| no_route(io::ErrorKind::NotFound.into()))?;
        Self::from_message(peer, source, route)
    }

    fn from_message(
        peer: IpAddr,
        asked_source: Option<IpAddr>,
        message: &RouteMessage,
    ) -> Result<Self, Error> {
        let local = match message.header.kind {
            RouteType::Unicast => false,
            RouteType::Local => true,
            other => {
                let why = format!("the route is of type {other:?}");
                return Err(Error::NoRoute(peer, io::Error::other(why)));
            }
        };
        let (mut oif, mut source, mut next_hop, mut mtu) = (None, asked_source, peer, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => oif = Some(IfIndex(*index)),
                RouteAttribute::PrefSource(address) => source = ip(address).or(source),
                RouteAttribute::Gateway(address) => next_hop = ip(address).unwrap_or(next_hop),
                RouteAttribute::Via(RouteVia::Inet(address)) => next_hop = (*address).into(),
                RouteAttribute::Via(RouteVia::Inet6(address)) => next_hop = (*address).into(),
                RouteAttribute::Metrics(metrics) => {
                    mtu = metrics.iter().find_map(|metric| match metric {
                        netlink_packet_route::route::RouteMetric::Mtu(mtu) if *mtu != 0 => {
                            Some(*mtu)
                        }
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        let missing = |what| Error::NoRoute(peer, io::Error::other(what));
        let interface = oif.ok_or_else(|| missing("the route has no interface"))?;
        let link = Link::by_index(interface)?;
        Ok(Self {
            peer,
            interface,
            source: source.ok_or_else(|| missing("the route has no source address"))?,
            next_hop,
            local,
            mtu: mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu)),
            name: link.name,
        })
    }

    /// The next hop's Ethernet address, if the kernel knows it; has it verified, then.
    ///
    /// # Errors
    /// A netlink failure.
    pub fn known(&self) -> Result<Option<Mac>, Error> {
        let known = Neighbour::get(self.interface, self.next_hop)?;
        let Some((known, mac)) = known.and_then(|known| known.usable().map(|mac| (known, mac)))
        else {
            return Ok(None);
        };
        if known.state != NeighbourState::Permanent && known.state != NeighbourState::Noarp {
            let failed =
                |error| Error::Interface(self.name.clone(), "resolving a neighbour", error);
            Neighbour::refresh(self.interface, self.next_hop).map_err(failed)?;
        }
        Ok(Some(mac))
    }

    /// The next hop's Ethernet address, waiting for at most `timeout` while the kernel asks for it.
    ///
    /// # Errors
    /// [`Error::Unreachable`] naming peer and interface, or a netlink failure.
    pub fn resolve(&self, timeout: Duration) -> Result<Mac, Error> {
        let deadline = Instant::now() + timeout;
        let failed = |error| Error::Interface(self.name.clone(), "resolving a neighbour", error);
        // Before asking, so that no change is missed.
        let mut watch = Watch::open().map_err(failed)?;
        if let Some(mac) = self.known()? {
            return Ok(mac);
        }
        Neighbour::refresh(self.interface, self.next_hop).map_err(failed)?;
        let mut last = NeighbourState::Incomplete;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = watch.next(left).map_err(failed)?;
            let entry = match event {
                Some(Event::Neighbour(entry))
                    if entry.interface == self.interface && entry.ip == self.next_hop =>
                {
                    Some(entry)
                }
                Some(Event::Lost) => Neighbour::get(self.interface, self.next_hop)?,
                Some(_) => None,
                None => return Err(self.unreachable(last)),
            };
            if let Some(entry) = entry {
                if let Some(mac) = entry.usable() {
                    return Ok(mac);
                }
                last = entry.state;
                if last == NeighbourState::Failed {
                    return Err(self.unreachable(last));
                }
            }
        }
    }

    /// The error that says that this route's next hop does not answer.
    pub fn unreachable(&self, state: NeighbourState) -> Error {
        Error::Unreachable(Unreachable {
            peer: self.peer,
            next_hop: self.next_hop,
            interface: self.name.clone(),
            state: state.to_string(),
        })
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface.
    pub interface: IfIndex,
    /// The neighbour's address.
    pub ip: IpAddr,
    /// Its Ethernet address, if ever known.
    pub mac: Option<Mac>,
    /// The kernel's state of the entry.
    pub state: NeighbourState,
}

impl Neighbour {
    /// The entry of `address` on an interface.
    ///
    /// # Errors
    /// A netlink failure; that there is no entry is `Ok(None)`.
    pub fn get(interface: IfIndex, address: IpAddr) -> Result<Option<Self>, Error> {
        let request = Message::GetNeighbour(message(interface, address));
        let answers = match Socket::route(0)?.request(request, 0) {
            Ok(answers) => answers,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(Error::Netlink("reading the neighbour table", error)),
        };
        Ok(answers.iter().find_map(|answer| match answer {
            Message::NewNeighbour(found) => entry(found),
            _ => None,
        }))
    }

    /// Makes the kernel treat the entry as used for a packet now: it resolves it, or probes it if it may have changed.
    /// Returns at once; the outcome shows in the table and as [`Event::Neighbour`].
    ///
    /// # Errors
    /// The kernel's refusal, such as a missing right (CAP_NET_ADMIN) or interface.
    pub fn refresh(interface: IfIndex, address: IpAddr) -> io::Result<()> {
        let mut message = message(interface, address);
        message.header.flags = NeighbourFlags::Use;
        message.header.state = NeighbourState::None;
        Socket::route(0)?.request(Message::NewNeighbour(message), NLM_F_CREATE)?;
        Ok(())
    }

    /// The Ethernet address if packets may be sent to it now.
    pub fn usable(&self) -> Option<Mac> {
        match self.state {
            NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None => None,
            _ => self.mac,
        }
    }
}

fn message(interface: IfIndex, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    let (family, destination) = match address {
        IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
    };
    message.header.family = family;
    message.header.ifindex = interface.0;
    message
        .attributes
        .push(NeighbourAttribute::Destination(destination));
    message
}

/// The entry in a neighbour message; `None` for a bridge's.
pub(super) fn entry(message: &NeighbourMessage) -> Option<Neighbour> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::from(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::from(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Mac::from_bytes(bytes),
            _ => {}
        }
    }
    Some(Neighbour {
        interface: IfIndex(message.header.ifindex),
        ip: address?,
        mac,
        state: message.header.state,
    })
}
