//! RC under drop, duplicate, reorder and corruption, seeded and all at once, across the PSN wrap: every byte arrives, every
//! completion comes once and in order, and it ends.

mod common;

use common::{LONG, pattern, recv_wr, send_wr, target};
use rocexdp_common::fault::{Faults, Share};
use rocexdp_proto::ids::{PathMtu, Psn};
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig};

fn percent(n: u32) -> Share {
    Share::ratio(n, 100)
}

fn config(faults: Faults) -> PairConfig {
    let faults = Faults {
        delay_ns: 2_000,
        ..faults
    };
    PairConfig {
        faults: [
            faults,
            Faults {
                seed: faults.seed ^ 0xff,
                ..faults
            },
        ],
        path_mtu: PathMtu::Mtu256,
        // 262 us: short runs, yet far above the round trip and above what a reordered packet is held (1 ms) only sometimes.
        timeout: 6,
        psn: [Psn::new(0xff_fff0), Psn::new(0xff_ffff)],
        ..PairConfig::default()
    }
}

/// Messages of both kinds and many sizes each way; checks all that RC promises. Gives how many packets were sent again.
fn exchange(config: &PairConfig, messages: u64) -> u64 {
    let what = format!("{:?}", config.faults[0]);
    let mut pair = Pair::new(config);
    let size = |n: u64| [0usize, 1, 255, 256, 257, 700, 5_000, 20_000][(n % 8) as usize];
    let (memory, region) = target(&mut pair, 20_000 * messages as usize);
    let mut inboxes: [Vec<_>; 2] = [Vec::new(), Vec::new()];
    for (end, inboxes) in inboxes.iter_mut().enumerate() {
        for n in 0..messages {
            let inbox = Bytes::filled(20_000, 0);
            pair.post_recv(end, recv_wr(1_000 + n, &inbox, 20_000))
                .unwrap();
            inboxes.push(inbox);
        }
    }
    for n in 0..messages {
        for end in 0..2usize {
            let source = Bytes::of(pattern(size(n), n + 100 * end as u64));
            let va = region.va + 20_000 * n;
            let op = match (end, n % 3) {
                (0, 0) => SendOp::Write {
                    va,
                    rkey: region.rkey,
                },
                (0, 1) => SendOp::WriteImm {
                    va,
                    rkey: region.rkey,
                    imm: n as u32,
                },
                (_, 2) => SendOp::SendImm(n as u32),
                _ => SendOp::Send,
            };
            pair.post_send(end, send_wr(n, op, &source, size(n)))
                .unwrap();
        }
    }
    for end in 0..2 {
        let expected = messages as usize * 2
            - if end == 1 {
                messages.div_ceil(3) as usize
            } else {
                0
            };
        assert!(
            pair.run_until_completions(end, expected, LONG),
            "{what}: {} at {end}",
            pair.ends[end].cq.len()
        );
    }
    pair.run(LONG);

    for (end, inboxes) in inboxes.iter().enumerate() {
        let (mut sent, mut received) = (0, 0);
        let all = pair.completions(end);
        for c in all {
            assert_eq!(c.status, Status::Success, "{what}");
            if matches!(c.opcode, CqeOpcode::Send | CqeOpcode::Write) {
                assert_eq!(c.wr_id.0, sent, "{what}: sends complete in order");
                sent += 1;
            } else {
                assert_eq!(
                    c.wr_id.0,
                    1_000 + received,
                    "{what}: receives complete in order"
                );
                received += 1;
            }
        }
        assert_eq!(sent, messages, "{what}");
        let from = 1 - end;
        let mut inbox = inboxes.iter();
        for n in 0..messages {
            let data = pattern(size(n), n + 100 * from as u64);
            let written = from == 0 && n % 3 != 2;
            if written {
                let at = 20_000 * n as usize;
                let bytes = memory.copy();
                assert!(bytes[at..at + size(n)] == data, "{what}: WRITE {n}");
                assert!(
                    bytes[at + size(n)..at + 20_000].iter().all(|b| *b == 0),
                    "{what}: WRITE {n}: no byte beyond"
                );
            }
            // A WRITE with immediate consumes a receive request without its memory.
            if written && n % 3 == 0 {
                continue;
            }
            let inbox = inbox.next().unwrap().copy();
            let bytes = if written { &[][..] } else { &data[..] };
            assert!(
                inbox[..bytes.len()] == *bytes,
                "{what}: message {n} to {end}"
            );
            assert!(
                inbox[bytes.len()..].iter().all(|b| *b == 0),
                "{what}: message {n} to {end}: no byte beyond"
            );
        }
    }
    let again = |e: usize| {
        pair.ends[e]
            .endpoint
            .qp_info(pair.ends[e].qp.qpn)
            .unwrap()
            .stats
            .retransmitted_packets
    };
    again(0) + again(1)
}

#[test]
fn one_percent_of_each_fault_alone() {
    for seed in 0..8 {
        let p = percent(1);
        let cases = [
            Faults {
                seed,
                drop: p,
                ..Faults::default()
            },
            Faults {
                seed,
                corrupt: p,
                ..Faults::default()
            },
            Faults {
                seed,
                duplicate: p,
                ..Faults::default()
            },
            Faults {
                seed,
                reorder: p,
                ..Faults::default()
            },
        ];
        for faults in cases {
            exchange(&config(faults), 48);
        }
    }
}

#[test]
fn all_faults_at_once_up_to_ten_percent() {
    let mut again = 0;
    for seed in 0..24 {
        let p = percent([1, 3, 10][seed as usize % 3]);
        let faults = Faults {
            seed,
            drop: p,
            corrupt: p,
            duplicate: p,
            reorder: p,
            ..Faults::default()
        };
        // Bursts of loss this dense may exceed seven retries; what is under test is the bytes.
        let mut config = config(faults);
        config.path_mtu = PathMtu::ALL[seed as usize % 5];
        config.endpoint[0].max_inflight_packets = 16;
        config.endpoint[0].ack_req_interval = 4;
        config.endpoint[1] = config.endpoint[0].clone();
        again += exchange(&config, 48);
    }
    assert!(again > 1_000, "the faults had work to do: {again}");
}

#[test]
fn duplicates_alone_cause_no_retransmission() {
    let faults = Faults {
        seed: 3,
        duplicate: percent(50),
        ..Faults::default()
    };
    assert_eq!(exchange(&config(faults), 48), 0);
}

#[test]
fn a_run_repeats_bit_for_bit() {
    let faults = Faults {
        seed: 5,
        drop: percent(3),
        reorder: percent(3),
        ..Faults::default()
    };
    let run = || {
        let mut pair = Pair::new(&config(faults));
        let (_, region) = target(&mut pair, 100_000);
        pair.capture();
        let source = Bytes::of(pattern(100_000, 1));
        pair.post_send(0, send_wr(1, common::write_op(&region), &source, 100_000))
            .unwrap();
        assert!(pair.run(LONG));
        pair.sent
            .iter()
            .map(|s| (s.at, s.end, s.frame.clone()))
            .collect::<Vec<_>>()
    };
    let first = run();
    assert!(first.len() > 500 && first == run());
}

#[test]
fn a_long_message_crosses_the_psn_wrap_under_loss() {
    let faults = Faults {
        seed: 9,
        drop: percent(1),
        ..Faults::default()
    };
    let mut config = config(faults);
    config.psn[0] = Psn::new(0xff_ff00);
    let mut pair = Pair::new(&config);
    let size = 300_000;
    let (bytes, region) = target(&mut pair, size);
    let source = Bytes::of(pattern(size, 1));
    pair.post_send(0, send_wr(1, common::write_op(&region), &source, size))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        common::outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::Success)]
    );
    assert!(bytes.copy() == source.copy());
    let info = pair.ends[1].endpoint.qp_info(pair.ends[1].qp.qpn).unwrap();
    assert_eq!(
        info.expected_psn,
        Psn::new(0xff_ff00).add(PathMtu::Mtu256.packets(size as u32))
    );
}
