//! Points in time and rates, the two quantities that every clock-driven part of the core shares.
//!
//! The core has no clock: whoever drives it passes a [`Timestamp`] in. Zero is wherever the driver puts it (boot, start of
//! the process, start of a simulation); only differences mean anything. Arithmetic saturates, so that a wild value from
//! outside can make a timer late but can't wrap one into the past.
//!
//! Must not: read a clock, sleep, or convert to wall-clock time.

use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Add, Sub};
use core::str::FromStr;
use core::time::Duration;

/// A point in time: whole nanoseconds since the driver's zero.
///
/// 2^64 ns are 584 years, so the end is never met in practice; [`Timestamp::MAX`] serves as "never". An `Option` of it takes no more
/// room: an idle QP holds several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(
    /// Nanoseconds and one.
    NonZeroU64,
);

impl Default for Timestamp {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timestamp").field(&self.as_nanos()).finish()
    }
}

impl Timestamp {
    /// The driver's zero.
    pub const ZERO: Self = Self(NonZeroU64::MIN);
    /// Later than every time that occurs: "never".
    pub const MAX: Self = Self(NonZeroU64::MAX);

    /// The point `ns` nanoseconds after zero, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(ns))
    }

    /// The point `us` microseconds after zero, [`Timestamp::MAX`] if that is out of range.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self::from_nanos(us.saturating_mul(1_000))
    }

    /// Nanoseconds since zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// `self + d`, or `None` past the end.
    #[must_use]
    pub fn checked_add(self, d: Duration) -> Option<Self> {
        let ns = u64::try_from(d.as_nanos()).ok()?;
        self.0.checked_add(ns).map(Self)
    }

    /// `self + d`, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn saturating_add(self, d: Duration) -> Self {
        self.checked_add(d).unwrap_or(Self::MAX)
    }

    /// `self - d`, at least [`Timestamp::ZERO`].
    #[must_use]
    pub fn saturating_sub(self, d: Duration) -> Self {
        Self::from_nanos(self.as_nanos().saturating_sub(nanos(d)))
    }

    /// Time passed since `earlier`; zero if `earlier` is later than `self`.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }
}

/// Saturating.
impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, d: Duration) -> Self {
        self.saturating_add(d)
    }
}

/// Saturating: zero if `earlier` is later than `self`.
impl Sub for Timestamp {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

/// Seconds with nine decimals, as in `1.000000250s`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.as_nanos() / 1_000_000_000,
            self.as_nanos() % 1_000_000_000
        )
    }
}

/// Whole nanoseconds of a duration, at most `u64::MAX`.
#[must_use]
pub fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// No bits at all.
    pub const ZERO: Self = Self(0);

    /// From bits per second.
    #[must_use]
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// From megabits (10^6 bits) per second; saturating.
    #[must_use]
    pub const fn from_mbps(mbps: u64) -> Self {
        Self(mbps.saturating_mul(1_000_000))
    }

    /// From gigabits (10^9 bits) per second; saturating.
    #[must_use]
    pub const fn from_gbps(gbps: u64) -> Self {
        Self(gbps.saturating_mul(1_000_000_000))
    }

    /// Bits per second.
    #[must_use]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Rate at which `bytes` went out in `span`; `None` if no time passed.
    #[must_use]
    pub fn measured(bytes: u64, span: Duration) -> Option<Self> {
        let bits_ns = u128::from(bytes).saturating_mul(8_000_000_000);
        let bps = bits_ns.checked_div(span.as_nanos())?;
        Some(Self(u64::try_from(bps).unwrap_or(u64::MAX)))
    }
}

/// Three significant digits or more: `850 kb/s`, `40.0 Mb/s`, `98.3 Gb/s`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (div, unit) = match self.0 {
            0..1_000 => return write!(f, "{} b/s", self.0),
            1_000..1_000_000 => (1e3, "kb/s"),
            1_000_000..1_000_000_000 => (1e6, "Mb/s"),
            _ => (1e9, "Gb/s"),
        };
        let value = self.0 as f64 / div;
        let decimals = if value < 10.0 {
            2
        } else if value < 100.0 {
            1
        } else {
            0
        };
        write!(f, "{value:.decimals$} {unit}")
    }
}

/// Why a text is no [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a rate: write a number with a unit, as in 850k, 40M, 40Mb/s, 2.5G, 100Gbps")]
pub struct ParseRateError;

/// A number (decimals allowed) with `k`, `M`, `G` or `T` (powers of ten), then nothing, `b/s`, `bps` or `bit/s`. A bare
/// number is bits per second.
impl FromStr for Rate {
    type Err = ParseRateError;

    fn from_str(s: &str) -> Result<Self, ParseRateError> {
        let s = s.trim();
        let end = s
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(s.len());
        let (number, unit) = s.split_at(end);
        let unit = unit.trim_start();
        let prefix = ["bit/s", "b/s", "bps"]
            .iter()
            .find_map(|u| unit.strip_suffix(u))
            .unwrap_or(unit);
        let scale = match prefix {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" | "m" => 1e6,
            "G" | "g" => 1e9,
            "T" | "t" => 1e12,
            _ => return Err(ParseRateError),
        };
        let value: f64 = number.parse().map_err(|_| ParseRateError)?;
        let bps = (value * scale).round();
        if bps < u64::MAX as f64 {
            Ok(Self(bps as u64))
        } else {
            Err(ParseRateError)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let late = Timestamp::from_nanos(u64::MAX - 1);
        assert_eq!(late + Duration::from_nanos(5), Timestamp::MAX);
        assert_eq!(late.checked_add(Duration::from_nanos(5)), None);
        assert_eq!(late + Duration::MAX, Timestamp::MAX);
        assert_eq!(
            Timestamp::from_nanos(3).saturating_sub(Duration::from_nanos(5)),
            Timestamp::ZERO
        );
        assert_eq!(Timestamp::ZERO - late, Duration::ZERO);
        assert_eq!(
            Timestamp::from_micros(2) - Timestamp::from_nanos(500),
            Duration::from_nanos(1_500)
        );
    }

    #[test]
    fn rates_read_as_people_and_ns3_write_them() {
        for (text, bps) in [
            ("20Mb/s", 20_000_000),
            ("1000Mb/s", 1_000_000_000),
            ("100Gbps", 100_000_000_000),
            ("2.5G", 2_500_000_000),
            ("850 k", 850_000),
            ("12", 12),
            ("1.6T", 1_600_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Rate::from_bps(bps)), "{text}");
        }
        for text in [
            "",
            "G",
            "-1M",
            "1X",
            "1e9G",
            "nan",
            "1.2.3M",
            "99999999999T",
        ] {
            assert_eq!(text.parse::<Rate>(), Err(ParseRateError), "{text}");
        }
    }

    #[test]
    fn rates_print_with_a_fitting_unit() {
        let shown = |bps| Rate::from_bps(bps).to_string();
        assert_eq!(shown(999), "999 b/s");
        assert_eq!(shown(40_000_000), "40.0 Mb/s");
        assert_eq!(shown(98_345_000_000), "98.3 Gb/s");
        assert_eq!(shown(1_234_000_000), "1.23 Gb/s");
    }

    #[test]
    fn a_measured_rate_needs_time_to_have_passed() {
        assert_eq!(
            Rate::measured(1_250, Duration::from_micros(1)),
            Some(Rate::from_gbps(10))
        );
        assert_eq!(Rate::measured(1_250, Duration::ZERO), None);
        assert_eq!(
            Rate::measured(u64::MAX, Duration::from_nanos(1)),
            Some(Rate::from_bps(u64::MAX))
        );
    }
}
