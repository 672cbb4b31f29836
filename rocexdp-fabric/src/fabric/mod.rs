//! Fabrics: hosts, switches and links, read from TOML, checked, and built for the simulator and the lab.
//!
//! The schema is `docs/fabric.md`. What is wrong is said with file, line and reason; what is merely unwise is a warning.
//!
//! Must not: know workloads or runs.

mod build;
mod generate;
mod plan;
mod schema;
mod switch;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, Ipv6Addr};

use rocexdp_proto::time::Rate;
use rocexdp_sim::topology::{HostId, LinkId, Topology};

pub use schema::{Schema, Set};

use crate::{
    source::{Error, Source},
    workload::random::stream,
};

/// Version of the schema.
pub const VERSION: u32 = 1;

/// A fabric, checked.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// What people call it.
    pub name: String,
    /// For the simulator. Faults are seeded by [`Fabric::seeded`].
    pub topology: Topology,
    /// Hosts, by [`HostId`].
    pub hosts: Vec<Host>,
    /// Links, by [`LinkId`].
    pub links: Vec<Link>,
    /// Priority of each DSCP.
    pub dscp_to_priority: [u8; 64],
    /// What is unwise, with its line.
    pub warnings: Vec<Error>,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its NICs, by `PortId`.
    pub nics: Vec<Nic>,
}

/// A NIC: a host's end of a link.
#[derive(Clone, Copy, Debug)]
pub struct Nic {
    /// The link.
    pub link: LinkId,
    /// Rate of the link.
    pub rate: Rate,
    /// Largest IP packet.
    pub mtu: u32,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Address in the fabric's one /16.
    pub ipv4: Ipv4Addr,
    /// Address in the fabric's one /64.
    pub ipv6: Ipv6Addr,
}

/// What a link has beside `LinkSpec`.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its name: its ends, as in `h0-s0`, and from the second link between them on `h0-s0.1`.
    pub name: String,
    /// Largest IP packet.
    pub mtu: u32,
}

impl Fabric {
    /// Hosts, switches and links, counted together.
    #[must_use]
    pub fn parts(&self) -> usize {
        let t = &self.topology;
        t.hosts.len() + t.switches.len() + t.links.len()
    }

    /// Reads a fabric of its own file.
    ///
    /// # Errors
    /// File, line and reason.
    pub fn read(source: Source<'_>) -> Result<Self, Error> {
        Self::build(&source.read(source.tree()?)?, &Set::default(), source)
    }

    /// Builds a fabric that stands in `source`, with changes that come after its own.
    ///
    /// # Errors
    /// File, line and reason.
    pub fn build(schema: &Schema, changes: &Set, source: Source<'_>) -> Result<Self, Error> {
        build::build(schema, changes, source)
    }

    /// The topology with each direction's faults seeded from a run's seed.
    #[must_use]
    pub fn seeded(&self, seed: u64) -> Topology {
        let mut topology = self.topology.clone();
        for (n, link) in (0_u64..).zip(&mut topology.links) {
            // Drawn, not combined: the network adds its own seed to these. What enters port 0 and port 1 is told apart by
            // `fault::decide`.
            let drawn = stream(seed, n).next_u64();
            for faults in &mut link.faults {
                faults.seed = drawn;
            }
        }
        topology
    }

    /// A host by name.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<HostId> {
        let place = self.hosts.iter().position(|host| host.name == name)?;
        u32::try_from(place).ok().map(HostId)
    }

    /// A link by name, or by its ends the other way round.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<LinkId> {
        let turned = |link: &Link| {
            let (a, b) = self.ends_of(&link.name)?;
            Some(format!("{b}-{a}"))
        };
        let place = self
            .links
            .iter()
            .position(|link| link.name == name)
            .or_else(|| {
                self.links
                    .iter()
                    .position(|link| turned(link).as_deref() == Some(name))
            })?;
        u32::try_from(place).ok().map(LinkId)
    }

    /// The ends in a link's name. Node names may contain `-` too: only the right split names nodes on both sides.
    fn ends_of<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        let is_node = |name: &str| {
            self.hosts.iter().any(|host| host.name == name)
                || self
                    .topology
                    .switches
                    .iter()
                    .any(|switch| switch.name == name)
        };
        name.match_indices('-')
            .map(|(at, _)| (&name[..at], &name[at + 1..]))
            .find(|(a, b)| is_node(a) && is_node(b))
    }
}
