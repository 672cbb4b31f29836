//! The loop of the bandwidth tests, for either end and both directions (perftest's `run_iter_bw`, `run_iter_bw_server`, `run_iter_bi`).
//!
//! Bandwidth is the bytes of all requests over the time from the first post to the last completion; for who receives SENDs, from
//! the first to the last receive completion. With `-D` what completes between the margins, over the time between them.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::{
    handshake::Role,
    plan::{Length, Verb},
    session::{Id, Session},
};

/// Completions that are looked at before requests are posted again (perftest's `CTX_POLL_BATCH`).
const BATCH: usize = 16;

/// What one end does for one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Posts requests.
    pub sends: bool,
    /// Posts receive requests, and expects as many messages as it would send.
    pub receives: bool,
    /// Sends only once the first message has come, which says that the peer has begun.
    pub holds: bool,
}

impl Part {
    /// Of an end in a SEND test; in the others the server of one direction takes no part.
    #[must_use]
    pub fn of(role: Role, verb: Verb, bidirectional: bool) -> Self {
        let server = role == Role::Server;
        let send = verb == Verb::Send;
        Self {
            sends: bidirectional || !server,
            receives: send && (bidirectional || server),
            holds: send && bidirectional && server,
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Messages.
    pub iterations: u64,
    /// In this time.
    pub seconds: f64,
    /// Highest message rate over any stretch, 1/s.
    pub peak: Option<f64>,
}

/// One queue pair's counts.
#[derive(Clone, Copy, Default)]
struct Counts {
    sent: u64,
    completed: u64,
    receives_posted: u64,
    received: u64,
}

/// When what happened, ns since the beginning.
struct Times {
    zero: Instant,
    first: Option<u64>,
    last: u64,
    posts: Vec<u64>,
    /// Requests done in all, and when.
    completions: Vec<(u64, u64)>,
}

impl Times {
    fn now(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }
}

struct Run<'a> {
    session: &'a Session,
    size: u32,
    part: Part,
    /// Requests per queue pair; none: until the time is over.
    iterations: Option<u64>,
    counts: Vec<Counts>,
    times: Times,
    /// Completed in all, received in all.
    completed: u64,
    received: u64,
    /// The part of the time that counts, ns since the beginning.
    window: Option<(u64, u64)>,
    in_window: u64,
    end: Option<Instant>,
}

/// Posts the receive requests that a size begins with. Before the barrier: what comes behind it finds them.
///
/// # Errors
/// The queue is full.
pub fn prepare(session: &Session, size: u32) -> anyhow::Result<()> {
    for qp in 0..session.pairs.len() {
        for n in 0..first_receives(session) {
            session.post_recv(qp, n, size)?;
        }
    }
    Ok(())
}

fn first_receives(session: &Session) -> u64 {
    let depth = u64::from(session.plan.rx_depth);
    match session.plan.length {
        Length::Iterations(iterations) => depth.min(iterations),
        Length::Time { .. } => depth,
    }
}

/// Does this end's part for one size.
///
/// # Errors
/// A request failed, or nothing happens any more.
pub fn run(session: &Session, size: u32, part: Part) -> anyhow::Result<Sample> {
    let iterations = match session.plan.length {
        Length::Iterations(iterations) => Some(iterations),
        Length::Time { .. } => None,
    };
    let counts = Counts {
        receives_posted: if part.receives {
            first_receives(session)
        } else {
            0
        },
        ..Counts::default()
    };
    let qps = session.pairs.len();
    let total = iterations.unwrap_or(0) as usize * qps;
    let keep = if session.plan.peak && part.sends {
        total
    } else {
        0
    };
    let mut run = Run {
        session,
        size,
        part,
        iterations,
        counts: vec![counts; qps],
        times: Times {
            zero: Instant::now(),
            first: None,
            last: 0,
            posts: Vec::with_capacity(keep),
            completions: Vec::with_capacity(keep),
        },
        completed: 0,
        received: 0,
        window: None,
        in_window: 0,
        end: None,
    };
    if part.sends && !part.holds {
        run.begin();
    }
    run.finish()?;
    run.sample(keep > 0)
}

impl Run<'_> {
    /// The clock of a timed test starts.
    fn begin(&mut self) {
        if let (Length::Time { total, margin }, None) = (self.session.plan.length, self.end) {
            let now = self.times.now();
            let after = |time: Duration| now + time.as_nanos() as u64;
            self.window = Some((after(margin), after(total.saturating_sub(margin))));
            self.end = Some(self.times.zero + Duration::from_nanos(after(total)));
        }
    }

    fn target(&self) -> u64 {
        self.iterations
            .unwrap_or(u64::MAX)
            .saturating_mul(self.counts.len() as u64)
    }

    fn done(&self) -> bool {
        (!self.part.sends || self.completed >= self.target())
            && (!self.part.receives || self.received >= self.target())
    }

    fn over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        while !self.done() && !self.over() {
            let may_send = self.part.sends && (!self.part.holds || self.received > 0);
            if may_send {
                for qp in 0..self.counts.len() {
                    self.fill(qp)?;
                }
            }
            if !self.take(self.end)? {
                break;
            }
        }
        // What is under way still lands, so that the next phase does not meet it. SENDs may find no receive request any more.
        while self.end.is_some() && self.session.plan.test.verb() != Verb::Send && !self.idle() {
            self.take(None)?;
        }
        Ok(())
    }

    fn idle(&self) -> bool {
        // A request without completion is done with the next that has one; there may be none.
        let cq_mod = u64::from(self.session.plan.cq_mod);
        self.counts.iter().all(|c| c.sent - c.completed < cq_mod)
    }

    /// Posts while there is room.
    fn fill(&mut self, qp: usize) -> anyhow::Result<()> {
        let plan = &self.session.plan;
        let (depth, cq_mod) = (u64::from(plan.tx_depth), u64::from(plan.cq_mod));
        let keep = self.times.posts.capacity() > 0;
        let counts = self.counts.get_mut(qp).context("no such queue pair")?;
        while counts.sent - counts.completed < depth
            && self.iterations.is_none_or(|most| counts.sent < most)
        {
            let (n, number) = (counts.sent, counts.sent + 1);
            let signaled = number.is_multiple_of(cq_mod) || self.iterations == Some(number);
            let now = self.times.now();
            self.times.first.get_or_insert(now);
            if keep {
                self.times.posts.push(now);
            }
            self.session.post(qp, n, self.size, signaled)?;
            counts.sent += 1;
        }
        Ok(())
    }

    /// Waits for a completion, and takes what else there is; false once `end` is over.
    fn take(&mut self, end: Option<Instant>) -> anyhow::Result<bool> {
        let session = self.session;
        let progress = || self.progress();
        let waited = session
            .waiter
            .next(&session.cq, &session.wire.channel, end, progress)?;
        let Some(done) = waited else {
            return Ok(false);
        };
        self.count(done.id)?;
        for _ in 1..BATCH {
            let Some(done) = session.cq.poll() else {
                break;
            };
            let done = crate::oob::wait::result(done)?;
            self.count(done.id)?;
        }
        Ok(true)
    }

    fn count(&mut self, id: u64) -> anyhow::Result<()> {
        let id = Id::of(id);
        let now = self.times.now();
        let keep = self.times.completions.capacity() > 0;
        if id.receive && self.received == 0 {
            self.begin();
            if !self.part.sends {
                self.times.first = Some(now);
            }
        }
        let counts = self.counts.get_mut(id.qp).context("no such queue pair")?;
        let news = if id.receive {
            counts.received += 1;
            self.received += 1;
            let (next, more) = (counts.receives_posted, self.iterations);
            if more.is_none_or(|most| next < most) {
                self.session.post_recv(id.qp, next, self.size)?;
                counts.receives_posted += 1;
            }
            1
        } else {
            let news = id.count.saturating_sub(counts.completed);
            counts.completed = id.count;
            self.completed += news;
            if keep {
                self.times.completions.push((self.completed, now));
            }
            news
        };
        if !id.receive || !self.part.sends {
            self.times.last = now;
        }
        if self
            .window
            .is_some_and(|(from, to)| (from..to).contains(&now))
        {
            self.in_window += news;
        }
        Ok(())
    }

    fn progress(&self) -> String {
        let of = match self.iterations {
            Some(_) => format!(" of {}", self.target()),
            None => String::new(),
        };
        let mut parts = Vec::new();
        if self.part.sends {
            parts.push(format!("{}{of} requests have completed", self.completed));
        }
        if self.part.receives {
            parts.push(format!("{}{of} messages have come", self.received));
        }
        format!(
            "{} (both ends need the same -n, -s, -q, -b and -D{})",
            parts.join(", "),
            self.session.plan.service.hint()
        )
    }

    fn sample(&self, peak: bool) -> anyhow::Result<Sample> {
        if let Some((from, to)) = self.window {
            return Ok(Sample {
                iterations: self.in_window,
                seconds: (to - from) as f64 / 1e9,
                peak: None,
            });
        }
        let first = self.times.first.context("nothing was measured")?;
        Ok(Sample {
            iterations: self.target(),
            seconds: self.times.last.saturating_sub(first).max(1) as f64 / 1e9,
            peak: peak.then(|| highest_rate(&self.times.posts, &self.times.completions)),
        })
    }
}

/// The highest rate, 1/s, from any post to any later completion: `posts[i]` is when request `i` was posted, and a completion says how many
/// requests were done in all, and when, both ns.
///
/// The rate of a stretch from post `i` to a completion that makes it `n` is `(n - i) / (t_n - t_i)`. The largest ratio is found as
/// Dinkelbach does (Management Science 13, 1967): guess it, look for a stretch that does better, take that one's, until none does.
fn highest_rate(posts: &[u64], completions: &[(u64, u64)]) -> f64 {
    let mut best = 0.0;
    loop {
        let Some(better) = better_stretch(posts, completions, best) else {
            return best * 1e9;
        };
        if better <= best {
            return best * 1e9;
        }
        best = better;
    }
}

/// The rate, 1/ns, of the stretch that beats `rate` by most requests.
fn better_stretch(posts: &[u64], completions: &[(u64, u64)], rate: f64) -> Option<f64> {
    // Of the posts so far, the one with the least `i - rate * t_i`.
    let (mut from, mut least) = (None, f64::INFINITY);
    let (mut found, mut most) = (None, 0.0);
    let mut posts = posts.iter().enumerate().peekable();
    for &(n, t) in completions {
        while let Some((i, &posted)) = posts.next_if(|(i, _)| (*i as u64) < n) {
            let value = i as f64 - rate * posted as f64;
            if value < least {
                (from, least) = (Some((i, posted)), value);
            }
        }
        let Some((i, posted)) = from else { continue };
        let gain = n as f64 - rate * t as f64 - least;
        if gain > most && t > posted {
            most = gain;
            found = Some((n as f64 - i as f64) / (t - posted) as f64);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_what() {
        use Role::{Client, Server};
        let of = |role, verb, both| {
            let part = Part::of(role, verb, both);
            (part.sends, part.receives, part.holds)
        };
        assert_eq!(of(Client, Verb::Send, false), (true, false, false));
        assert_eq!(of(Server, Verb::Send, false), (false, true, false));
        assert_eq!(of(Client, Verb::Send, true), (true, true, false));
        assert_eq!(of(Server, Verb::Send, true), (true, true, true));
        assert_eq!(of(Server, Verb::Write, true), (true, false, false));
    }

    /// As perftest looks for it: every pair.
    fn by_every_pair(posts: &[u64], completions: &[(u64, u64)]) -> f64 {
        let mut best: f64 = 0.0;
        for (i, posted) in posts.iter().enumerate() {
            for (n, t) in completions {
                if *n > i as u64 && t > posted {
                    best = best.max((n - i as u64) as f64 / (t - posted) as f64);
                }
            }
        }
        best * 1e9
    }

    #[test]
    fn the_peak_is_that_of_the_best_stretch() {
        assert_eq!(highest_rate(&[0], &[(1, 1000)]), 1e6);
        assert_eq!(highest_rate(&[], &[]), 0.0);
        // Slow, then four at once.
        let posts = [0, 1000, 2000, 2001, 2002, 2003];
        let completions = [(1, 900), (2, 1900), (6, 2100)];
        assert_eq!(highest_rate(&posts, &completions), 4.0 / 100.0 * 1e9);
        let mut state = 1_u64;
        let mut random = |most: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % most
        };
        for _ in 0..50 {
            let (mut posts, mut completions, mut t) = (Vec::new(), Vec::new(), 0);
            for n in 1..=60 {
                t += random(50);
                posts.push(t);
                t += 1 + random(200);
                if n % 3 == 0 || n == 60 {
                    completions.push((n, t));
                }
            }
            let (got, want) = (
                highest_rate(&posts, &completions),
                by_every_pair(&posts, &completions),
            );
            assert!((got - want).abs() < want * 1e-9, "{got} {want}");
        }
    }
}
