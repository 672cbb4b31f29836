//! What two rocexdp hosts say to each other over TCP before, during and after a copy.
//!
//! One connection is one copy, in JSON frames ([`super::frame`]):
//!
//! | | connecting side (sends the file) | listening side (receives it) |
//! |---|---|---|
//! | 1 | | [`Greeting`]: protocol, version, nonce |
//! | 2 | [`Hello`]: protocol, version, its QP, the file; then [`Proof`] | |
//! | 3 | | [`Answer::Accept`]: its QP, the region to WRITE to; or [`Answer::Refuse`] |
//! | 4 | [`Report::Placed`] every [`KEEPALIVE`], with progress at least every [`STALL`] | |
//! | 5 | [`Report::Commit`]: size and SHA-256 | |
//! | 6 | | [`Answer::Working`] every [`KEEPALIVE`]; [`Answer::Done`] or [`Answer::Refuse`] |
//!
//! A connection that ends before the listening side has Commit means that there is no file. One that ends after that leaves
//! it open: the file may have got its name before the listening side noticed. Each side's GID is its address of this very
//! connection ([`CheckedQp::of`]): a QP talks to whom TCP talks to, never to a third host that a peer names.
//!
//! Greeting and Hello begin with the same two fields in every
//! version, and are read in two steps so that another version is refused by its number, not as malformed. All numbers are
//! checked here, before anything else sees them.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use rocexdp_proto::{
    MAX_PATHS, SelectiveRepeat,
    ids::{PathMtu, Psn, Qpn, RKey},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    frame::{self, FrameError},
    hex,
    token::{Nonce, Tag},
};

/// First field of a [`Greeting`] and a [`Hello`].
pub const PROTOCOL: &str = "rocexdp";
/// The version of everything in this module.
pub const VERSION: u32 = 1;
/// TCP port of the exchange unless told otherwise.
pub const DEFAULT_PORT: u16 = 47_910;

/// How often each side is heard of at least, once the copy runs.
pub const KEEPALIVE: Duration = Duration::from_secs(1);
/// How long a silent peer is waited for once the copy runs.
pub const SILENCE: Duration = Duration::from_secs(15);
/// How long a copy may go without a further byte placed.
pub const STALL: Duration = Duration::from_secs(60);
/// How long each step up to [`Answer::Accept`] may take.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// A SHA-256 digest, in hexadecimal in JSON and on display.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sha256Digest(#[serde(with = "hex::array")] pub [u8; 32]);

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the listening side says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Greeting {
    /// [`PROTOCOL`].
    pub protocol: String,
    /// [`VERSION`].
    pub version: u32,
    /// For the [`Proof`].
    pub nonce: Nonce,
    /// Whether a token is asked for.
    pub token: bool,
}

/// What the connecting side wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: String,
    /// [`VERSION`].
    pub version: u32,
    /// Its QP.
    pub qp: PeerQp,
    /// Where the file shall be, relative to the receive directory.
    pub path: String,
    /// Bytes of the file.
    pub size: u64,
}

/// That the connecting side has the token: over the nonce and the [`Hello`] frame's body as sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// Absent when the connecting side has no token.
    pub tag: Option<Tag>,
}

/// One side's QP, as untrusted numbers. See [`PeerQp::check`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerQp {
    /// QP number.
    pub qpn: u32,
    /// PSN of its first request.
    pub psn: u32,
    /// Its address; the GID is the IPv6 or IPv4-mapped form of it.
    pub gid: IpAddr,
    /// The largest path MTU it can have, in the answer the one to use, in bytes.
    pub path_mtu: u32,
    /// Selective repeat over at most so many paths, in the answer the number to use. Absent where there is none: an older
    /// version does not know the field, and refuses it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub selective_repeat: u8,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_zero(n: &u8) -> bool {
    *n == 0
}

/// One side's QP, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedQp {
    /// QP number; never 0 or 1, which are special, nor the multicast number.
    pub qpn: Qpn,
    /// PSN of its first request.
    pub psn: Psn,
    /// A unicast address.
    pub gid: IpAddr,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Selective repeat; `None`: go-back-N.
    pub selective: Option<SelectiveRepeat>,
}

impl PeerQp {
    /// For sending.
    #[must_use]
    pub fn new(
        qpn: Qpn,
        psn: Psn,
        gid: IpAddr,
        path_mtu: PathMtu,
        selective: Option<SelectiveRepeat>,
    ) -> Self {
        Self {
            qpn: qpn.get(),
            psn: psn.get(),
            gid,
            path_mtu: path_mtu.bytes(),
            selective_repeat: selective.map_or(0, |with| with.paths),
        }
    }

    /// The same, if every number is one that a QP can have.
    ///
    /// # Errors
    /// A text that names the field.
    pub fn check(&self) -> Result<CheckedQp, String> {
        if !(2..0xff_ffff).contains(&self.qpn) {
            return Err(format!(
                "QP number {} is not between 2 and 0xfffffe",
                self.qpn
            ));
        }
        if self.psn > 0xff_ffff {
            return Err(format!("PSN {} has more than 24 bits", self.psn));
        }
        let gid = unmapped(self.gid);
        if gid.is_unspecified() || gid.is_multicast() || gid.is_loopback() || is_broadcast(gid) {
            return Err(format!("GID {gid} is no address of an RDMA endpoint"));
        }
        let path_mtu = PathMtu::from_bytes(self.path_mtu).ok_or_else(|| {
            format!(
                "path MTU {} is none of 256, 512, 1024, 2048, 4096",
                self.path_mtu
            )
        })?;
        let paths = self.selective_repeat;
        if paths > MAX_PATHS {
            return Err(format!(
                "selective repeat over {paths} paths is more than {MAX_PATHS}"
            ));
        }
        Ok(CheckedQp {
            qpn: Qpn::new(self.qpn),
            psn: Psn::new(self.psn),
            gid,
            path_mtu,
            selective: (paths > 0).then_some(SelectiveRepeat { paths }),
        })
    }
}

impl CheckedQp {
    /// The same, if its GID is the address that the connection comes from or goes to.
    ///
    /// # Errors
    /// A text that names both.
    pub fn of(self, connection: IpAddr) -> Result<Self, String> {
        let connection = unmapped(connection);
        if self.gid == connection {
            Ok(self)
        } else {
            Err(format!(
                "GID {} is not the address of this connection, {connection}: a copy's connection must take the way that \
                 its packets take (no address translation, no other network)",
                self.gid
            ))
        }
    }
}

fn is_broadcast(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

/// An IPv4-mapped IPv6 address as the IPv4 address that it is.
#[must_use]
pub fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Whether this is an IPv6 link-local address, which needs an interface beside it.
#[must_use]
pub fn is_link_local(address: Ipv6Addr) -> bool {
    address
        .segments()
        .first()
        .is_some_and(|first| first & 0xffc0 == 0xfe80)
}

/// Why a copy is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefuseCode {
    /// Another protocol or version.
    Version,
    /// No token, or a wrong one.
    Token,
    /// This host receives nothing.
    ReceivingOff,
    /// The path is not one below the receive directory.
    Path,
    /// There is a file already.
    Exists,
    /// Larger than allowed.
    Size,
    /// No room.
    Space,
    /// Too many peers at once.
    Busy,
    /// The two QPs can't talk: family, path MTU, reachability.
    Connection,
    /// The bytes that arrived are not the ones sent.
    Digest,
    /// The message breaks the protocol.
    Protocol,
    /// A fault of the receiving host.
    Internal,
    /// The application there says no.
    Rejected,
}

/// What the listening side says after the [`Hello`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// Write the file there.
    Accept {
        /// Its QP; the path MTU is the one to use.
        qp: PeerQp,
        /// Key of the region.
        rkey: u32,
        /// Address of the region's first byte.
        va: u64,
        /// Bytes of the region: those of the file.
        len: u64,
    },
    /// Still checking and writing to disk.
    Working,
    /// The file is there.
    Done {
        /// As computed from what arrived.
        sha256: Sha256Digest,
        /// What the listening side counted.
        receiver: ReceiverCounts,
    },
    /// There is no file.
    Refuse {
        /// For programs.
        code: RefuseCode,
        /// For people.
        reason: String,
    },
}

/// What the listening side counted for the QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiverCounts {
    /// CNPs sent.
    pub np_cnp_sent: u64,
    /// Requests ahead of sequence.
    pub out_of_sequence: u64,
    /// Requests received again.
    pub duplicate_request: u64,
    /// Packets with a wrong ICRC.
    pub icrc_errors: u64,
}

/// What the connecting side says while it copies.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case", deny_unknown_fields)]
pub enum Report {
    /// The first `bytes` of the file are in the region: their WRITEs are acknowledged.
    Placed {
        /// Bytes.
        bytes: u64,
    },
    /// All of it is.
    Commit {
        /// Bytes.
        bytes: u64,
        /// As computed from what was read.
        sha256: Sha256Digest,
    },
}

/// The region to WRITE to, checked.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its key.
    pub rkey: RKey,
    /// Address of its first byte.
    pub va: u64,
}

/// The fields that every version has.
#[derive(Deserialize)]
struct Opening {
    protocol: String,
    version: u32,
}

/// Why an opening message was not taken.
#[derive(Debug)]
pub enum OpeningError {
    /// Not this protocol at all.
    Protocol {
        /// Its name for itself.
        found: String,
        /// This one's.
        wanted: &'static str,
    },
    /// Another version of it.
    Version {
        /// The other side's.
        found: u32,
        /// This side's.
        wanted: u32,
    },
    /// The message can't be read.
    Frame(FrameError),
}

impl fmt::Display for OpeningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol { found, wanted } => {
                let short: String = found.chars().take(32).collect();
                write!(f, "the other side speaks {short:?}, not {wanted:?}")
            }
            Self::Version { found, wanted } => write!(
                f,
                "the other side speaks version {found} of the exchange, this is version {wanted}: \
                 install the same rocexdp on both hosts"
            ),
            Self::Frame(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpeningError {}

/// A [`Greeting`] or [`Hello`] from a frame's body: first protocol and version, then the rest.
///
/// # Errors
/// See [`OpeningError`].
pub fn opening<T: DeserializeOwned>(body: &[u8]) -> Result<T, OpeningError> {
    opening_of(body, PROTOCOL, VERSION)
}

/// As [`opening`], for a protocol that begins with the same two fields.
///
/// # Errors
/// See [`OpeningError`].
pub fn opening_of<T: DeserializeOwned>(
    body: &[u8],
    protocol: &'static str,
    version: u32,
) -> Result<T, OpeningError> {
    let opening: Opening = frame::decode(body).map_err(OpeningError::Frame)?;
    if opening.protocol != protocol {
        return Err(OpeningError::Protocol {
            found: opening.protocol,
            wanted: protocol,
        });
    }
    if opening.version != version {
        return Err(OpeningError::Version {
            found: opening.version,
            wanted: version,
        });
    }
    frame::decode(body).map_err(OpeningError::Frame)
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
