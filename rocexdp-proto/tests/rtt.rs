//! Round-trip times: from a request's first transmission to what acknowledges it.

mod common;

use common::{LONG, pattern, send_wr, stats, target, write_op};
use rocexdp_common::maps::Rtt;
use rocexdp_proto::ids::PathMtu;
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig};

/// One way over the wire of these tests.
const WAY_NS: u64 = 500_000;

fn delayed() -> PairConfig {
    let mut config = PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    };
    for faults in &mut config.faults {
        faults.delay_ns = WAY_NS;
    }
    config
}

/// Writes one packet at a time, `times` times, and says what end 0 measured.
fn measured(pair: &mut Pair, times: u64) -> Rtt {
    let (_, region) = target(pair, 256);
    for id in 0..times {
        let wr = send_wr(id, write_op(&region), &Bytes::of(pattern(256, 1)), 256);
        pair.post_send(0, wr).unwrap();
        assert!(pair.run(LONG));
    }
    stats(pair, 0).rtt
}

#[test]
fn a_request_that_was_sent_once_is_timed() {
    let mut pair = Pair::new(&delayed());
    let rtt = measured(&mut pair, 10);
    assert_eq!(rtt.count(), 10);
    let both_ways = 2 * WAY_NS;
    assert!(
        (both_ways..both_ways + 100_000).contains(&rtt.max_ns),
        "{}",
        rtt.max_ns
    );
    assert_eq!(rtt.buckets[Rtt::bucket(both_ways)], 10);
    assert_eq!(stats(&pair, 1).rtt.count(), 0, "a responder times nothing");
}

#[test]
fn a_request_that_was_sent_again_is_not_timed() {
    let mut pair = Pair::new(&delayed());
    // The first acknowledgement is lost.
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 1 && n == 0 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let rtt = measured(&mut pair, 2);
    assert_eq!(stats(&pair, 0).retransmitted_packets, 1);
    assert_eq!(rtt.count(), 1, "only the second message");
}
