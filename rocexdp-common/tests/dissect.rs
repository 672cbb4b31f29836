//! Frames of a mirror port or a capture: each kind is told for what it is, and the packet in a tunnel is the one that
//! was put there.

mod support;

use rocexdp_common::{
    dissect::{
        Dissected, Kind, Pfc, TunnelKind, VlanTag, dissect, dissect_at, dissect_ip, extensions,
    },
    ids::Gid,
    maps::Reason,
};
use support::{
    encap::{
        VTEP_A, VTEP_A6, VTEP_B, VTEP_B6, ethernet, frame, frames, gre, icrc_of, inner, ip, outer4,
        udp,
    },
    packet::{A4, A6, B4, B6},
};

/// Takes a named frame apart.
fn named(name: &str) -> Dissected {
    dissect(&frame(name)[..])
}

fn tunnel(name: &str) -> (TunnelKind, Gid, Gid, u8) {
    let t = named(name).tunnel.unwrap_or_else(|| panic!("{name}"));
    (t.kind, t.src, t.dst, t.ecn)
}

#[test]
fn every_kind_of_frame_yields_the_packet_that_was_put_there() {
    let spec = inner();
    let mut roce = 0;
    for (name, frame) in frames() {
        let d = dissect(&frame[..]);
        let Some(p) = d.kind.packet() else {
            assert!(
                matches!(name, "pfc" | "pause" | "lldp" | "arp"),
                "{name}: {:?}",
                d.kind
            );
            continue;
        };
        let v1 = name.starts_with("rocev1");
        assert_eq!(matches!(d.kind, Kind::RoceV1(_)), v1, "{name}");
        let stored: [u8; 4] = frame[p.end as usize - 4..p.end as usize]
            .try_into()
            .unwrap();
        assert_eq!(
            u32::from_le_bytes(stored),
            icrc_of(&frame, p, v1),
            "{name}: where ICRC and IP header are"
        );
        if matches!(name, "cnp" | "rocev1, connectx") {
            continue;
        }
        roce += 1;
        assert_eq!(p.bth, spec.bth, "{name}");
        assert_eq!((p.payload, p.reth_length), (50, 50), "{name}");
        assert_eq!((p.ecn, d.ecn, d.dscp, d.ttl), (3, 3, 0, 64), "{name}");
        assert_eq!(d.udp_src_port, if v1 { 0 } else { spec.sport }, "{name}");
        let six = p.flow.src == A6.gid();
        assert_eq!(d.flow_label, if six || v1 { 0xa_bcde } else { 0 }, "{name}");
        if !name.contains("tagged and padded") {
            let ends = if six { (A6, B6) } else { (A4, B4) };
            assert_eq!(
                (p.flow.src, p.flow.dst),
                (ends.0.gid(), ends.1.gid()),
                "{name}"
            );
        }
        let ext = extensions(&frame[..], p).expect(name);
        assert_eq!(ext.imm, Some(0xdead_beef), "{name}");
        let reth = ext.reth.expect(name);
        assert_eq!(
            (reth.va, reth.rkey, reth.length),
            (0x7f00_1122_3344, 0x208, 50),
            "{name}"
        );
        assert_eq!(
            frame[ext.payload_at as usize..][..50],
            spec.payload[..],
            "{name}"
        );
        assert_eq!(
            d.tunnel.is_some(),
            ["vxlan", "geneve", "gre", "erspan"]
                .iter()
                .any(|t| name.starts_with(t)),
            "{name}"
        );
    }
    assert_eq!(roce, 30);
}

#[test]
fn tunnels_tell_network_session_key_and_outer_addresses() {
    let four = (VTEP_A.gid(), VTEP_B.gid(), 2);
    let six = (VTEP_A6.gid(), VTEP_B6.gid(), 2);
    let erspan = |version, session| TunnelKind::Erspan { version, session };
    let gre = |protocol, key| TunnelKind::Gre { protocol, key };
    for (name, kind, (src, dst, ecn)) in [
        ("vxlan", TunnelKind::Vxlan { vni: 0x12_3457 }, four),
        ("vxlan, ipv6 outside", TunnelKind::Vxlan { vni: 42 }, six),
        (
            "vxlan, ipv4 options outside",
            TunnelKind::Vxlan { vni: 42 },
            four,
        ),
        (
            "vxlan, ipv6 extension outside",
            TunnelKind::Vxlan { vni: 42 },
            six,
        ),
        ("geneve", TunnelKind::Geneve { vni: 0x65_4321 }, four),
        ("geneve, options", TunnelKind::Geneve { vni: 42 }, four),
        ("geneve, ip inside", TunnelKind::Geneve { vni: 42 }, six),
        ("gre, ethernet", gre(0x6558, None), four),
        ("gre, key", gre(0x6558, Some(0x0001_0203)), four),
        (
            "gre, checksum, key and sequence",
            gre(0x0800, Some(5)),
            four,
        ),
        ("gre, ipv6 in ipv6", gre(0x86dd, None), six),
        ("erspan 1 (everflow)", erspan(1, None), four),
        ("erspan 1, ipv6 outside", erspan(1, None), six),
        ("erspan 2", erspan(2, Some(0x123)), four),
        ("erspan 3", erspan(3, Some(0x3ff)), four),
        ("erspan 3, subheader", erspan(3, Some(7)), four),
        ("erspan 3, ip inside", erspan(3, Some(7)), four),
    ] {
        assert_eq!(tunnel(name), (kind, src, dst, ecn), "{name}");
    }
}

#[test]
fn link_headers_in_and_out_of_tunnels() {
    let tag = |tpid, pcp, dei, vid| {
        Some(VlanTag {
            tpid,
            pcp,
            dei,
            vid,
        })
    };
    let d = named("vxlan, tags in and out");
    let outer = d.link.unwrap();
    assert_eq!(
        (outer.src, outer.dst),
        ([2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb])
    );
    assert_eq!(outer.tags, [tag(0x8100, 7, false, 0), None]);
    assert_eq!(outer.ether_type, 0x0800);
    let inner = d.inner_link.unwrap();
    assert_eq!(
        (inner.src, inner.dst),
        ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
    );
    assert_eq!(
        inner.tags,
        [tag(0x88a8, 1, false, 7), tag(0x8100, 3, false, 0x64)]
    );
    assert_eq!(inner.ether_type, 0x0800);
    assert_eq!(named("gre, ipv6 in ipv6").inner_link, None);
    assert_eq!(named("plain").inner_link, None);
    let mut dei = frame("priority tag");
    dei[14] |= 0x10;
    assert_eq!(
        dissect(&dei[..]).link.unwrap().tags[0],
        tag(0x8100, 7, true, 0)
    );
}

#[test]
fn pause_frames_lldp_and_others() {
    assert_eq!(
        named("pfc").kind,
        Kind::Pfc(Pfc {
            class_enable: 0x88,
            quanta: [0, 1, 2, 0xffff, 4, 5, 6, 0x700],
        })
    );
    assert_eq!(named("pause").kind, Kind::GlobalPause { quanta: 0x1234 });
    assert_eq!(named("lldp").kind, Kind::Lldp);
    assert_eq!(named("arp").kind, Kind::Other);
    // A length in place of an EtherType; another MAC control frame; TCP; another UDP port; another GRE payload.
    assert_eq!(dissect(&ethernet(60, &[0; 60])[..]).kind, Kind::Other);
    assert_eq!(
        dissect(&ethernet(0x8808, &[0, 2, 0, 0])[..]).kind,
        Kind::Other
    );
    assert_eq!(dissect(&outer4(6, &[0; 40])[..]).kind, Kind::Other);
    assert_eq!(
        dissect(&outer4(17, &udp(1, 53, &[0; 40]))[..]).kind,
        Kind::Other
    );
    assert_eq!(
        dissect(&outer4(47, &gre(0, 0x8847, &[], &[0; 40]))[..]).kind,
        Kind::Other
    );
    // PPTP's GRE.
    assert_eq!(
        dissect(&outer4(47, &gre(0x3001, 0x880b, &[1, 1], &[0; 40]))[..]).kind,
        Kind::Other
    );
}

#[test]
fn frames_without_an_ethernet_header() {
    let plain = frame("plain");
    let d = dissect_ip(&plain[14..]);
    let Kind::RoceV2(p) = d.kind else {
        panic!("{d:?}")
    };
    assert_eq!((p.ip_at, p.udp_at, d.link, d.ttl), (0, 20, None, 64));
    assert_eq!(p.bth, inner().bth);
    assert!(matches!(
        dissect_ip(&frame("plain, ipv6")[14..]).kind,
        Kind::RoceV2(_)
    ));
    assert_eq!(dissect_ip(&[0x50u8; 60][..]).kind, Kind::Other);
    assert_eq!(
        dissect_ip(&[0u8; 0][..]).kind,
        Kind::Malformed(Reason::Ipv4Malformed)
    );
    // A tunnel from the IP header on, and behind a cooked header of 16 bytes.
    assert!(dissect_ip(&frame("vxlan")[14..]).tunnel.is_some());
    let mut cooked = vec![0; 16];
    cooked.extend(&plain[14..]);
    let d = dissect_at(&cooked[..], 16, 0x0800);
    let Kind::RoceV2(p) = d.kind else {
        panic!("{d:?}")
    };
    assert_eq!((p.ip_at, p.udp_at, d.link), (16, 36, None));
    let mut tagged = vec![0; 16];
    tagged.extend(&frame("priority tag")[14..]);
    assert!(matches!(
        dissect_at(&tagged[..], 16, 0x8100).kind,
        Kind::RoceV2(_)
    ));
    assert_eq!(
        dissect_at(&frame("pause")[..], 14, 0x8808).kind,
        named("pause").kind
    );
}

#[test]
fn addresses_of_both_families_in_a_gre_tunnel() {
    let payload = ip(A6, B6, 17, 0, &udp(1, 4791, &[0; 16]));
    let d = dissect(&outer4(47, &gre(0, 0x86dd, &[], &payload))[..]);
    let p = d.kind.packet().unwrap();
    assert_eq!(p.flow.src, A6.gid());
    assert_eq!(d.tunnel.unwrap().src, VTEP_A.gid());
    // The EtherType says IPv4, the header IPv6.
    let d = dissect(&outer4(47, &gre(0, 0x0800, &[], &payload))[..]);
    assert_eq!(d.kind, Kind::Malformed(Reason::Ipv4Malformed));
}
