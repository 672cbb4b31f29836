//! One connection: where it is, and what is sent again until it is answered.

use core::{fmt, time::Duration};

use super::{MadBytes, event::Event, reject::RejReason};
use crate::{
    ids::{Gid, Qpn},
    time::Timestamp,
};

/// Our name of a connection (local communication ID).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub(super) u32);

impl ConnId {
    /// The number, as it is on the wire.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Where a message comes from and goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Route {
    /// Our address.
    pub local: Gid,
    /// The peer's.
    pub peer: Gid,
}

/// As `enum ib_cm_state` (include/rdma/ib_cm.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Our request is on its way.
    ReqSent,
    /// The peer has it, and takes time.
    MraReqReceived,
    /// The peer has accepted; our QP is being made ready.
    RepReceived,
    /// The peer's request is with the application.
    ReqReceived,
    /// Accepted; the peer's QP is being made ready.
    RepSent,
    /// The peer has our acceptance, and takes time.
    MraRepReceived,
    Established,
    /// We want to end it.
    DreqSent,
    /// It has ended; packets of it may still be on their way.
    TimeWait,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ReqSent => "REQ sent",
            Self::MraReqReceived => "MRA of REQ received",
            Self::RepReceived => "REP received",
            Self::ReqReceived => "REQ received",
            Self::RepSent => "REP sent",
            Self::MraRepReceived => "MRA of REP received",
            Self::Established => "established",
            Self::DreqSent => "DREQ sent",
            Self::TimeWait => "timewait",
        }
    }

    /// Counts against the listener's limit.
    pub(super) const fn half_open(self) -> bool {
        matches!(
            self,
            Self::ReqReceived | Self::RepSent | Self::MraRepReceived
        )
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) route: Route,
    pub(super) state: State,
    /// The peer's name of it; 0: not known yet.
    pub(super) remote_id: u32,
    pub(super) tid: u64,
    /// The peer asked.
    pub(super) passive: bool,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    /// What we sent last: sent again until answered, or for each copy of what it answers.
    pub(super) last: Option<Box<MadBytes>>,
    /// Between copies of it.
    pub(super) interval: Duration,
    /// Copies that may still be sent.
    pub(super) retries: u8,
    /// Copies sent of the message that is being repeated.
    pub(super) sent: u32,
    /// Of a message without an answer, and of timewait.
    pub(super) deadline: Option<Timestamp>,
    /// Packet life time, as code: of the way, for MRA.
    pub(super) life_time: u8,
    /// ACK timeout, as code: how long timewait is.
    pub(super) ack_timeout: u8,
    /// Retries of messages, as the REQ said.
    pub(super) max_retries: u8,
}

impl Conn {
    pub(super) fn refused(id: ConnId, reason: RejReason) -> Event {
        Event::Refused {
            id,
            reason,
            info: Vec::new(),
            private_data: Vec::new(),
        }
    }
}
