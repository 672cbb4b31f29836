//! The XDP program on packet fixtures in the real kernel: verdict, and every map's change, against the pure verdict.
//!
//! `rocexdp_common::verdict` is tested on its own in that crate; here it is the oracle. What can differ is what the
//! compiler, the verifier and the map accesses made of it: helpers that read the frame, entries indexed, dirty marks,
//! redirection, globals.

#[path = "../../../rocexdp-common/tests/support/mod.rs"]
mod support;

mod fixtures;
mod kernel;

use fixtures::{RC4, RC6, UC4, UD4, fixtures, model, send, six};
use kernel::{Kernel, SLOTS, Stage, TOLD, assert_same, figures, newest_time};
use rocexdp_common::{
    maps::{EventKind, PROGRAM_FRAGS, PROGRAM_PLAIN, Reason},
    opcode::{Opcode, rc},
    verdict::{Action, Outcome},
};
use support::{
    model::Model,
    packet::{A4, B4, C4, Random, Spec, seal},
};

/// Gives each QP's owner a socket on queue 0.
fn open_sockets(kernel: &mut Kernel, model: &mut Model) {
    for owner in [0, 1] {
        kernel.open_socket(owner * TOLD);
        model.sockets.push(owner * TOLD);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn fixtures_have_their_verdict_and_change_the_maps_as_the_pure_function_says() {
    Stage::run(|| {
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            let mut kernel = Kernel::load(program);
            let mut model = model();
            kernel.configure(&model);
            open_sockets(&mut kernel, &mut model);
            for (name, frame, expected) in fixtures() {
                let outcome = model.run(&frame[..]);
                assert_eq!(outcome, expected, "{name}");
                assert_eq!(kernel.run(&frame), outcome.action(), "{program}: {name}");
                assert_same(&kernel, &model);
            }
            let mut events = kernel.events();
            for event in &mut events {
                event.time_ns = model.now;
            }
            assert_eq!(events, model.events, "{program}");
            let naks = |kind: EventKind| events.iter().filter(|e| e.kind == kind as u32).count();
            assert_eq!(
                (naks(EventKind::Nak), naks(EventKind::RnrNak)),
                (1, 1),
                "{program}"
            );
            // Figures worked out by hand, lest model and program err together.
            let maps = kernel.maps();
            let rc4 = &maps.counters[5 * TOLD as usize];
            assert_eq!(figures(&rc4.requests), [112, 2, 1, 3, 4], "{program}");
            assert_eq!(figures(&rc4.responses), [501, 0, 0, 0, 0]);
            assert_eq!(
                (rc4.naks[0], rc4.last_ack_psn, rc4.cnp_bad_icrc, rc4.ecn[3]),
                (1, 79, 1, 1)
            );
            let uc4 = &maps.counters[6 * TOLD as usize];
            assert_eq!(figures(&uc4.requests), [13, 1, 1, 3, 0]);
            let link = &maps.link_control[0];
            assert_eq!(
                (link.pfc_frames, link.other_mac_control, link.lldp),
                (1, 2, 1)
            );
            assert_eq!(
                (link.pfc[3].pauses, link.pfc[5].resumes, link.pfc[7].pauses),
                (1, 1, 0)
            );
            // 65535 quanta of 51.2 ns.
            assert_eq!(link.pfc[3].until_ns - link.pfc[3].since_ns, 3_355_392);
            assert_eq!(link.global.until_ns - link.global.since_ns, 358);
            let lit: Vec<_> = (0..)
                .zip(&maps.dirty)
                .filter(|(_, d)| **d != 0)
                .map(|(slot, _)| slot)
                .collect();
            assert_eq!(lit, [5, 70]);
            let q = &maps.queue_counters[0];
            assert_eq!(q.frames, fixtures().len() as u64);
            assert_eq!(
                q.frames,
                q.redirected + q.consumed + q.dropped + q.passed_rocev2 + q.passed_other
            );
        }
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn without_a_socket_in_the_slot_a_packet_passes_and_is_counted_so() {
    Stage::run(|| {
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            let mut kernel = Kernel::load(program);
            let mut model = model();
            kernel.configure(&model);
            let frame = send(RC4, 100).build();
            assert_eq!(
                model.run(&frame[..]),
                Outcome::PassedRoce(Some(Reason::NoSocket))
            );
            assert_eq!(kernel.run(&frame), Action::Pass);
            assert_same(&kernel, &model);
            // The other owner's socket does not serve.
            kernel.open_socket(TOLD);
            model.sockets.push(TOLD);
            assert_eq!(
                (kernel.run(&frame), model.run(&frame[..]).action()),
                (Action::Pass, Action::Pass)
            );
            assert_same(&kernel, &model);
            kernel.open_socket(0);
            model.sockets.push(0);
            assert_eq!(
                (kernel.run(&frame), model.run(&frame[..]).action()),
                (Action::Redirect, Action::Redirect)
            );
            assert_same(&kernel, &model);
        }
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn each_queue_has_counters_of_its_own_and_a_queue_beyond_has_none() {
    Stage::run(|| {
        let mut kernel = Kernel::load(PROGRAM_FRAGS);
        let mut model = model();
        kernel.configure(&model);
        open_sockets(&mut kernel, &mut model);
        for (queue, expected) in [
            (0, Action::Redirect),
            (1, Action::Pass),
            (2, Action::Pass),
            (0, Action::Redirect),
        ] {
            (kernel.queue, model.queue) = (queue, queue);
            for frame in [
                send(RC4, 100).build(),
                Spec::cnp(RC4).build(),
                send(17, 1).to(A4).build(),
            ] {
                let outcome = model.run(&frame[..]);
                assert_eq!(kernel.run(&frame), outcome.action());
            }
            assert_eq!(kernel.run(&send(RC4, 100).build()), expected);
            model.run(&send(RC4, 100).build()[..]);
            assert_same(&kernel, &model);
        }
        assert_eq!(
            kernel.maps().queue_counters[2].reasons[Reason::MapFull as usize],
            3
        );
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn frames_of_several_buffers_are_read_across_their_border() {
    Stage::run(|| {
        let mut kernel = Kernel::load(PROGRAM_FRAGS);
        let mut model = model();
        kernel.configure(&model);
        open_sockets(&mut kernel, &mut model);
        let mut frames = vec![
            six(Spec::new(rc::WRITE_MIDDLE, RC6, 1).payload(4096)).build(),
            // A CNP in an oversize frame: what follows is padding.
            six(Spec {
                padding: 5000,
                ..Spec::cnp(RC6)
            })
            .build(),
        ];
        assert!(frames[0].len() >= 4170, "{}", frames[0].len());
        // Extension headers push UDP, BTH and RETH over the border of the first buffer, byte by byte; 8 at a time, so
        // VLAN tags (4 bytes) and padding fill in.
        for len in (3300..3560).step_by(8) {
            for tags in [vec![], vec![(0x8100, 1)]] {
                let split = len / 2 / 8 * 8;
                let extensions = vec![
                    (60, vec![0; split - 2]),
                    (60, vec![0; len - split + (8 - len % 8) % 8 - 2]),
                ];
                let spec = six(Spec {
                    extensions,
                    tags,
                    ..Spec::new(rc::WRITE_ONLY, RC6, 2).reth(300).payload(300)
                });
                frames.push(spec.build());
            }
        }
        for frame in &frames {
            let outcome = model.run(&frame[..]);
            assert!(
                matches!(outcome, Outcome::Redirected | Outcome::Consumed),
                "{outcome:?}"
            );
            assert_eq!(kernel.run(frame), outcome.action(), "{} B", frame.len());
            assert_same(&kernel, &model);
        }
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_packet_is_stamped_with_the_monotonic_clock() {
    Stage::run(|| {
        let clock = || {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
        };
        let mut kernel = Kernel::load(PROGRAM_FRAGS);
        kernel.configure(&model());
        // The kernel's tick, 100 times a second or more, for what is no news of congestion.
        for (frame, resolution) in [
            (send(RC4, 1).build(), 10_000_000),
            (send(RC4, 2).tos(3).build(), 0),
            (Spec::cnp(RC4).build(), 0),
            (send(RC4, 3).build(), 10_000_000),
        ] {
            let before = clock() - resolution;
            kernel.run(&frame);
            assert!((before..=clock()).contains(&newest_time(&kernel)));
        }
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_resynchronised_qp_takes_the_new_psns() {
    Stage::run(|| {
        let mut kernel = Kernel::load(PROGRAM_PLAIN);
        let mut model = model();
        kernel.configure(&model);
        for (resync, psn) in [(1, 100), (2, 0xff_fff0), (3, 7)] {
            let slot = (RC4 & (SLOTS - 1)) as usize;
            model.configs[slot].resync = resync;
            model.configs[slot].resync_request_psn = psn;
            kernel.configure(&model);
            for ahead in [0, 1, 3] {
                let frame = send(RC4, psn + ahead).build();
                model.run(&frame[..]);
                kernel.run(&frame);
            }
            assert_same(&kernel, &model);
        }
        assert_eq!(
            figures(&kernel.maps().counters[5 * TOLD as usize].requests),
            [9, 3, 3, 3, 0]
        );
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_verifiers_work_stays_far_below_its_limit() {
    Stage::run(|| {
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            let walked = Kernel::load(program).verified();
            eprintln!("{program}: the verifier walked {walked} of 1000000 instructions");
            assert!(walked < 150_000, "{program}: {walked}");
        }
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn refusals_are_logged_only_when_asked_for() {
    Stage::run(|| {
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            for asked in [false, true] {
                let mut kernel = Kernel::load_logging(program, asked);
                kernel.configure(&model());
                kernel.open_socket(0);
                kernel.run(&send(RC4, 1).build());
                kernel.run(&send(RC4, 1).from(C4).build());
                let expected: &[bool] = if asked { &[true] } else { &[] };
                assert_eq!(kernel.log(), expected, "{program}");
            }
        }
    });
}

/// A random packet for or past one of the QPs, right or wrong in some way.
fn random_frame(random: &mut Random, fixtures: &[(&'static str, Vec<u8>, Outcome)]) -> Vec<u8> {
    let mut frame = if random.chance(3) {
        fixtures[random.below(fixtures.len())].1.clone()
    } else {
        let qpn = [RC4, RC4, RC6, UC4, UD4, 17][random.below(6)];
        let opcode = [
            0, 1, 2, 4, 6, 10, 12, 13, 14, 15, 16, 17, 18, 20, 0x24, 0x64, 0x81,
        ][random.below(17)];
        let opcode = if random.chance(10) {
            random.next() as u8
        } else {
            opcode
        };
        let psn = if random.chance(10) {
            random.next() as u32
        } else {
            90 + random.below(60) as u32
        };
        let need = rocexdp_common::opcode::extensions_len(Opcode(opcode).extensions().unwrap_or(0));
        let headers: Vec<u8> = (0..need).map(|_| random.next() as u8 & 0x7f).collect();
        let payload = if opcode == 0x81 {
            16
        } else {
            [0, 1, 64, 1024][random.below(4)]
        };
        let mut spec = Spec::new(Opcode(opcode), qpn, psn)
            .headers(&headers)
            .payload(payload)
            .tos(random.next() as u8);
        if qpn == RC6 {
            spec = six(spec);
        } else {
            spec.src = [A4, A4, A4, A4, C4][random.below(5)];
            spec.dst = [B4, B4, B4, B4, C4, A4][random.below(6)];
        }
        if random.chance(5) {
            spec.tags = vec![(0x8100, random.next() as u16)];
        }
        spec.build()
    };
    if random.chance(2) {
        for _ in 0..1 + random.below(3) {
            let at = random.below(frame.len().min(100));
            frame[at] = if random.chance(2) {
                random.next() as u8
            } else {
                frame[at] ^ 1 << random.below(8)
            };
        }
        // Mostly, a wrong packet should get past the ICRC.
        if let Ok(p) = rocexdp_common::parse::parse(&frame[..])
            && random.chance(2)
        {
            seal(
                &mut frame,
                p.ip_at as usize,
                p.udp_at as usize,
                p.end as usize,
            );
        }
    }
    if random.chance(20) {
        // The kernel refuses to run what has no whole Ethernet header.
        frame.truncate(14 + random.below(frame.len() - 14));
    }
    frame
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn random_and_mutated_packets_agree_with_the_pure_function() {
    let packets: u32 =
        std::env::var("ROCEXDP_XDP_PACKETS").map_or(20_000, |n| n.parse().expect("a number"));
    let seed: u64 =
        std::env::var("ROCEXDP_XDP_SEED").map_or(0x5eed, |n| n.parse().expect("a number"));
    eprintln!("{packets} packets, seed {seed}");
    Stage::run(|| {
        let fixtures = fixtures();
        for program in [PROGRAM_PLAIN, PROGRAM_FRAGS] {
            let mut random = Random(seed);
            let mut outcomes = [0u32; 3];
            let mut number = 0;
            while number < packets {
                // A program with empty maps again before the map of flows is full: the kernel would choose what to forget.
                let mut kernel = Kernel::load(program);
                let mut model = model();
                kernel.configure(&model);
                open_sockets(&mut kernel, &mut model);
                while number < packets && model.flows.len() < 3000 {
                    let queue = random.below(4).saturating_sub(1) as u32;
                    (kernel.queue, model.queue) = (queue, queue);
                    let frame = random_frame(&mut random, &fixtures);
                    let outcome = model.run(&frame[..]);
                    outcomes[outcome.action() as usize] += 1;
                    let action = kernel.run(&frame);
                    assert_eq!(
                        action,
                        outcome.action(),
                        "{program}, packet {number}: {outcome:?} {frame:02x?}"
                    );
                    number += 1;
                    if number % 1000 == 0 {
                        assert_same(&kernel, &model);
                    }
                }
                assert_same(&kernel, &model);
            }
            eprintln!("{program}: {outcomes:?} passed, dropped, redirected");
            assert!(outcomes.iter().all(|n| *n > packets / 20), "{outcomes:?}");
        }
    });
}
