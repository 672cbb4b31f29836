//! Sizes and times as people write them in options and in the configuration file.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// A number of bytes: `1000`, `64K`, `256M`, `1G`, `2T`, powers of 1024, with or without `iB` or `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A time: `500ms`, `2s`, `1.5s`, `3m`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Why a text is no size or time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError(String);

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnitError {}

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bad = || {
            UnitError(format!(
                "{text:?} is no size: write a whole number and K, M, G or T, as in 256M"
            ))
        };
        let (number, unit) = split(text.trim());
        let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
            "" => 0,
            "K" | "k" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(bad()),
        };
        let number: u64 = number.parse().map_err(|_| bad())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(bad)
    }
}

/// In the largest unit that leaves a readable number: `256 MiB`, `1.50 GiB`.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        while unit + 1 < UNITS.len() && self.0 >> (10 * (unit + 1)) != 0 {
            unit += 1;
        }
        let name = UNITS.get(unit).copied().unwrap_or_default();
        let scale = 1_u64 << (10 * unit);
        if self.0.is_multiple_of(scale) {
            write!(f, "{} {name}", self.0 / scale)
        } else {
            write!(f, "{:.2} {name}", self.0 as f64 / scale as f64)
        }
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bad = || {
            UnitError(format!(
                "{text:?} is no time: write a number and ms, s or m, as in 1.5s"
            ))
        };
        let (number, unit) = split(text.trim());
        let scale = match unit {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            _ => return Err(bad()),
        };
        let seconds = number.parse::<f64>().map_err(|_| bad())? * scale;
        Duration::try_from_secs_f64(seconds)
            .map(Self)
            .map_err(|_| bad())
    }
}

/// For `#[serde(deserialize_with)]` on an optional value that is written as text, or as a bare number.
///
/// # Errors
/// Those of `T`'s parser.
pub fn from_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Text(String),
        Whole(u64),
        Number(f64),
    }
    let text = match Value::deserialize(deserializer)? {
        Value::Text(text) => text,
        Value::Whole(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
    };
    text.parse().map(Some).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("1000", 1000),
            ("64K", 65536),
            ("256MiB", 256 << 20),
            ("1G", 1 << 30),
            ("2TB", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "M", "-1", "1.5G", "1X", "99999999999T", "1 0"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad:?}");
        }
        assert_eq!(ByteSize(256 << 20).to_string(), "256 MiB");
        assert_eq!(ByteSize(3 << 29).to_string(), "1.50 GiB");
        assert_eq!(ByteSize(1023).to_string(), "1023 B");
        assert_eq!(ByteSize(u64::MAX).to_string(), "16777216.00 TiB");
    }

    #[test]
    fn times_have_units() {
        for (text, ms) in [("500ms", 500), ("2", 2000), ("1.5s", 1500), ("3m", 180_000)] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        }
        for bad in ["", "s", "-1s", "1h", "1e400", "9999999999999999999999m"] {
            assert!(bad.parse::<Span>().is_err(), "{bad:?}");
        }
    }
}
