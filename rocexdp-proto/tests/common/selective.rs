//! What the victim's peer (`victim.rs`) sends where it repeats selectively: requests in any order, with their places and
//! serials right or not, answers to what was never asked, and acknowledgements that tell of anything.
//!
//! Must not: know in what state the victim is, but for the PSNs that it says.

use rocexdp_common::headers::{Sack, Sreth};
use rocexdp_common::opcode::{Opcode, ext, rc};
use rocexdp_proto::ids::{PathMtu, Psn};

use super::choices::Choices;
use super::forge::Odd;

/// Packets that the peer may send ahead of the expected one, and ones before it that it may repeat.
const AHEAD: i32 = 12;
const BEHIND: i32 = 8;
/// Bytes of the last packet of a message in good order.
pub const TAIL: u32 = 200;
/// What it answers, mostly out of turn.
const ANSWERS: [Opcode; 8] = [
    rc::ACKNOWLEDGE,
    rc::ACKNOWLEDGE,
    rc::ACKNOWLEDGE,
    rc::READ_RESPONSE_FIRST,
    rc::READ_RESPONSE_MIDDLE,
    rc::READ_RESPONSE_LAST,
    rc::READ_RESPONSE_ONLY,
    rc::ATOMIC_ACKNOWLEDGE,
];

/// A packet of a request.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub opcode: Opcode,
    pub psn: Psn,
    /// Its index in the message.
    pub index: u32,
    /// Bytes of the message, and of the packet's payload.
    pub total: u32,
    pub len: u32,
}

/// The peer.
pub struct SelectivePeer {
    paths: u8,
    /// First PSN of its requests, and of the victim's.
    psn: [Psn; 2],
    mtu: PathMtu,
    /// Serials that it has used on each path.
    used: [u32; 4],
    /// Requests in PSN order, some before the expected one, and the PSN behind them.
    plan: Vec<Planned>,
    end: Psn,
}

impl SelectivePeer {
    pub fn new(paths: u8, psn: [Psn; 2], mtu: PathMtu) -> Self {
        Self {
            paths,
            psn,
            mtu,
            used: [0; 4],
            plan: Vec::new(),
            end: psn[0],
        }
    }

    /// The packet that comes next: a request near the expected one, mostly that; or an answer near the oldest request of the
    /// victim that is not acknowledged.
    pub fn next(&mut self, c: &mut impl Choices, expected: Psn, unacked: Psn) -> Planned {
        let mtu = self.mtu.bytes();
        if c.once_in(4) {
            let opcode = c.of(&ANSWERS).selective();
            let long = matches!(opcode.standard(), rc::READ_RESPONSE_FIRST)
                || opcode.standard() == rc::READ_RESPONSE_MIDDLE;
            let data = long || matches!(opcode.standard().0, 0x0f | 0x10);
            let len = match (long, data) {
                (true, _) => mtu,
                (_, true) => c.of(&[300 % mtu, 1025 % mtu, mtu, 0]),
                _ => 0,
            };
            return Planned {
                opcode,
                psn: unacked.add(c.below(5) as u32).sub(c.below(2) as u32),
                index: c.below(4) as u32,
                total: len,
                len,
            };
        }
        self.plan_ahead(c, expected);
        let at = self
            .plan
            .iter()
            .position(|p| p.psn == expected)
            .unwrap_or(0);
        let i = match c.below(8) {
            0 | 1 => at + c.below((self.plan.len() - at) as u64) as usize,
            2 => c.below(at as u64 + 1) as usize,
            _ => at,
        };
        self.plan[i]
    }

    fn plan_ahead(&mut self, c: &mut impl Choices, expected: Psn) {
        self.plan.retain(|p| p.psn.diff(expected) >= -BEHIND);
        if self.end != expected && !self.plan.iter().any(|p| p.psn == expected) {
            // Something else was accepted.
            self.plan.clear();
            self.end = expected;
        }
        while self.end.diff(expected) < AHEAD {
            self.plan_message(c);
        }
    }

    fn plan_message(&mut self, c: &mut impl Choices) {
        let mtu = self.mtu.bytes();
        let most = if mtu > 256 { 2 } else { 4 };
        let packets = 1 + c.below(most) as u32;
        let total = (packets - 1) * mtu + TAIL;
        let imm = c.once_in(4);
        let (first, middle, last, only) = match c.below(8) {
            0..=2 if imm => (
                rc::SEND_FIRST,
                rc::SEND_MIDDLE,
                rc::SEND_LAST_IMM,
                rc::SEND_ONLY_IMM,
            ),
            0..=2 => (
                rc::SEND_FIRST,
                rc::SEND_MIDDLE,
                rc::SEND_LAST,
                rc::SEND_ONLY,
            ),
            3..=5 if imm => (
                rc::WRITE_FIRST,
                rc::WRITE_MIDDLE,
                rc::WRITE_LAST_IMM,
                rc::WRITE_ONLY_IMM,
            ),
            3..=5 => (
                rc::WRITE_FIRST,
                rc::WRITE_MIDDLE,
                rc::WRITE_LAST,
                rc::WRITE_ONLY,
            ),
            n => {
                let opcode = if n == 6 {
                    rc::READ_REQUEST
                } else {
                    c.of(&[rc::FETCH_ADD, rc::COMPARE_SWAP, rc::ATOMIC_WRITE, rc::FLUSH])
                };
                let (total, len) = match opcode {
                    rc::ATOMIC_WRITE => (8, 8),
                    _ => (c.of(&[300, 1024, 0, 8]), 0),
                };
                self.push(opcode, 0, total, len);
                if opcode == rc::READ_REQUEST {
                    self.end = self.end.add(self.mtu.packets(total) - 1);
                }
                return;
            }
        };
        for index in 0..packets {
            let ends = index + 1 == packets;
            let opcode = match (index, ends) {
                (0, true) => only,
                (0, false) => first,
                (_, false) => middle,
                (_, true) => last,
            };
            self.push(opcode, index, total, if ends { TAIL } else { mtu });
        }
    }

    fn push(&mut self, opcode: Opcode, index: u32, total: u32, len: u32) {
        self.plan.push(Planned {
            opcode: opcode.selective(),
            psn: self.end,
            index,
            total,
            len,
        });
        self.end = self.end.add(1);
    }

    /// Puts place and transmission, or what has arrived, into extension headers of this set: right ones, or not.
    pub fn place(
        &mut self,
        c: &mut impl Choices,
        set: u16,
        odd: Odd,
        p: &Planned,
        extensions: &mut [u8],
    ) {
        if set & ext::SRETH != 0 {
            let sreth = self.sreth(c, odd, p);
            let mut bytes = [0; Sreth::LEN];
            sreth.emit(&mut bytes);
            extensions[..Sreth::LEN].copy_from_slice(&bytes);
        }
        if set & ext::SACK != 0 {
            let mut bytes = [0; Sack::LEN];
            self.sack(c).emit(&mut bytes);
            // Behind the AETH.
            extensions[4..4 + Sack::LEN].copy_from_slice(&bytes);
        }
    }

    fn path(&self, c: &mut impl Choices) -> u8 {
        c.below(u64::from(self.paths)) as u8
    }

    fn sreth(&mut self, c: &mut impl Choices, odd: Odd, p: &Planned) -> Sreth {
        let path = self.path(c);
        // Of answers the victim's peer has its own: these are near them.
        let mut serial = (self.psn[1].get() << 8).wrapping_add(c.below(24) as u32);
        if !p.opcode.is_response() {
            let used = &mut self.used[usize::from(path)];
            serial = (self.psn[0].get() << 8).wrapping_add(*used);
            *used += 1;
        }
        let mut sreth = Sreth {
            serial,
            path,
            index: p.index,
        };
        let any = c.below(if odd == Odd::Place { 8 } else { 64 });
        match any {
            0 => sreth.path = c.of(&[self.paths, 255, 128, 0]),
            1 => sreth.serial = c.word() as u32,
            2 => sreth.serial = serial.wrapping_sub(c.of(&[1, 2, 255, 256, 257, 1 << 20])),
            3 => sreth.serial = serial.wrapping_add(c.of(&[1, 2, 255, 257, 1 << 19, 1 << 20])),
            4 => sreth.index = c.below(1 << 24) as u32,
            5 => sreth.index = p.index.wrapping_sub(1) & 0xff_ffff,
            6 => sreth.index += 1,
            _ => {}
        }
        sreth
    }

    fn sack(&mut self, c: &mut impl Choices) -> Sack {
        let answers = c.once_in(2);
        // The victim's answers and its requests: what it has sent of them is little.
        let first = self.psn[usize::from(!answers)].get() << 8;
        let highest = match c.below(8) {
            0 => c.word() as u32,
            1 => first.wrapping_sub(c.of(&[1, 2, 1 << 20])),
            2 => first.wrapping_add(c.of(&[64, 1 << 20, 1 << 31])),
            _ => first.wrapping_add(c.below(12) as u32),
        };
        let word = c.of(&[0, u64::MAX, 0b10, 0b1100]);
        let below = if c.once_in(4) {
            [(); 4].map(|()| c.word())
        } else {
            [word; 4]
        };
        let mark = match (answers, c.below(8)) {
            (_, 0) => c.word() as u32 & 0xff_ffff,
            (true, _) => self.psn[0].add(c.below(16) as u32).get(),
            (false, _) => highest & 0xff_ffff,
        };
        let path = if c.once_in(16) {
            c.below(128) as u8
        } else {
            self.path(c)
        };
        Sack {
            path,
            answers,
            mark,
            highest,
            below,
        }
    }
}
