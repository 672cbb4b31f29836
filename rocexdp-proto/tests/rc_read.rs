//! READ, seen from the requester: how it is asked for, and what its responses do.

mod common;

use common::lone::{ACK, ADD, KEY, Lone, READ, VA, WRITE};
use common::{pattern, send_wr};
use rocexdp_common::headers::Reth;
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::WrId;
use rocexdp_proto::verbs::{CqeOpcode, Segment, SendWr, SgList, Status};
use rocexdp_sim::memory::NoBytes;
use rocexdp_sim::pair::{Bytes, QPNS};

#[test]
fn a_read_is_one_packet_and_takes_the_psns_of_its_responses() {
    let mut l = Lone::new();
    l.post(1, READ, 700);
    l.post(2, WRITE, 4);
    let asked = l.asked();
    assert_eq!(
        (asked[0].opcode, asked[0].at, asked[0].payload),
        (rc::READ_REQUEST, 0, 0)
    );
    assert!(asked[0].ack_req);
    let reth = Reth {
        va: VA,
        rkey: KEY.0,
        length: 700,
    };
    assert_eq!(asked[0].reth, Some(reth));
    assert_eq!((asked[1].opcode, asked[1].at), (rc::WRITE_ONLY, 3));
    assert_eq!(asked.len(), 2);
}

#[test]
fn responses_are_placed_and_the_last_one_completes() {
    // 16 packets before the PSN wraps.
    let mut l = Lone::new();
    let bytes = pattern(20 * 256 + 77, 1);
    let memory = l.post(1, READ, bytes.len());
    let parts = common::lone::message(&bytes);
    for (i, (opcode, part)) in parts.iter().enumerate() {
        assert_eq!(l.completions(), [], "{i}");
        l.response(*opcode, i as i32, part);
    }
    assert_eq!(l.completions(), [(1, CqeOpcode::Read, Status::Success)]);
    assert!(memory.copy() == bytes);
    assert_eq!(l.unacked(), 21);
    assert_eq!(l.stats().retransmitted_packets, 0);
}

#[test]
fn responses_are_scattered_over_the_list() {
    let mut l = Lone::new();
    let bytes = pattern(600, 1);
    let memory = [10usize, 300, 290].map(|n| Bytes::filled(n + 20, 0));
    let segments: Vec<Segment> = memory
        .iter()
        .zip([10u32, 300, 290])
        .map(|(m, n)| Segment::new(m.clone(), 10, n))
        .collect();
    l.post_wr(SendWr::new(WrId(1), READ, SgList::of(&segments)));
    l.responses(0, &bytes);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    let mut got = Vec::new();
    for m in &memory {
        let m = m.copy();
        assert!(m[..10].iter().chain(&m[m.len() - 10..]).all(|b| *b == 0));
        got.extend_from_slice(&m[10..m.len() - 10]);
    }
    assert!(got == bytes);
}

#[test]
fn a_read_of_nothing_has_one_empty_response() {
    let mut l = Lone::new();
    l.post_local(1, READ);
    let asked = l.asked();
    assert_eq!(asked[0].reth.map(|r| r.length), Some(0));
    l.response(rc::READ_RESPONSE_ONLY, 0, &[]);
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
}

#[test]
fn a_long_read_is_asked_for_in_chunks() {
    let mut l = Lone::with(|c| c.endpoint[0].read_chunk_packets = 10);
    let bytes = pattern(33 * 256 + 1, 1);
    let memory = l.post(1, READ, bytes.len());
    let asked: Vec<_> = l.asked().iter().map(|a| (a.at, a.reth.unwrap())).collect();
    let reth = |at: i32, length| Reth {
        va: VA + at as u64 * 256,
        rkey: KEY.0,
        length,
    };
    let expected = [(0, 2560), (10, 2560), (20, 2560), (30, 3 * 256 + 1)];
    assert_eq!(asked, expected.map(|(at, len)| (at, reth(at, len))));
    // Each chunk's responses are a message of their own.
    for (i, part) in bytes.chunks(2560).enumerate() {
        l.responses(10 * i as i32, part);
    }
    assert_eq!(l.outcomes(), [(1, Status::Success)]);
    assert!(memory.copy() == bytes);
}

#[test]
fn responses_that_are_asked_for_fit_the_window() {
    // At most half the window, and 64, in a chunk; at most the window in all.
    for (window, read_chunk, chunk, at_once) in [
        (128, 64, 64, 2),
        (128, 1000, 64, 2),
        (20, 64, 10, 2),
        (1, 64, 1, 1),
        (90, 30, 30, 3),
    ] {
        let mut l = Lone::with(|c| {
            c.endpoint[0].max_inflight_packets = window;
            c.endpoint[0].read_chunk_packets = read_chunk;
        });
        let bytes = pattern(6 * chunk * 256, 1);
        l.post(1, READ, bytes.len());
        let at = |from: usize, to: usize| -> Vec<_> {
            (from..to)
                .map(|i| (rc::READ_REQUEST, (i * chunk) as i32))
                .collect()
        };
        assert_eq!(l.left(), at(0, at_once), "window {window}");
        // The next one is asked for when the responses of one chunk, and of nothing less, have made room.
        let parts = common::lone::message(&bytes[..chunk * 256]);
        for (i, (opcode, part)) in parts.iter().enumerate() {
            assert_eq!(l.left(), [], "window {window}, {i}");
            l.response(*opcode, i as i32, part);
        }
        assert_eq!(l.left(), at(at_once, at_once + 1), "window {window}");
    }
}

#[test]
fn a_read_counts_as_one_packet_in_the_window() {
    let mut l = Lone::with(|c| c.endpoint[0].max_inflight_packets = 10);
    l.post(1, READ, 5 * 256);
    l.post(2, WRITE, 20 * 256);
    let left = l.left();
    assert_eq!(left.len(), 10, "the READ and nine of the WRITE");
    assert_eq!(left[9], (rc::WRITE_MIDDLE, 13));
    // The READ is answered half: nothing is gained on the way to the peer. Then it is answered.
    let bytes = pattern(5 * 256, 1);
    let parts = common::lone::message(&bytes);
    for (i, (opcode, part)) in parts.iter().enumerate() {
        assert_eq!(l.left(), [], "{i}");
        l.response(*opcode, i as i32, part);
    }
    assert_eq!(l.left(), [(rc::WRITE_MIDDLE, 14)]);
}

#[test]
fn no_more_reads_and_atomics_are_unanswered_than_the_initiator_depth() {
    let mut l = Lone::with(|c| c.max_rd_atomic = 2);
    for id in 1..=3 {
        l.post(id, READ, 8);
    }
    l.post(4, ADD, 8);
    l.post(5, WRITE, 8);
    let read = |at| (rc::READ_REQUEST, at);
    assert_eq!(l.left(), [read(0), read(1)]);
    l.responses(0, &[1; 8]);
    assert_eq!(l.left(), [read(2)], "and nothing overtakes it");
    l.responses(1, &[1; 8]);
    assert_eq!(l.left(), [(rc::FETCH_ADD, 3), (rc::WRITE_ONLY, 4)]);
    l.responses(2, &[1; 8]);
    l.atomic_ack(3, ACK, 0);
    l.ack(4, ACK);
    assert_eq!(
        l.outcomes(),
        [1, 2, 3, 4, 5].map(|id| (id, Status::Success))
    );
}

#[test]
fn with_an_initiator_depth_of_0_a_read_fails_here_after_what_was_posted_before() {
    for op in [READ, ADD] {
        let mut l = Lone::with(|c| c.max_rd_atomic = 0);
        l.post(1, WRITE, 8);
        l.post(2, op, 8);
        l.post(3, WRITE, 8);
        assert_eq!(l.left(), [(rc::WRITE_ONLY, 0)]);
        assert_eq!(l.outcomes(), []);
        l.ack(0, ACK);
        assert_eq!(
            l.outcomes(),
            [
                (1, Status::Success),
                (2, Status::LocQpOpErr),
                (3, Status::WrFlushErr)
            ]
        );
        l.assert_failed(Status::LocQpOpErr);
    }
}

#[test]
fn sends_and_writes_before_a_read_are_acknowledged_by_its_response() {
    let mut l = Lone::new();
    l.post(1, WRITE, 300);
    l.post(2, rocexdp_proto::verbs::SendOp::Send, 10);
    let memory = l.post(3, READ, 300);
    l.post(4, WRITE, 1);
    let bytes = pattern(300, 1);
    l.response(rc::READ_RESPONSE_FIRST, 3, &bytes[..256]);
    assert_eq!(l.outcomes(), [(1, Status::Success), (2, Status::Success)]);
    l.response(rc::READ_RESPONSE_LAST, 4, &bytes[256..]);
    assert_eq!(l.outcomes(), [(3, Status::Success)]);
    assert!(memory.copy() == bytes);
    l.ack(5, ACK);
    assert_eq!(l.outcomes(), [(4, Status::Success)]);
}

#[test]
fn the_longest_read_keeps_what_is_in_flight_within_half_the_psns() {
    let mut l = Lone::with(|c| {
        c.endpoint[0].max_inflight_packets = 1 << 16;
        c.max_rd_atomic = 128;
    });
    // 2^31 bytes in 2^23 packets, twice.
    let memory = std::sync::Arc::new(NoBytes(1 << 31));
    for id in 0..2 {
        let local = Segment::new(memory.clone(), 0, 1 << 31);
        l.post_wr(SendWr::new(WrId(id), READ, local));
    }
    let asked = l.asked();
    assert_eq!(asked.len(), 128, "as many as the initiator depth");
    let mut at = 0;
    for a in asked {
        let reth = a.reth.unwrap();
        assert_eq!((a.at, reth.length), (at, 64 * 256));
        assert_eq!(reth.va, VA + at as u64 * 256);
        at += 64;
    }
    // Far beyond the wrap each response finds its place; every chunk makes room for one.
    for n in 0..1000 {
        l.responses(64 * n, &[0; 64 * 256]);
        let asked = l.asked();
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].at, at);
        at += 64;
    }
    let info = l.pair.ends[0].endpoint.qp_info(QPNS[0]).unwrap();
    assert_eq!(info.send_psn.diff(info.unacked_psn), 128 * 64);
}

#[test]
fn memory_that_may_not_be_written_is_found_when_the_request_is_taken() {
    let mut l = Lone::new();
    // Inline data is refused at once.
    let inline = SendWr::new(WrId(1), READ, SgList::inline(&[0; 8]));
    assert_eq!(
        l.pair.post_send(0, inline),
        Err(rocexdp_proto::verbs::PostError::Unsupported)
    );
    let bytes = Bytes::filled(64, 0);
    let access = rocexdp_proto::mem::Access::REMOTE_READ;
    let region = {
        let endpoint = &mut l.pair.ends[0].endpoint;
        let mr = endpoint.register_memory(bytes, 0x1000, access).unwrap();
        endpoint.region(mr.rkey).unwrap().clone()
    };
    l.post_wr(SendWr::new(
        WrId(1),
        WRITE,
        region.segment(0x1000, 64).unwrap(),
    ));
    l.ack(0, ACK);
    assert_eq!(l.outcomes(), [(1, Status::Success)], "reading is allowed");
    l.post_wr(SendWr::new(
        WrId(2),
        READ,
        region.segment(0x1000, 64).unwrap(),
    ));
    assert_eq!(l.outcomes(), [(2, Status::LocProtErr)]);
    assert_eq!(l.left().len(), 1, "the WRITE, and no READ request");
    l.assert_failed(Status::LocProtErr);
}

#[test]
fn memory_that_goes_while_it_is_written_fails_the_read() {
    let mut l = Lone::new();
    let memory = Bytes::filled(600, 0);
    l.post_wr(send_wr(1, READ, &memory, 600));
    l.response(rc::READ_RESPONSE_FIRST, 0, &[1; 256]);
    memory.take_away();
    l.post(2, WRITE, 1);
    l.response(rc::READ_RESPONSE_MIDDLE, 1, &[1; 256]);
    assert_eq!(
        l.outcomes(),
        [(1, Status::LocProtErr), (2, Status::WrFlushErr)]
    );
    l.assert_failed(Status::LocProtErr);
}
