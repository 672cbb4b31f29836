//! What the victim's peer (`victim.rs`) sends where it keeps to the order: the next packet of the message in progress, mostly.
//!
//! Must not: know in what state the victim is, but for the PSNs that it says.

use rocexdp_common::opcode::{Opcode, Operation, Position, Transport, rc};
use rocexdp_proto::ids::Psn;
use rocexdp_sim::pair::PairConfig;

use super::choices::Choices;
use super::forge::Odd;
use super::selective::{Planned, TAIL};

/// The peer.
pub struct OrderlyPeer {
    /// The message that is in progress, and the opcode of its last packet.
    message: Option<Operation>,
    asked: Opcode,
}

impl Default for OrderlyPeer {
    fn default() -> Self {
        Self {
            message: None,
            asked: rc::ACKNOWLEDGE,
        }
    }
}

impl OrderlyPeer {
    /// The victim has carried out the packet.
    pub fn went_on(&mut self) {
        self.message = match self.asked.decode() {
            Some((op, Position::First | Position::Middle)) => Some(op),
            _ => None,
        };
    }

    /// A packet of a peer that keeps to the order, with its length.
    pub fn next(
        &mut self,
        c: &mut impl Choices,
        config: &PairConfig,
        odd: Odd,
        expected: Psn,
        unacked: Psn,
    ) -> Planned {
        let opcode = self.opcode(c, config, odd);
        let psn = if opcode.is_response() {
            unacked
        } else {
            expected
        };
        let mtu = config.path_mtu.bytes();
        let decoded = opcode.decode();
        let len = match decoded {
            Some((Operation::Send | Operation::Write, Position::First | Position::Middle)) => mtu,
            Some((Operation::Send | Operation::Write, _)) => TAIL,
            Some((Operation::ReadResponse, Position::First | Position::Middle)) => mtu,
            Some((Operation::ReadResponse, _)) => c.of(&[300 % mtu, 1025 % mtu, mtu, 0]),
            Some((Operation::AtomicWrite, _)) => 8,
            _ => 0,
        };
        let total = match decoded {
            Some((Operation::Write, Position::First)) => mtu + TAIL,
            Some((Operation::ReadRequest | Operation::Flush, _)) => c.of(&[300, 1024, 0, 8]),
            _ => len,
        };
        Planned {
            opcode,
            psn,
            index: 0,
            total,
            len,
        }
    }

    /// Its opcode: one that goes on with the message in progress, mostly.
    fn opcode(&mut self, c: &mut impl Choices, config: &PairConfig, odd: Odd) -> Opcode {
        const ANSWERS: [Opcode; 6] = [
            rc::ACKNOWLEDGE,
            rc::READ_RESPONSE_FIRST,
            rc::READ_RESPONSE_MIDDLE,
            rc::READ_RESPONSE_LAST,
            rc::READ_RESPONSE_ONLY,
            rc::ATOMIC_ACKNOWLEDGE,
        ];
        const BEGIN: [Opcode; 12] = [
            rc::SEND_FIRST,
            rc::SEND_ONLY,
            rc::SEND_ONLY_IMM,
            rc::WRITE_FIRST,
            rc::WRITE_ONLY,
            rc::WRITE_ONLY_IMM,
            rc::READ_REQUEST,
            rc::READ_REQUEST,
            rc::FETCH_ADD,
            rc::COMPARE_SWAP,
            rc::ATOMIC_WRITE,
            rc::FLUSH,
        ];
        let opcode = match (odd, c.below(4)) {
            (Odd::Opcode, 0) => Opcode(c.below(256) as u8),
            (Odd::Opcode, 1) => Opcode(0xc0 | c.below(0x20) as u8),
            (Odd::Opcode, _) => Opcode(c.below(0x1e) as u8),
            (_, 0) if c.once_in(2) => c.of(&ANSWERS),
            _ => match self.message {
                None if c.once_in(32) => rc::SEND_ONLY_INVALIDATE,
                None => c.of(&BEGIN),
                Some(Operation::Send) if c.once_in(16) => rc::SEND_LAST_INVALIDATE,
                Some(Operation::Send) => c.of(&[rc::SEND_LAST, rc::SEND_LAST_IMM]),
                Some(_) => c.of(&[rc::WRITE_LAST, rc::WRITE_LAST_IMM]),
            },
        };
        // The other services' own, mostly.
        let opcode = match config.transport {
            Transport::Uc if opcode.0 < 0x20 && odd != Odd::Opcode => Opcode(opcode.0 | 0x20),
            Transport::Ud if odd != Odd::Opcode => c.of(&[Opcode(0x64), Opcode(0x65)]),
            _ => opcode,
        };
        self.asked = opcode;
        opcode
    }
}
