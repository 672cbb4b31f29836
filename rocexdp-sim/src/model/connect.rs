//! QPs made and connected: what a program's set-up says of them.
//!
//! Must not: judge (the oracle does).

use rocexdp_proto::ids::{PathMtu, Psn, gid_from_ipv4};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::wire::Path;
use rocexdp_proto::{CreateQp, QpTransition, RtrAttr, RtsAttr, SelectiveRepeat, Transport, UdAttr};

use super::io::qpn;
use super::state::Service;
use super::world::World;

/// The Q_Key of all UD QPs.
pub(super) const QKEY: u32 = 0x1111_1111;

impl World {
    pub(super) fn create(&mut self, pair: usize, end: usize) {
        if self.qps[pair][end].is_some() {
            return;
        }
        let (setup, service) = {
            let state = self.state();
            (state.setup, state.service(pair))
        };
        let cqs = &self.cqs[end];
        let (send_cq, recv_cq) = (&cqs[pair % cqs.len()], &cqs[(pair + 1) % cqs.len()]);
        let made = self.endpoints[end].create_qp(CreateQp {
            transport: match service {
                Service::Reliable => Transport::Rc,
                Service::Unreliable => Transport::Uc,
                Service::Datagram => Transport::Ud,
            },
            max_send: setup.sends as u32,
            max_recv: setup.recvs as u32,
            srq: self.srqs[end].clone(),
            ..CreateQp::rc(qpn(pair, end), send_cq, recv_cq)
        });
        match made {
            Ok(handle) => {
                self.qps[pair][end] = Some(handle);
                self.state().pairs[pair][end].exists = true;
            }
            Err(e) => self.state().wrong(|| format!("end {end}: create: {e}")),
        }
    }

    pub(super) fn modify(&mut self, pair: usize, end: usize, to: QpTransition) {
        let now = Timestamp::from_nanos(self.now);
        if let Err(e) = self.endpoints[end].modify_qp(now, qpn(pair, end), to) {
            self.state()
                .wrong(|| format!("end {end} pair {pair}: {to:?}: {e}"));
        }
    }

    /// From whatever state to RTS, in the connection's newest generation.
    pub(super) fn connect(&mut self, pair: usize, end: usize) {
        if self.qps[pair][end].is_none() {
            return;
        }
        self.enter_reset(pair, end);
        let setup = self.state().setup;
        let generation = self.state().new_generation(pair, end);
        let psn = |e: usize| {
            let base = if e == 0 { setup.psn0 } else { setup.psn1 };
            // Far apart: what is still on its way from before belongs to no other connection.
            let n = base + pair as u64 * 0x33_0000 + (generation as u64 - 1) * 0x2f_0000;
            Psn::new((n & 0xff_ffff) as u32)
        };
        for e in 0..2 {
            self.state().streams[pair][e][generation].start = psn(e).get();
        }
        let path_mtu = PathMtu::ALL[(setup.mtu as usize - 1).min(4)];
        let own = path(end, setup.ipv6 != 0);
        let service = self.state().service(pair);
        if service == Service::Datagram {
            for to in [
                QpTransition::InitUd(UdAttr {
                    address: own.src,
                    qkey: QKEY,
                    path_mtu,
                }),
                QpTransition::RtrUd,
                QpTransition::RtsUd { sq_psn: psn(end) },
            ] {
                self.modify(pair, end, to);
            }
            return;
        }
        let selects = setup.selective > 0 && service == Service::Reliable;
        self.modify(
            pair,
            end,
            QpTransition::Init {
                // Binding windows is a right of regions.
                access: access(setup.access & !16),
            },
        );
        self.modify(
            pair,
            end,
            QpTransition::Rtr(RtrAttr {
                dest_qpn: qpn(pair, 1 - end),
                path_mtu,
                rq_psn: psn(1 - end),
                min_rnr_timer: setup.rnr_timer as u8,
                max_dest_rd_atomic: setup.resources as u8,
                path: own,
                selective: selects.then_some(SelectiveRepeat {
                    paths: setup.selective as u8,
                }),
            }),
        );
        self.modify(
            pair,
            end,
            QpTransition::Rts(RtsAttr {
                sq_psn: psn(end),
                timeout: setup.timeout as u8,
                retry_cnt: setup.retry as u8,
                rnr_retry: setup.rnr_retry as u8,
                max_rd_atomic: setup.depth as u8,
            }),
        );
    }
}

/// The bits as a set.
#[must_use]
pub(super) fn access(bits: u64) -> Access {
    [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::MW_BIND,
        Access::ZERO_BASED,
        Access::FLUSH_GLOBAL,
        Access::FLUSH_PERSISTENT,
    ]
    .into_iter()
    .zip([1, 2, 4, 8, 16, 32, 256, 512])
    .filter(|(_, bit)| bits & bit != 0)
    .fold(Access::NONE, |all, (one, _)| all | one)
}

/// From an end to the other.
pub(super) fn path(end: usize, ipv6: bool) -> Path {
    let (own, peer) = if end == 0 { (1u8, 2u8) } else { (2, 1) };
    let gid = |n: u8| {
        if ipv6 {
            let mut g = [0; 16];
            (g[0], g[1], g[15]) = (0xfd, 0x77, n);
            g
        } else {
            gid_from_ipv4([10, 77, 0, n])
        }
    };
    Path {
        src_mac: [2, 0, 0, 0, 0, own],
        dst_mac: [2, 0, 0, 0, 0, peer],
        vlan: None,
        sl: 0,
        src: gid(own),
        dst: gid(peer),
        hop_limit: 64,
        dscp: None,
        flow_label: 0,
    }
}
