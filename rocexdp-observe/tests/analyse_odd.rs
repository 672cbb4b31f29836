//! Captures that mislead: one direction, two taps in one file, losses that repeat, QP numbers used again, many QPs alike.
//!
//! Packets are made here, as a ConnectX makes them (MigReq, credits, few AckReqs), with right ICRCs.

mod analyse_support;

use analyse_support::{Frame, analyse, found, only, seal};
use rocexdp_observe::{
    findings::{Kind, Severity},
    flow::TiedBy,
    report::Report,
};

const SEND_ONLY: u8 = 0x04;
const READ_REQUEST: u8 = 0x0c;
const READ_FIRST: u8 = 0x0d;
const READ_MIDDLE: u8 = 0x0e;
const READ_LAST: u8 = 0x0f;
const ACK: u8 = 0x11;
const CREDITS: u8 = 0x05;
const NAK_SEQUENCE: u8 = 0x60;
const US: i64 = 1000;
const MS: i64 = 1_000_000;

/// A capture in the making; hosts are 10.1.0.1 (the requester) and 10.1.0.2.
#[derive(Default)]
struct Capture {
    frames: Vec<Frame>,
    ids: [u16; 2],
}

impl Capture {
    fn packet(&mut self, time: i64, host: u8, opcode: u8, qpn: u32, psn: u32, body: &[u8]) {
        let id = &mut self.ids[usize::from(host - 1)];
        *id = id.wrapping_add(1).max(1);
        let len = 14 + 20 + 8 + 12 + body.len() + 4;
        let mut data = vec![0; len];
        data[12] = 8;
        data[14] = 0x45;
        data[15] = 0x6a;
        data[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
        data[18..20].copy_from_slice(&id.to_be_bytes());
        (data[20], data[22], data[23]) = (0x40, 64, 17);
        data[26..30].copy_from_slice(&[10, 1, 0, host]);
        data[30..34].copy_from_slice(&[10, 1, 0, 3 - host]);
        data[34..36].copy_from_slice(&0x2345u16.to_be_bytes());
        data[36..38].copy_from_slice(&4791u16.to_be_bytes());
        data[38..40].copy_from_slice(&(len as u16 - 34).to_be_bytes());
        (data[42], data[43]) = (opcode, 0x40);
        data[44..46].copy_from_slice(&[0xff, 0xff]);
        data[47..50].copy_from_slice(&qpn.to_be_bytes()[1..]);
        data[51..54].copy_from_slice(&(psn & 0xff_ffff).to_be_bytes()[1..]);
        if matches!(opcode, SEND_ONLY) {
            data[50] = 0x80;
        }
        data[54..54 + body.len()].copy_from_slice(body);
        seal(&mut data);
        self.frames.push(Frame {
            time_ns: time,
            wire_len: len as u32,
            data,
        });
    }

    /// A SEND of 8 bytes from the requester to QP `qpn`.
    fn send(&mut self, time: i64, qpn: u32, psn: u32) {
        self.packet(time, 1, SEND_ONLY, qpn, psn, &[0; 8]);
    }

    fn answer(&mut self, time: i64, qpn: u32, psn: u32, syndrome: u8) {
        self.packet(time, 2, ACK, qpn, psn, &[syndrome, 0, 0, 1]);
    }

    fn ack(&mut self, time: i64, qpn: u32, psn: u32) {
        self.answer(time, qpn, psn, CREDITS);
    }

    /// A READ of four packets of 1024 bytes, without the responses in `missing`.
    fn read(&mut self, time: i64, psn: u32, missing: &[u32]) {
        let mut reth = [0; 16];
        reth[12..].copy_from_slice(&4096u32.to_be_bytes());
        self.packet(time, 1, READ_REQUEST, 0x202, psn, &reth);
        for (n, opcode) in [READ_FIRST, READ_MIDDLE, READ_MIDDLE, READ_LAST]
            .into_iter()
            .enumerate()
        {
            let n = n as u32;
            let mut body = vec![0; 1024];
            if opcode != READ_MIDDLE {
                body.extend_from_slice(&[0; 4]);
            }
            if !missing.contains(&n) {
                let time = time + (5 + i64::from(n)) * US;
                self.packet(time, 2, opcode, 0x101, psn + n, &body);
            }
        }
    }

    fn report(mut self) -> Report {
        self.frames.sort_by_key(|frame| frame.time_ns);
        analyse(&self.frames)
    }
}

#[test]
fn a_loss_seen_from_one_direction_is_no_dead_qp() {
    let mut capture = Capture::default();
    for psn in (0..30).filter(|psn| !(10..12).contains(psn)) {
        capture.send(i64::from(psn) * US, 0x202, 100 + psn);
    }
    for psn in 10..30 {
        capture.send(i64::from(psn) * US + 50 * US, 0x202, 100 + psn);
    }
    let report = capture.report();
    let kinds: Vec<Kind> = report.findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [Kind::PacketLoss, Kind::OneDirection]);
    let loss = only(&report, Kind::PacketLoss);
    assert_eq!(loss.frames, [10, 11, 29, 48]);
    assert!(loss.text.contains("2 packets lost"), "{}", loss.text);
    assert_eq!(report.flows[0].metrics.timeouts, 0);
    assert_eq!(report.flows[0].metrics.retransmissions.packets, 20);
}

#[test]
fn a_qp_that_answers_nothing_is_told_still() {
    let mut capture = Capture::default();
    for n in 0..8 {
        capture.send(n * 67 * MS, 0x202, 100);
    }
    let report = capture.report();
    assert_eq!(report.findings[0].kind, Kind::RetryExceeded);
    assert_eq!(report.findings[1].kind, Kind::NoAnswer);
    assert_eq!(report.flows[0].metrics.timeouts, 7);
}

#[test]
fn answers_that_could_not_be_told_apart_are_not_taken_for_none() {
    // Three QPs in step with each other; the last answer of one comes after a timeout.
    let mut capture = Capture::default();
    for psn in 0..30 {
        for qp in 0..3 {
            let at = i64::from(psn) * 20 * US + i64::from(qp) * 100;
            capture.send(at, 0x2000 + qp, psn);
            if (psn, qp) != (29, 0) {
                capture.ack(at + 5 * US, 0x1000 + qp, psn);
            }
        }
    }
    capture.send(20 * MS, 0x2000, 29);
    capture.ack(20 * MS + 5 * US, 0x1000, 29);
    let report = capture.report();
    let errors = report
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error);
    assert_eq!(errors.count(), 0, "{:#?}", report.findings);
    assert_eq!(only(&report, Kind::PacketLoss).qpn, Some(0x2000));
    for finding in &report.findings {
        assert!(!finding.frames.is_empty(), "{finding:#?}");
    }
}

#[test]
fn a_gap_just_before_the_end_is_nobodys_yet() {
    let mut capture = Capture::default();
    for psn in (0..30).filter(|psn| *psn != 10) {
        capture.send(i64::from(psn) * US, 0x202, 100 + psn);
    }
    let report = capture.report();
    assert_eq!(only(&report, Kind::GapUndecided).frames, [10, 11]);
    assert!(report.findings.iter().all(|f| f.kind != Kind::CaptureLoss));
}

#[test]
fn a_retransmission_that_is_lost_too_is_no_timeout_and_no_second_loss() {
    let mut capture = Capture::default();
    for n in (0..10).filter(|n| *n != 3) {
        capture.send(i64::from(n) * US, 0x202, 100 + n);
    }
    for n in 0..3 {
        capture.ack(i64::from(n) * US + 4500, 0x101, 100 + n);
    }
    capture.answer(9500, 0x101, 103, NAK_SEQUENCE);
    for n in 4..10 {
        capture.send(i64::from(n) * US + 20 * US, 0x202, 100 + n);
    }
    for n in 3..10 {
        capture.send(i64::from(n) * US + 67 * MS, 0x202, 100 + n);
        capture.ack(i64::from(n) * US + 67 * MS + 4500, 0x101, 100 + n);
    }
    let report = capture.report();
    let again = report
        .findings
        .iter()
        .find(|f| f.text.contains("is not in what was sent again"))
        .unwrap();
    assert_eq!(again.kind, Kind::PacketLoss);
    assert_eq!(again.frames, [13, 14, 19]);
    assert!(again.text.contains("lost again, before"), "{}", again.text);
    let timeout = only(&report, Kind::AckTimeout);
    assert!(timeout.text.contains("67.0 ms"), "{}", timeout.text);
    assert_eq!(report.flows[0].metrics.timeouts, 1);
}

#[test]
fn a_retransmission_that_is_lost_before_the_tap_after_a_loss_behind_it_is_told() {
    let mut capture = Capture::default();
    for n in 0..10 {
        capture.send(i64::from(n) * US, 0x202, 100 + n);
    }
    for n in 0..3 {
        capture.ack(i64::from(n) * US + 4500, 0x101, 100 + n);
    }
    capture.answer(9500, 0x101, 103, NAK_SEQUENCE);
    for n in 4..10 {
        capture.send(i64::from(n) * US + 20 * US, 0x202, 100 + n);
    }
    for n in 3..10 {
        capture.send(i64::from(n) * US + 67 * MS, 0x202, 100 + n);
        capture.ack(i64::from(n) * US + 67 * MS + 4500, 0x101, 100 + n);
    }
    let report = capture.report();
    let losses: Vec<_> = report
        .findings
        .iter()
        .filter(|f| f.kind == Kind::PacketLoss)
        .collect();
    assert_eq!(losses.len(), 2, "{losses:#?}");
    let again = losses
        .iter()
        .find(|f| f.text.contains("is not in what was sent again"))
        .unwrap();
    assert!(
        again
            .text
            .contains("lost behind the capture point in frame 4 ")
    );
    assert!(again.text.contains("lost again, before"), "{}", again.text);
    assert_eq!(again.frames, [4, 14, 15, 20]);
    assert_eq!(report.flows[0].metrics.timeouts, 1);
}

#[test]
fn two_taps_in_one_file_are_no_retransmissions() {
    let mut capture = Capture::default();
    for n in 0..50 {
        capture.send(i64::from(n) * 2 * US, 0x202, 100 + n);
        capture.ack(i64::from(n) * 2 * US + 9 * US, 0x101, 100 + n);
    }
    let mut second = capture.frames.clone();
    for frame in &mut second {
        frame.time_ns += 3 * US;
    }
    capture.frames.append(&mut second);
    let report = capture.report();
    let counts = &report.flows[0].metrics;
    assert_eq!(
        (counts.retransmissions.packets, counts.duplicates),
        (0, 100)
    );
    let kinds: Vec<Kind> = report.findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [Kind::DuplicateFrames, Kind::DuplicateFrames]);
}

#[test]
fn a_nak_before_the_directions_are_tied_explains_what_followed() {
    let mut capture = Capture::default();
    for n in 0..5 {
        capture.send(n * US, 0x202, 5010 + n as u32);
    }
    capture.answer(5 * US, 0x101, 5007, NAK_SEQUENCE);
    for n in 0..8 {
        capture.send((10 + n) * US, 0x202, 5007 + n as u32);
        capture.ack((15 + n) * US, 0x101, 5007 + n as u32);
    }
    let report = capture.report();
    let kinds: Vec<Kind> = report.findings.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [Kind::PacketLoss], "{:#?}", report.findings);
    assert_eq!(report.flows[0].metrics.timeouts, 0);
}

#[test]
fn lower_psns_after_a_pause_are_a_new_connection() {
    let mut capture = Capture::default();
    for (start, psn) in [(0, 5000), (1000 * MS, 2000)] {
        for n in 0..20 {
            capture.send(start + i64::from(n) * US, 0x202, psn + n);
            capture.ack(start + i64::from(n) * US + 4500, 0x101, psn + n);
        }
    }
    let report = capture.report();
    assert_eq!(report.flows[0].restarts, 1);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!(report.flows[0].metrics.operations.send.messages, 40);
}

#[test]
fn all_holes_in_a_read_are_counted() {
    let mut capture = Capture::default();
    capture.read(0, 0xff_fffe, &[]);
    capture.read(MS, 2, &[1]);
    capture.read(2 * MS, 6, &[0, 2]);
    let report = capture.report();
    let texts: Vec<&str> = report.findings.iter().map(|f| f.text.as_str()).collect();
    assert_eq!(found(&report).len(), 2, "{texts:#?}");
    assert!(
        texts
            .iter()
            .any(|t| t.contains("1 READ response packet missing"))
    );
    let two = texts.iter().find(|t| t.contains("2 READ response packets"));
    assert!(two.is_some_and(|t| t.contains("PSN 6") && t.contains("and 1 later")));
}

#[test]
fn many_qps_between_two_hosts_are_tied_right_or_not_at_all() {
    // 600 QPs, PSNs at random, some the same; answered out of step.
    let mut capture = Capture::default();
    let mut random = 7u64;
    let mut next = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 40) as u32
    };
    let mut psns: Vec<u32> = (0..600).map(|_| next() % 3000).collect();
    for n in 0..6000i64 {
        let qp = next() % 600;
        let psn = &mut psns[qp as usize];
        capture.send(n * US, 0x20_0000 + qp, *psn);
        capture.ack(n * US + 3500, 0x10_0000 + qp, *psn);
        *psn += 1;
    }
    let report = capture.report();
    let tied: Vec<_> = report
        .flows
        .iter()
        .filter(|flow| flow.tied_by == TiedBy::Heuristic)
        .collect();
    assert!(tied.len() > 590, "{}", tied.len());
    for flow in tied {
        let [a, b] = [0, 1].map(|at| flow.endpoints[at].qpn.unwrap());
        assert_eq!(a.abs_diff(b), 0x10_0000, "{a:#x} {b:#x}");
    }
}
