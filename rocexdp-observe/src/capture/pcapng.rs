//! pcapng: blocks of type and length, in sections with interfaces of their own.
//!
//! Layout: draft-ietf-opsawg-pcapng, as `wiretap/pcapng.c` of Wireshark reads it. Packets come from Enhanced, Simple and
//! the obsolete Packet Blocks; what interface statistics say of lost packets is kept; all other blocks are passed over
//! unread. A section may have another byte order than the one before.

use super::{
    CaptureError, Found, Interface, LinkType, MAX_CAPTURED, MAX_INTERFACES,
    endian::Endian,
    error_at,
    options::{self, Resolution},
    window::Window,
};

/// Type of a Section Header Block, the same in both byte orders.
pub(super) const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const INTERFACE: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE: u32 = 3;
const STATISTICS: u32 = 5;
const ENHANCED: u32 = 6;
/// systemd's journal: Wireshark shows each as a frame, so that it takes a number.
const JOURNAL: u32 = 9;

/// Type, length, and the length again.
const BLOCK: usize = 12;
/// With byte order, version and section length.
const SECTION_LEAST: u32 = 28;
/// A block that is kept in memory may be this long: a packet, and options behind it.
const MAX_BLOCK: u32 = 16 << 20;

/// State of the section read.
pub(super) struct Pcapng {
    endian: Endian,
    /// Interfaces of earlier sections.
    base: usize,
    clocks: Vec<Clock>,
    last_time_ns: i64,
    /// Packets that had no time of their own.
    pub(super) timeless: u64,
}

/// How an interface counts time.
#[derive(Clone, Copy)]
struct Clock {
    resolution: Resolution,
    offset_s: i64,
}

impl Clock {
    #[inline]
    fn time_ns(self, high: u32, low: u32) -> i64 {
        let ticks = u64::from(high) << 32 | u64::from(low);
        self.resolution
            .ns(ticks)
            .saturating_add(self.offset_s.saturating_mul(1_000_000_000))
    }
}

/// Where a block is, for errors.
#[derive(Clone, Copy)]
struct At {
    frame: u64,
    offset: u64,
}

impl At {
    fn damaged(self, what: impl Into<String>) -> CaptureError {
        CaptureError::Damaged {
            frame: self.frame,
            offset: self.offset,
            what: what.into(),
        }
    }

    fn cut(self) -> CaptureError {
        CaptureError::Cut {
            frame: self.frame,
            offset: self.offset,
        }
    }
}

impl Pcapng {
    /// Before the first section.
    pub(super) const fn new() -> Self {
        Self {
            endian: Endian::Little,
            base: 0,
            clocks: Vec::new(),
            last_time_ns: 0,
            timeless: 0,
        }
    }

    /// The next packet of an interface whose link type is read. `frame` is the number of the frame before, then of this one.
    pub(super) fn next(
        &mut self,
        window: &mut Window,
        interfaces: &mut Vec<Interface>,
        frame: &mut u64,
    ) -> Result<Option<Found>, CaptureError> {
        loop {
            let at = At {
                frame: *frame + 1,
                offset: window.offset(),
            };
            let Some([t0, t1, t2, t3, n0, n1, n2, n3]) = window
                .peek::<8>()
                .map_err(|e| error_at(window, e, at.frame))?
            else {
                return if window.available().is_empty() {
                    Ok(None)
                } else {
                    Err(at.cut())
                };
            };
            if [t0, t1, t2, t3] == SECTION {
                self.section(window, interfaces, at)?;
                continue;
            }
            let block_type = self.endian.u32([t0, t1, t2, t3]);
            let length = self.endian.u32([n0, n1, n2, n3]);
            if length < BLOCK as u32 || !length.is_multiple_of(4) {
                return Err(at.damaged(format!("a block of {length} bytes")));
            }
            if !matches!(
                block_type,
                INTERFACE | PACKET | SIMPLE | ENHANCED | STATISTICS
            ) {
                if block_type == JOURNAL {
                    *frame += 1;
                }
                self.pass(window, length, at)?;
                continue;
            }
            self.hold(window, length, at)?;
            let found = {
                let block = window.available().get(..length as usize);
                let body = block.and_then(|b| b.get(8..length as usize - 4));
                let body = body.ok_or_else(|| at.cut())?;
                match block_type {
                    INTERFACE => {
                        let described = self.interface(body, at)?;
                        if interfaces.len() >= MAX_INTERFACES {
                            return Err(
                                at.damaged(format!("more than {MAX_INTERFACES} interfaces"))
                            );
                        }
                        interfaces.push(described);
                        None
                    }
                    STATISTICS => {
                        self.statistics(body, interfaces);
                        None
                    }
                    _ => {
                        *frame += 1;
                        self.packet(block_type, body, interfaces, at)?
                    }
                }
            };
            window.consume(length as usize);
            if let Some(mut found) = found {
                // Offsets were from the body's start; the window counts back from the block's end.
                found.behind = length as usize - 8 - found.behind;
                return Ok(Some(found));
            }
        }
    }

    /// Has the whole block in the window, its two lengths agreeing.
    #[inline]
    fn hold(&self, window: &mut Window, length: u32, at: At) -> Result<(), CaptureError> {
        if length > MAX_BLOCK {
            return Err(at.damaged(format!("a block of {length} bytes")));
        }
        if !window
            .fill(length as usize)
            .map_err(|e| error_at(window, e, at.frame))?
        {
            return Err(at.cut());
        }
        let trailer = window.available().get(length as usize - 4..);
        let trailer = trailer.and_then(|t| t.first_chunk().copied());
        self.agree(trailer, length, at)
    }

    /// Goes past a block that is not read.
    fn pass(&self, window: &mut Window, length: u32, at: At) -> Result<(), CaptureError> {
        let whole = window
            .skip(u64::from(length) - 4)
            .map_err(|e| error_at(window, e, at.frame))?;
        let trailer = window
            .peek::<4>()
            .map_err(|e| error_at(window, e, at.frame))?
            .filter(|_| whole);
        self.agree(trailer, length, at)?;
        window.consume(4);
        Ok(())
    }

    fn agree(&self, trailer: Option<[u8; 4]>, length: u32, at: At) -> Result<(), CaptureError> {
        match trailer.map(|t| self.endian.u32(t)) {
            None => Err(at.cut()),
            Some(second) if second == length => Ok(()),
            Some(second) => Err(at.damaged(format!(
                "a block's lengths, {length} and {second}, disagree"
            ))),
        }
    }

    fn section(
        &mut self,
        window: &mut Window,
        interfaces: &[Interface],
        at: At,
    ) -> Result<(), CaptureError> {
        let Some(header) = window
            .peek::<16>()
            .map_err(|e| error_at(window, e, at.frame))?
        else {
            return Err(at.cut());
        };
        let [_, _, _, _, n0, n1, n2, n3, order @ .., v0, v1, _, _] = header;
        self.endian = match order {
            [0x4d, 0x3c, 0x2b, 0x1a] => Endian::Little,
            [0x1a, 0x2b, 0x3c, 0x4d] => Endian::Big,
            _ => return Err(at.damaged("a section header without a byte order")),
        };
        let version = self.endian.u16([v0, v1]);
        if version != 1 {
            return Err(CaptureError::Unsupported(format!(
                "pcapng of version {version} is not read, only version 1"
            )));
        }
        let length = self.endian.u32([n0, n1, n2, n3]);
        if length < SECTION_LEAST || !length.is_multiple_of(4) {
            return Err(at.damaged(format!("a section header of {length} bytes")));
        }
        self.pass(window, length, at)?;
        self.base = interfaces.len();
        self.clocks.clear();
        Ok(())
    }

    fn interface(&mut self, body: &[u8], at: At) -> Result<Interface, CaptureError> {
        let Some((&[l0, l1, _, _, s0, s1, s2, s3], rest)) = body.split_first_chunk() else {
            return Err(at.damaged("an interface description too short"));
        };
        let mut clock = Clock {
            resolution: Resolution::MICROSECONDS,
            offset_s: 0,
        };
        let mut name = String::new();
        for (code, value) in options::iter(self.endian, rest) {
            match code {
                options::IF_NAME => name = options::text(value),
                options::IF_TSRESOL => {
                    if let Some(&exponent) = value.first() {
                        clock.resolution = Resolution::from_option(exponent);
                    }
                }
                options::IF_TSOFFSET => {
                    if let Some(&seconds) = value.first_chunk() {
                        clock.offset_s = self.endian.u64(seconds).cast_signed();
                    }
                }
                _ => {}
            }
        }
        self.clocks.push(clock);
        Ok(Interface {
            name,
            link: LinkType::from_number(self.endian.u16([l0, l1])),
            snaplen: self.endian.u32([s0, s1, s2, s3]),
            dropped: None,
            skipped: 0,
        })
    }

    /// Keeps what the capturing system says it lost. The counts are totals, so the last block rules.
    fn statistics(&self, body: &[u8], interfaces: &mut [Interface]) {
        let Some((&[i0, i1, i2, i3, _, _, _, _, _, _, _, _], rest)) = body.split_first_chunk()
        else {
            return;
        };
        let mut dropped = None;
        for (code, value) in options::iter(self.endian, rest) {
            if let (options::ISB_IFDROP | options::ISB_OSDROP, Some(&n)) =
                (code, value.first_chunk())
            {
                dropped = Some(dropped.unwrap_or(0_u64).saturating_add(self.endian.u64(n)));
            }
        }
        let index = self.endian.u32([i0, i1, i2, i3]) as usize;
        if let (Some(interface), Some(_)) =
            (interfaces.get_mut(self.base.saturating_add(index)), dropped)
        {
            interface.dropped = dropped;
        }
    }

    /// `behind` of what is found is the offset of the packet in `body`.
    #[inline]
    fn packet(
        &mut self,
        block_type: u32,
        body: &[u8],
        interfaces: &mut [Interface],
        at: At,
    ) -> Result<Option<Found>, CaptureError> {
        let u32 = |bytes: &[u8; 4]| self.endian.u32(*bytes);
        let short = || at.damaged("a packet block too short");
        let (index, time, captured, original, head, drops);
        if block_type == SIMPLE {
            let (original_, rest) = body.split_first_chunk().ok_or_else(short)?;
            (index, head, time, drops) = (0, 4, None, 0);
            original = u32(original_);
            captured = original.min(rest.len().try_into().unwrap_or(u32::MAX));
        } else {
            let (fields, _) = body.split_first_chunk::<20>().ok_or_else(short)?;
            let (words, _) = fields.as_chunks::<4>();
            let [first, high, low, caplen, len] = words else {
                return Err(short());
            };
            if block_type == ENHANCED {
                (index, drops) = (u32(first), 0);
            } else {
                let &[i0, i1, d0, d1] = first;
                index = self.endian.u16([i0, i1]).into();
                // 0xffff: not known.
                drops = match self.endian.u16([d0, d1]) {
                    u16::MAX => 0,
                    n => u64::from(n),
                };
            }
            (head, time) = (20, Some((u32(high), u32(low))));
            (captured, original) = (u32(caplen), u32(len));
        }
        let global = self.base.saturating_add(index as usize);
        let (Some(interface), Some(&clock)) =
            (interfaces.get_mut(global), self.clocks.get(index as usize))
        else {
            return Err(at.damaged(format!(
                "a packet of interface {index}, of {} described",
                self.clocks.len()
            )));
        };
        let captured = match interface.snaplen {
            snaplen if block_type == SIMPLE && snaplen != 0 => captured.min(snaplen),
            _ => captured,
        };
        let len = captured as usize;
        if captured > MAX_CAPTURED || body.len() < head + len {
            return Err(at.damaged(format!("a packet of {captured} captured bytes")));
        }
        let options_at = head + len.next_multiple_of(4);
        let mut lost = drops;
        if block_type == ENHANCED && body.len() > options_at {
            let rest = body.get(options_at..).unwrap_or_default();
            for (code, value) in options::iter(self.endian, rest) {
                if let (options::EPB_DROPCOUNT, Some(&n)) = (code, value.first_chunk()) {
                    lost = self.endian.u64(n);
                }
            }
        }
        if lost != 0 {
            interface.dropped = Some(interface.dropped.unwrap_or(0).saturating_add(lost));
        }
        let time_ns = match time {
            Some((high, low)) => clock.time_ns(high, low),
            None => {
                self.timeless += 1;
                self.last_time_ns
            }
        };
        self.last_time_ns = time_ns;
        if !interface.link.is_read() {
            interface.skipped += 1;
            return Ok(None);
        }
        Ok(Some(Found {
            time_ns,
            interface: global.try_into().unwrap_or(u32::MAX),
            link: interface.link,
            wire_len: original.max(captured),
            behind: head,
            len,
        }))
    }
}
