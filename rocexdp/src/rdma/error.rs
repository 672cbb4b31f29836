//! What can go wrong, for programs to tell apart and for people to read.
//!
//! Must not: decide anything.

use std::{fmt, io, net::SocketAddr};

use rocexdp_proto::{ids::Qpn, verbs};

use crate::control::exchange::RefuseCode;

/// Why something of this module failed. Its text names the object, address or option, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The interface, the engine or one of its limits.
    #[error("{0:#}")]
    Device(anyhow::Error),
    /// Memory could not be mapped, an eventfd not be made.
    #[error("{what}: {error}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// A range that does not lie in its region.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The rights do not fit the region.
    #[error("{0}")]
    Access(&'static str),
    /// The peer can't be reached over TCP, or broke off.
    #[error("connecting with {peer}: {why}")]
    Connection {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        why: String,
    },
    /// The peer said no.
    #[error("{0}")]
    Refused(Refusal),
    /// The peer said no, by a REJ of the communication manager.
    #[error("{0}")]
    Rejected(super::cm::Rejected),
}

impl Error {
    pub(super) fn connection(peer: SocketAddr, why: impl fmt::Display) -> Self {
        Self::Connection {
            peer,
            why: why.to_string(),
        }
    }
}

/// A peer's refusal of a connection.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Who.
    pub peer: SocketAddr,
    /// Kind.
    pub code: RefuseCode,
    /// Why, in the peer's words, at most 500 characters and none that controls a terminal.
    pub reason: String,
}

impl Refusal {
    pub(super) fn new(peer: SocketAddr, code: RefuseCode, reason: &str) -> Self {
        let shown = reason.chars().filter(|c| !c.is_control()).take(500);
        Self {
            peer,
            code,
            reason: shown.collect(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused the connection: {}", self.peer, self.reason)
    }
}

/// A queue of requests, by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QueueName {
    /// Of the queue pair with this number.
    Qp(Qpn),
    /// The device's shared receive queue with this number.
    Srq(u32),
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qp(qpn) => write!(f, "QP {qpn}"),
            Self::Srq(num) => write!(f, "shared receive queue {num}"),
        }
    }
}

/// A request that was not taken. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{queue}: {why}")]
pub struct PostError {
    /// Where it was posted.
    pub queue: QueueName,
    /// Why it was not taken.
    pub why: PostFault,
}

impl PostError {
    /// Whether the queue was full: after completions have been polled, the request may be posted again.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.why == PostFault::Queue(verbs::PostError::Full)
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostFault {
    /// The queue did not take it: full, too many slices, ...
    #[error(transparent)]
    Queue(#[from] verbs::PostError),
    /// More bytes than the peer's slice has room for.
    #[error("{len} B do not fit into {room} B")]
    NoRoom {
        /// Bytes of the request.
        len: u64,
        /// Bytes of the slice.
        room: u64,
    },
    /// A READ of another length than its target's.
    #[error("a READ fills its memory exactly: {len} B are asked for, into {room} B")]
    ReadLength {
        /// Bytes of the peer's slice.
        len: u64,
        /// Bytes of the target.
        room: u64,
    },
    /// The queue pair's worker has died: it would never complete. [`CompletionQueue::failure`](super::CompletionQueue::failure) names the
    /// device.
    #[error("its worker has died of a fault in rocexdp: open the device anew")]
    Dead,
}

/// A range, or a word, that does not lie in its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of the region that it should lie in.
    pub region: u64,
    /// The region's key; `None`: peers have no rights to it.
    pub rkey: Option<u32>,
}

impl std::error::Error for OutOfRange {}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset,
            len,
            region,
            rkey,
        } = self;
        let key = rkey.map_or(String::new(), |key| format!(" with key 0x{key:08x}"));
        let inside = offset.checked_add(*len).is_some_and(|end| end <= *region);
        if inside {
            write!(
                f,
                "{len} B at offset {offset} of the region of {region} B{key} are no aligned word, or more than a message can have (2^31 B)"
            )
        } else {
            write!(
                f,
                "{len} B at offset {offset} do not lie in the region of {region} B{key}"
            )
        }
    }
}

/// Why the bytes of a region can't be had as a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ViewError {
    /// Peers may reach it at any time.
    #[error(
        "peers may reach the region at any time: copy with read and write, or register it without rights for peers"
    )]
    Remote,
    /// A request, or a slice of it, is outstanding.
    #[error("requests that use the region have not completed, or slices of it are held")]
    InUse,
    /// Others than this process may change it.
    #[error("a file's or borrowed memory may be changed by others: copy with read and write")]
    NotOurs,
}
