//! The tap: frames of RoCE that go to a recorder, as records of a BPF ring buffer.
//!
//! Off, it costs a load and a branch per packet: [`TapControl`] is a mmapable word that the recorder writes. A ring buffer
//! rather than a perf event array because one order over all CPUs is what a recorder writes and triggers by, because its
//! memory is one bound however many CPUs there are, and because a record that finds no room is known where it is lost;
//! what it costs, one lock for all CPUs, is met at several million records a second.
//!
//! | map | type | value | writer |
//! |---|---|---|---|
//! | `TAP_CONTROL` | array of 1, mmapable | [`TapControl`] | userspace |
//! | `TAP` | ring buffer | [`TapHead`], then the frame's first bytes | programs |
//! | `TAP_BOOK` | array, mmapable, by CPU | [`TapBook`] | programs on that CPU |
//! | `TX_TAP` | array, mmapable, an endpoint's only | [`TxTap`], [`TX_TAP_SLOTS`] a worker | the engine |
//!
//! What an endpoint sends goes from AF_XDP sockets to the driver and past every program, so the engine records it itself.

/// The map of the control word.
pub const TAP_CONTROL: &str = "TAP_CONTROL";
/// The ring buffer of records; one consumer.
pub const TAP: &str = "TAP";
/// The map of what was recorded and lost.
pub const TAP_BOOK: &str = "TAP_BOOK";

/// Bytes of `TAP` unless asked otherwise: a power of two.
pub const TAP_BYTES: u32 = 1 << 24;
/// Entries of `TAP_BOOK`; CPUs beyond share, and may then lose counts.
pub const TAP_CPUS: u32 = 512;

/// Bytes of a frame in the three sizes of records: the kernel wants to know the size of a record beforehand.
pub const TAP_SIZES: [u32; 3] = [96, 224, 4608 - 32];

/// The map of what an endpoint's engine sent.
pub const TX_TAP: &str = "TX_TAP";
/// Entries of `TX_TAP` that one worker writes in turn: some ten milliseconds of small packets.
pub const TX_TAP_SLOTS: u32 = 4096;
/// Bytes of a sent frame that are kept: all headers, and a little more.
pub const TX_TAP_DATA: usize = 224;

/// A frame that the engine sent.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct TxTap {
    /// Counts the worker's records from 1; record `n` stands in its slot `(n - 1) % TX_TAP_SLOTS`. 0: none, or one is
    /// being written. Stored last, with release ordering.
    pub number: u64,
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// Bytes of the frame.
    pub wire_len: u32,
    /// Bytes of `data` that are its first.
    pub captured: u32,
    /// Reserved, 0.
    pub reserved: [u32; 2],
    /// The frame's first bytes.
    pub data: [u8; TX_TAP_DATA],
}

/// What the recorder wants.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct TapControl {
    /// 0: nothing. 1: headers. 2: whole frames, as far as a record has room.
    pub mode: u32,
    /// Reserved, 0.
    pub reserved: [u32; 15],
}

/// [`TapControl::mode`]: off.
pub const OFF: u32 = 0;
/// [`TapControl::mode`]: headers only.
pub const HEADERS: u32 = 1;
/// [`TapControl::mode`]: with payload.
pub const WHOLE: u32 = 2;

/// Head of a record.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct TapHead {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// Bytes of the frame, without a tag that stands in [`TapHead::vlan_tci`].
    pub wire_len: u32,
    /// Bytes of it that follow. (The record has room for more: what is behind them means nothing.)
    pub captured: u32,
    /// Receive queue; [`EGRESS`](crate::maps::EGRESS) for a frame that was sent.
    pub queue: u32,
    /// The interface's index in its namespace.
    pub ifindex: u32,
    /// Protocol of a VLAN tag that the kernel keeps beside the frame, 0: none.
    pub vlan_proto: u16,
    /// The tag.
    pub vlan_tci: u16,
    /// Reserved, 0.
    pub reserved: u32,
}

/// What became of the frames that the tap was to record, on one CPU.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct TapBook {
    /// Records made.
    pub recorded: u64,
    /// Frames that found no room in the ring.
    pub lost: u64,
    /// Reserved, 0.
    pub reserved: [u64; 6],
}
