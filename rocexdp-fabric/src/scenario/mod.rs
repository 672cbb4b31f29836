//! Scenarios: a fabric, what its hosts are, what they send, for how long, with which seeds and which keys varied.
//!
//! The schema is `docs/sim.md`. A scenario file is a [`Study`]: one [`Scenario`] per combination of swept values, run once per
//! seed. What is wrong is said with file, line and reason, before anything runs.
//!
//! Must not: run anything, or open files.

mod build;
mod schema;
mod sweep;
#[cfg(test)]
mod tests;
mod transport;
mod written;

use std::sync::Arc;

use rocexdp_proto::dcqcn::Params;
use rocexdp_proto::time::Rate;
use rocexdp_sim::picos::Picos;

pub use schema::{FlowEntry, PatternEntry, Schema, Sizes, TrafficEntry};

use crate::{
    fabric::Fabric,
    source::{Error, Source},
    workload::Workload,
};

/// Version of the schema.
pub const VERSION: u32 = 1;

/// A scenario file: scenarios that differ in the swept keys, and seeds.
#[derive(Clone, Debug)]
pub struct Study {
    /// What people call it.
    pub name: String,
    /// One for each combination of swept values.
    pub scenarios: Vec<Arc<Scenario>>,
    /// What is unwise, with its line.
    pub warnings: Vec<Error>,
    /// Where the first part of its workload is written: what makes it large.
    pub workload_line: Option<usize>,
    /// Where its fabric is written or named.
    pub fabric_line: Option<usize>,
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Swept keys and their values, in the order of the sweep.
    pub parameters: Vec<(String, String)>,
    /// The network.
    pub fabric: Fabric,
    /// What hosts are.
    pub transport: Transport,
    /// Traffic classes; the first is the default.
    pub classes: Vec<Class>,
    /// What they send.
    pub workload: Workload,
    /// How long.
    pub run: RunPlan,
    /// One run for each.
    pub seeds: Vec<u64>,
}

/// How long a run is, and what it records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunPlan {
    /// Ends then at the latest.
    pub duration: Option<Picos>,
    /// Goes on until `duration` though all flows have ended.
    pub whole: bool,
    /// Statistics of queues and links begin then.
    pub warmup: Picos,
    /// First step of recorded series.
    pub sample: Picos,
    /// How.
    pub mode: Mode,
    /// A deadlock ends the run.
    pub stop_at_deadlock: bool,
}

/// How a scenario is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Packet by packet.
    Packet,
    /// Rates of flows only; see `docs/sim.md` for what that leaves out.
    Flow,
}

impl Mode {
    /// As written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Flow => "flow",
        }
    }

    /// From its name.
    ///
    /// # Errors
    /// Lists what there is.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "packet" => Ok(Self::Packet),
            "flow" => Ok(Self::Flow),
            other => Err(format!(
                "no mode is called {other:?}: there are packet and flow"
            )),
        }
    }
}

/// What hosts are.
#[derive(Clone, PartialEq, Debug)]
pub struct Transport {
    /// The model.
    pub host: HostModel,
    /// Payload of a packet at most.
    pub mtu: u32,
    /// Loss is repaired packet by packet, over so many paths; `None`: go-back-N.
    pub selective_paths: Option<u8>,
    /// An acknowledgement on every so-manieth packet.
    pub ack_interval: u32,
    /// Packets of a flow that may be unacknowledged.
    pub window: u32,
    /// ACK timeout code, 4.096 us x 2^code.
    pub timeout: u8,
    /// Flows between two NICs share one connection.
    pub per_pair: bool,
    /// Rate control.
    pub control: Control,
    /// DCQCN's parameters.
    pub dcqcn: Params,
}

/// What a host is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostModel {
    /// The shipped transport.
    Rc,
    /// As the reference simulators' hosts.
    Reference,
}

impl HostModel {
    /// As written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Reference => "reference",
        }
    }
}

/// Rate control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// DCQCN.
    Dcqcn,
    /// DCQCN with a window of the bandwidth-delay product.
    DcqcnWindow,
    /// This rate, whatever happens.
    Fixed(Rate),
    /// None: as fast as the link.
    None,
}

impl Control {
    /// As written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dcqcn => "dcqcn",
            Self::DcqcnWindow => "dcqcn-window",
            Self::Fixed(_) => "fixed",
            Self::None => "none",
        }
    }
}

/// A traffic class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Class {
    /// What flows call it by.
    pub name: String,
    /// DSCP of its packets.
    pub dscp: u8,
    /// Share of the sender's NIC.
    pub weight: u32,
    /// Before all that is not strict.
    pub strict: bool,
}

/// Gives the text of a file that a scenario names, or says why not.
pub type Load<'a> = &'a mut dyn FnMut(&str) -> Result<String, String>;

impl Study {
    /// Reads a scenario; `load` gives the text of files that it names.
    ///
    /// # Errors
    /// File, line and reason.
    pub fn read(source: Source<'_>, load: Load<'_>) -> Result<Self, Error> {
        build::study(source, load)
    }

    /// All runs: scenario and seed.
    #[must_use]
    pub fn runs(&self) -> Vec<(Arc<Scenario>, u64)> {
        let all = self.scenarios.iter();
        all.flat_map(|scenario| {
            scenario
                .seeds
                .iter()
                .map(|seed| (Arc::clone(scenario), *seed))
        })
        .collect()
    }
}
