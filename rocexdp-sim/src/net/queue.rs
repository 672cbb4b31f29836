//! What happens next: a calendar of buckets, each as wide as a few events, with a heap for what lies beyond its last one.
//!
//! Events come out by (time, sequence), so that those of one time come out in the order of their numbers and a run repeats. One
//! costs about the same however many there are: it is linked into its bucket, and sorted among the few of that bucket when
//! their time has come. Entries are kept in one slab whose free ones are used again, the last one first: nothing is allocated
//! once the most events at once have been seen. After R. Brown, "Calendar Queues" (CACM 31, 1988), but for the heap.
//!
//! Must not: know what an event is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::picos::Picos;

/// Buckets, a power of two; the bitmap's summary is one word.
const BUCKETS: usize = 4096;
const WORDS: usize = BUCKETS / 64;
/// End of a list.
const NONE: u32 = u32::MAX;

/// An event: when, its number among those of one time, and what.
pub(super) type Event = (Picos, u64, u32);

struct Entry {
    event: Event,
    next: u32,
}

/// The queue.
pub(super) struct EventQueue {
    /// A bucket is 2^shift ps wide.
    shift: u32,
    /// Number of the bucket that `current` holds, from time 0.
    bucket: u64,
    /// Its events, the next one last.
    current: Vec<Event>,
    /// Lists of the events in the buckets after it, in no order.
    heads: Box<[u32; BUCKETS]>,
    /// Which lists are not empty, and which words of that are not 0.
    filled: [u64; WORDS],
    summary: u64,
    entries: Vec<Entry>,
    free: u32,
    /// What comes after the last bucket.
    far: BinaryHeap<Reverse<Event>>,
    len: usize,
}

impl EventQueue {
    /// For events that come `gap` apart on average.
    pub(super) fn new(gap: Picos) -> Self {
        // About eight to a bucket; from 64 ps to 1 us.
        let shift = (64 - gap.0.leading_zeros() + 2).clamp(6, 20);
        Self {
            shift,
            bucket: 0,
            current: Vec::with_capacity(64),
            heads: Box::new([NONE; BUCKETS]),
            filled: [0; WORDS],
            summary: 0,
            entries: Vec::new(),
            free: NONE,
            far: BinaryHeap::new(),
            len: 0,
        }
    }

    /// Events that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds an event, which is not earlier than the last one taken.
    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        self.len += 1;
        let bucket = event.0.0 >> self.shift;
        if bucket <= self.bucket {
            let key = (event.0, event.1);
            let at = self.current.partition_point(|e| (e.0, e.1) > key);
            self.current.insert(at, event);
        } else if bucket - self.bucket < BUCKETS as u64 {
            self.link(bucket, event);
        } else {
            self.far.push(Reverse(event));
        }
    }

    /// When the next event is.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<Picos> {
        if self.current.is_empty() && !self.turn() {
            return None;
        }
        self.current.last().map(|e| e.0)
    }

    /// Takes the next event, if it is not later than `until`.
    #[inline]
    pub(super) fn pop(&mut self, until: Picos) -> Option<Event> {
        if self.peek()? > until {
            return None;
        }
        self.len -= 1;
        self.current.pop()
    }

    fn link(&mut self, bucket: u64, event: Event) {
        let slot = bucket as usize % BUCKETS;
        let next = self.heads[slot];
        let at = match self.entries.get_mut(self.free as usize) {
            Some(entry) => {
                let at = self.free;
                self.free = entry.next;
                *entry = Entry { event, next };
                at
            }
            None => {
                self.entries.push(Entry { event, next });
                (self.entries.len() - 1) as u32
            }
        };
        self.heads[slot] = at;
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
    }

    /// Goes on to the next bucket that has events. False: none has.
    #[cold]
    #[inline(never)]
    fn turn(&mut self) -> bool {
        let near = self.next_filled();
        let far = self.far.peek().map(|Reverse(e)| e.0.0 >> self.shift);
        let Some(bucket) = near.into_iter().chain(far).min() else {
            return false;
        };
        self.bucket = bucket;
        let slot = bucket as usize % BUCKETS;
        let mut at = self.heads[slot];
        // With the bucket's number moved on, what lies ahead of the far events may have come within reach. Those of this very
        // bucket go straight to where they are wanted.
        self.heads[slot] = NONE;
        self.filled[slot / 64] &= !(1 << (slot % 64));
        if self.filled[slot / 64] == 0 {
            self.summary &= !(1 << (slot / 64));
        }
        while let Some(entry) = self.entries.get_mut(at as usize) {
            self.current.push(entry.event);
            let next = core::mem::replace(&mut entry.next, self.free);
            self.free = at;
            at = next;
        }
        while let Some(Reverse(e)) = self.far.peek() {
            let (b, e) = (e.0.0 >> self.shift, *e);
            if b - self.bucket >= BUCKETS as u64 {
                break;
            }
            self.far.pop();
            if b == self.bucket {
                self.current.push(e);
            } else {
                self.link(b, e);
            }
        }
        self.current.sort_unstable_by_key(|e| Reverse((e.0, e.1)));
        true
    }

    /// The first bucket after the current one with events in its list.
    fn next_filled(&self) -> Option<u64> {
        if self.summary == 0 {
            return None;
        }
        let start = (self.bucket as usize + 1) % BUCKETS;
        let (word, bit) = (start / 64, start % 64);
        // The rest of the first word, the words after it, those before it, and its beginning.
        let slot = match self.filled[word] >> bit {
            0 => {
                let after = self.summary & (u64::MAX << word) & !(1 << word);
                let before = self.summary & ((1 << word) - 1);
                let w = match (after, before) {
                    (0, 0) => word,
                    (0, b) => b.trailing_zeros() as usize,
                    (a, _) => a.trailing_zeros() as usize,
                };
                w * 64 + self.filled[w].trailing_zeros() as usize
            }
            rest => start + rest.trailing_zeros() as usize,
        };
        let ahead = (slot + BUCKETS - start) % BUCKETS;
        Some(self.bucket + 1 + ahead as u64)
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_proto::rng::Rng;

    use super::*;

    /// Against a sorted list, over times that stay in a bucket, go to others, around the calendar, and beyond it.
    #[test]
    fn events_come_out_by_time_and_number() {
        for (seed, gap) in [(1, 1), (2, 100), (3, 40_000), (4, 1 << 30)] {
            let mut rng = Rng::new(seed);
            let mut queue = EventQueue::new(Picos(gap));
            let mut heap = BinaryHeap::new();
            let (mut now, mut number, mut taken) = (Picos::ZERO, 0, 0);
            for round in 0..60_000u64 {
                let grows = (round / 5_000) % 2 == 0;
                for _ in 0..rng.below(if grows { 4 } else { 2 }) {
                    let span = match rng.below(10) {
                        0 => 0,
                        1..=5 => rng.below(gap * 4 + 1),
                        6..=8 => rng.below(gap * 2_000 + 1),
                        _ => rng.below(gap.saturating_mul(1_000_000)),
                    };
                    let event = (now + Picos(span), number, rng.below(1 << 30) as u32);
                    number += 1;
                    queue.push(event);
                    heap.push(Reverse(event));
                }
                assert_eq!(queue.peek(), heap.peek().map(|Reverse(e)| e.0));
                let until = now + Picos(rng.below(gap * 8 + 1));
                while let Some(event) = queue.pop(until) {
                    assert_eq!(Some(event), heap.pop().map(|Reverse(e)| e), "round {round}");
                    now = event.0;
                    taken += 1;
                }
                assert!(heap.peek().is_none_or(|Reverse(e)| e.0 > until));
                now = now.max(until);
                assert_eq!(queue.len(), heap.len());
            }
            assert!(taken > 30_000, "{taken}");
        }
    }

    #[test]
    fn entries_are_used_again() {
        let mut queue = EventQueue::new(Picos(100));
        for n in 0..100_000u64 {
            queue.push((Picos(n * 300 + 5_000), n, 0));
            if n >= 16 {
                assert!(queue.pop(Picos::MAX).is_some());
            }
        }
        assert!(queue.entries.len() <= 32, "{}", queue.entries.len());
    }
}
