//! What the model knows: every request posted, every byte that may be written, who is connected to whom.
//!
//! A *stream* is what one end sends to the other in one generation of a connection: its messages in the order of posting, and
//! the receive requests that they consume. Each stream has a cursor: the message that the target executes next, and how many
//! of its bytes are there. Must not: look into an endpoint.

use rocexdp_proto::mem::Access;
use rocexdp_proto::verbs::{SendOp, Status};

use super::program::{Setup, flag, kind};
use super::shared::{Queues, Shared};
use super::tally::Tally;
use super::unreliable::{Arrival, Run};
use super::window::{Change, Grant, WindowInfo};

/// Bytes of the source that all payloads are taken from.
pub const SOURCE_LEN: u32 = 1 << 18;
/// Bytes of a target memory.
pub const TARGET_LEN: u32 = 1 << 16;
/// Target memories of each end.
pub const TARGETS: usize = 3;
/// Region slots of each end.
pub const SLOTS: usize = 6;
/// Window slots of each end.
pub const WINDOWS: usize = 4;

/// The bytes that every payload is a part of.
#[must_use]
pub fn source() -> &'static [u8] {
    static SOURCE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    SOURCE.get_or_init(|| {
        let mut rng = rocexdp_proto::rng::Rng::new(0x5eed);
        let words = (0..SOURCE_LEN / 8).map(|_| rng.next_u64());
        words.flat_map(u64::to_le_bytes).collect()
    })
}

/// A send request.
#[derive(Clone, Debug, Default)]
pub struct Msg {
    /// Its completion's name.
    pub wr: u64,
    /// See [`kind`].
    pub kind: u64,
    /// Bytes.
    pub len: u32,
    /// See [`flag`].
    pub flags: u64,
    /// Where its bytes are in the source.
    pub src: Vec<(u32, u32)>,
    /// Where what it fetches lands.
    pub land: Vec<(u64, u32)>,
    /// Index of the peer's region among all that the peer ever had; `None`: no such key.
    pub region: Option<usize>,
    /// First byte in the region.
    pub at: u64,
    /// Operands, or the immediate.
    pub a: u64,
    /// Second operand.
    pub b: u64,
    /// It names what it must not: it can't succeed.
    pub bad: Option<Status>,
    /// Which of the stream's receive requests it consumes.
    pub recv: Option<usize>,
    /// Bytes that have landed, from the first one on.
    pub landed: u32,
    /// Selective repeat: bytes that have landed behind a gap, as start and end.
    pub landed_ahead: Vec<(u32, u32)>,
    /// Carried out at the target.
    pub executed: bool,
    /// Atomics: what stood there.
    pub original: Option<u64>,
    /// Number of its first packet, and how many numbers it takes.
    pub first: u32,
    /// Packets, or those of its answer.
    pub packets: u32,
    /// READ: how long the target memory's log was when it could first be read.
    pub since: usize,
    /// When it was posted.
    pub posted: u64,
    /// It names a window's key: of this grant, among all that the peer ever gave.
    pub grant: Option<usize>,
    /// What it does to a window.
    pub change: Option<Change>,
    /// What is posted, where the rest does not say it.
    pub op: Option<SendOp>,
    /// UD: pair of the QP that it goes to.
    pub to: usize,
}

impl Msg {
    /// A READ or an atomic that fetches.
    #[must_use]
    pub fn fetches(&self) -> bool {
        matches!(self.kind, kind::READ | kind::COMPARE_SWAP | kind::FETCH_ADD)
    }

    /// No ordinary acknowledgement answers it.
    #[must_use]
    pub fn wants_response(&self) -> bool {
        self.fetches() || matches!(self.kind, kind::ATOMIC_WRITE | kind::FLUSH)
    }

    /// Done to the target's memory in one call.
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        matches!(
            self.kind,
            kind::COMPARE_SWAP | kind::FETCH_ADD | kind::ATOMIC_WRITE
        )
    }

    /// Bytes go to the target's memory.
    #[must_use]
    pub fn carries(&self) -> bool {
        self.kind <= kind::WRITE_IMM
    }

    /// It never leaves the host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.kind, kind::BIND | kind::LOCAL_INV)
    }

    /// It consumes a receive request.
    #[must_use]
    pub fn consumes(&self) -> bool {
        self.kind <= kind::SEND_INV || self.kind == kind::WRITE_IMM
    }

    /// The target's memory shows nothing of it.
    #[must_use]
    pub fn traceless(&self) -> bool {
        !self.is_atomic() && (self.len == 0 || !self.carries())
    }

    /// Whether success makes a completion.
    #[must_use]
    pub fn signaled(&self) -> bool {
        self.flags & flag::UNSIGNALED == 0
    }

    /// What the peer's QP and region must allow.
    #[must_use]
    pub fn needs(&self) -> Access {
        match self.kind {
            kind::WRITE | kind::WRITE_IMM | kind::ATOMIC_WRITE => Access::REMOTE_WRITE,
            kind::READ => Access::REMOTE_READ,
            kind::COMPARE_SWAP | kind::FETCH_ADD => Access::REMOTE_ATOMIC,
            kind::FLUSH => Access::FLUSH_GLOBAL,
            _ => Access::NONE,
        }
    }

    /// Whether byte `at` on of its payload is `bytes`.
    #[must_use]
    pub fn payload_is(&self, at: u32, bytes: &[u8]) -> bool {
        let mut left = bytes;
        let mut skip = at;
        for &(off, len) in &self.src {
            if skip >= len {
                skip -= len;
                continue;
            }
            let n = left.len().min((len - skip) as usize);
            let from = (off + skip) as usize;
            if source().get(from..from + n) != left.get(..n) {
                return false;
            }
            (left, skip) = (&left[n..], 0);
            if left.is_empty() {
                return true;
            }
        }
        left.is_empty()
    }
}

/// Where byte `at` of a list of ranges lies, and how many bytes follow there.
#[must_use]
pub fn place(list: &[(u64, u32)], at: u32) -> Option<(u64, u32)> {
    let mut skip = at;
    for &(off, len) in list {
        if skip < len {
            return Some((off + u64::from(skip), len - skip));
        }
        skip -= len;
    }
    None
}

/// Which byte of a list of ranges lies there, and how many bytes follow.
#[must_use]
pub fn position(list: &[(u64, u32)], offset: u64) -> Option<(u32, u32)> {
    let mut before = 0;
    for &(off, len) in list {
        if let Some(inside) = offset.checked_sub(off).filter(|n| *n < u64::from(len)) {
            return Some((before + inside as u32, len - inside as u32));
        }
        before += len;
    }
    None
}

/// A receive request.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Its completion's name.
    pub wr: u64,
    /// Where the message goes.
    pub list: Vec<(u64, u32)>,
    /// Bytes there.
    pub room: u32,
}

/// What one end sends in one generation of a connection.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// In the order of posting.
    pub msgs: Vec<Msg>,
    /// The message that the target executes next.
    pub cursor: usize,
    /// Bytes of it that are there, from the first on.
    pub done: u32,
    /// Selective repeat: bytes that are there behind a gap, as start and end.
    pub ahead: Vec<(u32, u32)>,
    /// The receiver's requests.
    pub recvs: Vec<Receive>,
    /// Messages that consume a receive request.
    pub consumers: Vec<usize>,
    /// Of them, completed at the receiver.
    pub received: usize,
    /// Receive requests completed.
    pub recv_head: usize,
    /// Send requests completed.
    pub send_head: usize,
    /// The message whose bytes land next.
    pub landing: usize,
    /// The first error among the sender's completions.
    pub send_failed: Option<Status>,
    /// The first of the sender's messages that did not succeed.
    pub flushed_first: Option<usize>,
    /// The first error among the receiver's.
    pub recv_failed: Option<Status>,
    /// The sender forgot its requests.
    pub send_closed: bool,
    /// The receiver forgot its.
    pub recv_closed: bool,
    /// The receiver was not always there.
    pub disturbed: bool,
    /// When something happened to frames of the connection, both directions.
    pub faults: Vec<u64>,
    /// A CNP was sent: DCQCN may pace answers beyond the ACK timeout.
    pub paced: bool,
    /// PSN of the sender's first packet.
    pub start: u32,
    /// RNR NAKs that the receiver sent.
    pub rnr_naks: u64,
    /// Answers to the sender that were forged.
    pub forged: u64,
    /// UC and UD: packets that have left.
    pub left: u32,
}

/// One end's QP of a pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    /// It exists.
    pub exists: bool,
    /// Generation of its connection; 0: none yet.
    pub generation: usize,
    /// Went to RTS in this generation and has not left it.
    pub connected: bool,
    /// In ERR, for a reason that the model knows.
    pub erred: bool,
    /// Requests were flushed in this step: it must be in ERR.
    pub flushed: bool,
    /// No request before this time: an RNR NAK said so.
    pub quiet_until: u64,
    /// And it may keep silent until then.
    pub waits_until: u64,
    /// UC: the packets that came last, one behind the other.
    pub run: Option<Run>,
    /// The request of the shared receive queue that it has taken.
    pub holds: Option<usize>,
    /// It has said that it takes no more from the shared receive queue.
    pub last_wqe: bool,
}

/// Whose rules a pair of QPs follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// RC.
    Reliable,
    /// UC.
    Unreliable,
    /// UD.
    Datagram,
}

/// A region that was registered once.
#[derive(Clone, Copy, Debug)]
pub struct RegionInfo {
    /// Its key.
    pub rkey: u32,
    /// First address.
    pub va: u64,
    /// Which target memory, and from where.
    pub mem: usize,
    /// Bytes.
    pub len: u64,
    /// What it allows.
    pub access: Access,
    /// Not withdrawn.
    pub live: bool,
    /// In another protection domain than the QPs.
    pub foreign: bool,
}

/// Memory that peers reach.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What was overwritten: where, and the bytes before.
    pub log: Vec<(u32, Vec<u8>)>,
}

/// One end's memory.
#[derive(Clone, Debug, Default)]
pub struct EndState {
    /// Memories that peers reach.
    pub targets: Vec<Target>,
    /// Every region so far.
    pub regions: Vec<RegionInfo>,
    /// Which of them is in a slot.
    pub slots: [Option<usize>; SLOTS],
    /// Every memory window so far.
    pub windows: Vec<WindowInfo>,
    /// Which of them is in a slot.
    pub window_slots: [Option<usize>; WINDOWS],
    /// Every binding so far.
    pub grants: Vec<Grant>,
    /// The receive queue that its QPs share.
    pub shared: Shared,
    /// Its completion queues.
    pub queues: Queues,
    /// Memories that fault now: sources, receive buffers, landing zones, targets.
    pub gone: [bool; 3 + TARGETS],
    /// Those that ever did.
    pub was_gone: [bool; 3 + TARGETS],
    /// Receive buffers and landing zones are handed out from here on: nothing is stored, so there is room.
    pub next_buffer: u64,
}

/// What a work request's name means.
#[derive(Clone, Copy, Debug)]
pub struct WrRef {
    /// End that posted it.
    pub end: usize,
    /// Its pair of QPs.
    pub pair: usize,
    /// Generation of the connection.
    pub generation: usize,
    /// A receive request.
    pub is_recv: bool,
    /// Of the shared receive queue: pair and generation mean nothing.
    pub shared: bool,
    /// Place in the stream's messages or receive requests.
    pub index: usize,
}

/// All that the model knows.
#[derive(Debug, Default)]
pub struct State {
    /// The time.
    pub now: u64,
    /// The program's set-up.
    pub setup: Setup,
    /// The frame that is being received: at which end, for the QP of which pair.
    pub receiving: Option<(usize, usize)>,
    /// Of UC or UD: what it is.
    pub arrival: Option<Arrival>,
    /// Memory of each end.
    pub ends: [EndState; 2],
    /// QPs of each pair.
    pub pairs: Vec<[Side; 2]>,
    /// By pair, sender and generation.
    pub streams: Vec<[Vec<Stream>; 2]>,
    /// By a request's name.
    pub wrs: Vec<WrRef>,
    /// What went wrong first.
    pub violation: Option<String>,
    /// What happened.
    pub tally: Tally,
}

impl State {
    /// Nothing has happened.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let mut state = Self {
            setup,
            ..Self::default()
        };
        for (e, end) in state.ends.iter_mut().enumerate() {
            end.targets = (0..TARGETS)
                .map(|t| {
                    let from = (e * TARGETS + t) * 0x1000;
                    Target {
                        bytes: source()[from..from + TARGET_LEN as usize].to_vec(),
                        log: Vec::new(),
                    }
                })
                .collect();
        }
        for _ in 0..setup.pairs {
            state.pairs.push([Side::default(); 2]);
            state
                .streams
                .push([vec![Stream::default()], vec![Stream::default()]]);
        }
        state
    }

    /// Something is wrong. The first thing counts.
    pub fn wrong(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(format!("at {} ns: {}", self.now, what()));
        }
    }

    /// Whose rules a pair follows.
    #[must_use]
    pub fn service(&self, pair: usize) -> Service {
        let bit = |mask: u64| mask >> pair & 1 != 0;
        if bit(self.setup.ud) {
            Service::Datagram
        } else if bit(self.setup.uc) {
            Service::Unreliable
        } else {
            Service::Reliable
        }
    }

    /// Whether the pair is RC.
    #[must_use]
    pub fn is_reliable(&self, pair: usize) -> bool {
        self.service(pair) == Service::Reliable
    }

    /// Notes that something happened, for the hash that two runs are compared by.
    pub fn note(&mut self, tag: u64, value: u64) {
        for word in [self.now, tag, value] {
            self.tally.hash = (self.tally.hash ^ word).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// What `end` sends in its present generation.
    pub fn outgoing(&mut self, pair: usize, end: usize) -> &mut Stream {
        let generation = self.pairs[pair][end].generation;
        &mut self.streams[pair][end][generation]
    }

    /// What `end` receives in its present generation.
    pub fn incoming(&mut self, pair: usize, end: usize) -> &mut Stream {
        let generation = self.pairs[pair][end].generation;
        &mut self.streams[pair][1 - end][generation]
    }

    /// Whether both ends are connected to each other.
    #[must_use]
    pub fn healthy(&self, pair: usize) -> bool {
        let [a, b] = &self.pairs[pair];
        a.connected && b.connected && a.generation == b.generation
    }

    /// `end` no longer serves its peer.
    pub fn left(&mut self, pair: usize, end: usize) {
        self.pairs[pair][end].connected = false;
        self.pairs[pair][end].run = None;
        self.incoming(pair, end).disturbed = true;
        // Nor is it sure that the peer hears why our requests end.
        self.outgoing(pair, end).disturbed = true;
    }

    /// A request gets a name.
    pub fn name(&mut self, wr: WrRef) -> u64 {
        self.wrs.push(wr);
        self.wrs.len() as u64 - 1
    }
}
