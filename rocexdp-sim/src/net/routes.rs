//! Which ports of a switch lie on a shortest way to a NIC: worked out once, for all.
//!
//! A way goes through switches only, and each link counts one. Equal ways stand in the order of the ports, and a packet takes one
//! by its hash (ECMP), so that a flow keeps its way. Ways are kept per pair of switches, not per host: those of a switch's own
//! hosts are all the same until there.
//!
//! Must not: know what is up or down: nobody reroutes.

use crate::topology::{Node, PortId, Topology};

/// SplitMix64's finaliser over a flow's hash and a switch's seed.
#[must_use]
pub const fn mix(hash: u32, seed: u32) -> u32 {
    let value = (hash as u64) | ((seed as u64) << 32);
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (value >> 32) as u32
}

/// Ports to choose from: a range of [`Routes::ports`].
#[derive(Clone, Copy, Default)]
struct Ways {
    start: u32,
    count: u32,
}

/// The ways of all switches to all NICs.
pub(super) struct Routes {
    /// First NIC of each host, and one past the last.
    first_nic: Vec<u32>,
    /// What each NIC's link leads to: a switch and its port there; `None`: a host.
    attached: Vec<Option<(u32, PortId)>>,
    switches: usize,
    /// From switch to switch, row by row.
    ways: Vec<Ways>,
    ports: Vec<PortId>,
}

impl Routes {
    /// Works them out. The topology must be checked.
    pub(super) fn new(topology: &Topology, reference: bool) -> Self {
        let switches = topology.switches.len();
        // Links of each switch in the order of its ports: the switch behind, if there is one.
        let mut neighbours: Vec<Vec<Option<u32>>> = vec![Vec::new(); switches];
        let mut nics: Vec<Vec<Option<(u32, PortId)>>> = vec![Vec::new(); topology.hosts.len()];
        for (link, ports) in topology.links.iter().zip(topology.ports()) {
            for (here, there) in [(0, 1), (1, 0)] {
                let behind = match link.ends[there] {
                    Node::Switch(s) => Some((s.0, ports[there])),
                    Node::Host(_) => None,
                };
                match link.ends[here] {
                    Node::Host(h) => nics[h.0 as usize].push(behind),
                    Node::Switch(s) => neighbours[s.0 as usize].push(behind.map(|(s, _)| s)),
                }
            }
        }
        let mut routes = Self {
            first_nic: Vec::with_capacity(nics.len() + 1),
            attached: Vec::new(),
            switches,
            ways: vec![Ways::default(); switches * switches],
            ports: Vec::new(),
        };
        for nics in &nics {
            routes.first_nic.push(routes.attached.len() as u32);
            routes.attached.extend(nics);
        }
        routes.first_nic.push(routes.attached.len() as u32);
        let mut edge = vec![false; switches];
        for (s, _) in routes.attached.iter().flatten() {
            edge[*s as usize] = true;
        }
        for to in (0..switches).filter(|s| edge[*s]) {
            routes.towards(to, &neighbours, reference);
        }
        routes
    }

    /// Breadth first from a switch. Equal ways are in the order of ports; the reference's in the order in which the switches behind
    /// them were found: `CalculateRoute` of its `third.cc` appends them so, and goes through neighbours in the order of their
    /// addresses in memory, where the large objects that its switches are lie one below the other.
    fn towards(&mut self, to: usize, neighbours: &[Vec<Option<u32>>], reference: bool) {
        let mut distance = vec![u32::MAX; self.switches];
        let mut found = vec![0; self.switches];
        distance[to] = 0;
        let mut reached = vec![to];
        let mut next = 0;
        while let Some(&at) = reached.get(next) {
            next += 1;
            let mut behind: Vec<u32> = neighbours[at].iter().flatten().copied().collect();
            if reference {
                behind.sort_unstable_by(|a, b| b.cmp(a));
            }
            for n in behind {
                if distance[n as usize] == u32::MAX {
                    distance[n as usize] = distance[at] + 1;
                    found[n as usize] = reached.len();
                    reached.push(n as usize);
                }
            }
        }
        for &from in &reached[1..] {
            let start = self.ports.len() as u32;
            let mut ways: Vec<(usize, PortId)> = neighbours[from]
                .iter()
                .enumerate()
                .filter_map(|(port, n)| Some((((*n)? as usize), PortId(port as u16))))
                .filter(|(n, _)| distance[*n] + 1 == distance[from])
                .collect();
            if reference {
                ways.sort_by_key(|(n, _)| found[*n]);
            }
            self.ports.extend(ways.into_iter().map(|(_, port)| port));
            self.ways[from * self.switches + to] = Ways {
                start,
                count: self.ports.len() as u32 - start,
            };
        }
    }

    /// The ports of a switch that lead to a NIC of a host; none: there is no way, or no such NIC.
    pub(super) fn ways(&self, switch: usize, host: u32, nic: PortId) -> &[PortId] {
        let nics = self.first_nic.get(host as usize..host as usize + 2);
        let Some(&[first, end]) = nics else {
            return &[];
        };
        let at = first + u32::from(nic.0);
        if at >= end {
            return &[];
        }
        match &self.attached[at as usize] {
            Some((s, port)) if *s as usize == switch => core::slice::from_ref(port),
            Some((s, _)) => {
                let ways = self.ways[switch * self.switches + *s as usize];
                &self.ports[ways.start as usize..(ways.start + ways.count) as usize]
            }
            None => &[],
        }
    }

    /// The port that a packet with these ways takes.
    #[inline]
    pub(super) fn choose(ways: &[PortId], hash: impl FnOnce() -> u32) -> Option<PortId> {
        match ways {
            [] => None,
            [one] => Some(*one),
            many => many.get(hash() as usize % many.len()).copied(),
        }
    }
}
