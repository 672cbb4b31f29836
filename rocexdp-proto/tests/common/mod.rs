//! What the transport's tests share: payloads that show where they came from, and work requests.
#![allow(dead_code)] // Each test binary uses its own part.

pub mod choices;
pub mod cm;
pub mod forge;
pub mod lone;
pub mod orderly;
pub mod pcap;
pub mod program;
pub mod responder;
pub mod selective;
pub mod stage;
pub mod uc;
pub mod ud;
pub mod victim;

use std::sync::Arc;
use std::time::Duration;

use rocexdp_common::headers::{Aeth, AtomicEth, Bth, Feth, ICRC_LEN, Reth, Syndrome};
use rocexdp_common::maps::QpEngine;
use rocexdp_common::opcode::Opcode;
use rocexdp_proto::CreateQp;
use rocexdp_proto::ids::{Psn, WrId};
use rocexdp_proto::mem::{Access, MemoryRegion};
use rocexdp_proto::verbs::{CqeOpcode, RecvWr, Segment, SendOp, SendWr, Status};
use rocexdp_proto::wire::{Head, HeaderBuf, HeaderTemplate, Icrc, Packet};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS, Sent, path};

/// Long enough for everything that is to end.
pub const LONG: Duration = Duration::from_secs(100);

/// Bytes of which no two stretches are alike.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = rocexdp_proto::rng::Rng::new(seed);
    let mut out: Vec<u8> = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A signalled send request for all of `bytes`.
pub fn send_wr(id: u64, op: SendOp, bytes: &Arc<Bytes>, len: usize) -> SendWr {
    SendWr {
        wr_id: WrId(id),
        op,
        local: Segment::new(bytes.clone(), 0, len as u32).into(),
        signaled: true,
        solicited: false,
        fence: false,
        to: None,
    }
}

/// A receive request into all of `bytes`.
pub fn recv_wr(id: u64, bytes: &Arc<Bytes>, len: usize) -> RecvWr {
    RecvWr {
        wr_id: WrId(id),
        local: Segment::new(bytes.clone(), 0, len as u32).into(),
    }
}

/// Memory of `len` zero bytes at end 1 that end 0 may write, at address 0x10_0000.
pub fn target(pair: &mut Pair, len: usize) -> (Arc<Bytes>, MemoryRegion) {
    let bytes = Bytes::filled(len, 0);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = pair.ends[1]
        .endpoint
        .register_memory(bytes.clone(), 0x10_0000, access)
        .expect("a region");
    (bytes, region)
}

/// The WRITE of a whole region.
pub fn write_op(region: &MemoryRegion) -> SendOp {
    SendOp::Write {
        va: region.va,
        rkey: region.rkey,
    }
}

/// Ids, kinds and statuses of the completions at an end.
pub fn outcomes(pair: &mut Pair, end: usize) -> Vec<(u64, CqeOpcode, Status)> {
    pair.completions(end)
        .iter()
        .map(|c| (c.wr_id.0, c.opcode, c.status))
        .collect()
}

/// Counters of the QP at an end.
pub fn stats(pair: &Pair, end: usize) -> QpEngine {
    let mut out = QpEngine::default();
    assert!(pair.ends[end].endpoint.fill(QPNS[end], &mut out));
    out
}

/// A packet of our own making.
#[derive(Clone, Debug)]
pub struct Craft {
    pub bth: Bth,
    pub extensions: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Craft {
    /// A packet from `end` to the other one, without pad and without AckReq.
    pub fn new(end: usize, opcode: Opcode, psn: Psn) -> Self {
        Self {
            bth: Bth {
                opcode,
                solicited: false,
                mig_req: false,
                pad: 0,
                version: 0,
                pkey: 0xffff,
                fecn: false,
                becn: false,
                dest_qpn: QPNS[1 - end],
                ack_req: false,
                psn,
            },
            extensions: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// With AckReq.
    pub fn asking(mut self) -> Self {
        self.bth.ack_req = true;
        self
    }

    /// With a RETH.
    pub fn reth(mut self, va: u64, rkey: u32, length: u32) -> Self {
        let mut b = [0; 16];
        Reth { va, rkey, length }.emit(&mut b);
        self.extensions.extend_from_slice(&b);
        self
    }

    /// With an AtomicETH.
    pub fn atomic(mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Self {
        let mut b = [0; AtomicEth::LEN];
        let header = AtomicEth {
            va,
            rkey,
            swap_or_add,
            compare,
        };
        header.emit(&mut b);
        self.extensions.extend_from_slice(&b);
        self
    }

    /// With a FETH; put it before the RETH.
    pub fn feth(mut self, feth: Feth) -> Self {
        let mut b = [0; Feth::LEN];
        feth.emit(&mut b);
        self.extensions.extend_from_slice(&b);
        self
    }

    /// With immediate data; put it behind the RETH.
    pub fn immediate(mut self, imm: u32) -> Self {
        self.extensions.extend_from_slice(&imm.to_be_bytes());
        self
    }

    /// With an IETH.
    pub fn invalidate(mut self, rkey: u32) -> Self {
        self.extensions.extend_from_slice(&rkey.to_be_bytes());
        self
    }

    /// With an AETH.
    pub fn aeth(mut self, syndrome: Syndrome) -> Self {
        let mut b = [0; 4];
        Aeth { syndrome, msn: 0 }.emit(&mut b);
        self.extensions.extend_from_slice(&b);
        self
    }

    /// With a payload and the pad it needs.
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.bth.pad = (bytes.len().wrapping_neg() & 3) as u8;
        self.payload = bytes.to_vec();
        self
    }

    /// The frame, from `end`, with the right ICRC.
    pub fn frame(&self, config: &PairConfig, end: usize) -> Vec<u8> {
        let path = path(config, end);
        let mut headers = HeaderBuf::default();
        let behind = self.extensions.len() + self.payload.len() + usize::from(self.bth.pad);
        HeaderTemplate::data(&path, QPNS[end], QPNS[1 - end], 0)
            .start(&mut headers, Bth::LEN + behind + ICRC_LEN);
        headers.push_bth(&self.bth);
        let mut frame = headers.bytes().to_vec();
        let bth = frame.len();
        frame.extend_from_slice(&self.extensions);
        frame.extend_from_slice(&self.payload);
        frame.resize(frame.len() + usize::from(self.bth.pad), 0);
        let mut crc = Icrc::over_headers(&frame[14..bth], bth - 14 - 20).unwrap();
        crc.update(&frame[bth..]);
        frame.extend_from_slice(&crc.finish());
        frame
    }
}

/// The AETHs that an end sent, with their PSNs.
pub fn answers(sent: &[Sent], end: usize) -> Vec<(Psn, Syndrome)> {
    sent.iter()
        .filter(|s| s.end == end)
        .filter_map(|s| {
            let pieces: [&[u8]; 1] = [&s.frame];
            let p = Packet::parse(&Head::of(&pieces), &pieces).unwrap();
            p.aeth.map(|a| (p.bth.psn, a.syndrome))
        })
        .collect()
}

/// A packet that the responder sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    pub opcode: Opcode,
    pub psn: Psn,
    /// Syndrome and MSN.
    pub aeth: Option<(Syndrome, u32)>,
    pub original: Option<u64>,
    pub payload: Vec<u8>,
}

/// What the responder of an end sent, whole.
pub fn replies(sent: &[Sent], end: usize) -> Vec<Reply> {
    sent.iter()
        .filter(|s| s.end == end && s.bth.opcode.is_response())
        .map(|s| {
            let pieces: [&[u8]; 1] = [&s.frame];
            let head = Head::of(&pieces);
            let p = Packet::parse(&head, &pieces).unwrap();
            assert!(p.icrc_is_right(&head));
            let behind = p.payload.len() as usize + usize::from(p.bth.pad) + ICRC_LEN;
            let start = s.frame.len() - behind;
            Reply {
                opcode: p.bth.opcode,
                psn: p.bth.psn,
                aeth: p.aeth.map(|a| (a.syndrome, a.msn)),
                original: p.original,
                payload: s.frame[start..start + p.payload.len() as usize].to_vec(),
            }
        })
        .collect()
}

/// The PSNs of the requests that an end sent, counted from its first one.
pub fn requests(sent: &[Sent], end: usize, first: Psn) -> Vec<i32> {
    sent.iter()
        .filter(|s| s.end == end && !s.bth.opcode.is_response() && s.bth.opcode.0 != 0x81)
        .map(|s| s.bth.psn.diff(first))
        .collect()
}

/// Puts another QP in the place of the one at an end, under the same number, and connects both ends anew. What the old one was
/// asked for is forgotten.
pub fn replace_qp(
    pair: &mut Pair,
    config: &PairConfig,
    end: usize,
    change: impl FnOnce(CreateQp) -> CreateQp,
) {
    let e = &mut pair.ends[end];
    e.endpoint.destroy_qp(QPNS[end]).unwrap();
    let create = CreateQp {
        max_send: config.depth,
        max_recv: config.depth,
        ..CreateQp::rc(QPNS[end], &e.cq, &e.cq)
    };
    e.qp = e.endpoint.create_qp(change(create)).unwrap();
    pair.reconnect(config);
}

/// State of the QP at an end.
pub fn state(pair: &Pair, end: usize) -> rocexdp_proto::QpState {
    pair.ends[end].endpoint.qp_info(QPNS[end]).unwrap().state
}

/// How often end 1 dropped a packet so.
pub fn dropped(pair: &Pair, reason: rocexdp_proto::DropReason) -> u64 {
    pair.ends[1].endpoint.counters().drops[reason.index()]
}
