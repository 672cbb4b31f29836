//! Limits of queues and buffer, counters, and that accounting never leaks.

use super::*;

#[test]
fn tail_drop_keeps_a_queue_within_its_limit_and_spares_the_others() {
    let mut config = config(3);
    config.tail_drop = Some(10_000);
    let mut switch = switch(&config);
    let refused = (0..20)
        .filter(|_| switch.receive(T0, A, B, packet(1_000, 1)).is_err())
        .count();
    assert_eq!(refused, 10);
    assert_eq!(switch.counters(T0, B, 1).dropped_queue_full, 10);
    assert_eq!(switch.counters(T0, B, 1).queue_max, 10_000);
    assert_eq!(switch.counters(T0, A, 1).rx_packets, 20);
    assert!(switch.receive(T0, A, C, packet(1_000, 1)).is_ok());
    assert!(switch.receive(T0, A, B, packet(1_000, 2)).is_ok());
    let dropped = switch
        .receive(
            T0,
            A,
            B,
            Packet {
                id: 9,
                ..packet(1_000, 1)
            },
        )
        .unwrap_err();
    assert_eq!(
        (dropped.reason, dropped.packet.id),
        (DropReason::QueueFull, 9)
    );
}

#[test]
fn a_full_buffer_refuses_and_says_so() {
    let mut config = config(2);
    config.buffer = 5_500;
    config.tail_drop = Some(1_000_000);
    let mut switch = switch(&config);
    let refused = (0..7)
        .filter(|_| switch.receive(T0, A, B, packet(1_000, 0)).is_err())
        .count();
    assert_eq!(refused, 2);
    assert_eq!(switch.counters(T0, B, 0).dropped_buffer_full, 2);
    switch.dequeue(T0, B).unwrap();
    assert!(switch.receive(T0, A, B, packet(1_000, 0)).is_ok());
}

#[test]
fn dynamic_thresholds_leave_each_of_n_queues_its_share() {
    // Choudhury and Hahne: n queues that all want more settle at alpha * B / (1 + n * alpha).
    for (alpha, n) in [(1.0, 1_u16), (1.0, 3), (0.5, 2), (4.0, 2)] {
        let mut config = config(usize::from(n) + 1);
        config.ports.iter_mut().for_each(|p| p.alpha = Some(alpha));
        let mut switch = switch(&config);
        for _ in 0..12_000 {
            for to in 1..=n {
                let _ = switch.receive(T0, A, PortId(to), packet(100, 0));
            }
        }
        let due = alpha * 1_000_000.0 / (1.0 + f64::from(n) * alpha);
        for to in 1..=n {
            let got = switch.queue(PortId(to), 0) as f64;
            assert!(
                (got / due - 1.0).abs() < 0.01,
                "alpha {alpha}, {n} queues: {got} B, due {due}"
            );
        }
    }
}

#[test]
fn the_queue_integral_is_bytes_times_time() {
    let mut switch = switch(&config(2));
    let at = Picos::from_nanos;
    switch.receive(at(0), A, B, packet(1_000, 3)).unwrap();
    switch.receive(at(10), A, B, packet(500, 3)).unwrap();
    switch.dequeue(at(30), B).unwrap();
    let counters = switch.counters(at(100), B, 3);
    assert_eq!(
        counters.queue_integral,
        1_000 * (1_000 * 10 + 1_500 * 20 + 500 * 70)
    );
    assert_eq!(
        (counters.queue, counters.queue_max, counters.queue_packets),
        (500, 1_500, 1)
    );
    assert_eq!(
        switch.counters(at(200), B, 3).queue_integral,
        counters.queue_integral + 1_000 * 500 * 100
    );
}

/// Whatever happens, in whatever order: the buffer holds exactly what waits, never more than it has, order within a queue is kept,
/// no packet is lost without a counter, and who was told to stop is told to go on.
#[test]
fn accounting_never_leaks() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut config = config(4);
        config.buffer = 20_000 + rng.below(200_000);
        config.reserved = rng.below(3) * 700;
        config.mark_on = if seed % 2 == 0 {
            MarkOn::Dequeue
        } else {
            MarkOn::Enqueue
        };
        let alpha = [0.125, 0.5, 1.0, 8.0][rng.below(4) as usize];
        let mut pfc = reference_pfc();
        pfc.quanta = (rng.below(2) == 0).then_some(50);
        pfc.priorities[4] = true;
        pfc.threshold = if rng.below(2) == 0 {
            PfcThreshold::Dynamic(alpha)
        } else {
            PfcThreshold::Static(4_000)
        };
        config.pfc = (rng.below(4) > 0).then_some(pfc);
        config.tail_drop = (rng.below(2) == 0).then_some(30_000);
        for port in &mut config.ports {
            port.headroom = rng.below(3) * 600;
            port.ecn = [Some(EcnConfig {
                kmin: 3_000,
                kmax: 9_000,
                pmax: 0.3,
            }); PRIORITIES];
            port.scheduler = match rng.below(3) {
                0 => Scheduler::Strict,
                1 => Scheduler::RoundRobin {
                    strict: [false, false, true, false, false, false, false, false],
                },
                _ => Scheduler::Weighted {
                    weights: core::array::from_fn(|_| 1 + rng.below(9) as u32),
                    strict: [false; PRIORITIES],
                },
            };
        }
        let mut switch = switch(&config);
        let mut waits: Vec<VecDeque<Packet>> = vec![VecDeque::new(); 4 * PRIORITIES];
        let mut told = [false; 4 * PRIORITIES];
        let mut now = T0;
        let (mut refused, mut taken) = (0_u64, 0_u64);
        let at =
            |port: PortId, priority: u8| usize::from(port.0) * PRIORITIES + usize::from(priority);
        for id in 0..3_000_u32 {
            now = now + Picos(rng.below(200_000));
            let port = PortId(rng.below(4) as u16);
            let priority = [0, 3, 4, 6][rng.below(4) as usize];
            // Phases of filling and of draining.
            match rng.below(if id / 500 % 2 == 0 { 9 } else { 20 }) {
                0..6 => {
                    let to = PortId(rng.below(4) as u16);
                    let ecn = rng.below(2) == 0;
                    let packet = Packet {
                        len: 60 + rng.below(2_000) as u32,
                        priority,
                        ecn,
                        ce: false,
                        id,
                    };
                    match switch.receive(now, port, to, packet.clone()) {
                        Ok(()) => waits[at(to, priority)].push_back(packet),
                        Err(dropped) => {
                            assert_eq!(dropped.packet.id, id);
                            refused += 1;
                        }
                    }
                }
                6 => switch.handle_pause(now, port, priority, now + Picos(rng.below(3) * 500_000)),
                7 => switch.handle_timeout(now),
                _ => {
                    if let Some(packet) = switch.dequeue(now, port) {
                        let first = waits[at(port, packet.priority)].pop_front().unwrap();
                        assert_eq!(first.id, packet.id, "seed {seed}");
                        taken += 1;
                    }
                }
            }
            while let Some(output) = switch.poll_output() {
                match output {
                    Output::Pause { port, priority, .. } => told[at(port, priority)] = true,
                    Output::Resume { port, priority } => {
                        assert!(core::mem::take(&mut told[at(port, priority)]))
                    }
                    Output::Ready(_) => {}
                }
            }
            let held: u64 = waits.iter().flatten().map(|p| u64::from(p.len)).sum();
            let usage = switch.buffer();
            assert_eq!(usage.used, held, "seed {seed}, packet {id}");
            assert!(
                usage.used <= config.buffer && usage.shared <= usage.shared_size,
                "seed {seed}: {usage:?}"
            );
        }
        for port in (0..4).map(PortId) {
            (0..8).for_each(|p| switch.handle_pause(now, port, p, now));
            while let Some(packet) = switch.dequeue(now, port) {
                assert_eq!(
                    waits[at(port, packet.priority)].pop_front().unwrap().id,
                    packet.id
                );
                taken += 1;
            }
        }
        while let Some(output) = switch.poll_output() {
            if let Output::Resume { port, priority } = output {
                told[at(port, priority)] = false;
            }
        }
        assert!(
            waits.iter().all(VecDeque::is_empty) && told.iter().all(|t| !t),
            "seed {seed}"
        );
        assert_eq!((switch.buffer().used, switch.buffer().shared), (0, 0));
        let all = (0..4).flat_map(|port| (0..8).map(move |p| (PortId(port), p)));
        let (mut rx, mut tx, mut dropped) = (0, 0, 0);
        for (port, priority) in all {
            let counters = switch.counters(now, port, priority);
            assert_eq!(
                (counters.queue, counters.ingress, counters.headroom),
                (0, 0, 0)
            );
            (rx, tx, dropped) = (
                rx + counters.rx_packets,
                tx + counters.tx_packets,
                dropped + counters.dropped_in_all(),
            );
        }
        assert_eq!((tx, dropped, rx), (taken, refused, taken + refused));
        assert!(taken > 300, "seed {seed}: {taken} packets");
    }
}
