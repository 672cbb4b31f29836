//! The connecting side's half of the exchange: asking, telling how far the copy is, and what the peer answers.
//!
//! Nothing that the peer says is used before it is checked. See [`super::super::exchange`] for the messages.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use rocexdp_proto::{SelectiveRepeat, ids::RKey};
use tokio::{
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use super::{
    super::{
        exchange::{
            self, Answer, CheckedQp, Greeting, HANDSHAKE, Hello, PeerQp, Proof, ReceiverCounts,
            Region, Report, SILENCE, Sha256Digest,
        },
        frame::{self, FrameError},
        token::Token,
    },
    CopyProgress, local_address,
};
use crate::{
    net::{IfIndex, neigh::Route},
    node::{Node, NodeQp},
};

/// A refusal by the peer, so that callers can tell it from a failure.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Who.
    pub peer: SocketAddr,
    /// Kind.
    pub code: exchange::RefuseCode,
    /// Why, in the peer's words.
    pub reason: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The peer's words go to a terminal: no control characters.
        let reason: String = self
            .reason
            .chars()
            .filter(|c| !c.is_control())
            .take(500)
            .collect();
        write!(f, "{} refused the copy: {reason}", self.peer)
    }
}

impl std::error::Error for Refused {}

/// Whether the peer refused what was said to it as such.
pub(super) fn is_protocol(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    refused.is_some_and(|refused| refused.code == exchange::RefuseCode::Protocol)
}

/// What is asked of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    /// Where the file shall be.
    pub path: &'a str,
    /// Its bytes.
    pub size: u64,
    /// The token shared with the peer.
    pub token: Option<&'a Token>,
    /// Selective repeat, if the peer has it too.
    pub selective: Option<SelectiveRepeat>,
}

/// The TCP side.
pub(super) struct Exchange {
    peer: SocketAddr,
    local: IpAddr,
    writer: OwnedWriteHalf,
    /// The peer's answers, read by a task so that waiting for one can be given up.
    pub answers: tokio::sync::mpsc::Receiver<Result<Vec<u8>, FrameError>>,
    reading: JoinHandle<()>,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read_answers(
    mut from: OwnedReadHalf,
    to: tokio::sync::mpsc::Sender<Result<Vec<u8>, FrameError>>,
) {
    // The sender of the copy watches the time.
    const LONG: Duration = Duration::from_secs(7 * 24 * 3600);
    loop {
        let body = frame::read_body(&mut from, LONG).await;
        let last = body.is_err();
        if to.send(body).await.is_err() || last {
            return;
        }
    }
}

/// Which interface leads to `to`, for messages: the system's own do not say.
fn way(to: SocketAddr) -> String {
    let scope = match to {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Some(IfIndex(v6.scope_id())),
        _ => None,
    };
    Route::lookup(to.ip(), None, scope).map_or_else(
        |_| String::new(),
        |route| format!(" through {}", route.name),
    )
}

impl Exchange {
    pub async fn connect(to: SocketAddr) -> anyhow::Result<Self> {
        let stream = match timeout(HANDSHAKE, TcpStream::connect(to)).await {
            Ok(stream) => stream.with_context(|| {
                format!(
                    "connecting to {to}{} (is `rocexdp run --receive-dir` running there?)",
                    way(to)
                )
            })?,
            Err(_) => bail!(
                "connecting to {to}{}: no answer within {} s",
                way(to),
                HANDSHAKE.as_secs()
            ),
        };
        stream.set_nodelay(true).context("setting TCP_NODELAY")?;
        let local = stream.local_addr().context("own address")?.ip();
        let (reader, writer) = stream.into_split();
        let (tell, answers) = tokio::sync::mpsc::channel(4);
        let reading = tokio::spawn(read_answers(reader, tell));
        Ok(Self {
            peer: to,
            local,
            writer,
            answers,
            reading,
        })
    }

    async fn body(&mut self, wait: Duration) -> anyhow::Result<Vec<u8>> {
        let body = match timeout(wait, self.answers.recv()).await {
            Ok(Some(body)) => body,
            Ok(None) => Err(FrameError::Closed),
            Err(_) => Err(FrameError::TimedOut(wait)),
        };
        body.with_context(|| format!("exchange with {}", self.peer))
    }

    /// The next answer; a refusal is an error.
    async fn answer(&mut self, wait: Duration) -> anyhow::Result<Answer> {
        let body = self.body(wait).await?;
        self.parse(&body)
    }

    pub fn parse(&self, body: &[u8]) -> anyhow::Result<Answer> {
        let answer = frame::decode(body).with_context(|| format!("exchange with {}", self.peer))?;
        if let Answer::Refuse { code, reason } = answer {
            bail!(Refused {
                peer: self.peer,
                code,
                reason
            });
        }
        Ok(answer)
    }

    pub async fn tell(&mut self, report: &Report) -> anyhow::Result<()> {
        frame::write(&mut self.writer, report, SILENCE)
            .await
            .with_context(|| format!("exchange with {}", self.peer))
    }

    /// From the greeting to where to WRITE: the peer's QP, its region, and the address to use.
    pub async fn ask(
        &mut self,
        node: &Node,
        qp: &NodeQp,
        question: &Question<'_>,
    ) -> anyhow::Result<(CheckedQp, Region, IpAddr)> {
        let Question {
            path,
            size,
            token,
            selective,
        } = *question;
        let peer = self.peer;
        let with_peer = || format!("exchange with {peer}");
        let body = self.body(HANDSHAKE).await?;
        let greeting = match exchange::opening::<Greeting>(&body) {
            Ok(greeting) => greeting,
            Err(error) => {
                // A host that is too busy says so instead of a greeting.
                self.parse(&body).map_err(|refused| {
                    if refused.is::<Refused>() {
                        refused
                    } else {
                        anyhow!(error)
                    }
                })?;
                bail!("exchange with {peer}: an answer before the greeting");
            }
        };
        let local = local_address(node, self.local)
            .map_err(|why| anyhow!("exchange with {peer}: {why}"))?;
        let hello = Hello {
            protocol: exchange::PROTOCOL.to_owned(),
            version: exchange::VERSION,
            qp: PeerQp::new(qp.qpn(), qp.psn(), local, node.path_mtu(), selective),
            path: path.to_owned(),
            size,
        };
        let sent = frame::encode(&hello).with_context(with_peer)?;
        let tag = token.map(|token| {
            token.tag(
                &greeting.nonce,
                sent.get(frame::LENGTH_BYTES..).unwrap_or_default(),
            )
        });
        if greeting.token && tag.is_none() {
            bail!("{peer} asks for a token: give the file that holds it with --token-file");
        }
        frame::write(&mut self.writer, &hello, HANDSHAKE)
            .await
            .with_context(with_peer)?;
        frame::write(&mut self.writer, &Proof { tag }, HANDSHAKE)
            .await
            .with_context(with_peer)?;
        let Answer::Accept {
            qp: theirs,
            rkey,
            va,
            len,
        } = self.answer(HANDSHAKE).await?
        else {
            bail!("exchange with {peer}: an answer that does not fit the question");
        };
        let theirs = theirs
            .check()
            .and_then(|theirs| theirs.of(peer.ip()))
            .map_err(|why| anyhow!("exchange with {peer}: {why}"))?;
        if theirs.path_mtu > node.path_mtu() {
            bail!("exchange with {peer}: it answers with a larger path MTU than was offered");
        }
        let paths = |with: Option<SelectiveRepeat>| with.map_or(0, |with| with.paths);
        if paths(theirs.selective) > paths(selective) {
            bail!(
                "exchange with {peer}: it answers with more of selective repeat than was offered"
            );
        }
        if len != size || va.checked_add(len).is_none() {
            bail!("exchange with {peer}: it offers a region of {len} bytes for {size}");
        }
        Ok((
            theirs,
            Region {
                rkey: RKey(rkey),
                va,
            },
            local,
        ))
    }

    /// Waits until the file is there. Touches `progress` whenever the peer is heard of, so that who watches it knows that
    /// the copy goes on.
    ///
    /// # Errors
    /// [`Refused`]: there is no file. Otherwise the connection failed, and the peer may have the file.
    pub async fn commit(
        &mut self,
        bytes: u64,
        sha256: Sha256Digest,
        progress: &watch::Sender<CopyProgress>,
    ) -> anyhow::Result<ReceiverCounts> {
        // A report that did not leave here whole is none: there is no file.
        self.tell(&Report::Commit { bytes, sha256 }).await?;
        match self.committed(sha256, progress).await {
            Err(error) if !error.is::<Refused>() => Err(error.context(
                "outcome unknown: the peer may have the file (all of it was sent, and no answer came)",
            )),
            answered => answered,
        }
    }

    async fn committed(
        &mut self,
        sha256: Sha256Digest,
        progress: &watch::Sender<CopyProgress>,
    ) -> anyhow::Result<ReceiverCounts> {
        loop {
            match self.answer(SILENCE).await? {
                Answer::Working => progress.send_modify(|_| {}),
                Answer::Done {
                    sha256: theirs,
                    receiver,
                } if theirs == sha256 => {
                    return Ok(receiver);
                }
                Answer::Done { .. } => bail!("{} has other bytes (SHA-256 differs)", self.peer),
                _ => bail!("exchange with {}: an answer that does not fit", self.peer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: Sha256Digest = Sha256Digest([7; 32]);

    /// An exchange before Commit, and the peer's end of it.
    async fn pair() -> (Exchange, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exchange = Exchange::connect(listener.local_addr().unwrap());
        let (exchange, accepted) = tokio::join!(exchange, listener.accept());
        (exchange.unwrap(), accepted.unwrap().0)
    }

    /// What commit returns when the peer answers so and then leaves.
    async fn answered(answers: &[Answer]) -> (anyhow::Result<ReceiverCounts>, bool) {
        let (mut exchange, mut peer) = pair().await;
        let (tell, progress) = watch::channel(CopyProgress::default());
        let peer = async move {
            let report: Report = frame::read(&mut peer, SILENCE).await.unwrap();
            assert!(matches!(report, Report::Commit { bytes: 5, .. }));
            for answer in answers {
                frame::write(&mut peer, answer, SILENCE).await.unwrap();
            }
        };
        let (done, ()) = tokio::join!(exchange.commit(5, DIGEST, &tell), peer);
        (done, progress.has_changed().unwrap())
    }

    fn done() -> Answer {
        Answer::Done {
            sha256: DIGEST,
            receiver: ReceiverCounts::default(),
        }
    }

    #[tokio::test]
    async fn a_peer_that_works_is_seen_to() {
        let (result, heard) = answered(&[done()]).await;
        assert!(result.is_ok() && !heard);
        let (result, heard) = answered(&[Answer::Working, done()]).await;
        assert!(result.is_ok() && heard);
    }

    #[tokio::test]
    async fn a_connection_that_ends_after_commit_leaves_the_outcome_open() {
        for answers in [&[][..], &[Answer::Working]] {
            let error = answered(answers).await.0.unwrap_err().to_string();
            assert!(error.contains("outcome unknown"), "{error}");
        }
        let refuse = Answer::Refuse {
            code: exchange::RefuseCode::Digest,
            reason: "other bytes".to_owned(),
        };
        let error = answered(&[refuse]).await.0.unwrap_err();
        assert!(error.is::<Refused>());
        assert!(!format!("{error:#}").contains("outcome"), "{error:#}");
    }
}
