//! Requests carried out: the payload of one packet placed, and, apart from that, the state moved on.
//!
//! Payload is written in address order, each packet's last byte last, and a message's completion comes after all of its bytes:
//! who sees a later byte, or the completion, sees all before it (drivers/infiniband/sw/rxe/rxe_resp.c `execute`,
//! `do_complete`).
//!
//! Must not: check anything that `check.rs` has to.

use rocexdp_common::headers::{AtomicEth, FlushRange};
use rocexdp_common::opcode::{Operation, Position};

use super::check::takes_resource;
use super::resources::{Entry, Kept};
use super::{Context, Incoming, RecvState, Refusal};
use crate::mem::{Access, Atomic};
use crate::verbs::{CqeOpcode, RecvWr, Status};
use crate::wire::Packet;

/// Carries the packet out: memory first, then the state (rxe_resp.c `execute`).
pub(super) fn execute(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    m: Incoming,
    position: Position,
) -> Result<(), Refusal> {
    let kept = match m.operation {
        Operation::Send | Operation::Write => {
            if mutant!("completed_before_placed") {
                let wr = s.current.clone();
                advance(s, cx, p, m, position)?;
                return place(wr.as_ref(), cx, p, &m);
            }
            place(s.current.as_ref(), cx, p, &m)?;
            return advance(s, cx, p, m, position);
        }
        Operation::ReadRequest => Kept::Read {
            va: m.va,
            rkey: m.rkey,
            length: m.total,
        },
        Operation::CompareSwap | Operation::FetchAdd => Kept::Original(atomic(cx, p, &m)?),
        Operation::AtomicWrite => {
            let value = p.payload.take::<8>(0).ok_or(Refusal::INVALID)?;
            let value = Atomic::Write(u64::from_ne_bytes(value));
            word(cx, &m, Access::REMOTE_WRITE, value)?;
            Kept::Nothing
        }
        Operation::Flush => {
            flush(cx, p, &m)?;
            Kept::Nothing
        }
        _ => return Err(Refusal::INVALID),
    };
    keep(s, cx, p, m, kept);
    Ok(())
}

/// Places the payload of one packet of a SEND or WRITE, and changes nothing else: packets may be placed in any order. `m` says
/// where the packet's first byte goes; `wr` is the receive request of a SEND.
pub(super) fn place(
    wr: Option<&RecvWr>,
    cx: &Context<'_>,
    p: &Packet<'_>,
    m: &Incoming,
) -> Result<(), Refusal> {
    let len = p.payload.len();
    if len == 0 {
        return Ok(());
    }
    if m.operation == Operation::Write {
        let (mem, at) = cx.locate(m.rkey, m.va, u64::from(len), Access::REMOTE_WRITE)?;
        let written = p.payload.write_to(mem.as_ref(), at);
        return written.map_err(|_| Refusal::FAULT);
    }
    let wr = wr.ok_or(Refusal::FAULT)?;
    if m.bytes == 0 {
        cx.may_receive(wr).map_err(|_| Refusal::FAULT)?;
    }
    p.payload
        .write_to_list(&wr.local, m.bytes)
        .map_err(|_| Refusal::FAULT)
}

/// The packet, whose payload is in place, is the next one of its message: invalidates what the message's end invalidates, and
/// moves the state on, to the message's completion if it ends here.
pub(super) fn advance(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    mut m: Incoming,
    position: Position,
) -> Result<(), Refusal> {
    if let Some(rkey) = p.invalidate
        && cx.regions.invalidate(cx.pd, cx.qpn, rkey).is_err()
    {
        return Err(Refusal::INVALIDATE);
    }
    let len = p.payload.len();
    if m.operation == Operation::Write {
        m.va = m.va.wrapping_add(u64::from(len));
        m.bytes = m.bytes.saturating_sub(len);
    } else {
        m.bytes = m.bytes.saturating_add(len);
    }
    received(s, cx, 1, len);
    if matches!(position, Position::First | Position::Middle) {
        s.message = Some(m);
        return Ok(());
    }
    s.message = None;
    s.msn = (s.msn + 1) & 0xff_ffff;
    let (opcode, bytes) = match m.operation {
        Operation::Write => (CqeOpcode::RecvWriteImm, m.total),
        _ => (CqeOpcode::Recv, m.bytes),
    };
    // A plain WRITE consumes none, though one may be here: a SEND that UC dropped left it, or an early packet was placed into it.
    let consumes = m.operation == Operation::Send || p.imm.is_some();
    if consumes && let Some(wr) = s.current.take() {
        let ok = Status::Success;
        let imm = p.imm.filter(|_| !mutant!("immediate_lost"));
        let solicited = p.bth.solicited && !mutant!("solicited_lost");
        let invalidated = p.invalidate.filter(|_| !mutant!("invalidated_key_unsaid"));
        cx.finish(&wr, opcode, ok, bytes, imm, invalidated, solicited);
    }
    Ok(())
}

/// Request packets, or those of a READ's answer, were taken.
fn received(s: &mut RecvState, cx: &mut Context<'_>, packets: u32, bytes: u32) {
    s.expected = s.expected.add(packets);
    s.received += u64::from(packets);
    s.nak_sent = false;
    cx.stats.rx_bytes += u64::from(bytes);
}

/// A request of one packet was carried out (a READ counts as such at once: C9-148, rxe_resp.c `execute`); what its answer
/// needs is kept.
fn keep(s: &mut RecvState, cx: &mut Context<'_>, p: &Packet<'_>, m: Incoming, kept: Kept) {
    debug_assert!(takes_resource(m.operation));
    let first = s.received;
    let packets = match kept {
        Kept::Read { length, .. } => s.path_mtu.packets(length),
        _ => 1,
    };
    received(s, cx, packets, p.payload.len());
    s.msn = (s.msn + 1) & 0xff_ffff;
    let entry = Entry::new(first, m.operation, kept, s.msn);
    s.resources.push(entry, s.path_mtu);
    if let (Some(answers), Some(oldest)) = (&mut s.answers, s.resources.oldest()) {
        // The peer has gone on from those that are not kept any more.
        answers.arrived_before(oldest);
    }
}

/// COMPARE_SWAP and FETCH_ADD, with what stood in the memory. The headers' numbers are in host order there (capture
/// rc-atomic).
pub(super) fn atomic(cx: &Context<'_>, p: &Packet<'_>, m: &Incoming) -> Result<u64, Refusal> {
    let AtomicEth {
        swap_or_add,
        compare,
        ..
    } = p.atomic.ok_or(Refusal::INVALID)?;
    let op = match m.operation {
        Operation::CompareSwap => Atomic::CompareSwap {
            compare,
            swap: swap_or_add,
        },
        _ => Atomic::FetchAdd(swap_or_add),
    };
    word(cx, m, Access::REMOTE_ATOMIC, op)
}

fn word(cx: &Context<'_>, m: &Incoming, right: Access, op: Atomic) -> Result<u64, Refusal> {
    let (mem, at) = cx.locate(m.rkey, m.va, 8, right)?;
    mem.atomic(at, op).map_err(|_| Refusal::FAULT)
}

/// FLUSH: what was written before is in place already, since requests are carried out in order.
fn flush(cx: &Context<'_>, p: &Packet<'_>, m: &Incoming) -> Result<(), Refusal> {
    let feth = p.feth.ok_or(Refusal::INVALID)?;
    let (va, len) = match feth.selectivity {
        FlushRange::Region => cx.whole(m.rkey)?,
        _ => (m.va, u64::from(m.total)),
    };
    let (mem, at) = cx.locate(m.rkey, va, len, Access::NONE)?;
    let flushed = mem.flush(at, len, feth.persistence);
    flushed.map_err(|_| Refusal::FAULT)
}
