//! Metrics beside a command: the address, the thread that reads, the server.

use std::future::pending;

use super::{Listener, Observer, ObserverConfig, serve};
use crate::{control::settings::UsageError, maps::OwnPrograms, out, process::Background};

/// Most QPs with series of their own, per interface and kind: each has about 60.
pub const MOST_TOP: usize = 1000;

/// A bound address, and a thread that reads already.
#[derive(Debug)]
pub struct Serving {
    listener: Listener,
    observer: Observer,
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
        Self::of_programs(listener, top, ifaces, OwnPrograms::default())
    }

    /// The same, and where this process attached programs itself, reads those.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn of_programs(
        listener: Listener,
        top: usize,
        ifaces: Vec<String>,
        own: OwnPrograms,
    ) -> anyhow::Result<Self> {
        let config = ObserverConfig {
            top,
            own,
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
    /// As [`Background::start`].
    pub fn in_background(self) -> anyhow::Result<Background> {
        Background::start("metrics", async {
            if let Err(error) = self.beside(pending::<anyhow::Result<()>>()).await {
                out::complain(&error);
            }
        })
    }
}
