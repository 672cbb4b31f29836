//! Simulated time: picoseconds, since whole nanoseconds can't tell apart what a fast link serialises (64 B at 1.6 Tb/s
//! is 0.32 ns).
//!
//! Must not: read a clock. Arithmetic saturates, so that a wild value can make an event late but can't wrap it into the past.

use core::fmt;
use core::ops::{Add, Sub};

use rocexdp_proto::time::{Rate, Timestamp};

/// A point in simulated time, or a span of it: picoseconds. 2^64 ps are 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Picos(pub u64);

impl Picos {
    /// The start.
    pub const ZERO: Self = Self(0);
    /// Later than every time that occurs: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// `ns` nanoseconds.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns.saturating_mul(1_000))
    }

    /// `us` microseconds.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self::from_nanos(us.saturating_mul(1_000))
    }

    /// Whole nanoseconds, rounded down.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0 / 1_000
    }

    /// As the protocol sees it, rounded down.
    #[must_use]
    pub const fn timestamp(self) -> Timestamp {
        Timestamp::from_nanos(self.as_nanos())
    }

    /// A time of the protocol's.
    #[must_use]
    pub const fn from_timestamp(at: Timestamp) -> Self {
        Self::from_nanos(at.as_nanos())
    }

    /// Whole nanoseconds of `seconds`, as ns-3 has them: it makes a 64.64 fixed-point number of the double, multiplies by 10^9 and
    /// keeps the whole part (`nstime.h`, `int64x64-128`). 0 for what is negative or no number.
    #[must_use]
    pub fn truncated(seconds: f64) -> Self {
        const NANOS_PER_SECOND: u128 = 1_000_000_000;
        /// 2^64, exactly.
        const TWO_64: f64 = 18_446_744_073_709_551_616.0;
        if seconds.is_nan() || seconds <= 0.0 {
            return Self::ZERO;
        }
        let whole = seconds.floor();
        // Both casts cut off; the second operand is below 2^64.
        let fixed = ((whole as u128) << 64) | ((seconds - whole) * TWO_64) as u128;
        let high = (fixed >> 64).saturating_mul(NANOS_PER_SECOND);
        let low = ((fixed & u128::from(u64::MAX)) * NANOS_PER_SECOND) >> 64;
        Self::from_nanos(u64::try_from(high.saturating_add(low)).unwrap_or(u64::MAX))
    }

    /// What `bytes` take at `rate` in ns-3. 1048 B at 100 Gb/s take 83 ns and not 83.84, and 60 B at 40 Gb/s, 12 ns on paper, take
    /// 11: the division before is a double's.
    #[must_use]
    pub fn serialise_truncated(bytes: u64, rate: Rate) -> Self {
        match rate.as_bps() {
            0 => Self::MAX,
            bps => Self::truncated((bytes as f64) * 8.0 / bps as f64),
        }
    }

    /// What `bytes` take at `rate`, rounded up to a picosecond; [`Picos::MAX`] at rate 0.
    #[must_use]
    pub fn serialise(bytes: u64, rate: Rate) -> Self {
        const PS_PER_SECOND: u128 = 1_000_000_000_000;
        let bits = u128::from(bytes) * 8 * PS_PER_SECOND;
        match rate.as_bps() {
            0 => Self::MAX,
            bps => Self(u64::try_from(bits.div_ceil(u128::from(bps))).unwrap_or(u64::MAX)),
        }
    }
}

impl Add for Picos {
    type Output = Self;

    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub for Picos {
    type Output = Self;

    fn sub(self, span: Self) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// Seconds with twelve decimals, as in `0.000001500000s`.
impl fmt::Display for Picos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PER_SECOND: u64 = 1_000_000_000_000;
        write!(f, "{}.{:012}s", self.0 / PER_SECOND, self.0 % PER_SECOND)
    }
}
