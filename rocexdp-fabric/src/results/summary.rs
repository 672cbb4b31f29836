//! Numbers that stand for many: percentiles, slowdown by size, fairness.

use serde::Serialize;

use super::Flow;

/// Upper ends of bins of size, as the reference's tables have them, and their names.
const BINS: [(u64, &str); 5] = [
    (10_000, "<10KB"),
    (100_000, "10-100KB"),
    (1_000_000, "100KB-1MB"),
    (10_000_000, "1-10MB"),
    (u64::MAX, ">10MB"),
];

/// Slowdown of flows that ended: how many times the time in an empty network they took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// Of all.
    pub all: Bin,
    /// By size; those without flows are left out.
    pub bins: Vec<Bin>,
}

/// Slowdown of flows of some sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// Which.
    pub size: &'static str,
    /// How many flows.
    pub flows: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Greatest.
    pub max: f64,
}

impl Slowdown {
    /// Of those that ended, if any did.
    #[must_use]
    pub fn of(flows: &[Flow]) -> Option<Self> {
        let ended: Vec<_> = flows
            .iter()
            .filter_map(|flow| Some((flow.bytes?, flow.slowdown?)))
            .collect();
        let all = Bin::of("all", ended.iter().map(|(_, slowdown)| *slowdown).collect())?;
        let mut least = 0;
        let mut bins = Vec::new();
        for (end, name) in BINS {
            let inside = ended
                .iter()
                .filter(|(bytes, _)| (least..end).contains(bytes));
            bins.extend(Bin::of(
                name,
                inside.map(|(_, slowdown)| *slowdown).collect(),
            ));
            least = end;
        }
        Some(Self { all, bins })
    }
}

impl Bin {
    fn of(size: &'static str, mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        Some(Self {
            size,
            flows: values.len(),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: percentile(&values, 0.5)?,
            p95: percentile(&values, 0.95)?,
            p99: percentile(&values, 0.99)?,
            max: *values.last()?,
        })
    }
}

/// The least value that this share of the sorted values does not exceed.
#[must_use]
pub fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Jain's index: 1 where all are equal, 1/n where one has all. `None` of fewer than two.
#[must_use]
pub fn jain(values: &[f64]) -> Option<f64> {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), value| {
        (sum + value, squares + value * value)
    });
    (values.len() >= 2 && squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(50.0));
        assert_eq!(percentile(&values, 0.99), Some(99.0));
        assert_eq!(percentile(&values[..1], 0.99), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn fairness_is_one_or_less() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[4.0, 0.0]), Some(0.5));
        assert_eq!(jain(&[4.0]), None);
    }
}
