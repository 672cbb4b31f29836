//! Two endpoints with any number of QP pairs between them, and the frames on the way from one to the other.
//!
//! Must not: measure.

use std::sync::Arc;

use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, QpHandle, QpTransition, RtrAttr, RtsAttr, SelectiveRepeat,
    Transport, UdAttr,
    ids::{PathMtu, Psn, Qpn, WrId, gid_from_ipv4},
    mem::{Access, MemoryRegion},
    time::Timestamp,
    verbs::{AddressHandle, CompletionQueue, Datagram, RecvWr, Segment, SendWr, Status},
    wire::{Path, RxMeta},
};

use crate::ground::Raw;

/// Bytes of a frame at most.
const FRAME: usize = 4400;
/// Bytes of application memory at each end: larger than the frames together, within a second-level cache.
pub const MEMORY: usize = 256 << 10;
/// Where the peer finds it.
pub const VA: u64 = 0x10_0000;
/// Q_Key of UD QPs.
const QKEY: u32 = 7;
/// First QPN.
const BASE: u32 = 0x80_0000;

/// One end.
pub struct End {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Its QPs.
    pub qps: Vec<QpHandle>,
    /// Where all requests complete.
    pub cq: Arc<CompletionQueue>,
    /// Application memory.
    pub memory: Arc<Raw>,
    /// The same, for the peer.
    pub region: MemoryRegion,
}

/// Two ends, and room for the frames between them.
pub struct Rig {
    /// To the responder's first QP, where that is UD.
    pub to_peer: Datagram,
    /// The requester's end and the responder's.
    pub ends: [End; 2],
    /// The frames on their way, with their lengths.
    pub frames: Vec<(usize, Box<[u8; FRAME]>)>,
    /// How many there are.
    on_way: usize,
    now: Timestamp,
}

/// The way from an end to the other one.
fn path(end: usize) -> Path {
    let (own, peer) = if end == 0 { (1, 2) } else { (2, 1) };
    Path {
        src_mac: [2, 0, 0, 0, 0, own],
        dst_mac: [2, 0, 0, 0, 0, peer],
        vlan: None,
        sl: 0,
        src: gid_from_ipv4([10, 77, 0, own]),
        dst: gid_from_ipv4([10, 77, 0, peer]),
        hop_limit: 64,
        dscp: None,
        flow_label: 0,
    }
}

fn attrs(
    end: usize,
    transport: Transport,
    path_mtu: PathMtu,
    qpn: Qpn,
    access: Access,
    selective: Option<SelectiveRepeat>,
) -> [QpTransition; 3] {
    let path = path(end);
    if transport == Transport::Ud {
        return [
            QpTransition::InitUd(UdAttr {
                address: path.src,
                qkey: QKEY,
                path_mtu,
            }),
            QpTransition::RtrUd,
            QpTransition::RtsUd {
                sq_psn: Psn::new(0),
            },
        ];
    }
    [
        QpTransition::Init { access },
        QpTransition::Rtr(RtrAttr {
            dest_qpn: qpn,
            path_mtu,
            rq_psn: Psn::new(0),
            min_rnr_timer: 12,
            max_dest_rd_atomic: 16,
            path,
            selective,
        }),
        QpTransition::Rts(RtsAttr {
            sq_psn: Psn::new(0),
            // None: no timer is due however slow a profiler makes this.
            timeout: 0,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
        }),
    ]
}

/// All that a peer may do.
fn all_access() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT
}

impl End {
    /// An endpoint with `qps` RC QPs of this depth, ready to send.
    pub fn new(end: usize, qps: u32, depth: u32, path_mtu: PathMtu) -> Self {
        Self::of(end, Transport::Rc, None, qps, depth, path_mtu)
    }

    fn of(
        end: usize,
        transport: Transport,
        selective: Option<SelectiveRepeat>,
        qps: u32,
        depth: u32,
        path_mtu: PathMtu,
    ) -> Self {
        let mut endpoint = Endpoint::new(EndpointConfig::default(), end as u64);
        let memory = Arc::new(Raw::new(MEMORY));
        let region = endpoint
            .register_memory(memory.clone(), VA, all_access())
            .expect("a region");
        let cq = Arc::new(CompletionQueue::new(1024));
        let qps = (0..qps)
            .map(|i| {
                let qpn = Qpn::new(BASE + i);
                let qp = endpoint
                    .create_qp(CreateQp {
                        transport,
                        max_send: depth,
                        max_recv: depth,
                        ..CreateQp::rc(qpn, &cq, &cq)
                    })
                    .expect("a new number");
                for to in attrs(end, transport, path_mtu, qpn, all_access(), selective) {
                    endpoint
                        .modify_qp(Timestamp::ZERO, qpn, to)
                        .expect("good attributes");
                }
                qp
            })
            .collect();
        Self {
            endpoint,
            qps,
            cq,
            memory,
            region,
        }
    }
}

impl Rig {
    /// Both ends, with RC QPs.
    pub fn new(qps: u32, depth: u32, path_mtu: PathMtu) -> Self {
        Self::of(Transport::Rc, None, qps, depth, path_mtu)
    }

    /// Both ends.
    pub fn of(
        transport: Transport,
        selective: Option<SelectiveRepeat>,
        qps: u32,
        depth: u32,
        path_mtu: PathMtu,
    ) -> Self {
        Self {
            to_peer: Datagram {
                ah: Arc::new(AddressHandle::new(path(0)).expect("a path")),
                qpn: Qpn::new(BASE),
                qkey: QKEY,
            },
            ends: [0, 1].map(|end| End::of(end, transport, selective, qps, depth, path_mtu)),
            frames: (0..256).map(|_| (0, Box::new([0; FRAME]))).collect(),
            on_way: 0,
            now: Timestamp::ZERO,
        }
    }

    /// Posts a send request at the requester's end. False: the transport does not carry it out (yet).
    pub fn post_send(&mut self, qp: usize, wr: SendWr) -> bool {
        let end = &mut self.ends[0];
        let posted = end.qps[qp].sq.post(wr).is_ok();
        end.endpoint.work_posted(self.now, end.qps[qp].qpn);
        posted
    }

    /// Posts a receive request at the responder's end, into `len` bytes from `offset` on.
    pub fn post_recv(&mut self, qp: usize, offset: u64, len: u32) {
        let end = &mut self.ends[1];
        let local = Segment::new(end.memory.clone(), offset, len);
        end.qps[qp]
            .rq
            .post(RecvWr::new(WrId(0), local))
            .expect("room");
        end.endpoint.work_posted(self.now, end.qps[qp].qpn);
    }

    /// All that an end has to send becomes frames on the way; how many there are then.
    #[inline(never)]
    pub fn counted_transmit(&mut self, end: usize) -> usize {
        self.transmit(end)
    }

    /// The same, where callgrind does not look.
    pub fn transmit(&mut self, end: usize) -> usize {
        let endpoint = &mut self.ends[end].endpoint;
        while let Some((len, frame)) = self.frames.get_mut(self.on_way) {
            let Some(packet) = endpoint.poll_transmit(self.now) else {
                break;
            };
            *len = packet.len();
            packet.write(&mut [&mut frame[..*len]]).expect("readable");
            self.on_way += 1;
        }
        self.on_way
    }

    /// An end takes all frames on the way; how many there were.
    #[inline(never)]
    pub fn counted_receive(&mut self, end: usize) -> usize {
        self.receive(end)
    }

    /// The same, where callgrind does not look.
    pub fn receive(&mut self, end: usize) -> usize {
        let endpoint = &mut self.ends[end].endpoint;
        for (len, frame) in &self.frames[..self.on_way] {
            endpoint
                .handle_frame(self.now, &RxMeta::default(), &[&frame[..*len]])
                .expect("a good frame");
        }
        std::mem::take(&mut self.on_way)
    }

    /// Takes an end's completions, which must all be successes; how many there were.
    pub fn completions(&mut self, end: usize) -> usize {
        let mut n = 0;
        while let Some(done) = self.ends[end].cq.poll() {
            assert_eq!(done.status, Status::Success, "{done:?}");
            n += 1;
        }
        while self.ends[end].endpoint.poll_event().is_some() {}
        n
    }
}
