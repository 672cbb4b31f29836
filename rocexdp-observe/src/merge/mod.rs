//! Two captures of the same traffic, taken at two points: between which of them, or outside of them, packets were lost.
//!
//! A packet is recognised by addresses, destination QP, PSN, opcode and IP identification; where copies look the same, by
//! time. The clocks may differ: `clock`. Two passes over two files. The first estimates the clocks' difference; the second
//! walks both captures in order of time with a queue of what one tap saw and the other not yet, so that memory is bounded by
//! flows and by the packets of a fraction of a second. What only one tap saw while the other was not recording is no loss.

mod clock;
mod report;
mod stream;
mod tap;
mod text;

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
};

use rocexdp_common::ids::Gid;

use crate::capture::CaptureError;
use clock::{Fine, Rough, Sample};
pub use report::{Clock, Delay, Direction, Loss, MergeReport, Place, TapReport, Which};
use stream::{Elsewhere, Seen, Stream};
use tap::{Directions, Key, Role, Sighting, Tap};

/// The other tap sees a packet within this, or not.
const HORIZON_NS: i64 = 200_000_000;
/// Packets that wait for the other tap at most; then the oldest don't wait any longer.
const WAITING_MOST: usize = 1 << 21;
/// Losses listed one by one.
const LISTED_MOST: usize = 1000;
/// Where a recording begins or ends, so much is not counted as missing, nor less than the longest delay seen.
const EDGE_NS: i64 = 100_000;
/// Packets of a direction near an edge that wait for a later one of it that both taps saw.
const UNSURE_MOST: usize = 4096;

/// What a capture of the two failed with.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct MergeError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: CaptureError,
}

/// A packet in the queue.
struct Waiting {
    /// By A's clock, as far as the clocks' difference is known.
    time: i64,
    key: Key,
    role: Role,
    a: Option<(u64, i64)>,
    b: Option<(u64, i64)>,
}

/// A packet that one tap saw near the edge of the other's recording, with what is told if that was recording.
pub(super) struct Unsure {
    /// By the clock of the tap that saw it.
    time: i64,
    told: Told,
}

/// A loss before the order of the taps is known.
struct Told {
    direction: u32,
    place: Untold,
    psn: u32,
    opcode: u8,
    time: i64,
    frames: (Option<u64>, Option<u64>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Untold {
    OnlyA,
    OnlyB,
    Elsewhere(Elsewhere),
}

/// Compares two captures; `progress` is called now and then, with the packets compared.
///
/// # Errors
/// If a capture can't be opened or is none. One that is cut or damaged is compared up to there, with a note.
pub fn merge(
    first: &Path,
    second: &Path,
    mut progress: impl FnMut(u64),
) -> Result<MergeReport, MergeError> {
    let mut directions = Directions::default();
    let (mut bounds, mut samples) = (Vec::new(), Vec::new());
    for path in [first, second] {
        let mut tap = Tap::open(path, &mut directions)?;
        let mut sample = Sample::new();
        while let Some(sighting) = tap.take(&mut directions)? {
            sample.push(sighting.key, sighting.time);
        }
        bounds.push((tap.first.unwrap_or(0), tap.last));
        samples.push(sample);
    }
    let rough = match samples.as_slice() {
        [a, b] => a.compare(b),
        _ => None,
    };
    drop(samples);
    let (Some(&bounds_a), Some(&bounds_b)) = (bounds.first(), bounds.get(1)) else {
        return Ok(MergeReport::default());
    };
    let mut taps = (
        Tap::open(first, &mut directions)?,
        Tap::open(second, &mut directions)?,
    );
    let Some(rough) = rough else {
        while taps.0.take(&mut directions)?.is_some() {}
        while taps.1.take(&mut directions)?.is_some() {}
        return Ok(report::of_strangers(&taps));
    };
    let mut merge = Merge {
        rough,
        bounds: (bounds_a, bounds_b),
        waiting: VecDeque::new(),
        gone: 0,
        unmatched: HashMap::new(),
        streams: Vec::new(),
        answered: HashMap::new(),
        untied: HashMap::new(),
        fine: Fine::new(),
        longest: EDGE_NS,
        told: Vec::new(),
        not_listed: 0,
    };
    let mut compared: u64 = 0;
    loop {
        let a = taps.0.next.map(|s| s.time);
        let b = taps.1.next.map(|s| merge.time_of_b(s.time));
        let from_a = match (a, b) {
            (None, None) => break,
            (Some(a), Some(b)) => a <= b,
            (Some(_), None) => true,
            (None, Some(_)) => false,
        };
        let (tap, which) = if from_a {
            (&mut taps.0, Which::A)
        } else {
            (&mut taps.1, Which::B)
        };
        if let Some(sighting) = tap.take(&mut directions)? {
            merge.sighting(&sighting, which, &directions);
        }
        compared += 1;
        if compared.is_multiple_of(1 << 16) {
            progress(compared);
        }
    }
    merge.end(&directions);
    Ok(report::build(merge, &directions, &taps))
}

struct Merge {
    rough: Rough,
    bounds: ((i64, i64), (i64, i64)),
    waiting: VecDeque<Waiting>,
    /// Packets that have left the queue: numbers in `unmatched` count from the first ever.
    gone: u64,
    unmatched: HashMap<(Which, Key), VecDeque<u64>>,
    streams: Vec<Stream>,
    /// Direction of requests that answers of a direction belong to.
    answered: HashMap<u32, u32>,
    /// Directions of requests between two hosts whose answers are not known yet.
    untied: HashMap<(Gid, Gid), Vec<u32>>,
    fine: Fine,
    /// Longest difference of a match, by the rough clock.
    longest: i64,
    told: Vec<Told>,
    not_listed: u64,
}

impl Merge {
    fn time_of_b(&self, time: i64) -> i64 {
        time.saturating_sub(self.rough.at(time.saturating_sub(self.rough.offset)))
    }

    fn sighting(&mut self, sighting: &Sighting, which: Which, directions: &Directions) {
        let time = match which {
            Which::A => sighting.time,
            Which::B => self.time_of_b(sighting.time),
        };
        let seen = Some((sighting.frame, sighting.time));
        if let Some(index) = self.match_of(which.other(), &sighting.key, time) {
            let place = index.wrapping_sub(self.gone) as usize;
            if let Some(found) = self.waiting.get_mut(place) {
                match which {
                    Which::A => found.a = seen,
                    Which::B => found.b = seen,
                }
                self.longest = self.longest.max((time - found.time).abs());
            }
        } else {
            let index = self.gone + self.waiting.len() as u64;
            self.unmatched
                .entry((which, sighting.key))
                .or_default()
                .push_back(index);
            let (a, b) = match which {
                Which::A => (seen, None),
                Which::B => (None, seen),
            };
            self.waiting.push_back(Waiting {
                time,
                key: sighting.key,
                role: sighting.role,
                a,
                b,
            });
        }
        self.settle(time.saturating_sub(HORIZON_NS), directions);
    }

    /// The packet in the queue that the other tap saw and this is: of several the one nearest in time.
    fn match_of(&mut self, other: Which, key: &Key, time: i64) -> Option<u64> {
        let queued = self.unmatched.get_mut(&(other, *key))?;
        let (at, index) = queued
            .iter()
            .enumerate()
            .filter_map(|(at, &index)| {
                let waiting = self.waiting.get(index.checked_sub(self.gone)? as usize)?;
                Some((waiting.time.abs_diff(time), at, index))
            })
            .min()
            .map(|(_, at, index)| (at, index))?;
        queued.remove(at);
        if queued.is_empty() {
            self.unmatched.remove(&(other, *key));
        }
        Some(index)
    }

    /// Lets go of what both saw and of what is older than `until`, in order.
    fn settle(&mut self, until: i64, directions: &Directions) {
        while let Some(first) = self.waiting.front() {
            let matched = first.a.is_some() && first.b.is_some();
            if !matched && first.time >= until && self.waiting.len() <= WAITING_MOST {
                return;
            }
            let index = self.gone;
            self.gone += 1;
            let Some(first) = self.waiting.pop_front() else {
                return;
            };
            if !matched {
                let which = if first.a.is_some() {
                    Which::A
                } else {
                    Which::B
                };
                if let Some(queued) = self.unmatched.get_mut(&(which, first.key)) {
                    queued.retain(|&i| i != index);
                    if queued.is_empty() {
                        self.unmatched.remove(&(which, first.key));
                    }
                }
            }
            self.settled(&first, directions);
        }
    }

    fn end(&mut self, directions: &Directions) {
        self.settle(i64::MAX, directions);
        let Self { fine, streams, .. } = self;
        let hosts = |d: u32| directions.list.get(d as usize).map(|d| (d.0, d.1));
        fine.finish(i64::MAX, hosts, |d, ns| {
            if let Some(stream) = streams.get_mut(d as usize) {
                stream.delay(ns);
            }
        });
    }

    /// Whether the other tap was recording when one saw this.
    fn was_recording(&self, packet: &Waiting) -> bool {
        let edge = self.longest;
        let (first, last) = match (packet.a, packet.b) {
            (Some(_), None) => {
                let (first, last) = self.bounds.1;
                (self.time_of_b(first), self.time_of_b(last))
            }
            _ => self.bounds.0,
        };
        let inside = first.saturating_add(edge)..=last.saturating_sub(edge);
        inside.contains(&packet.time)
    }

    /// Takes a packet whose sightings are complete, in order of time.
    fn settled(&mut self, packet: &Waiting, directions: &Directions) {
        let d = packet.key.direction as usize;
        if self.streams.len() < directions.list.len() {
            self.streams
                .resize_with(directions.list.len(), Stream::default);
        }
        let recording = self.was_recording(packet);
        let Some(stream) = self.streams.get_mut(d) else {
            return;
        };
        let mut place = None;
        let seen = match (packet.a, packet.b) {
            (Some((_, a)), Some((_, b))) => {
                stream.both += 1;
                let between = stream.sure(a, b);
                let difference = b.saturating_sub(a);
                let Self { fine, streams, .. } = self;
                let hosts = |d: u32| directions.list.get(d as usize).map(|d| (d.0, d.1));
                fine.push(a, packet.key.direction, difference, hosts, |d, ns| {
                    if let Some(stream) = streams.get_mut(d as usize) {
                        stream.delay(ns);
                    }
                });
                for told in between {
                    self.list(told);
                }
                Seen::Both
            }
            _ if !recording => {
                stream.outside += 1;
                let (place, seen) = match packet.a {
                    Some(_) => (Untold::OnlyA, packet.a),
                    None => (Untold::OnlyB, packet.b),
                };
                if let Some((_, time)) = seen
                    && stream.unsure.len() < UNSURE_MOST
                {
                    let told = told(packet, packet.key.direction, place);
                    stream.unsure.push(Unsure { time, told });
                }
                Seen::One
            }
            (Some(_), None) => {
                stream.only_a += 1;
                // A direction that the other tap never sees has no losses to list.
                place = (stream.both != 0).then_some(Untold::OnlyA);
                Seen::One
            }
            _ => {
                stream.only_b += 1;
                place = (stream.both != 0).then_some(Untold::OnlyB);
                Seen::One
            }
        };
        self.tell(packet, packet.key.direction, place);
        self.follow(packet, seen, directions);
    }

    /// What the packet tells of others of its stream, or of the one it answers.
    fn follow(&mut self, packet: &Waiting, seen: Seen, directions: &Directions) {
        let (d, psn) = (packet.key.direction, packet.key.psn);
        if let Role::Request { one } = packet.role {
            let Some(stream) = self.streams.get_mut(d as usize) else {
                return;
            };
            let new = !stream.tied && stream.both + stream.only_a + stream.only_b == 1;
            let elsewhere = stream.request(psn, packet.time, seen, one);
            if new && let Some((src, dst, _)) = directions.list.get(d as usize) {
                self.untied.entry((*src, *dst)).or_default().push(d);
            }
            self.tell(packet, d, elsewhere.map(Untold::Elsewhere));
            return;
        }
        if packet.role == Role::Other {
            return;
        }
        let Some(requests) = self.requests_of(packet, directions) else {
            return;
        };
        let Some(stream) = self.streams.get_mut(requests as usize) else {
            return;
        };
        match packet.role {
            Role::Nak => {
                let elsewhere = stream.nak(psn);
                self.tell(packet, requests, elsewhere.map(Untold::Elsewhere));
            }
            Role::Rnr => stream.rnr(),
            _ => {}
        }
    }

    /// The direction that the packet answers: the one between the same hosts that had this PSN, if it is the only one.
    fn requests_of(&mut self, packet: &Waiting, directions: &Directions) -> Option<u32> {
        let d = packet.key.direction;
        if let Some(&requests) = self.answered.get(&d) {
            return Some(requests);
        }
        let (src, dst, _) = *directions.list.get(d as usize)?;
        let untied = self.untied.get_mut(&(dst, src))?;
        let streams = &self.streams;
        let mut having = untied.iter().enumerate().filter(|&(_, &d)| {
            streams
                .get(d as usize)
                .is_some_and(|stream| stream.has(packet.key.psn))
        });
        let (at, &requests) = having.next()?;
        if having.next().is_some() {
            return None;
        }
        untied.swap_remove(at);
        self.answered.insert(d, requests);
        self.streams.get_mut(requests as usize)?.tied = true;
        Some(requests)
    }

    fn tell(&mut self, packet: &Waiting, direction: u32, place: Option<Untold>) {
        let Some(place) = place else {
            return;
        };
        if place == Untold::Elsewhere(Elsewhere::Overtaken) {
            return;
        }
        self.list(told(packet, direction, place));
    }

    fn list(&mut self, told: Told) {
        if self.told.len() >= LISTED_MOST {
            self.not_listed += 1;
            return;
        }
        self.told.push(told);
    }
}

fn told(packet: &Waiting, direction: u32, place: Untold) -> Told {
    Told {
        direction,
        place,
        psn: packet.key.psn.get(),
        opcode: packet.key.opcode,
        time: packet.time,
        frames: (packet.a.map(|a| a.0), packet.b.map(|b| b.0)),
    }
}
