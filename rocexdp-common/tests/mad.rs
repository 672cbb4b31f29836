//! Management datagrams: every field of every message of the communication manager, and those of real captures.

mod support;

use rocexdp_common::{
    dissect::dissect,
    ids::{Psn, Qpn, gid_from_ipv4},
    mad::{CmMessage, DATA_LEN, Datagram, IpCm, Mad, datagram, rej_reason_name},
    opcode::Opcode,
};
use support::packet::Spec;

/// A field: message, byte, bit from the top of that byte, bits; and how it is read.
type Field = (u16, usize, usize, usize, fn(&CmMessage) -> u64);

macro_rules! of {
    ($m:ident => |$f:ident| $e:expr) => {
        |m| match m {
            CmMessage::$m($f) => $e,
            other => panic!("{other:?}"),
        }
    };
    ($m:ident . $f:ident) => {
        |m| match m {
            CmMessage::$m { $f, .. } => u64::from(*$f),
            other => panic!("{other:?}"),
        }
    };
}

/// The tables of include/rdma/ibta_vol1_c12.h.
fn fields() -> Vec<Field> {
    vec![
        (0x10, 0, 0, 32, of!(Req => |f| f.local_comm_id.into())),
        (0x10, 8, 0, 64, of!(Req => |f| f.service_id)),
        (0x10, 16, 0, 64, of!(Req => |f| f.local_ca_guid)),
        (0x10, 28, 0, 32, of!(Req => |f| f.local_qkey.into())),
        (0x10, 32, 0, 24, of!(Req => |f| f.local_qpn.get().into())),
        (0x10, 35, 0, 8, of!(Req => |f| f.responder_resources.into())),
        (0x10, 36, 0, 24, of!(Req => |f| f.local_eecn.into())),
        (0x10, 39, 0, 8, of!(Req => |f| f.initiator_depth.into())),
        (0x10, 40, 0, 24, of!(Req => |f| f.remote_eecn.into())),
        (0x10, 43, 0, 5, of!(Req => |f| f.remote_cm_timeout.into())),
        (0x10, 43, 5, 2, of!(Req => |f| f.transport.into())),
        (0x10, 43, 7, 1, of!(Req => |f| f.flow_control.into())),
        (0x10, 44, 0, 24, of!(Req => |f| f.starting_psn.get().into())),
        (0x10, 47, 0, 5, of!(Req => |f| f.local_cm_timeout.into())),
        (0x10, 47, 5, 3, of!(Req => |f| f.retry_count.into())),
        (0x10, 48, 0, 16, of!(Req => |f| f.pkey.into())),
        (0x10, 50, 0, 4, of!(Req => |f| f.path_mtu.into())),
        (0x10, 50, 4, 1, of!(Req => |f| f.rdc_exists.into())),
        (0x10, 50, 5, 3, of!(Req => |f| f.rnr_retry_count.into())),
        (0x10, 51, 0, 4, of!(Req => |f| f.max_cm_retries.into())),
        (0x10, 51, 4, 1, of!(Req => |f| f.srq.into())),
        (0x10, 51, 5, 3, of!(Req => |f| f.extended_transport.into())),
        (0x10, 52, 0, 16, of!(Req => |f| f.primary.local_lid.into())),
        (0x10, 54, 0, 16, of!(Req => |f| f.primary.remote_lid.into())),
        (0x10, 88, 0, 20, of!(Req => |f| f.primary.flow_label.into())),
        (0x10, 91, 2, 6, of!(Req => |f| f.primary.packet_rate.into())),
        (
            0x10,
            92,
            0,
            8,
            of!(Req => |f| f.primary.traffic_class.into()),
        ),
        (0x10, 93, 0, 8, of!(Req => |f| f.primary.hop_limit.into())),
        (0x10, 94, 0, 4, of!(Req => |f| f.primary.sl.into())),
        (
            0x10,
            94,
            4,
            1,
            of!(Req => |f| f.primary.subnet_local.into()),
        ),
        (
            0x10,
            95,
            0,
            5,
            of!(Req => |f| f.primary.local_ack_timeout.into()),
        ),
        (
            0x10,
            96,
            0,
            16,
            of!(Req => |f| f.alternate.local_lid.into()),
        ),
        (
            0x10,
            98,
            0,
            16,
            of!(Req => |f| f.alternate.remote_lid.into()),
        ),
        (
            0x10,
            132,
            0,
            20,
            of!(Req => |f| f.alternate.flow_label.into()),
        ),
        (
            0x10,
            135,
            2,
            6,
            of!(Req => |f| f.alternate.packet_rate.into()),
        ),
        (
            0x10,
            136,
            0,
            8,
            of!(Req => |f| f.alternate.traffic_class.into()),
        ),
        (
            0x10,
            137,
            0,
            8,
            of!(Req => |f| f.alternate.hop_limit.into()),
        ),
        (0x10, 138, 0, 4, of!(Req => |f| f.alternate.sl.into())),
        (
            0x10,
            138,
            4,
            1,
            of!(Req => |f| f.alternate.subnet_local.into()),
        ),
        (
            0x10,
            139,
            0,
            5,
            of!(Req => |f| f.alternate.local_ack_timeout.into()),
        ),
        (0x11, 0, 0, 32, of!(Mra.local_comm_id)),
        (0x11, 4, 0, 32, of!(Mra.remote_comm_id)),
        (0x11, 8, 0, 2, of!(Mra.message)),
        (0x11, 9, 0, 5, of!(Mra.service_timeout)),
        (0x12, 0, 0, 32, of!(Rej.local_comm_id)),
        (0x12, 4, 0, 32, of!(Rej.remote_comm_id)),
        (0x12, 8, 0, 2, of!(Rej.message)),
        (0x12, 9, 0, 7, of!(Rej.info_length)),
        (0x12, 10, 0, 16, of!(Rej.reason)),
        (0x13, 0, 0, 32, of!(Rep => |f| f.local_comm_id.into())),
        (0x13, 4, 0, 32, of!(Rep => |f| f.remote_comm_id.into())),
        (0x13, 8, 0, 32, of!(Rep => |f| f.local_qkey.into())),
        (0x13, 12, 0, 24, of!(Rep => |f| f.local_qpn.get().into())),
        (0x13, 16, 0, 24, of!(Rep => |f| f.local_eecn.into())),
        (0x13, 20, 0, 24, of!(Rep => |f| f.starting_psn.get().into())),
        (0x13, 24, 0, 8, of!(Rep => |f| f.responder_resources.into())),
        (0x13, 25, 0, 8, of!(Rep => |f| f.initiator_depth.into())),
        (0x13, 26, 0, 5, of!(Rep => |f| f.target_ack_delay.into())),
        (0x13, 26, 5, 2, of!(Rep => |f| f.failover_accepted.into())),
        (0x13, 26, 7, 1, of!(Rep => |f| f.flow_control.into())),
        (0x13, 27, 0, 3, of!(Rep => |f| f.rnr_retry_count.into())),
        (0x13, 27, 3, 1, of!(Rep => |f| f.srq.into())),
        (0x13, 28, 0, 64, of!(Rep => |f| f.local_ca_guid)),
        (0x14, 0, 0, 32, of!(Rtu.local_comm_id)),
        (0x14, 4, 0, 32, of!(Rtu.remote_comm_id)),
        (0x15, 0, 0, 32, of!(Dreq.local_comm_id)),
        (0x15, 4, 0, 32, of!(Dreq.remote_comm_id)),
        (0x15, 8, 0, 24, |m| match m {
            CmMessage::Dreq { remote_qpn, .. } => remote_qpn.get().into(),
            other => panic!("{other:?}"),
        }),
        (0x16, 0, 0, 32, of!(Drep.local_comm_id)),
        (0x16, 4, 0, 32, of!(Drep.remote_comm_id)),
        (0x17, 0, 0, 32, of!(SidrReq => |f| f.request_id.into())),
        (0x17, 4, 0, 16, of!(SidrReq => |f| f.pkey.into())),
        (0x17, 8, 0, 64, of!(SidrReq => |f| f.service_id)),
        (0x18, 0, 0, 32, of!(SidrRep => |f| f.request_id.into())),
        (0x18, 4, 0, 8, of!(SidrRep => |f| f.status.into())),
        (0x18, 8, 0, 24, of!(SidrRep => |f| f.qpn.get().into())),
        (0x18, 12, 0, 64, of!(SidrRep => |f| f.service_id)),
        (0x18, 20, 0, 32, of!(SidrRep => |f| f.qkey.into())),
        (0x19, 0, 0, 32, of!(Lap.local_comm_id)),
        (0x19, 4, 0, 32, of!(Lap.remote_comm_id)),
        (0x19, 12, 0, 24, |m| match m {
            CmMessage::Lap { remote_qpn, .. } => remote_qpn.get().into(),
            other => panic!("{other:?}"),
        }),
        (0x19, 15, 0, 5, of!(Lap.remote_cm_timeout)),
        (0x19, 20, 0, 16, |m| lap(m).local_lid.into()),
        (0x19, 22, 0, 16, |m| lap(m).remote_lid.into()),
        (0x19, 56, 0, 20, |m| lap(m).flow_label.into()),
        (0x19, 59, 0, 8, |m| lap(m).traffic_class.into()),
        (0x19, 60, 0, 8, |m| lap(m).hop_limit.into()),
        (0x19, 61, 2, 6, |m| lap(m).packet_rate.into()),
        (0x19, 62, 0, 4, |m| lap(m).sl.into()),
        (0x19, 62, 4, 1, |m| lap(m).subnet_local.into()),
        (0x19, 63, 0, 5, |m| lap(m).local_ack_timeout.into()),
        (0x1a, 0, 0, 32, of!(Apr.local_comm_id)),
        (0x1a, 4, 0, 32, of!(Apr.remote_comm_id)),
        (0x1a, 8, 0, 8, of!(Apr.info_length)),
        (0x1a, 9, 0, 8, of!(Apr.status)),
    ]
}

fn lap(m: &CmMessage) -> &rocexdp_common::mad::CmPath {
    match m {
        CmMessage::Lap { alternate, .. } => alternate,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_field_is_read_from_its_bits_and_no_others() {
    for (attribute, byte, bit, width, read) in fields() {
        let mut only = [0u8; DATA_LEN];
        for at in 8 * byte + bit..8 * byte + bit + width {
            only[at / 8] |= 0x80 >> (at % 8);
        }
        let others = only.map(|b| !b);
        let read = |data| read(&CmMessage::parse(attribute, &data).expect("a message"));
        let what = format!("attribute {attribute:#x}, byte {byte}, bit {bit}");
        assert_eq!(read(only), u64::MAX >> (64 - width), "{what}");
        assert_eq!(read(others), 0, "{what}");
        // Written where it is read, over whatever was there. (The RDMA CM's header has its own bits.)
        if !matches!(attribute, 0x10 | 0x17) {
            let message = CmMessage::parse(attribute, &only).expect("a message");
            assert_eq!(message.attribute(), attribute);
            for before in [0, 0xff] {
                let mut data = [before; DATA_LEN];
                message.emit(&mut data);
                assert_eq!(CmMessage::parse(attribute, &data), Some(message), "{what}");
            }
            let mut data = [0; DATA_LEN];
            message.emit(&mut data);
            assert_eq!(data, only, "{what}");
        }
    }
    for attribute in [0, 1, 0xf, 0x1b, 0x110, 0xffff] {
        assert_eq!(CmMessage::parse(attribute, &[0; DATA_LEN]), None);
    }
}

#[test]
fn private_data_has_the_sizes_that_the_kernel_gives_its_users() {
    // enum ib_cm_data_size of include/rdma/ib_cm.h.
    for (attribute, size) in [
        (0x10, 92),
        (0x11, 222),
        (0x12, 148),
        (0x13, 196),
        (0x14, 224),
        (0x15, 220),
        (0x16, 224),
        (0x17, 216),
        (0x18, 136),
        (0x19, 168),
        (0x1a, 148),
    ] {
        let message = CmMessage::parse(attribute, &[0; DATA_LEN]).unwrap();
        assert_eq!(message.private_data().1, size, "{}", message.name());
    }
}

/// The frames of one of the captures, and its datagrams.
fn datagrams(name: &str) -> Vec<Datagram> {
    let path = format!("{}/../tests/captures/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut all) = (24, Vec::new());
    while at < file.len() {
        let frame = &file[at + 16..at + 16 + word(at + 8)];
        at += 16 + frame.len();
        let d = dissect(frame);
        all.extend(d.kind.packet().and_then(|p| datagram(frame, p)));
    }
    all
}

#[test]
fn a_connection_of_rping_from_request_to_end() {
    let all = datagrams("cm-rping.pcap");
    let names: Vec<_> = all.iter().map(|d| d.cm.as_ref().unwrap().name()).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    assert!(
        all.iter()
            .all(|d| d.src_qpn == Qpn::new(1) && d.mad.method == 3)
    );
    let (Some(CmMessage::Req(req)), Some(CmMessage::Rep(rep))) = (&all[0].cm, &all[1].cm) else {
        panic!("{all:?}")
    };
    // As tshark shows them.
    assert_eq!(
        (req.local_comm_id, req.local_qpn, req.starting_psn),
        (0xb1a4_772a, Qpn::new(0x3b), Psn::new(0xf6_f6c0))
    );
    assert_eq!(
        (req.transport, req.pkey, req.path_mtu_bytes()),
        (0, 0xffff, Some(4096))
    );
    assert_eq!(
        (req.retry_count, req.rnr_retry_count, req.max_cm_retries),
        (7, 7, 15)
    );
    assert_eq!(
        (req.primary.local_gid, req.primary.remote_gid),
        (gid_from_ipv4([10, 77, 0, 2]), gid_from_ipv4([10, 77, 0, 3]))
    );
    // Bytes 33 37 d0 00. tshark 4.0 shows 0x00333 and 0x33: of both it reads a number of 16 and of 8 bits at the
    // first byte.
    assert_eq!(
        (
            req.primary.flow_label,
            req.primary.packet_rate,
            req.primary.hop_limit
        ),
        (0x3_337d, 0, 0x40)
    );
    assert_eq!(req.primary.local_ack_timeout, 0x13);
    let ip = req.ip_cm.unwrap();
    assert_eq!(
        (ip.port_space, ip.port, ip.src_port, ip.ip_version),
        (6, 7174, 0x9da9, 4)
    );
    assert_eq!(
        (ip.src, ip.dst),
        (gid_from_ipv4([10, 77, 0, 2]), gid_from_ipv4([10, 77, 0, 3]))
    );
    assert_eq!(
        (rep.local_comm_id, rep.remote_comm_id, rep.local_qpn),
        (0x7dae_d25b, req.local_comm_id, Qpn::new(0x3b))
    );
    assert_eq!(rep.starting_psn, Psn::new(0x4c_d938));
    let Some(CmMessage::Dreq { remote_qpn, .. }) = all[3].cm else {
        panic!("{all:?}")
    };
    assert_eq!(remote_qpn, Qpn::new(0x3b));
}

#[test]
fn ipv6_a_refusal_and_datagram_services() {
    let all = datagrams("cm-rping-ipv6.pcap");
    let Some(CmMessage::Req(req)) = all[0].cm else {
        panic!("{all:?}")
    };
    let ip = req.ip_cm.unwrap();
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfd, 0x77, 2);
    assert_eq!(
        (ip.ip_version, ip.src, req.primary.local_gid),
        (6, gid, gid)
    );

    let all = datagrams("cm-reject.pcap");
    let Some(CmMessage::Rej {
        reason,
        remote_comm_id,
        ..
    }) = all[1].cm
    else {
        panic!("{all:?}")
    };
    let Some(CmMessage::Req(req)) = all[0].cm else {
        panic!("{all:?}")
    };
    assert_eq!((reason, rej_reason_name(reason)), (8, "invalid service ID"));
    assert_eq!(
        (remote_comm_id, req.ip_cm.unwrap().port),
        (req.local_comm_id, 7999)
    );

    let all = datagrams("cm-udaddy.pcap");
    let (Some(CmMessage::SidrReq(req)), Some(CmMessage::SidrRep(rep))) = (&all[0].cm, &all[1].cm)
    else {
        panic!("{all:?}")
    };
    assert_eq!(
        (rep.request_id, rep.status, rep.service_id),
        (req.request_id, 0, req.service_id)
    );
    assert_eq!(
        (req.ip_cm.unwrap().port_space, rep.qkey),
        (0x11, 0x0123_4567)
    );
    assert!(rep.qpn.get() > 1);
}

#[test]
fn what_is_no_datagram_of_the_communication_manager_is_not_read_as_one() {
    let mad = |class, version, attribute: u16| {
        let mut payload = vec![0; 256];
        payload[..4].copy_from_slice(&[1, class, version, 3]);
        payload[16..18].copy_from_slice(&attribute.to_be_bytes());
        payload
    };
    let packet = |opcode, qpn, payload: Vec<u8>| {
        let spec = Spec {
            payload,
            ..Spec::new(Opcode(opcode), qpn, 0).headers(&[0, 0, 0, 0, 0, 0, 0, 9])
        };
        let frame = spec.build();
        let d = dissect(&frame[..]);
        datagram(&frame[..], d.kind.packet().unwrap())
    };
    let good = packet(0x64, 1, mad(7, 2, 0x14)).unwrap();
    assert!(matches!(good.cm, Some(CmMessage::Rtu { .. })));
    assert_eq!(good.src_qpn, Qpn::new(9));
    // Another class, another version, another attribute: a MAD, but no message that is known.
    for payload in [mad(3, 2, 0x14), mad(7, 1, 0x14), mad(7, 2, 0x1b)] {
        assert_eq!(packet(0x64, 1, payload).unwrap().cm, None);
    }
    // Another QP, another service, too short.
    assert_eq!(packet(0x64, 2, mad(7, 2, 0x14)), None);
    assert_eq!(packet(0x24, 1, mad(7, 2, 0x14)), None);
    assert_eq!(packet(0x64, 1, mad(7, 2, 0x14)[..252].to_vec()), None);
}

/// The MADs of a capture, whole.
fn mads(name: &str) -> Vec<[u8; 256]> {
    let path = format!("{}/../tests/captures/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut all) = (24, Vec::new());
    while at < file.len() {
        let frame = &file[at + 16..at + 16 + word(at + 8)];
        at += 16 + frame.len();
        if let Some(d) = dissect(frame)
            .kind
            .packet()
            .and_then(|p| datagram(frame, p))
        {
            let begin = d.data_at as usize - Mad::LEN;
            all.push(frame[begin..begin + 256].try_into().unwrap());
        }
    }
    all
}

#[test]
fn what_is_written_is_what_soft_roce_sent_byte_for_byte() {
    let mut kinds = std::collections::BTreeSet::new();
    for name in [
        "cm-rping.pcap",
        "cm-rping-ipv6.pcap",
        "cm-reject.pcap",
        "cm-ucmatose.pcap",
        "cm-udaddy.pcap",
    ] {
        for mad in mads(name) {
            let header = Mad::parse(mad.first_chunk().unwrap());
            let data: [u8; DATA_LEN] = mad[Mad::LEN..].try_into().unwrap();
            let message = CmMessage::parse(header.attribute, &data).unwrap();
            kinds.insert(message.name());
            assert_eq!(header, Mad::cm(message.attribute(), header.transaction_id));
            let mut head = [0xa5; Mad::LEN];
            header.emit(&mut head);
            assert_eq!(head, mad[..Mad::LEN], "{name}: {}", message.name());
            // What the application gave along is no field.
            let (at, len) = message.private_data();
            let own = if matches!(message, CmMessage::Req(_) | CmMessage::SidrReq(_)) {
                at + IpCm::LEN..at + len
            } else {
                at..at + len
            };
            let mut written = [0; DATA_LEN];
            written[own.clone()].copy_from_slice(&data[own]);
            message.emit(&mut written);
            assert_eq!(written, data, "{name}: {}", message.name());
        }
    }
    let all = [
        "DREP", "DREQ", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ",
    ];
    assert!(kinds.into_iter().eq(all));
}

#[test]
fn the_service_id_of_a_port() {
    for (space, port, id) in [(0x06, 7174, 0x0106_1c06), (0x11, 1, 0x0111_0001)] {
        assert_eq!(IpCm::service_id(space, port), id);
    }
}
