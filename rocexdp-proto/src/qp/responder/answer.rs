//! Which answer leaves next.
//!
//! Answers leave in the order of what they answer: what READs, atomics, FLUSHes and ATOMIC WRITEs are answered by first, oldest
//! first, then the acknowledgement, which is cumulative, so that one is owed at a time: it is made when it leaves, from what has
//! arrived by then. That coalesces them by itself: a batch of packets that ask makes one ACK, and none if a response says it.
//! An ACK never overtakes a response before it: the peer would take that for lost (an implied NAK).
//!
//! With selective repeat answers need no order: they may be lost and overtake each other on their way, and the peer's books tell.
//! There the acknowledgement goes first, then what was lost, then the rest; only what ends the connection stays behind all.
//!
//! A NAK that has not left when its gap is filled moves on to the next packet that has to come again; once it has left, the
//! peer sends all of them again, and nothing more is owed.
//!
//! Must not: decide when an answer may leave (the endpoint paces those that carry data).

use std::sync::Arc;

use rocexdp_common::headers::{Aeth, Bth, Sack, Sreth, Syndrome};
use rocexdp_common::opcode::{Opcode, Operation, rc};

use super::RecvState;
use super::check::takes_resource;
use super::resources::{Entry, Kept};
use crate::drop::DropReason;
use crate::ids::{Pd, Psn, Qpn, RKey};
use crate::mem::{Access, Memory, Reach, RegionTable};
use crate::time::Timestamp;

/// The acknowledgement that is owed to the peer. Later ones are stronger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Owed {
    /// None.
    #[default]
    Nothing,
    /// ACK of all that has arrived, or, where only duplicates have, of what is before this packet.
    Ack(Option<Psn>),
    /// NAK: the expected PSN is missing.
    NakSequence,
    /// RNR NAK of the expected PSN.
    NotReady,
    /// NAK of this PSN that ends the connection.
    Fatal(Syndrome, Psn),
}

/// What has happened since the last answer left; any answer covers it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unanswered {
    /// Someone asked for an answer, by a packet that was accepted or by one that was dropped.
    pub(super) asked: bool,
    /// The highest PSN that was dropped behind the gap which the answer reports: up to there packets have to come again.
    dropped: Option<Psn>,
}

/// What waits to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// Nothing.
    Nothing,
    /// An answer of headers only: leaves at once.
    Control,
    /// An answer with data: paced like all data.
    Data,
}

/// An answer as it leaves.
pub(crate) struct Answer {
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) aeth: Option<Aeth>,
    /// Selective repeat's acknowledgement: what has arrived on a path.
    pub(crate) sack: Option<Sack>,
    /// Selective repeat's other answers: place and transmission.
    pub(crate) sreth: Option<Sreth>,
    /// Atomic acknowledge: what stood in the memory.
    pub(crate) original: Option<u64>,
    /// READ response: what the peer reads.
    pub(crate) data: Option<AnswerData>,
    /// It has left once before.
    pub(crate) again: bool,
    /// Why the connection ends with it, where only the answering showed that.
    pub(crate) fatal: Option<DropReason>,
}

/// Memory that a READ response carries.
pub(crate) struct AnswerData {
    pub(crate) mem: Arc<dyn Memory>,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// The answer whose turn it is.
enum Turn {
    Nothing,
    /// The acknowledgement that is owed.
    Owed,
    /// The next packet of this request's answer.
    Next(Entry),
    /// Selective repeat: this number of its answer again.
    Again(Entry, u64),
}

fn turn(s: &RecvState) -> Turn {
    if tells(s) && matches!(s.owed, Owed::Nothing | Owed::Ack(_)) {
        return Turn::Owed;
    }
    let lost = s.answers.as_ref().and_then(|a| a.next_lost());
    let again = lost.and_then(|n| Some((*s.resources.holds(n, s.path_mtu)?, n)));
    match (again, s.resources.pending()) {
        (Some((entry, number)), _) => Turn::Again(entry, number),
        (None, Some(entry)) => Turn::Next(*entry),
        (None, None) if s.owed == Owed::Nothing && !tells(s) => Turn::Nothing,
        (None, None) => Turn::Owed,
    }
}

/// What waits to leave.
pub(crate) fn due(s: &RecvState) -> Due {
    match turn(s) {
        Turn::Nothing => Due::Nothing,
        Turn::Next(e) | Turn::Again(e, _) if matches!(e.kept, Kept::Read { length: 1.., .. }) => {
            Due::Data
        }
        _ => Due::Control,
    }
}

/// Whether selective repeat has arrivals to tell of.
fn tells(s: &RecvState) -> bool {
    s.selective.as_ref().is_some_and(|sr| sr.arrivals.owes())
}

/// Takes the answer that is due, which counts as sent.
pub(crate) fn answer(
    s: &mut RecvState,
    regions: &RegionTable,
    pd: Pd,
    over: Qpn,
    now: Timestamp,
) -> Option<Answer> {
    let reach = |rkey| regions.reach(rkey, pd, over);
    let answer = match turn(s) {
        Turn::Nothing => return None,
        Turn::Owed => owed(s)?,
        Turn::Next(e) => respond(s, e, e.first + u64::from(e.next), false, reach, now),
        Turn::Again(e, number) => respond(s, e, number, true, reach, now),
    };
    s.answered = answer.psn;
    Some(answer)
}

/// Selective repeat: what the peer says of our answers.
///
/// # Errors
/// It tells of what was never sent; nothing has changed.
pub(crate) fn arrived(s: &mut RecvState, sack: &Sack, now: Timestamp) -> Result<(), DropReason> {
    let ghost = DropReason::GhostAck;
    let before = s.number(Psn::new(sack.mark)).ok_or(ghost)?;
    let answers = s.answers.as_mut().filter(|_| before <= s.received);
    let answers = answers.ok_or(ghost)?;
    answers.sack(sack, now).ok_or(ghost)?;
    answers.arrived_before(before);
    Ok(())
}

/// A packet of a request's answer: the next one, or one that was lost.
fn respond<'a>(
    s: &mut RecvState,
    e: Entry,
    number: u64,
    lost: bool,
    reach: impl FnOnce(RKey) -> Option<Reach<'a>>,
    now: Timestamp,
) -> Answer {
    let psn = s.psn(number);
    let index = number.saturating_sub(e.first) as u32;
    let again = lost || index < e.high;
    // Said again, it tells how far we are now, as rxe_resp.c `prepare_ack_packet` does.
    let msn = if again { s.msn } else { e.msn };
    let (mut opcode, mut original, mut data) = (rc::READ_RESPONSE_ONLY, None, None);
    match e.kept {
        Kept::Read { va, rkey, .. } => {
            // Asked for the rest of a READ, we begin with a FIRST, as for any READ (Soft-RoCE goes on with a MIDDLE; it takes
            // both).
            let (first, last) = (index == e.begin, index + 1 == e.behind(s.path_mtu));
            opcode = match (first, last) {
                (true, true) => rc::READ_RESPONSE_ONLY,
                (true, false) => rc::READ_RESPONSE_FIRST,
                (false, false) => rc::READ_RESPONSE_MIDDLE,
                (false, true) => rc::READ_RESPONSE_LAST,
            };
            let offset = index * s.path_mtu.bytes();
            let len = e.end.saturating_sub(offset).min(s.path_mtu.bytes());
            if len > 0 {
                let there = reach(rkey).and_then(|r| {
                    let va = va.wrapping_add(u64::from(offset));
                    r.locate(va, u64::from(len), Access::REMOTE_READ)
                });
                let Some((mem, offset)) = there else {
                    return withdrawn(s, psn, msn, again, lost.then_some(number));
                };
                data = Some(AnswerData {
                    mem: Arc::clone(&mem),
                    offset,
                    len,
                });
            }
        }
        Kept::Original(value) => (opcode, original) = (rc::ATOMIC_ACKNOWLEDGE, Some(value)),
        Kept::Nothing => {}
    }
    if !lost {
        s.resources.sent(s.path_mtu);
    }
    let sreth = s.answers.as_mut().map(|answers| {
        let (path, serial) = answers.sent(number, now);
        Sreth {
            serial,
            path,
            index,
        }
    });
    // It acknowledges all before it, too.
    if let Owed::Ack(upto) = s.owed
        && upto.unwrap_or(s.expected).diff(psn) <= 1
    {
        s.owed = Owed::Nothing;
        s.unanswered = Unanswered::default();
    }
    Answer {
        opcode,
        psn,
        aeth: (opcode != rc::READ_RESPONSE_MIDDLE).then(|| ack(Syndrome::Ack(0x1f), msn)),
        sack: None,
        sreth,
        original,
        data,
        again,
        fatal: None,
    }
}

/// The region went while its READ was being answered: the peer is told so, and that ends the connection. Asked for once more
/// after it had been answered, the READ may be one that the network kept, of a peer that has gone on and not ours to
/// disappoint: it is told the same, and ends the connection if it was waiting.
fn withdrawn(s: &mut RecvState, psn: Psn, msn: u32, again: bool, lost: Option<u64>) -> Answer {
    if let (Some(number), Some(answers)) = (lost, &mut s.answers) {
        answers.forget(number);
    } else if again {
        s.resources.cancel(s.path_mtu);
    } else {
        s.resources.clear();
        s.owed = Owed::Nothing;
    }
    Answer {
        fatal: (!again).then_some(DropReason::RemoteAccess),
        sack: s.selective.as_mut().and_then(|sr| sr.arrivals.take()),
        ..acknowledgement(psn, Syndrome::NakRemoteAccess, msn)
    }
}

/// The memory failed under the READ response that [`answer`] gave last: the peer is told so, and that ends the connection.
pub(crate) fn response_failed(s: &mut RecvState) -> DropReason {
    s.resources.clear();
    s.owed = Owed::Fatal(Syndrome::NakRemoteOperational, s.answered);
    DropReason::RemoteOperational
}

/// The acknowledgement that is owed.
fn owed(s: &mut RecvState) -> Option<Answer> {
    s.unanswered = Unanswered::default();
    let owed = match core::mem::take(&mut s.owed) {
        Owed::Nothing if tells(s) => Owed::Ack(None),
        owed => owed,
    };
    let sack = s.selective.as_mut().and_then(|sr| match owed {
        // It names the transmission that is refused, so that it can't be taken for news of a later one.
        Owed::NotReady => {
            let (path, serial) = sr.refused;
            let sack = sr.arrivals.take_of(path);
            sack.map(|sack| Sack {
                mark: serial,
                ..sack
            })
        }
        _ => sr.arrivals.take(),
    });
    if matches!(owed, Owed::Fatal(..)) {
        // Nothing more is said.
        (s.selective, s.answers) = (None, None);
    }
    let (psn, syndrome) = match owed {
        Owed::Nothing => return None,
        // 0x1f: credits are not used.
        Owed::Ack(before) => {
            let behind = u32::from(!mutant!("acknowledged_early"));
            let psn = before.unwrap_or(s.expected).sub(behind);
            (psn, Syndrome::Ack(0x1f))
        }
        Owed::NakSequence => {
            let off = u32::from(mutant!("nak_of_the_wrong_psn"));
            (s.expected.add(off), Syndrome::NakSequence)
        }
        Owed::NotReady => (s.expected, Syndrome::RnrNak(s.min_rnr_timer)),
        Owed::Fatal(syndrome, psn) => (psn, syndrome),
    };
    Some(Answer {
        sack,
        ..acknowledgement(psn, syndrome, s.msn)
    })
}

/// An acknowledgement of all that has arrived, which carries what is to be said of the peer's answers.
pub(crate) fn of_answers(s: &RecvState, sack: Sack) -> Answer {
    Answer {
        sack: Some(sack),
        ..acknowledgement(s.expected.sub(1), Syndrome::Ack(0x1f), s.msn)
    }
}

fn acknowledgement(psn: Psn, syndrome: Syndrome, msn: u32) -> Answer {
    Answer {
        opcode: rc::ACKNOWLEDGE,
        psn,
        aeth: Some(ack(syndrome, msn)),
        sack: None,
        sreth: None,
        original: None,
        data: None,
        again: false,
        fatal: None,
    }
}

fn ack(syndrome: Syndrome, msn: u32) -> Aeth {
    Aeth { syndrome, msn }
}

/// Owes an ACK if the packet asks for one, or one before did; what has an answer of its own is acknowledged by that. What was
/// missing has come: a NAK that has not left yet is void if nothing was dropped behind the gap that has not come again, and else
/// names the next packet, which was.
pub(super) fn acknowledge(s: &mut RecvState, bth: &Bth, operation: Operation) {
    s.unanswered.asked |= bth.ack_req && !takes_resource(operation);
    if s.unanswered
        .dropped
        .is_some_and(|p| p.diff(s.expected) >= 0)
    {
        s.nak_sent = true;
        s.owed = Owed::NakSequence;
        return;
    }
    s.unanswered.dropped = None;
    s.owed = if s.unanswered.asked {
        Owed::Ack(None)
    } else {
        Owed::Nothing
    };
}

/// A packet behind a gap was dropped. If the gap's NAK has left, the peer sends it again anyway.
pub(super) fn note_dropped(s: &mut RecvState, bth: &Bth) {
    if !s.nak_sent {
        s.nak_sent = true;
        s.owed = Owed::NakSequence;
    }
    if matches!(s.owed, Owed::NakSequence | Owed::NotReady) {
        s.unanswered.asked |= bth.ack_req;
        let before = s.unanswered.dropped;
        if before.is_none_or(|p| bth.psn.diff(p) > 0) {
            s.unanswered.dropped = Some(bth.psn);
        }
    }
}

impl RecvState {
    /// Owes an ACK of packet `number`, which has come again. It goes no further than to the next request with an answer of its
    /// own: that answer may have been lost as well, and an ACK beyond it would be an implied NAK.
    pub(super) fn acknowledge_again(&mut self, number: Option<u64>) {
        self.unanswered.asked = true;
        let before = number
            .and_then(|n| self.resources.behind(n))
            .map(|n| self.psn(n));
        self.owed = match (self.owed, before) {
            (Owed::Nothing, _) => Owed::Ack(before),
            (Owed::Ack(Some(a)), Some(b)) => Owed::Ack(Some(if a.diff(b) < 0 { b } else { a })),
            (Owed::Ack(_), _) => Owed::Ack(None),
            (other, _) => other,
        };
    }
}
