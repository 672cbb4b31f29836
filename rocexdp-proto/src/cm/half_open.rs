//! Requests of peers that are not connections yet: how many, for how long, and which of them makes room for another.
//!
//! Anyone can send a REQ under any address, and never answer. So none keeps its place for long once it is accepted, whatever times
//! its REQ and a MRA name; and where all places are taken, one is taken back from a peer that is silent, or from the peer that has the
//! most of them. The kernel has each listener's backlog only (drivers/infiniband/core/ucma.c).
//!
//! Must not: know what a message means.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::{
    conn::{Conn, ConnId},
    event::Event,
    manager::Manager,
    reject::RejReason,
    timing::response_time,
};
use crate::{ids::Gid, time::Timestamp};

/// How long after it is accepted a request may wait for the peer's RTU, copies of the REP and a MRA included.
const PATIENCE: Duration = Duration::from_secs(60);

/// One service's requests, or `None`: all.
type Scope = Option<u64>;

#[derive(Clone, Copy, Debug)]
struct Place {
    service_id: u64,
    peer: Gid,
    since: Timestamp,
    accepted: Option<Timestamp>,
}

/// The requests, by all that one of them is looked for by: each step costs the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    places: BTreeMap<u32, Place>,
    held: BTreeMap<Scope, u32>,
    held_by: BTreeMap<(Scope, Gid), u32>,
    /// The same, by number.
    most: BTreeSet<(Scope, u32, Gid)>,
    oldest: BTreeSet<(Scope, Gid, Timestamp, u32)>,
    accepted: BTreeSet<(Scope, Timestamp, u32)>,
}

impl HalfOpen {
    pub(super) fn held(&self, scope: Scope) -> u32 {
        self.held.get(&scope).copied().unwrap_or(0)
    }

    fn held_by(&self, scope: Scope, peer: Gid) -> u32 {
        self.held_by.get(&(scope, peer)).copied().unwrap_or(0)
    }

    fn count(&mut self, scope: Scope, peer: Gid, step: impl Fn(u32) -> u32) {
        let (before, all) = (self.held_by(scope, peer), step(self.held(scope)));
        let after = step(before);
        self.most.remove(&(scope, before, peer));
        if after > 0 {
            self.most.insert((scope, after, peer));
            self.held_by.insert((scope, peer), after);
        } else {
            self.held_by.remove(&(scope, peer));
        }
        if all > 0 {
            self.held.insert(scope, all);
        } else {
            self.held.remove(&scope);
        }
    }

    pub(super) fn add(&mut self, id: u32, service_id: u64, peer: Gid, since: Timestamp) {
        for scope in [None, Some(service_id)] {
            self.count(scope, peer, |n| n.saturating_add(1));
            self.oldest.insert((scope, peer, since, id));
        }
        let accepted = None;
        let place = Place {
            service_id,
            peer,
            since,
            accepted,
        };
        self.places.insert(id, place);
    }

    /// From now on it is the peer that is waited for.
    pub(super) fn accept(&mut self, id: u32, now: Timestamp) {
        if let Some(place) = self.places.get_mut(&id) {
            place.accepted = Some(now);
            for scope in [None, Some(place.service_id)] {
                self.accepted.insert((scope, now, id));
            }
        }
    }

    /// It is a connection, or has ended. Without effect where it has none.
    pub(super) fn remove(&mut self, id: u32) {
        let Some(place) = self.places.remove(&id) else {
            return;
        };
        for scope in [None, Some(place.service_id)] {
            self.count(scope, place.peer, |n| n.saturating_sub(1));
            self.oldest.remove(&(scope, place.peer, place.since, id));
            if let Some(at) = place.accepted {
                self.accepted.remove(&(scope, at, id));
            }
        }
    }

    /// When it has been waited for long enough.
    pub(super) fn end(&self, id: u32) -> Option<Timestamp> {
        let accepted = self.places.get(&id)?.accepted?;
        Some(accepted.saturating_add(PATIENCE))
    }

    /// Which makes room for one of `peer`: the one accepted first, if its peer is silent for longer than an answer takes; or the
    /// oldest of the peer that has the most, if that will still not have fewer than `peer`.
    fn victim(&self, scope: Scope, peer: Gid, now: Timestamp, answer: Duration) -> Option<u32> {
        let first = (scope, Timestamp::from_micros(0), 0);
        if let Some((of, at, id)) = self.accepted.range(first..).next()
            && *of == scope
            && now.saturating_since(*at) > answer
        {
            return Some(*id);
        }
        let last = (scope, u32::MAX, [u8::MAX; 16]);
        let (of, most, holder) = self.most.range(..=last).next_back()?;
        if *of != scope || *most <= self.held_by(scope, peer).saturating_add(1) {
            return None;
        }
        let first = (scope, *holder, Timestamp::from_micros(0), 0);
        self.oldest.range(first..).next().map(|(.., id)| *id)
    }
}

impl Manager {
    /// Requests that are not connections yet.
    #[must_use]
    pub fn half_open(&self) -> u32 {
        self.half_open.held(None)
    }

    /// Room for one more request of a listener, from `peer`. Another one may have to go for it.
    pub(super) fn make_room(&mut self, now: Timestamp, service_id: u64, peer: Gid) -> bool {
        let Some(listen) = self.listeners.get(&service_id) else {
            return false;
        };
        let limits = [
            (Some(service_id), listen.max_half_open),
            (None, self.config.max_half_open),
        ];
        let answer = response_time(self.config.response_time, self.config.packet_life_time);
        for (scope, limit) in limits {
            if self.half_open.held(scope) < limit {
                continue;
            }
            // What a service's limit evicts makes room among all as well.
            let Some(victim) = self.half_open.victim(scope, peer, now, answer) else {
                return false;
            };
            self.evict(now, victim);
        }
        true
    }

    fn evict(&mut self, now: Timestamp, id: u32) {
        let Some(conn) = self.conns.get(&id) else {
            return self.half_open.remove(id);
        };
        let event = match conn.last {
            None => Conn::refused(ConnId(id), RejReason::NO_RESOURCES),
            Some(_) => Event::Unreachable {
                id: ConnId(id),
                message: "REP",
                sent: conn.sent,
            },
        };
        // All that are half open can be rejected.
        let _ = self.reject(now, ConnId(id), RejReason::NO_RESOURCES, &[]);
        self.counters.evicted += 1;
        self.tell(event);
    }
}
