//! Why connections are refused.

use core::fmt;

use rocexdp_common::mad::rej_reason_name;

/// The reason of a REJ (`enum ib_cm_rej_reason` of include/rdma/ib_cm.h). Shown in words.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No QP.
    pub const NO_QP: Self = Self(1);
    /// No resources.
    pub const NO_RESOURCES: Self = Self(3);
    /// An answer came too late, or not at all.
    pub const TIMEOUT: Self = Self(4);
    /// Unsupported request.
    pub const UNSUPPORTED: Self = Self(5);
    /// Nobody listens there.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// Another transport service than the listener's.
    pub const INVALID_TRANSPORT_TYPE: Self = Self(9);
    /// The QP or the communication ID is in use by a connection that the sender has forgotten.
    pub const STALE_CONN: Self = Self(10);
    /// The address is not the one that the packet came from or to.
    pub const INVALID_GID: Self = Self(12);
    /// Path MTU too large; the additional information is the largest (1 to 5).
    pub const INVALID_MTU: Self = Self(26);
    /// The application's decision.
    pub const CONSUMER_DEFINED: Self = Self(28);
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (reason {})", rej_reason_name(self.0), self.0)
    }
}
