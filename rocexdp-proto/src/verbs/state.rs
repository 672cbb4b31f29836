//! The states of a QP, which decide what its queues take.
//!
//! Must not: change a state (the QP does).

use core::fmt;

/// State of a QP. The numbers are those of `enum ib_qp_state` and of `maps::QpEngine::state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpState {
    /// New.
    Reset = 0,
    /// Takes receive requests.
    Init = 1,
    /// Ready to receive: serves the peer.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Sends that have begun are carried out, others wait (send queue drain).
    Sqd = 4,
    /// A send request of a UC or UD QP failed: sends are flushed, receiving goes on.
    Sqe = 5,
    /// Failed: every request is flushed.
    Err = 6,
}

impl QpState {
    /// All states, by number.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    pub(crate) const fn from_u8(v: u8) -> Self {
        match v {
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => Self::Reset,
        }
    }

    /// Whether sends may be posted. In SQE and ERR they are flushed, in SQD they wait.
    pub(crate) const fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether receives may be posted. In ERR they are flushed.
    pub(crate) const fn takes_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether requests of ours that have begun are carried out.
    pub(crate) const fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether the QP answers its peer's requests.
    pub(crate) const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}
