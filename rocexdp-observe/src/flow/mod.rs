//! One direction of a QP pair: what its packets say, and what the answers from the other side say of them.
//!
//! A [`Half`] is all packets from one address to one QP of another. Its request stream ([`Requests`]) is followed packet by
//! packet, its state is of bounded size, and answers of the peer half are applied to it. Sequence rules:
//! drivers/infiniband/sw/rxe/{rxe_req,rxe_resp,rxe_comp}.c. What the capture can't show is worded as such.

mod answers;
pub mod copies;
pub mod delays;
mod ending;
pub mod episode;
pub mod half;
pub mod history;
pub mod reads;
pub mod requests;
mod verdict;

pub use answers::{Answer, AnswerKind};
pub use half::{Half, Operations, TiedBy};
pub use requests::{Request, Requests};
pub use verdict::Verdicts;

/// Between an event and the decision what it was: answers and late packets come within.
pub(crate) const SETTLE_NS: i64 = 50_000_000;
/// A PSN that jumps further than this begins a new stream (a new connection on the same QP numbers).
pub(crate) const RESTART: u32 = 1 << 16;
