//! The requester's error classes, one test for each of the list in the scenario catalogue (item 39, after datenlord/roce-sim):
//! what the peer or the network does, and what becomes of the request and the QP.

mod common;

use std::time::Duration;

use common::lone::{ACK, ADD, KEY, Lone, READ, VA, WRITE, message};
use common::pattern;
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::rc;
use rocexdp_proto::verbs::{SendOp, Status};
use rocexdp_proto::{DropReason, QpState};

const SUCCESS: Status = Status::Success;
/// ACK timeout of the harness, 4.096 us x 2^8.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 8);

#[track_caller]
fn assert_alive(l: &Lone) {
    assert_eq!(l.state(), QpState::Rts);
    assert_eq!(l.pair.ends[0].events, []);
}

#[test]
fn ghost_ack() {
    let mut l = Lone::new();
    // With nothing sent at all, and beyond what was sent.
    l.ack(0, ACK);
    l.ack(-1, ACK);
    l.post(1, WRITE, 8);
    for at in [1, 2, 100, 0x7f_ffff] {
        l.ack(at, ACK);
        l.ack(at, Syndrome::NakSequence);
        l.ack(at, Syndrome::NakInvalidRequest);
        l.ack(at, Syndrome::RnrNak(1));
    }
    assert_eq!(l.drops(DropReason::GhostAck), 18);
    assert_eq!((l.outcomes(), l.unacked()), (vec![], 0));
    assert_alive(&l);
    l.ack(0, ACK);
    assert_eq!(l.outcomes(), [(1, SUCCESS)]);
    // One that was acknowledged is none: it comes late.
    l.ack(0, ACK);
    assert_eq!(l.drops(DropReason::GhostAck), 18);
}

#[test]
fn bad_response() {
    let mut l = Lone::new();
    let memory = l.post(1, READ, 600);
    l.post(2, WRITE, 8);
    l.response(rc::READ_RESPONSE_ONLY, 0, &[0xee; 100]);
    assert_eq!(
        l.outcomes(),
        [(1, Status::BadRespErr), (2, Status::WrFlushErr)]
    );
    assert!(memory.copy().iter().all(|b| *b == 0));
    l.assert_failed(Status::BadRespErr);
}

#[test]
fn unexpected_opcode() {
    // The answer to an atomic comes for a READ, and the other way round.
    let mut l = Lone::new();
    l.post(1, READ, 8);
    l.atomic_ack(0, ACK, 1);
    assert_eq!(l.outcomes(), [(1, Status::BadRespErr)]);
    l.assert_failed(Status::BadRespErr);
    let mut l = Lone::new();
    l.post(1, ADD, 8);
    l.response(rc::READ_RESPONSE_ONLY, 0, &[1; 8]);
    assert_eq!(l.outcomes(), [(1, Status::BadRespErr)]);
    l.assert_failed(Status::BadRespErr);
}

#[test]
fn implied_nak_sequence_error_retry_not_exceeded() {
    let mut l = Lone::with(|c| c.retry_cnt = 1);
    let memory = l.post(1, READ, 8);
    l.post(2, WRITE, 8);
    l.ack(1, ACK);
    assert_eq!(l.outcomes(), []);
    l.responses(0, &[3; 8]);
    l.ack(1, ACK);
    assert_eq!(l.outcomes(), [(1, SUCCESS), (2, SUCCESS)]);
    assert_eq!(memory.copy(), [3; 8]);
    assert_alive(&l);
}

#[test]
fn implied_nak_sequence_error_retry_exceeded() {
    for retry_cnt in [0, 1, 3] {
        let mut l = Lone::with(|c| c.retry_cnt = retry_cnt);
        l.post(1, READ, 8);
        l.post(2, WRITE, 8);
        // The WRITE is answered and the READ is not, again and again; after each sending that counts once.
        let mut outcomes = Vec::new();
        for _ in 0..=retry_cnt {
            assert_eq!(outcomes, []);
            l.ack(1, ACK);
            l.ack(1, ACK);
            outcomes.extend(l.outcomes());
            if outcomes.is_empty() {
                l.wait(TIMEOUT);
                outcomes.extend(l.outcomes());
            }
            if !outcomes.is_empty() {
                break;
            }
        }
        assert_eq!(
            outcomes,
            [(1, Status::RetryExcErr), (2, Status::WrFlushErr)]
        );
        l.assert_failed(Status::RetryExcErr);
        assert_eq!(l.left().len(), 2 * (1 + usize::from(retry_cnt)));
    }
}

#[test]
fn local_ack_timeout_retry_not_exceeded() {
    let mut l = Lone::with(|c| c.retry_cnt = 2);
    l.post(1, WRITE, 8);
    l.wait(TIMEOUT);
    l.wait(TIMEOUT);
    l.ack(0, ACK);
    l.wait(100 * TIMEOUT);
    assert_eq!(l.outcomes(), [(1, SUCCESS)]);
    assert_eq!(l.left(), [(rc::WRITE_ONLY, 0); 3]);
    assert_eq!(l.stats().local_ack_timeout_err, 2);
    assert_alive(&l);
}

#[test]
fn local_ack_timeout_retry_exceeded() {
    for (op, len) in [(WRITE, 8), (SendOp::Send, 600), (READ, 600), (ADD, 8)] {
        let mut l = Lone::with(|c| c.retry_cnt = 2);
        l.post(1, op, len);
        l.wait(3 * TIMEOUT - Duration::from_nanos(1));
        assert_eq!(l.outcomes(), [], "{op:?}");
        l.wait(Duration::from_nanos(1));
        assert_eq!(l.outcomes(), [(1, Status::RetryExcErr)], "{op:?}");
        l.assert_failed(Status::RetryExcErr);
    }
}

#[test]
fn psn_retry_limit() {
    // The peer reports the same gap again and again: each sending again, not each report, costs a retry.
    for retry_cnt in [0u8, 2, 7] {
        let mut l = Lone::with(|c| c.retry_cnt = retry_cnt);
        l.post(1, WRITE, 600);
        l.post(2, WRITE, 8);
        for n in 0..retry_cnt {
            l.ack(1, Syndrome::NakSequence);
            assert_eq!(l.outcomes(), [], "{n}");
            assert_alive(&l);
        }
        // The first report was news of packet 0, which reloads the retries; it costs one itself.
        l.ack(1, Syndrome::NakSequence);
        assert_eq!(
            l.outcomes(),
            [(1, Status::RetryExcErr), (2, Status::WrFlushErr)],
            "{retry_cnt}"
        );
        l.assert_failed(Status::RetryExcErr);
        assert_eq!(l.stats().packet_seq_err, u64::from(retry_cnt));
    }
}

#[test]
fn rkey_violation() {
    for (op, len) in [(WRITE, 600), (READ, 600), (ADD, 8)] {
        let mut l = Lone::new();
        l.post(1, WRITE, 8);
        l.post(2, op, len);
        l.post(3, WRITE, 8);
        l.ack(1, Syndrome::NakRemoteAccess);
        assert_eq!(
            l.outcomes(),
            [
                (1, SUCCESS),
                (2, Status::RemAccessErr),
                (3, Status::WrFlushErr)
            ]
        );
        l.assert_failed(Status::RemAccessErr);
    }
}

#[test]
fn remote_operation_error() {
    // The peer's memory fails in the middle of a READ: what came before is there, the request is not complete.
    let mut l = Lone::new();
    let memory = l.post(1, READ, 1000);
    l.response(rc::READ_RESPONSE_FIRST, 0, &[1; 256]);
    l.ack(1, Syndrome::NakRemoteOperational);
    assert_eq!(l.outcomes(), [(1, Status::RemOpErr)]);
    assert_eq!(memory.copy()[..256], [1; 256]);
    l.assert_failed(Status::RemOpErr);
}

#[test]
fn remote_invalid_request() {
    let mut l = Lone::new();
    l.post(1, SendOp::Send, 600);
    l.ack(2, Syndrome::NakInvalidRequest);
    assert_eq!(l.outcomes(), [(1, Status::RemInvReqErr)]);
    l.assert_failed(Status::RemInvReqErr);
}

#[test]
fn rnr_nak_retry_not_exceeded() {
    let mut l = Lone::with(|c| c.rnr_retry = 2);
    l.post(1, SendOp::Send, 600);
    for n in 0..2 {
        assert_eq!(l.left().len(), 3);
        l.ack(0, Syndrome::RnrNak(12));
        l.wait(Duration::from_micros(639));
        assert_eq!(l.left(), [], "{n}: not before the peer's 640 us");
        l.wait(Duration::from_micros(1));
    }
    assert_eq!(l.left().len(), 3);
    l.ack(2, ACK);
    assert_eq!(l.outcomes(), [(1, SUCCESS)]);
    let s = l.stats();
    assert_eq!((s.rnr_naks_received, s.local_ack_timeout_err), (2, 0));
    assert_alive(&l);
}

#[test]
fn rnr_nak_retry_exceeded() {
    let mut l = Lone::with(|c| c.rnr_retry = 2);
    l.post(1, SendOp::Send, 8);
    l.post(2, WRITE, 8);
    for _ in 0..2 {
        l.ack(0, Syndrome::RnrNak(1));
        l.wait(Duration::from_micros(10));
    }
    assert_eq!(l.outcomes(), []);
    l.ack(0, Syndrome::RnrNak(1));
    assert_eq!(
        l.outcomes(),
        [(1, Status::RnrRetryExcErr), (2, Status::WrFlushErr)]
    );
    l.assert_failed(Status::RnrRetryExcErr);
}

#[test]
fn rnr_nak_retry_7_is_for_ever() {
    let mut l = Lone::with(|c| c.rnr_retry = 7);
    l.post(1, SendOp::Send, 8);
    for _ in 0..1000 {
        l.ack(0, Syndrome::RnrNak(1));
        l.wait(Duration::from_micros(10));
    }
    l.ack(0, ACK);
    assert_eq!(l.outcomes(), [(1, SUCCESS)]);
}

#[test]
fn write_partial_retry() {
    // Four of ten packets arrived.
    let mut l = Lone::new();
    l.post(
        1,
        SendOp::WriteImm {
            va: VA,
            rkey: KEY,
            imm: 7,
        },
        10 * 256,
    );
    assert_eq!(l.left().len(), 10);
    l.ack(4, Syndrome::NakSequence);
    let asked = l.asked();
    let at: Vec<i32> = asked.iter().map(|a| a.at).collect();
    assert_eq!(at, [4, 5, 6, 7, 8, 9]);
    assert!(asked.iter().all(|a| a.reth.is_none()), "not a new message");
    assert_eq!(asked[0].opcode, rc::WRITE_MIDDLE);
    assert_eq!(asked[5].opcode, rc::WRITE_LAST_IMM);
    l.ack(9, ACK);
    assert_eq!(l.outcomes(), [(1, SUCCESS)]);
    assert_eq!(l.stats().retransmitted_packets, 6);
}

#[test]
fn read_partial_retry() {
    let mut l = Lone::new();
    let bytes = pattern(10 * 256, 1);
    let memory = l.post(1, READ, bytes.len());
    for (i, (opcode, part)) in message(&bytes).into_iter().enumerate().take(4) {
        l.response(opcode, i as i32, part);
    }
    l.asked();
    l.wait(TIMEOUT);
    let asked = l.asked();
    assert_eq!(asked.len(), 1);
    let reth = asked[0].reth.unwrap();
    assert_eq!(
        (asked[0].at, reth.va, reth.length, reth.rkey),
        (4, VA + 4 * 256, 6 * 256, KEY.0)
    );
    l.responses(4, &bytes[4 * 256..]);
    assert_eq!(l.outcomes(), [(1, SUCCESS)]);
    assert!(memory.copy() == bytes);
}

#[test]
fn local_protection_error() {
    // The memory of a request goes while its packets are sent.
    let mut l = Lone::with(|c| c.endpoint[0].max_inflight_packets = 2);
    let memory = l.post(1, WRITE, 1000);
    l.post(2, WRITE, 8);
    memory.take_away();
    l.ack(1, ACK);
    assert_eq!(
        l.outcomes(),
        [(1, Status::LocProtErr), (2, Status::WrFlushErr)]
    );
    l.assert_failed(Status::LocProtErr);
}
