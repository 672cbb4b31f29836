//! The classic format: a 24-byte header, then records. Layout: libpcap's `pcap/pcap.h` and `sf-pcap.c`.
//!
//! Microseconds or nanoseconds, either byte order, and the "modified" records (24 bytes) of old Linux patches.

use super::{
    CaptureError, Found, LinkType, MAX_CAPTURED,
    endian::Endian::{self, Big, Little},
    error_at,
    window::Window,
};

/// What stands in the header of the file.
pub(super) struct Pcap {
    endian: Endian,
    /// Nanoseconds in one unit of the fraction.
    unit: i64,
    record: usize,
    pub(super) link: LinkType,
    pub(super) snaplen: u32,
}

const HEADER: usize = 24;
const RECORD: usize = 16;
/// With interface index, protocol and packet type behind the usual 16 bytes.
const RECORD_MODIFIED: usize = 24;

/// What each magic number says: order, nanoseconds per unit, size of a record's header.
const fn kind(magic: [u8; 4]) -> Option<(Endian, i64, usize)> {
    Some(match magic {
        [0xd4, 0xc3, 0xb2, 0xa1] => (Little, 1000, RECORD),
        [0xa1, 0xb2, 0xc3, 0xd4] => (Big, 1000, RECORD),
        [0x4d, 0x3c, 0xb2, 0xa1] => (Little, 1, RECORD),
        [0xa1, 0xb2, 0x3c, 0x4d] => (Big, 1, RECORD),
        [0x34, 0xcd, 0xb2, 0xa1] => (Little, 1000, RECORD_MODIFIED),
        [0xa1, 0xb2, 0xcd, 0x34] => (Big, 1000, RECORD_MODIFIED),
        _ => return None,
    })
}

impl Pcap {
    /// Whether these bytes start such a file.
    pub(super) const fn is(magic: [u8; 4]) -> bool {
        kind(magic).is_some()
    }

    /// Reads the header.
    pub(super) fn open(window: &mut Window) -> Result<Self, CaptureError> {
        let Some(header) = window
            .peek::<HEADER>()
            .map_err(|e| error_at(window, e, 1))?
        else {
            return Err(CaptureError::Cut {
                frame: 1,
                offset: 0,
            });
        };
        let [m0, m1, m2, m3, v0, v1, ..] = header;
        let Some((endian, unit, record)) = kind([m0, m1, m2, m3]) else {
            return Err(CaptureError::NotACapture("no magic number of pcap".into()));
        };
        let version = endian.u16([v0, v1]);
        if version != 2 {
            return Err(CaptureError::Unsupported(format!(
                "pcap of version {version} is not read, only version 2"
            )));
        }
        window.consume(HEADER);
        let [.., s0, s1, s2, s3, l0, l1, l2, l3] = header;
        // The upper bits tell of a frame check sequence, which the lengths in the headers keep out anyway.
        let link = LinkType::from_number(endian.u32([l0, l1, l2, l3]) as u16);
        if !link.is_read() {
            return Err(CaptureError::Link(link));
        }
        Ok(Self {
            endian,
            unit,
            record,
            link,
            snaplen: endian.u32([s0, s1, s2, s3]),
        })
    }

    /// The next packet; `frame` is its number.
    #[inline]
    pub(super) fn next(
        &self,
        window: &mut Window,
        frame: u64,
    ) -> Result<Option<Found>, CaptureError> {
        let offset = window.offset();
        let cut = CaptureError::Cut { frame, offset };
        if !window
            .fill(self.record)
            .map_err(|e| error_at(window, e, frame))?
        {
            return if window.available().is_empty() {
                Ok(None)
            } else {
                Err(cut)
            };
        }
        let Some((fields, _)) = window.available().split_first_chunk::<RECORD>() else {
            return Err(cut);
        };
        let (words, _) = fields.as_chunks::<4>();
        let &[seconds, fraction, captured, original] = words else {
            return Err(cut);
        };
        // Not by `map`: it is not always inlined, and this runs for each packet.
        let (seconds, fraction) = (self.endian.u32(seconds), self.endian.u32(fraction));
        let (captured, original) = (self.endian.u32(captured), self.endian.u32(original));
        if captured > MAX_CAPTURED {
            return Err(CaptureError::Damaged {
                frame,
                offset,
                what: format!("a packet of {captured} captured bytes"),
            });
        }
        let len = captured as usize;
        if !window
            .fill(self.record + len)
            .map_err(|e| error_at(window, e, frame))?
        {
            return Err(cut);
        }
        window.consume(self.record + len);
        Ok(Some(Found {
            time_ns: i64::from(seconds) * 1_000_000_000 + i64::from(fraction) * self.unit,
            interface: 0,
            link: self.link,
            wire_len: original.max(captured),
            behind: len,
            len,
        }))
    }
}
