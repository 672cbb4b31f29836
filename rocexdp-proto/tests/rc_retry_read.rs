//! READs and atomics whose answers are lost: implied NAKs, partial retry, and what of it costs a retry.

mod common;

use std::time::Duration;

use common::lone::{ACK, ADD, KEY, Lone, READ, VA, WRITE, message};
use common::pattern;
use rocexdp_common::headers::{Reth, Syndrome};
use rocexdp_common::opcode::rc;
use rocexdp_proto::verbs::{SendOp, Status};

/// A READ of 5 packets whose response 2 is missing, and 3 has come.
fn overtaken() -> (Lone, Vec<u8>, std::sync::Arc<rocexdp_sim::pair::Bytes>) {
    let mut l = Lone::new();
    let bytes = pattern(5 * 256 - 9, 1);
    let memory = l.post(1, READ, bytes.len());
    l.asked();
    for (i, (opcode, part)) in message(&bytes).into_iter().enumerate() {
        if matches!(i, 0 | 1 | 3) {
            l.response(opcode, i as i32, part);
        }
    }
    (l, bytes, memory)
}

#[test]
fn a_response_beyond_the_expected_one_has_the_rest_of_the_read_asked_for_again() {
    let (mut l, bytes, memory) = overtaken();
    let asked = l.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].opcode, asked[0].at), (rc::READ_REQUEST, 2));
    let reth = Reth {
        va: VA + 512,
        rkey: KEY.0,
        length: bytes.len() as u32 - 512,
    };
    assert_eq!(asked[0].reth, Some(reth));
    assert!(
        memory.copy()[512..].iter().all(|b| *b == 0),
        "3 was not taken"
    );
    // It is answered as a message of its own.
    l.responses(2, &bytes[512..]);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert!(memory.copy() == bytes);
    let s = l.stats();
    assert_eq!((s.implied_nak_seq_err, s.retransmitted_packets), (1, 1));
    assert_eq!((s.tx_packets, s.local_ack_timeout_err), (2, 0));
}

#[test]
fn the_first_answer_to_a_read_may_come_late_and_go_on() {
    // The response that was missing comes after all, in its old place, before the new ones.
    let (mut l, bytes, memory) = overtaken();
    let parts = message(&bytes);
    for (i, (opcode, part)) in parts.iter().enumerate().skip(2) {
        l.response(*opcode, i as i32, part);
    }
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert!(memory.copy() == bytes);
}

#[test]
fn responses_may_begin_anew_behind_what_came_before_the_read_was_asked_for_again() {
    // While the QP waits for the peer's RNR timer, the response that seemed lost comes: the READ is asked for again from
    // behind it, and answered from there.
    let mut l = Lone::new();
    let bytes = pattern(4 * 256, 1);
    let memory = l.post(1, READ, bytes.len());
    l.post(2, SendOp::Send, 8);
    l.asked();
    l.ack(4, Syndrome::RnrNak(14));
    l.response(rc::READ_RESPONSE_FIRST, 0, &bytes[..256]);
    l.response(rc::READ_RESPONSE_MIDDLE, 1, &bytes[256..512]);
    l.wait(Duration::from_micros(1280));
    assert_eq!(l.left(), [(rc::READ_REQUEST, 2), (rc::SEND_ONLY, 4)]);
    l.responses(2, &bytes[512..]);
    l.ack(4, ACK);
    assert_eq!(l.outcomes(), [(1, Status::Success), (2, Status::Success)]);
    assert!(memory.copy() == bytes);
}

#[test]
fn a_read_that_is_asked_for_again_at_its_last_packet_is_answered_by_an_only() {
    let mut l = Lone::new();
    let bytes = pattern(2 * 256 + 5, 1);
    let memory = l.post(1, READ, bytes.len());
    l.post(2, WRITE, 8);
    l.asked();
    for (i, (opcode, part)) in message(&bytes).into_iter().enumerate().take(2) {
        l.response(opcode, i as i32, part);
    }
    l.ack(3, ACK);
    let asked = l.asked();
    assert_eq!(
        asked[0].reth,
        Some(Reth {
            va: VA + 512,
            rkey: KEY.0,
            length: 5
        })
    );
    assert_eq!((asked[1].opcode, asked[1].at), (rc::WRITE_ONLY, 3));
    l.response(rc::READ_RESPONSE_ONLY, 2, &bytes[512..]);
    l.ack(3, ACK);
    assert_eq!(l.outcomes(), [(1, Status::Success), (2, Status::Success)]);
    assert!(memory.copy() == bytes);
}

#[test]
fn responses_begin_anew_only_where_the_read_was_asked_for_again() {
    let (mut l, bytes, _) = overtaken();
    l.response(rc::READ_RESPONSE_FIRST, 2, &bytes[512..768]);
    l.response(rc::READ_RESPONSE_FIRST, 3, &bytes[768..1024]);
    assert_eq!(l.outcomes(), [(1, Status::BadRespErr)]);
}

#[test]
fn a_chunk_that_is_asked_for_again_ends_where_it_did() {
    let mut l = Lone::with(|c| c.endpoint[0].read_chunk_packets = 4);
    let bytes = pattern(10 * 256, 1);
    let memory = l.post(1, READ, bytes.len());
    l.asked();
    let (a, b, c) = (&bytes[..1024], &bytes[1024..2048], &bytes[2048..]);
    l.response(rc::READ_RESPONSE_FIRST, 0, &a[..256]);
    // The second chunk's answer shows that the rest of the first one's is lost.
    l.response(rc::READ_RESPONSE_FIRST, 4, &b[..256]);
    let asked: Vec<_> = l
        .asked()
        .iter()
        .map(|a| (a.at, a.reth.unwrap().va - VA, a.reth.unwrap().length))
        .collect();
    assert_eq!(asked, [(1, 256, 768), (4, 1024, 1024), (8, 2048, 512)]);
    l.responses(1, &a[256..]);
    l.responses(4, b);
    l.responses(8, c);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert!(memory.copy() == bytes);
}

#[test]
fn an_ack_beyond_a_read_does_not_complete_it() {
    // Of a later request, of the READ's own PSN, and of one within it.
    for (at, len) in [(3, 600), (0, 600), (2, 600), (0, 8), (1, 8)] {
        let mut l = Lone::new();
        l.post(1, READ, len);
        l.post(2, WRITE, 8);
        l.asked();
        l.ack(at, ACK);
        assert_eq!((l.outcomes(), l.unacked()), (vec![], 0), "{at}");
        let left = l.left();
        assert_eq!(left.len(), 2, "both are sent again");
        assert_eq!(left[0], (rc::READ_REQUEST, 0));
        assert_eq!(l.stats().implied_nak_seq_err, 1);
    }
}

#[test]
fn an_ack_beyond_an_atomic_does_not_complete_it() {
    for at in [0, 1] {
        let mut l = Lone::new();
        let memory = l.post(1, ADD, 8);
        l.post(2, WRITE, 8);
        l.asked();
        l.ack(at, ACK);
        assert_eq!(l.outcomes(), []);
        assert_eq!(l.left(), [(rc::FETCH_ADD, 0), (rc::WRITE_ONLY, 1)]);
        l.atomic_ack(0, ACK, 77);
        l.ack(1, ACK);
        assert_eq!(l.outcomes().len(), 2);
        assert_eq!(memory.copy(), 77u64.to_ne_bytes());
    }
}

#[test]
fn what_comes_before_the_lost_response_is_acknowledged() {
    let mut l = Lone::new();
    l.post(1, WRITE, 300);
    l.post(2, SendOp::Send, 10);
    l.post(3, READ, 8);
    l.post(4, READ, 8);
    l.asked();
    l.responses(4, &[2; 8]);
    assert_eq!(l.outcomes(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(l.left(), [(rc::READ_REQUEST, 3), (rc::READ_REQUEST, 4)]);
}

#[test]
fn an_implied_nak_is_acted_on_once_until_something_is_answered() {
    let (mut l, bytes, _) = overtaken();
    assert_eq!(l.left().len(), 1);
    // More of the old responses, still on their way, and acknowledgements of what is behind.
    let parts = message(&bytes);
    for _ in 0..20 {
        l.response(parts[3].0, 3, parts[3].1);
        l.response(parts[4].0, 4, parts[4].1);
        l.ack(4, ACK);
    }
    assert_eq!(l.left(), []);
    assert_eq!((l.stats().implied_nak_seq_err, l.outcomes()), (1, vec![]));
    // Once the first missing one has come, another gap is news.
    l.response(rc::READ_RESPONSE_FIRST, 2, parts[2].1);
    l.response(parts[4].0, 4, parts[4].1);
    assert_eq!(l.left(), [(rc::READ_REQUEST, 3)]);
    assert_eq!(l.stats().implied_nak_seq_err, 2);
}

#[test]
fn a_nak_beyond_a_read_has_the_read_asked_for_again_first() {
    let mut l = Lone::new();
    l.post(1, WRITE, 8);
    l.post(2, READ, 8);
    l.post(3, WRITE, 600);
    l.asked();
    l.ack(3, Syndrome::NakSequence);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert_eq!(l.left()[0], (rc::READ_REQUEST, 1));
}

#[test]
fn an_rnr_nak_beyond_a_read_waits_and_then_asks_for_the_read_again() {
    let mut l = Lone::new();
    l.post(1, READ, 8);
    l.post(2, SendOp::Send, 8);
    l.asked();
    l.ack(1, Syndrome::RnrNak(14));
    // 1.28 ms, in which even the READ's own response, and another loss, let nothing go.
    l.wait(Duration::from_micros(1279));
    assert_eq!(l.left(), []);
    l.ack(1, ACK);
    l.ack(1, Syndrome::NakSequence);
    assert_eq!(l.left(), []);
    l.wait(Duration::from_micros(1));
    assert_eq!(l.left(), [(rc::READ_REQUEST, 0), (rc::SEND_ONLY, 1)]);
    let s = l.stats();
    assert_eq!(
        (s.rnr_naks_received, s.packet_seq_err, s.implied_nak_seq_err),
        (0, 0, 1)
    );
}

#[test]
fn rnr_naks_that_overtake_a_response_cost_retries_and_no_rnr_retries() {
    // The READ, whose response is lost time and again, is not what the peer was not ready for.
    let mut l = Lone::with(|c| {
        c.rnr_retry = 0;
        c.retry_cnt = 3;
    });
    l.post(1, READ, 8);
    l.post(2, SendOp::Send, 8);
    // One of them may have been on its way when the loss was found out: it is free.
    for _ in 0..4 {
        assert_eq!(l.left().len(), 2);
        l.ack(1, Syndrome::RnrNak(14));
        l.wait(Duration::from_micros(1279));
        assert_eq!(l.left(), []);
        l.wait(Duration::from_micros(1));
    }
    assert_eq!(l.outcomes(), []);
    l.ack(1, Syndrome::RnrNak(14));
    assert_eq!(
        l.outcomes(),
        [(1, Status::RetryExcErr), (2, Status::WrFlushErr)]
    );
}

#[test]
fn an_rnr_nak_that_was_on_its_way_when_a_loss_was_found_out_costs_no_retry() {
    // Two atomics and a SEND: the first answer is late, the second shows it, and the SEND's RNR NAK comes behind.
    let mut l = Lone::with(|c| c.retry_cnt = 1);
    l.post(1, ADD, 8);
    l.post(2, ADD, 8);
    l.post(3, SendOp::Send, 8);
    l.atomic_ack(1, ACK, 2);
    assert_eq!(l.left().len(), 6);
    l.ack(2, Syndrome::RnrNak(14));
    l.atomic_ack(0, ACK, 1);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    l.wait(Duration::from_micros(1279));
    assert_eq!(l.left(), []);
    l.wait(Duration::from_micros(1));
    assert_eq!(l.left(), [(rc::FETCH_ADD, 1), (rc::SEND_ONLY, 2)]);
}

#[test]
fn a_response_that_comes_while_waiting_is_taken() {
    let mut l = Lone::new();
    let memory = l.post(1, READ, 300);
    l.post(2, SendOp::Send, 8);
    l.asked();
    l.ack(2, Syndrome::RnrNak(14));
    l.responses(0, &[7; 300]);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert_eq!(memory.copy(), [7; 300]);
    l.wait(Duration::from_micros(1280));
    assert_eq!(l.left(), [(rc::SEND_ONLY, 2)]);
}

#[test]
fn a_fatal_nak_beyond_a_read_names_its_own_request() {
    // The peer is in ERR and will not answer the READ again.
    let mut l = Lone::new();
    l.post(1, WRITE, 8);
    l.post(2, READ, 8);
    l.post(3, WRITE, 600);
    l.post(4, WRITE, 8);
    l.ack(3, Syndrome::NakRemoteAccess);
    assert_eq!(
        l.outcomes(),
        [
            (1, Status::Success),
            (2, Status::WrFlushErr),
            (3, Status::RemAccessErr),
            (4, Status::WrFlushErr)
        ]
    );
    l.assert_failed(Status::RemAccessErr);
}

#[test]
fn each_response_restarts_the_timer_and_reloads_the_retries() {
    // 1.05 ms; a response each millisecond for 30 of them.
    let mut l = Lone::with(|c| c.retry_cnt = 0);
    let bytes = pattern(30 * 256, 1);
    l.post(1, READ, bytes.len());
    for (i, (opcode, part)) in message(&bytes).into_iter().enumerate() {
        l.wait(Duration::from_millis(1));
        l.response(opcode, i as i32, part);
    }
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert_eq!(l.left().len(), 1, "nothing was sent again");
    // Nothing is due any more.
    l.wait(Duration::from_secs(1));
    assert_eq!(l.stats().local_ack_timeout_err, 0);
}

#[test]
fn silence_in_the_middle_of_a_read_leads_to_its_rest_and_then_to_failure() {
    let mut l = Lone::with(|c| c.retry_cnt = 2);
    let bytes = pattern(4 * 256, 1);
    let memory = l.post(1, READ, bytes.len());
    l.response(rc::READ_RESPONSE_FIRST, 0, &bytes[..256]);
    l.asked();
    let timeout = Duration::from_nanos(4096 << 8);
    l.wait(timeout);
    let asked = l.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(
        asked[0].reth.map(|r| (r.va - VA, r.length)),
        Some((256, 3 * 256))
    );
    // An answer reloads both retries.
    l.response(rc::READ_RESPONSE_FIRST, 1, &bytes[256..512]);
    l.wait(timeout);
    l.wait(timeout);
    assert_eq!(l.left(), [(rc::READ_REQUEST, 2); 2]);
    l.wait(timeout);
    assert_eq!(l.outcomes(), [(1, Status::RetryExcErr)]);
    l.assert_failed(Status::RetryExcErr);
    assert!(memory.copy()[..512] == bytes[..512]);
}

#[test]
fn an_ack_of_what_is_to_be_sent_again_does_not_jump_over_a_read() {
    // WRITE, READ, WRITE: all lost as it seems, and sent again slowly; the ACK of the last comes before the READ is asked for
    // again.
    let mut l = Lone::with(|c| {
        c.link_rate = Some(rocexdp_proto::time::Rate::from_mbps(1));
        c.timeout = 9;
    });
    l.post(1, WRITE, 8);
    l.post(2, READ, 8);
    l.post(3, WRITE, 8);
    l.wait(Duration::from_micros(2300));
    assert_eq!(l.stats().local_ack_timeout_err, 1);
    let left = [
        rc::WRITE_ONLY,
        rc::READ_REQUEST,
        rc::WRITE_ONLY,
        rc::WRITE_ONLY,
    ];
    let opcodes: Vec<_> = l.left().iter().map(|l| l.0).collect();
    assert_eq!(opcodes, left, "the READ has not been asked for again");
    l.ack(2, ACK);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert_eq!(l.unacked(), 1);
    l.responses(1, &[1; 8]);
    l.ack(2, ACK);
    assert_eq!(l.outcomes(), [(2, Status::Success), (3, Status::Success)]);
}
