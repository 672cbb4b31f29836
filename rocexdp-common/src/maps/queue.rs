//! What is counted per receive queue: by XDP, and by the engine.

use super::{EventBook, REASON_NAMES};

/// Room for reasons in [`QueueCounters`].
pub const REASON_SLOTS: usize = 40;
const _: () = assert!(REASON_NAMES.len() <= REASON_SLOTS);

/// What XDP counted on one receive queue.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QueueCounters {
    /// All frames that the program saw.
    pub frames: u64,
    /// RoCEv2 packets among them (UDP port 4791), well-formed or not.
    pub rocev2: u64,
    /// Given to an AF_XDP socket.
    pub redirected: u64,
    /// Consumed by the program: CNPs for local QPs.
    pub consumed: u64,
    /// Dropped, each with a reason.
    pub dropped: u64,
    /// Passed to the kernel: RoCEv2 packets that are not for a local QP.
    pub passed_rocev2: u64,
    /// Passed to the kernel: everything else.
    pub passed_other: u64,
    /// Entries made in `FLOWS`; evictions are these less the live and the deleted ones.
    pub flow_inserts: u64,
    /// Rare events.
    pub events: EventBook,
    /// The kernel's tick (jiffies) at which `tick_ns` was read: the program's own memory, so that it asks for the time once
    /// a tick, not once a packet.
    pub tick: u64,
    /// CLOCK_MONOTONIC at that tick, ns.
    pub tick_ns: u64,
    /// Reserved, 0.
    pub reserved: u64,
    /// By [`super::Reason`].
    pub reasons: [u64; REASON_SLOTS],
}

impl Default for QueueCounters {
    fn default() -> Self {
        Self {
            frames: 0,
            rocev2: 0,
            redirected: 0,
            consumed: 0,
            dropped: 0,
            passed_rocev2: 0,
            passed_other: 0,
            flow_inserts: 0,
            events: EventBook::default(),
            tick: 0,
            tick_ns: 0,
            reserved: 0,
            reasons: [0; REASON_SLOTS],
        }
    }
}

/// Room for the transport's drop reasons in [`QueueEngine`].
pub const ENGINE_DROP_SLOTS: usize = 55;

/// What the engine counted on one receive queue, and the socket's own statistics.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QueueEngine {
    /// Packets taken from the RX ring.
    pub rx_packets: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Packets accepted by the transport.
    pub rx_accepted: u64,
    /// Packets with a wrong ICRC.
    pub rx_icrc_errors: u64,
    /// Packets put into the TX ring.
    pub tx_packets: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Times the TX ring or the UMEM had no room; nothing is lost.
    pub tx_backpressure: u64,
    /// XDP_STATISTICS `rx_dropped`.
    pub xsk_rx_dropped: u64,
    /// XDP_STATISTICS `rx_ring_full`.
    pub xsk_rx_ring_full: u64,
    /// XDP_STATISTICS `rx_fill_ring_empty_descs`.
    pub xsk_rx_fill_ring_empty: u64,
    /// XDP_STATISTICS `rx_invalid_descs`.
    pub xsk_rx_invalid: u64,
    /// XDP_STATISTICS `tx_invalid_descs`.
    pub xsk_tx_invalid: u64,
    /// XDP_STATISTICS `tx_ring_empty_descs`.
    pub xsk_tx_ring_empty: u64,
    /// Descriptors from the kernel that lay outside the UMEM.
    pub xsk_rx_bad_desc: u64,
    /// Packets that the device's transmit function dropped (copy mode): lost on our side.
    pub tx_device_drops: u64,
    /// Packets that came in on a queue of another worker and were handed to this one.
    pub rx_handed_over: u64,
    /// Packets that came in here and were handed to the worker that owns their QP.
    pub rx_handed_away: u64,
    /// Packets dropped because that worker did not keep up.
    pub rx_handover_full: u64,
    /// Packets dropped by the transport, by reason (`rocexdp_proto::DropReason`).
    pub drops: [u64; ENGINE_DROP_SLOTS],
    /// Descriptors that the device is done with, a packet having several where it spans chunks: what the completion ring
    /// returned. With `tx_packets` standing above them, packets wait in the TX ring or the device.
    pub tx_completed: u64,
    /// Copies of a multicast group's packets, besides the packet itself: one for each further worker with a QP of the group.
    pub rx_copied: u64,
    /// Packets that QPs of this host have sent to QPs of this worker. No program saw them.
    pub rx_looped: u64,
    /// Packets of this worker's QPs that went to QPs of this host; not among `tx_packets`, unless they are a group's.
    pub tx_looped: u64,
    /// Pause frames sent, because the RX ring was filling or had emptied.
    pub pfc_sent: u64,
    /// Pauses of a priority that were honoured (a pause of the whole port is one of each).
    pub pauses_honoured: u64,
    /// Time that priorities were paused by them, ns; two at a time count twice.
    pub paused_ns: u64,
}

impl Default for QueueEngine {
    fn default() -> Self {
        Self {
            rx_packets: 0,
            rx_bytes: 0,
            rx_accepted: 0,
            rx_icrc_errors: 0,
            tx_packets: 0,
            tx_bytes: 0,
            tx_backpressure: 0,
            xsk_rx_dropped: 0,
            xsk_rx_ring_full: 0,
            xsk_rx_fill_ring_empty: 0,
            xsk_rx_invalid: 0,
            xsk_tx_invalid: 0,
            xsk_tx_ring_empty: 0,
            xsk_rx_bad_desc: 0,
            tx_device_drops: 0,
            rx_handed_over: 0,
            rx_handed_away: 0,
            rx_handover_full: 0,
            drops: [0; ENGINE_DROP_SLOTS],
            tx_completed: 0,
            rx_copied: 0,
            rx_looped: 0,
            tx_looped: 0,
            pfc_sent: 0,
            pauses_honoured: 0,
            paused_ns: 0,
        }
    }
}
