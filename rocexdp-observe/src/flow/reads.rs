//! READ requests whose responses are awaited, and what of the responses was seen.
//!
//! The number of PSNs of a READ is rxe's (rxe_req.c `update_wqe_psn`): ceil(length / path MTU), at least 1.

use std::collections::VecDeque;

use rocexdp_common::ids::Psn;

/// READs remembered: more than a QP may have outstanding (`max_rd_atomic`, 16 with common NICs), and some that are done.
const MOST: usize = 64;
/// PSNs behind which a READ is kept after its end: a response may be asked for again.
pub(super) const KEEP: u32 = 4096;

/// Responses missing in the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// First missing.
    pub from: Psn,
    /// How many.
    pub count: u32,
    /// And in later holes of the same READ.
    pub later: u32,
    /// Frames around it.
    pub frames: (u64, u64),
    /// When it was noticed.
    pub time: i64,
}

/// A READ request.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// First PSN.
    pub psn: Psn,
    /// PSNs that it takes; `None`: the path MTU is not known yet.
    pub count: Option<u32>,
    /// Bytes asked for.
    pub length: u32,
    /// Its first frame.
    pub frame: u64,
    /// And when.
    pub time: i64,
    /// Response expected next.
    pub next: Psn,
    /// Response packets seen.
    pub seen: u32,
    /// Frame of the last response seen.
    pub last_frame: u64,
    /// Times it was asked for again, wholly or in part.
    pub again: u32,
    /// Responses that were jumped over.
    pub hole: Option<Hole>,
}

impl Read {
    /// The PSN behind its last response, where that is known.
    #[must_use]
    pub fn end(&self) -> Option<Psn> {
        self.count.map(|n| self.psn.add(n))
    }

    /// Whether `psn` is one of its responses'. With an unknown path MTU: whether it can be.
    #[must_use]
    pub fn covers(&self, psn: Psn) -> bool {
        let distance = psn.diff(self.psn);
        let most = self.count.unwrap_or_else(|| self.length.div_ceil(256));
        distance >= 0 && i64::from(distance) < i64::from(most.max(1))
    }

    /// Whether all responses were seen, or jumped over.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.end().is_some_and(|end| self.next.diff(end) >= 0)
    }
}

/// The READs of a stream, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    list: VecDeque<Read>,
}

impl Reads {
    /// Adds one; returns the one that is forgotten for it.
    pub fn push(&mut self, read: Read) -> Option<Read> {
        let forgotten = (self.list.len() >= MOST)
            .then(|| self.list.pop_front())
            .flatten();
        self.list.push_back(read);
        forgotten
    }

    /// The newest READ that has this response.
    pub fn find(&mut self, psn: Psn) -> Option<&mut Read> {
        self.list.iter_mut().rev().find(|read| read.covers(psn))
    }

    /// Whether a READ begins here, or was asked for again from here on, and no response from here on was seen.
    #[must_use]
    pub fn begins_at(&self, psn: Psn) -> bool {
        self.list
            .iter()
            .rev()
            .any(|read| (read.psn == psn && read.seen == 0) || (read.again > 0 && read.next == psn))
    }

    /// The newest.
    pub fn last_mut(&mut self) -> Option<&mut Read> {
        self.list.back_mut()
    }

    /// Removes and returns the oldest if its PSNs are all before `psn`.
    pub fn pop_before(&mut self, psn: Psn) -> Option<Read> {
        let oldest = self.list.front()?;
        let end = oldest.end().unwrap_or_else(|| oldest.psn.add(1));
        (psn.diff(end) >= 0)
            .then(|| self.list.pop_front())
            .flatten()
    }

    /// Takes all.
    pub fn drain(&mut self) -> impl Iterator<Item = Read> + '_ {
        self.list.drain(..)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(psn: u32, count: Option<u32>, length: u32) -> Read {
        Read {
            psn: Psn::new(psn),
            count,
            length,
            frame: 1,
            time: 0,
            next: Psn::new(psn),
            seen: 0,
            last_frame: 0,
            again: 0,
            hole: None,
        }
    }

    #[test]
    fn responses_find_their_read_across_the_wrap() {
        let mut reads = Reads::default();
        reads.push(read(0xff_fffe, Some(4), 4096));
        reads.push(read(2, None, 1000));
        assert_eq!(reads.find(Psn::new(1)).unwrap().psn, Psn::new(0xff_fffe));
        assert_eq!(reads.find(Psn::new(5)).unwrap().psn, Psn::new(2));
        assert!(reads.find(Psn::new(6)).is_none());
        assert!(reads.pop_before(Psn::new(1)).is_none());
        assert!(reads.pop_before(Psn::new(2)).is_some());
    }

    #[test]
    fn they_are_bounded() {
        let mut reads = Reads::default();
        for n in 0..1000 {
            let forgotten = reads.push(read(n, Some(1), 1));
            assert_eq!(forgotten.is_some(), n >= 64);
        }
        assert_eq!(reads.drain().count(), 64);
        assert!(reads.is_empty());
    }
}
