//! What a QP is made with, and how it is connected.
//!
//! Must not: check values (the transport does, and names the attribute).

use std::{net::IpAddr, sync::Arc};

use rocexdp_proto::{
    CreateQp, SelectiveRepeat, Transport,
    ids::{Pd, Psn, Qpn},
    mem::Access,
    verbs::{CompletionQueue, PathMtu, RecvQueue},
};

/// TTL and hop limit of what we send, unless told otherwise.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// What two ends have agreed on.
#[derive(Clone, Copy, Debug)]
pub struct ConnectAttr {
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
    /// The peer's QP.
    pub peer_qpn: Qpn,
    /// PSN of the peer's first request.
    pub peer_psn: Psn,
    /// PSN of our first request, where the peer says it (the communication manager's REQ and REP); `None`: [`RawQp::psn`](super::RawQp::psn).
    pub psn: Option<Psn>,
    /// Path MTU of both directions.
    pub path_mtu: PathMtu,
    /// Local ACK timeout, 4.096 us x 2^timeout; 0: none.
    pub timeout: u8,
    /// Retries after a timeout or a sequence NAK.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK; 7: without end.
    pub rnr_retry: u8,
    /// RNR NAK timer code that we ask the peer to wait.
    pub min_rnr_timer: u8,
    /// READs and atomics of ours that may be unanswered at once (initiator depth): at most the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
    /// The peer's READs and atomics that may be unanswered at once (responder resources).
    pub max_dest_rd_atomic: u8,
    /// Selective repeat, where both ends have agreed on the same; `None`: go-back-N, as any peer understands it.
    pub selective: Option<SelectiveRepeat>,
    /// Whether the peer is told of congestion by CNPs (see `EndpointConfig::cnp_enabled`, which must allow it): where it is known to
    /// understand them. Soft-RoCE does not.
    pub cnp: bool,
    /// What the peer may do to our memory through this QP.
    pub access: Access,
    /// DSCP of what we send, 0..=63; `None`: the device's.
    pub dscp: Option<u8>,
    /// TTL or hop limit of what we send, at least 1.
    pub hop_limit: u8,
    /// IPv6 flow label (20 bits), from which the UDP source port follows; 0: computed from the QPNs.
    pub flow_label: u32,
}

/// READs and atomics that may be unanswered at once unless told otherwise, each way.
pub const DEFAULT_RD_ATOMIC: u8 = 16;

impl ConnectAttr {
    /// To this peer, which may do nothing to our memory, with the defaults: ACK timeout 134 ms (code 15: a peer without a processor
    /// of its own may not run for tens of milliseconds, which must not look like loss) and 7 retries, so that a peer that has gone
    /// is given up after a second; no end of RNR retries, 0.64 ms apart (code 12); [`DEFAULT_RD_ATOMIC`].
    #[must_use]
    pub const fn new(
        local: IpAddr,
        peer: IpAddr,
        peer_qpn: Qpn,
        peer_psn: Psn,
        path_mtu: PathMtu,
    ) -> Self {
        Self {
            local,
            peer,
            peer_qpn,
            peer_psn,
            psn: None,
            path_mtu,
            timeout: 15,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: DEFAULT_RD_ATOMIC,
            max_dest_rd_atomic: DEFAULT_RD_ATOMIC,
            selective: None,
            cnp: false,
            access: Access::NONE,
            dscp: None,
            hop_limit: DEFAULT_HOP_LIMIT,
            flow_label: 0,
        }
    }
}

/// What a QP is made with.
#[derive(Clone, Debug)]
pub struct QpSpec {
    /// Service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: Pd,
    /// Depth of the send queue.
    pub max_send: u32,
    /// Depth of the receive queue; without meaning with `srq`.
    pub max_recv: u32,
    /// Where its send requests complete.
    pub send_cq: Arc<CompletionQueue>,
    /// Where its receive requests complete.
    pub recv_cq: Arc<CompletionQueue>,
    /// A receive queue shared with others.
    pub srq: Option<Arc<RecvQueue>>,
    /// What the peer may do through it, besides what regions allow.
    pub access: Access,
    /// Slices of a send request.
    pub max_send_sge: u32,
    /// Slices of a receive request.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline: u32,
    /// PSN of its first request; `None`: random.
    pub psn: Option<Psn>,
}

impl QpSpec {
    /// As [`CreateQp::rc`], in the default protection domain, its peer without rights.
    #[must_use]
    pub fn new(
        transport: Transport,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
    ) -> Self {
        let usual = CreateQp::rc(Qpn::new(0), send_cq, recv_cq);
        Self {
            transport,
            pd: usual.pd,
            max_send: usual.max_send,
            max_recv: usual.max_recv,
            send_cq: usual.send_cq,
            recv_cq: usual.recv_cq,
            srq: None,
            access: Access::NONE,
            max_send_sge: usual.max_send_sge,
            max_recv_sge: usual.max_recv_sge,
            max_inline: usual.max_inline,
            psn: None,
        }
    }
}
