//! The whole program over plain memory: whose packet, what is refused, what is counted where.

mod support;

use rocexdp_common::{
    maps::{
        Count, KINDS, Kind, MULTICAST_QPN, QpConfig, QpCounters, QueueCounters, Reason, local_addr,
    },
    opcode::{Opcode, extensions_len, rc},
    verdict::{Action, Outcome},
};
use support::{
    packet::{A4, A6, Addr, B4, B6, C4, Spec},
    rig::{QPN, config, data, expect, model},
};

#[test]
fn a_data_packet_is_counted_and_redirected() {
    let mut m = model();
    expect(&mut m, &data(7), Outcome::Redirected);
    m.now = 2000;
    expect(&mut m, &data(8).tos(3), Outcome::Redirected);
    let len = data(7).build().len() as u64;
    let mut c = QpCounters::ZERO;
    c.kinds[Kind::Send as usize] = Count {
        packets: 2,
        bytes: 2 * len,
    };
    c.ecn = [0, 0, 1, 1];
    c.requests.expected_psn = 9;
    c.requests.valid = 1;
    c.redirected = 2;
    (c.first_seen_ns, c.last_seen_ns, c.last_ce_ns) = (1000, 2000, 2000);
    assert_eq!(*m.qp(5), c);
    let books = QueueCounters {
        frames: 2,
        rocev2: 2,
        redirected: 2,
        ..Default::default()
    };
    assert_eq!(m.queue_counters[0], books);
    assert_eq!(m.dirty[5], 1, "the CE mark is news for the engine");
    assert_eq!(m.dirty.iter().map(|d| u32::from(*d)).sum::<u32>(), 1);
    assert_eq!(Outcome::Redirected.action(), Action::Redirect);
}

#[test]
fn queues_and_owners_have_entries_and_sockets_of_their_own() {
    let mut m = model();
    m.add(QpConfig {
        owner: 3,
        ..config()
    });
    m.queue = 1;
    m.sockets = vec![7];
    expect(&mut m, &data(7), Outcome::Redirected);
    assert_eq!(m.counters[5 * 2 + 1].redirected, 1);
    assert_eq!(
        (m.queue_counters[1].redirected, m.queue_counters[0].frames),
        (1, 0)
    );
    m.queue = 0;
    expect(
        &mut m,
        &data(8),
        Outcome::PassedRoce(Some(Reason::NoSocket)),
    );
    assert_eq!(m.counters[5 * 2].no_socket, 1);
}

#[test]
fn a_queue_without_entries_passes_and_does_not_touch_the_next_slot() {
    let mut m = model();
    m.queue = 2;
    expect(&mut m, &data(7), Outcome::PassedRoce(Some(Reason::MapFull)));
    assert!(m.counters.iter().all(|c| *c == QpCounters::ZERO));
    assert_eq!(m.queue_counters[2].reasons[Reason::MapFull as usize], 1);
}

#[test]
fn without_a_socket_the_packet_is_counted_and_passed() {
    let mut m = model();
    m.sockets.clear();
    expect(
        &mut m,
        &data(7),
        Outcome::PassedRoce(Some(Reason::NoSocket)),
    );
    assert_eq!(
        (
            m.qp(5).no_socket,
            m.qp(5).redirected,
            m.qp(5).requests.expected_psn
        ),
        (1, 0, 8)
    );
}

#[test]
fn only_the_qps_own_address_and_its_peers_are_accepted() {
    let mut m = model();
    m.addresses.push((C4.gid(), local_addr::EXCLUSIVE));
    expect(
        &mut m,
        &data(7).to(C4),
        Outcome::Dropped(Reason::LocalAddress),
    );
    expect(
        &mut m,
        &data(7).from(C4),
        Outcome::Dropped(Reason::PeerAddress),
    );
    expect(
        &mut m,
        &Spec::cnp(QPN).from(C4),
        Outcome::Dropped(Reason::PeerAddress),
    );
    // An address that another stack uses as well: its QP may have the number.
    m.addresses[1].1 = local_addr::SHARED;
    expect(&mut m, &data(7).to(C4), Outcome::PassedRoce(None));
    assert_eq!(m.flows.len(), 1);
    assert_eq!(
        *m.qp(5),
        QpCounters::ZERO,
        "a refused packet leaves no trace in the QP"
    );
    // A UD QP hears whoever speaks.
    m.add(QpConfig {
        transport: 3,
        peer_gid: [0; 16],
        ..config()
    });
    let ud = Spec::new(Opcode(0x64), QPN, 900)
        .headers(&[0; 8])
        .payload(4);
    expect(&mut m, &ud.clone().from(C4), Outcome::Redirected);
    expect(&mut m, &ud.from(A4), Outcome::Redirected);
    assert_eq!(
        m.qp(5).requests.valid,
        0,
        "UD packets have no common sequence"
    );
}

/// The opcode of UD's SEND, behind which a DETH stands.
fn ud(qpn: u32) -> Spec {
    Spec::new(Opcode(0x64), qpn, 7)
        .headers(&[0; 8])
        .payload(256)
}

fn datagram(qpn: u32, address_flags: u32) -> QpConfig {
    QpConfig {
        qpn,
        transport: 3,
        address_flags: address_flags as u8,
        local_gid: [0; 16],
        peer_gid: [0; 16],
        ..config()
    }
}

#[test]
fn qp_1_is_a_local_qp_at_every_address_of_ours_while_it_is_open() {
    let mut m = model();
    m.addresses.push((B6.gid(), local_addr::EXCLUSIVE));
    m.addresses.push((C4.gid(), local_addr::SHARED));
    let to_six = || ud(1).from(A6).to(B6);
    for spec in [ud(1), to_six()] {
        expect(&mut m, &spec, Outcome::Dropped(Reason::UnknownQpn));
    }
    m.add(datagram(1, local_addr::EXCLUSIVE));
    for spec in [ud(1), ud(1).from(C4), to_six()] {
        expect(&mut m, &spec, Outcome::Redirected);
    }
    // Another RoCE stack's address, and another host's: theirs.
    for to in [C4, A4] {
        expect(&mut m, &ud(1).to(to), Outcome::PassedRoce(None));
    }
    // QP 1 takes UD only.
    expect(
        &mut m,
        &Spec::new(rc::SEND_ONLY, 1, 1),
        Outcome::Dropped(Reason::TransportMismatch),
    );
    let seen = *m.qp(1);
    assert_eq!((seen.redirected, seen.requests.valid), (3, 0));
    m.add(QpConfig {
        generation: 0,
        ..datagram(1, local_addr::EXCLUSIVE)
    });
    expect(&mut m, &ud(1), Outcome::Dropped(Reason::UnknownQpn));
}

#[test]
fn packets_of_groups_that_were_joined_are_taken_and_others_pass_with_a_reason() {
    let mut m = model();
    let (ours, other) = (Addr::V4([239, 1, 2, 3]), Addr::V4([239, 1, 2, 4]));
    let six = Addr::V6([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let not_joined = Outcome::PassedRoce(Some(Reason::UnknownGroup));
    expect(&mut m, &ud(MULTICAST_QPN).to(ours), not_joined);
    m.add(datagram(MULTICAST_QPN, local_addr::GROUP));
    m.addresses.push((ours.gid(), local_addr::GROUP));
    m.addresses.push((six.gid(), local_addr::GROUP));
    expect(&mut m, &ud(MULTICAST_QPN).to(ours), Outcome::Redirected);
    expect(
        &mut m,
        &ud(MULTICAST_QPN).from(A6).to(six),
        Outcome::Redirected,
    );
    expect(&mut m, &ud(MULTICAST_QPN).to(other), not_joined);
    // Our own address is no group, and a group is no address of a QP.
    expect(
        &mut m,
        &ud(MULTICAST_QPN),
        Outcome::Dropped(Reason::UnknownQpn),
    );
    m.add(datagram(1, local_addr::EXCLUSIVE));
    expect(&mut m, &ud(1).to(ours), Outcome::PassedRoce(None));
    expect(&mut m, &data(1).to(ours), Outcome::PassedRoce(None));
    assert_eq!(m.qp(15).redirected, 2);
    let reasons = m.queue_counters[0].reasons;
    assert_eq!(reasons[Reason::UnknownGroup as usize], 2);
}

#[test]
fn an_unknown_qp_at_our_address_does_not_reach_the_kernel_unless_the_address_is_shared() {
    let mut m = model();
    // The same slot, another number; an empty slot.
    for qpn in [0x80_0015, 0x80_0006, 1] {
        expect(
            &mut m,
            &Spec::new(rc::SEND_ONLY, qpn, 1),
            Outcome::Dropped(Reason::UnknownQpn),
        );
    }
    m.addresses[0].1 = local_addr::SHARED;
    expect(
        &mut m,
        &Spec::new(rc::SEND_ONLY, 17, 1),
        Outcome::PassedRoce(None),
    );
    m.addresses[0].1 = local_addr::SHARED | local_addr::EXCLUSIVE;
    expect(
        &mut m,
        &Spec::new(rc::SEND_ONLY, 17, 2),
        Outcome::PassedRoce(None),
    );
    // On a shared address our own QPs are ours all the same.
    expect(&mut m, &data(1), Outcome::Redirected);
    assert_eq!(m.flows[0].1.counters.kinds[Kind::Send as usize].packets, 2);
}

#[test]
fn a_free_slot_has_no_qp() {
    let mut m = model();
    m.configs[5].generation = 0;
    expect(&mut m, &data(7), Outcome::Dropped(Reason::UnknownQpn));
}

#[test]
fn another_transport_service_is_refused() {
    let mut m = model();
    for code in [0x24, 0x44, 0x64, 0xa4] {
        let spec = Spec::new(Opcode(code), QPN, 1).headers(&[0; 12]).payload(4);
        expect(&mut m, &spec, Outcome::Dropped(Reason::TransportMismatch));
    }
    m.add(QpConfig {
        transport: 1,
        ..config()
    });
    expect(
        &mut m,
        &data(1),
        Outcome::Dropped(Reason::TransportMismatch),
    );
    expect(
        &mut m,
        &Spec::new(Opcode(0x24), QPN, 1),
        Outcome::Redirected,
    );
    // Unreliable: what is missing stays missing, and the stream goes on.
    expect(
        &mut m,
        &Spec::new(Opcode(0x24), QPN, 4),
        Outcome::Redirected,
    );
    let t = m.qp(5).requests;
    assert_eq!((t.expected_psn, t.gaps, t.missing), (5, 1, 2));
}

#[test]
fn undefined_opcodes_are_refused_for_a_qp_and_counted_in_a_flow() {
    let mut m = model();
    for code in [0x15, 0x1f, 0x80, 0x82, 0xd5, 0xe0, 0xff] {
        let spec = Spec::new(Opcode(code), QPN, 1).payload(8);
        expect(&mut m, &spec, Outcome::Dropped(Reason::UnknownOpcode));
        expect(
            &mut m,
            &spec.from(B4).to(A4),
            Outcome::PassedRoce(Some(Reason::UnknownOpcode)),
        );
    }
    assert_eq!(*m.qp(5), QpCounters::ZERO);
    let c = &m.flows[0].1.counters;
    assert_eq!(
        (c.kinds[Kind::Other as usize].packets, c.requests.valid),
        (7, 0)
    );
}

#[test]
fn selective_repeat_goes_to_the_socket_of_its_rc_qp_and_fills_gaps_later() {
    let mut m = model();
    let spec = |opcode: Opcode, psn| {
        let headers = extensions_len(opcode.extensions().unwrap());
        Spec::new(opcode, QPN, psn)
            .headers(&vec![0; headers])
            .payload(8)
    };
    let write = rc::WRITE_MIDDLE.selective();
    for psn in [1, 2, 5, 6, 3, 4, 7] {
        expect(&mut m, &spec(write, psn), Outcome::Redirected);
    }
    let t = m.qp(5).requests;
    assert_eq!((t.expected_psn, t.gaps, t.missing), (8, 1, 2));
    assert_eq!((t.out_of_sequence, t.duplicates), (1, 2));
    let ack = Spec {
        payload: Vec::new(),
        ..spec(rc::ACKNOWLEDGE.selective(), 3)
    };
    expect(&mut m, &ack, Outcome::Redirected);
    assert_eq!(m.qp(5).kinds[Kind::Ack as usize].packets, 1);
    assert_eq!(m.qp(5).last_ack_psn, 3);
}

#[test]
fn a_cnp_ends_in_xdp_when_its_icrc_is_right() {
    let mut m = model();
    m.sockets.clear();
    let cnp = Spec::cnp(QPN);
    // As the standard has it; marked CE itself; BECN clear, priority-tagged, odd reserved bits, MigReq.
    let mut variants = vec![
        cnp.clone(),
        cnp.clone().tos(3),
        Spec {
            tags: vec![(0x8100, 0xc000)],
            ..cnp.clone()
        },
    ];
    let mut odd = cnp.clone();
    (
        odd.bth.becn,
        odd.bth.fecn,
        odd.bth.mig_req,
        odd.resv6a,
        odd.sport,
    ) = (false, true, true, 0x3f, 0xc00f);
    variants.push(odd);
    variants.push(Spec {
        options: vec![1; 40],
        ..cnp.clone()
    });
    variants.push(Spec {
        padding: 6,
        ..cnp.clone()
    });
    let mut bytes = 0;
    for (i, spec) in variants.iter().enumerate() {
        m.dirty[5] = 0;
        m.now += 10;
        expect(&mut m, spec, Outcome::Consumed);
        bytes += (spec.build().len() - spec.padding) as u64;
        let c = m.qp(5);
        assert_eq!(
            c.kinds[Kind::Cnp as usize],
            Count {
                packets: i as u64 + 1,
                bytes
            }
        );
        assert_eq!((c.last_cnp_ns, m.dirty[5]), (m.now, 1));
    }
    let c = *m.qp(5);
    assert_eq!(
        (c.ecn, c.last_ce_ns),
        ([0; 4], 0),
        "a CE mark on a CNP is not answered by a CNP"
    );
    assert_eq!((c.requests.valid, c.redirected, c.no_socket), (0, 0, 0));
    assert_eq!(Outcome::Consumed.action(), Action::Drop);

    // A wrong ICRC is counted, and nothing else.
    m.dirty[5] = 0;
    let mut bad = cnp.build();
    *bad.last_mut().unwrap() ^= 1;
    assert_eq!(m.run(&bad[..]), Outcome::Dropped(Reason::CnpIcrc));
    assert_eq!(
        *m.qp(5),
        QpCounters {
            cnp_bad_icrc: 1,
            ..c
        }
    );
    assert_eq!(m.dirty[5], 0);
    // A wrong length.
    for payload in [0, 12, 20, 64] {
        expect(
            &mut m,
            &cnp.clone().payload(payload),
            Outcome::Dropped(Reason::CnpMalformed),
        );
    }
    m.add(QpConfig {
        local_gid: B6.gid(),
        peer_gid: A6.gid(),
        ..config()
    });
    expect(&mut m, &cnp.clone().from(A6).to(B6), Outcome::Consumed);
    let extended = Spec {
        extensions: vec![(60, vec![0; 14])],
        ..cnp.clone().from(A6).to(B6)
    };
    expect(&mut m, &extended, Outcome::Consumed);
    let endless = Spec {
        extensions: vec![(60, vec![0; 254])],
        ..cnp.from(A6).to(B6)
    };
    expect(&mut m, &endless, Outcome::Dropped(Reason::CnpMalformed));
}

#[test]
fn acknowledgements_are_told_apart_and_are_no_part_of_a_sequence() {
    let mut m = model();
    let syndromes = [
        (0x00, Kind::Ack, None),
        (0x05, Kind::Ack, None),
        (0x1f, Kind::Ack, None),
        (0x20, Kind::RnrNak, None),
        (0x3f, Kind::RnrNak, None),
        (0x60, Kind::Nak, Some(0)),
        (0x61, Kind::Nak, Some(1)),
        (0x62, Kind::Nak, Some(2)),
        (0x63, Kind::Nak, Some(3)),
        (0x64, Kind::Nak, Some(4)),
        (0x7f, Kind::Nak, Some(4)),
        (0x40, Kind::Other, None),
        (0x5f, Kind::Other, None),
        (0x80, Kind::Other, None),
        (0xff, Kind::Other, None),
    ];
    let mut kinds = [0; KINDS];
    let mut naks = [0; 5];
    for (i, (syndrome, kind, nak)) in syndromes.into_iter().enumerate() {
        // PSNs all over the place.
        let psn = (i as u32 * 0x35_1234) & 0xff_ffff;
        expect(
            &mut m,
            &Spec::ack(QPN, psn, syndrome, i as u32),
            Outcome::Redirected,
        );
        kinds[kind as usize] += 1;
        if let Some(code) = nak {
            naks[code] += 1;
        }
        let c = m.qp(5);
        assert_eq!(c.kinds.map(|k| k.packets), kinds, "{syndrome:#x}");
        assert_eq!(c.naks, naks, "{syndrome:#x}");
        if !matches!(kind, Kind::Other) {
            assert_eq!((c.last_ack_psn, c.last_ack_msn), (psn, i as u32));
        }
    }
    let atomic =
        Spec::new(rc::ATOMIC_ACKNOWLEDGE, QPN, 77).headers(&[0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
    expect(&mut m, &atomic, Outcome::Redirected);
    let c = m.qp(5);
    assert_eq!(
        (
            c.kinds[Kind::AtomicAck as usize].packets,
            c.last_ack_psn,
            c.last_ack_msn
        ),
        (1, 77, 9)
    );
    assert_eq!((c.requests.valid, c.responses.valid), (0, 0));
}

#[test]
fn requests_and_responses_are_two_sequences() {
    let mut m = model();
    let response = |code: u8, psn| {
        let headers: &[u8] = if code == 0x0e { &[] } else { &[0x1f, 0, 0, 1] };
        Spec::new(Opcode(code), QPN, psn)
            .headers(headers)
            .payload(1024)
    };
    for spec in [
        data(100),
        response(0x0d, 900),
        Spec::new(rc::READ_REQUEST, QPN, 101).reth(4097),
        response(0x0e, 901),
        data(106),
        response(0x0f, 902),
        Spec::ack(QPN, 50, 0x1f, 3),
        Spec::new(rc::FETCH_ADD, QPN, 107).headers(&[0; 28]),
        response(0x10, 950),
    ] {
        expect(&mut m, &spec, Outcome::Redirected);
    }
    let c = m.qp(5);
    for t in [c.requests, c.responses] {
        assert_eq!(
            (t.out_of_sequence, t.gaps, t.missing, t.duplicates),
            (0, 0, 0, 0)
        );
    }
    assert_eq!(
        (c.requests.expected_psn, c.responses.expected_psn),
        (108, 951)
    );
    let packets = |kind: Kind| c.kinds[kind as usize].packets;
    assert_eq!(
        (
            packets(Kind::ReadRequest),
            packets(Kind::ReadResponse),
            packets(Kind::Atomic)
        ),
        (1, 4, 1)
    );
}

#[test]
fn the_engine_resynchronises_a_tracker_that_a_corrupt_psn_derailed() {
    let mut m = model();
    m.add(QpConfig {
        resync: 1,
        resync_request_psn: 50,
        resync_response_psn: 60,
        ..config()
    });
    expect(&mut m, &data(50), Outcome::Redirected);
    assert_eq!(
        (
            m.qp(5).requests.expected_psn,
            m.qp(5).responses.expected_psn
        ),
        (51, 60)
    );
    assert_eq!(m.qp(5).resync_seen, 1);
    // The expected PSN was taken by a packet that the ICRC check throws away: the real one seems a duplicate.
    expect(&mut m, &data(51), Outcome::Redirected);
    expect(&mut m, &data(51), Outcome::Redirected);
    assert_eq!(m.qp(5).requests.duplicates, 1);
    m.add(QpConfig {
        resync: 2,
        resync_request_psn: 0xff_ffff,
        ..config()
    });
    expect(&mut m, &data(0xff_ffff), Outcome::Redirected);
    expect(&mut m, &data(0), Outcome::Redirected);
    let t = m.qp(5).requests;
    assert_eq!((t.expected_psn, t.out_of_sequence, t.duplicates), (1, 0, 1));
}
