//! The rules of the reaction point, one method each: what a CNP, a cut tick and an increase do to rate, target, alpha and
//! stages. When they happen is the parent module's business.
//!
//! Must not: look at the time, except to set a timer off.

use super::super::alpha::Alpha;
use super::super::params::{AlphaOn, CutOn, HyperStep, StageCount};
use super::super::trace::{EventKind, Trace};
use super::{Ceiling, NEVER, ReactionPoint, Stage};
use crate::time::{Rate, nanos};

/// CNPs of one batch that are acted on one by one where a CNP is an event: alpha and rate have long settled by then.
const MAX_BATCH: u32 = 1_024;
/// Share of the line rate that `rate_to_set_on_first_cnp` may reach, in percent (NVIDIA).
const FIRST_CNP_MAX_PERCENT: u64 = 85;

impl<T: Trace> ReactionPoint<T> {
    /// CNPs at `now`, timers having been run and the ceiling being known.
    ///
    /// ConnectX and ns-3 only note that a CNP came; the ticks act on it. In the paper each CNP cuts, then raises alpha: the
    /// cut uses the OLD alpha.
    pub(super) fn cnps(&mut self, now: u64, cnps: u32) {
        if cnps == 0 {
            return;
        }
        self.counters.cnps = self.counters.cnps.saturating_add(u64::from(cnps));
        let first = !self.active;
        if first {
            self.first_cnp(now);
        }
        match self.params.alpha_on {
            // The first CNP sets alpha, so it is not counted into it again (ns-3).
            AlphaOn::Tick => self.cnp_for_alpha |= !first || cnps > 1,
            AlphaOn::CnpAndTimeout => self.alpha_at = now.saturating_add(self.alpha_period),
        }
        self.cnp_for_cut |= self.params.cut_on == CutOn::Tick;
        for _ in 0..cnps.min(MAX_BATCH) {
            let cut = self.params.cut_on == CutOn::Event;
            let raise = self.params.alpha_on == AlphaOn::CnpAndTimeout;
            if cut {
                self.cut(now);
            }
            if raise {
                self.alpha = self.alpha.updated(true);
            }
            if !cut && !raise {
                break;
            }
        }
        self.schedule();
        self.report(now, EventKind::Cnp);
    }

    /// The first CNP of a congestion epoch: the QP becomes paced, from the ceiling (paper, section on the RP: flows start at
    /// line rate; ns-3 and NVIDIA: alpha starts at `initial_alpha_value`, rate and target at `rate_to_set_on_first_cnp`).
    ///
    /// `rate_to_set_on_first_cnp` = 0 is taken as "leave the rate"; the vendor's page does not say.
    fn first_cnp(&mut self, now: u64) {
        self.active = true;
        self.alpha = Alpha::initial(&self.params);
        let ceiling = self.ceiling_bps();
        let start = match self.params.rate_to_set_on_first_cnp {
            Rate::ZERO => ceiling,
            set => set
                .as_bps()
                .min(ceiling.saturating_mul(FIRST_CNP_MAX_PERCENT) / 100)
                .max(self.floor_bps()),
        };
        self.rate = start;
        self.target = start;
        self.time_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
        self.settled = false;
        self.cnp_for_alpha = false;
        self.alpha_at = now.saturating_add(self.alpha_period);
        self.cut_at = now
            .saturating_add(self.cut_period)
            .saturating_add(nanos(self.params.cut_tick_delay));
        // The increase timer starts with the first cut.
        self.rate_at = NEVER;
    }

    /// A cut at `at`.
    ///
    /// Target: `clamp_tgt_rate` makes it follow the rate at each cut (the paper's rule); without it, it follows only if an
    /// increase happened since the last cut: one by bytes, or (`clamp_tgt_rate_after_time_inc`) by time. So a run of cuts
    /// keeps the target from before the congestion, and one fast recovery step jumps half-way back (ns-3, NVIDIA).
    ///
    /// Rate: `R_C * (1 - alpha / 2)`; `rpg_gd` 10 would take all of alpha; at least `rpg_min_dec_fac` percent of the old rate
    /// stay, and `rpg_min_rate` (NVIDIA). Stages, bytes and the increase timer start again.
    pub(super) fn cut(&mut self, at: u64) {
        let p = &self.params;
        let follow = p.clamp_tgt_rate
            || self.byte_stage > 0
            || (p.clamp_tgt_rate_after_time_inc && self.time_stage > 0);
        if follow {
            self.target = self.rate;
        }
        let kept = match self.alpha {
            Alpha::Fixed { .. } => {
                let lost = u64::from(100u8.saturating_sub(p.rpg_min_dec_fac));
                self.rate
                    .saturating_sub(self.rate.saturating_mul(lost) / 100)
            }
            // Truncated like the cut itself, so that 50 % never disturbs alpha = 1 (ns-3 has no such limit).
            Alpha::Real { .. } => {
                self.rate
                    .saturating_mul(u64::from(p.rpg_min_dec_fac.min(100)))
                    / 100
            }
        };
        self.rate = self
            .alpha
            .cut(self.rate, p.rpg_gd)
            .max(kept)
            .max(self.floor_bps());
        self.time_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
        self.cnp_for_cut = false;
        self.rate_at = at.saturating_add(self.rate_period);
        self.settled = false;
        self.counters.cuts = self.counters.cuts.saturating_add(1);
        self.report(at, EventKind::Cut);
    }

    /// One increase, by the timer or by the byte counter.
    ///
    /// With T timer and B byte increases since the last cut (only T where the byte counter is off) and F = `rpg_threshold`:
    /// hyper increase if min(T, B) > F, additive increase if max(T, B) >= F, else fast recovery, which leaves the target
    /// alone; then the rate moves half-way to the target. The paper counts the stage first and then looks, the hardware
    /// models look first. Returns whether anything moved.
    pub(super) fn increase(&mut self, by: Stage) -> bool {
        let before = (self.rate, self.target);
        if self.params.stage_count == StageCount::Before {
            self.count(by);
        }
        let (t, b) = (
            self.time_stage,
            if self.byte_limit == 0 {
                self.time_stage
            } else {
                self.byte_stage
            },
        );
        let f = self.params.rpg_threshold;
        if t.min(b) > f {
            let hai = self.params.rpg_hai_rate.as_bps();
            let step = match self.params.hyper_step {
                HyperStep::Constant => hai,
                // The paper's i-th step of QCN, counted as min(T, B) - F, so the first is i = 1.
                HyperStep::Multiplied => hai.saturating_mul(u64::from(t.min(b).saturating_sub(f))),
            };
            self.target = self.target.saturating_add(step);
        } else if t.max(b) >= f {
            self.target = self.target.saturating_add(self.params.rpg_ai_rate.as_bps());
        }
        self.target = self.target.min(self.ceiling_bps());
        let mid = match self.alpha {
            Alpha::Fixed { .. } => self.rate.saturating_add(self.target) / 2,
            // ns-3 halves first, each half truncated to whole b/s.
            Alpha::Real { .. } => (self.rate / 2).saturating_add(self.target / 2),
        };
        self.rate = mid.max(self.floor_bps());
        if self.params.stage_count == StageCount::After {
            self.count(by);
        }
        self.counters.increases = self.counters.increases.saturating_add(1);
        before != (self.rate, self.target)
    }

    fn count(&mut self, by: Stage) {
        let stage = match by {
            Stage::Time => &mut self.time_stage,
            Stage::Byte => &mut self.byte_stage,
        };
        *stage = stage.saturating_add(1);
    }

    /// An increase moved nothing. If that is so because the QP is back at a ceiling that was only a measurement, the ceiling
    /// is forgotten and the QP unpaced: nothing says that the path can't carry more.
    pub(super) fn release_if_recovered(&mut self, at: u64) -> bool {
        let Ceiling::Measured(_) = self.ceiling else {
            return false;
        };
        if self.cnp_for_cut || self.target != self.ceiling_bps() {
            return false;
        }
        self.counters.releases = self.counters.releases.saturating_add(1);
        self.report(at, EventKind::Release);
        self.active = false;
        self.ceiling = Ceiling::Unknown;
        self.alpha = Alpha::initial(&self.params);
        self.rate = 0;
        self.target = 0;
        self.schedule();
        true
    }
}
