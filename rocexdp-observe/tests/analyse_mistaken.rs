//! What looks like loss and is none: NAKs behind a receiver that was not ready, single copies, two taps in one file; and what is
//! refused without a connection.

mod analyse_support;

use analyse_support::{
    only,
    traffic::{CREDITS, Capture, MS, NAK_SEQUENCE, RNR, US},
};
use rocexdp_observe::{findings::Kind, report::Report};

const SEND_MIDDLE: u8 = 0x01;
const UD_SEND_ONLY: u8 = 0x64;

fn kinds(report: &Report) -> Vec<Kind> {
    report.findings.iter().map(|f| f.kind).collect()
}

/// Four SENDs of which the first meets no receive; Soft-RoCE's NAK for those behind it; then all again.
fn refused_once(capture: &mut Capture) {
    for n in 0..4 {
        capture.send(i64::from(n) * US, 0x202, 100 + n);
    }
    capture.answer(5 * US, 0x101, 100, RNR);
    capture.answer(6 * US, 0x101, 100, NAK_SEQUENCE);
    for n in 0..4 {
        capture.send(2 * MS + i64::from(n) * US, 0x202, 100 + n);
    }
}

#[test]
fn a_sequence_nak_behind_an_rnr_nak_is_no_loss() {
    let mut capture = Capture::default();
    refused_once(&mut capture);
    for n in 0..4 {
        capture.ack(2 * MS + i64::from(n) * US + 5 * US, 0x101, 100 + n);
    }
    let report = capture.report();
    assert_eq!(kinds(&report), [Kind::Rnr], "{:#?}", report.findings);
    let text = &report.findings[0].text;
    assert!(
        text.contains("NAK in frame 6 is for what was on its way behind"),
        "{text}"
    );
    assert_eq!(report.flows[0].metrics.naks.sequence, 1);
    assert_eq!(report.flows[0].metrics.retransmissions.packets, 4);
}

#[test]
fn what_a_receiver_puts_off_again_and_again_is_not_taken_for_copies() {
    let mut capture = Capture::default();
    // Three SENDs, of which the first is put off thirty times.
    for round in 0..31 {
        for n in 0..3 {
            capture.send(i64::from(round) * MS + i64::from(n) * US, 0x202, 100 + n);
        }
        if round < 30 {
            capture.answer(i64::from(round) * MS + 5 * US, 0x101, 100, RNR);
        }
    }
    for n in 0..3 {
        capture.ack(31 * MS + i64::from(n) * US, 0x101, 100 + n);
    }
    let report = capture.report();
    assert_eq!(kinds(&report), [Kind::Rnr], "{:#?}", report.findings);
    assert_eq!(report.flows[0].metrics.retransmissions.packets, 90);
}

#[test]
fn what_is_lost_once_the_refused_request_was_sent_again_is_a_loss_still() {
    let mut capture = Capture::default();
    refused_once(&mut capture);
    // The request is lost behind the tap when it is sent again: the NAK is for that.
    capture.answer(2 * MS + 10 * US, 0x101, 100, NAK_SEQUENCE);
    for n in 0..4 {
        capture.send(2 * MS + 20 * US + i64::from(n) * US, 0x202, 100 + n);
        capture.ack(2 * MS + 25 * US + i64::from(n) * US, 0x101, 100 + n);
    }
    let report = capture.report();
    let loss = only(&report, Kind::PacketLoss);
    assert!(
        loss.text.contains("NAK, PSN sequence error, in frame 11"),
        "{}",
        loss.text
    );
    only(&report, Kind::Rnr);
}

/// A message of many packets, of which only the last asks for an answer.
fn long_message(capture: &mut Capture, packets: u32, mut each: impl FnMut(&mut Capture, u32)) {
    for n in 0..packets - 1 {
        capture.packet(i64::from(n) * US, 1, SEND_MIDDLE, 0x202, 100 + n, &[0; 256]);
        each(capture, n);
    }
    capture.send(i64::from(packets) * US, 0x202, 99 + packets);
    capture.ack(i64::from(packets) * US + 5 * US, 0x101, 99 + packets);
}

#[test]
fn one_packet_that_comes_twice_is_no_loss() {
    let mut capture = Capture::default();
    long_message(&mut capture, 40, |capture, n| {
        if n == 20 {
            // Packet 17 once more, as a network does that doubles it.
            let at = i64::from(n) * US + 300;
            capture.packet(at, 1, SEND_MIDDLE, 0x202, 117, &[0; 256]);
        }
    });
    let report = capture.report();
    assert_eq!(
        kinds(&report),
        [Kind::UnneededRetransmission],
        "{:#?}",
        report.findings
    );
    let text = &report.findings[0].text;
    assert!(
        text.contains("was acknowledged and not sent again"),
        "{text}"
    );
}

#[test]
fn what_the_responder_says_that_it_had_is_no_loss() {
    let mut capture = Capture::default();
    long_message(&mut capture, 40, |capture, n| {
        if n == 20 {
            // The newest packet once more: the responder acknowledges it unasked (rxe_resp.c `duplicate_request`).
            let at = i64::from(n) * US + 300;
            capture.packet(at, 1, SEND_MIDDLE, 0x202, 120, &[0; 256]);
            capture.answer(at + 200, 0x101, 120, CREDITS);
        }
    });
    let report = capture.report();
    assert_eq!(
        kinds(&report),
        [Kind::UnneededRetransmission],
        "{:#?}",
        report.findings
    );
    let text = &report.findings[0].text;
    assert!(text.contains("the responder says that it had it"), "{text}");
}

/// Fifty SENDs seen by two taps, 30 us apart; the sender leaves the IP identification at 0.
fn two_taps(interfaces: [u32; 2]) -> Report {
    let mut capture = Capture::default();
    for n in 0..50 {
        capture.send(i64::from(n) * 2 * US, 0x202, 100 + n);
        capture.ack(i64::from(n) * 2 * US + 9 * US, 0x101, 100 + n);
    }
    for frame in &mut capture.frames {
        frame.data[18..20].fill(0);
        analyse_support::seal(&mut frame.data);
        frame.interface = interfaces[0];
    }
    let mut second = capture.frames.clone();
    for frame in &mut second {
        frame.time_ns += 30 * US;
        frame.interface = interfaces[1];
    }
    capture.frames.append(&mut second);
    capture.report()
}

#[test]
fn two_interfaces_of_one_capture_are_no_retransmissions() {
    let report = two_taps([0, 1]);
    let counts = &report.flows[0].metrics;
    assert_eq!(
        (counts.retransmissions.packets, counts.duplicates),
        (0, 100)
    );
    let both = [Kind::DuplicateFrames, Kind::DuplicateFrames];
    assert_eq!(kinds(&report), both, "{:#?}", report.findings);
}

#[test]
fn two_taps_that_nothing_tells_apart_are_suspected() {
    let report = two_taps([0, 0]);
    let found = report
        .findings
        .iter()
        .find(|f| f.kind == Kind::DuplicateFrames);
    let text = &found.unwrap().text;
    assert!(text.contains("if two taps were joined"), "{text}");
}

/// A message of the communication manager to QP 1.
fn mad(capture: &mut Capture, time: i64, host: u8, attribute: u16, data: &[u8]) {
    let mut body = vec![0; 8 + 256];
    body[..4].copy_from_slice(&0x8001_0000_u32.to_be_bytes());
    body[7] = 1;
    body[8..12].copy_from_slice(&[1, 7, 2, 3]);
    body[24..26].copy_from_slice(&attribute.to_be_bytes());
    body[32..32 + data.len()].copy_from_slice(data);
    capture.packet(time, host, UD_SEND_ONLY, 1, 7, &body);
}

#[test]
fn a_refused_datagram_service_is_told() {
    let service = 0x0106_1234_u64.to_be_bytes();
    for (status, why) in [(1, "unsupported"), (2, "rejected"), (3, "no QP")] {
        let mut capture = Capture::default();
        let mut request = [0; 16];
        request[3] = 9;
        request[8..].copy_from_slice(&service);
        mad(&mut capture, 0, 1, 0x17, &request);
        let mut reply = [0; 24];
        (reply[3], reply[4]) = (9, status);
        reply[12..20].copy_from_slice(&service);
        mad(&mut capture, MS, 2, 0x18, &reply);
        let report = capture.report();
        let refused = only(&report, Kind::CmRejected);
        assert!(refused.text.contains(why), "{}", refused.text);
        assert_eq!(refused.frames, [1, 2]);
    }
}
