//! Rare events: which packets are worth a record in the ring buffer `EVENTS`, and what it says.
//!
//! Decides nothing about the packet. How often a record may go out is [`crate::maps::EventBook`]'s.

use crate::{
    account::kind,
    headers::Aeth,
    maps::{Event, EventKind, Kind, Reason},
    parse::Packet,
};

/// What a rare event tells beside its packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct News {
    /// Which.
    pub kind: EventKind,
    /// As the kind says.
    pub detail: u32,
}

impl News {
    /// The event that a counted reason is worth, if any; else the one that the packet itself is.
    #[inline(always)]
    pub const fn of(reason: Option<Reason>, packet: &Packet) -> Option<Self> {
        if let Some(reason) = reason {
            return match EventKind::of_reason(reason) {
                Some(kind) => Some(Self {
                    kind,
                    detail: reason as u32,
                }),
                None => None,
            };
        }
        let Some(Aeth { syndrome, .. }) = packet.aeth else {
            return None;
        };
        let kind = match kind(packet) {
            Kind::Nak => EventKind::Nak,
            Kind::RnrNak => EventKind::RnrNak,
            _ => return None,
        };
        Some(Self {
            kind,
            detail: syndrome.to_byte() as u32,
        })
    }

    /// The record. Of a packet that was not parsed to its end, what was not read is 0.
    #[inline(always)]
    pub const fn record(self, packet: &Packet, queue: u32, now_ns: u64) -> Event {
        Event {
            time_ns: now_ns,
            kind: self.kind as u32,
            queue,
            src: packet.flow.src,
            dst: packet.flow.dst,
            dest_qpn: packet.flow.dest_qpn,
            psn: packet.bth.psn.get(),
            detail: self.detail,
            opcode: packet.bth.opcode.0 as u32,
        }
    }
}
