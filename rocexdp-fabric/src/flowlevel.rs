//! Flow-level mode: no packets, only rates. At each arrival and departure every flow gets its max-min fair share of the links on
//! its way, by water-filling (Bertsekas and Gallager, "Data Networks", 6.5.2): the link that leaves least to each of its flows
//! fixes their rate, then the next.
//!
//! What it leaves out: queues, marks, pauses and losses; how a rate controller gets to its rate, and that it may not be fair; the
//! sender's window; what acknowledgements take of links; faults and links that are down. What stays: capacities, headers, the way
//! that ECMP draws for a flow (another than packet mode draws), and the delay of a packet and its acknowledgement in an empty
//! network, added to each flow.

use std::collections::BTreeMap;

use rocexdp_proto::rng::Rng;
use rocexdp_sim::{
    picos::Picos,
    topology::{LinkId, Node, Topology},
};

use crate::{
    results::{
        self, Ended, FlowSeries, LinkSeries, Run, Series, Slowdown, Totals,
        series::{MOST, MOST_FLOWS, seconds},
        summary::jain,
    },
    run::{Packets, Path, Paths, Watch},
    scenario::{Control, Mode, Scenario},
    workload::{self, random::stream},
};

/// A direction of a link: twice its number, and 1 from its second end.
type Direction = usize;

struct Active {
    flow: usize,
    left: f64,
    /// Payload bytes per picosecond.
    rate: f64,
    way: Vec<Direction>,
}

struct State<'a> {
    topology: &'a Topology,
    packets: Packets,
    /// Payload bytes per picosecond of each direction.
    capacity: Vec<f64>,
    active: Vec<Active>,
    delivered: Vec<f64>,
    ends: Vec<Option<Picos>>,
    now: f64,
    warmup: f64,
    /// Of each direction and flow, payload bytes since statistics began.
    carried: Vec<f64>,
    measured: Vec<f64>,
    series: Series,
    recorded: BTreeMap<usize, usize>,
}

pub(crate) fn run(scenario: &Scenario, seed: u64, watch: &Watch) -> Result<Run, String> {
    let topology = &scenario.fabric.topology;
    let flows = scenario.workload.flows(seed);
    let packets = Packets::of(scenario);
    let mut paths = Paths::new(topology);
    // Ways are drawn apart from everything that workloads draw.
    let mut rng = stream(seed, u64::MAX - 1);
    let mut state = State::new(scenario, topology, packets, &flows);
    let mut known = BTreeMap::new();
    let plan = scenario.run;
    let end = plan.duration.map_or(f64::INFINITY, |end| end.0 as f64);
    let mut next = 0;
    let ended = loop {
        if watch.stopped() {
            break Ended::Interrupted;
        }
        let arrival = flows
            .get(next)
            .map_or(f64::INFINITY, |flow| flow.start.0 as f64);
        let departure = state.departure();
        let until = arrival.min(departure).min(end);
        if until.is_infinite() {
            // Nothing arrives, nothing ends, and no time is set: only flows without a rate are left.
            break if state.active.is_empty() {
                Ended::FlowsDone
            } else {
                Ended::Idle
            };
        }
        state.advance(until);
        if until >= end {
            break Ended::Duration;
        }
        state.depart(&flows, &mut known, topology);
        while let Some(flow) = flows.get(next).filter(|flow| flow.start.0 as f64 <= until) {
            let path = way(&mut paths, flow, &mut rng).ok_or_else(|| no_way(scenario, flow))?;
            state.arrive(next, flow, &path);
            known.insert(next, path);
            next += 1;
        }
        state.share(cap(scenario));
        if next == flows.len() && state.active.is_empty() && !plan.whole {
            break Ended::FlowsDone;
        }
    };
    Ok(state.into_run(scenario, seed, &flows, &mut paths, ended))
}

fn way(paths: &mut Paths<'_>, flow: &workload::Flow, rng: &mut Rng) -> Option<Path> {
    paths.chosen((flow.from, flow.nic), (flow.to, flow.to_nic), |n| {
        rng.below(n as u64) as usize
    })
}

fn no_way(scenario: &Scenario, flow: &workload::Flow) -> String {
    let name = |host: rocexdp_sim::topology::HostId| &scenario.fabric.hosts[host.0 as usize].name;
    format!(
        "no way leads from {} to {} (say which NIC by nic and to_nic)",
        name(flow.from),
        name(flow.to)
    )
}

/// A rate that no flow exceeds, bits per second.
fn cap(scenario: &Scenario) -> Option<f64> {
    match scenario.transport.control {
        Control::Fixed(rate) => Some(rate.as_bps() as f64),
        _ => None,
    }
}

impl<'a> State<'a> {
    fn new(
        scenario: &Scenario,
        topology: &'a Topology,
        packets: Packets,
        flows: &[workload::Flow],
    ) -> Self {
        let share = |overhead: u32| {
            packets.payload as f64
                / (packets.payload + packets.headers + u64::from(overhead)) as f64
        };
        let capacity = topology.links.iter().flat_map(|link| {
            let bytes = link.rate.as_bps() as f64 / 8e12 * share(link.overhead);
            [bytes, bytes]
        });
        let mut chosen: Vec<usize> = (0..flows.len()).collect();
        if chosen.len() > MOST_FLOWS {
            chosen.sort_by_key(|n| std::cmp::Reverse(flows[*n].bytes.unwrap_or(u64::MAX)));
            chosen.truncate(MOST_FLOWS);
            chosen.sort_unstable();
        }
        let names = topology.links.iter().flat_map(|link| {
            let [a, b] = link.ends.map(|end| topology.name(end));
            [format!("{a}>{b}"), format!("{b}>{a}")]
        });
        let series = Series {
            step: scenario.run.sample,
            steps: 0,
            flows: chosen
                .iter()
                .map(|flow| FlowSeries {
                    flow: *flow,
                    bytes: Vec::new(),
                })
                .collect(),
            ports: Vec::new(),
            links: names
                .map(|name| LinkSeries {
                    name,
                    busy: Vec::new(),
                })
                .collect(),
        };
        let directions = 2 * topology.links.len();
        Self {
            topology,
            packets,
            capacity: capacity.collect(),
            active: Vec::new(),
            delivered: vec![0.0; flows.len()],
            ends: vec![None; flows.len()],
            now: 0.0,
            warmup: scenario.run.warmup.0 as f64,
            carried: vec![0.0; directions],
            measured: vec![0.0; flows.len()],
            series,
            recorded: chosen
                .into_iter()
                .enumerate()
                .map(|(place, flow)| (flow, place))
                .collect(),
        }
    }

    fn departure(&self) -> f64 {
        let ends = self
            .active
            .iter()
            .filter(|flow| flow.rate > 0.0)
            .map(|flow| self.now + flow.left / flow.rate);
        ends.fold(f64::INFINITY, f64::min)
    }

    /// Time passes, a step of the series after the other.
    fn advance(&mut self, until: f64) {
        while self.now < until {
            let step = self.series.step.0 as f64;
            let boundary = (self.series.steps as f64 + 1.0) * step;
            let mut to = until.min(boundary);
            if self.now < self.warmup {
                to = to.min(self.warmup);
            }
            self.pass(to);
            if to >= boundary {
                self.series.steps += 1;
                if self.series.steps >= MOST {
                    self.series.halve();
                }
            }
        }
    }

    /// Rates hold until `to`, within one step.
    fn pass(&mut self, to: f64) {
        let span = to - self.now;
        let (step, place) = (self.series.step.0 as f64, self.series.steps);
        for flow in &mut self.active {
            let bytes = (flow.rate * span).min(flow.left);
            flow.left -= bytes;
            self.delivered[flow.flow] += bytes;
            if let Some(series) = self.recorded.get(&flow.flow) {
                add(&mut self.series.flows[*series].bytes, place, bytes);
            }
            for direction in &flow.way {
                let share = bytes / self.capacity[*direction] / step;
                add(&mut self.series.links[*direction].busy, place, share);
                if self.now >= self.warmup {
                    self.carried[*direction] += bytes;
                }
            }
            if self.now >= self.warmup {
                self.measured[flow.flow] += bytes;
            }
        }
        self.now = to;
    }

    /// Takes out flows that have nothing left.
    fn depart(
        &mut self,
        flows: &[workload::Flow],
        known: &mut BTreeMap<usize, Path>,
        topology: &Topology,
    ) {
        let now = self.now;
        let (ends, packets) = (&mut self.ends, self.packets);
        self.active.retain(|flow| {
            // Less than a byte is what rounding left; and what takes no time that can be told from now would never be over.
            if flow.left >= 0.5 && now + flow.left / flow.rate > now {
                return true;
            }
            if let Some(path) = known.remove(&flow.flow) {
                let last = flows[flow.flow].bytes.unwrap_or(0);
                ends[flow.flow] = Some(Picos(now as u64) + path.tail(topology, packets, last));
            }
            false
        });
    }

    fn arrive(&mut self, number: usize, flow: &workload::Flow, path: &Path) {
        let mut at = Node::Host(flow.from);
        let way = path.links.iter().map(|LinkId(link)| {
            let ends = self.topology.links[*link as usize].ends;
            let from = usize::from(ends[0] != at);
            at = ends[1 - from];
            2 * *link as usize + from
        });
        let way = way.collect();
        let left = flow.bytes.map_or(f64::INFINITY, |bytes| bytes as f64);
        self.active.push(Active {
            flow: number,
            left,
            rate: 0.0,
            way,
        });
    }

    /// Water-filling.
    fn share(&mut self, cap: Option<f64>) {
        let mut users: BTreeMap<Direction, Vec<usize>> = BTreeMap::new();
        for (n, flow) in self.active.iter_mut().enumerate() {
            flow.rate = f64::NAN;
            for direction in &flow.way {
                users.entry(*direction).or_default().push(n);
            }
        }
        let mut links: BTreeMap<Direction, (f64, usize)> = users
            .iter()
            .map(|(direction, flows)| (*direction, (self.capacity[*direction], flows.len())))
            .collect();
        let payload =
            self.packets.payload as f64 / (self.packets.payload + self.packets.headers) as f64;
        let cap = cap.map_or(f64::INFINITY, |bps| bps / 8e12 * payload);
        let mut open = self.active.len();
        while open > 0 {
            let tightest = links
                .iter()
                .filter(|(_, (_, flows))| *flows > 0)
                .map(|(direction, (room, flows))| (*direction, room / *flows as f64))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            let Some((direction, fair)) = tightest else {
                break;
            };
            // All that are left are held by their own rate.
            let fixed: Vec<usize> = if fair >= cap {
                (0..self.active.len())
                    .filter(|n| self.active[*n].rate.is_nan())
                    .collect()
            } else {
                users[&direction]
                    .iter()
                    .copied()
                    .filter(|n| self.active[*n].rate.is_nan())
                    .collect()
            };
            for n in fixed {
                let flow = &mut self.active[n];
                flow.rate = fair.min(cap);
                open -= 1;
                for direction in &flow.way {
                    if let Some((room, flows)) = links.get_mut(direction) {
                        *room = (*room - fair.min(cap)).max(0.0);
                        *flows -= 1;
                    }
                }
            }
        }
    }

    fn into_run(
        mut self,
        scenario: &Scenario,
        seed: u64,
        flows: &[workload::Flow],
        paths: &mut Paths<'_>,
        ended: Ended,
    ) -> Run {
        let last = self
            .ends
            .iter()
            .flatten()
            .max()
            .copied()
            .unwrap_or_default();
        let now = if ended == Ended::FlowsDone {
            last
        } else {
            Picos(self.now as u64)
        };
        let from = scenario.run.warmup.min(now);
        let span = seconds(now - from).max(1e-12);
        let results = self.flows(scenario, flows, paths, (from, now));
        let endless: Vec<f64> = results
            .iter()
            .filter(|flow| flow.bytes.is_none())
            .map(|flow| flow.goodput_bps)
            .collect();
        let mut links = Vec::new();
        for (n, (spec, info)) in self
            .topology
            .links
            .iter()
            .zip(&scenario.fabric.links)
            .enumerate()
        {
            for end in 0..2 {
                let busy = self.carried[2 * n + end] / self.capacity[2 * n + end] / 1e12 / span;
                links.push(results::Link {
                    name: info.name.clone(),
                    from: self.topology.name(spec.ends[end]).to_owned(),
                    to: self.topology.name(spec.ends[1 - end]).to_owned(),
                    rate_bps: spec.rate.as_bps(),
                    utilisation: busy.min(1.0),
                    ..results::Link::default()
                });
            }
        }
        for values in self.series.flows.iter_mut().map(|flow| &mut flow.bytes) {
            values.resize(self.series.steps, 0.0);
        }
        for values in self.series.links.iter_mut().map(|link| &mut link.busy) {
            values.resize(self.series.steps, 0.0);
        }
        self.series
            .links
            .retain(|link| link.busy.iter().any(|busy| *busy > 0.0));
        Run {
            seed,
            parameters: scenario.parameters.iter().cloned().collect(),
            mode: Mode::Flow.name(),
            host: scenario.transport.host.name(),
            control: scenario.transport.control.name(),
            ended,
            partial: ended == Ended::Interrupted,
            simulated_s: seconds(now),
            measured_from_s: seconds(from),
            warmup_missed: scenario.run.warmup > now,
            totals: Totals {
                flows: results.len(),
                finished: results.iter().filter(|flow| flow.end_s.is_some()).count(),
                bytes: results.iter().map(|flow| flow.delivered).sum(),
                goodput_bps: self.measured.iter().sum::<f64>() * 8.0 / span,
                ..Totals::default()
            },
            drops: BTreeMap::new(),
            slowdown: Slowdown::of(&results),
            jain: jain(&endless),
            deadlocks: Vec::new(),
            flows: results,
            queues: Vec::new(),
            links,
            series: self.series,
        }
    }

    fn flows(
        &self,
        scenario: &Scenario,
        flows: &[workload::Flow],
        paths: &mut Paths<'_>,
        (from, now): (Picos, Picos),
    ) -> Vec<results::Flow> {
        let mut known: BTreeMap<_, Option<Path>> = BTreeMap::new();
        let started = flows
            .iter()
            .enumerate()
            .filter(|(_, flow)| flow.start <= now);
        let mut all = Vec::new();
        for (n, flow) in started {
            let ends = ((flow.from, flow.nic), (flow.to, flow.to_nic));
            let path = known
                .entry(ends)
                .or_insert_with(|| paths.between(ends.0, ends.1));
            let ideal = flow
                .bytes
                .zip(path.as_ref())
                .map(|(bytes, path)| seconds(path.ideal(self.topology, self.packets, bytes)));
            let end = self.ends[n].filter(|end| *end <= now);
            let fct = end.map(|end| seconds(end - flow.start));
            let goodput = match flow.bytes {
                None => self.measured[n] * 8.0 / seconds(now - from.max(flow.start)).max(1e-12),
                Some(_) => {
                    self.delivered[n] * 8.0 / seconds(end.unwrap_or(now) - flow.start).max(1e-12)
                }
            };
            all.push(results::Flow {
                from: scenario.fabric.hosts[flow.from.0 as usize].name.clone(),
                to: scenario.fabric.hosts[flow.to.0 as usize].name.clone(),
                class: scenario.classes[flow.class].name.clone(),
                bytes: flow.bytes,
                delivered: self.delivered[n].round() as u64,
                start_s: seconds(flow.start),
                end_s: end.map(seconds),
                fct_s: fct,
                ideal_s: ideal,
                slowdown: fct.zip(ideal).map(|(fct, ideal)| (fct / ideal).max(1.0)),
                goodput_bps: goodput,
                retransmissions: None,
                cnps: None,
                cuts: None,
                error: None,
            });
        }
        all
    }
}

/// Adds to a value that may not be there yet.
fn add(values: &mut Vec<f32>, place: usize, value: f64) {
    if values.len() <= place {
        values.resize(place + 1, 0.0);
    }
    values[place] += value as f32;
}
