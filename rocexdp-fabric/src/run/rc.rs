//! Hosts that run the shipped transport.

use std::{collections::BTreeMap, num::NonZeroU16, time::Duration};

use rocexdp_common::maps::QpEngine;
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::verbs::Status;
use rocexdp_proto::{ClassService, EndpointConfig, RateControl, SelectiveRepeat, TrafficClasses};
use rocexdp_sim::{
    net::{
        Network, Options,
        rc::{Connection, Message, Op, RcHost},
    },
    picos::Picos,
    topology::{HostId, PortId},
};

use super::{
    drive::{Counted, Driver, End, check},
    path::{Packets, Paths},
};
use crate::{
    scenario::{Control, Scenario},
    workload::Flow,
};

type Ends = [rocexdp_sim::net::rc::End; 2];

pub(super) struct Rc {
    network: Network<RcHost>,
    flows: Vec<Flow>,
    /// Of each flow: its connection, and bytes of the flows before it there.
    places: Vec<(usize, u64)>,
    connections: Vec<Ends>,
    hosts: Vec<(HostId, HostId)>,
    shared: bool,
    packets: Packets,
}

impl Rc {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Result<Self, String> {
        let transport = &scenario.transport;
        let flows = scenario.workload.flows(seed);
        let topology = scenario.fabric.seeded(seed);
        let packets = Packets::of(scenario);
        let mut longest = Picos::ZERO;
        let mut paths = Paths::new(&topology);
        let mut pairs = BTreeMap::new();
        for flow in &flows {
            let ends = ((flow.from, flow.nic), (flow.to, flow.to_nic));
            if pairs.contains_key(&ends) {
                continue;
            }
            let Some(path) = paths.between(ends.0, ends.1) else {
                return Err(no_way(scenario, flow));
            };
            longest = longest.max(path.round_trip(&topology, packets));
            pairs.insert(ends, ());
        }
        let hosts = (0_u32..).zip(&scenario.fabric.hosts).map(|(n, host)| {
            let nics: Vec<_> = host
                .nics
                .iter()
                .map(|nic| endpoint(scenario, nic.rate, longest))
                .collect();
            RcHost::new(HostId(n), &nics, seed)
        });
        let hosts = hosts.collect();
        let options = Options {
            seed,
            deadlock: check(scenario),
            ..Options::default()
        };
        let network = Network::new(topology, hosts, &options).map_err(|error| error.to_string())?;
        let mut all = Self {
            network,
            places: Vec::with_capacity(flows.len()),
            flows,
            connections: Vec::new(),
            hosts: Vec::new(),
            shared: transport.per_pair,
            packets,
        };
        all.connect(scenario)?;
        Ok(all)
    }

    fn connect(&mut self, scenario: &Scenario) -> Result<(), String> {
        let transport = &scenario.transport;
        let mut known: BTreeMap<_, (usize, u64)> = BTreeMap::new();
        for n in 0..self.flows.len() {
            let flow = self.flows[n];
            let key = (flow.from, flow.nic, flow.to, flow.to_nic, flow.class);
            // Behind a flow without an end no other would ever start: it has a connection of its own.
            let shared = transport.per_pair && flow.bytes.is_some();
            let (connection, before) = match known.get(&key) {
                Some(known) if shared => *known,
                _ => (self.open(scenario, &flow)?, 0),
            };
            if shared {
                let after = before.saturating_add(flow.bytes.unwrap_or(0));
                known.insert(key, (connection, after));
            }
            self.places.push((connection, before));
            let [sender, _] = self.connections[connection];
            let message = Message {
                tag: n as u64,
                start: flow.start,
                bytes: flow.bytes.unwrap_or(u64::MAX),
                op: Op::Write,
            };
            self.network.host_mut(flow.from).post(sender, message);
        }
        Ok(())
    }

    fn open(&mut self, scenario: &Scenario, flow: &Flow) -> Result<usize, String> {
        let transport = &scenario.transport;
        let with = Connection {
            path_mtu: PathMtu::from_bytes(transport.mtu).unwrap_or(PathMtu::Mtu4096),
            selective: transport
                .selective_paths
                .map(|paths| SelectiveRepeat { paths }),
            dscp: scenario.classes.get(flow.class).map(|class| class.dscp),
            timeout: transport.timeout,
            ..Connection::default()
        };
        let hosts = self.network.hosts_mut([flow.from, flow.to]);
        let ends = RcHost::connect(hosts, [flow.nic, flow.to_nic], &with)
            .map_err(|error| format!("connecting {}: {error}", ends(scenario, flow)))?;
        self.connections.push(ends);
        self.hosts.push((flow.from, flow.to));
        Ok(self.connections.len() - 1)
    }

    /// Payload that a connection's receiver has taken.
    fn arrived(&self, connection: usize) -> u64 {
        let of = |(ends, (_, to)): (&Ends, &(HostId, HostId))| {
            let [_, end] = *ends;
            let info = self.network.host(*to).endpoint(end.nic).qp_info(end.qpn)?;
            Some(info.stats.rx_bytes)
        };
        let both = self
            .connections
            .get(connection)
            .zip(self.hosts.get(connection));
        both.and_then(of).unwrap_or(0)
    }

    /// Counters of a connection's sender.
    fn sender(&self, connection: usize) -> Option<QpEngine> {
        let [end, _] = *self.connections.get(connection)?;
        let (from, _) = *self.hosts.get(connection)?;
        let mut stats = QpEngine::default();
        let endpoint = self.network.host(from).endpoint(end.nic);
        endpoint.fill(end.qpn, &mut stats).then_some(stats)
    }
}

fn ends(scenario: &Scenario, flow: &Flow) -> String {
    let name = |host: HostId, nic: PortId| {
        let host = &scenario.fabric.hosts[host.0 as usize];
        if host.nics.len() == 1 {
            host.name.clone()
        } else {
            format!("{} (NIC {})", host.name, nic.0)
        }
    };
    format!(
        "{} to {}",
        name(flow.from, flow.nic),
        name(flow.to, flow.to_nic)
    )
}

pub(super) fn no_way(scenario: &Scenario, flow: &Flow) -> String {
    format!(
        "no way leads from {} (say which NIC by nic and to_nic)",
        ends(scenario, flow)
    )
}

/// An endpoint as the scenario says. `longest` is the longest round trip of its flows in an empty network.
fn endpoint(
    scenario: &Scenario,
    rate: rocexdp_proto::time::Rate,
    longest: Picos,
) -> EndpointConfig {
    let transport = &scenario.transport;
    let rate_control = match transport.control {
        Control::Dcqcn => RateControl::Dcqcn,
        Control::DcqcnWindow => RateControl::DcqcnWindow {
            base_rtt: Duration::from_nanos(longest.0.div_ceil(1000)),
            scaled: true,
        },
        Control::Fixed(fixed) => RateControl::Fixed(Some(fixed.min(rate))),
        Control::None => RateControl::Fixed(None),
    };
    let mut classes = TrafficClasses {
        priority_of_dscp: scenario.fabric.dscp_to_priority,
        ..TrafficClasses::default()
    };
    for class in &scenario.classes {
        let priority = scenario.fabric.dscp_to_priority[usize::from(class.dscp)];
        let weight = u16::try_from(class.weight)
            .ok()
            .and_then(NonZeroU16::new)
            .unwrap_or(NonZeroU16::MIN);
        classes.service[usize::from(priority)] = if class.strict {
            ClassService::Strict
        } else {
            ClassService::Weighted(weight)
        };
    }
    EndpointConfig {
        rp: transport.dcqcn.rp.clone(),
        np: transport.dcqcn.np.clone(),
        rate_control,
        line_rate: Some(rate),
        classes,
        data_dscp: scenario.classes.first().map_or(0, |class| class.dscp),
        max_inflight_packets: transport.window,
        ack_req_interval: transport.ack_interval,
        ..EndpointConfig::default()
    }
}

impl Driver for Rc {
    type Host = RcHost;

    fn network(&mut self) -> &mut Network<RcHost> {
        &mut self.network
    }

    fn network_ref(&self) -> &Network<RcHost> {
        &self.network
    }

    fn flows(&self) -> &[Flow] {
        &self.flows
    }

    fn packets(&self) -> Packets {
        self.packets
    }

    fn ended(&mut self) -> Vec<(usize, End)> {
        let mut all = Vec::new();
        for host in 0..self.network.hosts().len() as u32 {
            for done in self.network.host_mut(HostId(host)).take_done() {
                let error = (done.status != Status::Success).then(|| format!("{:?}", done.status));
                all.push((
                    done.tag as usize,
                    End {
                        at: done.end,
                        error,
                    },
                ));
            }
        }
        all
    }

    fn delivered(&self, flow: usize) -> u64 {
        let Some((connection, before)) = self.places.get(flow).copied() else {
            return 0;
        };
        let arrived = self.arrived(connection);
        let own = arrived.saturating_sub(before);
        self.flows
            .get(flow)
            .and_then(|flow| flow.bytes)
            .map_or(own, |bytes| own.min(bytes))
    }

    fn counted(&self, flow: usize) -> Counted {
        let place = self.places.get(flow).filter(|_| !self.shared);
        let Some(stats) = place.and_then(|(connection, _)| self.sender(*connection)) else {
            return Counted::default();
        };
        Counted {
            retransmissions: Some(stats.retransmitted_packets),
            cnps: Some(stats.rp_cnp_handled),
            cuts: Some(stats.rate_cuts),
        }
    }

    fn sums(&self) -> (u64, u64) {
        let all = (0..self.connections.len()).filter_map(|n| self.sender(n));
        all.fold((0, 0), |(cnps, again), stats| {
            (
                cnps + stats.rp_cnp_handled,
                again + stats.retransmitted_packets,
            )
        })
    }
}
