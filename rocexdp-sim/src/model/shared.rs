//! The oracle, what QPs share: a receive queue, and completion queues that can overflow.
//!
//! A shared receive queue gives its requests in order, and a QP holds one at a time, so the request that a QP fills or completes
//! is the one that it holds, or the next one that nobody has taken. When one is taken and fewer are left than the limit says,
//! the event must come in that same step, once. A completion queue loses a completion only when it is full; then the event
//! comes, once in its life, and the QPs that lost one are in ERR: of those there is no success any more.
//!
//! Must not: know how an endpoint does it.

use super::state::{Receive, State, position};

/// The receive queue that the QPs of an end share.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Requests in the order of posting, and whether each has completed.
    pub recvs: Vec<(Receive, bool)>,
    /// Of them, taken.
    pub taken: usize,
    /// The limit as it is armed; 0: it is not.
    pub limit: u64,
    /// It was reached, and the event has not come.
    pub due: bool,
}

/// An end's completion queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queues {
    /// They have lost completions, as bits.
    pub overflowed: u64,
    /// And said so.
    pub reported: u64,
}

impl Shared {
    /// Bytes of the shortest request ever.
    #[must_use]
    pub fn shortest(&self) -> u32 {
        self.recvs.iter().map(|(r, _)| r.room).min().unwrap_or(0)
    }

    /// Requests that nobody has taken.
    #[must_use]
    pub fn left(&self) -> usize {
        self.recvs.len() - self.taken
    }
}

impl State {
    /// Whether the QPs of an end share a receive queue.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.setup.srq > 0
    }

    /// The QP takes the next request of the shared queue.
    pub(super) fn take_shared(&mut self, pair: usize, end: usize) -> Option<usize> {
        let shared = &mut self.ends[end].shared;
        let next = shared.taken;
        shared.recvs.get(next)?;
        shared.taken += 1;
        if shared.limit != 0 && (shared.left() as u64) < shared.limit {
            shared.limit = 0;
            shared.due = true;
        }
        self.pairs[pair][end].holds = Some(next);
        Some(next)
    }

    /// The receive request whose memory a QP may write to at `offset` now, and which byte of it lies there.
    pub(super) fn shared_place(
        &mut self,
        pair: usize,
        end: usize,
        offset: u64,
    ) -> Option<(u32, u32)> {
        let index = match self.pairs[pair][end].holds {
            Some(index) => index,
            None => {
                let next = self.ends[end].shared.taken;
                let (receive, _) = self.ends[end].shared.recvs.get(next)?;
                position(&receive.list, offset)?;
                self.take_shared(pair, end)?
            }
        };
        let (receive, _) = self.ends[end].shared.recvs.get(index)?;
        position(&receive.list, offset)
    }

    /// A receive buffer that faults was to be written to: its request was taken.
    pub(super) fn tried(&mut self, end: usize, offset: u64) {
        if let Some((e, pair)) = self.receiving
            && e == end
            && self.shares()
        {
            self.shared_place(pair, end, offset);
        }
    }

    /// A request of the shared queue completes for a QP: it must be the one that the QP holds, or the next.
    pub(super) fn shared_completes(
        &mut self,
        pair: usize,
        end: usize,
        index: usize,
    ) -> Result<(), String> {
        let held = match self.pairs[pair][end].holds {
            Some(held) => held,
            None => self
                .take_shared(pair, end)
                .ok_or("there is no request in the shared queue")?,
        };
        if held != index {
            return Err(format!("it is shared receive request {held}'s turn"));
        }
        self.pairs[pair][end].holds = None;
        let done = self.ends[end].shared.recvs.get_mut(index).map(|r| &mut r.1);
        match done.map(|done| core::mem::replace(done, true)) {
            Some(false) => Ok(()),
            _ => Err("the request has completed before".into()),
        }
    }

    /// A step is over: events that were due have come.
    pub(super) fn check_events(&mut self, end: usize) {
        if self.ends[end].shared.due {
            self.wrong(|| {
                format!(
                    "end {end}: the shared receive queue is below its limit, and nobody says so"
                )
            });
        }
        let Queues {
            overflowed,
            reported,
        } = self.ends[end].queues;
        if overflowed != reported {
            self.wrong(|| format!("end {end}: completion queues {overflowed:b} have overflowed, told of {reported:b}"));
        }
    }

    /// The limit event.
    pub(super) fn limit_reached(&mut self, end: usize) {
        self.tally.events[0] += 1;
        if !core::mem::take(&mut self.ends[end].shared.due) {
            self.wrong(|| format!("end {end}: a limit event for no reason"));
        }
    }

    /// A completion queue says that it has lost a completion.
    pub(super) fn queue_overflowed(&mut self, end: usize, queue: u32) {
        self.tally.events[1] += 1;
        let queues = &mut self.ends[end].queues;
        let bit = 1u64 << queue.min(63);
        let known = queues.overflowed & bit != 0 && queues.reported & bit == 0;
        queues.reported |= bit;
        if !known {
            self.wrong(|| format!("end {end}: completion queue {queue} says for no reason, or again, that it overflowed"));
        }
    }

    /// Whether completions of an end may be lost.
    #[must_use]
    pub fn lossy(&self, end: usize) -> bool {
        self.ends[end].queues.overflowed != 0
    }
}
