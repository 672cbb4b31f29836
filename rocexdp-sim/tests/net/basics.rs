//! One flow and its times; where packets are; that a run repeats.

use rocexdp_proto::time::Rate;
use rocexdp_proto::verbs::Status;
use rocexdp_sim::net::rc::{Connection, Message, Op, RcHost};
use rocexdp_sim::net::{Network, NetworkError, Options, Totals, pcap_header};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::topology::{HostId, LinkId, PortId, SwitchId, TopologyError};

use crate::common::{
    done, endpoint, flow, host, link, named_hosts, network, network_with, star, switch, write,
};

const RATE: Rate = Rate::from_gbps(100);
const US: Picos = Picos::from_micros(1);

#[test]
fn a_message_through_a_switch_arrives_at_link_rate() {
    let mut net = network(star(2, RATE, US), 1);
    let message = write(10_000_000, US);
    flow(&mut net, [0, 1], &Connection::default(), message);
    net.run_until(Picos::from_micros(2_000));
    let done = done(&mut net, 0);
    assert_eq!(done.len(), 1, "{:?}", net.totals());
    assert_eq!(done[0].status, Status::Success);
    let took = done[0].end - US;
    // 9766 packets of 1024 B and 58 or 74 B of headers.
    let ideal = Picos::serialise(10_000_000 + 9_766 * 58 + 16, RATE);
    assert!(
        took > ideal && took < ideal + Picos::from_micros(20),
        "{took} of {ideal}"
    );
    let totals = net.totals();
    assert!(totals.balance(), "{totals:?}");
    assert_eq!((totals.lost(), totals.under_way, totals.queued), (0, 0, 0));
}

/// One packet there and its acknowledgement back, over two links each: to the picosecond.
#[test]
fn the_round_trip_is_what_links_take() {
    for (rate, delay) in [(RATE, US), (Rate::from_gbps(25), Picos(1_234_567))] {
        let mut net = network(star(2, rate, delay), 1);
        flow(&mut net, [0, 1], &Connection::default(), write(1000, US));
        net.run_until(Picos::from_micros(100));
        // Ethernet, IPv4, UDP, BTH, RETH, payload, ICRC; and with AETH for RETH.
        let (data, ack) = (14 + 20 + 8 + 12 + 16 + 1000 + 4, 14 + 20 + 8 + 12 + 4 + 4);
        let links = 2 * (Picos::serialise(data, rate).0 + Picos::serialise(ack, rate).0);
        let ends: Vec<_> = done(&mut net, 0).iter().map(|d| d.end).collect();
        assert_eq!(ends, [US + Picos(links + 4 * delay.0)]);
    }
}

#[test]
fn sends_and_reads_end_too_one_behind_the_other() {
    let mut net = network(star(2, RATE, US), 1);
    let [end, _] = crate::common::connect(&mut net, 0, 1, &Connection::default());
    let ops = [
        Op::Send,
        Op::Read,
        Op::Write,
        Op::Send,
        Op::Read,
        Op::Write,
        Op::Send,
    ];
    for (tag, op) in ops.into_iter().enumerate() {
        let message = Message {
            tag: tag as u64,
            start: Picos::ZERO,
            bytes: 50_000 + tag as u64,
            op,
        };
        net.host_mut(HostId(0)).post(end, message);
    }
    net.run_until(Picos::from_micros(1_000));
    let done = done(&mut net, 0);
    let tags: Vec<_> = done.iter().map(|d| d.tag).collect();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6]);
    assert!(done.iter().all(|d| d.status == Status::Success), "{done:?}");
    assert!(done.is_sorted_by_key(|d| d.end));
}

/// Hosts with two NICs, at two switches that are not joined: each NIC has its way.
#[test]
fn each_nic_has_its_own_rail() {
    let mut topology = star(2, RATE, US);
    topology.switches.push(topology.switches[0].clone());
    topology.switches[1].name = "s1".to_owned();
    for h in 0..2 {
        topology.links.push(link(host(h), switch(1), RATE, US));
    }
    let mut net = network(topology, 1);
    for nic in [PortId(0), PortId(1)] {
        let hosts = net.hosts_mut([HostId(0), HostId(1)]);
        let [end, _] =
            RcHost::connect(hosts, [nic; 2], &Connection::default()).expect("a connection");
        net.host_mut(HostId(0)).post(end, write(100_000, US));
    }
    net.run_until(Picos::from_micros(200));
    assert_eq!(done(&mut net, 0).len(), 2);
    for s in [SwitchId(0), SwitchId(1)] {
        assert_eq!(
            net.switch(s).counters(net.now(), PortId(1), 0).tx_packets,
            98
        );
        assert_eq!(net.no_route(s), 0);
    }
}

/// Three to one, beyond where marks begin.
fn congested(seed: u64) -> Network<RcHost> {
    let mut net = network_with(star(4, RATE, US), seed, |c| c.max_inflight_packets = 1_024);
    for from in 0..3 {
        flow(
            &mut net,
            [from, 3],
            &Connection::default(),
            write(u64::MAX, US),
        );
    }
    net
}

fn incast(seed: u64) -> (Network<RcHost>, Vec<Totals>) {
    let mut net = congested(seed);
    let totals = (1..20).map(|n| {
        net.run_until(Picos::from_micros(100 * n));
        net.totals()
    });
    let totals = totals.collect();
    (net, totals)
}

#[test]
fn one_seed_is_one_run() {
    let (a, totals) = incast(1);
    let (b, again) = incast(1);
    assert_eq!(totals, again);
    assert_eq!(a.work(), b.work());
    let marked = |net: &Network<RcHost>| {
        let c = net.switch(SwitchId(0)).counters(net.now(), PortId(3), 0);
        (c.marked, c.queue_integral)
    };
    assert_eq!(marked(&a), marked(&b));
    assert!(marked(&a).0 > 100, "{:?}", marked(&a));
    let (c, _) = incast(2);
    assert_ne!(marked(&a), marked(&c));
    for t in &totals {
        assert!(t.balance(), "{t:?}");
        assert_eq!(t.lost(), 0);
    }
    assert!(totals.iter().any(|t| t.queued > 100 && t.under_way > 10));
}

/// In one go or in steps: the same.
#[test]
fn steps_change_nothing() {
    let (a, _) = incast(1);
    let mut b = congested(1);
    b.run_until(Picos::from_micros(1_900));
    assert_eq!(a.totals(), b.totals());
    assert_eq!(a.work().1, b.work().1);
}

#[test]
fn a_link_can_be_captured() {
    use std::sync::{Arc, Mutex};
    let mut net = network(star(2, RATE, US), 1);
    flow(&mut net, [0, 1], &Connection::default(), write(3_000, US));
    let seen = Arc::new(Mutex::new(pcap_header().to_vec()));
    let file = Arc::clone(&seen);
    net.set_tap(Box::new(move |t| {
        let mut file = file.lock().expect("nobody panics");
        file.extend_from_slice(&t.pcap_record());
        file.extend_from_slice(t.frame);
    }));
    net.tap(LinkId(1), 1, true);
    net.run_until(Picos::from_micros(100));
    let file = seen.lock().expect("nobody panics");
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(0), 0xa1b2_3c4d);
    let (mut at, mut records) = (24, Vec::new());
    while at < file.len() {
        records.push((word(at), word(at + 4), word(at + 8), word(at + 12)));
        at += 16 + word(at + 8) as usize;
    }
    // The first packet leaves the switch when it has arrived whole, the others, which have come meanwhile, behind it.
    let [first, later] = [74 + 1024, 58 + 1024].map(|n| Picos::serialise(n, RATE).0);
    let last = 58 + 952;
    let t = |ps: u64| ((2 * US.0 + ps) / 1000) as u32;
    assert_eq!(
        *records,
        [
            (0, t(first), 70, 74 + 1024),
            (0, t(2 * first), 54, 58 + 1024),
            (0, t(2 * first + later), 54, last as u32),
        ]
    );
}

#[test]
fn what_is_no_network_is_refused_by_name() {
    let refused = |change: &dyn Fn(&mut rocexdp_sim::topology::Topology)| {
        let mut topology = star(3, RATE, US);
        change(&mut topology);
        let hosts = (0..3).map(|h| RcHost::new(HostId(h), &[endpoint(RATE)], 1));
        let error = Network::new(topology, hosts.collect(), &Options::default());
        error.err().expect("an error").to_string()
    };
    let says = |text: String, words: &[&str]| {
        assert!(words.iter().all(|w| text.contains(w)), "{text}");
    };
    says(
        refused(&|t| {
            t.links.pop();
            t.switches[0].config.ports.pop();
        }),
        &["no way", "h0", "h2"],
    );
    says(
        refused(&|t| t.links[1].rate = Rate::ZERO),
        &["h1", "s0", "rate 0"],
    );
    says(
        refused(&|t| t.hosts[2].name = "h0".to_owned()),
        &["two nodes", "h0"],
    );
    says(
        refused(&|t| t.links[1].down = vec![(US, US)]),
        &["h1", "down"],
    );
    says(
        refused(&|t| t.switches[0].config.ports.truncate(2)),
        &["s0", "3 links", "2 ports"],
    );
    says(
        refused(&|t| t.switches[0].config.buffer = 0),
        &["switch s0"],
    );
    says(refused(&|t| t.hosts = named_hosts(4)), &["no way", "h3"]);
    let alone = Network::<RcHost>::new(Default::default(), Vec::new(), &Options::default());
    assert_eq!(
        alone.err(),
        Some(NetworkError::Topology(TopologyError::NoHosts))
    );
}
