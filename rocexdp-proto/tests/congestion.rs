//! DCQCN at the endpoint: CE marks become CNPs, CNPs move the rate as the reaction point says, the pacer keeps to it; and
//! without a mark nothing is ever paced.

mod common;

use core::time::Duration;

use common::{LONG, pattern, send_wr, stats, target, write_op};
use rocexdp_common::fault::{Faults, Share};
use rocexdp_common::opcode::{CNP, rc};
use rocexdp_proto::dcqcn::{ReactionPoint, RpParams};
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::time::{Rate, Timestamp};
use rocexdp_proto::verbs::SendOp;
use rocexdp_proto::{CongestionSignal, Endpoint};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS};

const LINE: Rate = Rate::from_gbps(10);

fn config(ce: Share) -> PairConfig {
    let faults = Faults {
        seed: 4,
        ce,
        delay_ns: 2_000,
        ..Faults::default()
    };
    let mut config = PairConfig {
        faults: [
            faults,
            Faults {
                delay_ns: 2_000,
                ..Faults::default()
            },
        ],
        link_rate: Some(LINE),
        path_mtu: PathMtu::Mtu1024,
        timeout: 14,
        ..PairConfig::default()
    };
    for end in &mut config.endpoint {
        end.line_rate = Some(LINE);
        end.ecn_from_frames = true;
    }
    config
}

fn write(pair: &mut Pair, id: u64, size: usize) -> std::sync::Arc<Bytes> {
    let (bytes, region) = target(pair, size);
    pair.post_send(
        0,
        send_wr(id, write_op(&region), &Bytes::of(pattern(size, id)), size),
    )
    .unwrap();
    bytes
}

fn rate(pair: &Pair) -> Option<Rate> {
    pair.ends[0].endpoint.qp_info(QPNS[0]).unwrap().rate
}

#[test]
fn without_a_mark_a_qp_is_never_paced() {
    let mut pair = Pair::new(&config(Share::NEVER));
    let bytes = write(&mut pair, 1, 4 << 20);
    assert!(pair.run(LONG));
    assert!(bytes.copy() == pattern(4 << 20, 1));
    assert_eq!(rate(&pair), None);
    let (s0, s1) = (stats(&pair, 0), stats(&pair, 1));
    assert_eq!(
        (s0.rate, s0.min_rate, s0.rate_cuts, s1.np_cnp_sent),
        (0, 0, 0, 0)
    );
}

#[test]
fn marks_make_cnps_and_the_rate_moves_exactly_as_the_reaction_point_says() {
    let config = config(Share::ratio(5, 100));
    let mut pair = Pair::new(&config);
    let size = 4 << 20;
    let bytes = write(&mut pair, 1, size);
    pair.capture();
    // Beside the endpoint, a reaction point that is told of the same packets and CNPs at the same times.
    let mut model = ReactionPoint::new(&RpParams::default(), Some(LINE));
    let mut at = 0;
    let (mut cuts, mut slowest) = (0, LINE);
    let mut arrivals = std::collections::VecDeque::new();
    let done = pair.run_while(Timestamp::MAX, |p| {
        for s in p.sent.drain(..) {
            if s.end == 0 {
                model.on_bytes_sent(s.at, s.frame.len() as u64);
            } else if s.bth.opcode == CNP {
                arrivals.push_back(s.at + Duration::from_nanos(2_000));
            }
        }
        while arrivals.front().is_some_and(|t| *t <= p.now()) {
            model.on_cnp(arrivals.pop_front().unwrap(), 1).unwrap();
        }
        if at != p.now().as_nanos() {
            at = p.now().as_nanos();
            cuts = stats(p, 0).rate_cuts;
            slowest = slowest.min(rate(p).unwrap_or(LINE));
        }
        true
    });
    assert!(done);
    assert!(bytes.copy() == pattern(size, 1));
    let now = pair.now();
    pair.ends[0].endpoint.handle_timeout(now);
    model.handle_timeout(now);
    assert_eq!(rate(&pair), model.rate(), "rate");
    let info = pair.ends[0].endpoint.qp_info(QPNS[0]).unwrap();
    assert_eq!((info.target, info.alpha), (model.target(), model.alpha()));
    assert_eq!(
        (cuts, stats(&pair, 0).rp_cnp_handled),
        (model.counters().cuts, model.counters().cnps)
    );
    assert!(
        cuts > 20 && slowest < Rate::from_gbps(3),
        "{cuts} cuts, down to {slowest}"
    );
    assert_eq!(stats(&pair, 0).retransmitted_packets, 0, "slow is not lost");
    let (s0, s1) = (stats(&pair, 0), stats(&pair, 1));
    assert_eq!(s0.rp_cnp_handled, s1.np_cnp_sent);
    assert!(s0.min_rate <= slowest.as_bps() && s0.min_rate > 0);
}

#[test]
fn cnps_keep_their_distance() {
    let mut config = config(Share::ALWAYS);
    config.endpoint[1].np.min_time_between_cnps = Duration::from_micros(50);
    let mut pair = Pair::new(&config);
    write(&mut pair, 1, 1 << 20);
    pair.capture();
    assert!(pair.run(LONG));
    let cnps: Vec<u64> = pair
        .sent
        .iter()
        .filter(|s| s.bth.opcode == CNP)
        .map(|s| s.at.as_nanos())
        .collect();
    assert!(cnps.len() > 10);
    assert!(cnps.windows(2).all(|w| w[1] - w[0] >= 50_000), "{cnps:?}");
    let cnp = pair.sent.iter().find(|s| s.bth.opcode == CNP).unwrap();
    assert_eq!(
        (cnp.frame.len(), cnp.frame[15], cnp.bth.dest_qpn),
        (74, 48 << 2 | 2, QPNS[0])
    );
}

#[test]
fn cnps_can_be_turned_off() {
    let mut config = config(Share::ALWAYS);
    config.endpoint[1].cnp_enabled = false;
    let mut pair = Pair::new(&config);
    write(&mut pair, 1, 1 << 20);
    assert!(pair.run(LONG));
    assert_eq!((rate(&pair), stats(&pair, 1).np_cnp_sent), (None, 0));
}

#[test]
fn cnps_can_be_turned_off_for_a_peer_that_does_not_understand_them() {
    let mut pair = Pair::new(&config(Share::ALWAYS));
    let end = &mut pair.ends[1].endpoint;
    assert!(end.set_cnp(QPNS[1], false));
    assert!(!end.set_cnp(QPNS[0], false), "no such QP here");
    write(&mut pair, 1, 1 << 20);
    assert!(pair.run(LONG));
    assert_eq!((rate(&pair), stats(&pair, 1).np_cnp_sent), (None, 0));
}

/// Signals come from a map, not from frames: the endpoint counts each mark once.
#[test]
fn signals_from_elsewhere_do_the_same_and_frames_then_do_nothing() {
    let mut config = config(Share::ALWAYS);
    config.endpoint[1].ecn_from_frames = false;
    let mut pair = Pair::new(&config);
    write(&mut pair, 1, 64 << 10);
    assert!(pair.run(LONG));
    assert_eq!(stats(&pair, 1).np_cnp_sent, 0);
    let now = pair.now();
    let signal = CongestionSignal {
        ce_marks: 17,
        cnps: 0,
    };
    pair.ends[1]
        .endpoint
        .handle_congestion(now, QPNS[1], signal);
    pair.run(Duration::from_micros(50));
    assert_eq!(
        stats(&pair, 1).np_cnp_sent,
        1,
        "one CNP for all the marks of one look"
    );
    assert_eq!(stats(&pair, 0).rp_cnp_handled, 1);
    let now = pair.now();
    pair.ends[0].endpoint.handle_congestion(
        now,
        QPNS[0],
        CongestionSignal {
            ce_marks: 0,
            cnps: 3,
        },
    );
    assert_eq!(stats(&pair, 0).rp_cnp_handled, 4);
}

/// Sends for `span` at whatever rate the QP has, and gives the rate seen on the wire.
fn throughput(pair: &mut Pair, span: Duration) -> Rate {
    pair.sent.clear();
    let until = pair.now() + span;
    pair.run_while(until, |_| true);
    let bytes: usize = pair
        .sent
        .iter()
        .filter(|s| s.end == 0)
        .map(|s| s.frame.len())
        .sum();
    Rate::measured(bytes as u64, span).unwrap()
}

#[test]
fn the_pacer_holds_the_rate_also_when_sending_again() {
    // No increases, so that the rate stays where the CNPs have put it.
    let mut config = config(Share::NEVER);
    config.endpoint[0].rp.rpg_time_reset = Duration::from_secs(50);
    config.endpoint[0].rp.rpg_byte_reset = 0;
    config.timeout = 10;
    let mut pair = Pair::new(&config);
    write(&mut pair, 1, 16 << 20);
    pair.capture();
    throughput(&mut pair, Duration::from_millis(1));
    for _ in 0..6 {
        let now = pair.now();
        pair.ends[0].endpoint.handle_congestion(
            now,
            QPNS[0],
            CongestionSignal {
                ce_marks: 0,
                cnps: 1,
            },
        );
        pair.run(Duration::from_micros(20));
    }
    let held = rate(&pair).unwrap();
    assert!(held < Rate::from_gbps(2), "{held}");
    let close = |seen: Rate, what: &str| {
        let share = seen.as_bps() as f64 / held.as_bps() as f64;
        assert!(
            (0.98..1.02).contains(&share),
            "{what}: {seen} instead of {held}"
        );
    };
    close(
        throughput(&mut pair, Duration::from_millis(5)),
        "new packets",
    );
    // Every ninth packet is lost: most of what is sent is sent again, and no faster.
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n % 9 == 0 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let seen = throughput(&mut pair, Duration::from_millis(5));
    assert!(
        seen.as_bps() <= held.as_bps() + held.as_bps() / 50,
        "{seen} instead of {held}"
    );
    assert!(stats(&pair, 0).retransmitted_packets > 30);
}

#[test]
fn acknowledgements_and_cnps_are_not_paced() {
    let mut config = config(Share::NEVER);
    config.endpoint[0].rp.rpg_max_rate = Rate::from_mbps(1);
    let mut pair = Pair::new(&config);
    write(&mut pair, 1, 1 << 20);
    pair.run(Duration::from_micros(50));
    let now = pair.now();
    for (end, qpn) in pair.ends.iter_mut().zip(QPNS) {
        let signal = CongestionSignal {
            ce_marks: 0,
            cnps: 1,
        };
        end.endpoint.handle_congestion(now, qpn, signal);
    }
    pair.run(Duration::from_millis(1));
    pair.capture();
    let inbox = Bytes::filled(100, 0);
    pair.post_recv(0, common::recv_wr(1, &inbox, 100)).unwrap();
    pair.post_send(
        1,
        send_wr(9, SendOp::Send, &Bytes::of(pattern(100, 1)), 100),
    )
    .unwrap();
    let now = pair.now();
    pair.ends[0].endpoint.handle_congestion(
        now,
        QPNS[0],
        CongestionSignal {
            ce_marks: 1,
            cnps: 0,
        },
    );
    pair.run(Duration::from_micros(20));
    let left: Vec<_> = pair
        .sent
        .iter()
        .filter(|s| s.end == 0)
        .map(|s| s.bth.opcode)
        .collect();
    assert_eq!(
        left,
        [CNP, rc::ACKNOWLEDGE],
        "a request of 8 ms at 1 Mb/s is not due"
    );
}

#[test]
fn where_no_line_rate_is_known_the_measured_rate_is_the_ceiling() {
    let mut config = config(Share::NEVER);
    config.endpoint[0].line_rate = None;
    config.endpoint[0].rp.rpg_time_reset = Duration::from_micros(20);
    let mut pair = Pair::new(&config);
    write(&mut pair, 1, 16 << 20);
    pair.run(Duration::from_millis(3));
    let now = pair.now();
    pair.ends[0].endpoint.handle_congestion(
        now,
        QPNS[0],
        CongestionSignal {
            ce_marks: 0,
            cnps: 1,
        },
    );
    let ceiling = rate(&pair).unwrap().as_bps() as f64;
    assert!(
        (0.95..1.05).contains(&(ceiling / 1e10)),
        "measured {ceiling} of 10 Gb/s"
    );
    // It recovers to that, and is then unpaced again.
    write(&mut pair, 2, 32 << 20);
    pair.run(Duration::from_millis(25));
    assert_eq!(rate(&pair), None);
}

#[test]
fn a_cnp_for_a_qp_that_has_sent_nothing_cuts_nothing() {
    let mut pair = Pair::new(&config(Share::NEVER));
    let ep: &mut Endpoint = &mut pair.ends[0].endpoint;
    ep.handle_congestion(
        Timestamp::from_micros(5),
        QPNS[0],
        CongestionSignal {
            ce_marks: 0,
            cnps: 1000,
        },
    );
    assert_eq!(rate(&pair), None);
}

/// Paced so slowly that packets are farther apart than the ACK timeout: only where an answer is due may its absence count.
#[test]
fn slow_is_not_late() {
    let mut config = config(Share::NEVER);
    config.endpoint[0].rp.rpg_max_rate = Rate::from_mbps(1);
    config.endpoint[0].ack_req_interval = 5;
    config.timeout = 9; // 2.1 ms; a packet takes 8.7 ms.
    for faults in &mut config.faults {
        faults.delay_ns = 10_000;
    }
    let mut pair = Pair::new(&config);
    let size = 20 << 10;
    let bytes = write(&mut pair, 1, size);
    // The 13th packet is lost; all others have left by the time the peer says so. Then it gets slow.
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n == 12 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    pair.run(Duration::from_micros(25));
    let now = pair.now();
    let signal = CongestionSignal {
        ce_marks: 0,
        cnps: 1,
    };
    pair.ends[0]
        .endpoint
        .handle_congestion(now, QPNS[0], signal);
    assert!(pair.run(LONG));
    assert!(bytes.copy() == pattern(size, 1));
    let s = stats(&pair, 0);
    assert_eq!((s.packet_seq_err, s.local_ack_timeout_err), (1, 0));
    assert_eq!(s.retransmitted_packets, 8);
    assert!(
        pair.now() > Timestamp::from_micros(40_000),
        "{}",
        pair.now()
    );
}
