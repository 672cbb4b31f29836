//! Metrics beside a command: the address, the thread that reads, the server.

use super::{Listener, MetricsAddr, Observer, ObserverConfig, serve};
use crate::{control::settings::UsageError, out};

/// Most QPs with series of their own, per interface and kind: each has about 70.
pub const MOST_TOP: u32 = 1000;

/// A bound address, and a thread that reads already.
#[derive(Debug)]
pub struct Serving {
    listener: Listener,
    observer: Observer,
}

impl Serving {
    /// Binds `address` and starts to read `ifaces`, whose programs may be attached later. Pause storms are told on standard error.
    ///
    /// # Errors
    /// [`UsageError`] for a `top` out of range; the address can't be had; no thread can be made.
    pub fn open(
        address: MetricsAddr,
        top: Option<u32>,
        ifaces: Vec<String>,
    ) -> anyhow::Result<Self> {
        let mut config = ObserverConfig::new(ifaces);
        if let Some(top) = top {
            if !(1..=MOST_TOP).contains(&top) {
                return Err(UsageError(format!("--metrics-top {top}: use 1 to {MOST_TOP}")).into());
            }
            config.top = top as usize;
        }
        let listener = Listener::bind(address)?;
        out::note(format_args!(
            "rocexdp: metrics on http://{}/metrics",
            listener.address()?
        ));
        let observer =
            Observer::start(config, |storm| out::note(format_args!("rocexdp: {storm}")))?;
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
}
