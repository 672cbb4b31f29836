//! Losses, reordering, mirrors and cuts as other taps would have seen them: the captures of Soft-RoCE, with frames taken
//! out, moved, doubled, cut or marked.

mod analyse_support;

use analyse_support::{
    Frame, analyse, analyse_with, cnp, found, load, only, seal, set_ecn, without,
};
use rocexdp_observe::{
    analyse::Options,
    findings::Kind::{self, *},
    report::{Report, TiedBy},
};

fn kinds(report: &Report) -> Vec<Kind> {
    found(report).into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn a_tap_behind_the_loss_sees_a_gap_and_what_filled_it() {
    let report = analyse(&without("rc-loss-write-middle.pcap", &[3]));
    assert_eq!(found(&report), [(PacketLoss, vec![2, 3, 5, 6, 8, 9])]);
    assert_eq!(
        report.findings[0].text,
        "QP 0x2c (10.77.0.2 > 10.77.0.3): 1 packet lost at 0.0000 s before the capture point: PSN 258, between frames 2 and 3 \
         (NAK, PSN sequence error, in frame 5), recovered by go-back-N 6.12 ms later (frame 9); 3 packets sent again (frames \
         6-8)"
    );
    let metrics = &report.flows[0].metrics;
    assert_eq!(metrics.retransmissions.packets, 3);
    assert_eq!([metrics.psn_gaps, metrics.psns_missing], [Some(1); 2]);
    // All 5000 bytes once.
    assert_eq!([metrics.messages, metrics.message_bytes], [1, 5000]);
}

#[test]
fn several_packets_lost_before_the_tap_are_counted() {
    // Frames 3 and 4 (PSN 258 and 259) are lost; the NAK is the same.
    let report = analyse(&without("rc-loss-write-middle.pcap", &[3, 4]));
    assert_eq!(kinds(&report), [PacketLoss]);
    let finding = only(&report, PacketLoss);
    assert!(finding.text.contains("2 packets lost"), "{}", finding.text);
    assert!(finding.text.contains("PSN 258-259"), "{}", finding.text);
    assert_eq!(report.flows[0].metrics.retransmissions.packets, 3);
}

#[test]
fn a_lost_last_packet_is_known_from_what_the_responder_had() {
    let report = analyse(&without("rc-loss-send-last.pcap", &[3]));
    assert_eq!(kinds(&report), [PacketLoss, AckTimeout]);
    let text = &only(&report, PacketLoss).text;
    assert!(
        text.contains("PSN 258 was lost before the capture point"),
        "{text}"
    );
    assert_eq!(report.flows[0].metrics.timeouts, 1);
}

#[test]
fn read_responses_lost_before_the_tap_are_missing_and_asked_for_again() {
    let report = analyse(&without("rc-loss-read-response.pcap", &[4]));
    assert_eq!(kinds(&report), [ReadResponseLost, AckTimeout]);
    let text = &only(&report, ReadResponseLost).text;
    assert!(
        text.contains("1 response packet of the READ in frame 1 from PSN 258 on did not reach the capture point"),
        "{text}"
    );
}

#[test]
fn an_ack_lost_before_the_tap_leaves_two_possibilities() {
    let report = analyse(&without("rc-loss-ack.pcap", &[2]));
    assert_eq!(kinds(&report), [PacketLoss, AckTimeout]);
    let text = &only(&report, PacketLoss).text;
    assert!(text.contains("or its answer was lost"), "{text}");
}

#[test]
fn what_the_receiver_acknowledges_and_nobody_sends_again_the_capture_missed() {
    // Frames 10 to 12 are Middles of a SEND that is acknowledged.
    let report = analyse(&without("rc-mtu-256.pcap", &[10, 11, 12]));
    assert_eq!(kinds(&report), [CaptureLoss]);
    let finding = &report.findings[0];
    assert!(
        finding.text.contains("3 packets missing"),
        "{}",
        finding.text
    );
    assert!(
        finding.text.contains("the receiver acknowledged them"),
        "{}",
        finding.text
    );
    assert_eq!(finding.frames[..2], [9, 10]);
    assert_eq!(report.flows[0].metrics.retransmissions.packets, 0);
}

#[test]
fn missing_read_responses_that_nobody_asks_for_again_the_capture_missed() {
    let frames = load("rc-mtu-256.pcap");
    let middle: Vec<usize> = (1..=frames.len())
        .filter(|n| frames[n - 1].data[42] == 0x0e)
        .collect();
    let report = analyse(&without("rc-mtu-256.pcap", &middle[5..8]));
    assert_eq!(kinds(&report), [CaptureLoss]);
    let text = &report.findings[0].text;
    assert!(text.contains("3 READ response packets missing"), "{text}");
}

#[test]
fn a_missing_ack_is_no_loss_when_a_later_one_covers_it() {
    let frames = load("rc-pipeline.pcap");
    let report = analyse(&without("rc-pipeline.pcap", &[40, 41, 42]));
    assert_eq!(frames.len(), 66);
    assert_eq!(kinds(&report), []);
}

#[test]
fn late_packets_without_repetition_are_reordering() {
    // Frames 3 to 5 are Middles of the SEND.
    let mut frames = load("rc-mtu-256.pcap");
    let late = frames.remove(4);
    frames.insert(7, late);
    for (n, frame) in frames.iter_mut().enumerate().take(12) {
        frame.time_ns = 1_700_000_000_000_000_000 + n as i64 * 1000;
    }
    let report = analyse(&frames);
    assert_eq!(kinds(&report), [Reordering], "{:#?}", report.findings);
    let metrics = &report.flows[0].metrics;
    assert_eq!(metrics.reordered, 1);
    assert_eq!(metrics.retransmissions.packets, 0);
    assert_eq!(metrics.message_bytes, 27000);
}

#[test]
fn a_nak_for_a_late_packet_is_reordering_too() {
    // PSN 258 comes behind 260; the responder NAKs it all the same, and the requester goes back.
    let mut frames = load("rc-loss-write-middle.pcap");
    let late = frames.remove(2);
    frames.insert(4, late);
    for (n, frame) in frames.iter_mut().enumerate().take(5) {
        frame.time_ns -= (5 - n as i64) * 1000;
    }
    let report = analyse(&frames);
    assert_eq!(
        kinds(&report),
        [Reordering, Reordering],
        "{:#?}",
        report.findings
    );
    let all: String = report.findings.iter().map(|f| f.text.as_str()).collect();
    assert!(all.contains("took it for lost (NAK in frame 6)"), "{all}");
    assert!(
        all.contains("3 packets were sent again without need"),
        "{all}"
    );
}

#[test]
fn a_mirror_of_both_directions_doubles_nothing() {
    for file in [
        "rc-loss-write-middle.pcap",
        "rc-mtu-256.pcap",
        "rc-read.pcap",
        "rc-bidir.pcap",
        "rc-ipv6.pcap",
        "ud-send.pcap",
    ] {
        let once = load(file);
        let mut twice = Vec::new();
        for frame in &once {
            twice.push(frame.clone());
            let mut copy = frame.clone();
            copy.time_ns += 3000;
            // Behind a router: TTL one less (hop limit of IPv6).
            let ttl = if copy.data[12..14] == [0x86, 0xdd] {
                21
            } else {
                22
            };
            copy.data[ttl] -= 1;
            twice.push(copy);
        }
        let (alone, mirrored) = (analyse(&once), analyse(&twice));
        let mut seen = kinds(&mirrored);
        seen.retain(|kind| *kind != DuplicateFrames);
        assert_eq!(seen, kinds(&alone), "{file}");
        let (a, b) = (&alone.flows[0].metrics, &mirrored.flows[0].metrics);
        assert_eq!(a.packets, b.packets, "{file}");
        assert_eq!(b.duplicates, b.packets, "{file}");
        assert_eq!(a.messages, b.messages, "{file}");
        assert_eq!(a.retransmissions, b.retransmissions, "{file}");
        assert_eq!(mirrored.rocev2_packets, 2 * alone.rocev2_packets, "{file}");
    }
}

#[test]
fn one_direction_only_is_said() {
    let from_a: Vec<Frame> = load("rc-mtu-256.pcap")
        .into_iter()
        .filter(|frame| frame.data[29] == 2)
        .collect();
    let report = analyse(&from_a);
    assert_eq!(kinds(&report), [OneDirection]);
    assert!(report.flows[0].one_direction);
    assert_eq!(report.flows[0].tied_by, TiedBy::None);
    assert!(report.flows[0].metrics.ack_delay.is_none());
    assert!(!report.flows[0].notes.is_empty());
    let from_b: Vec<Frame> = load("rc-mtu-256.pcap")
        .into_iter()
        .filter(|frame| frame.data[29] == 3)
        .collect();
    let text = &only(&analyse(&from_b), OneDirection).text.clone();
    assert!(text.contains("none of the requests"), "{text}");
}

#[test]
fn a_resend_without_any_answer_is_not_explained() {
    // One direction of a go-back-N, with more traffic behind it.
    let mut frames: Vec<Frame> = load("rc-loss-write-middle.pcap")
        .into_iter()
        .filter(|frame| frame.data[29] == 2)
        .collect();
    let mut more = frames[0].clone();
    more.data[53] += 5;
    more.time_ns += 100_000_000;
    seal(&mut more.data);
    frames.push(more);
    let report = analyse(&frames);
    assert_eq!(kinds(&report)[..1], [PacketLoss]);
    let text = &only(&report, PacketLoss).text;
    assert!(text.contains("can't be told"), "{text}");
    assert!(!kinds(&report).contains(&RetryExceeded));
}

#[test]
fn a_gap_of_an_unreliable_connection_is_a_lost_message() {
    let report = analyse(&without("uc-loss.pcap", &[2]));
    assert_eq!(found(&report), [(UcMessageLost, vec![1, 2])]);
    let text = &report.findings[0].text;
    assert!(
        text.contains("1 packet lost at 0.0011 s (PSN 257"),
        "{text}"
    );
    assert_eq!(report.flows[0].metrics.psns_missing, Some(1));
}

#[test]
fn a_corrupt_packet_is_lost_to_the_receiver() {
    // The packet that the receiver NAKs is in the capture, and corrupt.
    let mut frames = load("rc-loss-write-middle.pcap");
    frames[2].data[200] ^= 1;
    let report = analyse(&frames);
    assert_eq!(kinds(&report), [PacketLoss, IcrcError]);
    assert_eq!(only(&report, IcrcError).frames, [3]);
    assert!(
        only(&report, PacketLoss)
            .text
            .contains("between frames 2 and 4")
    );
    assert_eq!([report.icrc_errors, report.icrc_unknown], [1, 0]);
}

#[test]
fn a_sender_whose_icrcs_are_all_wrong_is_believed() {
    // Captured before the NIC puts the ICRC in.
    let mut frames = load("rc-mtu-256.pcap");
    for frame in frames.iter_mut().filter(|frame| frame.data[29] == 2) {
        let at = frame.data.len() - 4;
        frame.data[at..].fill(0);
    }
    let report = analyse(&frames);
    assert_eq!(kinds(&report), [IcrcError]);
    assert!(report.findings[0].text.contains("captured before"));
    assert_eq!(report.flows[0].metrics.message_bytes, 27000);
    let unchecked = analyse_with(
        &frames,
        Options {
            no_icrc: true,
            ..Options::default()
        },
    );
    assert_eq!(kinds(&unchecked), []);
    assert_eq!(unchecked.icrc_unknown, 111);
}

#[test]
fn packets_captured_in_part_keep_their_lengths() {
    for file in [
        "rc-mtu-256.pcap",
        "rc-loss-write-middle.pcap",
        "rc-read.pcap",
    ] {
        let mut frames = load(file);
        let cut = frames.iter_mut().filter(|frame| frame.data.len() > 96);
        let cut = cut.map(|frame| frame.data.truncate(96)).count() as u64;
        let (whole, short) = (analyse(&load(file)), analyse(&frames));
        assert_eq!([short.truncated, short.icrc_unknown], [cut; 2], "{file}");
        let (a, b) = (&whole.flows[0].metrics, &short.flows[0].metrics);
        assert_eq!(a.message_bytes, b.message_bytes, "{file}");
        assert_eq!(a.bytes, b.bytes, "{file}");
        assert_eq!(a.retransmissions, b.retransmissions, "{file}");
        let mut seen = kinds(&short);
        assert_eq!(seen.pop(), Some(TruncatedCapture), "{file}");
        assert_eq!(seen, kinds(&whole), "{file}");
    }
}

#[test]
fn congestion_is_told_with_its_share_and_the_way_of_the_cnps() {
    let mut frames = load("rc-mtu-256.pcap");
    // The first 36 are the SEND: every fourth of its 36 packets is marked, and two CNPs come back.
    for frame in frames.iter_mut().take(36).step_by(4) {
        set_ecn(frame, 3);
    }
    let data = frames[0].clone();
    frames.insert(10, cnp(&data, 26, frames[9].time_ns + 500));
    frames.insert(30, cnp(&data, 26, frames[29].time_ns + 500));
    let report = analyse(&frames);
    assert_eq!([report.cnp, report.ce_marked], [2, 9]);
    assert_eq!(report.opcodes["CNP"], 2);
    assert_eq!(kinds(&report), [Congestion], "{:#?}", report.findings);
    let text = &report.findings[0].text;
    assert!(
        text.contains("12.3 % of 73 packets to QP 0x1a carried CE marks (9"),
        "{text}"
    );
    assert!(
        text.contains("2 CNPs came back (frames 11 to 31)"),
        "{text}"
    );
    let metrics = &report.flows[0].metrics;
    assert_eq!([metrics.cnp, metrics.ce_marked], [2, 9]);
    // Counted where they went.
    assert_eq!(report.flows[0].directions[0].metrics.ce_marked, 9);
    assert_eq!(report.flows[0].directions[1].metrics.cnp, 2);

    let mut marked = load("rc-mtu-256.pcap");
    set_ecn(&mut marked[3], 3);
    let text = analyse(&marked).findings[0].text.clone();
    assert!(text.contains("no CNP came back"), "{text}");
}

#[test]
fn filters_leave_the_others_out() {
    let frames = load("cm-ucmatose.pcap");
    let with = |qps: Vec<u32>, addresses| {
        analyse_with(
            &frames,
            Options {
                qps,
                addresses,
                ..Options::default()
            },
        )
    };
    let one = with(vec![0x3d], vec![]);
    assert_eq!(one.flows.len(), 1);
    assert_eq!(one.rocev2_packets, 16);
    assert_eq!(one.packets, 42);
    assert_eq!(
        one.left_out + one.rocev2_packets,
        with(vec![], vec![]).rocev2_packets
    );
    assert_eq!(with(vec![], vec![]).left_out, 0);
    let none = with(vec![], vec![[7; 16]]);
    assert_eq!([none.flows.len() as u64, none.rocev2_packets], [0, 0]);
    assert_eq!(none.left_out, 42);
    assert_eq!(with(vec![0x99_9999], vec![]).left_out, 42);
    let mut rejected = analyse_with(
        &load("cm-reject.pcap"),
        Options {
            qps: vec![9],
            ..Options::default()
        },
    );
    assert!(rejected.findings.pop().is_none());
}

/// Another QP of the same capture: destination QPs moved by 0x1000.
fn other_qp(frames: &[Frame], later: i64) -> Vec<Frame> {
    let mut other = frames.to_vec();
    for frame in &mut other {
        frame.data[48] += 0x10;
        frame.time_ns += later;
        seal(&mut frame.data);
    }
    other
}

#[test]
fn two_qps_in_step_stay_untied_and_that_is_said() {
    let one = load("rc-send-only.pcap");
    let mut both: Vec<Frame> = one.iter().cloned().chain(other_qp(&one, 10)).collect();
    both.sort_by_key(|frame| frame.time_ns);
    let report = analyse(&both);
    assert_eq!(report.flows.len(), 4);
    assert!(report.flows.iter().all(|flow| flow.tied_by == TiedBy::None));
    assert!(kinds(&report).iter().all(|kind| *kind == OneDirection));
    assert!(report.findings[0].text.contains("could not be told from"));
    // Apart by one answer they are told.
    let mut apart: Vec<Frame> = one
        .iter()
        .cloned()
        .chain(other_qp(&one, 1_000_000_000))
        .collect();
    apart.sort_by_key(|frame| frame.time_ns);
    let report = analyse(&apart);
    assert_eq!(report.flows.len(), 2, "{:#?}", report.flows);
    assert!(kinds(&report).is_empty());
}

#[test]
fn a_new_connection_on_the_same_qp_numbers_is_no_gap() {
    let first = load("rc-loss-write-middle.pcap");
    let mut second = first.clone();
    for frame in &mut second {
        frame.data[51] = 0x77;
        frame.time_ns += 5_000_000_000;
        seal(&mut frame.data);
    }
    let report = analyse(&[first, second].concat());
    assert_eq!(kinds(&report), [PacketLoss, PacketLoss]);
    assert_eq!(report.flows.len(), 1);
    assert_eq!(report.flows[0].restarts, 1);
    assert_eq!(report.flows[0].metrics.psn_gaps, Some(0));
}

#[test]
fn any_bytes_are_taken_and_counted() {
    let mut frames = Vec::new();
    for file in [
        "cm-rping.pcap",
        "rc-loss-mixed.pcap",
        "rc-psn-wrap.pcap",
        "ud-send.pcap",
        "rc-ipv6.pcap",
    ] {
        frames.extend(load(file));
    }
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut mutated = Vec::new();
    for _ in 0..200 {
        for frame in &frames {
            let mut frame = frame.clone();
            for _ in 0..random() % 4 {
                let at = (random() as usize) % frame.data.len();
                frame.data[at] = random() as u8;
            }
            if random() % 8 == 0 {
                frame
                    .data
                    .truncate((random() as usize) % (frame.data.len() + 1));
            }
            frame.time_ns = frame.time_ns.wrapping_add(random() as i64 % 1_000_000_000);
            if random() % 64 == 0 {
                frame.time_ns = random() as i64;
            }
            mutated.push(frame);
        }
    }
    for no_icrc in [false, true] {
        let report = analyse_with(
            &mutated,
            Options {
                no_icrc,
                ..Options::default()
            },
        );
        assert_eq!(report.packets, mutated.len() as u64);
        assert!(report.rocev2_packets > report.packets / 2);
        assert!(serde_json::to_string(&report).is_ok());
        let icrc = report.icrc_errors + report.icrc_unknown;
        assert!(icrc > 0);
    }
}
