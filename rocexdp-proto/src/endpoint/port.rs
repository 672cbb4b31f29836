//! The port's own rate: what all QPs send together, answers and CNPs included, stays below it.
//!
//! Where the link takes frames as fast as they come and loses, or keeps, what is too many (a virtual link; a virtual machine's NIC,
//! whose provider polices it), frames would wait outside, in the order in which they left. Held to the rate they wait
//! here, where traffic classes decide who is next, as ETS does at a NIC's port (mlnx_qos(8), `--ratelimit`, of all classes).
//!
//! Must not: know who sends.

use core::time::Duration;

use super::Endpoint;
use crate::dcqcn::Pacer;
use crate::time::{Rate, Timestamp};

/// Preamble, start delimiter, FCS and gap (IEEE 802.3): what a frame takes of a link besides itself.
const AROUND: u32 = 24;
/// The shortest frame, without its FCS.
const SHORTEST: u32 = 60;
/// How late whoever asks for packets may be without losing anything of the rate: sleeping workers are.
const BURST: Duration = Duration::from_millis(1);

/// Send times of a port.
#[derive(Debug)]
pub(super) struct Port {
    /// `None`: as fast as frames are taken.
    rate: Option<Rate>,
    pacer: Pacer,
    /// Whoever asked last was told to come later.
    closed: bool,
}

impl Port {
    pub(super) fn new(rate: Option<Rate>) -> Self {
        Self {
            rate,
            pacer: Pacer::new(BURST),
            closed: false,
        }
    }

    /// Whether a frame may leave now.
    pub(super) fn opens(&mut self, now: Timestamp) -> bool {
        self.closed = self.rate.is_some() && !self.pacer.ready(now);
        !self.closed
    }

    /// When to ask again; `None`: whenever there is something.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.closed.then(|| self.pacer.earliest(Timestamp::ZERO))
    }

    /// A frame of so many bytes, FCS apart, leaves.
    fn sent(&mut self, now: Timestamp, len: u32) {
        if self.rate.is_some() {
            self.pacer.sent(now, len.max(SHORTEST) + AROUND, self.rate);
        }
    }
}

impl Endpoint {
    /// The frame whose headers stand in `headers`, with so many bytes behind them, leaves.
    pub(super) fn leaves(&mut self, now: Timestamp, behind: u32) {
        let headers = u32::try_from(self.headers.bytes().len()).unwrap_or(u32::MAX);
        self.port.sent(now, headers.saturating_add(behind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_sends_its_rate_and_catches_up_what_a_late_caller_missed() {
        let mut port = Port::new(Some(Rate::from_mbps(100)));
        let us = Timestamp::from_micros;
        // 1250 bytes of the link: 100 us.
        let mut send = |from: u64, to: u64, step: usize| {
            let mut frames = 0;
            for at in (from..to).step_by(step) {
                while port.opens(us(at)) {
                    port.sent(us(at), 1226);
                    frames += 1;
                }
                assert!(port.next().is_some_and(|next| next > us(at)));
            }
            frames
        };
        send(2_000, 3_000, 10);
        assert_eq!(send(3_000, 13_000, 10), 100);
        // The last time at 22.6 ms.
        assert_eq!(send(13_000, 23_000, 800), 97, "asked every 800 us");
        assert_eq!(send(43_000, 43_001, 1), 11, "1 ms is caught up, no more");
    }

    #[test]
    fn a_port_without_a_rate_is_open() {
        let mut port = Port::new(None);
        for _ in 0..100 {
            assert!(port.opens(Timestamp::ZERO) && port.next().is_none());
            port.sent(Timestamp::ZERO, 4000);
        }
    }
}
