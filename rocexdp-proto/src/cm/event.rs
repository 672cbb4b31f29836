//! What a communication manager tells its user.

use rocexdp_common::opcode::Transport;

use super::{
    IpCm, RejReason,
    conn::{ConnId, Route},
    sidr::SidrId,
};
use crate::ids::{PathMtu, Psn, Qpn};

/// A peer's request for a connection. `responder_resources` and `initiator_depth` are ours to be: already swapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Addresses.
    pub route: Route,
    /// What it asks for.
    pub service_id: u64,
    /// The RDMA CM's header, where the service is one of its.
    pub ip: Option<IpCm>,
    /// RC or UC.
    pub transport: Transport,
    /// The peer's QP.
    pub qpn: Qpn,
    /// PSN of our first request.
    pub psn: Psn,
    /// Path MTU of both directions.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer that it would have unanswered at once: resources that we need.
    pub responder_resources: u8,
    /// READs and atomics of ours that it takes at once.
    pub initiator_depth: u8,
    /// Our local ACK timeout, as code.
    pub ack_timeout: u8,
    /// Our retries after a timeout or sequence NAK.
    pub retry_count: u8,
    /// Our retries after an RNR NAK; 7: for ever.
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// The application's bytes, behind the RDMA CM's header where there is one: as many as the message has room for, zeros at the end.
    pub private_data: Vec<u8>,
}

/// A peer's answer to our request. Depths are ours to be, as in [`Request`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The peer's QP.
    pub qpn: Qpn,
    /// PSN of our first request.
    pub psn: Psn,
    /// READs and atomics of the peer that it would have unanswered at once.
    pub responder_resources: u8,
    /// READs and atomics of ours that it takes at once.
    pub initiator_depth: u8,
    /// Our local ACK timeout, as code.
    pub ack_timeout: u8,
    /// Our retries after an RNR NAK; 7: for ever.
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// The application's bytes: as many as the message has room for, zeros at the end.
    pub private_data: Vec<u8>,
}

/// News of a connection. After [`Event::Refused`], [`Event::Unreachable`] and [`Event::Disconnected`] its ID means nothing any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks: accept or reject it.
    Request(ConnId, Box<Request>),
    /// The peer has accepted: make the QP ready, then say so ([`super::Manager::ready`]).
    Reply(ConnId, Box<Reply>),
    /// The peer is ready; requests may be sent.
    Established(ConnId),
    /// The peer said no, or gave up.
    Refused {
        /// Which.
        id: ConnId,
        /// Why.
        reason: RejReason,
        /// Additional information, as the reason defines it; of [`RejReason::INVALID_MTU`] the largest path MTU.
        info: Vec<u8>,
        /// The application's bytes.
        private_data: Vec<u8>,
    },
    /// It never answered.
    Unreachable {
        /// Which.
        id: ConnId,
        /// The message that was not answered.
        message: &'static str,
        /// How often it was sent.
        sent: u32,
    },
    /// The connection has ended.
    Disconnected {
        /// Which.
        id: ConnId,
        /// The peer wanted it; else it has answered our wish, or given none.
        by_peer: bool,
    },
    /// A peer asks for a datagram service: answer it ([`super::Manager::answer`]).
    Wanted {
        /// The request.
        id: SidrId,
        /// What it asks for.
        service_id: u64,
        /// The RDMA CM's header, where the service is one of its.
        ip: Option<IpCm>,
        /// The application's bytes.
        private_data: Vec<u8>,
    },
    /// The datagram service that was asked for.
    Resolved {
        /// Which request.
        id: ConnId,
        /// The QP to send to.
        qpn: Qpn,
        /// Its Q_Key.
        qkey: u32,
        /// The application's bytes.
        private_data: Vec<u8>,
    },
    /// There is no such service for us.
    NotResolved {
        /// Which request.
        id: ConnId,
        /// Why ([`rocexdp_common::mad::sidr_status_name`]).
        status: u8,
    },
}
