//! One interface's storms: reads what [`Watch`] judges, and opens the maps again when another program is there.

use std::time::{Duration, Instant};

use super::{Config, Reader, Report, StormEvent, Watch};
use crate::{
    live::Role,
    nic::{self, NicCounters, PauseCounts},
    sys::clock::monotonic_ns,
};

/// How often the NIC's own counters are read whole: a driver may ask its device for each.
const READ_NIC: Duration = Duration::from_secs(1);

/// Watches one interface of the calling thread's network namespace.
#[derive(Debug)]
pub struct Sentry {
    iface: String,
    watch: Watch,
    reader: Option<Reader>,
    nic: NicCounters,
    nic_read: Option<Instant>,
}

impl Sentry {
    /// Nothing read yet.
    #[must_use]
    pub fn new(iface: &str, config: Config) -> Self {
        Self {
            iface: iface.to_owned(),
            watch: Watch::new(iface, config),
            reader: None,
            nic: NicCounters::default(),
            nic_read: None,
        }
    }

    /// The program on the interface now. Returns the storms that are over because they were seen by another one: its counts, and
    /// maybe its interface, are not this one's.
    pub fn on(&mut self, program: u32, role: Role) -> Vec<StormEvent> {
        self.refresh();
        if self
            .reader
            .as_ref()
            .is_some_and(|reader| reader.program() == program)
        {
            return Vec::new();
        }
        let over = self.off();
        // What waits is ours to know only where no hardware sends past us.
        let hardware = self.nic.rdma.iter().any(|port| !port.software);
        // A program of an earlier version counts no pauses: then there is nothing to tell.
        self.reader = Reader::open(&self.iface, program, role, hardware).ok();
        over
    }

    /// There is none, or nobody looks any more. Returns the storms that are over by that: nothing tells of them any more.
    pub fn off(&mut self) -> Vec<StormEvent> {
        self.reader = None;
        self.watch.end(monotonic_ns())
    }

    /// Reads, and says what that changed. An interface that has gone is silent: whoever calls [`Sentry::on`] and
    /// [`Sentry::off`] notices.
    pub fn look(&mut self) -> Vec<StormEvent> {
        let Some(Ok(reading)) = self.reader.as_ref().map(Reader::read) else {
            return Vec::new();
        };
        self.refresh();
        // Times that the NIC counts belong to this very moment.
        let timed = |p: &PauseCounts| p.duration_us.is_some();
        let nic = if self.nic.pauses.rx.iter().any(timed) {
            self.nic.pauses = nic::pauses(&self.iface);
            Some(&self.nic)
        } else {
            None
        };
        self.watch.look(&reading, nic)
    }

    fn refresh(&mut self) {
        if self.nic_read.is_none_or(|last| last.elapsed() >= READ_NIC) {
            self.nic_read = Some(Instant::now());
            self.nic = nic::read(&self.iface);
        }
    }

    /// What is known of each channel; `None`: no program counts pauses there.
    pub fn reports(&self) -> Option<impl Iterator<Item = Report> + '_> {
        self.reader.as_ref().map(|_| self.watch.reports())
    }

    /// The NIC's own counters, as last read.
    #[must_use]
    pub fn nic(&self) -> &NicCounters {
        &self.nic
    }
}
