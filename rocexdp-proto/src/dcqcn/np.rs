//! The notification point (NP): turns CE marks on a QP's incoming packets into CNPs to its sender, paced.
//!
//! Paper: a mark makes a CNP at once if none was sent within the last N; marks that come within N make one CNP at its end.
//! So a QP sends at most one CNP per N, and the first is never late. N is `min_time_between_cnps` (NVIDIA: per flow, 4 us;
//! paper: 50 us). With N = 0 every look at new marks makes a CNP (ns-3).
//!
//! A free-running timer, as in the simulator of the paper's authors, would be another value of
//! [`super::GapMarks`] and one more branch here.
//!
//! Must not: build packets. A gap in the sequence is no mark: loss never makes a CNP.

use core::time::Duration;

use super::params::{GapMarks, NpParams};
use crate::time::Timestamp;

/// The notification point of one QP.
#[derive(Clone, Debug)]
pub struct NotificationPoint {
    gap: Duration,
    gap_marks: GapMarks,
    /// No CNP before this time.
    open_at: Timestamp,
    /// Marks of the present gap wait for a CNP.
    owed: bool,
    marks: u64,
    cnps: u64,
}

impl NotificationPoint {
    /// A notification point that has sent nothing yet.
    #[must_use]
    pub fn new(params: &NpParams) -> Self {
        Self {
            gap: params.min_time_between_cnps,
            gap_marks: params.gap_marks,
            open_at: Timestamp::ZERO,
            owed: false,
            marks: 0,
            cnps: 0,
        }
    }

    /// `marks` CE-marked packets arrived since the last look. True: send one CNP now.
    #[must_use = "true means that a CNP must be sent"]
    pub fn on_ce(&mut self, now: Timestamp, marks: u32) -> bool {
        if marks == 0 {
            return self.handle_timeout(now);
        }
        self.marks = self.marks.saturating_add(u64::from(marks));
        if now < self.open_at {
            self.owed = self.gap_marks == GapMarks::Deferred;
            return false;
        }
        self.send(now);
        true
    }

    /// When a CNP is owed, if one is.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        self.owed.then_some(self.open_at)
    }

    /// True: an owed CNP is due, send it now.
    #[must_use = "true means that a CNP must be sent"]
    pub fn handle_timeout(&mut self, now: Timestamp) -> bool {
        if !self.owed || now < self.open_at {
            return false;
        }
        self.send(now);
        true
    }

    /// CE marks seen (`np_ecn_marked_roce_packets`).
    #[must_use]
    pub fn marks(&self) -> u64 {
        self.marks
    }

    /// CNPs asked for (`np_cnp_sent`).
    #[must_use]
    pub fn cnps(&self) -> u64 {
        self.cnps
    }

    fn send(&mut self, now: Timestamp) {
        self.owed = false;
        self.open_at = now + self.gap;
        self.cnps = self.cnps.saturating_add(1);
    }
}
