//! What the host's network stack says, in the lab: interfaces, features, routes, neighbours, changes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panic"
)]

mod lab_support;

use std::{
    net::{IpAddr, Ipv4Addr},
    process::Command,
    time::{Duration, Instant},
};

use lab_support::{name, ping};
use rocexdp::{
    lab::{HOST_INTERFACE, Host, Lab, LabConfig},
    net::{
        Error, Link,
        features::XdpFeatures,
        neigh::{Neighbour, RESOLVE_TIMEOUT, Route},
        rdma::RdmaDevice,
        watch::{Event, Watch},
    },
    sys::{ethtool, netns::NetNs},
};

fn ip(lab: &Lab, host: Host, arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    lab.spawn_in(host, &mut command).unwrap();
    assert!(command.status().unwrap().success(), "ip {arguments}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_veth_is_described_as_it_is() {
    let lab = Lab::up(LabConfig {
        vlan: Some(42),
        ..LabConfig::named(name("nve"))
    })
    .unwrap();
    lab.host(Host::A)
        .run(|| {
            let link = Link::by_name(HOST_INTERFACE).unwrap();
            assert!(link.up && link.running, "{link:?}");
            assert_eq!((link.mtu, link.mac), (4200, Some(Host::A.mac())));
            assert_eq!(
                (link.kind.as_deref(), link.vlan, link.master),
                (Some("veth"), None, None)
            );
            assert_eq!(link.qdisc.as_deref(), Some("pfifo"));
            assert_eq!(link.xdp, []);
            assert_eq!(Link::by_index(link.index).unwrap().name, HOST_INTERFACE);
            assert!(Link::all().unwrap().iter().any(|other| other.name == "lo"));

            let addressed = Link::by_name(&lab.host_interface()).unwrap();
            if addressed.name == HOST_INTERFACE {
                println!("the kernel has no VLAN devices: not tested");
            } else {
                let vlan = addressed.vlan.map(|vlan| (vlan.id, vlan.parent));
                assert_eq!(vlan, Some((42, link.index)));
                assert!(!link.addresses().unwrap().iter().any(|a| a.ip.is_ipv4()));
            }
            assert_eq!(addressed.xdp_device().unwrap().name, HOST_INTERFACE);
            let addresses: Vec<_> = addressed
                .addresses()
                .unwrap()
                .iter()
                .map(|a| (a.ip, a.prefix, a.tentative))
                .collect();
            assert!(
                addresses.contains(&(Host::A.ipv4().into(), 24, false)),
                "{addresses:?}"
            );
            assert!(
                addresses.contains(&(Host::A.ipv6().into(), 64, false)),
                "{addresses:?}"
            );

            let features = XdpFeatures::of(link.index)
                .unwrap()
                .expect("Linux 6.3 or newer");
            assert!(features.basic() && features.redirect() && features.rx_frags());
            assert!(features.redirect_target() && features.redirect_target_frags());
            assert!(!features.zero_copy(), "{:?}", features.names());

            let channels = ethtool::channels(HOST_INTERFACE).unwrap();
            assert_eq!((channels.rx, channels.tx), (1, 1));
            assert!(!ethtool::vlan_stripped(HOST_INTERFACE).unwrap());
            assert_eq!(RdmaDevice::on(HOST_INTERFACE).unwrap(), []);
            let missing = Link::by_name("nosuch0").unwrap_err();
            assert!(
                missing
                    .to_string()
                    .contains("interface nosuch0: no such interface"),
                "{missing}"
            );
        })
        .unwrap();
    lab.down().unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_peer_is_resolved_and_an_unreachable_one_is_named_with_its_interface() {
    let lab = Lab::up(LabConfig::named(name("nrp"))).unwrap();
    lab.host(Host::A)
        .run(|| {
            for (peer, source) in Host::B.addresses().into_iter().zip(Host::A.addresses()) {
                let route = Route::lookup(peer, None, None).unwrap();
                assert_eq!((route.next_hop, route.source), (peer, source));
                assert_eq!(
                    (route.name.as_str(), route.mtu, route.local),
                    (HOST_INTERFACE, 4200, false)
                );
                assert_eq!(route.resolve(RESOLVE_TIMEOUT).unwrap(), Host::B.mac());
                // Known by now: answered at once.
                let start = Instant::now();
                assert_eq!(route.resolve(RESOLVE_TIMEOUT).unwrap(), Host::B.mac());
                assert!(start.elapsed() < Duration::from_millis(500));
                Neighbour::refresh(route.interface, peer).unwrap();
            }
            let own = Route::lookup(Host::A.ipv4().into(), None, None).unwrap();
            assert!(own.local);

            for silent in ["10.77.0.99", "fd77::99"] {
                let start = Instant::now();
                let route = Route::lookup(silent.parse().unwrap(), None, None).unwrap();
                let error = route.resolve(RESOLVE_TIMEOUT).unwrap_err();
                assert!(start.elapsed() < RESOLVE_TIMEOUT + Duration::from_secs(1));
                assert!(matches!(error, Error::Unreachable(_)));
                let text = error.to_string();
                assert!(
                    text.contains(silent) && text.contains(HOST_INTERFACE),
                    "{text}"
                );
            }
            let error = Route::lookup("192.0.2.1".parse().unwrap(), None, None).unwrap_err();
            assert!(
                error.to_string().starts_with("no route to 192.0.2.1: "),
                "{error}"
            );
        })
        .unwrap();
    lab.down().unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_gateway_is_resolved_in_place_of_a_peer_behind_it() {
    let lab = Lab::up(LabConfig::named(name("ngw"))).unwrap();
    ip(
        &lab,
        Host::A,
        "route add 192.0.2.0/24 via 10.77.0.2 mtu 1500",
    );
    ip(&lab, Host::A, "route add 198.51.100.0/24 via 10.77.0.98");
    ip(&lab, Host::A, "route add blackhole 203.0.113.0/24");
    lab.host(Host::A)
        .run(|| {
            let route = Route::lookup("192.0.2.9".parse().unwrap(), None, None).unwrap();
            assert_eq!(route.next_hop, IpAddr::from(Host::B.ipv4()));
            assert_eq!(route.mtu, 1500);
            assert_eq!(route.resolve(RESOLVE_TIMEOUT).unwrap(), Host::B.mac());
            let dead = Route::lookup("198.51.100.9".parse().unwrap(), None, None).unwrap();
            let text = dead.resolve(RESOLVE_TIMEOUT).unwrap_err().to_string();
            for part in ["198.51.100.9", "10.77.0.98", HOST_INTERFACE] {
                assert!(text.contains(part), "{text}");
            }
            assert!(matches!(
                Route::lookup("203.0.113.9".parse().unwrap(), None, None),
                Err(Error::NoRoute(..))
            ));
        })
        .unwrap();
    lab.down().unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_host_without_ipv6_is_no_obstacle_to_ipv4() {
    let lab = Lab::up(LabConfig::named(name("nv4"))).unwrap();
    lab.host(Host::A)
        .run(|| {
            std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
            let route = Route::lookup(Host::B.ipv4().into(), None, None).unwrap();
            assert_eq!(route.resolve(RESOLVE_TIMEOUT).unwrap(), Host::B.mac());
            let link = Link::by_name(HOST_INTERFACE).unwrap();
            assert!(
                link.addresses()
                    .unwrap()
                    .iter()
                    .all(|address| address.ip.is_ipv4())
            );
            assert!(Route::lookup(Host::B.ipv6().into(), None, None).is_err());
            Watch::open().unwrap();
        })
        .unwrap();
    ping(&lab, Host::A, Host::B.ipv4().into(), 56);
    lab.down().unwrap();
}

/// Unused entries go stale; one that is refreshed as often as [`rocexdp::net::neigh::REFRESH_INTERVAL`] asks is probed.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_refreshed_neighbour_is_probed_and_a_change_of_its_address_is_seen() {
    let lab = Lab::up(LabConfig::named(name("nrf"))).unwrap();
    let peer = IpAddr::from(Host::B.ipv4());
    lab.host(Host::A)
        .run(|| {
            // With the system's values this would take half a minute.
            for (file, value) in [
                ("base_reachable_time_ms", "400"),
                ("delay_first_probe_time", "1"),
            ] {
                std::fs::write(
                    format!("/proc/sys/net/ipv4/neigh/{HOST_INTERFACE}/{file}"),
                    value,
                )
                .unwrap();
            }
        })
        .unwrap();
    let mut watch = lab.host(Host::A).run(Watch::open).unwrap().unwrap();
    let route = lab
        .host(Host::A)
        .run(|| {
            let route = Route::lookup(peer, None, None).unwrap();
            route.resolve(RESOLVE_TIMEOUT).unwrap();
            route
        })
        .unwrap();
    ip(&lab, Host::B, "link set eth0 address 02:aa:bb:cc:dd:ee");
    // Nothing is sent: only the refresh makes the kernel ask again.
    let deadline = Instant::now() + Duration::from_secs(15);
    let mut seen = false;
    while !seen && Instant::now() < deadline {
        lab.host(Host::A)
            .run(|| Neighbour::refresh(route.interface, peer))
            .unwrap()
            .unwrap();
        let until = Instant::now() + Duration::from_millis(300);
        while let Some(event) = watch
            .next(until.saturating_duration_since(Instant::now()))
            .unwrap()
        {
            if let Event::Neighbour(entry) = event
                && entry.ip == peer
                && entry
                    .usable()
                    .is_some_and(|mac| mac.to_string() == "02:aa:bb:cc:dd:ee")
            {
                seen = true;
            }
        }
    }
    assert!(seen, "the peer's new Ethernet address was not noticed");
    lab.down().unwrap();
}

fn wait_for(watch: &mut Watch, what: &str, wanted: impl Fn(&Event) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while let Some(event) = watch
        .next(deadline.saturating_duration_since(Instant::now()))
        .unwrap()
    {
        if wanted(&event) {
            return;
        }
    }
    panic!("no event: {what}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn changes_of_mtu_address_route_and_link_are_seen() {
    let lab = Lab::up(LabConfig::named(name("nch"))).unwrap();
    let mut watch = lab.host(Host::A).run(Watch::open).unwrap().unwrap();
    let index = lab
        .host(Host::A)
        .run(|| Link::by_name(HOST_INTERFACE))
        .unwrap()
        .unwrap()
        .index;
    let address = IpAddr::from(Ipv4Addr::new(10, 77, 0, 77));

    ip(&lab, Host::A, "link set eth0 mtu 1500");
    wait_for(
        &mut watch,
        "MTU",
        |event| matches!(event, Event::Link(link) if link.index == index && link.mtu == 1500),
    );
    ip(&lab, Host::A, "addr add 10.77.0.77/24 dev eth0");
    wait_for(
        &mut watch,
        "address",
        |event| matches!(event, Event::Address(on, new) if *on == index && new.ip == address),
    );
    ip(&lab, Host::A, "addr del 10.77.0.77/24 dev eth0");
    wait_for(
        &mut watch,
        "address gone",
        |event| matches!(event, Event::AddressGone(on, gone) if *on == index && *gone == address),
    );
    ip(&lab, Host::A, "route add 192.0.2.0/24 via 10.77.0.2");
    wait_for(&mut watch, "route", |event| matches!(event, Event::Route));
    let mut command = Command::new("ip");
    command.args(["link", "set", "dev", Host::A.port(), "down"]);
    lab.wire().confine(&mut command).unwrap();
    assert!(command.status().unwrap().success());
    wait_for(
        &mut watch,
        "carrier",
        |event| matches!(event, Event::Link(link) if link.index == index && link.up && !link.running),
    );
    ip(&lab, Host::A, "link set eth0 down");
    wait_for(
        &mut watch,
        "link down",
        |event| matches!(event, Event::Link(link) if link.index == index && !link.up && !link.running),
    );
    ip(&lab, Host::A, "link del eth0");
    wait_for(
        &mut watch,
        "link gone",
        |event| matches!(event, Event::LinkGone(gone) if *gone == index),
    );
    lab.down().unwrap();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_namespace_is_seen_by_ip_netns_and_code_inside_sees_only_its_own_links() {
    let lab_name = name("nns");
    let before = Link::all().unwrap().len();
    let namespace = NetNs::create(&lab_name).unwrap();
    let listed = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let inside = namespace.run(|| Link::all().unwrap()).unwrap();
    let taken = NetNs::create(&lab_name);
    let mut command = Command::new("ip");
    command.args(["-o", "link"]);
    namespace.confine(&mut command).unwrap();
    let output = command.output().unwrap();
    NetNs::delete(&lab_name).unwrap();

    assert!(
        listed
            .lines()
            .any(|line| line.split(' ').next() == Some(lab_name.as_str())),
        "{listed}"
    );
    assert_eq!(
        inside
            .iter()
            .map(|link| link.name.as_str())
            .collect::<Vec<_>>(),
        ["lo"]
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(
        Link::all().unwrap().len(),
        before,
        "the caller's namespace did not change"
    );
    assert!(
        NetNs::open(&lab_name)
            .unwrap_err()
            .to_string()
            .contains(&lab_name)
    );
}
