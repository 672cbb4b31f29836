//! Hosts that run the shipped transport: one `rocexdp_proto::Endpoint` per NIC, driven by `drive::step`, as on AF_XDP.
//!
//! What a host does is a list of messages, each of one RC connection (QP), WRITE, SEND or READ, from a time on. A connection
//! carries one message after the other. Memory has no bytes.
//!
//! Must not: decide anything that the transport decides.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rocexdp_proto::drive::{self, FrameIo};
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, RKey, WrId, gid_from_ipv4};
use rocexdp_proto::mem::{Access, Memory, MemoryFault, Segment};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CompletionQueue, CqeOpcode, PostError, RecvWr, SendOp, SendWr, Status};
use rocexdp_proto::wire::{Frags, Head, IcrcSeen, Packet as Parsed, Path, RxMeta, Transmit};
use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, Event, QpHandle, QpTransition, RtrAttr, RtsAttr,
    SelectiveRepeat, VerbsError,
};

use super::Host;
use super::frame::{Frame, address};
use crate::memory::NoBytes;
use crate::picos::Picos;
use crate::topology::{HostId, PortId};

/// Frames received, or sent, in one step: each is an event of its own.
const BUDGET: usize = 2;
/// Bytes that every NIC's memory has, and no one keeps.
const MEMORY: u64 = 1 << 32;
/// The longest message that is posted in one piece.
const CHUNK: u64 = 1 << 30;
/// Completions of one step at most, all QPs flushed at once aside.
const CQ_DEPTH: u32 = 256;
/// Local QP numbers start here, as the shipped ones do.
const FIRST_QPN: u32 = 0x80_0000;
/// What stands in place of every payload, pad and ICRC.
static ZEROS: [u8; 4096 + 8] = [0; 4096 + 8];

/// A connection's settings, the same at both ends.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Selective repeat instead of go-back-N.
    pub selective: Option<SelectiveRepeat>,
    /// DSCP of requests and answers; `None`: the endpoint's.
    pub dscp: Option<u8>,
    /// ACK timeout code, 4.096 us x 2^code.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// READs that may be unanswered at once.
    pub max_rd_atomic: u8,
    /// Messages, or pieces of 1 GiB of a longer one, that are posted at once.
    pub depth: u32,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            path_mtu: PathMtu::Mtu1024,
            selective: None,
            dscp: None,
            // 67 ms, and 7 times: what perftest asks for is 14; a simulation of milliseconds wants to see it happen.
            timeout: 7,
            retry_cnt: 7,
            max_rd_atomic: 16,
            depth: 4,
        }
    }
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Op {
    /// Into the peer's memory.
    #[default]
    Write,
    /// Into the peer's receive request.
    Send,
    /// From the peer's memory.
    Read,
}

/// A message to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// What [`Done`] names it by.
    pub tag: u64,
    /// When it is posted at the earliest: behind the connection's messages before it.
    pub start: Picos,
    /// Bytes; [`u64::MAX`]: it never ends.
    pub bytes: u64,
    /// What it is.
    pub op: Op,
}

/// A message that has ended: all of it acknowledged, or failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// [`Message::tag`].
    pub tag: u64,
    /// [`Message::start`].
    pub start: Picos,
    /// When its last acknowledgement, or READ response, came.
    pub end: Picos,
    /// Bytes.
    pub bytes: u64,
    /// How it ended.
    pub status: Status,
}

/// One end of a connection: the NIC and the QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The NIC.
    pub nic: PortId,
    /// The QP.
    pub qpn: Qpn,
    /// Its place among the NIC's.
    index: u32,
}

/// A message under way: what is still to be posted, and posted pieces that have not completed.
struct Current {
    message: Message,
    left: u64,
    posted: u32,
}

struct Flow {
    qp: QpHandle,
    messages: VecDeque<Message>,
    /// The oldest first.
    current: VecDeque<Current>,
    rkey: RKey,
    failed: bool,
}

/// The frames of a NIC: one in, one out.
struct Io {
    received: Option<Frame>,
    sent: Option<Frame>,
    room: bool,
    priorities: [u8; 64],
}

impl FrameIo for Io {
    fn receive(&mut self, _: usize, sink: &mut dyn FnMut(&RxMeta, Frags<'_>)) -> usize {
        let Some(frame) = self.received.take() else {
            return 0;
        };
        let meta = RxMeta {
            icrc: IcrcSeen::As(frame.icrc_is_right()),
            ..RxMeta::default()
        };
        let tail = ZEROS.get(..frame.tail()).unwrap_or(&ZEROS);
        sink(&meta, &[frame.headers(), tail]);
        1
    }

    fn tx_room(&mut self) -> bool {
        self.room && self.sent.is_none()
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]])) {
        let mut bytes = vec![0; len];
        fill(&mut [&mut bytes]);
        let pieces: [&[u8]; 1] = [&bytes];
        let Ok(p) = Parsed::parse(&Head::of(&pieces), &pieces) else {
            return;
        };
        let payload = p.payload.len() as usize;
        let headers = len - payload.next_multiple_of(4) - 4;
        self.sent = Frame::new(&bytes[..headers], payload, &self.priorities);
    }

    fn transmit_packet(&mut self, packet: &Transmit<'_>) -> Result<(), MemoryFault> {
        let frame = Frame::new(packet.headers(), packet.payload_len(), &self.priorities);
        self.sent = Some(frame.ok_or(MemoryFault)?);
        Ok(())
    }

    fn flush(&mut self) {}
}

struct Nic {
    endpoint: Endpoint,
    io: Io,
    cq: Arc<CompletionQueue>,
    memory: Arc<dyn Memory>,
    rkey: RKey,
    flows: Vec<Flow>,
    /// Messages that wait for their time: when, whose.
    starts: BinaryHeap<Reverse<(Picos, u32)>>,
    events: Vec<(Picos, Event)>,
    done: Vec<Done>,
}

/// A host that runs the shipped transport.
pub struct RcHost {
    id: HostId,
    nics: Vec<Nic>,
}

impl RcHost {
    /// A host with one endpoint per NIC, each with these settings. Marks are taken from frames; their `line_rate` should be
    /// that of the NIC's link.
    ///
    /// # Panics
    /// If there are more than 65 536 hosts, or 255 NICs.
    #[must_use]
    pub fn new(id: HostId, nics: &[EndpointConfig], seed: u64) -> Self {
        assert!(id.0 < 1 << 16 && nics.len() < 256, "no address for {id:?}");
        let nics = nics.iter().enumerate().map(|(n, config)| {
            let mut config = config.clone();
            config.ecn_from_frames = true;
            let seed = seed ^ u64::from(id.0) << 16 ^ (n as u64) << 8;
            let mut endpoint = Endpoint::new(config, seed);
            let memory: Arc<dyn Memory> = Arc::new(NoBytes(MEMORY));
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let region = endpoint.register_memory(Arc::clone(&memory), 0, access);
            let priorities = endpoint.config().classes.priority_of_dscp;
            Nic {
                endpoint,
                io: Io {
                    received: None,
                    sent: None,
                    room: false,
                    priorities,
                },
                cq: Arc::new(CompletionQueue::new(CQ_DEPTH)),
                memory,
                // A fresh endpoint takes a region.
                rkey: region.map_or(RKey(0), |r| r.rkey),
                flows: Vec::new(),
                starts: BinaryHeap::new(),
                events: Vec::new(),
                done: Vec::new(),
            }
        });
        Self {
            id,
            nics: nics.collect(),
        }
    }

    /// Joins a NIC of each of two hosts by an RC connection. Gives its ends.
    ///
    /// # Errors
    /// What an endpoint refuses.
    ///
    /// # Panics
    /// If a NIC is not there.
    pub fn connect(
        hosts: [&mut Self; 2],
        nics: [PortId; 2],
        with: &Connection,
    ) -> Result<[End; 2], VerbsError> {
        let [a, b] = hosts;
        let addresses = [address(a.id, nics[0]), address(b.id, nics[1])];
        let ids = [a.id, b.id];
        let [a, b] = [a.nic_mut(nics[0]), b.nic_mut(nics[1])];
        let qpn = |nic: &Nic| Qpn::new(FIRST_QPN + nic.flows.len() as u32);
        let qpns = [qpn(a), qpn(b)];
        let rkeys = [a.rkey, b.rkey];
        for (i, nic) in [a, b].into_iter().enumerate() {
            let other = 1 - i;
            let qp = nic.endpoint.create_qp(CreateQp {
                max_send: with.depth,
                max_recv: with.depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                ..CreateQp::rc(qpns[i], &nic.cq, &nic.cq)
            })?;
            let mac = |i: usize| {
                let [_, high, low, nic] = addresses[i];
                [2, 0, 0, high, low, nic]
            };
            let path = Path {
                src_mac: mac(i),
                dst_mac: mac(other),
                vlan: None,
                sl: 0,
                src: gid_from_ipv4(addresses[i]),
                dst: gid_from_ipv4(addresses[other]),
                hop_limit: 64,
                dscp: with.dscp,
                flow_label: 0,
            };
            // Every connection its own numbers, as applications draw them.
            let psn = |i: usize| {
                let mixed = super::routes::mix(ids[i].0 << 8, qpns[i].get());
                Psn::new(mixed & 0xff_ffff)
            };
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let steps = [
                QpTransition::Init { access },
                QpTransition::Rtr(RtrAttr {
                    dest_qpn: qpns[other],
                    path_mtu: with.path_mtu,
                    rq_psn: psn(other),
                    min_rnr_timer: 1,
                    max_dest_rd_atomic: with.max_rd_atomic,
                    path,
                    selective: with.selective,
                }),
                QpTransition::Rts(RtsAttr {
                    sq_psn: psn(i),
                    timeout: with.timeout,
                    retry_cnt: with.retry_cnt,
                    rnr_retry: 7,
                    max_rd_atomic: with.max_rd_atomic,
                }),
            ];
            for step in steps {
                nic.endpoint
                    .modify_qp(Picos::ZERO.timestamp(), qpns[i], step)?;
            }
            let flow = Flow {
                qp,
                messages: VecDeque::new(),
                current: VecDeque::new(),
                rkey: rkeys[other],
                failed: false,
            };
            for _ in 0..with.depth {
                flow.expect(&nic.memory);
            }
            nic.flows.push(flow);
        }
        let end = |i: usize| End {
            nic: nics[i],
            qpn: qpns[i],
            index: qpns[i].get() - FIRST_QPN,
        };
        Ok([end(0), end(1)])
    }

    /// Has an end send a message.
    ///
    /// # Panics
    /// If the end is none of this host.
    pub fn post(&mut self, end: End, message: Message) {
        let nic = self.nic_mut(end.nic);
        nic.flows[end.index as usize].messages.push_back(message);
        nic.starts.push(Reverse((message.start, end.index)));
    }

    /// Messages that have ended since the last time, as they ended.
    pub fn take_done(&mut self) -> Vec<Done> {
        let mut all = Vec::new();
        for nic in &mut self.nics {
            all.append(&mut nic.done);
        }
        all
    }

    /// What the endpoints have said, as QPs that failed.
    pub fn take_events(&mut self) -> Vec<(Picos, Event)> {
        let mut all = Vec::new();
        for nic in &mut self.nics {
            all.append(&mut nic.events);
        }
        all
    }

    /// A NIC's endpoint.
    ///
    /// # Panics
    /// If the NIC is not there.
    #[must_use]
    pub fn endpoint(&self, nic: PortId) -> &Endpoint {
        &self.nics[usize::from(nic.0)].endpoint
    }

    fn nic_mut(&mut self, nic: PortId) -> &mut Nic {
        &mut self.nics[usize::from(nic.0)]
    }
}

impl Flow {
    /// Posts a receive request.
    fn expect(&self, memory: &Arc<dyn Memory>) {
        let local = Segment::new(Arc::clone(memory), 0, CHUNK as u32);
        // There is room: one has just completed, or the queue is new.
        let _ = self.qp.rq.post(RecvWr::new(WrId(0), local));
    }

    /// Posts what there is room for at `now`.
    fn pump(&mut self, now: Picos, memory: &Arc<dyn Memory>) -> bool {
        let mut any = false;
        loop {
            let begun = self.current.back().is_some_and(|c| c.left > 0);
            if !begun {
                if self.messages.front().is_none_or(|m| m.start > now) {
                    return any;
                }
                if self.qp.sq.len() >= self.qp.sq.capacity() {
                    return any;
                }
                let Some(message) = self.messages.pop_front() else {
                    return any;
                };
                self.current.push_back(Current {
                    message,
                    left: message.bytes,
                    posted: 0,
                });
            }
            let Some(current) = self.current.back_mut() else {
                return any;
            };
            let len = current.left.min(CHUNK);
            let (va, rkey) = (0, self.rkey);
            let op = match current.message.op {
                Op::Write => SendOp::Write { va, rkey },
                Op::Send => SendOp::Send,
                Op::Read => SendOp::Read { va, rkey },
            };
            let local = Segment::new(Arc::clone(memory), 0, len as u32);
            match self.qp.sq.post(SendWr::new(WrId(0), op, local)) {
                Ok(()) => {}
                Err(PostError::Full) => return any,
                Err(_) => {
                    self.failed = true;
                    return any;
                }
            }
            any = true;
            current.posted += 1;
            if current.message.bytes != u64::MAX {
                current.left -= len;
            }
        }
    }

    /// A piece of the oldest message has completed. With a failed one, all that were given to the connection have failed.
    fn completed(&mut self, now: Picos, status: Status, done: &mut Vec<Done>) {
        let end = |message: Message, status| Done {
            tag: message.tag,
            start: message.start,
            end: now,
            bytes: message.bytes,
            status,
        };
        let Some(current) = self.current.front_mut().filter(|_| !self.failed) else {
            return;
        };
        if status != Status::Success {
            self.failed = true;
            done.push(end(current.message, status));
            let others = self.current.drain(..).skip(1).map(|c| c.message);
            let others = others.chain(self.messages.drain(..));
            done.extend(others.map(|m| end(m, Status::WrFlushErr)));
            return;
        }
        current.posted -= 1;
        if current.posted == 0 && current.left == 0 {
            done.push(end(current.message, status));
            self.current.pop_front();
        }
    }
}

impl Nic {
    /// Messages whose time has come.
    fn start(&mut self, now: Picos) {
        while let Some(Reverse((at, index))) = self.starts.peek().copied() {
            if at > now {
                return;
            }
            self.starts.pop();
            self.pump(now, index);
        }
    }

    fn pump(&mut self, now: Picos, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !flow.failed && flow.pump(now, &self.memory) {
            self.endpoint.work_posted(now.timestamp(), flow.qp.qpn);
        }
    }

    /// The shipped loop body, and what came of it. With room for a packet only when the transmitter asks for one.
    fn step(&mut self, now: Picos, room: bool) {
        self.io.room = room;
        drive::step(&mut self.endpoint, now.timestamp(), &mut self.io, BUDGET);
        while let Some(event) = self.endpoint.poll_event() {
            self.events.push((now, event));
        }
        if !self.cq.is_empty() {
            self.completions(now);
        }
    }

    fn completions(&mut self, now: Picos) {
        while let Some(cqe) = self.cq.poll() {
            let index = cqe.qpn.get() - FIRST_QPN;
            let Some(flow) = self.flows.get_mut(index as usize) else {
                continue;
            };
            if matches!(cqe.opcode, CqeOpcode::Recv | CqeOpcode::RecvWriteImm) {
                if cqe.status == Status::Success {
                    flow.expect(&self.memory);
                    self.endpoint.work_posted(now.timestamp(), cqe.qpn);
                }
                continue;
            }
            flow.completed(now, cqe.status, &mut self.done);
            self.pump(now, index);
        }
    }
}

impl Host for RcHost {
    type Packet = Frame;

    fn receive(&mut self, now: Picos, nic: PortId, packet: Frame) {
        let nic = self.nic_mut(nic);
        nic.io.received = Some(packet);
        nic.step(now, false);
    }

    fn pause(&mut self, now: Picos, nic: PortId, priority: u8, until: Picos) {
        let nic = self.nic_mut(nic);
        let end = match until {
            Picos::MAX => Timestamp::MAX,
            // Never early.
            until => Timestamp::from_nanos(until.0.div_ceil(1_000)),
        };
        nic.endpoint.handle_pause(now.timestamp(), priority, end);
    }

    fn handle_timeout(&mut self, now: Picos) {
        for nic in &mut self.nics {
            nic.start(now);
            nic.step(now, false);
        }
    }

    fn poll_transmit(&mut self, now: Picos, nic: PortId) -> Option<Frame> {
        let nic = self.nic_mut(nic);
        if !nic.endpoint.has_packets() {
            return None;
        }
        nic.step(now, true);
        nic.io.sent.take()
    }

    fn has_packet(&self, nic: PortId) -> bool {
        self.nics[usize::from(nic.0)].endpoint.has_packets()
    }

    fn poll_timeout(&self) -> Option<Picos> {
        let nics = self.nics.iter().flat_map(|nic| {
            let timer = nic.endpoint.poll_timeout().map(Picos::from_timestamp);
            let start = nic.starts.peek().map(|Reverse((at, _))| *at);
            [timer, start]
        });
        nics.flatten().min()
    }
}
