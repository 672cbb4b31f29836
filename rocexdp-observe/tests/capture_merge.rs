//! Two taps of generated traffic: each lost packet is placed where the generator lost it, whatever the clocks show.

#[path = "capture_support/traffic.rs"]
mod traffic;

use std::{collections::BTreeMap, fs::File, io::BufWriter, path::PathBuf};

use rocexdp_common::dissect::dissect;
use rocexdp_observe::merge::{MergeReport, Place, Which, merge};
use traffic::{Lost, Plan, Qp, Tap, Verb, make};

const START: i64 = 1_700_000_000_000_000_000;
const DELAY: i64 = 7_000;

/// What a capture of the second tap is like.
#[derive(Clone, Copy)]
struct Second {
    /// Its clock less the first's.
    shift: i64,
    /// And what it gains in a second, in nanoseconds.
    drift: i64,
    snaplen: usize,
    /// Begins and ends so much after and before the traffic.
    trimmed: i64,
}

const PLAIN: Second = Second {
    shift: 0,
    drift: 0,
    snaplen: usize::MAX,
    trimmed: 0,
};

struct Truth {
    /// Lost frames to each QP number.
    lost: BTreeMap<u32, u64>,
    /// Lost requests.
    requests: u64,
    report: MergeReport,
    _dir: tempfile::TempDir,
    paths: [PathBuf; 2],
}

fn plan(places: Vec<Lost>) -> Plan {
    let qp = |verb, mtu, message| Qp {
        verb,
        mtu,
        message,
        messages: 400,
        gap_ns: 3_000,
    };
    Plan {
        qps: vec![
            qp(Verb::Write, 1024, 30_000),
            qp(Verb::Send, 1024, 1_000),
            qp(Verb::Read, 4096, 40_000),
            qp(Verb::Write, 256, 9_000),
        ],
        loss_one_in: 400,
        places,
        ce_one_in: 0,
        seed: 11,
        start: START,
        delay_ns: DELAY,
    }
}

fn compare(plan: &Plan, second: Second) -> Truth {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("a.pcap"), dir.path().join("b.pcap")];
    let create = |path| Tap::new(BufWriter::new(File::create(path).unwrap()));
    let (mut a, mut b) = (create(&paths[0]), create(&paths[1]));
    b.snaplen = second.snaplen;
    let mut lost = BTreeMap::new();
    let mut requests = 0;
    let mut end = START;
    make(plan, |wire| end = end.max(wire.far.unwrap_or(end)));
    make(plan, |wire| {
        if wire.lost.is_some() {
            let packet = *dissect(wire.frame).kind.packet().unwrap();
            *lost.entry(packet.flow.dest_qpn).or_default() += 1;
            requests += u64::from(packet.bth.opcode.0 <= 0x0c);
        }
        if let Some(time) = wire.near {
            a.push(time, wire.settled, wire.frame);
        }
        if let Some(time) = wire.far
            && (START + second.trimmed..=end - second.trimmed).contains(&time)
        {
            let clock =
                |time: i64| time + second.shift + (time - START) * second.drift / 1_000_000_000;
            b.push(clock(time), clock(wire.settled), wire.frame);
        }
    });
    a.finish();
    b.finish();
    let report = merge(&paths[0], &paths[1], |_| {}).unwrap();
    Truth {
        lost,
        requests,
        report,
        _dir: dir,
        paths,
    }
}

fn total(report: &MergeReport, of: impl Fn(&rocexdp_observe::merge::Direction) -> u64) -> u64 {
    report.directions.iter().map(of).sum()
}

#[test]
fn each_packet_lost_between_is_found_whatever_the_clock() {
    for second in [
        PLAIN,
        Second {
            shift: -3_600_000_000_000,
            ..PLAIN
        },
        Second {
            shift: 1_500_000,
            drift: 80_000,
            ..PLAIN
        },
        Second {
            shift: 40_000_000,
            snaplen: 64,
            ..PLAIN
        },
    ] {
        let Truth { lost, report, .. } = compare(&plan(vec![Lost::Between]), second);
        assert!(lost.values().sum::<u64>() > 20, "{lost:?}");
        for d in &report.directions {
            let truth = lost.get(&d.dest_qpn).copied().unwrap_or(0);
            assert_eq!(d.lost_between, Some(truth), "{d:?}\n{report}");
            assert_eq!(d.missed_by_first, Some(0), "{d:?}");
            assert_eq!(
                (d.lost_before, d.lost_behind, d.outside),
                (0, 0, 0),
                "{d:?}"
            );
            let to_responder = d.dest_qpn < 0x1000;
            assert_eq!(
                d.first,
                Some(if to_responder { Which::A } else { Which::B })
            );
            let delay = d.delay.unwrap();
            // A window of 10 ms is as exact as the clocks drift in it.
            let exact = 10 + second.drift.unsigned_abs() / 100;
            assert!(delay.min_ns.abs_diff(DELAY as u64) <= exact, "{d:?}");
            assert!(
                delay.max_ns.unwrap().abs_diff(DELAY as u64) <= exact,
                "{d:?}"
            );
        }
        let clock = &report.clock;
        let drifted = clock.offset_ns.unwrap().abs_diff(second.shift);
        assert!(drifted <= 20 + second.drift.unsigned_abs(), "{clock:?}");
        let listed = report
            .losses
            .iter()
            .filter(|l| l.place == Place::Between)
            .count();
        assert_eq!(listed as u64, lost.values().sum::<u64>());
        let text = report.to_string();
        assert!(
            text.contains("lost between the taps, on the way from A to B"),
            "{text}"
        );
    }
}

#[test]
fn taps_at_one_place_are_ordered_by_what_is_missing() {
    let mut plan = plan(vec![Lost::Between]);
    plan.delay_ns = 0;
    let Truth { lost, report, .. } = compare(&plan, PLAIN);
    for d in &report.directions {
        let truth = lost.get(&d.dest_qpn).copied().unwrap_or(0);
        // At the very ends a lost packet can't be told from one outside of the other recording.
        assert_eq!(d.lost_between.map(|n| n + d.outside), Some(truth), "{d:?}");
        let first = if d.dest_qpn < 0x1000 {
            Which::A
        } else {
            Which::B
        };
        assert_eq!(d.first, (truth != 0).then_some(first), "{d:?}");
    }
}

#[test]
fn what_was_lost_outside_is_placed_before_or_behind() {
    for (place, name) in [(Lost::Before, Place::Before), (Lost::After, Place::Behind)] {
        let Truth {
            requests, report, ..
        } = compare(&plan(vec![place]), PLAIN);
        assert_eq!(total(&report, |d| d.only_a + d.only_b), 0, "{report}");
        // A request lost while an earlier one is missing is discarded by the receiver unseen: no NAK tells of it.
        let (before, behind) = (
            total(&report, |d| d.lost_before),
            total(&report, |d| d.lost_behind),
        );
        let either = total(&report, |d| d.lost_behind_or_answer);
        let (right, wrong) = match place {
            Lost::Before => (before, behind),
            _ => (behind + either, before),
        };
        assert_eq!(wrong, 0, "{name:?} {report}");
        assert!(
            right * 10 >= requests * 8,
            "{name:?}: {right} of {requests}\n{report}"
        );
        assert!(report.losses.iter().any(|l| l.place == name));
    }
}

#[test]
fn what_one_tap_did_not_record_is_not_lost() {
    let second = Second {
        trimmed: 8_000_000,
        shift: 5,
        ..PLAIN
    };
    let Truth { report, .. } = compare(&plan(vec![Lost::Between]), second);
    assert!(total(&report, |d| d.outside) > 1_000, "{report}");
    let between = total(&report, |d| d.lost_between.unwrap_or(0));
    assert!(between > 5 && between < 60, "{report}");
    assert_eq!(
        total(&report, |d| d.missed_by_first.unwrap_or(0)),
        0,
        "{report}"
    );
}

#[test]
fn captures_of_other_traffic_are_told_as_such_and_a_cut_one_is_compared() {
    let truth = compare(&plan(vec![Lost::Between]), PLAIN);
    let (paths, whole) = (&truth.paths, &truth.report);
    let other = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/captures/rc-read.pcap"
    );
    let report = merge(&paths[0], other.as_ref(), |_| {}).unwrap();
    assert!(
        report.to_string().contains("no packet was seen by both"),
        "{report}"
    );

    let mut bytes = std::fs::read(&paths[1]).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&paths[1], bytes).unwrap();
    let report = merge(&paths[0], &paths[1], |_| {}).unwrap();
    assert!(!report.taps[1].complete && report.taps[1].warnings[0].contains("cut"));
    let between = total(&report, |d| d.lost_between.unwrap_or(0));
    assert!(between > 0 && between <= total(whole, |d| d.lost_between.unwrap_or(0)));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["directions"][0]["first"], "a");

    let error = merge(&paths[0], "nothing.pcap".as_ref(), |_| {}).unwrap_err();
    assert!(error.to_string().contains("nothing.pcap"), "{error}");
}

/// Frames of a small pcap file, and the file without one of them.
fn without(capture: &[u8], lost: usize) -> Vec<u8> {
    let (head, mut rest) = capture.split_at(24);
    let mut out = head.to_vec();
    let mut number = 0;
    while rest.len() >= 16 {
        number += 1;
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (record, behind) = rest.split_at(16 + len);
        if number != lost {
            out.extend_from_slice(record);
        }
        rest = behind;
    }
    out
}

#[test]
fn a_loss_within_a_moment_of_the_recordings_beginning_is_a_loss() {
    // All ten packets pass within 7 ms, the lost one 60 us after the first.
    let whole = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/captures/rc-loss-write-middle.pcap"
    ));
    let dir = tempfile::tempdir().unwrap();
    let second = dir.path().join("b.pcap");
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&second, without(&bytes, 3)).unwrap();
    let report = merge(&whole, &second, |_| {}).unwrap();
    assert_eq!(report.directions[0].lost_between, Some(1));
    assert_eq!(report.directions[0].outside, 0);
    assert_eq!(report.losses.len(), 1);
    assert_eq!(report.losses[0].place, Place::Between);
    assert_eq!(report.losses[0].frame_a, Some(3));
    // Before the second tap recorded anything, and after it, nothing is lost.
    for edge in [1, 10] {
        std::fs::write(&second, without(&bytes, edge)).unwrap();
        let report = merge(&whole, &second, |_| {}).unwrap();
        // But for the one that both taps saw, and a NAK names.
        let places: Vec<Place> = report.losses.iter().map(|loss| loss.place).collect();
        assert_eq!(places, [Place::Behind], "{edge}");
        assert_eq!(report.directions.iter().map(|d| d.outside).sum::<u64>(), 1);
        let said = report.sentences().join("\n");
        assert!(
            said.contains("1 packet was seen by one tap alone"),
            "{said}"
        );
    }
}
