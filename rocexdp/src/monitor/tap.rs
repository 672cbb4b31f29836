//! The tap's reading side: records out of the ring buffer, switched on and off by a word in shared memory.
//!
//! It has one reader, who holds a lock file for as long: the word stays as it was when a reader is killed, so it tells
//! nothing of whether somebody reads. Readers that see different `/run` (containers) do not see each other's locks.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use aya::maps::{MapData, RingBuf};
use rocexdp_common::watch::tap::{
    HEADERS, OFF, TAP, TAP_BOOK, TAP_CONTROL, TX_TAP, TapBook, TapControl, TapHead,
};

use super::tap_sent::Sent;
use crate::{
    maps::{ProgramMaps, SharedArray},
    sys::lock_file::{LockFile, Taken},
};

/// Where the locks are, one for each program's tap.
const LOCKS: &str = "/run/rocexdp";

/// A frame from the tap.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// When, where, how long.
    pub head: TapHead,
    /// The frame's first bytes.
    pub data: &'a [u8],
}

/// The only consumer of a tap. Dropping it switches the tap off.
pub struct TapReader {
    ring: RingBuf<MapData>,
    control: SharedArray<TapControl>,
    book: SharedArray<TapBook>,
    /// What an endpoint's engine sends.
    sent: Option<Sent>,
    headers_only: bool,
    /// The book as it was at first.
    before: (u64, u64),
    // The last to be dropped: the tap is off then.
    _lock: LockFile,
}

impl std::fmt::Debug for TapReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapReader").finish_non_exhaustive()
    }
}

impl TapReader {
    /// The tap of the loaded program `id`, a monitor's or an endpoint's, on interface `ifindex`. It is off.
    ///
    /// # Errors
    /// The program has gone or has no tap; somebody records there already; CAP_BPF or CAP_SYS_ADMIN is missing.
    pub fn of_program(id: u32, ifindex: u32) -> Result<Self> {
        let lock = lock(id)?;
        let maps = ProgramMaps::of(id)?;
        let control = maps.share(TAP_CONTROL, true)?;
        let sent = if maps.has(TX_TAP) {
            Some(Sent::new(maps.share(TX_TAP, false)?, ifindex))
        } else {
            None
        };
        let mut reader = Self {
            ring: maps.ring(TAP)?,
            control,
            book: maps.share(TAP_BOOK, false)?,
            sent,
            headers_only: true,
            before: (0, 0),
            _lock: lock,
        };
        // An earlier reader that was killed left it on, and what it had not read.
        reader.set_mode(OFF);
        while reader.ring.next().is_some() {}
        reader.before = reader.total();
        Ok(reader)
    }

    /// Says what shall be recorded: `rocexdp_common::watch::tap::{OFF, HEADERS, WHOLE}`.
    pub fn set_mode(&mut self, mode: u32) {
        self.headers_only = mode == HEADERS;
        let control = TapControl {
            mode,
            ..TapControl::default()
        };
        self.control.store(0, &control);
    }

    /// Gives each record that is there to `take`, in order of time, until it says that is enough; one more may
    /// come then.
    pub fn drain(&mut self, mut take: impl FnMut(Record<'_>) -> bool) {
        let headers_only = self.headers_only;
        if let Some(sent) = &mut self.sent {
            sent.read();
        }
        let earlier =
            |sent: &mut Option<Sent>, before_ns, take: &mut dyn FnMut(Record<'_>) -> bool| {
                sent.as_mut().is_none_or(|sent| {
                    sent.give(before_ns, headers_only, &mut |head, data| {
                        take(Record { head, data })
                    })
                })
            };
        while let Some(item) = self.ring.next() {
            let Some(record) = parse(&item) else { continue };
            // This one has left the ring: it is given, whatever is wanted of those before it.
            let more = earlier(&mut self.sent, record.head.time_ns, &mut take);
            if !take(record) || !more {
                return;
            }
        }
        earlier(&mut self.sent, u64::MAX, &mut take);
    }

    /// Records made, and frames lost because the ring was full, since this reader is there.
    pub fn book(&self) -> (u64, u64) {
        let (recorded, lost) = self.total();
        let (sent, overwritten) = self.sent.as_ref().map_or((0, 0), Sent::book);
        (
            recorded.saturating_sub(self.before.0) + sent,
            lost.saturating_sub(self.before.1) + overwritten,
        )
    }

    fn total(&self) -> (u64, u64) {
        (0..self.book.entries())
            .filter_map(|cpu| self.book.load(cpu))
            .fold((0, 0), |(recorded, lost), book| {
                (recorded + book.recorded, lost + book.lost)
            })
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.set_mode(OFF);
    }
}

fn lock(program: u32) -> Result<LockFile> {
    let path = Path::new(LOCKS).join(format!("tap-{program}.lock"));
    let taken = LockFile::take(&path).with_context(|| format!("lock file {}", path.display()))?;
    taken.map_err(|taken| match taken {
        Taken::By(pid) => anyhow!(
            "process {pid} records there already (program {program}): a tap has one reader; stop that process first"
        ),
        Taken::Unknown => anyhow!(
            "somebody records there already (program {program}): a tap has one reader; stop it first (fuser {} names it)",
            path.display()
        ),
    })
}

fn parse(item: &[u8]) -> Option<Record<'_>> {
    let (head, rest) = item.split_at_checked(size_of::<TapHead>())?;
    let head: TapHead = bytemuck::pod_read_unaligned(head);
    Some(Record {
        head,
        data: rest.get(..head.captured as usize)?,
    })
}
