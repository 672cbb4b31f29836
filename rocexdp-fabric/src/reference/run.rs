//! An experiment in simulated time, from its files to its numbers.
//!
//! Follows `third.cc`'s run and the monitors that made the published rows: samples every `MON_INTERVAL`, of the switch port that
//! leads to the host most flows go to, and of those flows.
//!
//! Must not: print. Progress goes to a closure, which may end the run; what was gathered until then is kept.

use std::collections::BTreeMap;
use std::rc::Rc;

use rocexdp_sim::net::{Host, Network, NetworkError, Options};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::{DropReason, PRIORITIES};
use rocexdp_sim::topology::{HostId, Node, PortId, SwitchId};

use super::case::{Case, Numbering};
use super::config::Controller;
use super::fct::{Done, FctRow};
use super::files::NodeId;
use super::host::{self, Assigned, HostParams, Places, RefHost};
use super::random::{ErrorModels, Shared};
use super::stats::{FlowSample, Gatherer, Pauses, Sample, Subject, Summary};

/// A run is not left alone for longer, where samples are far apart or there are none.
const LONGEST: Picos = Picos::from_micros(100);

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The row of `incast_summary.csv`.
    pub summary: Summary,
    /// What `pfc_summary.csv` has beside it.
    pub pauses: Pauses,
    /// Flows that ended, in the order of the list.
    pub done: Vec<Done>,
    /// Flows of the list.
    pub flows: usize,
    /// Samples that were kept.
    pub series: Vec<Sample>,
    /// Packets with data that hosts sent, and those of them that were sent again; 0 of the reference's hosts, which do not say.
    pub sent: (u64, u64),
    /// Packets sent on links: what a run's cost is told by.
    pub packet_hops: u64,
    /// Simulated nanoseconds that were left when the run was ended from outside; 0: it ran to its end.
    pub left: u64,
}

impl Outcome {
    /// The rows of `fct_summary.csv`; none if no flow ended.
    #[must_use]
    pub fn fct_rows(&self) -> Vec<FctRow> {
        FctRow::all(&self.summary.case, &self.done)
    }
}

/// How a run is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of the marks: the reference's `RngRun`. With 1 they are those of the published runs.
    pub seed: u64,
    /// Keep each sample of the first so many nanoseconds, and then one every so many; (0, 0): none.
    pub keep: (u64, u64),
}

impl Settings {
    /// With this seed, keeping no samples.
    #[must_use]
    pub const fn seeded(seed: u64) -> Self {
        Self { seed, keep: (0, 0) }
    }
}

/// A network in which a case's flows run, whatever its hosts are.
pub(crate) trait Hosts {
    /// A host.
    type Host: Host;

    /// The network.
    fn network(&self) -> &Network<Self::Host>;
    /// The same, to go on.
    fn network_mut(&mut self) -> &mut Network<Self::Host>;
    /// It has gone on.
    fn went_on(&mut self) {}
    /// A flow now.
    fn flow(&self, flow: Watched) -> FlowSample;
    /// Pauses that the hosts have received, and nanoseconds of pause, where they count them.
    fn paused(&self) -> Option<(u64, u64)> {
        None
    }
    /// Flows that have ended, and when, in any order.
    fn ended(&self) -> Vec<(u32, Picos)>;
    /// [`Outcome::sent`].
    fn sent(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// A flow that is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// Its place in the case's list.
    pub number: u32,
    /// Where it starts.
    pub source: HostId,
    /// Where it ends.
    pub destination: HostId,
}

/// What of a run is looked at: the switch port that leads to the host most flows go to, and those flows.
struct Observer<'a> {
    case: &'a Case,
    numbering: &'a Numbering,
    switch: SwitchId,
    port: PortId,
    flows: Vec<Watched>,
}

/// Runs a case with the reference's hosts. `progress` is told how much of the run is done, of 1, now and then; false ends it.
///
/// # Errors
/// What the network refuses.
pub fn run(
    case: &Case,
    settings: Settings,
    progress: impl FnMut(f64) -> bool,
) -> Result<Outcome, NetworkError> {
    let numbering = case.numbering();
    let mut hosts = Reference::new(case, &numbering, settings.seed)?;
    Ok(observe(case, &numbering, settings, &mut hosts, progress))
}

/// Runs a case to its end, and looks as the monitors do.
pub(crate) fn observe<R: Hosts>(
    case: &Case,
    numbering: &Numbering,
    settings: Settings,
    hosts: &mut R,
    mut progress: impl FnMut(f64) -> bool,
) -> Outcome {
    let observer = Observer::new(case, numbering);
    let monitor = case.config.monitor;
    let end = monitor.end.min(case.config.stop);
    let mut gatherer = Gatherer::new(
        Subject {
            case: case.name.clone(),
            link: observer.link_rate(hosts.network()),
            length: end.saturating_sub(monitor.start),
        },
        observer.flows.len(),
    );
    let mut series = Vec::new();
    let (whole, every) = settings.keep;
    let mut next_kept = 0;
    let mut left = 0;
    let length = (end - monitor.start).max(1) as f64;
    // The last sample is two periods before the end, as the published windows say.
    let mut at = monitor.start + monitor.interval;
    while at + monitor.interval < end {
        let share = (at - monitor.start) as f64 / length;
        // A look at a time comes before what happens then: it was planned long before.
        let looks = Picos::from_nanos(at) - Picos(1);
        if !advance(hosts.network_mut(), looks, || progress(share)) {
            left = case.config.stop - hosts.network().now().as_nanos();
            break;
        }
        hosts.went_on();
        let sample = observer.sample(hosts, at - monitor.start);
        if every > 0 && (sample.at <= whole || sample.at >= next_kept) {
            next_kept = sample.at + every;
            series.push(sample.clone());
        }
        gatherer.add(sample);
        if !progress(share) {
            left = case.config.stop - at;
            break;
        }
        at += monitor.interval;
    }
    if left == 0 {
        // The end was planned first of all.
        let stop = Picos::from_nanos(case.config.stop) - Picos(1);
        if !advance(hosts.network_mut(), stop, || progress(1.0)) {
            left = case.config.stop - hosts.network().now().as_nanos();
        }
        progress(1.0);
    }
    hosts.went_on();
    gatherer.end(&observer.sample(hosts, hosts.network().now().as_nanos()));
    let (_, packet_hops) = hosts.network().work();
    Outcome {
        summary: gatherer.summary(),
        pauses: gatherer.pauses(),
        done: done(case, hosts.ended()),
        flows: case.flows.len(),
        series,
        sent: hosts.sent(),
        packet_hops,
        left,
    }
}

/// Goes on until then, in steps between which it may be ended. False: it was.
fn advance<H: Host>(
    network: &mut Network<H>,
    until: Picos,
    mut go_on: impl FnMut() -> bool,
) -> bool {
    loop {
        let next = until.min(network.now() + LONGEST);
        network.run_until(next);
        if next == until {
            return true;
        }
        if !go_on() {
            return false;
        }
    }
}

/// The flows that ended, in the order of the list.
fn done(case: &Case, mut ended: Vec<(u32, Picos)>) -> Vec<Done> {
    ended.sort_unstable();
    let done = |(number, at): (u32, Picos)| {
        let flow = case.flows.get(number as usize)?;
        let path = case.paths.get(&(flow.source, flow.destination))?;
        Some(Done {
            flow: number,
            size: flow.size,
            fct: at.as_nanos().saturating_sub(flow.start),
            ideal: path.ideal_fct(flow.size, case.config.payload),
        })
    };
    ended.into_iter().filter_map(done).collect()
}

impl<'a> Observer<'a> {
    fn new(case: &'a Case, numbering: &'a Numbering) -> Self {
        let busiest = busiest(case);
        let (switch, port) = network_side(case, numbering, busiest);
        let flows = (0..)
            .zip(&case.flows)
            .filter(|(_, f)| f.destination == busiest)
            .map(|(number, f)| Watched {
                number,
                source: numbering.host(f.source),
                destination: numbering.host(f.destination),
            });
        Self {
            case,
            numbering,
            switch,
            port,
            flows: flows.collect(),
        }
    }

    /// Rate of the link behind the port.
    fn link_rate<H: Host>(&self, network: &Network<H>) -> u64 {
        network
            .link_at(Node::Switch(self.switch), self.port)
            .and_then(|(link, _)| self.case.nodes.links.get(link.0 as usize))
            .map_or(0, |link| link.rate.as_bps())
    }

    /// Whether a host is at the other end of a switch's port.
    fn leads_to_host(&self, switch: NodeId, port: PortId) -> bool {
        let links = self.case.nodes.links.iter();
        let mut here = links.filter(|l| l.ends.contains(&switch));
        here.nth(port.0.into())
            .is_some_and(|l| l.ends.iter().any(|end| !self.case.nodes.is_switch(*end)))
    }

    fn sample<R: Hosts>(&self, hosts: &R, at: u64) -> Sample {
        let network = hosts.network();
        let now = network.now();
        let mut sample = Sample {
            at,
            ..Sample::default()
        };
        // Pauses are counted where they are received.
        let told = hosts.paused();
        let tells = told.is_some();
        let (pauses, time) = told.unwrap_or_default();
        (sample.pauses, sample.pause_time) = (pauses, time);
        for (number, id) in (0..).map(SwitchId).zip(&self.numbering.switches) {
            let switch = network.switch(number);
            let ports = self.case.nodes.links.iter();
            let ports = ports.filter(|l| l.ends.contains(id)).count();
            for port in (0..u16::try_from(ports).unwrap_or(u16::MAX)).map(PortId) {
                for priority in 0..PRIORITIES as u8 {
                    let c = switch.counters(now, port, priority);
                    sample.pauses += c.pauses_received;
                    sample.pause_time += c.paused.as_nanos();
                    if !tells && self.leads_to_host(*id, port) {
                        sample.pauses += c.pauses_sent;
                        sample.pause_time += c.pausing.as_nanos();
                    }
                    sample.drops += DropReason::ALL.map(|r| c.dropped(r)).iter().sum::<u64>();
                    if number == self.switch && port == self.port {
                        sample.queue += c.queue;
                        sample.marked += c.marked;
                        sample.sent_packets += c.tx_packets;
                        sample.sent_bytes += c.tx_bytes;
                    }
                }
            }
        }
        sample.flows = self.flows.iter().map(|flow| hosts.flow(*flow)).collect();
        sample
    }
}

/// The reference's hosts.
struct Reference {
    network: Network<RefHost>,
}

impl Reference {
    fn new(case: &Case, numbering: &Numbering, seed: u64) -> Result<Self, NetworkError> {
        let topology = case.topology(numbering);
        let options = Options {
            seed,
            reference: true,
            // A switch's seed is its number of node (`SwitchNode::SwitchNode`).
            ecmp_seeds: Some(numbering.switches.iter().map(|id| id.0).collect()),
            ..Options::default()
        };
        let mut network = Network::new(topology, hosts(case, numbering), &options)?;
        let own_error_rates = case.nodes.links.iter().filter(|l| l.error_rate > 0.0);
        let draws = Shared::new(seed, case.nodes.count, own_error_rates.count());
        for switch in (0..).map(SwitchId).take(numbering.switches.len()) {
            network.set_draws(switch, Box::new(draws.clone()));
        }
        if let Some(losses) = ErrorModels::new(seed, &case.error_rates()) {
            network.set_losses(Box::new(losses));
        }
        for flow in &case.flows {
            let start = Picos::from_nanos(flow.start);
            network.plan(numbering.host(flow.source), start, host::START);
        }
        Ok(Self { network })
    }
}

impl Hosts for Reference {
    type Host = RefHost;

    fn network(&self) -> &Network<RefHost> {
        &self.network
    }

    fn network_mut(&mut self) -> &mut Network<RefHost> {
        &mut self.network
    }

    fn flow(&self, flow: Watched) -> FlowSample {
        let host = self.network.host(flow.source);
        let received = self.network.host(flow.destination).received(flow.number);
        match host.sender(flow.number) {
            Some(qp) if host.has_started(flow.number) => {
                let look = qp.look(self.network.now(), host.line());
                FlowSample {
                    active: qp.finished.is_none(),
                    rate: look.rate.as_bps(),
                    alpha: look.alpha,
                    received,
                    cnps: qp.cnps,
                    cuts: look.cuts,
                }
            }
            _ => FlowSample::default(),
        }
    }

    fn paused(&self) -> Option<(u64, u64)> {
        let all = self.network.hosts().iter().map(RefHost::paused);
        Some(all.fold((0, 0), |(pauses, time), (more, longer)| {
            (pauses + more, time + longer.as_nanos())
        }))
    }

    fn ended(&self) -> Vec<(u32, Picos)> {
        let hosts = self.network.hosts().iter();
        hosts
            .flat_map(RefHost::senders)
            .filter_map(|qp| Some((qp.assigned.number, qp.finished?)))
            .collect()
    }
}

/// The host that most flows go to, the first of those: whose flows [`Sample::flows`] are.
pub fn busiest(case: &Case) -> NodeId {
    let mut flows: BTreeMap<NodeId, usize> = BTreeMap::new();
    for flow in &case.flows {
        *flows.entry(flow.destination).or_default() += 1;
    }
    let most = flows.values().max().copied().unwrap_or(0);
    let first = flows.iter().find(|(_, n)| **n == most);
    first.map_or_else(|| first_host(case), |(id, _)| *id)
}

fn first_host(case: &Case) -> NodeId {
    case.host_links().next().map_or(NodeId(0), |(id, _)| id)
}

/// The switch and port at the other end of a host's link.
fn network_side(case: &Case, numbering: &Numbering, host: NodeId) -> (SwitchId, PortId) {
    let links = &case.nodes.links;
    let other = links.iter().find_map(|l| match l.ends {
        [a, b] if a == host => Some(b),
        [a, b] if b == host => Some(a),
        _ => None,
    });
    let Some(id) = other else {
        return (SwitchId(0), PortId(0));
    };
    let port = links
        .iter()
        .filter(|l| l.ends.contains(&id))
        .position(|l| l.ends.contains(&host));
    let port = PortId(port.and_then(|p| u16::try_from(p).ok()).unwrap_or(0));
    match numbering.node(id) {
        Node::Switch(switch) => (switch, port),
        Node::Host(_) => (SwitchId(0), port),
    }
}

/// The hosts with their flows.
fn hosts(case: &Case, numbering: &Numbering) -> Vec<RefHost> {
    let c = &case.config;
    let params = Rc::new(HostParams {
        rp: (c.controller == Controller::Dcqcn).then(|| case.rp_params()),
        payload: c.payload,
        ack_interval: c.ack_interval,
        chunk: c.chunk,
        variable_window: c.variable_window,
        rate_bound: c.rate_bound,
        ack_high_priority: c.ack_high_priority,
        cnp_interval: Picos::from_nanos(c.cnp_interval),
    });
    let mut sending: BTreeMap<NodeId, Vec<Assigned>> = BTreeMap::new();
    let mut receiving: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut places = Places::default();
    for (number, flow) in (0..).zip(&case.flows) {
        let sender = sending.entry(flow.source).or_default();
        places.sender.push(sender.len() as u32);
        sender.push(Assigned {
            number,
            flow: *flow,
            source: numbering.host(flow.source),
            destination: numbering.host(flow.destination),
            window: case.window(flow.source, flow.destination),
        });
        let receiver = receiving.entry(flow.destination).or_default();
        places.receiver.push(*receiver as u32);
        *receiver += 1;
    }
    let places = Rc::new(places);
    case.host_links()
        .map(|(id, line)| {
            RefHost::new(
                params.clone(),
                (line, case.delay(id)),
                sending.get(&id).map_or(&[], Vec::as_slice),
                receiving.get(&id).copied().unwrap_or(0),
                places.clone(),
            )
        })
        .collect()
}
