//! The lab itself: its wire in both forms harms what it is told to and nothing else, its books are right, and nothing
//! stays behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panic"
)]

mod lab_support;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use lab_support::{Capture, Sender, name, ping};
use rocexdp::{
    lab::{Error, HOST_INTERFACE, Host, Impairment, Lab, LabConfig, keeper},
    net::{Link, link::XdpMode},
    sys::netns::NetNs,
};
use rocexdp_common::fault::{self, Faults};

fn faults(text: &str) -> Faults {
    text.parse::<Impairment>().expect("impairment").0
}

fn assert_no_link_drops(lab: &Lab) {
    let drops = lab.link_drops().unwrap();
    assert!(drops.iter().all(|link| link.total() == 0), "{drops:?}");
}

/// Sends `bytes` from a to b by the kernel's TCP and compares them.
fn tcp_transfer(lab: &Lab, address: IpAddr, bytes: usize) {
    let listener = lab
        .host(Host::B)
        .run(|| TcpListener::bind((address, 5001)))
        .unwrap()
        .unwrap();
    let stream = lab
        .host(Host::A)
        .run(|| TcpStream::connect_timeout(&SocketAddr::new(address, 5001), Duration::from_secs(5)))
        .unwrap()
        .unwrap();
    let pattern = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    let sent: Vec<u8> = (0..bytes).map(pattern).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&stream)
                .write_all(&sent)
                .and_then(|()| stream.shutdown(std::net::Shutdown::Write))
        });
        let (mut accepted, _) = listener.accept().unwrap();
        accepted
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut received = Vec::with_capacity(bytes);
        accepted.read_to_end(&mut received).unwrap();
        assert!(
            received == sent,
            "TCP's bytes changed on the way: {} of {bytes}",
            received.len()
        );
    });
}

fn kernel_traffic_passes(lab: &Lab) {
    for address in Host::B.addresses() {
        ping(lab, Host::A, address, 56);
        ping(lab, Host::A, address, 4000);
        tcp_transfer(lab, address, 32 << 20);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn kernel_traffic_passes_the_xdp_wire_unharmed_under_the_worst_faults() {
    let mut lab = Lab::up(LabConfig::named(name("lkx"))).unwrap();
    lab.impair(faults("drop=100%,corrupt=100%,ce=100%"))
        .unwrap();
    assert!(!lab.is_relayed());
    kernel_traffic_passes(&lab);
    let counters = lab.counters().unwrap();
    for port in counters {
        assert_eq!(
            (port.packets, port.dropped, port.failed),
            (0, 0, 0),
            "{counters:?}"
        );
        assert!(
            port.other > 50 && port.forwarded == port.other,
            "{counters:?}"
        );
    }
    assert_no_link_drops(&lab);
    lab.down().unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn kernel_traffic_passes_the_userspace_wire_unharmed_and_the_wires_are_switched_under_way() {
    let mut lab = Lab::up(LabConfig::named(name("lku"))).unwrap();
    lab.impair(faults("drop=100%,dup=100%,reorder=100%,delay=50us"))
        .unwrap();
    assert!(lab.is_relayed());
    kernel_traffic_passes(&lab);
    let relayed = lab.counters().unwrap();
    for port in relayed {
        assert_eq!(
            (port.packets, port.dropped, port.failed),
            (0, 0, 0),
            "{relayed:?}"
        );
        assert!(
            port.other > 50 && port.forwarded == port.other,
            "{relayed:?}"
        );
    }
    lab.impair(Faults::default()).unwrap();
    assert!(!lab.is_relayed());
    ping(&lab, Host::A, Host::B.ipv4().into(), 56);
    let both = lab.counters().unwrap();
    assert!(
        both[0].other > relayed[0].other,
        "counters go on across wires: {both:?}"
    );
    assert_no_link_drops(&lab);
    lab.down().unwrap();
}

/// What happened to each packet must be what the pure decision says of its number, for IPv4, IPv6 and tagged frames.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_xdp_wire_does_to_each_packet_what_its_number_decides() {
    const COUNT: u32 = 3000;
    for tags in 0..=2 {
        let mut lab = Lab::up(LabConfig::named(name("lxd"))).unwrap();
        for (address, seed) in Host::B.addresses().into_iter().zip([7, 8]) {
            let asked = faults(&format!("drop=5%,ce=20%,corrupt=10%,seed={seed}"));
            lab.impair(asked).unwrap();
            let before = lab.counters().unwrap()[0];
            // Two sizes: linear, and with a fragment in XDP.
            for (run, size) in [60, 4100].into_iter().enumerate() {
                let capture = Capture::start(lab.host(Host::B));
                Sender::new(&lab, Host::A, address)
                    .tags(tags)
                    .send(0..COUNT, size);
                let arrived = capture.finish(address);
                let mut expected = 0;
                let by_number: BTreeMap<u32, _> = arrived
                    .iter()
                    .map(|packet| (packet.number, packet))
                    .collect();
                for n in 0..COUNT {
                    let decision =
                        fault::decide(&asked, 0, u64::from(n) + u64::from(COUNT) * run as u64);
                    let found = by_number.get(&n);
                    assert_eq!(found.is_none(), decision.drop, "packet {n}");
                    let Some(packet) = found else { continue };
                    expected += 1;
                    assert_eq!(packet.ce, decision.mark, "packet {n}");
                    assert_eq!(
                        packet.changed_bytes,
                        usize::from(decision.corrupt),
                        "packet {n}"
                    );
                    assert!(packet.ip_checksum_right, "packet {n}");
                }
                assert_eq!(arrived.len(), expected, "no packet came twice");
            }
            let after = lab.counters().unwrap()[0];
            assert_eq!(after.packets - before.packets, u64::from(2 * COUNT));
            let dropped = after.dropped - before.dropped;
            assert!(dropped.abs_diff(300) < 100, "{dropped} of 5 %");
            let marked = after.marked - before.marked;
            assert!(marked.abs_diff(1140) < 190, "{marked} of 20 % of the rest");
            let corrupted = after.corrupted - before.corrupted;
            assert!(
                corrupted.abs_diff(570) < 140,
                "{corrupted} of 10 % of the rest"
            );
        }
        if tags == 0 {
            // A tagged packet ends at b for want of a VLAN device, and counts as dropped there.
            assert_no_link_drops(&lab);
        }
        lab.down().unwrap();
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn packets_that_are_not_ecn_capable_are_never_marked() {
    let mut lab = Lab::up(LabConfig::named(name("lec"))).unwrap();
    lab.impair(faults("ce=100%")).unwrap();
    for address in Host::B.addresses() {
        let capture = Capture::start(lab.host(Host::B));
        Sender::new(&lab, Host::A, address).ecn(0).send(0..100, 60);
        let arrived = capture.finish(address);
        assert_eq!(arrived.len(), 100);
        assert!(
            arrived
                .iter()
                .all(|packet| !packet.ce && packet.ip_checksum_right)
        );
    }
    assert_eq!(lab.counters().unwrap()[0].marked, 0);
    lab.down().unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_userspace_wire_duplicates_reorders_and_delays_as_decided() {
    const COUNT: u32 = 3000;
    let mut lab = Lab::up(LabConfig::named(name("luw"))).unwrap();
    for address in Host::B.addresses() {
        let asked = faults("drop=5%,ce=20%,corrupt=10%,dup=10%,reorder=5%,delay=200us,seed=3");
        lab.impair(asked).unwrap();
        let capture = Capture::start(lab.host(Host::B));
        Sender::new(&lab, Host::A, address).send(0..COUNT, 4100);
        let arrived = capture.finish(address);
        let (mut overtaken, mut held) = (0, 0);
        for n in 0..COUNT {
            let decision = fault::decide(&asked, 0, u64::from(n));
            let places: Vec<usize> = (0..arrived.len())
                .filter(|at| arrived[*at].number == n)
                .collect();
            let copies = match (decision.drop, decision.duplicate) {
                (true, _) => 0,
                (false, false) => 1,
                (false, true) => 2,
            };
            assert_eq!(places.len(), copies, "packet {n}");
            for place in &places {
                assert_eq!(arrived[*place].ce, decision.mark, "packet {n}");
                assert_eq!(
                    arrived[*place].changed_bytes,
                    usize::from(decision.corrupt),
                    "packet {n}"
                );
            }
            if let Some(last) = places.last()
                && decision.reorder
            {
                held += 1;
                overtaken += u32::from(arrived[..*last].iter().any(|packet| packet.number > n));
            }
        }
        assert!(held > 80, "{held} of 5 %");
        // A pause of the sender longer than the hold time lets a packet go unovertaken.
        assert!(
            overtaken * 10 >= held * 9,
            "{overtaken} of {held} were overtaken"
        );
    }
    let counters = lab.counters().unwrap()[0];
    assert_eq!(counters.packets, u64::from(2 * COUNT));
    assert_eq!(counters.failed, 0);
    assert_eq!(
        counters.forwarded,
        counters.packets + counters.other + counters.duplicated - counters.dropped
    );
    assert_no_link_drops(&lab);

    lab.impair(faults("delay=20ms")).unwrap();
    let start = Instant::now();
    ping(&lab, Host::A, Host::B.ipv4().into(), 56);
    assert!(
        start.elapsed() >= Duration::from_millis(40),
        "20 ms each way: {:?}",
        start.elapsed()
    );
    lab.down().unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_lab_leaves_nothing_behind_even_with_a_process_inside() {
    let lab_name = name("lnb");
    let lab = Lab::up(LabConfig::named(&lab_name)).unwrap();
    match Lab::up(LabConfig::named(&lab_name)) {
        Err(Error::Exists(found)) => assert_eq!(found, lab_name),
        other => panic!("a second lab of the same name: {other:?}"),
    }
    ping(&lab, Host::A, Host::B.ipv4().into(), 56);

    let mut command = Command::new("sleep");
    command.arg("60");
    lab.spawn_in(Host::A, &mut command).unwrap();
    let mut sleeper = command.spawn().unwrap();
    let host = lab.host(Host::A).try_clone().unwrap();
    assert!(host.run(|| Link::by_name(HOST_INTERFACE)).unwrap().is_ok());
    drop(lab);
    let left = NetNs::names(&lab_name).unwrap();
    let link = host.run(|| Link::by_name(HOST_INTERFACE)).unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(left, Vec::<String>::new());
    assert!(
        link.is_err(),
        "the link lives on with the process: {link:?}"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_wire_runs_in_driver_mode_and_goes_with_its_owner() {
    let lab = Lab::up(LabConfig::named(name("lwd"))).unwrap();
    for port in [Host::A.port(), Host::B.port()] {
        let link = lab.wire().run(|| Link::by_name(port)).unwrap().unwrap();
        assert!(link.up && link.running && link.mtu == 4200, "{link:?}");
        assert_eq!((link.kind.as_deref(), link.rx_queues), (Some("veth"), 1));
        let [xdp] = link.xdp.as_slice() else {
            panic!("{:?}", link.xdp)
        };
        assert_eq!(
            (xdp.mode, xdp.name.as_deref()),
            (XdpMode::Driver, Some("wire"))
        );
    }
    lab.down().unwrap();
}

fn rocexdp(arguments: &[&str]) -> Option<std::process::Output> {
    let Some(binary) = std::env::var_os("ROCEXDP_BIN") else {
        println!("SKIP: ROCEXDP_BIN does not name the binary (run by cargo xtask test)");
        return None;
    };
    Some(Command::new(binary).args(arguments).output().unwrap())
}

fn said(output: &std::process::Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Removes a kept lab even when the test fails.
struct Kept(String);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = keeper::down(&self.0);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_kept_lab_outlives_the_command_and_is_removed_by_another() {
    let lab = Kept(name("lke"));
    let Some(up) = rocexdp(&["lab", "up", "--name", &lab.0]) else {
        return;
    };
    assert!(up.status.success(), "{}", said(&up));
    let again = rocexdp(&["lab", "up", "--name", &lab.0]).unwrap();
    assert!(
        !again.status.success() && said(&again).contains("exists already"),
        "{}",
        said(&again)
    );

    let ping = [
        "lab",
        "exec",
        "--name",
        &lab.0,
        "a",
        "--",
        "ping",
        "-c1",
        "-W5",
        "10.77.0.2",
    ];
    let output = rocexdp(&ping).unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let impair = |text| rocexdp(&["lab", "impair", "--name", &lab.0, text]).unwrap();
    let bad = impair("drop=1%,loss=2%");
    assert!(
        !bad.status.success() && said(&bad).contains("\"loss\" is unknown"),
        "{}",
        said(&bad)
    );
    let output = impair("drop=1%,delay=1ms,seed=7");
    assert!(output.status.success(), "{}", said(&output));
    let status = keeper::status(&lab.0).unwrap();
    assert_eq!(status.wire, "userspace");
    assert!(
        status.impairments[1].contains("delay=1000000ns"),
        "{:?}",
        status.impairments
    );
    assert!(status.counters[0].forwarded > 0 && status.drops.iter().all(|link| link.total() == 0));
    assert!(impair("clean").status.success());
    assert_eq!(keeper::status(&lab.0).unwrap().wire, "xdp");

    let down = rocexdp(&["lab", "down", "--name", &lab.0]).unwrap();
    assert!(down.status.success(), "{}", said(&down));
    assert_eq!(NetNs::names(&lab.0).unwrap(), Vec::<String>::new());
    assert!(!keeper::socket_path(&lab.0).exists());
    let down = rocexdp(&["lab", "down", "--name", &lab.0]).unwrap();
    assert!(
        !down.status.success() && said(&down).contains("there is no lab"),
        "{}",
        said(&down)
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_killed_keeper_takes_the_wire_with_it_and_the_rest_can_be_removed() {
    let lab = Kept(name("lki"));
    let Some(up) = rocexdp(&["lab", "up", "--name", &lab.0]) else {
        return;
    };
    assert!(up.status.success(), "{}", said(&up));
    let process = keeper::status(&lab.0).unwrap().keeper;
    let process = rustix::process::Pid::from_raw(process.cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();

    let wire = NetNs::open(&format!("{}-wire", lab.0)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while !wire
        .run(|| Link::by_name(Host::A.port()).unwrap().xdp.is_empty())
        .unwrap()
    {
        assert!(Instant::now() < deadline, "the program outlives its owner");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(wire);
    let mut removed = keeper::down(&lab.0).unwrap();
    removed.sort();
    assert_eq!(
        removed,
        ["a", "b", "wire"].map(|part| format!("{}-{part}", lab.0))
    );
    assert!(!keeper::socket_path(&lab.0).exists());
    assert!(matches!(keeper::down(&lab.0), Err(Error::Missing(_))));
}
