//! A scenario as TOML has it. Every key is described in `docs/sim.md`.
//!
//! Must not: judge values or fill in defaults (`build.rs`).

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::{
    fabric,
    names::Names,
    units::{Bytes, Rate, Time},
};

/// A value with its place, where given.
pub(super) type Maybe<T> = Option<Spanned<T>>;

/// The whole of a scenario. `sweep` has been taken out, `fabric` been read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    /// Version of the schema; 1.
    #[serde(default)]
    pub version: Maybe<u32>,
    /// What people call it.
    #[serde(default)]
    pub name: Option<String>,
    /// The network.
    pub fabric: fabric::Schema,
    /// Changes to the network's nodes and links.
    #[serde(default)]
    pub set: fabric::Set,
    /// How long, how often, what is recorded.
    #[serde(default)]
    pub run: Run,
    /// What hosts are.
    #[serde(default)]
    pub transport: Transport,
    /// Traffic classes.
    #[serde(default)]
    pub class: Vec<Spanned<Class>>,
    /// Flows one by one or by range.
    #[serde(default)]
    pub flow: Vec<Spanned<FlowEntry>>,
    /// Flows by pattern.
    #[serde(default)]
    pub pattern: Vec<Spanned<PatternEntry>>,
    /// Flows that arrive at random, with sizes of a distribution.
    #[serde(default)]
    pub traffic: Vec<Spanned<TrafficEntry>>,
    /// Flows of a CSV file.
    #[serde(default)]
    pub flows_file: Maybe<String>,
}

/// How long, how often, what is recorded.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Ends then at the latest.
    pub duration: Maybe<Time>,
    /// Goes on until `duration` though all flows have ended.
    pub whole: Option<bool>,
    /// Statistics of queues and links begin then.
    pub warmup: Maybe<Time>,
    /// Step of the recorded series at the start; it doubles as a run gets long.
    pub sample: Maybe<Time>,
    /// Seeds: numbers and ranges.
    pub seeds: Option<Spanned<Seeds>>,
    /// `packet` or `flow`.
    pub mode: Maybe<String>,
    /// A deadlock ends the run.
    pub stop_at_deadlock: Option<bool>,
}

/// Seeds: `7`, `"1-5"`, or a list of such.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seeds(pub Vec<u64>);

/// What hosts are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transport {
    /// `rc`: the shipped transport. `reference`: as the reference simulators' hosts.
    pub host: Maybe<String>,
    /// Path MTU, 256 to 4096; of the reference host, payload of a packet.
    pub mtu: Maybe<u32>,
    /// Loss is repaired packet by packet.
    pub selective_repeat: Maybe<bool>,
    /// With selective repeat: UDP source ports that a flow is spread over, 1 to 16.
    pub paths: Maybe<u32>,
    /// An acknowledgement on every so-manieth packet.
    pub ack_interval: Maybe<u32>,
    /// Packets of a flow that may be unacknowledged.
    pub window: Maybe<u32>,
    /// ACK timeout at least.
    pub timeout: Maybe<Time>,
    /// `flow`: a connection for each flow. `pair`: flows between two NICs share one, one after the other.
    pub connections: Maybe<String>,
    /// Rate control.
    pub congestion: Congestion,
}

/// Rate control.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Congestion {
    /// `dcqcn`, `dcqcn-window`, `fixed` or `none`.
    pub control: Maybe<String>,
    /// DCQCN's: `connectx`, `ns3-mellanox` or `paper`.
    pub preset: Maybe<String>,
    /// Of `fixed`.
    pub rate: Maybe<Rate>,
    /// DCQCN's parameters by ConnectX's names.
    pub parameters: BTreeMap<Spanned<String>, Spanned<toml::Value>>,
}

/// A traffic class.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// What flows call it by.
    pub name: Spanned<String>,
    /// DSCP of its packets.
    pub dscp: Spanned<u8>,
    /// Share of the sender's NIC among classes that are not strict.
    #[serde(default)]
    pub weight: Maybe<u32>,
    /// Before all that is not strict.
    #[serde(default)]
    pub strict: Option<bool>,
}

/// Flows one by one or by range.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowEntry {
    /// Senders.
    pub from: Spanned<Names>,
    /// Receivers: as many, or one.
    pub to: Spanned<Names>,
    /// Size; without it the flow has no end.
    #[serde(default)]
    pub bytes: Maybe<Bytes>,
    /// When it starts.
    #[serde(default)]
    pub start: Maybe<Time>,
    /// Each further one so much later.
    #[serde(default)]
    pub stagger: Maybe<Time>,
    /// So many of each.
    #[serde(default)]
    pub count: Maybe<u32>,
    /// Its class.
    #[serde(default)]
    pub class: Maybe<String>,
    /// NIC of the sender.
    #[serde(default)]
    pub nic: Maybe<u16>,
    /// NIC of the receiver.
    #[serde(default)]
    pub to_nic: Maybe<u16>,
}

/// Flows by pattern.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatternEntry {
    /// `permutation`, `incast` or `all-to-all`.
    pub kind: Spanned<String>,
    /// Among these; else all.
    #[serde(default)]
    pub hosts: Maybe<Names>,
    /// incast: the receiver; else chosen by the seed.
    #[serde(default)]
    pub to: Maybe<String>,
    /// incast: how many of the hosts send, chosen by the seed; else all others.
    #[serde(default)]
    pub senders: Maybe<u32>,
    /// Size of each flow; without it they have no end.
    #[serde(default)]
    pub bytes: Maybe<Bytes>,
    /// When they start.
    #[serde(default)]
    pub start: Maybe<Time>,
    /// Each start is later by up to this, chosen by the seed.
    #[serde(default)]
    pub jitter: Maybe<Time>,
    /// Again and again, so far apart.
    #[serde(default)]
    pub every: Maybe<Time>,
    /// No more starts then.
    #[serde(default)]
    pub until: Maybe<Time>,
    /// Their class.
    #[serde(default)]
    pub class: Maybe<String>,
}

/// Flows that arrive at random.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficEntry {
    /// `websearch`, `fb_hadoop`, or a list of `[bytes, percent]`.
    pub sizes: Spanned<Sizes>,
    /// Share of each sender's NIC.
    pub load: Spanned<crate::units::Part>,
    /// Among these; else all.
    #[serde(default)]
    pub hosts: Maybe<Names>,
    /// First arrivals from then on.
    #[serde(default)]
    pub start: Maybe<Time>,
    /// No more arrivals then.
    #[serde(default)]
    pub until: Maybe<Time>,
    /// Their class.
    #[serde(default)]
    pub class: Maybe<String>,
}

/// A distribution of sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum Sizes {
    /// A published one.
    Named(String),
    /// Bytes and percent, rising.
    Listed(Vec<(f64, f64)>),
}
