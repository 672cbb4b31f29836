//! The lab's namespaces and links: made, looked at, removed.
//!
//! Two hosts, each with one interface `eth0`, and a wire between with a port for each, `port-a` and `port-b`.
//!
//! With a VLAN the hosts' addresses are on a VLAN device `eth0.ID`, whose tags the kernel adds and removes; rocexdp
//! attaches to the parent `eth0`, sees the tags and adds its own. On a kernel without VLAN devices (`CONFIG_VLAN_8021Q`)
//! the addresses are on `eth0`: then only rocexdp's frames are tagged, and it must be told the id.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use super::{
    Error, Host, LabConfig,
    links::{
        add_address, add_ipv6_address, add_pfifo, add_vlan, create_pair, open_host_end,
        remove_namespaces, set_up, silence_ipv6,
    },
};
use crate::{
    net::{IfIndex, Link, Mac, features::XdpFeatures},
    sys::netns::NetNs,
};

/// The interface of a host.
pub const HOST_INTERFACE: &str = "eth0";

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

/// Removes what exists of a lab.
///
/// # Errors
/// The first thing that could not be removed; the rest is still tried.
pub fn remove(lab: &str) -> io::Result<Vec<String>> {
    remove_namespaces(namespaces(lab))
}

fn add_port(host: Host, fd: i32, config: &LabConfig) -> Result<IfIndex, Error> {
    let [a, b, c, d, _, last] = host.mac().0;
    let near = (host.port(), Mac([a, b, c, d, 0xff, last]));
    create_pair(near, (HOST_INTERFACE, host.mac()), fd, config.mtu)
        .map_err(Error::step("creating a veth pair"))?;
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
    let link = open_host_end(HOST_INTERFACE, config.qdisc)?;
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
    let ipv6 = add_ipv6_address(addressed.index, ipv6, 64)?;
    Ok(Addressed {
        interface: addressed.name,
        ipv6,
    })
}
