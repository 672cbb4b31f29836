//! Selective repeat, which two rocexdp ends may agree on instead of go-back-N (docs/wire-extensions.md), and the paths that its
//! packets are spread over.
//!
//! | file | role |
//! |---|---|
//! | `sender.rs` | which transmission of which packet is on the way, has arrived, is lost |
//! | `answers.rs` | the same for the responder's answers |
//! | `arrivals.rs` | which transmissions have arrived here, and when to say so |
//! | `reorder.rs` | packets that came ahead of a missing one |
//!
//! Requests and answers are two streams, each with its own books at either end, and repaired in the same way: who sent tells
//! from what the other end says has arrived what is lost. The requester uses the first for requests; the responder's
//! `selective.rs` keeps what came ahead, and serves what has come in order by the same chain of checks as any request; the
//! completer's does that for answers, so that requests complete in RC's order. Both streams are spread over all paths, and so no
//! packet says by overtaking another one that this one is lost.
//!
//! Must not: know requests or memory.

mod answers;
mod arrivals;
mod reorder;
mod sender;

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::ids::Psn;

pub(crate) use answers::Answers;
pub(crate) use arrivals::Arrivals;
pub(crate) use reorder::{Budget, Reorder};
pub(crate) use sender::{SPAN, Sender};

/// The first serial of each path: spread as widely as starting PSNs are, so that what a former connection left on its way
/// does not pass for this one's.
pub(crate) fn first_serial(psn: Psn) -> u32 {
    psn.get() << 8
}

/// Places by number, of which few are in use. The digest of an endpoint's state is made of `Debug`, so that shows those.
pub(super) struct Places<T>(Box<[T]>);

/// Whether a place is as it was at first.
pub(super) trait Unused {
    fn is_unused(&self) -> bool;
}

impl<T: Unused + fmt::Debug> fmt::Debug for Places<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().enumerate().filter(|(_, t)| !t.is_unused());
        f.debug_map().entries(used).finish()
    }
}

impl<T> Deref for Places<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Places<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// The receiver's half of selective repeat: of requests at the responder, of answers at the requester.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) arrivals: Arrivals,
    pub(crate) reorder: Reorder,
    /// The transmission that an RNR NAK which is owed refuses: path, and low bits of the serial.
    pub(crate) refused: (u8, u32),
}

impl Receiver {
    /// Over so many paths, for packets from this PSN on; keeps at most `limit` packets.
    pub(crate) fn new(paths: u8, psn: Psn, limit: u32, budget: Arc<Budget>) -> Self {
        Self {
            arrivals: Arrivals::new(paths, first_serial(psn)),
            reorder: Reorder::new(limit, budget),
            refused: (0, 0),
        }
    }

    /// Another one, for the packets of the other stream.
    pub(crate) fn other(&self, psn: Psn) -> Self {
        Self {
            arrivals: self.arrivals.other(first_serial(psn)),
            reorder: self.reorder.other(),
            refused: (0, 0),
        }
    }
}
