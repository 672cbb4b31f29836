//! Frames that workers give one another: those that came in on another queue, those that never leave the host, and the copies of a
//! multicast group's packets.
//!
//! A frame whose Ethernet destination is our own goes to the worker of its QP instead of the wire, as a NIC loops it back; there it is
//! treated like any other, its ICRC included. A group's packet goes to each worker that has a QP of the group, and, sent, to the
//! wire as well. Queues are bounded. Of frames from another queue, what does not fit is dropped and counted: their sender is on the
//! wire, and nobody can make it wait. Frames of this host wait instead: a worker sends nothing while another one's queue for them is
//! nearly full ([`Neighbours::has_loop_room`]), and always empties its own, whatever it may send, so that no two can wait for one another.
//!
//! Must not: look into a packet behind its BTH.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crossbeam_queue::ArrayQueue;
use rocexdp_proto::{
    ids::{Gid, Qpn},
    verbs::MULTICAST_QPN,
    wire::{Frags, Origin, destination},
};

use super::signals::worker_of;

/// Frames that may wait for another worker.
const DEPTH: usize = 1024;

/// Frames on their way to one worker, and the empty buffers that come back.
#[derive(Debug)]
pub struct Handover {
    frames: ArrayQueue<(Origin, Vec<u8>)>,
    spare: ArrayQueue<Vec<u8>>,
}

impl Handover {
    fn new() -> Self {
        Self {
            frames: ArrayQueue::new(DEPTH),
            spare: ArrayQueue::new(DEPTH),
        }
    }

    /// Copies a frame over; `false` when too many wait.
    fn give<'a>(&self, origin: Origin, frame: impl Iterator<Item = &'a [u8]>) -> bool {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        for piece in frame {
            copy.extend_from_slice(piece);
        }
        self.frames.push((origin, copy)).is_ok()
    }

    /// Takes up to `budget` frames; how many there were.
    pub fn take(&self, budget: usize, mut sink: impl FnMut(Origin, Frags<'_>)) -> usize {
        let mut taken = 0;
        while taken < budget
            && let Some((origin, frame)) = self.frames.pop()
        {
            sink(origin, &[&frame]);
            taken += 1;
            // Full, it has enough.
            let _ = self.spare.push(frame);
        }
        taken
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// What waits for one worker.
#[derive(Debug)]
pub struct Inbox {
    /// From the wire, received by another worker.
    pub received: Handover,
    /// From QPs of this host.
    pub looped: Handover,
}

impl Inbox {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            received: Handover::new(),
            looped: Handover::new(),
        }
    }
}

/// Reaches another worker by its number.
pub trait WakeWorker: Send + Sync + std::fmt::Debug {
    /// Wakes worker `n`.
    fn wake(&self, n: usize);
    /// Whether it has ended, so that nobody empties its queues.
    fn is_gone(&self, n: usize) -> bool;
}

/// Which workers have QPs of which multicast group.
#[derive(Debug)]
pub struct Groups {
    /// QPs attached, by worker.
    members: RwLock<HashMap<Gid, Vec<u32>>>,
    /// Frames of groups from the wire that some QP took, and that none took, by worker.
    books: Vec<[AtomicU64; 2]>,
    publishing: Mutex<()>,
}

impl Groups {
    /// None, for so many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            members: RwLock::default(),
            books: (0..workers).map(|_| Default::default()).collect(),
            publishing: Mutex::new(()),
        }
    }

    /// A QP of this worker was attached.
    pub fn join(&self, group: Gid, worker: u32) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        let of_group = members
            .entry(group)
            .or_insert_with(|| vec![0; self.books.len()]);
        if let Some(qps) = of_group.get_mut(worker as usize) {
            *qps += 1;
        }
    }

    /// It is no more.
    pub fn leave(&self, group: &Gid, worker: u32) {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_group) = members.get_mut(group) {
            if let Some(qps) = of_group.get_mut(worker as usize) {
                *qps = qps.saturating_sub(1);
            }
            if of_group.iter().all(|qps| *qps == 0) {
                members.remove(group);
            }
        }
    }

    fn each_worker(&self, group: &Gid, mut f: impl FnMut(usize)) {
        let members = self.members.read().unwrap_or_else(PoisonError::into_inner);
        let of_group = members.get(group).map_or(&[][..], Vec::as_slice);
        for (worker, _) in of_group.iter().enumerate().filter(|(_, qps)| **qps > 0) {
            f(worker);
        }
    }

    /// Notes what one worker has counted, and gives the sum of all to `publish`, one worker at a time; not if nothing is new.
    pub fn publish(&self, worker: u32, counted: [u64; 2], publish: impl FnOnce([u64; 2])) {
        let Some(own) = self.books.get(worker as usize) else {
            return;
        };
        let mut new = false;
        for (ours, now) in own.iter().zip(counted) {
            new |= ours.swap(now, Ordering::SeqCst) != now;
        }
        if !new {
            return;
        }
        let _one = self
            .publishing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let sum = |which: usize| {
            let of =
                |books: &[AtomicU64; 2]| books.get(which).map_or(0, |n| n.load(Ordering::SeqCst));
            self.books.iter().map(of).sum()
        };
        publish([sum(0), sum(1)]);
    }
}

/// What was counted of frames that went by here.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalCounters {
    /// Frames given to another worker.
    pub handed_away: u64,
    /// Frames dropped because the other worker did not keep up, or has ended.
    pub full: u64,
    /// Copies of groups' packets besides the packet itself.
    pub copied: u64,
    /// Frames of ours that went to QPs of this host.
    pub looped: u64,
}

/// Who else there is.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// One per worker, ours included.
    pub inboxes: Arc<[Inbox]>,
    /// Reaches worker `n`.
    pub wake: Arc<dyn WakeWorker>,
    /// Who is in which group.
    pub groups: Arc<Groups>,
    /// QP slots - 1.
    pub slot_mask: u32,
    /// Our own Ethernet address.
    pub mac: [u8; 6],
    /// Whether a frame was ever looped: until then nobody looks for room.
    pub loops: Arc<AtomicBool>,
}

impl Neighbours {
    fn owner(&self, qpn: Qpn) -> usize {
        worker_of(qpn.get() & self.slot_mask, self.inboxes.len() as u32) as usize
    }

    fn give<'a>(
        &self,
        to: usize,
        queue: impl Fn(&Inbox) -> &Handover,
        origin: Origin,
        frame: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        let given = !self.wake.is_gone(to)
            && self
                .inboxes
                .get(to)
                .is_some_and(|inbox| queue(inbox).give(origin, frame));
        if given {
            self.wake.wake(to);
        }
        given
    }

    /// Hands a frame from the wire to the workers that it is for. True: it is also, or only, for this one.
    pub fn distribute(&self, us: usize, frame: Frags<'_>, counters: &mut LocalCounters) -> bool {
        let Some((qpn, dst)) = destination(frame) else {
            // Who drops it does not matter.
            return true;
        };
        let mut away = |to, origin| {
            let given = self.give(to, |i| &i.received, origin, frame.iter().copied());
            counters.handed_away += u64::from(given);
            counters.full += u64::from(!given);
        };
        if qpn != MULTICAST_QPN {
            let owner = self.owner(qpn);
            if owner != us {
                away(owner, Origin::Wire);
            }
            return owner == us;
        }
        let (mut ours, mut all) = (false, 0_u64);
        self.groups.each_worker(&dst, |worker| {
            all += 1;
            ours |= worker == us;
        });
        let mut origin = if ours { Origin::Copied } else { Origin::Wire };
        let mut others = 0_u64;
        self.groups.each_worker(&dst, |worker| {
            // Whoever joined since is of the next packet.
            if worker != us && others < all {
                away(worker, origin);
                others += 1;
                origin = Origin::Copied;
            }
        });
        let alone = others == 0;
        counters.copied += if ours {
            others
        } else {
            others.saturating_sub(1)
        };
        ours || alone
    }

    /// What becomes of a frame that is to be sent: gives it to QPs of this host that it is for. True: it goes to the wire, too.
    pub fn loop_back(&self, pieces: &[&mut [u8]], counters: &mut LocalCounters) -> bool {
        let mac = pieces.first().and_then(|p| p.first_chunk::<6>());
        let is_group = mac.is_some_and(|mac| mac.first().is_some_and(|byte| byte & 1 != 0));
        let is_ours = mac == Some(&self.mac);
        if !is_group && !is_ours {
            return true;
        }
        if !self.loops.load(Ordering::Relaxed) {
            self.loops.store(true, Ordering::Relaxed);
        }
        let frame = || pieces.iter().map(|piece| &**piece);
        let whole: [&[u8]; 4] = std::array::from_fn(|n| pieces.get(n).map_or(&[][..], |p| &**p));
        let to = destination(&whole);
        let mut give = |to| {
            let given = self.give(to, |i| &i.looped, Origin::Looped, frame());
            counters.looped += u64::from(given);
            counters.full += u64::from(!given);
        };
        match to {
            Some((_, group)) if is_group => self.groups.each_worker(&group, give),
            Some((qpn, _)) => give(self.owner(qpn)),
            // Memory failed under it, so that it is no packet; on the wire it would be dropped, too.
            None => {}
        }
        is_group
    }

    /// Whether every worker has room for a frame of each. Asked before each frame, so that no two workers ever fill the last place.
    pub fn has_loop_room(&self) -> bool {
        let most = DEPTH.saturating_sub(self.inboxes.len());
        !self.loops.load(Ordering::Relaxed)
            || (0..)
                .zip(self.inboxes.iter())
                .all(|(n, inbox)| inbox.looped.frames.len() < most || self.wake.is_gone(n))
    }
}
