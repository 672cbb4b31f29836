//! RC SEND and WRITE, with and without immediate, over a clean wire: every byte arrives once, and nothing is sent again.

mod common;

use common::{LONG, outcomes, pattern, recv_wr, send_wr, target};
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

/// Sizes around every edge of a path MTU.
fn sizes(mtu: usize) -> Vec<usize> {
    vec![
        0,
        1,
        2,
        3,
        4,
        5,
        mtu - 1,
        mtu,
        mtu + 1,
        2 * mtu - 3,
        2 * mtu,
        2 * mtu + 1,
        37 * mtu + 13,
    ]
}

#[test]
fn every_operation_and_size_arrives_intact_at_every_path_mtu() {
    for path_mtu in PathMtu::ALL {
        for (ipv6, vlan, piece) in [
            (false, None, usize::MAX),
            (true, Some(77), 1500),
            (false, Some(5), 67),
        ] {
            let config = PairConfig {
                path_mtu,
                ipv6,
                vlan,
                piece,
                ..PairConfig::default()
            };
            for size in sizes(path_mtu.bytes() as usize) {
                one_of_each(&config, size);
            }
        }
    }
}

fn one_of_each(config: &PairConfig, size: usize) {
    let what = format!("{size} B at path MTU {}", config.path_mtu);
    let mut pair = Pair::new(config);
    let sources: Vec<_> = (0..4).map(|n| Bytes::of(pattern(size, n))).collect();
    let inboxes: Vec<_> = (0..2).map(|_| Bytes::filled(size + 8, 0xee)).collect();
    let (t2, r2) = target(&mut pair, size);
    let (t3, r3) = target(&mut pair, size);
    for (n, inbox) in inboxes.iter().enumerate() {
        pair.post_recv(1, recv_wr(100 + n as u64, inbox, size + 8))
            .unwrap();
    }
    pair.post_recv(1, recv_wr(102, &Bytes::filled(0, 0), 0))
        .unwrap();
    let ops = [
        SendOp::Send,
        SendOp::SendImm(0x1122_3344),
        SendOp::Write {
            va: r2.va,
            rkey: r2.rkey,
        },
        SendOp::WriteImm {
            va: r3.va,
            rkey: r3.rkey,
            imm: 7,
        },
    ];
    for (n, op) in ops.into_iter().enumerate() {
        pair.post_send(0, send_wr(n as u64, op, &sources[n], size))
            .unwrap();
    }
    assert!(pair.run(LONG), "{what}: it ends");

    let ok = Status::Success;
    let (s, w) = (CqeOpcode::Send, CqeOpcode::Write);
    assert_eq!(
        outcomes(&mut pair, 0),
        [(0, s, ok), (1, s, ok), (2, w, ok), (3, w, ok)],
        "{what}"
    );
    let received = pair.completions(1);
    let got: Vec<_> = received
        .iter()
        .map(|c| (c.wr_id.0, c.opcode, c.status, c.byte_len as usize, c.imm))
        .collect();
    let expected = [
        (100, CqeOpcode::Recv, ok, size, None),
        (101, CqeOpcode::Recv, ok, size, Some(0x1122_3344)),
        (102, CqeOpcode::RecvWriteImm, ok, size, Some(7)),
    ];
    assert_eq!(got, expected, "{what}");
    for (n, inbox) in inboxes.iter().enumerate() {
        let mut bytes = pattern(size, n as u64);
        bytes.extend_from_slice(&[0xee; 8]);
        assert!(inbox.copy() == bytes, "{what}: SEND {n}");
    }
    assert!(
        t2.copy() == pattern(size, 2) && t3.copy() == pattern(size, 3),
        "{what}: WRITE"
    );

    for end in &pair.ends {
        let info = end.endpoint.qp_info(end.qp.qpn).unwrap();
        assert_eq!(
            info.stats.retransmitted_packets, 0,
            "{what}: nothing is sent again on a clean wire"
        );
        assert_eq!(
            info.stats.tx_naks + info.stats.tx_rnr_naks + info.stats.duplicate_request,
            0,
            "{what}"
        );
        assert_eq!(info.stats.rx_dropped, 0, "{what}");
        assert_eq!(info.send_psn, info.unacked_psn, "{what}");
        assert_eq!(info.rate, None, "{what}: never paced without a CNP");
        assert!(end.qp.sq.is_empty() && end.qp.rq.is_empty(), "{what}");
    }
    let info = pair.ends[1].endpoint.qp_info(pair.ends[1].qp.qpn).unwrap();
    assert_eq!(info.msn, 4, "{what}");
    assert_eq!(
        info.expected_psn,
        Psn::new(0xff_fff0).add(4 * config.path_mtu.packets(size as u32)),
        "{what}"
    );
}

#[test]
fn both_ends_send_at_once() {
    let mut pair = Pair::new(&PairConfig::default());
    let size = 100_000;
    let source = [Bytes::of(pattern(size, 1)), Bytes::of(pattern(size, 2))];
    let inbox = [Bytes::filled(size, 0), Bytes::filled(size, 0)];
    for end in 0..2 {
        pair.post_recv(end, recv_wr(9, &inbox[end], size)).unwrap();
        pair.post_send(end, send_wr(1, SendOp::Send, &source[end], size))
            .unwrap();
    }
    assert!(pair.run(LONG));
    for end in 0..2 {
        assert_eq!(pair.completions(end).len(), 2);
        assert!(inbox[end].copy() == source[1 - end].copy());
    }
}

#[test]
fn an_unsignalled_request_completes_in_silence_and_frees_its_place() {
    let config = PairConfig {
        depth: 4,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 64);
    let source = Bytes::of(pattern(64, 5));
    for n in 0..40 {
        let mut wr = send_wr(n, common::write_op(&region), &source, 64);
        wr.signaled = n == 39;
        pair.post_send(0, wr).unwrap();
        assert!(pair.run(LONG));
    }
    assert_eq!(
        outcomes(&mut pair, 0),
        [(39, CqeOpcode::Write, Status::Success)]
    );
    assert!(bytes.copy() == pattern(64, 5));
}

#[test]
fn a_solicited_message_says_so() {
    let mut pair = Pair::new(&PairConfig::default());
    let source = Bytes::of(pattern(3000, 5));
    let inbox = Bytes::filled(3000, 0);
    pair.post_recv(1, recv_wr(1, &inbox, 3000)).unwrap();
    pair.post_recv(1, recv_wr(2, &inbox, 3000)).unwrap();
    let mut wr = send_wr(1, SendOp::Send, &source, 3000);
    wr.solicited = true;
    pair.post_send(0, wr).unwrap();
    pair.post_send(0, send_wr(2, SendOp::Send, &source, 3000))
        .unwrap();
    pair.capture();
    assert!(pair.run(LONG));
    let solicited: Vec<bool> = pair.completions(1).iter().map(|c| c.solicited).collect();
    assert_eq!(solicited, [true, false]);
    let bits: Vec<bool> = pair
        .sent
        .iter()
        .filter(|s| s.end == 0)
        .map(|s| s.bth.solicited)
        .collect();
    assert_eq!(
        bits,
        [false, false, true, false, false, false],
        "only on the last packet"
    );

    // A WRITE makes no completion at the peer that could be solicited.
    let (_, region) = target(&mut pair, 3000);
    pair.sent.clear();
    let mut wr = send_wr(3, common::write_op(&region), &source, 3000);
    wr.solicited = true;
    pair.post_send(0, wr).unwrap();
    assert!(pair.run(LONG));
    assert!(pair.sent.iter().all(|s| !s.bth.solicited));
}

#[test]
fn a_clean_wire_at_line_rate_sees_no_retransmission_with_a_short_timeout() {
    // 25 Gb/s, 40 us round trip, ACK timeout 1.05 ms.
    let mut config = PairConfig {
        link_rate: Some(rocexdp_proto::time::Rate::from_gbps(25)),
        ..PairConfig::default()
    };
    for f in &mut config.faults {
        f.delay_ns = 20_000;
    }
    let mut pair = Pair::new(&config);
    let size = 8 << 20;
    let (bytes, region) = target(&mut pair, size);
    let source = Bytes::of(pattern(size, 3));
    for n in 0..4 {
        pair.post_send(0, send_wr(n, common::write_op(&region), &source, size))
            .unwrap();
    }
    assert!(pair.run(LONG));
    assert_eq!(pair.completions(0).len(), 4);
    assert!(bytes.copy() == source.copy());
    let stats = *pair.ends[0]
        .endpoint
        .qp_info(pair.ends[0].qp.qpn)
        .unwrap()
        .stats;
    assert_eq!(
        (stats.retransmitted_packets, stats.local_ack_timeout_err),
        (0, 0)
    );
    assert!(
        pair.now() > Timestamp::from_micros(10_000),
        "it took time: {}",
        pair.now()
    );
}
