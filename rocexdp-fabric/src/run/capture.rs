//! Captures of links: nanosecond pcaps of both directions, written as the run goes.
//!
//! Must not: open files; writers come from the caller.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use rocexdp_sim::{
    net::{Host, Network, Tapped, pcap_header},
    topology::LinkId,
};

/// A writer of one link's capture.
type Target = (LinkId, Box<dyn Write + Send>);

#[derive(Default)]
struct Inner {
    targets: Vec<Target>,
    error: Option<io::Error>,
}

/// Captures of one run.
pub struct Captures(Arc<Mutex<Inner>>);

impl Captures {
    /// Of these links.
    #[must_use]
    pub fn new(targets: Vec<Target>) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            targets,
            error: None,
        })))
    }

    /// From now on.
    pub(super) fn attach<H: Host>(&self, network: &mut Network<H>) {
        let inner = Arc::clone(&self.0);
        {
            let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
            let Inner { targets, error } = &mut *inner;
            for (link, target) in targets {
                network.tap(*link, 0, true);
                network.tap(*link, 1, true);
                keep(error, target.write_all(&pcap_header()));
            }
        }
        network.set_tap(Box::new(move |tapped| {
            let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.write(tapped);
        }));
    }

    /// All has been written.
    ///
    /// # Errors
    /// The first of the writers'.
    pub fn finish(&self) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { targets, error } = &mut *inner;
        for (_, target) in targets {
            keep(error, target.flush());
        }
        inner.error.take().map_or(Ok(()), Err)
    }
}

impl Inner {
    fn write(&mut self, tapped: &Tapped<'_>) {
        if self.error.is_some() {
            return;
        }
        for (_, target) in self
            .targets
            .iter_mut()
            .filter(|target| target.0 == tapped.link)
        {
            let written = target.write_all(&tapped.pcap_record());
            keep(
                &mut self.error,
                written.and_then(|()| target.write_all(tapped.frame)),
            );
        }
    }
}

fn keep(error: &mut Option<io::Error>, outcome: io::Result<()>) {
    if let Err(new) = outcome
        && error.is_none()
    {
        *error = Some(new);
    }
}
