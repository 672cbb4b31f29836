//! An experiment of the reference: its three files together, and what they come to as a network of `rocexdp-sim`.
//!
//! Follows `third.cc` of the HPCC simulator: thresholds, headroom and the PFC share of a port by its link's rate, routes by
//! fewest links, base round trips and bandwidth-delay products of all pairs.
//!
//! Must not: open files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rocexdp_common::fault::Faults;
use rocexdp_proto::dcqcn::{Params, RpParams};
use rocexdp_proto::time::Rate;
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::{
    EcnConfig, MarkOn, PRIORITIES, PfcConfig, PfcThreshold, PortConfig, Scheduler, SwitchConfig,
};
use rocexdp_sim::topology::{HostId, HostSpec, LinkSpec, Node, SwitchId, SwitchSpec, Topology};

use super::config::{Config, Controller};
use super::files::{Flow, NodeId, Nodes};
use super::text::FileError;

/// Bytes of headers in a data packet: Ethernet 14, IPv4 20, UDP 8, sequence number and priority 6.
pub const HEADERS: u64 = 48;
/// Buffer that each ingress queue has to itself (`switch-mmu.cc`).
const RESERVED: u64 = 4 * 1024;
/// Bytes below the threshold at which a pause ends.
const RESUME_OFFSET: u64 = 3 * 1024;
/// The PFC threshold is this power of two's share of what is free, at ports no faster than hosts' links.
const PFC_SHIFT: u32 = 3;

/// An experiment.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is called: its directory, or what stands before `_config.txt`.
    pub name: String,
    /// Configuration.
    pub config: Config,
    /// Nodes and links.
    pub nodes: Nodes,
    /// Flows by start.
    pub flows: Vec<Flow>,
    /// Round trip and bottleneck of each pair of hosts that has a flow.
    pub paths: BTreeMap<(NodeId, NodeId), Path>,
    /// Round trip and bandwidth-delay product that are the largest of any pair of hosts.
    pub largest: Largest,
}

/// What lies between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Round trip of an empty network, nanoseconds: delays there and back, and one packet's payload serialised on each link
    /// once.
    pub base_rtt: u64,
    /// The slowest link.
    pub bottleneck: Rate,
}

impl Path {
    /// Bytes that fill it for one round trip.
    #[must_use]
    pub fn bdp(self) -> u64 {
        let bits = u128::from(self.base_rtt) * u128::from(self.bottleneck.as_bps());
        u64::try_from(bits / 1_000_000_000 / 8).unwrap_or(u64::MAX)
    }

    /// What `size` bytes take in an empty network, nanoseconds.
    #[must_use]
    pub fn ideal_fct(self, size: u64, payload: u32) -> u64 {
        let bytes = size + size.div_ceil(u64::from(payload)) * HEADERS;
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.bottleneck.as_bps().max(1));
        self.base_rtt + u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// The largest values over all pairs of hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Largest {
    /// Nanoseconds.
    pub rtt: u64,
    /// Bytes.
    pub bdp: u64,
}

impl Case {
    /// Puts the files together: `config` was read first, since it names the two others.
    ///
    /// # Errors
    /// What [`Nodes::read`] and [`Flow::read_all`] refuse; a link rate without thresholds; a buffer smaller than its headroom;
    /// a rate floor above a host's link.
    pub fn new(
        name: &str,
        config: Config,
        topology: (&str, &str),
        flows: (&str, &str),
    ) -> Result<Self, FileError> {
        let nodes = Nodes::read(topology.0, topology.1)?;
        let flows = Flow::read_all(flows.0, flows.1, &nodes)?;
        let mut case = Self {
            name: name.to_owned(),
            config,
            nodes,
            flows,
            paths: BTreeMap::new(),
            largest: Largest::default(),
        };
        case.check()?;
        case.measure_paths();
        Ok(case)
    }

    /// Reads all three files: `config` is its name and text, `load` reads those that it names.
    ///
    /// # Errors
    /// [`Config::read`]'s and [`Case::new`]'s, and what `load` says.
    pub fn load(
        name: &str,
        config: (&str, &str),
        mut load: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, FileError> {
        let config = Config::read(config.0, config.1)?;
        let mut named = |file: &str, key: &str| {
            load(file).map_err(|why| config.error(format!("{key} {file}: {why}")))
        };
        let topology = named(&config.topology_file, "TOPOLOGY_FILE")?;
        let flows = named(&config.flow_file, "FLOW_FILE")?;
        let files = (config.topology_file.clone(), config.flow_file.clone());
        Self::new(name, config, (&files.0, &topology), (&files.1, &flows))
    }

    fn check(&self) -> Result<(), FileError> {
        for link in &self.nodes.links {
            let rate = link.rate.as_bps();
            if !link.ends.iter().any(|end| self.nodes.is_switch(*end)) {
                continue;
            }
            for (key, there) in [
                ("KMIN_MAP", self.config.kmin.contains_key(&rate)),
                ("KMAX_MAP", self.config.kmax.contains_key(&rate)),
                ("PMAX_MAP", self.config.pmax.contains_key(&rate)),
            ] {
                if !there {
                    return Err(self.config.error(format!(
                        "{key} has no value for {rate} b/s, the rate of the link on line {} of {}",
                        link.line, self.nodes.file
                    )));
                }
            }
        }
        for id in &self.nodes.switches {
            self.switch_config(*id).check().map_err(|error| {
                self.config.error(format!(
                    "BUFFER_SIZE {} and the links of switch {} don't fit: {error}",
                    self.config.buffer, id.0
                ))
            })?;
        }
        if self.config.controller == Controller::Dcqcn {
            let slowest = self.host_links().map(|(_, rate)| rate).min();
            let params = Params {
                rp: self.rp_params(),
                ..Params::ns3_mellanox()
            };
            params
                .validate(slowest)
                .map_err(|error| self.config.error(error.to_string()))?;
        }
        Ok(())
    }

    /// Hosts by number, with the rate of their link.
    pub fn host_links(&self) -> impl Iterator<Item = (NodeId, Rate)> + '_ {
        let rates: BTreeMap<NodeId, Rate> = self
            .nodes
            .links
            .iter()
            .flat_map(|l| l.ends.map(|end| (end, l.rate)))
            .filter(|(end, _)| !self.nodes.is_switch(*end))
            .collect();
        rates.into_iter()
    }

    /// Delay of a host's link.
    #[must_use]
    pub fn delay(&self, host: NodeId) -> Picos {
        let links = &self.nodes.links;
        let link = links.iter().find(|l| l.ends.contains(&host));
        link.map_or(Picos::ZERO, |l| l.delay)
    }

    /// The reaction point as the configuration sets it.
    #[must_use]
    pub fn rp_params(&self) -> RpParams {
        let c = &self.config;
        RpParams {
            clamp_tgt_rate: c.clamp_target_rate,
            rpg_time_reset: Duration::from_micros(c.rp_timer),
            rpg_threshold: c.fast_recovery_times,
            rpg_ai_rate: c.rate_ai,
            rpg_hai_rate: c.rate_hai,
            rpg_min_rate: c.min_rate,
            dce_tcp_rtt: Duration::from_micros(c.alpha_resume_interval),
            rate_reduce_monitor_period: Duration::from_micros(c.rate_decrease_interval),
            ewma_gain: Some(c.ewma_gain),
            ..Params::ns3_mellanox().rp
        }
    }

    /// Window of a pair's QPs in bytes; 0: none.
    #[must_use]
    pub fn window(&self, source: NodeId, destination: NodeId) -> u64 {
        if !self.config.window {
            return 0;
        }
        if self.config.global_window {
            return self.largest.bdp;
        }
        self.paths
            .get(&(source, destination))
            .map_or(0, |path| path.bdp())
    }

    /// Host and switch numbers of the simulator.
    #[must_use]
    pub fn numbering(&self) -> Numbering {
        let mut numbering = Numbering::default();
        for id in (0..self.nodes.count).map(NodeId) {
            let node = if self.nodes.is_switch(id) {
                numbering.switches.push(id);
                Node::Switch(SwitchId(numbering.switches.len() as u32 - 1))
            } else {
                numbering.hosts.push(id);
                Node::Host(HostId(numbering.hosts.len() as u32 - 1))
            };
            numbering.nodes.push(node);
        }
        numbering
    }

    /// Of each link, what share of packets is lost, and whether it is the link's own (`third.cc`: a rate of its own, or the one
    /// that all others have).
    #[must_use]
    pub fn error_rates(&self) -> Vec<(f64, bool)> {
        let links = self.nodes.links.iter();
        let rate = links.map(|link| match link.error_rate {
            own if own > 0.0 => (own, true),
            _ => (self.config.error_rate, false),
        });
        rate.collect()
    }

    /// The network.
    #[must_use]
    pub fn topology(&self, numbering: &Numbering) -> Topology {
        let links = self.nodes.links.iter().map(|link| LinkSpec {
            ends: link.ends.map(|end| numbering.node(end)),
            rate: link.rate,
            delay: link.delay,
            overhead: 0,
            faults: [Faults::default(); 2],
            down: Vec::new(),
        });
        Topology {
            hosts: numbering
                .hosts
                .iter()
                .map(|id| HostSpec {
                    name: id.0.to_string(),
                })
                .collect(),
            switches: numbering
                .switches
                .iter()
                .map(|id| SwitchSpec {
                    name: id.0.to_string(),
                    config: self.switch_config(*id),
                })
                .collect(),
            links: links.collect(),
        }
    }

    /// A switch as `third.cc` sets it up and `switch-mmu.cc` runs it.
    fn switch_config(&self, id: NodeId) -> SwitchConfig {
        let c = &self.config;
        let nic_rate = self.host_links().next().map_or(Rate::ZERO, |(_, r)| r);
        let used: BTreeSet<u8> = self.flows.iter().map(|f| f.priority).collect();
        let priorities: [bool; PRIORITIES] =
            std::array::from_fn(|p| used.iter().any(|u| usize::from(*u) == p));
        let ports: Vec<PortConfig> = self
            .nodes
            .links
            .iter()
            .filter(|l| l.ends.contains(&id))
            .map(|link| {
                let rate = link.rate.as_bps();
                let ecn = EcnConfig {
                    kmin: u64::from(c.kmin.get(&rate).copied().unwrap_or(0)) * 1_000,
                    kmax: u64::from(c.kmax.get(&rate).copied().unwrap_or(0)) * 1_000,
                    pmax: c.pmax.get(&rate).copied().unwrap_or(0.0),
                };
                PortConfig {
                    rate: link.rate,
                    delay: Duration::from_nanos(link.delay.as_nanos()),
                    ecn: std::array::from_fn(|p| {
                        (c.marking && priorities.get(p) == Some(&true)).then_some(ecn)
                    }),
                    scheduler: Scheduler::RoundRobin {
                        strict: std::array::from_fn(|p| p == 0),
                    },
                    headroom: headroom(link.rate, link.delay.as_nanos()),
                    alpha: Some(alpha(link.rate, nic_rate)),
                }
            })
            .collect();
        // The reference sets headroom and reserve aside once a port, however many priorities use them.
        let once: u64 = ports.iter().map(|p| p.headroom + RESERVED).sum();
        let again = once * (used.len() as u64).saturating_sub(1);
        SwitchConfig {
            ports,
            buffer: u64::from(c.buffer) * 1024 * 1024 + again,
            reserved: RESERVED,
            mark_on: MarkOn::Dequeue,
            pfc: Some(PfcConfig {
                priorities,
                threshold: PfcThreshold::Dynamic(share(PFC_SHIFT)),
                resume_offset: RESUME_OFFSET,
                quanta: None,
            }),
            tail_drop: None,
        }
    }

    /// Breadth first from every destination, as `CalculateRoute` does.
    fn measure_paths(&mut self) {
        let mut neighbours: BTreeMap<NodeId, Vec<(NodeId, u64, Rate)>> = BTreeMap::new();
        for link in &self.nodes.links {
            let [a, b] = link.ends;
            let delay = link.delay.as_nanos();
            neighbours.entry(a).or_default().push((b, delay, link.rate));
            neighbours.entry(b).or_default().push((a, delay, link.rate));
        }
        let pairs: BTreeSet<(NodeId, NodeId)> = self
            .flows
            .iter()
            .map(|f| (f.source, f.destination))
            .collect();
        let hosts: Vec<NodeId> = (0..self.nodes.count)
            .map(NodeId)
            .filter(|id| !self.nodes.is_switch(*id))
            .collect();
        for to in &hosts {
            // Delay, serialisation of one payload, slowest link.
            let mut reached: BTreeMap<NodeId, (u64, u64, Rate)> =
                BTreeMap::from([(*to, (0, 0, Rate::from_bps(u64::MAX)))]);
            let mut open = VecDeque::from([*to]);
            while let Some(at) = open.pop_front() {
                let (delay, tx, slowest) = reached[&at];
                for (next, link_delay, rate) in neighbours.get(&at).into_iter().flatten() {
                    if reached.contains_key(next) {
                        continue;
                    }
                    let one = u64::from(self.config.payload) * 8_000_000_000 / rate.as_bps();
                    let there = (delay + link_delay, tx + one, slowest.min(*rate));
                    reached.insert(*next, there);
                    if self.nodes.is_switch(*next) {
                        open.push_back(*next);
                    }
                }
            }
            for from in hosts.iter().filter(|h| *h != to) {
                let Some((delay, tx, bottleneck)) = reached.get(from).copied() else {
                    continue;
                };
                let path = Path {
                    base_rtt: 2 * delay + tx,
                    bottleneck,
                };
                self.largest.rtt = self.largest.rtt.max(path.base_rtt);
                self.largest.bdp = self.largest.bdp.max(path.bdp());
                if pairs.contains(&(*from, *to)) {
                    self.paths.insert((*from, *to), path);
                }
            }
        }
    }
}

/// What the reference holds back for each lossless ingress queue: three times what the link holds, truncated in between.
fn headroom(rate: Rate, delay: u64) -> u64 {
    let bits = u128::from(rate.as_bps()) * u128::from(delay);
    u64::try_from(bits / 8 / 1_000_000_000 * 3).unwrap_or(u64::MAX)
}

/// Of a port: a share of 1/8, doubled each time its rate is halved on the way down to the hosts'.
fn alpha(rate: Rate, nic_rate: Rate) -> f64 {
    let (mut shift, mut rate) = (PFC_SHIFT, rate.as_bps());
    while rate > nic_rate.as_bps() && shift > 0 {
        shift -= 1;
        rate /= 2;
    }
    share(shift)
}

fn share(shift: u32) -> f64 {
    1.0 / f64::from(1_u32 << shift)
}

/// The simulator's numbers of the reference's nodes, and back.
#[derive(Clone, Debug, Default)]
pub struct Numbering {
    nodes: Vec<Node>,
    /// The reference's number of each host.
    pub hosts: Vec<NodeId>,
    /// The reference's number of each switch.
    pub switches: Vec<NodeId>,
}

impl Numbering {
    /// The simulator's name of a node that the case has.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Node {
        self.nodes
            .get(id.0 as usize)
            .copied()
            .unwrap_or(Node::Host(HostId(u32::MAX)))
    }

    /// The host with this number.
    #[must_use]
    pub fn host(&self, id: NodeId) -> HostId {
        match self.node(id) {
            Node::Host(host) => host,
            Node::Switch(_) => HostId(u32::MAX),
        }
    }
}
