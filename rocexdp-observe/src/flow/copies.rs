//! One frame captured twice (a mirror of both directions, two interfaces), told from a packet sent twice.
//!
//! A packet that was sent again has a new IP identification; a copy of a frame has the same, or at least its TTL differs
//! from the first by what routers took. Where the identification is 0 (IPv6, some NICs) only the capture's interface (pcapng
//! names it; a sender does not change its way within a millisecond), time and TTL can tell.

use rocexdp_common::ids::Psn;

/// Slots at first, and at most, where more packets than slots come within [`COPY_NS`]; the newest of a slot wins.
const SLOTS: usize = 8;
const MOST_SLOTS: usize = 256;
/// Packets one after another with one identification: it does not identify.
const CONSTANT: u8 = 3;
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
    interface: u32,
}

const EMPTY: Slot = Slot {
    time: i64::MIN,
    psn: 0,
    ip_id: 0,
    opcode: 0,
    ttl: 0,
    interface: 0,
};

/// The last frames of one direction.
#[derive(Clone, Debug)]
pub struct Copies {
    slots: Vec<Slot>,
    last: (u32, u16),
    same_id: u8,
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
    /// The capture's interface that saw it.
    pub interface: u32,
}

impl Copies {
    /// Nothing seen.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slots: Vec::new(),
            last: (0, 0),
            same_id: 0,
        }
    }

    /// Slot of a packet: PSNs that follow each other never share one, and answers are kept from requests.
    fn index(&self, psn: u32, opcode: u8) -> usize {
        let answer = matches!(opcode & 0x1f, 0x0d..=0x12);
        let half = if answer { self.slots.len() / 2 } else { 0 };
        (psn as usize).wrapping_add(half) & self.slots.len().wrapping_sub(1)
    }

    /// The identification, 0 where the sender puts the same into every packet.
    fn identification(&mut self, mark: &Mark) -> u16 {
        let (psn, id) = self.last;
        self.last = (mark.psn.get(), mark.ip_id);
        if self.same_id < CONSTANT && psn != mark.psn.get() {
            self.same_id = if id == mark.ip_id {
                self.same_id + 1
            } else {
                0
            };
        }
        if self.same_id >= CONSTANT {
            return 0;
        }
        mark.ip_id
    }

    /// Takes a frame; whether it is a copy of one that was seen just before.
    pub fn is_copy(&mut self, mark: Mark) -> bool {
        if self.slots.is_empty() {
            self.slots = vec![EMPTY; SLOTS];
        }
        let ip_id = self.identification(&mark);
        let psn = mark.psn.get();
        let Some(slot) = self.slots.get(self.index(psn, mark.opcode)).copied() else {
            return false;
        };
        let same_packet = slot.psn == psn && slot.opcode == mark.opcode;
        let same = same_packet && (ip_id == 0 || slot.ip_id == ip_id);
        let age = mark.time.abs_diff(slot.time);
        let copy = same
            && if ip_id != 0 || slot.ttl != mark.ttl || slot.interface != mark.interface {
                age < COPY_NS
            } else {
                age < BLIND_NS
            };
        if !copy {
            if !same_packet && age < COPY_NS && self.slots.len() < MOST_SLOTS {
                self.grow();
            }
            self.put(Slot {
                time: mark.time,
                psn,
                ip_id,
                opcode: mark.opcode,
                ttl: mark.ttl,
                interface: mark.interface,
            });
        }
        copy
    }

    fn put(&mut self, new: Slot) {
        let index = self.index(new.psn, new.opcode);
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = new;
        }
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        self.slots = vec![EMPTY; old.len() * 2];
        for slot in old {
            if slot.time != i64::MIN {
                self.put(slot);
            }
        }
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
            interface: 0,
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

    #[test]
    fn two_taps_apart_by_many_packets_are_told_whatever_the_identifications_are() {
        // PSN and identification count up together, as one QP alone on a host makes them; copies come 100 packets later.
        for (step, id) in [(1u16, 77u16), (3, 0xfff0), (0, 0)] {
            let mut copies = Copies::new();
            let mut seen = 0;
            for n in 0..2000u32 {
                let id = id.wrapping_add(step.wrapping_mul(n as u16));
                let at = i64::from(n) * 300;
                assert!(!copies.is_copy(mark(at, n, id, 64)));
                if let Some(first) = n.checked_sub(100) {
                    let old = id.wrapping_sub(step.wrapping_mul(100));
                    seen += u32::from(copies.is_copy(mark(at + 50, first, old, 63)));
                }
            }
            assert_eq!(seen, 1900, "{step} {id}");
            assert!(copies.slots.len() <= MOST_SLOTS);
        }
    }

    #[test]
    fn an_identification_that_never_changes_identifies_nothing() {
        let mut copies = Copies::new();
        for psn in 0..10 {
            assert!(!copies.is_copy(mark(i64::from(psn) * 1000, psn, 0x1234, 64)));
        }
        assert!(!copies.is_copy(mark(20_000, 5, 0x1234, 64)), "sent again");
        assert!(copies.is_copy(mark(20_500, 5, 0x1234, 64)), "at once");
    }
}
