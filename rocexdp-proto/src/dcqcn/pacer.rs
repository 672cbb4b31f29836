//! Turns a rate into send times: each packet pushes the next one back by its length over the rate of that moment.
//!
//! The next packet may go at `max(now - burst, previous) + length / rate`. The fraction of a nanosecond is carried, so the
//! long-run rate is exact. `burst` bounds what a caller that came late may catch up, and so also what an idle QP saves up.
//!
//! What a packet owes is paid at the rate of each moment: a rate change moves a send time that is set ([`Pacer::rate_changed`]), as
//! in a token bucket, and as the reference simulator's `ChangeRate` does for its other controllers (`rdma-hw.cc`). Its DCQCN does
//! not, which matters little above its floor of 100 or 1000 Mb/s; at ConnectX's floor of 1 Mb/s a packet of 4 KiB takes 33 ms, in
//! which a rate that has long recovered would be of no use.
//!
//! Must not: know where the rate comes from.

use core::time::Duration;

use crate::time::{Rate, Timestamp};

const BITS_PER_BYTE: u128 = 8;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// Send times of one QP.
#[derive(Clone, Debug)]
pub struct Pacer {
    burst: Duration,
    /// Next send time, rounded down.
    next: Timestamp,
    /// What `next` lacks, in 1 / `rate` ns.
    rest: u64,
    /// Rate that `rest` is counted in, b/s.
    rate: u64,
}

impl Pacer {
    /// Lateness that may be caught up unless told otherwise: 200 kB at 100 Gb/s.
    pub const DEFAULT_BURST: Duration = Duration::from_micros(16);

    /// A pacer whose first packet may go at any time.
    #[must_use]
    pub fn new(burst: Duration) -> Self {
        Self {
            burst,
            next: Timestamp::ZERO,
            rest: 0,
            rate: 1,
        }
    }

    /// Earliest time the next packet may go; `now` if that is not in the future.
    #[must_use]
    pub fn earliest(&self, now: Timestamp) -> Timestamp {
        self.due().max(now)
    }

    /// Whether a packet may go now.
    #[must_use]
    pub fn ready(&self, now: Timestamp) -> bool {
        self.due() <= now
    }

    /// A packet of `wire_bytes` (everything the link carries for it) went at `now`. `rate` is the reaction point's; `None`,
    /// unpaced, lets the next one follow at once.
    pub fn sent(&mut self, now: Timestamp, wire_bytes: u32, rate: Option<Rate>) {
        let oldest = now.saturating_sub(self.burst);
        if self.due() < oldest {
            self.next = oldest;
            self.rest = 0;
        }
        let Some(rate) = rate else {
            self.next = self.next.min(now);
            self.rest = 0;
            return;
        };
        let rate = rate.as_bps().max(1);
        if rate != self.rate {
            // Rounded up: never early.
            let rest = (u128::from(self.rest) * u128::from(rate)).div_ceil(u128::from(self.rate));
            self.rest = u64::try_from(rest).unwrap_or(u64::MAX);
            self.rate = rate;
        }
        let owed = u128::from(wire_bytes) * BITS_PER_BYTE * NS_PER_SECOND + u128::from(self.rest);
        let step = u64::try_from(owed / u128::from(rate)).unwrap_or(u64::MAX);
        self.rest = u64::try_from(owed % u128::from(rate)).unwrap_or(0);
        self.next = Timestamp::from_nanos(self.next.as_nanos().saturating_add(step));
    }

    /// The rate is another one from `now` on.
    pub fn rate_changed(&mut self, now: Timestamp, rate: Option<Rate>) {
        let Some(rate) = rate else {
            self.next = self.next.min(now);
            self.rest = 0;
            return;
        };
        let rate = rate.as_bps().max(1);
        if rate == self.rate || self.due() <= now {
            return;
        }
        let left = self.next.as_nanos().saturating_sub(now.as_nanos());
        let owed = u128::from(left) * u128::from(self.rate) + u128::from(self.rest);
        let left = u64::try_from(owed / u128::from(rate)).unwrap_or(u64::MAX);
        self.rest = u64::try_from(owed % u128::from(rate)).unwrap_or(0);
        self.rate = rate;
        self.next = Timestamp::from_nanos(now.as_nanos().saturating_add(left));
    }

    /// `next`, rounded up.
    fn due(&self) -> Timestamp {
        Timestamp::from_nanos(
            self.next
                .as_nanos()
                .saturating_add(u64::from(self.rest > 0)),
        )
    }
}

impl Default for Pacer {
    fn default() -> Self {
        Self::new(Self::DEFAULT_BURST)
    }
}
