//! What was captured lately of one PSN stream, found by PSN in one step.
//!
//! A table indexed by the low bits of the PSN: the newest packet of a slot wins. It grows with the packets in flight, up
//! to a fixed size, so memory is bounded per flow; what is older than that is "not remembered", never guessed.

use rocexdp_common::ids::Psn;

/// Packets remembered at first.
const SMALL: usize = 8;
/// And at most, where answers tell how far back one must remember.
const LARGE: usize = 1024;
/// At most where no answers are seen.
const BLIND: usize = 64;
/// As many packets without an answer: none is expected any more. Before, the first answer may be on its way, behind more packets
/// than [`BLIND`]: one that is not found then ties no directions.
const PATIENCE: u16 = 4096;
/// An answer to what is older than this, ns, is not waited for.
const LATEST: i64 = 100_000_000;

/// A packet of a stream, and its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// First frame with this PSN.
    pub frame: u64,
    /// When, in nanoseconds since the epoch.
    pub time: i64,
    /// Sequence number.
    pub psn: Psn,
    /// Payload bytes.
    pub payload: u16,
    /// Opcode byte.
    pub opcode: u8,
    /// It asked for an acknowledgement.
    pub ack_req: bool,
    /// Times it was sent, 255 and more as 255.
    pub copies: u8,
    /// Answers that named this PSN.
    pub acks: u8,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub struct History {
    slots: Vec<Option<Sent>>,
    /// Packets since no answer was seen.
    blind: u16,
    /// The time of the first of them.
    since: i64,
}

impl History {
    fn index(&self, psn: Psn) -> usize {
        psn.get() as usize & self.slots.len().wrapping_sub(1)
    }

    /// The packet with this PSN, if it is remembered.
    #[must_use]
    pub fn get(&self, psn: Psn) -> Option<&Sent> {
        let slot = self.slots.get(self.index(psn))?.as_ref()?;
        (slot.psn == psn).then_some(slot)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, psn: Psn) -> Option<&mut Sent> {
        let index = self.index(psn);
        let slot = self.slots.get_mut(index)?.as_mut()?;
        (slot.psn == psn).then_some(slot)
    }

    /// Remembers a packet. `unacked`: the first PSN not yet answered, where answers are seen.
    pub fn put(&mut self, sent: Sent, unacked: Option<Psn>) {
        if self.slots.is_empty() {
            self.slots = vec![None; SMALL];
        }
        if unacked.is_some() {
            self.blind = 0;
        } else {
            if self.blind == 0 {
                self.since = sent.time;
            }
            self.blind = self.blind.saturating_add(1);
        }
        // No answer will come.
        let hopeless = self.blind >= PATIENCE || sent.time.saturating_sub(self.since) >= LATEST;
        if self.blind > 0 && hopeless && self.slots.len() > BLIND {
            self.resize(BLIND);
        }
        while let Some(Some(old)) = self.slots.get(self.index(sent.psn))
            && old.psn != sent.psn
        {
            let (needed, most) = match unacked {
                Some(unacked) => (old.psn.diff(unacked) >= 0, LARGE),
                None if hopeless => (true, BLIND),
                None => (true, LARGE),
            };
            if !needed || self.slots.len() >= most {
                break;
            }
            self.resize(self.slots.len() * 2);
        }
        let index = self.index(sent.psn);
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(sent);
        }
    }

    /// Of two that have one place, the newer one stays.
    fn resize(&mut self, to: usize) {
        let old = std::mem::take(&mut self.slots);
        self.slots = vec![None; to];
        for sent in old.into_iter().flatten() {
            let index = self.index(sent.psn);
            if let Some(slot) = self.slots.get_mut(index)
                && slot.is_none_or(|other| other.time <= sent.time)
            {
                *slot = Some(sent);
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(psn: u32) -> Sent {
        Sent {
            frame: u64::from(psn) + 1,
            time: 0,
            psn: Psn::new(psn),
            payload: 0,
            opcode: 4,
            ack_req: false,
            copies: 1,
            acks: 0,
        }
    }

    #[test]
    fn as_many_are_remembered_as_are_unanswered() {
        let mut history = History::default();
        assert_eq!(history.get(Psn::new(0)), None);
        for psn in 0..500 {
            history.put(sent(psn), Some(Psn::new(0)));
        }
        assert!((0..500).all(|psn| history.get(Psn::new(psn)).is_some()));
        for psn in 500..100_000 {
            history.put(sent(psn), Some(Psn::new(0)));
        }
        assert_eq!(history.slots.len(), LARGE);
        assert_eq!(history.get(Psn::new(99_999)).unwrap().frame, 100_000);
        assert_eq!(history.get(Psn::new(5)), None);
    }

    #[test]
    fn answered_packets_make_room() {
        let mut history = History::default();
        for psn in 0..10_000 {
            history.put(sent(psn & 0xff_ffff), Some(Psn::new(psn)));
        }
        assert_eq!(history.slots.len(), SMALL);
        let mut blind = History::default();
        for psn in 0..4000 {
            blind.put(sent(psn), None);
        }
        assert_eq!(blind.slots.len(), LARGE, "an answer may come yet");
        for psn in 4000..10_000 {
            blind.put(sent(psn), None);
        }
        assert_eq!(blind.slots.len(), BLIND);
        assert!((9_936..10_000).all(|psn| blind.get(Psn::new(psn)).is_some()));
        // What is far apart has its answer, or none.
        let mut slow = History::default();
        for psn in 0..1000 {
            let time = i64::from(psn) * 10_000_000;
            slow.put(Sent { time, ..sent(psn) }, None);
        }
        assert_eq!(slow.slots.len(), BLIND);
    }
}
