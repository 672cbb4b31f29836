//! The parser on packets that users of other implementations met, right and wrong.

mod support;

use rocexdp_common::{
    bytes::Bytes,
    headers::Syndrome,
    maps::Reason,
    opcode::{Opcode, Operation, Position, ext, extensions_len, rc},
    parse::{IpVersion, MAX_IPV6_EXTENSIONS, NotParsed, Packet, parse},
};
use support::packet::{A4, A6, Addr, B4, B6, Random, Spec, hex};

fn ok(frame: &[u8]) -> Packet {
    parse(frame).unwrap_or_else(|e| panic!("{e:?}: {frame:02x?}"))
}

fn malformed(frame: &[u8]) -> Reason {
    match parse(frame) {
        Err(NotParsed::Malformed(reason)) => reason,
        other => panic!("{other:?}: {frame:02x?}"),
    }
}

fn v6(spec: Spec) -> Spec {
    spec.from(A6).to(B6)
}

#[test]
fn every_field_of_a_write() {
    let spec = Spec::new(rc::WRITE_FIRST, 0x80_0011, 0xff_fffe)
        .reth(100_000)
        .payload(1024)
        .tos(3);
    let frame = spec.build();
    let p = ok(&frame);
    assert_eq!((p.ip_at, p.udp_at, p.end as usize), (14, 34, frame.len()));
    assert_eq!(
        (p.flow.src, p.flow.dst, p.flow.dest_qpn),
        (A4.gid(), B4.gid(), 0x80_0011)
    );
    assert_eq!((p.ip, p.ecn, p.vlan_tags), (IpVersion::V4, 3, 0));
    assert_eq!(p.bth, spec.bth);
    assert_eq!(p.operation, Some((Operation::Write, Position::First)));
    assert_eq!((p.payload, p.reth_length, p.aeth), (1024, 100_000, None));

    let p = ok(&v6(spec).build());
    assert_eq!(
        (p.flow.src, p.flow.dst, p.flow.dest_qpn),
        (A6.gid(), B6.gid(), 0x80_0011)
    );
    assert_eq!((p.ip, p.ecn, p.ip_at, p.udp_at), (IpVersion::V6, 3, 14, 54));
}

#[test]
fn hardware_captures() {
    // ConnectX-4 Lx CNP: UDP source port 0, DSCP 48. Huawei hns ACK: source port 69, MigReq, credit code 5.
    let p = ok(&hex(
        "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a",
    ));
    assert_eq!(p.operation, Some((Operation::Cnp, Position::Only)));
    assert_eq!(
        (p.flow.dest_qpn, p.bth.becn, p.bth.mig_req, p.udp_len()),
        (0x118, true, false, 40)
    );
    let p = ok(&hex(
        "183d5ebf4371183d5ebf51920800450200300000400040112d60c0a84606c0a84604004812b7001c00001140ffff000000450000000006000001259cc216",
    ));
    assert_eq!(p.operation, Some((Operation::Acknowledge, Position::Only)));
    let aeth = p.aeth.unwrap();
    assert_eq!(
        (p.bth.mig_req, aeth.syndrome, aeth.msn),
        (true, Syndrome::Ack(6), 1)
    );
}

#[test]
fn vlan_tags_are_parsed_through_and_the_flow_is_the_same() {
    for spec in [
        Spec::new(rc::SEND_ONLY, 9, 1),
        v6(Spec::new(rc::SEND_ONLY, 9, 1)),
    ] {
        let plain = ok(&spec.build());
        // Priority tag (VID 0), VLAN 100, QinQ, the older QinQ EtherType.
        for tags in [
            vec![(0x8100, 0xe000)],
            vec![(0x8100, 100)],
            vec![(0x88a8, 5), (0x8100, 100)],
            vec![(0x9100, 5), (0x8100, 100)],
        ] {
            let n = tags.len() as u32;
            let p = ok(&Spec {
                tags,
                ..spec.clone()
            }
            .build());
            assert_eq!(
                (p.flow, p.bth, p.payload),
                (plain.flow, plain.bth, plain.payload)
            );
            assert_eq!((p.ip_at, u32::from(p.vlan_tags)), (14 + 4 * n, n));
        }
        let three = Spec {
            tags: vec![(0x88a8, 1), (0x8100, 2), (0x8100, 3)],
            ..spec.clone()
        };
        assert_eq!(malformed(&three.build()), Reason::VlanDepth);
    }
    let tagged = Spec {
        tags: vec![(0x8100, 1), (0x8100, 2)],
        ..Spec::new(rc::SEND_ONLY, 9, 1)
    }
    .build();
    for cut in [0, 13, 14, 15, 17, 19, 21] {
        assert_eq!(malformed(&tagged[..cut]), Reason::EthTruncated, "{cut}");
    }
    assert_eq!(malformed(&tagged[..22]), Reason::Ipv4Malformed);
}

#[test]
fn ipv4_options_move_the_transport() {
    for words in 1..=10 {
        let spec = Spec {
            options: vec![1; 4 * words],
            ..Spec::new(rc::SEND_ONLY, 9, 7).payload(5)
        };
        let p = ok(&spec.build());
        assert_eq!(
            (p.udp_at as usize, p.bth.psn.get(), p.payload),
            (34 + 4 * words, 7, 5)
        );
    }
    let mut short_ihl = Spec::new(rc::SEND_ONLY, 9, 7).build();
    for ihl in 0..5 {
        short_ihl[14] = 0x40 | ihl;
        assert_eq!(malformed(&short_ihl), Reason::Ipv4Malformed);
    }
    // The header is longer than the frame, or than the packet.
    let mut long_ihl = Spec::new(rc::SEND_ONLY, 9, 7).build();
    long_ihl[14] = 0x4f;
    assert_eq!(malformed(&long_ihl), Reason::Ipv4Malformed);
    long_ihl.resize(200, 0);
    assert_eq!(malformed(&long_ihl), Reason::Ipv4Length);
    let mut version = Spec::new(rc::SEND_ONLY, 9, 7).build();
    version[14] = 0x65;
    assert_eq!(malformed(&version), Reason::Ipv4Malformed);
}

#[test]
fn fragments_are_never_read() {
    let frame = Spec::new(rc::SEND_ONLY, 9, 7).payload(64).build();
    // More fragments; an offset; both. Don't Fragment and the reserved bit are none.
    for (high, low) in [(0x20, 0), (0, 1), (0x1f, 0xff), (0x20, 8), (0x60, 0)] {
        let mut f = frame.clone();
        (f[20], f[21]) = (high, low);
        assert_eq!(malformed(&f), Reason::Ipv4Fragment);
        f[23] = 6;
        assert_eq!(
            parse(&f[..]),
            Err(NotParsed::Other),
            "a fragment of TCP is not ours"
        );
    }
    for high in [0, 0x40, 0x80] {
        let mut f = frame.clone();
        f[20] = high;
        ok(&f);
    }
    // IPv6: a fragment header of UDP, of TCP, of a destination options header.
    for (inner, expected) in [
        (17, NotParsed::Malformed(Reason::Ipv6Fragment)),
        (60, NotParsed::Malformed(Reason::Ipv6Fragment)),
        (6, NotParsed::Other),
    ] {
        let mut f = v6(Spec {
            extensions: vec![(44, vec![0, 1, 0, 0, 0, 9])],
            ..Spec::new(rc::SEND_ONLY, 9, 7)
        })
        .build();
        f[54] = inner;
        assert_eq!(parse(&f[..]), Err(expected));
    }
}

#[test]
fn ipv6_extension_headers_are_followed() {
    let spec = v6(Spec::new(rc::WRITE_ONLY, 9, 7).reth(3).payload(3));
    for number in [0, 43, 60, 135, 139, 140] {
        for len in [6, 14, 6 + 8 * 20] {
            let p = ok(&Spec {
                extensions: vec![(number, vec![0; len])],
                ..spec.clone()
            }
            .build());
            assert_eq!(
                (p.udp_at as usize, p.bth.psn.get(), p.payload),
                (54 + 2 + len, 7, 3)
            );
        }
    }
    // The authentication header counts in units of four bytes.
    let p = ok(&Spec {
        extensions: vec![(51, vec![0; 22]), (60, vec![0; 6])],
        ..spec.clone()
    }
    .build());
    assert_eq!((p.udp_at, p.payload), (54 + 24 + 8, 3));

    let chain = |n| {
        Spec {
            extensions: vec![(60, vec![0; 6]); n],
            ..spec.clone()
        }
        .build()
    };
    ok(&chain(MAX_IPV6_EXTENSIONS));
    assert_eq!(
        malformed(&chain(MAX_IPV6_EXTENSIONS + 1)),
        Reason::Ipv6Extension
    );
    // Cut short by the frame; ending behind the IP packet.
    assert_eq!(malformed(&chain(2)[..63]), Reason::Ipv6Extension);
    let mut f = chain(1);
    f[55] = 200;
    assert_eq!(malformed(&f), Reason::Ipv6Extension);
}

#[test]
fn a_v4_mapped_address_does_not_pass_for_ipv4() {
    let spec = Spec::new(rc::SEND_ONLY, 9, 7);
    let mapped = Addr::V6(B4.gid());
    assert_eq!(
        malformed(&spec.clone().from(A6).to(mapped).build()),
        Reason::Ipv6Malformed
    );
    assert_eq!(
        malformed(&spec.from(mapped).to(B6).build()),
        Reason::Ipv6Malformed
    );
}

#[test]
fn lengths_of_frame_ip_and_udp_must_agree() {
    let spec = Spec::new(rc::SEND_ONLY, 9, 7).payload(33);
    let frame = spec.build();
    let set = |at: usize, value: i32| {
        let mut f = frame.clone();
        let old = i32::from(u16::from_be_bytes([f[at], f[at + 1]]));
        f[at..at + 2].copy_from_slice(&((old + value) as u16).to_be_bytes());
        f
    };
    // IP total length: beyond the frame; shorter, with UDP as it was; not even a UDP header.
    assert_eq!(malformed(&set(16, 1)), Reason::Ipv4Length);
    assert_eq!(malformed(&set(16, -4)), Reason::UdpLength);
    let total = frame.len() as i32 - 14;
    assert_eq!(malformed(&set(16, 27 - total)), Reason::UdpTruncated);
    assert_eq!(malformed(&set(16, 19 - total)), Reason::Ipv4Length);
    // UDP length: longer, shorter (even "8 + 12 bytes" in a longer packet), zero.
    for value in [1, 4, -1, -4, 20 - (total - 20), -(total - 20)] {
        assert_eq!(malformed(&set(38, value)), Reason::UdpLength, "{value}");
    }
    // A longer frame is Ethernet padding, and not part of the packet.
    let p = ok(&Spec {
        padding: 9,
        ..spec.clone()
    }
    .build());
    assert_eq!((p.payload, p.end as usize), (33, frame.len()));

    let six = v6(spec);
    let mut f = six.build();
    f[19] += 1;
    assert_eq!(malformed(&f), Reason::Ipv6Length);
    f[19] -= 3;
    assert_eq!(malformed(&f), Reason::UdpLength);
    (f[18], f[19]) = (0, 7);
    assert_eq!(malformed(&f), Reason::UdpTruncated);
    let p = ok(&Spec { padding: 3, ..six }.build());
    assert_eq!(p.payload, 33);
}

#[test]
fn a_short_udp_packet_in_a_padded_frame_is_not_read_beyond_its_end() {
    // UDP with 12 bytes to port 4791, padded by Ethernet to 60 bytes with what looks like a BTH.
    let mut f = Spec::new(rc::SEND_ONLY, 9, 7).payload(20).build();
    (f[16], f[17]) = (0, 40);
    (f[38], f[39]) = (0, 20);
    assert_eq!(malformed(&f), Reason::BthTruncated);
}

#[test]
fn any_source_port_and_only_destination_port_4791() {
    for sport in [0, 69, 72, 4791, 0xc000, 0xffff] {
        ok(&Spec {
            sport,
            ..Spec::new(rc::SEND_ONLY, 9, 7)
        }
        .build());
    }
    for dport in [0, 4790, 4792, 69, 0xb712] {
        let f = Spec {
            dport,
            sport: 4791,
            ..Spec::new(rc::SEND_ONLY, 9, 7)
        }
        .build();
        assert_eq!(parse(&f[..]), Err(NotParsed::Other));
    }
}

#[test]
fn transport_version_must_be_zero() {
    for version in 1..16 {
        let mut spec = Spec::new(rc::SEND_ONLY, 9, 7);
        spec.bth.version = version;
        assert_eq!(malformed(&spec.build()), Reason::BthVersion);
    }
}

#[test]
fn bits_that_senders_differ_in_mean_nothing() {
    let plain = ok(&Spec::new(rc::SEND_ONLY, 9, 7).build());
    for bits in 0..=255u8 {
        let mut spec = Spec::new(rc::SEND_ONLY, 9, 7);
        (spec.bth.fecn, spec.bth.becn) = (bits & 0x80 != 0, bits & 0x40 != 0);
        spec.resv6a = bits & 0x3f;
        spec.bth.mig_req = bits & 1 != 0;
        let mut p = ok(&spec.build());
        assert_eq!(
            (p.bth.fecn, p.bth.becn),
            (bits & 0x80 != 0, bits & 0x40 != 0)
        );
        p.bth = plain.bth;
        assert_eq!(p, plain);
    }
}

#[test]
fn every_opcode_with_room_for_its_headers_and_with_a_byte_less() {
    for code in 0..=255u8 {
        let opcode = Opcode(code);
        let n = opcode.extensions().map_or(0, extensions_len);
        for spec in [Spec::new(opcode, 9, 7), v6(Spec::new(opcode, 9, 7))] {
            let spec = spec.headers(&vec![0x61; n]);
            let p = ok(&spec.build());
            assert_eq!(p.operation, opcode.decode(), "{code:#x}");
            assert_eq!(p.payload, 0);
            let has = |e| opcode.extensions().is_some_and(|x| x & e != 0);
            assert_eq!(p.aeth.is_some(), has(ext::AETH), "{code:#x}");
            assert_eq!(
                p.reth_length,
                if has(ext::RETH) { 0x6161_6161 } else { 0 },
                "{code:#x}"
            );
            let p = ok(&spec.clone().payload(7).build());
            assert_eq!(p.payload, if opcode.decode().is_some() { 7 } else { 8 });
            if n > 0 {
                let short = spec.clone().headers(&vec![0; n - 1]);
                assert_eq!(
                    malformed(&short.build()),
                    Reason::ExtensionTruncated,
                    "{code:#x}"
                );
            }
            if opcode.decode().is_some() {
                let mut pad = spec.clone();
                pad.bth.pad = 3;
                let f = pad.build();
                ok(&f);
                pad.bth.pad = 2;
                let mut f = pad.build();
                f[pad.udp_at() + 9] |= 0x30;
                assert_eq!(
                    malformed(&f),
                    Reason::ExtensionTruncated,
                    "pad beyond the packet"
                );
            }
        }
    }
}

#[test]
fn headers_before_reth_and_aeth_are_skipped() {
    // RD READ request: RDETH, DETH, RETH. XRC READ request: XRCETH, RETH. RD ACK: RDETH, AETH. FLUSH: FETH, RETH.
    for (code, before) in [(0x4c, 12), (0xac, 4), (0x1c, 4)] {
        let mut headers = vec![0xff; before + 12];
        headers.extend([0, 1, 2, 3]);
        let p = ok(&Spec::new(Opcode(code), 9, 7).headers(&headers).build());
        assert_eq!(p.reth_length, 0x0001_0203, "{code:#x}");
    }
    let p = ok(&Spec::new(Opcode(0x51), 9, 7)
        .headers(&[0xff, 0xff, 0xff, 0xff, 0x60, 1, 2, 3])
        .build());
    let aeth = p.aeth.unwrap();
    assert_eq!(
        (aeth.syndrome, aeth.msn),
        (Syndrome::NakSequence, 0x01_0203)
    );
}

#[test]
fn what_is_not_rocev2() {
    let frame = Spec::new(rc::SEND_ONLY, 9, 7).build();
    // ARP, LLDP, RoCEv1, an 802.3 length; TCP, ICMP.
    for ether_type in [0x0806u16, 0x88cc, 0x8915, 0x0100] {
        let mut f = frame.clone();
        f[12..14].copy_from_slice(&ether_type.to_be_bytes());
        assert_eq!(parse(&f[..]), Err(NotParsed::Other));
    }
    for protocol in [1, 6, 58] {
        let mut f = frame.clone();
        f[23] = protocol;
        assert_eq!(parse(&f[..]), Err(NotParsed::Other));
        let mut f = v6(Spec::new(rc::SEND_ONLY, 9, 7)).build();
        f[20] = protocol;
        assert_eq!(parse(&f[..]), Err(NotParsed::Other));
    }
}

/// Specs of all shapes, for the tests on prefixes and mutations.
fn shapes() -> Vec<Spec> {
    let mut shapes = vec![
        Spec::cnp(0x80_0001),
        Spec::ack(9, 1, 0x1f, 1),
        Spec::new(rc::WRITE_ONLY, 9, 7).reth(70).payload(70),
        Spec::new(rc::READ_REQUEST, 9, 7).reth(9000),
        Spec {
            options: vec![1; 8],
            ..Spec::new(rc::SEND_LAST, 9, 7).payload(31)
        },
        Spec {
            tags: vec![(0x88a8, 4), (0x8100, 3)],
            ..Spec::new(rc::SEND_MIDDLE, 9, 7).payload(256)
        },
    ];
    shapes.extend(shapes.clone().into_iter().map(|s| {
        v6(Spec {
            options: vec![],
            ..s
        })
    }));
    shapes.push(v6(Spec {
        extensions: vec![(0, vec![0; 6]), (43, vec![0; 14]), (60, vec![0; 6])],
        ..Spec::new(rc::SEND_ONLY, 9, 7).payload(1)
    }));
    shapes
}

#[test]
fn no_prefix_of_a_packet_parses() {
    for spec in shapes() {
        let frame = spec.build();
        for cut in 0..frame.len() {
            malformed(&frame[..cut]);
        }
        ok(&frame);
    }
}

#[test]
fn mutations_never_panic_and_pieces_parse_as_the_whole() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let shapes: Vec<_> = shapes().iter().map(Spec::build).collect();
    let mut parsed = 0;
    for _ in 0..100_000 {
        let mut frame = shapes[random.below(shapes.len())].clone();
        for _ in 0..1 + random.below(4) {
            let at = if random.chance(2) {
                random.below(80)
            } else {
                random.below(frame.len())
            };
            if let Some(byte) = frame.get_mut(at) {
                *byte = if random.chance(2) {
                    random.next() as u8
                } else {
                    *byte ^ 1 << random.below(8)
                };
            }
        }
        if random.chance(8) {
            frame.truncate(random.below(frame.len()));
        }
        let whole = parse(&frame[..]);
        let (a, b) = frame.split_at(random.below(frame.len() + 1));
        assert_eq!(parse(&[a, b][..]), whole);
        if let Ok(p) = whole {
            parsed += 1;
            assert!(p.ip_at < p.udp_at && p.udp_at + 24 <= p.end && p.end as usize <= frame.len());
            assert!(p.payload <= p.end - p.udp_at);
            assert!(frame[..].load::<4>(p.end as usize - 4).is_some());
        }
    }
    assert!(
        (20_000..90_000).contains(&parsed),
        "the mutations are too wild or too tame: {parsed}"
    );
}
