//! `rocexdp monitor`: JSON and text of an endpoint's maps and of a monitor of its own, while interfaces come and go.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use rocexdp::{
    lab::Host,
    live::{Sampler, rates},
    maps::FlowReader,
    monitor::{Monitor, MonitorWish},
};
use rocexdp_tests::{
    Rig, Running,
    check::{items, number},
    process::eventually,
    rig::{COPY, SHORT, SLOW},
};
use serde_json::Value;

/// Loading a monitor's programs takes some seconds.
const START: Duration = Duration::from_secs(60);

/// The JSON lines printed so far.
fn lines(monitor: &Running) -> Vec<Value> {
    let text = monitor.stdout();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    parsed(whole)
}

fn parsed(text: &str) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    text.lines().map(line).collect()
}

fn float(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is no number: {value:#}"))
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_rates_of_local_qps_add_up_to_what_was_copied() {
    let Some(mut rig) = Rig::up("tmq") else {
        return;
    };
    rig.start_sender(&SLOW);
    rig.start_receiver(&[]);
    rig.impair("drop=1%,ce=10%,delay=1ms,seed=6");
    let monitors = [Host::A, Host::B].map(|host| {
        rig.spawn(
            host,
            &["monitor", "--json", "--interval", "200ms", "--top", "5"],
        )
    });
    for monitor in &monitors {
        eventually("the first line", START, || lines(monitor).first().cloned());
    }
    let file = rig.file("file", 8 << 20);
    let report = rig
        .start_copy(&file, Host::B.ipv4().into(), "file")
        .finish(COPY)
        .json();
    std::thread::sleep(Duration::from_millis(500));
    let [a, b] = monitors.map(|monitor| {
        let out = monitor.interrupt(SHORT).ok();
        assert!(
            out.stderr.contains("reading the maps of the endpoint"),
            "{}",
            out.stderr
        );
        assert!(
            out.stderr
                .contains("not seen: eth0: XDP sees what comes in"),
            "{}",
            out.stderr
        );
        parsed(&out.stdout)
    });
    // What was sent and received in all intervals, and in the summary, is what the copy and the QP say.
    let total = |lines: &[Value], way: &str, name: &str| -> f64 {
        let mut sum = 0.0;
        for line in lines.iter().filter(|line| line["kind"] == "interval") {
            let iface = &line["ifaces"][0];
            assert!(iface["error"].is_null(), "{iface:#}");
            for qp in items(iface, "qps") {
                assert_eq!(qp["local"], true);
                sum += float(qp, &format!("/{way}/{name}")) * float(iface, "/interval_s");
            }
        }
        sum
    };
    let close = |a: f64, b: f64, what: &str| {
        assert!((a - b).abs() < 1.0 + b / 1000.0, "{what}: {a} and {b}")
    };
    let resent = number(&report, "/retransmitted_packets") as f64;
    assert!(resent > 0.0);
    close(total(&a, "there", "resent_per_s"), resent, "sent again");
    close(
        total(&a, "there", "bits_per_s") / 8.0,
        number(&rig.qp_list(Host::A), "/qps/0/engine/tx_bytes") as f64,
        "bytes sent",
    );
    let received = rig.qp_list(Host::B);
    let [ce, gaps] =
        ["/qps/0/xdp/ecn/ce", "/qps/0/xdp/requests/gaps"].map(|p| number(&received, p) as f64);
    assert!(ce > 0.0 && gaps > 0.0);
    close(total(&b, "there", "ce_marked_per_s"), ce, "CE marks");
    close(total(&b, "there", "gaps_per_s"), gaps, "gaps");
    let summary = b.last().unwrap();
    assert_eq!(summary["kind"], "summary");
    let (iface, qp) = (&summary["ifaces"][0], &summary["ifaces"][0]["qps"][0]);
    close(
        float(qp, "/there/ce_marked_per_s") * float(iface, "/interval_s"),
        ce,
        "CE marks in sum",
    );
    // The wire delays each way by 1 ms.
    let sent = &a.last().unwrap()["ifaces"][0]["qps"][0];
    assert!(number(sent, "/there/rtt_samples") > 0, "{sent:#}");
    assert!(number(sent, "/there/rtt_mean_ns") >= 2_000_000, "{sent:#}");
    assert!(number(sent, "/there/rtt_p50_ns") >= 2_000_000, "{sent:#}");
    assert_eq!(
        sent["there"]["na"]["ce_share"],
        "sent from here: XDP sees ingress only"
    );
    // In words, on both sides.
    let told = |lines: &[Value], kind: &str| {
        let all = lines.iter().flat_map(|line| items(line, "news"));
        all.filter(|news| news["kind"] == kind).count()
    };
    assert!(told(&b, "congestion") > 0 && told(&b, "gap") > 0 && told(&a, "retransmission") > 0);
}

/// A RoCEv2 packet without a right ICRC: SEND ONLY that asks for an ACK, or the ACK of one.
fn packet(ack: bool, dest_qpn: u32, psn: u32) -> Vec<u8> {
    let mut packet = vec![if ack { 0x11 } else { 0x04 }, 0x40, 0xff, 0xff];
    packet.extend(dest_qpn.to_be_bytes());
    packet.extend((psn | if ack { 0 } else { 1 << 31 }).to_be_bytes());
    if ack {
        packet.extend([0, 0, 0, 1]);
    } else {
        packet.extend([7; 256]);
    }
    packet.extend([0; 4]);
    packet
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_monitor_of_its_own_sees_both_directions_of_the_kernels_stack_and_outlives_an_interface() {
    let Some(mut rig) = Rig::up("tmk") else {
        return;
    };
    // A second interface, which will be taken away.
    rig.ip(Host::B, "link add tmk0 type veth peer name tmk1");
    rig.ip(Host::B, "link set tmk0 up");
    rig.ip(Host::B, "link set tmk1 up");
    let monitor = rig.spawn(
        Host::B,
        &[
            "monitor",
            "--json",
            "--interval",
            "200ms",
            "--iface",
            "eth0,tmk0",
        ],
    );
    eventually("the first line", START, || lines(&monitor).first().cloned());
    rig.impair("ce=50%,seed=9");
    let [a, b] = [Host::A, Host::B].map(|host| {
        let socket = rig
            .lab()
            .host(host)
            .run(|| UdpSocket::bind((host.ipv4(), 4791)));
        let socket = socket.unwrap().unwrap();
        socket.set_read_timeout(Some(SHORT)).unwrap();
        socket
    });
    // ECN-capable, as RoCEv2 data is: else the wire marks nothing.
    rustix::net::sockopt::set_ip_tos(&a, 2).unwrap();
    let mut taken = [0; 2048];
    const PACKETS: u32 = 200;
    for n in 0..PACKETS {
        // 100 and 101 are lost before they are sent.
        let psn = if n < 100 { n } else { n + 2 };
        a.send_to(&packet(false, 0x21, psn), (Host::B.ipv4(), 4791))
            .unwrap();
        b.recv_from(&mut taken).unwrap();
        b.send_to(&packet(true, 0x12, psn), (Host::A.ipv4(), 4791))
            .unwrap();
        a.recv_from(&mut taken).unwrap();
    }
    let until = Instant::now() + Duration::from_millis(700);
    rig.ip(Host::B, "link delete tmk0");
    eventually("the interface is gone", SHORT, || {
        let all = lines(&monitor);
        all.iter()
            .any(|l| l["ifaces"][1]["error"].is_string())
            .then_some(())
    });
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let out = monitor.terminate(SHORT).ok();
    assert!(
        out.stderr
            .contains("not seen: eth0: of sent packets only those of the kernel's stack"),
        "{}",
        out.stderr
    );
    let all = parsed(&out.stdout);
    let gone = all
        .iter()
        .flat_map(|l| items(l, "news"))
        .filter(|n| n["kind"] == "interface");
    assert_eq!(gone.count(), 1, "told once: {all:#?}");
    let summary = all.last().unwrap();
    let iface = &summary["ifaces"][0];
    assert!(iface["error"].is_null(), "the other goes on: {iface:#}");
    assert_eq!(iface["source"]["role"], "monitor");
    let [qp] = items(iface, "qps") else {
        panic!("both directions are one line: {iface:#}")
    };
    assert_eq!(
        (&qp["source"]["address"], number(qp, "/source/qpn")),
        (&"10.77.0.1".into(), 0x12)
    );
    assert_eq!(
        (
            &qp["destination"]["address"],
            number(qp, "/destination/qpn")
        ),
        (&"10.77.0.2".into(), 0x21)
    );
    let counted = |pointer: &str| (float(qp, pointer) * float(iface, "/interval_s")).round() as u32;
    assert_eq!(counted("/there/packets_per_s"), PACKETS);
    assert_eq!(counted("/back/packets_per_s"), PACKETS);
    assert_eq!(
        (
            counted("/there/gaps_per_s"),
            counted("/there/missing_per_s")
        ),
        (1, 2)
    );
    let share = float(qp, "/there/ce_share");
    assert!((0.35..0.65).contains(&share), "half are marked: {share}");
    // The first answer only tells which QP it came from (`rocexdp_common::watch`).
    assert_eq!(number(qp, "/there/rtt_samples"), u64::from(PACKETS) - 1);
    assert_eq!(number(iface, "/flow_table/live"), 2);
    assert_eq!(number(iface, "/flow_table/evicted"), 0);
    assert!(rig.link(Host::B).xdp.is_empty(), "it is detached");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn more_flows_than_the_table_holds_are_counted_as_evicted() {
    let Some(rig) = Rig::up("tme") else {
        return;
    };
    let line = [
        "monitor",
        "--json",
        "--interval",
        "200ms",
        "--iface",
        "eth0",
        "--flows",
        "256",
        "--top",
        "3",
    ];
    let monitor = rig.spawn(Host::B, &line);
    eventually("the first line", START, || lines(&monitor).first().cloned());
    let socket = rig
        .lab()
        .host(Host::A)
        .run(|| UdpSocket::bind((Host::A.ipv4(), 4791)))
        .unwrap()
        .unwrap();
    const FLOWS: u32 = 3000;
    for qpn in 0..FLOWS {
        socket
            .send_to(&packet(false, 0x100 + qpn, 0), (Host::B.ipv4(), 4791))
            .unwrap();
        if qpn % 100 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let table = eventually("all flows are entered", SHORT, || {
        let table = lines(&monitor).last()?["ifaces"][0]["flow_table"].clone();
        (number(&table, "/inserts") >= u64::from(FLOWS)).then_some(table)
    });
    let [live, inserts, evicted] = ["/live", "/inserts", "/evicted"].map(|p| number(&table, p));
    assert!(live <= 256, "{table:#}");
    assert_eq!(evicted, inserts - live);
    let text = monitor.interrupt(SHORT).ok().stdout;
    let all = parsed(&text);
    let told = all
        .iter()
        .flat_map(|l| items(l, "news"))
        .any(|n| n["kind"] == "evictions");
    assert!(told, "{text}");
    assert!(number(&all[all.len() - 1], "/ifaces/0/qps_left_out") > 0);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn mistakes_are_said_with_what_to_do_and_the_text_has_a_table_and_a_summary() {
    let Some(rig) = Rig::running("tmm") else {
        return;
    };
    rig.run(Host::A, &["monitor", "--iface", "nothere"])
        .failed(1, &["nothere", "no such interface"]);
    rig.run(Host::A, &["monitor", "--interval", "1ms"])
        .failed(2, &["--interval"]);
    rig.run(Host::A, &["monitor", "--ingress", "sideways"])
        .failed(2, &["auto, driver, generic or tcx"]);
    let file = rig.file("file", 1 << 20);
    rig.copy_well(&file, "file");
    let text = rig
        .run(Host::B, &["monitor", "--interval", "50ms", "--count", "2"])
        .ok()
        .stdout;
    for part in [
        "eth0: ",
        "no RoCEv2 packets in this interval (1 QPs and flows known)",
        "Summary",
        "frames",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// What top needs for each interval, of a full table: read, compared. Said with `--nocapture`.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_full_table_is_read_whole_by_batches() {
    let Some(rig) = Rig::up("tmf") else {
        return;
    };
    let on_b = |work: &mut (dyn FnMut() + Send)| rig.lab().host(Host::B).run(work).unwrap();
    let mut monitor = None;
    on_b(&mut || monitor = Some(Monitor::start("eth0", &MonitorWish::default()).unwrap()));
    let monitor = monitor.unwrap();
    let socket = rig
        .lab()
        .host(Host::A)
        .run(|| UdpSocket::bind((Host::A.ipv4(), 4791)))
        .unwrap()
        .unwrap();
    for qpn in 0..9000 {
        socket
            .send_to(&packet(false, 0x100 + qpn, 0), (Host::B.ipv4(), 4791))
            .unwrap();
        if qpn % 100 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let maps = monitor.maps().unwrap();
    let entered = || {
        maps.all_counters()
            .iter()
            .map(|c| c.flow_inserts)
            .sum::<u64>()
    };
    eventually("all flows are entered", SHORT, || {
        (entered() == 9000).then_some(())
    });
    let mut reader = FlowReader::of_program(monitor.program_id()).unwrap();
    let flows = reader.flows().unwrap();
    assert!(flows.len() > 7000, "nearly full: {}", flows.len());
    let keys: std::collections::BTreeSet<_> = flows.iter().map(|(key, _)| key.dest_qpn).collect();
    assert_eq!(keys.len(), flows.len(), "none twice");
    let mut sampler = Sampler::new(&["eth0".to_owned()]);
    on_b(&mut || {
        let before = sampler.sample();
        let begun = Instant::now();
        let after = sampler.sample();
        let read = begun.elapsed();
        let lines = rates(&before, &after)[0].rows.len();
        println!(
            "{lines} lines: a sample {read:?}, with rates {:?}",
            begun.elapsed()
        );
    });
}
