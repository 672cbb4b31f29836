//! What the responder answers READs, atomics, FLUSHes and ATOMIC WRITEs by, packet for packet.

mod common;

use std::sync::Arc;

use common::{Craft, LONG, Reply, pattern, recv_wr, replies, stats};
use rocexdp_common::headers::{Feth, FlushRange, Syndrome};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{PathMtu, Psn, RKey};
use rocexdp_proto::mem::Access;
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

const FIRST: Psn = Psn::new(0xff_fff0);
const VA: u64 = 0x10_0000;
const LEN: usize = 4096;
const ACK: Syndrome = Syndrome::Ack(0x1f);

/// End 1 of a pair as responder, with a region of 4 KiB at [`VA`] that allows everything.
struct Responder {
    config: PairConfig,
    pair: Pair,
    bytes: Arc<Bytes>,
    rkey: RKey,
}

impl Responder {
    fn new(config: PairConfig) -> Self {
        let mut pair = Pair::new(&config);
        let bytes = Bytes::of(pattern(LEN, 1));
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let region = pair.ends[1]
            .endpoint
            .register_memory(bytes.clone(), VA, access);
        pair.capture();
        Self {
            config,
            pair,
            bytes,
            rkey: region.rkey,
        }
    }

    fn small() -> Self {
        Self::new(PairConfig {
            path_mtu: PathMtu::Mtu256,
            ..PairConfig::default()
        })
    }

    /// A request packet, `n` behind the first.
    fn packet(&self, n: u32, opcode: Opcode) -> Craft {
        Craft::new(0, opcode, FIRST.add(n))
    }

    fn read(&self, n: u32, at: u64, len: u32) -> Craft {
        self.packet(n, rc::READ_REQUEST)
            .reth(VA + at, self.rkey.0, len)
    }

    fn write(&self, n: u32, at: u64, bytes: &[u8]) -> Craft {
        self.packet(n, rc::WRITE_ONLY)
            .reth(VA + at, self.rkey.0, bytes.len() as u32)
            .payload(bytes)
            .asking()
    }

    fn add(&self, n: u32, at: u64, add: u64) -> Craft {
        self.packet(n, rc::FETCH_ADD)
            .atomic(VA + at, self.rkey.0, add, 0)
    }

    /// What these packets are answered by, having arrived at once.
    fn feed(&mut self, packets: &[Craft]) -> Vec<Reply> {
        self.pair.sent.clear();
        for p in packets {
            self.pair.inject(1, p.frame(&self.config, 0));
        }
        assert!(self.pair.run(LONG));
        replies(&self.pair.sent, 1)
    }

    /// As [`Self::feed`]: opcodes and distances of PSNs.
    fn answers(&mut self, packets: &[Craft]) -> Vec<(Opcode, i32)> {
        let replies = self.feed(packets);
        replies
            .iter()
            .map(|r| (r.opcode, r.psn.diff(FIRST)))
            .collect()
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes.copy()[at..at + 8].try_into().unwrap())
    }
}

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
