//! Packets sent again: a run of them from one PSN on, what was known when it began, and what came after.
//!
//! Data only; [`super::requests`] fills it, `verdict` says what it was.

use rocexdp_common::ids::Psn;

/// PSNs that the capture jumped over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First missing.
    pub from: Psn,
    /// Behind the last missing.
    pub to: Psn,
    /// Frames before and behind it.
    pub frames: (u64, u64),
    /// When it was noticed.
    pub time: i64,
    /// The NAK that asked for it: frame and time.
    pub nak: Option<(u64, i64)>,
    /// Frame and time of the answer that covers all of it.
    pub acked: Option<(u64, i64)>,
    /// Packets of it that came later.
    pub filled: u32,
}

impl Gap {
    /// Missing packets.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.to.diff(self.from).max(0).unsigned_abs()
    }

    /// Whether it misses `psn`.
    #[must_use]
    pub fn covers(&self, psn: Psn) -> bool {
        psn.diff(self.from) >= 0 && psn.diff(self.to) < 0
    }
}

/// What was known when the first packet was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A PSN sequence error NAK: frame, time, and whether the missing packet had come late by then.
    Nak(u64, i64, bool),
    /// The same, but the packet that it asked for is not among those sent again: frame of the NAK, what it asked for, and
    /// the frame of that if it had been captured.
    NakMissed(u64, Psn, Option<u64>),
    /// An RNR NAK.
    Rnr,
    /// A READ was asked for again and this response had been captured (frame).
    ReadCaptured(u64),
    /// A READ was asked for again and responses from there on had not been captured: the READ's frame, how many.
    ReadMissing(u64, u32),
    /// An answer that covers it had been captured: frame, time.
    Answered(u64, i64),
    /// Nothing.
    Silence,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Episode {
    /// First PSN sent again.
    pub start: Psn,
    /// Behind the last PSN sent again.
    pub end: Psn,
    /// First and last frame of the packets sent again.
    pub frames: (u64, u64),
    /// When the first was sent again.
    pub time: i64,
    /// When the last one was.
    pub last_time: i64,
    /// Packets sent again that had been captured before.
    pub packets: u64,
    /// Packets that the capture had jumped over and that came now.
    pub filled: u32,
    /// Bytes of those.
    pub filled_bytes: u32,
    /// Runs over the same packets.
    pub rounds: u32,
    /// Why.
    pub cause: Cause,
    /// The first time `start` was captured: frame and time.
    pub original: Option<(u64, i64)>,
    /// The gap of the capture that it fills.
    pub gap: Option<Gap>,
    /// Nanoseconds in which nothing of this QP pair passed, before it.
    pub silence: u64,
    /// It is a READ request, and its length in PSNs.
    pub read: bool,
    /// It is an atomic.
    pub atomic: bool,
    /// An answer to a later request had come: the requester need not wait for its timer.
    pub implied: bool,
    /// The first answer that covers `start`: frame and time.
    pub recovered: Option<(u64, i64)>,
    /// The first answer that covers all packets sent again.
    pub completed: Option<(u64, i64)>,
    /// A second answer to a packet sent twice: both had arrived.
    pub second_answer: Option<u64>,
    /// Last PSN that the responder turned out to have had before.
    pub held: Option<Psn>,
    /// What had been sent behind it was not sent again with it: no go-back-N.
    pub alone: bool,
    /// A NAK came for a packet that was only late.
    pub late_nak: bool,
}
