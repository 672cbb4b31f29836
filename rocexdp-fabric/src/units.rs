//! Rates, times, sizes and shares as TOML writes them: text with a unit, and numbers where no unit can be mistaken.
//!
//! Sizes: `12MB` is 12 000 000 bytes (what vendors' thresholds and the reference simulators' KB mean), `12MiB` is 12 582 912.

use std::fmt;

use rocexdp_common::fault::Share;
use rocexdp_proto::time;
use rocexdp_sim::picos::Picos;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

/// A rate: `"100Gb/s"`, `"2.5G"`; a bare number is bits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate(pub time::Rate);

/// A time: `"1us"`, `"2.5ms"`, `"100ns"`, `"50ps"`, `"1s"`. A bare number is refused, 0 apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Time(pub Picos);

/// A size: `"12MB"`, `"4KiB"`; a bare number is bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bytes(pub u64);

/// A share: 0 to 1, or `"0.5%"`.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Part(pub f64);

impl Part {
    /// As the fault models have it.
    #[must_use]
    pub fn share(self) -> Share {
        // Saturating, and 1 is `u32::MAX`, which means always.
        Share::from_bits((self.0 * 4_294_967_296.0) as u32)
    }
}

/// A number and what follows it.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    number.parse().ok().map(|number| (number, unit.trim()))
}

/// A whole number of base units, if it is one that `u64` holds.
fn whole(value: f64) -> Option<u64> {
    (0.0..1.8e19).contains(&value).then(|| value.round() as u64)
}

impl Rate {
    fn parse(text: &str) -> Result<Self, String> {
        let parsed = text.parse::<time::Rate>();
        parsed
            .map(Self)
            .map_err(|error| format!("{text:?} is {error}"))
    }
}

impl Time {
    /// Reads a time with its unit.
    ///
    /// # Errors
    /// Says what a time looks like.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no time: write a number and a unit, as in 1us, 2.5ms");
        let (number, unit) = split(text).ok_or_else(bad)?;
        let scale = match unit {
            "ps" => 1.0,
            "ns" => 1e3,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e6,
            "ms" => 1e9,
            "s" => 1e12,
            "" if number == 0.0 => 1.0,
            _ => return Err(bad()),
        };
        whole(number * scale)
            .map(|ps| Self(Picos(ps)))
            .ok_or_else(bad)
    }
}

impl Bytes {
    /// Reads a size with its unit.
    ///
    /// # Errors
    /// Says what a size looks like.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{text:?} is no size: write a number and a unit, as in 12MB (10^6) or 4KiB (2^10)"
            )
        };
        let (number, unit) = split(text).ok_or_else(bad)?;
        let scale = match unit {
            "" | "B" => 1.0,
            "KB" | "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            "KiB" => 1024.0,
            "MiB" => 1_048_576.0,
            "GiB" => 1_073_741_824.0,
            "TiB" => 1_099_511_627_776.0,
            _ => return Err(bad()),
        };
        whole(number * scale).map(Self).ok_or_else(bad)
    }
}

impl Part {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no share: write 0 to 1, or 0% to 100%");
        match split(text).ok_or_else(bad)? {
            (number, "%") => Self::checked(number / 100.0).ok_or_else(bad),
            (number, "") => Self::checked(number).ok_or_else(bad),
            _ => Err(bad()),
        }
    }

    fn checked(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }
}

/// Reads text by one function and numbers by another.
struct Written<T> {
    expecting: &'static str,
    text: fn(&str) -> Result<T, String>,
    number: fn(f64) -> Option<T>,
}

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        (self.number)(number as f64)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        (self.number)(number as f64)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        (self.number)(number).ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }
}

macro_rules! written {
    ($type:ident, $expecting:literal, $number:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Written {
                    expecting: $expecting,
                    text: $type::parse,
                    number: $number,
                })
            }
        }
    };
}

written!(Rate, "a rate, as in \"100Gb/s\"", |n| whole(n)
    .map(|bps| Self(time::Rate::from_bps(bps))));
written!(Time, "a time with its unit, as in \"1us\"", |n| (n == 0.0)
    .then_some(Self(Picos::ZERO)));
written!(Bytes, "a size, as in \"12MB\"", |n| whole(n).map(Self));
written!(Part, "a share, as in 0.01 or \"1%\"", Self::checked);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ps) in [
            ("1us", 1_000_000),
            ("1\u{b5}s", 1_000_000),
            ("2.5 ms", 2_500_000_000),
            ("50ps", 50),
            ("0", 0),
            ("1s", 1_000_000_000_000),
        ] {
            assert_eq!(Time::parse(text), Ok(Time(Picos(ps))), "{text}");
        }
        for bad in ["", "1", "us", "-1us", "1h", "1e3us", "99999999999999s"] {
            assert!(Time::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sizes_are_decimal_unless_they_say_i() {
        for (text, bytes) in [
            ("400KB", 400_000),
            ("4KiB", 4096),
            ("1.5MB", 1_500_000),
            ("32MiB", 32 << 20),
            ("100", 100),
        ] {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)), "{text}");
        }
        for bad in ["", "K", "4K", "-1", "1Mb", "1MB/s"] {
            assert!(Bytes::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn shares_are_at_most_one() {
        assert_eq!(Part::parse("1%"), Ok(Part(0.01)));
        assert_eq!(Part(1.0).share(), Share::ALWAYS);
        assert_eq!(Part(0.5).share(), Share::ratio(1, 2));
        for bad in ["101%", "1.1", "-0.1", "x"] {
            assert!(Part::parse(bad).is_err(), "{bad:?}");
        }
    }
}
