//! The last records of one interface, in memory of a size that never changes: the oldest make room.

use rocexdp_common::watch::tap::TapHead;

/// Bytes before each record: its number, the bytes of its frame, its head.
const OVERHEAD: usize = 8 + 8 + size_of::<TapHead>();

/// A bounded store of frames.
#[derive(Debug)]
pub struct Ring {
    bytes: Box<[u8]>,
    /// Where the oldest record begins.
    first: usize,
    used: usize,
    records: u64,
    /// Number of the next record; the first is 0.
    next: u64,
}

/// A record that was taken out for a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Its number, which counts up by 1.
    pub number: u64,
    /// Its head.
    pub head: TapHead,
    /// Its bytes.
    pub data: Vec<u8>,
}

impl Ring {
    /// With so many bytes for records and what belongs to them.
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
            first: 0,
            used: 0,
            records: 0,
            next: 0,
        }
    }

    /// Adds a record and returns its number. One that is larger than the ring empties it and is not kept.
    pub fn push(&mut self, head: &TapHead, data: &[u8]) -> u64 {
        let number = self.next;
        self.next += 1;
        let need = OVERHEAD + data.len();
        while self.used + need > self.bytes.len() && self.records > 0 {
            self.drop_oldest();
        }
        if need <= self.bytes.len() {
            let mut at = self.wrapped(self.first + self.used);
            for part in [
                &number.to_ne_bytes()[..],
                &(data.len() as u64).to_ne_bytes(),
                bytemuck::bytes_of(head),
                data,
            ] {
                at = self.write(at, part);
            }
            self.used += need;
            self.records += 1;
        }
        number
    }

    /// Records held.
    pub fn len(&self) -> u64 {
        self.records
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// A place to read from, the oldest record first.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor {
            ring: self,
            at: self.first,
            left: self.records,
        }
    }

    fn wrapped(&self, at: usize) -> usize {
        if at >= self.bytes.len() {
            at - self.bytes.len()
        } else {
            at
        }
    }

    fn write(&mut self, at: usize, part: &[u8]) -> usize {
        let room = self.bytes.len() - at;
        let (head, tail) = part.split_at(part.len().min(room));
        if let Some(to) = self.bytes.get_mut(at..at + head.len()) {
            to.copy_from_slice(head);
        }
        if let Some(to) = self.bytes.get_mut(..tail.len()) {
            to.copy_from_slice(tail);
        }
        self.wrapped(at + part.len())
    }

    fn read(&self, at: usize, part: &mut [u8]) -> usize {
        let room = self.bytes.len() - at;
        let len = part.len();
        let (head, tail) = part.split_at_mut(len.min(room));
        if let Some(from) = self.bytes.get(at..at + head.len()) {
            head.copy_from_slice(from);
        }
        if let Some(from) = self.bytes.get(..tail.len()) {
            tail.copy_from_slice(from);
        }
        self.wrapped(at + len)
    }

    fn drop_oldest(&mut self) {
        let mut len = [0; 8];
        self.read(self.wrapped(self.first + 8), &mut len);
        let need = OVERHEAD + u64::from_ne_bytes(len) as usize;
        self.first = self.wrapped(self.first + need);
        self.used -= need;
        self.records -= 1;
    }
}

/// Reads records in order.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    ring: &'a Ring,
    at: usize,
    left: u64,
}

impl Cursor<'_> {
    /// Time of the next record, ns of CLOCK_MONOTONIC.
    pub fn peek_time(&self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let mut time = [0; 8];
        // The first field of the head.
        self.ring.read(self.ring.wrapped(self.at + 16), &mut time);
        Some(u64::from_ne_bytes(time))
    }

    /// Copies the next record into `to`; false: there is none.
    pub fn next_into(&mut self, to: &mut Stored) -> bool {
        if self.left == 0 {
            return false;
        }
        let (mut number, mut len) = ([0; 8], [0; 8]);
        let mut at = self.ring.read(self.at, &mut number);
        at = self.ring.read(at, &mut len);
        at = self.ring.read(at, bytemuck::bytes_of_mut(&mut to.head));
        to.number = u64::from_ne_bytes(number);
        to.data.clear();
        to.data.resize(u64::from_ne_bytes(len) as usize, 0);
        self.at = self.ring.read(at, &mut to.data);
        self.left -= 1;
        true
    }

    /// Steps over the next record.
    pub fn skip(&mut self) {
        if self.left == 0 {
            return;
        }
        let mut len = [0; 8];
        self.ring.read(self.ring.wrapped(self.at + 8), &mut len);
        let need = OVERHEAD + u64::from_ne_bytes(len) as usize;
        self.at = self.ring.wrapped(self.at + need);
        self.left -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn head(time_ns: u64) -> TapHead {
        TapHead {
            time_ns,
            ..TapHead::default()
        }
    }

    /// Against a queue that forgets by the same arithmetic.
    #[test]
    fn the_newest_records_are_kept_whole_wherever_the_memory_wraps() {
        for size in [300, 301, 997, 4096] {
            let mut ring = Ring::new(size);
            let mut model: VecDeque<Stored> = VecDeque::new();
            let held = |model: &VecDeque<Stored>| -> usize {
                model.iter().map(|s| OVERHEAD + s.data.len()).sum()
            };
            for number in 0..3000_u64 {
                let len = (number * 37 % 131) as usize;
                let data: Vec<u8> = (0..len).map(|i| (number as usize + i) as u8).collect();
                assert_eq!(ring.push(&head(number * 10), &data), number);
                while held(&model) + OVERHEAD + len > size {
                    model.pop_front();
                }
                model.push_back(Stored {
                    number,
                    head: head(number * 10),
                    data,
                });
                let mut cursor = ring.cursor();
                let mut stored = Stored::default();
                for expected in &model {
                    assert_eq!(cursor.peek_time(), Some(expected.head.time_ns));
                    assert!(cursor.next_into(&mut stored));
                    assert_eq!(stored, *expected, "{size}");
                }
                assert!(!cursor.next_into(&mut stored) && cursor.peek_time().is_none());
                let mut cursor = ring.cursor();
                cursor.skip();
                assert_eq!(cursor.peek_time(), model.get(1).map(|s| s.head.time_ns));
            }
            assert_eq!(ring.len(), model.len() as u64);
        }
    }

    #[test]
    fn a_record_larger_than_the_ring_is_not_kept() {
        let mut ring = Ring::new(100);
        ring.push(&head(1), &[0; 10]);
        assert!(!ring.is_empty());
        ring.push(&head(2), &[0; 200]);
        assert!(ring.is_empty());
        assert_eq!(Ring::new(0).push(&head(1), &[]), 0);
    }
}
