//! Silence and unreadiness: ACK timeout, RNR NAK, their counters, and what becomes of a QP that fails.

mod common;

use std::time::Duration;

use common::{
    Craft, LONG, answers, outcomes, pattern, recv_wr, requests, send_wr, state, stats, target,
    write_op,
};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CqeOpcode, PostError, SendOp, Status};
use rocexdp_proto::{ErrorCause, Event, QpState, QpTransition, SelectiveRepeat};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS};

const FIRST: Psn = Psn::new(0xff_fff0);

fn small() -> PairConfig {
    PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    }
}

#[test]
fn without_an_answer_it_is_tried_retry_cnt_times_and_then_fails() {
    // retry_cnt 7 is seven, not "for ever": a dead peer must show.
    for retry_cnt in [0u8, 3, 7] {
        let config = PairConfig {
            retry_cnt,
            timeout: 8,
            ..small()
        };
        let mut pair = Pair::new(&config);
        let (_, region) = target(&mut pair, 512);
        for n in 0..3 {
            pair.post_send(
                0,
                send_wr(n, write_op(&region), &Bytes::of(pattern(512, n)), 512),
            )
            .unwrap();
        }
        pair.post_recv(0, recv_wr(10, &Bytes::filled(8, 0), 8))
            .unwrap();
        pair.script = Some(Box::new(
            |end, _, _, _| if end == 0 { Fate::Drop } else { Fate::Pass },
        ));
        assert!(pair.run(LONG), "it ends");
        // 4.096 us x 2^8, once and then for each retry.
        let expected = Timestamp::from_nanos((4096 << 8) * (u64::from(retry_cnt) + 1));
        assert_eq!(pair.now(), expected, "retry_cnt {retry_cnt}");
        assert_eq!(
            outcomes(&mut pair, 0),
            [
                (0, CqeOpcode::Write, Status::RetryExcErr),
                (1, CqeOpcode::Write, Status::WrFlushErr),
                (2, CqeOpcode::Write, Status::WrFlushErr),
                (10, CqeOpcode::Recv, Status::WrFlushErr),
            ]
        );
        assert_eq!(state(&pair, 0), QpState::Err);
        let cause = ErrorCause::Request(Status::RetryExcErr);
        assert_eq!(
            pair.ends[0].events,
            [Event::QpError {
                qpn: QPNS[0],
                cause
            }]
        );
        assert_eq!(
            stats(&pair, 0).local_ack_timeout_err,
            u64::from(retry_cnt) + 1
        );
        assert_eq!(
            stats(&pair, 0).retransmitted_packets,
            6 * u64::from(retry_cnt)
        );
    }
}

#[test]
fn progress_reloads_the_retry_counter() {
    // Every third packet is lost: far more retries than retry_cnt, but never that many in a row.
    let config = PairConfig {
        retry_cnt: 2,
        ..small()
    };
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 20 * 256);
    pair.post_send(
        0,
        send_wr(
            1,
            write_op(&region),
            &Bytes::of(pattern(20 * 256, 1)),
            20 * 256,
        ),
    )
    .unwrap();
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n % 3 == 1 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::Success)]
    );
    assert!(bytes.copy() == pattern(20 * 256, 1));
    let s = stats(&pair, 0);
    assert!(s.packet_seq_err + s.local_ack_timeout_err > 4);
}

#[test]
fn copies_of_one_nak_go_back_once_and_cost_one_retry() {
    let config = PairConfig {
        retry_cnt: 3,
        ..small()
    };
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 512);
    pair.post_send(
        0,
        send_wr(1, write_op(&region), &Bytes::of(pattern(512, 1)), 512),
    )
    .unwrap();
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n < 2 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    pair.run(Duration::from_micros(1));
    let nak = Craft::new(1, rc::ACKNOWLEDGE, FIRST).aeth(Syndrome::NakSequence);
    for _ in 0..10 {
        pair.inject(0, nak.frame(&config, 1));
    }
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::Success)]
    );
    assert!(bytes.copy() == pattern(512, 1));
    let s = stats(&pair, 0);
    assert_eq!(
        (
            s.packet_seq_err,
            s.retransmitted_packets,
            s.local_ack_timeout_err
        ),
        (1, 2, 0)
    );
}

#[test]
fn naks_without_progress_exhaust_the_retries_too() {
    let config = PairConfig {
        retry_cnt: 3,
        ..small()
    };
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 512);
    pair.post_send(
        0,
        send_wr(1, write_op(&region), &Bytes::of(pattern(512, 1)), 512),
    )
    .unwrap();
    // Nothing reaches the peer, and someone says so each time.
    pair.script = Some(Box::new(|_, _, _, _| Fate::Drop));
    for tries in 0..4 {
        pair.run(Duration::from_micros(1));
        assert_eq!(stats(&pair, 0).packet_seq_err, tries);
        let nak = Craft::new(1, rc::ACKNOWLEDGE, FIRST).aeth(Syndrome::NakSequence);
        pair.inject(0, nak.frame(&config, 1));
    }
    pair.run(Duration::from_micros(1));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::RetryExcErr)]
    );
}

#[test]
fn no_packet_before_the_rnr_timer() {
    // Code 14 is 1.28 ms. The receive request comes after 3 ms.
    let config = PairConfig {
        min_rnr_timer: 14,
        ..small()
    };
    let mut pair = Pair::new(&config);
    let source = Bytes::of(pattern(2000, 1));
    pair.post_send(0, send_wr(1, SendOp::Send, &source, 2000))
        .unwrap();
    pair.capture();
    pair.run(Duration::from_millis(3));
    let inbox = Bytes::filled(2000, 0);
    pair.post_recv(1, recv_wr(5, &inbox, 2000)).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::Success)]
    );
    assert!(inbox.copy() == pattern(2000, 1));

    // Bursts of 8 packets; only the first of each draws an answer, the rest is dropped in silence.
    let starts: Vec<u64> = pair
        .sent
        .iter()
        .filter(|s| s.end == 0 && s.bth.psn == FIRST)
        .map(|s| s.at.as_nanos())
        .collect();
    let period = 1_280_000 + 4_000;
    assert_eq!(
        starts,
        [0, period, 2 * period, 3 * period],
        "the timer starts when the NAK arrives"
    );
    let naks = vec![(FIRST, Syndrome::RnrNak(14)); 3];
    assert_eq!(answers(&pair.sent, 1)[..3], naks);
    assert_eq!(answers(&pair.sent, 1).len(), 4);
    let s = stats(&pair, 0);
    assert_eq!((s.rnr_naks_received, s.local_ack_timeout_err), (3, 0));
    for s in pair.sent.iter().filter(|s| s.end == 0) {
        assert!(
            starts.contains(&s.at.as_nanos()),
            "{}: within the timer",
            s.at
        );
    }
}

#[test]
fn nothing_ends_an_rnr_wait_early() {
    let config = PairConfig {
        min_rnr_timer: 14,
        ..small()
    };
    let mut pair = Pair::new(&config);
    pair.post_send(
        0,
        send_wr(1, SendOp::Send, &Bytes::of(pattern(2000, 1)), 2000),
    )
    .unwrap();
    pair.run(Duration::from_micros(100));
    pair.capture();
    // Another NAK, a second RNR NAK with a short timer, a doorbell.
    for syndrome in [
        Syndrome::NakSequence,
        Syndrome::RnrNak(1),
        Syndrome::Ack(0x1f),
    ] {
        let psn = if syndrome == Syndrome::Ack(0x1f) {
            FIRST.sub(1)
        } else {
            FIRST
        };
        pair.inject(
            0,
            Craft::new(1, rc::ACKNOWLEDGE, psn)
                .aeth(syndrome)
                .frame(&config, 1),
        );
        pair.run(Duration::from_micros(100));
    }
    pair.post_send(0, send_wr(2, SendOp::Send, &Bytes::of(pattern(10, 1)), 10))
        .unwrap();
    pair.run(Duration::from_micros(800));
    assert_eq!(requests(&pair.sent, 0, FIRST), [] as [i32; 0]);
    pair.run(Duration::from_micros(100));
    assert_eq!(requests(&pair.sent, 0, FIRST), (0..9).collect::<Vec<_>>());
}

#[test]
fn rnr_retries_are_counted_and_seven_means_for_ever() {
    let config = PairConfig {
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..small()
    };
    let mut pair = Pair::new(&config);
    pair.post_send(0, send_wr(1, SendOp::Send, &Bytes::of(pattern(10, 1)), 10))
        .unwrap();
    pair.post_send(0, send_wr(2, SendOp::Send, &Bytes::of(pattern(10, 1)), 10))
        .unwrap();
    assert!(pair.run(LONG));
    let failed = [
        (1, CqeOpcode::Send, Status::RnrRetryExcErr),
        (2, CqeOpcode::Send, Status::WrFlushErr),
    ];
    assert_eq!(outcomes(&mut pair, 0), failed);
    assert_eq!(stats(&pair, 1).tx_rnr_naks, 3);
    assert_eq!(state(&pair, 1), QpState::Rts, "the responder lives");

    let config = PairConfig {
        rnr_retry: 7,
        min_rnr_timer: 1,
        ..small()
    };
    let mut pair = Pair::new(&config);
    pair.post_send(0, send_wr(1, SendOp::Send, &Bytes::of(pattern(10, 1)), 10))
        .unwrap();
    pair.run(Duration::from_millis(100));
    assert!(stats(&pair, 0).rnr_naks_received > 1_000);
    pair.post_recv(1, recv_wr(1, &Bytes::filled(10, 0), 10))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::Success)]
    );
}

#[test]
fn a_write_with_immediate_waits_for_a_receive_request_at_its_end_only() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 1000);
    let op = SendOp::WriteImm {
        va: region.va,
        rkey: region.rkey,
        imm: 9,
    };
    pair.post_send(0, send_wr(1, op, &Bytes::of(pattern(1000, 1)), 1000))
        .unwrap();
    pair.capture();
    pair.run(Duration::from_micros(100));
    assert_eq!(
        answers(&pair.sent, 1),
        [(FIRST.add(3), Syndrome::RnrNak(12))]
    );
    assert!(bytes.copy()[..768] == pattern(1000, 1)[..768]);
    assert!(
        bytes.copy()[768..].iter().all(|b| *b == 0),
        "the last packet was not executed"
    );
    pair.post_recv(1, recv_wr(5, &Bytes::filled(0, 0), 0))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(requests(&pair.sent, 0, FIRST), [0, 1, 2, 3, 3]);
    assert!(bytes.copy() == pattern(1000, 1));
    let c = pair.completions(1)[0];
    assert_eq!(
        (c.opcode, c.imm, c.byte_len),
        (CqeOpcode::RecvWriteImm, Some(9), 1000)
    );
}

#[test]
fn to_err_every_posted_request_is_flushed_and_later_ones_too() {
    let mut pair = Pair::new(&small());
    let (_, region) = target(&mut pair, 512);
    pair.script = Some(Box::new(|_, _, _, _| Fate::Drop));
    for n in 0..64 {
        pair.post_send(
            0,
            send_wr(n, write_op(&region), &Bytes::of(pattern(512, n)), 512),
        )
        .unwrap();
        pair.post_recv(0, recv_wr(100 + n, &Bytes::filled(8, 0), 8))
            .unwrap();
    }
    let over = send_wr(64, write_op(&region), &Bytes::of(pattern(512, 0)), 512);
    assert_eq!(pair.post_send(0, over.clone()), Err(PostError::Full));
    // Half of them on the wire.
    pair.run(Duration::from_micros(50));
    pair.ends[0]
        .endpoint
        .modify_qp(pair.now(), QPNS[0], QpTransition::Err)
        .unwrap();
    let all = outcomes(&mut pair, 0);
    let expected: Vec<_> = (0..64)
        .map(|n| (n, CqeOpcode::Write, Status::WrFlushErr))
        .chain((100..164).map(|n| (n, CqeOpcode::Recv, Status::WrFlushErr)))
        .collect();
    assert_eq!(all, expected);
    pair.post_send(0, over).unwrap();
    pair.post_recv(0, recv_wr(165, &Bytes::filled(8, 0), 8))
        .unwrap();
    let late = [
        (64, CqeOpcode::Write, Status::WrFlushErr),
        (165, CqeOpcode::Recv, Status::WrFlushErr),
    ];
    assert_eq!(outcomes(&mut pair, 0), late);
    assert!(pair.run(LONG), "no timer is left");
    assert_eq!(pair.ends[0].events, [], "asked for, so no news");
    assert_eq!(stats(&pair, 0).outstanding, 0);
}

#[test]
fn after_reset_a_qp_can_be_used_again() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 512);
    let write = |n| send_wr(n, write_op(&region), &Bytes::of(pattern(512, n)), 512);
    pair.script = Some(Box::new(|_, _, _, _| Fate::Drop));
    for n in 0..5 {
        pair.post_send(0, write(n)).unwrap();
    }
    pair.run(Duration::from_micros(50));
    pair.script = None;
    pair.reconnect(&config);
    assert_eq!(outcomes(&mut pair, 0), [], "RESET completes nothing");
    assert_eq!(pair.ends[0].qp.sq.len(), 0);
    pair.post_send(0, write(9)).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(9, CqeOpcode::Write, Status::Success)]
    );
    assert!(bytes.copy() == pattern(512, 9));
}

#[test]
fn a_peer_that_vanishes_in_the_middle_is_an_error_within_the_budget() {
    let config = PairConfig {
        timeout: 8,
        retry_cnt: 3,
        ..small()
    };
    let mut pair = Pair::new(&config);
    let size = 1 << 20;
    let (_, region) = target(&mut pair, size);
    pair.post_send(
        0,
        send_wr(1, write_op(&region), &Bytes::of(pattern(size, 1)), size),
    )
    .unwrap();
    pair.script = Some(Box::new(
        |_, n, _, _| if n > 500 { Fate::Drop } else { Fate::Pass },
    ));
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::RetryExcErr)]
    );
    assert!(
        pair.now() < Timestamp::from_micros(4 * 1_049 + 500),
        "{}",
        pair.now()
    );
}

#[test]
fn memory_that_goes_away_fails_the_request_and_no_garbage_is_taken() {
    let mut pair = Pair::new(&small());
    let (bytes, region) = target(&mut pair, 512);
    let source = Bytes::of(pattern(512, 1));
    pair.post_send(
        0,
        send_wr(1, write_op(&region), &Bytes::of(pattern(512, 2)), 512),
    )
    .unwrap();
    pair.post_send(0, send_wr(2, write_op(&region), &source, 512))
        .unwrap();
    pair.post_send(0, send_wr(3, write_op(&region), &source, 512))
        .unwrap();
    source.take_away();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [
            (1, CqeOpcode::Write, Status::Success),
            (2, CqeOpcode::Write, Status::LocProtErr),
            (3, CqeOpcode::Write, Status::WrFlushErr),
        ],
        "what was posted before is answered first"
    );
    assert!(
        bytes.copy() == pattern(512, 2),
        "the peer took nothing of the failed packet"
    );
    let drops = pair.ends[1].endpoint.counters().drops;
    assert_eq!(drops.iter().sum::<u64>(), 1, "a frame that says nothing");
    assert_eq!(state(&pair, 0), QpState::Err);
}

#[test]
fn a_request_whose_memory_goes_away_waits_for_those_before_it_also_if_they_have_to_be_sent_again() {
    for selective in [false, true] {
        // What was lost is sent again, or nobody ever answers.
        for dead in [false, true] {
            let config = PairConfig {
                timeout: 8,
                retry_cnt: 2,
                selective: selective.then_some(SelectiveRepeat { paths: 1 }),
                ..small()
            };
            let mut pair = Pair::new(&config);
            let (bytes, region) = target(&mut pair, 1024);
            let (good, source) = (pattern(1024, 2), Bytes::of(pattern(1024, 1)));
            pair.script = Some(Box::new(move |end, n, _, _| {
                if end == 0 && (dead || n < 2) {
                    Fate::Drop
                } else {
                    Fate::Pass
                }
            }));
            for (n, data) in [(1, &Bytes::of(good.clone())), (2, &source), (3, &source)] {
                pair.post_send(0, send_wr(n, write_op(&region), data, 1024))
                    .unwrap();
            }
            source.take_away();
            assert!(pair.run(LONG));
            let (first, second) = if dead {
                (Status::RetryExcErr, Status::WrFlushErr)
            } else {
                (Status::Success, Status::LocProtErr)
            };
            assert_eq!(
                outcomes(&mut pair, 0),
                [
                    (1, CqeOpcode::Write, first),
                    (2, CqeOpcode::Write, second),
                    (3, CqeOpcode::Write, Status::WrFlushErr),
                ],
                "selective {selective}"
            );
            assert_eq!(bytes.copy() == good, !dead);
            let again = stats(&pair, 0).retransmitted_packets;
            assert!(again >= 2, "{again} packets again");
            assert_eq!(state(&pair, 0), QpState::Err);
        }
    }
}

#[test]
fn a_request_whose_memory_goes_away_but_which_the_peer_has_succeeds_and_what_is_behind_it_goes_on()
{
    for selective in [false, true] {
        let config = PairConfig {
            timeout: 8,
            selective: selective.then_some(SelectiveRepeat { paths: 1 }),
            ..small()
        };
        let mut pair = Pair::new(&config);
        let (bytes, region) = target(&mut pair, 1024);
        let (good, source) = (pattern(1024, 2), Bytes::of(pattern(1024, 1)));
        let good = Bytes::of(good);
        let answers = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let answering = answers.clone();
        pair.script = Some(Box::new(move |end, _, _, _| {
            let lost = end == 1 && !answering.load(std::sync::atomic::Ordering::Relaxed);
            if lost { Fate::Drop } else { Fate::Pass }
        }));
        for (n, data) in [(1, &good), (2, &source)] {
            pair.post_send(0, send_wr(n, write_op(&region), data, 1024))
                .unwrap();
        }
        // All of both arrives, and no acknowledgement of it.
        let until = pair.now() + Duration::from_micros(200);
        pair.run_while(until, |_| true);
        assert_eq!(bytes.copy(), source.copy());
        source.take_away();
        answers.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(pair.run(LONG));
        pair.post_send(0, send_wr(3, write_op(&region), &good, 1024))
            .unwrap();
        assert!(pair.run(LONG));
        assert_eq!(
            outcomes(&mut pair, 0),
            [1, 2, 3].map(|n| (n, CqeOpcode::Write, Status::Success)),
            "selective {selective}"
        );
        assert_eq!(bytes.copy(), good.copy());
        let again = stats(&pair, 0).retransmitted_packets;
        assert!(again > 4, "the second one was to be sent again: {again}");
    }
}
