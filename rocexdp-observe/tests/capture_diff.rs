//! What got worse between two captures is said, and nothing is said of two that are alike; CSV holds what JSON holds.

#[path = "capture_support/traffic.rs"]
mod traffic;

use rocexdp_observe::{
    analyse::{Analyser, Options},
    capture::Reader,
    csv::csv,
    diff::diff,
    report::Report,
};
use traffic::{Lost, Plan, Qp, Tap, Verb, make};

struct Work {
    loss_one_in: u64,
    ce_one_in: u64,
    delay_ns: i64,
    seed: u64,
}

const GOOD: Work = Work {
    loss_one_in: 0,
    ce_one_in: 0,
    delay_ns: 5_000,
    seed: 5,
};

fn report(work: &Work) -> Report {
    let qp = |verb| Qp {
        verb,
        mtu: 1024,
        message: 10_000,
        messages: 300,
        gap_ns: 2_000,
    };
    let plan = Plan {
        qps: vec![qp(Verb::Write), qp(Verb::Send)],
        loss_one_in: work.loss_one_in,
        places: vec![Lost::After],
        ce_one_in: work.ce_one_in,
        seed: work.seed,
        start: 1_700_000_000_000_000_000,
        delay_ns: work.delay_ns,
    };
    let mut tap = Tap::new(Vec::new());
    make(&plan, |wire| {
        if let Some(time) = wire.near {
            tap.push(time, wire.settled, wire.frame);
        }
    });
    analysed(Reader::from_reader(std::io::Cursor::new(tap.finish())).unwrap())
}

fn analysed(mut reader: Reader) -> Report {
    let mut analyser = Analyser::new(Options::default());
    analyser.begin_file("made");
    while let Some(packet) = reader.next().unwrap() {
        analyser.push(&packet);
    }
    analyser.finish()
}

#[test]
fn alike_is_alike() {
    let (now, good) = (report(&Work { seed: 6, ..GOOD }), report(&GOOD));
    let diff = diff(&now, &good);
    assert!(diff.worse.is_empty() && diff.better.is_empty(), "{diff}");
    assert!(
        diff.to_string()
            .contains("Nothing got worse beyond chance."),
        "{diff}"
    );
    let lossy = Work {
        loss_one_in: 300,
        ..GOOD
    };
    let other = Work {
        loss_one_in: 300,
        seed: 9,
        ..GOOD
    };
    let same = self::diff(&report(&lossy), &report(&other));
    assert!(
        !same.worse.iter().any(|c| c.what.contains("again")),
        "{same}"
    );
}

#[test]
fn beside_an_empty_capture_nothing_is_called_unchanged() {
    let empty = Analyser::new(Options::default()).finish();
    let full = report(&GOOD);
    for (now, good) in [(&full, &empty), (&empty, &full)] {
        let diff = diff(now, good);
        assert!(!diff.comparable);
        let said = diff.to_string();
        assert!(said.contains("What got worse can't be told."), "{said}");
        assert!(!said.contains("Nothing got"), "{said}");
    }
}

#[test]
fn loss_congestion_and_delay_are_told_in_words_and_the_other_way_round_as_better() {
    let good = report(&GOOD);
    let bad = report(&Work {
        loss_one_in: 200,
        ce_one_in: 20,
        delay_ns: 25_000,
        ..GOOD
    });
    let worse = diff(&bad, &good);
    let whole: Vec<_> = worse
        .worse
        .iter()
        .filter(|c| c.hosts.is_none())
        .map(|c| c.what)
        .collect();
    for what in [
        "naks_sequence",
        "retransmissions_packets",
        "cnp",
        "ack_delay_p50_ns",
    ] {
        assert!(whole.contains(&what), "{what}: {worse}");
    }
    // Loss before congestion before delay.
    let place = |what| whole.iter().position(|w| *w == what).unwrap();
    assert!(place("naks_sequence") < place("cnp") && place("cnp") < place("ack_delay_p50_ns"));
    assert!(worse.worse.iter().any(|c| c.hosts.is_some()), "{worse}");
    let text = worse.to_string();
    assert!(
        text.contains("packets sent again") && text.contains("none") | text.contains("0 %"),
        "{text}"
    );
    let better = diff(&good, &bad);
    let again: Vec<_> = better
        .better
        .iter()
        .filter(|c| c.hosts.is_none())
        .map(|c| c.what)
        .collect();
    assert_eq!(again, whole);
    assert!(better.worse.is_empty(), "{better}");
}

#[test]
fn csv_has_the_numbers_of_the_json_under_their_names() {
    let report = report(&Work {
        loss_one_in: 100,
        ce_one_in: 30,
        ..GOOD
    });
    let text = csv(&report);
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let mut checked = 0;
    for line in lines {
        assert_eq!(line.len(), names.len());
        let cell = |name: &str| line[names.iter().position(|n| *n == name).unwrap()];
        let flow = &json["flows"][cell("flow").parse::<usize>().unwrap()];
        if cell("row") != "both" {
            continue;
        }
        let of = |path: &[&str]| {
            path.iter()
                .fold(flow, |value, key| &value[*key])
                .to_string()
        };
        for (name, path) in [
            ("packets", &["packets"][..]),
            ("message_bytes", &["message_bytes"]),
            ("retransmissions_packets", &["retransmissions", "packets"]),
            ("naks_sequence", &["naks", "sequence"]),
            ("cnp", &["cnp"]),
            ("ack_delay_p99_ns", &["ack_delay", "p99_ns"]),
            ("write_bytes", &["operations", "write", "bytes"]),
            ("send_messages", &["operations", "send", "messages"]),
            ("path_mtu", &["path_mtu"]),
        ] {
            assert_eq!(cell(name), of(path), "{name}");
            checked += 1;
        }
        assert_eq!(
            cell("from_address"),
            flow["endpoints"][0]["address"].as_str().unwrap()
        );
        assert_eq!(format!("\"{}\"", cell("tied_by")), of(&["tied_by"]));
    }
    assert_eq!(checked, 18);
}

#[test]
fn what_is_too_little_to_tell_from_chance_is_said_still() {
    let captured = |name: &str| {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/captures/");
        analysed(Reader::open(std::path::Path::new(&format!("{dir}{name}"))).unwrap())
    };
    let (bad, good) = (
        captured("rc-loss-mixed.pcap"),
        captured("rc-write-multi.pcap"),
    );
    let told =
        "read response lost: 1 found, none in the good capture; so few may be chance: QP 0x33";
    let said = diff(&bad, &good).notes;
    assert!(said.iter().any(|note| note.starts_with(told)), "{said:?}");
    let said = diff(&bad, &bad).notes;
    assert!(!said.iter().any(|note| note.contains("chance")), "{said:?}");
}
