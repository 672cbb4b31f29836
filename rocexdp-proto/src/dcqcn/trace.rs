//! What a reaction point can tell an observer: one [`Event`] per state change, with the time it was due.
//!
//! Made for tests and the simulator. The product runs with `()`, which costs nothing; counters are in
//! [`super::RpCounters`].

use crate::time::{Rate, Timestamp};

/// Kind of an [`Event`]; the names are those of the reference's event logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// CNPs arrived.
    Cnp,
    /// Alpha was updated by its timer.
    Alpha,
    /// The rate was cut.
    Cut,
    /// The rate was raised by the timer or the byte counter.
    Increase,
    /// The rate is back at a ceiling that was only a measurement: the QP is unpaced again.
    Release,
}

/// A change of a reaction point, with the state AFTER it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// When it was due (not when the caller looked).
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
    /// Current rate `R_C`.
    pub rate: Rate,
    /// Target rate `R_T`.
    pub target: Rate,
    /// Alpha, 0 to 1.
    pub alpha: f64,
    /// Timer increases since the last cut.
    pub time_stage: u32,
    /// Byte-counter increases since the last cut.
    pub byte_stage: u32,
}

/// An observer of a reaction point.
pub trait Trace {
    /// Whether events are wanted. If so, ticks that change nothing are run and reported too: work is then proportional to the
    /// time that passed, where it is otherwise bounded.
    const ENABLED: bool = true;

    /// Called after each change, in the order of time.
    fn event(&mut self, event: Event);
}

/// No observer.
impl Trace for () {
    const ENABLED: bool = false;

    fn event(&mut self, _: Event) {}
}

/// Keeps everything.
impl Trace for Vec<Event> {
    fn event(&mut self, event: Event) {
        self.push(event);
    }
}
