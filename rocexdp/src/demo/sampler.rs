//! Watching a copy from outside: DCQCN's rate of the sending QP, read from the BPF maps every few milliseconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;

use crate::{maps::MapsView, sys::netns::NetNs};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(2);
/// Looks kept at most: an hour's.
const MOST: usize = 1_800_000;

/// One look at the newest sending QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Since sampling began.
    pub at: Duration,
    /// The QP.
    pub qpn: u32,
    /// DCQCN's rate, bit/s; 0: unpaced.
    pub rate: u64,
    /// Payload bytes sent so far.
    pub tx_bytes: u64,
}

/// A thread that looks until told to stop.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<anyhow::Result<Vec<Sample>>>>>,
}

impl Sampler {
    /// Starts to watch QPs on `interface` that are made from now on.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(namespace: &NetNs, interface: &str) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, interface) = (Arc::clone(&stop), interface.to_owned());
        let thread = namespace
            .spawn("sampler", move || watch(&interface, &ended))
            .context("starting a thread")?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends, and returns what was seen.
    ///
    /// # Errors
    /// The maps could not be read.
    pub fn stop(mut self) -> anyhow::Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Release);
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().ok().context("the sampling thread died")??
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn watch(interface: &str, stop: &AtomicBool) -> anyhow::Result<Vec<Sample>> {
    let maps = MapsView::of_interface(interface)?;
    let before: Vec<_> = maps
        .qps()
        .iter()
        .map(|qp| (qp.config.qpn, qp.config.generation))
        .collect();
    let begun = Instant::now();
    let mut samples = Vec::new();
    while !stop.load(Ordering::Acquire) && samples.len() < MOST {
        let new =
            |qp: &&crate::maps::QpView| !before.contains(&(qp.config.qpn, qp.config.generation));
        if let Some(qp) = maps.qps().iter().find(new) {
            samples.push(Sample {
                at: begun.elapsed(),
                qpn: qp.config.qpn,
                rate: qp.engine.rate,
                tx_bytes: qp.engine.tx_bytes,
            });
        }
        thread::sleep(INTERVAL);
    }
    Ok(samples)
}
