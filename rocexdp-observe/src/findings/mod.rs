//! What went wrong, in plain words: the kinds of findings, their order, and the list that never grows without bound.
//!
//! Decides nothing: [`crate::flow`] and [`crate::analyse`] say what they found, here it is kept, capped and sorted.

mod list;
pub mod words;

pub use list::{Finding, Findings, MOST_FRAMES, Place};

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A connection or message failed.
    Error,
    /// Performance was lost, or soon will be.
    Warning,
    /// Worth knowing; mostly of the capture itself.
    Notice,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal $severity:ident,)*) => {
        /// What was found, most serious first.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Kind {
            $($(#[doc = $doc])* $name,)*
        }

        impl Kind {
            /// All, in order.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }

            /// How bad it is.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),* }
            }
        }
    };
}

kinds! {
    /// A request was sent again and again and never answered.
    RetryExceeded => "retry_exceeded" Error,
    /// The responder was not ready until the requester gave up.
    RnrExceeded => "rnr_exceeded" Error,
    /// A QP that answered nothing at all.
    NoAnswer => "no_answer" Error,
    /// NAK: invalid request.
    NakInvalidRequest => "nak_invalid_request" Error,
    /// NAK: remote access error.
    NakRemoteAccess => "nak_remote_access" Error,
    /// NAK: remote operational error.
    NakRemoteOperational => "nak_remote_operational" Error,
    /// NAK with a reserved code, or of RD.
    NakOther => "nak_other" Error,
    /// The two ends seem to have different path MTUs.
    MtuMismatch => "mtu_mismatch" Error,
    /// A connection was refused.
    CmRejected => "cm_rejected" Error,
    /// Part of an unreliable connection's message is missing.
    UcMessageLost => "uc_message_lost" Error,
    /// Packets were lost in the network.
    PacketLoss => "packet_loss" Warning,
    /// A READ response was lost in the network.
    ReadResponseLost => "read_response_lost" Warning,
    /// An acknowledgement was lost in the network.
    LostAck => "lost_ack" Warning,
    /// An atomic was answered again from the stored result.
    AtomicReplayed => "atomic_replayed" Warning,
    /// The requester's timer ran out.
    AckTimeout => "ack_timeout" Warning,
    /// A PSN sequence error NAK that nothing followed.
    NakSequence => "nak_sequence" Warning,
    /// The responder was not ready.
    Rnr => "rnr" Warning,
    /// Packets with a wrong ICRC.
    IcrcError => "icrc_error" Warning,
    /// CE marks and congestion notification packets.
    Congestion => "congestion" Warning,
    /// Pause frames, of priorities or of the whole port.
    Pause => "pause" Warning,
    /// Packets sent again that had arrived.
    UnneededRetransmission => "unneeded_retransmission" Warning,
    /// Packets out of order, none lost.
    Reordering => "reordering" Warning,
    /// RoCE packets that are malformed.
    Malformed => "malformed" Warning,
    /// The capture missed packets that arrived.
    CaptureLoss => "capture_loss" Notice,
    /// Missing in the capture, too near its end to say who lost it.
    GapUndecided => "gap_undecided" Notice,
    /// One frame captured twice.
    DuplicateFrames => "duplicate_frames" Notice,
    /// One direction of a QP pair is not in the capture.
    OneDirection => "one_direction" Notice,
    /// Packets captured in part, or a capture file that is cut.
    TruncatedCapture => "truncated_capture" Notice,
    /// Packets that may be RoCE and are not followed.
    Unfollowed => "unfollowed" Notice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_serde_writes_and_worst_comes_first() {
        for kind in Kind::ALL {
            assert_eq!(
                serde_json::to_string(kind).unwrap(),
                format!("\"{}\"", kind.name())
            );
        }
        assert!(Kind::ALL.is_sorted_by_key(|kind| kind.severity()));
    }
}
