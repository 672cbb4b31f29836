//! The reaction point (RP): one QP's sending rate, cut on CNPs and raised without them.
//!
//! One machine with the switches of [`RpParams`]; the module's head says which source each preset follows. Here are its
//! state, inputs and timers; the rules are in `rp/rules.rs` (`first_cnp`, `cut`, `increase`) and `alpha.rs`.
//!
//! Time: the caller may look late and seldom. Each timer keeps the time it is due, and every input first runs what was due
//! up to `now`, in the order it was due, so that the result is the same as if each tick had been served on time. Ticks that
//! can change nothing are skipped by arithmetic: the work of one call is bounded by the steps from the floor to the ceiling
//! and by alpha's decay to its fixed point, however long the QP was idle.
//!
//! Order at one instant: increase and cut in the order they were scheduled (so the longer period first, the cut if equal);
//! alpha before both; timers before a CNP, which therefore counts for the next tick.
//!
//! Must not: know packets or maps. Inputs are CNP counts, byte counts and the time.

mod rules;

use super::alpha::Alpha;
use super::params::RpParams;
use super::trace::{Event, EventKind, Trace};
use crate::time::{Rate, Timestamp, nanos};

/// Rates are held below 2^50 b/s (1.1 Pb/s), where products with a 10-bit alpha fit 64 bits and a double is exact.
const MAX_RATE: u64 = 1 << 50;
/// Never.
const NEVER: u64 = u64::MAX;

/// What a reaction point has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RpCounters {
    /// CNPs handled (`rp_cnp_handled`).
    pub cnps: u64,
    /// Rate cuts.
    pub cuts: u64,
    /// Rate increases, those at the ceiling included.
    pub increases: u64,
    /// Times the QP went back to unpaced from a measured ceiling.
    pub releases: u64,
}

/// A CNP arrived, but no line rate is known to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no line rate is known to cut from: give one, or pass the measured rate (on_cnp_with_ceiling)"
)]
pub struct CeilingUnknown;

/// Where the ceiling comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ceiling {
    Unknown,
    /// Line rate or `rpg_max_rate`.
    Known(u64),
    /// What the QP sent at when the first CNP came: a guess, dropped when the QP has recovered to it.
    Measured(u64),
}

/// Which counter fired an increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Time,
    Byte,
}

/// The reaction point of one QP.
///
/// Before the first CNP the QP is unpaced ([`ReactionPoint::rate`] is `None`) and no timer runs: RoCEv2 starts at line rate,
/// without slow start.
#[derive(Clone, Debug)]
pub struct ReactionPoint<T: Trace = ()> {
    // Configuration: periods in ns, rates in b/s.
    params: RpParams,
    alpha_period: u64,
    cut_period: u64,
    rate_period: u64,
    byte_limit: u64,
    // State.
    ceiling: Ceiling,
    /// A CNP was seen and the rate is limited.
    active: bool,
    rate: u64,
    target: u64,
    alpha: Alpha,
    time_stage: u32,
    byte_stage: u32,
    bytes: u64,
    /// A CNP came since the last alpha tick.
    cnp_for_alpha: bool,
    /// A CNP came since the last cut tick.
    cnp_for_cut: bool,
    alpha_at: u64,
    cut_at: u64,
    rate_at: u64,
    /// The timer can't change the rate any more until something else happens.
    settled: bool,
    /// Earliest time at which a timer can change the rate.
    next: u64,
    counters: RpCounters,
    trace: T,
}

impl ReactionPoint<()> {
    /// A reaction point that has seen no CNP. `line_rate` is the port's, `None` where there is none to believe (veth).
    #[must_use]
    pub fn new(params: &RpParams, line_rate: Option<Rate>) -> Self {
        Self::with_trace(params, line_rate, ())
    }
}

impl<T: Trace> ReactionPoint<T> {
    /// As [`ReactionPoint::new`], with an observer.
    #[must_use]
    pub fn with_trace(params: &RpParams, line_rate: Option<Rate>, trace: T) -> Self {
        let ceiling = match (line_rate, params.rpg_max_rate) {
            (None, Rate::ZERO) => Ceiling::Unknown,
            (None, max) => Ceiling::Known(max.as_bps()),
            (Some(line), Rate::ZERO) => Ceiling::Known(line.as_bps()),
            (Some(line), max) => Ceiling::Known(line.min(max).as_bps()),
        };
        Self {
            params: params.clone(),
            alpha_period: nanos(params.dce_tcp_rtt).max(1),
            cut_period: nanos(params.rate_reduce_monitor_period).max(1),
            rate_period: nanos(params.rpg_time_reset).max(1),
            byte_limit: u64::from(params.rpg_byte_reset).saturating_mul(RpParams::BYTE_RESET_UNIT),
            ceiling,
            active: false,
            rate: 0,
            target: 0,
            alpha: Alpha::initial(params),
            time_stage: 0,
            byte_stage: 0,
            bytes: 0,
            cnp_for_alpha: false,
            cnp_for_cut: false,
            alpha_at: NEVER,
            cut_at: NEVER,
            rate_at: NEVER,
            settled: false,
            next: NEVER,
            counters: RpCounters::default(),
            trace,
        }
    }

    /// Rate to send at, `None` while unpaced. This is what the pacer uses, and the only thing it uses.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.active.then(|| Rate::from_bps(self.rate))
    }

    /// Rate that increases converge to, `None` while unpaced.
    #[must_use]
    pub fn target(&self) -> Option<Rate> {
        self.active.then(|| Rate::from_bps(self.target))
    }

    /// Alpha, 0 to 1, as of the last call; before the first CNP the value it will start with.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.alpha.fraction()
    }

    /// Rate that is never exceeded, if one is known.
    #[must_use]
    pub fn ceiling(&self) -> Option<Rate> {
        match self.ceiling {
            Ceiling::Unknown => None,
            Ceiling::Known(bps) | Ceiling::Measured(bps) => {
                Some(Rate::from_bps(bps.clamp(1, MAX_RATE)))
            }
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> RpCounters {
        self.counters
    }

    /// The observer.
    pub fn trace_mut(&mut self) -> &mut T {
        &mut self.trace
    }

    /// The line rate became known or changed (link speed). `rpg_max_rate` still holds.
    pub fn set_line_rate(&mut self, now: Timestamp, line_rate: Rate) {
        self.run_until(now.as_nanos());
        let max = self.params.rpg_max_rate;
        let ceiling = if max == Rate::ZERO {
            line_rate
        } else {
            line_rate.min(max)
        };
        self.ceiling = Ceiling::Known(ceiling.as_bps());
        if self.active {
            let (floor, ceiling) = (self.floor_bps(), self.ceiling_bps());
            self.rate = self.rate.clamp(floor, ceiling);
            self.target = self.target.clamp(floor, ceiling);
        }
        self.settled = false;
        self.schedule();
    }

    /// `cnps` CNPs arrived since the last look.
    ///
    /// # Errors
    /// [`CeilingUnknown`] if this is the first CNP and neither a line rate nor `rpg_max_rate` was given: nothing has changed;
    /// call [`ReactionPoint::on_cnp_with_ceiling`].
    pub fn on_cnp(&mut self, now: Timestamp, cnps: u32) -> Result<(), CeilingUnknown> {
        self.run_until(now.as_nanos());
        if cnps > 0 && self.ceiling == Ceiling::Unknown {
            return Err(CeilingUnknown);
        }
        self.cnps(now.as_nanos(), cnps);
        Ok(())
    }

    /// As [`ReactionPoint::on_cnp`], where the line rate may be unknown: then `measured`, the rate the QP was sending at, is
    /// the ceiling until the QP has recovered to it and is unpaced again.
    pub fn on_cnp_with_ceiling(&mut self, now: Timestamp, cnps: u32, measured: Rate) {
        self.run_until(now.as_nanos());
        if cnps > 0 && self.ceiling == Ceiling::Unknown {
            // A measurement over an idle moment is no line rate: never start below the floor.
            self.ceiling = Ceiling::Measured(measured.max(self.params.rpg_min_rate).as_bps());
        }
        self.cnps(now.as_nanos(), cnps);
    }

    /// `bytes` went out on the wire. Cheap while nothing is due.
    pub fn on_bytes_sent(&mut self, now: Timestamp, bytes: u64) {
        if !self.active || self.byte_limit == 0 {
            return;
        }
        let now = now.as_nanos();
        if now >= self.next {
            self.run_until(now);
            if !self.active {
                return;
            }
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= self.byte_limit {
            self.run_until(now);
            self.byte_increases(now);
            self.schedule();
        }
    }

    /// When [`ReactionPoint::handle_timeout`] has something to do that can change the rate; `None` if nothing will without
    /// another input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        (self.next != NEVER).then(|| Timestamp::from_nanos(self.next))
    }

    /// When the rate is next cut, if a CNP has come for it, and when it is next raised; `None`: nothing is planned. For a simulator
    /// that orders what happens at one nanosecond.
    #[must_use]
    pub fn planned(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let at = |planned: bool, at: u64| {
            (planned && self.active && at != NEVER).then(|| Timestamp::from_nanos(at))
        };
        (at(self.cnp_for_cut, self.cut_at), at(true, self.rate_at))
    }

    /// Runs everything due up to and including `now`.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.run_until(now.as_nanos());
    }

    fn ceiling_bps(&self) -> u64 {
        self.ceiling().map_or(MAX_RATE, Rate::as_bps)
    }

    /// `rpg_min_rate`, or the ceiling where that is lower.
    fn floor_bps(&self) -> u64 {
        self.params
            .rpg_min_rate
            .as_bps()
            .clamp(1, self.ceiling_bps())
    }

    fn report(&mut self, at: u64, kind: EventKind) {
        if T::ENABLED {
            self.trace.event(Event {
                at: Timestamp::from_nanos(at),
                kind,
                rate: Rate::from_bps(self.rate),
                target: Rate::from_bps(self.target),
                alpha: self.alpha.fraction(),
                time_stage: self.time_stage,
                byte_stage: self.byte_stage,
            });
        }
    }

    /// The alpha timer, up to and including `until`: every `dce_tcp_rtt` alpha moves towards 1 if a CNP came in that period,
    /// else towards 0. In ns-3 and ConnectX it runs freely from the first CNP on; in the paper it starts again at each CNP,
    /// so it only ever decays.
    fn update_alpha(&mut self, until: u64) {
        if self.alpha_at > until || self.alpha_at == NEVER {
            return;
        }
        let ticks = ((until - self.alpha_at) / self.alpha_period).saturating_add(1);
        for _ in 0..ticks {
            let (before, cnp) = (self.alpha, self.cnp_for_alpha);
            self.alpha = before.updated(cnp);
            self.cnp_for_alpha = false;
            self.report(self.alpha_at, EventKind::Alpha);
            if T::ENABLED {
                self.alpha_at = self.alpha_at.saturating_add(self.alpha_period);
            } else if self.alpha == before && !cnp {
                break;
            }
        }
        if !T::ENABLED {
            self.alpha_at = self
                .alpha_at
                .saturating_add(ticks.saturating_mul(self.alpha_period));
        }
    }

    /// The increase timer, due at `rate_at`. `until` is how far the timer may run on before anything else happens: once its
    /// increases change nothing but the stage, the rest are counted without being run.
    fn time_increase(&mut self, until: u64) {
        let at = self.rate_at;
        self.rate_at = at.saturating_add(self.rate_period);
        let moved = self.increase(Stage::Time);
        self.report(at, EventKind::Increase);
        if !moved && self.release_if_recovered(at) {
            return;
        }
        self.settled = !moved && self.branch_is_fixed(self.time_stage);
        if T::ENABLED || !self.settled || self.rate_at > until {
            return;
        }
        let more = ((until - self.rate_at) / self.rate_period).saturating_add(1);
        self.time_stage = self
            .time_stage
            .saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        self.counters.increases = self.counters.increases.saturating_add(more);
        self.rate_at = self
            .rate_at
            .saturating_add(more.saturating_mul(self.rate_period));
    }

    /// The byte counter reached `rpg_byte_reset`, perhaps several times over.
    fn byte_increases(&mut self, now: u64) {
        let events = self.bytes.checked_div(self.byte_limit).unwrap_or(0);
        self.bytes = self.bytes.checked_rem(self.byte_limit).unwrap_or(0);
        for done in 1..=events {
            let moved = self.increase(Stage::Byte);
            self.settled = false;
            self.report(now, EventKind::Increase);
            if !moved && self.release_if_recovered(now) {
                return;
            }
            if !T::ENABLED && !moved && self.branch_is_fixed(self.byte_stage) {
                let more = events - done;
                self.byte_stage = self
                    .byte_stage
                    .saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
                self.counters.increases = self.counters.increases.saturating_add(more);
                return;
            }
        }
    }

    /// Whether an increase that moved nothing will be followed only by such, until another kind of input comes: past F, more
    /// increases of one kind stay in the same branch of [`Self::increase`], whatever the other stage is.
    fn branch_is_fixed(&self, stage: u32) -> bool {
        stage > self.params.rpg_threshold.saturating_add(1)
    }

    /// Runs all timers up to and including `now`.
    fn run_until(&mut self, now: u64) {
        if !self.active {
            return;
        }
        let increase_wins_ties = self.rate_period > self.cut_period;
        loop {
            let cut = if self.cnp_for_cut { self.cut_at } else { NEVER };
            let increase = self.rate_at;
            let at = cut.min(increase);
            if at > now || at == NEVER {
                break;
            }
            self.update_alpha(at);
            if increase < cut || (increase == cut && increase_wins_ties) {
                let before_cut = if increase_wins_ties {
                    cut
                } else {
                    cut.saturating_sub(1)
                };
                self.time_increase(now.min(before_cut));
                if !self.active {
                    return;
                }
            } else {
                self.cut(at);
                self.cut_at = at.saturating_add(self.cut_period);
            }
        }
        self.update_alpha(now);
        // Cut ticks without a CNP do nothing but pass.
        if self.cut_at <= now {
            let ticks = ((now - self.cut_at) / self.cut_period).saturating_add(1);
            self.cut_at = self
                .cut_at
                .saturating_add(ticks.saturating_mul(self.cut_period));
        }
        self.schedule();
    }

    /// Sets `next`: alpha alone wakes nobody, except an observer.
    fn schedule(&mut self) {
        self.next = NEVER;
        if !self.active {
            return;
        }
        if self.cnp_for_cut {
            self.next = self.cut_at;
        }
        if T::ENABLED {
            self.next = self.next.min(self.alpha_at).min(self.rate_at);
        } else if !self.settled {
            self.next = self.next.min(self.rate_at);
        }
    }
}
