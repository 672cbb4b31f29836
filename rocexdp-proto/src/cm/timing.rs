//! Times of the communication manager: codes t for 4.096 us * 2^t, bounded whatever a peer says.
//!
//! Follows drivers/infiniband/core/cm.c (`cm_convert_to_ms`, `cm_ack_timeout`).

use core::time::Duration;

/// Least code that a peer's wish is taken for: 33 ms, so that nobody makes us send all the time.
const LEAST: u8 = 13;
/// Largest code: 68.7 s, so that nobody makes us wait for hours.
const MOST: u8 = 24;

/// 4.096 us * 2^`code`.
pub(super) fn span(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}

/// How long to wait for an answer: the peer's time for it, and the way there and back.
///
/// Codes outside 13 to 24 (33 ms to 68.7 s) are taken for the nearest of these.
#[must_use]
pub fn response_time(code: u8, packet_life_time: u8) -> Duration {
    span(code.clamp(LEAST, MOST)) + 2 * span(packet_life_time.min(MOST))
}

/// The local ACK timeout that follows from the ACK delay of the answering end and the packet life time, both as codes: the sum of the
/// delay and two life times, rounded up to a code (`cm_ack_timeout`).
#[must_use]
pub fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let (ack_delay, ways) = (ack_delay.min(32), packet_life_time.min(31) + 1);
    let code = if ways >= ack_delay {
        ways + u8::from(ack_delay >= ways - 1)
    } else {
        ack_delay + u8::from(ways >= ack_delay - 1)
    };
    code.min(31)
}

/// How long a connection's numbers are not used again (`cm_enter_timewait`).
pub(super) fn time_wait(ack_timeout: u8) -> Duration {
    span(ack_timeout.clamp(LEAST, 21))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ack_timeout_is_the_kernels() {
        // Life time 18, ACK delay 15 gives 19: captures cm-*.
        assert_eq!(ack_timeout(15, 18), 19);
        for (delay, life, code) in [
            (0, 0, 2),
            (15, 14, 16),
            (16, 14, 17),
            (14, 15, 16),
            (13, 15, 16),
            (20, 3, 20),
            (31, 31, 31),
            (255, 255, 31),
        ] {
            assert_eq!(ack_timeout(delay, life), code, "{delay} {life}");
        }
        // Never less than the sum.
        for delay in 0..31 {
            for life in 0..30 {
                let code = ack_timeout(delay, life);
                assert!(code == 31 || span(code) >= span(life), "{delay} {life}");
            }
        }
    }

    #[test]
    fn a_peers_wish_is_bounded() {
        assert_eq!(response_time(0, 0), span(13) + 2 * span(0));
        assert_eq!(response_time(31, 31), 3 * span(24));
        assert_eq!(response_time(20, 18), span(20) + 2 * span(18));
        assert_eq!(time_wait(31), span(21));
    }
}
