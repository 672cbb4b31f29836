//! What goes into a network and comes out of it besides packets.
//!
//! Must not: run anything.

use core::fmt;

use super::DeadlockCheck;
#[cfg(doc)]
use super::{Network, Packet};
use crate::switch::{ConfigError, DropReason};
use crate::topology::TopologyError;

/// Settings of a network.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Of marks, of ways, and, added to their own seed, of faults.
    pub seed: u64,
    /// As the reference simulators, where they differ from a network:
    ///
    /// * serialisation times are whole nanoseconds ([`Picos::serialise_truncated`]);
    /// * of events at one time the one that was planned first comes first. A transmitter plans that it is free when it begins to
    ///   send; a switch tells its peer to stop before it sends a packet on, and to go on before it sends the packet that made room;
    /// * a pause frame has 43 B and is about one priority; what is told while a transmitter is busy goes frame by frame;
    /// * switches are as [`Switch::follow_reference`] says, and equal ways in the order in which a search from the destination finds
    ///   them, the switch with the highest number first.
    ///
    /// [`Picos::serialise_truncated`]: crate::picos::Picos::serialise_truncated
    /// [`Switch::follow_reference`]: crate::switch::Switch::follow_reference
    pub reference: bool,
    /// Seed of each switch for [`Packet::ecmp_hash`]; `None`: drawn from `seed`.
    pub ecmp_seeds: Option<Vec<u32>>,
    /// Whether PFC deadlocks are looked for.
    pub deadlock: Option<DeadlockCheck>,
}

/// Why a network can't be built.
#[derive(Clone, PartialEq, Debug)]
pub enum NetworkError {
    /// The topology is none.
    Topology(TopologyError),
    /// A switch can't be set up so.
    Switch {
        /// Its name.
        switch: String,
        /// What is wrong.
        error: ConfigError,
    },
    /// As many hosts as the topology names must be given.
    Hosts {
        /// What it names.
        named: usize,
        /// What was given.
        given: usize,
    },
    /// As many seeds of ways as there are switches must be given.
    Seeds {
        /// Switches.
        switches: usize,
        /// Seeds.
        given: usize,
    },
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology(error) => error.fmt(f),
            Self::Switch { switch, error } => write!(f, "switch {switch}: {error}"),
            Self::Hosts { named, given } => {
                write!(
                    f,
                    "the topology names {named} hosts, and {given} were given"
                )
            }
            Self::Seeds { switches, given } => {
                write!(
                    f,
                    "{given} seeds of ways were given for {switches} switches"
                )
            }
        }
    }
}

impl core::error::Error for NetworkError {}

impl From<TopologyError> for NetworkError {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}

/// Where packets are and where they went, of the whole network.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Copies that links made.
    pub duplicated: u64,
    /// Packets that hosts received.
    pub received: u64,
    /// Packets under way on links.
    pub under_way: u64,
    /// Packets in switches.
    pub queued: u64,
    /// Lost as a fault of a link.
    pub lost_fault: u64,
    /// Lost because a link was or went down.
    pub lost_down: u64,
    /// Dropped by switches because they know no way.
    pub no_route: u64,
    /// Dropped by switches, by [`DropReason`]: of its order in [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl Totals {
    /// Packets lost, for whatever reason.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_fault + self.lost_down + self.no_route + self.dropped.iter().sum::<u64>()
    }

    /// Whether every packet is somewhere.
    #[must_use]
    pub fn balance(&self) -> bool {
        self.sent + self.duplicated == self.received + self.under_way + self.queued + self.lost()
    }
}

/// Why [`Network::run_until`] came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The time has come.
    Time,
    /// A deadlock was found, and [`DeadlockCheck::stop`] is set; the time has not come. See [`Network::deadlocks`].
    Deadlock,
    /// Nothing will happen any more, unless somebody does something; the time has come all the same.
    Idle,
}
