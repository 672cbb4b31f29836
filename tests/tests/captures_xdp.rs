//! Every packet of every capture through the real XDP program in the kernel, by `BPF_PROG_TEST_RUN`: verdict and every map
//! after every packet are those of the pure verdict, with the flows as another's, and with each host's QPs as ours.

mod captures_support;
#[allow(dead_code, reason = "the fixtures' tests use the rest")]
#[path = "xdp_testrun/kernel.rs"]
mod kernel;
#[path = "../../rocexdp-common/tests/support/mod.rs"]
mod support;

use captures_support::{files, frames, name};
use kernel::{Kernel, SLOTS, Stage, TOLD, assert_same};
use rocexdp_common::{
    dissect::{Kind, dissect},
    ids::Gid,
    maps::{PROGRAM_FRAGS, PROGRAM_PLAIN, QpConfig, local_addr},
    parse::{Packet, parse},
    verdict::{Action, Outcome},
};
use support::{
    encap,
    model::Model,
    packet::{Random, seal},
};

/// A capture's name, its frames and, of each that is RoCEv2, the packet.
struct Capture {
    name: String,
    frames: Vec<(Vec<u8>, Option<Packet>)>,
}

fn captures() -> Vec<Capture> {
    let captures = files().into_iter().map(|path| Capture {
        name: name(&path),
        frames: frames(&path)
            .into_iter()
            .map(|frame| {
                let packet = parse(&frame[..]).ok();
                (frame, packet)
            })
            .collect(),
    });
    captures.collect()
}

/// Runs a capture through both, comparing after every packet; counts outcomes.
fn run(kernel: &Kernel, model: &mut Model, capture: &Capture, seen: &mut [u32; 3]) {
    for (number, (frame, packet)) in (1..).zip(&capture.frames) {
        let what = format!("{}, frame {number}", capture.name);
        let outcome = model.run(&frame[..]);
        assert_eq!(
            packet.is_some(),
            !matches!(outcome, Outcome::PassedOther(_)),
            "{what}: {outcome:?}"
        );
        let action = kernel.run(frame);
        assert_eq!(action, outcome.action(), "{what}: {outcome:?}");
        seen[action as usize] += 1;
        assert_same(kernel, model);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn captured_packets_of_others_are_counted_as_the_pure_verdict_says() {
    Stage::run(|| {
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            let kernel = Kernel::load(program);
            let mut model = Model::new(SLOTS as usize, TOLD as usize);
            let mut seen = [0; 3];
            for capture in captures() {
                run(&kernel, &mut model, &capture, &mut seen);
            }
            let maps = kernel.maps();
            let books = maps.queue_counters[0];
            assert_eq!((books.rocev2, books.passed_rocev2), (944, 944), "{program}");
            assert_eq!(seen[Action::Pass as usize], books.frames as u32);
            assert_eq!(maps.flows.len(), model.flows.len());
            assert!(maps.flows.len() > 100, "{} flows", maps.flows.len());
        }
    });
}

/// The QPs that packets to this address go to, as ours: their address, their peer's, the first PSN of each stream.
fn local_qps(capture: &Capture, local: Gid, resync: u32) -> Model {
    let mut model = Model::new(SLOTS as usize, TOLD as usize);
    for packet in capture.frames.iter().filter_map(|(_, p)| *p) {
        if packet.flow.dst != local {
            continue;
        }
        let opcode = packet.bth.opcode;
        let slot = (packet.flow.dest_qpn & (SLOTS - 1)) as usize;
        let config = &mut model.configs[slot];
        if config.generation == 0 {
            *config = QpConfig {
                generation: 1,
                qpn: packet.flow.dest_qpn,
                peer_qpn: 0x11,
                local_gid: local,
                peer_gid: packet.flow.src,
                resync,
                resync_request_psn: packet.bth.psn.get(),
                resync_response_psn: packet.bth.psn.get(),
                transport: opcode.transport() as u8,
                path_mtu_log2: if capture.name.contains("4096") {
                    12
                } else {
                    10
                },
                ..QpConfig::default()
            };
        }
        assert_eq!(
            config.qpn, packet.flow.dest_qpn,
            "{}: two QPs of one slot",
            capture.name
        );
    }
    model
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn captured_packets_to_each_hosts_qps_as_ours_do_as_the_pure_verdict_says() {
    let a = |n| rocexdp_common::ids::gid_from_ipv4([10, 77, 0, n]);
    let six = |n| [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n];
    Stage::run(|| {
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            for hosts in [[a(2), six(2)], [a(3), six(3)]] {
                let mut kernel = Kernel::load(program);
                let mut model = Model::new(SLOTS as usize, TOLD as usize);
                model.addresses = hosts.map(|gid| (gid, local_addr::EXCLUSIVE)).into();
                kernel.open_socket(0);
                model.sockets.push(0);
                let mut seen = [0; 3];
                for (resync, capture) in (1..).zip(captures()) {
                    // Counters stay, the QPs are others.
                    for local in hosts {
                        let qps = local_qps(&capture, local, resync);
                        if qps.configs.iter().any(|c| c.generation != 0) {
                            model.configs = qps.configs;
                        }
                    }
                    kernel.configure(&model);
                    run(&kernel, &mut model, &capture, &mut seen);
                }
                let books = kernel.maps().queue_counters[0];
                assert_eq!(books.rocev2, 944, "{program}");
                assert_eq!(books.redirected, u64::from(seen[Action::Redirect as usize]));
                assert_eq!(
                    books.dropped, 0,
                    "every packet to the host is to one of its QPs"
                );
                assert!(books.redirected > 300, "{books:?}");
            }
        }
    });
}

/// Changes a frame a little; mostly so that what can be checked further on is reached.
fn mutate(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        let at = random.below(frame.len().min(120));
        frame[at] = if random.chance(2) {
            random.next() as u8
        } else {
            frame[at] ^ 1 << random.below(8)
        };
    }
    if let Ok(p) = parse(&frame[..])
        && random.chance(2)
    {
        let at = p.udp_at as usize;
        match random.below(4) {
            0 => frame[at + 8] = [0x81, 0x04, 0x11, 0x0c, 0x64, 0x24][random.below(6)],
            1 => frame[at + 13..at + 16].fill(random.next() as u8),
            2 => frame[at + 19] = random.next() as u8,
            _ => {}
        }
        let (ip, udp, end) = (p.ip_at as usize, p.udp_at as usize, p.end as usize);
        seal(frame, ip, udp, end);
    }
    match random.below(20) {
        // The kernel refuses to run what has no whole Ethernet header.
        0 => frame.truncate(14 + random.below(frame.len() - 13)),
        1 => frame.extend(vec![0xee; random.below(40)]),
        2 => {
            frame.splice(12..12, [0x81, 0, random.next() as u8, random.next() as u8]);
        }
        _ => {}
    }
}

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| {
        n.parse().unwrap_or_else(|e| panic!("{name}: {e}"))
    })
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn mutated_captured_packets_agree_with_the_pure_verdict() {
    let packets = setting("ROCEXDP_XDP_PACKETS", 5_000);
    let seed = setting("ROCEXDP_XDP_SEED", 0xca97);
    eprintln!("{packets} packets a program, seed {seed}");
    let local = [10, 77, 0, 3];
    let gid = rocexdp_common::ids::gid_from_ipv4(local);
    Stage::run(|| {
        let captures: Vec<_> = captures()
            .into_iter()
            .map(|c| (local_qps(&c, gid, 1), c))
            .collect();
        let others: Vec<_> = encap::frames().into_iter().map(|(_, f)| f).collect();
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            let mut random = Random(seed);
            let mut seen = [0; 3];
            let mut number = 0;
            while number < packets {
                let (qps, capture) = &captures[random.below(captures.len())];
                let mut kernel = Kernel::load(program);
                let mut model = qps.clone();
                model.addresses = vec![(gid, local_addr::EXCLUSIVE)];
                kernel.configure(&model);
                kernel.open_socket(0);
                model.sockets.push(0);
                // The map of flows forgets the oldest when it is full, which the model does not.
                for _ in 0..5_000.min(packets - number) {
                    if model.flows.len() > 3_000 {
                        break;
                    }
                    number += 1;
                    let mut frame = if random.chance(10) {
                        others[random.below(others.len())].clone()
                    } else {
                        capture.frames[random.below(capture.frames.len())].0.clone()
                    };
                    mutate(&mut random, &mut frame);
                    // How long a pause lasts is told by the clock, which the model has not.
                    if matches!(
                        dissect(&frame[..]).kind,
                        Kind::Pfc(_) | Kind::GlobalPause { .. }
                    ) {
                        continue;
                    }
                    let outcome = model.run(&frame[..]);
                    let action = kernel.run(&frame);
                    assert_eq!(
                        action,
                        outcome.action(),
                        "{program}, {}, packet {number}: {outcome:?} {frame:02x?}",
                        capture.name
                    );
                    seen[action as usize] += 1;
                    if number % 500 == 0 {
                        assert_same(&kernel, &model);
                    }
                }
                assert_same(&kernel, &model);
            }
            eprintln!("{program}: {seen:?} passed, dropped, redirected");
            assert!(seen.iter().all(|n| *n > packets / 50), "{seen:?}");
        }
    });
}
