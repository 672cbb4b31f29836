//! What lies between two NICs in an empty network: delays, rates, and how long a flow takes there.

use std::collections::{BTreeMap, VecDeque};

use rocexdp_proto::time::Rate;
use rocexdp_sim::{
    picos::Picos,
    topology::{HostId, LinkId, Node, PortId, Topology},
};

use crate::{
    reference::case::HEADERS,
    scenario::{HostModel, Scenario},
};

/// Links from a sender's NIC to a receiver's, one of the shortest ways.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    /// In their order.
    pub links: Vec<LinkId>,
}

/// Sizes of packets on a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets {
    /// Payload of a full packet.
    pub payload: u64,
    /// Headers of a packet with data, without what Ethernet adds.
    pub headers: u64,
    /// An acknowledgement.
    pub ack: u64,
}

impl Packets {
    /// Of a scenario's hosts.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let payload = u64::from(scenario.transport.mtu);
        match scenario.transport.host {
            // Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4; with AETH 4.
            HostModel::Rc => Self {
                payload,
                headers: 58,
                ack: 62,
            },
            HostModel::Reference => Self {
                payload,
                headers: HEADERS,
                ack: 60,
            },
        }
    }
}

/// Paths by receiver, worked out as they are asked for.
pub(crate) struct Paths<'a> {
    topology: &'a Topology,
    ports: Vec<[PortId; 2]>,
    /// Node, its port, and the link there with the node at the other end.
    neighbours: BTreeMap<u64, Vec<(PortId, LinkId, Node)>>,
    /// By receiver's NIC: distance of each node in links.
    distances: BTreeMap<(HostId, PortId), BTreeMap<u64, u32>>,
}

fn key(node: Node) -> u64 {
    match node {
        Node::Host(host) => u64::from(host.0),
        Node::Switch(switch) => u64::from(switch.0) | 1 << 32,
    }
}

impl<'a> Paths<'a> {
    pub(crate) fn new(topology: &'a Topology) -> Self {
        let ports = topology.ports();
        let mut neighbours: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for ((n, link), ports) in (0_u32..).zip(&topology.links).zip(&ports) {
            let [a, b] = link.ends;
            neighbours
                .entry(key(a))
                .or_default()
                .push((ports[0], LinkId(n), b));
            neighbours
                .entry(key(b))
                .or_default()
                .push((ports[1], LinkId(n), a));
        }
        Self {
            topology,
            ports,
            neighbours,
            distances: BTreeMap::new(),
        }
    }

    /// A way from one NIC to another, if there is one.
    pub(crate) fn between(&mut self, from: (HostId, PortId), to: (HostId, PortId)) -> Option<Path> {
        self.chosen(from, to, |_| 0)
    }

    /// The same; where there are several shortest, `choose` says which of so many.
    pub(crate) fn chosen(
        &mut self,
        from: (HostId, PortId),
        to: (HostId, PortId),
        mut choose: impl FnMut(usize) -> usize,
    ) -> Option<Path> {
        if !self.distances.contains_key(&to) {
            let distances = self.measure(to);
            self.distances.insert(to, distances);
        }
        let distances = self.distances.get(&to)?;
        let nics = self.neighbours.get(&u64::from(from.0.0))?;
        let (_, first, mut at) = *nics.iter().find(|(port, ..)| *port == from.1)?;
        let mut links = vec![first];
        while at != Node::Host(to.0) {
            let left = *distances.get(&key(at))?;
            let near = |node: Node| node == Node::Host(to.0) || matches!(node, Node::Switch(_));
            let ways = self.neighbours.get(&key(at))?.iter();
            let ways: Vec<_> = ways
                .filter(|(_, link, next)| {
                    near(*next) && self.distance(distances, to, *link, *next) == Some(left - 1)
                })
                .collect();
            let (_, link, next) = match ways.len() {
                1 => **ways.first()?,
                several => **ways.get(choose(several))?,
            };
            links.push(link);
            at = next;
        }
        Some(Path { links })
    }

    fn distance(
        &self,
        distances: &BTreeMap<u64, u32>,
        to: (HostId, PortId),
        link: LinkId,
        next: Node,
    ) -> Option<u32> {
        if next != Node::Host(to.0) {
            return distances.get(&key(next)).copied();
        }
        // Only the link at the right NIC ends there.
        let spec = self.topology.links.get(link.0 as usize)?;
        let end = spec.ends.iter().position(|end| *end == next)?;
        (self.ports.get(link.0 as usize)?[end] == to.1).then_some(0)
    }

    /// Distances in links to a NIC, through switches only.
    fn measure(&self, to: (HostId, PortId)) -> BTreeMap<u64, u32> {
        let mut distances = BTreeMap::new();
        let mut todo = VecDeque::new();
        let nics = self
            .neighbours
            .get(&u64::from(to.0.0))
            .into_iter()
            .flatten();
        for (_, _, at) in nics.filter(|(port, ..)| *port == to.1) {
            distances.insert(key(*at), 1);
            todo.push_back(*at);
        }
        while let Some(at) = todo.pop_front() {
            if matches!(at, Node::Host(_)) {
                continue;
            }
            let distance = distances.get(&key(at)).copied().unwrap_or(0);
            for (_, _, next) in self.neighbours.get(&key(at)).into_iter().flatten() {
                if !distances.contains_key(&key(*next)) && *next != Node::Host(to.0) {
                    distances.insert(key(*next), distance + 1);
                    todo.push_back(*next);
                }
            }
        }
        distances
    }
}

impl Path {
    /// The slowest link's rate.
    pub(crate) fn bottleneck(&self, topology: &Topology) -> Rate {
        let rates = self
            .links
            .iter()
            .filter_map(|link| topology.links.get(link.0 as usize));
        rates.map(|link| link.rate).min().unwrap_or(Rate::ZERO)
    }

    /// What a packet of this size takes, stored and forwarded on each link.
    fn one(&self, topology: &Topology, bytes: u64) -> Picos {
        let mut time = Picos::ZERO;
        for link in self
            .links
            .iter()
            .filter_map(|link| topology.links.get(link.0 as usize))
        {
            time =
                time + link.delay + Picos::serialise(bytes + u64::from(link.overhead), link.rate);
        }
        time
    }

    /// Round trip of a full packet and its acknowledgement.
    pub(crate) fn round_trip(&self, topology: &Topology, packets: Packets) -> Picos {
        self.one(topology, packets.payload + packets.headers) + self.one(topology, packets.ack)
    }

    /// What a flow takes in an empty network, from its start to the acknowledgement of its end: all packets through the slowest
    /// link, one of them over the rest of the way, the acknowledgement back.
    pub(crate) fn ideal(&self, topology: &Topology, packets: Packets, bytes: u64) -> Picos {
        let count = bytes.div_ceil(packets.payload);
        let last = bytes - (count - 1) * packets.payload + packets.headers;
        let slowest = self
            .links
            .iter()
            .filter_map(|link| topology.links.get(link.0 as usize));
        let Some(slowest) = slowest.min_by_key(|link| link.rate) else {
            return Picos::ZERO;
        };
        let full = packets.payload + packets.headers + u64::from(slowest.overhead);
        let before = Picos::serialise((count - 1).saturating_mul(full), slowest.rate);
        before + self.one(topology, last) + self.one(topology, packets.ack)
    }

    /// What a flow takes beyond its bytes at the slowest link's rate.
    pub(crate) fn tail(&self, topology: &Topology, packets: Packets, bytes: u64) -> Picos {
        let slowest = self
            .links
            .iter()
            .filter_map(|link| topology.links.get(link.0 as usize));
        let Some(slowest) = slowest.min_by_key(|link| link.rate) else {
            return Picos::ZERO;
        };
        let full = packets.payload + packets.headers + u64::from(slowest.overhead);
        let fluid = u128::from(bytes) * u128::from(full) / u128::from(packets.payload);
        let fluid = Picos::serialise(u64::try_from(fluid).unwrap_or(u64::MAX), slowest.rate);
        self.ideal(topology, packets, bytes) - fluid
    }
}
