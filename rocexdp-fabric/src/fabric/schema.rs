//! A fabric as TOML has it: one schema for the simulator and the lab. Every key is described in `docs/fabric.md`.
//!
//! Values keep their places in the text, so that whatever is wrong with them can be said with its line. No flattened or untagged
//! parts: serde buffers those, and the places are lost.
//!
//! Must not: judge values or fill in defaults (`build.rs`).

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use serde::Deserialize;
use toml::Spanned;

use crate::{
    names::Names,
    units::{Bytes, Part, Rate, Time},
};

/// A value with its place, where given.
pub(super) type Maybe<T> = Option<Spanned<T>>;

/// The whole of a fabric.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schema {
    /// Version of the schema; 1.
    pub version: Maybe<u32>,
    /// What people call it.
    pub name: Option<String>,
    /// What links and switches are like unless they say otherwise.
    pub defaults: Defaults,
    /// Nodes and links by rule.
    pub generate: Maybe<Generate>,
    /// Hosts one by one or by range.
    pub host: Vec<Spanned<HostEntry>>,
    /// Switches one by one or by range.
    pub switch: Vec<Spanned<SwitchEntry>>,
    /// Links one by one or by range.
    pub link: Vec<Spanned<LinkEntry>>,
    /// Changes to nodes and links that exist: what a generator made can be set here.
    pub set: Set,
    /// Priorities.
    pub qos: Qos,
    /// Where automatic addresses begin.
    pub addresses: Addresses,
}

/// Defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Of links; has no `ends`.
    pub link: LinkEntry,
    /// Of switches; has no `name`.
    pub switch: SwitchEntry,
}

/// Changes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Set {
    /// To all links between the named ends.
    pub link: Vec<Spanned<LinkEntry>>,
    /// To the named switches.
    pub switch: Vec<Spanned<SwitchEntry>>,
}

/// Hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    /// Names.
    pub name: Spanned<Names>,
    /// How many NICs each must have: checked against the links.
    pub nics: Maybe<u16>,
}

/// Switches, or settings of switches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchEntry {
    /// Names.
    pub name: Maybe<Names>,
    /// How many ports each must have: checked against the links.
    pub ports: Maybe<u16>,
    /// Buffer in all.
    pub buffer: Maybe<Bytes>,
    /// Of it, each ingress queue's own.
    pub reserved: Maybe<Bytes>,
    /// When marks are decided: `dequeue` or `enqueue`.
    pub mark_on: Maybe<String>,
    /// `strict`, `weighted` or `round-robin`.
    pub scheduler: Maybe<String>,
    /// Weights of the eight priorities.
    pub weights: Maybe<Vec<u32>>,
    /// Priorities before all others.
    pub strict: Maybe<Vec<u8>>,
    /// Most that a lossy egress queue holds.
    pub tail_drop: Maybe<Bytes>,
    /// Marking; later rules win. An empty list: none.
    pub ecn: Maybe<Vec<Spanned<EcnRule>>>,
    /// Flow control.
    pub pfc: PfcEntry,
}

/// Marking of some queues.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EcnRule {
    /// No marks at up to this.
    pub kmin: Spanned<Bytes>,
    /// Always marks above this.
    pub kmax: Spanned<Bytes>,
    /// Share marked just below `kmax`.
    pub pmax: Spanned<Part>,
    /// The thresholds are for a port of this rate and grow with the port's.
    #[serde(default)]
    pub per: Maybe<Rate>,
    /// Only ports of this rate.
    #[serde(default)]
    pub rate: Maybe<Rate>,
    /// Only ports to these nodes.
    #[serde(default)]
    pub to: Maybe<Names>,
    /// Only these priorities; else 0 to 5 (6 carries CNPs).
    #[serde(default)]
    pub priorities: Maybe<Vec<u8>>,
}

/// Flow control.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PfcEntry {
    /// False: none.
    pub enabled: Maybe<bool>,
    /// Lossless priorities.
    pub priorities: Maybe<Vec<u8>>,
    /// Threshold as a share of the free shared buffer.
    pub alpha: Maybe<f64>,
    /// Fixed threshold, instead of `alpha`.
    pub threshold: Maybe<Bytes>,
    /// Resumed so far below the threshold.
    pub resume_offset: Maybe<Bytes>,
    /// Quanta of a pause frame; 0: it holds until resumed.
    pub quanta: Maybe<u16>,
    /// Of each lossless ingress queue; else from rate, delay and MTU.
    pub headroom: Maybe<Bytes>,
}

/// Links, or settings of links.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkEntry {
    /// Two nodes, or two ranges: one to many, or one to one.
    pub ends: Maybe<Vec<Spanned<Names>>>,
    /// Each node of one range with each of the other.
    pub mesh: Maybe<bool>,
    /// So many links side by side.
    pub count: Maybe<u16>,
    /// Of each direction.
    pub rate: Maybe<Rate>,
    /// From end to end.
    pub delay: Maybe<Time>,
    /// Largest IP packet.
    pub mtu: Maybe<u32>,
    /// Bytes on the wire beside each frame: preamble, FCS, gap.
    pub frame_overhead: Maybe<u32>,
    /// In both directions.
    pub faults: Maybe<FaultsEntry>,
    /// From the first end only.
    pub faults_forward: Maybe<FaultsEntry>,
    /// From the second end only.
    pub faults_backward: Maybe<FaultsEntry>,
    /// When it is down.
    pub down: Vec<Spanned<DownEntry>>,
    /// Down again and again.
    pub flap: Maybe<FlapEntry>,
}

/// Faults of one direction.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultsEntry {
    /// Packets that vanish.
    pub drop: Option<Part>,
    /// Packets with one byte changed.
    pub corrupt: Option<Part>,
    /// Packets marked.
    pub ce: Option<Part>,
    /// Packets delivered twice.
    pub duplicate: Option<Part>,
    /// Packets held back.
    pub reorder: Option<Part>,
    /// Behind so many.
    pub reorder_depth: Option<u32>,
}

/// A time during which a link is down.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DownEntry {
    /// From.
    pub from: Spanned<Time>,
    /// Until.
    pub until: Spanned<Time>,
}

/// A link that is down again and again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlapEntry {
    /// First time.
    pub from: Time,
    /// No more then.
    pub until: Spanned<Time>,
    /// From one time to the next.
    pub every: Spanned<Time>,
    /// How long each time.
    pub down: Spanned<Time>,
}

/// Priorities.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Qos {
    /// Priorities of DSCPs, where they differ from `dscp >> 3` (ConnectX with trust DSCP).
    pub dscp_to_priority: BTreeMap<Spanned<String>, Spanned<u8>>,
}

/// Where automatic addresses begin.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Addresses {
    /// The network of all NICs, a /16.
    pub ipv4: Spanned<Ipv4Addr>,
    /// The network of all NICs, a /64.
    pub ipv6: Spanned<Ipv6Addr>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            ipv4: Spanned::new(0..0, Ipv4Addr::new(10, 78, 0, 0)),
            ipv6: Spanned::new(0..0, Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 0)),
        }
    }
}

/// Nodes and links by rule. Which keys mean something depends on `kind`; the others are refused.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// `pair`, `dumbbell`, `incast` or `leaf-spine`.
    pub kind: Spanned<String>,
    /// pair: switches in a row between the hosts.
    #[serde(default)]
    pub switches: Maybe<u32>,
    /// dumbbell: hosts on each side.
    #[serde(default)]
    pub pairs: Maybe<u32>,
    /// incast: hosts beside the receiver.
    #[serde(default)]
    pub senders: Maybe<u32>,
    /// leaf-spine: leaves.
    #[serde(default)]
    pub leaves: Maybe<u32>,
    /// leaf-spine: hosts at each leaf.
    #[serde(default)]
    pub hosts_per_leaf: Maybe<u32>,
    /// leaf-spine: spines.
    #[serde(default)]
    pub spines: Maybe<u32>,
    /// Links between switches, where they differ from the default.
    #[serde(default)]
    pub trunk_rate: Maybe<Rate>,
    /// Links between switches, where they differ from the default.
    #[serde(default)]
    pub trunk_delay: Maybe<Time>,
}
