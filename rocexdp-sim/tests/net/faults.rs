//! Links that lose, change, copy and hold packets, or go down: the books balance, and the transport gets over it.

use rocexdp_common::fault::{Faults, Share};
use rocexdp_proto::SelectiveRepeat;
use rocexdp_proto::time::Rate;
use rocexdp_proto::verbs::Status;
use rocexdp_sim::net::rc::{Connection, RcHost};
use rocexdp_sim::net::{LinkCounters, Network};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::topology::{LinkId, PortId};

use crate::common::{done, flow, network, network_with, star, write};

const RATE: Rate = Rate::from_gbps(100);
const US: Picos = Picos::from_micros(1);

fn connections() -> [Connection; 2] {
    let selective = Some(SelectiveRepeat { paths: 1 });
    [
        Connection::default(),
        Connection {
            selective,
            ..Connection::default()
        },
    ]
}

fn icrc_errors(net: &Network<RcHost>) -> u64 {
    let hosts = net.hosts().iter();
    hosts
        .map(|h| h.endpoint(PortId(0)).counters().icrc_errors)
        .sum()
}

/// A link's direction balances by itself.
fn balances(c: &LinkCounters, under_way: u64) {
    assert_eq!(
        c.packets + c.duplicated,
        c.delivered + c.lost_fault + c.lost_down + under_way,
        "{c:?}"
    );
}

#[test]
fn a_message_gets_over_every_fault() {
    let share = Share::ratio(1, 100);
    for with in connections() {
        let mut topology = star(2, RATE, US);
        for (i, l) in topology.links.iter_mut().enumerate() {
            l.faults = [0, 1].map(|end| Faults {
                seed: 10 * i as u64 + end,
                drop: share,
                corrupt: share,
                duplicate: share,
                reorder: share,
                ce: share,
                delay_ns: 100,
                reorder_depth: 0,
            });
        }
        let mut net = network(topology, 1);
        flow(&mut net, [0, 1], &with, write(2_000_000, US));
        for n in 1..200 {
            net.run_until(Picos::from_micros(500 * n));
            let totals = net.totals();
            assert!(totals.balance(), "{totals:?}");
        }
        let done = done(&mut net, 0);
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].status, Status::Success);
        let counters = [LinkId(0), LinkId(1)].map(|l| net.link(l));
        for c in counters.as_flattened() {
            balances(c, 0);
        }
        let data = &counters[0][0];
        for (what, n) in [
            ("lost", data.lost_fault),
            ("corrupted", data.corrupted),
            ("duplicated", data.duplicated),
            ("reordered", data.reordered),
            ("marked", data.marked),
        ] {
            let expected = data.packets / 100;
            assert!(
                n > expected / 2 && n < 2 * expected,
                "{what}: {n} of {data:?}"
            );
        }
        assert!(icrc_errors(&net) > 0);
    }
}

/// Each packet with a byte changed is found out, wherever the byte is, and nothing else is refused.
#[test]
fn a_changed_byte_is_found_out() {
    let mut topology = star(2, RATE, US);
    topology.links[1].faults[1].corrupt = Share::ratio(1, 50);
    let mut net = network(topology, 1);
    flow(
        &mut net,
        [0, 1],
        &Connection::default(),
        write(5_000_000, US),
    );
    net.run_until(Picos::from_micros(20_000));
    assert_eq!(done(&mut net, 0).len(), 1);
    let corrupted = net.link(LinkId(1))[1].corrupted;
    assert!(corrupted > 50);
    // Some are refused for what the byte was before the ICRC is looked at: those in the BTH.
    let found = icrc_errors(&net);
    assert!(
        found <= corrupted && found > corrupted * 9 / 10,
        "{found} of {corrupted}"
    );
}

#[test]
fn what_is_under_way_when_a_link_goes_down_is_lost_and_sent_again() {
    for with in connections() {
        let mut topology = star(2, RATE, Picos::from_micros(5));
        let down = |from: u64, until: u64| (Picos::from_micros(from), Picos::from_micros(until));
        topology.links[1].down = vec![down(50, 60), down(80, 90)];
        let mut net = network_with(topology, 1, |c| c.max_inflight_packets = 1_024);
        flow(&mut net, [0, 1], &with, write(2_000_000, US));
        net.run_until(Picos::from_micros(50) - Picos(1));
        let under_way = net.totals().under_way;
        net.run_until(Picos::from_micros(50));
        let [from_host, from_switch] = net.link(LinkId(1));
        // 5 us at 100 Gb/s are 57 packets.
        assert!(from_switch.lost_down >= 56, "{from_switch:?}");
        assert!(from_host.lost_down + from_switch.lost_down <= under_way + 2);
        net.run_until(Picos::from_micros(20_000));
        let done = done(&mut net, 0);
        assert_eq!(done.len(), 1, "{:?}", net.totals());
        assert_eq!(done[0].status, Status::Success);
        assert!(done[0].end > Picos::from_micros(90));
        assert!(net.totals().balance());
        assert!(net.link(LinkId(1))[1].delivered > 1_900);
    }
}

/// A link that never comes up again: the QP fails, and says so.
#[test]
fn a_peer_that_is_gone_fails_the_message() {
    let mut topology = star(2, RATE, US);
    topology.links[1].down = vec![(Picos::from_micros(50), Picos::MAX)];
    let mut net = network(topology, 1);
    flow(
        &mut net,
        [0, 1],
        &Connection::default(),
        write(2_000_000, US),
    );
    net.run_until(Picos::from_micros(100_000));
    let done = done(&mut net, 0);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].status, Status::RetryExcErr);
    assert!(net.totals().lost_down > 0 && net.totals().balance());
}
