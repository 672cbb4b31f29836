//! An endpoint in the middle of transfers, and what anyone may send it: packets with a right ICRC and the peer's addresses, of
//! every opcode, with headers that are right, nearly right or arbitrary; and damaged ones.
//!
//! After each packet it is checked that memory nobody granted is as it was, that a packet which failed its checks changed
//! nothing (`Endpoint::state_digest`, memory, completions), and that little is sent on account of it. Shared by tests and
//! fuzzing; must not: draw anything itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rocexdp_common::headers::{Feth, FlushRange};
use rocexdp_common::opcode::{Opcode, Transport, ext};
use rocexdp_proto::ids::{PathMtu, Psn, RKey, WrId};
use rocexdp_proto::mem::{Access, MemoryRegion};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{Cqe, RecvWr, Segment, SendOp, SendWr, Status};
use rocexdp_proto::wire::{RxMeta, TransmitKind};
use rocexdp_proto::{EndpointConfig, Event, QpState, QpTransition, SelectiveRepeat};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS, datagram};

use super::Craft;
use super::choices::Choices;
use super::forge::{Odd, damage, elsewhere, extensions, mutate};
use super::orderly::OrderlyPeer;
use super::selective::SelectivePeer;
use super::stage::{bind, changes_state, everything, share};

/// Bytes of each piece of memory, and of what is granted, or used, in its middle.
const WHOLE: usize = 6144;
const MIDDLE: std::ops::Range<usize> = 2048..4096;
/// Answers that one packet may cause, READ responses aside: an ACK or NAK, and one that was owed.
const ANSWERS: usize = 2;
/// READ responses and atomic acknowledges: what is granted, in packets, from each of the responder resources.
const RESPONSES: usize = 8 * 8 + 8;
/// Requests sent again: the window.
const AGAIN: usize = 128;
/// Numbers of receive requests begin here, of send requests at 0.
const FIRST_RECEIVE: u64 = 1 << 32;
/// What the victim's peer writes.
const FOREIGN: u8 = 0xcc;

/// The victim: end 1 of a pair whose end 0 answers its requests, while the caller plays end 0's requester, and everyone else.
pub struct Victim {
    pair: Pair,
    config: PairConfig,
    now: Timestamp,
    /// Memory that the peer may write, read, or do atomics to; only its middle is granted, as the whole of a region.
    granted: [Granted; 3],
    /// Memory of receive requests; of READs and atomics of ours: only the middle is used.
    inbox: Arc<Bytes>,
    fetched: Arc<Bytes>,
    /// Memory that is sent.
    source: Arc<Bytes>,
    /// Where the victim's requests go, and what end 0 has answered to them and has not arrived.
    target: MemoryRegion,
    answers: VecDeque<Vec<u8>>,
    /// The peer, one that keeps to the order or one that repeats selectively.
    orderly: OrderlyPeer,
    selective: Option<SelectivePeer>,
    sends: u64,
    receives: u64,
    /// Its receive queue is a shared one.
    shared: bool,
    /// Completions so far, taken at each step: the queue never fills.
    done: Vec<Cqe>,
    /// What happened, by name.
    pub seen: BTreeMap<&'static str, u64>,
}

struct Granted {
    memory: Arc<Bytes>,
    region: MemoryRegion,
}

/// What must not change by a packet that is refused.
#[derive(PartialEq, Eq)]
struct Snapshot {
    digest: u64,
    memory: Vec<Vec<u8>>,
    completions: usize,
}

impl Victim {
    /// A victim with requests of its own on their way, and receive requests, as `c` says.
    pub fn new(c: &mut impl Choices) -> Self {
        let transport = c.of(&[
            Transport::Rc,
            Transport::Rc,
            Transport::Rc,
            Transport::Rc,
            Transport::Rc,
            Transport::Rc,
            Transport::Uc,
            Transport::Ud,
        ]);
        let paths = match transport {
            Transport::Rc => c.of(&[0, 0, 1, 4]),
            _ => 0,
        };
        let mut endpoint = EndpointConfig::default();
        if paths > 0 && c.once_in(4) {
            endpoint.reorder_packets = 2;
        }
        let config = PairConfig {
            endpoint: [EndpointConfig::default(), endpoint],
            transport,
            selective: (paths > 0).then_some(SelectiveRepeat { paths }),
            path_mtu: c.of(&[PathMtu::Mtu256, PathMtu::Mtu1024]),
            depth: 16,
            retry_cnt: c.of(&[7, 0, 1]),
            rnr_retry: c.of(&[2, 0, 7]),
            psn: [
                c.of(&[Psn::new(0xff_fffe), Psn::new(5)]),
                c.of(&[Psn::new(0x12_3456), Psn::new(0xff_fffc)]),
            ],
            access: c.of(&[
                everything(),
                everything(),
                everything(),
                everything(),
                everything(),
                Access::NONE,
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
                Access::REMOTE_READ,
            ]),
            max_dest_rd_atomic: c.of(&[8, 8, 4, 1, 8, 0]),
            ..PairConfig::default()
        };
        let mut pair = Pair::new(&config);
        let shared = c.once_in(4);
        if shared {
            share(&mut pair, &config);
        }
        let read_only = Access::REMOTE_READ;
        let write_only = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut granted = [everything(), write_only, read_only].map(|access| {
            // A region is the whole of a memory, so the ungranted bytes around it are in front of and behind its addresses only.
            let memory = Bytes::filled(MIDDLE.len(), 0x30);
            let region = pair.ends[1]
                .endpoint
                .register_memory(memory.clone(), 0x10_0000, access | Access::MW_BIND)
                .expect("a region");
            Granted { memory, region }
        });
        let windowed = transport == Transport::Rc && c.once_in(2);
        if windowed {
            let grant = &mut granted[1].region;
            grant.rkey = bind(&mut pair, *grant, write_only);
        }
        let peers = Bytes::filled(MIDDLE.len(), 0x44);
        let target = pair.ends[0]
            .endpoint
            .register_memory(peers.clone(), 0x9_0000, everything())
            .expect("a region");
        let room = Segment::new(peers, 0, MIDDLE.len() as u32);
        for n in 0..c.below(4) {
            pair.post_recv(0, RecvWr::new(WrId(n), room.clone()))
                .expect("room in a new queue");
        }
        let selective = (paths > 0).then(|| SelectivePeer::new(paths, config.psn, config.path_mtu));
        let mut victim = Self {
            pair,
            config,
            selective,
            now: Timestamp::ZERO,
            granted,
            inbox: Bytes::filled(WHOLE, 0x11),
            fetched: Bytes::filled(WHOLE, 0x22),
            source: Bytes::filled(WHOLE, 0x33),
            target,
            answers: VecDeque::new(),
            orderly: OrderlyPeer::default(),
            // The bind was the first.
            sends: u64::from(windowed),
            receives: 0,
            shared,
            done: Vec::new(),
            seen: BTreeMap::new(),
        };
        for _ in 0..c.below(12) {
            victim.receive(c);
        }
        for _ in 0..c.below(6) {
            victim.send(c);
        }
        victim.transmit();
        victim
    }

    fn receive(&mut self, c: &mut impl Choices) {
        let len = c.of(&[MIDDLE.len() as u32, 1500, 1500, 1500, 1500, 1300, 1400, 0]);
        let local = Segment::new(self.inbox.clone(), MIDDLE.start as u64, len);
        let wr = RecvWr::new(WrId(FIRST_RECEIVE + self.receives), local);
        if self.pair.ends[1].qp.rq.post(wr).is_ok() {
            self.receives += 1;
        }
        self.pair.ends[1].endpoint.work_posted(self.now, QPNS[1]);
    }

    fn send(&mut self, c: &mut impl Choices) {
        let (va, mut rkey) = (self.target.va, self.target.rkey);
        if c.once_in(16) {
            rkey = RKey(0x77);
        }
        let what = Feth {
            global_visibility: true,
            persistence: false,
            placement_reserved: 0,
            selectivity: FlushRange::Range,
        };
        let len = c.of(&[300, 8, 1025, 2048, 0, 1024]);
        let at = MIDDLE.start as u64;
        let sent = Segment::new(self.source.clone(), at, len);
        let fetched = Segment::new(self.fetched.clone(), at, len);
        let eight = Segment::new(self.fetched.clone(), at, 8);
        let word = Segment::new(self.source.clone(), at, 8);
        let (op, local) = match c.below(8) {
            0 => (SendOp::Read { va, rkey }, fetched),
            1 => (SendOp::FetchAdd { va, rkey, add: 1 }, eight),
            2 => {
                let (compare, swap) = (1, 2);
                let op = SendOp::CompareSwap {
                    va,
                    rkey,
                    compare,
                    swap,
                };
                (op, eight)
            }
            3 => (SendOp::Send, sent),
            4 => (SendOp::Write { va, rkey }, sent),
            5 => (SendOp::WriteImm { va, rkey, imm: 1 }, sent),
            6 => (SendOp::AtomicWrite { va, rkey }, word),
            _ => {
                let op = SendOp::Flush {
                    va,
                    rkey,
                    len,
                    what,
                };
                (op, Segment::empty())
            }
        };
        let mut wr = SendWr::new(WrId(self.sends), op, local);
        wr.fence = c.once_in(8);
        if self.config.transport == Transport::Ud {
            wr = wr.to(datagram(&self.config, 1));
        }
        if self.pair.ends[1].qp.sq.post(wr).is_ok() {
            self.sends += 1;
        }
        self.pair.ends[1].endpoint.work_posted(self.now, QPNS[1]);
    }

    fn snapshot(&mut self) -> Snapshot {
        let memory = self.granted.iter().map(|g| g.memory.copy());
        let own = [&self.inbox, &self.fetched, &self.source].map(|m| m.copy());
        Snapshot {
            memory: memory.chain(own).collect(),
            digest: self.pair.ends[1].endpoint.state_digest(),
            completions: self.pair.ends[1].cq.len(),
        }
    }

    /// One step: mostly a packet, sometimes time that passes or a request posted. False: the connection has failed, and there
    /// is little to see any more.
    pub fn step(&mut self, c: &mut impl Choices) -> bool {
        self.done.extend(self.pair.completions(1));
        match c.below(16) {
            0 => {
                let span = c.of(&[Duration::from_micros(10), Duration::from_millis(2)]);
                self.now = self.now + span;
                self.pair.ends[1].endpoint.handle_timeout(self.now);
                self.transmit();
            }
            1 => {
                self.receive(c);
                self.send(c);
                self.transmit();
            }
            2 => {
                let mut frame = self.packet(c).frame(&self.config, 0);
                damage(&mut frame, c);
                self.take(&frame);
            }
            3..=6 => self.answer(c),
            _ => {
                let mut frame = self.packet(c).frame(&self.config, 0);
                if c.once_in(32) {
                    elsewhere(&mut frame, c);
                }
                self.take(&frame);
            }
        }
        self.state() != QpState::Err || c.once_in(2)
    }

    /// An answer of end 0 arrives: mostly in order and once.
    fn answer(&mut self, c: &mut impl Choices) {
        let frame = match c.below(12) {
            0 => self.answers.front().cloned(),
            1 => self.answers.pop_back(),
            2 => {
                self.answers.pop_front();
                self.answers.pop_front()
            }
            3 => self.answers.pop_front().map(|mut frame| {
                damage(&mut frame, c);
                frame
            }),
            4 | 5 => self.answers.pop_front().map(|mut frame| {
                mutate(&mut frame, c);
                frame
            }),
            _ => self.answers.pop_front(),
        };
        if let Some(frame) = frame {
            self.take(&frame);
        }
    }

    /// A packet from the peer: what a peer in good order could send now, or that with something arbitrary about it.
    fn packet(&mut self, c: &mut impl Choices) -> Craft {
        let info = self.pair.ends[1].endpoint.qp_info(QPNS[1]);
        let (expected, unacked) = info.map_or((Psn::new(0), Psn::new(0)), |i| {
            (i.expected_psn, i.unacked_psn)
        });
        let odd = match c.below(24) {
            0 => Odd::Opcode,
            1 => Odd::Psn,
            2 => Odd::Payload,
            3 => Odd::Place,
            4 => Odd::Length,
            5 => Odd::Flags,
            _ => Odd::Nothing,
        };
        let mut p = match &mut self.selective {
            Some(peer) => peer.next(c, expected, unacked),
            None => self.orderly.next(c, &self.config, odd, expected, unacked),
        };
        if self.selective.is_some() && odd == Odd::Opcode {
            let any = [c.below(0x20) as u8 | 0xc0, c.below(256) as u8];
            p.opcode = Opcode(c.of(&[p.opcode.0 ^ 1, any[0], any[1]]));
        }
        p.psn = match (odd, c.below(4)) {
            (Odd::Psn, 0) => Psn::new(c.below(1 << 24) as u32),
            (Odd::Psn, 1) => p.psn.sub(1 + c.below(4) as u32),
            (Odd::Psn, 2) => p.psn.sub(1),
            (Odd::Psn, _) => p.psn.add(1 + c.below(8) as u32),
            _ => p.psn,
        };
        let mtu = self.config.path_mtu.bytes();
        if odd == Odd::Payload {
            p.len = c.of(&[mtu, 0, 8, mtu - 1, mtu + 1, 1, 4, 300, 4096]);
        }
        let mut craft = Craft::new(0, p.opcode, p.psn);
        craft.bth.ack_req = c.once_in(2);
        craft.bth.solicited = c.once_in(2);
        let set = p.opcode.extensions().unwrap_or(ext::RETH);
        let regions = self.granted.each_ref().map(|g| g.region);
        craft.extensions = extensions(c, &regions, set, odd, p.total, self.config.qkey);
        if let Some(peer) = &mut self.selective {
            peer.place(c, set, odd, &p, &mut craft.extensions);
        }
        craft = craft.payload(&vec![FOREIGN; p.len as usize]);
        if odd == Odd::Flags {
            craft.bth.pad = c.below(4) as u8;
            craft.bth.pkey = c.of(&[0xffff, 0x7fff, 0]);
        }
        craft
    }

    /// The victim receives a frame.
    fn take(&mut self, frame: &[u8]) {
        let (before, expected) = (self.snapshot(), self.expected());
        let endpoint = &mut self.pair.ends[1].endpoint;
        let cut = frame.len() / 2;
        let pieces = [&frame[..cut], &frame[cut..]];
        let result = endpoint.handle_frame(self.now, &RxMeta::default(), &pieces);
        let after = self.snapshot();
        let name = match result {
            Ok(()) => {
                if self.expected() != expected {
                    self.orderly.went_on();
                }
                "accepted"
            }
            Err(reason) => {
                // A receive request may have ended in an error with the connection; memory is as it was. Selective repeat: the
                // packet may have been carried out, and one that was kept behind it refused.
                let carried_out = self.selective.is_some() && self.expected() != expected;
                assert!(
                    carried_out || before.memory == after.memory,
                    "{reason}: memory changed"
                );
                if !changes_state(reason, &self.config) {
                    assert!(before == after, "{reason}: state changed");
                }
                reason.name()
            }
        };
        *self.seen.entry(name).or_default() += 1;
        self.check_memory();
        self.transmit();
    }

    /// Everything outside what was granted or posted is as it was.
    fn check_memory(&self) {
        let outside = |bytes: &[u8], fill: u8| {
            let (front, back) = (&bytes[..MIDDLE.start], &bytes[MIDDLE.end..]);
            front.iter().chain(back).all(|b| *b == fill)
        };
        assert!(outside(&self.inbox.copy(), 0x11), "outside the receives");
        assert!(outside(&self.fetched.copy(), 0x22), "outside the READs");
        assert!(
            self.source.copy().iter().all(|b| *b == 0x33),
            "what is sent"
        );
        let read_only = self.granted[2].memory.copy();
        assert!(read_only.iter().all(|b| *b == 0x30), "not to be written");
    }

    /// Lets the victim send what it has to, and counts that.
    fn transmit(&mut self) {
        let (mut answers, mut responses, mut requests) = (0, 0, 0);
        let (mut frame, mut to_peer) = (vec![0; 4400], Vec::new());
        let endpoint = &mut self.pair.ends[1].endpoint;
        while let Some(packet) = endpoint.poll_transmit(self.now) {
            match packet.kind() {
                TransmitKind::Cnp | TransmitKind::Acknowledge => answers += 1,
                TransmitKind::Response => responses += 1,
                TransmitKind::Request | TransmitKind::Retransmission => requests += 1,
            }
            let len = packet.len();
            packet
                .write(&mut [&mut frame[..len]])
                .expect("the victim's memory stays");
            to_peer.push(frame[..len].to_vec());
            assert!(
                answers <= ANSWERS && responses <= RESPONSES && requests <= AGAIN,
                "{answers} answers, {responses} responses, {requests} requests"
            );
        }
        assert!(
            self.pair.ends[1]
                .endpoint
                .poll_event()
                .is_none_or(
                    |e| matches!(e, Event::SrqLimitReached { .. }) || self.state() == QpState::Err
                ),
            "an event without an error"
        );
        let peer = &mut self.pair.ends[0].endpoint;
        for frame in to_peer {
            // What it thinks of answers to requests that it never made does not matter.
            let _ = peer.handle_frame(self.now, &RxMeta::default(), &[&frame]);
        }
        while let Some(packet) = peer.poll_transmit(self.now) {
            let len = packet.len();
            packet
                .write(&mut [&mut frame[..len]])
                .expect("memory stays");
            self.answers.push_back(frame[..len].to_vec());
        }
    }

    fn expected(&self) -> Option<Psn> {
        let info = self.pair.ends[1].endpoint.qp_info(QPNS[1]);
        info.map(|i| i.expected_psn)
    }

    fn state(&self) -> QpState {
        let info = self.pair.ends[1].endpoint.qp_info(QPNS[1]);
        info.map_or(QpState::Reset, |i| i.state)
    }

    /// The end: with time, and at the latest in ERR, everything posted has completed exactly once, in order.
    pub fn finish(mut self) -> BTreeMap<&'static str, u64> {
        let alive = self.state() == QpState::Rts;
        *self
            .seen
            .entry(if alive { "alive" } else { "failed" })
            .or_default() += 1;
        for _ in 0..2000 {
            self.transmit();
            let Some(at) = self.pair.ends[1].endpoint.poll_timeout() else {
                break;
            };
            self.now = self.now.max(at);
            self.pair.ends[1].endpoint.handle_timeout(self.now);
        }
        let state = self.state();
        assert!(matches!(state, QpState::Rts | QpState::Err), "{state}");
        self.pair.ends[1]
            .endpoint
            .modify_qp(self.now, QPNS[1], QpTransition::Err)
            .expect("to ERR from any state");
        let (mut sends, mut receives) = (0, 0);
        self.done.extend(self.pair.completions(1));
        for done in &self.done {
            let next = if done.wr_id.0 >= FIRST_RECEIVE {
                receives += 1;
                FIRST_RECEIVE + receives - 1
            } else {
                sends += 1;
                sends - 1
            };
            assert_eq!(done.wr_id.0, next, "each once, in order");
            let status = if done.status == Status::Success {
                "completed"
            } else {
                "completed with an error"
            };
            *self.seen.entry(status).or_default() += 1;
        }
        // What nobody has taken from a shared queue is left to others.
        let left = if self.shared {
            self.pair.ends[1].qp.rq.available() as u64
        } else {
            0
        };
        assert_eq!(
            (sends, receives + left),
            (self.sends, self.receives),
            "all of them"
        );
        let service = match (self.config.transport, self.shared) {
            (_, true) => "shared receive queue",
            _ if self.config.selective.is_some_and(|s| s.paths > 1) => "selective repeat, 4 paths",
            _ if self.config.selective.is_some() => "selective repeat, 1 path",
            (Transport::Uc, _) => "UC",
            (Transport::Ud, _) => "UD",
            _ => "RC",
        };
        *self.seen.entry(service).or_default() += 1;
        self.check_memory();
        self.seen
    }
}
