//! UD: one packet is one message, from anyone who knows the Q_Key, to the next receive request, behind room for the GRH.
//!
//! The 40 bytes hold the IPv6 header as it came, or 20 zeros and the IPv4 header (rxe_resp.c `execute`, `union
//! rdma_network_hdr`; capture ud-send). Order and PSNs mean nothing. Who finds no receive request, or too small a one, is not
//! told.
//!
//! Follows drivers/infiniband/sw/rxe/rxe_recv.c (`check_keys`) and rxe_resp.c, UD branches. A message longer than its receive
//! request's memory completes that with a local length error, as hardware does, and the QP goes on; rxe drops it.
//!
//! Must not: owe an answer, or know groups (the endpoint does).

use rocexdp_common::headers::Deth;

use super::Qp;
use super::completions::Completions;
use super::responder::{Context, Served};
use super::service::Service;
use crate::drop::DropReason;
use crate::ids::{Gid, PathMtu, Qpn};
use crate::mem::RegionTable;
use crate::verbs::{Cqe, CqeOpcode, RecvWr, SendWr, Status};
use crate::wire::{GRH_ROOM, Grh, Packet};

/// Q_Keys with this bit stand for the sending QP's own (`ibv_post_send(3)`).
const OWN_QKEY: u32 = 1 << 31;

/// What a UD QP has of its own where a connected one has a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Own {
    /// Its address: packets come to it, or to a group, and leave from it. Unset: any of the host's (QP 1).
    pub(crate) address: Gid,
    /// Its Q_Key, which packets must carry.
    pub(crate) qkey: u32,
    /// Largest payload, in and out: the port's path MTU.
    pub(crate) path_mtu: PathMtu,
}

impl Own {
    /// Whether it has all of the host's addresses instead of one: only QP 1 does.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.address == [0; 16]
    }
}

impl Default for Own {
    fn default() -> Self {
        Self {
            address: [0; 16],
            qkey: 0,
            path_mtu: PathMtu::Mtu1024,
        }
    }
}

/// The DETH of a request; `None` if it can't be sent from this QP: it says not to whom, or its way starts at another address.
pub(super) fn deth(own: &Own, qpn: Qpn, wr: &SendWr) -> Option<Deth> {
    let to = wr.to.as_ref()?;
    (to.ah.path().src == own.address || own.is_everywhere()).then_some(Deth {
        qkey: if to.qkey & OWN_QKEY == 0 {
            to.qkey
        } else {
            own.qkey
        },
        src_qpn: qpn,
    })
}

/// Takes a packet whose ICRC, addresses and service are right.
pub(super) fn receive(own: &Own, cx: &mut Context<'_>, p: &Packet<'_>, grh: &Grh) -> Served {
    let src_qpn = match check_qkey(own, p).and_then(|src| check_length(own, p).map(|()| src)) {
        Ok(src) => src,
        Err(reason) => return Served::Refused(reason),
    };
    let Some(wr) = cx.rq.take() else {
        return Served::Refused(DropReason::NoReceive);
    };
    let bytes = GRH_ROOM as u32 + p.payload.len();
    if bytes > wr.local.len() {
        finish(cx, &wr, Status::LocLenErr, Received::default());
        return Served::Refused(DropReason::ReceiveTooSmall);
    }
    let written = cx
        .may_receive(&wr)
        .and_then(|()| match mutant!("grh_not_written") {
            false => wr.local.write(0, grh.bytes()),
            true => Ok(()),
        })
        .and_then(|()| p.payload.write_to_list(&wr.local, GRH_ROOM as u32));
    if written.is_err() {
        finish(cx, &wr, Status::LocProtErr, Received::default());
        return Served::Fatal(DropReason::RemoteOperational);
    }
    cx.stats.rx_bytes += u64::from(p.payload.len());
    let received = Received {
        bytes,
        src_qpn: Some(src_qpn).filter(|_| !mutant!("datagram_sender_unsaid")),
        imm: p.imm,
        solicited: p.bth.solicited,
        grh: true,
    };
    finish(cx, &wr, Status::Success, received);
    Served::Accepted
}

/// The Q_Key is ours (rxe_recv.c `check_keys`). Gives the sender's QP.
fn check_qkey(own: &Own, p: &Packet<'_>) -> Result<Qpn, DropReason> {
    let deth = p.deth.ok_or(DropReason::TransportMismatch)?;
    if deth.qkey == own.qkey || mutant!("qkey_unchecked") {
        Ok(deth.src_qpn)
    } else {
        Err(DropReason::QKey)
    }
}

/// At most a path MTU, padded to four bytes (rxe_resp.c `check_length`).
fn check_length(own: &Own, p: &Packet<'_>) -> Result<(), DropReason> {
    let len = p.payload.len();
    if len <= own.path_mtu.bytes() && u32::from(p.bth.pad) == len.wrapping_neg() & 3 {
        Ok(())
    } else {
        Err(DropReason::InvalidRequest)
    }
}

/// What a receive completion says of the message.
#[derive(Clone, Copy, Default)]
struct Received {
    bytes: u32,
    src_qpn: Option<Qpn>,
    imm: Option<u32>,
    solicited: bool,
    grh: bool,
}

fn finish(cx: &mut Context<'_>, wr: &RecvWr, status: Status, received: Received) {
    cx.rq.completed(1);
    let mut cq = Completions {
        qpn: cx.qpn,
        cq: cx.cq,
        stats: cx.stats,
        lost: false,
    };
    cq.done(status);
    cq.put(Cqe {
        wr_id: wr.wr_id,
        qpn: cx.qpn,
        opcode: CqeOpcode::Recv,
        status,
        byte_len: received.bytes,
        imm: received.imm,
        invalidated: None,
        src_qpn: received.src_qpn,
        grh: received.grh,
        solicited: received.solicited,
    });
    cx.lost |= cq.lost;
}

impl Qp {
    /// A datagram; as for [`Qp::request`]. `grh` is its IP header.
    pub(crate) fn datagram(
        &mut self,
        regions: &mut RegionTable,
        p: &Packet<'_>,
        grh: &Grh,
    ) -> Result<(), DropReason> {
        let Service::Datagram(own) = &self.service else {
            return Err(DropReason::TransportMismatch);
        };
        if !self.state.receives() {
            return Err(DropReason::QpState);
        }
        let mut cx = Context {
            qpn: self.qpn,
            pd: self.pd,
            regions,
            rq: &self.rq,
            shared: self.shared_rq,
            cq: &self.recv_cq,
            stats: &mut self.stats,
            lost: false,
        };
        let served = receive(own, &mut cx, p, grh);
        let lost = cx.lost;
        self.served(served, lost)
    }
}
