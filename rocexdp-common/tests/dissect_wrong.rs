//! Frames that are wrong, that are not followed, or that were cut short: the reason is said, and nothing is misread.

mod support;

use rocexdp_common::{
    dissect::{Captured, Kind, dissect, dissect_at, dissect_ip, extensions},
    maps::Reason,
    parse::{NotParsed, parse},
};
use support::{
    encap::{ethernet, frame, frames, geneve, gre, inner, outer4, outer6, rocev1, udp, vxlan},
    packet::{Random, Spec},
};

#[test]
fn what_is_wrong_or_not_followed_is_said_with_its_reason() {
    use Kind::{Malformed, Unfollowed};
    let plain = frame("plain");
    let mut cases: Vec<(&str, Vec<u8>, Kind)> = Vec::new();
    let mut add = |name, frame, kind| cases.push((name, frame, kind));
    let vx = |payload: &[u8]| outer4(17, &vxlan(8, 42, payload));
    add(
        "tunnel in a tunnel",
        vx(&vx(&plain)),
        Unfollowed(Reason::TunnelDepth),
    );
    add(
        "gre in a tunnel",
        vx(&outer6(47, &gre(0, 0x88be, &[], &plain))),
        Unfollowed(Reason::TunnelDepth),
    );
    add(
        "vxlan without a vni",
        outer4(17, &vxlan(0, 42, &plain)),
        Unfollowed(Reason::TunnelUnfollowed),
    );
    add(
        "vxlan with a next protocol",
        outer4(17, &vxlan(0x0c, 42, &plain)),
        Unfollowed(Reason::TunnelUnfollowed),
    );
    let mut version = geneve(42, 0x6558, &[], &plain);
    version[8] |= 0x40;
    add(
        "geneve of another version",
        outer4(17, &version),
        Unfollowed(Reason::TunnelUnfollowed),
    );
    let mut options = geneve(42, 0x6558, &[], &[0; 8]);
    options[8] = 3;
    add(
        "geneve options behind the end",
        outer4(17, &options),
        Malformed(Reason::TunnelMalformed),
    );
    let mut length = vxlan(8, 42, &plain);
    length[5] -= 1;
    add(
        "a tunnel's udp length",
        outer4(17, &length),
        Malformed(Reason::TunnelMalformed),
    );
    add(
        "vxlan cut short",
        outer4(17, &udp(1, 4789, &[8, 0, 0])),
        Malformed(Reason::TunnelMalformed),
    );
    add(
        "gre with routing",
        outer4(47, &gre(0x4000, 0x6558, &[0], &plain)),
        Unfollowed(Reason::TunnelUnfollowed),
    );
    add(
        "gre cut short",
        outer4(47, &gre(0xb000, 0x6558, &[0], &[])),
        Malformed(Reason::TunnelMalformed),
    );
    add(
        "erspan 2 of another version",
        outer4(47, &gre(0x1000, 0x88be, &[1], &[0x30, 0, 0, 0, 0, 0, 0, 0])),
        Unfollowed(Reason::TunnelUnfollowed),
    );
    add(
        "erspan 2 cut short",
        outer4(47, &gre(0x1000, 0x88be, &[1], &[0x10; 7])),
        Malformed(Reason::TunnelMalformed),
    );
    add(
        "erspan 3 of another frame type",
        outer4(
            47,
            &gre(
                0x1000,
                0x22eb,
                &[1],
                &[0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0],
            ),
        ),
        Unfollowed(Reason::TunnelUnfollowed),
    );
    let mut fragment = vx(&plain);
    fragment[20] = 0x20;
    add(
        "a fragment outside",
        fragment,
        Unfollowed(Reason::Ipv4Fragment),
    );
    let mut fragment = outer4(47, &gre(0, 0x6558, &[], &plain));
    fragment[21] = 9;
    add(
        "a fragment of gre",
        fragment,
        Unfollowed(Reason::Ipv4Fragment),
    );
    let mut fragment = plain.clone();
    fragment[20] = 0x20;
    add(
        "a fragment inside",
        vx(&fragment),
        Unfollowed(Reason::Ipv4Fragment),
    );
    add(
        "an ipv6 fragment of gre",
        outer6(44, &[47, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
        Unfollowed(Reason::Ipv6Fragment),
    );
    // The inner packet claims to be longer than the outer one, though the frame has the bytes (as padding).
    let mut longer = vx(&plain[..plain.len() - 8]);
    longer.extend([0; 8]);
    add(
        "an inner packet that is longer",
        longer,
        Malformed(Reason::Ipv4Length),
    );
    add(
        "an inner frame of 4 bytes",
        vx(&plain[..4]),
        Malformed(Reason::EthTruncated),
    );
    let three = Spec {
        tags: vec![(0x88a8, 1), (0x8100, 2), (0x8100, 3)],
        ..inner()
    };
    add("three tags", three.build(), Unfollowed(Reason::VlanDepth));
    add(
        "three tags inside",
        vx(&three.build()),
        Unfollowed(Reason::VlanDepth),
    );
    add(
        "grh with another next header",
        rocev1(&inner(), 0x11),
        Malformed(Reason::GrhMalformed),
    );
    let mut v1 = frame("rocev1");
    v1[14] = 0x40;
    add(
        "grh of another version",
        v1,
        Malformed(Reason::GrhMalformed),
    );
    let mut v1 = frame("rocev1");
    v1[19] += 1;
    add(
        "grh longer than the frame",
        v1,
        Malformed(Reason::GrhLength),
    );
    let mut v1 = frame("rocev1");
    v1[18..20].copy_from_slice(&[0, 15]);
    add(
        "rocev1 without room for an icrc",
        v1,
        Malformed(Reason::BthTruncated),
    );
    let mut v1 = frame("rocev1");
    v1[18..20].copy_from_slice(&[0, 36]);
    add(
        "rocev1 without room for its headers",
        v1,
        Malformed(Reason::ExtensionTruncated),
    );
    let mut v1 = frame("rocev1");
    v1[55] |= 1;
    add(
        "rocev1, transport version",
        v1,
        Malformed(Reason::BthVersion),
    );
    add(
        "a pause frame cut short",
        ethernet(0x8808, &[1, 1, 0, 8, 0, 0]),
        Malformed(Reason::PauseMalformed),
    );
    add(
        "a pause frame without quanta",
        ethernet(0x8808, &[0, 1, 0]),
        Malformed(Reason::PauseMalformed),
    );
    for (name, frame, kind) in cases {
        assert_eq!(dissect(&frame[..]).kind, kind, "{name}");
    }
}

#[test]
fn without_a_tunnel_it_says_what_the_endpoints_parser_says() {
    let mut random = Random(3);
    let frames = frames();
    let (mut same, mut tunnels) = (0, 0);
    for _ in 0..200_000 {
        let mut frame = frames[random.below(frames.len())].1.clone();
        for _ in 0..random.below(4) {
            let at = random.below(frame.len());
            frame[at] = random.next() as u8;
        }
        if random.chance(8) {
            frame.truncate(random.below(frame.len() + 1));
        }
        let d = dissect(&frame[..]);
        let parsed = parse(&frame[..]);
        match d.kind {
            Kind::RoceV2(p) if d.tunnel.is_none() => assert_eq!(parsed, Ok(p)),
            Kind::RoceV2(_) => {
                assert_eq!(parsed, Err(NotParsed::Other));
                tunnels += 1;
                continue;
            }
            // What only the observer looks into, the endpoint does not know.
            Kind::Malformed(r) | Kind::Unfollowed(r) if parsed == Err(NotParsed::Malformed(r)) => {}
            _ => assert!(
                matches!(parsed, Err(NotParsed::Other)),
                "{:?} {parsed:?} {frame:02x?}",
                d.kind
            ),
        }
        same += 1;
    }
    assert!(same > 50_000 && tunnels > 20_000, "{same} {tunnels}");
}

#[test]
fn a_capture_cut_short_is_never_called_malformed() {
    for (name, frame) in frames() {
        let whole = dissect(&frame[..]);
        let mut seen_whole = 0;
        for cut in 0..=frame.len() {
            let captured = Captured {
                data: &frame[..cut],
                wire_len: frame.len() as u32,
            };
            let d = dissect(&captured);
            match (d.kind, whole.kind) {
                (Kind::Unfollowed(Reason::NotCaptured), _) => {}
                (Kind::RoceV2(p), Kind::RoceV2(w)) | (Kind::RoceV1(p), Kind::RoceV1(w)) => {
                    seen_whole += 1;
                    assert_eq!(
                        (p.bth, p.payload, p.end, p.flow),
                        (w.bth, w.payload, w.end, w.flow),
                        "{name}, {cut}"
                    );
                    assert!(p.reth_length == w.reth_length || p.reth_length == 0);
                    match extensions(&captured, &p) {
                        None => assert!(cut < frame.len() - 4),
                        ext => assert_eq!(ext, extensions(&frame[..], &w)),
                    }
                }
                (kind, whole) => assert_eq!(kind, whole, "{name}, cut at {cut}"),
            }
            // Cut on the wire: then it is malformed, or nothing that can be told.
            if cut < frame.len() && !matches!(name, "padding" | "pfc" | "pause" | "lldp" | "arp") {
                let d = dissect(&frame[..cut]);
                assert!(
                    !matches!(d.kind, Kind::RoceV2(_) | Kind::RoceV1(_)) || name.contains("padded"),
                    "{name}, {cut}"
                );
            }
        }
        if whole.kind.packet().is_some() {
            // From the end of the BTH on.
            let p = whole.kind.packet().unwrap();
            assert_eq!(
                seen_whole,
                frame.len() - (p.udp_at as usize + 20) + 1,
                "{name}"
            );
        }
    }
}

#[test]
fn random_bytes_never_make_it_panic() {
    let mut random = Random(11);
    for _ in 0..100_000 {
        let len = random.below(200);
        let mut frame: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        // Mostly past the first header.
        if len > 14 && !random.chance(4) {
            let types = [[8, 0], [0x86, 0xdd], [0x89, 0x15], [0x88, 8], [0x81, 0]];
            frame[12..14].copy_from_slice(&types[random.below(5)]);
        }
        let wire_len = random.below(400) as u32;
        let captured = Captured {
            data: &frame,
            wire_len,
        };
        for d in [
            dissect(&frame[..]),
            dissect(&captured),
            dissect_ip(&captured),
            dissect_at(&captured, random.next() as u32, random.next() as u16),
        ] {
            if let Some(p) = d.kind.packet() {
                extensions(&captured, p);
            }
        }
    }
}
