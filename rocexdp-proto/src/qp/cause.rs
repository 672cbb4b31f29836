//! Why a QP went to ERR by itself, and which asynchronous event of the verbs that is.
//!
//! Must not: decide what fails (completer and responder do).

use crate::drop::DropReason;
use crate::verbs::Status;

/// Why a QP went to ERR by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ErrorCause {
    /// A request of ours failed.
    #[error("a request failed: {0}")]
    Request(Status),
    /// The peer sent a request that ends the connection.
    #[error("the peer's request was refused: {0}")]
    Peer(DropReason),
    /// A completion queue was full.
    #[error("a completion queue overflowed: make it deeper, or poll it more often")]
    CqOverflow,
}

/// The asynchronous events that tell of a QP's failure (`ibv_get_async_event(3)`; names of `enum ib_event_type`,
/// include/rdma/ib_verbs.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncError {
    /// `IB_EVENT_QP_FATAL`: the QP failed for a reason that no completion of its own tells.
    Fatal,
    /// `IB_EVENT_QP_REQ_ERR`: the peer's request was invalid.
    InvalidRequest,
    /// `IB_EVENT_QP_ACCESS_ERR`: the peer's request violated access rights.
    Access,
}

impl ErrorCause {
    /// The event that an application is to be told; `None` where a completion in error has told it all. Which refusal of the
    /// responder is which event follows what adapters report (drivers/infiniband/hw/mlx5/qp.c `mlx5_ib_qp_event`:
    /// `WQ_INVAL_REQ_ERROR`, `WQ_ACCESS_ERROR`, `WQ_CATAS_ERROR`). A completion queue that overflowed has an event of its own
    /// besides (`Event::CqOverflow`).
    #[must_use]
    pub const fn async_error(self) -> Option<AsyncError> {
        match self {
            Self::Request(_) => None,
            Self::Peer(DropReason::RemoteAccess) => Some(AsyncError::Access),
            Self::Peer(DropReason::InvalidRequest) => Some(AsyncError::InvalidRequest),
            Self::Peer(_) | Self::CqOverflow => Some(AsyncError::Fatal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_the_responder_has_the_event_that_adapters_report() {
        let event = |reason| ErrorCause::Peer(reason).async_error();
        assert_eq!(
            [
                event(DropReason::InvalidRequest),
                event(DropReason::RemoteAccess),
                event(DropReason::RemoteOperational),
                ErrorCause::CqOverflow.async_error(),
                ErrorCause::Request(Status::RetryExcErr).async_error(),
            ],
            [
                Some(AsyncError::InvalidRequest),
                Some(AsyncError::Access),
                Some(AsyncError::Fatal),
                Some(AsyncError::Fatal),
                None
            ]
        );
    }
}
