//! PFC at the engine: pauses that the link's other end asks for, told to the transport, and pauses that we ask for when our
//! own receive side runs out of room.
//!
//! Received: XDP keeps each priority's last pause in `LINK_CONTROL` (frame's time, and end of its quanta at the link's rate), which
//! a worker reads before it sends anything, so that a pause is in force within one turn: at most `engine::worker`'s budget of
//! packets, 64, after its frame. While a pause holds something back the worker looks every 50 us at least, so that its end is not
//! slept through. Most MACs take these frames themselves: then none is seen here, and the MAC pauses by itself.
//!
//! Sent, where asked for: a worker whose RX ring is filled by half pauses the priorities it was told of, and lets them go on at a
//! quarter; the pause is renewed at half of its time. A worker that gets no processor time can't say that it has no room.
//!
//! Must not: decide what a pause stops (the transport does).

use std::mem::{offset_of, size_of};
use std::time::Duration;

use rocexdp_common::maps::{LinkControl, PausePriority};
use rocexdp_proto::{PRIORITIES, time::Timestamp};

use crate::maps::Maps;

/// Priorities, and global pause behind them.
const CHANNELS: usize = PRIORITIES + 1;
const SINCE: usize = offset_of!(PausePriority, since_ns);
const UNTIL: usize = offset_of!(PausePriority, until_ns);

/// What was told of the pauses that one receive queue's program saw: time and end of the last frame of each channel.
type Told = [(u64, u64); CHANNELS];

/// The reader of one worker.
#[derive(Debug)]
pub struct Received {
    told: Vec<Told>,
}

impl Received {
    /// Of a program on so many queues; the entry behind them is that of queues which came later.
    pub fn new(queues: u32) -> Self {
        Self {
            told: vec![[(0, 0); CHANNELS]; queues as usize + 1],
        }
    }

    /// Calls `tell` with each priority whose pause is news, and its end.
    pub fn drain(&mut self, maps: &Maps, mut tell: impl FnMut(u8, Timestamp)) {
        for (queue, told) in self.told.iter_mut().enumerate() {
            for (channel, told) in told.iter_mut().enumerate() {
                let at = match channel {
                    PRIORITIES => offset_of!(LinkControl, global),
                    n => offset_of!(LinkControl, pfc) + n * size_of::<PausePriority>(),
                };
                // XDP writes them in this order: an end that is news without its time comes with it next time.
                let read = |field| maps.link_control.load_u64(queue as u32, at + field);
                let (Some(until), Some(since)) = (read(UNTIL), read(SINCE)) else {
                    continue;
                };
                if (since, until) == *told {
                    continue;
                }
                *told = (since, until);
                let until = Timestamp::from_nanos(until);
                match channel {
                    PRIORITIES => (0..PRIORITIES as u8).for_each(|p| tell(p, until)),
                    n => tell(n as u8, until),
                }
            }
        }
    }
}

/// Where a MAC sends pause frames.
const PAUSE_MAC: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 1];
const MAC_CONTROL: [u8; 2] = [0x88, 0x08];
const PRIORITY_PAUSE: [u8; 2] = [0x01, 0x01];
/// The longest pause that a frame asks for.
const MOST_QUANTA: u16 = u16::MAX;
/// Bytes of a pause frame, without FCS.
pub const FRAME: usize = 60;

/// A PFC frame: the priorities whose bit is set in `classes` stop for so many quanta.
pub fn frame(from: [u8; 6], classes: u8, quanta: u16) -> [u8; FRAME] {
    let mut out = [0; FRAME];
    let mut at = 0;
    let mut push = |bytes: &[u8]| {
        if let Some(place) = out.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        at += bytes.len();
    };
    push(&PAUSE_MAC);
    push(&from);
    push(&MAC_CONTROL);
    push(&PRIORITY_PAUSE);
    push(&[0, classes]);
    for priority in 0..PRIORITIES {
        let quanta = if classes & 1 << priority != 0 {
            quanta
        } else {
            0
        };
        push(&quanta.to_be_bytes());
    }
    out
}

/// What a worker sends of its own accord.
#[derive(Debug)]
pub struct Sender {
    classes: u8,
    /// How long the longest pause lasts at the link's rate.
    longest: Duration,
    /// While the other end is paused: when that is to be renewed.
    renew: Option<Timestamp>,
}

impl Sender {
    /// Pauses the priorities whose bit is set; a quantum takes so long (0: the link's rate is not known).
    pub fn new(classes: u8, quantum_ps: u32) -> Self {
        let ns = u64::from(MOST_QUANTA) * u64::from(quantum_ps) / 1000;
        Self {
            classes,
            // Unknown: as on a link of 100 Gb/s, which is renewed more often than a slower one needs.
            longest: Duration::from_nanos(if ns == 0 { 335_539 } else { ns }),
            renew: None,
        }
    }

    /// `waiting` of the `entries` of the RX ring are filled. The frame to send: priorities and quanta.
    pub fn look(&mut self, now: Timestamp, waiting: u32, entries: u32) -> Option<(u8, u16)> {
        match self.renew {
            None if waiting > entries / 2 => {}
            Some(_) if waiting < entries / 4 => {
                self.renew = None;
                return Some((self.classes, 0));
            }
            Some(at) if at <= now => {}
            _ => return None,
        }
        self.renew = Some(now + self.longest / 2);
        Some((self.classes, MOST_QUANTA))
    }

    /// When [`Self::look`] is to be asked again, whatever arrives.
    pub fn next(&self) -> Option<Timestamp> {
        self.renew
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_common::dissect::{Kind, dissect};

    use super::*;

    #[test]
    fn a_frame_is_what_xdp_takes_for_one() {
        let frame = frame([2, 0, 0, 0, 0, 9], 0b1001, 300);
        let kind = dissect(&frame[..]).kind;
        let Kind::Pfc(pfc) = kind else {
            panic!("{kind:?}");
        };
        assert_eq!(pfc.class_enable, 0b1001);
        assert_eq!(pfc.quanta, [300, 0, 0, 300, 0, 0, 0, 0]);
    }

    #[test]
    fn a_full_ring_pauses_and_an_emptied_one_lets_go_on() {
        let at = Timestamp::from_micros;
        // 65535 quanta of 51.2 ns.
        let mut s = Sender::new(0b1000, 51_200);
        assert_eq!(s.look(at(0), 512, 1024), None);
        assert_eq!(s.look(at(1), 513, 1024), Some((8, 0xffff)));
        assert_eq!(s.look(at(2), 1024, 1024), None, "it is paused");
        assert_eq!(s.next(), Some(at(1) + Duration::from_nanos(1_677_696)));
        assert_eq!(s.look(at(1700), 300, 1024), Some((8, 0xffff)), "renewed");
        assert_eq!(s.look(at(1701), 256, 1024), None);
        assert_eq!(s.look(at(1702), 255, 1024), Some((8, 0)));
        assert_eq!((s.look(at(5000), 255, 1024), s.next()), (None, None));
    }
}
