//! The packets that go through the real program, and the QPs they meet.

use rocexdp_common::{
    maps::{MULTICAST_QPN, QpConfig, Reason, local_addr},
    opcode::{Opcode, rc},
    verdict::Outcome,
};

use crate::{
    kernel::{QUANTUM_PS, SLOTS, TOLD},
    support::{
        model::Model,
        packet::{A4, A6, Addr, B4, B6, C4, Spec},
    },
};

/// An RC QP over IPv4, slot 5.
pub const RC4: u32 = 0x80_0005;
/// An RC QP over IPv6, slot 70, of owner 1.
pub const RC6: u32 = 0x80_0046;
/// A UC QP, slot 6.
pub const UC4: u32 = 0x80_0006;
/// A UD QP, slot 7.
pub const UD4: u32 = 0x80_0007;

pub fn config(qpn: u32, transport: u8, local: Addr, peer: Addr) -> QpConfig {
    QpConfig {
        generation: 3,
        qpn,
        peer_qpn: 0x11,
        local_gid: local.gid(),
        peer_gid: peer.gid(),
        transport,
        path_mtu_log2: 10,
        ..QpConfig::default()
    }
}

/// A multicast group that was joined.
const GROUP4: Addr = Addr::V4([239, 1, 2, 3]);
/// Another.
const GROUP6: Addr = Addr::V6([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);

/// A UD QP at all addresses of a kind.
fn everywhere(qpn: u32, address_flags: u32) -> QpConfig {
    QpConfig {
        generation: 3,
        qpn,
        transport: 3,
        path_mtu_log2: 10,
        address_flags: address_flags as u8,
        ..QpConfig::default()
    }
}

pub fn model() -> Model {
    let mut m = Model::new(SLOTS as usize, TOLD as usize);
    m.quantum_ps = QUANTUM_PS;
    m.add(QpConfig {
        resync: 1,
        resync_request_psn: 100,
        resync_response_psn: 500,
        ..config(RC4, 0, B4, A4)
    });
    m.add(QpConfig {
        owner: 1,
        path_mtu_log2: 12,
        ..config(RC6, 0, B6, A6)
    });
    m.add(config(UC4, 1, B4, A4));
    m.add(config(UD4, 3, B4, A4));
    m.add(everywhere(1, local_addr::EXCLUSIVE));
    m.add(everywhere(MULTICAST_QPN, local_addr::GROUP));
    m.addresses = vec![
        (GROUP4.gid(), local_addr::GROUP),
        (GROUP6.gid(), local_addr::GROUP),
        (B4.gid(), local_addr::EXCLUSIVE),
        (B6.gid(), local_addr::EXCLUSIVE),
        (C4.gid(), local_addr::SHARED),
    ];
    m
}

pub fn send(qpn: u32, psn: u32) -> Spec {
    Spec::new(rc::SEND_ONLY, qpn, psn).payload(64)
}

pub fn six(spec: Spec) -> Spec {
    spec.from(A6).to(B6)
}

/// Named frames in the order they arrive, with the outcome each must have while both QPs' sockets are there.
pub fn fixtures() -> Vec<(&'static str, Vec<u8>, Outcome)> {
    use Outcome::{Consumed, Dropped, PassedOther, PassedRoce, Redirected};
    let mut all: Vec<(&'static str, Vec<u8>, Outcome)> = Vec::new();
    let mut add = |name, frame: Vec<u8>, outcome| all.push((name, frame, outcome));
    add("send", send(RC4, 100).build(), Redirected);
    add("send, CE", send(RC4, 101).tos(3).build(), Redirected);
    add("gap", send(RC4, 105).build(), Redirected);
    add("still in the gap", send(RC4, 106).build(), Redirected);
    add("the missing packet", send(RC4, 102).build(), Redirected);
    add("duplicate", send(RC4, 101).build(), Redirected);
    add(
        "read request",
        Spec::new(rc::READ_REQUEST, RC4, 103).reth(5000).build(),
        Redirected,
    );
    add("after the read", send(RC4, 108).build(), Redirected);
    add(
        "write",
        Spec::new(rc::WRITE_FIRST, RC4, 109)
            .reth(2048)
            .payload(1024)
            .build(),
        Redirected,
    );
    add(
        "read response",
        Spec::new(rc::READ_RESPONSE_ONLY, RC4, 500)
            .headers(&[0x1f, 0, 0, 1])
            .payload(7)
            .build(),
        Redirected,
    );
    add("ack", Spec::ack(RC4, 77, 0x1f, 5).build(), Redirected);
    add("nak", Spec::ack(RC4, 78, 0x60, 5).build(), Redirected);
    add("rnr nak", Spec::ack(RC4, 79, 0x2e, 5).build(), Redirected);
    for (name, tags) in [
        ("priority tag", vec![(0x8100, 0xe000)]),
        ("vlan 100", vec![(0x8100, 100)]),
        ("qinq", vec![(0x88a8, 7), (0x8100, 100)]),
    ] {
        add(
            name,
            Spec {
                tags,
                ..send(RC4, 110)
            }
            .build(),
            Redirected,
        );
    }
    let tags = vec![(0x88a8, 7), (0x8100, 8), (0x8100, 9)];
    add(
        "three tags",
        Spec {
            tags,
            ..send(RC4, 110)
        }
        .build(),
        PassedOther(Some(Reason::VlanDepth)),
    );
    add(
        "ipv4 options",
        Spec {
            options: vec![1; 40],
            ..send(RC4, 110)
        }
        .build(),
        Redirected,
    );
    add(
        "ethernet padding",
        Spec {
            padding: 40,
            ..send(RC4, 111)
        }
        .build(),
        Redirected,
    );
    add("ipv6", six(send(RC6, 0xff_ffff)).build(), Redirected);
    add("ipv6, wrapped", six(send(RC6, 0)).build(), Redirected);
    let extensions = vec![
        (0, vec![0; 6]),
        (43, vec![0; 14]),
        (51, vec![0; 22]),
        (60, vec![0; 6]),
    ];
    add(
        "ipv6 extensions",
        six(Spec {
            extensions,
            ..send(RC6, 1)
        })
        .build(),
        Redirected,
    );
    let extensions = vec![(60, vec![0; 6]); 5];
    add(
        "ipv6, five extensions",
        six(Spec {
            extensions,
            ..send(RC6, 1)
        })
        .build(),
        PassedOther(Some(Reason::Ipv6Extension)),
    );
    let extensions = vec![(44, vec![0, 1, 0, 0, 0, 1])];
    add(
        "ipv6 fragment",
        six(Spec {
            extensions,
            ..send(RC6, 1)
        })
        .build(),
        PassedOther(Some(Reason::Ipv6Fragment)),
    );
    let mut fragment = send(RC4, 111).build();
    fragment[20] |= 0x20;
    add(
        "ipv4 fragment",
        fragment,
        PassedOther(Some(Reason::Ipv4Fragment)),
    );
    let mut udp_length = send(RC4, 111).build();
    udp_length[39] -= 4;
    add(
        "udp length",
        udp_length,
        PassedRoce(Some(Reason::UdpLength)),
    );
    let mut version = send(RC4, 111);
    version.bth.version = 1;
    add(
        "transport version",
        version.build(),
        PassedRoce(Some(Reason::BthVersion)),
    );
    add(
        "cut short",
        send(RC4, 111).build()[..60].to_vec(),
        PassedOther(Some(Reason::Ipv4Length)),
    );
    let opcode = Spec::new(Opcode(0x1f), RC4, 1);
    add(
        "undefined opcode",
        opcode.build(),
        Dropped(Reason::UnknownOpcode),
    );
    add("cnp", Spec::cnp(RC4).build(), Consumed);
    add(
        "cnp with options and tag",
        Spec {
            options: vec![1; 8],
            tags: vec![(0x8100, 6)],
            ..Spec::cnp(RC4)
        }
        .build(),
        Consumed,
    );
    add("cnp over ipv6", six(Spec::cnp(RC6)).build(), Consumed);
    add(
        "cnp over ipv6 with an extension",
        six(Spec {
            extensions: vec![(60, vec![0; 22])],
            ..Spec::cnp(RC6)
        })
        .build(),
        Consumed,
    );
    let mut bad = Spec::cnp(RC4).build();
    bad[60] ^= 4;
    add("cnp, wrong icrc", bad, Dropped(Reason::CnpIcrc));
    add(
        "cnp, too long",
        Spec::cnp(RC4).payload(20).build(),
        Dropped(Reason::CnpMalformed),
    );
    add(
        "uc, and a gap",
        Spec::new(Opcode(0x24), UC4, 8).build(),
        Redirected,
    );
    add(
        "uc, behind it",
        Spec::new(Opcode(0x24), UC4, 12).build(),
        Redirected,
    );
    add(
        "ud",
        Spec::new(Opcode(0x64), UD4, 8)
            .headers(&[0; 8])
            .from(C4)
            .build(),
        Redirected,
    );
    let ud = |qpn| {
        Spec::new(Opcode(0x64), qpn, 8)
            .headers(&[0; 8])
            .payload(256)
    };
    add("mad", ud(1).from(C4).build(), Redirected);
    add("mad over ipv6", six(ud(1)).build(), Redirected);
    add(
        "mad to a shared address",
        ud(1).to(C4).build(),
        PassedRoce(None),
    );
    add(
        "mad to another host",
        ud(1).to(A4).build(),
        PassedRoce(None),
    );
    add(
        "rc to qp 1",
        send(1, 1).build(),
        Dropped(Reason::TransportMismatch),
    );
    add("group", ud(MULTICAST_QPN).to(GROUP4).build(), Redirected);
    add(
        "ipv6 group",
        ud(MULTICAST_QPN).from(A6).to(GROUP6).build(),
        Redirected,
    );
    add(
        "group that nobody joined",
        ud(MULTICAST_QPN).to(Addr::V4([239, 1, 2, 4])).build(),
        PassedRoce(Some(Reason::UnknownGroup)),
    );
    add(
        "multicast qpn at our address",
        ud(MULTICAST_QPN).build(),
        Dropped(Reason::UnknownQpn),
    );
    add(
        "group, a qp's number",
        ud(UD4).to(GROUP4).build(),
        PassedRoce(None),
    );
    add(
        "wrong peer",
        send(RC4, 111).from(C4).build(),
        Dropped(Reason::PeerAddress),
    );
    add(
        "uc to rc",
        Spec::new(Opcode(0x24), RC4, 8).build(),
        Dropped(Reason::TransportMismatch),
    );
    add(
        "unknown qp",
        send(0x80_0085, 1).build(),
        Dropped(Reason::UnknownQpn),
    );
    add(
        "unknown qp, ipv6",
        six(send(17, 1)).build(),
        Dropped(Reason::UnknownQpn),
    );
    add(
        "our qp, other address",
        six(send(RC4, 1)).build(),
        Dropped(Reason::LocalAddress),
    );
    add(
        "shared address",
        send(17, 1).to(C4).build(),
        PassedRoce(None),
    );
    add(
        "shared address, a qp of ours elsewhere",
        send(RC4, 1).to(C4).build(),
        PassedRoce(None),
    );
    add(
        "foreign",
        send(17, 1).from(B4).to(A4).build(),
        PassedRoce(None),
    );
    add(
        "foreign, gap",
        send(17, 5).from(B4).to(A4).build(),
        PassedRoce(None),
    );
    add(
        "foreign, path mtu",
        Spec::new(rc::SEND_FIRST, 17, 6)
            .payload(2048)
            .from(B4)
            .to(A4)
            .build(),
        PassedRoce(None),
    );
    add(
        "foreign read",
        Spec::new(rc::READ_REQUEST, 17, 7)
            .reth(5000)
            .from(B4)
            .to(A4)
            .build(),
        PassedRoce(None),
    );
    add(
        "foreign, undefined opcode",
        opcode.from(B4).to(A4).build(),
        PassedRoce(Some(Reason::UnknownOpcode)),
    );
    add(
        "foreign cnp",
        Spec::cnp(17).from(B4).to(A4).build(),
        PassedRoce(None),
    );
    let other_port = Spec {
        dport: 4790,
        ..send(RC4, 111)
    };
    add("another port", other_port.build(), PassedOther(None));
    let mut arp = send(RC4, 1).build();
    arp[13] = 6;
    add("arp", arp, PassedOther(None));
    let control = |ether_type: u16, body: &[u8]| {
        let mut frame = vec![1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1];
        frame.extend(ether_type.to_be_bytes());
        frame.extend(body);
        frame.resize(60, 0);
        frame
    };
    // Priority 3 for all 65535 quanta, priority 5 may go on; 7's time does not count.
    let pfc = [
        1, 1, 0, 0x28, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 9,
    ];
    add("pfc", control(0x8808, &pfc), PassedOther(None));
    add("pause", control(0x8808, &[0, 1, 0, 7]), PassedOther(None));
    add("mac control", control(0x8808, &[9, 9]), PassedOther(None));
    let mut cut = control(0x8808, &pfc);
    cut.truncate(30);
    add("pfc cut short", cut, PassedOther(None));
    add("lldp", control(0x88cc, &[2, 7, 4]), PassedOther(None));
    all
}
