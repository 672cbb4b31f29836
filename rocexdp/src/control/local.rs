//! The control socket of `rocexdp run`: what programs on the same host ask the daemon.
//!
//! A Unix stream socket, mode 0600 or 0660 for one group, in JSON frames ([`super::frame`]): one request, then answers. A
//! file to copy is not named but passed (`SCM_RIGHTS`), opened by the client: so the daemon, which runs as root, reads what
//! the user may read and nothing else. A client that goes away ends what it asked for.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::{
    cmsg_space,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags,
    },
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::UnixStream,
};

use super::{
    copy::{CopyProgress, CopyReport},
    frame::{self, FrameError, LENGTH_BYTES},
};
use crate::events::Event;

/// Version of everything in this module.
pub const VERSION: u32 = 1;
/// Where sockets are unless named.
pub const DIRECTORY: &str = "/run/rocexdp";
/// How long a request, or room for an answer, is waited for.
pub const WAIT: Duration = Duration::from_secs(10);

/// A request, with the version of this module.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// [`VERSION`].
    pub version: u32,
    /// What is asked.
    pub request: Request,
}

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What the daemon runs on.
    Status,
    /// Copy the file that comes with the request.
    Copy {
        /// The peer's exchange.
        to: SocketAddr,
        /// Path below the peer's receive directory.
        path: String,
        /// The token's text, if there is one.
        token: Option<Vec<u8>>,
        /// Paths of selective repeat that the peer is offered; 0: go-back-N.
        #[serde(default)]
        selective_paths: u8,
    },
    /// The events kept; the new ones too, if it follows.
    Events {
        /// Go on until the client leaves.
        follow: bool,
    },
}

/// What the daemon says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// To [`Request::Status`]: the attach report.
    Status(serde_json::Value),
    /// The copy goes on.
    Progress(CopyProgress),
    /// The copy is done.
    Done(Box<CopyReport>),
    /// To [`Request::Events`]: one of them.
    Event(Box<Event>),
    /// The client was too slow for this many events.
    Missed(u64),
    /// That were all events.
    End,
    /// It failed, with the chain of causes.
    Failed(String),
}

/// The socket of the daemon on an interface of the calling thread's network namespace. Two namespaces can have interfaces
/// of one name, so the namespace's number is part of it.
///
/// # Errors
/// `/proc` is not mounted.
pub fn default_path(iface: &str) -> anyhow::Result<PathBuf> {
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net").context("network namespace")?;
    Ok(Path::new(DIRECTORY).join(format!("{iface}@{}.sock", namespace.st_ino)))
}

/// The socket of `rocexdp monitor` on an interface, in the same way.
///
/// # Errors
/// As [`default_path`].
pub fn monitor_path(iface: &str) -> anyhow::Result<PathBuf> {
    default_path(iface).map(|path| path.with_extension("monitor.sock"))
}

/// The daemon's end of one connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Takes an accepted connection.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// The request, and the file that came with it.
    ///
    /// # Errors
    /// Nothing came in time, or it can't be understood.
    pub async fn request(&mut self) -> Result<(Request, Option<File>), FrameError> {
        let whole = async {
            let mut prefix = [0; LENGTH_BYTES];
            let (got, file) = self
                .stream
                .async_io(Interest::READABLE, || {
                    receive_with_fd(&self.stream, &mut prefix)
                })
                .await?;
            if got == 0 {
                return Err(FrameError::Closed);
            }
            if let Some(rest) = prefix.get_mut(got..) {
                self.stream.read_exact(rest).await?;
            }
            let mut body = vec![0; frame::frame_length(prefix)?];
            self.stream.read_exact(&mut body).await?;
            Ok((body, file.map(File::from)))
        };
        let (body, file) = tokio::time::timeout(WAIT, whole)
            .await
            .unwrap_or(Err(FrameError::TimedOut(WAIT)))?;
        let envelope: Envelope = frame::decode(&body)?;
        if envelope.version != VERSION {
            let text = format!("version {} of the request, not {VERSION}", envelope.version);
            return Err(FrameError::Malformed(serde::de::Error::custom(text)));
        }
        Ok((envelope.request, file))
    }

    /// Answers.
    ///
    /// # Errors
    /// The client is gone, or does not read.
    pub async fn reply(&mut self, reply: &Reply) -> Result<(), FrameError> {
        frame::write(&mut self.stream, reply, WAIT).await
    }

    /// Waits until the client goes away (or says something more, which it has no business to). Cancel safe.
    pub async fn gone(&self) {
        // Anything but "nothing yet" is an end of file, or a broken client.
        while self.stream.readable().await.is_ok() {
            match self.stream.try_read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }
}

/// One `recvmsg` that takes at most one file descriptor; the kernel closes any further.
fn receive_with_fd(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        stream.as_fd(),
        &mut [IoSliceMut::new(bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            for received in files {
                file = Some(received);
            }
        }
    }
    Ok((received.bytes, file))
}

/// A client's connection to a daemon.
#[derive(Debug)]
pub struct Daemon {
    stream: UnixStream,
    path: PathBuf,
}

impl Daemon {
    /// Connects. `None` when no daemon listens there.
    ///
    /// # Errors
    /// The socket is closed to this user, or broken.
    pub async fn connect(path: &Path) -> anyhow::Result<Option<Self>> {
        match UnixStream::connect(path).await {
            Ok(stream) => Ok(Some(Self {
                stream,
                path: path.to_owned(),
            })),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(
                "the control socket {} is closed to you: the daemon's operator can open it to a group with --group",
                path.display()
            ),
            Err(error) => Err(error).with_context(|| format!("control socket {}", path.display())),
        }
    }

    /// Asks, with a file if there is one.
    ///
    /// # Errors
    /// The daemon is gone.
    pub async fn ask(&mut self, request: Request, file: Option<&File>) -> anyhow::Result<()> {
        let bytes = frame::encode(&Envelope {
            version: VERSION,
            request,
        })?;
        let send = async {
            let sent = self
                .stream
                .async_io(Interest::WRITABLE, || {
                    send_with_fd(&self.stream, &bytes, file)
                })
                .await?;
            self.stream
                .write_all(bytes.get(sent..).unwrap_or_default())
                .await
        };
        tokio::time::timeout(WAIT, send)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .with_context(|| format!("control socket {}", self.path.display()))
    }

    /// The next answer.
    ///
    /// # Errors
    /// The daemon is gone or silent, or says what this version does not understand.
    pub async fn reply(&mut self, wait: Duration) -> anyhow::Result<Reply> {
        frame::read(&mut self.stream, wait)
            .await
            .with_context(|| format!("the daemon at {}", self.path.display()))
    }
}

fn send_with_fd(stream: &UnixStream, bytes: &[u8], file: Option<&File>) -> io::Result<usize> {
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::other("no room for a file descriptor"));
    }
    let slices = [IoSlice::new(bytes)];
    Ok(rustix::net::sendmsg(
        stream.as_fd(),
        &slices,
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::FileExt};

    use super::*;

    fn pair() -> (Client, Daemon) {
        let (here, there) = UnixStream::pair().unwrap();
        (
            Client::new(there),
            Daemon {
                stream: here,
                path: PathBuf::from("test"),
            },
        )
    }

    #[tokio::test]
    async fn a_file_comes_with_its_request() {
        let (mut client, mut daemon) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"bytes").unwrap();
        let request = Request::Copy {
            to: "10.0.0.2:47910".parse().unwrap(),
            path: "file".to_owned(),
            token: Some(b"secret token".to_vec()),
            selective_paths: 1,
        };
        daemon.ask(request, Some(&file)).await.unwrap();
        let (request, got) = client.request().await.unwrap();
        assert!(matches!(request, Request::Copy { path, .. } if path == "file"));
        let mut bytes = [0; 5];
        got.unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"bytes");

        client.reply(&Reply::Failed("no".to_owned())).await.unwrap();
        let reply = daemon.reply(WAIT).await.unwrap();
        assert!(matches!(reply, Reply::Failed(text) if text == "no"));
    }

    #[tokio::test]
    async fn a_request_needs_no_file() {
        let (mut client, mut daemon) = pair();
        daemon.ask(Request::Status, None).await.unwrap();
        let (request, file) = client.request().await.unwrap();
        assert!(matches!(request, Request::Status));
        assert!(file.is_none());
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_noticed() {
        let (client, daemon) = pair();
        let waited = tokio::time::timeout(Duration::from_millis(20), client.gone()).await;
        assert!(waited.is_err(), "noticed too early");
        drop(daemon);
        tokio::time::timeout(Duration::from_secs(5), client.gone())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn requests_of_other_versions_and_junk_are_refused() {
        for body in [&br#"{"version":2,"request":"status"}"#[..], b"{}", b"junk"] {
            let (mut client, mut daemon) = pair();
            let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
            bytes.extend_from_slice(body);
            daemon.stream.write_all(&bytes).await.unwrap();
            assert!(matches!(
                client.request().await,
                Err(FrameError::Malformed(_))
            ));
        }
        let (mut client, daemon) = pair();
        drop(daemon);
        assert!(matches!(client.request().await, Err(FrameError::Closed)));
    }

    #[tokio::test]
    async fn no_socket_is_no_daemon() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("none.sock");
        assert!(Daemon::connect(&path).await.unwrap().is_none());
        // A socket file that a killed daemon left.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(Daemon::connect(&path).await.unwrap().is_none());
    }
}
