//! Connecting by the standard: InfiniBand's communication manager with the RDMA CM's addresses, so that librdmacm's programs, and
//! everything else that speaks to the kernel's, connect unmodified.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use rocexdp::rdma::{CompletionQueue, Device, cm::Cm};
//!
//! let device = Device::open("eth0")?;
//! let cm = Cm::open(&device)?;                              // takes the device's QP 1
//! let pd = device.protection_domain()?;
//! let cq = CompletionQueue::new(256);
//!
//! let qp = pd.queue_pair(&cq).build()?;                     // as a client: `rdma_connect`
//! let qp = cm.connect(qp, "192.0.2.2:7471".parse()?, b"private data").await?;
//!
//! let mut listener = cm.listen(7472)?;                      // as a server: `rdma_listen`
//! let incoming = listener.next().await?;
//! let theirs = incoming.accept(pd.queue_pair(&cq).build()?, &[]).await?;
//!
//! qp.disconnect().await;                                    // `rdma_disconnect`
//! # Ok(()) }
//! ```
//!
//! What the ends agree on, and whose word it is:
//!
//! | | |
//! |---|---|
//! | path MTU | the connecting end's; a listener whose device carries less says how much, and the connecting end asks again with that |
//! | READs and atomics unanswered | the smaller of what one end would have and what the other has resources for |
//! | retries after a timeout | the connecting end's [`Behaviour::retry_cnt`], for both ends |
//! | retries after an RNR NAK | each end's [`Behaviour::rnr_retry`] is what the other end does |
//! | local ACK timeout | follows from packet life time and the other end's ACK delay; [`Behaviour::timeout`] is not used |
//!
//! Datagram services (`RDMA_PS_UDP`): [`Cm::resolve`] asks which queue pair serves a port, [`Cm::listen_datagrams`] answers.
//!
//! A connection ends for both ends when either disconnects, drops its queue pair or is killed; see [`QueuePair::closed`]. A host that
//! vanishes says nothing, and this exchange has no sign of life: a request that is outstanding tells (`RetryExcErr`), none else.
//!
//! [`Behaviour::retry_cnt`]: super::Behaviour::retry_cnt
//! [`Behaviour::rnr_retry`]: super::Behaviour::rnr_retry
//! [`Behaviour::timeout`]: super::Behaviour::timeout

mod datagram;

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, Weak},
    time::Duration,
};

use rand::RngExt as _;
use rocexdp_proto::{
    Transport,
    cm::{Accept, CmConfig, CmError, Connect, Event, IpCm, Listen, Route, port_space},
    ids::{PathMtu, Psn},
};

use tokio::time::timeout;

use super::{
    Agreed, Closed, Connected, Device, End, Error, Init, QueuePair, link::Link, qp::Ready,
};
use crate::{
    cm::{self, Conn, Listening, Service as Manager},
    node::RawQp,
};

pub use datagram::{DATAGRAM_QKEY, DatagramListener, DatagramRequest, DatagramService};
pub use rocexdp_proto::cm::{CmCounters, RejReason, Request};

/// Requests that may wait to be accepted or refused, of one listener.
const BACKLOG: u32 = 128;
/// How often an accepted connection's queue pair is looked at while the peer's RTU has not come.
const LOOK: Duration = Duration::from_millis(20);

/// The communication manager of a device: there is one. Cloning gives another handle to it; with the last, and the last connection and
/// listener of it, it is closed.
#[derive(Clone, Debug)]
pub struct Cm {
    device: Device,
    manager: Arc<Manager>,
}

/// A peer's refusal by REJ.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{peer} refused the connection: {reason}")]
pub struct Rejected {
    /// Who.
    pub peer: SocketAddr,
    /// Why.
    pub reason: RejReason,
    /// What its application gave along: 148 bytes, zeros at the end.
    pub private_data: Vec<u8>,
    /// Additional information: see [`RejReason`].
    pub info: Vec<u8>,
}

/// How patient the manager is, as codes t for 4.096 us * 2^t. See [`CmConfig`] for what is used unless set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmOptions {
    /// How long a packet may be on its way. Twice that, and the ACK delay, is the local ACK timeout of connections.
    pub packet_life_time: Option<u8>,
    /// How long a peer may take to answer.
    pub response_time: Option<u8>,
    /// How often a message is sent again that is not answered, at most 15.
    pub max_retries: Option<u8>,
}

fn ip_header(route: Route, space: u8, port: u16, src_port: u16) -> IpCm {
    IpCm {
        version: 0,
        ip_version: if cm::peer(route).is_ipv4() { 4 } else { 6 },
        port_space: space,
        port,
        src_port,
        src: route.local,
        dst: route.peer,
    }
}

/// A port of the kind that systems give to clients.
fn ephemeral() -> u16 {
    rand::rng().random_range(0x8000..0xf000)
}

fn random_psn() -> Psn {
    Psn::new(rand::rng().random())
}

impl Cm {
    /// Opens a device's communication manager. Its task runs in the tokio runtime that this is called in.
    ///
    /// # Errors
    /// It is open already, the device's addresses are shared with another RoCE stack, or there is no runtime.
    pub fn open(device: &Device) -> Result<Self, Error> {
        Self::open_with(device, CmOptions::default())
    }

    /// As [`Self::open`], with settings.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(device: &Device, options: CmOptions) -> Result<Self, Error> {
        let set = |config: &mut CmConfig| {
            let at = |code: Option<u8>, place: &mut u8, most| {
                if let Some(code) = code {
                    *place = code.min(most);
                }
            };
            at(options.packet_life_time, &mut config.packet_life_time, 24);
            at(options.response_time, &mut config.response_time, 24);
            at(options.max_retries, &mut config.max_retries, 15);
        };
        let manager = Manager::open(device.node(), set).map_err(Error::Device)?;
        Ok(Self {
            device: device.clone(),
            manager,
        })
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it counted.
    #[must_use]
    pub fn counters(&self) -> CmCounters {
        self.manager.counters()
    }

    /// Which of our addresses leads to a peer.
    fn towards(&self, peer: SocketAddr) -> Result<Route, Error> {
        let ours = self.device.addresses();
        let family = |address: &&IpAddr| address.is_ipv4() == peer.is_ipv4();
        let mut fit = ours.iter().filter(family);
        let local = match (fit.next(), fit.next()) {
            (Some(only), None) => Some(*only),
            // The system's choice, where it is one of them.
            (Some(first), Some(_)) => system_choice(peer)
                .filter(|chosen| ours.contains(chosen))
                .or(Some(*first)),
            _ => None,
        };
        let local = local.ok_or_else(|| {
            let iface = &self.device.node().report().iface;
            let version = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
            Error::connection(peer, format!("{iface} has no {version} address"))
        })?;
        Ok(cm::route(local, peer.ip()))
    }

    /// Connects to who listens at `peer`, and gives at most 56 bytes along for its application. Post receive requests before, so that
    /// what the peer sends at once finds one.
    ///
    /// # Errors
    /// [`Error::Rejected`]: the peer said no; else it does not answer (10 s, longer if it says that it takes time), there is no way to
    /// it, or the private data is too long.
    pub async fn connect<S: Connected>(
        &self,
        qp: QueuePair<S, Init>,
        peer: SocketAddr,
        private_data: &[u8],
    ) -> Result<QueuePair<S>, Error> {
        let route = self.towards(peer)?;
        self.manager.reach(route).await.map_err(Error::Device)?;
        let behaviour = qp.behaviour;
        let mut ask = Connect {
            route,
            service_id: IpCm::service_id(port_space::TCP, peer.port()),
            ip: Some(ip_header(route, port_space::TCP, peer.port(), ephemeral())),
            transport: S::TRANSPORT,
            qpn: qp.qpn(),
            psn: random_psn(),
            path_mtu: qp.offer_mtu(),
            responder_resources: behaviour.max_dest_rd_atomic,
            initiator_depth: behaviour.max_rd_atomic,
            retry_count: behaviour.retry_cnt,
            rnr_retry_count: behaviour.rnr_retry,
            srq: qp.shared_receive_queue().is_some(),
            traffic_class: behaviour.dscp.unwrap_or(0) << 2,
            hop_limit: behaviour.hop_limit,
            private_data: private_data.to_vec(),
        };
        let fail = |error: CmError| Error::connection(peer, error);
        let mut conn = self.manager.connect(&ask).map_err(fail)?;
        let reply = loop {
            match conn.next().await.map_err(Error::Device)? {
                Event::Reply(_, reply) => break reply,
                Event::Refused {
                    reason,
                    info,
                    private_data,
                    ..
                } => {
                    // It said how much it carries.
                    let smaller = largest(&info).filter(|mtu| *mtu < ask.path_mtu);
                    if let (RejReason::INVALID_MTU, Some(mtu)) = (reason, smaller) {
                        ask.path_mtu = mtu;
                        conn = self.manager.connect(&ask).map_err(fail)?;
                        continue;
                    }
                    return Err(Error::Rejected(Rejected {
                        peer,
                        reason,
                        private_data,
                        info,
                    }));
                }
                other => return Err(ended(peer, &other)),
            }
        };
        let mut qp = qp;
        qp.behaviour.timeout = reply.ack_timeout;
        qp.behaviour.rnr_retry = reply.rnr_retry_count;
        qp.behaviour.max_dest_rd_atomic =
            behaviour.max_dest_rd_atomic.min(reply.responder_resources);
        let end = End {
            address: peer.ip(),
            qpn: reply.qpn,
            psn: ask.psn,
        };
        let agreed = Agreed {
            path_mtu: ask.path_mtu,
            max_rd_atomic: behaviour.max_rd_atomic.min(reply.initiator_depth),
            selective: None,
        };
        qp.ready_at(
            cm::local(route),
            end,
            agreed,
            behaviour.cnp,
            Some(reply.psn),
        )
        .await?;
        conn.ready().map_err(fail)?;
        Ok(connected(qp, conn, end, agreed, reply.private_data))
    }

    /// Listens on a port, at all addresses of the device, for reliable connections.
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(&self, port: u16) -> Result<CmListener, Error> {
        self.listen_for(port, Transport::Rc)
    }

    fn listen_for(&self, port: u16, transport: Transport) -> Result<CmListener, Error> {
        let what = Listen {
            service_id: IpCm::service_id(port_space::TCP, port),
            transport,
            path_mtu: self.device.path_mtu(),
            max_half_open: BACKLOG,
        };
        Ok(CmListener {
            listening: self.listening(port, what)?,
            port,
        })
    }

    fn listening(&self, port: u16, what: Listen) -> Result<Listening, Error> {
        let iface = &self.device.node().report().iface;
        self.manager
            .listen(what)
            .map_err(|error| Error::Device(anyhow::anyhow!("{iface}, port {port}: {error}")))
    }
}

/// The path MTU in a refusal.
fn largest(info: &[u8]) -> Option<PathMtu> {
    let code = *info.first().filter(|code| (1..=5).contains(*code))?;
    PathMtu::from_bytes(128 << code)
}

fn system_choice(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if peer.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// What follows an acceptance: the peer's RTU, or its first packet, or its end.
async fn established(conn: &mut Conn, qp: &RawQp) -> anyhow::Result<Event> {
    loop {
        match timeout(LOOK, conn.next()).await {
            Ok(event) => return event,
            Err(_) => {
                if qp.info().await?.rx_accepted > 0 {
                    conn.heard();
                }
            }
        }
    }
}

/// An attempt that ended otherwise than by a refusal.
fn ended(peer: SocketAddr, event: &Event) -> Error {
    let why = match event {
        Event::Unreachable { message, sent, .. } => {
            format!("no answer to the {message}, sent {sent} times (does it have RDMA there?)")
        }
        Event::Refused { reason, .. } => format!("it broke off: {reason}"),
        Event::Disconnected { .. } => "it has ended the connection".to_owned(),
        _ => "it answers out of turn".to_owned(),
    };
    Error::connection(peer, why)
}

fn connected<S: Connected>(
    qp: QueuePair<S, Init>,
    conn: Conn,
    peer: End,
    agreed: Agreed,
    private_data: Vec<u8>,
) -> QueuePair<S> {
    let link = Link::over_cm(conn, Arc::downgrade(&qp.raw));
    qp.with_state(Ready {
        peer,
        agreed,
        link: Some(link),
        private_data,
    })
}

/// Until the connection has ended: then the queue pair fails. `leave` says that our end wants it.
pub(super) async fn watch(
    mut conn: Conn,
    qp: Weak<RawQp>,
    mut leave: tokio::sync::watch::Receiver<bool>,
) -> Closed {
    let how = loop {
        let event = tokio::select! {
            event = conn.next() => event,
            Ok(_) = leave.wait_for(|leave| *leave), if !*leave.borrow() => {
                // It may have ended by itself.
                if conn.disconnect().is_err() {
                    break Closed::ByUs;
                }
                continue;
            }
        };
        match event {
            Ok(Event::Disconnected { by_peer: true, .. } | Event::Refused { .. }) => {
                break Closed::ByPeer;
            }
            Ok(Event::Disconnected { by_peer: false, .. }) => break Closed::ByUs,
            Ok(Event::Unreachable { .. }) | Err(_) => break Closed::Lost,
            Ok(_) => {}
        }
    };
    if let Some(qp) = qp.upgrade() {
        qp.fail();
    }
    how
}

/// Takes connections of peers. Dropping it ends listening; what was accepted stays.
#[derive(Debug)]
pub struct CmListener {
    listening: Listening,
    port: u16,
}

impl CmListener {
    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next peer that wants to connect. May be dropped at any time without losing one.
    ///
    /// # Errors
    /// The manager has ended.
    pub async fn next(&mut self) -> Result<CmIncoming, Error> {
        let (conn, request) = self.listening.request().await.map_err(Error::Device)?;
        Ok(CmIncoming { conn, request })
    }
}

/// A peer that wants to connect. Dropped, it is refused.
#[derive(Debug)]
#[must_use = "accept it or refuse it"]
pub struct CmIncoming {
    conn: Conn,
    request: Request,
}

impl CmIncoming {
    /// Who: its address, and the port that it says it has.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        let port = self.request.ip.map_or(0, |ip| ip.src_port);
        SocketAddr::new(cm::peer(self.request.route), port)
    }

    /// What it asks for.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// What its application gave along: 56 bytes, zeros at the end.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// Connects `qp` with it, and gives at most 196 bytes along for its application. Returns when the peer is ready.
    ///
    /// # Errors
    /// No way back to the peer, it has gone, or the private data is too long. It is told.
    pub async fn accept<S: Connected>(
        self,
        mut qp: QueuePair<S, Init>,
        private_data: &[u8],
    ) -> Result<QueuePair<S>, Error> {
        let from = self.from();
        let Self { mut conn, request } = self;
        let behaviour = qp.behaviour;
        qp.behaviour.timeout = request.ack_timeout;
        qp.behaviour.retry_cnt = request.retry_count;
        qp.behaviour.rnr_retry = request.rnr_retry_count;
        let resources = behaviour
            .max_dest_rd_atomic
            .min(request.responder_resources);
        qp.behaviour.max_dest_rd_atomic = resources;
        let psn = random_psn();
        let end = End {
            address: cm::peer(request.route),
            qpn: request.qpn,
            psn,
        };
        let agreed = Agreed {
            path_mtu: request.path_mtu,
            max_rd_atomic: behaviour.max_rd_atomic.min(request.initiator_depth),
            selective: None,
        };
        // Ready before the answer: the peer may send at once.
        let local = cm::local(request.route);
        qp.ready_at(local, end, agreed, behaviour.cnp, Some(request.psn))
            .await?;
        let how = Accept {
            qpn: qp.qpn(),
            psn,
            responder_resources: resources,
            initiator_depth: agreed.max_rd_atomic,
            rnr_retry_count: behaviour.rnr_retry,
            srq: qp.shared_receive_queue().is_some(),
            private_data: private_data.to_vec(),
        };
        conn.accept(&how)
            .map_err(|error| Error::connection(from, error))?;
        match established(&mut conn, &qp.raw)
            .await
            .map_err(Error::Device)?
        {
            Event::Established(_) => Ok(connected(qp, conn, end, agreed, request.private_data)),
            Event::Refused {
                reason,
                info,
                private_data,
                ..
            } => Err(Error::Rejected(Rejected {
                peer: from,
                reason,
                private_data,
                info,
            })),
            other => Err(ended(from, &other)),
        }
    }

    /// Says no, with at most 148 bytes for its application.
    ///
    /// # Errors
    /// The private data is too long (the peer is refused without), or it has gone.
    pub fn refuse(self, private_data: &[u8]) -> Result<(), Error> {
        let from = self.from();
        self.conn
            .reject(RejReason::CONSUMER_DEFINED, private_data)
            .map_err(|error| Error::connection(from, error))
    }
}
