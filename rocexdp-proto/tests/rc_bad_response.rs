//! Answers that are not the answer: wrong kind, place or length, of nothing that was sent, or answered before.

mod common;

use common::lone::{ACK, ADD, KEY, Lone, READ, VA, WRITE};
use common::pattern;
use rocexdp_common::headers::{Feth, FlushRange, Syndrome};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::verbs::{SendOp, Status};
use rocexdp_proto::{DropReason, QpState};

const FIRST: Opcode = rc::READ_RESPONSE_FIRST;
const MIDDLE: Opcode = rc::READ_RESPONSE_MIDDLE;
const LAST: Opcode = rc::READ_RESPONSE_LAST;
const ONLY: Opcode = rc::READ_RESPONSE_ONLY;

/// A READ of `len` bytes gets `good` responses of its own, then this one: it fails so, and nothing was written by it.
#[track_caller]
fn read_fails(len: usize, good: usize, opcode: Opcode, payload: usize, status: Status) {
    let mut l = Lone::new();
    let bytes = pattern(len, 1);
    let memory = l.post(1, READ, len);
    l.post(2, WRITE, 8);
    for (i, (opcode, part)) in common::lone::message(&bytes)
        .into_iter()
        .take(good)
        .enumerate()
    {
        l.response(opcode, i as i32, part);
    }
    l.response(opcode, good as i32, &vec![0xee; payload]);
    assert_eq!(l.outcomes(), [(1, status), (2, Status::WrFlushErr)]);
    l.assert_failed(status);
    let (got, n) = (memory.copy(), good * 256);
    assert!(got[..n] == bytes[..n] && got[n..].iter().all(|b| *b == 0));
}

#[test]
fn a_response_at_the_wrong_place_of_its_message_is_a_bad_response() {
    let bad = Status::BadRespErr;
    read_fails(700, 0, MIDDLE, 256, bad);
    read_fails(700, 0, LAST, 256, bad);
    read_fails(700, 0, ONLY, 256, bad);
    read_fails(700, 1, FIRST, 256, bad);
    read_fails(700, 1, LAST, 256, bad);
    read_fails(700, 1, ONLY, 256, bad);
    read_fails(700, 2, MIDDLE, 256, bad);
    read_fails(700, 2, FIRST, 256, bad);
    read_fails(700, 2, ONLY, 188, bad);
    read_fails(200, 0, FIRST, 256, bad);
    read_fails(200, 0, LAST, 200, bad);
    read_fails(200, 0, MIDDLE, 256, bad);
}

#[test]
fn a_response_whose_length_its_place_forbids_is_a_bad_response_and_is_not_written() {
    let bad = Status::BadRespErr;
    read_fails(700, 0, FIRST, 255, bad);
    read_fails(700, 0, FIRST, 257, bad);
    read_fails(700, 0, FIRST, 0, bad);
    read_fails(700, 1, MIDDLE, 252, bad);
    read_fails(700, 1, MIDDLE, 512, bad);
    read_fails(700, 2, LAST, 0, bad);
    read_fails(700, 2, LAST, 257, bad);
    read_fails(200, 0, ONLY, 257, bad);
}

#[test]
fn a_response_that_is_not_as_long_as_the_read_is_a_length_error_and_is_not_written() {
    let short = Status::LocLenErr;
    read_fails(700, 2, LAST, 187, short);
    read_fails(700, 2, LAST, 189, short);
    read_fails(700, 2, LAST, 256, short);
    read_fails(200, 0, ONLY, 0, short);
    read_fails(200, 0, ONLY, 199, short);
    read_fails(200, 0, ONLY, 256, short);
    // Of a READ of nothing.
    let mut l = Lone::new();
    l.post_local(1, READ);
    l.response(ONLY, 0, &[1]);
    assert_eq!(l.outcomes(), [(1, Status::LocLenErr)]);
}

#[test]
fn a_response_with_the_wrong_pad_is_a_bad_response() {
    let mut l = Lone::new();
    let memory = l.post(1, READ, 8);
    let mut craft = l.craft(ONLY, 0, &[0xee; 8]);
    craft.bth.pad = 1;
    l.crafted(&craft);
    assert_eq!(l.outcomes(), [(1, Status::BadRespErr)]);
    assert_eq!(memory.copy(), [0; 8]);
}

#[test]
fn a_chunk_ends_where_it_was_said_to() {
    // READ of 5 packets in chunks of 2: the second packet is a LAST, the third a FIRST.
    for (at, opcode) in [(1, MIDDLE), (2, MIDDLE), (2, ONLY)] {
        let mut l = Lone::with(|c| c.endpoint[0].read_chunk_packets = 2);
        l.post(1, READ, 5 * 256);
        for (i, opcode) in [FIRST, LAST].into_iter().enumerate().take(at) {
            l.response(opcode, i as i32, &[1; 256]);
        }
        l.response(opcode, at as i32, &[1; 256]);
        assert_eq!(l.outcomes(), [(1, Status::BadRespErr)], "{at}");
    }
}

#[test]
fn a_response_of_the_wrong_kind_is_a_bad_response() {
    let atomic_write = SendOp::AtomicWrite { va: VA, rkey: KEY };
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
    // A READ response to what is none, or the wrong one.
    for (op, len, opcode, payload, status) in [
        (SendOp::Send, 8, ONLY, 8, Status::BadRespErr),
        (WRITE, 8, ONLY, 0, Status::BadRespErr),
        (WRITE, 600, FIRST, 256, Status::BadRespErr),
        (ADD, 8, ONLY, 8, Status::BadRespErr),
        (ADD, 8, ONLY, 0, Status::BadRespErr),
        (atomic_write, 8, FIRST, 256, Status::BadRespErr),
        (atomic_write, 8, ONLY, 8, Status::LocLenErr),
        (flush, 0, LAST, 8, Status::BadRespErr),
        (flush, 0, ONLY, 1, Status::LocLenErr),
    ] {
        let mut l = Lone::new();
        let memory = l.post(1, op, len);
        l.response(opcode, 0, &vec![0xee; payload]);
        assert_eq!(l.outcomes(), [(1, status)], "{op:?}");
        assert!(memory.copy().iter().all(|b| *b == 0));
        l.assert_failed(status);
    }
    // An atomic acknowledge to what is none.
    for (op, len) in [
        (READ, 8),
        (READ, 600),
        (SendOp::Send, 8),
        (atomic_write, 8),
        (flush, 0),
    ] {
        let mut l = Lone::new();
        let memory = l.post(1, op, len);
        l.atomic_ack(0, ACK, 7);
        assert_eq!(l.outcomes(), [(1, Status::BadRespErr)], "{op:?}");
        assert!(memory.copy().iter().all(|b| *b == 0));
    }
    // To the SEND before the READ: its request is named, the READ is flushed.
    let mut l = Lone::new();
    l.post(1, SendOp::Send, 8);
    l.post(2, SendOp::Send, 8);
    l.post(3, READ, 8);
    l.response(ONLY, 1, &[0xee; 8]);
    let flushed = Status::WrFlushErr;
    assert_eq!(
        l.outcomes(),
        [(1, flushed), (2, Status::BadRespErr), (3, flushed)]
    );
}

#[test]
fn a_response_that_was_taken_before_is_dropped_and_counted() {
    let mut l = Lone::new();
    let memory = l.post(1, READ, 700);
    l.post(2, ADD, 8);
    let bytes = pattern(700, 1);
    l.responses(0, &bytes);
    l.atomic_ack(3, ACK, 9);
    assert_eq!(l.outcomes().len(), 2);
    l.responses(0, &[0xee; 700]);
    l.response(ONLY, 2, &[0xee; 9]);
    l.atomic_ack(3, ACK, 10);
    l.ack(3, ACK);
    assert!(memory.copy() == bytes);
    assert_eq!(l.drops(DropReason::DuplicateResponse), 5);
    assert_eq!((l.outcomes(), l.state()), (vec![], QpState::Rts));
    assert_eq!(l.stats().retransmitted_packets, 0);
}

#[test]
fn a_response_to_what_was_never_sent_changes_nothing() {
    let mut l = Lone::new();
    let memory = l.post(1, READ, 700);
    for at in [3, 4, 1000, 0x7f_ffff, -1] {
        l.responses(at, &[0xee; 8]);
        l.response(MIDDLE, at, &[0xee; 256]);
        l.atomic_ack(at, ACK, 5);
        l.ack(at, ACK);
        l.ack(at, Syndrome::NakRemoteAccess);
    }
    assert_eq!((l.outcomes(), l.unacked()), (vec![], 0));
    assert!(memory.copy().iter().all(|b| *b == 0));
    assert_eq!(l.drops(DropReason::UnexpectedResponse), 3 * 5);
    assert_eq!(l.drops(DropReason::GhostAck), 2 * 5);
    l.responses(0, &pattern(700, 1));
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
}

#[test]
fn a_reserved_syndrome_in_a_response_is_dropped() {
    let mut l = Lone::new();
    let memory = l.post(1, READ, 8);
    for syndrome in [0x45, 0x64, 0x65, 0x7f, 0x80, 0x9f, 0xff] {
        let syndrome = Syndrome::from_byte(syndrome);
        let mut craft = l.craft(ONLY, 0, &[0xee; 8]);
        craft.extensions.clear();
        l.crafted(&craft.aeth(syndrome));
        l.ack(0, syndrome);
    }
    assert_eq!(l.drops(DropReason::ReservedSyndrome), 14);
    assert_eq!((memory.copy(), l.outcomes()), (vec![0; 8], vec![]));
    assert_eq!(l.stats().retransmitted_packets, 0);
}

#[test]
fn any_credit_code_is_an_acknowledgement_in_a_response_too() {
    for credits in 0..=0x1f {
        let mut l = Lone::new();
        let memory = l.post(1, READ, 8);
        l.post(2, ADD, 8);
        l.post(3, WRITE, 8);
        let mut craft = l.craft(ONLY, 0, &[5; 8]);
        craft.extensions.clear();
        l.crafted(&craft.aeth(Syndrome::Ack(credits)));
        l.atomic_ack(1, Syndrome::Ack(credits), 3);
        l.ack(2, Syndrome::Ack(credits));
        assert_eq!(memory.copy(), [5; 8]);
        assert_eq!(l.outcomes().len(), 3, "{credits:#x}");
    }
}

#[test]
fn a_nak_in_a_response_s_own_opcode_counts_as_one() {
    // hfi1 and others look at the syndrome of any answer (rdmavt's `do_rc_ack`); Soft-RoCE sends opcode 0x11.
    let mut l = Lone::new();
    l.post(1, ADD, 8);
    l.atomic_ack(0, Syndrome::NakRemoteAccess, 0);
    assert_eq!(l.outcomes(), [(1, Status::RemAccessErr)]);
    let mut l = Lone::new();
    let memory = l.post(1, READ, 8);
    let mut craft = l.craft(ONLY, 0, &[5; 8]);
    craft.extensions.clear();
    l.crafted(&craft.aeth(Syndrome::NakRemoteOperational));
    assert_eq!(l.outcomes(), [(1, Status::RemOpErr)]);
    assert_eq!(memory.copy(), [0; 8]);
}
