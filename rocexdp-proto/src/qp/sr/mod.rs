//! Selective repeat, which two rocexdp ends may agree on instead of go-back-N (docs/wire-extensions.md), and the paths that its
//! packets are spread over.
//!
//! | file | role |
//! |---|---|
//! | `sender.rs` | which transmission of which packet is on the way, has arrived, is lost |
//! | `arrivals.rs` | which transmissions have arrived here, and when to say so |
//! | `reorder.rs` | requests that came ahead of a missing one |
//!
//! Requester and completer use the first where the send side has one, and are otherwise what they are; the responder's
//! `selective.rs` uses the others, and serves what has come in order by the same chain of checks as any request.
//!
//! Requests are spread over all paths. Answers all take path 0, in the order that RC gives them: what an answer tells of those
//! before it stays as it is in RC. A lost READ response is found as in RC too, by the answer behind it, and the READ is asked for
//! again from there. If what that brings is lost as well, the acknowledgement of the asking says so: it leaves behind the
//! answer.
//!
//! Must not: know requests or memory.

mod arrivals;
mod reorder;
mod sender;

use std::sync::Arc;

use crate::ids::Psn;

pub(crate) use arrivals::Arrivals;
pub(crate) use reorder::{Budget, Reorder};
pub(crate) use sender::{SPAN, Sender};

/// The first serial of each path: spread as widely as starting PSNs are, so that what a former connection left on its way
/// does not pass for this one's.
pub(crate) fn first_serial(psn: Psn) -> u32 {
    psn.get() << 8
}

/// The receiver's half of selective repeat.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) arrivals: Arrivals,
    pub(crate) reorder: Reorder,
}

impl Receiver {
    /// Over so many paths, for requests from this PSN on; keeps at most `limit` packets.
    pub(crate) fn new(paths: u8, psn: Psn, limit: u32, budget: Arc<Budget>) -> Self {
        Self {
            arrivals: Arrivals::new(paths, first_serial(psn)),
            reorder: Reorder::new(limit, budget),
        }
    }
}
