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
    /// Failed: every request is flushed.
    Err = 6,
}

impl QpState {
    pub(crate) const fn from_u8(v: u8) -> Self {
        match v {
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            6 => Self::Err,
            _ => Self::Reset,
        }
    }

    /// Whether sends may be posted. In ERR they are flushed.
    pub(crate) const fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Err)
    }

    /// Whether receives may be posted. In ERR they are flushed.
    pub(crate) const fn takes_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether the QP answers its peer's requests.
    pub(crate) const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Err => "ERR",
        })
    }
}
