//! A network as a list of hosts, switches and the links between them: what the simulator and the lab are built from.
//!
//! Plain data that somebody else has read and checked (`rocexdp-fabric` from TOML, or from the reference simulator's files).
//! A node's ports are numbered from 0 in the order in which links name it.

use std::collections::{BTreeMap, BTreeSet};

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

/// What Ethernet adds to a frame on the link: preamble and start delimiter (8), FCS (4), inter-packet gap (12).
pub const ETHERNET_OVERHEAD: u32 = 24;

/// A link, full duplex.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// What it joins.
    pub ends: [Node; 2],
    /// Rate of each direction, above zero.
    pub rate: Rate,
    /// Time that a bit takes from end to end.
    pub delay: Picos,
    /// Bytes that each frame takes of the link besides [`Queued::wire_len`](crate::switch::Queued::wire_len): 0, or
    /// [`ETHERNET_OVERHEAD`].
    pub overhead: u32,
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

/// Why a topology is no network. Names are those of its nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopologyError {
    /// There is no host.
    NoHosts,
    /// Two nodes have one name.
    Name(String),
    /// A link ends at a node that is not there: the link's number.
    End(LinkId),
    /// A link joins a node to itself.
    Itself(String),
    /// A link of rate 0, by what it joins.
    Rate([String; 2]),
    /// The times when a link is down are out of order, overlap or are empty.
    Down([String; 2]),
    /// A switch is set up for another number of ports than it has links.
    Ports {
        /// The switch.
        switch: String,
        /// Links that name it.
        links: usize,
        /// Ports it is set up for.
        ports: usize,
    },
    /// A node has more links than ports can be numbered.
    TooManyPorts(String),
    /// Packets have no way from one host to the other.
    Unconnected([String; 2]),
}

impl core::fmt::Display for TopologyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoHosts => write!(f, "there is no host"),
            Self::Name(name) => write!(f, "two nodes are called {name}"),
            Self::End(link) => write!(f, "link {} ends at a node that is not there", link.0),
            Self::Itself(name) => write!(f, "a link joins {name} to itself"),
            Self::Rate([a, b]) => write!(f, "the link from {a} to {b} has rate 0"),
            Self::Down([a, b]) => write!(
                f,
                "the link from {a} to {b}: the times when it is down must be in order, apart and not empty"
            ),
            Self::Ports {
                switch,
                links,
                ports,
            } => write!(
                f,
                "switch {switch} has {links} links and is set up for {ports} ports"
            ),
            Self::TooManyPorts(name) => write!(f, "{name} has more than 65535 links"),
            Self::Unconnected([a, b]) => write!(
                f,
                "there is no way from {a} to {b}: packets go through switches, not through hosts"
            ),
        }
    }
}

impl core::error::Error for TopologyError {}

impl Topology {
    /// A node's name; empty if it is not there.
    #[must_use]
    pub fn name(&self, node: Node) -> &str {
        match node {
            Node::Host(h) => self.hosts.get(h.0 as usize).map_or("", |h| &h.name),
            Node::Switch(s) => self.switches.get(s.0 as usize).map_or("", |s| &s.name),
        }
    }

    /// The names of what a link joins.
    fn names(&self, link: &LinkSpec) -> [String; 2] {
        link.ends.map(|end| self.name(end).to_owned())
    }

    /// The port that each link is at each of its ends.
    #[must_use]
    pub fn ports(&self) -> Vec<[PortId; 2]> {
        let mut used = [
            vec![0u16; self.hosts.len()],
            vec![0u16; self.switches.len()],
        ];
        let mut next = |node: Node| {
            let used = match node {
                Node::Host(h) => used[0].get_mut(h.0 as usize),
                Node::Switch(s) => used[1].get_mut(s.0 as usize),
            };
            used.map_or(PortId(u16::MAX), |n| {
                let port = PortId(*n);
                *n = n.saturating_add(1);
                port
            })
        };
        let ports = self.links.iter().map(|link| link.ends.map(&mut next));
        ports.collect()
    }

    /// Whether it is a network: names, ends, rates, numbers of ports, and a way between any two hosts.
    ///
    /// # Errors
    /// The first thing that is wrong, by name.
    pub fn check(&self) -> Result<(), TopologyError> {
        if self.hosts.is_empty() {
            return Err(TopologyError::NoHosts);
        }
        let hosts = self.hosts.iter().map(|h| &h.name);
        let mut names: Vec<&String> = hosts.chain(self.switches.iter().map(|s| &s.name)).collect();
        names.sort_unstable();
        if let Some([name, _]) = names.array_windows().find(|[a, b]| a == b) {
            return Err(TopologyError::Name((*name).clone()));
        }
        let mut links = [
            vec![0usize; self.hosts.len()],
            vec![0usize; self.switches.len()],
        ];
        for (i, link) in self.links.iter().enumerate() {
            for end in link.ends {
                let count = match end {
                    Node::Host(h) => links[0].get_mut(h.0 as usize),
                    Node::Switch(s) => links[1].get_mut(s.0 as usize),
                };
                *count.ok_or(TopologyError::End(LinkId(i as u32)))? += 1;
            }
            if link.ends[0] == link.ends[1] {
                return Err(TopologyError::Itself(self.name(link.ends[0]).to_owned()));
            }
            if link.rate == Rate::ZERO {
                return Err(TopologyError::Rate(self.names(link)));
            }
            let apart = link.down.array_windows().all(|[a, b]| a.1 < b.0);
            if !apart || link.down.iter().any(|(from, until)| from >= until) {
                return Err(TopologyError::Down(self.names(link)));
            }
        }
        for (switch, &links) in self.switches.iter().zip(&links[1]) {
            let ports = switch.config.ports.len();
            if links != ports {
                let switch = switch.name.clone();
                return Err(TopologyError::Ports {
                    switch,
                    links,
                    ports,
                });
            }
        }
        let hosts = self.hosts.iter().map(|h| &h.name).zip(&links[0]);
        let switches = self.switches.iter().map(|s| &s.name).zip(&links[1]);
        if let Some((name, _)) = hosts.chain(switches).find(|(_, n)| **n > 65_535) {
            return Err(TopologyError::TooManyPorts(name.clone()));
        }
        self.check_connected()
    }

    fn check_connected(&self) -> Result<(), TopologyError> {
        match self.unreachable() {
            None => Ok(()),
            Some(hosts) => {
                let names = hosts.map(|host| self.name(Node::Host(host)).to_owned());
                Err(TopologyError::Unconnected(names))
            }
        }
    }

    /// Two hosts that do not reach one another, if there are such: no link joins them, and no switches that one of them hangs at are
    /// joined to those of the other. Hosts do not forward, so a third that reaches both is of no use to them.
    #[must_use]
    pub fn unreachable(&self) -> Option<[HostId; 2]> {
        // Parts of the network, by union and find over switches.
        let mut root: Vec<u32> = (0..self.switches.len() as u32).collect();
        fn find(root: &mut [u32], mut at: u32) -> u32 {
            while root[at as usize] != at {
                root[at as usize] = root[root[at as usize] as usize];
                at = root[at as usize];
            }
            at
        }
        for link in &self.links {
            if let [Node::Switch(a), Node::Switch(b)] = link.ends {
                let (a, b) = (find(&mut root, a.0), find(&mut root, b.0));
                root[a.max(b) as usize] = a.min(b);
            }
        }
        // What each host reaches: parts, and hosts at the other end of a link.
        let mut parts: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); self.hosts.len()];
        let mut direct: BTreeSet<[u32; 2]> = BTreeSet::new();
        for link in &self.links {
            match link.ends {
                [Node::Host(h), Node::Switch(s)] | [Node::Switch(s), Node::Host(h)] => {
                    parts[h.0 as usize].insert(find(&mut root, s.0));
                }
                [Node::Host(a), Node::Host(b)] => {
                    direct.insert([a.0.min(b.0), a.0.max(b.0)]);
                }
                [Node::Switch(_), Node::Switch(_)] => {}
            }
        }
        // Hosts of the same parts are alike, and there are few kinds.
        let mut kinds: BTreeMap<BTreeSet<u32>, Vec<u32>> = BTreeMap::new();
        for (host, parts) in (0..).zip(parts) {
            kinds.entry(parts).or_default().push(host);
        }
        let kinds: Vec<_> = kinds.into_iter().collect();
        for (n, (parts, hosts)) in kinds.iter().enumerate() {
            for (others, them) in kinds.iter().skip(n) {
                if !parts.is_disjoint(others) {
                    continue;
                }
                let pairs = hosts
                    .iter()
                    .flat_map(|a| them.iter().map(move |b| [*a, *b]));
                let mut apart = pairs
                    .filter(|[a, b]| a != b)
                    .map(|[a, b]| [a.min(b), a.max(b)]);
                if let Some(pair) = apart.find(|pair| !direct.contains(pair)) {
                    return Some(pair.map(HostId));
                }
            }
        }
        None
    }
}
