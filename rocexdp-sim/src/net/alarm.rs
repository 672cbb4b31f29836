//! When something wants to be woken.
//!
//! Must not: know what.

use crate::picos::Picos;

/// When something wants to be woken: the events in the queue for it, the next one last. Each is earlier than the one before, so a
/// timer that moves later leaves none behind.
#[derive(Default)]
pub(super) struct Alarm(Vec<Picos>);

impl Alarm {
    /// The time to put into the queue, if it must be.
    #[inline]
    pub(super) fn set(&mut self, now: Picos, at: Option<Picos>) -> Option<Picos> {
        let at = at?.max(now);
        if at == Picos::MAX || self.0.last().is_some_and(|next| *next <= at) {
            return None;
        }
        self.0.push(at);
        Some(at)
    }

    /// The time has come.
    #[inline]
    pub(super) fn rang(&mut self) {
        self.0.pop();
    }
}
