//! A requester whose peer says only what the test has it say: nothing that leaves it arrives, every answer is crafted.

use std::sync::Arc;
use std::time::Duration;

use rocexdp_common::headers::{Aeth, AtomicEth, Feth, Reth, Syndrome};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{PathMtu, Psn, RKey, WrId};
use rocexdp_proto::verbs::{CqeOpcode, SendOp, SendWr, Status};
use rocexdp_proto::wire::{Head, Packet};
use rocexdp_proto::{DropReason, ErrorCause, Event, QpState};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS};

use super::{Craft, outcomes, send_wr, stats};

pub const ACK: Syndrome = Syndrome::Ack(0x1f);
/// Where remote operations go, and under which key.
pub const VA: u64 = 0x7000_0000_0000;
pub const KEY: RKey = RKey(0xabcd_0123);

/// The READ of the peer's memory.
pub const READ: SendOp = SendOp::Read { va: VA, rkey: KEY };
pub const WRITE: SendOp = SendOp::Write { va: VA, rkey: KEY };
pub const ADD: SendOp = SendOp::FetchAdd {
    va: VA,
    rkey: KEY,
    add: 5,
};

/// A request packet as it left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    pub opcode: Opcode,
    /// PSN, counted from the first one.
    pub at: i32,
    pub ack_req: bool,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic: Option<AtomicEth>,
    pub invalidate: Option<RKey>,
    pub payload: u32,
}

/// A requester and nobody.
pub struct Lone {
    pub pair: Pair,
    pub config: PairConfig,
}

impl Lone {
    /// Path MTU 256, PSNs that wrap soon.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(set: impl FnOnce(&mut PairConfig)) -> Self {
        let mut config = PairConfig {
            path_mtu: PathMtu::Mtu256,
            ..PairConfig::default()
        };
        set(&mut config);
        let mut pair = Pair::new(&config);
        pair.capture();
        pair.script = Some(Box::new(|_, _, _, _| Fate::Drop));
        Self { pair, config }
    }

    /// PSN of packet `at`.
    pub fn psn(&self, at: i32) -> Psn {
        let first = self.config.psn[0];
        if at < 0 {
            first.sub(at.unsigned_abs())
        } else {
            first.add(at as u32)
        }
    }

    pub fn post_wr(&mut self, wr: SendWr) {
        self.pair.post_send(0, wr).unwrap();
        self.go();
    }

    /// Posts an operation on fresh memory of `len` bytes, which it gives.
    pub fn post(&mut self, id: u64, op: SendOp, len: usize) -> Arc<Bytes> {
        let bytes = Bytes::filled(len, 0);
        self.post_wr(send_wr(id, op, &bytes, len));
        bytes
    }

    pub fn post_fenced(&mut self, id: u64, op: SendOp, len: usize) {
        self.post_wr(send_wr(id, op, &Bytes::filled(len, 0), len).fenced());
    }

    /// Posts an operation without bytes.
    pub fn post_local(&mut self, id: u64, op: SendOp) {
        self.post_wr(SendWr::new(
            WrId(id),
            op,
            rocexdp_proto::verbs::SgList::empty(),
        ));
    }

    /// All that happens now.
    pub fn go(&mut self) {
        self.pair.run(Duration::ZERO);
    }

    /// Time passes.
    pub fn wait(&mut self, time: Duration) {
        self.pair.run(time);
    }

    /// The requests that left since the last call.
    pub fn asked(&mut self) -> Vec<Asked> {
        self.go();
        let first = self.config.psn[0];
        let sent = core::mem::take(&mut self.pair.sent);
        sent.iter()
            .filter(|s| s.end == 0)
            .map(|s| {
                let pieces: [&[u8]; 1] = [&s.frame];
                let p = Packet::parse(&Head::of(&pieces), &pieces).unwrap();
                Asked {
                    opcode: p.bth.opcode,
                    at: p.bth.psn.diff(first),
                    ack_req: p.bth.ack_req,
                    feth: p.feth,
                    reth: p.reth,
                    atomic: p.atomic,
                    invalidate: p.invalidate,
                    payload: p.payload.len(),
                }
            })
            .collect()
    }

    /// Opcodes and PSNs of them.
    pub fn left(&mut self) -> Vec<(Opcode, i32)> {
        self.asked().iter().map(|a| (a.opcode, a.at)).collect()
    }

    fn answer(&mut self, craft: &Craft) {
        let frame = craft.frame(&self.config, 1);
        self.pair.inject(0, frame);
        self.go();
    }

    /// An acknowledgement of packet `at` comes.
    pub fn ack(&mut self, at: i32, syndrome: Syndrome) {
        self.answer(&Craft::new(1, rc::ACKNOWLEDGE, self.psn(at)).aeth(syndrome));
    }

    /// A READ response comes, the answer to number `at`.
    pub fn response(&mut self, opcode: Opcode, at: i32, payload: &[u8]) {
        self.answer(&self.craft(opcode, at, payload));
    }

    pub fn craft(&self, opcode: Opcode, at: i32, payload: &[u8]) -> Craft {
        let craft = Craft::new(1, opcode, self.psn(at));
        let craft = if opcode == rc::READ_RESPONSE_MIDDLE {
            craft
        } else {
            craft.aeth(ACK)
        };
        craft.payload(payload)
    }

    pub fn crafted(&mut self, craft: &Craft) {
        self.answer(craft);
    }

    /// The responses to the READ of `bytes` whose first number is `at`, in one message.
    pub fn responses(&mut self, at: i32, bytes: &[u8]) {
        for (i, (opcode, part)) in message(bytes).into_iter().enumerate() {
            self.response(opcode, at + i as i32, part);
        }
    }

    /// An atomic acknowledge comes.
    pub fn atomic_ack(&mut self, at: i32, syndrome: Syndrome, original: u64) {
        let mut craft = Craft::new(1, rc::ATOMIC_ACKNOWLEDGE, self.psn(at));
        let mut b = [0; 4];
        Aeth { syndrome, msn: 0 }.emit(&mut b);
        craft.extensions.extend_from_slice(&b);
        craft.extensions.extend_from_slice(&original.to_be_bytes());
        self.answer(&craft);
    }

    /// Completions since the last call.
    pub fn outcomes(&mut self) -> Vec<(u64, Status)> {
        outcomes(&mut self.pair, 0)
            .iter()
            .map(|(id, _, status)| (*id, *status))
            .collect()
    }

    pub fn completions(&mut self) -> Vec<(u64, CqeOpcode, Status)> {
        outcomes(&mut self.pair, 0)
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.pair.ends[0].endpoint.counters().drops[reason.index()]
    }

    pub fn state(&self) -> QpState {
        self.pair.ends[0].endpoint.qp_info(QPNS[0]).unwrap().state
    }

    /// Oldest PSN not acknowledged, counted from the first one.
    pub fn unacked(&self) -> i32 {
        let info = self.pair.ends[0].endpoint.qp_info(QPNS[0]).unwrap();
        info.unacked_psn.diff(self.config.psn[0])
    }

    /// The QP is in ERR, because a request failed so.
    pub fn assert_failed(&self, status: Status) {
        assert_eq!(self.state(), QpState::Err);
        let cause = ErrorCause::Request(status);
        let qpn = QPNS[0];
        assert_eq!(self.pair.ends[0].events, [Event::QpError { qpn, cause }]);
    }

    pub fn stats(&self) -> rocexdp_common::maps::QpEngine {
        stats(&self.pair, 0)
    }
}

/// The responses that a READ of `bytes` gets, path MTU 256.
pub fn message(bytes: &[u8]) -> Vec<(Opcode, &[u8])> {
    let n = bytes.len().div_ceil(256).max(1);
    (0..n)
        .map(|i| {
            let opcode = match (i == 0, i + 1 == n) {
                (true, true) => rc::READ_RESPONSE_ONLY,
                (true, false) => rc::READ_RESPONSE_FIRST,
                (false, false) => rc::READ_RESPONSE_MIDDLE,
                (false, true) => rc::READ_RESPONSE_LAST,
            };
            (opcode, &bytes[i * 256..bytes.len().min((i + 1) * 256)])
        })
        .collect()
}
