//! Equal ways through a network: flows are spread over them, and each keeps its own.

use rocexdp_proto::time::Rate;
use rocexdp_sim::net::Network;
use rocexdp_sim::net::rc::{Connection, RcHost};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::topology::{LinkId, Topology};

use crate::common::{
    done, flow, host, link, lossless, named_hosts, named_switch, network, switch, write,
};

const RATE: Rate = Rate::from_gbps(100);
const US: Picos = Picos::from_micros(1);

/// Two leaves with two hosts each, four spines. Links 4..8 are those of the first leaf to the spines.
fn leaf_spine() -> Topology {
    let mut links = Vec::new();
    for h in 0..4 {
        links.push(link(host(h), switch(h / 2), RATE, US));
    }
    for leaf in 0..2 {
        for spine in 0..4 {
            links.push(link(switch(leaf), switch(2 + spine), RATE, US));
        }
    }
    let leaf = |name| named_switch(name, lossless(&[RATE; 6], US));
    let spine = |name: &str| named_switch(name, lossless(&[RATE; 2], US));
    Topology {
        hosts: named_hosts(4),
        switches: vec![
            leaf("l0"),
            leaf("l1"),
            spine("p0"),
            spine("p1"),
            spine("p2"),
            spine("p3"),
        ],
        links,
    }
}

/// Packets that the first leaf sent to each spine.
fn upward(net: &Network<RcHost>) -> Vec<u64> {
    (4..8).map(|l| net.link(LinkId(l))[0].packets).collect()
}

#[test]
fn a_flow_keeps_its_way() {
    for seed in 0..8 {
        let mut net = network(leaf_spine(), seed);
        flow(
            &mut net,
            [0, 2],
            &Connection::default(),
            write(1_000_000, US),
        );
        net.run_until(Picos::from_micros(500));
        assert_eq!(done(&mut net, 0).len(), 1);
        let mut up = upward(&net);
        up.sort_unstable();
        // 977 packets one way; answers come back by any.
        assert_eq!(up, [0, 0, 0, 977]);
    }
}

#[test]
fn flows_are_spread_over_equal_ways() {
    let mut net = network(leaf_spine(), 1);
    for _ in 0..200 {
        flow(&mut net, [0, 2], &Connection::default(), write(1_000, US));
    }
    net.run_until(Picos::from_micros(500));
    assert_eq!(done(&mut net, 0).len(), 200);
    let up = upward(&net);
    assert_eq!(up.iter().sum::<u64>(), 200);
    // 50 each on average, standard deviation 6.1.
    assert!(up.iter().all(|n| (30..=70).contains(n)), "{up:?}");
    // Between hosts of one leaf no spine is asked.
    flow(&mut net, [0, 1], &Connection::default(), write(100_000, US));
    net.run_until(Picos::from_micros(1_000));
    assert_eq!(upward(&net), up);
}

#[test]
fn another_seed_is_another_spread() {
    let spread = |seed| {
        let mut net = network(leaf_spine(), seed);
        for _ in 0..50 {
            flow(&mut net, [0, 2], &Connection::default(), write(1_000, US));
        }
        net.run_until(Picos::from_micros(500));
        upward(&net)
    };
    assert_eq!(spread(5), spread(5));
    assert_ne!(spread(5), spread(6));
}
