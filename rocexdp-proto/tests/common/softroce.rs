//! The captures of `tests/captures` as tests of the other services need them: Soft-RoCE's host A sends to host B.

#![allow(dead_code)] // Each test binary uses its own part.

use std::path::PathBuf;
use std::sync::Arc;

use rocexdp_proto::ids::{PathMtu, Psn, Qpn, WrId, gid_from_ipv4};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{
    AddressHandle, CompletionQueue, Cqe, Datagram, RecvWr, Segment, SendOp, SendWr,
};
use rocexdp_proto::wire::{Path, RxMeta};
use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, QpHandle, QpTransition, RtrAttr, RtsAttr, Transport, UdAttr,
};
use rocexdp_sim::pair::Bytes;

const NOW: Timestamp = Timestamp::ZERO;
/// First PSNs of the two hosts.
const PSN: [Psn; 2] = [Psn::new(0x100), Psn::new(0x200)];

/// The RoCEv2 frames of a capture, by IPv4 or IPv6.
#[allow(clippy::disallowed_methods)] // Reads the captures; the core does not.
pub fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/captures")
        .join(format!("{name}.pcap"));
    let file = std::fs::read(path).unwrap();
    let (mut at, mut out) = (24, Vec::new());
    while let Some(len) = file.get(at + 8..at + 12) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        out.push(file[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    let udp = |f: &[u8]| if f[12] == 8 { 34 } else { 54 };
    out.retain(|f| f.get(udp(f) + 2..udp(f) + 4) == Some(&[0x12, 0xb7]));
    out
}

/// What differs between our frames and the kernel's, made equal: DSCP and ECN (we say ECT(0), or switches could not mark),
/// identification and checksum of IPv4, flow label, UDP source port, MigReq, and the ICRC that covers some of those.
pub fn alike(frame: &[u8]) -> Vec<u8> {
    let mut f = frame.to_vec();
    let udp = if f[12] == 8 {
        f[15] = 0;
        f[18..20].fill(0);
        f[24..26].fill(0);
        34
    } else {
        f[14..18].copy_from_slice(&[0x60, 0, 0, 0]);
        54
    };
    f[udp..udp + 2].fill(0);
    f[udp + 9] &= !0x40;
    f.truncate(f.len() - 4);
    f
}

/// The memory that A sends from: `fill m 0 8192 seed=1`.
pub fn memory() -> Vec<u8> {
    (0..8192usize)
        .map(|i| (1 + i + (i >> 8) * 7) as u8)
        .collect()
}

/// One host, with one QP.
pub struct Host {
    pub ep: Endpoint,
    pub qp: QpHandle,
    pub cq: Arc<CompletionQueue>,
    pub inbox: Arc<Bytes>,
    end: usize,
    ipv6: bool,
}

/// The way from a host to the other one.
pub fn path(end: usize, ipv6: bool) -> Path {
    let gid = |n: u8| {
        if ipv6 {
            let mut g = [0; 16];
            (g[0], g[1], g[15]) = (0xfd, 0x77, n);
            g
        } else {
            gid_from_ipv4([10, 77, 0, n])
        }
    };
    let (own, peer) = if end == 0 { (2, 3) } else { (3, 2) };
    Path {
        src_mac: [0x52, 0x54, 0, 0x77, 0, own],
        dst_mac: [0x52, 0x54, 0, 0x77, 0, peer],
        vlan: None,
        sl: 0,
        src: gid(own),
        dst: gid(peer),
        hop_limit: 64,
        dscp: None,
        flow_label: 0,
    }
}

impl Host {
    /// Host A (0) or B (1) of a capture whose QPs are both `qpn`.
    pub fn new(end: usize, transport: Transport, qpn: u32, ipv6: bool) -> Self {
        Self::with_qkey(end, transport, qpn, ipv6, 0x1111_1111)
    }

    /// As [`Host::new`], with another Q_Key.
    pub fn with_qkey(end: usize, transport: Transport, qpn: u32, ipv6: bool, qkey: u32) -> Self {
        Self::with(end, transport, qpn, ipv6, qkey, PSN[end])
    }

    /// As [`Host::new`], with another Q_Key and first PSN.
    pub fn with(
        end: usize,
        transport: Transport,
        qpn: u32,
        ipv6: bool,
        qkey: u32,
        sq_psn: Psn,
    ) -> Self {
        let mut ep = Endpoint::new(EndpointConfig::default(), 1);
        let cq = Arc::new(CompletionQueue::new(64));
        let qpn = Qpn::new(qpn);
        let qp = ep
            .create_qp(CreateQp {
                transport,
                ..CreateQp::rc(qpn, &cq, &cq)
            })
            .unwrap();
        let path_mtu = PathMtu::Mtu1024;
        let connected = [
            QpTransition::Init {
                access: Access::REMOTE_WRITE,
            },
            QpTransition::Rtr(RtrAttr {
                dest_qpn: qpn,
                path_mtu,
                rq_psn: PSN[1 - end],
                min_rnr_timer: 0,
                max_dest_rd_atomic: 0,
                selective: None,
                path: path(end, ipv6),
            }),
            QpTransition::Rts(RtsAttr {
                sq_psn,
                timeout: 17,
                retry_cnt: 0,
                rnr_retry: 0,
                max_rd_atomic: 0,
            }),
        ];
        let datagram = [
            QpTransition::InitUd(UdAttr {
                address: path(end, ipv6).src,
                qkey,
                // The port's: what a QP's attributes say means nothing for UD.
                path_mtu: PathMtu::Mtu4096,
            }),
            QpTransition::RtrUd,
            QpTransition::RtsUd { sq_psn },
        ];
        let ways = if transport == Transport::Ud {
            datagram
        } else {
            connected
        };
        for to in ways {
            ep.modify_qp(NOW, qpn, to).unwrap();
        }
        Self {
            ep,
            qp,
            cq,
            inbox: Bytes::filled(8192, 0xee),
            end,
            ipv6,
        }
    }

    /// Posts a receive request.
    pub fn recv(&self, id: u64, len: u32) {
        let local = Segment::new(self.inbox.clone(), 0, len);
        self.qp.rq.post(RecvWr::new(WrId(id), local)).unwrap();
    }

    /// Gives a captured frame to the endpoint.
    pub fn give(&mut self, frame: &[u8]) -> Result<(), rocexdp_proto::DropReason> {
        self.ep.handle_frame(NOW, &RxMeta::default(), &[frame])
    }

    /// Sends `len` bytes of A's memory; gives the frames.
    pub fn send(&mut self, op: SendOp, len: u32, to: Option<Datagram>) -> Vec<Vec<u8>> {
        self.send_bytes(op, &memory()[..len as usize], to)
    }

    /// Sends these bytes; gives the frames.
    pub fn send_bytes(&mut self, op: SendOp, bytes: &[u8], to: Option<Datagram>) -> Vec<Vec<u8>> {
        let local = Segment::new(Bytes::of(bytes.to_vec()), 0, bytes.len() as u32);
        let mut wr = SendWr::new(WrId(0), op, local);
        wr.to = to;
        self.qp.sq.post(wr).unwrap();
        self.ep.work_posted(NOW, self.qp.qpn);
        let mut out = Vec::new();
        while let Some(t) = self.ep.poll_transmit(NOW) {
            let mut frame = vec![0; t.len()];
            t.write(&mut [&mut frame]).unwrap();
            out.push(frame);
        }
        out
    }

    /// To the other host's QP.
    pub fn to_peer(&self, qkey: u32) -> Datagram {
        Datagram {
            ah: Arc::new(AddressHandle::new(path(self.end, self.ipv6)).unwrap()),
            qpn: self.qp.qpn,
            qkey,
        }
    }

    pub fn completions(&self) -> Vec<Cqe> {
        core::iter::from_fn(|| self.cq.poll()).collect()
    }

    /// Completions as the captures' log tells them: id, bytes, immediate.
    pub fn log(&self) -> Vec<(u64, u32, Option<u32>)> {
        self.completions()
            .iter()
            .map(|c| (c.wr_id.0, c.byte_len, c.imm))
            .collect()
    }
}
