//! XDP and the endpoint agree on every frame: which are RoCEv2 packets, and what is in them.

#[path = "../../rocexdp-common/tests/support/packet.rs"]
#[allow(dead_code)] // Only the builder is used.
mod packet;

use packet::{A6, Addr, B6, Random, Spec};
use rocexdp_common::opcode::{Opcode, ext, extensions_len, rc};
use rocexdp_common::parse;
use rocexdp_proto::DropReason;
use rocexdp_proto::wire::{Head, Packet};

/// Whether both take it for a packet; then it is the same one.
fn agreed(frame: &[u8], piece: usize) -> bool {
    let pieces: Vec<&[u8]> = frame.chunks(piece).collect();
    let ours = Packet::parse(&Head::of(&pieces), &pieces);
    match (parse::parse(frame), ours) {
        (Ok(xdp), Ok(p)) => {
            assert_eq!(p.bth, xdp.bth);
            assert_eq!((p.bth.opcode, p.bth.dest_qpn, p.bth.psn), {
                (xdp.bth.opcode, xdp.bth.dest_qpn, xdp.bth.psn)
            });
            assert_eq!((p.src, p.dst), (xdp.flow.src, xdp.flow.dst));
            assert_eq!((p.payload.len(), p.ecn), (xdp.payload, xdp.ecn));
            assert_eq!(p.aeth, xdp.aeth);
            assert_eq!(p.reth.map_or(0, |r| r.length), xdp.reth_length);
            assert_eq!(p.ip_len(), (xdp.end - xdp.ip_at) as usize);
            true
        }
        (Err(_), Err(_)) => false,
        // What only the endpoint looks at.
        (Ok(_), Err(DropReason::Ipv4Checksum)) => false,
        (Ok(xdp), Err(DropReason::UnknownOpcode)) if xdp.operation.is_none() => false,
        (xdp, p) => panic!("XDP {xdp:?}\nendpoint {p:?}\n{frame:02x?}"),
    }
}

/// Frames that are all right, of every kind that either parser ever told apart.
fn fixtures() -> Vec<Spec> {
    let mut all = Vec::new();
    let plain = Spec::new(rc::SEND_ONLY, 0x80_0011, 0xff_fffe).payload(29);
    for tags in [
        vec![],
        vec![(0x8100, 0xe000)],
        vec![(0x88a8, 5), (0x8100, 100)],
        vec![(0x9100, 5), (0x8100, 100)],
        vec![(0x9100, 5)],
    ] {
        let tagged = Spec {
            tags,
            ..plain.clone()
        };
        all.push(tagged.clone().from(A6).to(B6));
        all.push(tagged);
    }
    for words in [1, 10] {
        all.push(Spec {
            options: vec![1; 4 * words],
            ..plain.clone()
        });
    }
    // Hop-by-hop, routing, authentication, destination options, mobility, HIP, shim6.
    for number in [0, 43, 51, 60, 135, 139, 140] {
        for extensions in [
            vec![(number, vec![0; 22])],
            vec![(0, vec![0; 6]), (number, vec![0; 6]), (60, vec![0; 14])],
            vec![(number, vec![0; 6]); 4],
        ] {
            let spec = Spec {
                extensions,
                ..plain.clone()
            };
            all.push(spec.from(A6).to(B6));
        }
    }
    for code in 0..=255 {
        let opcode = Opcode(code);
        if let Some(e) = opcode.extensions() {
            let headers: Vec<u8> = (1..=extensions_len(e) as u8).collect();
            let spec = Spec::new(opcode, 9, 7).headers(&headers).payload(6).tos(3);
            assert!(e & ext::RETH == 0 || headers.len() >= 16);
            all.push(spec.clone().from(A6).to(B6));
            all.push(Spec { padding: 9, ..spec });
        }
    }
    all
}

#[test]
fn xdp_and_the_endpoint_read_the_same_packet() {
    let fixtures = fixtures();
    for spec in &fixtures {
        let frame = spec.build();
        for piece in [frame.len(), 1, 33] {
            assert!(agreed(&frame, piece), "{spec:?}");
        }
        let pieces = [&frame[..]];
        let head = Head::of(&pieces);
        let p = Packet::parse(&head, &pieces).unwrap();
        assert!(p.icrc_is_right(&head), "{spec:?}");
    }
    assert!(fixtures.len() > 100);
}

#[test]
fn xdp_and_the_endpoint_refuse_the_same_frames() {
    let plain = Spec::new(rc::SEND_ONLY, 0x80_0011, 1).payload(4);
    let mapped = Addr::V6(Addr::V4([10, 0, 0, 1]).gid());
    let v6 = plain.clone().from(A6).to(B6);
    for spec in [
        plain.clone().from(mapped).to(B6),
        plain.clone().from(A6).to(mapped),
        Spec {
            extensions: vec![(44, vec![0; 6])],
            ..v6.clone()
        },
        Spec {
            extensions: vec![(60, vec![0; 6]); 5],
            ..v6.clone()
        },
        Spec {
            tags: vec![(0x9100, 1); 3],
            ..plain.clone()
        },
        Spec {
            dport: 4790,
            ..v6.clone()
        },
    ] {
        assert!(!agreed(&spec.build(), 4096), "{spec:?}");
    }
    // Right frames with bytes changed and ends cut off.
    let frames: Vec<_> = fixtures().iter().map(Spec::build).collect();
    let mut random = Random(11);
    let mut taken = 0;
    for _ in 0..100_000 {
        let mut frame = frames[random.below(frames.len())].clone();
        for _ in 0..random.below(3) {
            // Mostly in front, where it matters.
            let end = if random.chance(4) { frame.len() } else { 80 };
            let at = random.below(end.min(frame.len()));
            frame[at] = random.next() as u8;
        }
        if random.chance(8) {
            frame.truncate(random.below(frame.len()));
        }
        taken += u32::from(agreed(&frame, 1 + random.below(100)));
    }
    assert!((20_000..90_000).contains(&taken), "{taken}");
}

#[test]
fn headers_that_end_behind_the_copied_start_of_a_frame_are_the_one_difference() {
    let long = Spec {
        extensions: vec![(60, vec![0; 254])],
        ..Spec::new(rc::SEND_ONLY, 9, 1).payload(4)
    };
    let frame = long.from(A6).to(B6).build();
    assert!(parse::parse(&frame[..]).is_ok());
    let pieces = [&frame[..]];
    assert_eq!(
        Packet::parse(&Head::of(&pieces), &pieces).err(),
        Some(DropReason::Ipv6Extension)
    );
}
