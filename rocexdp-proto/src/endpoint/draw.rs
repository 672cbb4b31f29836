//! Numbers that a peer, or whoever can forge its address, must not guess: QPNs and starting PSNs (keys are `mem`'s to draw).
//!
//! A packet is taken only with the right QPN and a PSN near the expected one, so that a blind forger has to guess 47 bits. Must
//! not: decide who uses them.

use super::Endpoint;
use crate::ids::{Psn, Qpn};

/// Draws before the numbers are walked through for a free one.
const DRAWS: u32 = 64;
/// QPNs of the upper half: low ones are those that the kernel's Soft-RoCE gives out.
const HIGH: u32 = 0x80_0000;

impl Endpoint {
    /// A random QPN that no QP of this endpoint has, in 0x800000..=0xfffffe, and, in the bits of `mask`, that of `fixed` (for
    /// owners that find their QP by some bits of its number). `None`: all those are taken.
    pub fn draw_qpn(&mut self, mask: u32, fixed: u32) -> Option<Qpn> {
        let free = |ep: &Self, number: u32| {
            let number = number & !mask & (HIGH - 1) | fixed & mask & (HIGH - 1) | HIGH;
            (number != 0xff_ffff && !ep.slots.contains_key(&number)).then(|| Qpn::new(number))
        };
        for _ in 0..DRAWS {
            let number = self.rng.next_u32();
            if let Some(qpn) = free(self, number) {
                return Some(qpn);
            }
        }
        let start = self.rng.next_u32();
        (0..HIGH).find_map(|n| free(self, start.wrapping_add(n)))
    }

    /// A random PSN to start a connection with, of all 2^24.
    pub fn draw_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32() >> 8)
    }
}
