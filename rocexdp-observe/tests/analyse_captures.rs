//! What the analyser says of each capture of Soft-RoCE, against what the README beside the captures says happened.
//!
//! The README is the witness: its counts of packets are parsed here, and the findings are those that its descriptions name.

mod analyse_support;

use std::collections::BTreeMap;

use analyse_support::{analyse, found, load, path};
use rocexdp_observe::{
    findings::Kind::{self, *},
    report::TiedBy,
};

struct Case {
    file: &'static str,
    packets: u64,
    messages: u64,
    bytes: u64,
    again: u64,
    tied: &'static [TiedBy],
    findings: &'static [(Kind, &'static [u64])],
}

const CM: &[TiedBy] = &[TiedBy::Deth, TiedBy::Cm];
const DETH: &[TiedBy] = &[TiedBy::Deth];
const FITS: &[TiedBy] = &[TiedBy::Heuristic];
const NO: &[TiedBy] = &[TiedBy::None];

/// File; packets, messages, message bytes, packets sent again; how its flows are tied; findings and their frames.
const fn case(
    file: &'static str,
    packets: u64,
    messages: u64,
    bytes: u64,
    again: u64,
    tied: &'static [TiedBy],
    findings: &'static [(Kind, &'static [u64])],
) -> Case {
    Case {
        file,
        packets,
        messages,
        bytes,
        again,
        tied,
        findings,
    }
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    // Refused with reason 8.
    case("cm-reject.pcap", 2, 2, 512, 0, DETH, &[(CmRejected, &[1, 2])]),
    case("cm-rping-ipv6.pcap", 29, 17, 1664, 0, CM, &[]),
    case("cm-rping.pcap", 29, 17, 1664, 0, CM, &[]),
    case("cm-ucmatose.pcap", 42, 26, 4160, 0, &[TiedBy::Deth, TiedBy::Cm, TiedBy::Cm], &[]),
    case("cm-udaddy.pcap", 10, 10, 1312, 0, &[TiedBy::Deth, TiedBy::Deth], &[]),
    case("perftest-atomic-bw.pcap", 10, 5, 40, 0, FITS, &[]),
    case("perftest-read-bw.pcap", 25, 5, 20000, 0, FITS, &[]),
    case("perftest-send-bw.pcap", 25, 5, 20000, 0, FITS, &[]),
    case("perftest-send-lat.pcap", 20, 10, 160, 0, FITS, &[]),
    case("perftest-write-bw.pcap", 25, 5, 20000, 0, FITS, &[]),
    case("pingpong-rc-ipv6.pcap", 50, 10, 40960, 0, FITS, &[]),
    // "Now and then it resends without need; some files may hold such duplicates."
    case("pingpong-rc.pcap", 22, 10, 10240, 1, FITS, &[(UnneededRetransmission, &[1, 2, 4])]),
    case("pingpong-srq.pcap", 28, 12, 12288, 2, &[TiedBy::Heuristic, TiedBy::Heuristic],
        &[(UnneededRetransmission, &[18, 19, 23]), (UnneededRetransmission, &[17, 20, 24])]),
    case("pingpong-uc.pcap", 10, 10, 10240, 0, FITS, &[]),
    case("pingpong-ud.pcap", 10, 10, 10240, 0, DETH, &[]),
    case("rc-atomic.pcap", 10, 5, 40, 0, FITS, &[]),
    case("rc-bidir.pcap", 48, 16, 24000, 0, FITS, &[]),
    case("rc-dscp.pcap", 2, 1, 100, 0, FITS, &[]),
    case("rc-ipv6.pcap", 18, 6, 9013, 0, FITS, &[]),
    // Captured at B; the ACK of frame 2 is dropped behind the tap.
    case("rc-loss-ack.pcap", 4, 1, 100, 1, FITS, &[(LostAck, &[1, 2, 3, 4]), (AckTimeout, &[1, 3])]),
    case("rc-loss-atomic-ack.pcap", 4, 1, 8, 1, FITS, &[(AtomicReplayed, &[1, 2, 3, 4]), (AckTimeout, &[1, 3])]),
    // The READ's Last response, PSN 0x103 = 259, is dropped; the READ is asked again and the SEND sent again.
    case("rc-loss-mixed.pcap", 12, 3, 4196, 3, FITS, &[(ReadResponseLost, &[4, 6, 9, 12])]),
    case("rc-loss-read-request.pcap", 5, 1, 3000, 1, FITS, &[(PacketLoss, &[1, 2, 3]), (AckTimeout, &[1, 2])]),
    case("rc-loss-read-response.pcap", 10, 1, 5000, 4, FITS, &[(ReadResponseLost, &[1, 4, 7, 10]), (AckTimeout, &[1, 7])]),
    case("rc-loss-send-last.pcap", 9, 1, 3000, 3, FITS, &[(PacketLoss, &[1, 3, 4, 6, 9]), (AckTimeout, &[1, 4])]),
    case("rc-loss-write-middle.pcap", 10, 1, 5000, 3, FITS, &[(PacketLoss, &[3, 6, 7, 9, 10])]),
    case("rc-mtu-2048.pcap", 18, 3, 27000, 0, FITS, &[]),
    case("rc-mtu-256.pcap", 111, 3, 27000, 0, FITS, &[]),
    case("rc-mtu-4096.pcap", 12, 3, 27000, 0, FITS, &[]),
    case("rc-mtu-512.pcap", 57, 3, 27000, 0, FITS, &[]),
    case("rc-nak-mtu-mismatch.pcap", 3, 1, 3000, 0, FITS, &[(NakInvalidRequest, &[1, 3]), (MtuMismatch, &[1, 3])]),
    case("rc-nak-qp-access.pcap", 2, 1, 64, 0, FITS, &[(NakInvalidRequest, &[1, 2])]),
    case("rc-nak-rd-atomic.pcap", 2, 1, 8, 0, FITS, &[(NakInvalidRequest, &[1, 2])]),
    case("rc-nak-read-bad-rkey.pcap", 2, 1, 64, 0, FITS, &[(NakRemoteAccess, &[1, 2])]),
    case("rc-nak-send-too-long.pcap", 2, 1, 256, 0, FITS, &[(NakRemoteOperational, &[1, 2])]),
    case("rc-nak-write-bad-rkey.pcap", 2, 1, 64, 0, FITS, &[(NakRemoteAccess, &[1, 2])]),
    case("rc-nak-write-no-access.pcap", 2, 1, 64, 0, FITS, &[(NakRemoteAccess, &[1, 2])]),
    case("rc-nak-write-out-of-range.pcap", 4, 1, 3000, 0, FITS, &[(NakRemoteAccess, &[1, 4])]),
    // Nothing in the packets tells a QP that does not exist from a path that drops everything.
    case("rc-no-such-qp.pcap", 2, 1, 10, 1, NO, &[(RetryExceeded, &[1, 2]), (NoAnswer, &[1, 2])]),
    case("rc-pipeline.pcap", 66, 33, 264, 0, FITS, &[]),
    case("rc-psn-wrap.pcap", 20, 6, 12018, 0, FITS, &[]),
    case("rc-read.pcap", 24, 8, 14223, 0, FITS, &[]),
    case("rc-retry-exceeded.pcap", 3, 1, 64, 2, NO, &[(RetryExceeded, &[1, 2, 3]), (NoAnswer, &[1, 2, 3])]),
    // The NAK, frame 5, is for the PSN that was put off, not for a loss.
    case("rc-rnr-behind.pcap", 9, 1, 3000, 3, FITS, &[(Rnr, &[4, 9])]),
    case("rc-rnr-exceeded.pcap", 6, 1, 100, 2, FITS, &[(RnrExceeded, &[2, 6])]),
    case("rc-rnr.pcap", 8, 1, 100, 3, FITS, &[(Rnr, &[2, 6, 8])]),
    case("rc-send-imm.pcap", 8, 3, 3016, 0, FITS, &[]),
    case("rc-send-inv-flag.pcap", 4, 2, 96, 0, FITS, &[(NakRemoteAccess, &[3, 4])]),
    case("rc-send-inv.pcap", 11, 5, 1724, 0, FITS, &[(NakRemoteAccess, &[10, 11])]),
    case("rc-send-multi.pcap", 9, 2, 6049, 0, FITS, &[]),
    case("rc-send-only.pcap", 16, 8, 1103, 0, FITS, &[]),
    case("rc-write-imm.pcap", 8, 3, 3016, 0, FITS, &[]),
    case("rc-write-multi.pcap", 10, 2, 7050, 0, FITS, &[]),
    case("rc-write-only.pcap", 10, 5, 1036, 0, FITS, &[]),
    // Dropped behind the tap, and UC answers nothing: these files hold no trace of the loss (the flow's notes say so;
    // what a tap behind the loss would see is in analyse_losses.rs).
    case("uc-loss-first.pcap", 6, 3, 5050, 0, NO, &[]),
    case("uc-loss.pcap", 9, 5, 7100, 0, NO, &[]),
    case("uc-send-write.pcap", 16, 8, 12040, 0, NO, &[]),
    case("ud-ipv6.pcap", 3, 3, 67, 0, NO, &[]),
    case("ud-multicast.pcap", 3, 3, 300, 0, NO, &[]),
    case("ud-send.pcap", 7, 7, 4235, 0, DETH, &[]),
];

/// The README's name of a kind of packet, as Wireshark's name of its opcode.
fn opcode_of(name: &str) -> String {
    if name.starts_with("MAD") {
        return "UD Send Only".to_owned();
    }
    if name.starts_with("RC_NAK") || name == "RC_RNR_NAK" || name == "RC_ACK" {
        return "RC Acknowledge".to_owned();
    }
    match name {
        "RC_CAS" => return "RC Compare Swap".to_owned(),
        "RC_FETCH_ADD" => return "RC Fetch Add".to_owned(),
        "RC_ATOMIC_ACK" => return "RC Atomic Acknowledge".to_owned(),
        _ => {}
    }
    name.replace('_', " ")
        .replace("SEND", "Send")
        .replace("WRITE", "RDMA Write")
        .replace("READ", "RDMA Read")
        .replace("Resp ", "Response ")
        .replace("Imm", "Immediate")
        .replace("Inv", "Invalidate")
}

/// Packets of each opcode of each file.
fn readme() -> BTreeMap<String, BTreeMap<String, u64>> {
    let text = std::fs::read_to_string(path("README.md")).unwrap();
    let mut files = BTreeMap::new();
    let mut file = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            file = name.ends_with(".pcap").then(|| name.to_owned());
        }
        let Some((_, list)) = line
            .split_once(" RoCEv2 packets")
            .and_then(|(_, rest)| rest.split_once(": "))
        else {
            continue;
        };
        let mut counts = BTreeMap::new();
        for item in list.trim_end_matches('.').split(", ") {
            let (n, name) = item.split_once(' ').unwrap();
            *counts.entry(opcode_of(name)).or_default() += n.parse::<u64>().unwrap();
        }
        files.insert(file.clone().unwrap(), counts);
    }
    files
}

#[test]
fn every_capture_is_told_as_its_readme_tells_it() {
    let readme = readme();
    assert_eq!(readme.len(), 60);
    assert_eq!(
        readme.keys().collect::<Vec<_>>(),
        CASES.iter().map(|case| case.file).collect::<Vec<_>>()
    );
    let mut wrong = Vec::new();
    for case in CASES {
        let report = analyse(&load(case.file));
        let mut check = |what: &str, ok: bool, got: String| {
            if !ok {
                wrong.push(format!("{}: {what}: {got}", case.file));
            }
        };
        let counts = &readme[case.file];
        check(
            "opcodes",
            report.opcodes == *counts,
            format!("{:?}", report.opcodes),
        );
        check(
            "packets",
            [report.packets, report.rocev2_packets] == [case.packets; 2],
            format!("{} {}", report.packets, report.rocev2_packets),
        );
        check(
            "icrc",
            [report.icrc_errors, report.icrc_unknown, report.malformed] == [0; 3],
            format!("{}", report.icrc_errors),
        );
        let sum = |of: fn(&rocexdp_observe::report::Metrics) -> u64| -> u64 {
            report.flows.iter().map(|flow| of(&flow.metrics)).sum()
        };
        let got = [
            sum(|m| m.messages),
            sum(|m| m.message_bytes),
            sum(|m| m.retransmissions.packets),
        ];
        check(
            "messages, bytes, sent again",
            got == [case.messages, case.bytes, case.again],
            format!("{got:?}"),
        );
        let tied: Vec<TiedBy> = report.flows.iter().map(|flow| flow.tied_by).collect();
        check("tied", tied == case.tied, format!("{tied:?}"));
        let expected: Vec<(Kind, Vec<u64>)> = case
            .findings
            .iter()
            .map(|(kind, frames)| (*kind, frames.to_vec()))
            .collect();
        let got = found(&report);
        let texts: Vec<&str> = report.findings.iter().map(|f| f.text.as_str()).collect();
        check("findings", got == expected, format!("{got:?}\n{texts:#?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn findings_say_what_happened_in_words() {
    let text = |file| analyse(&load(file)).findings[0].text.clone();
    for (file, words) in [
        (
            "rc-loss-write-middle.pcap",
            "QP 0x2c (10.77.0.2 > 10.77.0.3): at least 1 packet lost at 0.0000 s behind the capture point: frame 3, PSN 258 \
             (NAK, PSN sequence error, in frame 6), recovered by go-back-N 6.13 ms later (frame 10); 3 packets sent again \
             (frames 7-9)",
        ),
        (
            "rc-loss-send-last.pcap",
            "QP 0x2d (10.77.0.2 > 10.77.0.3): PSN 258 (frame 3) was lost behind the capture point: the responder had all \
             before it; recovered by go-back-N 574 ms later (frame 9); 3 packets sent again (frames 4-6)",
        ),
        (
            "cm-reject.pcap",
            "QP 0x1 (10.77.0.3 > 10.77.0.2): the request for a connection from QP 0x3d to port 7999 (REQ in frame 1) was \
             refused at 0.0133 s (REJ in frame 2): reason 8, invalid service ID",
        ),
        (
            "rc-rnr.pcap",
            "QP 0x21 (10.77.0.2 > 10.77.0.3): the receiver was not ready 3 times from 0.0016 s on (frames 2-6, PSN 256): no \
             receive was posted (RNR timer 10.2 ms); the request was sent again 3 times and got through 51.5 ms after the \
             first refusal",
        ),
        (
            "rc-loss-atomic-ack.pcap",
            "QP 0x31 (10.77.0.2 > 10.77.0.3): the answer in frame 2 to the atomic in frame 1 was lost behind the capture \
             point; the atomic was sent again at 0.5526 s (frame 3) and answered in frame 4 with the same result (0x0): \
             replayed, not executed twice",
        ),
    ] {
        assert_eq!(text(file), words, "{file}");
    }
}

#[test]
fn path_mtu_and_answer_times_are_what_the_captures_show() {
    for (file, mtu) in [
        ("rc-mtu-256.pcap", 256),
        ("rc-mtu-512.pcap", 512),
        ("rc-mtu-2048.pcap", 2048),
        ("rc-mtu-4096.pcap", 4096),
    ] {
        assert_eq!(analyse(&load(file)).flows[0].path_mtu, Some(mtu), "{file}");
    }
    // From the communication manager: no packet of rping has a path MTU's length.
    let rping = analyse(&load("cm-rping.pcap"));
    assert_eq!(rping.flows[1].path_mtu, Some(4096));
    assert_eq!(rping.flows[1].connection.unwrap().port, Some(7174));
    // Frames 1 and 2.
    let delay = analyse(&load("rc-dscp.pcap")).flows[0]
        .metrics
        .ack_delay
        .unwrap();
    assert_eq!([delay.p50_ns, delay.p99_ns, delay.max_ns], [791_000; 3]);
    // A READ of 1 kB and more, one PSN per response: the stream goes on without a gap.
    let read = analyse(&load("rc-read.pcap"));
    assert_eq!(read.flows[0].metrics.psn_gaps, Some(0));
    assert_eq!(read.flows[0].metrics.operations.read.messages, 8);
    let mixed = analyse(&load("rc-loss-mixed.pcap"));
    let ways: Vec<u64> = mixed.flows[0]
        .directions
        .iter()
        .map(|way| way.metrics.retransmissions.packets)
        .collect();
    assert_eq!(ways, [2, 1]);
}
