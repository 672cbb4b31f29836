//! A faulty wire between two ports, sans-IO: frames go in with a time, come out of the other port later, or never.
//!
//! What happens to a RoCEv2 packet is [`rocexdp_common::fault::decide`]'s choice by seed, port and packet number, as in
//! the lab's XDP wire; this one can also hold frames, so it duplicates, reorders and delays. Other frames are only
//! delayed. A wire is first in, first out but for reordered packets, and has no rate limit: that is a switch's role.
//!
//! Times are nanoseconds as plain `u64`, not the protocol's `Timestamp`: the protocol's own unit tests use this crate, and
//! there its types would be those of another build of `rocexdp-proto`.

use std::collections::VecDeque;

use rocexdp_common::fault::{self, Faults};

/// Frames on the way in one direction at most; more are lost and counted in [`PortCounters::overflowed`].
pub const LINE_CAPACITY: usize = 16_384;
/// Reordered packets held in one direction at most; beyond that a packet keeps its place.
pub const HOLD_CAPACITY: usize = 256;
/// How long a reordered packet waits for later ones to overtake it, nanoseconds.
pub const HOLD_TIME: u64 = 1_000_000;

/// What happened to the frames that entered a port. A frame can be in several lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// RoCEv2 packets seen: the next packet's number.
    pub packets: u64,
    /// Frames that came out, copies included.
    pub forwarded: u64,
    /// RoCEv2 packets dropped as a fault.
    pub dropped: u64,
    /// RoCEv2 packets with a byte changed.
    pub corrupted: u64,
    /// RoCEv2 packets that got Congestion Experienced.
    pub marked: u64,
    /// RoCEv2 packets delivered twice.
    pub duplicated: u64,
    /// RoCEv2 packets held back.
    pub reordered: u64,
    /// Frames that are not RoCEv2.
    pub other: u64,
    /// Frames lost because [`LINE_CAPACITY`] was reached: not a fault asked for.
    pub overflowed: u64,
}

struct Held {
    /// How many more packets must pass first.
    behind: u32,
    /// When it goes in any case.
    deadline: u64,
    frame: Vec<u8>,
}

/// One direction.
struct Line {
    faults: Faults,
    /// Frames on the way, in the order they come out, with their times, which never decrease.
    frames: VecDeque<(u64, Vec<u8>)>,
    held: VecDeque<Held>,
    counters: PortCounters,
    opaque: bool,
}

/// A wire with two ports, 0 and 1.
pub struct Wire {
    lines: [Line; 2],
}

impl Wire {
    /// A wire for Ethernet frames: `faults[p]` is what happens to RoCEv2 packets that enter port `p`.
    pub fn new(faults: [Faults; 2]) -> Self {
        Self {
            lines: faults.map(|faults| Line::new(faults, false)),
        }
    }

    /// A wire for frames that are no Ethernet frames, each taken for a RoCEv2 packet: any byte may be corrupted, and
    /// none can be marked.
    pub fn opaque(faults: [Faults; 2]) -> Self {
        Self {
            lines: faults.map(|faults| Line::new(faults, true)),
        }
    }

    /// A frame enters `port` (0 or 1; anything else is ignored) at `now`, which never goes back.
    pub fn push(&mut self, now: u64, port: u32, frame: Vec<u8>) {
        if let Some(line) = self.lines.get_mut(port as usize) {
            line.push(now, port, frame);
        }
    }

    /// The next frame to come out by `now`: the port it leaves by, and the frame.
    pub fn pop(&mut self, now: u64) -> Option<(u32, Vec<u8>)> {
        for line in &mut self.lines {
            line.release_expired(now);
        }
        let [first, second] = &self.lines;
        let entered = match (first.head(), second.head()) {
            (Some(a), Some(b)) => u32::from(b < a),
            (Some(_), None) => 0,
            (None, Some(_)) => 1,
            (None, None) => return None,
        };
        let line = self.lines.get_mut(entered as usize)?;
        let (time, _) = line.frames.front()?;
        if *time > now {
            return None;
        }
        let (_, frame) = line.frames.pop_front()?;
        line.counters.forwarded += 1;
        Some((1 - entered, frame))
    }

    /// When [`Wire::pop`] next has a frame if nothing enters; `None` when nothing is on the way.
    pub fn next_time(&self) -> Option<u64> {
        self.lines.iter().filter_map(Line::next_time).min()
    }

    /// What happened to the frames that entered each port.
    pub fn counters(&self) -> [PortCounters; 2] {
        let [first, second] = &self.lines;
        [first.counters, second.counters]
    }
}

impl Line {
    fn new(faults: Faults, opaque: bool) -> Self {
        Self {
            faults,
            frames: VecDeque::new(),
            held: VecDeque::new(),
            counters: PortCounters::default(),
            opaque,
        }
    }

    fn head(&self) -> Option<u64> {
        self.frames.front().map(|(time, _)| *time)
    }

    fn next_time(&self) -> Option<u64> {
        let released = self
            .held
            .front()
            .map(|held| held.deadline.saturating_add(self.faults.delay_ns));
        self.head().into_iter().chain(released).min()
    }

    fn push(&mut self, now: u64, port: u32, mut frame: Vec<u8>) {
        self.release_expired(now);
        let time = now.saturating_add(self.faults.delay_ns);
        let covered = fault::find(frame.as_slice());
        if covered.is_none() && !self.opaque {
            self.counters.other += 1;
            self.append(time, frame);
            return;
        }
        let decision = fault::decide(&self.faults, port, self.counters.packets);
        self.counters.packets += 1;
        if decision.drop {
            self.counters.dropped += 1;
            return;
        }
        if decision.mark
            && let Some(mark) = covered.and_then(|covered| covered.mark())
        {
            if let Some(byte) = frame.get_mut(mark.at) {
                *byte = mark.value;
                self.counters.marked += 1;
            }
            if let Some(at) = mark.ipv4_checksum_at
                && let Some(sum) = frame
                    .get_mut(at..at + 2)
                    .and_then(|sum| sum.first_chunk_mut::<2>())
            {
                *sum = mark.checksum(*sum);
            }
        }
        if decision.corrupt {
            let (at, mask) = match covered {
                Some(covered) => covered.corruption(decision.entropy),
                None => {
                    let length = frame.len().max(1) as u64;
                    (
                        ((decision.entropy >> 32) % length) as usize,
                        (decision.entropy as u8) | 1,
                    )
                }
            };
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= mask;
                self.counters.corrupted += 1;
            }
        }
        if decision.reorder && self.held.len() < HOLD_CAPACITY {
            self.counters.reordered += 1;
            let behind = match self.faults.reorder_depth {
                0 => Faults::DEFAULT_REORDER_DEPTH,
                depth => depth,
            };
            if decision.duplicate {
                // The copy keeps its place, so a duplicate comes out of order.
                self.counters.duplicated += 1;
                self.append(time, frame.clone());
                self.overtake(time);
            }
            self.held.push_back(Held {
                behind,
                deadline: now.saturating_add(HOLD_TIME),
                frame,
            });
            return;
        }
        if decision.duplicate {
            self.counters.duplicated += 1;
            self.append(time, frame.clone());
        }
        self.append(time, frame);
        self.overtake(time);
    }

    /// One packet passed those that are held: lets out the ones that waited for it.
    fn overtake(&mut self, time: u64) {
        for held in &mut self.held {
            held.behind = held.behind.saturating_sub(1);
        }
        // All wait for the same number, so the oldest are done first.
        while self.held.front().is_some_and(|held| held.behind == 0) {
            let Some(held) = self.held.pop_front() else {
                return;
            };
            self.append(time, held.frame);
        }
    }

    /// Lets out the held packets that nothing overtook in time.
    fn release_expired(&mut self, now: u64) {
        while self.held.front().is_some_and(|held| held.deadline <= now) {
            let Some(held) = self.held.pop_front() else {
                return;
            };
            self.append(
                held.deadline.saturating_add(self.faults.delay_ns),
                held.frame,
            );
        }
    }

    fn append(&mut self, time: u64, frame: Vec<u8>) {
        if self.frames.len() >= LINE_CAPACITY {
            self.counters.overflowed += 1;
            return;
        }
        let time = self.frames.back().map_or(time, |(last, _)| time.max(*last));
        self.frames.push_back((time, frame));
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_common::fault::Share;

    use super::*;

    /// A RoCEv2 frame, ECT(0), with `number` in its payload.
    fn packet(number: u32) -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 8 + 12 + 4 + 4];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..16].copy_from_slice(&[0x45, 2]);
        frame[23] = 17;
        frame[34..40].copy_from_slice(&[0xc0, 0, 0x12, 0xb7, 0, 28]);
        frame[54..58].copy_from_slice(&number.to_be_bytes());
        frame
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_be_bytes(frame[54..58].try_into().unwrap())
    }

    fn run(faults: Faults, count: u32, gap: u64) -> (Vec<u32>, PortCounters) {
        let mut wire = Wire::new([faults, Faults::default()]);
        let mut out = Vec::new();
        for n in 0..count {
            let now = u64::from(n) * gap;
            wire.push(now, 0, packet(n));
            while let Some((port, frame)) = wire.pop(now) {
                assert_eq!(port, 1);
                out.push(number(&frame));
            }
        }
        while let Some(time) = wire.next_time() {
            let (_, frame) = wire
                .pop(time)
                .expect("next_time tells when a frame comes out");
            out.push(number(&frame));
        }
        (out, wire.counters()[0])
    }

    #[test]
    fn a_clean_wire_delivers_all_in_order_after_its_delay() {
        let mut wire = Wire::new(
            [Faults {
                delay_ns: 100,
                ..Faults::default()
            }; 2],
        );
        wire.push(5, 0, packet(1));
        wire.push(6, 1, packet(2));
        wire.push(7, 0, vec![0; 60]);
        assert_eq!(wire.next_time(), Some(105));
        assert_eq!(wire.pop(104), None);
        assert_eq!(wire.pop(105), Some((1, packet(1))));
        assert_eq!(wire.pop(105), None);
        assert_eq!(wire.pop(200), Some((0, packet(2))));
        assert_eq!(wire.pop(200), Some((1, vec![0; 60])));
        assert_eq!((wire.pop(u64::MAX), wire.next_time()), (None, None));
        assert_eq!(wire.counters()[0].other, 1);
    }

    #[test]
    fn the_books_balance_under_all_faults() {
        let share = Share::ratio(1, 20);
        let faults = Faults {
            seed: 11,
            drop: share,
            corrupt: share,
            ce: share,
            duplicate: share,
            reorder: share,
            ..Faults::default()
        };
        let (out, counters) = run(faults, 20_000, 1000);
        assert_eq!(counters.packets, 20_000);
        assert_eq!(
            out.len() as u64,
            20_000 - counters.dropped + counters.duplicated
        );
        assert_eq!(out.len() as u64, counters.forwarded);
        for (name, count) in [
            ("dropped", counters.dropped),
            ("corrupted", counters.corrupted),
            ("marked", counters.marked),
            ("duplicated", counters.duplicated),
            ("reordered", counters.reordered),
        ] {
            assert!(count.abs_diff(1000) < 200, "{name}: {count}");
        }
        assert_eq!(
            run(faults, 20_000, 1000).0,
            out,
            "the same seed gives the same run"
        );
        assert_ne!(run(Faults { seed: 12, ..faults }, 20_000, 1000).0, out);
    }

    #[test]
    fn a_reordered_packet_comes_out_behind_the_asked_number_of_later_ones() {
        for depth in [1, 3, 7] {
            let faults = Faults {
                seed: 2,
                reorder: Share::ratio(1, 100),
                reorder_depth: depth,
                ..Faults::default()
            };
            let (out, counters) = run(faults, 5_000, 10);
            assert_eq!(out.len(), 5_000);
            assert!(counters.reordered > 20);
            let mut displaced = 0;
            for (at, n) in out.iter().enumerate() {
                // A packet overtaken by `depth` others stands `depth` places further back.
                let back = at as i64 - i64::from(*n);
                assert!(back <= i64::from(depth), "{n} at {at}");
                displaced += u64::from(back == i64::from(depth));
            }
            assert!(
                displaced * 10 > counters.reordered * 7,
                "{displaced} of {}",
                counters.reordered
            );
        }
    }

    #[test]
    fn the_last_packet_is_not_held_for_ever() {
        let mut wire = Wire::new(
            [Faults {
                reorder: Share::ALWAYS,
                ..Faults::default()
            }; 2],
        );
        wire.push(50, 0, packet(1));
        assert_eq!(wire.pop(50 + HOLD_TIME - 1), None);
        assert_eq!(wire.next_time(), Some(50 + HOLD_TIME));
        assert_eq!(wire.pop(50 + HOLD_TIME), Some((1, packet(1))));
    }

    #[test]
    fn other_frames_pass_unharmed_under_the_worst_faults() {
        let faults = Faults {
            drop: Share::ALWAYS,
            ..Faults::default()
        };
        let mut wire = Wire::new([faults; 2]);
        let mut arp = vec![0xff; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        wire.push(0, 1, arp.clone());
        wire.push(0, 1, packet(0));
        assert_eq!(wire.pop(0), Some((0, arp)));
        assert_eq!(wire.pop(u64::MAX), None);
    }

    #[test]
    fn opaque_frames_get_every_fault_but_marks() {
        let faults = Faults {
            corrupt: Share::ALWAYS,
            ce: Share::ALWAYS,
            ..Faults::default()
        };
        let mut wire = Wire::opaque([faults; 2]);
        wire.push(0, 0, vec![0; 8]);
        wire.push(0, 0, Vec::new());
        let (_, frame) = wire.pop(0).unwrap();
        assert_eq!(frame.iter().filter(|byte| **byte != 0).count(), 1);
        assert_eq!(wire.pop(0), Some((1, Vec::new())));
        assert_eq!(wire.counters()[0].marked, 0);
    }

    #[test]
    fn memory_is_bounded() {
        let faults = Faults {
            delay_ns: 1 << 40,
            duplicate: Share::ALWAYS,
            ..Faults::default()
        };
        let mut wire = Wire::new([faults; 2]);
        for n in 0..LINE_CAPACITY as u32 {
            wire.push(0, 0, packet(n));
        }
        assert_eq!(wire.counters()[0].overflowed, LINE_CAPACITY as u64);
    }
}
