//! Which QPs get series of their own, and what becomes of the counts of the others.
//!
//! A QP that does not have a series is counted in "other"; what it counted there stays there when it gets one, and its own series
//! begins at what it counts from then on. So every series only ever grows, `sum(rate(...))` over QPs and "other" is the
//! rate of all, and no step appears anywhere when QPs change places. A QP that loses its series and gets it again goes on where
//! it was. Changing places is made rare: a QP must be twice as busy as one that has been shown for a minute.

use std::{collections::HashMap, hash::Hash};

use rocexdp_common::maps::Rtt;

use super::qp::COUNTS;
use crate::live::gained;

/// Traffic of so long ago counts for 1/e of traffic now, seconds.
const MEMORY: f64 = 60.0;
/// A QP is shown for at least so long while it exists, ns.
const TENURE_NS: u64 = 60_000_000_000;
/// A QP must have so many times the traffic of the one whose place it takes.
const BUSIER: f64 = 2.0;

/// What is counted of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    /// In the order of [`super::qp::METRICS`], then by kind of packet, then by NAK code.
    pub counts: [u64; COUNTS],
    /// Round trips.
    pub rtt: Rtt,
    /// Packets, both directions: what "busy" means.
    pub traffic: u64,
}

impl Values {
    /// Nothing counted.
    pub const ZERO: Self = Self {
        counts: [0; COUNTS],
        rtt: Rtt::ZERO,
        traffic: 0,
    };

    /// What was counted since `before`. A counter that is much less than it was began anew.
    #[must_use]
    fn since(&self, before: &Self) -> Self {
        let mut delta = *self;
        for (now, then) in delta.counts.iter_mut().zip(&before.counts) {
            *now = gained(*then, *now);
        }
        for (now, then) in delta.rtt.buckets.iter_mut().zip(&before.rtt.buckets) {
            *now = gained(*then, *now);
        }
        delta.rtt.sum_ns = gained(before.rtt.sum_ns, self.rtt.sum_ns);
        delta.traffic = gained(before.traffic, self.traffic);
        delta
    }

    fn add(&mut self, delta: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(&delta.counts) {
            *sum = sum.wrapping_add(*more);
        }
        for (sum, more) in self.rtt.buckets.iter_mut().zip(&delta.rtt.buckets) {
            *sum = sum.wrapping_add(*more);
        }
        self.rtt.sum_ns = self.rtt.sum_ns.wrapping_add(delta.rtt.sum_ns);
        self.rtt.max_ns = self.rtt.max_ns.max(delta.rtt.max_ns);
        self.traffic = self.traffic.wrapping_add(delta.traffic);
    }
}

#[derive(Debug)]
struct Account {
    last: Values,
    /// What its series shows; kept while it has none, so that it goes on from there.
    shown: Option<Box<Values>>,
    /// Since when it has a series.
    member_since: Option<u64>,
    busy: f64,
    /// Of this update.
    delta: Values,
    fresh: bool,
    update: u64,
}

/// The books of the QPs of one kind on one interface.
#[derive(Debug)]
pub struct Books<K> {
    top: usize,
    accounts: HashMap<K, Account>,
    other: Values,
    all: Values,
    updates: u64,
    last_ns: u64,
}

impl<K: Clone + Eq + Hash + Ord> Books<K> {
    /// With series for `top` QPs.
    #[must_use]
    pub fn new(top: usize) -> Self {
        Self {
            top,
            accounts: HashMap::new(),
            other: Values::ZERO,
            all: Values::ZERO,
            updates: 0,
            last_ns: 0,
        }
    }

    /// Takes what all QPs that exist have counted by now. A QP that is missing is closed, or was evicted.
    pub fn update(&mut self, now_ns: u64, seen: impl Iterator<Item = (K, Values)>) {
        self.updates += 1;
        let seconds = now_ns.saturating_sub(self.last_ns) as f64 / 1e9;
        let fade = (-seconds / MEMORY).exp();
        self.last_ns = now_ns;
        for (key, values) in seen {
            let account = self.accounts.entry(key).or_insert_with(|| Account {
                last: Values::ZERO,
                shown: None,
                member_since: None,
                busy: 0.0,
                delta: Values::ZERO,
                fresh: true,
                update: 0,
            });
            account.delta = values.since(&account.last);
            account.last = values;
            account.busy = account.busy * fade + account.delta.traffic as f64;
            account.update = self.updates;
        }
        let update = self.updates;
        self.accounts.retain(|_, account| account.update == update);
        self.elect(now_ns);
        for account in self.accounts.values_mut() {
            self.all.add(&account.delta);
            let continues = account.member_since.is_some_and(|since| since != now_ns);
            // A QP that is shown from its first look on shows all it counted.
            let begins = account.member_since.is_some() && account.fresh;
            if account.member_since.is_some() {
                account.shown.get_or_insert_with(|| Box::new(Values::ZERO));
            }
            match &mut account.shown {
                Some(shown) if continues || begins => shown.add(&account.delta),
                _ => self.other.add(&account.delta),
            }
            account.fresh = false;
        }
    }

    /// Decides who has a series.
    fn elect(&mut self, now_ns: u64) {
        let mut outside: Vec<(f64, K)> = self
            .accounts
            .iter()
            .filter(|(_, a)| a.member_since.is_none())
            .map(|(key, a)| (a.busy, key.clone()))
            .collect();
        let mut inside: Vec<(f64, bool, K)> = self
            .accounts
            .iter()
            .filter_map(|(key, a)| {
                let since = a.member_since?;
                let settled = now_ns.saturating_sub(since) >= TENURE_NS;
                Some((a.busy, settled, key.clone()))
            })
            .collect();
        // Busiest first; the key makes it the same whatever the order of the table.
        outside.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        inside.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.2.cmp(&a.2)));
        let mut free = self.top.saturating_sub(inside.len());
        let mut losers = inside.into_iter().filter(|(_, settled, _)| *settled);
        for (busy, key) in outside {
            if free > 0 {
                free -= 1;
            } else {
                match losers.next() {
                    Some((least, _, loser)) if busy > BUSIER * least => {
                        if let Some(account) = self.accounts.get_mut(&loser) {
                            account.member_since = None;
                        }
                    }
                    _ => break,
                }
            }
            if let Some(account) = self.accounts.get_mut(&key) {
                account.member_since = Some(now_ns);
            }
        }
    }

    /// The QPs with a series, in the order of their keys, and what it shows.
    #[must_use]
    pub fn members(&self) -> Vec<(&K, &Values)> {
        let mut all: Vec<(&K, &Values)> = self
            .accounts
            .iter()
            .filter(|(_, a)| a.member_since.is_some())
            .filter_map(|(key, a)| Some((key, a.shown.as_deref()?)))
            .collect();
        all.sort_by(|a, b| a.0.cmp(b.0));
        all
    }

    /// What QPs counted while they had no series.
    #[must_use]
    pub fn other(&self) -> &Values {
        &self.other
    }

    /// What all QPs counted, those that are gone included.
    #[must_use]
    pub fn all(&self) -> &Values {
        &self.all
    }

    /// QPs that exist.
    #[must_use]
    pub fn existing(&self) -> usize {
        self.accounts.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn values(n: u64) -> Values {
        let mut values = Values::ZERO;
        values.counts[0] = n;
        values.rtt.buckets[5] = n / 2;
        values.traffic = n;
        values
    }

    const S: u64 = 1_000_000_000;

    /// QPs that count by themselves; every series is checked to only ever grow, and the growth of all to be what they counted.
    struct World {
        books: Books<u32>,
        counters: BTreeMap<u32, u64>,
        now: u64,
        shown: BTreeMap<u32, u64>,
        other: u64,
        grown: u64,
    }

    impl World {
        fn new(top: usize) -> Self {
            Self {
                books: Books::new(top),
                counters: BTreeMap::new(),
                now: S,
                shown: BTreeMap::new(),
                other: 0,
                grown: 0,
            }
        }

        fn step(&mut self, more: &[(u32, u64)]) {
            self.now += S;
            let mut counted = 0;
            for (qp, n) in more {
                *self.counters.entry(*qp).or_insert(0) += n;
                counted += n;
            }
            self.books.update(
                self.now,
                self.counters.iter().map(|(qp, n)| (*qp, values(*n))),
            );
            let members: BTreeMap<u32, u64> = self
                .books
                .members()
                .iter()
                .map(|(k, v)| (**k, v.counts[0]))
                .collect();
            let other = self.books.other().counts[0];
            assert!(other >= self.other);
            // As `sum(rate())` has it: growth of series that were there before, and of other; and what new series begin with.
            let mut growth = other - self.other;
            for (qp, value) in &members {
                let before = self.shown.get(qp).copied().unwrap_or(0);
                assert!(*value >= before, "series of {qp} went back");
                growth += value - before;
            }
            assert_eq!(growth, counted, "at {}", self.now);
            self.grown += growth;
            assert_eq!(self.books.all().counts[0], self.grown);
            // A series that ends is remembered: if it comes back it must go on from there.
            self.shown.extend(members);
            self.other = other;
        }

        fn members(&self) -> Vec<u32> {
            self.books.members().iter().map(|(k, _)| **k).collect()
        }
    }

    #[test]
    fn changing_places_makes_no_series_jump_and_loses_nothing() {
        let mut world = World::new(3);
        world.step(&[(1, 10), (2, 20), (3, 30), (4, 5), (5, 6)]);
        assert_eq!(world.members(), [1, 2, 3]);
        // 4 becomes far busier than all; nobody leaves within the first minute.
        for _ in 0..50 {
            world.step(&[(1, 10), (2, 20), (3, 30), (4, 500)]);
        }
        assert_eq!(world.members(), [1, 2, 3]);
        for _ in 0..20 {
            world.step(&[(1, 10), (2, 20), (3, 30), (4, 500)]);
        }
        assert_eq!(world.members(), [2, 3, 4]);
        // 1 comes back, and goes on where its series was.
        for _ in 0..200 {
            world.step(&[(1, 9000), (2, 20), (3, 30), (4, 500)]);
        }
        assert_eq!(world.members(), [1, 3, 4]);
    }

    #[test]
    fn a_qp_that_is_not_twice_as_busy_takes_no_place() {
        let mut world = World::new(2);
        world.step(&[(1, 100), (2, 100)]);
        for _ in 0..300 {
            world.step(&[(1, 100), (2, 100), (3, 190)]);
        }
        assert_eq!(world.members(), [1, 2]);
    }

    #[test]
    fn a_closed_qp_makes_room_and_its_counts_stay_in_the_total() {
        let mut world = World::new(2);
        world.step(&[(1, 10), (2, 20), (3, 30)]);
        assert_eq!(world.members(), [2, 3]);
        world.counters.remove(&2);
        world.step(&[(1, 1), (3, 1)]);
        assert_eq!(world.members(), [1, 3]);
        assert_eq!(world.books.all().counts[0], 62);
        // A counter that began anew is not a step back.
        world.counters.insert(3, 0);
        world.step(&[(3, 4)]);
        assert_eq!(world.books.all().counts[0], 66);
    }

    #[test]
    fn five_thousand_qps_are_a_few_series_and_the_sum_is_right() {
        let mut world = World::new(20);
        let all: Vec<(u32, u64)> = (0..5000).map(|qp| (qp, u64::from(qp) + 1)).collect();
        for _ in 0..3 {
            world.step(&all);
        }
        assert_eq!(world.members().len(), 20);
        assert_eq!(world.members()[0], 4980, "the busiest");
        assert_eq!(world.books.all().counts[0], 3 * 5000 * 5001 / 2);
        assert_eq!(
            world.books.all().rtt.buckets[5],
            (0..5000_u64).map(|qp| 3 * (qp + 1) / 2).sum::<u64>()
        );
        // They come and go; memory is for those that exist.
        world.counters.clear();
        world.step(&[(9000, 1)]);
        assert_eq!((world.books.existing(), world.members().len()), (1, 1));
    }
}
