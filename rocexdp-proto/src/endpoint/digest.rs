//! An endpoint's state as one number: two states that differ have, all but surely, different ones.
//!
//! For tests and fuzzing of "a packet that fails its checks changes nothing but counters". It is made of what `Debug` shows of
//! each QP, so a new field of a QP is in it without anyone's help. Counters are left out. Slow: linear in all there is.
//!
//! Must not: be looked at by the transport.

use core::fmt::{self, Write};

use super::Endpoint;
use crate::time::Timestamp;

/// FNV-1a, 64 bits, of text.
struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}

impl Endpoint {
    /// A number of all state that decides what the endpoint does next: QPs, their queues' lengths, keys, timers, who waits to
    /// send, events not taken. Counters are not in it, nor what stands in application memory or completion queues.
    #[must_use]
    pub fn state_digest(&mut self) -> u64 {
        let mut digest = Fnv(0xcbf2_9ce4_8422_2325);
        for qp in self.qps.iter_mut().flatten() {
            let stats = core::mem::take(&mut qp.stats);
            // Writing to a number can't fail.
            let _ = write!(digest, "{qp:?}");
            qp.stats = stats;
        }
        // What time it is is no state.
        let seen = self.pauses.look(Timestamp::ZERO);
        let _ = write!(
            digest,
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {}",
            self.regions,
            self.rng,
            self.timers.next(),
            self.cnps,
            self.acks,
            self.senders,
            self.pauses,
            self.events,
            self.qps.len(),
        );
        self.pauses.look(seen);
        digest.0
    }
}
