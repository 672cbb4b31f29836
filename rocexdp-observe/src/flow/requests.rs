//! The request stream of one direction: gaps, repetitions, and runs of packets sent again.
//!
//! One packet costs a few comparisons when it is the expected one. Bounded: a table of recent packets, some gaps, READs and
//! runs; what no longer fits is decided with what is known by then.

use rocexdp_common::{
    ids::Psn,
    opcode::{Operation, Position},
    track::read_psns,
};

use super::{
    RESTART, SETTLE_NS,
    delays::Delays,
    episode::{Cause, Episode, Gap},
    history::{History, Sent},
    reads::{Read, Reads},
    verdict::Verdicts,
};
use crate::findings::{Findings, Place};

/// Gaps kept open.
const MOST_GAPS: usize = 16;
/// Packets behind the stream's head that a requester does not go back, if they were acknowledged.
const ANEW: i32 = 1024;
/// Runs that wait for their decision.
const MOST_PENDING: usize = 8;

/// A request packet as the stream needs it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Frame number.
    pub frame: u64,
    /// Nanoseconds since the epoch.
    pub time: i64,
    /// Sequence number.
    pub psn: Psn,
    /// Opcode byte.
    pub opcode: u8,
    /// What it does.
    pub operation: Operation,
    /// Place in its message.
    pub position: Position,
    /// It asks for an acknowledgement.
    pub ack_req: bool,
    /// Payload bytes.
    pub payload: u32,
    /// RETH: length, rkey, address; of packets that have one.
    pub reth: Option<(u32, u32, u64)>,
}

/// What a packet turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Not captured before.
    Fresh,
    /// Sent again.
    Again,
}

/// Packets sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Again {
    /// Packets.
    pub packets: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// First and last time.
    pub times: Option<(i64, i64)>,
}

impl Again {
    pub(super) fn add(&mut self, time: i64, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
        let (first, last) = self.times.unwrap_or((time, time));
        self.times = Some((first.min(time), last.max(time)));
    }
}

/// An RNR NAK and those that followed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RnrRun {
    pub psn: Psn,
    pub naks: u64,
    pub frames: (u64, u64),
    pub times: (i64, i64),
    pub timer_ns: u64,
    pub again: u64,
    /// The refused request was sent again since the last RNR NAK.
    pub asked_again: bool,
    /// First PSN sequence error NAK for what was on its way behind the refused request (frame).
    pub behind: Option<u64>,
}

/// A sequence NAK that nothing has followed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct NakSeen {
    pub psn: Psn,
    pub frame: u64,
    pub time: i64,
    pub late: bool,
}

/// The result of an atomic, and of its answer again.
#[derive(Clone, Copy, Debug)]
pub(super) struct AtomicAnswer {
    pub psn: Psn,
    pub first: u64,
    pub second: Option<u64>,
}

/// The stream.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// It is of a reliable service: packets are acknowledged and sent again.
    pub reliable: bool,
    /// Expected next; `None`: nothing seen, or a READ of unknown length.
    pub(super) next: Option<Psn>,
    /// Everything before is known to have arrived.
    pub(super) unacked: Option<Psn>,
    pub(super) history: History,
    pub(super) responses: History,
    pub(super) reads: Reads,
    pub(super) gaps: Vec<Gap>,
    pub(super) episode: Option<Episode>,
    pub(super) pending: Vec<Episode>,
    pub(super) rnr: Option<RnrRun>,
    pub(super) nak: Option<NakSeen>,
    pub(super) first_frame: Option<u64>,
    /// First PSN of the stream.
    pub(super) start: Option<Psn>,
    /// A request was sent again until the requester gave up.
    pub gave_up: bool,
    pub(super) last_frame: u64,
    pub(super) last_time: i64,
    pub(super) last_answer: Option<(u64, i64, Psn)>,
    pub(super) last_reth: Option<(Psn, u64, u32, u32, u64)>,
    pub(super) last_atomic: Option<AtomicAnswer>,
    /// Path MTU in bytes, 0: not known.
    pub path_mtu: u32,
    /// Requests seen.
    pub packets: u64,
    /// Of them with AckReq, or READs or atomics: an answer must come.
    pub wants_answer: u64,
    /// Answers seen to them.
    pub answers: u64,
    /// Gaps of the PSNs as captured.
    pub gaps_seen: u64,
    /// PSNs in them.
    pub missing: u64,
    /// Requests sent again.
    pub again: Again,
    /// Of them, those that a receiver which was not ready had put off.
    pub again_after_rnr: u64,
    /// Responses sent again.
    pub responses_again: Again,
    /// Retransmission timeouts inferred.
    pub timeouts: u64,
    /// Packets that came late, out of order.
    pub reordered: u64,
    /// Frames of the first of them, and the last.
    pub(super) reordered_frames: Option<(u64, u64)>,
    pub(super) reordered_time: i64,
    /// Times the PSNs began anew.
    pub restarts: u64,
    /// Request to the answer that names it.
    pub delays: Delays,
    /// Answers that fit: for the heuristic that ties directions.
    pub(super) matched: u64,
}

impl Requests {
    /// The stream begins at `psn` (a communication manager said so); what was before is decided.
    pub fn begin(&mut self, psn: Psn, verdicts: Verdicts, out: &mut Findings, place: Place) {
        let began_there = self.next == Some(psn) && self.packets == 0;
        if !began_there {
            self.close(self.last_time, verdicts, out, place);
        }
        self.next = Some(psn);
        self.unacked = Some(psn);
    }

    /// Decides everything, and forgets where the stream is.
    fn close(&mut self, now: i64, verdicts: Verdicts, out: &mut Findings, place: Place) {
        self.finish(now, verdicts, out, place);
        self.history.clear();
        self.responses.clear();
        (self.next, self.unacked, self.start) = (None, None, None);
        (self.nak, self.rnr, self.last_answer) = (None, None, None);
        self.gaps.clear();
    }

    /// PSNs that this request takes; `None`: unknown.
    fn psns(&self, request: &Request) -> Option<u32> {
        match (request.operation, request.reth) {
            (Operation::ReadRequest, Some((length, ..))) => read_psns(length, self.path_mtu),
            (Operation::ReadRequest, None) => None,
            _ => Some(1),
        }
    }

    /// Frames of the first and last packet that came late, if any did.
    #[must_use]
    pub fn reordered_seen(&self) -> Option<(u64, u64)> {
        self.reordered_frames
    }

    /// When the first of them came.
    #[must_use]
    pub const fn reordered_at(&self) -> i64 {
        self.reordered_time
    }

    /// The first request's frame, if there is one.
    #[must_use]
    pub const fn first_frame(&self) -> Option<u64> {
        self.first_frame
    }

    /// Whether a PSN belongs to the stream as it is now.
    #[must_use]
    pub fn is_near(&self, psn: Psn) -> bool {
        self.next
            .is_some_and(|next| psn.diff(next).unsigned_abs() < RESTART)
    }

    /// Takes a request packet.
    #[inline]
    pub fn take(&mut self, r: &Request, out: &mut Findings, place: Place) -> Seen {
        if !self.pending.is_empty() || !self.gaps.is_empty() {
            self.settle(r.time, out, place);
        }
        self.packets += 1;
        self.first_frame.get_or_insert(r.frame);
        let is_read = matches!(r.operation, Operation::ReadRequest);
        let atomic = matches!(
            r.operation,
            Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite
        );
        if self.reliable && (r.ack_req || is_read || atomic) {
            self.wants_answer += 1;
        }
        if let Some((length, rkey, va)) = r.reth {
            self.last_reth = Some((r.psn, r.frame, length, rkey, va));
        }
        self.learn_from_next_request(r.psn);
        let mut distance = self.next.map_or(0, |next| r.psn.diff(next));
        if distance.unsigned_abs() > RESTART || self.began_anew(r, distance) {
            self.restarts += 1;
            self.close(r.time, Verdicts::default(), out, place);
            distance = 0;
        }
        self.start.get_or_insert(r.psn);
        let seen = if distance >= 0 {
            self.fresh(r, distance.unsigned_abs(), out, place);
            Seen::Fresh
        } else {
            self.old(r, out, place)
        };
        (self.last_frame, self.last_time) = (r.frame, r.time);
        seen
    }

    /// A PSN before all that was ever seen, after a silence, though much from there on was acknowledged: no retransmission.
    fn began_anew(&self, r: &Request, distance: i32) -> bool {
        distance < -ANEW
            && self.start.is_some_and(|start| r.psn.diff(start) < 0)
            && self
                .unacked
                .is_some_and(|unacked| r.psn.diff(unacked) < -ANEW)
            && r.time.saturating_sub(self.last_time) > SETTLE_NS
    }

    fn fresh(&mut self, r: &Request, distance: u32, out: &mut Findings, place: Place) {
        if let Some(done) = self.episode.take() {
            self.defer(done, out, place);
        }
        if distance > 0
            && let Some(next) = self.next
        {
            self.open_gap(next, distance, r, out, place);
        }
        self.advance_stream(r, out, place);
        self.remember(r);
    }

    fn remember(&mut self, r: &Request) {
        let sent = Sent {
            frame: r.frame,
            time: r.time,
            psn: r.psn,
            payload: u16::try_from(r.payload).unwrap_or(u16::MAX),
            opcode: r.opcode,
            ack_req: r.ack_req,
            copies: 1,
            acks: 0,
        };
        self.history.put(sent, self.unacked);
    }

    /// The stream's next PSN is behind this packet.
    fn advance_stream(&mut self, r: &Request, out: &mut Findings, place: Place) {
        let count = self.psns(r);
        self.next = count.map(|n| r.psn.add(n));
        if let (Operation::ReadRequest, Some((length, ..))) = (r.operation, r.reth) {
            let forgotten = self.reads.push(Read {
                psn: r.psn,
                count,
                length,
                frame: r.frame,
                time: r.time,
                next: r.psn,
                seen: 0,
                last_frame: 0,
                again: 0,
                hole: None,
            });
            if let Some(read) = forgotten {
                self.read_done(&read, out, place);
            }
        }
    }

    /// A READ of unknown length: where the next request stands tells its PSNs, and with them the path MTU.
    fn learn_from_next_request(&mut self, psn: Psn) {
        if self.next.is_some() || self.packets <= 1 {
            return;
        }
        let Some(read) = self.reads.last_mut() else {
            return;
        };
        let taken = psn.diff(read.psn);
        let fits = [256, 512, 1024, 2048, 4096].into_iter().find(|mtu| {
            read_psns(read.length, *mtu).is_some_and(|n| i64::from(n) == i64::from(taken))
        });
        if let Some(mtu) = fits {
            read.count = Some(taken.unsigned_abs());
            // Only one path MTU gives this many if there are at least two packets.
            if taken > 1 {
                self.path_mtu = mtu;
            }
            self.next = Some(psn);
        } else if read.covers(psn) || taken < 0 {
            // Asked for again: the stream stays where it is.
            self.next = Some(read.psn.add(1));
        }
    }

    /// The path MTU is known now.
    pub fn learn_path_mtu(&mut self, path_mtu: u32) {
        if self.path_mtu == path_mtu {
            return;
        }
        self.path_mtu = path_mtu;
        if self.next.is_none()
            && let Some(read) = self.reads.last_mut()
            && read.count.is_none()
        {
            read.count = read_psns(read.length, path_mtu);
            self.next = read.end();
        }
    }

    fn open_gap(&mut self, next: Psn, count: u32, r: &Request, out: &mut Findings, place: Place) {
        self.gaps_seen += 1;
        self.missing += u64::from(count);
        if self.gaps.len() >= MOST_GAPS {
            let oldest = self.gaps.remove(0);
            self.gap_left_open(&oldest, r.time, out, place);
        }
        self.gaps.push(Gap {
            from: next,
            to: r.psn,
            frames: (self.last_frame, r.frame),
            time: r.time,
            nak: None,
            acked: None,
            filled: 0,
        });
    }

    /// A packet behind which the stream already is: sent again, or late.
    fn old(&mut self, r: &Request, out: &mut Findings, place: Place) -> Seen {
        let known = self.history.get(r.psn).copied();
        let gap = self.gaps.iter().position(|gap| gap.covers(r.psn));
        // A READ asked for again in part has no entry of its own.
        let is_read = matches!(r.operation, Operation::ReadRequest);
        let fills = known.is_none() && !is_read && gap.is_some();
        if let Some(gap) = gap.and_then(|at| self.gaps.get_mut(at))
            && fills
        {
            gap.filled += 1;
        }
        let extends = self
            .episode
            .as_ref()
            .is_some_and(|run| r.psn.diff(run.end) >= 0);
        if !extends {
            self.begin_episode(r, known, gap, out, place);
        }
        let count = self.psns(r).unwrap_or(1);
        if let Some(run) = &mut self.episode {
            run.end = r.psn.add(count);
            run.frames.1 = r.frame;
            run.last_time = r.time;
            if fills {
                run.filled += 1;
                run.filled_bytes += r.payload;
            } else {
                run.packets += 1;
            }
        }
        if let Some(run) = &mut self.rnr {
            run.again += 1;
            run.asked_again |= run.psn == r.psn;
            self.again_after_rnr += u64::from(!fills);
        }
        if let Some(sent) = self.history.get_mut(r.psn) {
            sent.copies = sent.copies.saturating_add(1);
            sent.ack_req |= r.ack_req;
        }
        if fills {
            self.remember(r);
            return Seen::Fresh;
        }
        self.again.add(r.time, r.payload);
        if is_read && let Some(read) = self.reads.find(r.psn) {
            read.again += 1;
            read.next = r.psn;
            read.hole = None;
        }
        Seen::Again
    }

    fn begin_episode(
        &mut self,
        r: &Request,
        known: Option<Sent>,
        gap: Option<usize>,
        out: &mut Findings,
        place: Place,
    ) {
        let last = self
            .last_time
            .max(self.last_answer.map_or(i64::MIN, |a| a.1));
        let silence = r.time.saturating_sub(last).max(0).unsigned_abs();
        if let Some(mut run) = self.episode.take() {
            let same = r.psn.diff(run.start) <= 0 && run.gap.is_none();
            let unanswered = run.recovered.is_none();
            if matches!(run.cause, Cause::NakMissed(..)) && unanswered {
                self.decide(&run, None, out, place);
            } else if same && unanswered && self.nak.is_none() {
                // The same trouble again.
                run.rounds += 1;
                run.end = r.psn;
                run.silence = run.silence.max(silence);
                self.episode = Some(run);
                return;
            } else {
                self.defer(run, out, place);
            }
        }
        let is_read = matches!(r.operation, Operation::ReadRequest);
        let atomic = matches!(r.operation, Operation::CompareSwap | Operation::FetchAdd);
        let cause = self.cause(r, is_read);
        let read = self.reads.find(r.psn).copied();
        let implied = self.last_answer.is_some_and(|(_, time, psn)| {
            let end = read.and_then(|read| read.end()).unwrap_or(r.psn.add(1));
            psn.diff(end) >= 0 && r.time.saturating_sub(time) < SETTLE_NS
        });
        let original = known
            .map(|sent| (sent.frame, sent.time))
            .or_else(|| read.filter(|_| is_read).map(|read| (read.frame, read.time)));
        self.episode = Some(Episode {
            start: r.psn,
            end: r.psn,
            frames: (r.frame, r.frame),
            time: r.time,
            last_time: r.time,
            packets: 0,
            filled: 0,
            filled_bytes: 0,
            rounds: 1,
            cause,
            original,
            gap: gap.and_then(|at| self.gaps.get(at).copied()),
            silence,
            read: is_read,
            atomic,
            implied,
            recovered: None,
            completed: None,
            second_answer: None,
            held: None,
            alone: false,
            late_nak: false,
        });
    }

    fn cause(&mut self, r: &Request, is_read: bool) -> Cause {
        if let Some(nak) = self.nak
            && r.psn.diff(nak.psn) <= 0
        {
            self.nak = None;
            return Cause::Nak(nak.frame, nak.time, nak.late);
        }
        // Who goes back for a NAK begins with what it names: that is missing.
        if let Some(nak) = self.nak
            && !nak.late
            && r.time.saturating_sub(nak.time) < SETTLE_NS
        {
            self.nak = None;
            let original = self.history.get(nak.psn).map(|sent| sent.frame);
            return Cause::NakMissed(nak.frame, nak.psn, original);
        }
        if self.rnr.is_some_and(|run| run.psn == r.psn) {
            return Cause::Rnr;
        }
        if is_read && let Some(read) = self.reads.find(r.psn) {
            if let Some(response) = self.responses.get(r.psn) {
                return Cause::ReadCaptured(response.frame);
            }
            if read.seen > 0 && read.next.diff(r.psn) > 0 && read.hole.is_none() {
                return Cause::ReadCaptured(read.last_frame);
            }
            if read.seen > 0 {
                let missing = read.hole.map_or(1, |hole| hole.count);
                return Cause::ReadMissing(read.frame, missing);
            }
            return Cause::Silence;
        }
        match (self.unacked, self.last_answer) {
            (Some(unacked), Some((frame, time, _))) if r.psn.diff(unacked) < 0 => {
                Cause::Answered(frame, time)
            }
            _ => Cause::Silence,
        }
    }

    /// A run is over; answers to it may still come.
    fn defer(&mut self, mut run: Episode, out: &mut Findings, place: Place) {
        run.alone = self.sent_once_behind(&run);
        if self.pending.len() >= MOST_PENDING {
            let oldest = self.pending.remove(0);
            self.decide(&oldest, None, out, place);
        }
        self.pending.push(run);
    }

    /// Decides what has had time enough.
    fn settle(&mut self, now: i64, out: &mut Findings, place: Place) {
        while let Some(run) = self.pending.first() {
            let since = run.completed.map_or(run.last_time, |(_, time)| time);
            if now.saturating_sub(since) < SETTLE_NS {
                break;
            }
            let run = self.pending.remove(0);
            self.decide(&run, None, out, place);
        }
        while let Some(gap) = self.gaps.first() {
            let since = gap.acked.map_or(gap.time, |(_, time)| time);
            let decided = gap.filled > 0 || gap.acked.is_some() || !self.reliable;
            if !decided || now.saturating_sub(since) < SETTLE_NS {
                break;
            }
            let gap = self.gaps.remove(0);
            self.gap_left_open(&gap, now, out, place);
        }
    }
}
