//! Hosts as the reference simulators' are.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    rc::Rc,
};

use rocexdp_sim::{
    net::{Network, Options},
    picos::Picos,
    topology::{HostId, Node},
};

use super::{
    drive::{Counted, Driver, End, check},
    path::{Packets, Paths},
    rc::no_way,
};
use crate::{
    reference::{
        files::{Flow as Listed, NodeId},
        host::{self, Assigned, HostParams, Places, RefHost},
    },
    scenario::{Control, Scenario},
    workload::Flow,
};

/// As `third.cc` numbers the first flow of a pair.
const FIRST_PORT: u16 = 10_000;
const DESTINATION_PORT: u16 = 100;
/// What all its experiments are configured with.
const CHUNK: u32 = 4000;

pub(super) struct Reference {
    network: Network<RefHost>,
    flows: Vec<Flow>,
    /// Of each flow, where its sender is in its host's list.
    senders: Vec<usize>,
    noticed: Vec<bool>,
    packets: Packets,
}

impl Reference {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Result<Self, String> {
        let transport = &scenario.transport;
        let topology = scenario.fabric.seeded(seed);
        let flows = scenario.workload.flows(seed);
        let packets = Packets::of(scenario);
        if let Some(host) = scenario
            .fabric
            .hosts
            .iter()
            .find(|host| host.nics.len() > 1)
        {
            return Err(format!(
                "reference hosts have one NIC, and {} has {}",
                host.name,
                host.nics.len()
            ));
        }
        let params = Rc::new(HostParams {
            rp: matches!(transport.control, Control::Dcqcn | Control::DcqcnWindow)
                .then(|| transport.dcqcn.rp.clone()),
            payload: transport.mtu,
            ack_interval: 1,
            chunk: CHUNK,
            variable_window: true,
            rate_bound: true,
            ack_high_priority: true,
            cnp_interval: Picos::from_nanos(
                transport.dcqcn.np.min_time_between_cnps.as_nanos() as u64
            ),
        });
        let mut paths = Paths::new(&topology);
        let mut windows = BTreeMap::new();
        for flow in &flows {
            let ends = ((flow.from, flow.nic), (flow.to, flow.to_nic));
            if let Entry::Vacant(window) = windows.entry(ends) {
                let path = paths
                    .between(ends.0, ends.1)
                    .ok_or_else(|| no_way(scenario, flow))?;
                let round_trip = u128::from(path.round_trip(&topology, packets).0);
                let bits = round_trip * u128::from(path.bottleneck(&topology).as_bps());
                window.insert((bits / 8_000_000_000_000) as u64);
            }
        }
        // The reference's `GLOBAL_T`: all flows have the largest.
        let window = match transport.control {
            Control::DcqcnWindow => windows.values().copied().max().unwrap_or(0),
            _ => 0,
        };
        let count = scenario.fabric.hosts.len();
        let mut sending: Vec<Vec<Assigned>> = vec![Vec::new(); count];
        let mut receiving = vec![0; count];
        let mut ports = BTreeMap::new();
        let mut places = Places::default();
        for (number, flow) in (0_u32..).zip(&flows) {
            let (from, to) = (flow.from.0 as usize, flow.to.0 as usize);
            let port = ports.entry((flow.from, flow.to)).or_insert(FIRST_PORT);
            let class = &scenario.classes[flow.class];
            places.sender.push(sending[from].len() as u32);
            places.receiver.push(receiving[to]);
            receiving[to] += 1;
            sending[from].push(Assigned {
                number,
                flow: Listed {
                    source: NodeId(flow.from.0),
                    destination: NodeId(flow.to.0),
                    priority: scenario.fabric.dscp_to_priority[usize::from(class.dscp)],
                    source_port: *port,
                    destination_port: DESTINATION_PORT,
                    size: size(scenario, flow)?,
                    start: flow.start.0.div_ceil(1000),
                },
                source: flow.from,
                destination: flow.to,
                window,
            });
            *port = port.wrapping_add(1);
        }
        let senders = places.sender.iter().map(|place| *place as usize).collect();
        let places = Rc::new(places);
        let hosts = scenario.fabric.hosts.iter().enumerate().map(|(n, host)| {
            let receivers = receiving[n] as usize;
            let here = Node::Host(HostId(n as u32));
            let link = topology.links.iter().find(|l| l.ends.contains(&here));
            let delay = link.map_or(Picos::ZERO, |l| l.delay);
            RefHost::new(
                Rc::clone(&params),
                (host.nics[0].rate, delay),
                &sending[n],
                receivers,
                Rc::clone(&places),
            )
        });
        let options = Options {
            seed,
            reference: true,
            deadlock: check(scenario),
            ..Options::default()
        };
        let hosts = hosts.collect();
        let mut network =
            Network::new(topology, hosts, &options).map_err(|error| error.to_string())?;
        for flow in &flows {
            let start = Picos::from_nanos(flow.start.0.div_ceil(1000));
            network.plan(flow.from, start, host::START);
        }
        Ok(Self {
            network,
            noticed: vec![false; flows.len()],
            flows,
            senders,
            packets,
        })
    }

    fn sender(&self, flow: usize) -> Option<&host::Qp> {
        let host = self.network.host(self.flows.get(flow)?.from);
        host.senders().get(*self.senders.get(flow)?)
    }
}

/// Sequence numbers have 32 bits.
fn size(scenario: &Scenario, flow: &Flow) -> Result<u64, String> {
    let most = u64::from(u32::MAX);
    let rate = scenario.fabric.hosts[flow.from.0 as usize].nics[0].rate;
    let sendable = scenario.run.duration.map_or(0, |end| {
        let bits = u128::from(end.0) * u128::from(rate.as_bps()) / 1_000_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    });
    match flow.bytes {
        Some(bytes) if bytes <= most => Ok(bytes),
        None if sendable <= most => Ok(most),
        _ => Err(format!(
            "a flow of reference hosts has at most {most} bytes (32-bit sequence numbers): shorten flows or run.duration"
        )),
    }
}

impl Driver for Reference {
    type Host = RefHost;

    fn network(&mut self) -> &mut Network<RefHost> {
        &mut self.network
    }

    fn network_ref(&self) -> &Network<RefHost> {
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
        for flow in 0..self.flows.len() {
            let finished = self.sender(flow).and_then(|qp| qp.finished);
            if let (Some(at), false) = (finished, self.noticed[flow]) {
                self.noticed[flow] = true;
                all.push((flow, End { at, error: None }));
            }
        }
        all
    }

    fn delivered(&self, flow: usize) -> u64 {
        let Some(listed) = self.flows.get(flow) else {
            return 0;
        };
        self.network.host(listed.to).received(flow as u32)
    }

    fn counted(&self, flow: usize) -> Counted {
        let Some(qp) = self.sender(flow) else {
            return Counted::default();
        };
        // What was sent beyond what there was to send.
        let needed = self.delivered(flow).div_ceil(self.packets.payload);
        let again = qp.finished.map(|_| qp.sent.saturating_sub(needed));
        Counted {
            retransmissions: again,
            cnps: Some(qp.cnps),
            cuts: Some(qp.cuts()),
        }
    }

    fn sums(&self) -> (u64, u64) {
        let all = (0..self.flows.len()).map(|flow| self.counted(flow));
        all.fold((0, 0), |(cnps, again), c| {
            (
                cnps + c.cnps.unwrap_or(0),
                again + c.retransmissions.unwrap_or(0),
            )
        })
    }
}
