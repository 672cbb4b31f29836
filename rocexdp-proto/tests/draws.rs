//! Keys, QPNs and starting PSNs: drawn evenly from the caller's seed, never twice, the same in each run.

use std::collections::BTreeSet;
use std::sync::Arc;

use rocexdp_proto::ids::Pd;
use rocexdp_proto::mem::{Access, WindowKind};
use rocexdp_proto::verbs::CompletionQueue;
use rocexdp_proto::{CreateQp, Endpoint, EndpointConfig};
use rocexdp_sim::memory::NoBytes;

const DRAWN: usize = 4096;

/// Each bit of the numbers is set about half of the time: within six standard deviations.
fn is_even(numbers: &[u32], bits: std::ops::Range<u32>) {
    let n = numbers.len() as f64;
    for bit in bits {
        let set = numbers.iter().filter(|x| **x >> bit & 1 != 0).count() as f64;
        let off = (set - n / 2.0).abs() / (n / 4.0).sqrt();
        assert!(off < 6.0, "bit {bit} is set {set} times of {n}");
    }
    // Nor does one number tell the next: half of the bits change from each to the next.
    let changed: u32 = numbers.windows(2).map(|w| (w[0] ^ w[1]).count_ones()).sum();
    let all = f64::from(u32::BITS) * n;
    assert!(f64::from(changed) < all * 0.52, "{changed} of {all}");
}

#[test]
fn numbers_are_drawn_evenly_and_never_twice() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 7);
    let cq = Arc::new(CompletionQueue::new(16));
    let mut qpns = Vec::new();
    for _ in 0..DRAWN {
        let qpn = ep.draw_qpn(0, 0).unwrap();
        let create = CreateQp {
            max_send: 1,
            max_recv: 1,
            ..CreateQp::rc(qpn, &cq, &cq)
        };
        ep.create_qp(create).expect("a number that was free");
        qpns.push(qpn.get());
    }
    is_even(&qpns, 0..23);
    assert!(qpns.iter().all(|n| (0x80_0000..0xff_ffff).contains(n)));

    let psns: Vec<u32> = (0..DRAWN).map(|_| ep.draw_psn().get()).collect();
    is_even(&psns, 0..24);

    let memory = Arc::new(NoBytes(64));
    let keys: Vec<u32> = (0..DRAWN)
        .map(|_| {
            let access = Access::REMOTE_READ;
            ep.register_memory(memory.clone(), 0, access)
                .unwrap()
                .rkey
                .0
        })
        .collect();
    is_even(&keys, 0..32);
    let windows: Vec<u32> = (0..1000)
        .map(|_| {
            let window = ep.alloc_window(Pd::default(), WindowKind::Type2).unwrap();
            window.rkey().0
        })
        .collect();
    is_even(&windows, 0..32);
    let unlike: BTreeSet<u32> = keys.iter().chain(&windows).copied().collect();
    assert_eq!(unlike.len(), DRAWN + 1000);
}

#[test]
fn what_is_drawn_follows_from_the_seed_alone() {
    let drawn = |seed| {
        let mut ep = Endpoint::new(EndpointConfig::default(), seed);
        let key = ep
            .register_memory(Arc::new(NoBytes(1)), 0, Access::REMOTE_READ)
            .unwrap();
        (ep.draw_qpn(0, 0), ep.draw_psn(), key.rkey)
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1).0, drawn(2).0);
    assert_ne!(drawn(1).2, drawn(2).2);
}

#[test]
fn a_qpn_is_found_among_the_last_that_are_free_and_none_when_there_is_none() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 3);
    let cq = Arc::new(CompletionQueue::new(16));
    // Only four bits are free to choose, and one of the numbers is the multicast QP's.
    let (mask, fixed) = (0x7f_fff0, 0x7f_fff0);
    let mut seen = BTreeSet::new();
    for _ in 0..15 {
        let qpn = ep.draw_qpn(mask, fixed).expect("one is left");
        assert_eq!(qpn.get() & 0xff_fff0, 0xff_fff0);
        assert!(seen.insert(qpn.get()));
        ep.create_qp(CreateQp {
            max_send: 1,
            max_recv: 1,
            ..CreateQp::rc(qpn, &cq, &cq)
        })
        .unwrap();
    }
    assert_eq!(ep.draw_qpn(mask, fixed), None);
}
