//! A case's result: the mean over its runs, as JSON for machines and as a table for people.
//!
//! Must not: name a column other than the reference does.

use std::fmt;

use serde::Serialize;

use super::fct::FctRow;
use super::run::Outcome;
use super::stats::{Summary, mean};

/// A case's result. As JSON: the columns of `incast_summary.csv`, and `fct`, rows with the columns of `fct_summary.csv`.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResult {
    /// The row of `incast_summary.csv`.
    #[serde(flatten)]
    pub summary: Summary,
    /// Pauses before the window, `pfc_summary.csv`'s `pauses_first5ms` where a run is 20 ms.
    pub pauses_first: f64,
    /// Pauses in the window.
    pub pauses_after: f64,
    /// Time paused, over all ports, microseconds.
    pub pause_time_sum_us: f64,
    /// Runs that this is the mean of.
    pub seeds: usize,
    /// Flows that ended, per run.
    pub flows_done: f64,
    /// Flows listed.
    pub flows: usize,
    /// Some run was ended before its time: the numbers are of what there was until then.
    pub partial: bool,
    /// The rows of `fct_summary.csv`; none where no flow ended.
    pub fct: Vec<FctRow>,
}

impl CaseResult {
    /// The mean of runs that differ in their seeds; `None` of no runs.
    #[must_use]
    pub fn of(runs: &[Outcome]) -> Option<Self> {
        let summaries: Vec<_> = runs.iter().map(|r| r.summary.clone()).collect();
        let fct: Vec<_> = runs.iter().map(Outcome::fct_rows).collect();
        let over = |of: fn(&Outcome) -> f64| mean(&runs.iter().map(of).collect::<Vec<_>>());
        Some(Self {
            summary: Summary::mean(&summaries)?.rounded(),
            pauses_first: over(|r| r.pauses.first),
            pauses_after: over(|r| r.pauses.after),
            pause_time_sum_us: over(|r| r.pauses.time_sum_us),
            seeds: runs.len(),
            flows_done: over(|r| r.done.len() as f64),
            flows: runs.first()?.flows,
            partial: runs.iter().any(|r| r.left > 0),
            fct: FctRow::mean(&fct)
                .into_iter()
                .map(FctRow::rounded)
                .collect(),
        })
    }
}

/// For people.
impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.summary;
        writeln!(
            f,
            "{}: {} flows through a port of {} Gb/s, {} ms{}{}",
            s.case,
            s.n,
            s.link_gbps,
            s.window_ms,
            match self.seeds {
                1 => String::new(),
                n => format!(", mean of {n} seeds"),
            },
            if self.partial { ", partial" } else { "" },
        )?;
        writeln!(
            f,
            "  utilisation {:.5}, goodput {:.3} to {:.3}, in all {:.3} Gb/s",
            s.util, s.goodput_min_gbps, s.goodput_max_gbps, s.goodput_sum_gbps
        )?;
        writeln!(
            f,
            "  Jain {:.5}, by millisecond {:.5} (least {:.5})",
            s.jain_window, s.jain_1ms_mean, s.jain_1ms_min
        )?;
        writeln!(
            f,
            "  queue mean {:.0} B, p50 {:.0}, p95 {:.0}, p99 {:.0}, max {:.0} (whole run {:.0}), sd {:.0}",
            s.q_mean_bytes, s.q_p50, s.q_p95, s.q_p99, s.q_max_window, s.q_max_all, s.q_std
        )?;
        writeln!(
            f,
            "  marked {:.4} %, {:.0} marks/s, {:.0} CNPs/s, {:.3} cuts/flow/ms, mean alpha {:.5}",
            s.mark_frac * 100.0,
            s.marks_per_s,
            s.cnp_per_s,
            s.cuts_per_flow_per_ms,
            s.alpha_mean
        )?;
        writeln!(
            f,
            "  PFC pauses {} ({} before the window), {:.1} us in all; drops {}",
            s.pfc_pauses, self.pauses_first, self.pause_time_sum_us, s.drops
        )?;
        if self.fct.is_empty() {
            return writeln!(f, "  no flow ended");
        }
        writeln!(f, "  {} of {} flows ended", self.flows_done, self.flows)?;
        writeln!(
            f,
            "  {:<11} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}",
            "size", "flows", "slowdown", "p50", "p95", "p99", "p99.9", "FCT us"
        )?;
        for r in &self.fct {
            writeln!(
                f,
                "  {:<11} {:>8} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3} {:>12.2}",
                r.size_bin, r.n, r.avg_slowdown, r.p50, r.p95, r.p99, r.p99_9, r.avg_fct_us
            )?;
        }
        Ok(())
    }
}
