//! Signals and child processes of long commands (`demo`, `bench`): the work ends by itself and cleans up, and every child
//! ends with it.

use std::{
    fmt,
    path::PathBuf,
    process::{Child, ExitStatus},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// How long a child has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// How often children are looked at.
const TICK: Duration = Duration::from_millis(10);

/// A signal ended the command.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted(pub u8);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            2 => f.write_str("interrupted"),
            number => write!(f, "ended by signal {number}"),
        }
    }
}

impl std::error::Error for Interrupted {}

/// The signals that end the daemon.
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    /// From now on they are caught.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("catching SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("catching SIGTERM")?,
            hangup: signal(SignalKind::hangup()).context("catching SIGHUP")?,
        })
    }

    /// Waits for one of them: its number and name.
    pub async fn next(&mut self) -> (u8, &'static str) {
        tokio::select! {
            _ = self.interrupt.recv() => (2, "SIGINT"),
            _ = self.terminate.recv() => (15, "SIGTERM"),
            _ = self.hangup.recv() => (1, "SIGHUP"),
        }
    }
}

/// This program's own file, to start it again.
pub fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("finding this program's own file")
}

/// Whether a signal asked to end.
#[derive(Debug, Default)]
pub struct Cancel {
    signal: AtomicU8,
    lock: Mutex<()>,
    news: Condvar,
}

impl Cancel {
    /// Goes on, or not.
    ///
    /// # Errors
    /// [`Interrupted`] after a signal.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.signal.load(Ordering::Acquire) {
            0 => Ok(()),
            number => Err(Interrupted(number).into()),
        }
    }

    /// Waits for a signal.
    pub fn wait(&self) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.check().is_ok() {
            guard = self
                .news
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set(&self, number: u8) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.signal.store(number, Ordering::Release);
        self.news.notify_all();
    }
}

/// Runs `work` on a thread while this one catches signals, and returns what it returns: a signal is told to the work, which
/// ends by itself and cleans up.
pub fn on_own_thread(
    work: impl FnOnce(Arc<Cancel>) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let cancel = Arc::new(Cancel::default());
        let theirs = Arc::clone(&cancel);
        let (tell, mut done) = oneshot::channel();
        let worker = thread::Builder::new()
            .name("work".to_owned())
            .spawn(move || {
                // Nobody waits only if this process is ending.
                let _ = tell.send(work(theirs));
            })
            .context("starting a thread")?;
        let outcome = loop {
            tokio::select! {
                outcome = &mut done => break outcome,
                (number, _) = signals.next() => cancel.set(number),
            }
        };
        let _ = worker.join();
        outcome.context("the work died")?
    })
}

/// Asynchronous work on a thread of its own, beside a command that has no runtime. Dropped, it ends where it stands.
#[derive(Debug)]
pub struct Background {
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Background {
    /// Starts it, in the calling thread's network namespace; `name` is the thread's.
    ///
    /// # Errors
    /// No runtime, or no thread, can be made.
    pub fn start(
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .with_context(|| format!("starting the runtime of \"{name}\""))?;
        let (end, ended) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = work => {}
                        // That it is dropped says it.
                        _ = ended => {}
                    }
                });
            })
            .with_context(|| format!("starting the thread \"{name}\""))?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

/// A child process that does not outlive this.
#[derive(Debug)]
pub struct Offspring {
    child: Child,
    what: String,
}

impl Offspring {
    /// Takes over a child; `what` names it in messages.
    #[must_use]
    pub fn new(child: Child, what: String) -> Self {
        Self { child, what }
    }

    /// The child.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for it to end.
    ///
    /// # Errors
    /// It did not within `limit`, or a signal came; then it is ended when dropped.
    pub fn wait(&mut self, limit: Duration, cancel: &Cancel) -> anyhow::Result<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            cancel.check()?;
            if Instant::now() >= until {
                bail!("{} did not end within {} s", self.what, limit.as_secs());
            }
            thread::sleep(TICK);
        }
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// The system's.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("waiting for {}", self.what))
    }

    /// Asks it to end by SIGTERM, waits, and ends it by SIGKILL if it does not.
    ///
    /// # Errors
    /// It had to be killed, or ended with an error.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        if self.ended()?.is_none() {
            // It can have ended just now: then there is nothing to ask.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        match self.wait(GRACE, &Cancel::default()) {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => bail!("{} ended with {status}", self.what),
            Err(error) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                Err(error)
            }
        }
    }
}

impl Drop for Offspring {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // An error is on its way already.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn start(script: &str) -> Offspring {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        Offspring::new(child, "the script".to_owned())
    }

    #[test]
    fn a_child_ends_with_its_owner() {
        let mut child = start("sleep 60");
        let pid = Pid::from_child(child.child());
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_child_that_ends_with_an_error_is_an_error() {
        let error = start("trap 'exit 3' TERM; while :; do sleep 0.01; done");
        let mut error = error;
        thread::sleep(Duration::from_millis(200));
        assert!(
            error
                .stop()
                .unwrap_err()
                .to_string()
                .contains("exit status: 3")
        );
        assert!(
            start("exit 0")
                .wait(GRACE, &Cancel::default())
                .unwrap()
                .success()
        );
    }

    #[test]
    fn a_wait_is_bounded_and_ends_on_a_signal() {
        let mut child = start("sleep 60");
        let short = Duration::from_millis(30);
        let error = child
            .wait(short, &Cancel::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("did not end"), "{error}");
        let cancel = Cancel::default();
        cancel.set(15);
        assert!(child.wait(GRACE, &cancel).unwrap_err().is::<Interrupted>());
    }

    #[test]
    fn the_works_outcome_comes_back() {
        assert!(on_own_thread(|_| Ok(())).is_ok());
        let error = on_own_thread(|_| bail!("no")).unwrap_err();
        assert_eq!(error.to_string(), "no");
        assert!(on_own_thread(|_| panic!("for the test")).is_err());
    }
}
