//! A shared-buffer switch, sans-IO: admission, priority queues, ECN marking, PFC, scheduling. Routes are its caller's.
//!
//! The simulator drives it with small records in simulated time, the lab with frames from AF_XDP sockets in real time:
//! [`Queued`] is all it knows of a packet. It never drops silently: every refusal has a reason and a counter.
//!
//! Its caller gives it each packet that has arrived whole with the port that it leaves by ([`Switch::receive`]), takes the next
//! packet of a port whose transmitter is free ([`Switch::dequeue`]), tells it of pause frames from its peers
//! ([`Switch::handle_pause`]) and of time that has come ([`Switch::poll_timeout`], [`Switch::handle_timeout`]). After each of
//! these it takes [`Switch::poll_output`] until there is none: pause frames to send before anything else, and ports to look at.
//!
//! Rules: `switch-mmu.cc`, `switch-node.cc` and `qbb-net-device.cc` of HPCC's ns-3 (`algorithm.md`, data facts 4 and 5), with the
//! differences said where they are. Cost of a packet depends on nothing but the number of priorities; nothing is allocated once
//! the fullest moment has been.
//!
//! Must not: read a clock, know addresses or routes, or look into packets.

mod buffer;
mod config;
mod counters;
mod model;
mod queue;
mod scheduler;
#[cfg(test)]
mod tests;
mod timers;

pub use config::{
    ConfigError, EcnConfig, MarkOn, PfcConfig, PfcThreshold, PortConfig, Problem, Scheduler,
    SwitchConfig, headroom, quanta_time,
};
pub use counters::{BufferUse, DropReason, QueueCounters};
pub use model::{Draws, Dropped, Output, Switch};

/// 802.1p priorities.
pub const PRIORITIES: usize = 8;

/// What a switch must know of a packet.
pub trait Queued {
    /// Bytes that it takes of buffers and links, as [`SwitchConfig`] counts them.
    fn wire_len(&self) -> u32;
    /// Its priority, 0..=7.
    fn priority(&self) -> u8;
    /// Whether Congestion Experienced may be set (ECT(0), ECT(1) or CE).
    fn ecn_capable(&self) -> bool;
    /// Sets Congestion Experienced.
    fn mark(&mut self);
}
