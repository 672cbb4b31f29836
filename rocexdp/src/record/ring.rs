//! The last records of one interface, in memory of a size that never changes: the oldest make room.

use std::collections::TryReserveError;

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
    /// With so many bytes for records and what belongs to them. All of them are written once, so that the memory is there.
    ///
    /// # Errors
    /// The system has no room for it in this process.
    pub fn new(bytes: usize) -> Result<Self, TryReserveError> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes)?;
        memory.resize(bytes, 0);
        Ok(Self {
            bytes: memory.into_boxed_slice(),
            first: 0,
            used: 0,
            records: 0,
            next: 0,
        })
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
        self.resume(Mark::default())
    }

    /// A place to read from, where a cursor on this ring stood; the oldest record first if that one has made room.
    pub fn resume(&self, mark: Mark) -> Cursor<'_> {
        // The numbers held have no gaps.
        let oldest = self.next - self.records;
        let (at, number) = if mark.number > oldest {
            (mark.at, mark.number)
        } else {
            (self.first, oldest)
        };
        Cursor {
            ring: self,
            at,
            left: self.next.saturating_sub(number),
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

/// Where a cursor stands, to go on from when the ring has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    at: usize,
    /// Number of the next record.
    number: u64,
}

/// Reads records in order.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    ring: &'a Ring,
    at: usize,
    left: u64,
}

impl Cursor<'_> {
    /// Where it stands.
    pub fn mark(&self) -> Mark {
        Mark {
            at: self.at,
            number: self.ring.next - self.left,
        }
    }

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
            let mut ring = Ring::new(size).unwrap();
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
        let mut ring = Ring::new(100).unwrap();
        ring.push(&head(1), &[0; 10]);
        assert!(!ring.is_empty());
        ring.push(&head(2), &[0; 200]);
        assert!(ring.is_empty());
        assert_eq!(Ring::new(0).unwrap().push(&head(1), &[]), 0);
        assert!(Ring::new(usize::MAX / 4).is_err());
    }

    /// A reader that stops now and then gets every record once, but those that made room meanwhile.
    #[test]
    fn a_cursor_goes_on_where_it_stood() {
        let mut ring = Ring::new(1500).unwrap();
        let (mut mark, mut stored, mut next) = (Mark::default(), Stored::default(), 0);
        for step in 0..2000_u64 {
            for _ in 0..step % 23 {
                let len = (ring.next * 37 % 131) as usize;
                let number = ring.next;
                ring.push(&head(number * 10), &vec![number as u8; len]);
            }
            let oldest = ring.next - ring.len();
            let mut cursor = ring.resume(mark);
            for _ in 0..step % 19 {
                next = oldest.max(next);
                assert_eq!(cursor.next_into(&mut stored), next < ring.next);
                if next < ring.next {
                    assert_eq!((stored.number, stored.head.time_ns), (next, next * 10));
                    assert!(stored.data.iter().all(|b| *b == next as u8));
                    next += 1;
                }
            }
            mark = cursor.mark();
        }
        assert!(next > 10_000);
    }
}
