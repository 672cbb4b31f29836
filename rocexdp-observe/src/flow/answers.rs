//! What acknowledgements and READ responses say of the requests that they answer.
//!
//! An answer acknowledges everything before it; a NAK names the PSN that the responder expects (rxe_resp.c `acknowledge`,
//! rxe_comp.c `check_ack`).

use rocexdp_common::{
    ids::Psn,
    opcode::{Opcode, Operation, Position},
    track::read_psns,
};

use super::{
    episode::Cause,
    history::Sent,
    reads::Hole,
    requests::{AtomicAnswer, NakSeen, Requests, RnrRun, Seen},
};
use crate::findings::{
    Findings, Kind, Place,
    words::{Frames, Psns, Span},
};

/// What an answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnswerKind {
    /// Acknowledged.
    Ack,
    /// Atomic result, with the value that stood there.
    AtomicAck(Option<u64>),
    /// PSN sequence error.
    NakSequence,
    /// NAK of another kind: the syndrome byte.
    NakFatal(u8),
    /// Receiver not ready: the timer code.
    Rnr(u8),
    /// READ response.
    Response(Position),
}

/// An answer packet as the peer's stream needs it.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Frame number.
    pub frame: u64,
    /// Nanoseconds since the epoch.
    pub time: i64,
    /// Its PSN.
    pub psn: Psn,
    /// Opcode byte.
    pub opcode: u8,
    /// What it is.
    pub kind: AnswerKind,
    /// Payload bytes.
    pub payload: u32,
}

/// RNR timers in units of 10 us (drivers/infiniband/sw/rdmavt/qp.c `ib_rvt_rnr_table`).
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Nanoseconds of an RNR timer code.
fn rnr_timer_ns(code: u8) -> u64 {
    let units = RNR_TIMERS.get(usize::from(code & 31)).copied().unwrap_or(0);
    u64::from(units) * 10_000
}

impl RnrRun {
    /// What a sequence error NAK within the run is for.
    pub(super) fn said_behind(&self) -> String {
        self.behind.map_or_else(String::new, |frame| {
            format!(
                "; the NAK in frame {frame} is for what was on its way behind the refused request, nothing was lost"
            )
        })
    }
}

impl Requests {
    /// Whether a request with this PSN is remembered that must be answered, and was not yet.
    #[must_use]
    pub fn awaits(&self, psn: Psn) -> bool {
        self.reads.begins_at(psn)
            || self.history.get(psn).is_some_and(|sent| {
                let atomic = matches!(
                    Opcode(sent.opcode).decode(),
                    Some((
                        Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite,
                        _
                    ))
                );
                (sent.ack_req || atomic) && sent.acks == 0
            })
    }

    /// Whether an answer with this PSN can be to a request of this stream: the request is remembered, asked for an answer,
    /// and was not answered yet.
    #[must_use]
    pub fn could_answer(&self, a: &Answer) -> bool {
        if !self.reliable {
            return false;
        }
        match a.kind {
            AnswerKind::Response(_) => self.reads.begins_at(a.psn),
            AnswerKind::Ack => self
                .history
                .get(a.psn)
                .is_some_and(|sent| sent.ack_req && sent.acks == 0),
            AnswerKind::AtomicAck(_) => self.history.get(a.psn).is_some_and(|sent| sent.acks == 0),
            // A NAK names what is missing: that may be what the capture misses too.
            _ => {
                self.history.get(a.psn).is_some()
                    || self.next == Some(a.psn)
                    || self.gaps.iter().any(|gap| gap.covers(a.psn))
            }
        }
    }

    /// Takes an answer to one of the stream's requests. For a READ response: whether it was captured before.
    pub fn answered(&mut self, a: &Answer, out: &mut Findings, place: Place) -> Seen {
        self.answers += 1;
        let mut seen = Seen::Fresh;
        match a.kind {
            AnswerKind::Ack => {
                self.named(a);
                self.advance(a.psn.add(1), a, out, place);
            }
            AnswerKind::AtomicAck(value) => {
                self.named(a);
                self.atomic_answered(a.psn, value);
                self.advance(a.psn.add(1), a, out, place);
            }
            AnswerKind::NakSequence => {
                self.advance(a.psn, a, out, place);
                self.take_nak(a);
            }
            AnswerKind::Rnr(code) => {
                self.advance(a.psn, a, out, place);
                self.take_rnr(a, code);
            }
            AnswerKind::NakFatal(syndrome) => {
                self.advance(a.psn, a, out, place);
                self.refused(a, syndrome, out, place);
            }
            AnswerKind::Response(position) => {
                seen = self.take_response(a, position, out, place);
            }
        }
        let last = self.last_answer.map_or(a.psn, |(_, _, psn)| psn);
        let psn = if a.psn.diff(last) > 0 { a.psn } else { last };
        self.last_answer = Some((a.frame, a.time, psn));
        seen
    }

    /// An answer names a request: its delay, and whether it is the second one.
    fn named(&mut self, a: &Answer) {
        let Some(sent) = self.history.get_mut(a.psn) else {
            return;
        };
        sent.acks = sent.acks.saturating_add(1);
        let sent = *sent;
        if sent.acks == 1 {
            self.matched += 1;
        }
        if sent.copies == 1 && sent.acks == 1 && sent.ack_req {
            let delay = a.time.saturating_sub(sent.time);
            if let Ok(ns) = u64::try_from(delay) {
                self.delays.push(ns);
            }
        }
        let runs = self.pending.iter_mut().chain(self.episode.as_mut());
        for run in runs {
            if a.psn.diff(run.start) < 0 || a.psn.diff(run.end) >= 0 || a.time < run.time {
                continue;
            }
            if !sent.ack_req {
                // Nobody asked for it: the responder says again what it had, because the request was a duplicate.
                run.held = Some(a.psn);
            } else if sent.copies >= 2 && sent.acks >= 2 {
                run.second_answer = run.second_answer.or(Some(a.frame));
            }
        }
    }

    fn atomic_answered(&mut self, psn: Psn, value: Option<u64>) {
        match &mut self.last_atomic {
            Some(known) if known.psn == psn => known.second = value,
            _ => {
                self.last_atomic = value.map(|first| AtomicAnswer {
                    psn,
                    first,
                    second: None,
                });
            }
        }
    }

    /// Everything before `upto` has arrived.
    fn advance(&mut self, upto: Psn, a: &Answer, out: &mut Findings, place: Place) {
        if self.unacked.is_some_and(|unacked| upto.diff(unacked) < 0) {
            return;
        }
        let moved = self.unacked != Some(upto);
        self.unacked = Some(upto);
        let now = (a.frame, a.time);
        for run in self.pending.iter_mut().chain(self.episode.as_mut()) {
            if upto.diff(run.start) > 0 && a.time >= run.time {
                run.recovered = run.recovered.or(Some(now));
                if upto.diff(run.end) >= 0 {
                    run.completed = run.completed.or(Some(now));
                }
            }
        }
        if !moved {
            return;
        }
        for gap in &mut self.gaps {
            if upto.diff(gap.to) >= 0 {
                gap.acked = gap.acked.or(Some(now));
            }
        }
        if self.rnr.is_some_and(|run| upto.diff(run.psn) > 0)
            && let Some(run) = self.rnr.take()
        {
            self.rnr_over(&run, a, out, place);
        }
        if self.nak.is_some_and(|nak| upto.diff(nak.psn) > 0)
            && let Some(nak) = self.nak.take()
        {
            self.nak_without_resend(&nak, Some(a.frame), out, place);
        }
        while let Some(read) = self.reads.pop_before(upto.sub(super::reads::KEEP)) {
            self.read_done(&read, out, place);
        }
    }

    fn take_nak(&mut self, a: &Answer) {
        let now = (a.frame, a.time);
        // A request that was refused (RNR) makes what is on its way behind it come out of order: rxe says so with a NAK
        // for the same PSN (rxe_resp.c `check_psn`), others drop it silently.
        if let Some(run) = &mut self.rnr
            && run.psn == a.psn
            && !run.asked_again
        {
            run.behind = run.behind.or(Some(a.frame));
            return;
        }
        if let Some(gap) = self.gaps.iter_mut().find(|gap| gap.covers(a.psn)) {
            gap.nak = gap.nak.or(Some(now));
        }
        let mut late = false;
        for run in self.pending.iter_mut().chain(self.episode.as_mut()) {
            let inside = a.psn.diff(run.start) >= 0 && a.psn.diff(run.end) < 0;
            if inside && run.filled > 0 && run.packets == 0 {
                run.late_nak = true;
                late = true;
            }
            // The NAK is older than what was sent again for it, and known only now that the directions are tied.
            if run.cause == Cause::Silence && run.start == a.psn && run.time > a.time {
                run.cause = Cause::Nak(a.frame, a.time, false);
                return;
            }
        }
        self.nak.get_or_insert(NakSeen {
            psn: a.psn,
            frame: a.frame,
            time: a.time,
            late,
        });
    }

    fn take_rnr(&mut self, a: &Answer, code: u8) {
        let run = self.rnr.get_or_insert(RnrRun {
            psn: a.psn,
            naks: 0,
            frames: (a.frame, a.frame),
            times: (a.time, a.time),
            timer_ns: rnr_timer_ns(code),
            again: 0,
            asked_again: false,
            behind: None,
        });
        run.naks += 1;
        run.asked_again = false;
        run.frames.1 = a.frame;
        run.times.1 = a.time;
    }

    /// A READ response.
    fn take_response(
        &mut self,
        a: &Answer,
        position: Position,
        out: &mut Findings,
        place: Place,
    ) -> Seen {
        let again = self.responses.get(a.psn).is_some();
        let sent = Sent {
            frame: a.frame,
            time: a.time,
            psn: a.psn,
            payload: u16::try_from(a.payload).unwrap_or(u16::MAX),
            opcode: a.opcode,
            ack_req: false,
            copies: 1,
            acks: 0,
        };
        if let Some(known) = self.responses.get_mut(a.psn) {
            known.copies = known.copies.saturating_add(1);
        } else {
            self.responses.put(sent, self.unacked);
        }
        if matches!(position, Position::First | Position::Middle)
            && matches!(a.payload, 256 | 512 | 1024 | 2048 | 4096)
        {
            self.learn_path_mtu(a.payload);
        }
        let path_mtu = self.path_mtu;
        let Some(read) = self.reads.find(a.psn) else {
            return if again { Seen::Again } else { Seen::Fresh };
        };
        if read.count.is_none() {
            read.count = match position {
                Position::Only => Some(1),
                Position::Last => u32::try_from(a.psn.diff(read.psn) + 1).ok(),
                _ => read_psns(read.length, path_mtu),
            };
            let end = read.end();
            if self.next.is_none() {
                self.next = end;
            }
        }
        let Some(read) = self.reads.find(a.psn) else {
            return Seen::Fresh;
        };
        let first = read.seen == 0;
        let distance = a.psn.diff(read.next);
        if distance > 0
            && let Some(hole) = &mut read.hole
        {
            hole.later = hole.later.saturating_add(distance.unsigned_abs());
        } else if distance > 0 {
            read.hole = Some(Hole {
                from: read.next,
                count: distance.unsigned_abs(),
                later: 0,
                frames: (
                    if read.last_frame == 0 {
                        read.frame
                    } else {
                        read.last_frame
                    },
                    a.frame,
                ),
                time: a.time,
            });
        }
        if distance >= 0 {
            read.next = a.psn.add(1);
        }
        // A late response closes the hole.
        if distance < 0
            && read.again == 0
            && !again
            && let Some(hole) = &mut read.hole
        {
            if a.psn.diff(hole.from) >= 0 && a.psn.diff(hole.from.add(hole.count)) < 0 {
                hole.count -= 1;
                if a.psn == hole.from {
                    hole.from = hole.from.add(1);
                }
            } else {
                hole.later = hole.later.saturating_sub(1);
            }
            if hole.count == 0 && hole.later == 0 {
                read.hole = None;
            }
            self.reordered += 1;
            let frames = self.reordered_frames.get_or_insert((a.frame, a.frame));
            frames.1 = a.frame;
        }
        read.seen = read.seen.saturating_add(1);
        read.last_frame = a.frame;
        let (start, holed, asked, time) = (read.psn, read.hole.is_some(), read.again, read.time);
        if first && asked == 0 {
            self.matched += 1;
            if let Ok(ns) = u64::try_from(a.time.saturating_sub(time)) {
                self.delays.push(ns);
            }
        }
        // A response acknowledges all before its READ; of the READ itself what came without a hole.
        let upto = if holed { start } else { a.psn.add(1) };
        self.advance(upto, a, out, place);
        if again {
            self.responses_again.add(a.time, a.payload);
            return Seen::Again;
        }
        Seen::Fresh
    }

    /// A NAK that ends the connection.
    fn refused(&mut self, a: &Answer, syndrome: u8, out: &mut Findings, place: Place) {
        let (kind, what, why) = match syndrome {
            0x61 => (
                Kind::NakInvalidRequest,
                "invalid request",
                "the QP does not allow this operation, has no resources for it (max_dest_rd_atomic), or expects other lengths",
            ),
            0x62 => (
                Kind::NakRemoteAccess,
                "remote access error",
                "a wrong rkey, an address outside the region, or a right that the region does not grant",
            ),
            0x63 => (
                Kind::NakRemoteOperational,
                "remote operational error",
                "the responder could not do it; Soft-RoCE says so when a SEND is longer than the receive that was posted",
            ),
            _ => (
                Kind::NakOther,
                "a NAK with a code of no meaning in RC",
                "see the frame",
            ),
        };
        let request = self.history.get(a.psn).copied();
        let read = self.reads.find(a.psn).map(|read| read.frame);
        let frame = request.map(|sent| sent.frame).or(read);
        let frames: Vec<u64> = frame.into_iter().chain([a.frame]).collect();
        let reth = self
            .last_reth
            .filter(|(psn, ..)| a.psn.diff(*psn) >= 0 && a.psn.diff(*psn) < 1 << 15);
        out.add(kind, place, a.time, 1, &frames, |f| {
            let name = request.map_or("request", |sent| {
                rocexdp_common::opcode::name(Opcode(sent.opcode))
            });
            let which = frame.map_or_else(
                || "(not remembered)".to_owned(),
                |frame| format!("in frame {frame}"),
            );
            let target = reth
                .filter(|_| kind == Kind::NakRemoteAccess)
                .map_or_else(String::new, |(_, frame, length, rkey, va)| {
                    format!("; frame {frame} asks for {length} bytes at {va:#x} with rkey {rkey:#x}")
                });
            format!(
                "{name} {which} ({}) was refused at {} with {what} (frame {}): {why}{target}; the connection is broken",
                Psns(a.psn.get(), 1),
                f.at(a.time),
                a.frame
            )
        });
        let first = request.filter(|sent| {
            kind == Kind::NakInvalidRequest && sent.payload > 256 && sent.payload.is_power_of_two()
        });
        if let Some(sent) = first {
            out.add(Kind::MtuMismatch, place, a.time, 1, &frames, |_| {
                format!(
                    "the request that was refused (frame {}) carries {} bytes, a whole path MTU: the responder's path MTU may be smaller (compare both ends: ibv_devinfo, and active_mtu of the ports)",
                    sent.frame, sent.payload
                )
            });
        }
    }

    fn rnr_over(&mut self, run: &RnrRun, a: &Answer, out: &mut Findings, place: Place) {
        let wait = a.time.saturating_sub(run.times.0).max(0).unsigned_abs();
        out.add(
            Kind::Rnr,
            place,
            run.times.0,
            wait,
            &[run.frames.0, run.frames.1, a.frame],
            |f| {
                format!(
                    "the receiver was not ready {} from {} on ({}, {}): no receive was posted (RNR timer {}){}; the request was sent again {} and got through {} after the first refusal",
                    super::verdict::times(run.naks),
                    f.at(run.times.0),
                    Frames(run.frames.0, run.frames.1),
                    Psns(run.psn.get(), 1),
                    Span(run.timer_ns),
                    run.said_behind(),
                    super::verdict::times(run.again),
                    Span(wait),
                )
            },
        );
    }
}
