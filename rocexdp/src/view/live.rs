//! Lines of what is watched, as text: the columns that `monitor` and `top` share, and how their numbers are written.
//!
//! A number that can't be known is `n/a`; the reason stands in the JSON, in `top`'s detail, and is told once by `monitor`.

use std::time::SystemTime;

use crate::live::{IfaceRates, Row, Value};

use super::text;

/// What a line can show and be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Bits per second to the destination.
    Rate,
    /// Bits per second back.
    Back,
    /// Packets per second, both ways.
    Packets,
    /// Share of CE marks.
    Ce,
    /// CNPs per second, both ways.
    Cnp,
    /// Gaps per second, both ways.
    Gaps,
    /// Packets sent again per second, both ways.
    Resent,
    /// NAKs per second, both ways.
    Nak,
    /// RNR NAKs per second, both ways.
    Rnr,
    /// Half of the round trips took at most this long.
    RttP50,
    /// 99 of 100 round trips.
    RttP99,
    /// All round trips.
    RttMax,
    /// DCQCN's rate.
    Dcqcn,
}

/// All of them, in the order of the columns.
pub const METRICS: [Metric; 13] = [
    Metric::Rate,
    Metric::Back,
    Metric::Packets,
    Metric::Ce,
    Metric::Cnp,
    Metric::Gaps,
    Metric::Resent,
    Metric::Nak,
    Metric::Rnr,
    Metric::RttP50,
    Metric::RttP99,
    Metric::RttMax,
    Metric::Dcqcn,
];

impl Metric {
    /// The column's heading.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "bit/s",
            Self::Back => "BACK",
            Self::Packets => "PKT/s",
            Self::Ce => "CE %",
            Self::Cnp => "CNP/s",
            Self::Gaps => "GAPS/s",
            Self::Resent => "RESENT/s",
            Self::Nak => "NAK/s",
            Self::Rnr => "RNR/s",
            Self::RttP50 => "RTT p50",
            Self::RttP99 => "RTT p99",
            Self::RttMax => "RTT max",
            Self::Dcqcn => "DCQCN",
        }
    }

    /// Its name in filters and JSON.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Back => "back",
            Self::Packets => "pkt",
            Self::Ce => "ce",
            Self::Cnp => "cnp",
            Self::Gaps => "gaps",
            Self::Resent => "resent",
            Self::Nak => "nak",
            Self::Rnr => "rnr",
            Self::RttP50 => "p50",
            Self::RttP99 => "p99",
            Self::RttMax => "max",
            Self::Dcqcn => "dcqcn",
        }
    }

    /// What it means and where it comes from, on one line.
    #[must_use]
    pub const fn help(self) -> &'static str {
        match self {
            Self::Rate => {
                "to the destination: frames as XDP or TCX saw them; payload where our engine sent"
            }
            Self::Back => "the same, from the destination",
            Self::Packets => "packets, both ways",
            Self::Ce => {
                "share of packets marked Congestion Experienced, of the worse direction seen"
            }
            Self::Cnp => "congestion notification packets, both ways",
            Self::Gaps => {
                "jumps of the sequence numbers: packets lost before this point, or overtaken"
            }
            Self::Resent => {
                "packets sent again: the engine's count, or packets behind the expected number"
            }
            Self::Nak => "NAKs of any code but RNR, both ways",
            Self::Rnr => "receiver-not-ready NAKs, both ways",
            Self::RttP50 => {
                "half of the round trips took at most this long (log2 histogram: up to 2x too long)"
            }
            Self::RttP99 => "99 of 100 round trips took at most this long",
            Self::RttMax => "no round trip took longer",
            Self::Dcqcn => "rate that DCQCN allows a local QP",
        }
    }

    /// The number: bits, packets or such per second, a share, nanoseconds.
    ///
    /// # Errors
    /// Why it can't be known.
    pub fn value(self, row: &Row) -> Value {
        let (_, _, there, back) = row.oriented();
        match self {
            Self::Rate => there.bits,
            Self::Back => back.bits,
            Self::Packets => row.both(|d| d.packets),
            Self::Ce => row.ce_share(),
            Self::Cnp => row.both(|d| d.cnp),
            Self::Gaps => row.both(|d| d.gaps),
            Self::Resent => row.both(|d| d.resent),
            Self::Nak => row.both(|d| d.naks),
            Self::Rnr => row.both(|d| d.rnr),
            Self::RttP50 => row.rtt().map(|rtt| rtt.p50_ns as f64),
            Self::RttP99 => row.rtt().map(|rtt| rtt.p99_ns as f64),
            Self::RttMax => row.rtt().map(|rtt| rtt.max_ns as f64),
            Self::Dcqcn => row.dcqcn,
        }
    }

    /// The number as it stands in a cell, at most eight characters.
    #[must_use]
    pub fn cell(self, row: &Row) -> String {
        self.text(self.value(row))
    }

    /// A number of this kind as it stands in a cell.
    #[must_use]
    pub fn text(self, value: Value) -> String {
        match (value, self) {
            // Neither is unknown: there is nothing to measure.
            (Err("unpaced"), Self::Dcqcn) => "unpaced".to_owned(),
            (Err(crate::live::NO_PACKET), Self::Ce) => "-".to_owned(),
            (Err(crate::live::NO_ROUND_TRIP), _) => "-".to_owned(),
            (Err(_), _) => "n/a".to_owned(),
            (Ok(v), Self::Rate | Self::Back | Self::Dcqcn) => bits(v),
            (Ok(v), Self::Ce) => share(v),
            (Ok(v), Self::RttP50 | Self::RttP99 | Self::RttMax) => nanoseconds(v),
            (Ok(v), _) => per_second(v),
        }
    }
}

/// Source and destination as they stand in cells; a QP of this host's endpoint has a star.
#[must_use]
pub fn ends(row: &Row) -> [String; 2] {
    let (from, to, ..) = row.oriented();
    [from, to].map(|end| {
        let star = if row.key.local && *end == row.key.a {
            "*"
        } else {
            ""
        };
        format!("{end}{star}")
    })
}

/// Bits per second: `0`, `812k`, `9.41G`.
#[must_use]
pub fn bits(value: f64) -> String {
    text::count(value.round().max(0.0) as u64)
}

/// A rate of things that are counted: `0`, `0.3`, `12`, `4.56k`.
#[must_use]
pub fn per_second(value: f64) -> String {
    if value > 0.0 && value < 9.95 && (value < 0.95 || (value - value.round()).abs() > 0.05) {
        return format!("{:.1}", value.max(0.1));
    }
    text::count(value.round().max(0.0) as u64)
}

/// A share in percent without its sign: `0`, `0.04`, `1.2`, `37`.
#[must_use]
pub fn share(value: f64) -> String {
    let percent = value * 100.0;
    if percent <= 0.0 {
        "0".to_owned()
    } else if percent < 0.095 {
        format!("{:.2}", percent.max(0.01))
    } else if percent < 9.95 {
        format!("{percent:.1}")
    } else {
        format!("{percent:.0}")
    }
}

/// A time: `812ns`, `4.1us`, `33ms`, `1.2s`.
#[must_use]
pub fn nanoseconds(value: f64) -> String {
    let (scaled, unit) = if value < 999.5 {
        return format!("{value:.0}ns");
    } else if value < 999_500.0 {
        (value / 1e3, "us")
    } else if value < 999_500_000.0 {
        (value / 1e6, "ms")
    } else {
        (value / 1e9, "s")
    };
    if scaled < 9.95 {
        format!("{scaled:.1}{unit}")
    } else {
        format!("{scaled:.0}{unit}")
    }
}

/// The priority of an interface that is paused most: `p3 41%`; `-`: none seen.
#[must_use]
pub fn pause(iface: &IfaceRates) -> String {
    let worst = iface.pauses.iter().max_by(|a, b| {
        let size = |p: &crate::live::PauseRate| p.share.unwrap_or(if p.paused { 1.0 } else { 0.0 });
        size(a)
            .total_cmp(&size(b))
            .then(a.pauses.total_cmp(&b.pauses))
    });
    let Some(worst) =
        worst.filter(|p| p.pauses > 0.0 || p.share.is_ok_and(|s| s > 0.0) || p.paused)
    else {
        return "-".to_owned();
    };
    let name = worst
        .priority
        .map_or_else(|| "all".to_owned(), |priority| format!("p{priority}"));
    match worst.share {
        Ok(value) => format!("{name} {}%", share(value)),
        Err(_) => format!("{name} {}/s", per_second(worst.pauses)),
    }
}

/// `12:34:56`, UTC.
#[must_use]
pub fn clock(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |t| t.as_secs());
    let of_day = since % 86_400;
    format!(
        "{:02}:{:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_small_ones_are_not_nothing() {
        let of = |f: fn(f64) -> String, values: &[f64]| -> Vec<String> {
            values.iter().map(|v| f(*v)).collect()
        };
        assert_eq!(
            of(per_second, &[0.0, 0.04, 0.33, 1.0, 9.97, 12.4, 4560.0]),
            ["0", "0.1", "0.3", "1", "10", "12", "4.56k"]
        );
        assert_eq!(
            of(share, &[0.0, 0.00001, 0.0004, 0.012, 0.37, 1.0]),
            ["0", "0.01", "0.04", "1.2", "37", "100"]
        );
        assert_eq!(
            of(
                nanoseconds,
                &[0.0, 812.0, 4095.0, 65_535.0, 33_554_431.0, 1.2e9]
            ),
            ["0ns", "812ns", "4.1us", "66us", "34ms", "1.2s"]
        );
        assert_eq!(of(bits, &[9.41e9, 812e3, 0.0]), ["9.41G", "812k", "0"]);
    }
}
