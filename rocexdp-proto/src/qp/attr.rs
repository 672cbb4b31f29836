//! QP states and what each transition sets, after `ibv_modify_qp(3)` and the kernel's `ib_modify_qp_is_ok`
//! (drivers/infiniband/core/verbs.c).
//!
//! Must not: carry a transition out.

use core::time::Duration;

use crate::ids::Gid;
use crate::ids::{PathMtu, Psn, Qpn};
use crate::mem::Access;
use crate::wire::Path;

/// What INIT to RTR sets: how to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtrAttr {
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// Largest payload of a packet, the same at both ends.
    pub path_mtu: PathMtu,
    /// PSN of the peer's first request.
    pub rq_psn: Psn,
    /// What an RNR NAK asks the peer to wait: code 0..=31 of [`rnr_delay`].
    pub min_rnr_timer: u8,
    /// READs and atomics of the peer that may be unanswered at once (responder resources), 0..=[`MAX_RD_ATOMIC`].
    pub max_dest_rd_atomic: u8,
    /// The way to the peer.
    pub path: Path,
    /// Selective repeat instead of go-back-N, where the peer agreed to the same; `None` for any other peer.
    pub selective: Option<SelectiveRepeat>,
}

/// What two rocexdp ends agree on when they connect; the same at both (docs/wire-extensions.md).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectiveRepeat {
    /// UDP source ports that requests are spread over, 1..=[`MAX_PATHS`]: as many ways through a network that chooses by flow.
    pub paths: u8,
}

/// Most paths of a QP.
pub const MAX_PATHS: u8 = 16;

/// Largest initiator depth, and most responder resources (rxe: `RXE_MAX_QP_RD_ATOM`).
pub const MAX_RD_ATOMIC: u8 = 128;

/// What RTR to RTS sets: how to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtsAttr {
    /// PSN of our first request.
    pub sq_psn: Psn,
    /// ACK timeout 4.096 us x 2^timeout, 1..=31; 0: none, so a lost ACK is never noticed.
    pub timeout: u8,
    /// Times a request is sent again for want of an acknowledgement, 0..=7. 7 means seven times, as the standard has it;
    /// Soft-RoCE takes it for "for ever" (rxe_comp.c), which would hide a dead peer.
    pub retry_cnt: u8,
    /// Times a request is sent again after an RNR NAK, 0..=7; 7: for ever.
    pub rnr_retry: u8,
    /// READs and atomics of ours that may be unanswered at once (initiator depth), 0..=[`MAX_RD_ATOMIC`]: at most what the
    /// peer has resources for.
    pub max_rd_atomic: u8,
}

/// What RESET to INIT sets of a UD QP: who it is. It has no peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdAttr {
    /// Its address: packets must come to it, or to a group that it is attached to, and address handles start at it. Unset for QP 1,
    /// which serves all of the host's addresses: the driver gives it no packet to another's.
    pub address: Gid,
    /// Its Q_Key: packets without it are dropped.
    pub qkey: u32,
    /// The port's path MTU: a message is one packet.
    pub path_mtu: PathMtu,
}

/// A change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpTransition {
    /// From RESET.
    Init {
        /// What the peer may do with this QP, besides what its regions allow.
        access: Access,
    },
    /// From INIT.
    Rtr(RtrAttr),
    /// From RTR, and from SQE, which takes none of the values.
    Rts(RtsAttr),
    /// UD, from RESET.
    InitUd(UdAttr),
    /// UD, from INIT.
    RtrUd,
    /// UD, from RTR; and from SQE, which does not take the value.
    RtsUd {
        /// PSN of the first request.
        sq_psn: Psn,
    },
    /// From any state: every posted request completes with [`crate::verbs::Status::WrFlushErr`].
    Err,
    /// From any state: every posted request is forgotten without a completion.
    Reset,
}

/// ACK timeout of a code, 4.096 us x 2^code; `None` for 0.
#[must_use]
pub fn ack_timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << code.min(31)))
}

/// Delays of RNR NAK timer codes, 10 us each: `ib_rvt_rnr_table` of drivers/infiniband/sw/rdmavt/qp.c.
const RNR_TABLE: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// What an RNR NAK with this timer code asks for, at least. Only the low five bits count.
#[must_use]
pub fn rnr_delay(code: u8) -> Duration {
    let units = RNR_TABLE
        .get(usize::from(code & 0x1f))
        .copied()
        .unwrap_or(65536);
    Duration::from_micros(u64::from(units) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_codes_give_the_standards_times() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
        let us = |c| rnr_delay(c).as_micros();
        assert_eq!(
            [us(0), us(1), us(12), us(25), us(31)],
            [655_360, 10, 640, 61_440, 491_520]
        );
    }
}
