//! Times, counts and frames as they stand in findings.
//!
//! English only, no markup. Times of a capture are seconds since its first packet, as Wireshark shows them.

use std::fmt;

/// A QP number: `0x11`.
pub struct Qp(pub u32);

impl fmt::Display for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x}", self.0)
    }
}

/// A duration in nanoseconds with about three digits: `850 ns`, `4.1 ms`, `1.52 s`.
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        let (unit, name) = match ns {
            0..1_000 => return write!(f, "{ns} ns"),
            1_000..1_000_000 => (1e3, "us"),
            1_000_000..1_000_000_000 => (1e6, "ms"),
            _ => (1e9, "s"),
        };
        let value = ns as f64 / unit;
        if value < 10.0 {
            write!(f, "{value:.2} {name}")
        } else if value < 100.0 {
            write!(f, "{value:.1} {name}")
        } else {
            write!(f, "{value:.0} {name}")
        }
    }
}

/// A number of things: `1 packet`, `3 packets`.
pub struct Many(pub u64, pub &'static str);

impl fmt::Display for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(1, thing) => write!(f, "1 {thing}"),
            Self(n, thing) => write!(f, "{n} {thing}s"),
        }
    }
}

/// Frames: `frame 7`, `frames 7-9`, from the first to the last.
pub struct Frames(pub u64, pub u64);

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == self.1 {
            write!(f, "frame {}", self.0)
        } else {
            write!(f, "frames {}-{}", self.0, self.1)
        }
    }
}

/// PSNs: `PSN 258`, `PSN 258-260`.
pub struct Psns(pub u32, pub u32);

impl fmt::Display for Psns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.wrapping_add(self.1).wrapping_sub(1) & 0xff_ffff;
        if self.1 <= 1 {
            write!(f, "PSN {}", self.0)
        } else {
            write!(f, "PSN {}-{last}", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_words() {
        assert_eq!(Span(850).to_string(), "850 ns");
        assert_eq!(Span(4_100_000).to_string(), "4.10 ms");
        assert_eq!(Span(570_000_000).to_string(), "570 ms");
        assert_eq!(Span(1_520_000_000).to_string(), "1.52 s");
        assert_eq!(Many(1, "packet").to_string(), "1 packet");
        assert_eq!(Many(0, "packet").to_string(), "0 packets");
        assert_eq!(Frames(3, 3).to_string(), "frame 3");
        assert_eq!(Frames(812, 814).to_string(), "frames 812-814");
        assert_eq!(Psns(0xff_ffff, 2).to_string(), "PSN 16777215-0");
        assert_eq!(Qp(17).to_string(), "QP 0x11");
    }
}
