//! The ICRC is right on every packet of Soft-RoCE and of the golden vectors, and wrong where one covered bit differs.

mod capture_support;

use rocexdp_common::dissect::{Kind, dissect};
use rocexdp_observe::{
    capture::{LinkType, PcapngWriter, Reader},
    icrc::{Icrc, check},
};

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

/// Name, frame, whether the vector calls it right.
fn vectors() -> Vec<(String, Vec<u8>, bool)> {
    let path = capture_support::dir().join("icrc-vectors.json");
    let text = std::fs::read_to_string(path).unwrap();
    let list: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    list.iter()
        .map(|v| {
            (
                v["name"].as_str().unwrap().to_owned(),
                unhex(v["frame"].as_str().unwrap()),
                v["ok"].as_bool().unwrap(),
            )
        })
        .collect()
}

#[test]
fn vectors_agree() {
    let vectors = vectors();
    assert!(vectors.len() >= 5);
    let mut v1 = 0;
    for (name, frame, right) in vectors {
        let dissected = dissect(frame.as_slice());
        let packet = dissected.kind.packet().expect(&name);
        v1 += u32::from(matches!(dissected.kind, Kind::RoceV1(_)));
        let result = check(&frame, packet);
        assert_eq!(result == Icrc::Right, right, "{name}: {result:x?}");
        assert_ne!(result, Icrc::Unknown, "{name}");
    }
    assert_eq!(v1, 2);
}

#[test]
fn captures_agree_also_as_raw_ip_and_cooked() {
    let mut packets = 0;
    for path in capture_support::all() {
        let mut writer = PcapngWriter::new(Vec::new(), "").unwrap();
        writer.interface("", LinkType::Ip, 0).unwrap();
        writer.interface("", LinkType::Sll, 0).unwrap();
        writer.interface("", LinkType::Sll2, 0).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        let mut flows = Vec::new();
        while let Some(p) = reader.next().unwrap() {
            let dissected = p.dissect();
            let Kind::RoceV2(packet) = dissected.kind else {
                panic!(
                    "{} frame {}: {:?}",
                    path.display(),
                    p.number,
                    dissected.kind
                );
            };
            assert_eq!(
                check(p.data, &packet),
                Icrc::Right,
                "{} {}",
                path.display(),
                p.number
            );
            packets += 1;
            let (ether_type, ip) = (&p.data[12..14], &p.data[14..]);
            let sll = [&[0; 14], ether_type, ip].concat();
            let sll2 = [ether_type, &[0; 18], ip].concat();
            for (interface, data) in [ip, &sll, &sll2].into_iter().enumerate() {
                let len = data.len() as u32;
                writer
                    .packet(interface as u32, p.time_ns, len, data, None)
                    .unwrap();
                flows.push((packet.flow, packet.bth));
            }
        }
        let copy = std::io::Cursor::new(writer.finish().unwrap());
        let mut reader = Reader::from_reader(copy).unwrap();
        for (flow, bth) in flows {
            let p = reader.next().unwrap().unwrap();
            let dissected = p.dissect();
            let packet = dissected.kind.packet().unwrap();
            assert_eq!((packet.flow, packet.bth), (flow, bth));
            assert_eq!(check(p.data, packet), Icrc::Right);
        }
    }
    assert!(packets > 700, "{packets}");
}

#[test]
fn one_bit_tells_and_what_routers_change_does_not() {
    let vectors = vectors();
    let named = |name: &str| vectors.iter().find(|v| v.0 == name).unwrap().1.clone();
    // Of the frame: IPv4's type of service, time to live, checksum; the UDP checksum; the BTH's congestion bits.
    let v2_free = [15, 22, 24, 25, 40, 41, 46];
    // GRH: traffic class, flow label, hop limit (the version stands in the same byte as the first class bits).
    let v1_free = [15, 16, 17, 21, 58];
    for (name, free) in [
        ("cx4lx_cnp", v2_free.as_slice()),
        ("rocev1_write_only", v1_free.as_slice()),
    ] {
        let frame = named(name);
        let packet = *dissect(frame.as_slice()).kind.packet().unwrap();
        assert_eq!(check(&frame, &packet), Icrc::Right, "{name}");
        for at in 14..frame.len() {
            for bit in 0..8 {
                let mut changed = frame.clone();
                changed[at] ^= 1 << bit;
                // The GRH's first byte is half version and half traffic class.
                let right = free.contains(&at) || (name.contains("v1") && at == 14 && bit < 4);
                let result = check(&changed, &packet);
                assert_eq!(
                    result == Icrc::Right,
                    right,
                    "{name} {at} {bit}: {result:?}"
                );
            }
        }
        for cut in 0..frame.len() {
            assert_eq!(check(&frame[..cut], &packet), Icrc::Unknown);
        }
    }
}

#[test]
fn an_old_sender_that_leaves_the_pad_out_is_told_from_damage() {
    let path = capture_support::dir().join("rc-send-only.pcap");
    let mut reader = Reader::open(path).unwrap();
    let mut seen = 0;
    while let Some(p) = reader.next().unwrap() {
        let packet = *p.dissect().kind.packet().unwrap();
        let pad = usize::from(packet.bth.pad);
        let mut frame = p.data.to_vec();
        let end = packet.end as usize;
        // What an old kernel sends: the ICRC over the packet without its pad.
        let mut short = frame.clone();
        short.drain(end - 4 - pad..end - 4);
        let mut told = packet;
        told.end -= pad as u32;
        told.bth.pad = 0;
        let Icrc::Wrong { computed, .. } = check(&short, &told) else {
            assert_eq!(pad, 0);
            continue;
        };
        frame[end - 4..end].copy_from_slice(&computed.to_le_bytes());
        let result = check(&frame, &packet);
        assert!(
            matches!(
                result,
                Icrc::Wrong {
                    without_pad: true,
                    ..
                }
            ),
            "{result:?}"
        );
        frame[end - 5 - pad] ^= 1;
        let result = check(&frame, &packet);
        assert!(
            matches!(
                result,
                Icrc::Wrong {
                    without_pad: false,
                    ..
                }
            ),
            "{result:?}"
        );
        seen += 1;
    }
    assert_eq!(seen, 4);
}
