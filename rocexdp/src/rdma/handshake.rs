//! What two ends say to each other over TCP in order to connect, and to part.
//!
//! In JSON frames ([`crate::control::frame`]), with the greeting, token and first steps of [`exchange`]:
//!
//! | | connecting end | listening end |
//! |---|---|---|
//! | 1 | | [`Greeting`]: protocol, version, nonce |
//! | 2 | [`Hello`]: its queue pair, what it can, private data; then [`Proof`](exchange::Proof) | |
//! | 3 | | [`Answer::Accept`]: its queue pair, what is agreed, private data; or [`Answer::Refuse`] |
//! | 4 | [`Ready`]: it can receive | |
//!
//! Then the connection stays open without a word: its end tells that the other end has gone. Each end's GID is its address of this very
//! connection. All numbers are checked here, before anything else sees them.

use rocexdp_proto::{MAX_RD_ATOMIC, Transport};
use serde::{Deserialize, Serialize};

use crate::control::{
    exchange::{self, CheckedQp, PeerQp, RefuseCode},
    hex,
};

/// First field of [`Greeting`] and [`Hello`].
pub const PROTOCOL: &str = "rocexdp-connect";
/// The version of everything in this module.
pub const VERSION: u32 = 1;
/// Most bytes of private data.
pub const MAX_PRIVATE_DATA: usize = 4096;

pub use exchange::Greeting;

/// A service, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceName {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
}

impl ServiceName {
    /// The name of a connected service.
    pub fn of(transport: Transport) -> Self {
        match transport {
            Transport::Uc => Self::Uc,
            _ => Self::Rc,
        }
    }
}

impl std::fmt::Display for ServiceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
        })
    }
}

/// One end's queue pair and what it can.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Number, PSN, address; the largest path MTU it can have, in the answer the one to use.
    pub qp: PeerQp,
    /// READs and atomics that it can have unanswered.
    pub max_rd_atomic: u8,
    /// READs and atomics of the other end that it has resources for.
    pub max_dest_rd_atomic: u8,
    /// The application's, in hexadecimal.
    #[serde(with = "hex::bytes")]
    pub private_data: Vec<u8>,
}

/// The same, checked.
#[derive(Clone, Debug)]
pub struct CheckedSide {
    /// Its queue pair.
    pub qp: CheckedQp,
    /// See [`Side`].
    pub max_rd_atomic: u8,
    /// See [`Side`].
    pub max_dest_rd_atomic: u8,
    /// See [`Side`].
    pub private_data: Vec<u8>,
}

impl Side {
    /// The same, if every number is one that a queue pair can have.
    ///
    /// # Errors
    /// A text that names the field.
    pub fn check(self) -> Result<CheckedSide, String> {
        let qp = self.qp.check()?;
        for (name, depth) in [
            ("max_rd_atomic", self.max_rd_atomic),
            ("max_dest_rd_atomic", self.max_dest_rd_atomic),
        ] {
            if depth > MAX_RD_ATOMIC {
                return Err(format!("{name} {depth} is more than {MAX_RD_ATOMIC}"));
            }
        }
        if self.private_data.len() > MAX_PRIVATE_DATA {
            return Err(format!(
                "{} bytes of private data are more than {MAX_PRIVATE_DATA}",
                self.private_data.len()
            ));
        }
        Ok(CheckedSide {
            qp,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            private_data: self.private_data,
        })
    }
}

/// What the connecting end wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: String,
    /// [`VERSION`].
    pub version: u32,
    /// Service of both queue pairs.
    pub service: ServiceName,
    /// Its end.
    pub side: Side,
}

/// What the listening end says to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// It can receive.
    Accept {
        /// Its end.
        side: Side,
    },
    /// No connection.
    Refuse {
        /// For programs.
        code: RefuseCode,
        /// For people.
        reason: String,
    },
}

/// The connecting end can receive too.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {}
