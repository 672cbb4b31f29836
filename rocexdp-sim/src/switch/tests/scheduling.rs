//! Strict, weighted and round robin.

use super::*;

/// Bytes sent per priority while each of `lens` is always backlogged.
fn shares(scheduler: Scheduler, lens: &[(u8, u32)], packets: usize) -> [u64; PRIORITIES] {
    let mut config = config(2);
    config.buffer = 10_000_000;
    config.ports[1].scheduler = scheduler;
    let mut switch = switch(&config);
    for (priority, len) in lens {
        for _ in 0..3 {
            switch.receive(T0, A, B, packet(*len, *priority)).unwrap();
        }
    }
    for _ in 0..packets {
        let sent = switch.dequeue(T0, B).unwrap();
        switch
            .receive(T0, A, B, packet(sent.len, sent.priority))
            .unwrap();
    }
    core::array::from_fn(|p| switch.counters(T0, B, p as u8).tx_bytes)
}

/// Priorities with the length of their packets, and the weights.
type Case = (&'static [(u8, u32)], [u32; PRIORITIES]);

#[test]
fn weighted_queues_share_by_bytes_whatever_their_packets() {
    let none = [false; PRIORITIES];
    let cases: [Case; 4] = [
        (&[(0, 1_048), (3, 1_048)], [1, 1, 1, 3, 1, 1, 1, 1]),
        (&[(0, 64), (3, 4_178), (5, 1_500)], [5, 1, 1, 1, 1, 2, 1, 1]),
        (&[(1, 9_216), (2, 60)], [1, 1, 1, 1, 1, 1, 1, 1]),
        (&[(4, 1_048), (7, 1_048)], [1, 1, 1, 1, 10, 1, 1, 90]),
    ];
    for (lens, weights) in cases {
        let got = shares(
            Scheduler::Weighted {
                weights,
                strict: none,
            },
            lens,
            60_000,
        );
        let (bytes, weight): (u64, u32) = (
            got.iter().sum(),
            lens.iter().map(|(p, _)| weights[usize::from(*p)]).sum(),
        );
        for (p, _) in lens {
            let share = got[usize::from(*p)] as f64 / bytes as f64;
            let due = f64::from(weights[usize::from(*p)]) / f64::from(weight);
            assert!(
                (share / due - 1.0).abs() < 0.02,
                "{lens:?} {weights:?}: priority {p} has {share}, due {due}"
            );
        }
    }
}

#[test]
fn strict_priorities_go_first_the_highest_before_the_others() {
    let mut strict = [false; PRIORITIES];
    (strict[6], strict[2]) = (true, true);
    for scheduler in [
        Scheduler::Weighted {
            weights: [1; PRIORITIES],
            strict,
        },
        Scheduler::RoundRobin { strict },
    ] {
        let mut config = config(2);
        config.ports[1].scheduler = scheduler;
        let mut switch = switch(&config);
        for priority in [0, 2, 7, 6, 2, 6] {
            switch.receive(T0, A, B, packet(100, priority)).unwrap();
        }
        let order: Vec<u8> = (0..6)
            .map(|_| switch.dequeue(T0, B).unwrap().priority)
            .collect();
        assert_eq!(order[..4], [6, 6, 2, 2]);
        assert_eq!(switch.dequeue(T0, B), None);
    }
    let mut switch = switch(&config(2));
    for priority in [0, 3, 7, 1] {
        switch.receive(T0, A, B, packet(100, priority)).unwrap();
    }
    let order: Vec<u8> = (0..4)
        .map(|_| switch.dequeue(T0, B).unwrap().priority)
        .collect();
    assert_eq!(order, [7, 3, 1, 0]);
}

#[test]
fn round_robin_takes_a_packet_of_each_in_turn() {
    let mut config = config(2);
    config.ports[1].scheduler = Scheduler::RoundRobin {
        strict: [false; PRIORITIES],
    };
    let mut switch = switch(&config);
    for priority in [1, 1, 1, 4, 4, 6] {
        switch
            .receive(T0, A, B, packet(100 * (1 + u32::from(priority)), priority))
            .unwrap();
    }
    let order: Vec<u8> = (0..6)
        .map(|_| switch.dequeue(T0, B).unwrap().priority)
        .collect();
    assert_eq!(order, [1, 4, 6, 1, 4, 1]);
}

#[test]
fn a_queue_that_idled_gets_no_credit_for_it() {
    let mut config = config(2);
    config.ports[1].scheduler = Scheduler::Weighted {
        weights: [1; PRIORITIES],
        strict: [false; PRIORITIES],
    };
    let mut switch = switch(&config);
    for _ in 0..200 {
        switch.receive(T0, A, B, packet(500, 0)).unwrap();
    }
    (0..100).for_each(|_| assert_eq!(switch.dequeue(T0, B).unwrap().priority, 0));
    for _ in 0..100 {
        switch.receive(T0, A, B, packet(500, 1)).unwrap();
    }
    let late = (0..20)
        .filter(|_| switch.dequeue(T0, B).unwrap().priority == 1)
        .count();
    assert!((9..=11).contains(&late), "{late} of 20");
}
