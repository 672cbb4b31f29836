//! The checks that a request passes before anything is done (rxe_resp.c).
//!
//! Must not: change anything but the receive request that a SEND takes when it begins.

use rocexdp_common::headers::{Feth, FlushRange};
use rocexdp_common::opcode::{Operation, Position, rc};

use super::{Context, Incoming, RecvState, Refusal};
use crate::ids::RKey;
use crate::mem::Access;
use crate::verbs::MAX_MESSAGE;
use crate::wire::Packet;

/// Bytes that an atomic operation works on, and the boundary they lie on.
const WORD: u32 = 8;

/// The packet must be the one that is expected (rxe_resp.c `check_psn`).
pub(super) fn check_psn(s: &RecvState, p: &Packet<'_>) -> Result<(), Refusal> {
    match p.bth.psn.diff(s.expected) {
        0 => Ok(()),
        1 if mutant!("gap_overlooked") => Ok(()),
        1.. => Err(Refusal::Gap),
        -1 if mutant!("duplicate_send_delivered") && p.bth.opcode == rc::SEND_ONLY => Ok(()),
        _ => Err(Refusal::Duplicate),
    }
}

/// FIRST and ONLY begin a message, MIDDLE and LAST go on with one of their own kind (rxe_resp.c `check_op_seq`).
pub(super) fn check_op_seq(
    s: &RecvState,
    operation: Operation,
    position: Position,
) -> Result<(), Refusal> {
    let begins = matches!(position, Position::First | Position::Only);
    let fits = match &s.message {
        None => begins,
        Some(m) => !begins && m.operation == operation,
    };
    if fits { Ok(()) } else { Err(Refusal::INVALID) }
}

/// The right that a request needs, of the QP and of the region; `None` for one that asks for nothing.
fn right(p: &Packet<'_>, operation: Operation) -> Option<Access> {
    Some(match operation {
        Operation::Send => Access::NONE,
        Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
        Operation::ReadRequest => Access::REMOTE_READ,
        Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
        Operation::Flush => match p.feth? {
            Feth {
                global_visibility: true,
                persistence: true,
                ..
            } => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            Feth {
                persistence: true, ..
            } => Access::FLUSH_PERSISTENT,
            Feth {
                global_visibility: true,
                ..
            } => Access::FLUSH_GLOBAL,
            _ => return None,
        },
        _ => return None,
    })
}

/// The QP must serve such requests at all (rxe_resp.c `check_op_valid`).
pub(super) fn check_op_valid(
    s: &RecvState,
    p: &Packet<'_>,
    operation: Operation,
) -> Result<(), Refusal> {
    match right(p, operation) {
        Some(right) if s.access.contains(right) => Ok(()),
        _ => Err(Refusal::INVALID),
    }
}

/// Whether a request is answered by more than an acknowledgement, which takes a responder resource.
pub(super) fn takes_resource(operation: Operation) -> bool {
    !matches!(operation, Operation::Send | Operation::Write)
}

/// A SEND needs a receive request when it begins, a WRITE with immediate when it ends; a READ, an atomic, a FLUSH and an ATOMIC
/// WRITE need a responder resource (rxe_resp.c `check_resource`). The peer has more requests on the way than it may where all
/// resources hold requests that were not answered yet.
pub(super) fn check_resource(
    s: &mut RecvState,
    cx: &Context<'_>,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<(), Refusal> {
    if takes_resource(operation) {
        let unbounded = mutant!("resources_unbounded");
        return if unbounded || s.resources.has_room(s.path_mtu) {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        };
    }
    let needed = match operation {
        Operation::Send => matches!(position, Position::First | Position::Only),
        _ => p.imm.is_some(),
    };
    if needed && s.current.is_none() {
        s.current = cx.rq.take();
        if s.current.is_none() {
            return Err(Refusal::NotReady);
        }
    }
    Ok(())
}

/// FIRST and MIDDLE are full, LAST is not empty, ONLY is at most full, pad fills up to four bytes, and the message is as long
/// as was said and as there is room for (rxe_resp.c `check_length`, `check_rkey`); an atomic operation is on 8 bytes on their
/// boundary (rxe_resp.c `RESPST_ERR_MISALIGNED_ATOMIC`). Gives the message as of before the packet.
pub(super) fn check_length(
    s: &RecvState,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<Incoming, Refusal> {
    let len = p.payload.len();
    if !s.path_mtu.allows(position, len) || u32::from(p.bth.pad) != len.wrapping_neg() & 3 {
        return Err(Refusal::INVALID);
    }
    let m = begun(s, p, operation);
    let aligned = m.va.is_multiple_of(u64::from(WORD));
    let fits = match operation {
        Operation::Send => {
            let room = s.current.as_ref().map_or(0, |wr| wr.local.len());
            if m.bytes.checked_add(len).is_none_or(|n| n > room)
                && !mutant!("receive_length_unchecked")
            {
                return Err(Refusal::TOO_LONG);
            }
            true
        }
        Operation::Write => {
            let ends = matches!(position, Position::Last | Position::Only);
            m.total <= MAX_MESSAGE && len <= m.bytes && ends == (len == m.bytes)
        }
        Operation::ReadRequest => m.total <= MAX_MESSAGE && len == 0,
        Operation::Flush => m.total <= MAX_MESSAGE && len == 0 && selects(p),
        Operation::AtomicWrite => m.total == WORD && len == WORD && aligned,
        _ => len == 0 && aligned,
    };
    if fits { Ok(m) } else { Err(Refusal::INVALID) }
}

/// A FLUSH's selectivity is not a reserved value.
fn selects(p: &Packet<'_>) -> bool {
    p.feth
        .is_some_and(|f| !matches!(f.selectivity, FlushRange::Reserved(_)))
}

/// The message as of before the packet.
fn begun(s: &RecvState, p: &Packet<'_>, operation: Operation) -> Incoming {
    if let Some(m) = s.message {
        return m;
    }
    let (va, rkey, total) = match (p.reth, p.atomic) {
        (Some(r), _) => (r.va, r.rkey, r.length),
        (None, Some(a)) => (a.va, a.rkey, WORD),
        (None, None) => (0, 0, 0),
    };
    Incoming {
        operation,
        va,
        rkey: RKey(rkey),
        bytes: total,
        total,
    }
}

/// What the peer reaches must lie in a region that allows it, over this QP (rxe_resp.c `check_rkey`): the whole of a message at
/// its begin, the rest of it at each packet, since the region may have gone meanwhile. A WRITE or READ of no bytes needs no
/// key (C9-88).
pub(super) fn check_rkey(
    s: &RecvState,
    cx: &Context<'_>,
    p: &Packet<'_>,
    m: &Incoming,
) -> Result<(), Refusal> {
    // Before the bytes are placed, unlike rxe_resp.c `execute`: what fails its checks changes no memory.
    if let Some(rkey) = p.invalidate
        && cx.regions.may_invalidate(cx.pd, cx.qpn, rkey).is_err()
    {
        return Err(Refusal::INVALIDATE);
    }
    let keyless = matches!(m.operation, Operation::Write | Operation::ReadRequest);
    if m.operation == Operation::Send || (keyless && m.total == 0) {
        return Ok(());
    }
    let right = right(p, m.operation).ok_or(Refusal::INVALID)?;
    let (va, len) = if p.feth.is_some_and(|f| f.selectivity == FlushRange::Region) {
        cx.whole(m.rkey)?
    } else if s.message.is_none() {
        (m.va, u64::from(m.total))
    } else {
        (m.va, u64::from(p.payload.len()))
    };
    cx.locate(m.rkey, va, len, right).map(|_| ())
}
