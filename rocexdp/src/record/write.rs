//! The file around a trigger: pcapng, with the trigger as a comment of its packet.
//!
//! It is written a piece at a time ([`Writing::step`]): between two pieces the caller empties the taps, which hold some tens of
//! ms, while a file of a large ring takes seconds. Packets may be anybody's data: only the owner can read a file.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufWriter},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use rocexdp_common::maps::EGRESS;
use rocexdp_observe::capture::{LinkType, PcapngWriter};

use super::ring::{Cursor, Mark, Ring, Stored};
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

/// A file that is being written. Dropped before its end, nothing is left of it.
pub struct Writing {
    out: Option<PcapngWriter<BufWriter<File>>>,
    path: PathBuf,
    part: PathBuf,
    to_ns: u64,
    trigger_ns: u64,
    /// To the wall clock.
    offset: i128,
    /// Where each ring is read on.
    marks: Vec<Mark>,
    /// Of each ring, in its order: number of the record, and comment.
    comments: Vec<VecDeque<(u64, String)>>,
    packets: u64,
    first_ns: Option<u64>,
    stored: Stored,
    frame: Vec<u8>,
}

impl Writing {
    /// Begins the file of a span. `names` are the interfaces', in the rings' order.
    ///
    /// # Errors
    /// The file can't be made or written.
    pub fn start(
        dir: &Path,
        span: Span,
        rings: &[&Ring],
        names: &[String],
        note: &str,
    ) -> Result<Self> {
        let offset = clock_offset_ns();
        let first = span.triggers.first();
        let wall = first.map_or(0, |t| i128::from(t.time_ns) + offset);
        let path = free_path(dir, wall)?;
        let part = path.with_extension("part");
        let what = || format!("writing {}", path.display());
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&part)
            .with_context(what)?;
        let mut comments = vec![VecDeque::new(); rings.len()];
        let trigger_ns = first.map_or(0, |t| t.time_ns);
        for trigger in span.triggers {
            if let Some(of_source) = comments.get_mut(trigger.source) {
                of_source.push_back((trigger.number, trigger.comment));
            }
        }
        let begin = |ring: &&Ring| {
            let mut cursor = ring.cursor();
            while cursor.peek_time().is_some_and(|t| t < span.from_ns) {
                cursor.skip();
            }
            cursor.mark()
        };
        let mut writing = Self {
            out: None,
            part,
            to_ns: span.to_ns,
            trigger_ns,
            offset,
            marks: rings.iter().map(begin).collect(),
            comments,
            packets: 0,
            first_ns: None,
            stored: Stored::default(),
            frame: Vec::new(),
            path: path.clone(),
        };
        writing.begin(file, names, note).with_context(what)?;
        Ok(writing)
    }

    fn begin(&mut self, file: File, names: &[String], note: &str) -> io::Result<()> {
        let mut out = PcapngWriter::new(BufWriter::with_capacity(1 << 18, file), note)?;
        for name in names {
            out.interface(name, LinkType::Ethernet, 0)?;
        }
        self.out = Some(out);
        Ok(())
    }

    /// Writes at most so many packets more; `Some`: the file is complete. Not to be called again after that or an error.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn step(&mut self, rings: &[&Ring], most: usize) -> Result<Option<Written>> {
        let done = self
            .packets(rings, most)
            .and_then(|all| if all { self.finish() } else { Ok(false) })
            .with_context(|| format!("writing {}", self.path.display()))?;
        let trigger_ns = self.trigger_ns;
        Ok(done.then(|| Written {
            path: self.path.clone(),
            packets: self.packets,
            before: Duration::from_nanos(
                trigger_ns.saturating_sub(self.first_ns.unwrap_or(trigger_ns)),
            ),
        }))
    }

    /// Returns whether that was all.
    fn packets(&mut self, rings: &[&Ring], most: usize) -> io::Result<bool> {
        let Some(out) = &mut self.out else {
            return Ok(true);
        };
        let mut cursors: Vec<Cursor<'_>> = rings
            .iter()
            .zip(&self.marks)
            .map(|(ring, mark)| ring.resume(*mark))
            .collect();
        let mut all = false;
        for _ in 0..most {
            // The earliest of all interfaces, each of which is in order.
            let next = cursors
                .iter()
                .enumerate()
                .filter_map(|(source, cursor)| Some((cursor.peek_time()?, source)))
                .min()
                .filter(|(time_ns, _)| *time_ns <= self.to_ns);
            let Some((time_ns, source)) = next else {
                all = true;
                break;
            };
            if let Some(cursor) = cursors.get_mut(source) {
                cursor.next_into(&mut self.stored);
            }
            let number = self.stored.number;
            let mut trigger = None;
            if let Some(comments) = self.comments.get_mut(source) {
                // Those of records that made room before they were written.
                while comments.pop_front_if(|(n, _)| *n < number).is_some() {}
                trigger = comments.pop_front_if(|(n, _)| *n == number);
            }
            let wire_len = frame_of(&self.stored, &mut self.frame);
            let direction = (self.stored.head.queue == EGRESS).then_some("sent");
            let wall = i128::from(time_ns) + self.offset;
            out.packet(
                u32::try_from(source).unwrap_or(u32::MAX),
                i64::try_from(wall).unwrap_or(0),
                wire_len,
                &self.frame,
                trigger
                    .iter()
                    .map(|(_, text)| text.as_str())
                    .chain(direction),
            )?;
            self.first_ns = self.first_ns.or(Some(time_ns));
            self.packets += 1;
        }
        self.marks = cursors.iter().map(Cursor::mark).collect();
        Ok(all)
    }

    fn finish(&mut self) -> io::Result<bool> {
        if let Some(out) = self.out.take() {
            out.finish()?.into_inner().map_err(|e| e.into_error())?;
            fs::rename(&self.part, &self.path)?;
            // Nothing is left to remove.
            self.part = PathBuf::new();
        }
        Ok(true)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.part.as_os_str().is_empty() {
            // An error is on its way, or the process is ending.
            let _ = fs::remove_file(&self.part);
        }
    }
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
