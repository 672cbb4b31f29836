//! Builds what stands around a RoCE packet on a mirror port, byte by byte, and a named frame of each kind.
//!
//! Independent of the crate's parser: headers are written from their layouts (include/net/{vxlan,geneve,gre,erspan}.h).

use rocexdp_common::{
    headers::Bth,
    opcode::{Opcode, Operation},
};

use super::packet::{Addr, B6, C4, Spec, hex, icrc};

pub const VTEP_A: Addr = Addr::V4([192, 0, 2, 1]);
pub const VTEP_B: Addr = Addr::V4([192, 0, 2, 2]);
pub const VTEP_A6: Addr = Addr::V6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
pub const VTEP_B6: Addr = Addr::V6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

/// QP, PSN and opcode that every packet in a fixture has.
pub const QPN: u32 = 0x12_3456;
pub const PSN: u32 = 0xab_cdef;

/// The packet that stands in the tunnels: a UC WRITE Only with immediate, tagged if asked for.
pub fn inner() -> Spec {
    let mut headers = vec![
        0, 0, 0x7f, 0, 0x11, 0x22, 0x33, 0x44, 0, 0, 0x2, 8, 0, 0, 0, 50,
    ];
    headers.extend([0xde, 0xad, 0xbe, 0xef]);
    Spec::new(Opcode(0x2b), QPN, PSN)
        .headers(&headers)
        .payload(50)
        .tos(3)
}

/// An outer Ethernet header.
pub fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa];
    f.extend(ether_type.to_be_bytes());
    f.extend(payload);
    f
}

/// An IP packet; `first` of its extensions are (number, body) as in [`Spec`].
pub fn ip(src: Addr, dst: Addr, protocol: u8, tos: u8, payload: &[u8]) -> Vec<u8> {
    match (src, dst) {
        (Addr::V4(src), Addr::V4(dst)) => {
            let mut p = vec![0x45, tos];
            p.extend((20 + payload.len() as u16).to_be_bytes());
            p.extend([0, 7, 0x40, 0, 63, protocol, 0, 0]);
            p.extend(src);
            p.extend(dst);
            let sum: u32 = p
                .chunks(2)
                .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
                .sum();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            p[10..12].copy_from_slice(&sum.to_be_bytes());
            p.extend(payload);
            p
        }
        (Addr::V6(src), Addr::V6(dst)) => {
            let mut p = vec![0x60 | tos >> 4, tos << 4, 0, 0];
            p.extend((payload.len() as u16).to_be_bytes());
            p.extend([protocol, 63]);
            p.extend(src);
            p.extend(dst);
            p.extend(payload);
            p
        }
        _ => panic!("addresses of two families"),
    }
}

/// A UDP datagram without checksum.
pub fn udp(sport: u16, dport: u16, payload: &[u8]) -> Vec<u8> {
    let mut p = Vec::new();
    p.extend(sport.to_be_bytes());
    p.extend(dport.to_be_bytes());
    p.extend((8 + payload.len() as u16).to_be_bytes());
    p.extend([0, 0]);
    p.extend(payload);
    p
}

pub fn vxlan(flags: u8, vni: u32, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![flags, 0, 0, 0];
    p.extend((vni << 8).to_be_bytes());
    p.extend(payload);
    udp(0xbeef, 4789, &p)
}

/// `options`: whole words.
pub fn geneve(vni: u32, protocol: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut p = vec![(options.len() / 4) as u8, 0];
    p.extend(protocol.to_be_bytes());
    p.extend((vni << 8).to_be_bytes());
    p.extend(options);
    p.extend(payload);
    udp(0xbeef, 6081, &p)
}

/// `words`: checksum, key, sequence number, as the flags say.
pub fn gre(flags: u16, protocol: u16, words: &[u32], payload: &[u8]) -> Vec<u8> {
    let mut p = Vec::new();
    p.extend(flags.to_be_bytes());
    p.extend(protocol.to_be_bytes());
    for word in words {
        p.extend(word.to_be_bytes());
    }
    p.extend(payload);
    p
}

pub fn erspan2(session: u16, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![
        0x10,
        5,
        0x18 | (session >> 8) as u8,
        session as u8,
        0,
        0,
        0,
        9,
    ];
    p.extend(payload);
    gre(0x1000, 0x88be, &[77], &p)
}

/// `last`: the last two bytes of the header; its lowest bit says that `subheader` follows.
pub fn erspan3(session: u16, last: u16, subheader: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut p = vec![
        0x20,
        5,
        (session >> 8) as u8,
        session as u8,
        1,
        2,
        3,
        4,
        0,
        0,
    ];
    p.extend(last.to_be_bytes());
    p.extend(subheader);
    p.extend(payload);
    gre(0x1000, 0x22eb, &[77], &p)
}

/// Outer Ethernet and IPv4, protocol UDP or GRE.
pub fn outer4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(0x0800, &ip(VTEP_A, VTEP_B, protocol, 2, payload))
}

/// Outer Ethernet and IPv6.
pub fn outer6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(0x86dd, &ip(VTEP_A6, VTEP_B6, protocol, 2, payload))
}

/// A RoCEv1 frame with the BTH and what follows of a packet.
pub fn rocev1(spec: &Spec, next_header: u8) -> Vec<u8> {
    let v2 = Spec {
        tags: vec![],
        padding: 0,
        ..spec.clone()
    }
    .build();
    let behind_udp = &v2[spec.udp_at() - 4 * spec.tags.len() + 8..v2.len() - 4];
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for (ether_type, tci) in &spec.tags {
        f.extend(ether_type.to_be_bytes());
        f.extend(tci.to_be_bytes());
    }
    f.extend([0x89, 0x15]);
    let grh_at = f.len();
    f.extend([0x60 | spec.tos >> 4, spec.tos << 4 | 0x0a, 0xbc, 0xde]);
    f.extend((behind_udp.len() as u16 + 4).to_be_bytes());
    f.extend([next_header, 64]);
    f.extend(spec.src.gid());
    f.extend(spec.dst.gid());
    f.extend(behind_udp);
    let crc = icrc_v1(&f[grh_at..]);
    f.extend(crc.to_le_bytes());
    f.extend(vec![0xee; spec.padding]);
    f
}

/// ICRC of a RoCEv1 packet from its GRH on, without the ICRC itself: that of RoCEv2, but for the UDP header.
pub fn icrc_v1(packet: &[u8]) -> u32 {
    let mut masked = packet.to_vec();
    masked[0] |= 0x0f;
    for at in [1, 2, 3, 7, 40 + 4] {
        masked[at] = 0xff;
    }
    let mut crc = !0u32;
    for byte in [0xff; 8].iter().chain(&masked) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

/// Bit by bit, of any RoCE packet.
pub fn icrc_of(frame: &[u8], p: &rocexdp_common::parse::Packet, v1: bool) -> u32 {
    let packet = &frame[p.ip_at as usize..p.end as usize - 4];
    if v1 {
        icrc_v1(packet)
    } else {
        icrc(packet, (p.udp_at - p.ip_at) as usize)
    }
}

/// A pause frame's MAC control part, padded to 60 bytes.
fn mac_control(payload: &[u8]) -> Vec<u8> {
    let mut f = vec![1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 0xa, 0x88, 0x08];
    f.extend(payload);
    f.resize(60, 0);
    f
}

/// A frame of each kind, that is right.
pub fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let plain = inner().build();
    let plain6 = inner().from(super::packet::A6).to(B6).build();
    let tagged = Spec {
        tags: vec![(0x88a8, 0x2007), (0x8100, 0x6064)],
        ..inner()
    }
    .build();
    let pfc: Vec<u8> = [0x0101u16, 0x0088, 0, 1, 2, 0xffff, 4, 5, 6, 0x700]
        .iter()
        .flat_map(|w| w.to_be_bytes())
        .collect();
    let outer_options = {
        let mut f = outer4(17, &vxlan(8, 42, &plain));
        f[14] = 0x47;
        let total = u16::from_be_bytes([f[16], f[17]]) + 8;
        f[16..18].copy_from_slice(&total.to_be_bytes());
        f.splice(34..34, [1; 8]);
        f
    };
    let outer_extension = {
        let mut payload = vec![17, 0, 1, 4, 0, 0, 0, 0];
        payload.extend(vxlan(8, 42, &plain));
        outer6(60, &payload)
    };
    let outer_tagged = {
        let mut f = outer4(17, &vxlan(8, 42, &tagged));
        f.splice(12..12, [0x81, 0, 0xe0, 0]);
        f
    };
    vec![
        ("plain", plain.clone()),
        ("plain, ipv6", plain6.clone()),
        ("qinq", tagged.clone()),
        (
            "priority tag",
            Spec {
                tags: vec![(0x8100, 0xe000)],
                ..inner()
            }
            .build(),
        ),
        (
            "ipv4 options",
            Spec {
                options: vec![1; 12],
                ..inner()
            }
            .build(),
        ),
        (
            "ipv6 extensions",
            Spec {
                extensions: vec![
                    (0, vec![1, 4, 0, 0, 0, 0]),
                    (60, vec![1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
                ],
                ..inner().from(super::packet::A6).to(B6)
            }
            .build(),
        ),
        (
            "padding",
            Spec {
                padding: 9,
                ..inner()
            }
            .build(),
        ),
        ("vxlan", outer4(17, &vxlan(8, 0x12_3457, &plain))),
        ("vxlan, group policy", outer4(17, &vxlan(0x88, 42, &plain))),
        ("vxlan, ipv6 outside", outer6(17, &vxlan(8, 42, &plain))),
        ("vxlan, ipv6 inside", outer4(17, &vxlan(8, 42, &plain6))),
        ("vxlan, tags in and out", outer_tagged),
        ("vxlan, ipv4 options outside", outer_options),
        ("vxlan, ipv6 extension outside", outer_extension),
        (
            "geneve",
            outer4(17, &geneve(0x65_4321, 0x6558, &[], &plain)),
        ),
        (
            "geneve, options",
            outer4(
                17,
                &geneve(42, 0x6558, &[1, 2, 0x80, 1, 9, 9, 9, 9], &tagged),
            ),
        ),
        (
            "geneve, ip inside",
            outer6(17, &geneve(42, 0x0800, &[0, 1, 3, 0], &plain[14..])),
        ),
        ("gre, ethernet", outer4(47, &gre(0, 0x6558, &[], &plain))),
        (
            "gre, key",
            outer4(47, &gre(0x2000, 0x6558, &[0x0001_0203], &plain)),
        ),
        (
            "gre, checksum, key and sequence",
            outer4(47, &gre(0xb000, 0x0800, &[0, 5, 6], &plain[14..])),
        ),
        (
            "gre, ipv6 in ipv6",
            outer6(47, &gre(0, 0x86dd, &[], &plain6[14..])),
        ),
        (
            "erspan 1 (everflow)",
            outer4(47, &gre(0, 0x88be, &[], &plain)),
        ),
        (
            "erspan 1, ipv6 outside",
            outer6(47, &gre(0, 0x88be, &[], &tagged)),
        ),
        ("erspan 2", outer4(47, &erspan2(0x123, &plain))),
        ("erspan 2, tagged", outer4(47, &erspan2(1, &tagged))),
        ("erspan 3", outer4(47, &erspan3(0x3ff, 0x8000, &[], &plain))),
        (
            "erspan 3, subheader",
            outer4(47, &erspan3(7, 0x8001, &[4, 0, 0, 0, 0, 0, 0, 0], &plain)),
        ),
        (
            "erspan 3, ip inside",
            outer4(47, &erspan3(7, 2 << 10, &[], &plain[14..])),
        ),
        ("rocev1", rocev1(&inner(), 0x1b)),
        (
            "rocev1, tagged and padded",
            rocev1(
                &Spec {
                    tags: vec![(0x8100, 0x6064)],
                    padding: 5,
                    ..inner().to(C4)
                },
                0x1b,
            ),
        ),
        (
            "rocev1, connectx",
            hex(
                "7cfe90753cd87cfe90753cd889156020000000281b4000000000000000000000ffff0f00000200000000000000000000ffff0f0000020a70ffff0000010a80a788bc000055d4c0726000000047b3000000050000000001000000e3d856bb",
            ),
        ),
        ("cnp", Spec::cnp(QPN).build()),
        ("pfc", mac_control(&pfc)),
        ("pause", mac_control(&[0, 1, 0x12, 0x34])),
        (
            "lldp",
            ethernet(
                0x88cc,
                &[
                    2, 7, 4, 2, 0, 0, 0, 0, 1, 4, 3, 5, b'e', b'0', 6, 2, 0, 120, 0, 0,
                ],
            ),
        ),
        ("arp", ethernet(0x0806, &[0; 46])),
    ]
}

/// One of them.
pub fn frame(name: &str) -> Vec<u8> {
    frames()
        .into_iter()
        .find(|(n, _)| *n == name)
        .unwrap_or_else(|| panic!("no frame {name}"))
        .1
}

/// A packet of an opcode, with its extension headers filled with bytes that differ, and the payload that it may have.
pub fn of_opcode(opcode: Opcode) -> Spec {
    let len = rocexdp_common::opcode::extensions_len(opcode.extensions().unwrap_or(0));
    let headers: Vec<u8> = (0..len as u8)
        .map(|i| i.wrapping_mul(37).wrapping_add(1))
        .collect();
    let payload = match opcode.decode() {
        None => 8,
        Some((Operation::Cnp, _)) => 16,
        Some((Operation::Send | Operation::Write | Operation::ReadResponse, _)) => 32,
        Some((Operation::AtomicWrite, _)) => 8,
        Some(_) => 0,
    };
    let spec = Spec::new(opcode, QPN, PSN)
        .headers(&headers)
        .payload(payload);
    Spec {
        bth: Bth {
            ack_req: true,
            solicited: true,
            mig_req: true,
            pkey: 0x8123,
            ..spec.bth
        },
        ..spec
    }
}
