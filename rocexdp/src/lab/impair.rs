//! Impairments as people write them: `drop=1%,ce=5%,corrupt=0.1%,dup=1%,reorder=1%,delay=100us,seed=7`.
//!
//! A share is a percentage or a fraction (`1%` or `0.01`). `clean` means no impairment.

use std::{fmt, str::FromStr};

use rocexdp_common::fault::{Faults, Share};

/// Faults that can be parsed and printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment(pub Faults);

/// Why an impairment can't be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadImpairment(String);

impl fmt::Display for BadImpairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (example: drop=1%,ce=5%,corrupt=0.1%,dup=1%,reorder=1%,delay=100us,seed=7, or clean)",
            self.0
        )
    }
}

impl std::error::Error for BadImpairment {}

/// A delay no one means: longer than this is taken for a mistake.
const MAX_DELAY_NS: f64 = 10e9;
/// A reordered packet waits a limited time, so a larger depth has no effect.
const MAX_DEPTH: u32 = 1000;

impl FromStr for Impairment {
    type Err = BadImpairment;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Faults::default();
        if text.trim() == "clean" {
            return Ok(Self(faults));
        }
        let mut seen = Vec::new();
        for item in text.split(',') {
            let Some((key, value)) = item.split_once('=') else {
                return Err(BadImpairment(format!(
                    "impairment {item:?} is not of the form NAME=VALUE"
                )));
            };
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(BadImpairment(format!("impairment {key} is given twice")));
            }
            seen.push(key);
            match key {
                "drop" => faults.drop = share(key, value)?,
                "corrupt" => faults.corrupt = share(key, value)?,
                "ce" => faults.ce = share(key, value)?,
                "dup" | "duplicate" => faults.duplicate = share(key, value)?,
                "reorder" => faults.reorder = share(key, value)?,
                "depth" => {
                    faults.reorder_depth = whole(key, value)?;
                    if faults.reorder_depth == 0 || faults.reorder_depth > MAX_DEPTH {
                        return Err(BadImpairment(format!(
                            "depth={value}: must be 1 to {MAX_DEPTH} packets"
                        )));
                    }
                }
                "delay" => faults.delay_ns = duration(key, value)?,
                "seed" => faults.seed = whole(key, value)?,
                _ => {
                    return Err(BadImpairment(format!(
                        "impairment {key:?} is unknown: there are drop, corrupt, ce, dup, reorder, depth, delay and seed"
                    )));
                }
            }
        }
        Ok(Self(faults))
    }
}

fn share(key: &str, value: &str) -> Result<Share, BadImpairment> {
    let (number, scale) = match value.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (value, 1.0),
    };
    let bad = || BadImpairment(format!("{key}={value}: must be a share from 0% to 100%"));
    let fraction = number.trim().parse::<f64>().map_err(|_| bad())? / scale;
    if !(0.0..=1.0).contains(&fraction) {
        return Err(bad());
    }
    // Saturates: 100 % is every packet.
    Ok(Share::from_bits((fraction * 4_294_967_296.0).round() as u32))
}

fn whole<T: FromStr>(key: &str, value: &str) -> Result<T, BadImpairment> {
    value
        .parse()
        .map_err(|_| BadImpairment(format!("{key}={value}: must be a whole number")))
}

fn duration(key: &str, value: &str) -> Result<u64, BadImpairment> {
    let bad = || {
        BadImpairment(format!(
            "{key}={value}: must be a time up to 10s, such as 100us or 2ms"
        ))
    };
    let digits = value
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(bad)?;
    let (number, unit) = value.split_at(digits);
    let scale = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(bad()),
    };
    let nanoseconds = number.trim().parse::<f64>().map_err(|_| bad())? * scale;
    if !(0.0..=MAX_DELAY_NS).contains(&nanoseconds) {
        return Err(bad());
    }
    Ok(nanoseconds.round() as u64)
}

impl fmt::Display for Impairment {
    /// Text that parses back to the same faults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = &self.0;
        if faults.is_clean() {
            return f.write_str("clean");
        }
        let percent = |share: Share| match share {
            Share::ALWAYS => 100.0,
            share => f64::from(share.bits()) / 4_294_967_296.0 * 100.0,
        };
        for (name, of) in [
            ("drop", faults.drop),
            ("corrupt", faults.corrupt),
            ("ce", faults.ce),
            ("dup", faults.duplicate),
            ("reorder", faults.reorder),
        ] {
            if of != Share::NEVER {
                // The shortest text that means the same; ten digits tell all 2^32 shares apart.
                let text = (0..=10)
                    .map(|digits| format!("{:.digits$}%", percent(of)))
                    .find(|text| share(name, text).is_ok_and(|back| back == of))
                    .unwrap_or_else(|| format!("{:.10}%", percent(of)));
                write!(f, "{name}={text},")?;
            }
        }
        if faults.reorder_depth != 0 {
            write!(f, "depth={},", faults.reorder_depth)?;
        }
        if faults.delay_ns != 0 {
            write!(f, "delay={}ns,", faults.delay_ns)?;
        }
        write!(f, "seed={}", faults.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Faults, String> {
        text.parse::<Impairment>()
            .map(|impairment| impairment.0)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn every_fault_is_understood() {
        let faults =
            parse("drop=1%, ce=0.05,corrupt=0.1%,dup=100%,reorder=0%,depth=5,delay=1.5us,seed=7")
                .unwrap();
        assert_eq!(faults.drop.bits(), 42_949_673);
        assert_eq!(faults.ce.bits(), 214_748_365);
        assert_eq!(faults.corrupt.bits(), 4_294_967);
        assert_eq!(faults.duplicate, Share::ALWAYS);
        assert_eq!(faults.reorder, Share::NEVER);
        assert_eq!(
            (faults.reorder_depth, faults.delay_ns, faults.seed),
            (5, 1500, 7)
        );
        assert_eq!(parse("clean"), Ok(Faults::default()));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("", "\"\" is not of the form"),
            ("drop", "\"drop\" is not of the form"),
            ("drop=1%,", "\"\" is not of the form"),
            ("loss=1%", "\"loss\" is unknown"),
            ("drop=101%", "drop=101%: must be a share"),
            ("drop=-1%", "drop=-1%: must be a share"),
            ("drop=NaN", "drop=NaN: must be a share"),
            ("drop=1", ""),
            ("drop=2", "drop=2: must be a share"),
            ("drop=1%,drop=2%", "drop is given twice"),
            ("delay=5", "delay=5: must be a time"),
            ("delay=us", "delay=us: must be a time"),
            ("delay=1h", "delay=1h: must be a time"),
            ("delay=11s", "delay=11s: must be a time"),
            ("seed=-1", "seed=-1: must be a whole number"),
            ("depth=0", "depth=0: must be 1 to"),
        ] {
            match parse(text) {
                Err(error) => assert!(!part.is_empty() && error.contains(part), "{text}: {error}"),
                Ok(_) => assert!(part.is_empty(), "{text} is accepted"),
            }
        }
    }

    #[test]
    fn what_is_printed_parses_back() {
        for bits in [1, 2, 42_949_673, 1 << 31, u32::MAX - 1, u32::MAX] {
            let share = Share::from_bits(bits);
            let faults = Faults {
                seed: u64::MAX,
                delay_ns: 123_457,
                drop: share,
                corrupt: share,
                ce: share,
                duplicate: share,
                reorder: share,
                reorder_depth: 2,
            };
            assert_eq!(
                parse(&Impairment(faults).to_string()),
                Ok(faults),
                "{}",
                Impairment(faults)
            );
        }
        assert_eq!(Impairment::default().to_string(), "clean");
        assert_eq!(
            Impairment(parse("drop=1%,seed=7").unwrap()).to_string(),
            "drop=1%,seed=7"
        );
    }
}
