//! What a command can't do, and why a MAD was not taken.

use super::conn::ConnId;

/// Why a command failed; nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// There is no such connection, any more.
    #[error("connection {0} is unknown: it was refused, or has ended")]
    Unknown(ConnId),
    /// The connection is not where this can be done.
    #[error("connection {id} is in state {state}: it can't be {what}")]
    State {
        /// Which.
        id: ConnId,
        /// Its state.
        state: &'static str,
        /// What was asked for.
        what: &'static str,
    },
    /// Too much private data.
    #[error("{len} bytes of private data are more than the {most} that a {message} has room for")]
    PrivateData {
        /// Of what message.
        message: &'static str,
        /// Given.
        len: usize,
        /// Most.
        most: usize,
    },
    /// Someone listens there.
    #[error("service ID {0:#018x} is taken")]
    ServiceTaken(u64),
    /// So many are waiting for an answer already.
    #[error("{0} requests are unanswered, the most there may be")]
    TooMany(u32),
    /// The request for a datagram service is unknown, or was answered.
    #[error("the request for a datagram service was answered, or has been forgotten")]
    NoRequest,
    /// An attribute is out of range.
    #[error("{0}")]
    Attribute(&'static str),
}

macro_rules! ignored {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// Why a MAD was not taken. Nothing has changed, but where the text says so.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Ignored { $($(#[doc = $doc])* $name,)* }

        impl Ignored {
            /// All.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Short name for counters.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

ignored! {
    /// Not from QP 1.
    NotFromGsi => "cm_not_from_gsi",
    /// No message of the communication manager, or one that is not known.
    NotCm => "cm_not_a_message",
    /// The message's connection is unknown. (A DREQ is answered.)
    UnknownConnection => "cm_unknown_connection",
    /// It comes from another address than the connection's peer.
    NotThePeer => "cm_not_the_peer",
    /// It is a copy: what answers it was sent again, where something does.
    Duplicate => "cm_duplicate",
    /// The connection does not await it.
    State => "cm_wrong_state",
    /// A number in it can't be. (A REQ is refused.)
    Invalid => "cm_invalid",
    /// A REQ was refused, or a REP: stale, no listener, no room, or an attribute that does not fit.
    Refused => "cm_refused",
    /// So many SIDR_REQs are remembered that it was not taken, nor answered: its sender asks again.
    NoRoom => "cm_no_room",
    /// Alternate paths, which RoCE does not have.
    AlternatePath => "cm_alternate_path",
}
