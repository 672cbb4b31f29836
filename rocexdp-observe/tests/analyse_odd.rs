//! Captures that mislead: one direction, two taps in one file, losses that repeat, QP numbers used again, many QPs alike.

mod analyse_support;

use analyse_support::{
    found, only,
    traffic::{Capture, MS, NAK_SEQUENCE, US},
};
use rocexdp_observe::{
    findings::{Kind, Severity},
    flow::TiedBy,
};

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

#[test]
fn hundreds_of_packets_in_flight_before_the_first_answer_are_all_timed() {
    let mut capture = Capture::default();
    for n in 0..1000 {
        capture.send(i64::from(n) * US, 0x20_0001, n);
        capture.ack(i64::from(n + 300) * US, 0x10_0001, n);
    }
    let report = capture.report();
    assert_eq!(report.flows.len(), 1, "{:#?}", report.flows);
    let delay = report.flows[0].metrics.ack_delay.unwrap();
    assert_eq!((delay.samples, delay.max_ns), (1000, 300_000));
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}
