//! Which two directions are one QP pair, where no connection manager said so.
//!
//! An RC packet names its destination QP only. An answer whose PSN fits requests of exactly one untied QP between the same
//! addresses ties the two; if it fits several, later answers decide, and if none ever does, the pair stays untied. Two UC QPs that
//! are alone between their addresses are taken for a pair. UD and RD carry the sender's QP.

use super::{
    Analyser,
    table::{Key, Table},
};
use rocexdp_common::opcode::{Position, Transport};

use crate::findings::Place;
use crate::flow::{Answer, AnswerKind, Half, TiedBy, half::Connection};

/// Answers that are compared each; later only one of [`RARELY`].
const ALWAYS: u32 = 32;
const RARELY: u32 = 64;
/// Answers kept for when their requests' QP is known.
const KEPT: usize = 16;
/// Candidates looked at for one answer; of more nobody is told.
const CANDIDATES: usize = 4096;

impl Analyser {
    /// Looks for the QP whose requests the answer fits. Returns the requests' direction.
    pub(super) fn tie_by_answer(&mut self, id: u32, answer: &Answer) -> Option<u32> {
        let half = self.table.get_mut(id)?;
        half.tie_attempts = half.tie_attempts.saturating_add(1);
        if half.tie_attempts > ALWAYS && half.tie_attempts % RARELY != 0 {
            return None;
        }
        let (src, dst) = (half.src, half.dst);
        let candidates = match answer.kind {
            AnswerKind::Ack
            | AnswerKind::AtomicAck(_)
            | AnswerKind::Response(Position::First | Position::Only) => {
                self.table.awaiting(&dst, &src, answer.psn).to_vec()
            }
            // The READ's first response tells, not those in its midst.
            AnswerKind::Response(_) => return None,
            // What a NAK names need not have asked for an answer, or been captured. They are few.
            _ if self.table.untied(&dst, &src).len() > CANDIDATES => return None,
            _ => self.table.untied(&dst, &src).to_vec(),
        };
        let mut found = None;
        for candidate in candidates {
            if candidate == id {
                continue;
            }
            let fits = self.table.get(candidate).is_some_and(|half: &Half| {
                half.peer.is_none()
                    && (half.src, half.dst) == (dst, src)
                    && half.requests.could_answer(answer)
            });
            if fits
                && found
                    .replace(candidate)
                    .is_some_and(|other| other != candidate)
            {
                return None;
            }
        }
        let peer = found?;
        tie(&mut self.table, peer, id, TiedBy::Heuristic, None);
        Some(peer)
    }

    /// Nothing fits yet: the answer may say more when its request's QP is known.
    pub(super) fn keep_answer(&mut self, id: u32, answer: &Answer) {
        if let Some(half) = self.table.get_mut(id) {
            if half.unmatched.len() >= KEPT {
                half.unmatched.remove(0);
            }
            half.unmatched.push(*answer);
        }
    }

    /// The answers kept of a direction that was tied just now.
    pub(super) fn answer_late(&mut self, id: u32, peer: u32) {
        let Some(half) = self.table.get_mut(id) else {
            return;
        };
        let kept = std::mem::take(&mut half.unmatched);
        let Some(asked) = self.table.get_mut(peer) else {
            return;
        };
        for answer in kept {
            if asked.requests.is_near(answer.psn) {
                asked
                    .requests
                    .answered(&answer, &mut self.findings, Place::Half(peer));
            }
        }
    }

    /// At the end: two unreliable connections that are alone between their addresses are one QP pair.
    pub(super) fn tie_the_lonely(&mut self) {
        let count = u32::try_from(self.table.all().len()).unwrap_or(u32::MAX);
        for id in 0..count {
            let Some(half) = self.table.get(id) else {
                continue;
            };
            if half.transport != Transport::Uc || half.peer.is_some() {
                continue;
            }
            let (src, dst) = (half.src, half.dst);
            let (ways, back) = (self.table.untied(&src, &dst), self.table.untied(&dst, &src));
            if let ([only], [other]) = (ways, back)
                && self
                    .table
                    .get(*other)
                    .is_some_and(|half| half.transport == Transport::Uc)
            {
                let (only, other) = (*only, *other);
                tie(&mut self.table, only, other, TiedBy::Heuristic, None);
            }
        }
    }

    /// A datagram's sender QP is in it: the way back is known as soon as it is used.
    pub(super) fn tie_datagrams(&mut self, id: u32) {
        let Some(half) = self.table.get(id) else {
            return;
        };
        let (None, Some(src_qpn)) = (half.peer, half.src_qpn) else {
            return;
        };
        let back = Key {
            src: half.dst,
            dst: half.src,
            dest_qpn: src_qpn,
            src_qpn: half.dest_qpn,
        };
        if let Some(peer) = self.table.find(&back) {
            tie(&mut self.table, id, peer, TiedBy::Deth, None);
        }
    }
}

/// Makes two directions one pair.
pub(super) fn tie(table: &mut Table, a: u32, b: u32, by: TiedBy, connection: Option<Connection>) {
    let of = |table: &Table, id| {
        table
            .get(id)
            .map(|half: &Half| (half.dest_qpn, half.requests.path_mtu))
    };
    let (Some((qpn_a, mtu_a)), Some((qpn_b, mtu_b))) = (of(table, a), of(table, b)) else {
        return;
    };
    let mtu = mtu_a.max(mtu_b);
    for (id, peer, src_qpn) in [(a, b, qpn_b), (b, a, qpn_a)] {
        if let Some(half) = table.get_mut(id) {
            half.peer = Some(peer);
            half.tied_by = by;
            half.src_qpn = Some(src_qpn);
            half.connection = connection.or(half.connection);
            if mtu > half.requests.path_mtu {
                half.requests.learn_path_mtu(mtu);
            }
        }
        table.tied(id);
    }
}

/// Undoes a tie that the connection manager contradicts.
pub(super) fn untie(table: &mut Table, id: u32) {
    let Some(peer) = table.get_mut(id).and_then(|half| half.peer.take()) else {
        return;
    };
    table.untied_again(id);
    table.untied_again(peer);
    if let Some(half) = table.get_mut(peer) {
        half.peer = None;
        half.tied_by = TiedBy::None;
    }
}
