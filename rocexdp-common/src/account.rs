//! What one packet adds to the counters of its QP or flow.
//!
//! Pure arithmetic on [`crate::maps`] values: no lookups, no decision about the packet. XDP counts before the ICRC is
//! checked (CNPs excepted), so these are counts of packets as they came.

use crate::{
    headers::{Aeth, Syndrome},
    maps::{FlowState, Kind, QpCounters},
    opcode::{Operation, Transport},
    parse::Packet,
    track::{AtGap, read_psns},
    verdict::Terms,
};

/// ECN codepoint Congestion Experienced.
pub const CE: u8 = 3;

/// What kind of packet it is, for [`QpCounters::kinds`].
#[inline(always)]
pub const fn kind(packet: &Packet) -> Kind {
    let Some((operation, _)) = packet.operation else {
        return Kind::Other;
    };
    match operation {
        Operation::Send => Kind::Send,
        Operation::Write => Kind::Write,
        Operation::ReadRequest => Kind::ReadRequest,
        Operation::ReadResponse => Kind::ReadResponse,
        Operation::CompareSwap | Operation::FetchAdd => Kind::Atomic,
        Operation::Acknowledge => acknowledge_kind(packet.aeth, Kind::Ack),
        Operation::AtomicAcknowledge => acknowledge_kind(packet.aeth, Kind::AtomicAck),
        Operation::Cnp => Kind::Cnp,
        Operation::Flush | Operation::AtomicWrite | Operation::Resync => Kind::Other,
    }
}

/// Reserved syndromes are neither ACK nor NAK, except those of the NAK's range (0x60..=0x7f).
#[inline(always)]
const fn acknowledge_kind(aeth: Option<Aeth>, ack: Kind) -> Kind {
    let Some(aeth) = aeth else {
        return Kind::Other;
    };
    match aeth.syndrome {
        Syndrome::Ack(_) => ack,
        Syndrome::RnrNak(_) => Kind::RnrNak,
        Syndrome::Reserved(0..=0x5f | 0x80..) => Kind::Other,
        _ => Kind::Nak,
    }
}

impl QpCounters {
    /// Counts a packet of a local QP that has passed the checks, and is no CNP.
    #[inline(always)]
    pub fn count_local(&mut self, packet: &Packet, terms: &Terms, now_ns: u64) {
        self.take_resync(terms);
        self.count_packet(packet, now_ns);
        self.count_sequence(packet, terms.path_mtu, terms.at_gap);
    }

    /// Counts a CNP of a local QP whose ICRC was right.
    #[inline(always)]
    pub fn count_cnp(&mut self, packet: &Packet, terms: &Terms, now_ns: u64) {
        self.take_resync(terms);
        self.count_kind(Kind::Cnp, packet, now_ns);
        self.last_cnp_ns = now_ns;
    }

    #[inline(always)]
    fn take_resync(&mut self, terms: &Terms) {
        if terms.resync != self.resync_seen {
            self.resync(terms.resync, terms.request_psn, terms.response_psn);
        }
    }

    #[inline(always)]
    fn count_kind(&mut self, kind: Kind, packet: &Packet, now_ns: u64) {
        if let Some(count) = self.kinds.get_mut(kind as usize) {
            count.packets += 1;
            count.bytes += u64::from(packet.end);
        }
        if self.first_seen_ns == 0 {
            self.first_seen_ns = now_ns;
        }
        // Times of different exactness: none may go back.
        if now_ns > self.last_seen_ns {
            self.last_seen_ns = now_ns;
        }
    }

    /// Everything but the sequence.
    #[inline(always)]
    fn count_packet(&mut self, packet: &Packet, now_ns: u64) {
        let kind = kind(packet);
        self.count_kind(kind, packet, now_ns);
        if let Kind::Cnp = kind {
            self.last_cnp_ns = now_ns;
            return;
        }
        if let Some(count) = self.ecn.get_mut(usize::from(packet.ecn & 3)) {
            *count += 1;
        }
        if packet.ecn == CE {
            self.last_ce_ns = now_ns;
        }
        if let (Kind::Ack | Kind::AtomicAck | Kind::Nak | Kind::RnrNak, Some(aeth)) =
            (kind, packet.aeth)
        {
            self.last_ack_psn = packet.bth.psn.get();
            self.last_ack_msn = aeth.msn;
            if let Kind::Nak = kind {
                let code = match aeth.syndrome {
                    Syndrome::NakSequence => 0,
                    Syndrome::NakInvalidRequest => 1,
                    Syndrome::NakRemoteAccess => 2,
                    Syndrome::NakRemoteOperational => 3,
                    _ => 4,
                };
                if let Some(count) = self.naks.get_mut(code) {
                    *count += 1;
                }
            }
        }
    }

    /// The sequence. Connected services only: a UD or RD QP receives from many senders, each with its own numbers.
    #[inline(always)]
    fn count_sequence(&mut self, packet: &Packet, path_mtu: u32, at_gap: AtGap) {
        let Some((operation, position)) = packet.operation else {
            return;
        };
        if !matches!(
            packet.bth.opcode.service(),
            Transport::Rc | Transport::Uc | Transport::Xrc
        ) {
            return;
        }
        match operation {
            Operation::Acknowledge | Operation::AtomicAcknowledge => {}
            Operation::ReadResponse => self.take_response(packet.bth.psn, position, at_gap),
            Operation::ReadRequest => {
                let psns = read_psns(packet.reth_length, path_mtu);
                self.take_request(packet.bth.psn, psns, at_gap);
            }
            _ => self.take_request(packet.bth.psn, Some(1), at_gap),
        }
    }
}

impl FlowState {
    /// Counts a packet of a flow that is not ours.
    #[inline(always)]
    pub fn count(&mut self, packet: &Packet, now_ns: u64) {
        self.counters.count_packet(packet, now_ns);
        self.learn_path_mtu(packet);
        self.counters
            .count_sequence(packet, self.path_mtu, AtGap::Skip);
    }

    /// Packets that others follow have exactly the path MTU as payload.
    #[inline(always)]
    fn learn_path_mtu(&mut self, packet: &Packet) {
        use crate::opcode::Position::{First, Middle};
        if matches!(packet.operation, Some((_, First | Middle)))
            && matches!(packet.payload, 256 | 512 | 1024 | 2048 | 4096)
            && packet.payload > self.path_mtu
        {
            self.path_mtu = packet.payload;
        }
    }
}
