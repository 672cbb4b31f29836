//! Captures of Soft-RoCE in memory, to be cut, mended and analysed.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod traffic;

use std::path::PathBuf;

use rocexdp_observe::{
    analyse::{Analyser, Options},
    capture::{LinkType, PacketRef, Reader},
    findings::Kind,
    report::Report,
};

/// Where the captures are.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/captures")).join(name)
}

/// A frame.
#[derive(Clone, Debug)]
pub struct Frame {
    pub time_ns: i64,
    pub data: Vec<u8>,
    pub wire_len: u32,
    /// Which of the capture's interfaces saw it.
    pub interface: u32,
}

/// All frames of a capture; frame n of Wireshark is at n - 1.
pub fn load(name: &str) -> Vec<Frame> {
    let mut reader = Reader::open(path(name)).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next().unwrap() {
        frames.push(Frame {
            time_ns: packet.time_ns,
            data: packet.data.to_vec(),
            wire_len: packet.wire_len,
            interface: packet.interface,
        });
    }
    frames
}

/// The capture without these frames (numbers from 1).
pub fn without(name: &str, lost: &[usize]) -> Vec<Frame> {
    let frames = load(name).into_iter().enumerate();
    frames
        .filter(|(at, _)| !lost.contains(&(at + 1)))
        .map(|(_, frame)| frame)
        .collect()
}

pub fn analyse_with(frames: &[Frame], options: Options) -> Report {
    let mut analyser = Analyser::new(options);
    for (at, frame) in frames.iter().enumerate() {
        analyser.push(&PacketRef {
            number: at as u64 + 1,
            time_ns: frame.time_ns,
            interface: frame.interface,
            link: LinkType::Ethernet,
            wire_len: frame.wire_len,
            data: &frame.data,
        });
    }
    analyser.finish()
}

pub fn analyse(frames: &[Frame]) -> Report {
    analyse_with(frames, Options::default())
}

/// Kinds and frames of the findings, in order.
pub fn found(report: &Report) -> Vec<(Kind, Vec<u64>)> {
    report
        .findings
        .iter()
        .map(|f| (f.kind, f.frames.clone()))
        .collect()
}

/// The only finding of this kind.
pub fn only(report: &Report, kind: Kind) -> &rocexdp_observe::report::Finding {
    let all: Vec<_> = report.findings.iter().filter(|f| f.kind == kind).collect();
    assert_eq!(all.len(), 1, "{kind:?}: {:#?}", report.findings);
    all[0]
}

/// Sets the IPv4 ECN codepoint; the ICRC does not cover it.
pub fn set_ecn(frame: &mut Frame, ecn: u8) {
    frame.data[15] = (frame.data[15] & !3) | ecn;
}

/// A congestion notification packet from the receiver of `data` back to the QP `qpn`, with its ICRC.
pub fn cnp(data: &Frame, qpn: u32, time_ns: i64) -> Frame {
    let mut frame = vec![0u8; 74];
    frame[..6].copy_from_slice(&data.data[6..12]);
    frame[6..12].copy_from_slice(&data.data[..6]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[15] = 0xc2;
    frame[16..18].copy_from_slice(&60u16.to_be_bytes());
    // Identification: each CNP another.
    frame[18..20].copy_from_slice(&(time_ns as u16 | 1).to_be_bytes());
    frame[20] = 0x40;
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&data.data[30..34]);
    frame[30..34].copy_from_slice(&data.data[26..30]);
    frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
    frame[38..40].copy_from_slice(&40u16.to_be_bytes());
    frame[42] = 0x81;
    frame[44..46].copy_from_slice(&[0xff, 0xff]);
    frame[46] = 0x40;
    frame[47..50].copy_from_slice(&qpn.to_be_bytes()[1..]);
    seal(&mut frame);
    Frame {
        time_ns,
        wire_len: frame.len() as u32,
        data: frame,
        interface: 0,
    }
}

/// Puts the right ICRC at the end of an untagged IPv4 frame (what is covered: rxe_icrc.c).
pub fn seal(frame: &mut [u8]) {
    let at = frame.len() - 4;
    let mut covered = vec![0xff; 8];
    covered.extend_from_slice(&frame[14..at]);
    for masked in [1, 8, 10, 11, 26, 27, 32] {
        covered[8 + masked] = 0xff;
    }
    let icrc = crc32fast::hash(&covered);
    frame[at..].copy_from_slice(&icrc.to_le_bytes());
}
