//! Every packet of every capture, a handmade frame of each kind and a packet of each opcode, through the parser and through
//! tshark: what both say of it must agree, field by field. Where tshark is wrong, [`TSHARK_IS_WRONG`] says so and why.

mod captures_support;
#[path = "../../rocexdp-common/tests/support/mod.rs"]
mod support;

use captures_support::{
    files, frames, name,
    tshark::{FIELDS, View, tshark},
    view::ours,
    write,
};
use rocexdp_common::opcode::{self, Opcode, Operation, Transport};
use support::encap;

/// A difference that is tshark's fault (4.0, Debian 12).
struct Wrong {
    /// Frames that it is met in, by their name in this test.
    frame: fn(name: &str, opcode: Option<Opcode>) -> bool,
    /// The beginning of the names of the fields that differ.
    fields: &'static [&'static str],
    /// What is wrong.
    #[allow(dead_code, reason = "for the reader")]
    why: &'static str,
}

const EXTENSIONS: &[&str] = &[
    "infiniband.deth",
    "infiniband.reth",
    "infiniband.aeth",
    "infiniband.atomic",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant",
];

const TSHARK_IS_WRONG: &[Wrong] = &[
    Wrong {
        frame: |_, opcode| opcode.is_some_and(|o| o.transport() == Transport::Rd),
        fields: EXTENSIONS,
        why: "takes RD's opcodes for ConnectX's DC, which uses the same numbers with another header (DCCETH) and no RDETH",
    },
    Wrong {
        frame: |_, opcode| opcode.is_some_and(|o| o.transport() == Transport::Xrc),
        fields: EXTENSIONS,
        why: "names XRC's opcodes in a table, but knows no headers of them: all is payload, and no ICRC is shown",
    },
    Wrong {
        frame: |_, opcode| {
            opcode.is_some_and(|o| {
                matches!(
                    o.decode(),
                    Some((Operation::Flush | Operation::AtomicWrite, _))
                )
            })
        },
        fields: EXTENSIONS,
        why: "does not know FLUSH and ATOMIC WRITE, which are newer",
    },
    Wrong {
        frame: |_, opcode| opcode.is_some_and(|o| o.transport() == Transport::Manufacturer),
        fields: EXTENSIONS,
        why: "does not know what rocexdp means by opcodes of the manufacturers' range",
    },
    Wrong {
        frame: |_, opcode| opcode == Some(Opcode(0x81)),
        fields: &["infiniband.invariant"],
        why: "lists CNP as 0x80, so that 0x81 is an unknown opcode to it, of which it shows no ICRC",
    },
    Wrong {
        frame: |name, _| name == "rocev1, tagged and padded",
        fields: &["infiniband.invariant"],
        why: "takes the last four bytes of the frame for the ICRC, though the GRH says that the packet ended before",
    },
    Wrong {
        frame: |_, opcode| opcode == Some(Opcode(0x64)),
        fields: &[
            "infiniband.cm.req.prim_flowlabel",
            "infiniband.cm.req.prim_pktrate",
        ],
        why: "reads both as numbers of 16 and 8 bits at the first of their four bytes (ibta_vol1_c12.h: 20 bits, and the last 6)",
    },
    Wrong {
        frame: |name, _| name == "erspan 3, ip inside",
        fields: &["infiniband", "udp", "ip."],
        why: "looks into ERSPAN III for Ethernet frames only, not for IP packets",
    },
];

/// Fields that outer headers have too; the view of ours has those of the innermost.
const INNERMOST: &[&str] = &[
    "udp.srcport",
    "ip.ttl",
    "ip.dsfield",
    "ipv6.hlim",
    "ipv6.tclass",
    "ipv6.flow",
];

/// Fails with every difference that is not listed; returns whether it is a RoCE packet.
#[track_caller]
fn compare(name: &str, frame: &[u8], theirs: &View) -> bool {
    let ours = ours(frame);
    let opcode = ours
        .get("infiniband.bth.opcode")
        .map(|v| Opcode(v[0].parse().expect("a byte")));
    let mut differences = Vec::new();
    for field in FIELDS {
        if *field == "_ws.col.Info" {
            continue;
        }
        let mine = ours.get(field).cloned();
        let mut its = theirs.get(field).cloned();
        if let Some(values) = &mut its {
            // The header and its only field have one name.
            if matches!(*field, "infiniband.immdt" | "infiniband.ieth") {
                values.dedup();
            }
            if INNERMOST.contains(field) {
                if mine.is_none() {
                    continue;
                }
                *values = values.split_off(values.len() - 1);
            }
        }
        let excused = TSHARK_IS_WRONG
            .iter()
            .any(|w| (w.frame)(name, opcode) && w.fields.iter().any(|f| field.starts_with(f)));
        if mine != its && !excused {
            differences.push(format!("{field}: ours {mine:?}, tshark's {its:?}"));
        }
    }
    assert!(differences.is_empty(), "{name}: {differences:#?}");
    opcode.is_some()
}

/// Frames with their names, and tshark's views of them; `None`: there is no tshark.
fn viewed(frames: Vec<(String, Vec<u8>)>) -> Option<Vec<(String, Vec<u8>, View)>> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("frames.pcap");
    let (names, frames): (Vec<_>, Vec<_>) = frames.into_iter().unzip();
    write(&path, &frames);
    let views = tshark(&path)?;
    assert_eq!(frames.len(), views.len());
    let both = names.into_iter().zip(frames).zip(views);
    Some(both.map(|((n, f), v)| (n, f, v)).collect())
}

#[test]
fn every_packet_of_every_capture() {
    let mut all = Vec::new();
    for path in files() {
        let named = (1..).zip(frames(&path));
        all.extend(named.map(|(n, frame)| (format!("{}, frame {n}", name(&path)), frame)));
    }
    let Some(all) = viewed(all) else { return };
    let packets = all
        .iter()
        .filter(|(name, frame, theirs)| compare(name, frame, theirs))
        .count();
    // As many as their README says (see captures_parse.rs).
    assert_eq!(packets, 944);
}

#[test]
fn a_frame_of_each_kind() {
    let frames = encap::frames()
        .into_iter()
        .map(|(name, f)| (name.to_string(), f));
    for (name, frame, theirs) in viewed(frames.collect()).into_iter().flatten() {
        compare(&name, &frame, &theirs);
    }
}

#[test]
fn a_packet_of_each_opcode_and_its_name() {
    let defined = (0..=255).map(Opcode).filter(|o| o.decode().is_some());
    let frame = |o: Opcode| (opcode::name(o).to_string(), encap::of_opcode(o).build());
    let Some(all) = viewed(defined.clone().map(frame).collect()) else {
        return;
    };
    let mut named = 0;
    for (opcode, (name, frame, theirs)) in defined.zip(all) {
        compare(&name, &frame, &theirs);
        let info = &theirs["_ws.col.Info"][0];
        let (its, _) = info
            .split_once("QP=")
            .unwrap_or_else(|| panic!("{name}: {info}"));
        match opcode.transport() {
            Transport::Rc | Transport::Uc | Transport::Ud if its != "Unknown OpCode" => {
                assert_eq!(its.trim_end(), name);
                named += 1;
            }
            _ => {}
        }
    }
    // RC without the two newer ones, UC, UD.
    assert_eq!(named, 23 + 12 + 2);
}
