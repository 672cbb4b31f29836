//! Every packet of every capture through the parser: what it is, counted, is what the captures' README says, and every ICRC
//! is right, whichever of our implementations computes it.

mod captures_support;
#[path = "../../rocexdp-common/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use captures_support::{dir, files, frames, name};
use rocexdp_common::{
    dissect::{Dissected, Kind, dissect, extensions},
    headers::Syndrome,
    icrc, mad,
    opcode::{Operation, Position},
};
use rocexdp_proto::wire::{Head, Packet};
use support::{encap::icrc_of, packet::hex};

/// The README's name of a packet.
fn label(frame: &[u8], d: &Dissected) -> String {
    let p = d.kind.packet().expect("a packet");
    if let Some(cm) = mad::datagram(frame, p).and_then(|d| d.cm) {
        return format!("MAD_CM_{}", cm.name());
    }
    let ext = extensions(frame, p).expect("all was captured");
    let service = match p.bth.opcode.0 >> 5 {
        0 => "RC",
        1 => "UC",
        3 => "UD",
        other => panic!("service {other}"),
    };
    let (operation, position) = p.operation.expect("a defined opcode");
    let name = match operation {
        Operation::Send => "SEND",
        Operation::Write => "WRITE",
        Operation::ReadRequest => "READ_Request",
        Operation::ReadResponse => "READ_Resp",
        Operation::CompareSwap => "CAS",
        Operation::FetchAdd => "FETCH_ADD",
        Operation::AtomicAcknowledge => "ATOMIC_ACK",
        Operation::Acknowledge => match ext.aeth.expect("an AETH").syndrome {
            Syndrome::Ack(_) => "ACK",
            Syndrome::RnrNak(_) => "RNR_NAK",
            Syndrome::NakSequence => "NAK_PSN_seq_error",
            Syndrome::NakInvalidRequest => "NAK_invalid_request",
            Syndrome::NakRemoteAccess => "NAK_remote_access_error",
            Syndrome::NakRemoteOperational => "NAK_remote_op_error",
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let mut label = format!("{service}_{name}");
    if matches!(
        operation,
        Operation::Send | Operation::Write | Operation::ReadResponse
    ) {
        label += match position {
            Position::First => "_First",
            Position::Middle => "_Middle",
            Position::Last => "_Last",
            Position::Only => "_Only",
        };
    }
    if ext.imm.is_some() {
        label += "_Imm";
    }
    if ext.ieth.is_some() {
        label += "_Inv";
    }
    label
}

/// What the README says of each capture: how many packets of which kind.
fn stated() -> BTreeMap<String, BTreeMap<String, u32>> {
    let readme = std::fs::read_to_string(dir().join("README.md")).expect("README.md");
    let mut all = BTreeMap::new();
    for section in readme
        .split("\n## ")
        .filter(|s| s.contains(" RoCEv2 packets"))
    {
        let (title, text) = section.split_once(".pcap\n").expect("a capture's name");
        let line = text
            .lines()
            .find(|l| l.contains(" RoCEv2 packets"))
            .expect("the line");
        let (_, kinds) = line.split_once(": ").expect("kinds");
        let kinds = kinds.trim_end_matches('.').split(", ").map(|k| {
            let (n, kind) = k.split_once(' ').expect("a number and a kind");
            (kind.to_string(), n.parse().expect("a number"))
        });
        all.insert(title.to_string(), kinds.collect());
    }
    all
}

#[test]
fn the_packets_of_each_capture_are_those_that_its_readme_names() {
    let stated = stated();
    let mut seen = BTreeMap::new();
    for path in files() {
        let counts: &mut BTreeMap<String, u32> = seen.entry(name(&path)).or_default();
        for frame in frames(&path) {
            let d = dissect(&frame[..]);
            match d.kind {
                Kind::RoceV2(_) => *counts.entry(label(&frame, &d)).or_default() += 1,
                // ARP, neighbour discovery and the TCP of perftest.
                Kind::Other => {}
                other => panic!("{}: {other:?}", path.display()),
            }
        }
    }
    assert_eq!(seen, stated);
    assert_eq!(seen.values().flat_map(|c| c.values()).sum::<u32>(), 944);
}

#[test]
fn every_icrc_is_right() {
    let mut by_xdp = 0;
    for path in files() {
        for (number, frame) in (1..).zip(frames(&path)) {
            let what = format!("{}, frame {number}", name(&path));
            let Kind::RoceV2(p) = dissect(&frame[..]).kind else {
                continue;
            };
            let stored: [u8; 4] = frame[p.end as usize - 4..p.end as usize]
                .try_into()
                .expect("four");
            assert_eq!(
                u32::from_le_bytes(stored),
                icrc_of(&frame, &p, false),
                "{what}"
            );
            let pieces: [&[u8]; 2] = [&frame[..frame.len() / 2], &frame[frame.len() / 2..]];
            let head = Head::of(&pieces);
            let packet = Packet::parse(&head, &pieces).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(packet.icrc_is_right(&head), "{what}");
            // XDP's looks at short packets only.
            match icrc::check(&frame[..], &p) {
                Some(right) => {
                    assert!(right, "{what}");
                    by_xdp += 1;
                }
                None => assert!(p.udp_len() > 24 + 64, "{what}"),
            }
            // And of no other packet.
            let mut wrong = frame.clone();
            let last = p.end as usize - 1;
            wrong[last] ^= 1;
            assert_ne!(icrc::check(&wrong[..], &p), Some(true), "{what}");
            let pieces: [&[u8]; 1] = [&wrong];
            let head = Head::of(&pieces);
            assert!(
                !Packet::parse(&head, &pieces)
                    .expect("parses")
                    .icrc_is_right(&head),
                "{what}"
            );
        }
    }
    assert!(by_xdp > 300, "{by_xdp}");
}

#[test]
fn icrcs_of_other_implementations_are_right() {
    let text = std::fs::read(dir().join("icrc-vectors.json")).expect("icrc-vectors.json");
    let vectors: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let vectors = vectors.as_array().expect("an array");
    assert_eq!(vectors.len(), 5);
    for vector in vectors {
        let text = |key: &str| {
            vector[key]
                .as_str()
                .unwrap_or_else(|| panic!("{key} in {vector}"))
        };
        let frame = hex(text("frame"));
        let d = dissect(&frame[..]);
        let p = d.kind.packet().unwrap_or_else(|| panic!("{vector}"));
        let v1 = matches!(d.kind, Kind::RoceV1(_));
        assert_eq!(v1, text("name").starts_with("rocev1"));
        let stored = &frame[p.end as usize - 4..p.end as usize];
        assert_eq!(stored, hex(text("icrc_wire")), "{vector}");
        assert_eq!(stored, icrc_of(&frame, p, v1).to_le_bytes(), "{vector}");
        if !v1 {
            let pieces: [&[u8]; 1] = [&frame];
            let head = Head::of(&pieces);
            assert!(
                Packet::parse(&head, &pieces)
                    .expect("parses")
                    .icrc_is_right(&head)
            );
        }
    }
}
