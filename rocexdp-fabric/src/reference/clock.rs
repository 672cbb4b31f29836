//! Times as the reference simulator has them: whole nanoseconds, what is left over cut off.
//!
//! ns-3 turns seconds into a 64.64 fixed-point number, multiplies by 10^9 and keeps the whole part (`nstime.h`, `int64x64-128`).
//! So 1048 B at 100 Gb/s take 83 ns and not 83.84, and what is a whole number of nanoseconds on paper may lose one: the
//! division before it is a double's. Followed to the bit, because a link's capacity and every send time depend on it.
//!
//! Must not: round to nearest.

use rocexdp_proto::time::Rate;
use rocexdp_sim::picos::Picos;

const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// 2^64, exactly.
const TWO_64: f64 = 18_446_744_073_709_551_616.0;

/// Whole nanoseconds of `seconds`; 0 for what is negative or no number.
pub(crate) fn nanos_of(seconds: f64) -> u64 {
    if seconds.is_nan() || seconds <= 0.0 {
        return 0;
    }
    let whole = seconds.floor();
    // Both casts cut off; the second operand is below 2^64.
    let fixed = ((whole as u128) << 64) | ((seconds - whole) * TWO_64) as u128;
    let high = (fixed >> 64).saturating_mul(NANOS_PER_SECOND);
    let low = ((fixed & u128::from(u64::MAX)) * NANOS_PER_SECOND) >> 64;
    u64::try_from(high.saturating_add(low)).unwrap_or(u64::MAX)
}

/// What `bytes` take at `rate`.
#[must_use]
pub fn transmission(bytes: u64, rate: Rate) -> Picos {
    if rate == Rate::ZERO {
        return Picos::MAX;
    }
    Picos::from_nanos(nanos_of((bytes as f64) * 8.0 / rate.as_bps() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_what_the_reference_says() {
        for (gbps, nanos) in [(100, 83), (40, 209), (25, 335)] {
            let time = transmission(1048, Rate::from_gbps(gbps));
            assert_eq!(time, Picos::from_nanos(nanos), "{gbps} Gb/s");
        }
    }

    #[test]
    fn a_double_just_below_a_whole_nanosecond_loses_it() {
        // fct/ws50: the flow listed at 2.000002308 s starts at 2308 ns, as its row says.
        assert_eq!(nanos_of(2.000_002_308), 2_000_002_308);
        assert_eq!(nanos_of(2.0), 2_000_000_000);
        assert_eq!(nanos_of(0.0), 0);
        assert_eq!(nanos_of(-1.0), 0);
        assert_eq!(nanos_of(f64::NAN), 0);
    }
}
