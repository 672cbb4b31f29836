//! The timers of all QPs: a heap, so that finding what is due costs the same however many QPs there are.
//!
//! A QP keeps for each of its timers the time it wants and the time it has in the heap. Moving a timer later changes only
//! the first: when the entry comes up, it is put back for the later time. So a timer that each acknowledgement restarts costs
//! nothing. Entries that no longer count, since a timer was moved earlier or its QP is gone, are recognised when they come up,
//! and swept out before that once they are more than those that do: whatever is set how often, the heap stays within twice
//! what is wanted.
//!
//! Must not: know what a timer is for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Timestamp;

/// What a QP waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum TimerKind {
    /// An acknowledgement is overdue.
    Ack,
    /// The peer's RNR timer.
    Rnr,
    /// The next packet may leave.
    Pace,
    /// The reaction point's next step.
    Rate,
    /// The notification point owes a CNP.
    Cnp,
}

/// Number of [`TimerKind`]s.
const KINDS: usize = 5;

/// The timers of one QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    wanted: [Timestamp; KINDS],
    queued: [Timestamp; KINDS],
}

/// No time: a QP has many timers and few that run, so this saves an `Option`.
const NEVER: Timestamp = Timestamp::MAX;

impl Default for Timers {
    fn default() -> Self {
        Self {
            wanted: [NEVER; KINDS],
            queued: [NEVER; KINDS],
        }
    }
}

impl Timers {
    /// Whether setting a timer to this would change it.
    pub(crate) fn is_changed(&self, kind: TimerKind, at: Option<Timestamp>) -> bool {
        self.wanted.get(kind as usize) != Some(&at.unwrap_or(NEVER))
    }
}

/// All timers, by QP slot.
#[derive(Default)]
pub(crate) struct TimerQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    /// Entries that no longer count.
    stale: usize,
}

/// When, which QP slot, and what for.
type Entry = (Timestamp, u32, TimerKind);

/// So few entries that no longer count are not worth a sweep.
const FEW: usize = 64;

impl TimerQueue {
    /// Makes room for another QP's usual timers (ACK and rate), so that setting those does not allocate. It grows to what is
    /// needed beyond that, and stays so.
    pub(crate) fn reserve_qp(&mut self, qps: usize) {
        self.heap.reserve((qps * 2).saturating_sub(self.heap.len()));
    }

    /// Sets or, with `None`, stops a timer.
    pub(crate) fn set(
        &mut self,
        timers: &mut Timers,
        slot: u32,
        kind: TimerKind,
        at: Option<Timestamp>,
    ) {
        let i = kind as usize;
        let (Some(wanted), Some(queued)) = (timers.wanted.get_mut(i), timers.queued.get_mut(i))
        else {
            return;
        };
        let at = at.unwrap_or(NEVER);
        *wanted = at;
        if at < *queued {
            self.stale += usize::from(*queued != NEVER);
            *queued = at;
            self.heap.push(Reverse((at, slot, kind)));
        }
    }

    /// The QP is gone: its entries no longer count.
    pub(crate) fn forget(&mut self, timers: &Timers) {
        self.stale += timers.queued.iter().filter(|at| **at != NEVER).count();
    }

    /// Whether most entries no longer count.
    pub(crate) fn needs_sweep(&self) -> bool {
        self.stale > FEW && self.stale > self.heap.len() / 2
    }

    /// Drops the entries that no longer count, each slot's QP having these timers.
    pub(crate) fn sweep<'a>(&mut self, timers: impl Fn(u32) -> Option<&'a Timers>) {
        self.heap.retain(|Reverse((at, slot, kind))| {
            timers(*slot).is_some_and(|t| t.queued.get(*kind as usize) == Some(at))
        });
        self.stale = 0;
    }

    /// An entry that came up no longer counted.
    pub(crate) fn was_stale(&mut self) {
        self.stale = self.stale.saturating_sub(1);
    }

    /// When to look next. It may be earlier than any timer wants, never later.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the next entry that is due.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<(Timestamp, u32, TimerKind)> {
        let Reverse((at, ..)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Whether a taken entry means that the QP's timer is due. If the timer has moved on, it is queued again.
    pub(crate) fn is_due(
        &mut self,
        timers: &mut Timers,
        now: Timestamp,
        (at, slot, kind): (Timestamp, u32, TimerKind),
    ) -> bool {
        let i = kind as usize;
        let (Some(wanted), Some(queued)) = (timers.wanted.get_mut(i), timers.queued.get_mut(i))
        else {
            return false;
        };
        if *queued != at {
            self.was_stale();
            return false;
        }
        *queued = NEVER;
        if *wanted == NEVER {
            return false;
        }
        if *wanted <= now {
            *wanted = NEVER;
            return true;
        }
        *queued = *wanted;
        self.heap.push(Reverse((*wanted, slot, kind)));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(q: &mut TimerQueue, t: &mut Timers, now: u64) -> Vec<TimerKind> {
        let now = Timestamp::from_nanos(now);
        let mut out = Vec::new();
        while let Some(e) = q.pop_due(now) {
            if q.is_due(t, now, e) {
                out.push(e.2);
            }
        }
        out
    }

    #[test]
    fn a_timer_moved_later_fires_once_at_its_last_time() {
        let (mut q, mut t) = (TimerQueue::default(), Timers::default());
        let at = |n| Some(Timestamp::from_nanos(n));
        for n in [10, 20, 30] {
            q.set(&mut t, 7, TimerKind::Ack, at(n));
        }
        assert_eq!(q.heap.len(), 1);
        assert_eq!(due(&mut q, &mut t, 15), []);
        assert_eq!(q.next(), at(30));
        assert_eq!(due(&mut q, &mut t, 30), [TimerKind::Ack]);
        assert_eq!(q.next(), None);
    }

    #[test]
    fn entries_that_no_longer_count_never_outnumber_the_others_by_much() {
        let (mut q, mut qps) = (TimerQueue::default(), vec![Timers::default(); 10]);
        let at = |n| Some(Timestamp::from_nanos(n));
        for round in 0..1000u64 {
            for (slot, t) in qps.iter_mut().enumerate() {
                // A long timeout, then a short one, and that comes up: the long one's entry is left behind.
                q.set(t, slot as u32, TimerKind::Ack, at(u64::MAX - 1 - round));
                q.set(t, slot as u32, TimerKind::Ack, at(round));
                assert_eq!(due(&mut q, t, round), [TimerKind::Ack]);
            }
            if round % 10 == 9 {
                // A QP goes, and another comes into its slot.
                let gone = &mut qps[(round % 7) as usize];
                q.set(gone, (round % 7) as u32, TimerKind::Rate, at(u64::MAX - 1));
                q.forget(gone);
                *gone = Timers::default();
            }
            if q.needs_sweep() {
                q.sweep(|slot| qps.get(slot as usize));
            }
            assert!(q.heap.len() <= 2 * FEW + 40, "{} entries", q.heap.len());
        }
        assert!(q.stale <= q.heap.len(), "{} of {}", q.stale, q.heap.len());
    }

    #[test]
    fn a_timer_moved_earlier_or_stopped_leaves_nothing_behind() {
        let (mut q, mut t) = (TimerQueue::default(), Timers::default());
        let at = |n| Some(Timestamp::from_nanos(n));
        q.set(&mut t, 0, TimerKind::Pace, at(50));
        q.set(&mut t, 0, TimerKind::Pace, at(5));
        q.set(&mut t, 0, TimerKind::Rnr, at(6));
        q.set(&mut t, 0, TimerKind::Rnr, None);
        assert_eq!(due(&mut q, &mut t, 100), [TimerKind::Pace]);
        assert_eq!(q.next(), None);
    }
}
