//! Listening and connecting over TCP.
//!
//! The exchange is [`super::handshake`]'s. Nothing that a peer says is used before it is checked, each of its steps is bounded in time,
//! and only so many peers may be at it at once. Must not: touch packets.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rocexdp_proto::{MAX_PATHS, SelectiveRepeat};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::{
    Agreed, Connected, Device, End, Error, Init, QueuePair, Refusal,
    handshake::{
        self, Answer, CheckedSide, Greeting, Hello, Ready as TheyAreReady, ServiceName, Side,
    },
    link::Link,
    places::Places,
    qp::Ready,
};
use crate::control::{
    exchange::{self, HANDSHAKE, PeerQp, Proof, RefuseCode, unmapped},
    frame,
    token::{Nonce, Token},
};

/// Peers at once that are heard, or wait for the application to accept or refuse them; more wait in line.
const MAX_STRANGERS: usize = 64;
/// The same, of one address.
const MAX_OF_ADDRESS: usize = 16;
/// Connections of one address that may be open at once without being accepted; more are closed.
const MAX_IN_LINE: usize = 512;
/// The same, of all addresses together.
const MAX_IN_ALL: usize = 4096;
/// After a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// So many in a row are no accident: the application is told.
const ACCEPT_FAILURES: u32 = 20;
/// How long one may take to say what it wants.
const ADMISSION: Duration = Duration::from_secs(5);

/// What to say when connecting.
#[derive(Clone, Debug, Default)]
pub struct Connect {
    token: Option<Token>,
    private_data: Vec<u8>,
}

impl Connect {
    /// Without token or private data.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With the token that the peer asks for. It is proven, not sent: the listening end knows then that this end has it. It does not
    /// prove that it has it itself, and nothing is encrypted: where an address may be another's, verify the peer by other means.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// With bytes for the peer's application, at most [`handshake::MAX_PRIVATE_DATA`].
    #[must_use]
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self
    }
}

fn our_address(device: &Device, stream: &TcpStream) -> Result<IpAddr, String> {
    let ours = stream.local_addr().map_err(|error| error.to_string())?;
    let ours = unmapped(ours.ip());
    if device.addresses().contains(&ours) {
        return Ok(ours);
    }
    Err(format!(
        "the connection's address here, {ours}, is none of {}'s: connect to, and listen on, addresses of the device",
        device.node().report().iface
    ))
}

fn side<S: Connected>(
    qp: &QueuePair<S, Init>,
    address: IpAddr,
    agreed: Agreed,
    data: &[u8],
) -> Side {
    Side {
        qp: PeerQp::new(qp.qpn(), qp.psn(), address, agreed.path_mtu, None),
        max_rd_atomic: agreed.max_rd_atomic,
        max_dest_rd_atomic: qp.behaviour.max_dest_rd_atomic,
        selective_repeat: agreed.selective.map_or(0, |s| s.paths),
        private_data: data.to_vec(),
    }
}

fn end(side: &CheckedSide) -> End {
    End {
        address: side.qp.gid,
        qpn: side.qp.qpn,
        psn: side.qp.psn,
    }
}

impl<S: Connected> QueuePair<S, Init> {
    /// What this end could agree to.
    fn offer(&self) -> Agreed {
        let largest = self.protection_domain().device().path_mtu();
        let wanted = self.behaviour.path_mtu;
        Agreed {
            path_mtu: wanted.map_or(largest, |wanted| wanted.min(largest)),
            max_rd_atomic: self.behaviour.max_rd_atomic,
            selective: handshake::selective(self.behaviour.selective_repeat.min(MAX_PATHS)),
        }
    }

    fn connected(self, stream: TcpStream, side: CheckedSide, agreed: Agreed) -> QueuePair<S> {
        let link = Link::watch(stream, Arc::downgrade(&self.raw));
        self.with_state(Ready {
            peer: end(&side),
            agreed,
            link: Some(link),
            private_data: side.private_data,
        })
    }

    /// Connects to a [`Listener`] at `peer`: takes the smaller path MTU of both, and as many READs and atomics as the answering end has
    /// resources for. Post receive requests before, so that what the peer sends at once finds one.
    ///
    /// Each step of the exchange may take 10 s, the peer's decision 15 s. Must be called in a tokio runtime, which lives as long as the
    /// connection: the task that notices the other end's leaving runs there, and with it the connection ends.
    ///
    /// # Errors
    /// The private data is too long; the peer can't be reached or refuses; the connection does not take the device's way; a route, next hop or MTU does not fit.
    pub async fn connect(self, peer: SocketAddr, say: &Connect) -> Result<QueuePair<S>, Error> {
        let fail = |why: String| Error::connection(peer, why);
        fits(&say.private_data).map_err(fail)?;
        let device = self.protection_domain().device().clone();
        let stream = timeout(HANDSHAKE, TcpStream::connect(peer)).await;
        let mut stream = stream
            .map_err(|_| fail(format!("no answer within {} s", HANDSHAKE.as_secs())))?
            .map_err(|error| fail(format!("{error} (does it listen there?)")))?;
        let _ = stream.set_nodelay(true);
        let local = our_address(&device, &stream).map_err(fail)?;
        let offer = self.offer();
        let ours = side(&self, local, offer, &say.private_data);
        let theirs = ask(&mut stream, ServiceName::of(S::TRANSPORT), ours, say)
            .await
            .map_err(|why| match why {
                Why::Refused(code, reason) => Error::Refused(Refusal::new(peer, code, &reason)),
                Why::Failed(why) | Why::Ours(why) => fail(why),
            })?;
        let theirs = check(theirs, peer.ip()).map_err(fail)?;
        if theirs.qp.path_mtu > offer.path_mtu {
            return Err(fail(
                "it answers with a larger path MTU than was offered".to_owned(),
            ));
        }
        if theirs.selective != smaller(offer.selective, theirs.selective) {
            return Err(fail(
                "it answers with selective repeat that was not offered".to_owned(),
            ));
        }
        let agreed = Agreed {
            path_mtu: theirs.qp.path_mtu,
            max_rd_atomic: offer.max_rd_atomic.min(theirs.max_dest_rd_atomic),
            selective: theirs.selective,
        };
        self.ready(local, end(&theirs), agreed, true).await?;
        frame::write(&mut stream, &TheyAreReady {}, HANDSHAKE)
            .await
            .map_err(|error| fail(error.to_string()))?;
        Ok(self.connected(stream, theirs, agreed))
    }
}

/// Whether private data is not too long, before anything is sent.
fn fits(private_data: &[u8]) -> Result<(), String> {
    let (len, most) = (private_data.len(), handshake::MAX_PRIVATE_DATA);
    if len <= most {
        return Ok(());
    }
    Err(format!("{len} bytes of private data are more than {most}"))
}

/// Selective repeat if both want it, over the smaller number of ports.
fn smaller(a: Option<SelectiveRepeat>, b: Option<SelectiveRepeat>) -> Option<SelectiveRepeat> {
    let paths = a?.paths.min(b?.paths);
    Some(SelectiveRepeat { paths })
}

fn check(side: Side, from: IpAddr) -> Result<CheckedSide, String> {
    let side = side.check()?;
    side.qp.of(from)?;
    Ok(side)
}

enum Why {
    /// The peer is told, or has told.
    Refused(RefuseCode, String),
    /// The peer is told that, and not why.
    Ours(String),
    Failed(String),
}

/// What a peer is told of a fault of ours: interfaces, routes and limits here are none of its business.
const OURS: &str = "the listening end could not set up its queue pair; its application knows why";

impl From<frame::FrameError> for Why {
    fn from(error: frame::FrameError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// From the greeting to the answer.
async fn ask(
    stream: &mut TcpStream,
    service: ServiceName,
    side: Side,
    say: &Connect,
) -> Result<Side, Why> {
    let body = frame::read_body(stream, HANDSHAKE).await?;
    let greeting: Greeting = exchange::opening_of(&body, handshake::PROTOCOL, handshake::VERSION)
        .map_err(|error| Why::Failed(error.to_string()))?;
    let hello = Hello {
        protocol: handshake::PROTOCOL.to_owned(),
        version: handshake::VERSION,
        service,
        side,
    };
    let sent = frame::encode(&hello)?;
    let request = sent.get(frame::LENGTH_BYTES..).unwrap_or_default();
    let tag = say
        .token
        .as_ref()
        .map(|token| token.tag(&greeting.nonce, request));
    if greeting.token && tag.is_none() {
        return Err(Why::Failed(
            "it asks for a token (Connect::token)".to_owned(),
        ));
    }
    frame::write(stream, &hello, HANDSHAKE).await?;
    frame::write(stream, &Proof { tag }, HANDSHAKE).await?;
    match frame::read(stream, HANDSHAKE + ADMISSION).await? {
        Answer::Accept { side } => Ok(side),
        Answer::Refuse { code, reason } => Err(Why::Refused(code, reason)),
    }
}

/// Takes connections of peers, on an address of a device. Dropping it ends listening; what was accepted stays.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    incoming: mpsc::Receiver<Result<Incoming, Error>>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    /// Listens on a TCP address of the device whose queue pairs it will be accepted with; port 0: any. With a token, peers must prove
    /// that they have it; without one, everyone who reaches the address may ask, and the application decides.
    ///
    /// # Errors
    /// The address is taken or not this host's.
    pub async fn bind(address: SocketAddr, token: Option<Token>) -> Result<Self, Error> {
        let listening = |error| Error::System {
            what: "listening for connections",
            error,
        };
        let listener = TcpListener::bind(address).await.map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let (tell, incoming) = mpsc::channel(1);
        let task = tokio::spawn(serve(listener, token, tell));
        Ok(Self {
            address,
            incoming,
            task,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next peer that wants to connect, and may. May be dropped at any time without losing one.
    ///
    /// # Errors
    /// For a second the system has taken no connection (no file descriptors are left, for instance). Listening goes on, and this may be
    /// called again.
    pub async fn next(&mut self) -> Result<Incoming, Error> {
        let ended = || Error::System {
            what: "taking connections",
            error: std::io::Error::other("the listening task has ended"),
        };
        self.incoming.recv().await.unwrap_or_else(|| Err(ended()))
    }
}

async fn serve(
    listener: TcpListener,
    token: Option<Token>,
    tell: mpsc::Sender<Result<Incoming, Error>>,
) {
    let places = Places::new(MAX_STRANGERS, MAX_OF_ADDRESS, MAX_IN_LINE, MAX_IN_ALL);
    let token = Arc::new(token);
    let mut strangers = JoinSet::new();
    let mut failures = 0;
    loop {
        while strangers.try_join_next().is_some() {}
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the peer was gone again: neither is for ever.
                failures += 1;
                if failures % ACCEPT_FAILURES == 0 {
                    // No room: the last failure has not been looked at yet.
                    let _ = tell.try_send(Err(Error::System {
                        what: "taking connections",
                        error,
                    }));
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        failures = 0;
        let Some(line) = places.stand(unmapped(from.ip())) else {
            continue;
        };
        let (token, tell) = (Arc::clone(&token), tell.clone());
        strangers.spawn(async move {
            let Some(_place) = line.place().await else {
                return;
            };
            if let Some(incoming) = admit(stream, from, token.as_ref().as_ref()).await {
                // The listener has gone: the peer sees the connection end.
                let _ = tell.send(Ok(incoming)).await;
            }
        });
    }
}

/// Greets, and learns what the peer wants and that it may ask.
async fn admit(mut stream: TcpStream, from: SocketAddr, token: Option<&Token>) -> Option<Incoming> {
    let _ = stream.set_nodelay(true);
    let heard = timeout(ADMISSION, hear(&mut stream, from.ip(), token))
        .await
        .ok()?;
    match heard {
        Ok((service, side)) => Some(Incoming {
            stream,
            from,
            service,
            side,
        }),
        Err(Why::Refused(code, reason)) => {
            refuse(stream, code, reason).await;
            None
        }
        Err(Why::Failed(_) | Why::Ours(_)) => None,
    }
}

async fn hear(
    stream: &mut TcpStream,
    from: IpAddr,
    token: Option<&Token>,
) -> Result<(ServiceName, CheckedSide), Why> {
    let refused = |code| move |why: String| Why::Refused(code, why);
    let nonce = Nonce::random();
    let greeting = Greeting {
        protocol: handshake::PROTOCOL.to_owned(),
        version: handshake::VERSION,
        nonce,
        token: token.is_some(),
    };
    frame::write(stream, &greeting, ADMISSION).await?;
    let body = frame::read_body(stream, ADMISSION).await?;
    let hello: Hello = exchange::opening_of(&body, handshake::PROTOCOL, handshake::VERSION)
        .map_err(|error| refused(RefuseCode::Version)(error.to_string()))?;
    let proof: Proof = frame::read(stream, ADMISSION).await?;
    if let Some(token) = token {
        let right = proof
            .tag
            .is_some_and(|tag| token.verify(&nonce, &body, &tag));
        if !right {
            let reason = if proof.tag.is_some() {
                "wrong token"
            } else {
                "no token"
            };
            return Err(Why::Refused(RefuseCode::Token, reason.to_owned()));
        }
    }
    let side = hello.side.check().map_err(refused(RefuseCode::Protocol))?;
    side.qp.of(from).map_err(refused(RefuseCode::Connection))?;
    Ok((hello.service, side))
}

/// Says no, and waits for the peer to have read it.
async fn refuse(mut stream: TcpStream, code: RefuseCode, reason: String) {
    let refuse = Answer::Refuse { code, reason };
    if frame::write(&mut stream, &refuse, ADMISSION).await.is_ok() {
        // A connection closed with bytes unread is reset, and the answer lost with it.
        let mut rest = [0; 256];
        let drain = async { while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {} };
        let _ = timeout(Duration::from_secs(1), drain).await;
    }
}

/// A peer that wants to connect. Dropped, it sees the connection end.
#[derive(Debug)]
#[must_use = "accept it or refuse it"]
pub struct Incoming {
    stream: TcpStream,
    from: SocketAddr,
    service: ServiceName,
    side: CheckedSide,
}

impl Incoming {
    /// Who.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// The service that it asks for: that of the queue pair to accept it with.
    #[must_use]
    pub fn service(&self) -> ServiceName {
        self.service
    }

    /// What its application gave along.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.side.private_data
    }

    /// Connects `qp` with it, and gives bytes along for its application, at most [`handshake::MAX_PRIVATE_DATA`]. Returns when both ends
    /// can receive: a peer that stalls takes 10 s, so where others wait, accept in a task of its own. The runtime lives as long as the
    /// connection, as for [`QueuePair::connect`].
    ///
    /// # Errors
    /// The private data is too long, the services differ, the connection's address is not the device's, no way back to the peer, or it
    /// has gone. It is told that there is no connection; why, only where that is its own affair.
    pub async fn accept<S: Connected>(
        mut self,
        qp: QueuePair<S, Init>,
        private_data: &[u8],
    ) -> Result<QueuePair<S>, Error> {
        let from = self.from;
        match self.agree(&qp, private_data).await {
            Ok(agreed) => Ok(qp.connected(self.stream, self.side, agreed)),
            Err(Why::Failed(why)) => Err(Error::connection(from, why)),
            Err(Why::Refused(code, why)) => {
                refuse(self.stream, code, why.clone()).await;
                Err(Error::connection(from, why))
            }
            Err(Why::Ours(why)) => {
                refuse(self.stream, RefuseCode::Internal, OURS.to_owned()).await;
                Err(Error::connection(from, why))
            }
        }
    }

    async fn agree<S: Connected>(
        &mut self,
        qp: &QueuePair<S, Init>,
        private_data: &[u8],
    ) -> Result<Agreed, Why> {
        let refused = |why: String| Why::Refused(RefuseCode::Connection, why);
        let ours = ServiceName::of(S::TRANSPORT);
        if ours != self.service {
            return Err(refused(format!(
                "the queue pair here is {ours}, not {}",
                self.service
            )));
        }
        fits(private_data).map_err(Why::Ours)?;
        let device = qp.protection_domain().device();
        let local = our_address(device, &self.stream).map_err(Why::Ours)?;
        let offer = qp.offer();
        let agreed = Agreed {
            path_mtu: offer.path_mtu.min(self.side.qp.path_mtu),
            max_rd_atomic: offer.max_rd_atomic.min(self.side.max_dest_rd_atomic),
            selective: smaller(offer.selective, self.side.selective),
        };
        let side = side(qp, local, agreed, private_data);
        qp.ready(local, end(&self.side), agreed, true)
            .await
            .map_err(|error| Why::Ours(error.to_string()))?;
        frame::write(&mut self.stream, &Answer::Accept { side }, HANDSHAKE).await?;
        let TheyAreReady {} = frame::read(&mut self.stream, HANDSHAKE).await?;
        Ok(agreed)
    }

    /// Says no, and why.
    pub async fn refuse(self, reason: &str) {
        refuse(self.stream, RefuseCode::Rejected, reason.to_owned()).await;
    }
}
