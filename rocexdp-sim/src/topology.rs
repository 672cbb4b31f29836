//! A network as a list of hosts, switches and the links between them: what the simulator and the lab are built from.
//!
//! Plain data that somebody else has read and checked (`rocexdp-fabric` from TOML, or from the reference simulator's files).
//! A node's ports are numbered from 0 in the order in which links name it.

use rocexdp_common::fault::Faults;
use rocexdp_proto::time::Rate;

use crate::picos::Picos;
use crate::switch::SwitchConfig;

/// A host's number: its place in [`Topology::hosts`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub u32);

/// A switch's number: its place in [`Topology::switches`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwitchId(pub u32);

/// A link's number: its place in [`Topology::links`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

/// A port of a switch, or a NIC of a host, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

/// What a link ends at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A host: the link is one of its NICs.
    Host(HostId),
    /// A switch: the link is one of its ports.
    Switch(SwitchId),
}

/// A host.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Its name, unique among all nodes.
    pub name: String,
}

/// A switch.
#[derive(Clone, Debug)]
pub struct SwitchSpec {
    /// Its name, unique among all nodes.
    pub name: String,
    /// How it is set up; as many ports as links name it.
    pub config: SwitchConfig,
}

/// A link, full duplex.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// What it joins.
    pub ends: [Node; 2],
    /// Rate of each direction, above zero.
    pub rate: Rate,
    /// Time that a bit takes from end to end.
    pub delay: Picos,
    /// What happens to packets that enter at each end.
    pub faults: [Faults; 2],
    /// When it is down: from, until; in order, not overlapping. A packet under way when it goes down is lost.
    pub down: Vec<(Picos, Picos)>,
}

/// A network.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Its hosts.
    pub hosts: Vec<HostSpec>,
    /// Its switches.
    pub switches: Vec<SwitchSpec>,
    /// Its links.
    pub links: Vec<LinkSpec>,
}
