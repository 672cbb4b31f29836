//! The monitor's programs on packets in the real kernel: every map's change against the pure function.
//!
//! `rocexdp_common::watch` is the oracle; what can differ is what compiler, verifier and map accesses made of it, on each
//! of the three hooks. Attached to nothing.

#[path = "../../../rocexdp-common/tests/support/mod.rs"]
mod support;

mod kernel;
mod model;

use kernel::{Kernel, still};
use model::Model;
use rocexdp_common::{
    headers::Aeth,
    maps::{Event, EventKind, Kind},
    opcode::{Opcode, rc},
    watch::{
        PROGRAMS, TCX_EGRESS,
        tap::{HEADERS, OFF, WHOLE},
    },
};
use support::packet::{A4, A6, B4, B6, C4, Random, Spec, seal};

/// A model of the same hook.
fn model(program: &str) -> Model {
    Model {
        egress: program == TCX_EGRESS,
        now: 1_000_000_000,
        ..Model::default()
    }
}

fn asked(mut spec: Spec) -> Vec<u8> {
    spec.bth.ack_req = true;
    spec.build()
}

/// An Ethernet frame in VXLAN.
fn vxlan(inner: &[u8]) -> Vec<u8> {
    let mut outer = Spec::new(Opcode(0), 0, 0);
    outer.dport = 4789;
    let mut frame = outer.build();
    let udp_at = outer.udp_at();
    frame.truncate(udp_at + 8);
    frame.extend([8, 0, 0, 0, 0, 0, 7, 0]);
    frame.extend(inner);
    let udp_len = (frame.len() - udp_at) as u16;
    frame[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len.to_be_bytes());
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame
}

/// A mirrored frame as SONiC's Everflow sends it: GRE, protocol 0x88be, no sequence number.
fn everflow(inner: &[u8]) -> Vec<u8> {
    let mut frame = vxlan(inner);
    frame[23] = 47;
    let gre = [0, 0, 0x88, 0xbe];
    frame.splice(34..34 + 16, gre);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame
}

fn control(ether_type: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9];
    frame.extend(ether_type.to_be_bytes());
    frame.extend(body);
    frame.resize(60, 0);
    frame
}

/// One packet of everything that the monitor tells apart.
fn packets() -> Vec<Vec<u8>> {
    let six = |spec: Spec| spec.from(A6).to(B6);
    let back = |spec: Spec| spec.from(B4).to(A4);
    let mut pfc = vec![1, 1, 0, 0b1000_0001];
    pfc.extend([0, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    let mut bad_cnp = Spec::cnp(9).build();
    *bad_cnp.last_mut().unwrap() ^= 1;
    let mut frames = vec![
        asked(Spec::new(rc::SEND_ONLY, 17, 100).payload(64)),
        back(Spec::ack(33, 100, 0x1f, 1)).build(),
        asked(Spec::new(rc::SEND_ONLY, 17, 101).payload(5)),
        back(Spec::ack(33, 101, 0x1f, 2)).build(),
        // Sent again: its answer gives no round trip.
        asked(Spec::new(rc::SEND_ONLY, 17, 102).payload(5)),
        asked(Spec::new(rc::SEND_ONLY, 17, 102).payload(5)),
        back(Spec::ack(33, 102, 0x1f, 3)).build(),
        back(Spec::ack(33, 103, 0x60, 3)).build(),
        back(Spec::ack(33, 103, 0x25, 3)).build(),
        Spec::new(rc::WRITE_FIRST, 17, 110)
            .reth(9000)
            .payload(1024)
            .tos(3)
            .build(),
        six(Spec::new(Opcode(12), 18, 7).reth(4096)).build(),
        Spec::new(Opcode(0x64), 1, 9)
            .headers(&[0; 8])
            .payload(256)
            .build(),
        Spec::cnp(9).build(),
        bad_cnp,
        Spec::cnp(9).payload(20).build(),
        Spec::new(Opcode(0x1f), 17, 1).build(),
        vxlan(&asked(Spec::new(rc::SEND_ONLY, 50, 1).payload(8))),
        everflow(&back(Spec::ack(51, 1, 0x1f, 1)).build()),
        vxlan(&vxlan(&Spec::new(rc::SEND_ONLY, 52, 1).build())),
        control(0x8808, &pfc),
        control(0x8808, &[0, 1, 0x12, 0x34]),
        control(0x88cc, &[2, 7, 4]),
        control(0x0806, &[0, 1]),
    ];
    for tags in [vec![(0x8100, 5)], vec![(0x88a8, 6), (0x8100, 5)]] {
        let spec = Spec {
            tags,
            ..Spec::new(rc::SEND_ONLY, 20, 3).payload(4)
        };
        frames.push(spec.build());
    }
    let mut short = Spec::new(rc::SEND_ONLY, 17, 1).build();
    short.truncate(short.len() - 6);
    frames.push(short);
    frames
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn on_every_hook_the_maps_change_as_the_pure_function_says() {
    for program in PROGRAMS {
        let mut kernel = Kernel::load(program);
        let mut model = model(program);
        for (number, frame) in packets().iter().enumerate() {
            assert!(kernel.run(frame), "{program}: packet {number}");
            model.run(frame);
            assert_eq!(
                still(&kernel.maps()),
                still(&model),
                "{program}: packet {number}"
            );
        }
        // Figures worked out by hand, lest both err together.
        let maps = kernel.maps();
        let flow = |qpn: u32| {
            let found = maps.flows.iter().find(|(key, _)| key.dest_qpn == qpn);
            found
                .unwrap_or_else(|| panic!("{program}: no flow to {qpn}"))
                .1
        };
        assert_eq!(
            flow(33).rtt.count(),
            1,
            "the first is not counted, the third was sent twice"
        );
        assert_eq!(flow(33).sender_qpn, 17);
        assert_eq!(flow(33).counters.kinds[Kind::RnrNak as usize].packets, 1);
        assert_eq!(flow(17).counters.requests.duplicates, 1);
        assert_eq!(
            (
                flow(50).counters.kinds[0].packets,
                flow(51).counters.kinds[6].packets
            ),
            (1, 1)
        );
        assert_eq!(
            (
                flow(9).counters.kinds[9].packets,
                flow(9).counters.cnp_bad_icrc
            ),
            (1, 2)
        );
        assert!(maps.flows.iter().all(|(key, _)| key.dest_qpn != 52));
        if program == TCX_EGRESS {
            assert_eq!(maps.link.pfc_frames + maps.link.lldp, 0, "not what we send");
        } else {
            let pause = &maps.link.pfc;
            assert_eq!(
                (pause[0].pauses, pause[7].pauses, pause[1].pauses),
                (1, 1, 0)
            );
            // 100 quanta of 512 bit times at 10 Gb/s.
            assert_eq!(pause[0].until_ns, 5120);
            assert_eq!((maps.link.global.pauses, maps.link.lldp), (1, 1));
        }
        let events: Vec<Event> = kernel.events();
        let kinds: Vec<u32> = events.iter().map(|e| e.kind).collect();
        assert_eq!(
            kinds,
            model.events.iter().map(|e| e.kind).collect::<Vec<_>>()
        );
        assert!(kinds.starts_with(&[EventKind::Nak as u32, EventKind::RnrNak as u32]));
        let nak = &events[0];
        assert_eq!((nak.detail, nak.psn, nak.dest_qpn), (0x60, 103, 33));
        assert!(nak.time_ns > 0);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_tap_gives_headers_or_whole_packets_and_only_when_asked() {
    for program in PROGRAMS {
        let mut kernel = Kernel::load(program);
        let small = Spec::new(rc::WRITE_MIDDLE, 17, 1).payload(1024).build();
        let deep = vxlan(
            &Spec::new(rc::WRITE_ONLY, 17, 2)
                .reth(900)
                .payload(900)
                .build(),
        );
        assert!(kernel.run(&small));
        assert_eq!(kernel.tap_book(), (0, 0), "{program}");
        kernel.tap(HEADERS);
        let frames = [&small, &deep];
        for frame in frames {
            kernel.run(frame);
        }
        kernel.run(&control(0x0806, &[0, 1]));
        let records = kernel.tapped();
        let lengths: Vec<_> = records
            .iter()
            .map(|(h, d)| (h.wire_len as usize, d.len()))
            .collect();
        assert_eq!(
            lengths,
            [
                (small.len(), 14 + 20 + 8 + 12),
                (deep.len(), 50 + 14 + 20 + 8 + 12 + 16)
            ],
            "{program}"
        );
        for ((head, data), frame) in records.iter().zip(frames) {
            assert_eq!(data[..], frame[..data.len()]);
            assert!(head.time_ns > 0 && head.vlan_proto == 0);
        }
        kernel.tap(WHOLE);
        for frame in frames {
            kernel.run(frame);
        }
        let whole: Vec<_> = kernel.tapped().into_iter().map(|(_, data)| data).collect();
        assert_eq!(whole, [small.clone(), deep.clone()], "{program}");
        assert_eq!(kernel.tap_book(), (4, 0));
        // Nobody reads: the ring fills, and what is lost is known.
        for _ in 0..200 {
            kernel.run(&small);
        }
        let (recorded, lost) = kernel.tap_book();
        assert_eq!(recorded + lost, 204);
        assert!(lost > 100, "{lost}");
        kernel.tap(OFF);
        kernel.run(&small);
        assert_eq!(kernel.tap_book(), (recorded, lost));
        assert_eq!(kernel.tapped().len() as u64 + 4, recorded);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn random_and_mutated_packets_agree_with_the_pure_function() {
    let count: u32 =
        std::env::var("ROCEXDP_XDP_PACKETS").map_or(5000, |n| n.parse().expect("a number"));
    let seed: u64 =
        std::env::var("ROCEXDP_XDP_SEED").map_or(0x5eed, |n| n.parse().expect("a number"));
    eprintln!("{count} packets, seed {seed}");
    let fixtures = packets();
    for program in PROGRAMS {
        let mut random = Random(seed);
        let (mut number, mut flows, mut waiting) = (0, 0, 0);
        while number < count {
            // A program with empty maps again before the map of flows is full (the kernel would choose what to forget), and before
            // a request has waited so long for its answer that it no longer counts: the model's time is not the kernel's.
            let end = count.min(number + 5000);
            let kernel = Kernel::load(program);
            let mut model = model(program);
            while number < end && model.flows.len() < 3000 {
                let mut frame = random_frame(&mut random, &fixtures);
                if random.chance(10) {
                    frame.truncate(14 + random.below(frame.len() - 14));
                }
                if kernel.run(&frame) {
                    model.run(&frame);
                }
                number += 1;
                if number % 500 == 0 {
                    assert_eq!(still(&kernel.maps()), still(&model), "{program}: {number}");
                }
            }
            assert_eq!(still(&kernel.maps()), still(&model), "{program}: {number}");
            flows += model.flows.len();
            waiting += model.pending.len();
        }
        eprintln!("{program}: {flows} flows, {waiting} waiting");
    }
}

fn random_frame(random: &mut Random, fixtures: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = if random.chance(4) {
        fixtures[random.below(fixtures.len())].clone()
    } else {
        let opcode = [0, 4, 6, 7, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 0x81][random.below(15)];
        let psn = if random.chance(20) {
            random.next() as u32
        } else {
            90 + random.below(60) as u32
        };
        let need = rocexdp_common::opcode::extensions_len(Opcode(opcode).extensions().unwrap_or(0));
        let headers: Vec<u8> = (0..need.max(Aeth::LEN))
            .map(|_| random.next() as u8 & 0x7f)
            .collect();
        let mut spec = Spec::new(Opcode(opcode), [17, 18, 33][random.below(3)], psn)
            .headers(&headers[..need])
            .payload([0, 16, 64, 256][random.below(4)])
            .tos(random.next() as u8);
        spec.bth.ack_req = random.chance(2);
        spec.src = [A4, B4, C4][random.below(3)];
        spec.dst = [A4, B4][random.below(2)];
        let frame = spec.build();
        match random.below(8) {
            0 => vxlan(&frame),
            1 => everflow(&frame),
            _ => frame,
        }
    };
    if random.chance(3) {
        for _ in 0..1 + random.below(3) {
            // Not the EtherType's place in an outer frame: a TCX program is not run on a tagged frame as the kernel would.
            let at = 14 + random.below(frame.len().min(120) - 14);
            frame[at] ^= 1 << random.below(8);
        }
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
    frame
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_verifiers_work_stays_below_its_limit() {
    for program in PROGRAMS {
        let walked = Kernel::load(program).verified();
        eprintln!("{program}: the verifier walked {walked} of 1000000 instructions");
        assert!(walked < 350_000, "{program}: {walked}");
    }
}
