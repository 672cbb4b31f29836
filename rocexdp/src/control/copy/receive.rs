//! The receiving side of a copy: one peer's connection, from the greeting to the file under its name.
//!
//! Everything a peer says is checked before anything is done for it: version, token, path, size, room. A connection that
//! ends early, falls silent or breaks the protocol leaves nothing behind. Nothing here is on unless the operator asked.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc},
    time::Duration,
};

use rocexdp_proto::{ids::RKey, mem::Access};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    task::JoinHandle,
};

use super::{
    super::{
        confine::{Incoming, ReceiveDir, Refusal},
        exchange::{
            self, Answer, CheckedQp, Greeting, HANDSHAKE, Hello, KEEPALIVE, OpeningError, PeerQp,
            Proof, ReceiverCounts, RefuseCode, Report, SILENCE, Sha256Digest,
        },
        frame::{self, FrameError},
        token::{Nonce, Token},
    },
    connect_attr, local_address, sink,
};
use crate::{
    mem::MappedFile,
    node::{Node, NodeQp},
    out::chain,
};

/// Peers served at once; more are refused.
pub const MAX_PEERS: usize = 32;

/// What peers may do here.
#[derive(Debug)]
pub struct ReceivePolicy {
    /// Where files go; `None`: nothing is received.
    pub dir: Option<ReceiveDir>,
    /// What a peer must have.
    pub token: Option<Token>,
    /// Largest file, bytes.
    pub max_size: u64,
    /// Whether a file that exists may be replaced.
    pub overwrite: bool,
    /// How long a QP is kept, for its counters to be looked at, after its copy succeeded.
    pub linger: Duration,
}

/// Serves peers.
#[derive(Debug)]
pub struct Receiver {
    node: Arc<Node>,
    policy: ReceivePolicy,
    places: Semaphore,
}

/// A file that was received.
#[derive(Clone, Debug)]
pub struct Received {
    /// Path below the receive directory.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
    /// Digest.
    pub sha256: Sha256Digest,
}

/// Why there is no file.
#[derive(Debug)]
pub enum Failure {
    /// The peer was told this.
    Refused(RefuseCode, String),
    /// The connection failed.
    Connection(FrameError),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(_, reason) => write!(f, "refused: {reason}"),
            Self::Connection(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<FrameError> for Failure {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Malformed(_) | FrameError::TooLong(_) => {
                Self::Refused(RefuseCode::Protocol, error.to_string())
            }
            error => Self::Connection(error),
        }
    }
}

impl From<OpeningError> for Failure {
    fn from(error: OpeningError) -> Self {
        match error {
            OpeningError::Frame(error) => error.into(),
            error => Self::Refused(RefuseCode::Version, error.to_string()),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Path(_) => RefuseCode::Path,
            Refusal::Exists(_) => RefuseCode::Exists,
            Refusal::Space(_) => RefuseCode::Space,
            Refusal::Io(..) => RefuseCode::Internal,
        };
        Self::Refused(code, refusal.to_string())
    }
}

fn internal(error: impl Into<anyhow::Error>) -> Failure {
    Failure::Refused(RefuseCode::Internal, chain(&error.into()))
}

impl Receiver {
    /// A receiver on this node.
    #[must_use]
    pub fn new(node: Arc<Node>, policy: ReceivePolicy) -> Self {
        Self {
            node,
            policy,
            places: Semaphore::new(MAX_PEERS),
        }
    }

    /// What peers may do.
    #[must_use]
    pub fn policy(&self) -> &ReceivePolicy {
        &self.policy
    }

    /// Serves one connection to its end and closes it.
    ///
    /// # Errors
    /// See [`Failure`]; the peer has been told, if it could be.
    pub async fn serve(&self, mut stream: TcpStream) -> Result<Received, Failure> {
        let served = match self.places.try_acquire() {
            Ok(_place) => self.copy(&mut stream).await,
            Err(_) => Err(Failure::Refused(
                RefuseCode::Busy,
                format!("{MAX_PEERS} copies are under way already; try again later"),
            )),
        };
        if let Err(Failure::Refused(code, reason)) = &served {
            let refuse = Answer::Refuse {
                code: *code,
                reason: reason.clone(),
            };
            if frame::write(&mut stream, &refuse, HANDSHAKE).await.is_ok() {
                close_gently(stream).await;
            }
        }
        served
    }

    async fn copy(&self, stream: &mut TcpStream) -> Result<Received, Failure> {
        let _ = stream.set_nodelay(true);
        let connection = stream.local_addr().map_err(FrameError::Io)?;
        let (hello, peer) = self.admit(stream).await?;
        let (dir, size) = self.check_size(&hello)?;
        let incoming = dir.create(&hello.path, size, self.policy.overwrite)?;
        let mut arrival = self.prepare(incoming, size, connection, peer).await?;
        frame::write(stream, &arrival.accept, HANDSHAKE).await?;

        let sha256 = arrival.follow(stream).await?;
        let receiver = arrival.counts().await;
        let check = arrival.finish(sha256);
        working(stream, check).await?;
        frame::write(stream, &Answer::Done { sha256, receiver }, HANDSHAKE).await?;
        if let Some(qp) = arrival.qp.take().filter(|_| !self.policy.linger.is_zero()) {
            let linger = self.policy.linger;
            tokio::spawn(async move {
                tokio::time::sleep(linger).await;
                drop(qp);
            });
        }
        Ok(Received {
            path: hello.path,
            bytes: size,
            sha256,
        })
    }

    /// Greets, and learns who is there and that it may ask.
    async fn admit(&self, stream: &mut TcpStream) -> Result<(Hello, CheckedQp), Failure> {
        let nonce = Nonce::random();
        let greeting = Greeting {
            protocol: exchange::PROTOCOL.to_owned(),
            version: exchange::VERSION,
            nonce,
            token: self.policy.token.is_some(),
        };
        frame::write(stream, &greeting, HANDSHAKE).await?;
        let body = frame::read_body(stream, HANDSHAKE).await?;
        let hello: Hello = exchange::opening(&body)?;
        let proof: Proof = frame::read(stream, HANDSHAKE).await?;
        if let Some(token) = &self.policy.token {
            let right = proof
                .tag
                .is_some_and(|tag| token.verify(&nonce, &body, &tag));
            if !right {
                let reason = if proof.tag.is_some() {
                    "wrong token"
                } else {
                    "no token"
                };
                return Err(Failure::Refused(RefuseCode::Token, reason.to_owned()));
            }
        }
        let peer = hello
            .qp
            .check()
            .map_err(|why| Failure::Refused(RefuseCode::Protocol, why))?;
        Ok((hello, peer))
    }

    fn check_size(&self, hello: &Hello) -> Result<(&ReceiveDir, u64), Failure> {
        let Some(dir) = &self.policy.dir else {
            return Err(Failure::Refused(
                RefuseCode::ReceivingOff,
                "this host receives nothing (start it with --receive-dir)".to_owned(),
            ));
        };
        if hello.size > self.policy.max_size {
            return Err(Failure::Refused(
                RefuseCode::Size,
                format!(
                    "the file has {} bytes, at most {} are taken here (--max-size)",
                    hello.size, self.policy.max_size
                ),
            ));
        }
        Ok((dir, hello.size))
    }

    /// Makes the file writable for the peer, and connects a QP with it.
    async fn prepare(
        &self,
        incoming: Incoming,
        size: u64,
        connection: SocketAddr,
        peer: CheckedQp,
    ) -> Result<Arrival, Failure> {
        let node = &self.node;
        let cannot = |why: String| Failure::Refused(RefuseCode::Connection, why);
        let local = local_address(node, connection.ip(), peer.gid).ok_or_else(|| {
            cannot(format!(
                "{} has no address that can talk to {}",
                node.report().iface,
                peer.gid
            ))
        })?;
        let path_mtu = peer.path_mtu.min(node.path_mtu());
        let memory = MappedFile::map_rw(incoming.file(), size).map_err(internal)?;
        let region = node
            .register(memory, Access::REMOTE_WRITE)
            .map_err(internal)?;
        let region = Registered {
            node: Arc::clone(node),
            rkey: region.rkey,
            va: region.va,
        };
        let qp = node.create_qp(1, 1).map_err(internal)?;
        qp.connect(connect_attr(local, peer, path_mtu, Access::REMOTE_WRITE))
            .await
            .map_err(|error| cannot(chain(&error)))?;
        let accept = Answer::Accept {
            qp: PeerQp::new(qp.qpn(), qp.psn(), local, path_mtu),
            rkey: region.rkey.0,
            va: region.va,
            len: size,
        };
        let file = incoming.file().try_clone().map_err(internal)?;
        let (tell, placed) = mpsc::channel();
        let hashing = tokio::task::spawn_blocking(move || sink::hash_placed(&file, &placed));
        Ok(Arrival {
            accept,
            size,
            region: Some(region),
            qp: Some(qp),
            incoming: Some(incoming),
            tell: Some(tell),
            hashing: Some(hashing),
        })
    }
}

/// A region that the peer can reach as long as this lives.
struct Registered {
    node: Arc<Node>,
    rkey: RKey,
    va: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.node.deregister(self.rkey);
    }
}

/// A file under way. Dropped, it never was.
struct Arrival {
    accept: Answer,
    size: u64,
    // Dropped in this order: a peer that still WRITEs meets no QP, and not a QP whose region is gone.
    qp: Option<NodeQp>,
    region: Option<Registered>,
    incoming: Option<Incoming>,
    tell: Option<mpsc::Sender<u64>>,
    hashing: Option<JoinHandle<std::io::Result<(u64, Sha256Digest)>>>,
}

impl Arrival {
    /// Follows the peer's reports to the last one.
    async fn follow(&mut self, stream: &mut TcpStream) -> Result<Sha256Digest, Failure> {
        let broken = |why: &str| Err(Failure::Refused(RefuseCode::Protocol, why.to_owned()));
        let mut known = 0;
        loop {
            let report: Report = frame::read(stream, SILENCE).await?;
            let (Report::Placed { bytes } | Report::Commit { bytes, .. }) = report;
            if bytes < known || bytes > self.size {
                return broken("more bytes reported than the file has, or fewer than before");
            }
            known = bytes;
            if let Some(tell) = &self.tell {
                // If the hashing thread died, its error comes at the end.
                let _ = tell.send(bytes);
            }
            if let Report::Commit { sha256, .. } = report {
                if bytes != self.size {
                    return broken("the copy ends before the file does");
                }
                return Ok(sha256);
            }
        }
    }

    async fn counts(&self) -> ReceiverCounts {
        let Some(qp) = &self.qp else {
            return ReceiverCounts::default();
        };
        // An engine that has ended has no counts; the copy will fail by itself.
        let info = qp.info().await.unwrap_or_default();
        ReceiverCounts {
            np_cnp_sent: info.np_cnp_sent,
            out_of_sequence: info.out_of_sequence,
            duplicate_request: info.duplicate_request,
            icrc_errors: info.icrc_errors,
        }
    }

    /// Closes the region, compares the digests and gives the file its name.
    fn finish(
        &mut self,
        theirs: Sha256Digest,
    ) -> impl Future<Output = Result<(), Failure>> + use<> {
        // From here on the peer can't change a byte.
        self.region = None;
        self.tell = None;
        let (hashing, incoming, size) = (self.hashing.take(), self.incoming.take(), self.size);
        async move {
            let (Some(hashing), Some(incoming)) = (hashing, incoming) else {
                return Err(internal(anyhow::anyhow!("the file was finished twice")));
            };
            let (bytes, ours) = hashing.await.map_err(internal)?.map_err(internal)?;
            if bytes != size || ours != theirs {
                return Err(Failure::Refused(
                    RefuseCode::Digest,
                    format!("SHA-256 of what arrived is {ours}, of what was sent {theirs}"),
                ));
            }
            tokio::task::spawn_blocking(move || incoming.publish())
                .await
                .map_err(internal)??;
            Ok(())
        }
    }
}

/// Waits for `work` and lets the peer hear of us meanwhile.
async fn working(
    stream: &mut TcpStream,
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tokio::pin!(work);
    loop {
        match tokio::time::timeout(KEEPALIVE, &mut work).await {
            Ok(done) => return done,
            Err(_) => frame::write(stream, &Answer::Working, HANDSHAKE).await?,
        }
    }
}

/// Closes so that what was said last is read: unread bytes would make the kernel send a reset, which overtakes it.
async fn close_gently(mut stream: TcpStream) {
    let drain = async {
        stream.shutdown().await?;
        let mut bytes = [0; 4096];
        for _ in 0..64 {
            if stream.read(&mut bytes).await? == 0 {
                break;
            }
        }
        Ok::<_, std::io::Error>(())
    };
    // Whatever the peer does now, the answer was given.
    let _ = tokio::time::timeout(Duration::from_secs(1), drain).await;
}
