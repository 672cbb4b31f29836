//! A network in simulated time: hosts, links and switches joined by a queue of events.
//!
//! Generic over what its hosts are: the shipped transport, or the model of the reference simulators' hosts. Two runs with one
//! seed are bit-identical.
//!
//! Must not: read a clock, or know what a flow is for.

mod alarm;
mod deadlock;
pub mod frame;
mod link;
mod network;
mod queue;
pub mod rc;
pub mod routes;
mod tap;
mod totals;
mod types;
mod updown;

pub use deadlock::{Deadlock, DeadlockCheck, QueueId};
pub use link::{LinkCounters, PAUSE_FRAME, PauseFrame};
pub use network::Network;
pub use tap::{Tap, Tapped, pcap_header};
pub use types::{Ended, NetworkError, Options, Totals};

use crate::picos::Picos;
use crate::switch::Queued;
use crate::topology::{HostId, LinkId, PortId};

/// A packet on the way. Cloned where a link makes a copy.
pub trait Packet: Queued + Clone {
    /// Where it goes.
    fn destination(&self) -> HostId;

    /// The NIC of [`Packet::destination`] that it is addressed to.
    fn destination_nic(&self) -> PortId {
        PortId(0)
    }

    /// Hash of its 5-tuple; ECMP chooses by it and each switch's seed.
    fn flow_hash(&self) -> u32;

    /// What a switch with this seed chooses among equal ways by, modulo their number; the ways are in the order of its ports.
    fn ecmp_hash(&self, seed: u32) -> u32 {
        routes::mix(self.flow_hash(), seed)
    }

    /// A link has changed a byte of it: its receiver's check must find that. `entropy` says which.
    fn corrupt(&mut self, entropy: u64);

    /// Its frame as it is on the wire, for captures; shorter than [`Queued::wire_len`] where its payload is not kept.
    fn write_frame(&self, out: &mut Vec<u8>);
}

/// A host. Inputs first, then [`Host::poll_transmit`] until it is empty or the NIC is busy, then [`Host::poll_timeout`].
pub trait Host {
    /// What it sends and receives.
    type Packet: Packet;

    /// A packet has arrived whole.
    fn receive(&mut self, now: Picos, nic: PortId, packet: Self::Packet);

    /// A priority of a NIC is paused until `until` ([`Picos::MAX`]: until told otherwise; `now`: it may go on).
    fn pause(&mut self, now: Picos, nic: PortId, priority: u8, until: Picos);

    /// [`Host::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Picos);

    /// The next packet of a NIC whose transmitter is free; `None`: nothing may go now.
    fn poll_transmit(&mut self, now: Picos, nic: PortId) -> Option<Self::Packet>;

    /// Whether [`Host::poll_transmit`] may have a packet for the NIC without anything else happening; false: it is not asked as
    /// soon as the transmitter is free.
    fn has_packet(&self, nic: PortId) -> bool {
        let _ = nic;
        true
    }

    /// When it has something to do by itself: a timer, or the next packet's send time.
    fn poll_timeout(&self) -> Option<Picos>;

    /// Whether the input before makes the NIC look for a packet. The reference simulators' hosts do not look after every one.
    #[inline]
    fn asks(&self, nic: PortId) -> bool {
        let _ = nic;
        true
    }

    /// What it plans, below 4, and when: [`Host::handle_planned`] is told, after what anybody has planned for that time before.
    /// Asked until `None` after every input and when it had no packet. (Of timers with one time, only the network's order counts.)
    #[inline]
    fn poll_planned(&mut self) -> Option<(Picos, u8)> {
        None
    }

    /// What [`Host::poll_planned`] or [`Network::plan`] said has come.
    #[inline]
    fn handle_planned(&mut self, now: Picos, what: u8) {
        let _ = (now, what);
    }
}

/// Who decides what is lost on arrival, where it is not [`rocexdp_common::fault`].
pub trait Losses: Send {
    /// Whether what has arrived by this link is lost, a pause frame included.
    fn lost(&mut self, link: LinkId) -> bool;
}
