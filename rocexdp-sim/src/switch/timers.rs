//! Deadlines of pauses, the earliest first. One that was put off or called off stays until its time: its owner compares.
//!
//! Must not: know what a deadline is for.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::picos::Picos;

/// What a deadline is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// A pause that a peer asked for ends: port, priority.
    Expiry(u16, u8),
    /// A pause that a peer was told must be told again: port, priority.
    Refresh(u16, u8),
}

#[derive(Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(Picos, Timer)>>);

impl Timers {
    pub(super) fn set(&mut self, at: Picos, timer: Timer) {
        self.0.push(Reverse((at, timer)));
    }

    /// The earliest, if it has come.
    pub(super) fn due(&mut self, now: Picos) -> Option<(Picos, Timer)> {
        self.next().filter(|at| *at <= now)?;
        self.0.pop().map(|Reverse(entry)| entry)
    }

    pub(super) fn next(&self) -> Option<Picos> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }
}
