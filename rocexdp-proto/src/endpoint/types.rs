//! What goes into and comes out of an [`super::Endpoint`] besides frames.
//!
//! Must not: hold behaviour of the transport.

use core::time::Duration;
use std::sync::Arc;

use rocexdp_common::maps::QpEngine;
use rocexdp_common::opcode::Transport;

use super::device::DeviceAttr;
use super::traffic::{Marking, TrafficClasses};
use crate::dcqcn::{NpParams, RpParams};
use crate::drop::DROP_REASONS;
use crate::ids::{CqNum, Pd, Psn, Qpn, RKey, SrqNum};
use crate::mem::RegionError;
pub use crate::qp::{AsyncError, ErrorCause};
use crate::qp::{ModifyError, QpState};
use crate::rate::RateControl;
use crate::time::Rate;
use crate::verbs::{CompletionQueue, RecvQueue, SendQueue};

/// What happens to packets with a wrong ICRC. They are counted either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IcrcMode {
    /// Dropped.
    #[default]
    Check,
    /// Taken: for peers that send none (switches and FPGAs that leave it 0). Corruption then goes unseen.
    Ignore,
}

/// Settings of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// DCQCN at the sender.
    pub rp: RpParams,
    /// What decides at which rate, and with how much on the way, a QP sends.
    pub rate_control: RateControl,
    /// DCQCN at the receiver.
    pub np: NpParams,
    /// Rate of the link. `None` where there is none to believe (veth): a QP's ceiling is then what it was sending at when
    /// its first CNP came.
    pub line_rate: Option<Rate>,
    /// What all QPs together send at most, on the link: `None` where the link itself holds them back, as a NIC's does.
    pub port_rate: Option<Rate>,
    /// DSCP of requests and acknowledgements, 0..=63.
    pub data_dscp: u8,
    /// Priorities, and how they are served.
    pub classes: TrafficClasses,
    /// What happens to packets with a wrong ICRC.
    pub icrc: IcrcMode,
    /// Packets of a QP that may be unacknowledged, 1..=65536.
    pub max_inflight_packets: u32,
    /// Response packets that one READ request asks for, 1..=64 and at most half of `max_inflight_packets`: a longer READ is
    /// asked for in several requests, so that its responses never come in faster than they are taken.
    pub read_chunk_packets: u32,
    /// The ACK timeout follows the measured round trips: at least this, at most the connection's own. `None`: it is the
    /// connection's own.
    pub adaptive_timeout_floor: Option<Duration>,
    /// An acknowledgement is asked for on every so-manieth packet, besides the last one of each message.
    pub ack_req_interval: u32,
    /// Selective repeat: request packets that a QP keeps while one before them is missing. At most 8192 are of use.
    pub reorder_packets: u32,
    /// The same for all QPs together; each takes room for a payload.
    pub reorder_packets_total: u32,
    /// Whether CE marks are answered by CNPs. Some peers mishandle those (Soft-RoCE up to 6.1 drops them).
    pub cnp_enabled: bool,
    /// Whether CE marks are taken from received frames. Not where XDP has counted them already.
    pub ecn_from_frames: bool,
    /// Limits of the device, as advertised and enforced.
    pub limits: DeviceAttr,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            rp: RpParams::default(),
            rate_control: RateControl::default(),
            np: NpParams::default(),
            line_rate: None,
            port_rate: None,
            data_dscp: 0,
            classes: TrafficClasses::default(),
            icrc: IcrcMode::Check,
            max_inflight_packets: 128,
            read_chunk_packets: 64,
            adaptive_timeout_floor: None,
            ack_req_interval: 32,
            reorder_packets: 4096,
            reorder_packets_total: 16384,
            cnp_enabled: true,
            ecn_from_frames: false,
            limits: DeviceAttr::default(),
        }
    }
}

/// What was counted of a QP's packets elsewhere (by XDP) since the last time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CongestionSignal {
    /// Packets that came with Congestion Experienced.
    pub ce_marks: u32,
    /// CNPs that came, their ICRC being right.
    pub cnps: u32,
}

/// A new QP.
#[derive(Clone, Debug)]
pub struct CreateQp {
    /// Its number: unused, none of the reserved 0, 1 and 0xffffff; 1 for the UD QP of general management ([`crate::verbs::GSI_QPN`]).
    pub qpn: Qpn,
    /// Its service: RC, UC or UD.
    pub transport: Transport,
    /// Its protection domain.
    pub pd: Pd,
    /// Depth of the send queue.
    pub max_send: u32,
    /// Depth of the receive queue.
    pub max_recv: u32,
    /// Ranges in the list of a send request.
    pub max_send_sge: u32,
    /// Ranges in the list of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub max_inline: u32,
    /// Every send request makes a completion, signalled or not (`sq_sig_all`).
    pub signal_all: bool,
    /// Where its send requests complete.
    pub send_cq: Arc<CompletionQueue>,
    /// Where its receive requests complete.
    pub recv_cq: Arc<CompletionQueue>,
    /// The receive queue that it shares with others, instead of one of its own; `max_recv` means nothing then.
    pub srq: Option<Arc<RecvQueue>>,
}

impl CreateQp {
    /// An RC QP with queues of 128 requests of 16 ranges or 256 bytes inline, in the default protection domain.
    #[must_use]
    pub fn rc(qpn: Qpn, send_cq: &Arc<CompletionQueue>, recv_cq: &Arc<CompletionQueue>) -> Self {
        Self {
            qpn,
            transport: Transport::Rc,
            pd: Pd::default(),
            max_send: 128,
            max_recv: 128,
            max_send_sge: 16,
            max_recv_sge: 16,
            max_inline: 256,
            signal_all: false,
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            srq: None,
        }
    }
}

impl CreateQp {
    /// As [`CreateQp::rc`], UC.
    #[must_use]
    pub fn uc(qpn: Qpn, send_cq: &Arc<CompletionQueue>, recv_cq: &Arc<CompletionQueue>) -> Self {
        Self {
            transport: Transport::Uc,
            ..Self::rc(qpn, send_cq, recv_cq)
        }
    }

    /// As [`CreateQp::rc`], UD.
    #[must_use]
    pub fn ud(qpn: Qpn, send_cq: &Arc<CompletionQueue>, recv_cq: &Arc<CompletionQueue>) -> Self {
        Self {
            transport: Transport::Ud,
            ..Self::rc(qpn, send_cq, recv_cq)
        }
    }
}

/// Largest depth of a queue.
pub const MAX_QUEUE_DEPTH: u32 = 1 << 16;

/// A QP as its owner holds it.
#[derive(Clone, Debug)]
pub struct QpHandle {
    /// Its number.
    pub qpn: Qpn,
    /// Its send queue.
    pub sq: Arc<SendQueue>,
    /// Its receive queue.
    pub rq: Arc<RecvQueue>,
}

/// Why a command was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerbsError {
    /// No QP has this number.
    #[error("there is no QP {0}")]
    UnknownQp(Qpn),
    /// The number is taken or reserved.
    #[error("QP number {0} is taken or reserved: choose another")]
    QpnTaken(Qpn),
    /// The QP's state does not allow it.
    #[error("QP {qpn} is in state {from}, from which it can't go to {to}")]
    InvalidTransition {
        /// The QP.
        qpn: Qpn,
        /// Its state.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// A change of state does not take, or needs, other attributes.
    #[error("QP {qpn}: {from} to {to} {why}")]
    Attributes {
        /// The QP.
        qpn: Qpn,
        /// Its state.
        from: QpState,
        /// The state asked for.
        to: QpState,
        /// Which.
        why: ModifyError,
    },
    /// No protection domain has this number.
    #[error("there is no protection domain {}: allocate it first", .0.0)]
    UnknownPd(Pd),
    /// The protection domain is still used.
    #[error("{users} QPs, regions, windows and shared receive queues use protection domain {}: destroy them first", pd.0)]
    PdBusy {
        /// The domain.
        pd: Pd,
        /// Objects in it.
        users: u32,
    },
    /// The number is another shared receive queue's.
    #[error("shared receive queue {} is there already: choose another number", .0.0)]
    SrqTaken(SrqNum),
    /// QPs take from the shared receive queue.
    #[error("{users} QPs take from shared receive queue {}: destroy them first", srq.0)]
    SrqBusy {
        /// The queue.
        srq: SrqNum,
        /// QPs.
        users: u32,
    },
    /// A shared receive queue can't be so deep.
    #[error("shared receive queue {}: {held} requests have not completed, and its depth must be at least that and 1: {depth} is less", srq.0)]
    SrqDepth {
        /// The queue.
        srq: SrqNum,
        /// The depth asked for.
        depth: u32,
        /// Requests that have not completed.
        held: u32,
    },
    /// The queue is not a shared one, or another endpoint's.
    #[error("the queue is not a shared receive queue of this endpoint")]
    NotSrq,
    /// Nothing has this key.
    #[error("no memory region or window has the key {0}")]
    UnknownKey(RKey),
    /// The key is taken.
    #[error("key {0} is taken: draw another")]
    KeyTaken(RKey),
    /// A region can't be registered or withdrawn.
    #[error("memory region {key}: {why}")]
    Region {
        /// Its key; 0 if it has none yet.
        key: RKey,
        /// Why.
        why: RegionError,
    },
    /// As many objects as the device has.
    #[error("all {limit} {what} of the device are in use: destroy some, or configure more")]
    Limit {
        /// Which objects.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
    /// More of something than the device allows.
    #[error("{what}: {asked} asked for, and the device has at most {limit}")]
    Exceeds {
        /// The limit's name in [`DeviceAttr`], or what it is of.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// The most there may be.
        limit: u64,
    },
    /// A value is out of its range.
    #[error("QP {qpn}: {what}")]
    InvalidAttr {
        /// The QP.
        qpn: Qpn,
        /// Which value, and its range.
        what: &'static str,
    },
}

/// Something the owner should know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The QP went to ERR by itself; its requests are flushed.
    QpError {
        /// The QP.
        qpn: Qpn,
        /// Why.
        cause: ErrorCause,
    },
    /// A completion queue lost a completion, for the first time (`IB_EVENT_CQ_ERR`). Every QP that loses one goes to ERR.
    CqOverflow {
        /// The queue.
        cq: CqNum,
    },
    /// Fewer requests are left in a shared receive queue than its limit says (`IB_EVENT_SRQ_LIMIT_REACHED`). The limit is
    /// not armed any more.
    SrqLimitReached {
        /// The queue.
        srq: SrqNum,
    },
    /// A QP with a shared receive queue is in ERR and takes no more requests from it (`IB_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached {
        /// The QP.
        qpn: Qpn,
    },
    /// A QP in SQD has carried out all that had begun (`IB_EVENT_SQ_DRAINED`).
    SqDrained {
        /// The QP.
        qpn: Qpn,
    },
    /// The peer's first packet came while the QP was in RTR (`IB_EVENT_COMM_EST`).
    CommunicationEstablished {
        /// The QP.
        qpn: Qpn,
    },
}

impl core::fmt::Display for Event {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::QpError { qpn, cause } => write!(f, "QP {qpn} went to ERR: {cause}"),
            Self::CqOverflow { cq } => {
                write!(
                    f,
                    "completion queue {} has lost a completion: make it deeper",
                    cq.0
                )
            }
            Self::SrqLimitReached { srq } => {
                write!(f, "shared receive queue {} is below its limit", srq.0)
            }
            Self::LastWqeReached { qpn } => {
                write!(f, "QP {qpn} takes no more from its shared receive queue")
            }
            Self::SqDrained { qpn } => write!(f, "QP {qpn}: the send queue is drained"),
            Self::CommunicationEstablished { qpn } => {
                write!(f, "QP {qpn}: the peer's first packet came")
            }
        }
    }
}

/// What an endpoint counted. Frames received are the sum of `accepted`, `icrc_errors` and `drops`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndpointCounters {
    /// Frames that passed all checks: requests carried out or answered again, acknowledgements, CNPs.
    pub accepted: u64,
    /// Frames dropped for a wrong ICRC.
    pub icrc_errors: u64,
    /// Frames with a wrong ICRC that were taken nevertheless ([`IcrcMode::Ignore`]); among `accepted` or `drops` too.
    pub icrc_ignored: u64,
    /// Copies of a group's packets that a QP attached did not take, besides the packets that none took; not frames.
    pub group_refusals: u64,
    /// Frames of multicast groups, from the wire, that a QP took; among `accepted` too.
    pub group_accepted: u64,
    /// Frames of multicast groups, from the wire, that no QP took; among `icrc_errors` or `drops` too.
    pub group_dropped: u64,
    /// Frames dropped for another reason, by [`crate::DropReason::index`].
    pub drops: [u64; DROP_REASONS],
}

impl Default for EndpointCounters {
    fn default() -> Self {
        Self {
            accepted: 0,
            icrc_errors: 0,
            icrc_ignored: 0,
            group_refusals: 0,
            group_accepted: 0,
            group_dropped: 0,
            drops: [0; DROP_REASONS],
        }
    }
}

/// A QP's state as it is now.
#[derive(Clone, Copy, Debug)]
pub struct QpInfo<'a> {
    /// State.
    pub state: QpState,
    /// PSN of the next new request.
    pub send_psn: Psn,
    /// Oldest PSN not acknowledged.
    pub unacked_psn: Psn,
    /// PSN of the peer's next request.
    pub expected_psn: Psn,
    /// Messages completed as responder, 24 bits.
    pub msn: u32,
    /// How its data are marked (of a UD QP: unless a handle says otherwise).
    pub marking: Marking,
    /// Their priority.
    pub priority: u8,
    /// The controller's rate; `None`: not paced.
    pub rate: Option<Rate>,
    /// The rate that it moves to.
    pub target: Option<Rate>,
    /// DCQCN's alpha, 0 to 1.
    pub alpha: f64,
    /// Counters. Those that mirror a state are filled by `Endpoint::fill` only.
    pub stats: &'a QpEngine,
}
