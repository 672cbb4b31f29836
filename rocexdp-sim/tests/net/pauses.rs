//! PFC from switch to switch to host.

use rocexdp_proto::EndpointConfig;
use rocexdp_proto::time::Rate;
use rocexdp_sim::net::Network;
use rocexdp_sim::net::rc::{Connection, RcHost};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::PfcThreshold;
use rocexdp_sim::topology::{LinkId, PortId, SwitchId, Topology};

use crate::common::{
    done, flow, host, link, lossless, named_hosts, named_switch, network_with, switch, write,
};

const FAST: Rate = Rate::from_gbps(100);
const SLOW: Rate = Rate::from_gbps(25);
const US: Picos = Picos::from_micros(1);

/// Three fast hosts at one switch, a slow one at the next.
fn line(quanta: Option<u16>) -> Topology {
    let config = |rates: &[Rate]| {
        let mut config = lossless(rates, US);
        let pfc = config.pfc.as_mut().expect("it is lossless");
        pfc.threshold = PfcThreshold::Static(50_000);
        pfc.quanta = quanta;
        for port in &mut config.ports {
            port.ecn = [None; 8];
        }
        config
    };
    Topology {
        hosts: named_hosts(4),
        switches: vec![
            named_switch("near", config(&[FAST; 4])),
            named_switch("far", config(&[FAST, SLOW])),
        ],
        links: vec![
            link(host(0), switch(0), FAST, US),
            link(host(1), switch(0), FAST, US),
            link(host(2), switch(0), FAST, US),
            link(switch(0), switch(1), FAST, US),
            link(switch(1), host(3), SLOW, US),
        ],
    }
}

fn unruled(config: &mut EndpointConfig) {
    config.cnp_enabled = false;
    config.max_inflight_packets = 4_096;
}

fn pauses(net: &Network<RcHost>, switch: u32, port: u16) -> u64 {
    let switch = net.switch(SwitchId(switch));
    switch.counters(net.now(), PortId(port), 0).pauses_sent
}

#[test]
fn pauses_go_back_to_the_senders_and_nothing_is_lost() {
    for quanta in [None, Some(u16::MAX), Some(200)] {
        let mut net = network_with(line(quanta), 1, unruled);
        for from in 0..3 {
            flow(
                &mut net,
                [from, 3],
                &Connection::default(),
                write(3_000_000, US),
            );
        }
        let mut fullest = 0;
        for n in 1..100 {
            net.run_until(Picos::from_micros(50 * n));
            fullest = fullest.max(net.switch(SwitchId(1)).buffer().used);
            assert!(net.totals().balance());
        }
        let ends: Vec<_> = (0..3)
            .flat_map(|h| done(&mut net, h))
            .map(|d| d.end)
            .collect();
        assert_eq!(ends.len(), 3, "{quanta:?}: {:?}", net.totals());
        assert_eq!(net.totals().lost(), 0);
        // The slow link was never idle: 9 MB and headers at 25 Gb/s.
        let ideal = Picos::serialise(9_000_000 + 8_790 * 58, SLOW);
        let last = ends.iter().max().copied().unwrap_or_default();
        assert!(last < ideal + Picos::from_micros(30), "{last} of {ideal}");
        assert!(pauses(&net, 1, 0) > 10, "far to near");
        for port in 0..3 {
            assert!(pauses(&net, 0, port) > 3, "near to host {port}");
        }
        // Threshold, headroom of one port, and no more.
        assert!(fullest < 50_000 + 40_000, "{fullest}");
        assert!(net.link(LinkId(3))[1].pause_frames > 10);
    }
}

/// Hosts 0 to 2 write 3 MB each to host 3.
fn three_to_one(net: &mut Network<RcHost>) {
    for from in 0..3 {
        flow(net, [from, 3], &Connection::default(), write(3_000_000, US));
    }
}

/// Without PFC the same traffic loses packets: the test above can fail.
#[test]
fn without_pauses_it_is_lossy() {
    let mut topology = line(None);
    for s in &mut topology.switches {
        s.config.pfc = None;
        s.config.tail_drop = Some(50_000);
    }
    let mut net = network_with(topology, 1, unruled);
    three_to_one(&mut net);
    net.run_until(Picos::from_micros(5_000));
    let totals = net.totals();
    assert!(totals.dropped[0] > 100, "{totals:?}");
    assert!(totals.balance());
}

/// A pause that is lost with its link holds nobody for ever.
#[test]
fn pauses_end_with_their_link_and_are_told_again() {
    let mut topology = line(None);
    topology.links[3].down = vec![(Picos::from_micros(300), Picos::from_micros(320))];
    let mut net = network_with(topology, 1, unruled);
    three_to_one(&mut net);
    net.run_until(Picos::from_micros(30_000));
    let ended: usize = (0..3).map(|h| done(&mut net, h).len()).sum();
    assert_eq!(ended, 3, "{:?}", net.totals());
    let totals = net.totals();
    assert!(totals.lost_down > 0);
    assert_eq!(totals.lost(), totals.lost_down);
}
