//! What a run of packets sent again, a gap, a READ was, once nothing more can change it; in words.
//!
//! The rules, in order: a NAK names what was lost; an answer that was captured and did not help was lost behind the capture
//! point; two answers to two copies mean that both copies arrived; an answer that nobody asked for tells what the responder
//! had. What remains is a loss that the capture did not see, of the request or of its answer.

use rocexdp_common::ids::Psn;

use super::{
    episode::{Cause, Episode},
    requests::Requests,
};
use crate::findings::{
    Findings, Kind, Place,
    words::{Frames, Many, Psns, Span},
};

/// An answer older than this when the request is sent again did not cross it on its way.
const CROSSING_NS: i64 = 1_000_000;
/// A gap filled later than this, after a silence, was filled by a timeout.
const LATE_NS: u64 = 1_000_000;

/// What the end of a stream knows beyond its own packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdicts {
    /// Packets of the other direction were captured.
    pub other_direction: bool,
    /// Answers from the other address are in the capture that no request was found for: some may be to this stream.
    pub untold_answers: bool,
    /// The capture's last time.
    pub end: i64,
    /// The capture ends here: what is open stays open. (Otherwise: the stream began anew.)
    pub last: bool,
}

/// `once`, `twice`, `5 times`.
pub(super) fn times(n: u64) -> String {
    match n {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        n => format!("{n} times"),
    }
}

fn since(from: i64, to: i64) -> Span {
    Span(to.saturating_sub(from).max(0).unsigned_abs())
}

impl Requests {
    /// Decides about a run.
    ///
    /// `ended`: when the stream ended and what is known then, if it did with this run.
    pub(super) fn decide(
        &mut self,
        run: &Episode,
        ended: Option<(i64, Verdicts)>,
        out: &mut Findings,
        place: Place,
    ) {
        match run.cause {
            Cause::Rnr => {}
            Cause::NakMissed(frame, psn, original) => {
                self.lost_again(run, (frame, psn, original), out, place);
            }
            Cause::Nak(frame, time, late) => self.lost_by_nak(run, (frame, time), late, out, place),
            Cause::ReadCaptured(response) => {
                self.read_response_lost(run, Some(response), 1, out, place);
            }
            Cause::ReadMissing(_, missing) => {
                self.read_response_lost(run, None, missing, out, place);
            }
            Cause::Answered(frame, time) => self.answer_lost(run, (frame, time), out, place),
            Cause::Silence if run.filled > 0 && run.packets == 0 && run.silence < LATE_NS => {
                self.came_late(run, out, place);
            }
            Cause::Silence => self.lost_unseen(run, ended, out, place),
        }
    }

    /// Whether the requester has given up, or is about to. One direction alone, or packets sent again at once, do not tell.
    fn gives_up(&self, run: &Episode, ended: Option<(i64, Verdicts)>) -> bool {
        let Some((end, verdicts)) = ended else {
            return false;
        };
        let heard = if verdicts.last {
            !verdicts.untold_answers
        } else {
            self.answers > 0
        };
        let waited = end.saturating_sub(run.last_time).max(0).unsigned_abs();
        // Without any answer the requester stays at its first packet; if it went on, this is one direction of a sound pair.
        let stuck = if self.answers == 0 {
            self.start == Some(run.start)
        } else {
            waited >= run.silence
        };
        run.recovered.is_none()
            && run.filled == 0
            && heard
            && run.silence >= LATE_NS
            && (run.rounds > 1 || stuck)
    }

    /// What a NAK asked for is missing in what was sent again for it.
    fn lost_again(
        &mut self,
        run: &Episode,
        (nak, psn, original): (u64, Psn, Option<u64>),
        out: &mut Findings,
        place: Place,
    ) {
        self.count_filled(run);
        let sent = run.packets + u64::from(run.filled);
        let frames = [original.unwrap_or(nak), nak, run.frames.0, run.frames.1];
        out.add(Kind::PacketLoss, place, run.time, 1, &frames, |f| {
            let first = original.map_or_else(
                || "missing".to_owned(),
                |frame| format!("lost behind the capture point in frame {frame}"),
            );
            let end = match run.recovered {
                Some((frame, _)) => format!(
                    "it arrived then (acknowledged in frame {frame}), the capture missed it"
                ),
                None => "lost again, before the capture point".to_owned(),
            };
            format!(
                "{}, {first} (NAK, PSN sequence error, in frame {nak}), is not in what was sent again for it at {} ({}, {} from PSN {} on): {end}",
                Psns(psn.get(), 1),
                f.at(run.time),
                Frames(run.frames.0, run.frames.1),
                packets(sent),
                run.start.get(),
            )
        });
    }

    fn count_filled(&mut self, run: &Episode) {
        for _ in 0..run.filled {
            self.again.add(run.time, 0);
        }
        self.again.bytes += u64::from(run.filled_bytes);
    }

    fn lost_by_nak(
        &mut self,
        run: &Episode,
        nak: (u64, i64),
        late: bool,
        out: &mut Findings,
        place: Place,
    ) {
        let sent = run.packets + u64::from(run.filled);
        if late {
            out.add(
                Kind::Reordering,
                place,
                run.time,
                sent,
                &[nak.0, run.frames.0, run.frames.1],
                |f| {
                    format!(
                        "{} came late at {}; the receiver took it for lost (NAK in frame {}) and {} sent again without need",
                        Psns(run.start.get(), 1),
                        f.at(nak.1),
                        nak.0,
                        were(sent)
                    )
                },
            );
            return;
        }
        self.count_filled(run);
        let begin = run
            .gap
            .map_or(run.original.map_or(nak.1, |o| o.1), |gap| gap.time);
        let frames = [
            run.gap
                .map_or(run.original.map_or(nak.0, |o| o.0), |gap| gap.frames.0),
            run.gap.map_or(nak.0, |gap| gap.frames.1),
            nak.0,
            run.frames.0,
            run.frames.1,
            run.recovered.map_or(run.frames.1, |r| r.0),
        ];
        let lost = u64::from(run.filled).max(1);
        out.add(Kind::PacketLoss, place, begin, lost, &frames, |f| {
            format!(
                "{} (NAK, PSN sequence error, in frame {}), {}",
                lost_where(run, lost, f),
                nak.0,
                recovery(run, begin, sent)
            )
        });
    }

    fn read_response_lost(
        &mut self,
        run: &Episode,
        captured: Option<u64>,
        missing: u32,
        out: &mut Findings,
        place: Place,
    ) {
        let request = run.original.map_or(run.frames.0, |o| o.0);
        let timeout = !run.implied;
        if timeout {
            self.count_timeout(run, out, place);
        }
        let frames = [
            request,
            captured.unwrap_or(request),
            run.frames.0,
            run.recovered.map_or(run.frames.1, |r| r.0),
        ];
        out.add(
            Kind::ReadResponseLost,
            place,
            run.time,
            u64::from(missing.max(1)),
            &frames,
            |f| {
                let what = match captured {
                    Some(frame) => format!(
                        "the response {} (frame {frame}) to the READ in frame {request} was lost behind the capture point",
                        Psns(run.start.get(), 1)
                    ),
                    None => format!(
                        "{} of the READ in frame {request} from {} on did not reach the capture point",
                        Many(u64::from(missing.max(1)), "response packet"),
                        Psns(run.start.get(), 1)
                    ),
                };
                let why = if timeout {
                    format!("after its timer ran out ({} of silence)", Span(run.silence))
                } else {
                    "after an answer to a later request".to_owned()
                };
                format!(
                    "{what}; the requester asked again at {} (frame {}) {why}{}",
                    f.at(run.time),
                    run.frames.0,
                    done(run)
                )
            },
        );
    }

    fn answer_lost(&mut self, run: &Episode, answer: (u64, i64), out: &mut Findings, place: Place) {
        let sent = run.packets;
        let request = run.original.map_or(run.frames.0, |o| o.0);
        let frames = [
            request,
            answer.0,
            run.frames.0,
            run.frames.1,
            run.second_answer.unwrap_or(run.frames.1),
        ];
        if run.time.saturating_sub(answer.1) < CROSSING_NS {
            self.unneeded(run, out, place);
            return;
        }
        self.count_timeout(run, out, place);
        let again = run.second_answer.map_or_else(String::new, |frame| {
            format!(" and acknowledged again in frame {frame}")
        });
        if run.atomic {
            let result = self.last_atomic.filter(|known| known.psn == run.start);
            out.add(Kind::AtomicReplayed, place, run.time, 1, &frames, |f| {
                let end = match (run.second_answer, result.map(|r| (r.first, r.second))) {
                    (Some(frame), Some((first, Some(second)))) if first == second => format!(
                        "answered in frame {frame} with the same result ({first:#x}): replayed, not executed twice"
                    ),
                    (Some(frame), Some((first, Some(second)))) => format!(
                        "answered in frame {frame} with another result ({second:#x}, before {first:#x}): executed twice, or the memory was changed in between"
                    ),
                    (Some(frame), _) => format!("answered in frame {frame}"),
                    (None, _) => "not answered again in the capture".to_owned(),
                };
                format!(
                    "the answer in frame {} to the atomic in frame {request} was lost behind the capture point; the atomic was sent again at {} (frame {}) and {end}",
                    answer.0,
                    f.at(run.time),
                    run.frames.0,
                )
            });
            return;
        }
        out.add(Kind::LostAck, place, run.time, sent, &frames, |f| {
            format!(
                "the acknowledgement in frame {} was lost behind the capture point: {} sent again at {} ({}), {} after it{again}",
                answer.0,
                were(sent),
                f.at(run.time),
                Frames(run.frames.0, run.frames.1),
                since(answer.1, run.time),
            )
        });
    }

    fn unneeded(&mut self, run: &Episode, out: &mut Findings, place: Place) {
        let frames = [
            run.original.map_or(run.frames.0, |o| o.0),
            run.frames.0,
            run.frames.1,
            run.second_answer.unwrap_or(run.frames.1),
        ];
        out.add(
            Kind::UnneededRetransmission,
            place,
            run.time,
            run.packets,
            &frames,
            |f| {
                let proof = match run.second_answer {
                    Some(frame) => {
                        format!("both copies were acknowledged (the second time in frame {frame})")
                    }
                    None if run.held.is_some() => "the responder says that it had it".to_owned(),
                    None if run.alone => "what had been sent behind it was acknowledged and not sent again, so it had arrived (the sender or the network doubled it)".to_owned(),
                    None => "the answer was already on its way".to_owned(),
                };
                format!(
                    "{} sent again at {} ({}) without need: {proof}",
                    were(run.packets),
                    f.at(run.time),
                    Frames(run.frames.0, run.frames.1)
                )
            },
        );
    }

    /// Whether what had been sent behind a run was not sent again with it, as who goes back would.
    pub(super) fn sent_once_behind(&self, run: &Episode) -> bool {
        self.history
            .get(run.end)
            .is_some_and(|behind| behind.frame < run.frames.0 && behind.copies == 1)
    }

    /// Whether all that was sent again had arrived before, as the receiver shows: it says that it had it, or it acknowledged what
    /// was sent once and behind it, which it takes in order only. After a silence it was a timer: then what was to come next is
    /// missing, though the responder has all that was sent again.
    fn had_arrived(&self, run: &Episode) -> bool {
        if run.filled > 0 || run.gap.is_some() || run.read || run.silence >= LATE_NS {
            return false;
        }
        let said = run.held.is_some_and(|held| held.add(1) == run.end);
        let sent_later = self
            .history
            .get(run.end)
            .is_some_and(|behind| behind.copies > 1);
        let shown = run.alone
            && run.rounds == 1
            && !sent_later
            && self
                .unacked
                .is_some_and(|unacked| unacked.diff(run.end) > 0);
        said || shown
    }

    /// Nothing was heard, and the requester sent again.
    fn lost_unseen(
        &mut self,
        run: &Episode,
        ended: Option<(i64, Verdicts)>,
        out: &mut Findings,
        place: Place,
    ) {
        if run.second_answer.is_some() || self.had_arrived(run) {
            self.unneeded(run, out, place);
            return;
        }
        self.count_filled(run);
        let request = run.original.map_or(run.frames.0, |o| o.0);
        let sent = run.packets + u64::from(run.filled);
        if self.gives_up(run, ended) {
            self.timeouts += u64::from(run.rounds);
            return self.gave_up(run, request, out, place);
        }
        self.count_timeout(run, out, place);
        let begin = run
            .gap
            .map_or(run.original.map_or(run.time, |o| o.1), |g| g.time);
        // What the responder had, it acknowledged again unasked: the next was the one that was lost.
        let lost = run.held.map(|held| held.add(1));
        let behind = lost.and_then(|psn| self.history.get(psn).copied());
        let behind = behind.filter(|sent| sent.frame < run.frames.0);
        let frames = [
            run.gap.map_or(request, |gap| gap.frames.0),
            run.gap.map_or(request, |gap| gap.frames.1),
            behind.map_or(request, |sent| sent.frame),
            run.frames.0,
            run.frames.1,
            run.completed
                .or(run.recovered)
                .map_or(run.frames.1, |r| r.0),
        ];
        out.add(Kind::PacketLoss, place, begin, u64::from(run.filled).max(1), &frames, |f| {
            let what = match (lost, behind) {
                (Some(psn), Some(sent)) => format!(
                    "{} (frame {}) was lost behind the capture point: the responder had all before it",
                    Psns(psn.get(), 1),
                    sent.frame
                ),
                (Some(psn), _) => format!(
                    "{} was lost before the capture point: the responder had all before it",
                    Psns(psn.get(), 1)
                ),
                (None, _) if run.filled > 0 => lost_where(run, u64::from(run.filled), f),
                (None, _) if run.recovered.is_none() => format!(
                    "{} from {} on (frame {request}): whether they or their answers were lost can't be told, as no answer to them is known",
                    Many(sent, "packet"),
                    Psns(run.start.get(), 1),
                ),
                (None, _) if run.read => format!(
                    "the READ request in frame {request} or all its responses were lost out of the capture's sight"
                ),
                (None, _) => format!(
                    "the request in frame {request} ({}) or its answer was lost out of the capture's sight",
                    Psns(run.start.get(), 1)
                ),
            };
            let soon = if run.silence < LATE_NS {
                "; too soon for a timer, so a NAK came that the capture does not have"
            } else {
                ""
            };
            format!("{what}; {}{soon}", recovery(run, begin, sent))
        });
    }

    fn count_timeout(&mut self, run: &Episode, out: &mut Findings, place: Place) {
        if run.silence < LATE_NS {
            return;
        }
        self.timeouts += u64::from(run.rounds);
        if !self.reliable {
            return;
        }
        let request = run.original.map_or(run.frames.0, |o| o.0);
        out.add(
            Kind::AckTimeout,
            place,
            run.time,
            run.silence,
            &[request, run.frames.0],
            |f| {
                let (first, up_to) = if run.rounds > 1 {
                    (", first", "up to ")
                } else {
                    ("", "")
                };
                format!(
                    "the requester's timer ran out {}{first}: nothing passed for {up_to}{} before {} (frame {}), and no NAK had come",
                    times(u64::from(run.rounds)),
                    Span(run.silence),
                    f.at(run.time),
                    run.frames.0
                )
            },
        );
    }

    fn gave_up(&mut self, run: &Episode, request: u64, out: &mut Findings, place: Place) {
        self.gave_up = true;
        let begin = run.original.map_or(run.time, |o| o.1);
        let frames = [request, run.frames.0, run.frames.1];
        out.add(
            Kind::RetryExceeded,
            place,
            begin,
            u64::from(run.rounds),
            &frames,
            |f| {
                format!(
                    "{} (frame {request}, {}) was sent {} in {} and never answered, as far as the capture goes: the requester has given up or is about to (IBV_WC_RETRY_EXC_ERR)",
                    if run.read { "the READ request" } else { "the request" },
                    Psns(run.start.get(), 1),
                    times(u64::from(run.rounds) + 1),
                    since(begin, run.last_time),
                ) + &format!("; the last time at {}", f.at(run.last_time))
            },
        );
        if self.answers == 0 {
            out.add(Kind::NoAnswer, place, begin, 1, &frames, |_| {
                "nothing came back from this QP in the whole capture, and the requester repeats itself: there is no such QP, it is in the error state, or everything to or from it is lost (or the capture has this direction only)".to_owned()
            });
        }
    }

    /// Late, not lost.
    fn came_late(&mut self, run: &Episode, _out: &mut Findings, _place: Place) {
        self.reordered += u64::from(run.filled);
        let frames = self.reordered_frames.get_or_insert(run.frames);
        frames.1 = run.frames.1;
        if self.reordered_time == 0 {
            self.reordered_time = run.time;
        }
    }
}

/// `1 packet was`, `3 packets were`.
fn were(n: u64) -> String {
    format!(
        "{} {}",
        Many(n, "packet"),
        if n == 1 { "was" } else { "were" }
    )
}

/// `1 packet`, `3 packets`.
pub(super) fn packets(n: u64) -> Many {
    Many(n, "packet")
}

fn lost_where(run: &Episode, lost: u64, f: &Findings) -> String {
    match (run.gap, run.original) {
        (Some(gap), _) => format!(
            "{} lost at {} before the capture point: {}, between frames {} and {}",
            packets(lost),
            f.at(gap.time),
            Psns(gap.from.get(), gap.count()),
            gap.frames.0,
            gap.frames.1
        ),
        (None, Some((frame, time))) => format!(
            "at least 1 packet lost at {} behind the capture point: frame {frame}, {}",
            f.at(time),
            Psns(run.start.get(), 1)
        ),
        (None, None) => format!(
            "at least 1 packet lost before {}: {}, too long ago to name its frame",
            f.at(run.time),
            Psns(run.start.get(), 1)
        ),
    }
}

/// How it ended.
fn recovery(run: &Episode, begin: i64, sent: u64) -> String {
    let rounds = if run.rounds > 1 {
        format!(" in {} rounds", run.rounds)
    } else {
        String::new()
    };
    let resent = format!(
        "{} sent again{rounds} ({})",
        Many(sent, "packet"),
        Frames(run.frames.0, run.frames.1)
    );
    match run.completed.or(run.recovered) {
        Some((frame, time)) => format!(
            "recovered by go-back-N {} later (frame {frame}); {resent}",
            since(begin, time)
        ),
        None => format!("{resent}; no answer to them was captured"),
    }
}

fn done(run: &Episode) -> String {
    run.recovered.map_or_else(
        || "; no answer to that was captured".to_owned(),
        |(frame, time)| {
            format!(
                " and got it {} later (frame {frame})",
                since(run.time, time)
            )
        },
    )
}
