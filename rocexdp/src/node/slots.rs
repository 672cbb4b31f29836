//! Which QP slots are free, and the QP numbers that name them.
//!
//! A QPN is the high bit, random bits, and the slot in its low bits: XDP finds the slot without a
//! hash, and a number is not soon used again. Slots are spread over the workers.

use rand::RngExt as _;
use rocexdp_common::maps::{GSI_SLOT, LOCAL_QPN_BIT, MULTICAST_QPN};
use rocexdp_proto::{ids::Qpn, verbs::GSI_QPN};

use crate::engine::worker_of;

/// Slots that no QP of an application gets: those of QP 1 and of the multicast QPN.
pub const RESERVED: u32 = 2;

/// The free slots of a node.
#[derive(Debug)]
pub struct Slots {
    /// Free slots per worker, last in first out.
    free: Vec<Vec<u32>>,
    slots: u32,
    /// QP 1 is in use.
    gsi: bool,
}

impl Slots {
    /// `slots` (a power of two) free slots for `workers` workers.
    pub fn new(slots: u32, workers: u32) -> Self {
        let mut free = vec![Vec::new(); workers.max(1) as usize];
        let (multicast, gsi) = (MULTICAST_QPN & (slots - 1), GSI_SLOT);
        for slot in (0..slots).rev().filter(|s| ![multicast, gsi].contains(s)) {
            if let Some(of_worker) = free.get_mut(worker_of(slot, workers) as usize) {
                of_worker.push(slot);
            }
        }
        Self {
            free,
            slots,
            gsi: false,
        }
    }

    /// Takes a slot of the worker that has most left; `None` when none is free.
    pub fn take(&mut self) -> Option<(u32, Qpn)> {
        let slot = self.free.iter_mut().max_by_key(|f| f.len())?.pop()?;
        let random = rand::rng().random::<u32>() & !(self.slots - 1) & (LOCAL_QPN_BIT - 1);
        Some((slot, Qpn::new(LOCAL_QPN_BIT | random | slot)))
    }

    /// Takes the slot of QP 1; `None` when it is taken.
    pub fn take_gsi(&mut self) -> Option<(u32, Qpn)> {
        (!std::mem::replace(&mut self.gsi, true)).then_some((GSI_SLOT, GSI_QPN))
    }

    /// Gives a slot back.
    pub fn give_back(&mut self, slot: u32) {
        if slot == GSI_SLOT {
            self.gsi = false;
            return;
        }
        let workers = self.free.len() as u32;
        if let Some(of_worker) = self.free.get_mut(worker_of(slot, workers) as usize) {
            // At the far end, so that a slot rests before it is used again.
            of_worker.insert(0, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_local_name_their_slot_and_run_out() {
        let mut slots = Slots::new(256, 3);
        let mut seen = std::collections::HashSet::new();
        while let Some((slot, qpn)) = slots.take() {
            assert_eq!(qpn.get() & 255, slot);
            assert_ne!(qpn.get() & LOCAL_QPN_BIT, 0);
            assert!(seen.insert(slot));
        }
        assert_eq!(seen.len() as u32, 256 - RESERVED);
        assert!(!seen.contains(&GSI_SLOT) && !seen.contains(&(MULTICAST_QPN & 255)));
        slots.give_back(7);
        assert_eq!(slots.take().map(|(s, _)| s), Some(7));
        let gsi = slots.take_gsi();
        assert_eq!(gsi, Some((GSI_SLOT, GSI_QPN)));
        assert_eq!((slots.take_gsi(), slots.take()), (None, None));
        slots.give_back(GSI_SLOT);
        assert_eq!((slots.take_gsi(), slots.take()), (gsi, None));
    }
}
