//! A queue pair of any service, for programs that choose the service at run time.
//!
//! The types of `rdma` refuse at compile time what a service does not carry; here the program has checked its options before.

use std::net::IpAddr;

use anyhow::bail;

use crate::rdma::{
    Agreed, Behaviour, CompletionQueue, End, HandleAttr, Init, Open, ProtectionDomain, Psn, Qpn,
    QueuePair, Rc, ReadWrite, Recipient, RemoteSlice, RemoteWord, SharedReceiveQueue, Slice,
    Source, Uc, Ud, Word, Wr,
};

/// The Q_Key of perftest (`DEF_QKEY`) and of the pingpong examples.
const QKEY: u32 = 0x1111_1111;
/// Bytes before a UD message in the memory that it is received into: the IP header's place (the GRH).
pub const GRH: u32 = 40;

/// A service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[clap(rename_all = "verbatim")]
pub enum Service {
    /// Reliable connected
    #[value(name = "RC", alias = "rc")]
    #[serde(rename = "RC")]
    Rc,
    /// Unreliable connected
    #[value(name = "UC", alias = "uc")]
    #[serde(rename = "UC")]
    Uc,
    /// Unreliable datagram
    #[value(name = "UD", alias = "ud")]
    #[serde(rename = "UD")]
    Ud,
}

impl Service {
    /// As tools print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Whether what is lost is lost.
    #[must_use]
    pub fn loses(self) -> bool {
        self != Self::Rc
    }

    /// Bytes that a receive request needs before those of the message.
    #[must_use]
    pub fn room(self) -> u32 {
        match self {
            Self::Ud => GRH,
            Self::Rc | Self::Uc => 0,
        }
    }

    /// For messages about a test that stands still.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Rc => "",
            Self::Uc => "; UC sends nothing again",
            Self::Ud => "; UD sends nothing again",
        }
    }
}

/// What queue pairs are made with.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Service.
    pub service: Service,
    /// Send requests outstanding at most.
    pub send_depth: u32,
    /// Receive requests outstanding at most.
    pub recv_depth: u32,
    /// Where receive requests come from, if not from its own queue.
    pub srq: Option<SharedReceiveQueue>,
    /// Timers, retries, depths, the peer's rights.
    pub behaviour: Behaviour,
}

/// A queue pair without a peer.
#[derive(Debug)]
pub enum Unconnected {
    /// Reliable connected.
    Rc(QueuePair<Rc, Init>),
    /// Unreliable connected.
    Uc(QueuePair<Uc, Init>),
    /// Unreliable datagram.
    Ud(QueuePair<Ud, Init>),
}

/// A queue pair with its peer.
#[derive(Debug)]
pub enum Pair {
    /// Reliable connected.
    Rc(QueuePair<Rc>),
    /// Unreliable connected.
    Uc(QueuePair<Uc>),
    /// Unreliable datagram, with its one peer.
    Ud(QueuePair<Ud, Open>, Recipient),
}

macro_rules! each {
    ($on:expr, $qp:ident => $do:expr) => {
        match $on {
            Self::Rc($qp) => $do,
            Self::Uc($qp) => $do,
            Self::Ud($qp, ..) => $do,
        }
    };
}

impl Unconnected {
    /// Makes one; all its requests complete into `cq`.
    ///
    /// # Errors
    /// The device has no room for it, or the depths are too large.
    pub fn new(pd: &ProtectionDomain, cq: &CompletionQueue, shape: &Shape) -> anyhow::Result<Self> {
        macro_rules! built {
            ($service:ty) => {{
                let mut builder = pd
                    .queue_pair_of::<$service>(cq)
                    .depths(shape.send_depth, shape.recv_depth)
                    .behaviour(shape.behaviour);
                if let Some(srq) = &shape.srq {
                    builder = builder.shared_receive_queue(srq);
                }
                builder.build()?
            }};
        }
        Ok(match shape.service {
            Service::Rc => Self::Rc(built!(Rc)),
            Service::Uc => Self::Uc(built!(Uc)),
            Service::Ud => Self::Ud(built!(Ud)),
        })
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        each!(self, qp => qp.qpn())
    }

    /// PSN of its first request.
    #[must_use]
    pub fn psn(&self) -> Psn {
        each!(self, qp => qp.psn())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The queue is full.
    pub fn recv(&self, id: u64, into: Slice<ReadWrite>) -> anyhow::Result<()> {
        Ok(each!(self, qp => qp.post_recv(id, into))?)
    }

    /// Connects it to the peer's.
    ///
    /// # Errors
    /// The peer can't be reached from `local`.
    pub async fn connect(self, local: IpAddr, peer: End, agreed: Agreed) -> anyhow::Result<Pair> {
        Ok(match self {
            Self::Rc(qp) => Pair::Rc(qp.connect_to(local, peer, agreed).await?),
            Self::Uc(qp) => Pair::Uc(qp.connect_to(local, peer, agreed).await?),
            Self::Ud(qp) => {
                let device = qp.protection_domain().device().clone();
                let qp = qp.open(local, QKEY).await?;
                let way = device.address_handle(HandleAttr::new(local, peer.address));
                Pair::Ud(qp, way.await?.to(peer.qpn, QKEY))
            }
        })
    }
}

/// Options of one request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back in the completion.
    pub id: u64,
    /// Whether success makes a completion.
    pub signaled: bool,
}

impl Request {
    fn of<O>(self, wr: Wr<O>) -> Wr<O> {
        let wr = wr.id(self.id);
        if self.signaled { wr } else { wr.unsignaled() }
    }
}

impl Pair {
    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        each!(self, qp => qp.qpn())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// The queue is full.
    pub fn recv(&self, id: u64, into: Slice<ReadWrite>) -> anyhow::Result<()> {
        Ok(each!(self, qp => qp.post_recv(id, into))?)
    }

    /// Posts a SEND.
    ///
    /// # Errors
    /// The queue is full.
    pub fn send(&self, request: Request, data: Source) -> anyhow::Result<()> {
        let wr = request.of(Wr::send(data));
        Ok(match self {
            Self::Rc(qp) => qp.post(wr),
            Self::Uc(qp) => qp.post(wr),
            Self::Ud(qp, to) => qp.post(wr, to),
        }?)
    }

    /// Posts a WRITE.
    ///
    /// # Errors
    /// The queue is full, or the bytes don't fit; the service has none.
    pub fn write(&self, request: Request, data: Source, to: RemoteSlice) -> anyhow::Result<()> {
        let wr = request.of(Wr::write(data, to));
        match self {
            Self::Rc(qp) => Ok(qp.post(wr)?),
            Self::Uc(qp) => Ok(qp.post(wr)?),
            Self::Ud(..) => bail!("UD has SEND only"),
        }
    }

    /// Posts a READ.
    ///
    /// # Errors
    /// The queue is full; the service has none.
    pub fn read(
        &self,
        request: Request,
        into: Slice<ReadWrite>,
        from: RemoteSlice,
    ) -> anyhow::Result<()> {
        Ok(self.reliable()?.post(request.of(Wr::read(into, from)))?)
    }

    /// Posts a FETCH ADD.
    ///
    /// # Errors
    /// The queue is full; the service has none.
    pub fn fetch_add(
        &self,
        request: Request,
        answer: &Word,
        at: RemoteWord,
        add: u64,
    ) -> anyhow::Result<()> {
        let wr = Wr::fetch_add(answer, at, add);
        Ok(self.reliable()?.post(request.of(wr))?)
    }

    /// Posts a COMPARE SWAP.
    ///
    /// # Errors
    /// The queue is full; the service has none.
    pub fn compare_swap(
        &self,
        request: Request,
        answer: &Word,
        at: RemoteWord,
        (compare, swap): (u64, u64),
    ) -> anyhow::Result<()> {
        let wr = Wr::compare_swap(answer, at, compare, swap);
        Ok(self.reliable()?.post(request.of(wr))?)
    }

    fn reliable(&self) -> anyhow::Result<&QueuePair<Rc>> {
        match self {
            Self::Rc(qp) => Ok(qp),
            Self::Uc(_) | Self::Ud(..) => bail!("only RC has READs and atomics"),
        }
    }

    /// Packets that it sent again.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn retransmitted(&self) -> anyhow::Result<u64> {
        Ok(each!(self, qp => qp.stats().await)?.retransmitted_packets)
    }
}
