//! Responder resources: READs, atomics, FLUSHes and ATOMIC WRITEs as they were carried out, kept for their answers and for
//! duplicates.
//!
//! A ring of at most as many as the peer may have unanswered (`max_dest_rd_atomic`), in PSN order. An entry knows what is left
//! of its answer; so the ring is the queue of answers, too, and a duplicate, which asks for an answer again, takes its old
//! place in it. A READ of 2^31 bytes is one entry: bytes are read from the memory when a packet leaves, so a READ that is
//! answered again may give newer bytes.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_resp.c (`rxe_prepare_res`, `find_resource`, `duplicate_request`), which takes a ring
//! too but answers one request at a time. Must not: read memory or build packets.

use std::collections::VecDeque;

use rocexdp_common::headers::Reth;
use rocexdp_common::opcode::Operation;

use crate::ids::{PathMtu, RKey};
use crate::qp::MAX_RD_ATOMIC;

/// What a request's answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    /// READ: which bytes.
    Read { va: u64, rkey: RKey, length: u32 },
    /// COMPARE_SWAP, FETCH_ADD: what stood in the memory.
    Original(u64),
    /// FLUSH, ATOMIC WRITE: nothing.
    Nothing,
}

/// A request that was carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Number of its first packet.
    pub(super) first: u64,
    operation: Operation,
    pub(super) kept: Kept,
    /// MSN when it had been carried out.
    pub(super) msn: u32,
    /// Packet of the whole answer with which the answer as it was asked for last begins.
    pub(super) begin: u32,
    /// The packet of it that leaves next; behind it: nothing is left.
    pub(super) next: u32,
    /// READ: where the answer as it was asked for last ends, in bytes of the whole.
    pub(super) end: u32,
    /// Packets before this one have left once.
    pub(super) high: u32,
}

impl Entry {
    pub(super) fn new(first: u64, operation: Operation, kept: Kept, msn: u32) -> Self {
        let end = match kept {
            Kept::Read { length, .. } => length,
            _ => 0,
        };
        Self {
            first,
            operation,
            kept,
            msn,
            begin: 0,
            next: 0,
            end,
            high: 0,
        }
    }

    /// Packets of the whole answer.
    pub(super) fn packets(&self, mtu: PathMtu) -> u32 {
        match self.kept {
            Kept::Read { length, .. } => mtu.packets(length),
            _ => 1,
        }
    }

    /// The packet behind the last one that was asked for.
    pub(super) fn behind(&self, mtu: PathMtu) -> u32 {
        mtu.packets(self.end)
    }

    fn is_pending(&self, mtu: PathMtu) -> bool {
        self.next < self.behind(mtu)
    }
}

/// What a duplicate asks for.
#[derive(Clone, Copy)]
pub(super) enum Again {
    /// READ: bytes, all of the original's or its rest.
    Read(Reth),
    /// Another operation.
    Other(Operation),
}

/// The ring.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Entry>,
    depth: usize,
    /// No entry before this one has an answer left.
    from: usize,
}

impl Resources {
    pub(super) fn new(depth: u8) -> Self {
        let depth = usize::from(depth.min(MAX_RD_ATOMIC));
        Self {
            ring: VecDeque::new(),
            depth,
            from: 0,
        }
    }

    /// Another depth. With fewer, the oldest entries go as new ones come.
    pub(super) fn set_depth(&mut self, depth: u8) {
        self.depth = usize::from(depth.min(MAX_RD_ATOMIC));
    }

    /// Whether another request may be kept: those whose places it takes were answered, at least once. (First answers leave in
    /// order, so the newest one of those tells.)
    pub(super) fn has_room(&self, mtu: PathMtu) -> bool {
        let last = self.ring.len().checked_sub(self.depth);
        self.depth > 0
            && last
                .and_then(|i| self.ring.get(i))
                .is_none_or(|e| e.high >= e.packets(mtu))
    }

    /// Keeps a request, behind all others, in the place of the oldest one if need be. What of that one's answer is left is not
    /// sent: the peer has gone on.
    pub(super) fn push(&mut self, entry: Entry, mtu: PathMtu) {
        while self.ring.len() >= self.depth.max(1) {
            self.ring.pop_front();
            self.from = self.from.saturating_sub(1);
        }
        // Once in a QP's life, at its first READ or atomic: many have none.
        self.ring
            .reserve(self.depth.saturating_sub(self.ring.len()));
        self.ring.push_back(entry);
        self.skip(mtu);
    }

    /// The answer that leaves next, if any is left.
    pub(super) fn pending(&self) -> Option<&Entry> {
        self.ring.get(self.from)
    }

    /// The packet that leaves next has left.
    pub(super) fn sent(&mut self, mtu: PathMtu) {
        if let Some(entry) = self.ring.get_mut(self.from) {
            entry.next += 1;
            entry.high = entry.high.max(entry.next);
            self.skip(mtu);
        }
    }

    /// The rest of the answer that leaves next is not sent.
    pub(super) fn cancel(&mut self, mtu: PathMtu) {
        if let Some(entry) = self.ring.get_mut(self.from) {
            (entry.next, entry.high) = (entry.behind(mtu), entry.packets(mtu));
            self.skip(mtu);
        }
    }

    /// Nothing more is answered.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.from = 0;
    }

    fn skip(&mut self, mtu: PathMtu) {
        while self.ring.get(self.from).is_some_and(|e| !e.is_pending(mtu)) {
            self.from += 1;
        }
    }

    /// The number of the first kept request behind packet `number`.
    pub(super) fn behind(&self, number: u64) -> Option<u64> {
        let i = self.ring.partition_point(|e| e.first <= number);
        self.ring.get(i).map(|e| e.first)
    }

    /// Packet `number` has come again: its request is answered again, as it is asked for now, in place of what was left of its
    /// answer. False if it is not kept, or
    /// is not what was asked for first, or a part of that.
    pub(super) fn again(&mut self, number: u64, asked: Again, mtu: PathMtu) -> bool {
        let Some((i, at, end)) = self.asked_again(number, asked, mtu) else {
            return false;
        };
        let Some(entry) = self.ring.get_mut(i) else {
            return false;
        };
        // The peer has all before what it asks for, and never asks for that again: what was on its way of it is skipped.
        entry.high = entry.high.max(at);
        if end != entry.end {
            // The peer asks in other pieces now; it will ask for each of them.
            entry.high = entry.packets(mtu);
        }
        (entry.begin, entry.next, entry.end) = (at, at, end);
        self.from = self.from.min(i);
        true
    }

    /// Which entry's answer is asked for again by packet `number`, from which of its packets on, and up to which byte. `None`: it
    /// is not kept, or is not what was asked for first, or a part of that.
    fn asked_again(&self, number: u64, asked: Again, mtu: PathMtu) -> Option<(usize, u32, u32)> {
        let i = self.place(number, mtu)?;
        let entry = self.ring.get(i)?;
        let at = (number - entry.first) as u32;
        let end = match (asked, entry.kept) {
            (Again::Read(r), Kept::Read { va, rkey, length }) => {
                let offset = at * mtu.bytes();
                let end = r.length.checked_add(offset).filter(|end| *end <= length);
                let same = r.rkey == rkey.0 && r.va == va.wrapping_add(u64::from(offset));
                // Of no bytes neither address nor key means anything.
                end.filter(|_| length == 0 || (same && r.length > 0))?
            }
            _ if mutant!("duplicate_atomic_unanswered") => return None,
            (Again::Other(operation), Kept::Original(_) | Kept::Nothing)
                if operation == entry.operation =>
            {
                0
            }
            _ => return None,
        };
        Some((i, at, end))
    }

    /// As for [`Resources::again`], but what was on its way stays there: the packets of the answer that are asked for again, and
    /// have left. Few at a time: the peer asks again for the rest.
    pub(super) fn sent_of(
        &self,
        number: u64,
        asked: Again,
        mtu: PathMtu,
    ) -> Option<core::ops::Range<u64>> {
        const MOST: u32 = 64;
        let (i, at, end) = self.asked_again(number, asked, mtu)?;
        let entry = self.ring.get(i)?;
        let behind = mtu
            .packets(end)
            .min(at.saturating_add(MOST))
            .min(entry.next);
        Some(number..entry.first + u64::from(behind.max(at)))
    }

    /// The entry that holds packet `number` of its answers.
    fn place(&self, number: u64, mtu: PathMtu) -> Option<usize> {
        let i = self.ring.partition_point(|e| e.first <= number);
        let i = i.checked_sub(1)?;
        let entry = self.ring.get(i)?;
        (number - entry.first < u64::from(entry.packets(mtu))).then_some(i)
    }

    /// The kept request with packet `number` in its answer.
    pub(super) fn holds(&self, number: u64, mtu: PathMtu) -> Option<&Entry> {
        self.ring.get(self.place(number, mtu)?)
    }

    /// The number of the oldest kept request.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.ring.front().map(|e| e.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: PathMtu = PathMtu::Mtu256;

    fn read(first: u64, length: u32) -> Entry {
        let (va, rkey) = (0x1000, RKey(7));
        let kept = Kept::Read { va, rkey, length };
        Entry::new(first, Operation::ReadRequest, kept, 0)
    }

    fn rest(packet: u32, length: u32) -> Again {
        Again::Read(Reth {
            va: 0x1000 + u64::from(packet) * 256,
            rkey: 7,
            length,
        })
    }

    #[test]
    fn the_longest_read_is_one_entry_and_each_of_its_packets_can_be_asked_for_again() {
        let mut r = Resources::new(1);
        r.push(read(5, 1 << 31), MTU);
        let last = (1 << 23) - 1;
        for packet in [0, 1, last] {
            let left = (1 << 31) - packet * 256;
            r.cancel(MTU);
            assert!(r.again(5 + u64::from(packet), rest(packet, left), MTU));
            assert_eq!(r.pending().map(|e| e.next), Some(packet));
        }
        r.sent(MTU);
        assert!(r.pending().is_none());
        assert!(!r.again(5 + (1 << 23), rest(last + 1, 0), MTU));
        assert!(!r.again(4, rest(0, 256), MTU));
    }

    /// The same PSN, and all the rest, 2^24 packets later.
    #[test]
    fn what_was_kept_once_around_ago_answers_nothing() {
        let mut r = Resources::new(2);
        r.push(read(0, 256), MTU);
        r.sent(MTU);
        assert!(!r.again(1 << 24, rest(0, 256), MTU));
        assert!(r.again(0, rest(0, 256), MTU));
    }

    #[test]
    fn an_answer_that_is_asked_for_again_is_dropped_with_its_entry_and_none_behind_it_is() {
        let mut r = Resources::new(2);
        for first in [0, 1] {
            assert!(r.has_room(MTU));
            r.push(read(first, 256), MTU);
            r.sent(MTU);
        }
        assert!(r.again(0, rest(0, 256), MTU) && r.again(1, rest(0, 256), MTU));
        assert!(r.has_room(MTU), "both were answered once");
        r.push(read(2, 256), MTU);
        let left = core::iter::from_fn(|| {
            let first = r.pending()?.first;
            r.sent(MTU);
            Some(first)
        });
        assert_eq!(left.collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn what_the_peer_says_that_it_has_is_not_sent_again() {
        let mut r = Resources::new(1);
        r.push(read(0, 1024), MTU);
        r.sent(MTU);
        // The request, twice: from the start again. Then the peer, which has the first packet, asks for the rest.
        assert!(r.again(0, rest(0, 1024), MTU));
        assert_eq!(r.pending().map(|e| (e.begin, e.next)), Some((0, 0)));
        assert!(r.again(1, rest(1, 768), MTU));
        assert_eq!(r.pending().map(|e| (e.begin, e.next)), Some((1, 1)));
        assert!(!r.has_room(MTU), "the rest was never sent");
        for _ in 1..4 {
            r.sent(MTU);
        }
        assert!(r.has_room(MTU) && r.pending().is_none());
    }

    #[test]
    fn a_smaller_depth_drops_nothing_that_was_not_answered() {
        let mut r = Resources::new(3);
        for first in 0..3 {
            r.push(read(first, 256), MTU);
        }
        r.sent(MTU);
        assert!(r.has_room(MTU));
        r.set_depth(2);
        assert!(!r.has_room(MTU), "the second one was not answered");
        r.sent(MTU);
        assert!(r.has_room(MTU));
        r.push(read(3, 256), MTU);
        assert_eq!(r.pending().map(|e| e.first), Some(2));
        r.set_depth(0);
        r.sent(MTU);
        r.sent(MTU);
        assert!(!r.has_room(MTU) && r.pending().is_none());
    }

    #[test]
    fn without_depth_nothing_is_kept() {
        assert!(!Resources::new(0).has_room(MTU));
        assert_eq!(Resources::new(255).depth, usize::from(MAX_RD_ATOMIC));
    }
}
