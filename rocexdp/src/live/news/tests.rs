//! What is told, when, how often, and when it ends.

use std::sync::Arc;

use super::*;
use crate::live::FlowTable;

fn row(ce_share: f64, cnp: f64) -> Row {
    let end = |last, qpn| End {
        gid: rocexdp_common::ids::gid_from_ipv4([10, 0, 0, last]),
        qpn: Some(qpn),
    };
    let quiet = Direction {
        packets: Ok(1000.0),
        bits: Ok(8e6),
        ce: Ok(0.0),
        ce_share: Ok(0.0),
        cnp: Ok(0.0),
        gaps: Ok(0.0),
        missing: Ok(0.0),
        resent: Ok(0.0),
        naks: Ok(0.0),
        rnr: Ok(0.0),
        rtt: Err("no"),
        nak_codes: [0; 5],
        total_packets: 10,
        total_bytes: 10_000,
    };
    Row {
        key: RowKey {
            iface: Arc::from("eth0"),
            local: false,
            a: end(2, 0x11),
            b: end(3, 0x12),
        },
        forth: Direction {
            ce: Ok(ce_share * 1000.0),
            ce_share: Ok(ce_share),
            total_bytes: 1_000_000,
            ..quiet
        },
        back: Direction {
            cnp: Ok(cnp),
            ..quiet
        },
        state: None,
        dcqcn: Err("no"),
        outstanding: None,
        path_mtu: 1024,
        last_seen_ns: 1,
    }
}

fn interval(rows: Vec<Row>, error: Option<&str>) -> Vec<IfaceRates> {
    vec![IfaceRates {
        iface: Arc::from("eth0"),
        source: None,
        error: error.map(str::to_owned),
        seconds: if error.is_some() { 0.0 } else { 1.0 },
        frames: 0.0,
        rocev2: 0.0,
        reasons: Vec::new(),
        dropped: 0.0,
        evictions: 0.0,
        flow_table: FlowTable::default(),
        events_lost: 0.0,
        pauses: Vec::new(),
        rows,
        nic: Vec::new(),
        blind_spots: Vec::new(),
    }]
}

fn texts(news: &[News]) -> Vec<&str> {
    news.iter().map(|n| n.text.as_str()).collect()
}

#[test]
fn congestion_is_told_when_it_begins_gets_much_worse_and_ends() {
    let mut room = Newsroom::default();
    assert!(room.take(&interval(vec![row(0.0, 0.0)], None)).is_empty());
    let news = room.take(&interval(vec![row(0.12, 431.0)], None));
    assert_eq!(
        texts(&news),
        ["QP 0x11 10.0.0.2 -> QP 0x12 10.0.0.3: CE 12 %, 431 CNP/s"]
    );
    assert_eq!(
        (news[0].level, news[0].kind),
        (Level::Warning, "congestion")
    );
    // It lasts: nothing new, and a quiet interval is not its end.
    assert!(
        room.take(&interval(vec![row(0.15, 500.0)], None))
            .is_empty()
    );
    assert!(room.take(&interval(vec![row(0.0, 0.0)], None)).is_empty());
    assert!(
        room.take(&interval(vec![row(0.15, 500.0)], None))
            .is_empty()
    );
    let news = room.take(&interval(vec![row(0.6, 4000.0)], None));
    assert!(texts(&news)[0].starts_with("worse: "), "{news:?}");
    for _ in 0..QUIET - 1 {
        assert!(room.take(&interval(vec![row(0.0, 0.0)], None)).is_empty());
    }
    let news = room.take(&interval(vec![row(0.0, 0.0)], None));
    assert_eq!(
        texts(&news),
        ["QP 0x11 10.0.0.2 -> QP 0x12 10.0.0.3: no more CE marks or CNPs"]
    );
    assert!(room.states.is_empty());
}

#[test]
fn loss_and_refusals_by_the_peer_are_told_with_their_numbers() {
    let mut bad = row(0.0, 0.0);
    bad.forth.gaps = Ok(2.0);
    bad.forth.missing = Ok(3.0);
    bad.forth.resent = Ok(96.0);
    bad.back.naks = Ok(2.0);
    bad.back.nak_codes = [1, 0, 1, 0, 0];
    let news = Newsroom::default().take(&interval(vec![bad], None));
    let all = texts(&news).join("\n");
    assert_eq!(
        texts(&news)[0],
        "QP 0x12 10.0.0.3 -> QP 0x11 10.0.0.2: 1 NAK (remote access error)",
        "the error goes first"
    );
    assert!(all.contains("3 packets missing in 2 gaps"), "{all}");
    assert!(all.contains("96 packets sent again"), "{all}");
    assert!(all.contains("1 NAK (PSN sequence error)"), "{all}");
    assert_eq!(news.len(), 4);
}

#[test]
fn an_interface_that_vanishes_is_told_once_and_when_it_comes_back() {
    let mut room = Newsroom::default();
    let gone = interval(Vec::new(), Some("no such interface"));
    assert_eq!(texts(&room.take(&gone)), ["eth0: no such interface"]);
    assert!(room.take(&gone).is_empty());
    let back = interval(Vec::new(), None);
    assert_eq!(texts(&room.take(&back)), ["eth0: can be read again"]);
    assert!(room.take(&back).is_empty());
}

#[test]
fn a_reason_that_comes_back_after_a_rest_is_told_again_and_a_flood_is_cut() {
    let mut room = Newsroom::default();
    let mut bad = interval(Vec::new(), None);
    bad[0].reasons = vec![("unknown_qpn", 12.0)];
    assert_eq!(room.take(&bad).len(), 1);
    assert!(room.take(&bad).is_empty());
    for _ in 0..QUIET {
        assert!(room.take(&interval(Vec::new(), None)).is_empty());
    }
    assert_eq!(room.take(&bad).len(), 1);
    let rows = (0..100).map(|n| {
        let mut row = row(0.5, 1.0);
        row.key.a.qpn = Some(n);
        row
    });
    let news = Newsroom::default().take(&interval(rows.collect(), None));
    assert_eq!(news.len(), MOST_LINES + 1);
    assert!(news[MOST_LINES].text.starts_with("80 more changes"));
}

#[test]
fn pauses_are_told_by_priority_and_share() {
    let mut room = Newsroom::default();
    let mut bad = interval(Vec::new(), None);
    bad[0].pauses = vec![PauseRate {
        priority: Some(3),
        pauses: 800.0,
        resumes: 1.0,
        share: Ok(0.4),
        paused: true,
        total: 800,
        counted_by: "XDP",
    }];
    assert_eq!(
        texts(&room.take(&bad)),
        ["eth0: the link partner pauses priority 3 40 % of the time, 800 pause frames/s"]
    );
}
