//! RED, its step form, and that it is drawn from the seed.

use super::*;

/// Share of marks with `behind` bytes left in the queue (dequeue) or standing in it (enqueue).
fn marked_share(mark_on: MarkOn, behind: u32, ecn: EcnConfig, draws: u32) -> f64 {
    let mut config = config(2);
    config.mark_on = mark_on;
    config.ports[1].ecn[3] = Some(ecn);
    let mut switch = switch(&config);
    let mut stands = packet(behind, 3);
    stands.ecn = false;
    // What stands behind on dequeue is what follows; on enqueue, what came before.
    if mark_on == MarkOn::Enqueue && behind > 0 {
        switch.receive(T0, A, B, stands.clone()).unwrap();
    }
    for _ in 0..draws {
        switch.receive(T0, A, B, packet(1, 3)).unwrap();
        if behind > 0 {
            switch.receive(T0, A, B, stands.clone()).unwrap();
        }
        switch.dequeue(T0, B).unwrap();
        if behind > 0 {
            switch.dequeue(T0, B).unwrap();
        }
    }
    f64::from(switch.counters(T0, B, 3).marked as u32) / f64::from(draws)
}

#[test]
fn marks_follow_red_between_the_thresholds() {
    let ecn = EcnConfig {
        kmin: 5_000,
        kmax: 200_000,
        pmax: 0.2,
    };
    for mark_on in [MarkOn::Dequeue, MarkOn::Enqueue] {
        for (behind, share) in [
            (0, 0.0),
            (5_000, 0.0),
            (53_750, 0.05),
            (102_500, 0.1),
            (200_000, 0.2),
            (200_001, 1.0),
            (300_000, 1.0),
        ] {
            let draws = 40_000;
            let got = marked_share(mark_on, behind, ecn, draws);
            let sigma = (share * (1.0 - share) / f64::from(draws)).sqrt();
            assert!(
                (got - share).abs() <= 4.0 * sigma,
                "{mark_on:?} at {behind} B: {got}, expected {share}"
            );
        }
    }
}

#[test]
fn a_step_marks_all_above_it_and_only_what_is_ecn_capable() {
    let ecn = EcnConfig {
        kmin: 1_000,
        kmax: 1_000,
        pmax: 1.0,
    };
    assert_eq!(marked_share(MarkOn::Dequeue, 1_000, ecn, 100), 0.0);
    assert_eq!(marked_share(MarkOn::Dequeue, 1_001, ecn, 100), 1.0);
    let mut config = config(2);
    config.ports[1].ecn[0] = Some(EcnConfig {
        kmin: 0,
        kmax: 0,
        pmax: 1.0,
    });
    let mut switch = switch(&config);
    for ecn in [true, false, true] {
        switch
            .receive(
                T0,
                A,
                B,
                Packet {
                    ecn,
                    ..packet(100, 0)
                },
            )
            .unwrap();
    }
    let got: Vec<bool> = (0..3).map(|_| switch.dequeue(T0, B).unwrap().ce).collect();
    // The last leaves nothing behind.
    assert_eq!(got, [true, false, false]);
    assert_eq!(switch.counters(T0, B, 0).marked, 1);
}

#[test]
fn marks_of_one_seed_are_the_same_and_of_another_are_not() {
    let run = |seed| {
        let mut config = config(2);
        config.ports[1].ecn[3] = Some(EcnConfig {
            kmin: 0,
            kmax: 100_000,
            pmax: 0.5,
        });
        let mut switch = Switch::new(&config, seed).unwrap();
        (0..64).for_each(|_| switch.receive(T0, A, B, packet(1_000, 3)).unwrap());
        (0..64)
            .map(|_| switch.dequeue(T0, B).unwrap().ce)
            .collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
