//! Any frames at a host with QPs: the verdict never panics, books every frame once, and says the same of it in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rocexdp_common::{
    maps::{QpConfig, local_addr},
    verdict::Outcome,
};
use rocexdp_fuzz::arrivals;

#[path = "../../rocexdp-common/tests/support/mod.rs"]
mod support;

use support::model::Model;

/// The hosts of the captures; the second is the one that the frames arrive at.
const PEER: [u8; 4] = [10, 77, 0, 2];
const LOCAL: [u8; 4] = [10, 77, 0, 3];

/// The QPs that Soft-RoCE gave to the captured connections, of all services, and MADs' QP 1.
fn model() -> Model {
    let gid = rocexdp_common::ids::gid_from_ipv4;
    let mut model = Model::new(64, 2);
    for qpn in 1..64 {
        model.add(QpConfig {
            generation: 1,
            qpn,
            peer_qpn: qpn,
            local_gid: gid(LOCAL),
            peer_gid: gid(PEER),
            transport: match qpn {
                1 | 50..=52 => 3,
                53..=55 => 1,
                _ => 0,
            },
            path_mtu_log2: 10,
            resync: 1,
            resync_request_psn: 0x100,
            resync_response_psn: 0x200,
            ..QpConfig::default()
        });
    }
    model.addresses = vec![(gid(LOCAL), local_addr::EXCLUSIVE)];
    model.sockets = vec![0];
    model
}

fuzz_target!(|data: &[u8]| {
    let mut whole = model();
    let mut pieces = model();
    let mut frames = 0;
    for (queue, frame) in arrivals(data) {
        (whole.queue, pieces.queue) = (queue, queue);
        whole.now += 1000;
        pieces.now += 1000;
        let outcome = whole.run(frame);
        let (a, b) = frame.split_at(frame.len() / 2);
        let two: [&[u8]; 2] = [a, b];
        assert_eq!(pieces.run(&two[..]), outcome, "in two pieces");
        if queue >= 2 {
            assert!(!matches!(outcome, Outcome::Redirected | Outcome::Consumed));
        }
        frames += 1;
    }
    let books = &whole.queue_counters;
    let sum =
        |of: fn(&rocexdp_common::maps::QueueCounters) -> u64| books.iter().map(of).sum::<u64>();
    assert_eq!(sum(|q| q.frames), frames);
    assert_eq!(
        frames,
        sum(|q| q.redirected + q.consumed + q.dropped + q.passed_rocev2 + q.passed_other)
    );
    assert_eq!(
        sum(|q| q.rocev2),
        sum(|q| q.redirected + q.consumed + q.dropped + q.passed_rocev2)
    );
    assert!(sum(|q| q.reasons.iter().sum()) <= frames);
    assert_eq!(sum(|q| q.flow_inserts), whole.flows.len() as u64);
    assert_eq!(
        sum(|q| q.redirected),
        whole.counters.iter().map(|c| c.redirected).sum::<u64>()
    );
    assert_eq!(whole.queue_counters, pieces.queue_counters);
    assert_eq!(whole.counters, pieces.counters);
    assert_eq!(whole.flows, pieces.flows);
    assert_eq!(whole.dirty, pieces.dirty);
});
