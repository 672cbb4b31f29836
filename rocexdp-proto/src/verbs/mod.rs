//! The objects that applications hold: work requests, send, receive and completion queues.
//!
//! Queues are rings outside the endpoint, shared by `Arc`: any thread posts and polls without the endpoint's lock, and the
//! endpoint takes from them. Meaning and names follow `ibv_post_send(3)`, `ibv_poll_cq(3)` of rdma-core.
//!
//! Must not: know packets.

mod ah;
mod channel;
mod cq;
mod queue;
mod srq;
mod state;
mod wr;

pub use ah::AddressHandle;
pub use channel::CompletionChannel;
pub use cq::{CompletionQueue, Cqe, CqeOpcode, MAX_CQE, ResizeError, Status};
pub(crate) use queue::QueueCaps;
pub use queue::{ListError, PostError, RecvQueue, SendQueue};
pub use srq::{LimitError, SrqAttr};
pub use state::QpState;
pub use wr::{Datagram, GSI_QKEY, GSI_QPN, MAX_MESSAGE, MULTICAST_QPN, RecvWr, SendOp, SendWr};

pub use crate::ids::PathMtu;
pub use crate::mem::{Segment, SgList};
