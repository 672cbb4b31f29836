//! Atomics, ATOMIC WRITE, FLUSH and SEND with invalidate, seen from the requester.

mod common;

use std::time::Duration;

use common::lone::{ACK, ADD, KEY, Lone, READ, VA};
use rocexdp_common::headers::{AtomicEth, Feth, FlushRange, Reth, Syndrome};
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::RKey;
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};

const CAS: SendOp = SendOp::CompareSwap {
    va: VA,
    rkey: KEY,
    compare: 0x1111_2222_3333_4444,
    swap: 0x5555_6666_7777_8888,
};
const WRITE8: SendOp = SendOp::AtomicWrite { va: VA, rkey: KEY };

#[test]
fn an_atomic_says_what_to_compare_swap_and_add() {
    let mut l = Lone::new();
    l.post(1, CAS, 8);
    l.post(2, ADD, 8);
    let asked = l.asked();
    let eth = |swap_or_add, compare| AtomicEth {
        va: VA,
        rkey: KEY.0,
        swap_or_add,
        compare,
    };
    assert_eq!(
        (asked[0].opcode, asked[0].at, asked[0].atomic),
        (
            rc::COMPARE_SWAP,
            0,
            Some(eth(0x5555_6666_7777_8888, 0x1111_2222_3333_4444))
        )
    );
    assert_eq!(
        (asked[1].opcode, asked[1].at, asked[1].atomic),
        (rc::FETCH_ADD, 1, Some(eth(5, 0)))
    );
    assert!(asked.iter().all(|a| a.ack_req && a.payload == 0));
}

#[test]
fn the_original_value_comes_into_local_memory_in_the_hosts_order() {
    let mut l = Lone::new();
    let (a, b) = (l.post(1, CAS, 8), l.post(2, ADD, 8));
    l.atomic_ack(0, ACK, 0x0102_0304_0506_0708);
    assert_eq!(
        l.completions(),
        [(1, CqeOpcode::CompareSwap, Status::Success)]
    );
    assert_eq!(a.copy(), 0x0102_0304_0506_0708u64.to_ne_bytes());
    l.atomic_ack(1, ACK, u64::MAX - 1);
    assert_eq!(l.completions(), [(2, CqeOpcode::FetchAdd, Status::Success)]);
    assert_eq!(b.copy(), (u64::MAX - 1).to_ne_bytes());
}

#[test]
fn an_atomic_that_was_not_answered_is_sent_again_as_it_was() {
    let mut l = Lone::new();
    l.post(1, ADD, 8);
    let first = l.asked();
    l.wait(Duration::from_nanos(4096 << 8));
    assert_eq!(l.asked(), first);
    l.atomic_ack(0, ACK, 1);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
}

#[test]
fn a_refused_atomic_is_answered_by_an_acknowledgement() {
    for (syndrome, status) in [
        (Syndrome::NakInvalidRequest, Status::RemInvReqErr),
        (Syndrome::NakRemoteAccess, Status::RemAccessErr),
        (Syndrome::NakRemoteOperational, Status::RemOpErr),
    ] {
        let mut l = Lone::new();
        let memory = l.post(1, CAS, 8);
        l.ack(0, syndrome);
        assert_eq!(l.outcomes(), [(1, status)]);
        assert_eq!(memory.copy(), [0; 8]);
        l.assert_failed(status);
    }
}

#[test]
fn memory_of_an_atomic_that_is_not_8_bytes_fails_here() {
    for op in [CAS, ADD, WRITE8] {
        for len in [0, 7, 9, 16] {
            let mut l = Lone::new();
            l.post(1, op, len);
            assert_eq!(l.outcomes(), [(1, Status::LocLenErr)], "{op:?}");
            assert_eq!(l.left(), []);
            l.assert_failed(Status::LocLenErr);
        }
    }
}

#[test]
fn memory_that_went_fails_the_atomic() {
    let mut l = Lone::new();
    let memory = l.post(1, ADD, 8);
    memory.take_away();
    l.atomic_ack(0, ACK, 1);
    assert_eq!(l.outcomes(), [(1, Status::LocProtErr)]);
}

#[test]
fn an_atomic_write_carries_its_8_bytes_and_ends_with_an_empty_read_response() {
    let mut l = Lone::new();
    l.post(1, WRITE8, 8);
    let asked = l.asked();
    let reth = Reth {
        va: VA,
        rkey: KEY.0,
        length: 8,
    };
    assert_eq!(
        (asked[0].opcode, asked[0].reth, asked[0].payload),
        (rc::ATOMIC_WRITE, Some(reth), 8)
    );
    // An acknowledgement does not do.
    l.ack(0, ACK);
    assert_eq!(l.outcomes(), []);
    l.response(rc::READ_RESPONSE_ONLY, 0, &[]);
    assert_eq!(
        l.completions(),
        [(1, CqeOpcode::AtomicWrite, Status::Success)]
    );
}

#[test]
fn a_flush_says_what_and_where_and_ends_with_an_empty_read_response() {
    let what = Feth {
        global_visibility: true,
        persistence: true,
        placement_reserved: 0,
        selectivity: FlushRange::Region,
    };
    let mut l = Lone::new();
    l.post_local(
        1,
        SendOp::Flush {
            va: VA,
            rkey: KEY,
            len: 1 << 30,
            what,
        },
    );
    let asked = l.asked();
    let reth = Reth {
        va: VA,
        rkey: KEY.0,
        length: 1 << 30,
    };
    assert_eq!(
        (asked[0].opcode, asked[0].reth, asked[0].feth),
        (rc::FLUSH, Some(reth), Some(what))
    );
    assert_eq!((asked.len(), asked[0].payload), (1, 0));
    l.response(rc::READ_RESPONSE_ONLY, 0, &[]);
    assert_eq!(l.completions(), [(1, CqeOpcode::Flush, Status::Success)]);
}

#[test]
fn flush_and_atomic_write_count_against_the_initiator_depth() {
    let what = Feth {
        global_visibility: true,
        persistence: false,
        placement_reserved: 0,
        selectivity: FlushRange::Range,
    };
    let flush = SendOp::Flush {
        va: VA,
        rkey: KEY,
        len: 8,
        what,
    };
    let mut l = Lone::with(|c| c.max_rd_atomic = 1);
    l.post_local(1, flush);
    l.post(2, WRITE8, 8);
    l.post(3, READ, 8);
    assert_eq!(l.left(), [(rc::FLUSH, 0)]);
    l.response(rc::READ_RESPONSE_ONLY, 0, &[]);
    assert_eq!(l.left(), [(rc::ATOMIC_WRITE, 1)]);
    l.response(rc::READ_RESPONSE_ONLY, 1, &[]);
    assert_eq!(l.left(), [(rc::READ_REQUEST, 2)]);
}

#[test]
fn the_key_to_invalidate_goes_with_the_last_packet_of_the_send() {
    let key = RKey(0x1234_5678);
    let mut l = Lone::new();
    l.post(1, SendOp::SendInvalidate(key), 300);
    l.post(2, SendOp::SendInvalidate(key), 0);
    let asked: Vec<_> = l
        .asked()
        .iter()
        .map(|a| (a.opcode, a.invalidate, a.payload))
        .collect();
    assert_eq!(
        asked,
        [
            (rc::SEND_FIRST, None, 256),
            (rc::SEND_LAST_INVALIDATE, Some(key), 44),
            (rc::SEND_ONLY_INVALIDATE, Some(key), 0)
        ]
    );
    l.ack(2, ACK);
    let send = CqeOpcode::Send;
    assert_eq!(
        l.completions(),
        [1, 2].map(|id| (id, send, Status::Success))
    );
}
