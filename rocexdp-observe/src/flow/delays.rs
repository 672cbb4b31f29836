//! Percentiles of delays in bounded memory: exact while few, then a histogram.
//!
//! Knows nothing of packets. The histogram is log-linear: eight steps per power of two, so a percentile is at most one
//! eighth too high; the largest value is always exact.

/// Values kept as they are before the histogram begins.
const EXACT: usize = 64;
/// Steps per power of two, as a power of two.
const STEP_BITS: u32 = 3;
const STEPS: usize = 1 << STEP_BITS;
/// Powers of two above the linear part; the last bucket takes what is longer (2^43 ns is more than two hours).
const POWERS: usize = 40;
const BUCKETS: usize = STEPS * (POWERS + 1);

/// Delays in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    count: u64,
    max: u64,
    exact: Vec<u64>,
    buckets: Option<Box<[u32; BUCKETS]>>,
}

impl Delays {
    /// Takes one.
    pub fn push(&mut self, ns: u64) {
        self.count += 1;
        self.max = self.max.max(ns);
        if self.exact.len() < EXACT && self.buckets.is_none() {
            self.exact.push(ns);
            return;
        }
        let buckets = self.buckets.get_or_insert_with(|| {
            let mut all = Box::new([0; BUCKETS]);
            for value in self.exact.drain(..) {
                bump(&mut all, value);
            }
            all
        });
        bump(buckets, ns);
    }

    /// Takes all of another's.
    pub fn merge(&mut self, other: &Self) {
        for value in &other.exact {
            self.push(*value);
        }
        if let Some(theirs) = &other.buckets {
            let mine = self.buckets.get_or_insert_with(|| {
                let mut all = Box::new([0; BUCKETS]);
                for value in self.exact.drain(..) {
                    bump(&mut all, value);
                }
                all
            });
            for (mine, theirs) in mine.iter_mut().zip(theirs.iter()) {
                *mine = mine.saturating_add(*theirs);
            }
            self.count += other.count;
            self.max = self.max.max(other.max);
        }
    }

    /// How many.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// The value that `percent` of them do not exceed (nearest rank), at most one eighth too high.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = (self.count * percent).div_ceil(100).max(1);
        if let Some(buckets) = &self.buckets {
            let mut below = 0;
            for (index, n) in buckets.iter().enumerate() {
                below += u64::from(*n);
                if below >= rank {
                    return Some(upper(index).min(self.max));
                }
            }
            return Some(self.max);
        }
        let mut sorted = self.exact.clone();
        sorted.sort_unstable();
        sorted
            .get(usize::try_from(rank - 1).unwrap_or(usize::MAX))
            .copied()
    }
}

fn bump(buckets: &mut [u32; BUCKETS], ns: u64) {
    if let Some(n) = buckets.get_mut(bucket(ns)) {
        *n = n.saturating_add(1);
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() - STEP_BITS;
    let step = (ns >> power) as usize & (STEPS - 1);
    ((power as usize + 1) * STEPS + step).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn upper(index: usize) -> u64 {
    if index < STEPS {
        return index as u64;
    }
    let (power, step) = (index / STEPS - 1, index % STEPS);
    (((STEPS + step + 1) as u64) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_exact() {
        let mut delays = Delays::default();
        assert_eq!(delays.percentile(50), None);
        for ns in [30, 10, 20] {
            delays.push(ns);
        }
        assert_eq!(delays.percentile(50), Some(20));
        assert_eq!(delays.percentile(99), Some(30));
        assert_eq!(delays.max(), Some(30));
    }

    #[test]
    fn many_are_at_most_an_eighth_too_high_and_merge() {
        let mut delays = Delays::default();
        let mut half = Delays::default();
        for ns in 1..=100_000u64 {
            delays.push(ns * 17);
            if ns % 2 == 0 {
                half.push(ns * 17);
            }
        }
        for percent in [1, 50, 90, 99] {
            let exact = 1_000 * percent * 17;
            let got = delays.percentile(percent).unwrap();
            assert!(
                (exact..=exact + exact / 8).contains(&got),
                "{percent}: {got}"
            );
        }
        let mut both = Delays::default();
        both.push(5);
        both.merge(&half);
        assert_eq!(both.count(), half.count() + 1);
        assert_eq!(both.max(), Some(1_700_000));
        assert_eq!(both.percentile(50), half.percentile(50));
    }

    #[test]
    fn every_value_is_in_its_bucket() {
        for shift in 0..63 {
            for ns in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1] {
                let index = bucket(ns);
                if index < BUCKETS - 1 {
                    assert!(ns <= upper(index), "{ns}");
                    assert!(index == 0 || ns > upper(index - 1), "{ns}");
                }
            }
        }
    }
}
