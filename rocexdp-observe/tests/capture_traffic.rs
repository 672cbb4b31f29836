//! The generated traffic that other tests and the benchmark stand on is what it claims to be.

mod capture_support;
#[path = "capture_support/traffic.rs"]
mod traffic;

use std::collections::BTreeMap;

use rocexdp_observe::{
    capture::Reader,
    icrc::{Icrc, check},
};
use traffic::{Lost, Plan, Qp, Tap, Verb, make};

#[test]
fn every_packet_is_whole_and_the_lost_ones_are_sent_again() {
    let qp = |verb, mtu| Qp {
        verb,
        mtu,
        message: 40_001,
        messages: 20,
        gap_ns: 800,
    };
    let plan = Plan {
        qps: vec![
            qp(Verb::Write, 4096),
            qp(Verb::Send, 1024),
            qp(Verb::Read, 1024),
        ],
        loss_one_in: 100,
        places: vec![Lost::Between],
        ce_one_in: 50,
        seed: 7,
        start: 1_700_000_000_000_000_000,
        delay_ns: 5_000,
    };
    let mut near = Tap::new(Vec::new());
    let mut far = Tap::new(Vec::new());
    let (mut sent, mut lost) = (0_u32, 0);
    make(&plan, |wire| {
        sent += 1;
        lost += u32::from(wire.lost.is_some());
        if let Some(time) = wire.near {
            near.push(time, wire.settled, wire.frame);
        }
        if let Some(time) = wire.far {
            far.push(time, wire.settled, wire.frame);
        }
    });
    assert!(lost > 5, "{lost}");
    // Each PSN of each request reaches the responder, whatever was lost on the way.
    for tap in [near.finish(), far.finish()] {
        let mut reader = Reader::from_reader(std::io::Cursor::new(tap)).unwrap();
        let mut psns = BTreeMap::<u32, Vec<u32>>::new();
        let (mut packets, mut last) = (0_u32, 0);
        while let Some(p) = reader.next().unwrap() {
            packets += 1;
            assert!(p.time_ns >= last);
            last = p.time_ns;
            let packet = *p.dissect().kind.packet().unwrap();
            assert_eq!(check(p.data, &packet), Icrc::Right);
            psns.entry(packet.flow.dest_qpn)
                .or_default()
                .push(packet.bth.psn.get());
        }
        assert!(
            packets + lost >= sent && packets <= sent,
            "{packets} of {sent}"
        );
        let requests = 20 * 40_001_usize.div_ceil(4096);
        let write = psns.get_mut(&traffic::qpn(0)).unwrap();
        // What followed a lost packet was seen by both, and again when it was sent again.
        write.sort_unstable();
        let all = write.len();
        write.dedup();
        let again = all > write.len();
        assert_eq!(write.len(), requests);
        assert!(again);
    }
}
