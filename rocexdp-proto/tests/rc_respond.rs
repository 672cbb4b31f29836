//! What the responder answers READs, atomics, FLUSHes and ATOMIC WRITEs by, packet for packet.

mod common;

use common::responder::{ACK, FIRST, LEN, Responder, VA};
use common::{Reply, recv_wr, stats};
use rocexdp_common::headers::{Feth, FlushRange};
use rocexdp_common::opcode::rc;
use rocexdp_sim::pair::Bytes;

#[test]
fn a_read_is_answered_in_packets_of_the_path_mtu() {
    for (len, opcodes) in [
        (0, vec![rc::READ_RESPONSE_ONLY]),
        (1, vec![rc::READ_RESPONSE_ONLY]),
        (256, vec![rc::READ_RESPONSE_ONLY]),
        (257, vec![rc::READ_RESPONSE_FIRST, rc::READ_RESPONSE_LAST]),
        (
            769,
            vec![
                rc::READ_RESPONSE_FIRST,
                rc::READ_RESPONSE_MIDDLE,
                rc::READ_RESPONSE_MIDDLE,
                rc::READ_RESPONSE_LAST,
            ],
        ),
    ] {
        let mut r = Responder::small();
        let replies = r.feed(&[r.read(0, 3, len)]);
        let n = replies.len() as u32;
        assert_eq!(
            replies.iter().map(|r| r.opcode).collect::<Vec<_>>(),
            opcodes,
            "{len}"
        );
        for (i, reply) in replies.iter().enumerate() {
            assert_eq!(reply.psn, FIRST.add(i as u32));
            let middle = reply.opcode == rc::READ_RESPONSE_MIDDLE;
            assert_eq!(reply.aeth, (!middle).then_some((ACK, 1)), "{len}, {i}");
        }
        let read: Vec<u8> = replies.iter().flat_map(|r| r.payload.clone()).collect();
        assert_eq!(read, &r.bytes.copy()[3..3 + len as usize]);
        let info = r.pair.ends[1].endpoint.qp_info(rocexdp_sim::pair::QPNS[1]);
        assert_eq!(info.unwrap().expected_psn, FIRST.add(n));
        let s = stats(&r.pair, 1);
        assert_eq!(
            (s.tx_packets, s.tx_bytes, s.retransmitted_packets, s.tx_acks),
            (u64::from(n), u64::from(len), 0, 0)
        );
    }
}

#[test]
fn atomics_are_answered_by_what_stood_there_and_change_the_memory_once() {
    let mut r = Responder::small();
    let before = r.word(8);
    let cas = |r: &Responder, n, compare, swap| {
        r.packet(n, rc::COMPARE_SWAP)
            .atomic(VA + 8, r.rkey.0, swap, compare)
    };
    let replies = r.feed(&[
        r.add(0, 8, 5),
        cas(&r, 1, before + 5, 77),
        cas(&r, 2, before, 78),
    ]);
    let expected = [(before, 1), (before.wrapping_add(5), 2), (77, 3)];
    for (i, (original, msn)) in expected.into_iter().enumerate() {
        let reply = Reply {
            opcode: rc::ATOMIC_ACKNOWLEDGE,
            psn: FIRST.add(i as u32),
            aeth: Some((ACK, msn)),
            original: Some(original),
            payload: vec![],
        };
        assert_eq!(replies[i], reply);
    }
    assert_eq!((replies.len(), r.word(8)), (3, 77));
}

#[test]
fn atomic_write_and_flush_are_answered_by_an_empty_read_response() {
    let mut r = Responder::small();
    let flush = Feth {
        global_visibility: true,
        persistence: false,
        placement_reserved: 0,
        selectivity: FlushRange::Range,
    };
    let word = r
        .packet(0, rc::ATOMIC_WRITE)
        .reth(VA + 16, r.rkey.0, 8)
        .payload(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let flush = r
        .packet(1, rc::FLUSH)
        .feth(flush)
        .reth(VA, r.rkey.0, LEN as u32);
    let replies = r.feed(&[word, flush]);
    for (i, reply) in replies.iter().enumerate() {
        assert_eq!(
            (reply.opcode, reply.psn, reply.aeth),
            (
                rc::READ_RESPONSE_ONLY,
                FIRST.add(i as u32),
                Some((ACK, i as u32 + 1))
            )
        );
        assert!(reply.payload.is_empty());
    }
    assert_eq!(replies.len(), 2);
    assert_eq!(r.bytes.copy()[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn answers_leave_in_the_order_of_what_they_answer() {
    let mut r = Responder::small();
    let inbox = Bytes::filled(64, 0);
    r.pair.post_recv(1, recv_wr(1, &inbox, 64)).unwrap();
    let send = r.packet(4, rc::SEND_ONLY).payload(&[9; 8]).asking();
    let packets = [
        r.write(0, 0, &[7; 8]),
        r.read(1, 0, 512),
        r.add(3, 0, 1),
        send,
        r.read(5, 0, 8),
    ];
    // The last READ's response says that the SEND arrived, and the first one's that the WRITE did.
    assert_eq!(
        r.answers(&packets),
        [
            (rc::READ_RESPONSE_FIRST, 1),
            (rc::READ_RESPONSE_LAST, 2),
            (rc::ATOMIC_ACKNOWLEDGE, 3),
            (rc::READ_RESPONSE_ONLY, 5),
        ]
    );
    // Behind the last READ it is said by an ACK.
    assert_eq!(
        r.answers(&[r.read(6, 0, 300), r.write(8, 0, &[1; 4])]),
        [
            (rc::READ_RESPONSE_FIRST, 6),
            (rc::READ_RESPONSE_LAST, 7),
            (rc::ACKNOWLEDGE, 8)
        ]
    );
}
