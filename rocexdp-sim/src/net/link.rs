//! One direction of a link: its transmitter, what is under way on it, what happens there, and what was counted.
//!
//! What is under way arrives in the order in which it was sent, so only the first of it is in the queue of events. Faults are
//! `rocexdp_common::fault::decide`'s, by the number of the packet: as on every wire of this project.
//!
//! Must not: know who sends and why.

use std::collections::VecDeque;

use rocexdp_common::fault::{self, Faults};
use rocexdp_proto::time::Rate;

use super::Packet;
use crate::picos::Picos;
use crate::switch::PRIORITIES;

/// Bytes of a pause frame as [`crate::switch::Queued::wire_len`] counts them: the shortest Ethernet frame, without its FCS.
pub const PAUSE_FRAME: u32 = 60;
/// The same of the reference simulators (`pause-header.cc`: Ethernet 14, IPv4 20, 9).
const REFERENCE_PAUSE_FRAME: u32 = 43;
/// How long a reordered packet waits for later ones to overtake it, as on [`crate::wire::Wire`].
const HOLD_TIME: Picos = Picos::from_nanos(crate::wire::HOLD_TIME);

/// What was counted of one direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LinkCounters {
    /// Packets sent into it.
    pub packets: u64,
    /// Their bytes, without what Ethernet adds.
    pub bytes: u64,
    /// Packets that came out, copies included.
    pub delivered: u64,
    /// Pause frames sent into it.
    pub pause_frames: u64,
    /// Packets lost as a fault.
    pub lost_fault: u64,
    /// Packets lost because the link was or went down.
    pub lost_down: u64,
    /// Pause frames lost because the link was or went down.
    pub pause_frames_lost: u64,
    /// Packets with a byte changed.
    pub corrupted: u64,
    /// Packets that got Congestion Experienced as a fault.
    pub marked: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets held back behind later ones.
    pub reordered: u64,
    /// Time spent sending.
    pub busy: Picos,
}

/// A pause frame: of each class in `classes`, the quanta.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PauseFrame {
    /// Priorities that it is about, a bit each.
    pub classes: u8,
    /// Those of them that pause until they are resumed: the reference simulators' pauses.
    pub endless: u8,
    /// Quanta of each; 0 resumes.
    pub quanta: [u16; PRIORITIES],
}

impl PauseFrame {
    fn ask(&mut self, priority: u8, quanta: Option<u16>) {
        let bit = 1 << priority;
        self.classes |= bit;
        self.endless &= !bit;
        match (quanta, self.quanta.get_mut(usize::from(priority))) {
            (Some(quanta), Some(of)) => *of = quanta,
            _ => self.endless |= bit,
        }
    }
}

/// What is sent on a link.
#[derive(Clone)]
pub(super) enum Item<P> {
    Packet(P),
    Pause(PauseFrame),
}

/// Something under way: when it arrives, and the number of that event.
pub(super) struct Flight<P> {
    pub(super) at: Picos,
    pub(super) number: u64,
    pub(super) item: Item<P>,
}

/// What faults a direction has, if any.
struct Trouble<P> {
    faults: Faults,
    port: u32,
    packets: u64,
    /// Packets held back: how many must pass first, until when in any case.
    held: VecDeque<(u32, Picos, P)>,
}

/// One direction.
pub(super) struct Direction<P> {
    rate: Rate,
    /// Where a byte takes whole picoseconds: how many.
    ps_per_byte: Option<u64>,
    /// [`super::Options::reference`].
    reference: bool,
    overhead: u32,
    delay: Picos,
    trouble: Option<Box<Trouble<P>>>,
    pub(super) down: bool,
    /// Whether somebody wants to see what is sent.
    pub(super) tapped: bool,
    /// When the transmitter is free.
    pub(super) free_at: Picos,
    /// Whether an event for that is in the queue.
    pub(super) awaited: bool,
    /// To be sent first.
    pub(super) pause: PauseFrame,
    /// And after it: the reference's frames are not put together.
    later: VecDeque<PauseFrame>,
    pub(super) flights: VecDeque<Flight<P>>,
    pub(super) counters: LinkCounters,
}

/// What the network has to put into its queue after something was sent.
#[derive(Default)]
pub(super) struct Sent {
    /// The first arrival, if nothing was under way before.
    pub(super) arrival: Option<(Picos, u64)>,
    /// When to look for packets that nothing overtook.
    pub(super) release: Option<Picos>,
}

impl<P: Packet> Direction<P> {
    pub(super) fn new(
        rate: Rate,
        delay: Picos,
        overhead: u32,
        faults: Faults,
        port: u32,
        reference: bool,
    ) -> Self {
        const PS_PER_BYTE_SECOND: u64 = 8_000_000_000_000;
        let bps = rate.as_bps();
        let ps_per_byte = PS_PER_BYTE_SECOND
            .is_multiple_of(bps)
            .then_some(PS_PER_BYTE_SECOND / bps);
        let trouble = (!faults.is_clean()).then(|| {
            Box::new(Trouble {
                faults,
                port,
                packets: 0,
                held: VecDeque::new(),
            })
        });
        Self {
            rate,
            ps_per_byte,
            reference,
            overhead,
            delay: delay + Picos::from_nanos(faults.delay_ns),
            trouble,
            down: false,
            tapped: false,
            free_at: Picos::ZERO,
            awaited: false,
            pause: PauseFrame::default(),
            later: VecDeque::new(),
            flights: VecDeque::new(),
            counters: LinkCounters::default(),
        }
    }

    /// Rate.
    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// What a frame takes.
    #[inline]
    pub(super) fn serialise(&self, wire_len: u32) -> Picos {
        let bytes = u64::from(wire_len + self.overhead);
        match self.ps_per_byte {
            _ if self.reference => Picos::serialise_truncated(bytes, self.rate),
            Some(ps) => Picos(bytes * ps),
            None => Picos::serialise(bytes, self.rate),
        }
    }

    /// The next frame sent is a pause frame with this in it, and with what has been asked for before. `None`: until resumed.
    pub(super) fn ask(&mut self, priority: u8, quanta: Option<u16>) {
        if self.reference && self.pause.classes != 0 {
            let mut frame = PauseFrame::default();
            frame.ask(priority, quanta);
            self.later.push_back(frame);
        } else {
            self.pause.ask(priority, quanta);
        }
    }

    /// Takes the frame that is to be sent.
    pub(super) fn next_pause(&mut self) -> PauseFrame {
        let next = self.later.pop_front().unwrap_or_default();
        core::mem::replace(&mut self.pause, next)
    }

    /// No pause frame is to be sent any more.
    pub(super) fn forget_pauses(&mut self) {
        self.pause = PauseFrame::default();
        self.later.clear();
    }

    /// What has arrived is lost.
    pub(super) fn lose_as_fault(&mut self, item: &Item<P>) {
        match item {
            Item::Packet(_) => self.counters.lost_fault += 1,
            Item::Pause(_) => self.counters.pause_frames_lost += 1,
        }
    }

    /// Sends from now on; the transmitter must be free. `number` gives events their numbers.
    #[inline]
    pub(super) fn send(&mut self, now: Picos, item: Item<P>, number: &mut u64) -> Sent {
        let len = match &item {
            Item::Packet(p) => {
                let len = p.wire_len();
                self.counters.packets += 1;
                self.counters.bytes += u64::from(len);
                len
            }
            Item::Pause(_) => {
                self.counters.pause_frames += 1;
                if self.reference {
                    REFERENCE_PAUSE_FRAME
                } else {
                    PAUSE_FRAME
                }
            }
        };
        let span = self.serialise(len);
        self.counters.busy = self.counters.busy + span;
        self.free_at = now + span;
        if self.down {
            self.lose(&item);
            return Sent::default();
        }
        match item {
            Item::Packet(p) if self.trouble.is_some() => self.send_into_trouble(now, p, number),
            item => self.append(self.free_at + self.delay, item, number),
        }
    }

    #[inline]
    fn append(&mut self, at: Picos, item: Item<P>, number: &mut u64) -> Sent {
        // Pause frames do not wait for what faults delay, and nothing overtakes but what faults let.
        let at = self.flights.back().map_or(at, |last| at.max(last.at));
        *number += 1;
        let first = self.flights.is_empty();
        self.flights.push_back(Flight {
            at,
            number: *number,
            item,
        });
        Sent {
            arrival: first.then_some((at, *number)),
            release: None,
        }
    }

    #[cold]
    fn send_into_trouble(&mut self, now: Picos, mut packet: P, number: &mut u64) -> Sent {
        let at = self.free_at + self.delay;
        let Some(t) = &mut self.trouble else {
            return Sent::default();
        };
        let decision = fault::decide(&t.faults, t.port, t.packets);
        t.packets += 1;
        if decision.drop {
            self.counters.lost_fault += 1;
            return Sent::default();
        }
        if decision.mark && packet.ecn_capable() {
            packet.mark();
            self.counters.marked += 1;
        }
        if decision.corrupt {
            packet.corrupt(decision.entropy);
            self.counters.corrupted += 1;
        }
        self.counters.duplicated += u64::from(decision.duplicate);
        if decision.reorder && t.held.len() < crate::wire::HOLD_CAPACITY {
            self.counters.reordered += 1;
            let behind = match t.faults.reorder_depth {
                0 => Faults::DEFAULT_REORDER_DEPTH,
                depth => depth,
            };
            let until = now + HOLD_TIME;
            let copy = decision.duplicate.then(|| packet.clone());
            t.held.push_back((behind, until, packet));
            let mut sent = Sent::default();
            if let Some(copy) = copy {
                sent = self.append(at, Item::Packet(copy), number);
            }
            sent.release = Some(until);
            return sent;
        }
        let copy = decision.duplicate.then(|| packet.clone());
        let sent = self.append(at, Item::Packet(packet), number);
        if let Some(copy) = copy {
            self.append(at, Item::Packet(copy), number);
        }
        self.overtake(at, number);
        sent
    }

    /// One packet passed those that are held: lets out the ones that waited for it.
    fn overtake(&mut self, at: Picos, number: &mut u64) {
        let Some(t) = &mut self.trouble else { return };
        for held in &mut t.held {
            held.0 = held.0.saturating_sub(1);
        }
        self.let_out(at, number, |(behind, ..)| *behind == 0);
    }

    /// Lets out packets that nothing overtook in time.
    pub(super) fn release(&mut self, now: Picos, number: &mut u64) -> Sent {
        self.let_out(now + self.delay, number, |(_, until, _)| *until <= now)
    }

    fn let_out(
        &mut self,
        at: Picos,
        number: &mut u64,
        done: impl Fn(&(u32, Picos, P)) -> bool,
    ) -> Sent {
        let mut first = Sent::default();
        loop {
            let held = self.trouble.as_mut().map(|t| &mut t.held);
            let Some((_, _, packet)) = held.and_then(|h| match h.front() {
                Some(front) if done(front) => h.pop_front(),
                _ => None,
            }) else {
                return first;
            };
            let sent = self.append(at, Item::Packet(packet), number);
            if sent.arrival.is_some() {
                first = sent;
            }
        }
    }

    fn lose(&mut self, item: &Item<P>) {
        match item {
            Item::Packet(_) => self.counters.lost_down += 1,
            Item::Pause(_) => self.counters.pause_frames_lost += 1,
        }
    }

    /// The link goes down: all that is under way is lost.
    pub(super) fn cut(&mut self) {
        self.down = true;
        while let Some(flight) = self.flights.pop_front() {
            self.lose(&flight.item);
        }
        if let Some(t) = &mut self.trouble {
            self.counters.lost_down += t.held.len() as u64;
            t.held.clear();
        }
    }

    /// Packets under way.
    pub(super) fn under_way(&self) -> u64 {
        let flying = self
            .flights
            .iter()
            .filter(|f| matches!(f.item, Item::Packet(_)));
        let held = self.trouble.as_ref().map_or(0, |t| t.held.len());
        flying.count() as u64 + held as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Frame;
    use super::*;

    #[test]
    fn serialisation_is_exact_or_in_whole_nanoseconds() {
        let link = |rate, overhead, reference| {
            let none = Faults::default();
            Direction::<Frame>::new(rate, Picos::ZERO, overhead, none, 0, reference)
        };
        let gbps = Rate::from_gbps;
        assert_eq!(link(gbps(100), 0, false).serialise(1048), Picos(83_840));
        assert_eq!(link(gbps(100), 0, true).serialise(1048), Picos(83_000));
        assert_eq!(link(gbps(40), 0, true).serialise(1048), Picos(209_000));
        assert_eq!(link(gbps(100), 24, false).serialise(1048), Picos(85_760));
        assert_eq!(link(gbps(1_600), 0, false).serialise(64), Picos(320));
        // 3 Gb/s: no whole number of picoseconds per byte; rounded up, once per frame.
        assert_eq!(link(gbps(3), 0, false).serialise(1000), Picos(2_666_667));
    }
}
