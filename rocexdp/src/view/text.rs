//! Numbers and addresses as people read them, and the width of the terminal.

use std::{
    io::IsTerminal,
    net::{IpAddr, Ipv6Addr},
};

use rocexdp_common::ids::Gid;
use rocexdp_proto::{RateControl, time::Rate};

/// The address that a GID stands for.
#[must_use]
pub fn address_of(gid: &Gid) -> IpAddr {
    let v6 = Ipv6Addr::from(*gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// A QP number as everywhere in this program: `0x800012`.
#[must_use]
pub fn qpn(number: u32) -> String {
    format!("0x{number:06x}")
}

/// A count in at most five characters or so: `999`, `12.3k`, `4.56M`.
#[must_use]
pub fn count(number: u64) -> String {
    scaled(
        number as f64,
        number,
        1000.0,
        &["", "k", "M", "G", "T", "P", "E"],
    )
}

/// Bytes in powers of 1024: `999`, `12.3Ki`, `256Mi`.
#[must_use]
pub fn bytes(number: u64) -> String {
    scaled(
        number as f64,
        number,
        1024.0,
        &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"],
    )
}

fn scaled(mut value: f64, exact: u64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while value >= step
        && let Some(next) = units.next()
    {
        value /= step;
        unit = next;
    }
    if unit.is_empty() {
        return exact.to_string();
    }
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}{unit}")
}

/// A DCQCN rate, whose 0 means that there is none.
#[must_use]
pub fn rate(bits_per_second: u64) -> String {
    match bits_per_second {
        0 => "unpaced".to_owned(),
        bps => Rate::from_bps(bps).to_string(),
    }
}

/// How long ago a time of CLOCK_MONOTONIC was: `12 ms`, `3.4 s`, `5 min`; `never` for 0.
#[must_use]
pub fn ago(then_ns: u64, now_ns: u64) -> String {
    if then_ns == 0 {
        return "never".to_owned();
    }
    let seconds = now_ns.saturating_sub(then_ns) as f64 / 1e9;
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else if seconds < 6000.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.0} h", seconds / 3600.0)
    }
}

/// Columns of the terminal that standard output is, `None` if it is none.
#[must_use]
pub fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// The name of a rate controller by its number in the maps.
#[must_use]
pub fn rate_control(number: u8) -> &'static str {
    RateControl::NAMES
        .get(usize::from(number))
        .copied()
        .unwrap_or("unknown")
}

/// The name of a QP state as IBTA has it.
#[must_use]
pub fn state(number: u32) -> &'static str {
    match number {
        0 => "RESET",
        1 => "INIT",
        2 => "RTR",
        3 => "RTS",
        4 => "SQD",
        5 => "SQE",
        6 => "ERR",
        _ => "unknown",
    }
}

/// The name of a transport service.
#[must_use]
pub fn transport(number: u8) -> &'static str {
    match number {
        0 => "RC",
        1 => "UC",
        3 => "UD",
        _ => "unknown",
    }
}

/// How a QP of this transport service repeats what was lost, as a part of a sentence: by selective repeat over so many paths,
/// or by go-back-N.
#[must_use]
pub fn repeat(transport: u8, selective_paths: u8) -> String {
    match (transport, selective_paths) {
        (0, 1) => ", selective repeat".to_owned(),
        (0, n @ 2..) => format!(", selective repeat over {n} paths"),
        (0, 0) => ", go-back-N".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_short_and_small_ones_exact() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.00k"),
            (12_345, "12.3k"),
            (4_560_000, "4.56M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(count(number), text);
        }
        for (number, text) in [(1023, "1023"), (1 << 28, "256Mi"), (3 << 29, "1.50Gi")] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn gids_are_shown_as_the_addresses_they_stand_for() {
        let v4 = rocexdp_common::ids::gid_from_ipv4([10, 0, 0, 1]);
        assert_eq!(address_of(&v4).to_string(), "10.0.0.1");
        let v6: Ipv6Addr = "fd00::1".parse().unwrap();
        assert_eq!(address_of(&v6.octets()).to_string(), "fd00::1");
    }

    #[test]
    fn a_time_never_set_is_never() {
        assert_eq!(ago(0, 5), "never");
        assert_eq!(ago(1, 50_000_001), "50 ms");
        assert_eq!(ago(1, 3_400_000_001), "3.4 s");
        assert_eq!(ago(9, 1), "0 ms");
    }
}
