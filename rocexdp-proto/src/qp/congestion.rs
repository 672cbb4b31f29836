//! Congestion control at one QP: DCQCN's notification point, the rate controller, the pacer, and what the QP has been sending at.
//!
//! Where no line rate is known, DCQCN's reaction point cuts from the rate that the QP was sending at when the first CNP came, which
//! [`Meter`] knows, or from [`LEAST_CEILING`]. Data are paced: requests, those sent again too, and READ responses; answers without data and CNPs
//! are not.
//!
//! Bytes are those of frames, without FCS, preamble and gap, here and in every rate that is shown.
//!
//! Must not: build packets.

use core::time::Duration;

use rocexdp_common::maps::QpEngine;

use crate::dcqcn::{NotificationPoint, NpParams, Pacer, RpParams};
use crate::rate::{Controller, RateControl, RateController};
use crate::time::{Rate, Timestamp};

/// The least that the first CNP finds a link of unknown rate capable of. A QP that says little at a time is no measure of the
/// link: cut from its own few Mb/s, its next message, or its next READ response, would leave after the peer's ACK timeout. On a
/// slower link more CNPs cut further.
const LEAST_CEILING: Rate = Rate::from_gbps(1);

/// Congestion control's state of a QP.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    pub(crate) np: NotificationPoint,
    pub(crate) control: Controller,
    pub(crate) pacer: Pacer,
    meter: Meter,
}

impl Congestion {
    pub(crate) fn new(
        np: &NpParams,
        rp: &RpParams,
        control: RateControl,
        line_rate: Option<Rate>,
    ) -> Self {
        Self {
            np: NotificationPoint::new(np),
            control: control.controller(rp, line_rate),
            pacer: Pacer::default(),
            meter: Meter::default(),
        }
    }

    /// CNPs arrived. A QP that has sent nothing has nothing to cut.
    pub(crate) fn cnps(&mut self, now: Timestamp, cnps: u32, stats: &mut QpEngine) {
        if let Some(measured) = self.meter.rate(now) {
            let ceiling = measured.max(LEAST_CEILING);
            self.control.cnps(now, cnps, ceiling);
            self.note(now, stats);
        }
    }

    /// The controller's timer.
    pub(crate) fn handle_timeout(&mut self, now: Timestamp, stats: &mut QpEngine) {
        self.control.handle_timeout(now);
        self.note(now, stats);
    }

    /// A frame of data leaves.
    pub(crate) fn sent(&mut self, now: Timestamp, bytes: u32) {
        self.meter.sent(now, bytes);
        self.control.sent(now, u64::from(bytes));
        self.pacer.sent(now, bytes, self.control.rate());
    }

    /// The controller's rate may be another one.
    fn note(&mut self, now: Timestamp, stats: &mut QpEngine) {
        self.pacer.rate_changed(now, self.control.rate());
        if let Some(rate) = self.control.rate().map(Rate::as_bps)
            && (stats.min_rate == 0 || rate < stats.min_rate)
        {
            stats.min_rate = rate;
        }
    }
}

/// A silence this long is no sending: the measurement starts again behind it.
const IDLE: Duration = Duration::from_micros(200);
/// Length of one window of the measurement; two are looked at.
const WINDOW: Duration = Duration::from_millis(1);

/// The rate of a QP's recent sending: a counter and a clock per packet.
#[derive(Clone, Debug, Default)]
struct Meter {
    /// The window before this one: bytes and length.
    before: (u64, Duration),
    start: Timestamp,
    bytes: u64,
    last: Timestamp,
}

impl Meter {
    fn sent(&mut self, now: Timestamp, bytes: u32) {
        let idle = now.saturating_since(self.last) > IDLE;
        let span = now.saturating_since(self.start);
        if idle && self.bytes > 0 {
            // Keep what was measured, end it where the sending ended.
            let busy = self.last.saturating_since(self.start);
            if !busy.is_zero() {
                self.before = (self.bytes, busy);
            }
            (self.start, self.bytes) = (now, 0);
        } else if self.bytes == 0 {
            self.start = now;
        } else if span >= WINDOW {
            self.before = (self.bytes, span);
            (self.start, self.bytes) = (now, 0);
        }
        self.bytes = self.bytes.saturating_add(u64::from(bytes));
        self.last = now;
    }

    /// The rate, if anything was sent.
    fn rate(&self, now: Timestamp) -> Option<Rate> {
        // A silence since the last packet counts only until it is one.
        let end = now.min(self.last.saturating_add(IDLE));
        let span = end.saturating_since(self.start);
        let (bytes, before) = self.before;
        Rate::measured(bytes.saturating_add(self.bytes), span + before).filter(|r| *r != Rate::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measured_rate_is_that_of_sending_not_of_silence() {
        let mut m = Meter::default();
        let us = Timestamp::from_micros;
        assert_eq!(m.rate(us(5)), None);
        // 1250 B each us: 10 Gb/s, for 10 ms.
        for t in 0..10_000 {
            m.sent(us(t), 1250);
        }
        let near = |r: Option<Rate>| {
            r.is_some_and(|r| (9_800..10_200).contains(&(r.as_bps() / 1_000_000)))
        };
        assert!(near(m.rate(us(10_000))), "{:?}", m.rate(us(10_000)));
        // A second of silence, then again.
        for t in 0..500 {
            m.sent(us(1_000_000 + t), 1250);
        }
        assert!(near(m.rate(us(1_000_500))), "{:?}", m.rate(us(1_000_500)));
    }
}
