//! Requests of a peer that repeats selectively: whatever comes is kept, and carried out when its turn comes, by the same chain
//! as any request.
//!
//! A packet ahead of a missing one is placed at once if it belongs to the message in progress (that of the expected packet) and
//! is not its end; it says itself where it belongs, so a lost FIRST holds nothing back. Its checks are those that it will
//! pass again in its turn. The message's end, and everything of later messages, is kept aside until all before it has come:
//! who sees a message's last byte, its completion or a later message, sees all before it.
//!
//! A transmission is recorded as arrived only when it was carried out, was kept, or had come before.
//!
//! Must not: answer (what is owed follows from what is recorded).

use rocexdp_common::headers::Sreth;
use rocexdp_common::opcode::{Operation, Position};

use super::check::check_op_valid;
use super::execute::place;
use super::{Context, Incoming, RecvState, Refusal, Served, chain, refuse};
use crate::drop::DropReason;
use crate::ids::RKey;
use crate::mem::Access;
use crate::qp::sr::{Receiver, SPAN};
use crate::verbs::MAX_MESSAGE;
use crate::wire::Packet;

/// Serves a request packet whose ICRC, addresses and service are right.
pub(crate) fn serve(s: &mut RecvState, cx: &mut Context<'_>, p: &Packet<'_>) -> Served {
    let Some(mut sr) = s.selective.take() else {
        return Served::Refused(DropReason::TransportMismatch);
    };
    let served = receive(s, &mut sr, cx, p);
    s.selective = Some(sr);
    served
}

fn receive(s: &mut RecvState, sr: &mut Receiver, cx: &mut Context<'_>, p: &Packet<'_>) -> Served {
    let (Some((operation, position)), Some(sreth)) = (p.bth.opcode.decode(), p.sreth) else {
        return Served::Refused(DropReason::UnknownOpcode);
    };
    if !sr.arrivals.has_path(sreth.path) {
        return Served::Refused(DropReason::UnknownPath);
    }
    if !sr.arrivals.is_near(sreth.path, sreth.serial) {
        return Served::Refused(DropReason::BeyondWindow);
    }
    let record = |sr: &mut Receiver, ask| sr.arrivals.record(sreth.path, sreth.serial, ask);
    let ahead = p.bth.psn.diff(s.expected);
    // The sender has nothing so old: of a connection before this one, perhaps, whose serials mean nothing now.
    if ahead < -(SPAN as i32) {
        return Served::Refused(DropReason::BeyondWindow);
    }
    if ahead < 0 {
        let served = refuse(s, cx, p, operation, Refusal::Duplicate);
        // What can't be answered again is not what came before, perhaps: it tells nothing.
        if served == Served::Accepted {
            record(sr, true);
        }
        return served;
    }
    if ahead == 0 {
        let served = in_turn(s, sr, cx, p, operation, position);
        if served == Served::Accepted {
            record(sr, p.bth.ack_req);
            return follow(s, sr, cx);
        }
        return served;
    }
    if ahead >= SPAN as i32 {
        return Served::Refused(DropReason::BeyondWindow);
    }
    if sr.reorder.has(p.bth.psn) {
        cx.stats.duplicate_request += 1;
        record(sr, true);
        return Served::Accepted;
    }
    if !sr.reorder.has_room() {
        return Served::Refused(DropReason::ReorderFull);
    }
    cx.stats.out_of_sequence += 1;
    let placed = early(s, cx, p, &sreth, operation, position).is_some();
    sr.reorder.keep(p, placed);
    record(sr, p.bth.ack_req);
    Served::Accepted
}

/// The expected packet.
fn in_turn(
    s: &mut RecvState,
    sr: &mut Receiver,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Served {
    let at = s.expected;
    let done = check_continues(s, p, operation, position)
        .and_then(|()| chain(s, cx, p, operation, position));
    match done {
        Ok(()) => {
            // A READ's answer takes the PSNs behind it.
            let passed = s.expected.diff(at) as u32;
            if passed > 1 && !sr.reorder.is_empty() {
                sr.reorder.skip(at.add(1), passed - 1);
            }
            Served::Accepted
        }
        Err(refusal) => {
            if let (Refusal::NotReady, Some(sreth)) = (&refusal, &p.sreth) {
                sr.refused = (sreth.path, sreth.serial & 0xff_ffff);
            }
            refuse(s, cx, p, operation, refusal)
        }
    }
}

/// What was kept behind the packet that came is in turn now, up to the next one that is missing.
fn follow(s: &mut RecvState, sr: &mut Receiver, cx: &mut Context<'_>) -> Served {
    while let Some(held) = sr.reorder.take(s.expected) {
        let served = held.with(|p| match p.bth.opcode.decode() {
            Some((operation, position)) => in_turn(s, sr, cx, p, operation, position),
            None => Served::Refused(DropReason::UnknownOpcode),
        });
        sr.reorder.done(held);
        match served {
            Served::Accepted => {}
            // The packet that came was carried out; what it let follow is refused, and the peer is told.
            Served::Refused(_) => break,
            Served::Fatal(reason) => return Served::Fatal(reason),
        }
    }
    Served::Accepted
}

/// What a packet says of its place must be where it is: the next one of its message.
fn check_continues(
    s: &RecvState,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<(), Refusal> {
    let sreth = p.sreth.ok_or(Refusal::INVALID)?;
    let fits = match (&s.message, position) {
        (Some(m), Position::Middle | Position::Last) => {
            sreth.index == packets_done(s, m)
                && (operation != Operation::Write || is_of(p, m).is_some())
        }
        (_, Position::First | Position::Only) => sreth.index == 0,
        // The check of the order of opcodes says what is wrong.
        _ => true,
    };
    if fits { Ok(()) } else { Err(Refusal::INVALID) }
}

/// Packets of the message that were carried out.
fn packets_done(s: &RecvState, m: &Incoming) -> u32 {
    let bytes = match m.operation {
        Operation::Send => m.bytes,
        _ => m.total.saturating_sub(m.bytes),
    };
    bytes / s.path_mtu.bytes()
}

/// Whether a WRITE's packet names the message's range.
fn is_of(p: &Packet<'_>, m: &Incoming) -> Option<()> {
    let reth = p.reth?;
    let done = u64::from(m.total.saturating_sub(m.bytes));
    (reth.va == m.va.wrapping_sub(done) && RKey(reth.rkey) == m.rkey && reth.length == m.total)
        .then_some(())
}

/// Places a packet ahead of its turn, if it may be. `None`: it may not, or it would be refused in its turn; nothing was written.
fn early(
    s: &mut RecvState,
    cx: &Context<'_>,
    p: &Packet<'_>,
    sreth: &Sreth,
    operation: Operation,
    position: Position,
) -> Option<()> {
    let mtu = s.path_mtu.bytes();
    let whole = p.payload.len() == mtu && p.bth.pad == 0;
    if position != Position::Middle || !whole || check_op_valid(s, p, operation).is_err() {
        return None;
    }
    // The message in progress: the one that holds the expected packet, or begins with it.
    let done = s.message.as_ref().map_or(0, |m| packets_done(s, m));
    if p.bth.psn.sub(sreth.index) != s.expected.sub(done) {
        return None;
    }
    let offset = sreth.index.checked_mul(mtu)?;
    let end = offset.checked_add(mtu)?;
    let mut m = Incoming {
        operation,
        va: 0,
        rkey: RKey(0),
        bytes: 0,
        total: 0,
    };
    match operation {
        Operation::Write => {
            let reth = p.reth?;
            if let Some(begun) = &s.message {
                is_of(p, begun).filter(|()| begun.operation == operation)?;
            }
            // Something must be left for the end.
            if reth.length > MAX_MESSAGE || end >= reth.length {
                return None;
            }
            m.rkey = RKey(reth.rkey);
            let len = u64::from(reth.length);
            cx.locate(m.rkey, reth.va, len, Access::REMOTE_WRITE).ok()?;
            m.va = reth.va.wrapping_add(u64::from(offset));
        }
        Operation::Send => {
            if s.message.is_some_and(|begun| begun.operation != operation) {
                return None;
            }
            // The FIRST would take it.
            if s.current.is_none() {
                s.current = cx.rq.take();
            }
            let wr = s.current.as_ref()?;
            if end > wr.local.len() || cx.may_receive(wr).is_err() {
                return None;
            }
            m.bytes = offset;
        }
        _ => return None,
    }
    place(s.current.as_ref(), cx, p, &m).ok()
}
