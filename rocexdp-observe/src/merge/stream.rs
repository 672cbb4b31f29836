//! One direction of a QP pair as both taps saw it, in order: what was seen by whom, what never came, what a NAK asks for.
//!
//! Sequence rules as a responder's (drivers/infiniband/sw/rxe/rxe_resp.c, `check_psn`): a PSN beyond the next is a gap, a
//! NAK names the first PSN of one. Bounded: the last 1024 PSNs are remembered.

use rocexdp_common::ids::Psn;

use super::{Told, Unsure, Untold};
use crate::flow::delays::Delays;

const REMEMBERED: usize = 1024;
/// A PSN that comes later than this after others overtook it was lost and sent again, not overtaken.
const OVERTAKEN_NS: i64 = 1_000_000;
/// A request sent again after such a silence, and after no NAK: a timer ran out.
const SILENCE_NS: i64 = 1_000_000;

/// Who saw a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    Both,
    One,
}

/// What is known of a PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Known {
    #[default]
    Nothing,
    Both,
    One,
    /// Never seen; others after it were.
    Skipped,
    /// Its loss has been told.
    Told,
}

/// What a packet tells of a loss at neither of the taps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Elsewhere {
    /// Lost before either tap saw it.
    Before,
    /// Lost after both taps saw it.
    Behind,
    /// The packet, after both taps, or its answer.
    BehindOrAnswer,
    /// Not lost, overtaken.
    Overtaken,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    psn: u32,
    known: Known,
}

/// The direction.
#[derive(Default)]
pub(super) struct Stream {
    pub both: u64,
    pub only_a: u64,
    pub only_b: u64,
    /// While the other tap was not recording.
    pub outside: u64,
    /// Of those the ones that a later packet may tell of.
    pub unsure: Vec<Unsure>,
    /// When the first packet that both saw passed each tap, by its clock.
    first_both: Option<(i64, i64)>,
    pub before: u64,
    pub behind: u64,
    pub behind_or_answer: u64,
    pub overtaken: u64,
    /// Packets that passed A first, B first.
    pub order: (u64, u64),
    pub least_delay: Option<u64>,
    pub delays: Delays,
    /// Direction of the answers, once told.
    pub tied: bool,
    ring: Vec<Entry>,
    most: Option<Psn>,
    after_read: bool,
    gap_time: i64,
    last_time: i64,
    /// A NAK or RNR explains what is sent again now.
    excused: bool,
}

impl Stream {
    /// Takes a delay, B after A positive.
    pub(super) fn delay(&mut self, ns: i64) {
        if ns >= 0 {
            self.order.0 += 1;
        } else {
            self.order.1 += 1;
        }
        let ns = ns.unsigned_abs();
        self.least_delay = Some(self.least_delay.map_or(ns, |least| least.min(ns)));
        self.delays.push(ns);
    }

    /// Takes a packet that both saw, A then and B then. What one tap alone saw between the first such and this one passed
    /// while both were recording: it is returned, and counted as seen by that tap alone.
    pub(super) fn sure(&mut self, a: i64, b: i64) -> Vec<Told> {
        let (first_a, first_b) = *self.first_both.get_or_insert((a, b));
        let mut between = Vec::new();
        let mut open = Vec::new();
        for unsure in self.unsure.drain(..) {
            let (first, last, only) = match unsure.told.place {
                Untold::OnlyA => (first_a, a, &mut self.only_a),
                _ => (first_b, b, &mut self.only_b),
            };
            if unsure.time > last {
                open.push(unsure);
            } else if unsure.time > first {
                *only += 1;
                self.outside -= 1;
                between.push(unsure.told);
            }
        }
        self.unsure = open;
        between
    }

    fn entry(&mut self, psn: Psn) -> Option<&mut Entry> {
        if self.ring.is_empty() {
            self.ring = vec![Entry::default(); REMEMBERED];
        }
        self.ring.get_mut(psn.get() as usize % REMEMBERED)
    }

    fn known(&self, psn: Psn) -> Known {
        self.ring
            .get(psn.get() as usize % REMEMBERED)
            .filter(|entry| entry.psn == psn.get())
            .map_or(Known::Nothing, |entry| entry.known)
    }

    fn set(&mut self, psn: Psn, known: Known) {
        if let Some(entry) = self.entry(psn) {
            *entry = Entry {
                psn: psn.get(),
                known,
            };
        }
    }

    /// Whether a request with this PSN was seen or skipped lately.
    pub(super) fn has(&self, psn: Psn) -> bool {
        self.known(psn) != Known::Nothing
    }

    /// Takes a request.
    pub(super) fn request(
        &mut self,
        psn: Psn,
        time: i64,
        seen: Seen,
        one: bool,
    ) -> Option<Elsewhere> {
        let mut told = None;
        let ahead = self.most.map_or(1, |most| psn.diff(most));
        if ahead > 0 {
            if ahead > 1 && ahead as usize <= REMEMBERED && !self.after_read {
                self.gap_time = time;
                for n in 1..ahead as u32 {
                    self.set(psn.sub(n), Known::Skipped);
                }
            }
            self.most = Some(psn);
            self.after_read = !one;
            self.excused = false;
        } else {
            told = match self.known(psn) {
                Known::Skipped if time.saturating_sub(self.gap_time) < OVERTAKEN_NS => {
                    Some(Elsewhere::Overtaken)
                }
                Known::Skipped => Some(Elsewhere::Before),
                Known::Both
                    if !self.excused && time.saturating_sub(self.last_time) > SILENCE_NS =>
                {
                    Some(Elsewhere::BehindOrAnswer)
                }
                _ => None,
            };
            // What follows is sent again with it: that a tap saw it before no longer tells of it.
            self.excused = true;
            if told != Some(Elsewhere::Overtaken) {
                self.rewind(psn, ahead.unsigned_abs());
            }
        }
        self.last_time = time;
        self.set(
            psn,
            match seen {
                Seen::Both => Known::Both,
                Seen::One => Known::One,
            },
        );
        self.count(told)
    }

    /// Goes back to a PSN; `behind` is how far.
    fn rewind(&mut self, psn: Psn, behind: u32) {
        for n in 1..=behind.min(REMEMBERED as u32 - 1) {
            self.set(psn.add(n), Known::Nothing);
        }
        self.most = Some(psn);
    }

    /// Takes a NAK (PSN sequence error) that names a PSN.
    pub(super) fn nak(&mut self, psn: Psn) -> Option<Elsewhere> {
        let told = match self.known(psn) {
            Known::Skipped => Some(Elsewhere::Before),
            Known::Both => Some(Elsewhere::Behind),
            Known::Nothing | Known::One | Known::Told => None,
        };
        if told.is_some() {
            self.set(psn, Known::Told);
        }
        self.excused = true;
        self.count(told)
    }

    /// Takes an RNR NAK.
    pub(super) fn rnr(&mut self) {
        self.excused = true;
    }

    fn count(&mut self, told: Option<Elsewhere>) -> Option<Elsewhere> {
        match told? {
            Elsewhere::Before => self.before += 1,
            Elsewhere::Behind => self.behind += 1,
            Elsewhere::BehindOrAnswer => self.behind_or_answer += 1,
            Elsewhere::Overtaken => self.overtaken += 1,
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn stream(psns: impl IntoIterator<Item = u32>) -> Stream {
        let mut stream = Stream::default();
        for psn in psns {
            let told = stream.request(
                Psn::new(psn),
                i64::from(psn & 0xff) * 1000,
                Seen::Both,
                true,
            );
            assert_eq!(told, None);
        }
        stream
    }

    #[test]
    fn a_nak_tells_where_its_packet_was_lost() {
        let mut behind = stream(0..10);
        assert_eq!(behind.nak(Psn::new(5)), Some(Elsewhere::Behind));
        // Once: then it is sent again, and may be lost again.
        assert_eq!(behind.nak(Psn::new(5)), None);
        for psn in 5..10 {
            assert_eq!(
                behind.request(Psn::new(psn), 9 * MS, Seen::Both, true),
                None
            );
        }
        assert_eq!(behind.nak(Psn::new(5)), Some(Elsewhere::Behind));
        assert_eq!(behind.behind, 2);

        let mut before = stream([0xff_fffe, 0xff_ffff, 1]);
        assert_eq!(before.nak(Psn::new(0)), Some(Elsewhere::Before));
        assert_eq!(before.request(Psn::new(0), 5 * MS, Seen::Both, true), None);

        let mut between = stream(0..5);
        between.request(Psn::new(5), 6000, Seen::One, true);
        between.request(Psn::new(6), 7000, Seen::Both, true);
        assert_eq!(between.nak(Psn::new(5)), None);
        assert_eq!((between.before, between.behind), (0, 0));
    }

    #[test]
    fn what_is_lost_while_it_is_sent_again_is_placed_anew() {
        let mut stream = stream([0, 1, 3, 4, 5, 6]);
        assert_eq!(stream.nak(Psn::new(2)), Some(Elsewhere::Before));
        // All are sent again; the second copy of 4 is lost before the taps, which saw the first.
        for psn in [2, 3, 5, 6] {
            assert_eq!(
                stream.request(Psn::new(psn), 50_000, Seen::Both, true),
                None
            );
        }
        assert_eq!(stream.nak(Psn::new(4)), Some(Elsewhere::Before));
        assert_eq!(stream.before, 2);
    }

    #[test]
    fn without_a_nak_time_tells() {
        let mut late = stream([0, 1, 3]);
        assert_eq!(
            late.request(Psn::new(2), 100_000, Seen::Both, true),
            Some(Elsewhere::Overtaken)
        );
        let mut lost = stream([0, 1, 3]);
        assert_eq!(
            lost.request(Psn::new(2), 5 * MS, Seen::Both, true),
            Some(Elsewhere::Before)
        );
        let mut silent = stream(0..4);
        let told = silent.request(Psn::new(3), 5 * MS, Seen::Both, true);
        assert_eq!(told, Some(Elsewhere::BehindOrAnswer));
        let mut rnr = stream(0..4);
        rnr.rnr();
        assert_eq!(rnr.request(Psn::new(3), 5 * MS, Seen::Both, true), None);
    }

    #[test]
    fn a_read_takes_psns_that_are_no_gap() {
        let mut stream = Stream::default();
        assert_eq!(stream.request(Psn::new(10), 0, Seen::Both, false), None);
        assert_eq!(stream.request(Psn::new(20), 1, Seen::Both, true), None);
        assert_eq!(stream.nak(Psn::new(15)), None);
    }
}
