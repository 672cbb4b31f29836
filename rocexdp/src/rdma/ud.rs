//! Unreliable datagrams: one queue pair for any number of peers, address handles to them, multicast groups.
//!
//! A UD queue pair is not connected: [`QueuePair::open`] gives it an address of the device and a Q_Key, and from then on it takes every
//! message of at most a path MTU that comes with this Q_Key. Each request says to whom it goes. Nothing is acknowledged: a request
//! completes once it has left, and a message that finds no receive request, or is lost on the way, is lost.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use rocexdp::{mem::Buffer, rdma::{Access, CompletionQueue, Device, HandleAttr, Origin, Qpn, Ud, Wr}};
//!
//! let device = Device::open("eth0")?;
//! let local = device.addresses()[0];
//! let pd = device.protection_domain()?;
//! let cq = CompletionQueue::new(256);
//! let memory = pd.register(Buffer::map(8192)?, Access::NONE)?;
//!
//! let qp = pd.queue_pair_of::<Ud>(&cq).build()?;
//! qp.post_recv(1, memory.slice(0..4096)?)?;                 // 40 bytes for the IP header, then the message
//! let qp = qp.open(local, 0x1111_1111).await?;
//!
//! let way = device.address_handle(HandleAttr::new(local, "192.0.2.2".parse()?)).await?;
//! memory.write(4096, b"hello")?;
//! qp.post(Wr::send(memory.slice(4096..4101)?).id(2), &way.to(Qpn::new(0x80_0123), 0x1111_1111))?;
//!
//! let done = cq.next().await?.result()?;
//! if let Some(peer) = done.src_qpn {
//!     let origin = Origin::read(&memory, 0)?;
//!     println!("{} B from QP {peer} at {}", done.byte_len - 40, origin.from);
//!     let back = device.address_handle(origin.answering(local)).await?;
//!     qp.post(Wr::send(memory.slice(40..u64::from(done.byte_len))?), &back.to(peer, 0x1111_1111))?;
//! }
//! # Ok(()) }
//! ```
//!
//! # What does not compile
//!
//! This does:
//! ```
//! # use rocexdp::rdma::{Open, QueuePair, ReadWrite, Recipient, Slice, Ud, Wr};
//! fn send(qp: &QueuePair<Ud, Open>, to: &Recipient, data: Slice<ReadWrite>) {
//!     qp.post(Wr::send(data), to).unwrap();
//! }
//! ```
//! Sending to nobody:
//! ```compile_fail,E0061
//! # use rocexdp::rdma::{Open, QueuePair, ReadWrite, Slice, Ud, Wr};
//! fn send(qp: &QueuePair<Ud, Open>, data: Slice<ReadWrite>) {
//!     qp.post(Wr::send(data)).unwrap();
//! }
//! ```
//! An operation that UD does not have:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{Open, QueuePair, ReadWrite, Recipient, RemoteSlice, Slice, Ud, Wr};
//! fn write(qp: &QueuePair<Ud, Open>, to: &Recipient, data: Slice<ReadWrite>, there: RemoteSlice) {
//!     qp.post(Wr::write(data, there), to).unwrap();
//! }
//! ```
//! Sending before it is open:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{Init, QueuePair, ReadWrite, Recipient, Slice, Ud, Wr};
//! fn send(qp: &QueuePair<Ud, Init>, to: &Recipient, data: Slice<ReadWrite>) {
//!     qp.post(Wr::send(data), to).unwrap();
//! }
//! ```
//! Connecting it, as one of the connected services is:
//! ```
//! # use rocexdp::rdma::{Connect, Init, QueuePair, Uc};
//! async fn connect(qp: QueuePair<Uc, Init>, peer: std::net::SocketAddr) {
//!     qp.connect(peer, &Connect::new()).await.unwrap();
//! }
//! ```
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{Connect, Init, QueuePair, Ud};
//! async fn connect(qp: QueuePair<Ud, Init>, peer: std::net::SocketAddr) {
//!     qp.connect(peer, &Connect::new()).await.unwrap();
//! }
//! ```
//! Opening one of those:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{Init, QueuePair, Rc};
//! async fn open(qp: QueuePair<Rc, Init>, local: std::net::IpAddr) {
//!     qp.open(local, 0x1111_1111).await.unwrap();
//! }
//! ```

use std::net::IpAddr;

use rocexdp_common::maps::{QpCounters, QpEngine};
use rocexdp_proto::{
    ids::{PathMtu, Qpn},
    verbs::{Datagram, MULTICAST_QPN, PostError as QueueError},
    wire::{GRH_ROOM, Grh},
};

use super::{
    Carries, Device, Error, Init, LocalAccess, OutOfRange, PostError, PostFault, QueuePair, Region,
    Ud, Wr, request::Operation,
};
use crate::{loader::address_of, node};

pub use crate::node::HandleAttr;

/// State of a UD [`QueuePair`] that sends and receives.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    local: IpAddr,
    qkey: u32,
}

/// The way to a UD peer, or a multicast group; resolved once, and kept right while it is held: when the next hop's Ethernet address
/// changes, later requests take the new one. Cloning gives another handle to the same.
#[derive(Clone, Debug)]
pub struct AddressHandle(node::AddressHandle);

/// To whom a request goes.
#[derive(Clone, Debug)]
pub struct Recipient {
    way: node::AddressHandle,
    qpn: Qpn,
    qkey: u32,
}

impl AddressHandle {
    /// Where it leads.
    #[must_use]
    pub fn attr(&self) -> HandleAttr {
        self.0.attr()
    }

    /// The largest message that the way carries.
    #[must_use]
    pub fn path_mtu(&self) -> PathMtu {
        self.0.path_mtu()
    }

    /// This QP there, which has this Q_Key. Of a group the number means nothing: see [`Self::to_group`]. A Q_Key with the top bit set
    /// stands for the sending queue pair's own.
    #[must_use]
    pub fn to(&self, qpn: Qpn, qkey: u32) -> Recipient {
        Recipient {
            way: self.0.clone(),
            qpn: if self.0.is_group() {
                MULTICAST_QPN
            } else {
                qpn
            },
            qkey,
        }
    }

    /// All QPs of the group that have this Q_Key.
    #[must_use]
    pub fn to_group(&self, qkey: u32) -> Recipient {
        self.to(MULTICAST_QPN, qkey)
    }
}

impl Recipient {
    fn lower(&self) -> Datagram {
        self.way.to(self.qpn, self.qkey)
    }
}

/// Where a message has come from, as its IP header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Who sent it.
    pub from: IpAddr,
    /// Our address, or a group, to which.
    pub to: IpAddr,
    /// IPv6 flow label; 0 by IPv4.
    pub flow_label: u32,
    /// TOS or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit that was left.
    pub hop_limit: u8,
}

impl Origin {
    /// Bytes before each message.
    pub const ROOM: u64 = GRH_ROOM as u64;

    /// Reads the header of a message whose receive request began at `offset`. Only what a completed receive request holds means anything.
    ///
    /// # Errors
    /// The region ends within the header.
    pub fn read<A: LocalAccess>(region: &Region<A>, offset: u64) -> Result<Self, OutOfRange> {
        let mut bytes = [0; GRH_ROOM];
        region.read(offset, &mut bytes)?;
        let grh = Grh::new(bytes);
        Ok(Self {
            from: address_of(grh.src()),
            to: address_of(grh.dst()),
            flow_label: grh.flow_label(),
            traffic_class: grh.traffic_class(),
            hop_limit: grh.hop_limit(),
        })
    }

    /// The way back, from an address of ours.
    #[must_use]
    pub fn answering(&self, local: IpAddr) -> HandleAttr {
        HandleAttr {
            flow_label: self.flow_label,
            ..HandleAttr::new(local, self.from)
        }
    }
}

impl Device {
    /// The way from one of the device's addresses to a peer, to another address of the device, or to a multicast group.
    ///
    /// # Errors
    /// No such address here, no route, or no answer from the next hop; all address handles of the device are in use.
    pub async fn address_handle(&self, attr: HandleAttr) -> Result<AddressHandle, Error> {
        let handle = self.node().address_handle(attr).await;
        Ok(AddressHandle(handle.map_err(Error::Device)?))
    }
}

impl QueuePair<Ud, Init> {
    /// Gives it an address of the device and its Q_Key: from now on it receives and sends. Q_Keys with the top bit set are for the
    /// system's own services on other hosts; here they are like any other.
    ///
    /// # Errors
    /// The address is none of the device's, or its engine has ended.
    pub async fn open(self, local: IpAddr, qkey: u32) -> Result<QueuePair<Ud, Open>, Error> {
        let opened = self.raw.open_datagram(local, qkey).await;
        opened.map_err(Error::Device)?;
        Ok(self.with_state(Open { local, qkey }))
    }
}

impl QueuePair<Ud, Open> {
    /// Posts a request, to one recipient.
    ///
    /// # Errors
    /// As many as the queue is deep have not completed, or the message is longer than the path MTU, starts at another address than the
    /// queue pair's, or invalidates a key, which UD does not.
    pub fn post<O: Operation>(&self, request: Wr<O>, to: &Recipient) -> Result<(), PostError>
    where
        Ud: Carries<O>,
    {
        let posted = request.lower().and_then(|wr| {
            if wr.local.len() > to.way.path_mtu().bytes() {
                return Err(PostFault::Queue(QueueError::LongerThanMtu));
            }
            if to.way.attr().local != self.state.local {
                return Err(PostFault::Queue(QueueError::Destination));
            }
            let taken = self.raw.post_send(wr.to(to.lower()));
            taken.map_err(PostFault::from)
        });
        self.posted(posted)
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.state.local
    }

    /// Its Q_Key.
    #[must_use]
    pub fn qkey(&self) -> u32 {
        self.state.qkey
    }

    /// Joins a multicast group, IPv4 or IPv6: it receives what is sent to the group with its Q_Key, by hosts on the link and by queue
    /// pairs of this device, itself included. The host becomes a member of the group on the interface. Sending to a group
    /// needs no membership.
    ///
    /// # Errors
    /// The address is no group's, the kernel refuses, or there are 8192 groups, or 56 queue pairs in this one at its worker.
    pub async fn join(&self, group: IpAddr) -> Result<(), Error> {
        self.raw.join(group).await.map_err(Error::Device)
    }

    /// Leaves a group; nothing happens if it is not in it. Dropping the queue pair leaves all.
    pub fn leave(&self, group: IpAddr) {
        self.raw.leave(group);
    }

    /// What the engine counted for it, now.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn stats(&self) -> Result<QpEngine, Error> {
        self.raw.info().await.map_err(Error::Device)
    }

    /// What the XDP program counted for it: neither what came from queue pairs of this host, nor a group's packets.
    #[must_use]
    pub fn xdp_counters(&self) -> QpCounters {
        self.raw.counters()
    }
}
