//! Findings that only the whole capture can give: what is counted, not told one by one.

use std::collections::HashMap;

use rocexdp_common::{
    ids::Gid,
    opcode::Transport,
    reason::{REASON_ALL, REASON_NAMES, Reason},
};

use super::Analyser;
use crate::{
    findings::{
        Kind, Place,
        words::{Many, Qp, Span},
    },
    flow::{Half, Verdicts, half::Events},
};

/// Untied directions with answers and with requests, by source and destination.
type Untied = HashMap<(Gid, Gid), (u64, u64)>;

/// Requests sent again from which on it is worth asking whether two taps were joined.
const DOUBLED: u64 = 16;

impl Analyser {
    /// Ends all streams and adds the summaries.
    pub(super) fn summarise(&mut self) {
        self.tie_the_lonely();
        let untied = self.untied_sums();
        let end = self.totals.times.map_or(0, |(_, last)| last);
        let count = u32::try_from(self.table.all().len()).unwrap_or(u32::MAX);
        for id in 0..count {
            let peer = self.table.get(id).and_then(|half| half.peer);
            let other = peer.and_then(|peer| self.table.get(peer));
            let verdicts = Verdicts {
                other_direction: other.is_some_and(|half| half.packets > 0),
                untold_answers: other.is_none()
                    && self.table.get(id).is_some_and(|half| {
                        untied
                            .get(&(half.dst, half.src))
                            .is_some_and(|(answers, _)| *answers > 0)
                    }),
                end,
                last: true,
            };
            let place = Place::Half(id);
            if let Some(half) = self.table.get_mut(id) {
                half.requests
                    .finish(end, verdicts, &mut self.findings, place);
            }
            self.one_by_one(id, place);
            self.direction(id, place, verdicts.other_direction, &untied);
            if peer.is_none_or(|peer| id < peer) {
                self.congestion(id, peer);
            }
        }
        self.capture();
    }

    /// What untied directions between two addresses hold, one way: each pair of addresses is gone through once.
    fn untied_sums(&self) -> Untied {
        let mut sums = Untied::new();
        for half in self.table.all() {
            let told = matches!(half.transport, Transport::Ud | Transport::Rd);
            if half.peer.is_none() && half.packets > 0 && !told {
                let (answers, requests) = sums.entry((half.src, half.dst)).or_default();
                *answers += u64::from(half.answers() > 0);
                *requests += u64::from(half.requests.packets > 0);
            }
        }
        sums
    }

    fn one_by_one(&mut self, id: u32, place: Place) {
        let Some(half) = self.table.get(id) else {
            return;
        };
        let out = &mut self.findings;
        if let Some((first, last)) = half.requests.reordered_seen() {
            let n = half.requests.reordered;
            let time = half.requests.reordered_at();
            out.add(Kind::Reordering, place, time, n, &[first, last], |_| {
                format!(
                    "{} came late, out of order (frames {first} to {last}), and nothing was sent again for it: reordering, not loss (several paths, adaptive routing, or the capture's own queues)",
                    Many(n, "packet")
                )
            });
        }
        let wrong = &half.icrc_wrong;
        if wrong.count > 0 {
            let pad = half.icrc_without_pad;
            out.add(
                Kind::IcrcError,
                place,
                wrong.times.0,
                wrong.count,
                &wrong.frames(),
                |_| {
                    let why = if pad == wrong.count {
                        "all would be right with the pad bytes left out: the sender is a Soft-RoCE of kernel 5.4 or older"
                    } else if half.icrc_right == 0 {
                        "none is right, so they were not damaged one by one: captured before the sender's NIC made the ICRC, or a device rewrites addresses or ports on the way; they are counted all the same"
                    } else {
                        "the receiver drops them as if they were lost: a bad link, a device that rewrites addresses or ports, or a capture that changed them"
                    };
                    format!(
                        "{} with a wrong ICRC{}: {why}",
                        Many(wrong.count, "packet"),
                        span(wrong)
                    )
                },
            );
        }
        let requests = &half.requests;
        // What an RNR NAK asked for is no copy, however often.
        let again = requests.again.packets;
        let again = again.saturating_sub(requests.again_after_rnr);
        let fresh = requests.packets.saturating_sub(requests.again.packets);
        if again >= DOUBLED && again * 10 >= fresh * 9 {
            let frames = [half.first_frame];
            out.add(Kind::DuplicateFrames, place, half.times.0, again, &frames, |_| {
                format!(
                    "nearly every request is there twice ({} of {}), and nothing in the packets tells copies from retransmissions (no IP identification, one TTL): if two taps were joined into this file, what it says of packets sent again and of loss is wrong; keep the taps' interfaces (pcapng), or compare the two files with --merge",
                    again,
                    Many(half.requests.packets, "packet")
                )
            });
        }
        let copies = &half.copies_seen;
        if copies.count > 0 {
            out.add(
                Kind::DuplicateFrames,
                place,
                copies.times.0,
                copies.count,
                &copies.frames(),
                |_| {
                    format!(
                        "{} captured twice within a millisecond{} (the same IP identification or only another TTL: a mirror of both directions, or two interfaces, or seen on another interface of the capture); the second ones are not counted",
                        Many(copies.count, "frame"),
                        span(copies)
                    )
                },
            );
        }
    }

    fn direction(&mut self, id: u32, place: Place, other_direction: bool, untied: &Untied) {
        let Some(half) = self.table.get(id) else {
            return;
        };
        if !matches!(half.transport, Transport::Rc | Transport::Xrc) || other_direction {
            return;
        }
        let asks =
            half.requests.wants_answer > 0 && half.requests.answers == 0 && !half.requests.gave_up;
        let answers = half.answers() > 0;
        if half.packets == 0 || (!asks && !answers) {
            return;
        }
        let back = untied.get(&(half.dst, half.src));
        let candidates = back.map_or(
            0,
            |(answers, requests)| if asks { *answers } else { *requests },
        );
        let time = half.times.0;
        let frames = [half.requests.first_frame().unwrap_or(half.first_frame)];
        let lacks = if asks { "answers" } else { "requests" };
        self.findings
            .add(Kind::OneDirection, place, time, 1, &frames, |_| {
                if candidates > 0 {
                    return format!(
                        "the {lacks} that belong to these packets could not be told from those of {}: both directions stay apart",
                        Many(candidates, "other QP")
                    );
                }
                format!(
                    "only one direction was captured ({} of it, none of the {lacks}): what was lost, and how long answers took, can't be known",
                    Many(half.packets, "packet")
                )
            });
    }

    fn congestion(&mut self, id: u32, peer: Option<u32>) {
        let Some(a) = self.table.get(id) else {
            return;
        };
        let b = peer.and_then(|peer| self.table.get(peer));
        // CNPs go to the sender whose packets were marked.
        let ways = [(Some(a), b, id), (b, Some(a), peer.unwrap_or(id))];
        let mut found = Vec::new();
        for (data, back, place) in ways {
            let Some(data) = data else {
                continue;
            };
            let cnp = back.map(|back| &back.cnp).filter(|cnp| cnp.count > 0);
            if data.ce.count > 0 || cnp.is_some() {
                found.push((place, congestion_of(data, back, cnp)));
            }
            // CNPs whose data was not captured.
            if back.is_none() && data.cnp.count > 0 {
                found.push((
                    place,
                    (
                        data.cnp.times.0,
                        data.cnp.count,
                        data.cnp.frames(),
                        format!(
                            "{} came to {}{}: its packets meet congestion, but they are not in the capture or could not be tied to it",
                            Many(data.cnp.count, "congestion notification packet"),
                            Qp(data.dest_qpn),
                            span(&data.cnp)
                        ),
                    ),
                ));
            }
        }
        for (place, (time, weight, frames, text)) in found {
            self.findings.add(
                Kind::Congestion,
                Place::Half(place),
                time,
                weight,
                &frames,
                |_| text,
            );
        }
    }

    fn capture(&mut self) {
        for (index, events) in self.totals.reasons.iter().enumerate() {
            let (Some(reason), Some(name)) = (REASON_ALL.get(index), REASON_NAMES.get(index))
            else {
                continue;
            };
            if events.count == 0 || *reason == Reason::NotCaptured {
                continue;
            }
            let kind = if reason.is_unfollowed() {
                Kind::Unfollowed
            } else {
                Kind::Malformed
            };
            let what = if reason.is_unfollowed() {
                "may be RoCE and not followed"
            } else {
                "malformed"
            };
            self.findings.add(
                kind,
                Place::Capture,
                events.times.0,
                events.count,
                &events.frames(),
                |_| {
                    format!(
                        "{} {what}: {name}{}",
                        Many(events.count, "frame"),
                        span(events)
                    )
                },
            );
        }
        let cut = &self.totals.truncated;
        let unknown = self
            .totals
            .reasons
            .get(Reason::NotCaptured as usize)
            .map_or(0, |events| events.count);
        if cut.count > 0 {
            let all = self.totals.frames;
            self.findings.add(
                Kind::TruncatedCapture,
                Place::Capture,
                cut.times.0,
                cut.count,
                &cut.frames(),
                |_| {
                    format!(
                        "{} of {all} captured in part (a snapshot length): their ICRC is unknown, their lengths are from their headers{}",
                        Many(cut.count, "frame"),
                        if unknown > 0 {
                            format!("; of {unknown} so little that it can't be told whether they are RoCE")
                        } else {
                            String::new()
                        }
                    )
                },
            );
        }
        let pfc = &self.totals.pfc;
        let pause = &self.totals.pause;
        if pfc.count + pause.count > 0 {
            let priorities: Vec<String> = (0..8)
                .zip(self.totals.pfc_priorities)
                .filter(|(_, n)| *n > 0)
                .map(|(priority, n)| format!("priority {priority} {n} times"))
                .collect();
            let events = if pfc.count > 0 { pfc } else { pause };
            self.findings.add(
                Kind::Pause,
                Place::Capture,
                events.times.0,
                pfc.count + pause.count,
                &events.frames(),
                |_| {
                    format!(
                        "{} and {} seen{}{}",
                        Many(pfc.count, "priority flow control frame"),
                        Many(pause.count, "global pause frame"),
                        if priorities.is_empty() {
                            ""
                        } else {
                            ", pausing "
                        },
                        priorities.join(", ")
                    )
                },
            );
        }
    }
}

fn span(events: &Events) -> String {
    let first = events.first.first().copied().unwrap_or(events.last);
    if first == events.last {
        format!(" (frame {first})")
    } else {
        format!(" (frames {first} to {})", events.last)
    }
}

type Told = (i64, u64, Vec<u64>, String);

fn congestion_of(data: &Half, back: Option<&Half>, cnp: Option<&Events>) -> Told {
    let ce = &data.ce;
    let share = 100.0 * ce.count as f64 / data.packets.max(1) as f64;
    let marks = if ce.count > 0 {
        format!(
            "{share:.1} % of {} to {} carried CE marks ({}{})",
            Many(data.packets, "packet"),
            Qp(data.dest_qpn),
            ce.count,
            span(ce).replace(" (", ", ").replace(')', "")
        )
    } else {
        format!(
            "no CE mark on {} to {}: marked behind the capture point",
            Many(data.packets, "packet"),
            Qp(data.dest_qpn)
        )
    };
    let notes = match (cnp, back) {
        (Some(cnp), _) => {
            let time = cnp.times.1.abs_diff(cnp.times.0);
            let rate = if cnp.count > 2 && time > 0 {
                format!(
                    ", {:.0} per second over {}",
                    (cnp.count - 1) as f64 * 1e9 / time as f64,
                    Span(time)
                )
            } else {
                String::new()
            };
            format!(
                "{} came back{}{rate}",
                Many(cnp.count, "CNP"),
                span(cnp)
            )
        }
        (None, Some(back)) if back.packets > 0 => {
            "no CNP came back: the receiver sends none (Soft-RoCE never does), or they took another way".to_owned()
        }
        _ => "the way back is not in the capture".to_owned(),
    };
    let mut frames = ce.frames();
    frames.extend(cnp.map(Events::frames).unwrap_or_default());
    let time = if ce.count > 0 {
        ce.times.0
    } else {
        cnp.map_or(0, |cnp| cnp.times.0)
    };
    (
        time,
        ce.count + cnp.map_or(0, |cnp| cnp.count),
        frames,
        format!("{marks}; {notes}"),
    )
}
