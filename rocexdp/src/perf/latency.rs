//! The loops of the latency tests (perftest's `run_iter_lat_send`, `run_iter_lat_write`, `run_iter_lat`).
//!
//! What is kept is the time from one post to the next. Between them a SEND or WRITE went to the peer and one came back, so half of it is
//! given; a READ or atomic was answered, so all of it is. WRITEs carry their number in the last byte (its low 8 bits), which the peer
//! polls; SENDs are received.
//!
//! The first round trip with a peer's program does not count: perftest's measures its processor's clock behind the last barrier
//! (`get_cpu_mhz`), for as long as a second in an emulated machine, and answers only then.

use std::time::{Duration, Instant};

use super::{
    handshake::Role,
    plan::{Length, Verb},
    session::{Id, Session},
};

/// Runs one size; gives the times between posts, in the order of the posts. With `-D`, those that ended between the margins.
///
/// # Errors
/// A request failed, or nothing happens any more.
pub fn run(session: &Session, size: u32) -> anyhow::Result<Vec<Duration>> {
    let mut run = Run {
        session,
        size,
        clock: Clock::new(session.plan.length, !session.plan.one_sided()),
        posted: 0,
        completed: 0,
        received: 0,
        receives_posted: 0,
    };
    match session.plan.test.verb() {
        Verb::Send => run.sends()?,
        Verb::Write => run.writes()?,
        Verb::Read | Verb::Atomic => run.reads()?,
    }
    Ok(run.clock.samples)
}

/// Posts the receive requests that a size begins with. Before the barrier: what comes behind it finds them.
///
/// # Errors
/// The queue is full.
pub fn prepare(session: &Session, size: u32) -> anyhow::Result<()> {
    super::bandwidth::prepare(session, size)
}

/// When posts happen, and when the test is over.
struct Clock {
    length: Length,
    begun: Option<Instant>,
    last: Option<Instant>,
    /// The next time between posts does not count.
    settling: bool,
    samples: Vec<Duration>,
}

impl Clock {
    /// `settling`: the first time between posts does not count.
    fn new(length: Length, settling: bool) -> Self {
        let count = match length {
            Length::Iterations(iterations) => iterations as usize,
            Length::Time { .. } => 0,
        };
        Self {
            length,
            begun: None,
            last: None,
            settling,
            samples: Vec::with_capacity(count),
        }
    }

    /// A timed test starts to run out.
    fn begin(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }

    fn end(&self) -> Option<Instant> {
        match (self.length, self.begun) {
            (Length::Time { total, .. }, Some(begun)) => Some(begun + total),
            _ => None,
        }
    }

    fn over(&self) -> bool {
        self.end().is_some_and(|end| Instant::now() >= end)
    }

    /// Whether request number `n` is still to be made.
    fn goes_on(&self, n: u64) -> bool {
        match self.length {
            Length::Iterations(iterations) => n < iterations,
            Length::Time { .. } => !self.over(),
        }
    }

    /// A request is about to be posted.
    fn post(&mut self) {
        let now = Instant::now();
        let since = self.begun.map(|begun| now.duration_since(begun));
        let counts = match self.length {
            Length::Iterations(_) => true,
            Length::Time { total, margin } => {
                since.is_some_and(|since| (margin..total.saturating_sub(margin)).contains(&since))
            }
        };
        let Some(last) = self.last.replace(now) else {
            return;
        };
        let settling = std::mem::take(&mut self.settling);
        if counts && !settling {
            self.samples.push(now.duration_since(last));
        }
    }
}

struct Run<'a> {
    session: &'a Session,
    size: u32,
    clock: Clock,
    posted: u64,
    completed: u64,
    received: u64,
    receives_posted: u64,
}

impl Run<'_> {
    fn progress(&self) -> String {
        let what = self.session.plan.service.hint();
        format!(
            "{} requests posted, {} completed, {} answers from the peer (both ends need the same -n, -s and -D{what})",
            self.posted, self.completed, self.received
        )
    }

    /// Waits for a completion; false once the time is over.
    fn take(&mut self) -> anyhow::Result<bool> {
        let session = self.session;
        let end = self.clock.end();
        let progress = || self.progress();
        let channel = &session.wire.channel;
        let Some(done) = session.waiter.next(&session.cq, channel, end, progress)? else {
            return Ok(false);
        };
        if Id::of(done.id).receive {
            self.clock.begin();
            self.received += 1;
            if self.wants(self.receives_posted) {
                session.post_recv(0, self.receives_posted, self.size)?;
                self.receives_posted += 1;
            }
        } else {
            self.completed += 1;
        }
        Ok(true)
    }

    /// Whether one more receive request than so many is needed.
    fn wants(&self, receives: u64) -> bool {
        match self.clock.length {
            Length::Iterations(iterations) => receives < iterations,
            Length::Time { .. } => true,
        }
    }

    fn post(&mut self) -> anyhow::Result<()> {
        // Always from and to the same place, unlike in a bandwidth test.
        self.clock.post();
        self.session.post(0, 0, self.size, true)?;
        self.posted += 1;
        Ok(())
    }

    /// Waits until as many requests have completed as were posted; false once the time is over.
    fn until_completed(&mut self) -> anyhow::Result<bool> {
        while self.completed < self.posted {
            if !self.take()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn sends(&mut self) -> anyhow::Result<()> {
        let depth = u64::from(self.session.plan.rx_depth);
        self.receives_posted = match self.clock.length {
            Length::Iterations(iterations) => depth.min(iterations),
            Length::Time { .. } => depth,
        };
        let client = self.session.wire.role == Role::Client;
        while self.clock.goes_on(self.posted) || self.clock.goes_on(self.received) {
            if self.clock.goes_on(self.received) && (self.posted > 0 || !client) {
                // The client begins. The peer's next message may have come while ours was completing.
                let due = self.posted + u64::from(!client);
                while self.received < due {
                    if !self.take()? {
                        return Ok(());
                    }
                }
            }
            if self.clock.goes_on(self.posted) {
                self.post()?;
                if !self.until_completed()? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn writes(&mut self) -> anyhow::Result<()> {
        let session = self.session;
        let last = u64::from(self.size).saturating_sub(1);
        let (ours, theirs) = (
            session.layout.ours(0) + last,
            session.layout.theirs(0) + last,
        );
        let (word, shift) = (theirs & !7, 8 * (theirs & 7));
        // The server begins, unlike with SEND.
        let client = session.wire.role == Role::Client;
        self.clock.begin();
        while self.clock.goes_on(self.posted) || self.clock.goes_on(self.received) {
            if self.clock.goes_on(self.received) && (self.posted > 0 || client) {
                let number = self.received + 1;
                let seen = || Ok((session.region.load(word)? >> shift) as u8 == number as u8);
                let end = self.clock.end();
                let progress = || self.progress();
                let channel = &session.wire.channel;
                if !session.waiter.until(seen, channel, end, progress)? {
                    return Ok(());
                }
                self.received = number;
            }
            if self.clock.goes_on(self.posted) {
                let number = self.posted + 1;
                session.region.write(ours, &[number as u8])?;
                self.post()?;
                if !self.until_completed()? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn reads(&mut self) -> anyhow::Result<()> {
        self.clock.begin();
        while self.clock.goes_on(self.posted) {
            self.post()?;
            if !self.until_completed()? {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_first_answer_does_not_count() {
        for (settling, samples) in [(true, 3), (false, 4)] {
            let mut clock = Clock::new(Length::Iterations(5), settling);
            for n in 0..5 {
                assert!(clock.goes_on(n));
                clock.post();
            }
            assert!(!clock.goes_on(5));
            assert_eq!(clock.samples.len(), samples);
        }
    }

    #[test]
    fn what_falls_into_a_margin_does_not_count() {
        let length = Length::Time {
            total: Duration::from_secs(3600),
            margin: Duration::from_secs(60),
        };
        let mut clock = Clock::new(length, false);
        // Nothing has begun: no end.
        assert!(clock.end().is_none() && clock.goes_on(1));
        clock.begin();
        clock.post();
        clock.post();
        assert!(clock.samples.is_empty() && clock.end().is_some());
        let mut past = Clock::new(length, false);
        past.begun = Instant::now().checked_sub(Duration::from_secs(100));
        past.post();
        past.post();
        assert_eq!(past.samples.len(), 1);
    }
}
