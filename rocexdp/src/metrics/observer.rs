//! The thread that reads: pauses ten times in a window, everything once a second and whenever it is scraped.
//!
//! One thread, in the network namespace of whoever starts it, so that nothing is locked and two scrapes never read at once.
//! It never ends by itself: an interface that can't be read is `up` 0, and tried again.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::sync::oneshot;

use super::{
    books::Books,
    iface, nic,
    page::{Page, Sample, labels},
    qp::{Place, QpKey, of_flow, of_local},
};
use crate::{
    live::{IfaceSnapshot, Sampler},
    maps::OwnPrograms,
    pfc::{CHANNELS, Certainty, Change, Config, Sentry, StormEvent},
};

/// Looks at pauses in a window of the storm detector.
const LOOKS: u32 = 10;
/// Time between two readings of everything without a scrape: what a QP counts between the last one and its end is lost.
const READ: Duration = Duration::from_secs(1);
/// Scrapes that wait at once; more are refused.
const WAITING: usize = 4;

/// What to observe.
#[derive(Clone, Debug)]
pub struct ObserverConfig {
    /// Interfaces.
    pub ifaces: Vec<String>,
    /// Programs that this process attached itself: read instead of others on the same interfaces.
    pub own: OwnPrograms,
    /// QPs per interface and kind that have series of their own.
    pub top: usize,
    /// When a pause storm is flagged.
    pub storm: Config,
}

impl ObserverConfig {
    /// Defaults.
    #[must_use]
    pub fn new(ifaces: Vec<String>) -> Self {
        Self {
            ifaces,
            own: OwnPrograms::default(),
            top: super::DEFAULT_TOP,
            storm: Config::default(),
        }
    }
}

enum Job {
    Scrape(oneshot::Sender<String>),
    End,
}

/// The thread. Dropped, it ends.
#[derive(Debug)]
pub struct Observer {
    jobs: SyncSender<Job>,
    thread: Option<JoinHandle<()>>,
}

/// Asks the thread for the text of a scrape.
#[derive(Clone, Debug)]
pub struct Scraper(SyncSender<Job>);

/// Why there is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeError {
    /// Too many ask at once.
    Busy,
    /// The thread has ended.
    Ended,
}

impl Observer {
    /// Starts it in the calling thread's network namespace; `storm` is called for each storm that begins or ends.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(
        config: ObserverConfig,
        storm: impl Fn(StormEvent) + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (jobs, todo) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("observe".to_owned())
            .spawn(move || State::new(config, Box::new(storm)).run(&todo))
            .context("starting the thread that reads metrics")?;
        Ok(Self {
            jobs,
            thread: Some(thread),
        })
    }

    /// For the server.
    #[must_use]
    pub fn scraper(&self) -> Scraper {
        Scraper(self.jobs.clone())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // Full: scrapes are before it.
        let _ = self.jobs.send(Job::End);
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

impl Scraper {
    /// The text, read now.
    ///
    /// # Errors
    /// [`ScrapeError`].
    pub async fn scrape(&self) -> Result<String, ScrapeError> {
        let (answer, text) = oneshot::channel();
        match self.0.try_send(Job::Scrape(answer)) {
            Ok(()) => text.await.map_err(|_| ScrapeError::Ended),
            Err(TrySendError::Full(_)) => Err(ScrapeError::Busy),
            Err(TrySendError::Disconnected(_)) => Err(ScrapeError::Ended),
        }
    }
}

/// What is kept of one interface.
struct Watched {
    local: Books<QpKey>,
    flows: Books<QpKey>,
    sentry: Sentry,
    storms: [[u64; 2]; CHANNELS],
    errors: u64,
    /// Evictions seem fewer when a flow comes between two looks at the table: a counter must not go back.
    evicted: (u32, u64),
    now: Option<IfaceSnapshot>,
}

struct State {
    config: ObserverConfig,
    sampler: Sampler,
    watched: BTreeMap<String, Watched>,
    storm: Box<dyn Fn(StormEvent) + Send>,
    scrapes: u64,
}

impl State {
    fn new(config: ObserverConfig, storm: Box<dyn Fn(StormEvent) + Send>) -> Self {
        let watched = |iface: &String| {
            let watched = Watched {
                local: Books::new(config.top),
                flows: Books::new(config.top),
                sentry: Sentry::new(iface, config.storm),
                storms: [[0; 2]; CHANNELS],
                errors: 0,
                evicted: (0, 0),
                now: None,
            };
            (iface.clone(), watched)
        };
        Self {
            sampler: Sampler::new(&config.ifaces).with_own(config.own.clone()),
            watched: config.ifaces.iter().map(watched).collect(),
            storm,
            scrapes: 0,
            config,
        }
    }

    fn run(mut self, todo: &Receiver<Job>) {
        let tick = Duration::from_nanos(self.config.storm.window_ns) / LOOKS;
        let tick = tick.max(Duration::from_millis(10));
        let mut next_look = Instant::now();
        let mut next_read = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_read {
                self.read();
                next_read = Instant::now() + READ;
            }
            if now >= next_look {
                self.look();
                next_look = Instant::now() + tick;
            }
            let wait = next_look
                .min(next_read)
                .saturating_duration_since(Instant::now());
            match todo.recv_timeout(wait) {
                Ok(Job::Scrape(answer)) => {
                    let text = self.scrape();
                    next_read = Instant::now() + READ;
                    // Who asked may have gone.
                    let _ = answer.send(text);
                }
                Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Reads all maps into the books.
    fn read(&mut self) {
        for snapshot in self.sampler.sample().ifaces {
            let Some(watched) = self.watched.get_mut(&snapshot.iface) else {
                continue;
            };
            for event in watched.take(snapshot) {
                (self.storm)(event);
            }
        }
    }

    /// Looks at pauses.
    fn look(&mut self) {
        for watched in self.watched.values_mut() {
            for event in watched.look() {
                (self.storm)(event);
            }
        }
    }

    fn scrape(&mut self) -> String {
        let begin = Instant::now();
        self.scrapes += 1;
        self.read();
        let mut page = Page::default();
        for (name, watched) in &self.watched {
            watched.families(&mut page, name);
        }
        page.count("scrapes", "Scrapes answered", labels(&[]), self.scrapes);
        page.add(
            "scrape_duration_seconds",
            "Time that this scrape took to read everything",
            labels(&[]),
            Sample::Gauge(begin.elapsed().as_secs_f64()),
        );
        // Families have series of one kind each: it can't fail.
        page.encode().unwrap_or_default()
    }
}

impl Watched {
    /// Takes what was read; returns the storms that end with the program they were seen by.
    fn take(&mut self, mut snapshot: IfaceSnapshot) -> Vec<StormEvent> {
        if snapshot.error.is_some() {
            self.errors += 1;
            self.now = Some(snapshot);
            return self.sentry.off();
        }
        let program = snapshot.source.as_ref().map_or(0, |s| s.program_id);
        let (of, most) = self.evicted;
        if of == program {
            snapshot.flow_table.evicted = snapshot.flow_table.evicted.max(most);
        }
        self.evicted = (program, snapshot.flow_table.evicted);
        let time = snapshot.time_ns;
        let local = snapshot
            .qps
            .iter()
            .map(|qp| (QpKey::local(qp), of_local(qp)));
        self.local.update(time, local);
        let flows = snapshot
            .flows
            .iter()
            .map(|(key, state)| (QpKey::flow(key, state), of_flow(state)));
        self.flows.update(time, flows);
        let over = match &snapshot.source {
            Some(source) => self.sentry.on(program, source.role),
            None => self.sentry.off(),
        };
        self.now = Some(snapshot);
        over
    }

    fn look(&mut self) -> Vec<StormEvent> {
        let events = self.sentry.look();
        for event in &events {
            if let (Change::Flagged { certainty, .. }, Some([suspected, storm])) = (
                event.change,
                self.storms.get_mut(usize::from(event.channel.0)),
            ) {
                match certainty {
                    Certainty::Suspected => *suspected += 1,
                    Certainty::Storm => *storm += 1,
                }
            }
        }
        events
    }

    fn families(&self, page: &mut Page, name: &str) {
        let on = || labels(&[("iface", name)]);
        let readable = self.now.as_ref().filter(|now| now.error.is_none());
        page.gauge("up", "Whether the interface's maps could be read: 0 when it has gone or no program of rocexdp is on it", on(), if readable.is_some() { 1.0 } else { 0.0 });
        page.count(
            "interface_errors",
            "Times that the interface's maps could not be read",
            on(),
            self.errors,
        );
        let Some(now) = readable else { return };
        iface::info(page, now);
        iface::queues(page, now);
        iface::flow_table(page, now);
        let reports: Vec<_> = self.sentry.reports().into_iter().flatten().collect();
        iface::pauses(page, now, &reports, &self.storms);
        // A monitor has no QPs of its own.
        if now.queues.iter().any(|(_, engine)| engine.is_some()) {
            iface::qps(page, name, Place::Local, &self.local);
            iface::local_state(page, name, &now.qps, &self.local);
        }
        iface::qps(page, name, Place::Flow, &self.flows);
        nic::families(page, name, self.sentry.nic());
    }
}
