//! The file around a trigger: pcapng, with the trigger as a comment of its packet.

use std::{
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use rocexdp_common::maps::EGRESS;
use rocexdp_observe::capture::{LinkType, PcapngWriter};

use super::ring::{Cursor, Ring, Stored};
use crate::sys::clock::monotonic_ns;

/// Triggers in one file that get their comment; beyond, packets have none.
pub const MOST_COMMENTS: usize = 4096;

/// A packet that a file is written for.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// Interface, as an index into the recorder's.
    pub source: usize,
    /// Number of the record.
    pub number: u64,
    /// When, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What it was.
    pub comment: String,
}

/// What belongs into one file.
#[derive(Debug)]
pub struct Span {
    /// The first time, ns of CLOCK_MONOTONIC.
    pub from_ns: u64,
    /// The last time.
    pub to_ns: u64,
    /// What happened in it, in order; there is at least one.
    pub triggers: Vec<Trigger>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where.
    pub path: PathBuf,
    /// Packets.
    pub packets: u64,
    /// How much of the time before the trigger the rings still had.
    pub before: Duration,
}

/// Difference of the wall clock to CLOCK_MONOTONIC now, ns: what a record's time must be moved by.
pub fn clock_offset_ns() -> i128 {
    let monotonic = i128::from(monotonic_ns());
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as i128);
    wall - monotonic
}

/// Writes what the rings have of a span. `names` are the interfaces', in the rings' order.
///
/// # Errors
/// The file can't be written; nothing is then left of it.
pub fn write(
    dir: &Path,
    span: &Span,
    rings: &[&Ring],
    names: &[String],
    note: &str,
) -> Result<Written> {
    let offset = clock_offset_ns();
    let first = span.triggers.first();
    let wall = first.map_or(0, |t| i128::from(t.time_ns) + offset);
    let path = free_path(dir, wall)?;
    let part = path.with_extension("part");
    let done = fill(&part, span, rings, names, note, offset)
        .and_then(|packets| {
            fs::rename(&part, &path)?;
            Ok(packets)
        })
        .with_context(|| format!("writing {}", path.display()))
        .inspect_err(|_| {
            // The first error is the one to report.
            let _ = fs::remove_file(&part);
        })?;
    let (packets, first_ns) = done;
    let trigger_ns = first.map_or(0, |t| t.time_ns);
    Ok(Written {
        path,
        packets,
        before: Duration::from_nanos(trigger_ns.saturating_sub(first_ns.unwrap_or(trigger_ns))),
    })
}

/// A name by the trigger's time (UTC, ms) that no file has.
fn free_path(dir: &Path, wall_ns: i128) -> Result<PathBuf> {
    let stamp = stamp(wall_ns);
    for n in 0..1000 {
        let name = if n == 0 {
            format!("rocexdp-{stamp}.pcapng")
        } else {
            format!("rocexdp-{stamp}-{n}.pcapng")
        };
        let path = dir.join(name);
        if !path.exists() {
            return Ok(path);
        }
    }
    anyhow::bail!(
        "{}: a thousand files named rocexdp-{stamp} are there already",
        dir.display()
    )
}

/// As `20261130T130501.250Z`.
fn stamp(wall_ns: i128) -> String {
    let ms = wall_ns / 1_000_000;
    let (seconds, ms) = (ms.div_euclid(1000), ms.rem_euclid(1000));
    let (days, of_day) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i128::from(month <= 2);
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{day:02}T{h:02}{m:02}{s:02}.{ms:03}Z")
}

/// Returns packets and the first one's time.
fn fill(
    path: &Path,
    span: &Span,
    rings: &[&Ring],
    names: &[String],
    note: &str,
    offset: i128,
) -> io::Result<(u64, Option<u64>)> {
    let file = File::options().write(true).create_new(true).open(path)?;
    let mut out = PcapngWriter::new(BufWriter::with_capacity(1 << 18, file), note)?;
    for name in names {
        out.interface(name, LinkType::Ethernet, 0)?;
    }
    let mut cursors: Vec<Cursor<'_>> = rings.iter().map(|ring| ring.cursor()).collect();
    for cursor in &mut cursors {
        while cursor.peek_time().is_some_and(|t| t < span.from_ns) {
            cursor.skip();
        }
    }
    let (mut packets, mut first_ns) = (0, None);
    let mut stored = Stored::default();
    let mut frame = Vec::new();
    // The earliest of all interfaces, each of which is in order.
    while let Some((time_ns, source)) = cursors
        .iter()
        .enumerate()
        .filter_map(|(source, cursor)| Some((cursor.peek_time()?, source)))
        .min()
    {
        if time_ns > span.to_ns {
            break;
        }
        let Some(cursor) = cursors.get_mut(source) else {
            break;
        };
        if !cursor.next_into(&mut stored) {
            break;
        }
        let wire_len = frame_of(&stored, &mut frame);
        let direction = (stored.head.queue == EGRESS).then_some("sent");
        let trigger = span
            .triggers
            .iter()
            .find(|t| t.source == source && t.number == stored.number)
            .map(|t| t.comment.as_str());
        let wall = i128::from(stored.head.time_ns) + offset;
        out.packet(
            u32::try_from(source).unwrap_or(u32::MAX),
            i64::try_from(wall).unwrap_or(0),
            wire_len,
            &frame,
            trigger.into_iter().chain(direction),
        )?;
        first_ns = first_ns.or(Some(time_ns));
        packets += 1;
    }
    out.finish()?.into_inner().map_err(|e| e.into_error())?;
    Ok((packets, first_ns))
}

/// The frame as it was on the wire: a tag that the kernel keeps beside it goes back to its place. Returns its length there.
fn frame_of(stored: &Stored, frame: &mut Vec<u8>) -> u32 {
    const MACS: usize = 12;
    frame.clear();
    let head = &stored.head;
    match stored.data.split_at_checked(MACS) {
        Some((macs, rest)) if head.vlan_proto != 0 => {
            frame.extend_from_slice(macs);
            frame.extend_from_slice(&head.vlan_proto.to_be_bytes());
            frame.extend_from_slice(&head.vlan_tci.to_be_bytes());
            frame.extend_from_slice(rest);
            head.wire_len + 4
        }
        _ => {
            frame.extend_from_slice(&stored.data);
            head.wire_len
        }
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_common::watch::tap::TapHead;

    use super::*;

    #[test]
    fn a_time_is_written_as_utc() {
        assert_eq!(stamp(0), "19700101T000000.000Z");
        assert_eq!(stamp(951_827_696_789_000_000), "20000229T123456.789Z");
        assert_eq!(stamp(1_796_043_599_999_999_999), "20261130T125959.999Z");
    }

    #[test]
    fn a_tag_beside_the_frame_goes_back_into_it() {
        let mut stored = Stored {
            head: TapHead {
                wire_len: 60,
                vlan_proto: 0x8100,
                vlan_tci: 0x6005,
                ..TapHead::default()
            },
            data: (0..20).collect(),
            number: 0,
        };
        let mut frame = Vec::new();
        assert_eq!(frame_of(&stored, &mut frame), 64);
        assert_eq!(
            frame[..18],
            [
                0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x81, 0, 0x60, 5, 12, 13
            ]
        );
        stored.data.truncate(5);
        assert_eq!(frame_of(&stored, &mut frame), 60);
    }
}
