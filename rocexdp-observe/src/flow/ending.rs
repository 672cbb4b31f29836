//! What is left when nothing more comes of it: gaps that nothing filled, READs, NAKs and RNR NAKs without an end; in words.
//!
//! A gap that the receiver acknowledges, or that a reliable sender never fills, is the capture's; an unreliable one's is a
//! lost message, as far as can be told.

use super::{
    episode::Gap,
    reads::Read,
    requests::{NakSeen, Requests, RnrRun},
    verdict::{Verdicts, packets, times},
};
use crate::findings::{
    Findings, Kind, Place,
    words::{Frames, Many, Psns, Span},
};

/// A requester whose packets were lost may take this long until it sends again (4.096 us * 2^18, the longest timer in common
/// use).
const UNDECIDED_NS: i64 = 1_100_000_000;

impl Requests {
    /// A gap that nothing filled.
    pub(super) fn gap_left_open(&mut self, gap: &Gap, now: i64, out: &mut Findings, place: Place) {
        // A NAK for it says that it was lost; that is told of the NAK.
        if gap.filled > 0 || gap.nak.is_some() {
            return;
        }
        let lost = u64::from(gap.count());
        let (before, behind) = gap.frames;
        let psns = Psns(gap.from.get(), gap.count());
        if !self.reliable {
            out.add(Kind::UcMessageLost, place, gap.time, lost, &[before, behind], |f| {
                format!(
                    "{} lost at {} ({psns}, between frames {before} and {behind}): the message is not delivered, and nothing sends it again (or the capture missed them: an unreliable connection has no acknowledgements that would tell)",
                    packets(lost),
                    f.at(gap.time),
                )
            });
            return;
        }
        let waited = now.saturating_sub(gap.time).max(0);
        if gap.acked.is_none() && waited < UNDECIDED_NS {
            out.add(Kind::GapUndecided, place, gap.time, lost, &[before, behind], |f| {
                format!(
                    "{} missing at {} ({psns}, between frames {before} and {behind}), and neither acknowledged nor sent again in the {} that are known after it: whether the network or the capture lost them can't be told",
                    Many(lost, "packet"),
                    f.at(gap.time),
                    Span(waited.unsigned_abs()),
                )
            });
            return;
        }
        let (frame, why) = match gap.acked {
            Some((frame, _)) => (
                frame,
                format!("the receiver acknowledged them (frame {frame})"),
            ),
            None => (
                behind,
                "the sender never sent them again, as it must if they are lost (no answer that covers them was captured)".to_owned(),
            ),
        };
        out.add(
            Kind::CaptureLoss,
            place,
            gap.time,
            lost,
            &[before, behind, frame],
            |f| {
                format!(
                    "{} missing at {} ({psns}, between frames {before} and {behind}), but not lost in the network: {why}; the capture missed them",
                    Many(lost, "packet"),
                    f.at(gap.time),
                )
            },
        );
    }

    /// A READ that nothing more is expected of.
    pub(super) fn read_done(&mut self, read: &Read, out: &mut Findings, place: Place) {
        let Some(hole) = read.hole.filter(|_| read.again == 0) else {
            return;
        };
        let lost = u64::from(hole.count) + u64::from(hole.later);
        out.add(
            Kind::CaptureLoss,
            place,
            hole.time,
            lost,
            &[hole.frames.0, hole.frames.1],
            |f| {
                format!(
                    "{} missing at {} ({}, between frames {} and {}{}) and never asked for again: the requester had them, the capture missed them",
                    Many(lost, "READ response packet"),
                    f.at(hole.time),
                    Psns(hole.from.get(), hole.count),
                    hole.frames.0,
                    hole.frames.1,
                    match hole.later {
                        0 => String::new(),
                        n => format!(", and {n} later"),
                    }
                )
            },
        );
    }

    /// A NAK, and nothing was sent again.
    pub(super) fn nak_without_resend(
        &mut self,
        nak: &NakSeen,
        acked: Option<u64>,
        out: &mut Findings,
        place: Place,
    ) {
        let frames: Vec<u64> = [Some(nak.frame), acked].into_iter().flatten().collect();
        out.add(Kind::NakSequence, place, nak.time, 1, &frames, |f| {
            let what = match acked {
                Some(frame) => format!(
                    "later it was acknowledged (frame {frame}): the capture missed what was sent again, or it came late"
                ),
                None => "nothing was sent again before the capture's end".to_owned(),
            };
            format!(
                "the receiver missed {} at {} (NAK, PSN sequence error, frame {}); {what}",
                Psns(nak.psn.get(), 1),
                f.at(nak.time),
                nak.frame
            )
        });
    }

    /// Nothing more comes.
    pub(crate) fn finish(
        &mut self,
        now: i64,
        verdicts: Verdicts,
        out: &mut Findings,
        place: Place,
    ) {
        for run in std::mem::take(&mut self.pending) {
            self.decide(&run, None, out, place);
        }
        if let Some(run) = self.episode.take() {
            self.decide(&run, Some((now.max(verdicts.end), verdicts)), out, place);
        }
        for gap in std::mem::take(&mut self.gaps) {
            self.gap_left_open(&gap, now.max(verdicts.end), out, place);
        }
        let reads: Vec<Read> = self.reads.drain().collect();
        for read in reads {
            self.read_done(&read, out, place);
        }
        if let Some(nak) = self.nak.take() {
            self.nak_without_resend(&nak, None, out, place);
        }
        if let Some(run) = self.rnr.take() {
            self.rnr_left(&run, now.max(verdicts.end), out, place);
        }
    }

    fn rnr_left(&mut self, run: &RnrRun, end: i64, out: &mut Findings, place: Place) {
        let waited = end.saturating_sub(run.times.1).max(0).unsigned_abs();
        let silent = self.last_frame < run.frames.1;
        let over = silent && (run.again > 0 || waited > 4 * run.timer_ns + 10_000_000);
        let kind = if over { Kind::RnrExceeded } else { Kind::Rnr };
        let frames = [run.frames.0, run.frames.1];
        out.add(kind, place, run.times.0, run.naks, &frames, |f| {
            let end = if over {
                "then the requester sent no more: its RNR retries are used up (IBV_WC_RNR_RETRY_EXC_ERR), or the capture ends just before the next"
            } else {
                "it was still not ready when the capture ended"
            };
            format!(
                "the receiver was not ready {} from {} to {} ({}, {}): no receive was posted (RNR timer {}){}; {end}",
                times(run.naks),
                f.at(run.times.0),
                f.at(run.times.1),
                Frames(run.frames.0, run.frames.1),
                Psns(run.psn.get(), 1),
                Span(run.timer_ns),
                run.said_behind(),
            )
        });
    }
}
