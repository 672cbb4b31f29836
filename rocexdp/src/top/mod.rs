//! `rocexdp top`: the terminal, the thread that looks, and the loop between them. What is shown is [`app`]'s, how is `draw`'s.
//!
//! The maps are read and compared on a thread of their own, so that keys are answered at once whatever that takes. The terminal is
//! given back on every way out: at the end, on an error, on a signal, on a panic of any thread.

pub mod app;
mod draw;
mod filter;
mod heard;
mod heat;
mod history;
pub mod lab;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IsTerminal},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};

use self::{
    app::{Action, App, Update},
    heard::Listening,
};
use crate::{
    control::events::Heard,
    live::{Snapshot, news::Level, news::Newsroom, rates},
    process::Cancel,
};

/// How long a key waits at most for the next interval to be taken, and the other way round.
const TICK: Duration = Duration::from_millis(50);

/// How `top` begins.
#[derive(Debug)]
pub struct Options {
    /// Time between two looks.
    pub interval: Duration,
    /// Told in the events pane at the start: what can't be seen, what was attached.
    pub notes: Vec<String>,
    /// The events of the interfaces.
    pub events: Receiver<Heard>,
}

/// Whether there is a terminal to draw on and to take keys from.
///
/// # Errors
/// Says what to use instead.
pub fn check_terminal() -> anyhow::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!(
            "top needs a terminal: for files and other programs there is `rocexdp monitor --json`"
        );
    }
    Ok(())
}

/// Shows what `look` reads, on a thread of its own, beginning with what changed since `first`, until a key or a signal ends it.
///
/// # Errors
/// There is no terminal, it can't be used, or a signal came.
pub fn run(
    first: Snapshot,
    look: impl FnMut() -> Snapshot + Send + 'static,
    options: Options,
    cancel: &Arc<Cancel>,
) -> anyhow::Result<()> {
    check_terminal()?;
    let interval = Arc::new(AtomicU64::new(millis(options.interval)));
    let stop = Arc::new(AtomicBool::new(false));
    // One waits while one is shown: a screen that is slow to draw skips none.
    let (tell, updates) = sync_channel(1);
    let looker = {
        let (interval, stop) = (Arc::clone(&interval), Arc::clone(&stop));
        let events = options.events;
        thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || looking(first, look, &events, &interval, &stop, &tell))
            .context("starting a thread")?
    };
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut app = App::new(options.interval, colour);
    for note in options.notes {
        app.say(SystemTime::now(), Level::Info, note);
    }
    guard(Arc::clone(cancel), Arc::clone(&stop))?;
    let done = {
        let mut screen = Screen::open()?;
        screen.show(&mut app, &updates, &interval, cancel)
    };
    stop.store(true, Ordering::Release);
    drop(updates);
    let looked = looker.join();
    done?;
    if looked.is_err() {
        bail!("the thread that reads the maps died");
    }
    Ok(())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Reads, compares, tells: until `stop`, or until nobody listens.
fn looking(
    mut before: Snapshot,
    mut look: impl FnMut() -> Snapshot,
    events: &Receiver<Heard>,
    interval: &AtomicU64,
    stop: &AtomicBool,
    tell: &SyncSender<Update>,
) {
    let mut newsroom = Newsroom::default();
    let mut listening = Listening::default();
    let mut next = Instant::now();
    while !stop.load(Ordering::Acquire) {
        next += Duration::from_millis(interval.load(Ordering::Relaxed));
        // Late by more than an interval: go on from now.
        next = next.max(Instant::now());
        while let Some(left) = next.checked_duration_since(Instant::now())
            && !left.is_zero()
        {
            if stop.load(Ordering::Acquire) {
                return;
            }
            thread::sleep(left.min(TICK));
        }
        let begun = Instant::now();
        let after = look();
        let rates = rates(&before, &after);
        let told = listening.take(events.try_iter(), after.time);
        let mut news = newsroom.take(&rates);
        news.retain(|news| !listening.leaves(news));
        let mut update = Update {
            rates,
            told,
            news,
            time: after.time,
            cost: begun.elapsed(),
        };
        before = after;
        while let Err(error) = tell.try_send(update) {
            match error {
                TrySendError::Full(back) => update = back,
                TrySendError::Disconnected(_) => return,
            }
            if stop.load(Ordering::Acquire) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits for a key, a tick at most. crossterm 0.29 reads the end of a terminal that is gone again and again and never returns
/// (its `UnixInternalEventSource::try_read`), so that must be found before it is asked.
fn wait_for_keys() -> anyhow::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdin = io::stdin();
    let mut keys = [PollFd::new(&stdin, PollFlags::IN)];
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(TICK.subsec_nanos()),
    };
    match poll(&mut keys, Some(&tick)) {
        // A signal: what it was is looked at next.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(io::Error::from(error)).context("waiting for keys"),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    if keys.iter().any(|key| key.revents().intersects(gone)) {
        bail!("the terminal is gone");
    }
    Ok(())
}

/// Ends the process when a signal asked for it and the loop does not answer: it can still be caught as [`wait_for_keys`] says, when
/// the terminal goes between the two looks.
fn guard(cancel: Arc<Cancel>, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    const PATIENCE: u32 = 20;
    let watch = move || {
        let mut late = 0;
        while !stop.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(100));
            if let Err(error) = cancel.check() {
                late += 1;
                if late > PATIENCE {
                    ratatui::restore();
                    crate::out::complain(&error);
                    std::process::exit(1);
                }
            }
        }
    };
    thread::Builder::new()
        .name("guard".to_owned())
        .spawn(watch)
        .context("starting a thread")?;
    Ok(())
}

/// The terminal in raw mode on its other screen; dropped, it is as it was.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    fn open() -> anyhow::Result<Self> {
        // Also sets a panic hook that gives the terminal back before the message is written.
        let terminal = ratatui::try_init().context("taking over the terminal")?;
        Ok(Self { terminal })
    }

    fn show(
        &mut self,
        app: &mut App,
        updates: &Receiver<Update>,
        interval: &AtomicU64,
        cancel: &Cancel,
    ) -> anyhow::Result<()> {
        let mut dirty = true;
        loop {
            cancel.check()?;
            loop {
                match updates.try_recv() {
                    Ok(update) => {
                        app.take(update);
                        dirty = true;
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        bail!("the thread that reads the maps died")
                    }
                }
            }
            if dirty {
                self.terminal
                    .draw(|frame| draw::draw(frame, app))
                    .context("drawing")?;
                dirty = false;
            }
            wait_for_keys()?;
            // All that is there, then one drawing.
            while event::poll(Duration::ZERO).context("waiting for keys")? {
                match event::read().context("reading keys")? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => match app.key(key) {
                        Action::Draw => {}
                        Action::Quit => return Ok(()),
                        Action::Suspend => self.suspend()?,
                        Action::Interval(new) => interval.store(millis(new), Ordering::Relaxed),
                    },
                    _ => {}
                }
                dirty = true;
            }
        }
    }

    /// Gives the terminal back, stops as SIGTSTP does, and takes it again when continued.
    fn suspend(&mut self) -> anyhow::Result<()> {
        use rustix::process::{Signal, getpid, kill_process};
        ratatui::restore();
        kill_process(getpid(), Signal::TSTP).context("stopping")?;
        self.terminal = ratatui::try_init().context("taking the terminal back")?;
        self.terminal.clear().context("drawing")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
