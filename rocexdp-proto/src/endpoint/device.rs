//! The limits of an endpoint as a device: what `ibv_query_device(3)` would tell. Each is enforced where the object is made.
//!
//! Must not: enforce anything itself.

use crate::ids::PathMtu;
use crate::qp::MAX_RD_ATOMIC;
use crate::verbs::{MAX_CQE, MAX_MESSAGE};

/// Limits of the device (`struct ibv_device_attr`).
///
/// The defaults are real: an endpoint that reaches them works. Counts of objects cost nothing until used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAttr {
    /// QPs.
    pub max_qp: u32,
    /// Depth of a send or receive queue, in requests.
    pub max_qp_wr: u32,
    /// Ranges in the list of a request.
    pub max_sge: u32,
    /// Ranges in the list of a READ.
    pub max_sge_rd: u32,
    /// Bytes of inline data of a request.
    pub max_inline: u32,
    /// Completion queues that the endpoint's QPs use: they are made outside, and looked at when a QP is made.
    pub max_cq: u32,
    /// Depth of a completion queue, at most [`MAX_CQE`].
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Depth of a shared receive queue.
    pub max_srq_wr: u32,
    /// Ranges in the list of one of its requests.
    pub max_srq_sge: u32,
    /// READs and atomics of ours that may be unanswered at once, per QP (`max_qp_init_rd_atom`).
    pub max_rd_atomic: u8,
    /// READs and atomics of the peer that may be unanswered at once, per QP (`max_qp_rd_atom`).
    pub max_dest_rd_atomic: u8,
    /// Largest path MTU of a QP: the port's (`ibv_query_port(3)`, `active_mtu`).
    pub max_path_mtu: PathMtu,
    /// Address handles. They are values, made outside the endpoint and unknown to it: whoever gives them out counts them.
    pub max_ah: u32,
    /// Bytes of a message.
    pub max_msg_sz: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// QPs in one multicast group, which bounds the work that one frame makes.
    pub max_mcast_qp_attach: u32,
}

impl Default for DeviceAttr {
    fn default() -> Self {
        Self {
            max_qp: 1 << 18,
            max_qp_wr: super::MAX_QUEUE_DEPTH,
            max_sge: 32,
            max_sge_rd: 32,
            max_inline: 1024,
            max_cq: 1 << 18,
            max_cqe: MAX_CQE,
            max_mr: 1 << 20,
            max_mr_size: u64::MAX,
            max_pd: 1 << 16,
            max_mw: 1 << 20,
            max_srq: 1 << 16,
            max_srq_wr: super::MAX_QUEUE_DEPTH,
            max_srq_sge: 32,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            max_path_mtu: PathMtu::Mtu4096,
            max_ah: 1 << 20,
            max_msg_sz: MAX_MESSAGE,
            // drivers/infiniband/sw/rxe/rxe_param.h: `RXE_MAX_MCAST_GRP`, `RXE_MAX_MCAST_QP_ATTACH`.
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 56,
        }
    }
}
