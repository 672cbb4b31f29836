//! Pause storms on a real link: pause frames sent at real rates from the other end of a veth pair, seen by the XDP program of an
//! endpoint and of a monitor.

use std::{
    net::UdpSocket,
    process::Command,
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use rocexdp::{
    metrics::{Observer, ObserverConfig},
    monitor::{Monitor, MonitorWish},
    net::Link,
    nic,
    node::{Node, NodeConfig},
    pfc::{Certainty, Change, Channel, Released, StormEvent},
};
use rocexdp_tests::{
    Running, eventually,
    http::{Series, series, sum},
    pause::{A, B, IFACE, Pair, Share, ask, ip},
    rig::product,
};

/// Observes end a: storms, and what a scrape says.
fn observe(pair: &Pair) -> Observed {
    let (tell, storms) = channel();
    let config = ObserverConfig::new(vec![IFACE.to_owned()]);
    let start = move || {
        Observer::start(config, move |storm| {
            println!("{storm}");
            let _ = tell.send(storm);
        })
    };
    let observer = pair.a.run(start).unwrap().unwrap();
    Observed { observer, storms }
}

struct Observed {
    observer: Observer,
    storms: Receiver<StormEvent>,
}

impl Observed {
    fn next(&self, limit: Duration) -> Option<StormEvent> {
        self.storms.recv_timeout(limit).ok()
    }

    fn scrape(&self) -> Vec<Series> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        series(&runtime.block_on(self.observer.scraper().scrape()).unwrap())
    }

    fn gauge(&self, name: &str, priority: &str) -> f64 {
        sum(&self.scrape(), name, &[("priority", priority)])
    }
}

fn flagged(event: &StormEvent) -> Option<Certainty> {
    match event.change {
        Change::Flagged { certainty, .. } => Some(certainty),
        Change::Released { .. } => None,
    }
}

const SOON: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(40);

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_monitor_suspects_a_storm_and_takes_it_back_and_85_percent_is_none() {
    let Some(pair) = Pair::up("m") else { return };
    let monitor = pair
        .a
        .run(|| Monitor::start(IFACE, &MonitorWish::default()))
        .unwrap()
        .unwrap();
    let observed = observe(&pair);

    let pauser = pair.pause(1 << 3, Share::EightyFive);
    assert_eq!(
        observed.next(Duration::from_secs(5)),
        None,
        "85 % is no storm"
    );
    let share = observed.gauge("rocexdp_pfc_paused_ratio", "3");
    assert!((0.6..0.95).contains(&share), "{share}");
    drop(pauser);

    let pauser = pair.pause(1 << 3, Share::All);
    let event = observed.next(LONG).expect("a storm");
    assert_eq!(
        (event.channel, flagged(&event)),
        (Channel(3), Some(Certainty::Suspected)),
        "a monitor does not know what waits"
    );
    assert_eq!(observed.gauge("rocexdp_pfc_storm_state", "3"), 1.0);
    assert!(observed.gauge("rocexdp_pfc_paused_ratio", "3") > 0.99);
    assert_eq!(observed.gauge("rocexdp_pfc_storm_state", "4"), 0.0);
    assert_eq!(
        observed.next(Duration::from_secs(2)),
        None,
        "said once, and of one priority"
    );
    drop(pauser);
    let event = observed.next(SOON).expect("its end");
    assert!(
        matches!(
            event.change,
            Change::Released {
                reason: Released::NotPaused,
                ..
            }
        ),
        "{event}"
    );

    // All eight at once, until the link flaps.
    let pauser = pair.pause(0xff, Share::All);
    let mut channels: Vec<u8> = (0..8)
        .map(|_| observed.next(SOON).expect("a storm").channel.0)
        .collect();
    channels.sort_unstable();
    assert_eq!(channels, [0, 1, 2, 3, 4, 5, 6, 7]);
    drop(pauser);
    let b = &pair.names[1];
    ip(&format!("-n {b} link set {IFACE} down"));
    for _ in 0..8 {
        let event = observed.next(SOON).expect("an end");
        assert!(matches!(event.change, Change::Released { .. }), "{event}");
    }
    ip(&format!("-n {b} link set {IFACE} up"));
    assert_eq!(observed.next(Duration::from_secs(2)), None);
    let all = observed.scrape();
    let storms = |certainty| {
        sum(
            &all,
            "rocexdp_pfc_storms_total",
            &[("priority", "3"), ("certainty", certainty)],
        )
    };
    assert_eq!((storms("suspected"), storms("storm")), (2.0, 0.0));
    assert!(
        sum(
            &all,
            "rocexdp_pfc_seen_frames_total",
            &[("priority", "3"), ("asks", "pause")]
        ) > 1000.0
    );
    drop(monitor);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_storm_is_among_the_events_of_rocexdp_monitor() {
    let Some(binary) = product() else { return };
    let Some(pair) = Pair::up("e") else { return };
    let rocexdp = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(["--netns", &pair.names[0]]).args(arguments);
        Running::start(command, format!("rocexdp {}", arguments.join(" ")))
    };
    let monitor = rocexdp(&["monitor", "--iface", IFACE, "--json"]);
    eventually("the monitor reports", SOON, || {
        (!monitor.stdout().is_empty()).then_some(())
    });
    let told = |kind: &str| {
        eventually(kind, LONG, || {
            let events = ["events", "--iface", IFACE, "--json", "--kind", kind];
            let all = rocexdp(&events).finish(SOON).ok().stdout;
            all.lines()
                .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
                .next()
        })
    };
    let pauser = pair.pause(1 << 5, Share::All);
    let storm = told("pfc_storm_suspected");
    assert_eq!(storm["origin"], "pfc");
    assert!(
        storm["text"].as_str().unwrap().contains("priority 5"),
        "{storm:#}"
    );
    drop(pauser);
    told("pfc_storm_over");
    assert_eq!(monitor.interrupt(SOON).code, Some(0));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_endpoint_knows_a_storm_by_the_traffic_that_waits() {
    let Some(pair) = Pair::up("e") else { return };
    let node = pair
        .a
        .run(|| Node::open(NodeConfig::new(IFACE)))
        .unwrap()
        .unwrap();
    let observed = observe(&pair);

    let pauser = pair.pause(1 << 5, Share::All);
    // On a busy machine frames can come late; once they do not, a whole window is paused.
    eventually("a whole window is paused", LONG, || {
        std::thread::sleep(Duration::from_millis(200));
        let all = observed.scrape();
        let whole = all.iter().any(|s| {
            s.name == "rocexdp_pfc_paused_ratio" && s.labels["priority"] == "5" && s.value > 0.99
        });
        whole.then_some(())
    });
    assert_eq!(
        observed.next(Duration::from_secs(2)),
        None,
        "nothing waits in the engine"
    );

    // A request that nobody answers for four seconds: it waits, and nothing leaves.
    let _qp = ask(&node, 20);
    let event = observed.next(LONG).expect("a storm");
    assert_eq!(
        (event.channel, flagged(&event)),
        (Channel(5), Some(Certainty::Storm))
    );
    // The request is sent again: something leaves.
    eventually("traffic moves", LONG, || {
        let event = observed.next(LONG).expect("its end");
        assert_ne!(flagged(&event), Some(Certainty::Suspected), "{event}");
        let reason = match event.change {
            Change::Released { reason, .. } => reason,
            Change::Flagged { .. } => return None,
        };
        (reason == Released::TrafficMoves).then_some(())
    });
    drop(pauser);
}

/// A device that keeps what it was given, as a paused NIC does: a MACVLAN device above a link that sends 125 bytes a second, whose
/// queue others have filled.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_request_sent_again_into_a_device_that_sends_nothing_has_not_left() {
    let Some(pair) = Pair::up("s") else { return };
    let [a, b] = &pair.names;
    let peer = pair.b.run(|| Link::by_name(IFACE)).unwrap().unwrap().mac;
    for line in [
        format!("-n {a} link set {IFACE} down"),
        format!("-n {a} link set {IFACE} name under"),
        format!("-n {a} address flush dev under"),
        format!("-n {a} link set under up"),
        format!("-n {a} link add link under name {IFACE} type macvlan"),
        format!("-n {a} address add {A}/24 dev {IFACE}"),
        format!("-n {a} link set {IFACE} up"),
        format!(
            "-n {a} neighbour replace {B} lladdr {} dev {IFACE}",
            peer.unwrap()
        ),
        format!("-n {b} neighbour flush dev {IFACE}"),
    ] {
        ip(&line);
    }
    let node = pair
        .a
        .run(|| Node::open(NodeConfig::new(IFACE)))
        .unwrap()
        .unwrap();
    let observed = observe(&pair);
    let tc = "qdisc add dev under root tbf rate 1kbit burst 2000 limit 1000000";
    let done = Command::new("tc")
        .args(["-n", a])
        .args(tc.split_whitespace())
        .status();
    assert!(done.unwrap().success(), "tc {tc}");
    let fill = || {
        let socket = UdpSocket::bind((A, 0)).unwrap();
        for _ in 0..12 {
            socket.send_to(&[0; 1400], (B, 9)).unwrap();
        }
    };
    pair.a.run(fill).unwrap();

    // The link is the NIC of this "device", which takes what comes for its own address.
    let own = pair.a.run(|| Link::by_name(IFACE)).unwrap().unwrap().mac;
    let pauser = pair.pause_at(own.unwrap().0, 1 << 5, Share::All);
    eventually("a whole window is paused", LONG, || {
        std::thread::sleep(Duration::from_millis(200));
        let all = observed.scrape();
        let whole = all.iter().any(|s| {
            s.name == "rocexdp_pfc_paused_ratio" && s.labels["priority"] == "5" && s.value > 0.99
        });
        whole.then_some(())
    });
    // Sent again every half second: the window of a second has one at least.
    // Its retries are exhausted after four seconds; a busy machine may not keep the priority paused all that time.
    let storm = (0..5).find_map(|_| {
        let _qp = ask(&node, 17);
        observed.next(Duration::from_secs(4))
    });
    let event = storm.expect("a storm");
    assert_eq!(
        (event.channel, flagged(&event)),
        (Channel(5), Some(Certainty::Storm))
    );
    let all = observed.scrape();
    let count = |name| sum(&all, name, &[]);
    let (sent, completed) = (
        count("rocexdp_queue_tx_packets_total"),
        count("rocexdp_queue_tx_completed_descriptors_total"),
    );
    println!("{sent} packets given to the device, {completed} descriptors back");
    assert!(sent >= 2.0, "sent again: {sent}");
    assert!(completed == 0.0, "{completed} of {sent}");
    drop(pauser);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_storm_on_an_interface_that_vanishes_is_over() {
    let Some(pair) = Pair::up("v") else { return };
    let _monitor = pair
        .a
        .run(|| Monitor::start(IFACE, &MonitorWish::default()))
        .unwrap()
        .unwrap();
    let observed = observe(&pair);
    let pauser = pair.pause(1 << 3, Share::All);
    let event = observed.next(LONG).expect("a storm");
    assert_eq!(flagged(&event), Some(Certainty::Suspected), "{event}");
    // In the same moment: the link is not seen going down before it is gone.
    drop(pauser);
    ip(&format!("-n {} link del {IFACE}", pair.names[0]));
    let event = observed.next(SOON).expect("its end");
    assert!(matches!(event.change, Change::Released { .. }), "{event}");
    println!("{event}");
    assert_eq!(
        observed.next(Duration::from_secs(2)),
        None,
        "it is over once"
    );
    let all = observed.scrape();
    assert!(!all.iter().any(|s| s.name == "rocexdp_pfc_storm_state"));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_veth_has_no_pause_counters_of_its_own_and_says_so() {
    let Some(pair) = Pair::up("n") else { return };
    let read = pair.a.run(|| nic::read(IFACE)).unwrap();
    println!("{:#?}", read.notes);
    assert!(
        !read.pauses.per_priority()
            && read.pauses.frames_from.is_none()
            && read.pauses.port_wide.is_empty()
    );
    assert!(read.rdma.is_empty() && read.rdma_qps.is_empty());
    // The kernel's own answer: veth has no DCB operations (net/dcb/dcbnl.c), or the kernel has no DCB at all.
    let dcb = pair
        .a
        .run(|| nic::dcb::ieee_pfc(IFACE))
        .unwrap()
        .unwrap_err();
    assert_eq!(dcb.raw_os_error(), Some(95), "EOPNOTSUPP: {dcb}");
    assert!(
        read.notes
            .iter()
            .any(|n| n.contains("DCB netlink") && n.contains("not supported")),
        "{:?}",
        read.notes
    );
    assert!(
        read.notes
            .iter()
            .any(|n| n.contains("pauses per priority n/a")),
        "{:?}",
        read.notes
    );
}
