//! A flight recorder: the last seconds of RoCE packets in memory, and a pcapng file around each trigger.
//!
//! Packets come from the taps of the programs on the interfaces ([`crate::monitor::TapReader`]), received and sent ones,
//! without payload unless asked. They are kept in a [`ring::Ring`] per interface, whose memory is fixed; each is judged by an
//! expression ([`expr`]). What a tap lost because this process was late is counted and said. It does not attach programs and
//! prints nothing: [`Recorder::turn`] is one turn of the caller's loop.

mod ahead;
mod behind;
pub mod expr;
mod facts;
pub mod ring;
mod write;

use std::{collections::VecDeque, fs, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use rocexdp_common::watch::tap::{HEADERS, WHOLE};

use crate::monitor::TapReader;
use ahead::LATE_NS;
use expr::Expr;
use facts::{Moment, Rates, Told};
use ring::Ring;
pub use write::Written;
use write::{MOST_COMMENTS, Span, Trigger, Writing};

/// Files that are waited for at a time.
const MOST_SPANS: usize = 64;
/// Smallest ring of an interface: some hundred packets.
pub const LEAST_RING: u64 = 64 << 10;

/// What to record.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What triggers.
    pub on: Expr,
    /// Bytes for packets in memory, of all interfaces together.
    pub ring_bytes: u64,
    /// Keep the payload too.
    pub payload: bool,
    /// Time before the trigger that a file shall have.
    pub before: Duration,
    /// Time after it.
    pub after: Duration,
    /// Where files go.
    pub out_dir: PathBuf,
    /// Files of this run that are kept: the oldest is removed for another.
    pub max_files: usize,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets taken from the taps.
    pub recorded: u64,
    /// Packets that the taps lost, because this process did not keep up.
    pub lost: u64,
    /// Triggers.
    pub triggers: u64,
    /// Files written.
    pub files: u64,
}

/// Something to tell.
#[derive(Debug)]
pub enum News {
    /// A trigger: what, on which interface.
    Triggered(String),
    /// A file is complete.
    Written(Written),
    /// A file could not be written, or an old one not removed.
    Failed(anyhow::Error),
    /// Packets were lost since the last look.
    Lost(u64),
}

struct Source {
    name: String,
    /// `None`: nothing comes now.
    tap: Option<TapReader>,
    /// What its earlier taps lost.
    lost: u64,
    ring: Ring,
    rates: Rates,
    /// Whether the expression held for the last packet.
    held: bool,
}

/// Records until it is dropped.
pub struct Recorder {
    plan: Plan,
    sources: Vec<Source>,
    /// Spans whose time is not over, in order.
    spans: VecDeque<Span>,
    writing: Option<Writing>,
    files: VecDeque<PathBuf>,
    tally: Tally,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder")
            .field("plan", &self.plan)
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder of so many interfaces, none of which has its tap yet ([`Self::attach`]). Its memory is taken here.
    ///
    /// # Errors
    /// The expression needs whole packets and they are not asked for; the ring is too small, or larger than the memory there
    /// is; the directory can't be used.
    pub fn new(plan: Plan, names: Vec<String>) -> Result<Self> {
        if plan.on.needs_payload() && !plan.payload {
            bail!(
                "--on {}: a wrong ICRC shows in whole packets only: add --payload",
                plan.on
            );
        }
        if plan.max_files == 0 {
            bail!("no file may be kept: use a number of at least 1");
        }
        let share = plan.ring_bytes / names.len().max(1) as u64;
        if share < LEAST_RING {
            bail!(
                "a ring of {} B for {} interface(s) is too small: use at least {LEAST_RING} B for each",
                plan.ring_bytes,
                names.len()
            );
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (asked, there) = (plan.ring_bytes, memory_available());
        let too_large = || match there {
            Some(there) => format!(
                "--ring: {:.0} MiB are more than this machine has: {:.0} MiB of memory are available; use less",
                mib(asked),
                mib(there)
            ),
            None => format!(
                "--ring: {:.0} MiB are more than this process can have; use less",
                mib(asked)
            ),
        };
        // Asked first: many systems promise more memory than there is and end a process that uses it.
        if there.is_some_and(|there| asked > there) {
            bail!(too_large());
        }
        fs::create_dir_all(&plan.out_dir)
            .with_context(|| format!("making the directory {}", plan.out_dir.display()))?;
        let bytes = usize::try_from(share).map_err(|_| anyhow!(too_large()))?;
        let mut sources = Vec::new();
        for name in names {
            sources.push(Source {
                name,
                tap: None,
                lost: 0,
                ring: Ring::new(bytes).map_err(|_| anyhow!(too_large()))?,
                rates: Rates::default(),
                held: false,
            });
        }
        Ok(Self {
            plan,
            sources,
            spans: VecDeque::new(),
            writing: None,
            files: VecDeque::new(),
            tally: Tally::default(),
        })
    }

    /// From now on the interface with this index records from `tap`. What it recorded before stays.
    pub fn attach(&mut self, index: usize, mut tap: TapReader) {
        if let Some(source) = self.sources.get_mut(index) {
            tap.set_mode(if self.plan.payload { WHOLE } else { HEADERS });
            if let Some(old) = source.tap.replace(tap) {
                source.lost += old.book().1;
            }
        }
    }

    /// The interface with this index has gone: what its tap still has is taken, and nothing more until another is attached.
    pub fn detach(&mut self, index: usize) -> Vec<News> {
        let mut news = Vec::new();
        self.take(index, &mut news);
        if let Some(source) = self.sources.get_mut(index)
            && let Some(old) = source.tap.take()
        {
            source.lost += old.book().1;
        }
        news
    }

    /// Takes what the taps have, and writes a piece of a file whose time is over. To be called some hundred times a second,
    /// and again at once if it [`Self::hurries`].
    pub fn turn(&mut self, now_ns: u64) -> Vec<News> {
        let mut news = Vec::new();
        for index in 0..self.sources.len() {
            self.take(index, &mut news);
        }
        let lost_of = |s: &Source| s.lost + s.tap.as_ref().map_or(0, |tap| tap.book().1);
        let lost: u64 = self.sources.iter().map(lost_of).sum();
        if lost > self.tally.lost {
            news.push(News::Lost(lost - self.tally.lost));
            self.tally.lost = lost;
        }
        // Packets of its time may still come out of the taps until then.
        let over = |span: &Span| now_ns > span.to_ns.saturating_add(LATE_NS);
        if self.writing.is_some() || self.spans.front().is_some_and(over) {
            self.write_piece(&mut news);
        }
        news
    }

    /// Whether there is more to write now.
    pub fn hurries(&self) -> bool {
        self.writing.as_ref().is_some_and(|file| !file.waits())
    }

    /// Writes what a trigger still waits for, although its time is not over.
    pub fn finish(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        for index in 0..self.sources.len() {
            self.take(index, &mut news);
        }
        while self.writing.is_some() || !self.spans.is_empty() {
            if self.writing.as_ref().is_some_and(Writing::waits) {
                // For the disk.
                thread::sleep(Duration::from_millis(1));
            }
            self.write_piece(&mut news);
        }
        news
    }

    /// Counts so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    fn take(&mut self, index: usize, news: &mut Vec<News>) {
        let Some(source) = self.sources.get_mut(index) else {
            return;
        };
        let Source {
            name,
            tap,
            ring,
            rates,
            held,
            ..
        } = source;
        let Some(tap) = tap else {
            return;
        };
        // Bounded, so that a flood does not starve the other interfaces and the files.
        let mut room = 1 << 16;
        tap.drain(|record| {
            let told = Told::new(&record, self.plan.payload);
            rates.take(record.head.time_ns, &told);
            let number = ring.push(&record.head, record.data);
            self.tally.recorded += 1;
            let verdict = self.plan.on.judge(&Moment { told: &told, rates });
            let fires = verdict.holds && (verdict.by_packet || !*held);
            *held = verdict.holds;
            if fires {
                self.tally.triggers += 1;
                let trigger = Trigger {
                    source: index,
                    number,
                    time_ns: record.head.time_ns,
                    comment: format!("trigger: {} ({})", self.plan.on, told.describe()),
                };
                let open = self.spans.len();
                match self.spans.back_mut() {
                    Some(span) if record.head.time_ns <= span.to_ns => {
                        if span.triggers.len() < MOST_COMMENTS {
                            span.triggers.push(trigger);
                        }
                    }
                    // So many files at a time can't be written: what comes is counted.
                    Some(_) if open >= MOST_SPANS => {}
                    _ => {
                        news.push(News::Triggered(format!("{name}: {}", trigger.comment)));
                        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
                        self.spans.push_back(Span {
                            from_ns: trigger.time_ns.saturating_sub(ns(self.plan.before)),
                            to_ns: trigger.time_ns.saturating_add(ns(self.plan.after)),
                            triggers: vec![trigger],
                        });
                    }
                }
            }
            room -= 1;
            room > 0
        });
    }

    /// Goes on with the file that is being written, else begins that of the oldest span.
    fn write_piece(&mut self, news: &mut Vec<News>) {
        let rings: Vec<&Ring> = self.sources.iter().map(|s| &s.ring).collect();
        let writing = match self.writing.take() {
            Some(writing) => Ok(writing),
            None => {
                let Some(span) = self.spans.pop_front() else {
                    return;
                };
                let names: Vec<String> = self.sources.iter().map(|s| s.name.clone()).collect();
                let note = format!(
                    "rocexdp record --on '{}'{}; {} packets were lost between the interfaces and this file's writer so far",
                    self.plan.on,
                    if self.plan.payload {
                        " --payload"
                    } else {
                        ": headers only"
                    },
                    self.tally.lost
                );
                Writing::start(&self.plan.out_dir, span, &rings, &names, &note)
            }
        };
        let stepped = writing.and_then(|mut writing| {
            let written = writing.step(&rings)?;
            Ok((writing, written))
        });
        match stepped {
            Ok((writing, None)) => self.writing = Some(writing),
            Ok((_, Some(written))) => {
                self.files.push_back(written.path.clone());
                self.tally.files += 1;
                news.push(News::Written(written));
            }
            Err(error) => news.push(News::Failed(error)),
        }
        while self.files.len() > self.plan.max_files {
            if let Some(oldest) = self.files.pop_front()
                && let Err(error) = fs::remove_file(&oldest)
            {
                let what = format!("removing {}", oldest.display());
                news.push(News::Failed(anyhow::Error::from(error).context(what)));
            }
        }
    }
}

/// Bytes that programs can have without others being pushed out; `None`: the kernel does not say.
fn memory_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ring_bytes: u64, out_dir: PathBuf) -> Plan {
        Plan {
            on: "nak".parse().unwrap(),
            ring_bytes,
            payload: false,
            before: Duration::ZERO,
            after: Duration::ZERO,
            out_dir,
            max_files: 1,
        }
    }

    #[test]
    fn a_ring_larger_than_memory_is_an_error_that_says_how_much_there_is() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("flight");
        for bytes in [1 << 50, u64::MAX] {
            let error = Recorder::new(plan(bytes, out.clone()), vec!["eth0".to_owned()]);
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with("--ring: "), "{error}");
            assert!(error.contains("are available"), "{error}");
        }
        assert!(!out.exists());
        assert!(Recorder::new(plan(1 << 20, out), vec!["eth0".to_owned()]).is_ok());
    }
}
