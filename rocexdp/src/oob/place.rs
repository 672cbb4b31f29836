//! Where an end stands: its interface, and which of the interface's addresses (GIDs) it uses.
//!
//! A RoCEv2 GID is an IPv6 address, or an IPv4 address in its mapped form. Must not: open anything.

use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs as _};

use anyhow::{Context, bail};

use crate::{
    control::exchange::{is_link_local, unmapped},
    net::{Link, neigh::Route},
};

/// The interface that packets to `host` leave by.
///
/// # Errors
/// The host is unknown, is this one, or no route leads there.
pub fn interface_to(host: &str) -> anyhow::Result<String> {
    let address = (host, 0)
        .to_socket_addrs()
        .with_context(|| format!("host {host}"))?
        .next()
        .with_context(|| format!("host {host} has no address"))?;
    if let std::net::SocketAddr::V6(v6) = address
        && v6.scope_id() != 0
    {
        return Ok(Link::by_index(crate::net::IfIndex(v6.scope_id()))?.name);
    }
    let route = Route::lookup(unmapped(address.ip()), None, None)?;
    if route.local {
        bail!("{host} is this host: say with --iface on which interface to test against it");
    }
    Ok(route.name)
}

/// The interface that has an address.
///
/// # Errors
/// None has it.
pub fn interface_of(address: IpAddr) -> anyhow::Result<String> {
    for link in Link::all()? {
        if link.addresses()?.iter().any(|a| a.ip == address) {
            return Ok(link.name);
        }
    }
    bail!("no interface has {address}: say which to use with --iface")
}

/// An address as a GID.
#[must_use]
pub fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
    .octets()
}

/// A GID as an address.
#[must_use]
pub fn address(gid: [u8; 16]) -> IpAddr {
    unmapped(Ipv6Addr::from(gid).into())
}

/// What an end wants of its address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// This one.
    pub address: Option<IpAddr>,
    /// An IPv6 one.
    pub ipv6: bool,
}

/// The address to use of `ours`, the addresses of interface `iface`: the wanted one; else, where the peer's is known, one that goes with
/// it; else the TCP connection's own, if it is among them; else the first, IPv4 before IPv6, link-local ones last.
///
/// # Errors
/// There is none that fits: a text that says which is missing.
pub fn choose(
    wish: Wish,
    iface: &str,
    ours: &[IpAddr],
    connection: IpAddr,
    peer: Option<IpAddr>,
) -> anyhow::Result<IpAddr> {
    if let Some(wanted) = wish.address {
        if !ours.contains(&wanted) {
            bail!("--address {wanted}: no address of {iface} ({})", list(ours));
        }
        if let Some(peer) = peer
            && kind(peer) != kind(wanted)
        {
            bail!("the peer's address {peer} and ours, {wanted}, are of different kinds");
        }
        return Ok(wanted);
    }
    let fits = |address: &IpAddr| match peer {
        Some(peer) => kind(peer) == kind(*address),
        None => !wish.ipv6 || address.is_ipv6(),
    };
    if ours.contains(&connection) && fits(&connection) {
        return Ok(connection);
    }
    ours.iter()
        .copied()
        .filter(fits)
        .min_by_key(|address| kind(*address))
        .with_context(|| match peer {
            Some(peer) => format!(
                "the peer uses {peer}, and {iface} has no {} address ({}): choose another GID index there (-x)",
                kind(peer).name(),
                list(ours)
            ),
            None => format!("{iface} has no IPv6 address ({})", list(ours)),
        })
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    V4,
    V6,
    LinkLocal,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "routable IPv6",
            Self::LinkLocal => "link-local IPv6",
        }
    }
}

fn kind(address: IpAddr) -> Kind {
    match address {
        IpAddr::V4(_) => Kind::V4,
        IpAddr::V6(v6) if is_link_local(v6) => Kind::LinkLocal,
        IpAddr::V6(_) => Kind::V6,
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_gid_is_an_address() {
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 2];
        assert_eq!(gid(ip("10.77.0.2")), mapped);
        for text in ["10.77.0.2", "fd77::2", "fe80::1"] {
            assert_eq!(address(gid(ip(text))), ip(text));
        }
    }

    #[test]
    fn the_address_goes_with_the_peers_and_the_wish() {
        let ours = [ip("fe80::1"), ip("fd77::1"), ip("10.77.0.1")];
        let choose = |wish, tcp, peer: Option<&str>| {
            choose(wish, "eth0", &ours, ip(tcp), peer.map(ip)).map_err(|e| e.to_string())
        };
        let none = Wish::default();
        assert_eq!(choose(none, "10.77.0.1", None), Ok(ip("10.77.0.1")));
        assert_eq!(choose(none, "192.0.2.9", None), Ok(ip("10.77.0.1")));
        assert_eq!(
            choose(none, "10.77.0.1", Some("fd77::2")),
            Ok(ip("fd77::1"))
        );
        assert_eq!(
            choose(none, "10.77.0.1", Some("fe80::2")),
            Ok(ip("fe80::1"))
        );
        let v6 = Wish { ipv6: true, ..none };
        assert_eq!(choose(v6, "10.77.0.1", None), Ok(ip("fd77::1")));
        let this = |text| Wish {
            address: Some(ip(text)),
            ..none
        };
        assert_eq!(
            choose(this("fe80::1"), "10.77.0.1", None),
            Ok(ip("fe80::1"))
        );
        let error = choose(this("fe80::1"), "10.77.0.1", Some("10.77.0.2")).unwrap_err();
        assert!(error.contains("different kinds"), "{error}");
        let error = choose(this("10.0.0.9"), "10.77.0.1", None).unwrap_err();
        assert!(error.contains("no address of eth0"), "{error}");
        let only = super::choose(
            none,
            "eth0",
            &ours[..2],
            ip("fd77::1"),
            Some(ip("10.77.0.2")),
        );
        assert!(only.unwrap_err().to_string().contains("no IPv4 address"));
    }
}
