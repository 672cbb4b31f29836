//! What a run will need of memory, before it starts.
//!
//! Bytes per thing are rough, taken from the sizes of what is kept of each: an estimate is of the order, not the byte, and is made from
//! what a scenario says, not from its flows.
//!
//! Must not: look at the machine; its caller knows how much there is.

use crate::{
    results::series::{MOST, MOST_FLOWS},
    scenario::{Mode, Scenario},
};

/// A connection: two queue pairs, their queues, what is known of its flow.
const CONNECTION: f64 = 9_000.0;
/// A flow and its result.
const FLOW: f64 = 500.0;
/// A host with one NIC.
const HOST: f64 = 12_000.0;
/// A switch port with its eight queues.
const PORT: f64 = 3_000.0;
/// Which ports lead from one switch to another.
const WAY: f64 = 12.0;
/// A packet on a link or in a queue.
const PACKET: f64 = 200.0;
/// A step of a series.
const STEP: f64 = 4.0;

/// Memory of one run, in bytes, by what it is for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Flows that are expected.
    pub flows: f64,
    /// For flows and connections.
    pub for_flows: f64,
    /// For hosts, switches, routes and links.
    pub for_network: f64,
    /// For packets on the way at most.
    pub for_packets: f64,
    /// For recorded series.
    pub for_series: f64,
}

impl Estimate {
    /// Of a scenario.
    #[must_use]
    pub fn of(scenario: &Scenario, mode: Option<Mode>) -> Self {
        let fabric = &scenario.fabric;
        let topology = &fabric.topology;
        let flows = scenario.workload.expected();
        let hosts = topology.hosts.len() as f64;
        let ports: f64 = topology
            .switches
            .iter()
            .map(|switch| switch.config.ports.len() as f64)
            .sum();
        if mode.unwrap_or(scenario.run.mode) == Mode::Flow {
            return Self {
                flows,
                for_flows: flows * FLOW,
                for_network: hosts * 1000.0 + ports * 100.0,
                for_packets: 0.0,
                for_series: MOST as f64
                    * STEP
                    * (MOST_FLOWS as f64 + 2.0 * topology.links.len() as f64),
            };
        }
        // A window of each flow at most, and what buffers and links hold at most.
        let payload = f64::from(scenario.transport.mtu.max(1));
        let buffers: f64 = topology
            .switches
            .iter()
            .map(|switch| switch.config.buffer as f64 / payload)
            .sum();
        let links: f64 = topology
            .links
            .iter()
            .map(|link| {
                2.0 * link.delay.0 as f64 / 1e12 * link.rate.as_bps() as f64 / 8.0 / payload
            })
            .sum();
        let windows = flows * f64::from(scenario.transport.window);
        let pairs = hosts * (hosts - 1.0);
        let connections = if scenario.transport.per_pair {
            flows.min(pairs)
        } else {
            flows
        };
        // Ways: of each switch to each switch.
        let ways = (topology.switches.len() as f64).powi(2) * WAY;
        let series = 5.0 * ports + 2.0 * topology.links.len() as f64 + MOST_FLOWS as f64;
        Self {
            flows,
            for_flows: flows * FLOW + connections * CONNECTION,
            for_network: hosts * HOST + ports * PORT + ways,
            for_packets: PACKET * (buffers + links).min(windows),
            for_series: MOST as f64 * STEP * series,
        }
    }

    /// In all.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.for_flows + self.for_network + self.for_packets + self.for_series
    }
}

/// What a study needs with so many runs at once.
#[must_use]
pub fn at_once(scenarios: &[std::sync::Arc<Scenario>], mode: Option<Mode>, threads: usize) -> f64 {
    let runs = scenarios.iter().flat_map(|scenario| {
        let bytes = Estimate::of(scenario, mode).bytes();
        scenario.seeds.iter().map(move |_| bytes)
    });
    let mut largest: Vec<f64> = runs.collect();
    // Results stay: a part of each run's.
    let kept: f64 = largest.iter().sum::<f64>() * 0.1;
    largest.sort_unstable_by(|a, b| b.total_cmp(a));
    kept + largest.iter().take(threads).sum::<f64>()
}
