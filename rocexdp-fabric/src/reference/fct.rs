//! The numbers of `fct_summary.csv`: how much longer flows took than in an empty network, by size.
//!
//! Slowdown is the time from a flow's start to its last acknowledgement over the ideal (a round trip, and all bytes with their
//! headers at the slowest link), at least 1. Percentiles are between neighbours, as NumPy's default.

use serde::Serialize;

use super::stats::{mean, percentile, rounded};

/// A flow that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its place in the case's list.
    pub flow: u32,
    /// Bytes.
    pub size: u64,
    /// Nanoseconds it took.
    pub fct: u64,
    /// Nanoseconds it takes in an empty network.
    pub ideal: u64,
}

impl Done {
    /// How much longer it took than in an empty network.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        (self.fct as f64 / self.ideal.max(1) as f64).max(1.0)
    }
}

/// The bins, from and up to a size in bytes.
pub const BINS: [(&str, u64, u64); 6] = [
    ("<10KB", 0, 10_000),
    ("10-100KB", 10_000, 100_000),
    ("100KB-1MB", 100_000, 1_000_000),
    ("1-10MB", 1_000_000, 10_000_000),
    (">10MB", 10_000_000, u64::MAX),
    ("all", 0, u64::MAX),
];

/// A row of `fct_summary.csv`. Field names are its columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FctRow {
    /// What stands before the first `_` of the experiment's name.
    pub workload: String,
    /// What stands after it.
    pub variant: String,
    /// Sizes.
    pub size_bin: String,
    /// Flows that ended; a mean over seeds may have a fraction.
    pub n: f64,
    /// Mean slowdown.
    pub avg_slowdown: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// Mean time, microseconds.
    pub avg_fct_us: f64,
}

impl FctRow {
    /// The rows of a run, one a bin that has flows.
    #[must_use]
    pub fn all(case: &str, done: &[Done]) -> Vec<Self> {
        let (workload, variant) = case.split_once('_').unwrap_or((case, ""));
        let row = |(bin, from, to): (&str, u64, u64)| {
            let flows = done.iter().filter(|d| (from..to).contains(&d.size));
            let mut slowdown: Vec<f64> = flows.clone().map(Done::slowdown).collect();
            slowdown.sort_by(f64::total_cmp);
            let times: Vec<f64> = flows.map(|d| d.fct as f64 / 1e3).collect();
            Self {
                workload: workload.to_owned(),
                variant: variant.to_owned(),
                size_bin: bin.to_owned(),
                n: slowdown.len() as f64,
                avg_slowdown: mean(&slowdown),
                p50: percentile(&slowdown, 50.0),
                p95: percentile(&slowdown, 95.0),
                p99: percentile(&slowdown, 99.0),
                p99_9: percentile(&slowdown, 99.9),
                avg_fct_us: mean(&times),
            }
        };
        BINS.into_iter().map(row).filter(|r| r.n > 0.0).collect()
    }

    fn numbers(&mut self) -> [(&mut f64, i32); 7] {
        [
            (&mut self.n, 2),
            (&mut self.avg_slowdown, 3),
            (&mut self.p50, 3),
            (&mut self.p95, 3),
            (&mut self.p99, 3),
            (&mut self.p99_9, 3),
            (&mut self.avg_fct_us, 2),
        ]
    }

    /// With as many decimals as the reference's file has.
    #[must_use]
    pub fn rounded(mut self) -> Self {
        for (value, decimals) in self.numbers() {
            *value = rounded(*value, decimals);
        }
        self
    }

    /// Row by row, the mean of runs that differ in their seeds. A bin that one of them lacks is left out.
    #[must_use]
    pub fn mean(runs: &[Vec<Self>]) -> Vec<Self> {
        let Some((first, rest)) = runs.split_first() else {
            return Vec::new();
        };
        let over = |row: &Self| {
            let mut total = row.clone();
            for run in rest {
                let mut other = run.iter().find(|r| r.size_bin == row.size_bin)?.clone();
                for ((sum, _), (value, _)) in total.numbers().into_iter().zip(other.numbers()) {
                    *sum += *value;
                }
            }
            for (value, _) in total.numbers() {
                *value /= runs.len() as f64;
            }
            Some(total)
        };
        first.iter().filter_map(over).collect()
    }
}
