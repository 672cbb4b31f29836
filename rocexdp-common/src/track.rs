//! PSN tracking: what a stream of sequence numbers says of loss, repetition and order.
//!
//! Works on the counters of [`crate::maps`]; knows nothing of addresses or maps. A QP receives two streams, the
//! peer's requests and the READ responses to its own requests; acknowledgements carry the PSN of what they
//! acknowledge and are no stream. The window test is rxe's `psn_compare` (see [`Psn::diff`]); the number of PSNs a
//! READ takes is rxe's too (rxe_req.c `update_wqe_psn`: ceil(length / MTU), at least 1).

use crate::{
    ids::Psn,
    maps::{QpCounters, Tracker},
    opcode::Position,
};

/// What the receiver does when packets are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtGap {
    /// Waits for the missing packet: the responder of a reliable connection.
    Wait,
    /// Goes on behind the gap: an unreliable connection, and an observer who can't ask for anything.
    Skip,
}

/// PSNs that a READ request of `length` bytes takes: one for each response packet.
///
/// `None`: the path MTU (in bytes, 0: unknown) decides and is not known.
#[inline(always)]
pub const fn read_psns(length: u32, path_mtu: u32) -> Option<u32> {
    // The smallest path MTU there is: one packet, whatever the path's is.
    if length <= 256 {
        return Some(1);
    }
    if path_mtu == 0 {
        return None;
    }
    Some((length as u64).div_ceil(path_mtu as u64) as u32)
}

impl Tracker {
    /// Expects `psn` next.
    #[inline(always)]
    pub fn expect(&mut self, psn: Psn) {
        self.expected_psn = psn.get();
        self.valid = 1;
    }

    /// Takes one packet that covers `psns` sequence numbers from `psn` on (`None`: unknown how many), and says whether
    /// the stream moved to it. The first packet of a stream is the expected one.
    #[inline(always)]
    fn take(&mut self, psn: Psn, psns: Option<u32>, at_gap: AtGap, in_gap: &mut u32) -> bool {
        let distance = if self.valid == 0 {
            0
        } else {
            psn.diff(Psn::new(self.expected_psn))
        };
        if distance < 0 {
            self.duplicates += 1;
            return false;
        }
        if distance > 0 {
            self.out_of_sequence += 1;
            if *in_gap == 0 {
                self.gaps += 1;
                self.missing += distance as u64;
            }
            if at_gap == AtGap::Wait {
                *in_gap = 1;
                return false;
            }
        }
        *in_gap = 0;
        match psns {
            Some(n) => self.expect(psn.add(n)),
            None => self.valid = 0,
        }
        true
    }
}

impl QpCounters {
    /// A request of the peer.
    #[inline(always)]
    pub fn take_request(&mut self, psn: Psn, psns: Option<u32>, at_gap: AtGap) {
        self.requests.take(psn, psns, at_gap, &mut self.in_gap);
    }

    /// A READ response of the peer.
    ///
    /// Requests that are no READs take PSNs too, so a response that begins a message may stand ahead of the expected
    /// PSN without anything missing, unless the response before has not ended. (Blind spot: a response lost whole.)
    #[inline(always)]
    pub fn take_response(&mut self, psn: Psn, position: Position, at_gap: AtGap) {
        let begins = matches!(position, Position::First | Position::Only);
        if begins
            && self.response_open == 0
            && self.responses.valid != 0
            && psn.diff(Psn::new(self.responses.expected_psn)) > 0
        {
            self.responses.expect(psn);
        }
        let moved = self
            .responses
            .take(psn, Some(1), at_gap, &mut self.response_in_gap);
        if moved {
            self.response_open = u32::from(matches!(position, Position::First | Position::Middle));
        }
    }

    /// Sets both streams as the engine asks.
    #[inline(always)]
    pub fn resync(&mut self, resync: u32, request: Psn, response: Psn) {
        self.requests.expect(request);
        self.responses.expect(response);
        self.in_gap = 0;
        self.response_in_gap = 0;
        self.response_open = 0;
        self.resync_seen = resync;
    }
}
