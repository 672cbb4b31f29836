//! Five switches in a ring, where the shortest way to the next but one is all the same direction: pauses that go round.

use rocexdp_proto::time::Rate;
use rocexdp_sim::net::rc::{Connection, RcHost};
use rocexdp_sim::net::{DeadlockCheck, Ended, Network, Options};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::PfcThreshold;
use rocexdp_sim::topology::{HostId, SwitchId, Topology};

use crate::common::{
    endpoint, flow, host, link, lossless, named_hosts, named_switch, switch, write,
};

const RATE: Rate = Rate::from_gbps(100);
const US: Picos = Picos::from_micros(1);
const RING: u32 = 5;

/// A ring with two hosts at each switch. Ports of a switch: its hosts, then by links of the ring.
fn ring() -> Topology {
    let mut config = lossless(&[RATE; 4], US);
    if let Some(pfc) = &mut config.pfc {
        pfc.threshold = PfcThreshold::Static(40_000);
    }
    for port in &mut config.ports {
        port.ecn = [None; 8];
    }
    let hosts = (0..2 * RING).map(|h| link(host(h), switch(h / 2), RATE, US));
    let ring = (0..RING).map(|s| link(switch(s), switch((s + 1) % RING), RATE, US));
    Topology {
        hosts: named_hosts(2 * RING as usize),
        switches: (0..RING)
            .map(|s| named_switch(&format!("s{s}"), config.clone()))
            .collect(),
        links: hosts.chain(ring).collect(),
    }
}

/// Every host sends without end to one `ahead` switches further.
fn network(ahead: u32, stop: bool) -> Network<RcHost> {
    let mut config = endpoint(RATE);
    config.cnp_enabled = false;
    config.max_inflight_packets = 4_096;
    let hosts = (0..2 * RING).map(|h| RcHost::new(HostId(h), core::slice::from_ref(&config), 1));
    let options = Options {
        deadlock: Some(DeadlockCheck {
            after: Picos::from_micros(200),
            stop,
        }),
        ..Options::default()
    };
    let mut net = Network::new(ring(), hosts.collect(), &options).expect("a network");
    for h in 0..2 * RING {
        let to = (h + 2 * ahead) % (2 * RING);
        flow(
            &mut net,
            [h, to],
            &Connection::default(),
            write(u64::MAX, US),
        );
    }
    net
}

#[test]
fn a_cycle_of_pauses_is_named() {
    let mut net = network(2, true);
    assert_eq!(net.run_until(Picos::from_micros(5_000)), Ended::Deadlock);
    let [deadlock] = net.deadlocks() else {
        panic!("{:?}", net.deadlocks());
    };
    let switches: Vec<_> = deadlock.queues.iter().map(|(s, ..)| *s).collect();
    assert_eq!(switches, [0, 1, 2, 3, 4].map(SwitchId));
    assert!(deadlock.noticed - deadlock.since >= Picos::from_micros(200));
    assert!(net.now() < Picos::from_micros(5_000));
    // Going on changes nothing: it is one deadlock, told once, and nothing arrives any more.
    let received = net.totals().received;
    net.run_until(Picos::from_micros(1_500));
    assert_eq!(
        (net.deadlocks().len(), net.totals().received),
        (1, received)
    );
    assert_eq!(net.totals().lost(), 0);
}

/// The same ring, as many pauses, no cycle: each flow ends at the next switch.
#[test]
fn pauses_without_a_cycle_are_none() {
    let mut net = network(1, true);
    assert_eq!(net.run_until(Picos::from_micros(5_000)), Ended::Time);
    assert!(net.deadlocks().is_empty());
    let pauses: u64 = (0..RING)
        .flat_map(|s| (0..4).map(move |p| (s, p)))
        .map(|(s, p)| {
            let switch = net.switch(SwitchId(s));
            let port = rocexdp_sim::topology::PortId(p);
            switch.counters(net.now(), port, 0).pauses_sent
        })
        .sum();
    assert!(pauses > 1_000, "{pauses}");
}
