//! What both programs tell an operator beside the counters: round-trip times, pause frames, rare events.
//!
//! The arithmetic of each stands with its layout; nothing here reads a packet or a clock.

use super::{FlowKey, Reason};
use crate::ids::Gid;

/// Buckets of [`Rtt`].
pub const RTT_BUCKETS: usize = 32;

/// Round-trip times, from a request to the packet that acknowledges it, as a log2 histogram.
///
/// Requests that were sent again are left out: which of the two was acknowledged can't be told (Karn's rule).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Rtt {
    /// Bucket `i` counts times of `2^i` ns up to, not including, `2^(i+1)` ns; the first has 0 ns too, the last has all above.
    pub buckets: [u64; RTT_BUCKETS],
    /// Sum, ns.
    pub sum_ns: u64,
    /// Longest, ns.
    pub max_ns: u64,
}

impl Rtt {
    /// No time measured.
    pub const ZERO: Self = Self {
        buckets: [0; RTT_BUCKETS],
        sum_ns: 0,
        max_ns: 0,
    };

    /// The bucket of a time.
    #[inline(always)]
    pub const fn bucket(ns: u64) -> usize {
        if ns >> (RTT_BUCKETS - 1) != 0 {
            return RTT_BUCKETS - 1;
        }
        // By halves: BPF has no instruction that counts zeros.
        let (mut rest, mut bit) = (ns as u32, 0);
        if rest >> 16 != 0 {
            rest >>= 16;
            bit += 16;
        }
        if rest >> 8 != 0 {
            rest >>= 8;
            bit += 8;
        }
        if rest >> 4 != 0 {
            rest >>= 4;
            bit += 4;
        }
        if rest >> 2 != 0 {
            rest >>= 2;
            bit += 2;
        }
        bit + (rest >> 1) as usize
    }

    /// Takes one time.
    #[inline(always)]
    pub fn take(&mut self, ns: u64) {
        if let Some(count) = self.buckets.get_mut(Self::bucket(ns)) {
            *count += 1;
        }
        self.sum_ns += ns;
        if ns > self.max_ns {
            self.max_ns = ns;
        }
    }

    /// Times measured.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// An upper bound of the `q` quantile (0 to 1), ns: the end of its bucket, or the maximum where that is less; `None`:
    /// nothing measured.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((q * count as f64) as u64).min(count - 1);
        let mut before = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            before += n;
            if before > rank {
                let end = if i + 1 < RTT_BUCKETS {
                    (2 << i) - 1
                } else {
                    u64::MAX
                };
                return Some(end.min(self.max_ns));
            }
        }
        Some(self.max_ns)
    }

    /// Adds what another place measured.
    pub fn add(&mut self, other: &Self) {
        for (a, b) in self.buckets.iter_mut().zip(&other.buckets) {
            *a += b;
        }
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// Pause frames of one priority, or of the whole port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct PausePriority {
    /// Frames that ask to stop (quanta above 0).
    pub pauses: u64,
    /// Frames that allow to go on (quanta 0).
    pub resumes: u64,
    /// Time paused before `since_ns`, ns.
    pub paused_ns: u64,
    /// Time of the last frame, ns of CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// When the last frame's quanta end.
    pub until_ns: u64,
}

impl PausePriority {
    /// Takes a frame that asks for `quanta` of 512 bit times, of `quantum_ps` each (0: rate of the link unknown; then
    /// frames are counted, times are not).
    #[inline(always)]
    pub fn take(&mut self, quanta: u16, quantum_ps: u32, now_ns: u64) {
        if quanta == 0 {
            self.resumes += 1;
        } else {
            self.pauses += 1;
        }
        self.paused_ns = self.paused_until(now_ns);
        self.since_ns = now_ns;
        self.until_ns = now_ns + u64::from(quanta) * u64::from(quantum_ps) / 1000;
    }

    /// Time paused up to now, ns.
    #[inline(always)]
    pub const fn paused_until(&self, now_ns: u64) -> u64 {
        let end = if now_ns < self.until_ns {
            now_ns
        } else {
            self.until_ns
        };
        self.paused_ns + end.saturating_sub(self.since_ns)
    }

    /// Whether it is paused.
    pub const fn paused(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

/// What XDP saw of link control on one receive queue. Most MACs take these frames themselves: no frame seen is no proof.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct LinkControl {
    /// Priority flow control (MAC control opcode 0x0101), by priority.
    pub pfc: [PausePriority; 8],
    /// Global pause (MAC control opcode 0x0001).
    pub global: PausePriority,
    /// PFC frames: each speaks of up to eight priorities.
    pub pfc_frames: u64,
    /// MAC control frames that are neither, or are cut short.
    pub other_mac_control: u64,
    /// LLDP frames.
    pub lldp: u64,
}

impl LinkControl {
    /// Takes a PFC frame: bit `i` of `class_enable` says that priority `i`'s quanta count.
    #[inline(always)]
    pub fn take_pfc(&mut self, class_enable: u8, quanta: [u16; 8], quantum_ps: u32, now_ns: u64) {
        self.pfc_frames += 1;
        let mut enabled = class_enable;
        for (priority, quanta) in self.pfc.iter_mut().zip(quanta) {
            if enabled & 1 != 0 {
                priority.take(quanta, quantum_ps, now_ns);
            }
            enabled >>= 1;
        }
    }
}

/// What a rare event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// A NAK of any code but RNR; [`Event::detail`] is the syndrome.
    Nak,
    /// RNR NAK; the detail is the syndrome.
    RnrNak,
    /// A packet to an address of ours with a QPN that is not ours.
    UnknownQpn,
    /// A packet refused by policy: wrong address or transport service; the detail is the [`Reason`].
    PolicyDrop,
    /// Malformed, or an undefined opcode; the detail is the [`Reason`].
    Malformed,
    /// A CNP with a wrong ICRC or form; the detail is the [`Reason`].
    BadCnp,
}

/// Names of the kinds, for output, in order.
pub const EVENT_NAMES: [&str; 6] = [
    "nak",
    "rnr_nak",
    "unknown_qpn",
    "policy_drop",
    "malformed",
    "bad_cnp",
];

impl EventKind {
    /// The event that a reason counted by XDP is worth.
    #[inline(always)]
    pub const fn of_reason(reason: Reason) -> Option<Self> {
        match reason {
            Reason::UnknownQpn => Some(Self::UnknownQpn),
            Reason::LocalAddress | Reason::PeerAddress | Reason::TransportMismatch => {
                Some(Self::PolicyDrop)
            }
            Reason::CnpMalformed | Reason::CnpIcrc => Some(Self::BadCnp),
            // The socket's own trouble: its counters tell it.
            Reason::NoSocket | Reason::MapFull => None,
            _ if reason.is_rocev2() => Some(Self::Malformed),
            _ => None,
        }
    }
}

/// A record of the ring buffer `EVENTS`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Event {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// [`EventKind`] as a number.
    pub kind: u32,
    /// Receive queue; [`EGRESS`] for a packet that was sent.
    pub queue: u32,
    /// Source address; zeros when the packet was not parsed so far.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Its PSN.
    pub psn: u32,
    /// As the kind says: a syndrome, a reason.
    pub detail: u32,
    /// BTH opcode.
    pub opcode: u32,
}

/// [`Event::queue`] of a packet that was sent.
pub const EGRESS: u32 = u32::MAX;

/// Events let through in one window on one queue.
pub const EVENTS_PER_WINDOW: u32 = 128;
/// Length of the window, ns.
pub const EVENT_WINDOW_NS: u64 = 100_000_000;

/// How many events a queue raised, and what became of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct EventBook {
    /// Put into the ring.
    pub sent: u64,
    /// Held back by the rate limit.
    pub suppressed: u64,
    /// Lost because nobody had made room in the ring.
    pub lost: u64,
    /// When the present window began.
    pub window_ns: u64,
    /// Events let through in it.
    pub in_window: u64,
}

impl EventBook {
    /// Whether another event may go out now; counts it as suppressed if not.
    #[inline(always)]
    pub fn allow(&mut self, now_ns: u64) -> bool {
        if now_ns.wrapping_sub(self.window_ns) >= EVENT_WINDOW_NS {
            self.window_ns = now_ns;
            self.in_window = 0;
        }
        if self.in_window >= EVENTS_PER_WINDOW as u64 {
            self.suppressed += 1;
            return false;
        }
        self.in_window += 1;
        true
    }
}

/// Key of `PENDING`: a request that waits for its acknowledgement, as its acknowledgement names it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct PendingKey {
    /// The requester's address.
    pub src: Gid,
    /// The responder's address.
    pub dst: Gid,
    /// PSN of the request.
    pub psn: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

impl PendingKey {
    /// Of a request in `flow`.
    #[inline(always)]
    pub const fn request(flow: &FlowKey, psn: u32) -> Self {
        Self {
            src: flow.src,
            dst: flow.dst,
            psn,
            reserved: 0,
        }
    }

    /// Of the request that a response in `flow` answers.
    #[inline(always)]
    pub const fn answered(flow: &FlowKey, psn: u32) -> Self {
        Self {
            src: flow.dst,
            dst: flow.src,
            psn,
            reserved: 0,
        }
    }
}

/// Value of `PENDING`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Pending {
    /// When the request passed; 0: it passed more than once, or two QPs' requests have the key, so that no time is taken.
    pub time_ns: u64,
    /// Destination QPN of the request: the QP that will answer.
    pub dest_qpn: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_bucket_of_its_highest_bit() {
        assert_eq!(Rtt::bucket(0), 0);
        for bit in 0..64 {
            let want = usize::min(bit, RTT_BUCKETS - 1);
            assert_eq!(Rtt::bucket(1 << bit), want);
            assert_eq!(Rtt::bucket((1 << bit) | ((1 << bit) - 1)), want);
        }
    }

    #[test]
    fn a_quantile_is_the_end_of_its_bucket_and_at_most_the_maximum() {
        let mut rtt = Rtt::ZERO;
        assert_eq!(rtt.quantile(0.5), None);
        for _ in 0..99 {
            rtt.take(1500);
        }
        rtt.take(70_000);
        assert_eq!(rtt.quantile(0.5), Some(2047));
        assert_eq!(rtt.quantile(0.98), Some(2047));
        assert_eq!(rtt.quantile(0.99), Some(70_000));
        assert_eq!((rtt.count(), rtt.max_ns), (100, 70_000));
        assert_eq!(rtt.sum_ns, 99 * 1500 + 70_000);
    }

    #[test]
    fn paused_time_is_the_union_of_overlapping_pauses() {
        let mut p = PausePriority::default();
        // 100 quanta of 512 bit at 10 Gb/s: 5120 ns.
        p.take(100, 51_200, 1000);
        assert_eq!(
            (p.paused(1000), p.paused(6119), p.paused(6120)),
            (true, true, false)
        );
        p.take(100, 51_200, 3000); // renewed before its end
        assert_eq!(p.paused_until(4000), 3000);
        p.take(0, 51_200, 5000);
        assert_eq!((p.paused_until(9000), p.paused(5000)), (4000, false));
        p.take(100, 51_200, 20_000);
        assert_eq!(p.paused_until(90_000), 4000 + 5120);
        assert_eq!((p.pauses, p.resumes), (3, 1));
    }

    #[test]
    fn events_beyond_the_rate_are_counted_as_suppressed() {
        let mut book = EventBook::default();
        let allowed = |book: &mut EventBook, now| (0..200).filter(|_| book.allow(now)).count();
        assert_eq!(allowed(&mut book, EVENT_WINDOW_NS), 128);
        assert_eq!(allowed(&mut book, EVENT_WINDOW_NS * 2 - 1), 0);
        assert_eq!(allowed(&mut book, EVENT_WINDOW_NS * 2), 128);
        assert_eq!(book.suppressed, 72 + 200 + 72);
    }
}
