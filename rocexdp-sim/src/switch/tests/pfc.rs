//! Thresholds, headroom, pauses in both directions.

use super::*;

#[test]
fn the_reference_threshold_pauses_and_resumes_at_the_same_packet() {
    // Three ports at 100 Gb/s and 1 us: 37 500 B of headroom each (3 * rate * delay), 4 KiB reserved.
    let mut config = config(3);
    config.reserved = 4 * 1024;
    config.pfc = Some(reference_pfc());
    config.ports.iter_mut().for_each(|p| p.headroom = 37_500);
    let mut switch = switch(&config);
    let shared = 1_000_000 - 3 * 37_500 - 3 * 4096;
    assert_eq!(switch.buffer().shared_size, shared);
    assert_eq!(switch.threshold(A), shared >> 3);
    // used >= (shared - used) / 8 from used = shared / 9 on.
    let mut packets = 0_u64;
    let at = loop {
        switch.receive(T0, A, C, packet(1_048, 3)).unwrap();
        packets += 1;
        if let Some(output) = switch.poll_output() {
            assert_eq!(
                output,
                Output::Pause {
                    port: A,
                    priority: 3,
                    quanta: None
                }
            );
            break packets;
        }
    };
    let used = |packets: u64| (packets * 1_048).saturating_sub(4096);
    assert!(used(at) >= (shared - used(at)) >> 3);
    assert!(used(at - 1) < (shared - used(at - 1)) >> 3);
    let (held, headroom) = (
        switch.counters(T0, A, 3).ingress,
        switch.counters(T0, A, 3).headroom,
    );
    assert_eq!(held + headroom, at * 1_048);
    // Resumed at 3 KiB below the threshold, and not one packet before.
    let mut left = at;
    while switch.pausing(A, 3) {
        switch.dequeue(T0, C).unwrap();
        left -= 1;
    }
    assert_eq!(
        outputs(&mut switch),
        [Output::Resume {
            port: A,
            priority: 3
        }]
    );
    assert!(used(left) + 3072 <= (shared - used(left)) >> 3);
    assert!(used(left + 1) + 3072 > (shared - used(left + 1)) >> 3);
}

#[test]
fn a_paused_queue_is_resumed_when_it_holds_nothing_shared_however_small_its_threshold() {
    let mut config = config(3);
    let mut pfc = reference_pfc();
    pfc.priorities[4] = true;
    config.pfc = Some(pfc);
    config.buffer = 400_000;
    config.ports.iter_mut().for_each(|p| p.headroom = 20_000);
    // Priority 0 is lossy: let it fill the buffer, so that thresholds fall below the resume offset.
    config.tail_drop = Some(400_000);
    let mut switch = switch(&config);
    while switch.receive(T0, B, C, packet(1_000, 0)).is_ok() {}
    switch.receive(T0, A, B, packet(1_000, 3)).unwrap();
    assert_eq!(
        outputs(&mut switch),
        [Output::Pause {
            port: A,
            priority: 3,
            quanta: None
        }]
    );
    assert!(switch.threshold(A) < 3 * 1024);
    assert!(switch.dequeue(T0, B).is_some());
    assert_eq!(
        outputs(&mut switch),
        [Output::Resume {
            port: A,
            priority: 3
        }]
    );
}

/// Two peers at line rate into one port, PFC heeded after what is under way has arrived. Packets dropped and pauses sent.
fn pfc_incast(headroom: u64, threshold: PfcThreshold, delay: Picos) -> (u64, u64) {
    const LEN: u32 = 1_048;
    const PACKETS: u32 = 4_000;
    let rate = Rate::from_gbps(100);
    let slot = Picos::serialise(LEN.into(), rate);
    let mut config = config(3);
    config.buffer = 2_000_000;
    config.reserved = 2_000;
    config.pfc = Some(PfcConfig {
        threshold,
        ..reference_pfc()
    });
    config.ports.iter_mut().for_each(|p| p.headroom = headroom);
    let mut switch = switch(&config);
    let mut to_switch: [VecDeque<Picos>; 2] = Default::default();
    let mut to_peer: [VecDeque<(Picos, bool)>; 2] = Default::default();
    let mut paused = [false; 2];
    let mut left = [PACKETS; 2];
    let mut now = T0;
    let mut out = 0;
    let mut dropped = 0;
    while out + dropped < u64::from(2 * PACKETS) {
        for i in 0..2 {
            while to_switch[i].front().is_some_and(|at| *at <= now) {
                to_switch[i].pop_front();
                dropped += u64::from(
                    switch
                        .receive(now, PortId(i as u16), C, packet(LEN, 3))
                        .is_err(),
                );
            }
            while let Some((_, pause)) = to_peer[i].front().filter(|(at, _)| *at <= now) {
                paused[i] = *pause;
                to_peer[i].pop_front();
            }
            if !paused[i] && left[i] > 0 {
                left[i] -= 1;
                to_switch[i].push_back(now + slot + delay);
            }
        }
        out += u64::from(switch.dequeue(now, C).is_some());
        while let Some(output) = switch.poll_output() {
            // The pause frame waits for a packet that its port has just begun.
            let (port, pause) = match output {
                Output::Pause { port, .. } => (port, true),
                Output::Resume { port, .. } => (port, false),
                Output::Ready(_) => continue,
            };
            to_peer[usize::from(port.0)].push_back((now + slot + delay, pause));
        }
        now = now + slot;
    }
    let pauses = (0..2)
        .map(|p| switch.counters(now, PortId(p), 3).pauses_sent)
        .sum();
    let lost = (0..2)
        .map(|p| switch.counters(now, PortId(p), 3).dropped_headroom_full)
        .sum::<u64>();
    assert_eq!(lost, dropped);
    assert_eq!(switch.buffer().used, 0);
    (dropped, pauses)
}

#[test]
fn pfc_loses_nothing_with_the_headroom_it_needs_and_something_with_less() {
    let rate = Rate::from_gbps(100);
    for delay in [Picos::from_micros(1), Picos::from_nanos(100)] {
        let need = headroom(
            rate,
            Duration::from_nanos(delay.as_nanos()),
            Duration::ZERO,
            1_048,
        );
        for threshold in [PfcThreshold::Dynamic(0.125), PfcThreshold::Static(100_000)] {
            let (dropped, pauses) = pfc_incast(need, threshold, delay);
            assert_eq!(dropped, 0, "{threshold:?}");
            assert!(pauses > 10, "{pauses} pauses");
            let (dropped, _) = pfc_incast(0, threshold, delay);
            assert!(dropped > 0, "{threshold:?}: nothing lost without headroom");
            let (dropped, _) = pfc_incast(need / 2, threshold, delay);
            assert!(dropped > 0, "{threshold:?}: nothing lost with half of it");
        }
    }
}

#[test]
fn headroom_covers_a_round_trip_and_a_frame_at_each_end() {
    let need = headroom(
        Rate::from_gbps(100),
        Duration::from_micros(1),
        Duration::from_nanos(500),
        1_500,
    );
    assert_eq!(need, 25_000 + 6_250 + 3_000 + 64);
}

#[test]
fn a_paused_priority_is_passed_over_until_it_is_resumed() {
    let mut switch = switch(&config(2));
    for priority in [3, 0] {
        switch.receive(T0, A, B, packet(100, priority)).unwrap();
    }
    switch.handle_pause(T0, B, 3, Picos::MAX);
    assert_eq!(switch.paused(T0, B), 1 << 3);
    assert_eq!(switch.dequeue(T0, B).unwrap().priority, 0);
    let later = Picos::from_micros(7);
    assert_eq!(switch.dequeue(later, B), None);
    assert_eq!(switch.poll_timeout(), None);
    assert_eq!(switch.counters(later, B, 3).paused, later);
    switch.handle_pause(later, B, 3, later);
    assert_eq!(switch.dequeue(later, B).unwrap().priority, 3);
    let counters = switch.counters(Picos::from_micros(9), B, 3);
    assert_eq!(
        (counters.pauses_received, counters.resumes_received),
        (1, 1)
    );
    assert_eq!(counters.paused, later);
}

#[test]
fn a_pause_ends_by_itself_when_its_quanta_are_over() {
    let quanta = quanta_time(100, Rate::from_gbps(100));
    assert_eq!(quanta, Picos::from_nanos(512));
    let mut switch = switch(&config(2));
    switch.receive(T0, A, B, packet(100, 3)).unwrap();
    switch.handle_pause(T0, B, 3, quanta);
    assert_eq!(switch.poll_timeout(), Some(quanta));
    assert_eq!(switch.dequeue(quanta - Picos(1), B), None);
    // Told again: the first deadline means nothing any more.
    let again = quanta + Picos::from_nanos(100);
    switch.handle_pause(Picos::from_nanos(100), B, 3, again);
    switch.handle_timeout(quanta);
    assert_eq!(outputs(&mut switch), []);
    assert_eq!(switch.dequeue(quanta, B), None);
    switch.handle_timeout(again);
    assert_eq!(outputs(&mut switch), [Output::Ready(B)]);
    assert!(switch.dequeue(again, B).is_some());
    assert_eq!(switch.counters(again + quanta, B, 3).paused, again);
    assert_eq!(switch.poll_timeout(), None);
}

#[test]
fn a_pause_with_quanta_is_told_again_before_they_are_over() {
    let mut config = config(2);
    config.pfc = Some(PfcConfig {
        threshold: PfcThreshold::Static(5_000),
        resume_offset: 1_000,
        quanta: Some(1_000),
        ..reference_pfc()
    });
    let mut switch = switch(&config);
    for _ in 0..5 {
        switch.receive(T0, A, B, packet(1_000, 3)).unwrap();
    }
    let pause = Output::Pause {
        port: A,
        priority: 3,
        quanta: Some(1_000),
    };
    assert_eq!(outputs(&mut switch), [pause]);
    let whole = quanta_time(1_000, Rate::from_gbps(100));
    let mut now = T0;
    for _ in 0..3 {
        let next = switch.poll_timeout().unwrap();
        assert!(next - now < whole && next > now);
        now = next;
        switch.handle_timeout(now);
        assert_eq!(outputs(&mut switch), [pause]);
    }
    switch.dequeue(now, B).unwrap();
    assert_eq!(
        outputs(&mut switch),
        [Output::Resume {
            port: A,
            priority: 3
        }]
    );
    switch.handle_timeout(now + whole);
    assert_eq!(outputs(&mut switch), []);
    let counters = switch.counters(now + whole, A, 3);
    assert_eq!(
        (
            counters.pauses_sent,
            counters.resumes_sent,
            counters.pausing
        ),
        (4, 1, now)
    );
}
