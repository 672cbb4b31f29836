//! What runs show, as plain data: for JSON as it stands, for tables, CSV and plots by the modules below.
//!
//! The JSON is described in `docs/sim.md`; keys are only ever added while [`VERSION`] stays. Nothing here depends on the machine, on
//! how long a run took, or on how many threads there were.
//!
//! Must not: run anything.

pub mod csv;
pub mod series;
pub mod summary;
pub mod table;

use std::collections::BTreeMap;

use serde::Serialize;

pub use series::{FlowSeries, LinkSeries, PortSeries, Series};
pub use summary::{Bin, Slowdown};

/// Version of the JSON.
pub const VERSION: u32 = 1;

/// All runs of a study.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The scenario's name.
    pub name: String,
    /// Runs that there should be: seeds times combinations.
    pub planned: usize,
    /// Not all runs ended by themselves: the study was interrupted, or there are failures.
    pub partial: bool,
    /// Runs that could not be built.
    pub failures: Vec<Failure>,
    /// Those that there are, in the order of the sweep, then of seeds.
    pub runs: Vec<Run>,
}

/// A run that could not be built.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// Swept keys and their values.
    pub parameters: BTreeMap<String, String>,
    /// Why.
    pub reason: String,
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All flows have ended.
    FlowsDone,
    /// Its duration has passed.
    Duration,
    /// Nothing would have happened any more.
    Idle,
    /// A PFC deadlock, where the scenario says so.
    Deadlock,
    /// Somebody interrupted it: what stands here is what there was.
    Interrupted,
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Swept keys and their values.
    pub parameters: BTreeMap<String, String>,
    /// `packet` or `flow`.
    pub mode: &'static str,
    /// `rc` or `reference`.
    pub host: &'static str,
    /// Rate control.
    pub control: &'static str,
    /// Why it ended.
    pub ended: Ended,
    /// It was interrupted.
    pub partial: bool,
    /// Simulated time.
    pub simulated_s: f64,
    /// Rates and queues are of the time from here on.
    pub measured_from_s: f64,
    /// It ended before its warm-up had passed: there is no time that statistics should be of.
    pub warmup_missed: bool,
    /// Of the whole run.
    pub totals: Totals,
    /// Packets lost, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Slowdown of flows that ended.
    pub slowdown: Option<Slowdown>,
    /// Jain's index of the goodput of flows without an end, if there are two or more.
    pub jain: Option<f64>,
    /// PFC deadlocks.
    pub deadlocks: Vec<Deadlock>,
    /// Flows, by start.
    pub flows: Vec<Flow>,
    /// Egress queues that carried something, by switch, port and priority.
    pub queues: Vec<Queue>,
    /// Directions of links.
    pub links: Vec<Link>,
    /// What was recorded over time; in CSV and plots, not in the JSON.
    #[serde(skip)]
    pub series: Series,
}

/// Sums of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Flows that started.
    pub flows: usize,
    /// Of them, ended.
    pub finished: usize,
    /// Of them, given up by the transport.
    pub failed: usize,
    /// Payload delivered.
    pub bytes: u64,
    /// Payload delivered per second, from `measured_from_s` on.
    pub goodput_bps: f64,
    /// Packets that hosts sent; 0 in flow mode, as all that follows.
    pub packets: u64,
    /// Packets on links.
    pub packet_hops: u64,
    /// Packets marked by switches.
    pub marked: u64,
    /// CNPs that senders handled.
    pub cnps: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Pauses sent by switches, refreshed ones included.
    pub pauses: u64,
    /// Time that switches had their peers paused, hosts and switches, summed up over ports and priorities.
    pub paused_s: f64,
    /// Packets lost.
    pub dropped: u64,
}

/// A flow.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Sender.
    pub from: String,
    /// Receiver.
    pub to: String,
    /// Traffic class.
    pub class: String,
    /// Size; `null`: no end.
    pub bytes: Option<u64>,
    /// Payload delivered.
    pub delivered: u64,
    /// Start.
    pub start_s: f64,
    /// When its sender knew that all had arrived; `null`: it had not.
    pub end_s: Option<f64>,
    /// From start to end.
    pub fct_s: Option<f64>,
    /// In an empty network.
    pub ideal_s: Option<f64>,
    /// How many times the ideal it took, at least 1.
    pub slowdown: Option<f64>,
    /// Payload delivered per second: over its life, or, without an end, from `measured_from_s` on.
    pub goodput_bps: f64,
    /// Packets sent again; `null` where flows share a connection, and in flow mode.
    pub retransmissions: Option<u64>,
    /// CNPs handled; likewise.
    pub cnps: Option<u64>,
    /// Rate cuts; likewise.
    pub cuts: Option<u64>,
    /// Why the transport gave it up.
    pub error: Option<String>,
}

/// An egress queue.
#[derive(Clone, Debug, Serialize)]
pub struct Queue {
    /// Switch.
    pub switch: String,
    /// Port.
    pub port: u16,
    /// Who is at the port.
    pub to: String,
    /// Priority.
    pub priority: u8,
    /// Packets sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of them, marked here.
    pub marked: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Mean length in bytes, from `measured_from_s` on.
    pub mean_bytes: f64,
    /// Greatest length, of the whole run.
    pub max_bytes: u64,
    /// Pauses sent to the peer for what it sends on this priority.
    pub pauses_sent: u64,
    /// Pauses received from the peer.
    pub pauses_received: u64,
    /// Time that this queue was paused.
    pub paused_s: f64,
    /// Time that the port's peer was told to be silent on this priority.
    pub pausing_s: f64,
}

/// A direction of a link.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Link {
    /// The link.
    pub name: String,
    /// From.
    pub from: String,
    /// To.
    pub to: String,
    /// Rate.
    pub rate_bps: u64,
    /// Packets sent into it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Share of the time spent sending, from `measured_from_s` on.
    pub utilisation: f64,
    /// Packets lost by faults.
    pub lost_fault: u64,
    /// Packets lost because it was down.
    pub lost_down: u64,
    /// Packets with a byte changed.
    pub corrupted: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets held back behind others.
    pub reordered: u64,
    /// Pause frames.
    pub pause_frames: u64,
}

/// A PFC deadlock: queues that wait for one another in a circle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Deadlock {
    /// Since when nothing has left them.
    pub since_s: f64,
    /// When that was found.
    pub found_s: f64,
    /// Priority.
    pub priority: u8,
    /// The circle, as switches and who is at the paused port.
    pub cycle: Vec<String>,
}
