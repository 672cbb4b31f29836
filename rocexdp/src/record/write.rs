//! The file around a trigger: pcapng, with the trigger as a comment of its packet.
//!
//! It is made a piece at a time ([`Writing::step`]): between two pieces the caller empties the taps, which hold some tens of ms
//! or, of whole packets, some ms, while a file of 512 MiB takes 0.7 s and more. Packets may be anybody's data: only the owner can read a file.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use rocexdp_common::maps::EGRESS;
use rocexdp_observe::capture::{LinkType, PcapngWriter};

use super::{
    ahead::Ahead,
    behind::{self, Behind, Progress},
    ring::{Cursor, Mark, Ring, Stored},
};
use crate::sys::clock::monotonic_ns;

/// Bytes of a file that are made in one piece: a ms of work.
const PIECE: usize = 1 << 20;
/// What a packet costs of that besides its own bytes, written or only looked at.
const BESIDE: usize = 64;
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
    /// Packets that came out of the taps so late that they stand behind later ones.
    pub late: u64,
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
    /// `None`: all is handed over.
    out: Option<PcapngWriter<Behind>>,
    progress: Progress,
    path: PathBuf,
    part: PathBuf,
    from_ns: u64,
    to_ns: u64,
    trigger_ns: u64,
    /// To the wall clock.
    offset: i128,
    /// Where each ring is read on.
    marks: Vec<Mark>,
    /// What was read of each and not written yet.
    ahead: Vec<Ahead>,
    /// Of each ring: number of the record, and comment.
    comments: Vec<BTreeMap<u64, String>>,
    packets: u64,
    late: u64,
    first_ns: Option<u64>,
    last_ns: u64,
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
        let mut comments = vec![BTreeMap::new(); rings.len()];
        let trigger_ns = first.map_or(0, |t| t.time_ns);
        for trigger in span.triggers {
            if let Some(of_source) = comments.get_mut(trigger.source) {
                of_source.insert(trigger.number, trigger.comment);
            }
        }
        let (behind, progress) = behind::start(file)
            .inspect_err(|_| {
                // The first error is the one to report.
                let _ = fs::remove_file(&part);
            })
            .with_context(what)?;
        let mut writing = Self {
            out: None,
            progress,
            part,
            from_ns: span.from_ns,
            to_ns: span.to_ns,
            trigger_ns,
            offset,
            marks: vec![Mark::default(); rings.len()],
            ahead: rings.iter().map(|_| Ahead::default()).collect(),
            comments,
            packets: 0,
            late: 0,
            first_ns: None,
            last_ns: 0,
            stored: Stored::default(),
            frame: Vec::new(),
            path: path.clone(),
        };
        writing.begin(behind, names, note).with_context(what)?;
        Ok(writing)
    }

    fn begin(&mut self, behind: Behind, names: &[String], note: &str) -> io::Result<()> {
        let mut out = PcapngWriter::new(behind, note)?;
        for name in names {
            out.interface(name, LinkType::Ethernet, 0)?;
        }
        self.out = Some(out);
        Ok(())
    }

    /// Whether it is the disk that must go on, so that [`Self::step`] would do nothing now.
    pub fn waits(&self) -> bool {
        self.out.is_none() || self.progress.is_behind()
    }

    /// Goes on by a piece; `Some`: the file is complete. Not to be called again after that or an error.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn step(&mut self, rings: &[&Ring]) -> Result<Option<Written>> {
        let done = self
            .advance(rings)
            .with_context(|| format!("writing {}", self.path.display()))?;
        let trigger_ns = self.trigger_ns;
        Ok(done.then(|| Written {
            path: self.path.clone(),
            packets: self.packets,
            before: Duration::from_nanos(
                trigger_ns.saturating_sub(self.first_ns.unwrap_or(trigger_ns)),
            ),
            late: self.late,
        }))
    }

    /// Returns whether the file is complete.
    fn advance(&mut self, rings: &[&Ring]) -> io::Result<bool> {
        if self.progress.is_behind() {
            return Ok(false);
        }
        if self.out.is_some() {
            if let Err(error) = self.hand_over(rings) {
                // If the thread took no more, what it met is why. It ends when nobody can give it more.
                self.out = None;
                self.progress.join()?;
                return Err(error);
            }
            return Ok(false);
        }
        if !self.progress.ended()? {
            return Ok(false);
        }
        fs::rename(&self.part, &self.path)?;
        // Nothing is left to remove.
        self.part = PathBuf::new();
        Ok(true)
    }

    fn hand_over(&mut self, rings: &[&Ring]) -> io::Result<()> {
        if self.packets(rings)?
            && let Some(out) = self.out.take()
        {
            out.finish()?;
        }
        Ok(())
    }

    /// Returns whether that was all.
    fn packets(&mut self, rings: &[&Ring]) -> io::Result<bool> {
        let Some(out) = &mut self.out else {
            return Ok(true);
        };
        let mut cursors: Vec<Cursor<'_>> = rings
            .iter()
            .zip(&self.marks)
            .map(|(ring, mark)| ring.resume(*mark))
            .collect();
        let (mut all, mut spent) = (false, 0);
        let mut looks = PIECE / BESIDE;
        while spent < PIECE {
            spent += BESIDE;
            let sources = self.ahead.iter_mut().zip(&mut cursors);
            let known = sources
                .map(|(ahead, cursor)| ahead.fill(cursor, self.from_ns, &mut looks))
                .fold(true, |all, one| all & one);
            if !known {
                break;
            }
            // The earliest of all interfaces.
            let next = self
                .ahead
                .iter()
                .enumerate()
                .filter_map(|(source, ahead)| Some((ahead.first_time()?, source)))
                .min()
                .filter(|(time_ns, _)| *time_ns <= self.to_ns);
            let Some((time_ns, source)) = next else {
                all = true;
                break;
            };
            let Some(ahead) = self.ahead.get_mut(source) else {
                break;
            };
            ahead.take(&mut self.stored);
            let comments = self.comments.get_mut(source);
            let trigger = comments.and_then(|comments| comments.remove(&self.stored.number));
            let wire_len = frame_of(&self.stored, &mut self.frame);
            spent += self.frame.len();
            let direction = (self.stored.head.queue == EGRESS).then_some("sent");
            let wall = i128::from(time_ns) + self.offset;
            out.packet(
                u32::try_from(source).unwrap_or(u32::MAX),
                i64::try_from(wall).unwrap_or(0),
                wire_len,
                &self.frame,
                trigger.iter().map(String::as_str).chain(direction),
            )?;
            self.first_ns = self.first_ns.or(Some(time_ns));
            self.packets += 1;
            self.late += u64::from(time_ns < self.last_ns);
            self.last_ns = self.last_ns.max(time_ns);
        }
        self.marks = cursors.iter().map(Cursor::mark).collect();
        Ok(all)
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

    const MS: u64 = 1_000_000;

    /// Two rings with a packet in turn; a ring goes on while its file is written.
    #[test]
    fn each_trigger_is_at_its_packet_while_the_oldest_make_room() {
        let place = tempfile::tempdir().unwrap();
        let mut rings = [(); 2].map(|()| Ring::new(8 << 20).unwrap());
        let mut triggers = Vec::new();
        let mut next = 0_u64;
        let mut push = |rings: &mut [Ring; 2], triggers: &mut Vec<Trigger>, count| {
            for _ in 0..count {
                let source = (next % 2) as usize;
                let head = TapHead {
                    time_ns: next * MS,
                    wire_len: 100,
                    ..TapHead::default()
                };
                let number = rings[source].push(&head, &[7; 60]);
                if next % 1000 < 2 {
                    triggers.push(Trigger {
                        source,
                        number,
                        time_ns: next * MS,
                        comment: format!("number {next}."),
                    });
                }
                next += 1;
            }
            next
        };
        let end = push(&mut rings, &mut triggers, 100_000);
        let span = Span {
            from_ns: 10_001 * MS,
            to_ns: (end - 1) * MS,
            triggers: triggers.clone(),
        };
        let names = ["one".to_owned(), "two".to_owned()];
        let mut writing = {
            let [a, b] = &rings;
            Writing::start(place.path(), span, &[a, b], &names, "").unwrap()
        };
        let offset = writing.offset;
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let mut steps = 0;
        let written = loop {
            steps += 1;
            let [a, b] = &rings;
            if let Some(written) = writing.step(&[a, b]).unwrap() {
                break written;
            }
            assert!(std::time::Instant::now() < until);
            // Both rings together hold some 140 000, so that the first thousands make room soon.
            push(&mut rings, &mut triggers, 1000);
        };
        assert!(steps > 10);
        let bytes = fs::read(&written.path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let found: Vec<u64> = text
            .split("number ")
            .skip(1)
            .map(|rest| rest.split('.').next().unwrap().parse().unwrap())
            .collect();
        let mut reader = rocexdp_observe::capture::Reader::open(&written.path).unwrap();
        let mut numbers = Vec::new();
        while let Some(packet) = reader.next().unwrap() {
            let ns = i128::from(packet.time_ns) - offset;
            numbers.push((ns + i128::from(MS / 2)).div_euclid(i128::from(MS)) as u64);
        }
        assert_eq!(numbers.len() as u64, written.packets);
        assert!(numbers.is_sorted() && numbers.last() == Some(&(end - 1)));
        // Each comment is of a packet that is there, in its order; what made room is not.
        let expected: Vec<u64> = numbers.iter().copied().filter(|n| n % 1000 < 2).collect();
        assert_eq!(found, expected);
        let first = numbers[0];
        assert!(first >= 10_001 && found.len() > 100, "{first}");
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&written.path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
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
