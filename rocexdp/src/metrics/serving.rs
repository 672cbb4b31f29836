//! Metrics beside a command: the address, the thread that reads, the server.

use std::thread::JoinHandle;

use anyhow::Context as _;
use tokio::sync::oneshot;

use super::{Listener, Observer, ObserverConfig, serve};
use crate::{control::settings::UsageError, out};

/// Most QPs with series of their own, per interface and kind: each has about 60.
pub const MOST_TOP: usize = 1000;

/// A bound address, and a thread that reads already.
#[derive(Debug)]
pub struct Serving {
    listener: Listener,
    observer: Observer,
}

/// A server on a thread of its own. Dropped, it ends.
#[derive(Debug)]
pub struct Background {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Says whether so many QPs can have series of their own.
///
/// # Errors
/// [`UsageError`], naming the option.
pub fn check_top(option: &str, top: usize) -> Result<(), UsageError> {
    if (1..=MOST_TOP).contains(&top) {
        Ok(())
    } else {
        Err(UsageError(format!("{option} {top}: use 1 to {MOST_TOP}")))
    }
}

impl Serving {
    /// Starts to read `ifaces` of the calling thread's network namespace, whose programs may be attached later. `top`: QPs per
    /// interface and kind with series of their own. Pause storms are told on standard error.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(listener: Listener, top: usize, ifaces: Vec<String>) -> anyhow::Result<Self> {
        let config = ObserverConfig {
            top,
            ..ObserverConfig::new(ifaces)
        };
        let observer =
            Observer::start(config, |storm| out::note(format_args!("rocexdp: {storm}")))?;
        out::note(format_args!(
            "rocexdp: metrics on http://{}/metrics",
            listener.address()?
        ));
        Ok(Self { listener, observer })
    }

    /// Serves for as long as `work` takes.
    ///
    /// # Errors
    /// That of `work`, or the server's.
    pub async fn beside<T>(
        self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let Self { listener, observer } = self;
        let scraper = observer.scraper();
        tokio::select! {
            done = work => done,
            failed = serve(listener, scraper) => match failed? {},
        }
    }

    /// Serves from a thread, for a command that has no runtime.
    ///
    /// # Errors
    /// No thread, or no runtime, can be made.
    pub fn in_background(self) -> anyhow::Result<Background> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the runtime of the metrics server")?;
        let (end, ended) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                let until = async {
                    // Dropped is said as well as sent.
                    let _ = ended.await;
                    Ok(())
                };
                if let Err(error) = runtime.block_on(self.beside(until)) {
                    out::complain(&error);
                }
            })
            .context("starting the thread of the metrics server")?;
        Ok(Background {
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
