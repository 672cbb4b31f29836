//! What leaves, byte by byte: headers into a buffer full of 0xa5, a CNP as a ConnectX-4 Lx sends it, and whole frames of the
//! transport in one and in many pieces.

mod common;

use common::{LONG, pattern, recv_wr, send_wr, target};
use rocexdp_common::headers::{Aeth, Bth, Reth, Syndrome};
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, gid_from_ipv4};
use rocexdp_proto::verbs::SendOp;
use rocexdp_proto::wire::{HeaderBuf, HeaderTemplate, Icrc, Path, flow_label_of_port};
use rocexdp_proto::{ModifyQp, QpState};
use rocexdp_sim::pair::{self, Bytes, Pair, PairConfig};

#[test]
fn headers_have_their_golden_bytes_and_reserved_bits_are_zero() {
    let mut b = [0xa5; 12];
    let bth = Bth {
        opcode: rc::WRITE_ONLY_IMM,
        solicited: true,
        mig_req: true,
        pad: 3,
        version: 0,
        pkey: 0xffff,
        fecn: false,
        becn: true,
        dest_qpn: Qpn::new(0x12_3456),
        ack_req: true,
        psn: Psn::new(0xab_cdef),
    };
    bth.emit(&mut b);
    assert_eq!(
        b,
        [
            0x0b, 0xf0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef
        ]
    );
    assert_eq!(Bth::parse(&b), bth);

    let mut b = [0xa5; 16];
    let reth = Reth {
        va: 0x0102_0304_0506_0708,
        rkey: 0x090a_0b0c,
        length: 0x8000_0000,
    };
    reth.emit(&mut b);
    assert_eq!(b, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x80, 0, 0, 0]);
    assert_eq!(Reth::parse(&b), reth);

    for (syndrome, byte) in [
        (Syndrome::Ack(0x1f), 0x1f),
        (Syndrome::Ack(5), 5),
        (Syndrome::RnrNak(12), 0x2c),
        (Syndrome::NakSequence, 0x60),
        (Syndrome::NakInvalidRequest, 0x61),
        (Syndrome::NakRemoteAccess, 0x62),
        (Syndrome::NakRemoteOperational, 0x63),
    ] {
        let mut b = [0xa5; 4];
        let aeth = Aeth {
            syndrome,
            msn: 0x00_fffe,
        };
        aeth.emit(&mut b);
        assert_eq!(b, [byte, 0, 0xff, 0xfe]);
        assert_eq!(Aeth::parse(&b), aeth);
    }
}

#[test]
fn a_cnp_is_the_one_of_a_connectx_4_lx() {
    // The capture of wire_icrc.rs; our IPv4 identification is 0, theirs is a counter.
    let path = Path {
        src_mac: [0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32],
        dst_mac: [0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2],
        vlan: None,
        sl: 0,
        src: gid_from_ipv4([10, 0, 0x11, 1]),
        dst: gid_from_ipv4([10, 0, 0x12, 1]),
        hop_limit: 64,
        dscp: None,
        flow_label: 0,
    };
    let mut out = HeaderBuf::default();
    HeaderTemplate::cnp(&path, 48, 6).cnp_packet(&mut out, Qpn::new(0x118));
    let golden = [
        "e41d2dab2bc27cfe90643b320800",
        "45c2003c000040004011 02ee 0a0011010a001201",
        "000012b700280000",
        "8100ffff400001180000000000000000000000000000000000000000",
    ];
    let hex: String = out.bytes().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, golden.concat().replace(' ', ""));

    let tagged = Path {
        vlan: Some(100),
        ..path
    };
    HeaderTemplate::cnp(&tagged, 48, 6).cnp_packet(&mut out, Qpn::new(0x118));
    assert_eq!(out.bytes()[12..16], [0x81, 0x00, 0xc0, 0x64], "priority 6");
}

#[test]
fn a_paths_own_dscp_hop_limit_and_flow_label_are_on_all_that_a_qp_sends() {
    for ipv6 in [false, true] {
        let mut config = PairConfig {
            ipv6,
            ..PairConfig::default()
        };
        config.endpoint[0].data_dscp = 10;
        let mut pair = Pair::new(&config);
        let way = Path {
            dscp: Some(46),
            hop_limit: 7,
            flow_label: flow_label_of_port(0xc123).unwrap(),
            ..pair::path(&config, 0)
        };
        let now = pair.now();
        let mut modify = |m: ModifyQp| {
            let endpoint = &mut pair.ends[0].endpoint;
            endpoint.modify_qp(now, pair::QPNS[0], m).unwrap();
        };
        modify(ModifyQp::to(QpState::Sqd));
        modify(ModifyQp {
            path: Some(way),
            ..ModifyQp::default()
        });
        modify(ModifyQp::to(QpState::Rts));
        pair.capture();
        for end in [0, 1] {
            // A request of each, and so an acknowledgement of each.
            pair.post_recv(1 - end, recv_wr(1, &Bytes::filled(8, 0), 8))
                .unwrap();
            pair.post_send(end, send_wr(1, SendOp::Send, &Bytes::filled(8, 0), 8))
                .unwrap();
        }
        assert!(pair.run(LONG));
        let ours = pair.sent.iter().filter(|s| s.end == 0);
        for sent in ours.clone() {
            let ip = &sent.frame[14..];
            let tos = 46 << 2 | 2;
            let (there, udp) = if ipv6 {
                assert_eq!(ip[1..4], [(tos << 4) as u8, 1, 0x23], "class and label");
                ([ip[0] << 4 | ip[1] >> 4, ip[7]], 40)
            } else {
                ([ip[1], ip[8]], 20)
            };
            assert_eq!(there, [tos as u8, 7]);
            assert_eq!(ip[udp..udp + 2], [0xc1, 0x23]);
        }
        assert_eq!(ours.count(), 2, "a request and an acknowledgement");
    }
}

#[test]
fn the_service_level_is_the_vlan_priority_where_there_is_a_tag() {
    let untagged = Path {
        sl: 5,
        ..pair::path(&PairConfig::default(), 0)
    };
    let frame = |path: &Path| {
        let mut out = HeaderBuf::default();
        HeaderTemplate::data(path, Qpn::new(1), Qpn::new(2), 0).start(&mut out, 16);
        out.bytes().to_vec()
    };
    assert_eq!(frame(&untagged), frame(&Path { sl: 0, ..untagged }));
    for (sl, tci) in [(0, 0x0064), (5, 0xa064), (7, 0xe064), (13, 0xa064)] {
        let tagged = Path {
            vlan: Some(100),
            sl,
            ..untagged
        };
        assert_eq!(
            frame(&tagged)[12..16],
            [0x81, 0, (tci >> 8) as u8, tci as u8]
        );
    }
}

/// The frames of a WRITE with immediate of 300 B at path MTU 256, and its ACK, in pieces of `piece` bytes.
fn frames(piece: usize, ipv6: bool) -> Vec<Vec<u8>> {
    let config = PairConfig {
        path_mtu: PathMtu::Mtu256,
        piece,
        ipv6,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 301);
    pair.post_recv(1, recv_wr(1, &Bytes::filled(0, 0), 0))
        .unwrap();
    let op = SendOp::WriteImm {
        va: region.va,
        rkey: region.rkey,
        imm: 0xdead_beef,
    };
    pair.post_send(0, send_wr(1, op, &Bytes::of(pattern(301, 1)), 301))
        .unwrap();
    pair.capture();
    assert!(pair.run(LONG));
    pair.sent.iter().map(|s| s.frame.clone()).collect()
}

#[test]
fn whole_frames_are_as_specified_in_any_number_of_pieces() {
    let sent = frames(usize::MAX, false);
    let [first, last, ack] = &sent[..] else {
        panic!("{} frames", sent.len())
    };
    assert_eq!(first.len(), 14 + 20 + 8 + 12 + 16 + 256 + 4);
    assert_eq!(last.len(), 14 + 20 + 8 + 12 + 4 + 45 + 3 + 4);
    assert_eq!(ack.len(), 62);

    // IPv4: ECT(0), DF, identification 0, UDP; UDP checksum 0, to 4791.
    assert_eq!(
        first[14..24],
        [0x45, 0x02, 0x01, 0x3c, 0, 0, 0x40, 0, 64, 17]
    );
    assert_eq!(first[36..42], [0x12, 0xb7, 0x01, 0x28, 0, 0]);
    assert!(first[34] >= 0xc0);
    assert_eq!(
        first[42..54],
        [
            0x06, 0x40, 0xff, 0xff, 0, 0x80, 0, 0x22, 0, 0xff, 0xff, 0xf0
        ]
    );
    assert_eq!(first[54..62], 0x10_0000u64.to_be_bytes());
    assert_eq!(first[66..70], 301u32.to_be_bytes());
    assert!(first[70..326] == pattern(301, 1)[..256]);
    assert_eq!(
        last[42..58],
        [
            0x09, 0x70, 0xff, 0xff, 0, 0x80, 0, 0x22, 0x80, 0xff, 0xff, 0xf1, 0xde, 0xad, 0xbe,
            0xef
        ]
    );
    assert!(last[58..103] == pattern(301, 1)[256..]);
    assert_eq!(last[103..106], [0, 0, 0], "pad");
    assert_eq!(ack[15], 2, "ECT(0)");
    assert_eq!(
        ack[42..58],
        [
            0x11, 0x40, 0xff, 0xff, 0, 0x80, 0, 0x11, 0, 0xff, 0xff, 0xf1, 0x1f, 0, 0, 1
        ]
    );
    for frame in &sent {
        let (body, icrc) = frame.split_at(frame.len() - 4);
        let mut crc = Icrc::over_headers(&body[14..54], 20).unwrap();
        crc.update(&body[54..]);
        assert_eq!(crc.finish(), icrc);
    }
    for piece in [1, 2, 13, 62, 255] {
        assert!(frames(piece, false) == sent, "pieces of {piece} B");
    }
    assert!(frames(29, true) == frames(usize::MAX, true));
    assert_eq!(
        frames(usize::MAX, true)[0][14..22],
        [0x60, 0x20, 0, 0, 0x01, 0x28, 17, 64]
    );
}
