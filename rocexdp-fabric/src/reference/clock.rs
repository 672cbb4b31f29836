//! Times as the reference simulator has them: whole nanoseconds, what is left over cut off ([`Picos::truncated`]). Followed to the
//! bit, because a link's capacity and every send time depend on it.
//!
//! Must not: round to nearest.

use rocexdp_proto::time::Rate;
use rocexdp_sim::picos::Picos;

/// Whole nanoseconds of `seconds`; 0 for what is negative or no number.
pub(crate) fn nanos_of(seconds: f64) -> u64 {
    Picos::truncated(seconds).as_nanos()
}

/// What `bytes` take at `rate`.
#[must_use]
pub fn transmission(bytes: u64, rate: Rate) -> Picos {
    Picos::serialise_truncated(bytes, rate)
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
        // An acknowledgement of 60 B.
        let time = transmission(60, Rate::from_gbps(40));
        assert_eq!(time, Picos::from_nanos(11));
        // fct/ws50: flows listed at these times start at these nanoseconds, as their rows say.
        assert_eq!(nanos_of(2.000_002_308), 2_000_002_308);
        assert_eq!(nanos_of(2.002_137_499), 2_002_137_498);
        assert_eq!(nanos_of(2.0), 2_000_000_000);
        assert_eq!(nanos_of(0.0), 0);
        assert_eq!(nanos_of(-1.0), 0);
        assert_eq!(nanos_of(f64::NAN), 0);
    }
}
