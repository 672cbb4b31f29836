//! `--metrics`: what is served is what the maps say, bounded, and nothing that a client or an interface does takes it down.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use rocexdp::{
    lab::Host,
    metrics::{Observer, ObserverConfig},
};
use rocexdp_tests::{
    Rig,
    check::{items, number},
    eventually,
    http::{Series, exchange, get, series, sum},
    rig::SHORT,
};

const AT: &str = "127.0.0.1:9478";

fn at() -> SocketAddr {
    AT.parse().unwrap()
}

/// A lab whose hosts serve metrics.
fn rig(name: &str) -> Option<Rig> {
    let mut rig = Rig::up(name)?;
    rig.start_sender(&["--metrics", AT]);
    rig.start_receiver(&["--metrics", AT]);
    Some(rig)
}

fn scrape(rig: &Rig, host: Host) -> Vec<Series> {
    let (status, body) = get(rig.lab().host(host), at(), "/metrics");
    assert_eq!(status, 200, "{body}");
    series(&body)
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn metrics_are_what_the_maps_say() {
    let Some(mut rig) = rig("tmm") else { return };
    rig.impair("drop=0.2%,ce=2%,seed=4");
    let file = rig.file("file", 32 << 20);
    rig.copy_well(&file, "file");
    for host in [Host::A, Host::B] {
        let counters = rig.at_rest(host);
        let qps = rig.qp_list(host);
        let all = scrape(&rig, host);
        let local = [("kind", "local")];
        let of_qps = |pointer: &str| {
            items(&qps, "qps")
                .iter()
                .map(|qp| number(qp, pointer))
                .sum::<u64>() as f64
        };
        for (name, pointer) in [
            ("tx_packets", "/engine/tx_packets"),
            ("tx_payload_bytes", "/engine/tx_bytes"),
            ("retransmitted_packets", "/engine/retransmitted_packets"),
            ("out_of_sequence", "/engine/out_of_sequence"),
            ("duplicate_request", "/engine/duplicate_request"),
            ("np_cnp_sent", "/engine/np_cnp_sent"),
            ("rp_cnp_handled", "/engine/rp_cnp_handled"),
            ("local_ack_timeout_err", "/engine/local_ack_timeout_err"),
            ("np_ecn_marked_roce_packets", "/xdp/ecn/ce"),
            ("rx_cnp_packets", "/xdp/kinds/cnp/packets"),
        ] {
            let want = of_qps(pointer);
            assert_eq!(
                sum(&all, &format!("rocexdp_qp_{name}_total"), &local),
                want,
                "{host}: {name}, per QP"
            );
            assert_eq!(
                sum(&all, &format!("rocexdp_{name}_total"), &local),
                want,
                "{host}: {name}"
            );
        }
        let of_queues = |pointer: &str| {
            items(&counters, "queues")
                .iter()
                .map(|q| number(q, pointer))
                .sum::<u64>() as f64
        };
        for (name, labels, pointer) in [
            ("rocexdp_queue_frames_total", &[][..], "/xdp/frames"),
            (
                "rocexdp_queue_verdict_frames_total",
                &[("verdict", "redirected")],
                "/xdp/redirected",
            ),
            ("rocexdp_queue_rx_packets_total", &[], "/engine/rx_packets"),
            ("rocexdp_queue_tx_bytes_total", &[], "/engine/tx_bytes"),
        ] {
            assert_eq!(
                sum(&all, name, labels),
                of_queues(pointer),
                "{host}: {name}"
            );
        }
        assert_eq!(sum(&all, "rocexdp_up", &[]), 1.0);
    }
    // The faults were there, at the side where they must be.
    let (a, b) = (scrape(&rig, Host::A), scrape(&rig, Host::B));
    assert!(
        sum(
            &a,
            "rocexdp_retransmitted_packets_total",
            &[("kind", "local")]
        ) > 0.0
    );
    assert!(
        sum(
            &b,
            "rocexdp_np_ecn_marked_roce_packets_total",
            &[("kind", "local")]
        ) > 0.0
    );
    assert!(sum(&a, "rocexdp_rp_cnp_handled_total", &[("kind", "local")]) > 0.0);
    // Round trips: the histogram is whole, and of the size of a veth's.
    let count = sum(&a, "rocexdp_rtt_seconds_count", &[("kind", "local")]);
    assert!(count > 10.0);
    assert_eq!(
        sum(
            &a,
            "rocexdp_rtt_seconds_bucket",
            &[("kind", "local"), ("le", "+Inf")]
        ),
        count
    );
    let mean = sum(&a, "rocexdp_rtt_seconds_sum", &[("kind", "local")]) / count;
    assert!((1e-6..0.5).contains(&mean), "{mean} s");
    // A QP that is gone stays in the total, and a counter never goes back.
    let before = sum(&a, "rocexdp_tx_packets_total", &[("kind", "local")]);
    assert!(before > 8000.0);
    rig.copy_well(&rig.file("more", 1 << 20), "more");
    rig.at_rest(Host::A);
    let after = scrape(&rig, Host::A);
    assert!(sum(&after, "rocexdp_tx_packets_total", &[("kind", "local")]) > before);
    for old in a.iter().filter(|s| s.name.ends_with("_total")) {
        let new = after
            .iter()
            .find(|s| s.name == old.name && s.labels == old.labels)
            .unwrap();
        assert!(new.value >= old.value, "{old:?} {new:?}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_is_no_scrape_is_refused_and_nobody_can_hold_the_server() {
    let Some(rig) = rig("tmh") else { return };
    let ns = rig.lab().host(Host::A);
    let (status, index) = get(ns, at(), "/");
    assert_eq!((status, index.contains("href=\"/metrics\"")), (200, true));
    assert_eq!(get(ns, at(), "/secret").0, 404);
    for method in ["POST", "HEAD", "PUT", "DELETE"] {
        let request = format!("{method} /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
        let answer = exchange(ns, at(), request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(
            answer.to_ascii_lowercase().contains("\r\nallow: get\r\n"),
            "{answer}"
        );
    }
    // A head without end, and bytes that are no HTTP.
    let long = format!(
        "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
        "a".repeat(1 << 20)
    );
    let answer = exchange(ns, at(), long.as_bytes());
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    exchange(ns, at(), &[0xff; 4096]);
    // More idle connections than are served at once: they are closed, and the scrape gets its turn.
    let idle: Vec<TcpStream> = ns
        .run(|| {
            (0..40)
                .map(|_| {
                    let mut stream = TcpStream::connect(at()).unwrap();
                    stream.write_all(b"GET /metr").unwrap();
                    stream
                })
                .collect()
        })
        .unwrap();
    let begin = Instant::now();
    let (status, _) = get(ns, at(), "/metrics");
    assert_eq!(status, 200);
    assert!(
        begin.elapsed() < Duration::from_secs(12),
        "{:?}",
        begin.elapsed()
    );
    for mut stream in idle {
        stream
            .set_read_timeout(Some(Duration::from_secs(12)))
            .unwrap();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        let said = String::from_utf8_lossy(&rest).into_owned();
        assert!(
            ended.is_ok() && !said.contains("200 OK"),
            "{ended:?} {said}"
        );
    }
    // Twenty at once, each of them answered.
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| get(ns, at(), "/metrics").0))
            .collect();
        let all: Vec<u16> = answers.into_iter().map(|a| a.join().unwrap()).collect();
        assert!(
            all.iter().all(|s| [200, 503].contains(s)) && all.contains(&200),
            "{all:?}"
        );
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_port_in_use_is_told_before_anything_starts() {
    let Some(rig) = Rig::up("tmp") else { return };
    let taken = rig
        .lab()
        .host(Host::A)
        .run(|| TcpListener::bind("[::1]:0"))
        .unwrap()
        .unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let outcome = rig.launch(Host::A, &["--metrics", &address]).finish(SHORT);
    let outcome = outcome.failed(1, &["--metrics", &address, "in use"]);
    assert!(
        !outcome.stderr.contains("attached") && !outcome.stdout.contains("ready"),
        "{outcome:?}"
    );
    assert!(rig.link(Host::A).xdp.is_empty());
    rig.launch(Host::A, &["--metrics", "192.0.2.1:9478"])
        .finish(SHORT)
        .failed(1, &["192.0.2.1:9478", "not this host's"]);
    rig.launch(Host::A, &["--metrics", "nonsense"])
        .finish(SHORT)
        .failed(2, &["nonsense", "127.0.0.1"]);
    rig.launch(Host::A, &["--metrics", AT, "--metrics-top", "0"])
        .finish(SHORT)
        .failed(2, &["--metrics-top 0"]);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_bad_interface_is_down_in_the_scrape_and_the_others_go_on() {
    let Some(mut rig) = rig("tmi") else { return };
    let file = rig.file("file", 1 << 20);
    rig.copy_well(&file, "file");
    let iface = rig.lab().host_interface();
    let config = ObserverConfig::new(vec!["absent0".to_owned(), iface.clone(), "lo".to_owned()]);
    let observer = rig
        .lab()
        .host(Host::A)
        .run(|| Observer::start(config, |_| {}))
        .unwrap()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let read = || series(&runtime.block_on(observer.scraper().scrape()).unwrap());
    let up = |all: &[Series], iface: &str| sum(all, "rocexdp_up", &[("iface", iface)]);
    let all = read();
    assert_eq!(
        (up(&all, "absent0"), up(&all, &iface), up(&all, "lo")),
        (0.0, 1.0, 0.0)
    );
    assert!(
        sum(
            &all,
            "rocexdp_interface_errors_total",
            &[("iface", "absent0")]
        ) >= 1.0
    );
    assert!(sum(&all, "rocexdp_tx_packets_total", &[("iface", &iface)]) > 0.0);
    let others: BTreeSet<&str> = all
        .iter()
        .filter(|s| s.labels.get("iface").is_some_and(|i| i == "absent0"))
        .map(|s| s.name.as_str())
        .collect();
    assert_eq!(
        others,
        BTreeSet::from(["rocexdp_interface_errors_total", "rocexdp_up"])
    );
    // The daemon dies: the interface has no program any more.
    rig.kill(Host::A);
    assert_eq!(up(&read(), &iface), 0.0);
    rig.start_sender(&[]);
    assert_eq!(up(&read(), &iface), 1.0);
    // The interface goes, under the daemon that serves metrics.
    rig.stop(Host::A);
    rig.start_sender(&["--metrics", AT]);
    assert_eq!(up(&scrape(&rig, Host::A), &iface), 1.0);
    rig.ip(Host::A, "link delete eth0");
    let gone = scrape(&rig, Host::A);
    assert_eq!(up(&gone, &iface), 0.0);
    assert!(sum(&gone, "rocexdp_scrapes_total", &[]) >= 2.0);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn five_thousand_flows_are_a_bounded_number_of_series_whose_sum_is_right() {
    const FLOWS: u32 = 5000;
    let Some(mut rig) = Rig::up("tmf") else {
        return;
    };
    // With addresses shared, packets to unknown QPs pass, and are counted as flows.
    rig.start(
        Host::B,
        &["--shared-addresses", "--metrics", AT, "--metrics-top", "10"],
    );
    let to = Host::B.ipv4();
    let flood = |rounds: u32| {
        let sender = rig
            .lab()
            .host(Host::A)
            .run(|| UdpSocket::bind("0.0.0.0:0"))
            .unwrap()
            .unwrap();
        for round in 0..rounds {
            for qpn in 0..FLOWS {
                // UC SEND ONLY, no payload, and four bytes where the ICRC stands.
                let mut packet = [0_u8; 16];
                packet[0] = 0x24;
                packet[2..4].copy_from_slice(&[0xff, 0xff]);
                packet[4..8].copy_from_slice(&(0x1000 + qpn).to_be_bytes());
                packet[8..12].copy_from_slice(&round.to_be_bytes());
                sender.send_to(&packet, (to, 4791)).unwrap();
                if qpn % 64 == 0 {
                    // Slower than the veth's 256 places empty.
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    };
    let mut sent = 0.0;
    for round in 1..=3 {
        flood(1);
        sent += f64::from(FLOWS);
        let drops: u64 = rig
            .lab()
            .link_drops()
            .unwrap()
            .iter()
            .map(|l| l.total())
            .sum();
        rig.at_rest(Host::B);
        let begin = Instant::now();
        let all = scrape(&rig, Host::B);
        println!("{} series in {:?}", all.len(), begin.elapsed());
        assert!(all.len() < 2500, "{} series", all.len());
        let flow = [("kind", "flow")];
        let seen = sum(&all, "rocexdp_rx_packets_total", &flow);
        assert_eq!(
            sum(&all, "rocexdp_qp_rx_packets_total", &flow),
            seen,
            "round {round}"
        );
        assert_eq!(seen + drops as f64, sent, "round {round}");
        let named: BTreeSet<&String> = all
            .iter()
            .filter(|s| s.name == "rocexdp_qp_rx_packets_total")
            .filter_map(|s| s.labels.get("qpn"))
            .collect();
        assert!(named.len() <= 12, "{named:?}");
        assert_eq!(sum(&all, "rocexdp_flow_table_evictions_total", &[]), 0.0);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_monitor_serves_the_flows_that_pass_and_ends_with_its_server() {
    let Some(rig) = Rig::up("tmw") else { return };
    let iface = rig.lab().host_interface();
    let line = [
        "monitor",
        "--iface",
        &iface,
        "--interval",
        "100ms",
        "--metrics",
    ];
    let taken = rig
        .lab()
        .host(Host::B)
        .run(|| TcpListener::bind("127.0.0.1:0"))
        .unwrap()
        .unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = rig.run(Host::B, &[&line[..], &[&address]].concat());
    refused.failed(1, &[&address, "in use"]);
    assert!(rig.link(Host::B).xdp.is_empty());

    let monitor = rig.spawn(Host::B, &[&line[..], &[AT, "--json"]].concat());
    monitor.says(SHORT, &["metrics on", AT]);
    let sender = rig
        .lab()
        .host(Host::A)
        .run(|| UdpSocket::bind("0.0.0.0:0"))
        .unwrap()
        .unwrap();
    for psn in 0..100_u32 {
        // RC SEND ONLY.
        let mut packet = [0_u8; 16];
        packet[0] = 0x04;
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        packet[4..8].copy_from_slice(&0x77_u32.to_be_bytes());
        // Ten PSNs are left out after the fiftieth packet.
        let psn = if psn < 50 { psn } else { psn + 10 };
        packet[8..12].copy_from_slice(&psn.to_be_bytes());
        sender.send_to(&packet, (Host::B.ipv4(), 4791)).unwrap();
    }
    let all = eventually("the flow is seen", SHORT, || {
        let all = scrape(&rig, Host::B);
        let seen = all
            .iter()
            .any(|s| s.name == "rocexdp_qp_rx_packets_total" && s.value == 100.0);
        seen.then_some(all)
    });
    let qp = [
        ("kind", "flow"),
        ("src", "10.77.0.1"),
        ("dst", "10.77.0.2"),
        ("qpn", "0x000077"),
    ];
    let of = |name: &str| sum(&all, &format!("rocexdp_qp_{name}_total"), &qp);
    assert_eq!(of("rx_packets"), 100.0);
    assert_eq!((of("psn_gaps"), of("psn_missing_packets")), (1.0, 10.0));
    let info = all.iter().find(|s| s.name == "rocexdp_interface_info");
    assert_eq!(info.unwrap().labels["role"], "monitor");
    // What can't be known of a flow, or of a monitor, is not there.
    for absent in [
        "rocexdp_qp_tx_packets_total",
        "rocexdp_queue_tx_packets_total",
    ] {
        assert!(all.iter().all(|s| s.name != absent), "{absent}");
    }
    monitor.interrupt(Duration::from_secs(10)).ok();
    assert!(rig.link(Host::B).xdp.is_empty());
}
