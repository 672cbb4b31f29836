//! Two endpoints joined by a faulty wire, in virtual time: the harness of the protocol's tests, and the smallest network.
//!
//! Each end is driven by the shipped loop body, `drive::step`, over queues of frames. A script may do to single packets what
//! it likes before the wire's seeded faults do what they do. Time moves only when nobody has anything left to do. After
//! quinn-proto's `tests/util.rs`.
//!
//! Must not: know what a test is about.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rocexdp_common::fault::Faults;
use rocexdp_common::headers::Bth;
use rocexdp_proto::drive::{FrameIo, step};
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, gid_from_ipv4};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::{Rate, Timestamp};
use rocexdp_proto::verbs::{
    AddressHandle, CompletionQueue, Cqe, Datagram, PostError, RecvWr, SendWr,
};
use rocexdp_proto::wire::{Frags, Head, Packet, Path, RxMeta};
use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, Event, QpHandle, QpTransition, RtrAttr, RtsAttr,
    SelectiveRepeat, Transport, UdAttr,
};

pub use crate::memory::{Bytes, NoBytes};
use crate::wire::Wire;

/// Frames that an end receives, or sends, in one step.
const BUDGET: usize = 64;

/// The QPs of the two ends.
pub const QPNS: [Qpn; 2] = [Qpn::new(0x80_0011), Qpn::new(0x80_0022)];

/// What a script does to one frame. The frame may be changed, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Goes on to the wire.
    Pass,
    /// Is lost.
    Drop,
    /// Goes on twice.
    Twice,
    /// Goes on after this time; later ones overtake it.
    Late(Duration),
}

/// Decides about a frame that leaves `end`: its number there (from 0), its base header, its bytes.
pub type Script = Box<dyn FnMut(usize, u64, &Bth, &mut Vec<u8>) -> Fate>;

/// A frame as it left an end, before script and faults.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When.
    pub at: Timestamp,
    /// Which end sent it, 0 or 1.
    pub end: usize,
    /// Its base header.
    pub bth: Bth,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// How to build a [`Pair`].
#[derive(Clone, Debug)]
pub struct PairConfig {
    /// Settings of each end.
    pub endpoint: [EndpointConfig; 2],
    /// What the wire does to what enters from each end.
    pub faults: [Faults; 2],
    /// Rate at which each end's frames leave; `None`: at once.
    pub link_rate: Option<Rate>,
    /// Largest piece of a frame, in and out: smaller than a frame, it comes in several.
    pub piece: usize,
    /// Seed of the endpoints.
    pub seed: u64,
    /// Service of the QPs.
    pub transport: Transport,
    /// Q_Key of the QPs, if they are UD.
    pub qkey: u32,
    /// Path MTU of the QPs.
    pub path_mtu: PathMtu,
    /// First PSN of each end's requests.
    pub psn: [Psn; 2],
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_cnt: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Initiator depth of each end.
    pub max_rd_atomic: u8,
    /// Responder resources of each end.
    pub max_dest_rd_atomic: u8,
    /// Selective repeat, which both ends agree on.
    pub selective: Option<SelectiveRepeat>,
    /// Depth of each queue.
    pub depth: u32,
    /// What each QP serves.
    pub access: Access,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// VLAN tag.
    pub vlan: Option<u16>,
}

impl Default for PairConfig {
    fn default() -> Self {
        let faults = Faults {
            delay_ns: 2_000,
            ..Faults::default()
        };
        Self {
            endpoint: [EndpointConfig::default(), EndpointConfig::default()],
            faults: [faults; 2],
            link_rate: None,
            piece: usize::MAX,
            seed: 1,
            transport: Transport::Rc,
            qkey: 0x1111_1111,
            path_mtu: PathMtu::Mtu1024,
            psn: [Psn::new(0xff_fff0), Psn::new(0x12_3456)],
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 8,
            max_dest_rd_atomic: 8,
            selective: None,
            depth: 64,
            access: Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL
                | Access::FLUSH_PERSISTENT,
            ipv6: false,
            vlan: None,
        }
    }
}

/// One end: an endpoint with one QP.
pub struct End {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its QP.
    pub qp: QpHandle,
    /// The QP's completion queue, for both directions.
    pub cq: Arc<CompletionQueue>,
    /// Events so far.
    pub events: Vec<Event>,
    io: Io,
}

impl End {
    #[allow(clippy::expect_used)] // A harness that can't be built is a wrong test.
    fn connect(&mut self, config: &PairConfig, i: usize, now: Timestamp) {
        for to in core::iter::once(QpTransition::Reset).chain(transitions(config, i)) {
            self.endpoint
                .modify_qp(now, QPNS[i], to)
                .expect("the configuration's attributes");
        }
    }
}

/// The frames of one end.
struct Io {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    piece: usize,
    /// Picoseconds per byte; when the link is free again.
    ps_per_byte: u64,
    now_ps: u64,
    free_ps: u64,
}

impl FrameIo for Io {
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&RxMeta, Frags<'_>)) -> usize {
        for n in 0..budget {
            let Some(frame) = self.received.pop_front() else {
                return n;
            };
            let pieces: Vec<&[u8]> = frame.chunks(self.piece.min(frame.len()).max(1)).collect();
            sink(&RxMeta::default(), &pieces);
        }
        budget
    }

    fn tx_room(&mut self) -> bool {
        self.free_ps <= self.now_ps
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]])) {
        let mut frame = vec![0xa5; len];
        let mut pieces: Vec<&mut [u8]> = frame.chunks_mut(self.piece.min(len).max(1)).collect();
        fill(&mut pieces);
        self.free_ps = self.free_ps.max(self.now_ps) + self.ps_per_byte * len as u64;
        self.sent.push_back(frame);
    }

    fn flush(&mut self) {}
}

/// Two endpoints and the wire between them.
pub struct Pair {
    /// The ends.
    pub ends: [End; 2],
    /// What the wire has done to what entered from each end.
    pub wire: Wire,
    /// What does more than the wire.
    pub script: Option<Script>,
    /// Every frame that left an end, if asked for with [`Pair::capture`].
    pub sent: Vec<Sent>,
    capturing: bool,
    now: Timestamp,
    numbers: [u64; 2],
    late: Vec<(Timestamp, usize, Vec<u8>)>,
}

impl Pair {
    /// Builds both ends and connects their QPs.
    ///
    /// # Panics
    /// If the configuration is refused.
    #[must_use]
    #[allow(clippy::expect_used)] // A harness that can't be built is a wrong test.
    pub fn new(config: &PairConfig) -> Self {
        let end = |i: usize| {
            let mut endpoint = Endpoint::new(config.endpoint[i].clone(), config.seed + i as u64);
            let cq = Arc::new(CompletionQueue::new(2 * config.depth));
            let qp = endpoint
                .create_qp(CreateQp {
                    transport: config.transport,
                    max_send: config.depth,
                    max_recv: config.depth,
                    ..CreateQp::rc(QPNS[i], &cq, &cq)
                })
                .expect("a fresh endpoint takes a QP");
            let ps_per_byte = config
                .link_rate
                .map_or(0, |r| 8_000_000_000_000 / r.as_bps().max(1));
            let io = Io {
                received: VecDeque::new(),
                sent: VecDeque::new(),
                piece: config.piece,
                ps_per_byte,
                now_ps: 0,
                free_ps: 0,
            };
            let mut end = End {
                endpoint,
                qp,
                cq,
                events: Vec::new(),
                io,
            };
            end.connect(config, i, Timestamp::ZERO);
            end
        };
        Self {
            ends: [end(0), end(1)],
            wire: Wire::new(config.faults),
            script: None,
            sent: Vec::new(),
            capturing: false,
            now: Timestamp::ZERO,
            numbers: [0; 2],
            late: Vec::new(),
        }
    }

    /// Takes both QPs through RESET to RTS again. Frames on the way stay there.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn reconnect(&mut self, config: &PairConfig) {
        for (i, end) in self.ends.iter_mut().enumerate() {
            end.connect(config, i, self.now);
        }
    }

    /// Keeps a copy of every frame from now on.
    pub fn capture(&mut self) {
        self.capturing = true;
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Posts a send request at an end.
    ///
    /// # Errors
    /// As the queue says.
    pub fn post_send(&mut self, end: usize, wr: SendWr) -> Result<(), PostError> {
        let e = &mut self.ends[end];
        e.qp.sq.post(wr)?;
        e.endpoint.work_posted(self.now, e.qp.qpn);
        Ok(())
    }

    /// Posts a receive request at an end.
    ///
    /// # Errors
    /// As the queue says.
    pub fn post_recv(&mut self, end: usize, wr: RecvWr) -> Result<(), PostError> {
        let e = &mut self.ends[end];
        e.qp.rq.post(wr)?;
        e.endpoint.work_posted(self.now, e.qp.qpn);
        Ok(())
    }

    /// The completions at an end, oldest first.
    pub fn completions(&mut self, end: usize) -> Vec<Cqe> {
        core::iter::from_fn(|| self.ends[end].cq.poll()).collect()
    }

    /// Gives a frame to an end, as if it had come from the wire.
    pub fn inject(&mut self, end: usize, frame: Vec<u8>) {
        self.ends[end].io.received.push_back(frame);
    }

    /// Goes on until nothing will happen any more, or `limit` has passed. True: nothing will.
    pub fn run(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        self.run_while(end, |_| true)
    }

    /// Goes on until the end has this many completions to poll, or `limit` has passed, or nothing will happen any more.
    /// True: it has.
    pub fn run_until_completions(&mut self, end: usize, n: usize, limit: Duration) -> bool {
        let until = self.now + limit;
        self.run_while(until, |p| p.ends[end].cq.len() < n);
        self.ends[end].cq.len() >= n
    }

    /// Goes on while `go` says so, until `until`, or until nothing will happen any more, which makes it true.
    pub fn run_while(&mut self, until: Timestamp, mut go: impl FnMut(&mut Self) -> bool) -> bool {
        while go(self) {
            if self.turn() {
                continue;
            }
            let next = self.next_time();
            match next {
                None => return true,
                Some(t) if t > until => {
                    self.now = until;
                    return false;
                }
                Some(t) => self.now = self.now.max(t),
            }
        }
        false
    }

    /// When something happens next.
    fn next_time(&self) -> Option<Timestamp> {
        let wire = self.wire.next_time().map(Timestamp::from_nanos);
        let late = self.late.iter().map(|(t, ..)| *t);
        let timers = self.ends.iter().filter_map(|e| e.endpoint.poll_timeout());
        let links = self
            .ends
            .iter()
            .map(|e| Timestamp::from_nanos(e.io.free_ps.div_ceil(1000)))
            .filter(|t| *t > self.now);
        timers.chain(wire).chain(late).chain(links).min()
    }

    /// Everything that happens now. False: nothing did.
    fn turn(&mut self) -> bool {
        let mut busy = false;
        while let Some(i) = self.late.iter().position(|(t, ..)| *t <= self.now) {
            let (_, end, frame) = self.late.swap_remove(i);
            self.wire.push(self.now.as_nanos(), end as u32, frame);
        }
        while let Some((port, frame)) = self.wire.pop(self.now.as_nanos()) {
            self.ends[port as usize].io.received.push_back(frame);
            busy = true;
        }
        for (i, end) in self.ends.iter_mut().enumerate() {
            end.io.now_ps = self.now.as_nanos() * 1000;
            let done = step(&mut end.endpoint, self.now, &mut end.io, BUDGET);
            busy |= done.received + done.transmitted > 0;
            end.events
                .extend(core::iter::from_fn(|| end.endpoint.poll_event()));
            while let Some(mut frame) = end.io.sent.pop_front() {
                let pieces: [&[u8]; 1] = [&frame];
                let bth = Packet::parse(&Head::of(&pieces), &pieces)
                    .ok()
                    .map(|p| p.bth);
                let mut fate = Fate::Pass;
                if let Some(bth) = bth {
                    if self.capturing {
                        self.sent.push(Sent {
                            at: self.now,
                            end: i,
                            bth,
                            frame: frame.clone(),
                        });
                    }
                    if let Some(script) = &mut self.script {
                        fate = script(i, self.numbers[i], &bth, &mut frame);
                    }
                    self.numbers[i] += 1;
                }
                let now = self.now.as_nanos();
                match fate {
                    Fate::Drop => {}
                    Fate::Pass => self.wire.push(now, i as u32, frame),
                    Fate::Twice => {
                        self.wire.push(now, i as u32, frame.clone());
                        self.wire.push(now, i as u32, frame);
                    }
                    Fate::Late(by) => self.late.push((self.now + by, i, frame)),
                }
            }
        }
        busy
    }
}

/// The path of an end's QP.
#[must_use]
pub fn path(config: &PairConfig, end: usize) -> Path {
    let gid = |n: u8| {
        if config.ipv6 {
            let mut g = [0; 16];
            (g[0], g[1], g[15]) = (0xfd, 0x77, n);
            g
        } else {
            gid_from_ipv4([10, 77, 0, n])
        }
    };
    let (own, peer) = if end == 0 { (1, 2) } else { (2, 1) };
    Path {
        src_mac: [2, 0, 0, 0, 0, own],
        dst_mac: [2, 0, 0, 0, 0, peer],
        vlan: config.vlan,
        sl: 0,
        src: gid(own),
        dst: gid(peer),
        hop_limit: 64,
        dscp: None,
        flow_label: 0,
    }
}

/// From an end's UD QP to the other one's.
///
/// # Panics
/// If the configuration's addresses are no path.
#[must_use]
#[allow(clippy::expect_used)] // A harness that can't be built is a wrong test.
pub fn datagram(config: &PairConfig, end: usize) -> Datagram {
    Datagram {
        ah: Arc::new(AddressHandle::new(path(config, end)).expect("a path")),
        qpn: QPNS[1 - end],
        qkey: config.qkey,
    }
}

/// What takes an end's QP from RESET to RTS.
#[must_use]
pub fn transitions(config: &PairConfig, end: usize) -> [QpTransition; 3] {
    let connected = [
        QpTransition::Init {
            access: config.access,
        },
        QpTransition::Rtr(rtr(config, end)),
        QpTransition::Rts(rts(config, end)),
    ];
    let datagram = [
        QpTransition::InitUd(UdAttr {
            address: path(config, end).src,
            qkey: config.qkey,
            path_mtu: config.path_mtu,
        }),
        QpTransition::RtrUd,
        QpTransition::RtsUd {
            sq_psn: config.psn[end],
        },
    ];
    match config.transport {
        Transport::Ud => datagram,
        _ => connected,
    }
}

/// What brings the QP of an end to RTR.
#[must_use]
pub fn rtr(config: &PairConfig, i: usize) -> RtrAttr {
    RtrAttr {
        dest_qpn: QPNS[1 - i],
        path_mtu: config.path_mtu,
        rq_psn: config.psn[1 - i],
        min_rnr_timer: config.min_rnr_timer,
        max_dest_rd_atomic: config.max_dest_rd_atomic,
        path: path(config, i),
        selective: config.selective,
    }
}

/// What brings the QP of an end to RTS.
#[must_use]
pub fn rts(config: &PairConfig, i: usize) -> RtsAttr {
    RtsAttr {
        sq_psn: config.psn[i],
        timeout: config.timeout,
        retry_cnt: config.retry_cnt,
        rnr_retry: config.rnr_retry,
        max_rd_atomic: config.max_rd_atomic,
    }
}
