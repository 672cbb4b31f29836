//! Queue pairs: built, connected, posted to.
//!
//! A queue pair that has no peer ([`Init`]) takes receives only; connecting consumes it and gives one that takes sends too
//! ([`Ready`]). Must not: know how ends find each other (`connect` does).

use std::{fmt, marker::PhantomData, net::IpAddr, sync::Arc};

use rocexdp_common::maps::{QpCounters, QpEngine};
use rocexdp_proto::{
    QpState, SelectiveRepeat,
    ids::{PathMtu, Psn, Qpn, WrId},
    mem::Access,
    verbs::RecvWr,
};

use super::{
    Behaviour, Carries, Closed, CompletionQueue, Connected, Error, PostError, PostFault,
    ProtectionDomain, QueueName, Rc, Service, SharedReceiveQueue, Target, Wr, link::Link,
    request::Operation,
};
use crate::node::{ConnectAttr, QpSpec, RawQp};

/// A queue pair to be.
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct QueuePairBuilder<S: Service> {
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    max_send: u32,
    max_recv: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline: u32,
    psn: Option<Psn>,
    srq: Option<SharedReceiveQueue>,
    behaviour: Behaviour,
    _service: PhantomData<S>,
}

impl<S: Service> QueuePairBuilder<S> {
    pub(super) fn new(pd: ProtectionDomain, cq: CompletionQueue) -> Self {
        Self {
            pd,
            send_cq: cq.clone(),
            recv_cq: cq,
            max_send: 128,
            max_recv: 128,
            max_send_sge: 16,
            max_recv_sge: 16,
            max_inline: 256,
            psn: None,
            srq: None,
            behaviour: Behaviour::default(),
            _service: PhantomData,
        }
    }

    /// Receive requests complete into another queue.
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// Send and receive requests that may be outstanding at once, each at most 65536; 128 unless set.
    pub fn depths(mut self, send: u32, recv: u32) -> Self {
        (self.max_send, self.max_recv) = (send, recv);
        self
    }

    /// Slices that a send and a receive request may have, each at most 32; 16 unless set. Of a shared receive queue's requests, that queue
    /// decides.
    pub fn max_sge(mut self, send: u32, recv: u32) -> Self {
        (self.max_send_sge, self.max_recv_sge) = (send, recv);
        self
    }

    /// Bytes of inline data that a send request may have, at most 1024; 256 unless set.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }

    /// PSN of its first request; random unless set. For handshakes that prescribe it: who guesses it can more easily forge packets.
    pub fn psn(mut self, psn: Psn) -> Self {
        self.psn = Some(psn);
        self
    }

    /// Its messages take receive requests of a shared queue; it has none of its own.
    pub fn shared_receive_queue(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// How it behaves once connected.
    pub fn behaviour(mut self, behaviour: Behaviour) -> Self {
        self.behaviour = behaviour;
        self
    }

    /// What the peer may do through it, besides what regions allow: any of [`Access::REMOTE_READ`], [`Access::REMOTE_WRITE`],
    /// [`Access::REMOTE_ATOMIC`], [`Access::FLUSH_GLOBAL`], [`Access::FLUSH_PERSISTENT`]; all, unless set. Without regions that have rights
    /// for peers, it can reach nothing.
    pub fn access(mut self, access: Access) -> Self {
        self.behaviour.access = access;
        self
    }

    /// Makes it, with a random number and, unless set, a random starting PSN. It takes receive requests at once.
    ///
    /// # Errors
    /// All slots of the device are taken, a depth or another size is larger than the device's, or the engine has ended.
    pub fn build(self) -> Result<QueuePair<S, Init>, Error> {
        let device = self.pd.device();
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.serve(device.node());
        }
        let raw = device.node().create_raw_qp(QpSpec {
            transport: S::TRANSPORT,
            pd: self.pd.domain.pd,
            max_send: self.max_send,
            max_recv: self.max_recv,
            send_cq: Arc::clone(self.send_cq.ring()),
            recv_cq: Arc::clone(self.recv_cq.ring()),
            srq: self.srq.as_ref().map(|srq| Arc::clone(srq.queue())),
            access: self.behaviour.access,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline: self.max_inline,
            psn: self.psn,
        });
        Ok(QueuePair {
            raw: Arc::new(raw.map_err(Error::Device)?),
            srq: self.srq,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            behaviour: self.behaviour,
            state: Init,
            _service: PhantomData,
        })
    }
}

/// One end of a connection, as the other must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// Its queue pair's number.
    pub qpn: Qpn,
    /// PSN of its first request.
    pub psn: Psn,
}

/// State of a [`QueuePair`] that has no peer: receives only.
#[derive(Debug)]
pub struct Init;

/// State of a [`QueuePair`] that is connected.
#[derive(Debug)]
pub struct Ready {
    pub(super) peer: End,
    pub(super) agreed: Agreed,
    pub(super) link: Option<Link>,
    pub(super) private_data: Vec<u8>,
}

/// A queue pair. Any thread posts. Dropping it destroys it: requests outstanding never complete, and the peer, if connected by
/// [`QueuePair::connect`] or a [`Listener`](super::Listener), is told, whose queue pair then fails.
pub struct QueuePair<S: Service = Rc, State = Ready> {
    // Dropped in this order: the peer hears of it once no packet of it is answered any more.
    pub(super) raw: Arc<RawQp>,
    pub(super) state: State,
    pub(super) behaviour: Behaviour,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    pd: ProtectionDomain,
    _service: PhantomData<S>,
}

impl<S: Service, State: fmt::Debug> fmt::Debug for QueuePair<S, State> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.raw.qpn())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<S: Service, State> QueuePair<S, State> {
    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.raw.qpn()
    }

    /// PSN of its first request.
    #[must_use]
    pub fn psn(&self) -> Psn {
        self.raw.psn()
    }

    /// Its protection domain.
    #[must_use]
    pub fn protection_domain(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Where its send requests complete.
    #[must_use]
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// Where its receive requests complete.
    #[must_use]
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// The shared queue that its messages take receive requests from.
    #[must_use]
    pub fn shared_receive_queue(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Posts a receive request, to the shared queue where it has one: the next message goes into `into`, and completes with `id`.
    ///
    /// # Errors
    /// As many as the queue is deep have not completed, or the slices are more than the queue was made for, or have more than 2^31 B.
    pub fn post_recv(&self, id: u64, into: impl Into<Target>) -> Result<(), PostError> {
        let wr = RecvWr::new(WrId(id), into.into().0);
        self.posted(self.raw.post_recv(wr).map_err(PostFault::from))
    }

    /// Names the queue pair where a request was not taken. One that a dead worker never looks at was not, whatever the queue says.
    pub(super) fn posted(&self, taken: Result<(), PostFault>) -> Result<(), PostError> {
        let taken = taken.and_then(|()| self.raw.died().map_or(Ok(()), |_| Err(PostFault::Dead)));
        let queue = QueueName::Qp(self.qpn());
        taken.map_err(|why| PostError { queue, why })
    }

    pub(super) fn with_state<T>(self, state: T) -> QueuePair<S, T> {
        QueuePair {
            raw: self.raw,
            srq: self.srq,
            state,
            behaviour: self.behaviour,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            pd: self.pd,
            _service: PhantomData,
        }
    }
}

/// What two ends have agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Path MTU, the same at both ends.
    pub path_mtu: PathMtu,
    /// READs and atomics of ours that may be unanswered at once, 0 to 128: at most what the peer has resources for.
    pub max_rd_atomic: u8,
    /// Selective repeat, the same at both ends; `None`: go-back-N.
    pub selective: Option<SelectiveRepeat>,
}

impl<S: Connected> QueuePair<S, Init> {
    /// How it will behave once connected, where that is known only when the peer is: what was set when it was built is replaced.
    pub fn set_behaviour(&mut self, behaviour: Behaviour) {
        self.behaviour = behaviour;
    }

    /// Connects to a peer that is known already, by an exchange of the application's own; with any RoCEv2 peer. Both ends do this, with
    /// the same path MTU; then both must have done it before either sends. See [`Self::connect`] for the exchange of this crate.
    ///
    /// What the ends have to tell each other, and where it is here:
    ///
    /// | | ours, for the peer | the peer's, for us |
    /// |---|---|---|
    /// | address (its GID is that, or its IPv4-mapped form) | `local` | [`End::address`] |
    /// | queue pair number | [`Self::qpn`] | [`End::qpn`] |
    /// | PSN of the first request | [`Self::psn`], [`QueuePairBuilder::psn`] | [`End::psn`] |
    /// | path MTU | [`Agreed::path_mtu`], the same at both | |
    /// | READs and atomics unanswered at once | [`Behaviour::max_dest_rd_atomic`]: at least what the peer has (its `max_rd_atomic`) | [`Agreed::max_rd_atomic`]: at most the peer's `max_dest_rd_atomic` |
    ///
    /// Timers, retries, DSCP, hop limit and UDP source port concern one end only: [`Behaviour`], which [`Self::set_behaviour`] may still
    /// change. Selective repeat is between two ends of this crate: [`Agreed::selective`] is `None` with any other.
    ///
    /// # Errors
    /// `local` is no address of the device, there is no route, the next hop does not answer, the path MTU does not fit, or a value of
    /// [`Behaviour`] or [`Agreed`] is out of its range: the text names it.
    pub async fn connect_to(
        self,
        local: IpAddr,
        peer: End,
        agreed: Agreed,
    ) -> Result<QueuePair<S>, Error> {
        self.ready(local, peer, agreed, self.behaviour.cnp).await?;
        Ok(self.with_state(Ready {
            peer,
            agreed,
            link: None,
            private_data: Vec::new(),
        }))
    }

    /// The path MTU to ask for.
    pub(super) fn offer_mtu(&self) -> PathMtu {
        let largest = self.protection_domain().device().path_mtu();
        let wanted = self.behaviour.path_mtu;
        wanted.map_or(largest, |wanted| wanted.min(largest))
    }

    /// Takes it to RTS. `cnp`: the peer understands them.
    pub(super) async fn ready(
        &self,
        local: IpAddr,
        peer: End,
        agreed: Agreed,
        cnp: bool,
    ) -> Result<(), Error> {
        self.ready_at(local, peer, agreed, cnp, None).await
    }

    /// As [`Self::ready`]; the peer may have said which PSN our first request has.
    pub(super) async fn ready_at(
        &self,
        local: IpAddr,
        peer: End,
        agreed: Agreed,
        cnp: bool,
        psn: Option<Psn>,
    ) -> Result<(), Error> {
        let device = self.protection_domain().device();
        if !device.addresses().contains(&local) {
            let (iface, ours) = (&device.node().report().iface, device.addresses());
            return Err(Error::Device(anyhow::anyhow!(
                "{local} is no address of {iface}, which has {ours:?}"
            )));
        }
        let Behaviour {
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            max_dest_rd_atomic,
            access,
            dscp,
            hop_limit,
            flow_label,
            ..
        } = self.behaviour;
        let attr = ConnectAttr {
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            psn,
            max_rd_atomic: agreed.max_rd_atomic,
            max_dest_rd_atomic,
            selective: agreed.selective,
            cnp,
            access,
            dscp,
            hop_limit,
            flow_label: flow_label.get(),
            ..ConnectAttr::new(local, peer.address, peer.qpn, peer.psn, agreed.path_mtu)
        };
        self.raw.connect(attr).await.map_err(Error::Device)
    }
}

impl<S: Connected> QueuePair<S, Ready> {
    /// Posts a request. What the service does not carry does not compile.
    ///
    /// # Errors
    /// As many as the queue is deep have not completed, the range does not fit, or the bytes are more than 2^31, or inline ones or slices
    /// more than the queue pair was built for. A queue pair that has failed takes requests, and completes them with [`Status::WrFlushErr`](super::Status::WrFlushErr).
    pub fn post<O: Operation>(&self, request: Wr<O>) -> Result<(), PostError>
    where
        S: Carries<O>,
    {
        let lowered = request.lower();
        self.posted(lowered.and_then(|wr| Ok(self.raw.post_send(wr)?)))
    }

    /// The peer's end.
    #[must_use]
    pub fn peer(&self) -> End {
        self.state.peer
    }

    /// What the ends have agreed on.
    #[must_use]
    pub fn agreed(&self) -> Agreed {
        self.state.agreed
    }

    /// What the peer gave along when it connected, or accepted.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.state.private_data
    }

    /// Resolves, with how, once the connection has ended; the queue pair fails then, so that its requests complete. That the peer's host
    /// has vanished is noticed after half a minute where the ends met over TCP, and over the [`cm`](super::cm) not at all: there an
    /// outstanding request says so. Never for one that was connected by [`QueuePair::connect_to`].
    pub async fn closed(&self) -> Closed {
        match &self.state.link {
            Some(link) => link.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Ends the connection in an orderly way: the queue pair fails, then the peer is told, and waited for to have heard of it where the
    /// connection is one of the [`cm`](super::cm). Dropping the queue pair tells the peer too, without waiting.
    pub async fn disconnect(self) {
        self.raw.fail();
        if let Some(link) = &self.state.link {
            link.leave().await;
        }
    }

    /// Takes it to ERR: every request outstanding completes with [`Status::WrFlushErr`](super::Status::WrFlushErr).
    pub fn fail(&self) {
        self.raw.fail();
    }

    /// Its state in the engine.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn state(&self) -> Result<QpState, Error> {
        let state = self.raw.state().await.map_err(Error::Device)?;
        Ok(state.unwrap_or(QpState::Reset))
    }

    /// What the engine counted for it, now.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn stats(&self) -> Result<QpEngine, Error> {
        self.raw.info().await.map_err(Error::Device)
    }

    /// What the XDP program counted for it.
    #[must_use]
    pub fn xdp_counters(&self) -> QpCounters {
        self.raw.counters()
    }
}
