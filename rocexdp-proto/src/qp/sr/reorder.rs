//! Packets that came ahead of one that is missing, by PSN, until it comes: requests, or answers.
//!
//! A packet whose payload is in place already is kept without it. What is kept is bounded for the QP by [`SPAN`] and by its
//! share, and for the endpoint by a [`Budget`]; what there is no room for is dropped, and comes again.
//!
//! Must not: look at what the packets do.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use super::{Places, SPAN, Unused};
use crate::ids::Psn;
use crate::wire::Packet;

/// Bytes of a payload at most.
const PAYLOAD: usize = 4096;

/// Packets that all QPs of an endpoint may keep.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicU32,
    half: u32,
}

impl Budget {
    pub(crate) fn new(packets: u32) -> Self {
        Self {
            left: AtomicU32::new(packets),
            half: packets / 2,
        }
    }

    fn take(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }

    fn give(&self, packets: u32) {
        self.left.fetch_add(packets, Ordering::Relaxed);
    }

    fn is_scarce(&self) -> bool {
        self.left.load(Ordering::Relaxed) < self.half
    }
}

/// A packet that is kept.
#[derive(Debug)]
pub(crate) struct Held {
    packet: Packet<'static>,
    data: Vec<u8>,
    placed: bool,
}

impl Held {
    /// Does something with the packet.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Packet<'_>) -> R) -> R {
        if self.placed {
            // Its length, and no bytes: writing them changes nothing.
            f(&self.packet)
        } else {
            f(&self.packet.with_payload(&[&self.data]))
        }
    }
}

impl Unused for Option<Box<Held>> {
    fn is_unused(&self) -> bool {
        self.is_none()
    }
}

/// Packets that are kept, by PSN.
#[derive(Debug)]
pub(crate) struct Reorder {
    /// By PSN modulo [`SPAN`]; empty until the first packet is kept.
    ring: Places<Option<Box<Held>>>,
    held: u32,
    /// Room that is used again.
    #[allow(clippy::vec_box)] // They move between here and the ring.
    spare: Vec<Box<Held>>,
    limit: u32,
    budget: Arc<Budget>,
}

impl Reorder {
    pub(crate) fn new(limit: u32, budget: Arc<Budget>) -> Self {
        Self {
            ring: Places(Box::default()),
            held: 0,
            spare: Vec::new(),
            limit,
            budget,
        }
    }

    /// Another one of the same size, with nothing kept.
    pub(crate) fn other(&self) -> Self {
        Self::new(self.limit, Arc::clone(&self.budget))
    }

    fn index(psn: Psn) -> usize {
        (psn.get() % SPAN) as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Packets that are kept.
    pub(crate) fn len(&self) -> u32 {
        self.held
    }

    pub(crate) fn has(&self, psn: Psn) -> bool {
        self.ring.get(Self::index(psn)).is_some_and(Option::is_some)
    }

    /// Whether another packet may be kept.
    pub(crate) fn has_room(&mut self) -> bool {
        if !self.spare.is_empty() {
            return true;
        }
        // Twice as much each time: what a QP needs at most is soon there, and then nothing is allocated any more.
        let more = self.limit.saturating_sub(self.held).min(self.held.max(1));
        for _ in 0..more {
            if !self.budget.take() {
                break;
            }
            self.spare.push(Box::new(Held {
                packet: Packet::NONE,
                data: Vec::with_capacity(PAYLOAD),
                placed: false,
            }));
        }
        !self.spare.is_empty()
    }

    /// Keeps a packet, less than [`SPAN`] ahead, of which nothing is kept yet. `placed`: without its payload. False: no room.
    pub(crate) fn keep(&mut self, p: &Packet<'_>, placed: bool) -> bool {
        if !self.has_room() {
            return false;
        }
        let Some(mut held) = self.spare.pop() else {
            return false;
        };
        if self.ring.is_empty() {
            self.ring = Places((0..SPAN).map(|_| None).collect());
        }
        held.packet = p.without_payload();
        held.placed = placed;
        held.data.clear();
        if !placed {
            p.payload.copy_to(&mut held.data);
        }
        if let Some(slot) = self.ring.get_mut(Self::index(p.bth.psn)) {
            *slot = Some(held);
            self.held += 1;
        }
        true
    }

    /// Takes the packet with this PSN; [`Reorder::done`] takes it back.
    pub(crate) fn take(&mut self, psn: Psn) -> Option<Box<Held>> {
        if self.held == 0 {
            return None;
        }
        let held = self.ring.get_mut(Self::index(psn))?.take()?;
        self.held -= 1;
        Some(held)
    }

    /// The packet is not needed any more.
    pub(crate) fn done(&mut self, held: Box<Held>) {
        self.spare.push(held);
        // Others need the room.
        if self.held == 0 && self.budget.is_scarce() {
            self.budget.give(self.spare.len() as u32);
            self.spare = Vec::new();
        }
    }

    /// Packets from this PSN on are passed over.
    pub(crate) fn skip(&mut self, from: Psn, packets: u32) {
        for n in 0..packets.min(SPAN) {
            if let Some(held) = self.take(from.add(n)) {
                self.done(held);
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.budget.give(self.held + self.spare.len() as u32);
        self.held = 0;
        self.spare = Vec::new();
        self.ring = Places(Box::default());
    }
}

impl Drop for Reorder {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(psn: u32) -> Packet<'static> {
        let mut p = Packet::NONE;
        p.bth.psn = Psn::new(psn);
        p
    }

    #[test]
    fn what_is_kept_is_bounded_by_both_and_given_back() {
        let budget = Arc::new(Budget::new(5));
        let left = |b: &Budget| b.left.load(Ordering::Relaxed);
        let mut a = Reorder::new(3, Arc::clone(&budget));
        let mut b = Reorder::new(3, Arc::clone(&budget));
        let keep = |r: &mut Reorder, psns: [u32; 4]| psns.map(|n| r.keep(&packet(n), false));
        assert_eq!(
            keep(&mut a, [0xff_ffff, 0, 1, 2]),
            [true, true, true, false]
        );
        assert_eq!(keep(&mut b, [1, 2, 3, 4]), [true, true, false, false]);
        assert_eq!(left(&budget), 0);
        // Room that is used again is no new room.
        let held = a.take(Psn::new(0)).unwrap();
        a.done(held);
        assert!(a.has(Psn::new(1)) && !a.has(Psn::new(0)) && a.keep(&packet(7), true));
        a.skip(Psn::new(0xff_ffff), 20);
        assert!(a.is_empty());
        assert_eq!(left(&budget), 3, "scarce: given back at once");
        drop(b);
        drop(a);
        assert_eq!(left(&budget), 5);
    }
}
