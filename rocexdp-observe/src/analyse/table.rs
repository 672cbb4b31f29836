//! The table of directions: found by addresses and QP in one step, and the untied ones between two addresses.
//!
//! Its size is what bounds the analyser's memory: one [`Half`] per direction of a QP pair.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use rocexdp_common::{
    ids::{Gid, Psn},
    opcode::Transport,
};

use super::expected::Expected;
use crate::flow::Half;

/// Addresses and QP of a direction; of UD and RD the sender's QP too, as each numbers its packets on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Destination QP.
    pub dest_qpn: u32,
    /// The sender's QP of UD and RD, else 0.
    pub src_qpn: u32,
}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.src);
        state.write(&self.dst);
        state.write_u64(u64::from(self.dest_qpn) << 32 | u64::from(self.src_qpn));
    }
}

/// Multiply and fold, word by word, as wyhash does; the seed is the table's own, so that a capture can't aim at it.
#[derive(Clone, Copy, Debug)]
pub struct Fold(u64);

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Fold {
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(MULTIPLIER);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Default for Fold {
    fn default() -> Self {
        Self(*SEED)
    }
}

static SEED: std::sync::LazyLock<u64> = std::sync::LazyLock::new(|| {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(MULTIPLIER) | 1
});

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            for (to, from) in padded.iter_mut().zip(word) {
                *to = *from;
            }
            self.mix(u64::from_ne_bytes(padded));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// In no list.
const NOWHERE: u32 = u32::MAX;
/// Slots of the cache before the table.
const CACHE: usize = 16;

/// The directions.
#[derive(Debug)]
pub struct Table {
    halves: Vec<Half>,
    ids: Map<Key, u32>,
    /// Untied directions of reliable services from one address to another.
    untied: Map<(Gid, Gid), Vec<u32>>,
    /// Where each direction stands in its list of untied ones.
    places: Vec<u32>,
    expected: Expected,
    cache: [Option<(Key, u32)>; CACHE],
}

impl Table {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self {
            halves: Vec::new(),
            ids: Map::default(),
            untied: Map::default(),
            places: Vec::new(),
            expected: Expected::new(),
            cache: [None; CACHE],
        }
    }

    /// The direction's number; it is made if it is new.
    #[inline]
    pub fn id(&mut self, key: &Key, transport: Transport) -> u32 {
        let slot =
            (key.dest_qpn as usize ^ usize::from(key.src[15]) ^ (key.dest_qpn >> 8) as usize)
                & (CACHE - 1);
        if let Some(Some((cached, id))) = self.cache.get(slot)
            && cached == key
        {
            return *id;
        }
        let id = match self.ids.get(key) {
            Some(id) => *id,
            None => self.insert(key, transport),
        };
        if let Some(slot) = self.cache.get_mut(slot) {
            *slot = Some((*key, id));
        }
        id
    }

    fn insert(&mut self, key: &Key, transport: Transport) -> u32 {
        let id = u32::try_from(self.halves.len()).unwrap_or(u32::MAX);
        let mut half = Half::new(key.src, key.dst, key.dest_qpn, transport);
        let told = matches!(transport, Transport::Ud | Transport::Rd);
        if told {
            half.src_qpn = Some(key.src_qpn);
        }
        self.halves.push(half);
        self.places.push(NOWHERE);
        if !told {
            self.untied_again(id);
        }
        self.ids.insert(*key, id);
        id
    }

    /// The number of a direction that exists.
    #[must_use]
    pub fn find(&self, key: &Key) -> Option<u32> {
        self.ids.get(key).copied()
    }

    /// A direction.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Half> {
        self.halves.get(id as usize)
    }

    /// A direction, to change.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut Half> {
        self.halves.get_mut(id as usize)
    }

    /// All, by number.
    #[must_use]
    pub fn all(&self) -> &[Half] {
        &self.halves
    }

    /// All, to change.
    pub fn all_mut(&mut self) -> &mut [Half] {
        &mut self.halves
    }

    /// Untied directions from `src` to `dst`.
    #[must_use]
    pub fn untied(&self, src: &Gid, dst: &Gid) -> &[u32] {
        self.untied.get(&(*src, *dst)).map_or(&[], Vec::as_slice)
    }

    /// The direction is tied now.
    pub fn tied(&mut self, id: u32) {
        let Some(half) = self.halves.get(id as usize) else {
            return;
        };
        if let Some(list) = self.untied.get_mut(&(half.src, half.dst)) {
            let Some(place) = self.places.get_mut(id as usize) else {
                return;
            };
            let at = std::mem::replace(place, NOWHERE) as usize;
            if list.get(at) == Some(&id) {
                list.swap_remove(at);
                let moved = list
                    .get(at)
                    .and_then(|id| self.places.get_mut(*id as usize));
                if let (Some(moved), Ok(at)) = (moved, u32::try_from(at)) {
                    *moved = at;
                }
            }
            if list.is_empty() {
                self.untied.remove(&(half.src, half.dst));
            }
        }
    }

    /// The direction is not tied, or no longer.
    pub fn untied_again(&mut self, id: u32) {
        let (Some(half), Some(place)) = (
            self.halves.get(id as usize),
            self.places.get_mut(id as usize),
        ) else {
            return;
        };
        if *place == NOWHERE {
            let list = self.untied.entry((half.src, half.dst)).or_default();
            *place = u32::try_from(list.len()).unwrap_or(NOWHERE);
            list.push(id);
        }
    }

    /// The direction sent a request that must be answered.
    pub fn await_answer(&mut self, id: u32, psn: Psn) {
        self.expected.add(&self.halves, id, psn);
    }

    /// Directions from `src` to `dst` that may await an answer at this PSN; none if they are too many.
    pub fn awaiting(&mut self, src: &Gid, dst: &Gid, psn: Psn) -> &[u32] {
        self.expected.at(&self.halves, src, dst, psn)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(qpn: u32, last: u8) -> Key {
        let mut src = [0; 16];
        src[15] = last;
        Key {
            src,
            dst: [9; 16],
            dest_qpn: qpn,
            src_qpn: 0,
        }
    }

    #[test]
    fn a_direction_keeps_its_number_whatever_the_cache_holds() {
        let mut table = Table::new();
        let ids: Vec<u32> = (0..1000)
            .map(|n| table.id(&key(n, (n % 7) as u8), Transport::Rc))
            .collect();
        for n in (0..1000).rev() {
            assert_eq!(
                table.id(&key(n, (n % 7) as u8), Transport::Rc),
                ids[n as usize]
            );
        }
        assert_eq!(table.all().len(), 1000);
        assert_eq!(table.find(&key(5, 6)), None);
    }

    #[test]
    fn tied_directions_are_no_candidates_any_more() {
        let mut table = Table::new();
        let a = table.id(&key(1, 1), Transport::Rc);
        let b = table.id(&key(2, 1), Transport::Rc);
        let src = key(1, 1).src;
        assert_eq!(table.untied(&src, &[9; 16]), [a, b]);
        table.tied(a);
        assert_eq!(table.untied(&src, &[9; 16]), [b]);
        table.tied(b);
        assert!(table.untied(&src, &[9; 16]).is_empty());
    }
}
