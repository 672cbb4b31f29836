//! QP 1, the general services interface (GSI): management datagrams (MADs) of any class, at all addresses of the node.
//!
//! While a [`Gsi`] is open, XDP gives it what is sent to QP 1 of our addresses by UD; before and after, that is a packet to an unknown
//! QP. The transport checks ICRC, Q_Key ([`GSI_QKEY`]) and P_Key; what a MAD says is the caller's to check. As for any UD QP, a MAD
//! that finds no receive request, or is lost on the way, is lost: the classes have retries of their own.
//!
//! ```no_run
//! # use rocexdp::node::{Gsi, GsiEvent, HandleAttr, Node, NodeConfig};
//! # async fn example(node: &Node, local: std::net::IpAddr, peer: std::net::IpAddr) -> anyhow::Result<()> {
//! use rocexdp_common::mad::{GSI_QPN, MAD_LEN};
//! let gsi = node.open_gsi()?;
//! let to = node.address_handle(HandleAttr::new(local, peer)).await?;
//! gsi.send(7, &to, GSI_QPN, &[0; MAD_LEN])?;
//! loop {
//!     match gsi.next().await? {
//!         GsiEvent::Sent { id, .. } => println!("MAD {id} has left"),
//!         GsiEvent::Received(mad) => {
//!             let back = node.address_handle(mad.answering()).await?;
//!             gsi.send(8, &back, mad.src_qpn, &mad.mad)?;
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! Must not: know what a MAD says.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Result, bail};
use rocexdp_common::{mad::MAD_LEN, maps::local_addr};
use rocexdp_proto::{
    Transport,
    ids::{Qpn, WrId},
    mem::Memory,
    verbs::{
        CompletionQueue, Cqe, CqeOpcode, GSI_QKEY, PostError, RecvWr, Segment, SendOp, SendWr,
        SgList, Status,
    },
    wire::{GRH_ROOM, Grh},
};

use super::{AddressHandle, HandleAttr, Node, QpSpec, RawQp, deaths::Bell};
use crate::{loader::address_of, mem::Buffer};

/// MADs that may wait to be taken, and MADs that may wait to be sent.
const DEPTH: u32 = 512;
/// Bytes of a receive request: the room for the GRH, and a MAD.
const PLACE: usize = GRH_ROOM + MAD_LEN;
/// Where one begins.
const STRIDE: usize = PLACE.next_multiple_of(64);

/// A MAD that has come.
#[derive(Clone, Debug)]
pub struct ReceivedMad {
    /// Its bytes.
    pub mad: [u8; MAD_LEN],
    /// Who sent it.
    pub from: IpAddr,
    /// Our address, to which.
    pub to: IpAddr,
    /// The sender's QP: mostly 1.
    pub src_qpn: Qpn,
    /// IPv6 flow label that it came with; 0 by IPv4.
    pub flow_label: u32,
    /// TOS or traffic class that it came with: DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit that it came with.
    pub hop_limit: u8,
}

impl ReceivedMad {
    /// The way back to the sender, for [`Node::address_handle`].
    #[must_use]
    pub fn answering(&self) -> HandleAttr {
        HandleAttr {
            flow_label: self.flow_label,
            ..HandleAttr::new(self.to, self.from)
        }
    }
}

/// What happens at QP 1.
#[derive(Clone, Debug)]
pub enum GsiEvent {
    /// A MAD has come.
    Received(Box<ReceivedMad>),
    /// A MAD of [`Gsi::send`] has left, or, with another status than [`Status::Success`], never will. Whether it arrives nobody knows.
    Sent {
        /// As given to [`Gsi::send`].
        id: u64,
        /// How it went.
        status: Status,
    },
}

/// QP 1 of a node: there is one. Dropping it closes it.
#[derive(Debug)]
pub struct Gsi {
    qp: RawQp,
    cq: Arc<CompletionQueue>,
    bell: Arc<Bell>,
    places: Arc<Buffer>,
    discarded: AtomicU64,
}

impl Node {
    /// Opens QP 1: from now on, MADs to any address of this node come to the [`Gsi`].
    ///
    /// # Errors
    /// It is open already, the addresses are shared with another RoCE stack (whose QP 1 it is), or the engine has ended.
    pub fn open_gsi(&self) -> Result<Gsi> {
        let iface = &self.shared.iface;
        if self.shared.address_flags & local_addr::EXCLUSIVE == 0 {
            bail!(
                "{iface}: its addresses are shared with another RoCE stack, which has their QP 1; give rocexdp an address of its own \
                 (--address) for connection management"
            );
        }
        let cq = Arc::new(CompletionQueue::new(2 * DEPTH));
        let bell = Bell::of(&cq, &self.shared.deaths);
        let places = Buffer::new(DEPTH as usize * STRIDE)?;
        let spec = QpSpec {
            max_send: DEPTH,
            max_recv: DEPTH,
            ..QpSpec::new(Transport::Ud, &cq, &cq)
        };
        let qp = RawQp::create_gsi(&self.shared, self.network.resolver(), spec)?;
        let gsi = Gsi {
            qp,
            cq,
            bell,
            places,
            discarded: AtomicU64::new(0),
        };
        for place in 0..u64::from(DEPTH) {
            gsi.receive_into(place)?;
        }
        gsi.qp.open_gsi()?;
        Ok(gsi)
    }
}

impl Gsi {
    /// Closes it at once, whoever else holds it: QP 1 may be opened again. What is asked of it from now on comes to nothing.
    pub fn close(&self) {
        self.qp.send_posted();
        self.qp.close();
    }

    fn receive_into(&self, place: u64) -> Result<(), PostError> {
        let at = place * STRIDE as u64;
        let memory: Arc<dyn Memory> = self.places.clone();
        let segment = Segment::new(memory, at, PLACE as u32);
        self.qp.post_recv(RecvWr::new(WrId(place), segment))
    }

    /// Sends a MAD to a QP (mostly 1) of a peer. Its end is [`GsiEvent::Sent`] with this id.
    ///
    /// # Errors
    /// 512 MADs wait to be sent, or the handle leads to a group.
    pub fn send(
        &self,
        id: u64,
        to: &AddressHandle,
        qpn: Qpn,
        mad: &[u8; MAD_LEN],
    ) -> Result<(), PostError> {
        let wr = SendWr::new(WrId(id), SendOp::Send, SgList::inline(mad));
        self.qp.post_send(wr.to(to.to(qpn, GSI_QKEY)))
    }

    /// What has happened, the oldest first.
    pub fn poll(&self) -> Option<GsiEvent> {
        loop {
            let cqe = self.cq.poll()?;
            if cqe.opcode != CqeOpcode::Recv {
                return Some(GsiEvent::Sent {
                    id: cqe.wr_id.0,
                    status: cqe.status,
                });
            }
            let received = self.received(&cqe);
            if cqe.status != Status::WrFlushErr {
                // The place was taken from the queue a moment ago, so there is room for it.
                let _ = self.receive_into(cqe.wr_id.0);
            }
            match received {
                Some(mad) => return Some(GsiEvent::Received(Box::new(mad))),
                None => self.discarded.fetch_add(1, Ordering::Relaxed),
            };
        }
    }

    /// As [`Self::poll`], waited for. May be dropped at any time without losing an event; several tasks may wait at once.
    ///
    /// # Errors
    /// A worker has died of a fault: nothing may happen any more.
    pub async fn next(&self) -> Result<GsiEvent> {
        self.bell.next(|| self.poll()).await
    }

    fn received(&self, cqe: &Cqe) -> Option<ReceivedMad> {
        if cqe.status != Status::Success || cqe.byte_len as usize != PLACE {
            return None;
        }
        let at = cqe.wr_id.0 * STRIDE as u64;
        let (mut grh, mut mad) = ([0; GRH_ROOM], [0; MAD_LEN]);
        self.places.read(at, &mut grh).ok()?;
        self.places.read(at + GRH_ROOM as u64, &mut mad).ok()?;
        let grh = Grh::new(grh);
        Some(ReceivedMad {
            mad,
            from: address_of(grh.src()),
            to: address_of(grh.dst()),
            src_qpn: cqe.src_qpn?,
            flow_label: grh.flow_label(),
            traffic_class: grh.traffic_class(),
            hop_limit: grh.hop_limit(),
        })
    }

    /// Messages to QP 1 with the right Q_Key that were no MADs: of another length than 256 B.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }
}
