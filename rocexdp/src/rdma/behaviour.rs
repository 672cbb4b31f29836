//! How a queue pair behaves once connected: every attribute that a peer of any make may need to be matched.
//!
//! Must not: check values (the engine does, and names the attribute).

use rocexdp_proto::{ids::PathMtu, ids::Qpn, mem::Access, wire};

use crate::node::{DEFAULT_HOP_LIMIT, DEFAULT_RD_ATOMIC};

/// How a queue pair behaves once connected. Names and codes are those of `ibv_modify_qp(3)`; what stands in the global route header of
/// its address vector (`ah_attr.grh`) is [`Self::dscp`], [`Self::hop_limit`] and [`Self::flow_label`].
///
/// Set when the queue pair is built ([`QueuePairBuilder::behaviour`](super::QueuePairBuilder::behaviour)), or later, once the peer is known
/// ([`QueuePair::set_behaviour`](super::QueuePair::set_behaviour)). A value out of its range is an error of connecting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behaviour {
    /// Largest path MTU to agree on; `None`: the device's.
    pub path_mtu: Option<PathMtu>,
    /// Local ACK timeout, 4.096 us x 2^timeout, 1 to 31; 0: none. 15 (134 ms) unless set.
    pub timeout: u8,
    /// Retries after a timeout or a sequence NAK, 0 to 7. 7 unless set.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK (the peer had no receive request), 0 to 7; 7, unless set: for ever.
    pub rnr_retry: u8,
    /// What we ask a peer to wait for whose message we had no receive request, code 0 to 31. 12 (0.64 ms) unless set.
    pub min_rnr_timer: u8,
    /// READs and atomics of ours that may be unanswered at once, 0 to 128; at most what the peer has resources for is agreed on.
    pub max_rd_atomic: u8,
    /// The peer's READs and atomics that may be unanswered at once, 0 to 128.
    pub max_dest_rd_atomic: u8,
    /// Selective repeat with peers that agree to it, requests spread over so many UDP source ports (1 to 16: as many ways through a network
    /// that chooses by flow, the smaller number of both ends); 0, unless set: go-back-N.
    pub selective_repeat: u8,
    /// Tell the peer of congestion by CNPs. Not unless set, since not every peer understands them (Linux's Soft-RoCE does not); with a peer
    /// that was found by [`QueuePair::connect`](super::QueuePair::connect) or a [`Listener`](super::Listener), which does, they are sent in
    /// any case.
    pub cnp: bool,
    /// DSCP of what we send, 0 to 63: the upper six bits of verbs' `traffic_class`, whose lower two are ECN's and always ECT(0) here. `None`,
    /// unless set: the device's ([`NodeConfig::endpoint`](super::NodeConfig::endpoint), `data_dscp`).
    pub dscp: Option<u8>,
    /// TTL or hop limit of what we send, 1 to 255. 64 unless set.
    pub hop_limit: u8,
    /// From which the UDP source port follows. [`FlowLabel::COMPUTED`] unless set.
    pub flow_label: FlowLabel,
    /// What the peer may do through this queue pair, besides what regions allow: all, unless set.
    pub access: Access,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            path_mtu: None,
            timeout: 15,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: DEFAULT_RD_ATOMIC,
            max_dest_rd_atomic: DEFAULT_RD_ATOMIC,
            selective_repeat: 0,
            cnp: false,
            dscp: None,
            hop_limit: DEFAULT_HOP_LIMIT,
            flow_label: FlowLabel::COMPUTED,
            access: Access::peers(),
        }
    }
}

/// A flow label, 20 bits: IPv6 carries it, and with IPv4 and IPv6 the UDP source port follows from it, by which networks choose a flow's way
/// (`rdma_flow_label_to_udp_sport`, include/rdma/ib_verbs.h). A queue pair's port stays the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// Computed from the two queue pairs' numbers, as the kernel does for a label of 0 (`rdma_calc_flow_label`); IPv6 carries 0.
    pub const COMPUTED: Self = Self(0);

    /// A label; `None` over 20 bits. 0 is [`Self::COMPUTED`].
    #[must_use]
    pub const fn new(label: u32) -> Option<Self> {
        if label < 1 << 20 {
            Some(Self(label))
        } else {
            None
        }
    }

    /// A label for this UDP source port; `None` below 0xc000, where RoCEv2's begin.
    #[must_use]
    pub fn of_port(port: u16) -> Option<Self> {
        wire::flow_label_of_port(port).map(Self)
    }

    /// The label.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The UDP source port of a queue pair with this label.
    #[must_use]
    pub fn port(self, local: Qpn, remote: Qpn) -> u16 {
        wire::udp_source_port(self.0, local, remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_rocev2_can_be_had_and_no_other() {
        let (a, b) = (Qpn::new(0x80_0001), Qpn::new(17));
        let label = FlowLabel::of_port(0xc000).unwrap();
        assert_ne!(label, FlowLabel::COMPUTED);
        assert_eq!(label.port(a, b), 0xc000);
        assert_eq!(FlowLabel::of_port(4791), None);
        assert_eq!(FlowLabel::new(1 << 20), None);
        assert_eq!(FlowLabel::new(0), Some(FlowLabel::COMPUTED));
    }
}
