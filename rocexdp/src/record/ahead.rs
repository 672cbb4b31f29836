//! The records of one ring in order of time. In the ring they stand in the order in which they came out of the tap: CPUs that
//! record at the same moment, and an engine's own records, change places with each other.
//!
//! Reads some milliseconds ahead and sorts; what comes later than that stays where it stood. Memory is bounded.

use std::collections::BTreeMap;

use super::ring::{Cursor, Stored};

/// How much later than its place a record may stand, ns: a turn of the recorder's loop, and a thread of an engine, or a virtual
/// CPU, that had to wait between the time stamp and the record.
pub const LATE_NS: u64 = 50_000_000;
/// Bytes of records read ahead of one ring, but for the last.
pub const MOST: usize = 4 << 20;
/// What a record costs beside its bytes.
const BESIDE: usize = 128;

/// Records read ahead, by time, then by number.
#[derive(Debug, Default)]
pub struct Ahead {
    held: BTreeMap<(u64, u64), Stored>,
    bytes: usize,
    /// Memory of records that were taken, for the next.
    spare: Vec<Stored>,
}

impl Ahead {
    /// Reads on, until the first record can't be anything but the earliest. Those from before `from_ns` are passed over, as many as
    /// there are `looks`; false: there may be more of them.
    pub fn fill(&mut self, cursor: &mut Cursor<'_>, from_ns: u64, looks: &mut usize) -> bool {
        while let Some(time_ns) = cursor.peek_time() {
            if time_ns < from_ns {
                let Some(left) = looks.checked_sub(1) else {
                    return false;
                };
                *looks = left;
                cursor.skip();
                continue;
            }
            let first = self.first_time().unwrap_or(time_ns);
            if time_ns > first.saturating_add(LATE_NS) || self.bytes >= MOST {
                return true;
            }
            let mut stored = self.spare.pop().unwrap_or_default();
            if !cursor.next_into(&mut stored) {
                return true;
            }
            self.bytes += BESIDE + stored.data.len();
            self.held.insert((time_ns, stored.number), stored);
        }
        true
    }

    /// Time of the earliest record, ns of CLOCK_MONOTONIC.
    pub fn first_time(&self) -> Option<u64> {
        self.held
            .first_key_value()
            .map(|((time_ns, _), _)| *time_ns)
    }

    /// Moves the earliest record into `to`; false: there is none.
    pub fn take(&mut self, to: &mut Stored) -> bool {
        let Some((_, stored)) = self.held.pop_first() else {
            return false;
        };
        self.bytes -= BESIDE + stored.data.len();
        self.spare.push(std::mem::replace(to, stored));
        true
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_common::watch::tap::TapHead;

    use super::*;
    use crate::record::ring::Ring;

    fn ring(times: &[u64]) -> Ring {
        let mut ring = Ring::new(64 << 20).unwrap();
        for time_ns in times {
            let head = TapHead {
                time_ns: *time_ns,
                ..TapHead::default()
            };
            ring.push(&head, &[7; 1000]);
        }
        ring
    }

    fn order(ring: &Ring, from_ns: u64) -> Vec<u64> {
        let (mut cursor, mut ahead, mut stored) =
            (ring.cursor(), Ahead::default(), Stored::default());
        let mut times = Vec::new();
        loop {
            while !ahead.fill(&mut cursor, from_ns, &mut 1) {}
            assert!(ahead.bytes <= MOST + BESIDE + 1000);
            if !ahead.take(&mut stored) {
                return times;
            }
            times.push(stored.head.time_ns);
        }
    }

    #[test]
    fn neighbours_that_changed_places_are_put_right() {
        assert_eq!(order(&ring(&[5, 3, 9, 7, 8, 20]), 0), [3, 5, 7, 8, 9, 20]);
        // As late as can be, and one that is later.
        let at = |time_ns| LATE_NS * 3 + time_ns;
        let late = [at(1), at(LATE_NS), at(0), at(LATE_NS * 3), at(5)];
        assert_eq!(
            order(&ring(&late), 0),
            [at(0), at(1), at(LATE_NS), at(5), at(LATE_NS * 3)]
        );
        assert_eq!(order(&ring(&[5, 3, 9, 7]), 5), [5, 7, 9]);
    }

    #[test]
    fn a_flood_is_read_ahead_in_part_only_and_none_is_lost() {
        let times: Vec<u64> = (0..20_000).map(|n| n ^ 1).collect();
        assert_eq!(order(&ring(&times), 0), (0..20_000).collect::<Vec<u64>>());
    }
}
