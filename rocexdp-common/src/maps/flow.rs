//! Flows that are not ours: key and state of the LRU hash `FLOWS`, and requests that wait for their acknowledgement.
//!
//! Layout only; `crate::account` does the counting.

use super::{QpCounters, Rtt};
use crate::ids::Gid;

/// Key of a flow that is not ours.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FlowKey {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

/// State of a flow that is not ours.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FlowState {
    /// The counters, as for a local QP; the trackers go on behind a gap.
    pub counters: QpCounters,
    /// Largest payload of a FIRST or MIDDLE packet that is a path MTU (256, 512, ... 4096), B; 0: none seen. Until
    /// one is, a READ request of more than 256 B leaves the next PSN unknown.
    pub path_mtu: u32,
    /// QPN of the QP that sends this flow, learned by pairing acknowledgements with what they acknowledge, or from the
    /// connection's messages; 0: not known.
    pub sender_qpn: u32,
    /// Reserved, 0.
    pub reserved: [u32; 2],
    /// Round trips that ended with this flow's answers: from a request of the opposite flow, as it passed, to its answer.
    pub rtt: Rtt,
    /// What keeps the trackers on their streams: of the requests, of the READ responses. Used by the monitor.
    pub stray: [Stray; 2],
}

/// Where a stream may really be, when its packets do not fit its tracker; see `crate::stray`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Stray {
    /// PSN behind the last packet that did not fit.
    pub next_psn: u32,
    /// Such packets in order with one another; 0: the last packet did fit.
    pub run: u32,
    /// PSN expected before the last jump.
    pub before_psn: u32,
    /// 1 while that jump may have been wrong.
    pub jumped: u32,
}

impl FlowState {
    /// A flow of which nothing was seen: what the program enters into the map.
    pub const ZERO: Self = Self {
        counters: QpCounters::ZERO,
        path_mtu: 0,
        sender_qpn: 0,
        reserved: [0; 2],
        rtt: Rtt::ZERO,
        stray: [Stray {
            next_psn: 0,
            run: 0,
            before_psn: 0,
            jumped: 0,
        }; 2],
    };
}
