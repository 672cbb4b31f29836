//! PFC at the sender (IEEE 802.1Qbb): priorities that the link's other end has paused.
//!
//! A paused priority sends nothing: no data, no answers, no CNPs of it. QPs stay in line, so a pause and its end cost the same
//! however many QPs there are. A frame's quanta replace those of the one before; 0 ends the pause.
//!
//! What our own sending waits for is not the network's fault: an ACK timer (or a probe of selective repeat) that comes up during
//! a pause of its QP's data, or after one, is put off by the time that was paused since it was set, and costs no retry. A pause
//! at the peer's side can't be known here; its answers may be late by that. DCQCN's timers go on, as hardware's do.
//!
//! Must not: read pause frames (the driver does).

use core::time::Duration;

use super::Endpoint;
use super::traffic::PRIORITIES;
use crate::time::{Rate, Timestamp, nanos};

/// Bits of a pause quantum.
const QUANTUM_BITS: u64 = 512;
/// A pause without an end is looked at again after this by a timer that it holds up.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// How long `quanta` of a pause frame last on a link of this rate: 512 bit times each.
#[must_use]
pub fn pause_time(quanta: u16, rate: Rate) -> Duration {
    let bits = u128::from(quanta) * u128::from(QUANTUM_BITS) * 1_000_000_000;
    let ns = bits.checked_div(u128::from(rate.as_bps())).unwrap_or(0);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// What is known of pauses of one priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PauseState {
    /// When the pause ends, while there is one.
    pub until: Option<Timestamp>,
    /// Frames that asked to stop.
    pub pauses: u64,
    /// Frames that allowed to go on.
    pub resumes: u64,
    /// Time paused in all.
    pub paused: Duration,
}

/// One priority.
#[derive(Clone, Copy, Debug, Default)]
struct Paused {
    since: Timestamp,
    until: Timestamp,
    /// Before `since`, ns.
    before: u64,
    pauses: u64,
    resumes: u64,
}

/// All priorities.
#[derive(Debug)]
pub(super) struct Pauses {
    of: [Paused; PRIORITIES],
    /// Bit by priority: paused.
    bits: u8,
    /// When the first of them ends.
    next: Timestamp,
    /// When they were last looked at.
    seen: Timestamp,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self {
            of: [Paused::default(); PRIORITIES],
            bits: 0,
            next: Timestamp::MAX,
            seen: Timestamp::ZERO,
        }
    }

    /// It is `now`: what is asked for without a time is meant for this one. Returns the time of the look before.
    pub(super) fn look(&mut self, now: Timestamp) -> Timestamp {
        core::mem::replace(&mut self.seen, now)
    }

    /// Bits of the priorities that are paused.
    pub(super) fn bits(&mut self, now: Timestamp) -> u8 {
        self.seen = now;
        if now >= self.next {
            self.expire(now);
        }
        self.bits
    }

    /// Those that were paused when last looked at.
    pub(super) fn paused(&self) -> u8 {
        self.bits
    }

    /// When the next pause ends by itself.
    pub(super) fn next(&self) -> Option<Timestamp> {
        (self.next != Timestamp::MAX).then_some(self.next)
    }

    fn expire(&mut self, now: Timestamp) {
        for (i, p) in self.of.iter_mut().enumerate() {
            if self.bits & 1 << i != 0 && p.until <= now {
                p.before += nanos(p.until.saturating_since(p.since));
                self.bits &= !(1 << i);
            }
        }
        self.schedule();
    }

    fn schedule(&mut self) {
        let paused = |i: &usize| self.bits & 1 << i != 0;
        let ends = (0..PRIORITIES).filter(paused);
        let ends = ends.filter_map(|i| self.of.get(i)).map(|p| p.until);
        self.next = ends.min().unwrap_or(Timestamp::MAX);
    }

    fn pause(&mut self, now: Timestamp, priority: u8, until: Timestamp) {
        self.seen = now;
        self.expire(now);
        let i = usize::from(priority & 7);
        let Some(p) = self.of.get_mut(i) else { return };
        let paused = self.bits & 1 << i != 0;
        if until > now {
            p.pauses += 1;
            if !paused {
                p.since = now;
            }
            p.until = until;
            self.bits |= 1 << i;
        } else {
            p.resumes += 1;
            if paused {
                p.before += nanos(now.saturating_since(p.since));
                self.bits &= !(1 << i);
            }
        }
        self.schedule();
    }

    fn state(&self, now: Timestamp, priority: u8) -> PauseState {
        let i = usize::from(priority & 7);
        let p = self.of.get(i).copied().unwrap_or_default();
        let paused = self.bits & 1 << i != 0 && p.until > now;
        PauseState {
            until: paused.then_some(p.until),
            pauses: p.pauses,
            resumes: p.resumes,
            paused: Duration::from_nanos(self.total(now, priority)),
        }
    }

    /// Time paused, ns.
    fn total(&self, now: Timestamp, priority: u8) -> u64 {
        let i = usize::from(priority & 7);
        let p = self.of.get(i).copied().unwrap_or_default();
        let running = if self.bits & 1 << i != 0 {
            nanos(now.min(p.until).saturating_since(p.since))
        } else {
            0
        };
        p.before + running
    }

    /// What a timer remembers when it is set: time paused so far, in 1.024 us, as known at the last look.
    pub(super) fn mark(&self, priority: u8) -> u32 {
        (self.total(self.seen, priority) >> 10) as u32
    }

    /// By how much a timer that is due, and was set at `mark`, is to be put off, and its mark then. `None`: nothing was paused.
    pub(super) fn excuse(
        &mut self,
        now: Timestamp,
        priority: u8,
        mark: u32,
    ) -> Option<(Duration, u32)> {
        let paused = self.bits(now) & 1 << (priority & 7) != 0;
        let state = self.state(now, priority);
        let mut total = nanos(state.paused);
        if let Some(until) = state.until.filter(|_| paused) {
            // It can't be heard of before the pause ends.
            let left = if until == Timestamp::MAX {
                LOOK_AGAIN
            } else {
                until.saturating_since(now)
            };
            total += nanos(left);
        }
        let units = (total >> 10) as u32;
        // As a difference that may be negative: a pause that ended early was counted to its end.
        let since = units.wrapping_sub(mark) as i32;
        let time = Duration::from_nanos(u64::from(since.unsigned_abs()) << 10);
        (since > 0).then_some((time, units))
    }
}

impl Endpoint {
    /// The link's other end pauses a priority (0..=7) until then ([`Timestamp::MAX`]: until told otherwise), or, with a time that
    /// has come, lets it go on. [`pause_time`] turns a frame's quanta into a time. A pause of the whole port (802.3x) is one
    /// of each priority.
    pub fn handle_pause(&mut self, now: Timestamp, priority: u8, until: Timestamp) {
        self.pauses.pause(now, priority, until);
    }

    /// What is known of a priority's pauses.
    #[must_use]
    pub fn pause_state(&self, now: Timestamp, priority: u8) -> PauseState {
        self.pauses.state(now, priority)
    }

    /// Whether something that could leave is held back by a pause: an end of it that is told is news, then.
    #[must_use]
    pub fn is_held(&mut self, now: Timestamp) -> bool {
        self.pauses.bits(now) & self.waiting() != 0
    }
}
