//! The maps that the lab's wire program and its keeper share: names, keys, values.
//!
//! The wire has two ports, 0 and 1; what enters one leaves by the other.

use crate::fault::Faults;

/// Array of one [`WireConfig`].
pub const WIRE_CONFIG: &str = "WIRE_CONFIG";
/// Array of [`WireCounters`], one for each port; written by the program only.
pub const WIRE_COUNTERS: &str = "WIRE_COUNTERS";
/// XSKMAP with the userspace wire's socket of each port.
pub const WIRE_SOCKETS: &str = "WIRE_SOCKETS";
/// The program's name in the object.
pub const WIRE_PROGRAM: &str = "wire";

/// What the wire does. Zeroed, everything is dropped (there is no interface 0).
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireConfig {
    /// The faults of what enters each port.
    pub faults: [Faults; 2],
    /// What [`WireCounters::packets`] of each port was when the faults were set: packet number 0 of their decisions.
    pub base: [u64; 2],
    /// The interface index of each port.
    pub ports: [u32; 2],
    /// 1 hands all frames to the sockets in [`WIRE_SOCKETS`]; 0 forwards in XDP.
    pub to_sockets: u32,
    /// Zero.
    pub reserved: u32,
}

/// What happened to the frames that entered a port. A frame can be in several lines.
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// RoCEv2 packets seen: the next packet's number.
    pub packets: u64,
    /// Frames sent on, RoCEv2 or not.
    pub forwarded: u64,
    /// RoCEv2 packets dropped as a fault.
    pub dropped: u64,
    /// RoCEv2 packets with a byte changed.
    pub corrupted: u64,
    /// RoCEv2 packets that got Congestion Experienced.
    pub marked: u64,
    /// Frames that are not RoCEv2.
    pub other: u64,
    /// Frames that could not be changed or sent on: an error of the wire, not a fault.
    pub failed: u64,
    /// Frames handed to the userspace wire.
    pub to_sockets: u64,
}
