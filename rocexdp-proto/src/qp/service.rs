//! The transport service of a QP: which rules its two halves follow.
//!
//! Must not: hold those rules (`requester` and `responder` do for RC, `unacked` for the sending half of UC and UD, `uc` and `ud`
//! for their receiving halves).

use rocexdp_common::opcode::Transport;

use super::ud::Own;

/// The service of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// RC.
    Reliable,
    /// UC: connected, and never answered.
    Unreliable,
    /// UD: not connected; what is its own instead of a peer's.
    Datagram(Own),
}

impl Service {
    /// The service of an opcode range; `None` where there are no such QPs.
    pub(crate) fn of(transport: Transport) -> Option<Self> {
        match transport {
            Transport::Rc => Some(Self::Reliable),
            Transport::Uc => Some(Self::Unreliable),
            Transport::Ud => Some(Self::Datagram(Own::default())),
            _ => None,
        }
    }

    /// Its opcode range.
    pub(crate) const fn transport(&self) -> Transport {
        match self {
            Self::Reliable => Transport::Rc,
            Self::Unreliable => Transport::Uc,
            Self::Datagram(_) => Transport::Ud,
        }
    }

    /// Whether the peer answers: only then a request waits for more than its own leaving.
    pub(crate) const fn is_reliable(&self) -> bool {
        matches!(self, Self::Reliable)
    }
}
