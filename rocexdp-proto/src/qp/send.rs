//! The send side's state, which requester and completer share and which is all that either knows of the other.
//!
//! Packets are numbered from 0 without wrap; a PSN is made of that number when it goes out, and turned back into one when it
//! comes in, relative to the oldest packet that is not acknowledged. So a message of 2^23 packets needs no care at the wrap.
//! A READ takes as many numbers as it has response packets: its number `n` is answered by the response that carries the
//! bytes of packet `n`. It is asked for in chunks, each by one request packet; where a chunk ends follows from the READ
//! alone ([`SendState::chunk`]), so that a chunk asked for again from its middle still ends where it did.
//!
//! Three questions are kept apart: which packet is number `n` (the request that holds it says), what has been answered
//! ([`SendState::una`], and [`Answered`] for what only its own response can answer), and what is sent next
//! ([`SendState::next`]).
//!
//! How much may be on the way is `send/window.rs`'s matter. Must not: build or read packets.

mod window;

use core::time::Duration;
use std::collections::VecDeque;

use rocexdp_common::headers::Sack;

use super::attr::{MAX_RD_ATOMIC, RtsAttr, ack_timeout};
use super::rto::AckTimer;
use super::sr::{Receiver, SPAN, Sender};
use crate::ids::{PathMtu, Psn};
use crate::time::Timestamp;
use crate::verbs::{SendOp, SendWr, Status};

/// A request that was taken from the send queue and has not completed.
#[derive(Debug)]
pub(crate) struct Wqe {
    pub(crate) wr: SendWr,
    /// Number of its first packet.
    pub(crate) first: u64,
    /// How many numbers it takes: its packets, or those of its responses. None if it never leaves the host.
    pub(crate) packets: u32,
    /// A request that never leaves the host has been carried out.
    pub(crate) done: bool,
    /// It could not be carried out, for a reason of our own; it completes so when all before it have.
    pub(crate) failed: Option<Status>,
}

impl Wqe {
    /// Number of the first packet behind it.
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// Whether it never leaves the host: a local operation, or one that failed before it did.
    pub(crate) fn stays(&self) -> bool {
        self.packets == 0
    }

    /// Whether an ordinary acknowledgement does not answer it: it brings data, or takes a resource of the responder.
    pub(crate) fn wants_response(&self) -> bool {
        !self.stays() && wants_response(&self.wr.op)
    }

    /// Whether everything before `una` being answered completes it.
    pub(crate) fn is_complete(&self, una: u64) -> bool {
        if self.stays() {
            self.done
        } else {
            self.end() <= una
        }
    }
}

/// READs and atomics, and what the responder treats like them (it keeps the answer for a duplicate).
pub(crate) fn wants_response(op: &SendOp) -> bool {
    op.fetches() || matches!(op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. })
}

/// What only a response of its own answers: a chunk of a READ, an atomic, a FLUSH or an ATOMIC WRITE that was sent.
#[derive(Clone, Copy, Debug)]
struct Answered {
    /// Its first number, and the one behind its last.
    first: u64,
    end: u64,
}

/// What an endpoint's settings allow a send side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    /// Request packets that may be unacknowledged.
    pub(crate) window: u32,
    /// Every so-manieth packet asks for an acknowledgement.
    pub(crate) ack_interval: u32,
    /// Response packets that one READ request may ask for.
    pub(crate) read_chunk: u32,
    /// The ACK timeout follows the round trip, but is at least this.
    pub(crate) adaptive: Option<Duration>,
}

/// State of the send side.
#[derive(Debug)]
pub(crate) struct SendState {
    /// PSN of packet 0.
    start: Psn,
    /// Oldest packet not acknowledged.
    pub(crate) una: u64,
    /// Next packet to send: behind `una` by what is in flight, and back at `una` when sending again.
    pub(crate) next: u64,
    /// Behind the newest packet ever sent.
    pub(crate) high: u64,
    /// Behind the newest packet of all requests taken.
    pub(crate) tail: u64,
    /// Behind the newest packet sent with AckReq, and the newest response asked for: up to there an answer is due.
    pub(crate) asked: u64,
    /// Requests taken, oldest first; the front one holds `una`.
    pub(crate) wqes: VecDeque<Wqe>,
    /// Which of them holds `next`; their number when `next` is at the tail.
    pub(crate) cursor: usize,
    /// What wants a response of its own, sent and not fully answered, oldest first.
    pending: VecDeque<Answered>,
    /// How many of them are asked for since the last going back, and the numbers that these take.
    asked_for: usize,
    asked_numbers: u64,
    /// Where the last going back started: a READ's responses may begin anew there.
    pub(crate) restart: u64,
    /// An implied NAK has led to sending again, and nothing was answered since: more of them are the same news.
    pub(crate) implied: bool,
    /// An RNR NAK besides has had it wait since.
    pub(crate) implied_waited: bool,
    /// When an answer is overdue.
    pub(crate) ack_deadline: Option<Timestamp>,
    pub(crate) ack_timer: AckTimer,
    /// A packet that asked for an answer, sent once and not answered, and when it left: one at a time is timed.
    pub(crate) timed: Option<(u64, Timestamp)>,
    /// No packet before this time: the peer was not ready.
    pub(crate) rnr_until: Option<Timestamp>,
    pub(crate) retry_left: u8,
    pub(crate) rnr_left: u8,
    /// Attributes.
    pub(crate) path_mtu: PathMtu,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: usize,
    /// Packets that may be unacknowledged, as configured, and as the rate controller allows now.
    cap: u32,
    window: u32,
    ack_interval: u32,
    pub(crate) read_chunk: u32,
    /// The same without selective repeat.
    rc_read_chunk: u32,
    /// Selective repeat's books, where the peer agreed to it: `next` then never goes back.
    pub(crate) selective: Option<Box<Sender>>,
    /// And those of the answers that have come.
    pub(crate) answers: Option<Box<Receiver>>,
    /// Number of the packet sent last.
    pub(crate) latest: u64,
    /// No packet from this number on leaves: its request has failed here, and waits for those before it.
    stop: u64,
}

impl SendState {
    pub(crate) fn new(depth: u32, limits: &SendLimits) -> Self {
        let window = limits.window.clamp(1, MAX_WINDOW);
        // Two chunks fit the window, so that one is on its way while the other is asked for.
        let read_chunk = limits.read_chunk.min(MAX_READ_CHUNK).min(window / 2).max(1);
        Self {
            start: Psn::new(0),
            una: 0,
            next: 0,
            high: 0,
            tail: 0,
            asked: 0,
            wqes: VecDeque::with_capacity(depth as usize),
            cursor: 0,
            pending: VecDeque::new(),
            asked_for: 0,
            asked_numbers: 0,
            restart: 0,
            implied: false,
            implied_waited: false,
            ack_deadline: None,
            ack_timer: AckTimer::new(limits.adaptive),
            timed: None,
            rnr_until: None,
            retry_left: 0,
            rnr_left: 0,
            path_mtu: PathMtu::Mtu1024,
            retry_cnt: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            cap: window,
            window,
            ack_interval: limits.ack_interval.max(1),
            read_chunk,
            rc_read_chunk: read_chunk,
            selective: None,
            answers: None,
            latest: 0,
            stop: u64::MAX,
        }
    }

    /// Starts numbering, at RTS.
    pub(crate) fn start(&mut self, attr: &RtsAttr, path_mtu: PathMtu) {
        self.reset();
        self.start = attr.sq_psn;
        self.path_mtu = path_mtu;
        self.ack_timer.start(ack_timeout(attr.timeout));
        self.retry_cnt = attr.retry_cnt;
        self.rnr_retry = attr.rnr_retry;
        self.set_max_rd_atomic(attr.max_rd_atomic.min(MAX_RD_ATOMIC));
        self.reload_retries();
    }

    /// The peer agreed to selective repeat: the books of requests sent, and of answers that come.
    pub(crate) fn repeat_selectively(&mut self, sender: Sender, answers: Receiver) {
        self.selective = Some(Box::new(sender));
        self.answers = Some(Box::new(answers));
        // Several READ requests are on their way at once, so that one that is lost is overtaken by others.
        self.read_chunk = (self.cap / 8).clamp(1, MAX_SELECTIVE_CHUNK);
    }

    /// Another initiator depth.
    pub(crate) fn set_max_rd_atomic(&mut self, depth: u8) {
        self.max_rd_atomic = usize::from(depth);
    }

    /// Starts numbering, at RTS, where nothing is acknowledged.
    pub(crate) fn start_unacknowledged(&mut self, sq_psn: Psn, path_mtu: PathMtu) {
        self.reset();
        self.start = sq_psn;
        self.path_mtu = path_mtu;
        self.ack_timer.start(None);
    }

    /// Forgets all requests. The PSNs of what was sent stay used, for a QP that goes on (from SQE).
    pub(crate) fn reset(&mut self) {
        self.start = self.psn(self.high);
        (self.selective, self.answers) = (None, None);
        self.read_chunk = self.rc_read_chunk;
        self.latest = 0;
        self.stop = u64::MAX;
        self.wqes.clear();
        (
            self.una,
            self.next,
            self.high,
            self.tail,
            self.asked,
            self.cursor,
        ) = (0, 0, 0, 0, 0, 0);
        self.pending.clear();
        (self.asked_for, self.asked_numbers) = (0, 0);
        (self.restart, self.implied, self.implied_waited) = (0, false, false);
        self.ack_deadline = None;
        self.timed = None;
        self.rnr_until = None;
    }

    pub(crate) fn reload_retries(&mut self) {
        self.retry_left = self.retry_cnt;
        self.rnr_left = self.rnr_retry;
    }

    /// PSN of a packet.
    pub(crate) fn psn(&self, packet: u64) -> Psn {
        let psn = self.start.add((packet & 0xff_ffff) as u32);
        if mutant!("psn_wrap") && psn.get() < self.start.get() {
            return psn.add(1);
        }
        psn
    }

    /// The packet with this PSN that is nearest to the oldest one not acknowledged; `None` before packet 0.
    pub(crate) fn packet(&self, psn: Psn) -> Option<u64> {
        self.una
            .checked_add_signed(i64::from(psn.diff(self.psn(self.una))))
    }

    /// The chunk of a READ that holds its number `index`, counted from the READ's first: where it starts and ends.
    pub(crate) fn chunk(&self, wqe: &Wqe, index: u32) -> (u32, u32) {
        let start = index - index % self.read_chunk;
        (
            start,
            wqe.packets.min(start.saturating_add(self.read_chunk)),
        )
    }

    /// The oldest number that only a response of its own answers, among those sent and not answered.
    pub(crate) fn unanswered(&self) -> Option<u64> {
        self.pending.front().map(|p| p.first.max(self.una))
    }

    /// Whether something before number `packet` waits for a response of its own.
    pub(crate) fn waits_before(&self, packet: u64) -> bool {
        self.pending.front().is_some_and(|p| p.first < packet)
    }

    /// Requests that want a response of their own and are unanswered, since the last going back.
    pub(crate) fn responses_asked(&self) -> usize {
        self.asked_for
    }

    /// Response packets that are still to come for them.
    pub(crate) fn responses_due(&self) -> u64 {
        let came = match self.pending.front() {
            Some(p) if self.asked_for > 0 => self.una.saturating_sub(p.first),
            _ => 0,
        };
        let kept = self.answers.as_ref().map_or(0, |rx| rx.reorder.len());
        (self.asked_numbers - came).saturating_sub(u64::from(kept))
    }

    /// Request packets on the wire: those sent since the last going back and not answered. A READ request is one.
    pub(crate) fn on_wire(&self) -> u64 {
        if let Some(sr) = &self.selective {
            return u64::from(sr.in_flight());
        }
        (self.next - self.una) - self.responses_due() + self.asked_for as u64
    }

    /// Whether the peer tracks so many numbers more.
    pub(crate) fn has_span(&self, numbers: u32) -> bool {
        let span = (self.next - self.una) + u64::from(numbers);
        self.selective.is_none() || span <= u64::from(SPAN)
    }

    /// Whether the next packet belongs to a request that has failed here, or is behind it.
    pub(crate) fn is_stopped(&self) -> bool {
        self.next >= self.stop
    }

    /// The request of the packet that was sent last has failed here: it and what is behind it go no further, while those before
    /// it are still answered, and sent again if need be.
    pub(crate) fn fail_here(&mut self, status: Status) {
        let at = self.latest;
        let i = self.wqes.partition_point(|w| w.end() <= at);
        if let Some(wqe) = self.wqes.get_mut(i) {
            wqe.failed = Some(status);
            self.stop = self.stop.min(wqe.first);
        }
    }

    /// When the ACK timer, or a probe, is due.
    pub(crate) fn answer_deadline(&self) -> Option<Timestamp> {
        let probe = match &self.selective {
            Some(sr) if self.rnr_until.is_none() => sr.deadline(),
            _ => None,
        };
        [probe, self.overdue(), self.ack_deadline]
            .into_iter()
            .flatten()
            .min()
    }

    /// Selective repeat: when the oldest packet, which the peer has, is to be asked for again. The peer's answer was lost: it has
    /// refused the packet for now, or carried it out.
    pub(crate) fn overdue(&self) -> Option<Timestamp> {
        let sr = self.selective.as_ref()?;
        let begun = self.pending.front().is_some_and(|p| p.first < self.una);
        let waits = self.una < self.next
            && self.rnr_until.is_none()
            && if begun {
                !sr.is_under_way(self.una)
            } else {
                sr.has_arrived(self.una)
            };
        let patience = sr.patience(sr.asked_again).filter(|_| waits)?;
        Some(sr.waits_since.saturating_add(patience))
    }

    /// Something was heard of the oldest packet.
    pub(crate) fn waits_from(&mut self, now: Timestamp) {
        if let Some(sr) = &mut self.selective {
            (sr.waits_since, sr.asked_again) = (now, 0);
        }
    }

    /// Whether selective repeat has arrivals of answers to tell of.
    pub(crate) fn owes_sack(&self) -> bool {
        self.answers.as_ref().is_some_and(|rx| rx.arrivals.owes())
    }

    /// Takes what is to be told of answers, which counts as told.
    pub(crate) fn take_sack(&mut self) -> Option<Sack> {
        if !self.owes_sack() {
            return None;
        }
        let mark = self.psn(self.una).get();
        let sack = self.answers.as_mut()?.arrivals.take()?;
        Some(Sack {
            answers: true,
            mark,
            ..sack
        })
    }

    /// The first number of what was asked for as one, and wants a response of its own, that holds `packet`.
    pub(crate) fn asked_with(&self, packet: u64) -> Option<u64> {
        let i = self.pending.partition_point(|p| p.end <= packet);
        let p = self.pending.get(i)?;
        (p.first <= packet).then_some(p.first)
    }

    /// The request that holds packet `number`.
    pub(crate) fn holder(&self, number: u64) -> Option<&Wqe> {
        let i = self.wqes.partition_point(|w| w.end() <= number);
        self.wqes.get(i)
    }

    /// Selective repeat: up to where everything is answered, when packets before `executed` are known to be carried out.
    pub(crate) fn answered_up_to(&mut self, executed: u64) -> u64 {
        let mut known = executed.min(self.high);
        if let Some(sr) = &mut self.selective {
            sr.executed = sr.executed.max(known);
            known = sr.executed;
        }
        match self.unanswered() {
            Some(missing) => known.min(missing),
            None => known,
        }
    }

    /// Numbers `self.next..end` have been sent, as one request that wants a response of its own.
    pub(crate) fn ask_for_response(&mut self, end: u64) {
        if self.asked_for == self.pending.len() {
            // Once in a QP's life, at its first READ or atomic: many have none.
            let room = self.max_rd_atomic.saturating_sub(self.pending.len());
            self.pending.reserve(room);
            self.pending.push_back(Answered {
                first: self.next,
                end,
            });
        }
        if let Some(p) = self.pending.get(self.asked_for) {
            debug_assert!(p.first <= self.next && p.end == end, "{p:?} {end}");
            self.asked_numbers += p.end - p.first;
            self.asked_for += 1;
        }
    }

    /// Everything before `packet` is acknowledged. True if that is news.
    pub(crate) fn acknowledge(&mut self, packet: u64) -> bool {
        if packet <= self.una {
            return false;
        }
        if let Some(sr) = &mut self.selective {
            sr.acknowledged(self.una, packet);
        }
        self.una = packet;
        (self.implied, self.implied_waited) = (false, false);
        while let Some(p) = self.pending.pop_front_if(|p| p.end <= packet) {
            if self.asked_for > 0 {
                self.asked_for -= 1;
                self.asked_numbers -= p.end - p.first;
            }
        }
        // What was about to be sent again has arrived after all.
        if self.next < packet {
            self.next = packet;
            // So it is asked for again from here.
            self.restart = packet;
            self.cursor = self
                .wqes
                .iter()
                .position(|w| packet < w.end() || (w.stays() && !w.done))
                .unwrap_or(self.wqes.len());
        }
        true
    }

    /// Sends again from the oldest packet that is not acknowledged; with selective repeat, whatever may be lost.
    pub(crate) fn go_back(&mut self) {
        if let Some(sr) = &mut self.selective {
            sr.all_lost(self.una, self.next);
            self.ask_again();
            self.ack_deadline = None;
            return;
        }
        self.next = self.una;
        self.cursor = 0;
        self.asked = self.una;
        self.restart = self.una;
        (self.asked_for, self.asked_numbers) = (0, 0);
        self.ack_deadline = None;
        // Which of the two is answered could not be told (Karn's rule).
        self.timed = None;
    }

    /// Selective repeat: asks again for whatever wants a response of its own, each from its first missing packet.
    pub(crate) fn ask_again(&mut self) {
        self.restart = self.una;
        self.timed = None;
        if let Some(sr) = &mut self.selective {
            for p in &self.pending {
                sr.again(p.first.max(self.una));
            }
        }
    }

    /// Selective repeat: asks again for the oldest packet, which the peer has: for the rest of a READ from there.
    pub(crate) fn ask_for_oldest(&mut self, now: Timestamp) {
        if let Some(sr) = &mut self.selective {
            sr.waits_since = now;
            sr.asked_again = sr.asked_again.saturating_add(1);
            sr.again(self.una);
        }
    }

    /// The timeout has changed: what is due is waited for so long from now on.
    pub(crate) fn await_answer(&mut self, now: Timestamp) {
        if self.una < self.asked && self.rnr_until.is_none() {
            self.ack_deadline = self.ack_timer.timeout().map(|t| now + t);
        }
    }

    /// Nothing of ours could leave for this long: what is due is waited for so much longer.
    pub(crate) fn put_off(&mut self, time: Duration) {
        self.ack_deadline = self.ack_deadline.map(|at| at + time);
        // It says nothing of the network.
        self.timed = None;
        if let Some(sr) = &mut self.selective {
            sr.put_off(time);
        }
    }

    /// Selective repeat: something has arrived, if nothing that the oldest packet waits for. The timer starts anew; retries do
    /// not, since what was sent again may be all that arrives.
    pub(crate) fn heard(&mut self, now: Timestamp) {
        if self.ack_deadline.is_some() {
            self.ack_deadline = self.ack_timer.timeout().map(|t| now + t);
        }
    }

    /// How long the timed packet waited, if it is before `packet`, which is acknowledged now.
    pub(crate) fn take_round_trip(&mut self, packet: u64, now: Timestamp) -> Option<Duration> {
        let (_, since) = self.timed.take_if(|(timed, _)| *timed < packet)?;
        Some(now.saturating_since(since))
    }

    /// Removes the oldest request, if that is complete.
    pub(crate) fn pop_complete(&mut self) -> Option<Wqe> {
        if !self.wqes.front()?.is_complete(self.una) {
            return None;
        }
        let wqe = self.pop()?;
        if wqe.failed.is_some() {
            // The peer has all of it, by what was sent before it failed: it stops nothing any more.
            let next = self.wqes.iter().find(|w| w.failed.is_some() && !w.stays());
            self.stop = next.map_or(u64::MAX, |w| w.first);
        }
        Some(wqe)
    }

    /// Removes the oldest request.
    pub(crate) fn pop(&mut self) -> Option<Wqe> {
        let wqe = self.wqes.pop_front()?;
        self.cursor = self.cursor.saturating_sub(1);
        Some(wqe)
    }

    /// How the oldest request has failed here, if it has: all before it are complete.
    pub(crate) fn front_failure(&self) -> Option<Status> {
        self.wqes.front()?.failed
    }
}

/// Most request packets in flight.
pub(crate) const MAX_WINDOW: u32 = 1 << 16;
/// Most response packets that one READ request asks for.
const MAX_READ_CHUNK: u32 = 64;
/// With selective repeat, where a lost packet of it costs no more than that packet.
const MAX_SELECTIVE_CHUNK: u32 = 256;
// PSNs stay comparable: what is in flight spans less than half their space, however long the READs are.
const _: () = assert!(MAX_WINDOW + MAX_SELECTIVE_CHUNK * MAX_RD_ATOMIC as u32 <= 1 << 22);
