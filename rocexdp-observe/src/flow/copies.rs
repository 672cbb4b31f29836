//! One frame captured twice (a mirror of both directions, two interfaces), told from a packet sent twice.
//!
//! A packet that was sent again has a new IP identification; a copy of a frame has the same, or at least its TTL differs
//! from the first by what routers took. Where the identification is 0 (IPv6, some NICs) only time and TTL can tell.

use rocexdp_common::ids::Psn;

/// Slots; the newest of a slot wins.
const SLOTS: usize = 32;
/// A copy comes within this.
const COPY_NS: u64 = 1_000_000;
/// Without identification, and with the same TTL: no answer of the peer can come and be acted on so soon.
const BLIND_NS: u64 = 2_000;

#[derive(Clone, Copy, Debug)]
struct Slot {
    time: i64,
    psn: u32,
    ip_id: u16,
    opcode: u8,
    ttl: u8,
}

/// The last frames of one direction.
#[derive(Clone, Debug)]
pub struct Copies {
    slots: [Slot; SLOTS],
}

/// What identifies a frame.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// When, in nanoseconds.
    pub time: i64,
    /// Sequence number.
    pub psn: Psn,
    /// IP identification, 0 of IPv6.
    pub ip_id: u16,
    /// Opcode byte.
    pub opcode: u8,
    /// TTL or hop limit.
    pub ttl: u8,
}

impl Copies {
    /// Nothing seen.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slots: [Slot {
                time: i64::MIN,
                psn: 0,
                ip_id: 0,
                opcode: 0,
                ttl: 0,
            }; SLOTS],
        }
    }

    /// Takes a frame; whether it is a copy of one that was seen just before.
    pub fn is_copy(&mut self, mark: Mark) -> bool {
        let index = (mark.psn.get() as usize ^ usize::from(mark.ip_id)) & (SLOTS - 1);
        let Some(slot) = self.slots.get_mut(index) else {
            return false;
        };
        let same =
            slot.psn == mark.psn.get() && slot.opcode == mark.opcode && slot.ip_id == mark.ip_id;
        let age = mark.time.abs_diff(slot.time);
        let copy = same
            && if mark.ip_id != 0 || slot.ttl != mark.ttl {
                age < COPY_NS
            } else {
                age < BLIND_NS
            };
        if !copy {
            *slot = Slot {
                time: mark.time,
                psn: mark.psn.get(),
                ip_id: mark.ip_id,
                opcode: mark.opcode,
                ttl: mark.ttl,
            };
        }
        copy
    }
}

impl Default for Copies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(time: i64, psn: u32, ip_id: u16, ttl: u8) -> Mark {
        Mark {
            time,
            psn: Psn::new(psn),
            ip_id,
            opcode: 4,
            ttl,
        }
    }

    #[test]
    fn the_same_identification_within_a_millisecond_is_a_copy() {
        let mut copies = Copies::new();
        assert!(!copies.is_copy(mark(0, 7, 100, 64)));
        assert!(copies.is_copy(mark(50_000, 7, 100, 64)));
        assert!(copies.is_copy(mark(60_000, 7, 100, 63)));
        assert!(!copies.is_copy(mark(70_000, 7, 101, 64)));
        assert!(!copies.is_copy(mark(2_000_000, 7, 100, 64)));
    }

    #[test]
    fn without_identification_time_and_ttl_tell() {
        let mut copies = Copies::new();
        assert!(!copies.is_copy(mark(0, 7, 0, 64)));
        assert!(copies.is_copy(mark(900, 7, 0, 64)));
        assert!(!copies.is_copy(mark(5_000, 7, 0, 64)));
        assert!(copies.is_copy(mark(9_000, 7, 0, 63)));
        assert!(!copies.is_copy(mark(9_000, 8, 0, 64)));
    }
}
