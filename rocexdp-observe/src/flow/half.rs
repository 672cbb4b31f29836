//! All packets from one address to one QP of another: counters, and the state of the request stream among them.
//!
//! Counting only; who is whose peer is [`crate::analyse`]'s business.

use rocexdp_common::{
    ids::Gid,
    opcode::{Operation, Position, Transport},
};
use serde::Serialize;

use super::{answers::Answer, copies::Copies, requests::Requests};

/// How two directions were tied together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TiedBy {
    /// By a connection's CM REQ and REP.
    Cm,
    /// By the sender's QP number that each packet carries (DETH: UD and RD).
    Deth,
    /// By addresses, and answers whose PSNs fit one QP's requests only.
    Heuristic,
    /// Not: the other direction was not captured, or could not be told from others.
    #[default]
    None,
}

/// Messages and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Volume {
    /// Messages whose last packet was captured; READs: requests.
    pub messages: u64,
    /// Payload bytes, of packets sent again only once; READs: bytes asked for.
    pub bytes: u64,
}

/// Messages by operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Operations {
    /// SEND, with or without immediate or invalidate.
    pub send: Volume,
    /// RDMA WRITE.
    pub write: Volume,
    /// RDMA READ.
    pub read: Volume,
    /// COMPARE SWAP.
    pub compare_swap: Volume,
    /// FETCH ADD.
    pub fetch_add: Volume,
    /// FLUSH.
    pub flush: Volume,
    /// ATOMIC WRITE.
    pub atomic_write: Volume,
}

impl Operations {
    /// Counts a request packet that was not sent before.
    #[inline]
    pub fn count(
        &mut self,
        operation: Operation,
        position: Position,
        payload: u32,
        reth_length: u32,
    ) {
        let (volume, bytes) = match operation {
            Operation::Send => (&mut self.send, payload),
            Operation::Write => (&mut self.write, payload),
            Operation::ReadRequest => (&mut self.read, reth_length),
            Operation::CompareSwap => (&mut self.compare_swap, 8),
            Operation::FetchAdd => (&mut self.fetch_add, 8),
            Operation::Flush => (&mut self.flush, 0),
            Operation::AtomicWrite => (&mut self.atomic_write, payload),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Resync
            | Operation::Cnp => return,
        };
        volume.messages += u64::from(matches!(position, Position::Last | Position::Only));
        volume.bytes += u64::from(bytes);
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let sum = |a: Volume, b: Volume| Volume {
            messages: a.messages + b.messages,
            bytes: a.bytes + b.bytes,
        };
        Self {
            send: sum(self.send, other.send),
            write: sum(self.write, other.write),
            read: sum(self.read, other.read),
            compare_swap: sum(self.compare_swap, other.compare_swap),
            fetch_add: sum(self.fetch_add, other.fetch_add),
            flush: sum(self.flush, other.flush),
            atomic_write: sum(self.atomic_write, other.atomic_write),
        }
    }

    /// All of them, by name.
    #[must_use]
    pub const fn all(&self) -> [(&'static str, Volume); 7] {
        [
            ("send", self.send),
            ("write", self.write),
            ("read", self.read),
            ("compare_swap", self.compare_swap),
            ("fetch_add", self.fetch_add),
            ("flush", self.flush),
            ("atomic_write", self.atomic_write),
        ]
    }
}

/// NAKs by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Naks {
    /// PSN sequence error.
    pub sequence: u64,
    /// Invalid request.
    pub invalid_request: u64,
    /// Remote access error.
    pub remote_access: u64,
    /// Remote operational error.
    pub remote_operational: u64,
    /// Any other code of a NAK.
    pub other: u64,
}

impl Naks {
    /// All.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.sequence
            + self.invalid_request
            + self.remote_access
            + self.remote_operational
            + self.other
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            sequence: self.sequence + other.sequence,
            invalid_request: self.invalid_request + other.invalid_request,
            remote_access: self.remote_access + other.remote_access,
            remote_operational: self.remote_operational + other.remote_operational,
            other: self.other + other.other,
        }
    }
}

/// Events of one kind: how many, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// How many.
    pub count: u64,
    /// The first frames.
    pub first: Vec<u64>,
    /// The last frame.
    pub last: u64,
    /// First and last time.
    pub times: (i64, i64),
}

/// Frames remembered of events that are only counted.
const FIRST_FRAMES: usize = 8;

impl Events {
    /// Takes one.
    pub fn add(&mut self, frame: u64, time: i64) {
        if self.count == 0 {
            self.times = (time, time);
        }
        self.count += 1;
        if self.first.len() < FIRST_FRAMES {
            self.first.push(frame);
        }
        self.last = frame;
        self.times = (self.times.0.min(time), self.times.1.max(time));
    }

    /// The frames to show.
    #[must_use]
    pub fn frames(&self) -> Vec<u64> {
        let mut frames = self.first.clone();
        if self.count > 0 && !frames.contains(&self.last) {
            frames.push(self.last);
        }
        frames
    }
}

/// What a CM connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Communication IDs of the active and the passive side.
    pub comm_ids: (u32, u32),
    /// What was asked for.
    pub service_id: u64,
    /// Port of RDMA CM, if the service ID is one of its.
    pub port: Option<u16>,
}

/// A direction.
#[derive(Clone, Debug)]
pub struct Half {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Destination QP.
    pub dest_qpn: u32,
    /// The sender's QP, where it is known.
    pub src_qpn: Option<u32>,
    /// Transport service of its first packet.
    pub transport: Transport,
    /// The other direction.
    pub peer: Option<u32>,
    /// How that was found.
    pub tied_by: TiedBy,
    /// Answers that were compared with candidates in vain.
    pub tie_attempts: u32,
    /// The last answers that no request was found for.
    pub unmatched: Vec<Answer>,
    /// The connection that the communication manager made.
    pub connection: Option<Connection>,
    /// Its first frame.
    pub first_frame: u64,
    /// Packets, copies of frames not among them.
    pub packets: u64,
    /// Bytes of their frames on the wire.
    pub bytes: u64,
    /// First and last time.
    pub times: (i64, i64),
    /// Packets by opcode, copies of frames and wrong ICRCs among them.
    pub opcodes: Vec<(u8, u64)>,
    /// Of `opcodes` RoCEv1.
    pub v1: u64,
    /// Packets with a right ICRC.
    pub icrc_right: u64,
    /// Packets with a CE mark.
    pub ce: Events,
    /// Congestion notification packets.
    pub cnp: Events,
    /// Acknowledgements that are no NAKs.
    pub acks: u64,
    /// READ responses.
    pub responses: u64,
    /// NAKs.
    pub naks: Naks,
    /// RNR NAKs.
    pub rnrs: u64,
    /// Packets with a wrong ICRC.
    pub icrc_wrong: Events,
    /// Of them right but for the pad bytes: an old Soft-RoCE.
    pub icrc_without_pad: u64,
    /// Packets whose ICRC can't be known.
    pub icrc_unknown: u64,
    /// Frames captured twice.
    pub copies_seen: Events,
    /// Requests.
    pub operations: Operations,
    /// Their stream.
    pub requests: Requests,
    /// The last frames, to tell copies.
    pub copies: Copies,
}

impl Half {
    /// No packets yet.
    #[must_use]
    pub fn new(src: Gid, dst: Gid, dest_qpn: u32, transport: Transport) -> Self {
        let mut half = Self {
            src,
            dst,
            dest_qpn,
            src_qpn: None,
            transport,
            peer: None,
            tied_by: TiedBy::None,
            tie_attempts: 0,
            unmatched: Vec::new(),
            connection: None,
            first_frame: 0,
            packets: 0,
            bytes: 0,
            times: (0, 0),
            opcodes: Vec::new(),
            v1: 0,
            icrc_right: 0,
            ce: Events::default(),
            cnp: Events::default(),
            acks: 0,
            responses: 0,
            naks: Naks::default(),
            rnrs: 0,
            icrc_wrong: Events::default(),
            icrc_without_pad: 0,
            icrc_unknown: 0,
            copies_seen: Events::default(),
            operations: Operations::default(),
            requests: Requests::default(),
            copies: Copies::new(),
        };
        half.set_transport(transport);
        half
    }

    /// A CNP says nothing of the QP's service; the first other packet does.
    pub fn set_transport(&mut self, transport: Transport) {
        self.transport = transport;
        self.requests.reliable = matches!(transport, Transport::Rc | Transport::Xrc);
    }

    /// Counts a packet.
    #[inline]
    pub fn count(&mut self, frame: u64, time: i64, wire_len: u32, ecn: u8) {
        if self.packets == 0 {
            (self.first_frame, self.times) = (frame, (time, time));
        }
        self.packets += 1;
        self.bytes += u64::from(wire_len);
        self.times = (self.times.0.min(time), self.times.1.max(time));
        if ecn & 3 == rocexdp_common::account::CE {
            self.ce.add(frame, time);
        }
    }

    /// Counts a packet's opcode, whatever is thought of the packet.
    #[inline]
    pub fn count_opcode(&mut self, opcode: u8) {
        match self.opcodes.iter_mut().find(|(code, _)| *code == opcode) {
            Some((_, n)) => *n += 1,
            None => self.opcodes.push((opcode, 1)),
        }
    }

    /// Answers among its packets.
    #[must_use]
    pub const fn answers(&self) -> u64 {
        self.acks + self.responses + self.naks.total() + self.rnrs
    }
}
