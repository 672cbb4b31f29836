//! Waiting for completions, without missing that the peer has left, that nothing happens any more, or that a signal came.

use std::{
    hint::spin_loop,
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};

use super::channel::Channel;
use crate::rdma::{Completion, CompletionQueue, Done, Status, WorkError};

/// How long a wait spins before it sleeps: longer than a round trip on a quiet link.
const SPIN: Duration = Duration::from_micros(50);
/// How often a longer wait looks around.
const LOOK: Duration = Duration::from_millis(50);
/// How long the last packets may still be under way after the peer has left.
const GRACE: Duration = Duration::from_secs(2);

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// Sleep at once (`-e`), instead of after a while.
    pub events: bool,
    /// Give up after so long without any news.
    pub patience: Duration,
}

/// One wait under way, for news of any kind.
struct Wait<'a> {
    waiter: Waiter,
    channel: &'a Channel,
    begun: Instant,
    left: Option<Instant>,
}

impl Waiter {
    /// The next completion; `None` once `end` is over.
    ///
    /// # Errors
    /// It failed; or there is none because the peer left, or is silent; or a signal came. `stalled` says how far things got.
    pub fn next(
        self,
        cq: &CompletionQueue,
        channel: &Channel,
        end: Option<Instant>,
        stalled: impl FnOnce() -> String,
    ) -> anyhow::Result<Option<Done>> {
        if let Some(done) = cq.poll() {
            return result(done).map(Some);
        }
        let mut wait = Wait::new(self, channel);
        while !self.events && wait.begun.elapsed() < SPIN {
            if let Some(done) = cq.poll() {
                return result(done).map(Some);
            }
            spin_loop();
        }
        loop {
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
            if let Some(done) = cq.wait(LOOK.min(left))? {
                return result(done).map(Some);
            }
            if left.is_zero() {
                return Ok(None);
            }
            if let Some(why) = wait.over()? {
                bail!("{why}: {}", stalled());
            }
        }
    }

    /// Waits until `seen` is true, which this thread must find out by itself; false once `end` is over.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn until(
        self,
        mut seen: impl FnMut() -> anyhow::Result<bool>,
        channel: &Channel,
        end: Option<Instant>,
        stalled: impl FnOnce() -> String,
    ) -> anyhow::Result<bool> {
        let mut wait = Wait::new(self, channel);
        let mut looked = wait.begun;
        loop {
            for _ in 0..64 {
                if seen()? {
                    return Ok(true);
                }
                spin_loop();
            }
            // There may be fewer processors than threads that want to go on.
            thread::yield_now();
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Ok(false);
            }
            if now.duration_since(looked) >= LOOK {
                looked = now;
                if let Some(why) = wait.over()? {
                    bail!("{why}: {}", stalled());
                }
            }
        }
    }
}

impl<'a> Wait<'a> {
    fn new(waiter: Waiter, channel: &'a Channel) -> Self {
        Self {
            waiter,
            channel,
            begun: Instant::now(),
            left: None,
        }
    }

    /// Why there is nothing left to wait for.
    fn over(&mut self) -> anyhow::Result<Option<String>> {
        self.channel.check()?;
        let peer = self.channel.peer().ip();
        if self.channel.peer_left() {
            let since = *self.left.get_or_insert_with(Instant::now);
            if since.elapsed() > GRACE {
                return Ok(Some(format!("{peer} has closed the connection")));
            }
        }
        let waited = self.begun.elapsed();
        Ok((waited > self.waiter.patience)
            .then(|| format!("no completion for {} s", waited.as_secs())))
    }
}

/// What a completion brought.
///
/// # Errors
/// The request failed; the text says what is probably to be done.
pub fn result(completion: Completion) -> anyhow::Result<Done> {
    completion.result().map_err(explained)
}

/// What most probably is to be done about a failure.
fn explained(error: WorkError) -> anyhow::Error {
    let hint = match error.status {
        Status::LocLenErr => "the peer's message is longer than ours: give both ends the same -s",
        Status::RemInvReqErr => {
            "the peer refused the request: give both ends the same -s, and the same test"
        }
        Status::RemAccessErr => "the peer refused its key or range: is it the same test there?",
        Status::RetryExcErr => {
            "the peer does not answer: has its program ended, do its packets reach us (rocexdp monitor)?"
        }
        Status::RnrRetryExcErr => {
            "the peer has no receive request: give both ends the same -n and -q"
        }
        _ => return error.into(),
    };
    anyhow!("{error}: {hint}")
}
