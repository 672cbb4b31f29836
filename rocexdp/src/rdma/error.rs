//! What can go wrong, for programs to tell apart and for people to read.
//!
//! Must not: decide anything.

use std::{fmt, io, net::SocketAddr};

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

/// A range, or a word, that does not lie in its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{len} B at offset {offset} do not lie in a region of {region} B, or no multiple of 8 B where that is asked for"
)]
pub struct OutOfRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of the region or range that it should lie in.
    pub region: u64,
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
