//! Traffic classes: which of the eight priorities a QP's packets have, and in which order priorities are served.
//!
//! A packet's priority follows from its DSCP, as a ConnectX port does it with `trust dscp` (mlnx_qos(8): the default map is
//! DSCP / 8), or from its PCP (`trust pcp`). Classes are served as IEEE 802.1Qaz's transmission selection has it and mlx5
//! configures it (`drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c`): strict ones first, the highest first, the others share
//! what is left by their weights. Within a class QPs take turns, packet by packet.
//!
//! The weighted ones are served by deficit round robin (Shreedhar, Varghese, "Efficient Fair Queuing Using Deficit Round-Robin",
//! SIGCOMM 1995) in the form that lets a class's last packet overdraw its deficit and takes the debt over to the next round
//! (surplus round robin): a packet's length is known only once it is built. The smallest weight's quantum holds the largest frame,
//! so that each class that waits is served in each round, and a choice looks at no more than eight classes, however many QPs
//! there are.
//!
//! Must not: know what a QP sends, or when.

use core::num::NonZeroU16;

/// Priorities, and traffic classes: one each.
pub const PRIORITIES: usize = 8;
/// The largest frame, bytes: a quantum at least.
const LARGEST: u32 = 4_400;

/// What says which priority a packet has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// The DSCP, by the map.
    #[default]
    Dscp,
    /// The PCP: the service level of the QP's path, whether a VLAN tag carries it or not.
    Pcp,
}

/// How a class is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassService {
    /// Before all lower strict classes and all weighted ones.
    Strict,
    /// Its share of what strict classes leave is its weight, of those of all weighted classes that have something to send.
    Weighted(NonZeroU16),
}

/// What a packet's headers say of its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marking {
    /// DSCP, 0..=63.
    pub dscp: u8,
    /// Priority of the VLAN tag, 0..=7, where there is one.
    pub pcp: u8,
}

/// An endpoint's traffic classes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrafficClasses {
    /// What says which priority a packet has.
    pub trust: Trust,
    /// Priority of each DSCP, 0..=7.
    pub priority_of_dscp: [u8; 64],
    /// How each priority is served.
    pub service: [ClassService; PRIORITIES],
    /// Marking of acknowledgements, and of all answers without data; `None`: that of the QP's data. They leave before data in any
    /// case, CNPs (whose marking is the notification point's) before them.
    pub answers: Option<Marking>,
}

impl Default for TrafficClasses {
    fn default() -> Self {
        Self {
            trust: Trust::Dscp,
            priority_of_dscp: core::array::from_fn(|dscp| (dscp / 8) as u8),
            service: [ClassService::Weighted(NonZeroU16::MIN); PRIORITIES],
            answers: None,
        }
    }
}

impl TrafficClasses {
    /// The priority of a packet.
    #[must_use]
    pub fn priority(&self, marking: Marking) -> u8 {
        let priority = match self.trust {
            Trust::Dscp => self
                .priority_of_dscp
                .get(usize::from(marking.dscp))
                .copied(),
            Trust::Pcp => Some(marking.pcp),
        };
        priority.unwrap_or(0) & 7
    }

    /// The priority of answers without data of a QP whose data are marked so.
    #[must_use]
    pub fn answer_priority(&self, data: Marking) -> u8 {
        self.priority(self.answers.unwrap_or(data))
    }
}

/// Which class of data is served next.
#[derive(Clone, Debug)]
pub(super) struct Scheduler {
    /// Bit by priority.
    strict: u8,
    /// Bytes in a round.
    quantum: [i64; PRIORITIES],
    /// Bytes left of it; below 0 what was overdrawn.
    deficit: [i64; PRIORITIES],
    /// The weighted class whose turn it is.
    turn: usize,
}

impl Scheduler {
    pub(super) fn new(service: &[ClassService; PRIORITIES]) -> Self {
        let weight = |s: &ClassService| match s {
            ClassService::Strict => None,
            ClassService::Weighted(weight) => Some(weight.get()),
        };
        let least = service.iter().filter_map(weight).min().unwrap_or(1);
        let strict = service
            .iter()
            .enumerate()
            .filter(|(_, s)| **s == ClassService::Strict)
            .fold(0, |bits, (i, _)| bits | 1 << i);
        let quantum = service.each_ref().map(|s| {
            let weight = weight(s).map_or(0, u64::from);
            (weight * u64::from(LARGEST) / u64::from(least)) as i64
        });
        Self {
            strict,
            quantum,
            deficit: [0; PRIORITIES],
            turn: 0,
        }
    }

    /// The class to serve, of those whose bit is set.
    pub(super) fn choose(&mut self, ready: u8) -> Option<u8> {
        if let Some(strict) = highest(ready & self.strict) {
            return Some(strict);
        }
        if ready == 0 {
            return None;
        }
        // Once round, and the class whose turn it is again.
        for _ in 0..=PRIORITIES {
            let turn = self.turn;
            let waits = ready & 1 << turn != 0;
            let deficit = self.deficit.get_mut(turn)?;
            if waits && *deficit > 0 {
                return Some(turn as u8);
            }
            // What a class has no use for is not kept for it.
            *deficit = (*deficit).min(0);
            self.turn = (turn + 1) % PRIORITIES;
            if ready & 1 << self.turn != 0 {
                *self.deficit.get_mut(self.turn)? += self.quantum.get(self.turn)?;
            }
        }
        // Only a frame larger than any there is gets here: whoever waits is served all the same.
        highest(ready)
    }

    /// A frame of the class has left.
    pub(super) fn charge(&mut self, priority: u8, bytes: u32) {
        if self.strict & 1 << (priority & 7) == 0
            && let Some(deficit) = self.deficit.get_mut(usize::from(priority & 7))
        {
            *deficit -= i64::from(bytes);
        }
    }
}

/// The highest priority whose bit is set.
pub(super) fn highest(bits: u8) -> Option<u8> {
    7u8.checked_sub(bits.leading_zeros() as u8)
}

/// Slots of QPs that wait for their turn, a line for each priority. Joining and taking the first cost the same however many
/// wait; a slot stands in one line at most, and takes four bytes. One that is not to be served any more stays until its turn
/// comes: whoever takes it out knows.
#[derive(Debug)]
pub(super) struct Lines {
    /// By slot: the one behind it.
    behind: Vec<u32>,
    /// First and last of each line.
    ends: [(u32, u32); PRIORITIES],
    /// Bit by priority: somebody waits.
    waiting: u8,
    lens: [u32; PRIORITIES],
}

/// In no line.
const NOWHERE: u32 = u32::MAX;
/// Nobody behind it.
const NOBODY: u32 = u32::MAX - 1;

impl Lines {
    pub(super) fn new() -> Self {
        Self {
            behind: Vec::new(),
            ends: [(NOBODY, NOBODY); PRIORITIES],
            waiting: 0,
            lens: [0; PRIORITIES],
        }
    }

    /// There are so many slots.
    pub(super) fn grow(&mut self, slots: usize) {
        if slots > self.behind.len() {
            self.behind.resize(slots, NOWHERE);
        }
    }

    /// Bits of the priorities that somebody waits in.
    pub(super) fn waiting(&self) -> u8 {
        self.waiting
    }

    /// How many wait in each.
    pub(super) fn lens(&self) -> [u32; PRIORITIES] {
        self.lens
    }

    /// Joins a line at its end, unless it stands in one already.
    pub(super) fn push(&mut self, slot: u32, priority: u8) {
        let priority = usize::from(priority & 7);
        let (Some(place), Some((first, last))) = (
            self.behind.get_mut(slot as usize),
            self.ends.get_mut(priority),
        ) else {
            return;
        };
        if *place != NOWHERE {
            return;
        }
        *place = NOBODY;
        let before = core::mem::replace(last, slot);
        if before == NOBODY {
            *first = slot;
        } else if let Some(before) = self.behind.get_mut(before as usize) {
            *before = slot;
        }
        self.waiting |= 1 << priority;
        if let Some(len) = self.lens.get_mut(priority) {
            *len += 1;
        }
    }

    /// Takes the first of a line.
    pub(super) fn pop(&mut self, priority: u8) -> Option<u32> {
        let priority = usize::from(priority & 7);
        let (first, last) = self.ends.get_mut(priority)?;
        let slot = *first;
        let place = self.behind.get_mut(slot as usize)?;
        *first = core::mem::replace(place, NOWHERE);
        if *first == NOBODY {
            *last = NOBODY;
            self.waiting &= !(1 << priority);
        }
        if let Some(len) = self.lens.get_mut(priority) {
            *len -= 1;
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn weighted(weights: [u16; 8]) -> [ClassService; 8] {
        weights.map(|w| match NonZeroU16::new(w) {
            Some(w) => ClassService::Weighted(w),
            None => ClassService::Strict,
        })
    }

    /// Bytes of each class of so many frames, all classes in `ready` always having some of their length.
    fn serve(s: &mut Scheduler, ready: u8, lengths: [u32; 8], frames: u32) -> [u64; 8] {
        let mut bytes = [0; 8];
        for _ in 0..frames {
            let class = s.choose(ready).unwrap();
            assert!(ready & 1 << class != 0);
            let len = lengths[usize::from(class)];
            s.charge(class, len);
            bytes[usize::from(class)] += u64::from(len);
        }
        bytes
    }

    #[test]
    fn shares_are_the_weights_whatever_the_lengths() {
        let weights = [1, 2, 3, 10, 50, 100, 7, 1];
        let mut s = Scheduler::new(&weighted(weights));
        let lengths = [4258, 322, 1082, 64, 4258, 1082, 2106, 70];
        for ready in [0xff_u8, 0b11, 0b1010_1000, 0b1000_0001] {
            serve(&mut s, ready, lengths, 1000);
            let bytes = serve(&mut s, ready, lengths, 200_000);
            let sum: u64 = bytes.iter().sum();
            let all: u32 = (0..8)
                .filter(|i| ready & 1 << i != 0)
                .map(|i| u32::from(weights[i]))
                .sum();
            for i in (0..8).filter(|i| ready & 1 << i != 0) {
                let share = bytes[i] as f64 / sum as f64;
                let fair = f64::from(weights[i]) / f64::from(all);
                assert!((share / fair - 1.0).abs() < 0.02, "{i}: {share} {fair}");
            }
        }
        assert_eq!(s.choose(0), None);
    }

    #[test]
    fn strict_classes_go_first_the_highest_first_and_owe_nothing() {
        let mut s = Scheduler::new(&weighted([3, 0, 1, 1, 1, 0, 1, 1]));
        assert_eq!(s.choose(0b0010_0011), Some(5));
        assert_eq!(s.choose(0b0000_0011), Some(1));
        serve(&mut s, 0b0010_0000, [4000; 8], 1000);
        let bytes = serve(&mut s, 0b0000_0101, [1000; 8], 4000);
        assert!((2_990_000..3_010_000).contains(&bytes[0]), "{bytes:?}");
    }

    #[test]
    fn a_class_that_was_idle_has_saved_nothing() {
        let mut s = Scheduler::new(&weighted([1; 8]));
        serve(&mut s, 0b01, [1000; 8], 5000);
        let bytes = serve(&mut s, 0b11, [1000; 8], 20);
        assert!(bytes[0] >= 8_000, "{bytes:?}");
    }

    #[test]
    fn the_map_is_that_of_a_connectx_unless_told_otherwise() {
        let mut t = TrafficClasses::default();
        let mark = |dscp, pcp| Marking { dscp, pcp };
        let of = |t: &TrafficClasses, dscp| t.priority(mark(dscp, 5));
        assert_eq!([0, 7, 8, 26, 48, 63].map(|d| of(&t, d)), [0, 0, 1, 3, 6, 7]);
        t.priority_of_dscp[26] = 2;
        assert_eq!(of(&t, 26), 2);
        assert_eq!(t.answer_priority(mark(26, 5)), 2);
        t.answers = Some(mark(48, 6));
        assert_eq!(t.answer_priority(mark(26, 5)), 6);
        t.trust = Trust::Pcp;
        assert_eq!(of(&t, 26), 5);
    }

    #[test]
    fn lines_are_lines() {
        let mut rng = Rng::new(3);
        let mut lines = Lines::new();
        lines.grow(50);
        let mut model: [std::collections::VecDeque<u32>; 8] = Default::default();
        for _ in 0..20_000 {
            let (slot, class) = (rng.below(50) as u32, rng.below(8) as u8);
            if rng.below(2) == 0 {
                lines.push(slot, class);
                if !model.iter().any(|m| m.contains(&slot)) {
                    model[usize::from(class)].push_back(slot);
                }
            } else {
                assert_eq!(lines.pop(class), model[usize::from(class)].pop_front());
            }
            let bits = (0..8).filter(|i| !model[*i].is_empty());
            assert_eq!(lines.waiting(), bits.fold(0, |b, i| b | 1 << i));
            assert_eq!(
                lines.lens().map(|n| n as usize),
                model.each_ref().map(|m| m.len())
            );
        }
        lines.push(50, 0);
        assert_eq!(
            lines.lens().map(|n| n as usize),
            model.each_ref().map(|m| m.len())
        );
    }
}
