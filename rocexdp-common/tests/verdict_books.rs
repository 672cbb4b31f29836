//! Flows that are not ours, malformed packets, and books that balance whatever arrives.

mod support;

use rocexdp_common::{
    maps::{Kind, REASON_ALL, REASON_NAMES, Reason, local_addr},
    opcode::{Opcode, rc},
    verdict::Outcome,
};
use support::{
    packet::{A4, B4, C4, Random, Spec},
    rig::{QPN, data, expect, model},
};

#[test]
fn a_foreign_flow_is_counted_with_its_path_mtu_inferred_and_passed() {
    let mut m = model();
    let send = |code: u8, psn, len| {
        Spec::new(Opcode(code), 0x22, psn)
            .payload(len)
            .from(C4)
            .to(A4)
    };
    let read = |psn| {
        Spec::new(rc::READ_REQUEST, 0x22, psn)
            .reth(10_000)
            .from(C4)
            .to(A4)
    };
    for spec in [
        read(5),
        send(4, 20, 3),
        send(0, 21, 1024),
        send(1, 22, 1024),
        send(2, 23, 9),
        read(24),
        send(4, 34, 0),
    ] {
        expect(&mut m, &spec, Outcome::PassedRoce(None));
    }
    let (key, flow) = m.flows[0];
    assert_eq!((key.src, key.dst, key.dest_qpn), (C4.gid(), A4.gid(), 0x22));
    assert_eq!(flow.path_mtu, 1024);
    let t = flow.counters.requests;
    assert_eq!((t.expected_psn, t.gaps, t.duplicates), (35, 0, 0));
    // A gap is jumped over; a CNP counts unseen (its ICRC is its receiver's to check); CE counts.
    expect(&mut m, &send(4, 40, 0).tos(3), Outcome::PassedRoce(None));
    expect(
        &mut m,
        &Spec::cnp(0x22).from(C4).to(A4),
        Outcome::PassedRoce(None),
    );
    let flow = m.flows[0].1;
    let t = flow.counters.requests;
    assert_eq!(
        (t.expected_psn, t.gaps, t.missing, t.out_of_sequence),
        (41, 1, 5, 1)
    );
    assert_eq!(
        (
            flow.counters.ecn[3],
            flow.counters.kinds[Kind::Cnp as usize].packets
        ),
        (1, 1)
    );
    assert!(
        m.dirty.iter().all(|d| *d == 0),
        "no engine waits for news of it"
    );
    // Another destination QP is another flow; so is the other direction.
    expect(
        &mut m,
        &Spec::new(rc::SEND_ONLY, 0x23, 0).from(C4).to(A4),
        Outcome::PassedRoce(None),
    );
    expect(
        &mut m,
        &Spec::ack(0x22, 0, 0, 0).from(A4).to(C4),
        Outcome::PassedRoce(None),
    );
    assert_eq!((m.flows.len(), m.queue_counters[0].flow_inserts), (3, 3));
    // Payloads that are no path MTU teach nothing.
    expect(&mut m, &send(0, 41, 1500), Outcome::PassedRoce(None));
    assert_eq!(m.flows[0].1.path_mtu, 1024);
}

#[test]
fn a_corrupt_psn_in_a_foreign_flow_costs_one_packet() {
    for corrupt in [200, 60_000, 1 << 20, 0x90_0000] {
        let mut m = model();
        for psn in (0..100).chain([corrupt]).chain(101..300) {
            let packet = Spec::new(rc::WRITE_MIDDLE, 0x22, psn).payload(1024);
            let packet = packet.from(C4).to(A4);
            expect(&mut m, &packet, Outcome::PassedRoce(None));
        }
        let t = m.flows[0].1.counters.requests;
        assert_eq!((t.expected_psn, t.duplicates), (300, 0), "{corrupt:#x}");
        assert!(t.gaps <= 1 && t.missing <= 1, "{corrupt:#x}: {t:?}");
    }
}

#[test]
fn malformed_packets_pass_each_with_its_reason() {
    let mut m = model();
    let mut version = data(1);
    version.bth.version = 1;
    expect(
        &mut m,
        &version,
        Outcome::PassedRoce(Some(Reason::BthVersion)),
    );
    let mut fragment = data(1).build();
    fragment[20] |= 0x20;
    assert_eq!(
        m.run(&fragment[..]),
        Outcome::PassedOther(Some(Reason::Ipv4Fragment))
    );
    assert_eq!(
        m.run(&fragment[..9]),
        Outcome::PassedOther(Some(Reason::EthTruncated))
    );
    let mut arp = data(1).build();
    arp[13] = 6;
    assert_eq!(m.run(&arp[..]), Outcome::PassedOther(None));
    let q = m.queue_counters[0];
    assert_eq!(
        (q.frames, q.rocev2, q.passed_rocev2, q.passed_other),
        (4, 1, 1, 3)
    );
    assert_eq!(q.reasons.iter().sum::<u64>(), 3);
}

#[test]
fn reasons_have_names_and_an_order() {
    assert_eq!(REASON_NAMES.len(), REASON_ALL.len());
    for (i, reason) in REASON_ALL.iter().enumerate() {
        assert_eq!(*reason as usize, i);
    }
    // Ten before, and seven that no endpoint meets.
    let rocev2 = REASON_ALL.iter().filter(|r| r.is_rocev2()).count();
    assert_eq!(rocev2, REASON_ALL.len() - 17);
    assert!(!Reason::UdpTruncated.is_rocev2() && Reason::UdpLength.is_rocev2());
}

#[test]
fn the_books_balance_whatever_arrives() {
    let mut random = Random(42);
    let mut m = model();
    m.addresses.push((C4.gid(), local_addr::SHARED));
    let mut outcomes = [0u64; 5];
    for _ in 0..50_000 {
        m.queue = random.below(4).min(2) as u32;
        m.now += 1;
        let mut spec = Spec::new(
            Opcode(random.next() as u8 & 0x1f),
            QPN,
            random.below(40) as u32,
        )
        .headers(&vec![random.next() as u8; [0, 4, 16, 28][random.below(4)]])
        .payload(random.below(40))
        .tos(random.next() as u8);
        if random.chance(3) {
            spec = Spec::cnp(QPN);
        }
        spec.src = [A4, A4, A4, C4][random.below(4)];
        spec.dst = [B4, B4, B4, C4, A4][random.below(5)];
        let mut frame = spec.build();
        if random.chance(3) {
            let at = random.below(frame.len());
            frame[at] = random.next() as u8;
        }
        outcomes[match m.run(&frame[..]) {
            Outcome::Redirected => 0,
            Outcome::Consumed => 1,
            Outcome::Dropped(_) => 2,
            Outcome::PassedRoce(_) => 3,
            Outcome::PassedOther(_) => 4,
        }] += 1;
    }
    assert!(
        outcomes.iter().all(|n| *n > 500),
        "every outcome is met: {outcomes:?}"
    );
    let mut dropped_by_reason = 0;
    for (queue, q) in m.queue_counters.iter().enumerate() {
        let sum = q.redirected + q.consumed + q.dropped + q.passed_rocev2 + q.passed_other;
        assert_eq!(q.frames, sum);
        assert_eq!(q.rocev2, sum - q.passed_other);
        dropped_by_reason += q.dropped;
        if queue < 2 {
            let c = &m.counters[5 * 2 + queue];
            let kinds: u64 = c.kinds.iter().map(|k| k.packets).sum();
            let cnps = c.kinds[Kind::Cnp as usize].packets;
            assert_eq!(kinds, c.redirected + c.no_socket + cnps);
            assert_eq!((q.redirected, q.consumed), (c.redirected, cnps));
            assert_eq!(q.reasons[Reason::NoSocket as usize], c.no_socket);
            assert_eq!(q.reasons[Reason::CnpIcrc as usize], c.cnp_bad_icrc);
            assert_eq!(c.ecn.iter().sum::<u64>(), kinds - cnps);
        }
    }
    assert_eq!(dropped_by_reason, outcomes[2]);
}
