//! `rocexdp perf` and `rocexdp pingpong` between two rocexdp ends: what each test measures, options, and what goes wrong. Against the
//! unmodified programs: `interop`.

use std::time::Duration;

use rocexdp::lab::Host;
use rocexdp_tests::{
    Outcome, Rig,
    check::{items, number},
};
use serde_json::Value;

/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(180);

/// Starts `rocexdp LINE` on b, and then on a with b's address.
fn ends(rig: &Rig, server: &str, client: &str) -> [Outcome; 2] {
    let server: Vec<&str> = server.split_whitespace().collect();
    let address = Host::B.ipv4().to_string();
    let mut line: Vec<&str> = client.split_whitespace().collect();
    line.push(&address);
    let waiting = rig.spawn(Host::B, &server);
    waiting.says(LIMIT, &["waits for a client"]);
    let client = rig.spawn(Host::A, &line).finish(LIMIT);
    [client, waiting.finish(LIMIT)]
}

/// The same line at both ends; the JSON of client and server.
fn both(rig: &Rig, line: &str) -> [Value; 2] {
    let line = format!("{line} --json");
    ends(rig, &line, &line).map(Outcome::json)
}

fn rows(end: &Value) -> &[Value] {
    items(end, "results")
}

fn positive(row: &Value, name: &str) -> f64 {
    let value = row[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name}: {row}"));
    assert!(value > 0.0, "{name}: {row}");
    value
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn every_bandwidth_test_moves_all_its_messages() {
    let Some(rig) = Rig::up("rxf") else { return };
    for (test, bytes) in [
        ("send-bw", 65536),
        ("write-bw", 65536),
        ("read-bw", 65536),
        ("atomic-bw", 8),
    ] {
        let [client, server] = both(&rig, &format!("perf {test} -n 300"));
        for end in [&client, &server] {
            let [row] = rows(end) else { panic!("{end}") };
            assert_eq!(number(row, "/bytes"), bytes, "{test}");
            assert_eq!(number(row, "/iterations"), 300, "{test}");
            positive(row, "gigabits_per_second");
        }
        let here = positive(&rows(&client)[0], "peak_gigabits_per_second");
        assert!(here >= positive(&rows(&client)[0], "gigabits_per_second") * 0.999);
        // Who receives SENDs measures; in the other tests the server has what the client told.
        let there = &rows(&server)[0];
        if test == "send-bw" {
            assert_eq!(there["measured"], "here");
        } else {
            assert_eq!(there["measured"], "there");
            let (a, b) = (
                positive(there, "gigabits_per_second"),
                positive(&rows(&client)[0], "gigabits_per_second"),
            );
            assert!((a - b).abs() < b * 1e-6, "{test}: {a} {b}");
        }
        assert_eq!(client["local"]["qpns"], server["remote"]["qpns"], "{test}");
        assert_eq!(client["remote"]["qpns"], server["local"]["qpns"], "{test}");
    }
    rig.assert_nothing_lost_unasked();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn every_latency_test_has_its_percentiles_in_order() {
    let Some(rig) = Rig::up("rxf") else { return };
    for test in ["send-lat", "write-lat", "read-lat", "atomic-lat"] {
        let [client, server] = both(&rig, &format!("perf {test} -n 300"));
        let two_sided = matches!(test, "send-lat" | "write-lat");
        assert_eq!(rows(&server).len(), usize::from(two_sided), "{test}");
        for row in rows(&client).iter().chain(rows(&server)) {
            let order = ["min_us", "median_us", "p99_us", "p99_9_us", "max_us"];
            let values = order.map(|name| positive(row, name));
            assert!(values.is_sorted(), "{test}: {row}");
            assert_eq!(row["half_round_trip"], two_sided, "{test}");
            assert_eq!(number(row, "/iterations"), 300, "{test}");
        }
        assert_eq!(rows(&client).len(), 1, "{test}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn all_sizes_several_queue_pairs_both_directions_and_time() {
    let Some(rig) = Rig::up("rxf") else { return };
    for test in ["send-bw", "write-lat"] {
        let [client, server] = both(&rig, &format!("perf {test} -a -n 5"));
        for end in [&client, &server] {
            let bytes: Vec<u64> = rows(end).iter().map(|row| number(row, "/bytes")).collect();
            let powers: Vec<u64> = (1..24).map(|power| 1 << power).collect();
            assert_eq!(bytes, powers, "{test}");
        }
    }
    for test in ["send-bw", "write-bw", "read-bw"] {
        let [client, server] = both(
            &rig,
            &format!("perf {test} -b -q 3 -n 100 -s 20000 -m 2048"),
        );
        for end in [&client, &server] {
            assert_eq!(number(end, "/path_mtu"), 2048, "{test}");
            assert_eq!(items(&end["local"], "qpns").len(), 3, "{test}");
            assert_eq!(rows(end)[0]["measured"], "both", "{test}");
            assert_eq!(number(&rows(end)[0], "/iterations"), 300, "{test}");
        }
    }
    // A message on its own page, in the request itself, with another atomic.
    both(&rig, "perf send-bw -I 256 -s 200 -n 500 -e");
    both(&rig, "perf atomic-bw -A CMP_AND_SWAP -n 100 -o 4");
    for test in ["write-bw", "send-bw", "send-lat", "write-lat"] {
        let [client, _] = both(&rig, &format!("perf {test} -D 1 -f 0.25 -s 4096"));
        assert!(number(&rows(&client)[0], "/iterations") > 0, "{test}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn uc_ud_and_ipv6_are_tested_too() {
    let Some(rig) = Rig::up("rxf") else { return };
    for line in [
        // Few at once: nothing holds UC back, and the wire's queue has an end.
        "perf write-bw -c UC -n 100 -t 4 -s 4096",
        "perf send-bw -c UC -n 100 -t 4 -s 4096",
        "perf send-lat -c UC -n 100",
        "perf write-lat -c UC -n 100",
        "perf send-bw -c UD -n 100 -t 4 -s 2048",
        "perf send-lat -c UD -n 100 -a",
    ] {
        let [client, _] = both(&rig, line);
        let service = if line.contains("UD") { "UD" } else { "UC" };
        assert_eq!(client["service"], service);
    }
    let server = "perf write-bw -n 100 --json";
    let [client, server] =
        ends(&rig, server, "perf write-bw -n 100 --json --ipv6").map(Outcome::json);
    let v6 = [&client, &server].map(|end| end["local"]["address"].as_str().unwrap().to_owned());
    assert!(v6.iter().all(|address| address.contains(':')), "{v6:?}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn ends_that_do_not_match_are_told_what_to_do() {
    let Some(rig) = Rig::up("rxf") else { return };
    let [client, server] = ends(
        &rig,
        "perf send-bw -n 10 -s 1000",
        "perf send-bw -n 10 -s 2000",
    );
    server.failed(1, &["the peer's message is longer than ours", "-s"]);
    client.failed(1, &["send-bw"]);
    // Another program altogether.
    let [client, server] = ends(&rig, "pingpong", "perf write-bw");
    server.failed(
        1,
        &[
            "16 of the 52 bytes of an address line",
            "is it the same program",
        ],
    );
    client.failed(
        1,
        &["closed the connection while we waited for its version"],
    );
    let nobody = rig.run(Host::A, &["perf", "write-bw", &Host::B.ipv4().to_string()]);
    nobody.failed(1, &["start the other end's program first", "18515"]);
    let options = rig.run(Host::A, &["perf", "atomic-bw", "-s", "16"]);
    options.failed(2, &["an atomic has 8 B"]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_peer_that_dies_ends_the_test() {
    let Some(rig) = Rig::up("rxf") else { return };
    for (test, server_sees) in [
        ("send-bw", "has closed the connection"),
        ("write-bw", "closed the connection"),
    ] {
        let mut waiting = rig.spawn(Host::B, &["perf", test, "-D", "100"]);
        waiting.says(LIMIT, &["waits for a client"]);
        let address = Host::B.ipv4().to_string();
        let mut client = rig.spawn(Host::A, &["perf", test, "-D", "100", &address]);
        // Its packets flow.
        rocexdp_tests::eventually("the client has begun", LIMIT, || {
            client.stdout().contains("#bytes").then_some(())
        });
        assert!(client.runs() && waiting.runs());
        client.kill();
        let server = waiting.finish(Duration::from_secs(60));
        server.failed(1, &[server_sees]);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn pingpongs_come_back_as_they_went() {
    let Some(rig) = Rig::up("rxf") else { return };
    for (service, bytes) in [("rc", 20_000), ("uc", 4096), ("ud", 3000), ("srq", 9000)] {
        let line = format!("pingpong --service {service} -n 300 -s {bytes} -c");
        for end in both(&rig, &line) {
            assert_eq!(end["invalid_pages"], 0, "{service}");
            assert_eq!(number(&end, "/iterations"), 300, "{service}");
            positive(&end, "megabits_per_second");
            positive(&end, "microseconds_per_iteration");
        }
    }
    let [client, server] = ends(
        &rig,
        "pingpong --service srq -q 3 -n 20",
        "pingpong --service srq -q 2 -n 20",
    );
    server.failed(1, &["the peer has 2 queue pairs, and we 3", "-q"]);
    client.failed(1, &["closed the connection"]);
    let options = rig.run(Host::A, &["pingpong", "-q", "2"]);
    options.failed(2, &["--service srq"]);
}
