//! What is read off a network from step to step: series, and counters as they stood when statistics begin.

use std::collections::BTreeMap;

use rocexdp_sim::{
    net::{Host, Network},
    picos::Picos,
    switch::{PRIORITIES, QueueCounters},
    topology::{LinkId, Node, PortId, SwitchId, Topology},
};

use crate::results::{
    self, FlowSeries, LinkSeries, PortSeries, Series,
    series::{MOST_FLOWS, seconds},
};
use crate::workload::Flow;

/// A switch port.
struct Port {
    switch: SwitchId,
    port: PortId,
    to: String,
    before: Sum,
    series: PortSeries,
}

/// All priorities of a port together; times are the most of any.
#[derive(Clone, Copy, Default)]
struct Sum {
    packets: u64,
    marked: u64,
    integral: u128,
    paused: [Picos; PRIORITIES],
    pausing: [Picos; PRIORITIES],
}

/// Statistics begin here.
struct Mark {
    at: Picos,
    integrals: BTreeMap<(SwitchId, PortId, u8), u128>,
    busy: Vec<[Picos; 2]>,
}

pub(super) struct Recorder {
    ports: Vec<Port>,
    flows: Vec<(usize, u64, Vec<f32>)>,
    /// Directions of links, two for each: time spent sending so far, and shares of steps.
    links: Vec<(Picos, LinkSeries)>,
    step: Picos,
    steps: usize,
    last: Picos,
    mark: Option<Mark>,
}

impl Recorder {
    /// Of a network, and those of its flows that matter most: without an end first, then the longest. `priority` is the
    /// default class's.
    pub(super) fn new(topology: &Topology, step: Picos, flows: &[Flow], priority: u8) -> Self {
        let mut chosen: Vec<usize> = (0..flows.len()).collect();
        if chosen.len() > MOST_FLOWS {
            chosen.sort_by_key(|n| std::cmp::Reverse(flows[*n].bytes.unwrap_or(u64::MAX)));
            chosen.truncate(MOST_FLOWS);
            chosen.sort_unstable();
        }
        let mut ports = Vec::new();
        for (link, numbers) in topology.links.iter().zip(topology.ports()) {
            for (end, number) in numbers.into_iter().enumerate() {
                let Node::Switch(switch) = link.ends[end] else {
                    continue;
                };
                let to = topology.name(link.ends[1 - end]).to_owned();
                let name = format!("{}>{to}", topology.name(link.ends[end]));
                ports.push(Port {
                    switch,
                    port: number,
                    to,
                    before: Sum::default(),
                    series: PortSeries {
                        name,
                        thresholds: thresholds(topology, switch, number, priority),
                        ..PortSeries::default()
                    },
                });
            }
        }
        ports.sort_by_key(|port| (port.switch, port.port));
        let links = topology.links.iter().flat_map(|link| {
            let [a, b] = link.ends.map(|end| topology.name(end));
            [format!("{a}>{b}"), format!("{b}>{a}")]
        });
        let links = links.map(|name| LinkSeries {
            name,
            busy: Vec::new(),
        });
        Self {
            ports,
            flows: chosen.into_iter().map(|n| (n, 0, Vec::new())).collect(),
            links: links.map(|series| (Picos::ZERO, series)).collect(),
            step,
            steps: 0,
            last: Picos::ZERO,
            mark: None,
        }
    }

    /// When the next step ends.
    pub(super) fn next(&self) -> Picos {
        self.last + self.step
    }

    /// A step has ended.
    pub(super) fn step<H: Host>(&mut self, network: &Network<H>, delivered: impl Fn(usize) -> u64) {
        let now = network.now();
        let span = (now - self.last).0.max(1) as f64;
        self.last = now;
        for port in &mut self.ports {
            let sum = Sum::of(network, port.switch, port.port);
            let before = std::mem::replace(&mut port.before, sum);
            let series = &mut port.series;
            series
                .queue
                .push(((sum.integral - before.integral) as f64 / span) as f32);
            series.packets.push((sum.packets - before.packets) as f32);
            series.marked.push((sum.marked - before.marked) as f32);
            series.paused.push(share(&sum.paused, &before.paused, span));
            series
                .pausing
                .push(share(&sum.pausing, &before.pausing, span));
        }
        for (flow, before, bytes) in &mut self.flows {
            let now = delivered(*flow);
            bytes.push(now.saturating_sub(*before) as f32);
            *before = now;
        }
        for (n, (before, series)) in self.links.iter_mut().enumerate() {
            let busy = network.link(LinkId(n as u32 / 2))[n % 2].busy;
            series
                .busy
                .push((((busy - *before).0 as f64) / span).min(1.0) as f32);
            *before = busy;
        }
        self.steps += 1;
        if self.steps >= results::series::MOST {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let mut series = self.take_series();
        series.halve();
        (self.step, self.steps) = (series.step, series.steps);
        for (port, halved) in self.ports.iter_mut().zip(series.ports) {
            port.series = halved;
        }
        for (link, halved) in self.links.iter_mut().zip(series.links) {
            link.1 = halved;
        }
        for (flow, halved) in self.flows.iter_mut().zip(series.flows) {
            flow.2 = halved.bytes;
        }
    }

    fn take_series(&mut self) -> Series {
        Series {
            step: self.step,
            steps: self.steps,
            flows: self
                .flows
                .iter_mut()
                .map(|(flow, _, bytes)| FlowSeries {
                    flow: *flow,
                    bytes: std::mem::take(bytes),
                })
                .collect(),
            ports: self
                .ports
                .iter_mut()
                .map(|port| std::mem::take(&mut port.series))
                .collect(),
            links: self
                .links
                .iter_mut()
                .map(|(_, series)| std::mem::take(series))
                .collect(),
        }
    }

    /// Statistics begin now.
    pub(super) fn mark<H: Host>(&mut self, network: &Network<H>) {
        let mut integrals = BTreeMap::new();
        for port in &self.ports {
            for priority in 0..PRIORITIES as u8 {
                let counters =
                    network
                        .switch(port.switch)
                        .counters(network.now(), port.port, priority);
                integrals.insert((port.switch, port.port, priority), counters.queue_integral);
            }
        }
        let links = 0..network.topology().links.len() as u32;
        let busy = links
            .map(|link| network.link(LinkId(link)).map(|side| side.busy))
            .collect();
        self.mark = Some(Mark {
            at: network.now(),
            integrals,
            busy,
        });
    }

    /// When statistics began.
    pub(super) fn marked_at(&self) -> Picos {
        self.mark.as_ref().map_or(Picos::ZERO, |mark| mark.at)
    }

    /// Queues that carried something.
    pub(super) fn queues<H: Host>(&self, network: &Network<H>) -> Vec<results::Queue> {
        let now = network.now();
        let span = (now - self.marked_at()).0.max(1) as f64;
        let mut queues = Vec::new();
        for port in &self.ports {
            for priority in 0..PRIORITIES as u8 {
                let c: QueueCounters = network
                    .switch(port.switch)
                    .counters(now, port.port, priority);
                let dropped = c.dropped_in_all();
                if c.tx_packets == 0 && dropped == 0 && c.pauses_sent == 0 && c.queue_packets == 0 {
                    continue;
                }
                let key = (port.switch, port.port, priority);
                let before = self.mark.as_ref().and_then(|mark| mark.integrals.get(&key));
                queues.push(results::Queue {
                    switch: network
                        .topology()
                        .name(Node::Switch(port.switch))
                        .to_owned(),
                    port: port.port.0,
                    to: port.to.clone(),
                    priority,
                    packets: c.tx_packets,
                    bytes: c.tx_bytes,
                    marked: c.marked,
                    dropped,
                    mean_bytes: (c.queue_integral - before.copied().unwrap_or(0)) as f64 / span,
                    max_bytes: c.queue_max,
                    pauses_sent: c.pauses_sent,
                    pauses_received: c.pauses_received,
                    paused_s: seconds(c.paused),
                    pausing_s: seconds(c.pausing),
                });
            }
        }
        queues
    }

    /// Directions of links.
    pub(super) fn links<H: Host>(
        &self,
        network: &Network<H>,
        names: &[crate::fabric::Link],
    ) -> Vec<results::Link> {
        let topology = network.topology();
        let span = (network.now() - self.marked_at()).0.max(1) as f64;
        let mut links = Vec::new();
        for (n, (spec, info)) in topology.links.iter().zip(names).enumerate() {
            let sides = network.link(LinkId(n as u32));
            for (end, c) in sides.iter().enumerate() {
                let before = self.mark.as_ref().and_then(|mark| mark.busy.get(n));
                let busy = c.busy - before.map_or(Picos::ZERO, |sides| sides[end]);
                links.push(results::Link {
                    name: info.name.clone(),
                    from: topology.name(spec.ends[end]).to_owned(),
                    to: topology.name(spec.ends[1 - end]).to_owned(),
                    rate_bps: spec.rate.as_bps(),
                    packets: c.packets,
                    bytes: c.bytes,
                    // What has begun to be sent counts whole: a hair above 1 is 1.
                    utilisation: (busy.0 as f64 / span).min(1.0),
                    lost_fault: c.lost_fault,
                    lost_down: c.lost_down,
                    corrupted: c.corrupted,
                    duplicated: c.duplicated,
                    reordered: c.reordered,
                    pause_frames: c.pause_frames,
                });
            }
        }
        links
    }

    /// The series, ports that carried nothing left out.
    pub(super) fn into_series(mut self) -> Series {
        let mut series = self.take_series();
        series
            .links
            .retain(|link| link.busy.iter().any(|busy| *busy > 0.0));
        series.ports.retain(|port| {
            port.packets
                .iter()
                .chain(&port.queue)
                .any(|value| *value > 0.0)
        });
        series
    }
}

fn thresholds(
    topology: &Topology,
    switch: SwitchId,
    port: PortId,
    priority: u8,
) -> Option<(u64, u64)> {
    let switch = topology.switches.get(switch.0 as usize)?;
    let port = switch.config.ports.get(usize::from(port.0))?;
    let ecn = (*port.ecn.get(usize::from(priority))?)?;
    Some((ecn.kmin, ecn.kmax))
}

impl Sum {
    fn of<H: Host>(network: &Network<H>, switch: SwitchId, port: PortId) -> Self {
        let mut sum = Self::default();
        for priority in 0..PRIORITIES {
            let c = network
                .switch(switch)
                .counters(network.now(), port, priority as u8);
            sum.packets += c.tx_packets;
            sum.marked += c.marked;
            sum.integral += c.queue_integral;
            sum.paused[priority] = c.paused;
            sum.pausing[priority] = c.pausing;
        }
        sum
    }
}

fn share(now: &[Picos; PRIORITIES], before: &[Picos; PRIORITIES], span: f64) -> f32 {
    let most = now
        .iter()
        .zip(before)
        .map(|(now, before)| (*now - *before).0)
        .max();
    (most.unwrap_or(0) as f64 / span).min(1.0) as f32
}
