//! The monitor on real interfaces: what it counts is what the endpoints counted, nothing is dropped or changed, and nothing
//! stays behind.

use std::{
    collections::HashMap,
    net::UdpSocket,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rocexdp::{
    lab::Host,
    live::Sampler,
    maps::{AttachedAt, Attachment, MapsView, ProgramRole},
    monitor::{Change, Hook, Ingress, Monitor, MonitorWish, Monitors},
    net::Link,
    sys::netns::NetNs,
};
use rocexdp_common::{
    ids::gid_from_ipv4,
    maps::{FlowKey, FlowState, Kind, QueueCounters, Rtt},
};
use rocexdp_tests::{
    Rig,
    check::{items, number},
    eventually,
    hop::{FAR, NEAR, ip, output},
    rig::{SHORT, text},
};
use serde_json::Value;

fn packets(flow: &FlowState, kind: Kind) -> u64 {
    flow.counters.kinds[kind as usize].packets
}

fn sum(counters: &[QueueCounters], of: impl Fn(&QueueCounters) -> u64) -> u64 {
    counters.iter().map(of).sum()
}

/// A flow's packets and bytes of every kind.
type Seen = Vec<(u64, u64)>;

fn seen(flows: &[(FlowKey, FlowState)]) -> HashMap<(u32, [u8; 16]), Seen> {
    let counts = |state: &FlowState| {
        let kinds = state.counters.kinds.iter();
        kinds.map(|k| (k.packets, k.bytes)).collect()
    };
    flows
        .iter()
        .map(|(key, state)| ((key.dest_qpn, key.dst), counts(state)))
        .collect()
}

/// The monitor's round trips are those that the capture of the same packets at the same place has: however busy the machine is, between the
/// two stamps of a packet nothing waits.
fn as_captured(rtt: &Rtt, captured: &Value, responder_qpn: u32) {
    let flows = items(captured, "flows").iter();
    let mut ways = flows.flat_map(|flow| items(flow, "directions"));
    let way = ways.find(|way| way["to"]["qpn"] == responder_qpn);
    let delay = &way.unwrap_or_else(|| panic!("{captured:#}"))["ack_delay"];
    let [samples, p50, max] = ["/samples", "/p50_ns", "/max_ns"].map(|name| number(delay, name));
    println!("captured: {delay}");
    // The first is the one that the flow is learned from.
    assert!(
        (samples / 2..=samples).contains(&rtt.count()),
        "{rtt:?} {delay:#}"
    );
    // A bucket's end is at most twice what is in it; a middle that lies between two samples may be either.
    let median = rtt.quantile(0.5).unwrap();
    assert!((p50 / 2..=4 * p50).contains(&median), "{rtt:?} {delay:#}");
    assert!(rtt.sum_ns / rtt.count() <= 2 * max, "{rtt:?} {delay:#}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn on_the_way_between_endpoints_it_counts_what_they_counted_and_times_the_round_trips() {
    let Some(mut rig) = Rig::up("tmh") else {
        return;
    };
    let hop = rig.insert_hop(Host::A);
    let wish = MonitorWish::default();
    let ports = [NEAR.to_owned(), FAR.to_owned()];
    let monitors = hop
        .ns()
        .run(|| Monitors::start(&ports, &wish))
        .unwrap()
        .unwrap();
    for monitor in monitors.iter() {
        let report = monitor.report();
        println!("{report}");
        assert!(
            matches!(report.ingress, Hook::Xdp { .. }) && report.egress,
            "{report}"
        );
        assert!(!monitor.blind_spots().is_empty());
    }
    rig.start_sender(&[]);
    rig.start_receiver(&[]);
    rig.impair("delay=2ms");
    let capture = hop.tcpdump(&rig.path("near.pcap"));
    let file = rig.file("file", 3 << 20);
    rig.copy_well(&file, "file");
    let captured = capture.map(|tcpdump| {
        let said = tcpdump.interrupt(SHORT).ok().stderr;
        assert!(said.contains("0 packets dropped by kernel"), "{said}");
        rig.run(Host::A, &["pcap", "--json", text(&rig.path("near.pcap"))])
            .json()
    });
    let (a, b) = (rig.qps(Host::A), rig.qps(Host::B));
    let near = monitors.get(NEAR).unwrap().maps().unwrap();
    let far = monitors.get(FAR).unwrap().maps().unwrap();
    // Both ports see the same packets, one receives what the other sends.
    let flows = near.flows().unwrap();
    assert_eq!(seen(&flows), seen(&far.flows().unwrap()));
    let mut met = 0;
    let mut timed = 0;
    for qp in a.iter().chain(&b) {
        let key = |(key, _): &&(FlowKey, FlowState)| {
            key.dest_qpn == qp.config.qpn && key.dst == qp.config.local_gid
        };
        let (_, flow) = flows.iter().find(key).expect("the QP's flow");
        assert_eq!(
            flow.counters.kinds, qp.counters.kinds,
            "QP {:#x}",
            qp.config.qpn
        );
        assert_eq!(flow.counters.ecn, qp.counters.ecn);
        for (seen, counted) in [
            (flow.counters.requests, qp.counters.requests),
            (flow.counters.responses, qp.counters.responses),
        ] {
            // The endpoint knows what to expect before the first packet.
            if seen.valid != 0 {
                assert_eq!(seen, counted);
            }
        }
        met += 1;
        if packets(flow, Kind::Ack) > 8 {
            assert_eq!(
                flow.sender_qpn, qp.config.peer_qpn,
                "learned from the answers"
            );
            let rtt = &flow.rtt;
            let (count, median) = (rtt.count(), rtt.quantile(0.5).unwrap());
            println!(
                "QP {:#x}: {count} round trips, median below {median} ns",
                qp.config.qpn
            );
            assert!(count > 4, "{count}");
            // Two crossings of the wire; the shortest is in the bucket of 4 ms at least (2^21 is 2.1 ms, 2^22 4.2 ms).
            let short: u64 = rtt.buckets[..21].iter().sum();
            assert_eq!(short, 0, "{rtt:?}");
            assert!(rtt.sum_ns / count >= 4_000_000, "{rtt:?}");
            if let Some(captured) = &captured {
                as_captured(rtt, captured, qp.config.peer_qpn);
            }
            timed += 1;
        }
    }
    assert!(met >= 2 && timed >= 1, "{met} QPs, {timed} timed");
    // On the wire's far side of the requests there is nothing to wait for: the answer comes at once.
    let counters = near.all_counters();
    assert_eq!(sum(&counters, |c| c.dropped + c.redirected + c.consumed), 0);
    assert_eq!(
        sum(&counters, |c| c.frames),
        sum(&counters, |c| c.passed_rocev2 + c.passed_other)
    );
    let rocev2 = sum(&counters, |c| c.rocev2);
    let in_flows: u64 = flows
        .iter()
        .flat_map(|(_, state)| state.counters.kinds)
        .map(|kind| kind.packets)
        .sum();
    assert_eq!(rocev2, in_flows);
    assert_eq!(
        sum(&counters, |c| c.flow_inserts),
        flows.len() as u64,
        "nothing was evicted"
    );
    rig.assert_nothing_lost_unasked();
    // What passes is not touched: the kernel's own traffic arrives whole.
    rig.impair("clean");
    rig.tcp_transfer(Host::A, Host::B.ipv4().into(), 4 << 20);
    rig.ping(Host::A, Host::B.ipv4().into(), 10, 1400);
    rig.stop(Host::A);
    rig.stop(Host::B);
}

/// Two ends of a veth pair in one namespace of the test's own, removed on drop.
struct Veth {
    name: String,
    ns: NetNs,
}

impl Veth {
    fn up(test: &str) -> Self {
        let name = format!("h3{test}{}", std::process::id());
        let veth = Self {
            ns: NetNs::create(&name).unwrap(),
            name,
        };
        veth.ip("link add v0 type veth peer name v1");
        for line in [
            "link set lo up",
            "address add 10.88.0.1/24 dev v0",
            "link set v0 up",
            "link set v1 up",
            // Nobody is there to answer for it.
            "neighbour add 10.88.0.2 lladdr 02:00:00:00:00:02 dev v0",
        ] {
            veth.ip(line);
        }
        veth
    }

    fn ip(&self, line: &str) {
        ip(&format!("-n {} {line}", self.name));
    }

    fn start(&self, iface: &str, wish: &MonitorWish) -> anyhow::Result<Monitor> {
        self.ns.run(|| Monitor::start(iface, wish)).unwrap()
    }

    fn attached(&self, iface: &str) -> Vec<Attachment> {
        self.ns.run(|| Attachment::all(iface)).unwrap().unwrap()
    }

    /// What Soft-RoCE does: UDP to port 4791 from the kernel. `psn` counts up; each asks for an acknowledgement.
    fn send(&self, count: u32, first_psn: u32) {
        let socket = self
            .ns
            .run(|| UdpSocket::bind("10.88.0.1:50000").unwrap())
            .unwrap();
        for psn in first_psn..first_psn + count {
            // SEND ONLY to QP 17, 4 bytes of payload, and an ICRC.
            let mut bytes = vec![4, 0, 0xff, 0xff, 0, 0, 0, 17];
            bytes.extend((0x8000_0000 | psn).to_be_bytes());
            bytes.extend([0; 8]);
            socket.send_to(&bytes, "10.88.0.2:4791").unwrap();
        }
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["-n", &self.name, "link", "del", "v0"])
            .output();
        let _ = NetNs::delete(&self.name);
    }
}

fn to_qp_17(maps: &MapsView) -> u64 {
    let flows = maps.flows().unwrap();
    let mut of = flows.iter().filter(|(key, _)| {
        key.dest_qpn == 17
            && key.src == gid_from_ipv4([10, 88, 0, 1])
            && key.dst == gid_from_ipv4([10, 88, 0, 2])
    });
    let found = of.next().map_or(0, |(_, flow)| packets(flow, Kind::Send));
    assert_eq!(of.next().map(|(key, _)| *key), None);
    found
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_the_kernel_sends_is_seen_on_egress_once_and_on_ingress_at_the_other_end() {
    let veth = Veth::up("eg");
    let here = veth.start("v0", &MonitorWish::default()).unwrap();
    let there = veth.start("v1", &MonitorWish::default()).unwrap();
    let deaf = MonitorWish {
        egress: false,
        ingress: Ingress::Tcx,
        ..MonitorWish::default()
    };
    let deaf = veth.start("v0", &deaf).unwrap();
    veth.send(300, 0xff_fff0);
    for (monitor, seen) in [(&here, 300), (&there, 300), (&deaf, 0)] {
        assert_eq!(
            to_qp_17(&monitor.maps().unwrap()),
            seen,
            "{}",
            monitor.report()
        );
    }
    let (received, sent) = here.maps().unwrap().tcx_counters();
    assert_eq!(sum(&sent, |c| c.passed_rocev2), 300);
    assert_eq!(sum(&received, |c| c.frames), 0, "XDP has counted those");
    assert!(
        deaf.blind_spots()
            .iter()
            .any(|spot| spot.contains("not asked for"))
    );
    let state = here.maps().unwrap().flows().unwrap()[0].1;
    assert_eq!(state.counters.requests.gaps, 0, "PSNs wrap");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn behind_another_xdp_program_tcx_ingress_counts() {
    let veth = Veth::up("tc");
    // Another program: a monitor is one.
    let first = veth.start("v1", &MonitorWish::default()).unwrap();
    let second = veth.start("v1", &MonitorWish::default()).unwrap();
    assert!(matches!(first.report().ingress, Hook::Xdp { .. }));
    assert_eq!(second.report().ingress, Hook::Tcx);
    let other = second.report().other_xdp.as_deref().unwrap();
    assert!(other.contains("rocexdp_mon"), "{other}");
    let wish = MonitorWish {
        ingress: "driver".parse().unwrap(),
        ..MonitorWish::default()
    };
    let refused = veth.start("v1", &wish).unwrap_err();
    assert!(
        format!("{refused:#}").contains("another XDP program"),
        "{refused:#}"
    );
    veth.send(10, 1);
    assert_eq!(to_qp_17(&first.maps().unwrap()), 10);
    assert_eq!(to_qp_17(&second.maps().unwrap()), 10);
    let (received, _) = second.maps().unwrap().tcx_counters();
    assert_eq!(sum(&received, |c| c.passed_rocev2), 10);
    let found = veth.attached("v1");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|a| a.role == ProgramRole::Monitor));
    assert!(found.iter().any(|a| a.at == AttachedAt::TcxIngress));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_table_of_flows_forgets_the_oldest_and_says_how_many() {
    let veth = Veth::up("lr");
    let wish = MonitorWish {
        flows: 64,
        ..MonitorWish::default()
    };
    let monitor = veth.start("v1", &wish).unwrap();
    let socket = veth
        .ns
        .run(|| UdpSocket::bind("10.88.0.1:50000").unwrap())
        .unwrap();
    for qpn in 0..1000_u32 {
        let mut bytes = vec![4, 0, 0xff, 0xff];
        bytes.extend(qpn.to_be_bytes());
        bytes.extend([0; 12]);
        socket.send_to(&bytes, "10.88.0.2:4791").unwrap();
    }
    let maps = monitor.maps().unwrap();
    let inserts = sum(&maps.all_counters(), |c| c.flow_inserts);
    let live = maps.flows().unwrap().len() as u64;
    assert!(live <= 64 && inserts == 1000, "{live} live of {inserts}");
    assert!(Monitor::start("v1", &MonitorWish { flows: 0, ..wish }).is_err());
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_monitor_reads_its_own_program_whatever_comes_and_goes_beside_it() {
    let veth = Veth::up("ow");
    let names = ["v1".to_owned()];
    let behind = MonitorWish {
        ingress: Ingress::Tcx,
        ..MonitorWish::default()
    };
    veth.ns
        .run(|| {
            let mut monitors = Monitors::start(&names, &behind).unwrap();
            let own = monitors.get("v1").unwrap().program_id();
            let mut ours = Sampler::new(&names).with_own(monitors.programs());
            let mut onlooker = Sampler::new(&names);
            let id = |sampler: &mut Sampler| {
                let sample = sampler.sample().ifaces.remove(0);
                sample
                    .source
                    .map(|source| source.program_id)
                    .ok_or(sample.error)
            };
            assert_eq!((id(&mut ours), id(&mut onlooker)), (Ok(own), Ok(own)));
            // An XDP program, which is found first, as `rocexdp record` has; then a second one in front at TCX.
            for wish in [MonitorWish::default(), behind] {
                let other = Monitor::start("v1", &wish).unwrap();
                assert_ne!(Attachment::all("v1").unwrap()[0].program_id, own);
                assert_eq!((id(&mut ours), id(&mut onlooker)), (Ok(own), Ok(own)));
                assert_eq!(id(&mut Sampler::new(&names)), Ok(other.program_id()));
                drop(other);
                assert_eq!((id(&mut ours), id(&mut onlooker)), (Ok(own), Ok(own)));
            }
            // Another process's on a new interface of the same name is not ours, until we watch again.
            veth.ip("link del v1");
            veth.ip("link add v1 type veth peer name v0");
            veth.ip("link set v1 up");
            let other = Monitor::start("v1", &MonitorWish::default()).unwrap();
            let gone = id(&mut ours).unwrap_err().unwrap();
            assert!(gone.contains("no longer there"), "{gone}");
            monitors.poll();
            let gone = id(&mut ours).unwrap_err().unwrap();
            assert!(gone.contains("not watched at present"), "{gone}");
            monitors.poll();
            let again = monitors.get("v1").unwrap().program_id();
            assert!(again != own && again != other.program_id());
            assert_eq!(id(&mut ours), Ok(again));
        })
        .unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn one_device_under_two_names_is_watched_once() {
    let veth = Veth::up("tw");
    veth.ip("link property add dev v1 altname another");
    let names = ["v1".to_owned(), "another".to_owned()];
    let start = || Monitors::start(&names, &MonitorWish::default());
    let error = format!("{:#}", veth.ns.run(start).unwrap().unwrap_err());
    assert!(
        error.contains("v1 and another are the same device"),
        "{error}"
    );
    assert_eq!(veth.attached("v1"), []);

    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let mut command = Command::new(binary);
    command.args(["monitor", "--iface", "another,v1", "--json"]);
    command.args(["--interval", "50ms", "--count", "1"]);
    veth.ns.confine(&mut command).unwrap();
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && told.contains("v1: the same device as another"),
        "{told}"
    );
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let ifaces = line["ifaces"].as_array().unwrap();
        assert_eq!(ifaces.len(), 1, "{line:#}");
        assert_eq!(ifaces[0]["iface"], "another");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn whoever_finds_a_monitor_finds_its_maps_while_it_starts_too() {
    let veth = Veth::up("st");
    let done = AtomicBool::new(false);
    let read = |iface: &str| {
        let mut whole = 0;
        while !done.load(Ordering::Relaxed) {
            let Some(found) = Attachment::all(iface).unwrap().first().copied() else {
                continue;
            };
            match MapsView::of_program(found.program_id) {
                Ok(_) => whole += 1,
                // It may end between the two.
                Err(error) => assert!(!format!("{error:#}").contains("has no map"), "{error:#}"),
            }
        }
        whole
    };
    let whole = std::thread::scope(|scope| {
        let reader = scope.spawn(|| veth.ns.run(|| read("v1")).unwrap());
        for _ in 0..5 {
            for ingress in [Ingress::Auto, Ingress::Tcx] {
                let wish = MonitorWish {
                    ingress,
                    ..MonitorWish::default()
                };
                drop(veth.start("v1", &wish).unwrap());
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    println!("found whole {whole} times");
    assert!(whole > 0);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn where_the_host_forwards_it_says_that_a_packet_may_count_twice() {
    let veth = Veth::up("fw");
    let spots = |wish: &MonitorWish| veth.start("v1", wish).unwrap().blind_spots().join("\n");
    let set = |text: &str| {
        let path = "/proc/sys/net/ipv4/ip_forward";
        veth.ns.run(|| std::fs::write(path, text)).unwrap().unwrap();
    };
    set("0");
    assert!(!spots(&MonitorWish::default()).contains("twice"));
    set("1");
    let told = spots(&MonitorWish::default());
    assert!(
        told.contains("ip_forward is on") && told.contains("twice"),
        "{told}"
    );
    let received_only = MonitorWish {
        egress: false,
        ..MonitorWish::default()
    };
    assert!(!spots(&received_only).contains("twice"));
    set("0");
    veth.ip("link add br0 type bridge");
    veth.ip("link set v1 master br0");
    let told = spots(&MonitorWish::default());
    assert!(told.contains("port of the bridge br0"), "{told}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn an_interface_that_vanishes_is_reported_and_the_others_go_on() {
    let veth = Veth::up("va");
    veth.ip("link add w0 type veth peer name w1");
    veth.ip("link set w0 up");
    veth.ip("link set w1 up");
    let names = ["v1".to_owned(), "w0".to_owned()];
    veth.ns
        .run(|| {
            let mut monitors = Monitors::start(&names, &MonitorWish::default()).unwrap();
            assert_eq!(monitors.poll(), []);
            veth.ip("link del w0");
            let changes = monitors.poll();
            assert!(
                matches!(&changes[..], [Change::Gone { iface, why }] if iface == "w0" && why.contains("gone")),
                "{changes:?}"
            );
            assert_eq!(monitors.missing().map(|(name, _)| name).collect::<Vec<_>>(), ["w0"]);
            veth.send(5, 1);
            assert_eq!(to_qp_17(&monitors.get("v1").unwrap().maps().unwrap()), 5);
            veth.ip("link add w0 type veth peer name w1");
            veth.ip("link set w0 up");
            let back = Change::Watched {
                iface: "w0".to_owned(),
            };
            assert_eq!(monitors.poll(), [back]);
        })
        .unwrap();
    let missing = veth.start("nowhere", &MonitorWish::default()).unwrap_err();
    assert!(format!("{missing:#}").contains("nowhere"), "{missing:#}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_killed_monitor_leaves_nothing_attached() {
    let Some(binary) = rocexdp_tests::rig::product() else {
        return;
    };
    let veth = Veth::up("ki");
    let mut command = Command::new(binary);
    command
        .args(["monitor", "--iface", "v1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    veth.ns.confine(&mut command).unwrap();
    let mut child = command.spawn().unwrap();
    let tcx_egress = || {
        let output = Command::new("bpftool")
            .args(["net", "show", "dev", "v1"])
            .output();
        output.map_or(String::new(), |o| {
            String::from_utf8_lossy(&o.stdout).into_owned()
        })
    };
    let _ = eventually("the monitor is attached", SHORT, || {
        assert!(child.try_wait().unwrap().is_none(), "the monitor ended");
        veth.attached("v1").first().copied()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel detaches when the process's descriptors are closed, which is a moment later.
    eventually("nothing is attached", Duration::from_secs(5), || {
        let rest = veth.ns.run(|| Link::by_name("v1")).unwrap().unwrap();
        let bpf = veth.ns.run(tcx_egress).unwrap();
        (rest.xdp.is_empty() && veth.attached("v1").is_empty() && !bpf.contains("rocexdp"))
            .then_some(())
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_nic_is_promiscuous_only_while_a_monitor_that_wants_it_is_there() {
    let veth = Veth::up("pr");
    let is = || output(&format!("-n {} -d link show v1", veth.name)).contains("promiscuity 1");
    assert!(!is());
    let wish = MonitorWish {
        promiscuous: true,
        ..MonitorWish::default()
    };
    let monitor = veth.start("v1", &wish).unwrap();
    assert!(is());
    drop(monitor);
    assert!(!is());
}
