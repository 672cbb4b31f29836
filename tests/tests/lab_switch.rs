//! The lab with a switch: hosts that run rocexdp send into one port of it, and the simulator says the same of the same file.
//!
//! What is judged is the switch's own books, over the lab's own time: that a machine is busy makes the lab slower, not its numbers
//! wrong. Rates are low, queues deep and DCQCN's periods long, so that what the machine adds to a round trip (milliseconds,
//! when others use it too) does not matter much; and the hosts' daemons run before all else, as the switches do.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use rocexdp::lab::{keeper, switched::status::NetworkStatus};
use rocexdp_fabric::{Source, fabric::Fabric};
use rocexdp_proto::{EndpointConfig, dcqcn::Params, ids::PathMtu};
use rocexdp_sim::{
    net::{
        Network, Options,
        rc::{Connection, Message, RcHost},
    },
    picos::Picos,
    topology::{HostId, PortId, SwitchId},
};
use rocexdp_tests::{
    SourceFile,
    check::{items, number},
    eventually,
    rig::SHORT,
    switch_rig::{DATA, DSCP, FAST, LONG, Lane, SLOW, SwitchRig, data, jain, rates},
};

/// What the simulator says of the file: bit/s of each sender between these seconds.
fn simulated(lane: &Lane, senders: u32, between: [u64; 2]) -> Vec<f64> {
    let topology = lane.incast(senders);
    let fabric = Fabric::read(Source::new("topology.toml", &topology)).unwrap();
    let mut params = Params::default();
    for set in &lane.dcqcn() {
        let (name, value) = set.split_once('=').unwrap();
        params.set(name, value).unwrap();
    }
    let hosts = fabric.hosts.iter().enumerate().map(|(id, host)| {
        let nics = host.nics.iter().map(|nic| EndpointConfig {
            line_rate: Some(nic.rate),
            data_dscp: DSCP.parse().unwrap(),
            max_inflight_packets: 512,
            rp: params.rp.clone(),
            np: params.np.clone(),
            ..EndpointConfig::default()
        });
        RcHost::new(HostId(id as u32), &nics.collect::<Vec<_>>(), 1)
    });
    let hosts = hosts.collect();
    let mut network = Network::new(
        fabric.seeded(1),
        hosts,
        &Options {
            seed: 1,
            ..Options::default()
        },
    )
    .unwrap();
    for sender in 0..senders {
        let with = Connection {
            path_mtu: PathMtu::from_bytes(lane.path_mtu.parse().unwrap()).unwrap(),
            timeout: 14,
            ..Connection::default()
        };
        let ends = network.hosts_mut([HostId(sender), HostId(senders)]);
        let [end, _] = RcHost::connect(ends, [PortId(0); 2], &with).unwrap();
        let message = Message {
            tag: 1,
            start: Picos::ZERO,
            bytes: u64::MAX,
            op: Default::default(),
        };
        network.host_mut(HostId(sender)).post(end, message);
    }
    let mut bytes_at = |second: u64| -> Vec<u64> {
        let now = Picos::from_micros(second * 1_000_000);
        network.run_until(now);
        let of = |port| {
            network
                .switch(SwitchId(0))
                .counters(now, PortId(port), DATA)
                .rx_bytes
        };
        (0..senders as u16).map(of).collect()
    };
    let [from, to] = between.map(&mut bytes_at);
    let time = (between[1] - between[0]) as f64;
    from.iter()
        .zip(to)
        .map(|(from, to)| (to - from) as f64 * 8.0 / time)
        .collect()
}

/// All send at once, until enough of the lab's time has been seen.
fn converge(test: &str, lane: &Lane, senders: u32) {
    /// Seconds of the lab's time before, and during, the look.
    const SETTLE: f64 = 6.0;
    const LOOK: f64 = 14.0;
    /// Seconds that the copies could go on for: none ends before the look does.
    const LASTS: f64 = 32.0;
    let Some(mut rig) = SwitchRig::up(test, &lane.incast(senders)) else {
        return;
    };
    rig.start_hosts(lane, senders, &[]);
    // Holes read as zeros.
    let size = (LASTS * lane.rate() / 8.0 / f64::from(senders)) as u64;
    let file = rig.path("file");
    std::fs::File::create(&file).unwrap().set_len(size).unwrap();
    let copies: Vec<_> = (0..senders)
        .map(|host| rig.copy(host, senders, &file))
        .collect();
    eventually("all send", SHORT, || {
        let network = rig.network();
        (0..senders)
            .all(|port| data(&network, port).rx_frames > 100)
            .then_some(())
    });
    let reach = |what: &str, time: f64| {
        eventually(what, LONG, || {
            std::thread::sleep(Duration::from_millis(100));
            Some(rig.network()).filter(|network| network.time >= time)
        })
    };
    reach("rates settle", rig.network().time + SETTLE);
    let before: Vec<_> = (0..senders).map(|host| rig.qps(host)).collect();
    let begun = Instant::now();
    let from = rig.network();
    let to = reach("rates are looked at", from.time + LOOK);
    let looked = begun.elapsed();
    let after: Vec<_> = (0..senders).map(|host| rig.qps(host)).collect();

    let receiver = senders;
    let (was, is) = (data(&from, receiver), data(&to, receiver));
    let time = to.time - from.time;
    let links = [&from, &to].map(|n| n.switches[0].ports[receiver as usize].link);
    let load = (links[1].busy - links[0].busy) / time;
    let queue = (is.queue_seconds - was.queue_seconds) / time;
    let rates = rates(&from, &to, senders);
    // Longer than the lab's look: that costs nothing, and no flow's luck is left in it.
    let model = simulated(lane, senders, [SETTLE as u64, 44]);
    println!(
        "{senders}:1: {time:.2} s of the lab in {:.2} s ({:.2} s held back), load {load:.3}, queue {queue:.0} B on average, {} at most, {} marks,\n\
         rates {rates:.0?}, Jain {:.4}; simulated {model:.0?}, Jain {:.4}",
        looked.as_secs_f64(),
        to.held_back - from.held_back,
        is.queue_max,
        is.marked - was.marked,
        jain(&rates),
        jain(&model)
    );
    assert!(load >= 0.9, "the bottleneck is used");
    assert!(jain(&rates) >= 0.95);
    assert!(is.marked > was.marked, "CE marks");
    let [kmin, kmax] = lane.thresholds();
    assert!(
        (kmin / 2.0..kmax).contains(&queue),
        "the queue is around the marking threshold"
    );
    for (host, (before, after)) in before.iter().zip(&after).enumerate() {
        let cnps = |qps: &serde_json::Value| number(&qps["qps"][0], "/engine/rp_cnp_handled");
        assert!(cnps(after) > cnps(before), "host {host} heard CNPs");
        let again = number(&after["qps"][0], "/engine/retransmitted_packets");
        assert_eq!(again, 0, "host {host} had nothing to send again");
    }
    let end = rig.network();
    for port in &end.switches[0].ports {
        assert!(port.priorities.iter().all(|p| p.dropped() == 0), "{port:?}");
    }
    assert!(
        end.drops.iter().all(|end| end.total() == 0),
        "{:?}",
        end.drops
    );
    for nic in end.hosts.iter().flat_map(|host| &host.nics) {
        assert_eq!(
            (nic.counters.tx_full, nic.counters.rx_full),
            (0, 0),
            "{nic:?}"
        );
    }
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let ratio = mean(&rates) / mean(&model);
    assert!(
        (0.9..=1.1).contains(&ratio),
        "the simulator says {ratio:.3} of it"
    );
    for (lab, sim) in rates.iter().zip(&model) {
        assert!(
            (lab / sim - 1.0).abs() <= 0.1,
            "{lab:.0} in the lab, {sim:.0} simulated"
        );
    }
    // What is not asked for any more.
    drop(copies);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn two_hosts_that_send_to_one_share_its_link() {
    converge("tsb", &SLOW, 2);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn four_hosts_that_send_to_one_share_its_link() {
    converge("tsd", &SLOW, 4);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn two_hosts_share_a_link_of_a_gigabit() {
    converge("tsf", &FAST, 2);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn four_hosts_share_a_link_of_a_gigabit() {
    converge("tsg", &FAST, 4);
}

/// An incast without marks: nobody slows down, and only pauses keep the buffer from overflowing.
fn unmarked(senders: u32) -> String {
    let topology = SLOW.incast(senders).replace("ecn = [{", "ecn = [] #");
    assert!(topology.contains("ecn = [] #"));
    topology
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn pfc_keeps_unmarked_incast_lossless() {
    // Priorities take turns: else the first copies, of a high one, would keep the last one's TCP and ARP, of the lowest, away until
    // they have ended, and it would meet nobody.
    let topology = unmarked(3).replace("4000kB\"", "800kB\"\nscheduler = \"round-robin\"");
    let Some(mut rig) = SwitchRig::up("tsp", &topology) else {
        return;
    };
    rig.start_hosts(&SLOW, 3, &[]);
    let file = SourceFile::create(rig.path("file"), 8 << 20);
    let copies: Vec<_> = (0..3).map(|host| rig.copy(host, 3, &file.path)).collect();
    for copy in copies {
        let report = copy.finish(LONG).json();
        assert_eq!(report["sha256"], file.digest.as_str());
        assert_eq!(number(&report, "/retransmitted_packets"), 0, "{report}");
    }
    let end = rig.network();
    let pauses: u64 = (0..3).map(|port| data(&end, port).pauses_sent).sum();
    let pausing: f64 = (0..3).map(|port| data(&end, port).pausing).sum();
    println!(
        "{pauses} pauses, {pausing:.3} s, buffer {:?}",
        end.switches[0].buffer
    );
    assert!(pauses > 0 && pausing > 0.0);
    for port in &end.switches[0].ports {
        assert!(
            port.priorities
                .iter()
                .all(|p| p.dropped() == 0 && p.marked == 0),
            "{port:?}"
        );
    }
    for nic in end.hosts.iter().take(3).flat_map(|host| &host.nics) {
        assert!(nic.counters.pauses_received > 0, "{nic:?}");
        assert_eq!(nic.counters.tx_full, 0, "{nic:?}");
    }
    assert!(
        end.drops.iter().all(|end| end.total() == 0),
        "{:?}",
        end.drops
    );
}

/// Two hosts send to a third until some MB have come, with nobody but themselves to stop when the switch pauses them. Gives the
/// switch's books at the end, and what the first sender counted in its queues.
fn paused_alone(test: &str, options: &[&str]) -> Option<(NetworkStatus, [u64; 2])> {
    // Room for what leaves a host before it has heard of a pause, on a busy machine: 24 ms.
    let topology = unmarked(2).replace(
        "alpha = 0.125",
        "threshold = \"60kB\", resume_offset = \"20kB\", headroom = \"300kB\"",
    );
    assert!(topology.contains("headroom"));
    let mut rig = SwitchRig::with(test, &topology, &["--paused-by", "host"])?;
    let mut all = vec!["--port-rate", "100M"];
    all.extend(options);
    rig.start_hosts(&SLOW, 2, &all);
    let file = SourceFile::create(rig.path("file"), 32 << 20);
    let copies: Vec<_> = (0..2).map(|host| rig.copy(host, 2, &file.path)).collect();
    for copy in copies {
        let outcome = copy.finish(LONG);
        // What is lost again and again may end a connection.
        if options.is_empty() {
            assert_eq!(outcome.json()["sha256"], file.digest.as_str());
        }
    }
    let netns = rig.namespace(0);
    let counters = rig
        .run(&["counters", "--json", "--netns", &netns, "--iface", "eth0"])
        .json();
    let of = |field: &str| {
        let queues = items(&counters, "queues");
        queues.iter().map(|q| number(q, field)).sum::<u64>()
    };
    let seen = ["/engine/pauses_honoured", "/engine/paused_ns"].map(of);
    let end = rig.network();
    let pauses: u64 = (0..2).map(|port| data(&end, port).pauses_sent).sum();
    let lost = lost(&end);
    println!("{options:?}: {pauses} pauses sent, {seen:?} honoured and ns, {lost} frames lost");
    assert!(pauses > 0);
    Some((end, seen))
}

/// Frames of the data that the switch dropped.
fn lost(network: &NetworkStatus) -> u64 {
    (0..3).map(|port| data(network, port).dropped()).sum()
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_switch_that_pauses_the_engine_itself_loses_nothing() {
    let Some((end, [honoured, paused_ns])) = paused_alone("tsh", &[]) else {
        return;
    };
    assert_eq!(lost(&end), 0);
    assert!(honoured > 0 && paused_ns > 0);
    let pausing = data(&end, 0).pausing;
    // By the two ends' clocks; a pause that ends early is heard of late, and one that begins too.
    let ratio = paused_ns as f64 * 1e-9 / pausing;
    assert!(
        (0.5..2.0).contains(&ratio),
        "paused {ratio:.2} of {pausing:.3} s"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_switch_that_pauses_an_engine_which_does_not_care_loses_frames() {
    let Some((end, [honoured, _])) = paused_alone("tsi", &["--no-pfc"]) else {
        return;
    };
    assert!(lost(&end) > 0, "what is lossless above is so by the engine");
    assert_eq!(honoured, 0);
}

/// Two leaves and two spines, one host at each leaf.
const LEAF_SPINE: &str = r#"
[defaults.link]
rate = "1Gb/s"
delay = "20us"
[generate]
kind = "leaf-spine"
leaves = 2
hosts_per_leaf = 1
spines = 2
"#;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn frames_find_their_way_through_several_switches_over_all_of_them() {
    let Some(rig) = SwitchRig::up("tsl", LEAF_SPINE) else {
        return;
    };
    let status = rig.status();
    let hosts: Vec<_> = status
        .network
        .hosts
        .iter()
        .map(|host| host.name.clone())
        .collect();
    let far = status.network.hosts[1].nics[0].addresses.clone();
    for address in &far {
        let address = address.to_string();
        rig.exec(
            &hosts[0],
            &["ping", "-c", "3", "-i", "0.2", "-w", "20", &address],
        )
        .ok();
    }
    // Many flows: some take either spine.
    for port in 0..32 {
        let line = format!("echo x > /dev/udp/{}/{}", far[0], 20_000 + port);
        rig.exec(&hosts[0], &["bash", "-c", &line]).ok();
    }
    let network = rig.network();
    let spines: Vec<_> = network
        .switches
        .iter()
        .filter(|s| s.ports.iter().all(|p| p.interface.is_none()))
        .collect();
    assert_eq!(spines.len(), 2);
    for spine in spines {
        let frames: u64 = spine
            .ports
            .iter()
            .flat_map(|p| &p.priorities)
            .map(|p| p.rx_frames)
            .sum();
        assert!(frames > 0, "no flow went by {}", spine.name);
        assert_eq!(spine.no_route, 0);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_a_lab_with_switches_cannot_do_is_said() {
    let Some(rig) = SwitchRig::up("tse", LEAF_SPINE) else {
        return;
    };
    let up = |file: &str| rig.run(&["lab", "up", "--name", "tsex", "--topology", file]);
    let file = rig.path("bad.toml");
    std::fs::write(&file, LEAF_SPINE.replace("1Gb/s", "0Gb/s")).unwrap();
    let file = file.to_str().unwrap();
    up(file).failed(1, &["bad.toml:3: ", "zero"]);
    up("/nonexistent.toml").failed(1, &["/nonexistent.toml"]);
    rig.run(&["lab", "up", "--name", rig.name()])
        .failed(1, &["exists already"]);
    rig.run(&["lab", "exec", "--name", rig.name(), "a", "--", "true"])
        .failed(1, &["is no host of lab", "h0"]);
    rig.run(&["lab", "impair", "--name", rig.name(), "drop=1%"])
        .failed(1, &["topology.toml", "faults"]);
    let json = rig
        .run(&["lab", "status", "--name", rig.name(), "--json"])
        .json();
    assert_eq!(
        json["network"]["switches"].as_array().map(Vec::len),
        Some(4)
    );

    // Killed, the keeper leaves namespaces, which `down` finds all the same.
    let keeper = rig.status().keeper.to_string();
    assert!(
        Command::new("kill")
            .args(["-9", &keeper])
            .status()
            .unwrap()
            .success()
    );
    eventually("the keeper is gone", SHORT, || {
        keeper::look(rig.name()).is_err().then_some(())
    });
    let removed = rig.run(&["lab", "down", "--name", rig.name()]).ok();
    assert_eq!(
        removed.stdout.matches(rig.name()).count(),
        6,
        "{}",
        removed.stdout
    );
    rig.run(&["lab", "down", "--name", rig.name()])
        .failed(1, &["there is no lab"]);
}
