//! What is known of a recorded packet, and how many of each kind an interface saw in the last second.

use rocexdp_common::{
    account::{CE, kind},
    dissect::{Captured, Kind as Found, dissect},
    maps::Kind,
    parse::Packet,
};
use rocexdp_observe::icrc::{self, Icrc};

use super::expr::{Event, Facts, Quantity};
use crate::monitor::Record;

/// Slots of a second.
const SLOTS: usize = 10;
/// ns of a slot.
const SLOT_NS: u64 = 100_000_000;
/// All events, in the order of their numbers.
const EVENTS: [Event; 6] = [
    Event::Nak,
    Event::Rnr,
    Event::Cnp,
    Event::Ce,
    Event::Malformed,
    Event::Icrc,
];
/// Kinds that are counted: the events, then all packets.
const KINDS: usize = EVENTS.len() + 1;

/// Packets of the last second, to a tenth of it.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    slots: [[u64; KINDS]; SLOTS],
    sums: [u64; KINDS],
    /// Number of the present slot since time 0.
    now: u64,
}

impl Rates {
    /// Counts a packet.
    pub fn take(&mut self, time_ns: u64, told: &Told) {
        self.advance(time_ns);
        for event in EVENTS {
            if told.is(event) {
                self.count(event as usize);
            }
        }
        self.count(EVENTS.len());
    }

    fn advance(&mut self, time_ns: u64) {
        let slot = time_ns / SLOT_NS;
        let steps = slot.saturating_sub(self.now).min(SLOTS as u64);
        for step in 1..=steps {
            let index = ((self.now + step) % SLOTS as u64) as usize;
            let Some(old) = self.slots.get_mut(index) else {
                continue;
            };
            for (sum, count) in self.sums.iter_mut().zip(old.iter_mut()) {
                *sum -= *count;
                *count = 0;
            }
        }
        if steps > 0 {
            // After a pause the slots between are empty, whichever they are.
            self.now = slot;
        }
    }

    fn count(&mut self, kind: usize) {
        let index = (self.now % SLOTS as u64) as usize;
        if let (Some(slot), Some(sum)) = (self.slots.get_mut(index), self.sums.get_mut(kind))
            && let Some(count) = slot.get_mut(kind)
        {
            *count += 1;
            *sum += 1;
        }
    }

    fn of(&self, kind: usize) -> u64 {
        self.sums.get(kind).copied().unwrap_or(0)
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    packet: Option<Packet>,
    malformed: bool,
    wrong_icrc: bool,
}

impl Told {
    /// Tells a record. `whole`: the tap has the payload.
    pub fn new(record: &Record<'_>, whole: bool) -> Self {
        let frame = Captured {
            data: record.data,
            wire_len: record.head.wire_len,
        };
        let found = dissect(&frame).kind;
        let packet = found.packet().copied();
        Self {
            packet,
            malformed: matches!(found, Found::Malformed(_))
                || packet.is_some_and(|p| p.operation.is_none()),
            wrong_icrc: whole
                && packet
                    .is_some_and(|p| matches!(icrc::check(record.data, &p), Icrc::Wrong { .. })),
        }
    }

    fn is(&self, event: Event) -> bool {
        let is = |wanted: Kind| {
            self.packet
                .as_ref()
                .is_some_and(|p| kind(p) as u8 == wanted as u8)
        };
        match event {
            Event::Nak => is(Kind::Nak),
            Event::Rnr => is(Kind::RnrNak),
            Event::Cnp => is(Kind::Cnp),
            Event::Ce => self.packet.as_ref().is_some_and(|p| p.ecn == CE),
            Event::Malformed => self.malformed,
            Event::Icrc => self.wrong_icrc,
        }
    }

    /// What a trigger's comment says of the packet.
    pub fn describe(&self) -> String {
        let Some(packet) = &self.packet else {
            return "a malformed packet".to_owned();
        };
        let name = rocexdp_common::opcode::name(packet.bth.opcode);
        let mut text = format!(
            "{name} to QP {}, PSN {}",
            packet.bth.dest_qpn, packet.bth.psn
        );
        if let Some(aeth) = packet.aeth {
            text.push_str(&format!(", syndrome {:#04x}", aeth.syndrome.to_byte()));
        }
        text
    }
}

/// A packet and the second before it.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The packet.
    pub told: &'a Told,
    /// It is counted in there.
    pub rates: &'a Rates,
}

impl Facts for Moment<'_> {
    fn is(&self, event: Event) -> bool {
        self.told.is(event)
    }

    fn number(&self, quantity: Quantity) -> Option<u64> {
        let packet = self.told.packet.as_ref();
        match quantity {
            Quantity::Qpn => packet.map(|p| u64::from(p.flow.dest_qpn)),
            Quantity::Opcode => packet.map(|p| u64::from(p.bth.opcode.0)),
            Quantity::Syndrome => packet
                .and_then(|p| p.aeth)
                .map(|a| u64::from(a.syndrome.to_byte())),
            Quantity::Rate(event) => Some(self.rates.of(event as usize)),
            Quantity::PacketRate => Some(self.rates.of(KINDS - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_last_second() {
        let mut rates = Rates::default();
        for i in 0..1000_u64 {
            rates.advance(5_000_000_000 + i * 1_000_000);
            rates.count(0);
        }
        assert_eq!(rates.of(0), 1000);
        // 300 ms later three tenths have left.
        rates.advance(6_299_000_000);
        assert_eq!(rates.of(0), 700);
        rates.advance(6_000_000_000);
        assert_eq!(rates.of(0), 700, "time does not go back");
        rates.advance(60_000_000_000);
        assert_eq!(rates.of(0), 0);
    }
}
