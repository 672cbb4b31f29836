//! What the counters say: while a copy runs, per QP; and at rest, that nothing is missing in the books.

use std::time::Duration;

use rocexdp::lab::Host;
use rocexdp_common::maps::KIND_NAMES;
use rocexdp_tests::{
    Rig,
    check::{items, number},
    process::eventually,
    rig::{COPY, SHORT, SLOW, SLOW_WIRE},
};
use serde_json::Value;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_books_hold_after_clean_and_impaired_copies() {
    let Some(mut rig) = Rig::running("tbh") else {
        return;
    };
    let file = rig.file("file", (16 << 20) + 9);
    rig.copy_well(&file, "clean");
    rig.assert_clean();
    // The XDP wire, then the userspace wire.
    for (name, faults) in [
        ("xdp", "drop=2%,corrupt=2%,ce=10%,seed=3"),
        (
            "userspace",
            "drop=1%,corrupt=2%,dup=2%,reorder=2%,ce=10%,seed=4",
        ),
    ] {
        rig.impair(faults);
        rig.copy_well(&file, name);
        let [a, b] = [Host::A, Host::B].map(|host| rig.books_hold(host));
        let of = |counters: &Value, pointer: &str| -> u64 {
            items(counters, "queues")
                .iter()
                .map(|queue| number(queue, pointer))
                .sum()
        };
        assert!(of(&b, "/engine/rx_icrc_errors") > 0, "{b:#}");
        assert!(of(&b, "/engine/drops/out_of_sequence") > 0, "{b:#}");
        assert!(of(&a, "/xdp/consumed") > 0, "CNPs end in XDP: {a:#}");
        rig.impair("clean");
        rig.assert_nothing_lost_unasked();
    }
    // Packets of a stranger, one malformed and one for no QP: counted by their reasons, and in the books.
    let before = rig.books_hold(Host::B);
    let b = Host::B.ipv4();
    rig.lab()
        .host(Host::A)
        .run(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(&[0; 40], (b, 4791)).unwrap();
            socket.send_to(&[0; 5], (b, 4791)).unwrap();
        })
        .unwrap();
    eventually("the strangers' packets are seen", SHORT, || {
        let seen = total(&rig.counters(Host::B), "rocev2");
        (seen == total(&before, "rocev2") + 2).then_some(())
    });
    let after = rig.books_hold(Host::B);
    for name in [
        "dropped",
        "passed_rocev2",
        "reasons/unknown_qpn",
        "reasons/bth_truncated",
    ] {
        assert_eq!(
            total(&after, name),
            total(&before, name) + 1,
            "{name}: {after:#}"
        );
    }
}

fn total(counters: &Value, name: &str) -> u64 {
    let queues = items(counters, "queues").iter();
    queues
        .map(|queue| number(queue, &format!("/xdp/{name}")))
        .sum()
}

/// Every counter that a QP must show, as JSON pointers to integers.
fn counters_of_a_qp() -> Vec<String> {
    let mut all: Vec<String> = KIND_NAMES
        .iter()
        .flat_map(|kind| ["packets", "bytes"].map(|unit| format!("/xdp/kinds/{kind}/{unit}")))
        .collect();
    for stream in ["requests", "responses"] {
        for name in ["out_of_sequence", "duplicates", "gaps", "missing"] {
            all.push(format!("/xdp/{stream}/{name}"));
        }
    }
    let more = "/xdp/ecn/ce /xdp/ecn/ect0 /xdp/ecn/ect1 /xdp/ecn/not_ect /xdp/np_ecn_marked_roce_packets /xdp/redirected \
                /xdp/naks/packet_seq_err /xdp/naks/remote_access /xdp/naks/invalid_request /xdp/naks/remote_operational \
                /xdp/cnp_bad_icrc /xdp/no_socket /xdp/first_seen_ns /xdp/last_seen_ns /engine/send_psn \
                /engine/unacked_psn /engine/expected_psn /engine/msn /engine/tx_packets /engine/tx_bytes \
                /engine/retransmitted_packets /engine/retransmitted_bytes /engine/tx_acks /engine/tx_naks \
                /engine/tx_rnr_naks /engine/local_ack_timeout_err /engine/packet_seq_err /engine/implied_nak_seq_err /engine/rnr_naks_received \
                /engine/duplicate_request /engine/out_of_sequence /engine/icrc_errors /engine/np_cnp_sent \
                /engine/rp_cnp_handled /engine/rate_cuts /engine/rate_increases /engine/rx_bytes /engine/rx_accepted \
                /engine/rx_dropped /engine/completions /engine/completions_err /engine/outstanding /qpn /peer_qpn \
                /path_mtu /slot";
    all.extend(more.split_whitespace().map(str::to_owned));
    all
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn qp_list_shows_each_qps_counters_while_a_copy_runs() {
    let Some(mut rig) = Rig::up("tbl") else {
        return;
    };
    rig.start_sender(&SLOW);
    rig.start_receiver(&[]);
    rig.impair(SLOW_WIRE);
    let file = rig.file("file", 32 << 20);
    let copy = rig.start_copy(&file, Host::B.ipv4().into(), "file");
    rig.wait_for_bytes(1 << 20);
    let first = [Host::A, Host::B].map(|host| rig.qp_list(host));
    std::thread::sleep(Duration::from_millis(200));
    let second = [Host::A, Host::B].map(|host| rig.qp_list(host));

    for list in first.iter().chain(&second) {
        let [qp] = items(list, "qps") else {
            panic!("one QP runs: {list:#}")
        };
        for pointer in counters_of_a_qp() {
            number(qp, &pointer);
        }
        assert_eq!(
            (&qp["engine"]["state"], &qp["transport"]),
            (&"RTS".into(), &"RC".into())
        );
        assert!(qp["engine"]["alpha"].is_f64());
        assert!(qp["engine"]["rate"].is_null() && qp["engine"]["min_rate"].is_null());
        assert!(qp["xdp"]["last_ce_ns"].is_null() && qp["xdp"]["last_cnp_ns"].is_null());
        assert!(number(qp, "/xdp/last_seen_ns") <= number(list, "/time_ns"));
        assert!(
            number(list, "/time_ns") - number(qp, "/xdp/last_seen_ns") < 1_000_000_000,
            "it was heard of just now: {list:#}"
        );
    }
    let grows = |host: usize, pointer: &str| {
        let [before, after] = [&first, &second].map(|at| number(&at[host]["qps"][0], pointer));
        assert!(after > before, "{pointer}: {before}, then {after}");
    };
    for pointer in [
        "/engine/tx_packets",
        "/engine/tx_bytes",
        "/engine/completions",
        "/engine/rx_accepted",
        "/xdp/kinds/ack/packets",
        "/xdp/redirected",
        "/xdp/last_seen_ns",
    ] {
        grows(0, pointer);
    }
    for pointer in [
        "/engine/rx_bytes",
        "/engine/rx_accepted",
        "/engine/tx_acks",
        "/engine/msn",
        "/xdp/kinds/write/packets",
        "/xdp/kinds/write/bytes",
        "/xdp/ecn/ect0",
        "/xdp/redirected",
        "/xdp/last_seen_ns",
    ] {
        grows(1, pointer);
    }
    let [a, b] = [0, 1].map(|host| &second[host]["qps"][0]);
    assert_eq!((&a["qpn"], &a["peer_qpn"]), (&b["peer_qpn"], &b["qpn"]));
    assert!(b["xdp"]["requests"]["expected_psn"].is_u64());
    assert!(a["xdp"]["last_ack_psn"].is_u64() && b["xdp"]["last_ack_psn"].is_null());
    assert_eq!(number(a, "/xdp/kinds/write/packets"), 0);

    let report = copy.finish(COPY).json();
    rig.arrived(&file, "file", &report);
    rig.books_hold(Host::A);
    rig.books_hold(Host::B);
    rig.assert_nothing_lost_unasked();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_views_for_people_show_the_qp_too() {
    let Some(rig) = Rig::running("tbv") else {
        return;
    };
    let file = rig.file("file", 4 << 20);
    let report = rig.copy_well(&file, "file");
    let [qpn, peer] = ["/qpn", "/peer_qpn"].map(|name| format!("{:#x}", number(&report, name)));
    let list = rig.run(Host::A, &["qp", "list"]).ok().stdout;
    for part in [qpn.as_str(), &peer, "10.77.0.2", "RTS"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    let show = rig.run(Host::A, &["qp", "show", &qpn]).ok().stdout;
    assert!(show.contains("retransmitted"), "{show}");
    let watch = ["qp", "watch", "--interval", "50ms", "--count", "2"];
    let watch = rig.run(Host::B, &watch).ok().stdout;
    assert!(watch.contains(&peer), "{watch}");
    let counters = rig.run(Host::B, &["counters"]).ok().stdout;
    assert!(counters.contains("redirected"), "{counters}");
    rig.run(Host::A, &["qp", "show", "0x2"])
        .failed(1, &["no QP"]);
    rig.run(Host::A, &["qp", "show", "x"])
        .failed(2, &["QP number"]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn round_trips_are_at_least_the_wires_delay_both_ways() {
    let Some(mut rig) = Rig::running("trt") else {
        return;
    };
    let file = rig.file("file", 1 << 20);
    rig.impair("delay=2ms");
    rig.copy_well(&file, "file");
    let list = rig.qp_list(Host::A);
    let rtt = &items(&list, "qps")[0]["engine"]["rtt"];
    let both_ways = 4_000_000;
    assert!(number(rtt, "/samples") > 0, "{rtt:#}");
    // No more than one packet in flight is timed, so there are fewer than there are acknowledgements.
    for key in ["/mean_ns", "/p50_ns", "/max_ns"] {
        let ns = number(rtt, key);
        assert!((both_ways..1_000_000_000).contains(&ns), "{key}: {rtt:#}");
    }
    let qpn = items(&list, "qps")[0]["qpn"].as_u64().unwrap().to_string();
    let shown = rig.run(Host::A, &["qp", "show", &qpn]).ok().stdout;
    assert!(
        shown.contains("round trip") && shown.contains("timed"),
        "{shown}"
    );
    // The responder's side asks for nothing, and says so.
    let list = rig.qp_list(Host::B);
    assert!(items(&list, "qps")[0]["engine"]["rtt"]["p50_ns"].is_null());
}
