//! What a switch counts, per port and priority.
//!
//! Must not: decide anything.

use crate::picos::Picos;

/// Why a packet was not admitted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DropReason {
    /// A lossy egress queue is at its limit (tail drop).
    QueueFull,
    /// The shared buffer has no room for a lossy packet.
    BufferFull,
    /// A lossless ingress queue is at its threshold and its headroom is full: its peer sent on after the pause, or headroom is
    /// too small.
    HeadroomFull,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::QueueFull, Self::BufferFull, Self::HeadroomFull];

    /// As counters name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::BufferFull => "buffer_full",
            Self::HeadroomFull => "headroom_full",
        }
    }
}

/// Counters of one priority of one port, since the start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueCounters {
    /// Packets that came in by this port, dropped ones included.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets that left by this port.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Those of them that this switch set Congestion Experienced on.
    pub marked: u64,
    /// Packets for this port's queue that found it at its limit.
    pub dropped_queue_full: u64,
    /// Packets for this port that found no room in the shared buffer.
    pub dropped_buffer_full: u64,
    /// Packets that came in by this port and found neither threshold nor headroom.
    pub dropped_headroom_full: u64,
    /// Pauses asked of this port's transmitter, refreshed ones included. A frame carries all that was asked for while the one before
    /// it was sent, of all priorities: [`LinkCounters::pause_frames`](crate::net::LinkCounters::pause_frames) counts those.
    pub pauses_sent: u64,
    /// Resumes told to it.
    pub resumes_sent: u64,
    /// Time for which its peer was told to pause.
    pub pausing: Picos,
    /// Pauses heard from this port's peer.
    pub pauses_received: u64,
    /// Resumes heard from it.
    pub resumes_received: u64,
    /// Time for which this queue was paused by its peer.
    pub paused: Picos,
    /// Bytes in the egress queue.
    pub queue: u64,
    /// Packets in it.
    pub queue_packets: u64,
    /// The most bytes that it held.
    pub queue_max: u64,
    /// Integral of its bytes over time, byte picoseconds: the mean between two readings is their difference over the time.
    pub queue_integral: u128,
    /// Bytes that the ingress queue holds of the buffer, headroom excluded.
    pub ingress: u64,
    /// Bytes that it holds of its headroom.
    pub headroom: u64,
}

impl QueueCounters {
    /// Packets dropped for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        match reason {
            DropReason::QueueFull => self.dropped_queue_full,
            DropReason::BufferFull => self.dropped_buffer_full,
            DropReason::HeadroomFull => self.dropped_headroom_full,
        }
    }

    /// Packets dropped.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        DropReason::ALL
            .iter()
            .map(|reason| self.dropped(*reason))
            .sum()
    }
}

/// What the buffer holds, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BufferUse {
    /// All packets in it.
    pub used: u64,
    /// The most that it held.
    pub max: u64,
    /// What is taken of the shared part.
    pub shared: u64,
    /// The shared part in all.
    pub shared_size: u64,
}
