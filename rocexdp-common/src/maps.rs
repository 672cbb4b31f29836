//! Names, keys and values of the BPF maps: the interface between the XDP program, the engine and
//! whoever looks (`rocexdp qp`, bpftool).
//!
//! Every mmapable map has one writer per entry, so that plain stores suffice: XDP on one receive
//! queue, or userspace. No per-CPU maps and no spin locks (neither can be mapped). All values are
//! multiples of 64 bytes where two writers would otherwise share a cache line.
//!
//! | map | type | key | value | writer |
//! |---|---|---|---|---|
//! | `QP_CONFIG` | array, mmapable | slot | [`QpConfig`] | userspace |
//! | `QP_COUNTERS` | array, mmapable | slot x queues + queue | [`QpCounters`] | XDP on that queue |
//! | `QP_ENGINE` | array, mmapable | slot | [`QpEngine`] | the engine |
//! | `QUEUE_COUNTERS` | array, mmapable | queue (1) | [`QueueCounters`] | XDP on that queue |
//! | `QUEUE_ENGINE` | array, mmapable | queue | [`QueueEngine`] | the engine |
//! | `DIRTY` | array, mmapable | slot / 64 | 64 bytes, one per slot | XDP sets, engine clears |
//! | `DIRTY_INDEX` | array, mmapable | slot / 4096 | 64 bytes, one per `DIRTY` entry | XDP sets, engine clears |
//! | `FLOWS` | LRU hash | [`FlowKey`] | [`FlowState`] | XDP |
//! | `LOCAL_ADDRS` | hash | GID | [`local_addr`] flags | userspace |
//! | `XSKS` | XSKMAP | owner x queues + queue | socket | userspace |
//! | `LINK_CONTROL` | array, mmapable | queue (1) | [`LinkControl`] | XDP on that queue |
//! | `EVENTS` | ring buffer | - | [`Event`] | XDP |
//!
//! (1) An entry more than queues, where the loader gives one, counts the frames of queues beyond
//! `N_QUEUES` (the device got more channels after the load); without it they pass uncounted.
//!
//! Dirty marks are bytes, not bits: setting a byte is a plain store, while a bit would need an
//! atomic read-modify-write that Rust's BPF target does not offer.

mod count;
mod engine;
mod flow;
mod observe;
mod queue;

use crate::ids::Gid;

pub use count::{Count, KIND_NAMES, KINDS, Kind, QpCounters, Tracker};
pub use engine::QpEngine;
pub use flow::{FlowKey, FlowState, Stray};
pub use observe::{
    EGRESS, EVENT_NAMES, EVENT_WINDOW_NS, EVENTS_PER_WINDOW, Event, EventBook, EventKind,
    LinkControl, PausePriority, Pending, PendingKey, RTT_BUCKETS, Rtt,
};
pub use queue::{ENGINE_DROP_SLOTS, QueueCounters, QueueEngine, REASON_SLOTS};

pub use crate::reason::{REASON_ALL, REASON_NAMES, Reason};

/// The map holding the QPs' configuration.
pub const QP_CONFIG: &str = "QP_CONFIG";
/// The map holding what XDP counted per QP and queue.
pub const QP_COUNTERS: &str = "QP_COUNTERS";
/// The map holding what the engine did per QP.
pub const QP_ENGINE: &str = "QP_ENGINE";
/// The map holding what XDP counted per queue, reasons of refusal included.
pub const QUEUE_COUNTERS: &str = "QUEUE_COUNTERS";
/// The map holding what the engine counted per queue.
pub const QUEUE_ENGINE: &str = "QUEUE_ENGINE";
/// The map of dirty marks, one byte a slot.
pub const DIRTY: &str = "DIRTY";
/// The map of dirty marks of `DIRTY`'s entries.
pub const DIRTY_INDEX: &str = "DIRTY_INDEX";
/// The map of RoCEv2 flows that are not ours.
pub const FLOWS: &str = "FLOWS";
/// The map of this endpoint's addresses.
pub const LOCAL_ADDRS: &str = "LOCAL_ADDRS";
/// The map of pause frames and the like, per queue.
pub const LINK_CONTROL: &str = "LINK_CONTROL";
/// The ring buffer of rare events; one consumer.
pub const EVENTS: &str = "EVENTS";
/// The map of AF_XDP sockets.
pub const XSKS: &str = "XSKS";

/// Name of the program that accepts frames of several buffers (`xdp.frags`).
pub const PROGRAM_FRAGS: &str = "rocexdp_frags";
/// Name of the program for devices and kernels without multi-buffer XDP.
pub const PROGRAM_PLAIN: &str = "rocexdp";
/// Global in the object: receive queues (and sockets per owner), `u32`, at least 1.
pub const GLOBAL_QUEUES: &str = "N_QUEUES";
/// Global in the object, `u32`: picoseconds of a pause quantum (512 bit times at the link's rate); 0: rate unknown.
pub const GLOBAL_QUANTUM_PS: &str = "QUANTUM_PS";
/// Global in the object: QP slots - 1, `u32`; the number of slots is a power of two.
pub const GLOBAL_SLOT_MASK: &str = "SLOT_MASK";

/// Global in the object, `u8`: 1 makes the program log each refused or malformed packet by aya-log (`EbpfLogger`); 0, the
/// default, costs nothing, because the verifier removes the branch.
pub const GLOBAL_LOG_REFUSALS: &str = "LOG_REFUSALS";

/// QP slots unless asked otherwise.
pub const DEFAULT_SLOTS: u32 = 1024;
/// Entries of `FLOWS` unless asked otherwise.
pub const DEFAULT_FLOWS: u32 = 8192;
/// Bytes of `EVENTS`.
pub const EVENTS_BYTES: u32 = 1 << 18;
/// Entries of `LOCAL_ADDRS`: 256 addresses, and as many multicast groups as an endpoint may join.
pub const MAX_ADDRESSES: u32 = 256 + 8192;
/// Slot of QP 1, the general management QP (GSI), whose configuration is there while one is open.
pub const GSI_SLOT: u32 = 1;
/// The QPN that packets to multicast groups have; its slot is the last one, whatever the number of slots. Its configuration is there
/// from when the first group was joined; which QPs get a copy is the engine's to know.
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Bit that every local QPN has set, so that it cannot collide with Soft-RoCE's, which count from 17.
pub const LOCAL_QPN_BIT: u32 = 0x80_0000;

/// Flags of a `LOCAL_ADDRS` value.
pub mod local_addr {
    /// The address is this endpoint's alone: an unknown QPN is dropped and counted.
    pub const EXCLUSIVE: u32 = 1;
    /// Another RoCE stack uses the address too: an unknown QPN is passed to the kernel.
    pub const SHARED: u32 = 2;
    /// A multicast group that this endpoint has joined.
    pub const GROUP: u32 = 4;
}

/// Configuration of one QP slot. Userspace writes the fields, then publishes with `generation`.
///
/// The three resync words are apart from that, so that a live QP can be resynchronised: `generation` stays, the two
/// PSNs are written, then `resync` with release ordering. Each queue's counters take them with the QP's next packet
/// there. While `generation` is 0 the QP's packets are those of an unknown QP: clear it only to free the slot.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct QpConfig {
    /// 0: the slot is free, or is being written. Otherwise changes with each publication; stored
    /// with release ordering, and read before and after the fields.
    pub generation: u32,
    /// Local QP number; its low bits are the slot.
    pub qpn: u32,
    /// The peer's QP number (RC, UC).
    pub peer_qpn: u32,
    /// Owner of the QP: selects the socket, `owner * queues + queue`.
    pub owner: u32,
    /// Our address: a packet must be sent to it. Without meaning if `address_flags` is not 0.
    pub local_gid: Gid,
    /// The peer's address: an RC or UC packet must come from it.
    pub peer_gid: Gid,
    /// Changes when the engine wants the trackers set to the two PSNs below.
    pub resync: u32,
    /// Expected PSN of the peer's next request.
    pub resync_request_psn: u32,
    /// Expected PSN of the next READ response.
    pub resync_response_psn: u32,
    /// [`crate::opcode::Transport`] as a number: 0 RC, 1 UC, 3 UD.
    pub transport: u8,
    /// log2 of the path MTU: 8 (256) to 12 (4096).
    pub path_mtu_log2: u8,
    /// 0: packets must be sent to `local_gid`. Else to any address of `LOCAL_ADDRS` that has one of these [`local_addr`] flags:
    /// QP 1 serves all addresses, the multicast QPN all groups.
    pub address_flags: u8,
    /// Paths that selective repeat spreads packets over; 0: go-back-N.
    pub selective_paths: u8,
}

/// 64 dirty marks, one byte each.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct DirtyLine(pub [u8; 64]);
