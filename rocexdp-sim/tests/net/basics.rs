//! One flow, its times, and where its packets are.

use rocexdp_proto::time::Rate;
use rocexdp_proto::verbs::Status;
use rocexdp_sim::net::rc::Connection;
use rocexdp_sim::picos::Picos;

use crate::common::{done, flow, network, star, write};

#[test]
fn a_message_through_a_switch_arrives_at_link_rate() {
    let us = Picos::from_micros(1);
    let mut net = network(star(2, Rate::from_gbps(100), us), 1);
    flow(
        &mut net,
        [0, 1],
        &Connection::default(),
        write(10_000_000, us),
    );
    net.run_until(Picos::from_micros(2_000));
    let done = done(&mut net, 0);
    assert_eq!(done.len(), 1, "{:?}", net.totals());
    assert_eq!(done[0].status, Status::Success);
    let took = done[0].end - us;
    // 9766 packets of 1024 B and 58 or 74 B of headers.
    let ideal = Picos::serialise(10_000_000 + 9_766 * 58 + 16, Rate::from_gbps(100));
    assert!(
        took > ideal && took < ideal + Picos::from_micros(20),
        "{took} of {ideal}"
    );
    let totals = net.totals();
    assert!(totals.balance(), "{totals:?}");
    assert_eq!(totals.lost(), 0);
    println!("{:?} {:?}", totals, net.work());
}
