//! PFC storms on interfaces: what is read of pauses and traffic, judged per priority by [`storm`].
//!
//! Time paused comes from the NIC (ethtool) where its driver counts it, else from the pause frames that XDP saw; a MAC usually
//! keeps those to itself, so that no frame seen is no proof. What waits is known of our own engine only. Reads nothing by itself:
//! [`Watch::look`] gets what others read.

mod light;
mod sentry;
pub mod storm;

use std::fmt;

use rocexdp_common::maps::{LinkControl, PausePriority};
use serde::Serialize;

pub use light::{Reader, Reading};
pub use sentry::Sentry;
pub use storm::{Certainty, Change, Config, Released};
use storm::{Detector, Look, NoShare};

use crate::nic::{Direction, Item, NicCounters};

/// Priorities, and global pause as the ninth.
pub const CHANNELS: usize = 9;
/// Position of global pause among the channels.
pub const GLOBAL: usize = 8;

/// What is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Channel(pub u8);

impl Channel {
    /// Its label: the priority's number, or `global`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        const NAMES: [&str; CHANNELS] = ["0", "1", "2", "3", "4", "5", "6", "7", "global"];
        if (self.0 as usize) < CHANNELS {
            NAMES[self.0 as usize]
        } else {
            "none"
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            8 => f.write_str("global pause"),
            n => write!(f, "priority {n}"),
        }
    }
}

/// A storm began, was confirmed, or ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StormEvent {
    /// Interface.
    pub iface: String,
    /// Priority.
    pub channel: Channel,
    /// ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// What happened.
    #[serde(flatten)]
    pub change: Change,
}

impl fmt::Display for StormEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iface, channel, .. } = self;
        match self.change {
            Change::Flagged {
                certainty: Certainty::Storm,
                share,
            } => write!(
                f,
                "{iface}: PFC storm, {channel}: paused {:.1} % of the window, traffic waits and none leaves",
                share * 100.0
            ),
            Change::Flagged {
                certainty: Certainty::Suspected,
                share,
            } => write!(
                f,
                "{iface}: PFC storm suspected, {channel}: paused {:.1} % of the window; whether traffic waits is not known",
                share * 100.0
            ),
            Change::Released { reason, lasted_ns } => {
                let why = match reason {
                    Released::NotPaused => "it is paused less",
                    Released::TrafficMoves => "traffic leaves, or none waits",
                    Released::LinkDown => "the link went down",
                    Released::Unknown => "its counter no longer tells",
                };
                write!(
                    f,
                    "{iface}: PFC storm over after {:.1} s, {channel}: {why}",
                    lasted_ns as f64 / 1e9
                )
            }
        }
    }
}

/// Where the time paused comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PauseSource {
    /// The NIC's own counters.
    Nic,
    /// Pause frames that XDP saw.
    Xdp,
}

/// What is known of one channel.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which.
    pub channel: Channel,
    /// The flag.
    pub flagged: Option<Certainty>,
    /// Share of the last window that was paused, 0 to 1, or why it is not known.
    pub share: Result<f64, NoShare>,
    /// Where the time comes from.
    pub source: PauseSource,
}

/// The detectors of one interface.
#[derive(Clone, Debug)]
pub struct Watch {
    iface: String,
    detectors: Vec<Detector>,
    sources: [PauseSource; CHANNELS],
}

impl Watch {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(iface: &str, config: Config) -> Self {
        Self {
            iface: iface.to_owned(),
            detectors: vec![Detector::new(config); CHANNELS],
            sources: [PauseSource::Xdp; CHANNELS],
        }
    }

    /// Takes what was read; returns what it changed.
    pub fn look(&mut self, reading: &Reading, nic: Option<&NicCounters>) -> Vec<StormEvent> {
        let mut events = Vec::new();
        for (index, detector) in self.detectors.iter_mut().enumerate() {
            let by_nic = nic.and_then(|nic| nic_paused(nic, index));
            let source = match by_nic {
                Some(_) => PauseSource::Nic,
                None => PauseSource::Xdp,
            };
            if let Some(place) = self.sources.get_mut(index)
                && *place != source
            {
                // Two counters have nothing to do with each other.
                *place = source;
                *detector = detector.anew();
            }
            let look = Look {
                now_ns: reading.time_ns,
                link_up: reading.link_up,
                paused_ns: by_nic
                    .or_else(|| xdp_paused(&reading.link_control, index, reading.time_ns)),
                traffic: reading.traffic,
            };
            if let Some(change) = detector.look(&look) {
                events.push(StormEvent {
                    iface: self.iface.clone(),
                    channel: Channel(index as u8),
                    time_ns: reading.time_ns,
                    change,
                });
            }
        }
        events
    }

    /// Nobody reads any more: takes every flag back, and begins anew.
    pub fn end(&mut self, now_ns: u64) -> Vec<StormEvent> {
        let (iface, mut events) = (&self.iface, Vec::new());
        for (index, detector) in self.detectors.iter_mut().enumerate() {
            events.extend(detector.end(now_ns).map(|change| StormEvent {
                iface: iface.clone(),
                channel: Channel(index as u8),
                time_ns: now_ns,
                change,
            }));
        }
        self.sources = [PauseSource::Xdp; CHANNELS];
        events
    }

    /// What is known now.
    pub fn reports(&self) -> impl Iterator<Item = Report> + '_ {
        self.detectors
            .iter()
            .zip(self.sources)
            .enumerate()
            .map(|(index, (detector, source))| Report {
                channel: Channel(index as u8),
                flagged: detector.flagged(),
                share: detector.share(),
                source,
            })
    }
}

/// Time paused that the NIC counts of a channel, ns.
fn nic_paused(nic: &NicCounters, index: usize) -> Option<u64> {
    let us = match nic.pauses.rx.get(index) {
        Some(counts) => counts.duration_us,
        None => nic
            .pauses
            .port_wide
            .iter()
            .find(|p| p.direction == Direction::Rx && p.item == Item::DurationUs)
            .map(|p| p.value),
    };
    us.map(|us| us.saturating_mul(1000))
}

/// The pauses of a channel on one queue.
#[must_use]
pub fn channel_of(control: &LinkControl, index: usize) -> &PausePriority {
    control.pfc.get(index).unwrap_or(&control.global)
}

/// Time paused by the frames that XDP saw, ns; `None`: no program counts them, or the rate of the link is not known.
///
/// Frames without an IP header all come in on one queue. Should they not, the queue that was paused longest is taken: less than
/// the truth, so that nothing is flagged that was not paused.
fn xdp_paused(queues: &[LinkControl], index: usize, now_ns: u64) -> Option<u64> {
    let mut longest = None;
    for control in queues {
        let pause = channel_of(control, index);
        // A frame that asks for time and gets none: QUANTUM_PS is 0.
        if pause.pauses > 0 && pause.paused_ns == 0 && pause.until_ns <= pause.since_ns {
            return None;
        }
        longest = longest.max(Some(pause.paused_until(now_ns)));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::{storm::Traffic, *};
    use crate::nic::PortWide;

    const MS: u64 = 1_000_000;

    fn reading(time_ns: u64, pause: PausePriority, priority: usize) -> Reading {
        let mut control = LinkControl::default();
        control.pfc[priority] = pause;
        Reading {
            time_ns,
            link_up: true,
            link_control: vec![LinkControl::default(), control],
            traffic: Traffic::Unknown,
        }
    }

    #[test]
    fn frames_renewed_without_a_gap_are_flagged_and_with_gaps_are_not() {
        // 65535 quanta at 10 Gb/s pause for 3.36 ms.
        for (every, flagged) in [(3 * MS, true), (3 * MS + 400_000, false), (4 * MS, false)] {
            let mut watch = Watch::new("eth0", Config::default());
            let mut pause = PausePriority::default();
            let mut events = Vec::new();
            let mut next = 10 * MS;
            for now in (10 * MS..3000 * MS).step_by(100_000) {
                if now >= next {
                    pause.take(0xffff, 51_200, next);
                    next += every;
                }
                if now % (100 * MS) == 0 {
                    events.extend(watch.look(&reading(now, pause, 3), None));
                }
            }
            assert_eq!(events.len(), usize::from(flagged), "{every}: {events:?}");
            for event in events {
                assert_eq!(event.channel, Channel(3));
                assert!(
                    event.to_string().contains("suspected, priority 3"),
                    "{event}"
                );
            }
        }
    }

    #[test]
    fn a_storm_ends_when_nobody_looks_any_more_and_the_next_look_begins_anew() {
        let mut watch = Watch::new("eth0", Config::default());
        let mut pause = PausePriority::default();
        let mut storm = |watch: &mut Watch, from: u64, to: u64| {
            let mut events = Vec::new();
            for now in (from * MS..=to * MS).step_by(1_000_000) {
                pause.take(0xffff, 51_200, now);
                if now % (100 * MS) == 0 {
                    events.extend(watch.look(&reading(now, pause, 3), None));
                }
            }
            events
        };
        assert_eq!(storm(&mut watch, 100, 2000).len(), 1);
        let over = watch.end(2500 * MS);
        let [event] = &over[..] else {
            panic!("{over:?}")
        };
        assert_eq!(event.channel, Channel(3));
        assert!(
            matches!(event.change, Change::Released { reason: Released::Unknown, lasted_ns } if lasted_ns > 1_000 * MS),
            "{event:?}"
        );
        assert!(
            watch
                .reports()
                .all(|r| r.flagged.is_none() && r.share.is_err())
        );
        assert_eq!(watch.end(2600 * MS), [], "said once");
        // A window must be full again.
        assert_eq!(storm(&mut watch, 3000, 3900), []);
        assert_eq!(storm(&mut watch, 3901, 4200).len(), 1);
    }

    #[test]
    fn a_link_of_unknown_rate_tells_no_time() {
        let mut pause = PausePriority::default();
        pause.take(0xffff, 0, 5);
        assert_eq!(xdp_paused(&reading(9, pause, 0).link_control, 0, 9), None);
        // A resume before any pause is no sign of it.
        let mut resumed = PausePriority::default();
        resumed.take(0, 0, 5);
        assert_eq!(
            xdp_paused(&reading(9, resumed, 0).link_control, 0, 9),
            Some(0)
        );
        assert_eq!(xdp_paused(&[], 0, 9), None);
    }

    #[test]
    fn the_nic_is_believed_before_xdp() {
        let mut nic = NicCounters::default();
        nic.pauses.rx[3].duration_us = Some(0);
        nic.pauses.port_wide.push(PortWide {
            name: "rx_global_pause_duration".to_owned(),
            direction: Direction::Rx,
            item: Item::DurationUs,
            value: 0,
        });
        let mut watch = Watch::new("eth0", Config::default());
        let mut events = Vec::new();
        for tick in 0..20_u64 {
            nic.pauses.rx[3].duration_us = Some(tick * 100_000);
            nic.pauses.port_wide[0].value = tick * 100_000;
            events.extend(watch.look(
                &reading(tick * 100 * MS, PausePriority::default(), 0),
                Some(&nic),
            ));
        }
        let channels: Vec<&str> = events.iter().map(|e| e.channel.name()).collect();
        assert_eq!(channels, ["3", "global"]);
        let sources: Vec<PauseSource> = watch.reports().map(|r| r.source).collect();
        assert_eq!(
            sources.iter().filter(|s| **s == PauseSource::Nic).count(),
            2
        );
    }
}
