//! Whether one priority is in a pause storm: a state machine over looks at its counters.
//!
//! Pure: no clock, no map, no file. A storm is a priority that is paused for more than 99 % of a window with traffic waiting and
//! none leaving; where nobody knows what waits, it is only suspected. Ordinary PFC pauses a lot without being one: what tells
//! the two apart is that nothing at all gets through.

use std::collections::VecDeque;

use serde::Serialize;

/// Looks that are kept at most; closer ones are thinned out.
const MOST_LOOKS: usize = 128;
/// A counter that says more than this share of a time moves in steps, and tells nothing about a window.
const IMPOSSIBLE: f64 = 1.05;
/// The same for a counter that stands still between two looks of a window that was paused.
const STANDING: f64 = 0.5;

/// When to flag, and when to release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Length of the window, ns.
    pub window_ns: u64,
    /// Flagged when paused for more than this share of a window.
    pub flag_above: f64,
    /// Released when paused for less than this share of a window; between the two nothing changes.
    pub release_below: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window_ns: 1_000_000_000,
            flag_above: 0.99,
            release_below: 0.90,
        }
    }
}

/// What is known about the traffic of a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Nobody tells: a flag is a suspicion.
    Unknown,
    /// A queue that is seen.
    Known {
        /// Something waits in it now.
        waiting: bool,
        /// Packets that have left it, ever.
        left: u64,
    },
}

/// One look at a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// When, ns of a clock that never goes back.
    pub now_ns: u64,
    /// Whether the link is up.
    pub link_up: bool,
    /// Time paused in all, ns; `None`: can't be told from what is counted.
    pub paused_ns: Option<u64>,
    /// Its traffic.
    pub traffic: Traffic,
}

/// How sure a flag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// Paused all the time; whether traffic waits is not known.
    Suspected,
    /// Paused all the time, traffic waited, none left.
    Storm,
}

/// Why a flag was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Released {
    /// Less paused than the release threshold.
    NotPaused,
    /// Packets leave, or none waits any more.
    TrafficMoves,
    /// The link went down.
    LinkDown,
    /// What is counted no longer tells (the counter has gone, or moves in steps).
    Unknown,
}

/// What a look changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Change {
    /// Flagged, or a suspicion confirmed.
    Flagged {
        /// How sure.
        certainty: Certainty,
        /// Share of the window paused, 0 to 1.
        share: f64,
    },
    /// Taken back.
    Released {
        /// Why.
        reason: Released,
        /// How long it was flagged, ns.
        lasted_ns: u64,
    },
}

/// Why no share is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShare {
    /// Too few looks yet: the window is not full.
    Warming,
    /// Time paused is not counted.
    NotCounted,
    /// The counter moves in steps longer than the window.
    Coarse,
    /// The link is down.
    LinkDown,
}

impl std::fmt::Display for NoShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Warming => "the window is not full yet",
            Self::NotCounted => "pause frames are counted at best, not how long they pause",
            Self::Coarse => "the NIC renews its counter too seldom for this window",
            Self::LinkDown => "the link is down",
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    now_ns: u64,
    paused_ns: u64,
    traffic: Traffic,
}

/// The state of one priority.
#[derive(Clone, Debug)]
pub struct Detector {
    config: Config,
    looks: VecDeque<Kept>,
    flagged: Option<(Certainty, u64)>,
    share: Result<f64, NoShare>,
}

impl Detector {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            looks: VecDeque::new(),
            flagged: None,
            share: Err(NoShare::Warming),
        }
    }

    /// The same settings, nothing seen.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self::new(self.config)
    }

    /// The flag, if there is one.
    #[must_use]
    pub fn flagged(&self) -> Option<Certainty> {
        self.flagged.map(|(certainty, _)| certainty)
    }

    /// Share of the last window that was paused, 0 to 1.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn share(&self) -> Result<f64, NoShare> {
        self.share
    }

    /// Takes a look; says what it changed.
    pub fn look(&mut self, look: &Look) -> Option<Change> {
        if !look.link_up {
            return self.forget(look.now_ns, NoShare::LinkDown, Released::LinkDown);
        }
        let Some(paused_ns) = look.paused_ns else {
            return self.forget(look.now_ns, NoShare::NotCounted, Released::Unknown);
        };
        self.keep(Kept {
            now_ns: look.now_ns,
            paused_ns,
            traffic: look.traffic,
        });
        self.share = self.measure();
        match self.share {
            Ok(share) => self.judge(look.now_ns, share),
            // Flagged or not: a counter that began anew is looked at for a window before anything is said.
            Err(NoShare::Coarse) => self.release(look.now_ns, Released::Unknown),
            Err(_) => None,
        }
    }

    /// Nobody looks at the priority any more; says whether a flag ended by that. What comes later begins anew.
    pub fn end(&mut self, now_ns: u64) -> Option<Change> {
        self.forget(now_ns, NoShare::Warming, Released::Unknown)
    }

    fn forget(&mut self, now_ns: u64, why: NoShare, released: Released) -> Option<Change> {
        self.looks.clear();
        self.share = Err(why);
        self.release(now_ns, released)
    }

    fn keep(&mut self, new: Kept) {
        if let Some(last) = self.looks.back() {
            let went_back = new.paused_ns < last.paused_ns || new.now_ns < last.now_ns;
            let left_went_back = matches!(
                (last.traffic, new.traffic),
                (Traffic::Known { left: before, .. }, Traffic::Known { left: after, .. }) if after < before
            );
            // A counter was reset, wrapped or belongs to another program now: no difference to the past means anything.
            if went_back || left_went_back {
                self.looks.clear();
            }
        }
        // One look at or before the window's beginning stays.
        let begin = new.now_ns.saturating_sub(self.config.window_ns);
        while self
            .looks
            .get(1)
            .is_some_and(|second| second.now_ns <= begin)
        {
            self.looks.pop_front();
        }
        // The newest but one makes room, so that looks stay spread over the window.
        let apart = self.config.window_ns / (MOST_LOOKS as u64 / 2);
        let len = self.looks.len();
        if len >= 2
            && let (Some(a), Some(b)) = (self.looks.get(len - 2).copied(), self.looks.back_mut())
            && new.now_ns.saturating_sub(a.now_ns) < apart
        {
            *b = Kept {
                traffic: worse(b.traffic, new.traffic),
                ..new
            };
        } else {
            self.looks.push_back(new);
        }
    }

    /// Share of the window paused.
    fn measure(&self) -> Result<f64, NoShare> {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else {
            return Err(NoShare::Warming);
        };
        let span = last.now_ns - first.now_ns;
        if span < self.config.window_ns {
            return Err(NoShare::Warming);
        }
        let share = (last.paused_ns - first.paused_ns) as f64 / span as f64;
        if share > IMPOSSIBLE {
            return Err(NoShare::Coarse);
        }
        let mut steps = self.looks.iter().zip(self.looks.iter().skip(1));
        let stands = |(a, b): (&Kept, &Kept)| {
            let time = (b.now_ns - a.now_ns) as f64;
            ((b.paused_ns - a.paused_ns) as f64) < STANDING * time
        };
        // Paused all the time, yet not while looked at: the counter is renewed in steps.
        if share > self.config.flag_above && steps.any(stands) {
            return Err(NoShare::Coarse);
        }
        Ok(share.min(1.0))
    }

    fn judge(&mut self, now_ns: u64, share: f64) -> Option<Change> {
        let traffic = self.traffic();
        if share > self.config.flag_above {
            let certainty = match traffic {
                WindowTraffic::Stuck => Certainty::Storm,
                WindowTraffic::Unknown => Certainty::Suspected,
                WindowTraffic::Moves => return self.release(now_ns, Released::TrafficMoves),
            };
            return match self.flagged {
                Some((before, _)) if before >= certainty => None,
                earlier => {
                    let since = earlier.map_or(now_ns, |(_, since)| since);
                    self.flagged = Some((certainty, since));
                    Some(Change::Flagged { certainty, share })
                }
            };
        }
        if share < self.config.release_below {
            return self.release(now_ns, Released::NotPaused);
        }
        match traffic {
            WindowTraffic::Moves => self.release(now_ns, Released::TrafficMoves),
            _ => None,
        }
    }

    fn release(&mut self, now_ns: u64, reason: Released) -> Option<Change> {
        let (_, since) = self.flagged.take()?;
        Some(Change::Released {
            reason,
            lasted_ns: now_ns.saturating_sub(since),
        })
    }

    fn traffic(&self) -> WindowTraffic {
        let mut unknown = false;
        let (mut lowest, mut highest) = (u64::MAX, 0);
        for look in &self.looks {
            match look.traffic {
                Traffic::Unknown => unknown = true,
                // That nothing waited at one look is enough: the queue was not stuck.
                Traffic::Known { waiting: false, .. } => return WindowTraffic::Moves,
                Traffic::Known { left, .. } => {
                    lowest = lowest.min(left);
                    highest = highest.max(left);
                }
            }
        }
        if highest > lowest && lowest != u64::MAX {
            WindowTraffic::Moves
        } else if unknown {
            WindowTraffic::Unknown
        } else {
            WindowTraffic::Stuck
        }
    }
}

/// Of two looks that become one: the one that speaks more against a storm.
fn worse(a: Traffic, b: Traffic) -> Traffic {
    match (a, b) {
        (Traffic::Known { waiting: x, .. }, Traffic::Known { waiting: y, left }) => {
            Traffic::Known {
                waiting: x && y,
                left,
            }
        }
        (Traffic::Unknown, known) | (known, Traffic::Unknown) => known,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WindowTraffic {
    Stuck,
    Moves,
    Unknown,
}

#[cfg(test)]
#[path = "storm_tests.rs"]
mod tests;
