//! A number that may be unknown, with the reason; and differences of counters that may have begun anew.

use rocexdp_common::maps::Rtt;

/// Why a number can't be known, for people.
pub type Reason = &'static str;

/// A number, or why it can't be known.
pub type Value = Result<f64, Reason>;

/// The sum of what is known of two numbers; unknown when both are.
pub fn sum(a: Value, b: Value) -> Value {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok(a + b),
        (Ok(known), Err(_)) | (Err(_), Ok(known)) => Ok(known),
        (Err(reason), Err(_)) => Err(reason),
    }
}

/// What a counter gained. One that is much lower than before began anew meanwhile; one that is a little lower did not (a time
/// that is told with the present one in it, counts read while they are written): it gained nothing.
#[must_use]
pub const fn gained(before: u64, after: u64) -> u64 {
    if after >= before {
        after - before
    } else if after < before / 2 {
        after
    } else {
        0
    }
}

/// Round trips of an interval. All are upper bounds: the counters are a log2 histogram, so that a time is known to a factor
/// of two; `max_ns` is exact when the longest time of all fell into the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttSummary {
    /// Round trips measured.
    pub samples: u64,
    /// Mean, ns: exact.
    pub mean_ns: u64,
    /// Half took at most this long, ns.
    pub p50_ns: u64,
    /// 99 of 100 took at most this long, ns.
    pub p99_ns: u64,
    /// None took longer, ns.
    pub max_ns: u64,
}

/// Round trips, or why they can't be known.
pub type RttValue = Result<RttSummary, Reason>;

/// No request was answered in the interval.
pub const NO_ROUND_TRIP: Reason = "no round trip in this interval";

/// There is no share of nothing.
pub const NO_PACKET: Reason = "no packet in this interval";

/// The histogram of what was measured between two looks.
#[must_use]
pub fn rtt_gained(before: &Rtt, after: &Rtt) -> Rtt {
    let anew = after
        .buckets
        .iter()
        .zip(&before.buckets)
        .any(|(after, before)| after < before);
    if anew {
        return *after;
    }
    let mut gained = Rtt::ZERO;
    let buckets = gained.buckets.iter_mut();
    for ((out, after), before) in buckets.zip(&after.buckets).zip(&before.buckets) {
        *out = after - before;
    }
    gained.sum_ns = after.sum_ns.saturating_sub(before.sum_ns);
    // The longest of the interval: the longest of all where that is new, else at most the end of the last bucket in use.
    gained.max_ns = if after.max_ns > before.max_ns {
        after.max_ns
    } else {
        let last = gained.buckets.iter().rposition(|n| *n > 0);
        let end = last.map_or(0, |i| (2_u64 << i) - 1);
        end.min(after.max_ns)
    };
    gained
}

/// A histogram in a few numbers.
///
/// # Errors
/// [`NO_ROUND_TRIP`].
pub fn summary(rtt: &Rtt) -> RttValue {
    let samples = rtt.count();
    let quantile = |q| rtt.quantile(q).ok_or(NO_ROUND_TRIP);
    Ok(RttSummary {
        samples,
        mean_ns: rtt.sum_ns.checked_div(samples).ok_or(NO_ROUND_TRIP)?,
        p50_ns: quantile(0.5)?,
        p99_ns: quantile(0.99)?,
        max_ns: rtt.max_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_summed_and_what_is_not_says_why() {
        assert_eq!(sum(Ok(1.0), Ok(2.0)), Ok(3.0));
        assert_eq!(sum(Err("why"), Ok(2.0)), Ok(2.0));
        assert_eq!(sum(Err("why"), Err("other")), Err("why"));
    }

    #[test]
    fn a_counter_that_began_anew_gained_all_it_has_and_a_small_step_back_is_nothing() {
        assert_eq!(gained(5, 9), 4);
        assert_eq!(gained(9_000, 5), 5);
        assert_eq!(gained(1_000_000, 999_990), 0);
        assert_eq!(gained(u64::MAX, u64::MAX - 1), 0);
        assert_eq!(gained(0, 0), 0);
    }

    #[test]
    fn round_trips_of_the_interval_only() {
        let mut before = Rtt::ZERO;
        for _ in 0..1000 {
            before.take(1_000_000);
        }
        let mut after = before;
        for _ in 0..99 {
            after.take(2500);
        }
        after.take(40_000);
        let seen = summary(&rtt_gained(&before, &after)).unwrap();
        assert_eq!(seen.samples, 100);
        assert_eq!(seen.mean_ns, (99 * 2500 + 40_000) / 100);
        assert_eq!((seen.p50_ns, seen.p99_ns), (4095, 65_535));
        // 1 ms was longer, but before: the last bucket in use bounds it.
        assert_eq!(seen.max_ns, 65_535);
        after.take(3_000_000);
        assert_eq!(rtt_gained(&before, &after).max_ns, 3_000_000);
        assert_eq!(summary(&rtt_gained(&after, &after)), Err(NO_ROUND_TRIP));
        let mut anew = Rtt::ZERO;
        anew.take(7);
        assert_eq!(rtt_gained(&after, &anew), anew);
    }
}
