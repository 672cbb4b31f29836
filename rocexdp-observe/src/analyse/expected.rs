//! Which untied directions await an answer at a PSN: found in one step, however many QPs two hosts have between them.
//!
//! Says only who may be meant; whether an answer fits is [`crate::flow::Requests::could_answer`]'s business. Nobody is forgotten
//! while he awaits an answer, so that none is taken for the only one; memory is bounded by twice what is still awaited, and that
//! by the packets that each direction remembers.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use rocexdp_common::ids::{Gid, Psn};

use super::table::Fold;
use crate::flow::Half;

/// Directions looked at for one answer.
const LOOKED_AT: usize = 256;
/// Entries before the first sweep.
const FIRST_SWEEP: usize = 4096;

#[derive(Clone, Debug, Default)]
struct Awaited {
    psn: Psn,
    ids: Vec<u32>,
}

/// The index.
#[derive(Debug)]
pub struct Expected {
    places: HashMap<u64, Awaited, BuildHasherDefault<Fold>>,
    entries: usize,
    sweep_at: usize,
}

fn key(src: &Gid, dst: &Gid, psn: Psn) -> u64 {
    let mut fold = Fold::default();
    fold.write(src);
    fold.write(dst);
    psn.get().hash(&mut fold);
    fold.finish()
}

/// Whether the direction still awaits an answer at this PSN, and may be tied.
fn awaits(halves: &[Half], id: u32, psn: Psn) -> bool {
    halves
        .get(id as usize)
        .is_some_and(|half| half.peer.is_none() && half.requests.awaits(psn))
}

impl Expected {
    /// Empty.
    pub fn new() -> Self {
        Self {
            places: HashMap::default(),
            entries: 0,
            sweep_at: FIRST_SWEEP,
        }
    }

    /// A direction sent a request with this PSN that must be answered.
    pub fn add(&mut self, halves: &[Half], id: u32, psn: Psn) {
        let Some(half) = halves.get(id as usize) else {
            return;
        };
        if self.entries >= self.sweep_at {
            self.sweep(halves);
        }
        let place = self
            .places
            .entry(key(&half.src, &half.dst, psn))
            .or_default();
        place.psn = psn;
        if place.ids.last() != Some(&id) {
            place.ids.push(id);
            self.entries += 1;
        }
    }

    /// Directions from `src` to `dst` that may await an answer at this PSN, one perhaps twice; none if they are too many.
    pub fn at(&mut self, halves: &[Half], src: &Gid, dst: &Gid, psn: Psn) -> &[u32] {
        let Some(place) = self.places.get_mut(&key(src, dst, psn)) else {
            return &[];
        };
        if place.ids.len() > LOOKED_AT {
            let first = place.ids.iter().take(LOOKED_AT);
            if first.filter(|id| awaits(halves, **id, psn)).count() > 1 {
                return &[];
            }
            let before = place.ids.len();
            place.ids.retain(|id| awaits(halves, *id, psn));
            self.entries -= before - place.ids.len();
            if place.ids.len() > LOOKED_AT {
                return &[];
            }
        }
        &place.ids
    }

    fn sweep(&mut self, halves: &[Half]) {
        self.entries = 0;
        self.places.retain(|_, place| {
            let psn = place.psn;
            place.ids.retain(|id| awaits(halves, *id, psn));
            self.entries += place.ids.len();
            !place.ids.is_empty()
        });
        self.places.shrink_to(FIRST_SWEEP);
        self.sweep_at = (2 * self.entries).max(FIRST_SWEEP);
    }
}

impl Default for Expected {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_common::opcode::{Operation, Position, Transport};

    use super::*;
    use crate::{
        findings::{Findings, Place},
        flow::Request,
    };

    fn halves(count: u32) -> Vec<Half> {
        (0..count)
            .map(|n| Half::new([1; 16], [2; 16], n, Transport::Rc))
            .collect()
    }

    fn ask(halves: &mut [Half], expected: &mut Expected, id: u32, psn: u32) {
        let request = Request {
            frame: 1,
            time: 0,
            psn: Psn::new(psn),
            opcode: 4,
            operation: Operation::Send,
            position: Position::Only,
            ack_req: true,
            payload: 0,
            reth: None,
        };
        let place = Place::Half(id);
        halves[id as usize]
            .requests
            .take(&request, &mut Findings::default(), place);
        expected.add(halves, id, Psn::new(psn));
    }

    #[test]
    fn who_awaits_a_psn_is_found_and_a_crowd_is_nobody() {
        let (from, to) = ([1; 16], [2; 16]);
        let mut all = halves(2000);
        let mut expected = Expected::new();
        for id in 0..3 {
            ask(&mut all, &mut expected, id, 7 + id / 2);
        }
        assert_eq!(expected.at(&all, &from, &to, Psn::new(7)), [0, 1]);
        assert_eq!(expected.at(&all, &from, &to, Psn::new(8)), [2]);
        assert!(expected.at(&all, &to, &from, Psn::new(7)).is_empty());
        for id in 3..2000 {
            ask(&mut all, &mut expected, id, 7);
        }
        assert!(expected.at(&all, &from, &to, Psn::new(7)).is_empty());
        // Once the others are tied, the last two still are known.
        for half in &mut all[..1998] {
            half.peer = Some(0);
        }
        let left = expected.at(&all, &from, &to, Psn::new(7));
        assert_eq!(left, [1998, 1999]);
    }

    #[test]
    fn what_is_no_longer_awaited_is_forgotten() {
        let mut all = halves(4);
        let mut expected = Expected::new();
        for psn in 0..100_000 {
            ask(&mut all, &mut expected, psn % 4, psn);
        }
        assert!(expected.entries <= FIRST_SWEEP);
        let entries: usize = expected.places.values().map(|place| place.ids.len()).sum();
        assert_eq!(entries, expected.entries);
        let last = expected.at(&all, &[1; 16], &[2; 16], Psn::new(99_999));
        assert_eq!(last, [3]);
    }
}
