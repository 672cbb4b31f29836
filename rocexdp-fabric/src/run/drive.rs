//! One run packet by packet: the network goes from step to step, flows are watched for their end, and all is read off at last.
//!
//! What hosts are is the driver's: the shipped transport, or the reference's.

use std::collections::BTreeMap;

use rocexdp_sim::{
    net::{DeadlockCheck, Ended as Left, Host, Network, QueueId},
    picos::Picos,
    switch::DropReason,
    topology::Node,
};

use super::{
    Progress,
    capture::Captures,
    path::{Packets, Path, Paths},
    recorder::Recorder,
};
use crate::{
    results::{Deadlock, Ended, Flow, Run, Slowdown, Totals, series::seconds, summary::jain},
    scenario::{Mode, Scenario},
    workload,
};

/// How a flow ended.
#[derive(Clone, Debug, Default)]
pub(super) struct End {
    pub at: Picos,
    pub error: Option<String>,
}

/// What was counted of a flow.
#[derive(Clone, Copy, Default)]
pub(super) struct Counted {
    pub retransmissions: Option<u64>,
    pub cnps: Option<u64>,
    pub cuts: Option<u64>,
}

/// Hosts of a kind, with their flows.
pub(super) trait Driver {
    type Host: Host;

    fn network(&mut self) -> &mut Network<Self::Host>;
    fn flows(&self) -> &[workload::Flow];
    fn packets(&self) -> Packets;
    /// Flows that have ended since the last time.
    fn ended(&mut self) -> Vec<(usize, End)>;
    /// Payload of a flow that has arrived.
    fn delivered(&self, flow: usize) -> u64;
    fn counted(&self, flow: usize) -> Counted;
    /// Sums over all hosts: CNPs handled, packets sent again.
    fn sums(&self) -> (u64, u64);
    fn network_ref(&self) -> &Network<Self::Host>;
}

/// What is known of flows while they run.
struct Flows {
    ends: Vec<Option<End>>,
    /// Of those with an end, how many have not ended.
    left: usize,
    endless: bool,
    /// Delivered when statistics began.
    before: Vec<u64>,
}

pub(super) fn run<D: Driver>(
    mut driver: D,
    scenario: &Scenario,
    seed: u64,
    progress: &mut Progress<'_>,
    captures: Option<&Captures>,
) -> Run {
    if let Some(captures) = captures {
        captures.attach(driver.network());
    }
    let plan = scenario.run;
    let dscp = scenario.classes.first().map_or(0, |class| class.dscp);
    let priority = scenario.fabric.dscp_to_priority[usize::from(dscp)];
    let topology = driver.network_ref().topology().clone();
    let mut recorder = Recorder::new(&topology, plan.sample, driver.flows(), priority);
    let finite = driver
        .flows()
        .iter()
        .filter(|flow| flow.bytes.is_some())
        .count();
    let mut flows = Flows {
        ends: vec![None; driver.flows().len()],
        left: finite,
        endless: finite < driver.flows().len(),
        before: vec![0; driver.flows().len()],
    };
    let mut marked = plan.warmup == Picos::ZERO;
    if marked {
        recorder.mark(driver.network_ref());
    }
    let ended = loop {
        let mut until = recorder.next();
        let step_ends = plan.duration.is_none_or(|end| until <= end);
        until = until.min(plan.duration.unwrap_or(Picos::MAX));
        let marks = !marked && plan.warmup <= until;
        let mut stuck = marks
            && plan.warmup < until
            && driver.network().run_until(plan.warmup) == Left::Deadlock;
        if marks {
            marked = true;
            recorder.mark(driver.network_ref());
            for flow in 0..flows.before.len() {
                flows.before[flow] = driver.delivered(flow);
            }
        }
        let left = driver.network().run_until(until);
        stuck |= left == Left::Deadlock;
        for (flow, end) in driver.ended() {
            if flows.ends[flow].replace(end).is_none() && driver.flows()[flow].bytes.is_some() {
                flows.left -= 1;
            }
        }
        if step_ends {
            recorder.step(driver.network_ref(), |flow| driver.delivered(flow));
        }
        progress.at(match plan.duration {
            Some(end) if flows.endless || plan.whole => until.0 as f64 / end.0 as f64,
            _ => 1.0 - flows.left as f64 / finite.max(1) as f64,
        });
        if flows.left == 0 && !flows.endless && !plan.whole {
            break Ended::FlowsDone;
        }
        if plan.duration.is_some_and(|end| until >= end) {
            break Ended::Duration;
        }
        if stuck {
            break Ended::Deadlock;
        }
        if left == Left::Idle && plan.duration.is_none() {
            break Ended::Idle;
        }
        if progress.watch.stopped() {
            break Ended::Interrupted;
        }
    };
    read_off(&driver, scenario, seed, ended, (recorder, flows))
}

fn read_off<D: Driver>(
    driver: &D,
    scenario: &Scenario,
    seed: u64,
    ended: Ended,
    (recorder, watched): (Recorder, Flows),
) -> Run {
    let network = driver.network_ref();
    let now = network.now();
    let from = recorder.marked_at();
    let span = seconds(now - from);
    let flows = flows(driver, scenario, &watched, from);
    let queues = recorder.queues(network);
    let counted = network.totals();
    let mut drops = BTreeMap::from([
        ("link_fault", counted.lost_fault),
        ("link_down", counted.lost_down),
        ("no_route", counted.no_route),
    ]);
    drops.extend(
        DropReason::ALL
            .map(DropReason::name)
            .into_iter()
            .zip(counted.dropped),
    );
    let measured = |n: usize| driver.delivered(n) - watched.before[n];
    let (cnps, retransmissions) = driver.sums();
    let totals = Totals {
        flows: flows.len(),
        finished: flows.iter().filter(|flow| flow.end_s.is_some()).count(),
        failed: flows.iter().filter(|flow| flow.error.is_some()).count(),
        bytes: flows.iter().map(|flow| flow.delivered).sum(),
        goodput_bps: (0..driver.flows().len()).map(measured).sum::<u64>() as f64 * 8.0
            / span.max(1e-12),
        packets: counted.sent,
        packet_hops: network.work().1,
        marked: queues.iter().map(|queue| queue.marked).sum(),
        cnps,
        retransmissions,
        pauses: queues.iter().map(|queue| queue.pauses_sent).sum(),
        // An empty sum is -0.0.
        paused_s: queues.iter().map(|queue| queue.pausing_s).sum::<f64>() + 0.0,
        dropped: drops.values().sum(),
    };
    let endless: Vec<f64> = flows
        .iter()
        .filter(|flow| flow.bytes.is_none())
        .map(|flow| flow.goodput_bps)
        .collect();
    Run {
        seed,
        parameters: scenario.parameters.iter().cloned().collect(),
        mode: Mode::Packet.name(),
        host: scenario.transport.host.name(),
        control: scenario.transport.control.name(),
        ended,
        partial: ended == Ended::Interrupted,
        simulated_s: seconds(now),
        measured_from_s: seconds(from),
        warmup_missed: scenario.run.warmup > now,
        totals,
        drops,
        slowdown: Slowdown::of(&flows),
        jain: jain(&endless),
        deadlocks: deadlocks(network),
        flows,
        queues,
        links: recorder.links(network, &scenario.fabric.links),
        series: recorder.into_series(),
    }
}

/// How a deadlock is looked for. It ends a run that nothing else would: pauses are told again for ever, and what waits for their
/// end gives up no sooner.
pub(super) fn check(scenario: &Scenario) -> Option<DeadlockCheck> {
    Some(DeadlockCheck {
        stop: scenario.run.stop_at_deadlock || scenario.run.duration.is_none(),
        ..DeadlockCheck::default()
    })
}

fn deadlocks<H: Host>(network: &Network<H>) -> Vec<Deadlock> {
    let topology = network.topology();
    let name = |(switch, port, _): &QueueId| {
        let at = Node::Switch(*switch);
        let other = network.link_at(at, *port).and_then(|(link, end)| {
            let spec = topology.links.get(link.0 as usize)?;
            spec.ends.get(1 - end).copied()
        });
        let to = other.map_or("", |node| topology.name(node));
        format!("{}>{to}", topology.name(at))
    };
    let all = network.deadlocks().iter();
    all.map(|found| Deadlock {
        since_s: seconds(found.since),
        found_s: seconds(found.noticed),
        priority: found.queues.first().map_or(0, |queue| queue.2),
        cycle: found.queues.iter().map(name).collect(),
    })
    .collect()
}

/// Flows that had started.
fn flows<D: Driver>(driver: &D, scenario: &Scenario, watched: &Flows, from: Picos) -> Vec<Flow> {
    let network = driver.network_ref();
    let topology = network.topology();
    let now = network.now();
    let mut paths = Paths::new(topology);
    let mut known: BTreeMap<_, Option<Path>> = BTreeMap::new();
    let started = driver
        .flows()
        .iter()
        .enumerate()
        .filter(|(_, flow)| flow.start <= now);
    started
        .map(|(n, flow)| {
            let ends = ((flow.from, flow.nic), (flow.to, flow.to_nic));
            let path = known
                .entry(ends)
                .or_insert_with(|| paths.between(ends.0, ends.1));
            let end = watched.ends[n].as_ref();
            let done = end.filter(|end| end.error.is_none());
            let fct = done.map(|end| seconds(end.at - flow.start));
            let ideal = match (flow.bytes, path) {
                (Some(bytes), Some(path)) => {
                    Some(seconds(path.ideal(topology, driver.packets(), bytes)))
                }
                _ => None,
            };
            let delivered = driver.delivered(n);
            let goodput = if flow.bytes.is_none() {
                let since = from.max(flow.start);
                (delivered - watched.before[n]) as f64 * 8.0 / seconds(now - since).max(1e-12)
            } else {
                let until = end.map_or(now, |end| end.at);
                delivered as f64 * 8.0 / seconds(until - flow.start).max(1e-12)
            };
            let counted = driver.counted(n);
            Flow {
                from: scenario.fabric.hosts[flow.from.0 as usize].name.clone(),
                to: scenario.fabric.hosts[flow.to.0 as usize].name.clone(),
                class: scenario.classes[flow.class].name.clone(),
                bytes: flow.bytes,
                delivered,
                start_s: seconds(flow.start),
                end_s: done.map(|end| seconds(end.at)),
                fct_s: fct,
                ideal_s: ideal,
                slowdown: fct.zip(ideal).map(|(fct, ideal)| (fct / ideal).max(1.0)),
                goodput_bps: goodput,
                retransmissions: counted.retransmissions,
                cnps: counted.cnps,
                cuts: counted.cuts,
                error: end.and_then(|end| end.error.clone()),
            }
        })
        .collect()
}
