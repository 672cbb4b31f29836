//! How long an answer is waited for.
//!
//! The connection's own timeout is fixed and generous. Where an endpoint has the adaptive one, the time follows the round
//! trips instead: smoothed time plus four deviations, doubled by each expiry until there is a new round trip to go by (RFC
//! 6298; what is sent again is not timed, which is Karn's rule and the caller's matter), never below a floor and never above
//! the fixed timeout. Expiries before the fixed timeout cost no retry: a peer is given up no sooner than without them. They
//! are few, since each doubles the time: all of them together take less than two of the fixed ones.
//!
//! Must not: know when, or for what, it is waited.

use core::time::Duration;

use crate::time::nanos;

/// The ACK timeout of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckTimer {
    /// The connection's; `None`: for ever.
    fixed: Option<Duration>,
    /// The least that the adaptive timeout comes to; `None`: there is no such timeout.
    floor: Option<Duration>,
    /// Smoothed round trip and its mean deviation, ns; `None` before the first.
    smoothed: Option<(u64, u64)>,
    /// Expiries since the last round trip.
    backoff: u32,
}

impl AckTimer {
    pub(crate) fn new(floor: Option<Duration>) -> Self {
        Self {
            fixed: None,
            floor,
            smoothed: None,
            backoff: 0,
        }
    }

    /// A new connection, with this timeout.
    pub(crate) fn start(&mut self, fixed: Option<Duration>) {
        *self = Self {
            fixed,
            ..Self::new(self.floor)
        };
    }

    /// A round trip was measured.
    pub(crate) fn measured(&mut self, time: Duration) {
        let r = nanos(time);
        self.backoff = 0;
        self.smoothed = Some(match self.smoothed {
            None => (r, r / 2),
            Some((srtt, var)) => (
                srtt - srtt / 8 + r / 8,
                var - var / 4 + srtt.abs_diff(r) / 4,
            ),
        });
    }

    /// How long to wait from now on; `None`: for ever.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let fixed = self.fixed?;
        let (Some(floor), Some((srtt, var))) = (self.floor, self.smoothed) else {
            return Some(fixed);
        };
        let base = Duration::from_nanos(srtt.saturating_add(var.saturating_mul(4))).max(floor);
        let factor = 1u32.checked_shl(self.backoff).unwrap_or(u32::MAX);
        Some(base.saturating_mul(factor).min(fixed))
    }

    /// The time has passed without an answer. True if it was the fixed timeout: one of the retries is spent.
    pub(crate) fn expired(&mut self) -> bool {
        let counts = self.timeout() == self.fixed;
        self.backoff = self.backoff.saturating_add(1);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn adaptive() -> AckTimer {
        let mut t = AckTimer::new(Some(us(16)));
        t.start(Some(us(1000)));
        t
    }

    #[test]
    fn the_fixed_timeout_is_all_there_is_without_the_option() {
        let mut t = AckTimer::new(None);
        t.start(Some(us(1000)));
        t.measured(us(5));
        assert_eq!(t.timeout(), Some(us(1000)));
        assert!(t.expired() && t.expired());
        assert_eq!(t.timeout(), Some(us(1000)));
        t.start(None);
        assert_eq!(t.timeout(), None);
    }

    #[test]
    fn the_adaptive_timeout_follows_the_round_trip_between_floor_and_fixed() {
        let mut t = adaptive();
        assert_eq!(t.timeout(), Some(us(1000)), "nothing measured yet");
        t.measured(us(10));
        assert_eq!(t.timeout(), Some(us(30)), "R + 4 x R/2");
        for _ in 0..100 {
            t.measured(us(10));
        }
        assert_eq!(t.timeout(), Some(us(16)), "no deviation left: the floor");
        t.measured(us(90));
        // srtt 10 + 80/8, deviation 80/4.
        let next = t.timeout().unwrap();
        assert!((us(95)..=us(101)).contains(&next), "{next:?}");
        t.measured(us(100_000));
        assert_eq!(t.timeout(), Some(us(1000)), "never above the fixed one");
    }

    #[test]
    fn each_expiry_doubles_it_until_a_round_trip_is_measured_and_only_the_fixed_one_counts() {
        let mut t = adaptive();
        t.measured(us(10));
        let mut waited = Duration::ZERO;
        for (n, expected) in [30, 60, 120, 240, 480, 960].into_iter().enumerate() {
            assert_eq!(t.timeout(), Some(us(expected)), "{n}");
            waited += us(expected);
            assert!(!t.expired());
        }
        assert!(
            waited < us(2000),
            "what costs no retry takes less than two that do"
        );
        for _ in 0..100 {
            assert_eq!(t.timeout(), Some(us(1000)));
            assert!(t.expired());
        }
        t.measured(us(10));
        assert!(t.timeout() < Some(us(60)));
    }
}
