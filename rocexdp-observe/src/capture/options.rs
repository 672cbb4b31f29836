//! Options of pcapng blocks, read and written, and the units of its times.

use super::endian::Endian;

/// End of options.
const END: u16 = 0;
/// Comment, of any block.
pub(super) const COMMENT: u16 = 1;
/// Name of an interface.
pub(super) const IF_NAME: u16 = 2;
/// Resolution of an interface's times.
pub(super) const IF_TSRESOL: u16 = 9;
/// Seconds to add to an interface's times.
pub(super) const IF_TSOFFSET: u16 = 14;
/// Program that wrote a section.
pub(super) const SHB_USERAPPL: u16 = 4;
/// Packets lost by the interface.
pub(super) const ISB_IFDROP: u16 = 5;
/// Packets lost by the operating system.
pub(super) const ISB_OSDROP: u16 = 7;
/// Packets lost since the packet before.
pub(super) const EPB_DROPCOUNT: u16 = 4;

/// Longest text kept of an option.
const MAX_TEXT: usize = 256;

/// The options in `bytes`, up to the first that doesn't fit.
pub(super) fn iter(endian: Endian, mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (&[c0, c1, n0, n1], rest) = bytes.split_first_chunk()?;
        let code = endian.u16([c0, c1]);
        let len = usize::from(endian.u16([n0, n1]));
        if code == END {
            return None;
        }
        let value = rest.get(..len)?;
        bytes = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    })
}

/// An option's text, cut at a bounded length.
pub(super) fn text(value: &[u8]) -> String {
    let value = value.get(..MAX_TEXT).unwrap_or(value);
    String::from_utf8_lossy(value)
        .trim_end_matches('\0')
        .to_owned()
}

/// Appends an option, little-endian. A text longer than an option can be is cut between characters.
pub(super) fn put(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let mut value = value.get(..usize::from(len)).unwrap_or(value);
    if let Err(e) = std::str::from_utf8(value)
        && e.error_len().is_none()
    {
        value = value.get(..e.valid_up_to()).unwrap_or(value);
    }
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends the end of options.
pub(super) fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

/// What one unit of a time is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resolution {
    /// Nanoseconds per tick.
    Times(u64),
    /// Ticks per nanosecond; 0: finer than a tick of 64 bits can tell.
    Per(u64),
    /// Ticks per second, as a power of two.
    Binary(u8),
}

impl Resolution {
    /// What holds where no option says otherwise.
    pub(super) const MICROSECONDS: Self = Self::Times(1000);
    /// Option value of nanoseconds.
    pub(super) const NANOSECONDS_OPTION: u8 = 9;

    /// Of the option's value: a negative power of ten, or of two if the highest bit is set.
    pub(super) const fn from_option(value: u8) -> Self {
        if value & 0x80 != 0 {
            return Self::Binary(value & 0x7f);
        }
        match value {
            0..=9 => Self::Times(10_u64.pow(9 - value as u32)),
            _ => Self::Per(match 10_u64.checked_pow(value as u32 - 9) {
                Some(n) => n,
                None => 0,
            }),
        }
    }

    /// Nanoseconds of so many ticks; the largest there is where they don't fit.
    #[inline]
    pub(super) fn ns(self, ticks: u64) -> i64 {
        let ns = match self {
            Self::Times(n) => ticks.saturating_mul(n),
            Self::Per(n) => ticks.checked_div(n).unwrap_or(0),
            Self::Binary(bits) => {
                let ns = u128::from(ticks).saturating_mul(1_000_000_000) >> bits.min(127);
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        };
        i64::try_from(ns).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resolution_tells_the_same_time() {
        let second = 1_000_000_000;
        for (option, ticks) in [
            (0, 3),
            (3, 3_000),
            (6, 3_000_000),
            (9, 3_000_000_000),
            (12, 3_000_000_000_000),
            (0x80, 3),
            (0x80 | 10, 3 << 10),
            (0x80 | 32, 3 << 32),
        ] {
            let resolution = Resolution::from_option(option);
            assert_eq!(resolution.ns(ticks), 3 * second, "{option}");
        }
        for option in 0..=255 {
            Resolution::from_option(option).ns(u64::MAX);
        }
        assert_eq!(Resolution::from_option(0).ns(u64::MAX), i64::MAX);
        assert_eq!(Resolution::from_option(40).ns(u64::MAX), 0);
    }

    #[test]
    fn options_written_are_read_and_long_text_is_cut_between_characters() {
        let mut out = Vec::new();
        put(&mut out, COMMENT, b"abcde");
        put(&mut out, IF_NAME, "\u{e9}".repeat(40_000).as_bytes());
        end(&mut out);
        put(&mut out, COMMENT, b"behind the end");
        let read: Vec<_> = iter(Endian::Little, &out).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0], (COMMENT, b"abcde".as_slice()));
        assert_eq!(read[1].1.len(), 65_534);
        assert!(std::str::from_utf8(read[1].1).is_ok());
        assert!(text(read[1].1).len() <= MAX_TEXT);
        // An option that says more than there is ends the list.
        assert_eq!(iter(Endian::Little, &[1, 0, 200, 0, 1, 2]).count(), 0);
    }
}
