//! Requests that come again: what is answered again, from what, and what is not.

mod common;

use common::responder::{ACK, FIRST, Responder, VA};
use common::{Craft, recv_wr, stats};
use rocexdp_common::headers::{Feth, FlushRange, Syndrome};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::{DropReason, QpState};
use rocexdp_sim::pair::{Bytes, PairConfig, QPNS};

fn dropped(r: &Responder, reason: DropReason) -> u64 {
    r.pair.ends[1].endpoint.counters().drops[reason.index()]
}

fn state(r: &Responder) -> QpState {
    r.pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap().state
}

/// Responder resources for `n` requests.
fn with_resources(n: u8) -> Responder {
    Responder::new(PairConfig {
        path_mtu: PathMtu::Mtu256,
        max_dest_rd_atomic: n,
        ..PairConfig::default()
    })
}

const READ: [Opcode; 4] = [
    rc::READ_RESPONSE_FIRST,
    rc::READ_RESPONSE_MIDDLE,
    rc::READ_RESPONSE_LAST,
    rc::READ_RESPONSE_ONLY,
];

#[test]
fn a_duplicate_send_or_write_is_acknowledged_again_even_if_it_does_not_ask() {
    let mut r = Responder::small();
    let inbox = Bytes::filled(64, 0);
    r.pair.post_recv(1, recv_wr(1, &inbox, 64)).unwrap();
    let write = Craft {
        bth: rocexdp_common::headers::Bth {
            ack_req: false,
            ..r.write(0, 0, &[7; 8]).bth
        },
        ..r.write(0, 0, &[7; 8])
    };
    let send = r.packet(1, rc::SEND_ONLY).payload(&[1; 8]);
    assert_eq!(r.answers(&[write.clone(), send.clone()]), []);
    // With the PSN of the newest packet that was taken (C9-105).
    assert_eq!(r.answers(&[write]), [(rc::ACKNOWLEDGE, 1)]);
    assert_eq!(r.answers(&[send]), [(rc::ACKNOWLEDGE, 1)]);
    assert_eq!(r.pair.completions(1).len(), 1, "received once");
    assert_eq!(stats(&r.pair, 1).duplicate_request, 2);
}

#[test]
fn a_duplicate_read_is_answered_again_and_reads_the_memory_again() {
    let mut r = Responder::small();
    let read = r.read(0, 0, 600);
    let first = r.feed(&[read.clone(), r.write(3, 256, &[0xee; 8])]);
    assert_eq!(first.len(), 4);
    let again = r.feed(&[read]);
    assert_eq!(
        again.iter().map(|r| r.opcode).collect::<Vec<_>>(),
        READ[..3]
    );
    assert_eq!(again[0].payload, first[0].payload);
    assert_eq!(
        again[1].payload[..8],
        [0xee; 8],
        "what a WRITE put there since"
    );
    assert_eq!(again[1].payload[8..], first[1].payload[8..]);
    // It says how far the responder is by now.
    assert_eq!(
        [first[0].aeth, again[0].aeth],
        [Some((ACK, 1)), Some((ACK, 2))]
    );
    let s = stats(&r.pair, 1);
    assert_eq!((s.retransmitted_packets, s.retransmitted_bytes), (3, 600));
    assert_eq!(
        (s.tx_packets, s.tx_bytes, s.duplicate_request),
        (6, 1200, 1)
    );
}

#[test]
fn the_rest_of_a_read_is_answered_from_there() {
    let mut r = Responder::small();
    let whole = r.feed(&[r.read(0, 5, 1000)]);
    let rest = r.feed(&[r.read(2, 5 + 512, 488)]);
    assert_eq!(rest.len(), 2);
    assert_eq!(
        rest.iter().map(|r| (r.opcode, r.psn)).collect::<Vec<_>>(),
        [
            (rc::READ_RESPONSE_FIRST, FIRST.add(2)),
            (rc::READ_RESPONSE_LAST, FIRST.add(3))
        ]
    );
    assert_eq!(rest[0].payload, whole[2].payload);
    assert_eq!(rest[1].payload, whole[3].payload);
    // The last packet alone, and a middle part.
    assert_eq!(r.answers(&[r.read(3, 5 + 768, 232)]), [(READ[3], 3)]);
    assert_eq!(
        r.answers(&[r.read(1, 5 + 256, 512)]),
        [(READ[0], 1), (READ[2], 2)]
    );
}

#[test]
fn a_duplicate_read_that_is_not_within_the_first_one_is_dropped_in_silence() {
    let mut r = Responder::small();
    r.feed(&[r.write(0, 0, &[1; 4]), r.read(1, 256, 768)]);
    let mut wrong_key = r.read(1, 256, 768);
    wrong_key.extensions[11] ^= 1;
    let cases = [
        ("before it", r.read(1, 0, 768)),
        ("longer", r.read(1, 256, 769)),
        ("another address for the same PSN", r.read(2, 256, 256)),
        ("beyond its end", r.read(3, 768, 257)),
        ("another key", wrong_key),
        ("the PSN of a WRITE", r.read(0, 0, 4)),
        ("an atomic", r.add(1, 0, 1)),
    ];
    let before = r.bytes.copy();
    for (n, (what, packet)) in cases.iter().enumerate() {
        assert_eq!(r.feed(std::slice::from_ref(packet)), [], "{what}");
        let n = n as u64 + 1;
        assert_eq!(dropped(&r, DropReason::DuplicateUnanswered), n, "{what}");
    }
    assert_eq!((state(&r), r.bytes.copy()), (QpState::Rts, before));
}

#[test]
fn a_duplicate_atomic_gets_the_first_answer_and_changes_the_memory_once() {
    let mut r = Responder::small();
    let before = r.word(0);
    let add = r.add(0, 0, 7);
    let first = r.feed(std::slice::from_ref(&add));
    r.feed(&[r.add(1, 0, 1)]);
    let again = r.feed(&[add.clone(), add]);
    // Within one batch it is answered once.
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].original, Some(before));
    assert_eq!(
        (again[0].opcode, again[0].psn),
        (first[0].opcode, first[0].psn)
    );
    assert_eq!(r.word(0), before.wrapping_add(8));
}

#[test]
fn a_duplicate_atomic_that_is_no_longer_kept_is_dropped_in_silence() {
    let mut r = with_resources(2);
    let before = r.word(0);
    let add = |r: &Responder, n| r.add(n, 0, 1);
    for n in 0..3 {
        assert_eq!(r.feed(&[add(&r, n)]).len(), 1);
    }
    assert_eq!(r.answers(&[add(&r, 0)]), []);
    assert_eq!(r.answers(&[add(&r, 1)]), [(rc::ATOMIC_ACKNOWLEDGE, 1)]);
    assert_eq!(r.answers(&[add(&r, 2)]), [(rc::ATOMIC_ACKNOWLEDGE, 2)]);
    let swap = r.packet(1, rc::COMPARE_SWAP).atomic(VA, r.rkey.0, 0, 0);
    assert_eq!(r.answers(&[swap]), [], "another operation");
    assert_eq!(dropped(&r, DropReason::DuplicateUnanswered), 2);
    assert_eq!(r.word(0), before.wrapping_add(3));
}

#[test]
fn a_duplicate_flush_or_atomic_write_is_answered_and_not_done_again() {
    let mut r = Responder::small();
    let word = |r: &Responder, n, byte| {
        r.packet(n, rc::ATOMIC_WRITE)
            .reth(VA, r.rkey.0, 8)
            .payload(&[byte; 8])
    };
    let flush = Feth {
        global_visibility: true,
        persistence: false,
        placement_reserved: 0,
        selectivity: FlushRange::Region,
    };
    let flush = r.packet(2, rc::FLUSH).feth(flush).reth(0, r.rkey.0, 0);
    let (one, two) = (word(&r, 0, 1), word(&r, 1, 2));
    r.feed(&[one.clone(), two, flush.clone()]);
    assert_eq!(r.answers(&[one, flush]), [(READ[3], 0), (READ[3], 2)]);
    assert_eq!(r.bytes.copy()[..8], [2; 8]);
}

#[test]
fn a_read_of_nothing_and_its_retry_need_no_key() {
    let mut r = Responder::small();
    let none = r
        .packet(0, rc::READ_REQUEST)
        .reth(0xdead_0000, 0xdead_beef, 0);
    assert_eq!(r.answers(std::slice::from_ref(&none)), [(READ[3], 0)]);
    assert_eq!(r.answers(&[none]), [(READ[3], 0)]);
    let other = r.packet(0, rc::READ_REQUEST).reth(0x1000, 1, 0);
    assert_eq!(r.answers(&[other]), [(READ[3], 0)]);
    // A WRITE of nothing as well.
    let none = r.packet(1, rc::WRITE_ONLY).reth(0xdead_0000, 1, 0).asking();
    assert_eq!(
        r.answers(std::slice::from_ref(&none)),
        [(rc::ACKNOWLEDGE, 1)]
    );
    assert_eq!(r.answers(&[none]), [(rc::ACKNOWLEDGE, 1)]);
}

/// An ACK beyond a READ whose response was lost would make the peer go back once more.
#[test]
fn what_is_acknowledged_again_does_not_overtake_a_read() {
    let mut r = Responder::small();
    let all = [
        r.write(0, 0, &[1; 8]),
        r.read(1, 0, 512),
        r.write(3, 8, &[2; 8]),
    ];
    r.feed(&all);
    assert_eq!(r.answers(&all[..1]), [(rc::ACKNOWLEDGE, 0)]);
    // All that was sent again.
    assert_eq!(
        r.answers(&all),
        [(READ[0], 1), (READ[2], 2), (rc::ACKNOWLEDGE, 3)]
    );
    assert_eq!(r.answers(&all[2..]), [(rc::ACKNOWLEDGE, 3)]);
}

#[test]
fn requests_sent_again_are_answered_in_their_old_order() {
    let mut r = Responder::small();
    let all = [r.read(0, 0, 512), r.add(2, 0, 1), r.read(3, 512, 256)];
    r.feed(&all);
    let [read, add, last] = &all;
    let order = [
        (READ[0], 0),
        (READ[2], 1),
        (rc::ATOMIC_ACKNOWLEDGE, 2),
        (READ[3], 3),
    ];
    assert_eq!(r.answers(&all), order);
    // The network may turn them round.
    let turned = [last, add, read, add, last].map(Clone::clone);
    assert_eq!(r.answers(&turned), order);
}

/// A link that takes one packet of 256 bytes in 2 us, so that answers are still waiting when more arrives.
fn slow() -> Responder {
    Responder::new(PairConfig {
        path_mtu: PathMtu::Mtu256,
        link_rate: Some(rocexdp_proto::time::Rate::from_mbps(1000)),
        max_dest_rd_atomic: 2,
        ..PairConfig::default()
    })
}

#[test]
fn a_read_that_comes_again_while_it_is_being_answered_is_answered_as_it_is_asked_for_now() {
    use core::time::Duration;
    // From the start: it begins anew. The rest: that, as a READ of its own.
    for (at, answers) in [
        (
            0,
            vec![(READ[0], 0), (READ[1], 1), (READ[1], 2), (READ[2], 3)],
        ),
        (1, vec![(READ[0], 1), (READ[1], 2), (READ[2], 3)]),
        (3, vec![(READ[3], 3)]),
    ] {
        let mut r = slow();
        r.pair.inject(1, r.read(0, 0, 1024).frame(&r.config, 0));
        assert!(!r.pair.run(Duration::from_nanos(4000)));
        let so_far = common::replies(&r.pair.sent, 1).len();
        assert!((1..4).contains(&so_far), "{so_far}");
        let again = r.read(at, u64::from(at) * 256, 1024 - at * 256);
        assert_eq!(r.answers(&[again]), answers, "{at}");
    }
}

#[test]
fn more_requests_than_resources_are_refused_only_while_none_is_answered() {
    // Answered one by one, any number is served.
    let mut r = with_resources(2);
    for n in 0..10 {
        assert_eq!(r.feed(&[r.read(n, 0, 8)]).len(), 1);
    }
    // Three at once where two may be.
    let mut r = with_resources(2);
    let all: Vec<_> = (0..3).map(|n| r.read(n, 0, 8)).collect();
    let answers = r.feed(&all);
    assert_eq!(answers.len(), 3);
    assert_eq!([&answers[0], &answers[1]].map(|a| a.opcode), [READ[3]; 2]);
    assert_eq!(
        (answers[2].psn, answers[2].aeth),
        (FIRST.add(2), Some((Syndrome::NakInvalidRequest, 2)))
    );
    assert_eq!(state(&r), QpState::Err);
}

#[test]
fn without_resources_reads_and_atomics_are_invalid() {
    for packet in [
        Responder::read as fn(&Responder, u32, u64, u32) -> Craft,
        |r, n, at, len| r.add(n, at, u64::from(len)),
    ] {
        let mut r = with_resources(0);
        let before = r.bytes.copy();
        let answers = r.feed(&[packet(&r, 0, 0, 8)]);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].aeth, Some((Syndrome::NakInvalidRequest, 0)));
        assert_eq!((state(&r), r.bytes.copy()), (QpState::Err, before));
    }
}

#[test]
fn a_duplicate_from_before_the_first_packet_is_told_from_what_came_since() {
    let mut r = Responder::small();
    let before = r.word(0);
    r.feed(&[r.add(0, 0, 1)]);
    let mut earlier = r.add(0, 0, 1);
    earlier.bth.psn = FIRST.sub(1);
    assert_eq!(r.answers(&[earlier]), []);
    let mut earlier = r.write(0, 8, &[1; 8]);
    earlier.bth.psn = FIRST.sub(1);
    assert_eq!(r.answers(&[earlier]), [(rc::ACKNOWLEDGE, 0)]);
    assert_eq!(r.word(0), before.wrapping_add(1));
}
