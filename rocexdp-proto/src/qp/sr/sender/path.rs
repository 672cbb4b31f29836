//! One path's transmissions at the sender, and when one of them is lost by what left later.
//!
//! Must not: know packets' states.

use core::time::Duration;
use std::collections::VecDeque;

use crate::time::Timestamp;

/// How much later than a packet others may leave and overtake it on its path, at first: this share of the round trip (RFC 8985
/// takes a quarter, over all paths), and no less than this time.
const REORDERING: u32 = 8;
const REORDERING_MIN: Duration = Duration::from_micros(1);
/// Recoveries without a packet that turned up, after which a path is no longer taken for one that reorders (RFC 8985, 6.2).
const PERSIST: u32 = 16;
/// How many later ones may overtake a packet on its path before it counts as lost, at first and at most. It grows when a
/// packet that was taken for lost turns up.
const TOLERANCE: u32 = 2;
const TOLERANCE_MAX: u32 = 128;
/// Transmissions taken for lost that may still turn up, for each path.
const GONE: usize = 32;
/// A transmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// `None`: nothing more is asked of it.
    pub(super) packet: Option<u64>,
    pub(super) at: Timestamp,
}

/// A path's transmissions.
#[derive(Debug, Default)]
pub(super) struct TxPath {
    /// Serial of the next one.
    pub(super) next: u32,
    /// The latest ones, up to `next`; the oldest is not settled.
    pub(super) sent: VecDeque<Sent>,
    /// How many of them are not settled.
    pub(super) open: u32,
    pub(super) tolerance: u32,
    /// Taken for lost lately: serial, packet, and when it left.
    pub(super) gone: VecDeque<(u32, u64, Timestamp)>,
    /// When the latest of those that have arrived left.
    pub(super) newest: Timestamp,
    /// How much later others have left that overtook one, as the path has shown, until [`PERSIST`] recoveries have shown nothing of
    /// the kind.
    pub(super) reordering: Duration,
    /// Recoveries since a packet that was taken for lost turned up.
    recoveries: u32,
    /// The present recovery is of what left before this serial.
    recovers: u32,
    /// The last news of the path, or its first packet after it was idle.
    pub(super) since: Timestamp,
    /// When a packet last asked for an acknowledgement.
    pub(super) asked: Timestamp,
    /// Probes since the last news.
    pub(super) probes: u32,
}

impl TxPath {
    /// A path whose first transmission has this serial, with room for so many.
    pub(super) fn new(first: u32, room: usize) -> Self {
        Self {
            next: first,
            recovers: first,
            tolerance: TOLERANCE,
            sent: VecDeque::with_capacity(room),
            gone: VecDeque::with_capacity(GONE),
            ..Self::default()
        }
    }

    /// A transmission is taken for lost.
    pub(super) fn lost(&mut self, serial: u32, packet: u64, at: Timestamp) {
        if self.gone.len() == GONE {
            self.gone.pop_front();
        }
        self.gone.push_back((serial, packet, at));
        // Serials wrap: a recovery so long ago is before any of today's.
        if self.next.wrapping_sub(self.recovers) > 1 << 30 {
            self.recovers = serial;
        }
        if (serial.wrapping_sub(self.recovers) as i32) < 0 {
            return;
        }
        self.recovers = self.next;
        self.recoveries += 1;
        if self.recoveries >= PERSIST {
            (self.tolerance, self.reordering) = (TOLERANCE, Duration::ZERO);
            self.recoveries = 0;
        }
    }

    /// A transmission that left then and was taken for lost has turned up, overtaken by so many.
    pub(super) fn turned_up(&mut self, overtaken: u32, at: Timestamp) {
        self.tolerance = self.tolerance.max(overtaken.min(TOLERANCE_MAX));
        self.reordering = self.reordering.max(self.newest.saturating_since(at));
        self.recoveries = 0;
    }

    pub(super) fn settle(&mut self, i: usize) {
        if let Some(sent) = self.sent.get_mut(i)
            && sent.packet.take().is_some()
        {
            self.open -= 1;
        }
    }

    /// Nothing more is asked of the transmission with this serial, which is one of `packet`, if it is still looked after.
    pub(super) fn settle_serial(&mut self, serial: u32, packet: u64) -> Option<Sent> {
        let first = self.next.wrapping_sub(self.sent.len() as u32);
        let i = serial.wrapping_sub(first) as usize;
        let sent = *self.sent.get(i)?;
        if sent.packet != Some(packet) {
            return None;
        }
        self.settle(i);
        Some(sent)
    }

    /// So much later may others leave that overtake: a round trip at most, as in RFC 8985.
    pub(super) fn window(&self, rtt: Option<(Duration, Duration)>) -> Duration {
        let Some((smoothed, _)) = rtt else {
            return Duration::MAX;
        };
        let shown = self.reordering.min(smoothed);
        (smoothed / REORDERING).max(REORDERING_MIN).max(shown)
    }

    /// When the oldest that is open is lost, if one that left later has arrived.
    pub(super) fn overdue(&self, rtt: Option<(Duration, Duration)>) -> Option<Timestamp> {
        let (smoothed, deviation) = rtt?;
        let oldest = self.sent.front().filter(|s| s.at < self.newest)?;
        Some(oldest.at + smoothed + self.window(rtt).max(4 * deviation))
    }

    pub(super) fn trim(&mut self) {
        while self.sent.front().is_some_and(|s| s.packet.is_none()) {
            self.sent.pop_front();
        }
    }
}
