//! The difference between two taps' clocks.
//!
//! First roughly, from sightings of the same packets all over both captures (a sample by hash, the same at both): the
//! median of the differences, and its drift. Then finely, in windows: of two hosts that send both ways, the packets of one
//! way pass tap A first, the others tap B. The least differences of both ways, as in NTP, give the clocks' difference under
//! the one assumption that the shortest delays of both ways are equal. With one way only there is no telling.

use std::collections::HashMap;

use rocexdp_common::ids::Gid;

use super::tap::Key;

/// Keys kept of the sample at most.
const SAMPLE: usize = 1 << 18;
/// Differences of a window at most.
const WINDOW_MOST: usize = 1 << 16;
/// Length of a window: clocks that drift by 100 ppm differ by 1 us over it.
const WINDOW_NS: i64 = 10_000_000;

/// The rough difference: B's clock less A's, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rough {
    /// At `at`.
    pub offset: i64,
    pub at: i64,
    /// Nanoseconds per second.
    pub drift: f64,
    pub matches: usize,
}

impl Rough {
    /// The difference at a time of A.
    pub(super) fn at(&self, time: i64) -> i64 {
        let seconds = time.saturating_sub(self.at) as f64 / 1e9;
        self.offset.saturating_add((self.drift * seconds) as i64)
    }
}

/// A sample of one capture's packets.
pub(super) struct Sample {
    times: HashMap<Key, Option<i64>>,
    /// Kept are keys whose hash has so many low bits zero.
    bits: u32,
}

impl Sample {
    pub(super) fn new() -> Self {
        Self {
            times: HashMap::new(),
            bits: 0,
        }
    }

    fn hash(key: &Key) -> u64 {
        let words = (u64::from(key.direction) << 32 | u64::from(key.psn.get()))
            ^ (u64::from(key.opcode) << 56 | u64::from(key.ip_id) << 40);
        let mixed = (words ^ words >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    }

    fn keeps(&self, key: &Key) -> bool {
        Self::hash(key).trailing_zeros() >= self.bits
    }

    pub(super) fn push(&mut self, key: Key, time: i64) {
        if !self.keeps(&key) {
            return;
        }
        // What comes twice can't tell.
        self.times
            .entry(key)
            .and_modify(|t| *t = None)
            .or_insert(Some(time));
        if self.times.len() > SAMPLE {
            self.bits += 1;
            let bits = self.bits;
            self.times
                .retain(|key, _| Self::hash(key).trailing_zeros() >= bits);
        }
    }

    /// Matches with the other capture's sample.
    pub(super) fn compare(&self, other: &Self) -> Option<Rough> {
        let mut pairs: Vec<(i64, i64)> = self
            .times
            .iter()
            .filter_map(|(key, a)| {
                let (a, b) = ((*a)?, (*other.times.get(key)?)?);
                Some((a, b.checked_sub(a)?))
            })
            .collect();
        pairs.sort_unstable();
        let matches = pairs.len();
        let at = pairs.get(matches / 2)?.0;
        let all = median(&pairs)?;
        // Drift: between the first and the last third, where there are enough of both.
        let third = matches / 3;
        let mut drift = 0.0;
        let mut offset = all;
        if third >= 30
            && let (Some(head), Some(tail)) = (pairs.get(..third), pairs.get(matches - third..))
            && let (Some(first), Some(last)) = (median(head), median(tail))
            && let (Some(from), Some(to)) = (head.get(third / 2), tail.get(third / 2))
        {
            let seconds = (to.0 - from.0) as f64 / 1e9;
            if seconds > 1.0 {
                drift = (last - first) as f64 / seconds;
                offset = first.saturating_add((drift * (at - from.0) as f64 / 1e9) as i64);
            }
        }
        Some(Rough {
            offset,
            at,
            drift,
            matches,
        })
    }
}

fn median(pairs: &[(i64, i64)]) -> Option<i64> {
    let mut differences: Vec<_> = pairs.iter().map(|pair| pair.1).collect();
    differences.sort_unstable();
    differences.get(differences.len() / 2).copied()
}

/// A matched packet whose difference waits for its window's offset.
struct Waiting {
    direction: u32,
    difference: i64,
}

/// Least and largest difference of one way between two hosts.
#[derive(Clone, Copy)]
struct Extremes {
    least: i64,
    most: i64,
}

/// The fine difference, window by window.
pub(super) struct Fine {
    window: Vec<Waiting>,
    began: Option<i64>,
    /// B's clock less A's at the last window that told.
    pub offset: Option<i64>,
    /// Of the first window that told.
    pub first: Option<(i64, i64)>,
    pub last: Option<(i64, i64)>,
    /// Half the shortest way there and back.
    pub shortest: Option<i64>,
}

impl Fine {
    pub(super) fn new() -> Self {
        Self {
            window: Vec::new(),
            began: None,
            offset: None,
            first: None,
            last: None,
            shortest: None,
        }
    }

    /// Takes a packet seen by both; gives a full window's delays, B after A positive, to `out`.
    pub(super) fn push(
        &mut self,
        time: i64,
        direction: u32,
        difference: i64,
        hosts: impl Fn(u32) -> Option<(Gid, Gid)>,
        out: impl FnMut(u32, i64),
    ) {
        let began = *self.began.get_or_insert(time);
        self.window.push(Waiting {
            direction,
            difference,
        });
        if time.saturating_sub(began) >= WINDOW_NS || self.window.len() >= WINDOW_MOST {
            self.finish(time, hosts, out);
        }
    }

    /// Ends the window.
    pub(super) fn finish(
        &mut self,
        time: i64,
        hosts: impl Fn(u32) -> Option<(Gid, Gid)>,
        mut out: impl FnMut(u32, i64),
    ) {
        let mut ways: HashMap<(Gid, Gid), Extremes> = HashMap::new();
        for w in &self.window {
            let Some(way) = hosts(w.direction) else {
                continue;
            };
            ways.entry(way)
                .and_modify(|e| {
                    e.least = e.least.min(w.difference);
                    e.most = e.most.max(w.difference);
                })
                .or_insert(Extremes {
                    least: w.difference,
                    most: w.difference,
                });
        }
        let mut best: Option<(i64, i64)> = None;
        for ((src, dst), there) in &ways {
            let Some(back) = ways.get(&(*dst, *src)) else {
                continue;
            };
            // Seen from either end once: the way that passes A first has the larger differences.
            let twice = there.least.saturating_sub(back.most);
            let offset = back.most.saturating_add(twice / 2);
            if twice >= 0 && best.is_none_or(|(shortest, _)| twice / 2 < shortest) {
                best = Some((twice / 2, offset));
            }
        }
        if let Some((shortest, offset)) = best {
            self.offset = Some(offset);
            self.first.get_or_insert((time, offset));
            self.last = Some((time, offset));
            self.shortest = Some(self.shortest.map_or(shortest, |s| s.min(shortest)));
        }
        if let Some(offset) = self.offset {
            for w in &self.window {
                out(w.direction, w.difference.saturating_sub(offset));
            }
        }
        self.window.clear();
        self.began = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocexdp_common::ids::{Psn, gid_from_ipv4};

    fn key(n: u32) -> Key {
        Key {
            direction: n % 3,
            psn: Psn::new(n),
            opcode: 4,
            ip_id: n as u16,
        }
    }

    #[test]
    fn a_shift_and_a_drift_are_found_in_a_sample() {
        let (mut a, mut b) = (Sample::new(), Sample::new());
        for n in 0..600_000_u32 {
            let time = i64::from(n) * 20_000;
            a.push(key(n), time);
            // A minute ahead, 50 ppm faster; each tenth is lost.
            if n % 10 != 0 {
                b.push(
                    key(n),
                    time + 60_000_000_000 + time / 20_000 + i64::from(n % 7) * 1000,
                );
            }
        }
        assert!(a.times.len() <= SAMPLE);
        let rough = a.compare(&b).unwrap();
        assert!(rough.matches > 50_000, "{rough:?}");
        assert!((rough.drift - 50_000.0).abs() < 500.0, "{rough:?}");
        for time in [0, 6_000_000_000, 12_000_000_000] {
            let error = rough.at(time) - (60_000_000_000 + time / 20_000);
            assert!(error.abs() < 20_000, "{time}: {error}");
        }
        assert_eq!(a.compare(&Sample::new()), None);
    }

    #[test]
    fn both_ways_tell_the_offset_and_one_way_does_not() {
        let (x, y) = (gid_from_ipv4([10, 0, 0, 1]), gid_from_ipv4([10, 0, 0, 2]));
        let hosts = |d: u32| Some(if d == 0 { (x, y) } else { (y, x) });
        let mut fine = Fine::new();
        let mut delays = Vec::new();
        // Clock 1 s ahead; 5 us there, 5 us and more back.
        for i in 0..1000 {
            fine.push(
                i * 100_000,
                0,
                1_000_000_000 + 5_000 + i % 50,
                hosts,
                |d, n| delays.push((d, n)),
            );
            fine.push(
                i * 100_000,
                1,
                1_000_000_000 - 5_000 - i % 70,
                hosts,
                |d, n| delays.push((d, n)),
            );
        }
        assert_eq!(fine.offset, Some(1_000_000_000));
        assert_eq!(fine.shortest, Some(5_000));
        assert!(
            delays
                .iter()
                .all(|&(d, n)| (n > 0) == (d == 0) && (5_000..5_100).contains(&n.abs()))
        );

        let mut fine = Fine::new();
        for i in 0..1000 {
            fine.push(i * 100_000, 0, 77, hosts, |_, _| {
                panic!("no delay is known")
            });
        }
        assert_eq!(fine.offset, None);
    }
}
