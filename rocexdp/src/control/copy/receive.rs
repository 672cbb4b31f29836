//! The receiving side of a copy: one peer's connection, from the greeting to the file under its name.
//!
//! Everything a peer says is checked before anything is done for it: version, token, path, size, room. A connection that
//! ends early, falls silent or breaks the protocol leaves nothing behind. Nothing here is on unless the operator asked.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rocexdp_proto::{ids::RKey, mem::Access};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Semaphore, SemaphorePermit},
    task::spawn_blocking,
};

use super::{
    super::{
        confine::{Incoming, ReceiveDir, Refusal},
        exchange::{
            self, Answer, CheckedQp, Greeting, HANDSHAKE, Hello, KEEPALIVE, OpeningError, PeerQp,
            Proof, ReceiverCounts, RefuseCode, Report, SILENCE, STALL, Sha256Digest,
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

/// Copies at once; more peers are refused.
const MAX_COPIES: usize = 32;
/// Connections at once whose peer has not yet shown that it may ask; more are refused.
const MAX_STRANGERS: usize = 64;
/// How long a peer may stay one of them.
const ADMISSION: Duration = Duration::from_secs(5);
/// Connections to take at once: those, and as many that are just being refused.
pub const MAX_CONNECTIONS: usize = MAX_COPIES + 2 * MAX_STRANGERS;

/// What peers may do here.
#[derive(Debug)]
pub struct ReceivePolicy {
    /// Where files go; `None`: nothing is received.
    pub dir: Option<Arc<ReceiveDir>>,
    /// What a peer must have.
    pub token: Option<Token>,
    /// Largest file, bytes.
    pub max_size: u64,
    /// Whether a file that exists may be replaced.
    pub overwrite: bool,
    /// Selective repeat with peers that ask for it.
    pub selective: bool,
    /// How long a QP is kept, for its counters to be looked at, after its copy succeeded.
    pub linger: Duration,
}

/// Serves peers.
#[derive(Debug)]
pub struct Receiver {
    node: Arc<Node>,
    policy: ReceivePolicy,
    places: Semaphore,
    strangers: Semaphore,
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
            places: Semaphore::new(MAX_COPIES),
            strangers: Semaphore::new(MAX_STRANGERS),
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
        let served = self.copy(&mut stream).await;
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
        let stranger = place(&self.strangers, "connections are waiting to be admitted")?;
        let (hello, peer) = tokio::time::timeout(ADMISSION, self.admit(stream))
            .await
            .unwrap_or(Err(FrameError::TimedOut(ADMISSION).into()))?;
        // Only who may ask can take the place of others.
        let _place = place(&self.places, "copies are under way")?;
        drop(stranger);
        let (dir, size) = self.check_size(&hello)?;
        let (path, overwrite) = (hello.path.clone(), self.policy.overwrite);
        let incoming = spawn_blocking(move || dir.create(&path, size, overwrite))
            .await
            .map_err(internal)??;
        let mut arrival = self.prepare(incoming, size, connection, peer).await?;
        frame::write(stream, &arrival.accept, HANDSHAKE).await?;

        let sha256 = follow(stream, size, STALL).await?;
        let receiver = arrival.counts().await;
        working(stream, arrival.finish(sha256)).await?;
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
        let from = stream.peer_addr().map_err(FrameError::Io)?.ip();
        let peer = peer
            .of(from)
            .map_err(|why| Failure::Refused(RefuseCode::Connection, why))?;
        Ok((hello, peer))
    }

    fn check_size(&self, hello: &Hello) -> Result<(Arc<ReceiveDir>, u64), Failure> {
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
        Ok((Arc::clone(dir), hello.size))
    }

    /// Makes the file writable for the peer, and connects a QP with it.
    async fn prepare(
        &self,
        incoming: Incoming,
        size: u64,
        connection: SocketAddr,
        mut peer: CheckedQp,
    ) -> Result<Arrival, Failure> {
        let node = &self.node;
        let cannot = |why: String| Failure::Refused(RefuseCode::Connection, why);
        let local = local_address(node, connection.ip()).map_err(cannot)?;
        let path_mtu = peer.path_mtu.min(node.path_mtu());
        peer.selective = peer.selective.filter(|_| self.policy.selective);
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
        // Over no other QP can this file be reached, whoever learns the key.
        node.bind(region.rkey, qp.qpn()).map_err(internal)?;
        qp.connect(connect_attr(local, peer, path_mtu, Access::REMOTE_WRITE))
            .await
            .map_err(|error| cannot(chain(&error)))?;
        let accept = Answer::Accept {
            qp: PeerQp::new(qp.qpn(), qp.psn(), local, path_mtu, peer.selective),
            rkey: region.rkey.0,
            va: region.va,
            len: size,
        };
        Ok(Arrival {
            accept,
            size,
            region: Some(region),
            qp: Some(qp),
            incoming: Some(incoming),
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
}

impl Arrival {
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
    ///
    /// Dropped, the future ends the work at the next chunk; but a file that is being brought to the disk already may still
    /// get its name.
    fn finish(
        &mut self,
        theirs: Sha256Digest,
    ) -> impl Future<Output = Result<(), Failure>> + use<> {
        // Every worker has forgotten the region when this returns: from here on the peer can't change a byte.
        self.region = None;
        let (incoming, size) = (self.incoming.take(), self.size);
        async move {
            let Some(incoming) = incoming else {
                return Err(internal(anyhow::anyhow!("the file was finished twice")));
            };
            let wanted = StopOnDrop::default();
            let stop = Arc::clone(&wanted.0);
            spawn_blocking(move || verify_and_publish(incoming, size, theirs, &stop))
                .await
                .map_err(internal)?
        }
    }
}

/// Sets the flag when dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Blocks for as long as hashing the file and bringing it to the disk takes.
fn verify_and_publish(
    incoming: Incoming,
    size: u64,
    theirs: Sha256Digest,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let ours = sink::hash(incoming.file(), size, stop).map_err(internal)?;
    if ours != theirs {
        return Err(Failure::Refused(
            RefuseCode::Digest,
            format!("SHA-256 of what arrived is {ours}, of what was sent {theirs}"),
        ));
    }
    Ok(incoming.publish()?)
}

/// One of the places, or a refusal.
fn place<'a>(places: &'a Semaphore, why: &str) -> Result<SemaphorePermit<'a>, Failure> {
    places.try_acquire().map_err(|_| {
        Failure::Refused(
            RefuseCode::Busy,
            format!("too many {why} already; try again later"),
        )
    })
}

/// Follows the peer's reports to the last one.
async fn follow<R>(from: &mut R, size: u64, stall: Duration) -> Result<Sha256Digest, Failure>
where
    R: AsyncRead + Unpin,
{
    let broken = |why: &str| Err(Failure::Refused(RefuseCode::Protocol, why.to_owned()));
    let mut known = 0;
    let mut advanced = Instant::now();
    loop {
        let report: Report = frame::read(from, SILENCE).await?;
        let (Report::Placed { bytes } | Report::Commit { bytes, .. }) = report;
        if bytes < known || bytes > size {
            return broken("more bytes reported than the file has, or fewer than before");
        }
        if let Report::Commit { sha256, .. } = report {
            if bytes != size {
                return broken("the copy ends before the file does");
            }
            return Ok(sha256);
        }
        if bytes > known {
            (known, advanced) = (bytes, Instant::now());
        } else if advanced.elapsed() >= stall {
            return broken(&format!(
                "no byte was placed for {} s after {known} of {size}",
                stall.as_secs()
            ));
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

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
