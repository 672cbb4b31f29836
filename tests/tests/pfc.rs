//! Pause storms on a real link: pause frames sent at real rates from the other end of a veth pair, seen by the XDP program of an
//! endpoint and of a monitor.

use std::{
    net::{IpAddr, UdpSocket},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rocexdp::{
    mem::Buffer,
    metrics::{Observer, ObserverConfig},
    monitor::{Monitor, MonitorWish},
    net::Link,
    nic,
    node::{ConnectAttr, Node, NodeConfig, NodeQp},
    pfc::{Certainty, Change, Channel, Released, StormEvent},
    sys::netns::NetNs,
    xsk::{Xsk, XskConfig},
};
use rocexdp_proto::{
    ids::{PathMtu, Psn, Qpn, RKey, WrId},
    mem::{Access, Memory},
    verbs::{Segment, SendOp, SendWr},
};
use rocexdp_tests::{
    Running, eventually,
    http::{Series, series, sum},
    rig::product,
};

const IFACE: &str = "eth0";
/// Where a MAC sends pause frames.
const ALL: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 1];
const A: &str = "10.78.0.1";
const B: &str = "10.78.0.2";

/// Two namespaces joined by a veth pair; removed on drop.
struct Pair {
    names: [String; 2],
    a: NetNs,
    b: NetNs,
}

impl Pair {
    /// `None`, said as `SKIP`, where it can't be.
    fn up(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: not root");
            return None;
        }
        let names = ["a", "b"].map(|end| format!("pfc{test}{}-{end}", std::process::id()));
        let [a, b] = names.each_ref().map(|name| NetNs::create(name).unwrap());
        let pair = Self { names, a, b };
        let [a, b] = &pair.names;
        ip(&format!(
            "-n {a} link add {IFACE} mtu 4200 type veth peer name other mtu 4200"
        ));
        ip(&format!("-n {a} link set other netns {b} name {IFACE}"));
        for (ns, address) in [(a, A), (b, B)] {
            ip(&format!("-n {ns} address add {address}/24 dev {IFACE}"));
            ip(&format!("-n {ns} link set {IFACE} up"));
        }
        Some(pair)
    }

    /// Observes end a: storms, and what a scrape says.
    fn observe(&self) -> Observed {
        let (tell, storms) = channel();
        let config = ObserverConfig::new(vec![IFACE.to_owned()]);
        let start = move || {
            Observer::start(config, move |storm| {
                println!("{storm}");
                let _ = tell.send(storm);
            })
        };
        let observer = self.a.run(start).unwrap().unwrap();
        Observed { observer, storms }
    }

    /// Sends pause frames from b until dropped.
    fn pause(&self, priorities: u8, share: Share) -> Pauser {
        self.pause_at(ALL, priorities, share)
    }

    /// The same, to this address.
    fn pause_at(&self, to: [u8; 6], priorities: u8, share: Share) -> Pauser {
        let end = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&end);
        let open = || {
            let link = Link::by_name(IFACE).unwrap();
            Xsk::open(&XskConfig::new(IFACE, link.index.0, 0)).unwrap()
        };
        let mut socket = self.b.run(open).unwrap();
        let thread = std::thread::spawn(move || {
            in_time();
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                match share {
                    // 65535 quanta of 51.2 ns at 10 Gb/s: 3.4 ms.
                    Share::All => {
                        send(&mut socket, to, priorities, 0xffff);
                        std::thread::sleep(Duration::from_micros(500));
                    }
                    Share::EightyFive => {
                        while begin.elapsed() < Duration::from_millis(85) {
                            send(&mut socket, to, priorities, 0xffff);
                            std::thread::sleep(Duration::from_micros(500));
                        }
                        send(&mut socket, to, priorities, 0);
                        std::thread::sleep(
                            Duration::from_millis(100).saturating_sub(begin.elapsed()),
                        );
                    }
                }
            }
            send(&mut socket, to, priorities, 0);
        });
        Pauser(end, Some(thread))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = NetNs::delete(name);
        }
    }
}

#[derive(Clone, Copy)]
enum Share {
    All,
    EightyFive,
}

struct Pauser(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Drop for Pauser {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread real-time priority: a pause ends after 3.4 ms, and the next frame must have come by then, whatever
/// else runs. chrt is part of util-linux, which Debian calls essential.
fn in_time() {
    let tid = rustix::thread::gettid().as_raw_nonzero().to_string();
    let done = Command::new("chrt")
        .args(["--fifo", "--pid", "50", &tid])
        .status();
    assert!(done.unwrap().success(), "chrt");
}

/// A PFC frame for these priorities (IEEE 802.1Qbb, as in the kernel's captures: destination 01:80:c2:00:00:01, 0x8808, 0x0101).
fn send(socket: &mut Xsk, to: [u8; 6], priorities: u8, quanta: u16) {
    let mut frame = [0_u8; 60];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..18].copy_from_slice(&[0x88, 0x08, 0x01, 0x01, 0, priorities]);
    for priority in 0..8 {
        if priorities >> priority & 1 == 1 {
            frame[18 + 2 * priority..20 + 2 * priority].copy_from_slice(&quanta.to_be_bytes());
        }
    }
    let done = socket.transmit(60, |pieces| {
        if let [piece, ..] = pieces {
            piece.copy_from_slice(&frame);
        }
    });
    done.unwrap();
    socket.flush().unwrap();
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

fn ip(line: &str) {
    let done = Command::new("ip")
        .args(line.split_whitespace())
        .status()
        .unwrap();
    assert!(done.success(), "ip {line}");
}

fn flagged(event: &StormEvent) -> Option<Certainty> {
    match event.change {
        Change::Flagged { certainty, .. } => Some(certainty),
        Change::Released { .. } => None,
    }
}

/// Posts a request that nobody answers, to be sent again after 4.096 us << `timeout`.
fn ask(node: &Node, timeout: u8) -> NodeQp {
    let qp = node.create_qp(4, 1).unwrap();
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let attributes = ConnectAttr {
        timeout,
        access: Access::LOCAL_WRITE,
        ..ConnectAttr::new(
            address(A),
            address(B),
            Qpn::new(0x77),
            Psn::new(1),
            PathMtu::Mtu1024,
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(qp.connect(attributes)).unwrap();
    let memory: Arc<dyn Memory> = Buffer::new(4096).unwrap();
    qp.post_send(SendWr {
        wr_id: WrId(1),
        op: SendOp::Write {
            va: 0,
            rkey: RKey(1),
        },
        local: Segment::new(memory, 0, 64).into(),
        signaled: true,
        solicited: false,
        fence: false,
        to: None,
    })
    .unwrap();
    qp
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
    let observed = pair.observe();

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
    let observed = pair.observe();

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
    let observed = pair.observe();
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
    let observed = pair.observe();
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
