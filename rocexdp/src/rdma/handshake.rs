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

use rocexdp_proto::{MAX_PATHS, MAX_RD_ATOMIC, SelectiveRepeat, Transport};
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
    /// Selective repeat: the UDP source ports that it would spread packets over, in the answer the number to use; 0: go-back-N.
    pub selective_repeat: u8,
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
    pub selective: Option<SelectiveRepeat>,
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
        if self.selective_repeat > MAX_PATHS {
            return Err(format!(
                "selective repeat over {} ports is more than {MAX_PATHS}",
                self.selective_repeat
            ));
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
            selective: selective(self.selective_repeat),
            private_data: self.private_data,
        })
    }
}

/// Selective repeat over so many ports; 0: none.
pub fn selective(paths: u8) -> Option<SelectiveRepeat> {
    (paths != 0).then_some(SelectiveRepeat { paths })
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

#[cfg(test)]
mod tests {
    use super::*;
    use rocexdp_proto::ids::{PathMtu, Psn, Qpn};

    fn side() -> Side {
        let gid = [192, 0, 2, 1].into();
        Side {
            qp: PeerQp::new(
                Qpn::new(0x80_0001),
                Psn::new(7),
                gid,
                PathMtu::Mtu1024,
                None,
            ),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 128,
            selective_repeat: 4,
            private_data: vec![0, 0xff],
        }
    }

    #[test]
    fn a_side_survives_the_way() {
        let text = serde_json::to_string(&side()).unwrap();
        let back: Side = serde_json::from_str(&text).unwrap();
        let checked = back.check().unwrap();
        assert_eq!(checked.qp.qpn, Qpn::new(0x80_0001));
        assert_eq!(checked.private_data, [0, 0xff]);
        assert_eq!(checked.selective, selective(4));
        assert_eq!(
            (checked.max_rd_atomic, checked.max_dest_rd_atomic),
            (16, 128)
        );
    }

    #[test]
    fn numbers_that_no_queue_pair_has_are_refused_by_name() {
        type Change = fn(&mut Side);
        let cases: [(Change, &str); 6] = [
            (|s| s.qp.qpn = 1, "QP number"),
            (|s| s.qp.psn = 1 << 24, "PSN"),
            (|s| s.max_rd_atomic = 129, "max_rd_atomic 129"),
            (|s| s.max_dest_rd_atomic = 255, "max_dest_rd_atomic 255"),
            (|s| s.selective_repeat = 17, "17 ports"),
            (
                |s| s.private_data = vec![0; MAX_PRIVATE_DATA + 1],
                "private data",
            ),
        ];
        for (change, part) in cases {
            let mut side = side();
            change(&mut side);
            let why = side.check().unwrap_err();
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
