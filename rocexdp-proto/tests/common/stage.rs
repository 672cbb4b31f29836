//! What the victim of hostile packets (`victim.rs`) has besides its QP, and what of it a refused packet may change. Must not: draw
//! anything.

use rocexdp_common::opcode::Transport;
use rocexdp_proto::ids::{Pd, RKey, SrqNum, WrId};
use rocexdp_proto::mem::{Access, MemoryRegion, WindowKind};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{Segment, SendOp, SendWr, SrqAttr};
use rocexdp_proto::{CreateQp, DropReason};
use rocexdp_sim::pair::{Pair, PairConfig, QPNS};

/// The reasons for which a packet is refused with an answer, or takes a message or a receive request with it (UC, UD), so that
/// state has to change.
pub fn changes_state(reason: DropReason, config: &PairConfig) -> bool {
    let transport = config.transport;
    // The peer, which has it on its way still, is told that it came.
    if reason == DropReason::DuplicateResponse && config.selective.is_some() {
        return true;
    }
    let gives_up = matches!(reason, DropReason::MessageDropped | DropReason::NoReceive);
    (transport == Transport::Uc && gives_up)
        || matches!(
            reason,
            DropReason::OutOfSequence
                | DropReason::ReceiverNotReady
                | DropReason::InvalidRequest
                | DropReason::RemoteAccess
                | DropReason::RemoteOperational
                | DropReason::ReceiveTooSmall
        )
}

/// Gives the victim a receive queue that it shares with nobody in particular.
pub fn share(pair: &mut Pair, config: &PairConfig) {
    let attr = SrqAttr {
        num: SrqNum(1),
        pd: Pd::default(),
        max_wr: config.depth,
        max_sge: 16,
        limit: 2,
    };
    let srq = pair.ends[1].endpoint.create_srq(&attr).expect("a queue");
    super::replace_qp(pair, config, 1, |qp| CreateQp {
        transport: config.transport,
        srq: Some(srq),
        ..qp
    });
}

/// The victim binds a window to all of a region, with its first request. Gives the key that the peer has then.
pub fn bind(pair: &mut Pair, region: MemoryRegion, access: Access) -> RKey {
    let end = &mut pair.ends[1];
    let window = end
        .endpoint
        .alloc_window(Pd::default(), WindowKind::Type2)
        .expect("a window");
    let op = SendOp::BindMw {
        window: window.rkey(),
        rkey: window.next_rkey(),
        region: region.rkey,
        va: region.va,
        len: region.len,
        access: Access::from_bits(access.bits() & !Access::LOCAL_WRITE.bits()).expect("rights"),
    };
    let key = window.next_rkey();
    let wr = SendWr::new(WrId(0), op, Segment::empty());
    end.qp.sq.post(wr).expect("room in a new queue");
    end.endpoint.work_posted(Timestamp::ZERO, QPNS[1]);
    assert!(end.endpoint.poll_transmit(Timestamp::ZERO).is_none());
    assert!(window.is_bound());
    key
}

/// All that a region, or a QP, may allow.
pub fn everything() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
}
