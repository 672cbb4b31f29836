//! Requests that the responder refuses: which NAK each gets, that nothing was changed, and what becomes of both ends.

mod common;

use common::{Craft, LONG, answers, outcomes, pattern, recv_wr, send_wr, target};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{PathMtu, Psn, Qpn, RKey};
use rocexdp_proto::mem::{Access, MemoryRegion};
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_proto::{ErrorCause, Event, QpState};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

const FIRST: Psn = Psn::new(0xff_fff0);
const ACK: Syndrome = Syndrome::Ack(0x1f);

fn small() -> PairConfig {
    PairConfig {
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    }
}

/// Feeds packets to end 1, in sequence; gives the answers. Region: 2048 bytes. Receive request: 2048 bytes.
fn feed(
    packets: &[Craft],
    prepare: impl FnOnce(&mut Pair, &MemoryRegion),
) -> (Vec<(Psn, Syndrome)>, Pair) {
    let config = small();
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 2048);
    prepare(&mut pair, &region);
    pair.capture();
    for (n, craft) in packets.iter().enumerate() {
        let mut craft = craft.clone();
        craft.bth.psn = FIRST.add(n as u32);
        pair.inject(1, craft.frame(&config, 0));
        assert!(pair.run(LONG));
    }
    (answers(&pair.sent, 1), pair)
}

fn packet(opcode: Opcode) -> Craft {
    Craft::new(0, opcode, FIRST)
}

/// The region's key is the first that end 1 draws, the same in each pair.
fn key() -> u32 {
    let mut pair = Pair::new(&small());
    target(&mut pair, 2048).1.rkey.0
}

const VA: u64 = 0x10_0000;

/// These packets get a NAK at the last of them, and the QP goes to ERR.
fn refused(what: &str, syndrome: Syndrome, packets: &[Craft]) {
    let inbox = Bytes::filled(2048, 0);
    let (answers, mut pair) = feed(packets, |pair, _| {
        pair.post_recv(1, recv_wr(5, &inbox, 2048)).unwrap()
    });
    let at = FIRST.add(packets.len() as u32 - 1);
    assert_eq!(answers, [(at, syndrome)], "{what}");
    let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    assert_eq!(
        (info.state, info.expected_psn),
        (QpState::Err, at),
        "{what}"
    );
    let [
        Event::QpError {
            cause: ErrorCause::Peer(reason),
            ..
        },
    ] = pair.ends[1].events[..]
    else {
        panic!("{what}: {:?}", pair.ends[1].events);
    };
    assert_eq!(
        pair.ends[1].endpoint.counters().drops[reason.index()],
        1,
        "{what}"
    );
    let ended = outcomes(&mut pair, 1);
    assert!(
        ended.len() == 1 && ended[0].2 != Status::Success,
        "{what}: the receive request ends: {ended:?}"
    );
}

#[test]
fn lengths_and_pads_that_do_not_fit_their_opcode_are_invalid_requests() {
    let (key, invalid) = (key(), Syndrome::NakInvalidRequest);
    let full = || packet(rc::SEND_FIRST).payload(&[7; 256]);
    let first = |len: u32| {
        packet(rc::WRITE_FIRST)
            .reth(VA, key, len)
            .payload(&[7; 256])
    };
    refused(
        "FIRST shorter than the path MTU",
        invalid,
        &[packet(rc::SEND_FIRST).payload(&[7; 252])],
    );
    refused(
        "FIRST longer than the path MTU",
        invalid,
        &[packet(rc::SEND_FIRST).payload(&[7; 260])],
    );
    refused("FIRST without payload", invalid, &[packet(rc::SEND_FIRST)]);
    refused(
        "MIDDLE with pad",
        invalid,
        &[full(), packet(rc::SEND_MIDDLE).payload(&[7; 255])],
    );
    refused(
        "LAST without payload",
        invalid,
        &[full(), packet(rc::SEND_LAST)],
    );
    refused(
        "LAST longer than the path MTU",
        invalid,
        &[full(), packet(rc::SEND_LAST).payload(&[7; 257])],
    );
    refused(
        "ONLY longer than the path MTU",
        invalid,
        &[packet(rc::SEND_ONLY).payload(&[7; 260])],
    );
    let mut odd = packet(rc::SEND_ONLY).payload(&[7; 5]);
    odd.bth.pad = 1;
    refused(
        "pad that does not fill up to four bytes",
        invalid,
        &[odd.clone()],
    );
    odd.payload = vec![7; 7];
    odd.bth.pad = 0;
    refused("no pad where one is needed", invalid, &[odd]);

    refused(
        "WRITE FIRST of a message that is one packet",
        invalid,
        &[first(256)],
    );
    refused(
        "WRITE longer than announced",
        invalid,
        &[first(300), packet(rc::WRITE_LAST).payload(&[7; 48])],
    );
    refused(
        "WRITE LAST before the announced end",
        invalid,
        &[first(300), packet(rc::WRITE_LAST).payload(&[7; 40])],
    );
    refused(
        "WRITE MIDDLE at the announced end",
        invalid,
        &[first(512), packet(rc::WRITE_MIDDLE).payload(&[7; 256])],
    );
    let only = |len: u32| packet(rc::WRITE_ONLY).reth(VA, key, len).payload(&[7; 8]);
    refused("WRITE ONLY shorter than announced", invalid, &[only(9)]);
    refused("WRITE ONLY longer than announced", invalid, &[only(7)]);
    refused(
        "WRITE of more than 2^31 bytes",
        invalid,
        &[first(0x8000_0001)],
    );
}

#[test]
fn opcodes_out_of_order_are_invalid_requests() {
    let (key, invalid) = (key(), Syndrome::NakInvalidRequest);
    let full = || packet(rc::SEND_FIRST).payload(&[7; 256]);
    let write = || {
        packet(rc::WRITE_FIRST)
            .reth(VA, key, 1024)
            .payload(&[7; 256])
    };
    refused(
        "MIDDLE that begins",
        invalid,
        &[packet(rc::SEND_MIDDLE).payload(&[7; 256])],
    );
    refused(
        "LAST that begins",
        invalid,
        &[packet(rc::WRITE_LAST).payload(&[7; 4])],
    );
    refused("FIRST within a message", invalid, &[full(), full()]);
    refused(
        "ONLY within a message",
        invalid,
        &[write(), packet(rc::SEND_ONLY).payload(&[7; 4])],
    );
    refused(
        "a SEND that goes on as a WRITE",
        invalid,
        &[full(), packet(rc::WRITE_MIDDLE).payload(&[7; 256])],
    );
    refused(
        "a WRITE that goes on as a SEND",
        invalid,
        &[write(), packet(rc::SEND_LAST).payload(&[7; 4])],
    );
    refused(
        "READ within a message",
        invalid,
        &[full(), packet(rc::READ_REQUEST).reth(VA, key, 8)],
    );
    refused(
        "an atomic within a message",
        invalid,
        &[write(), packet(rc::FETCH_ADD).atomic(VA, key, 1, 0)],
    );
}

#[test]
fn access_outside_what_was_granted_is_a_remote_access_error() {
    let (key, refusal) = (key(), Syndrome::NakRemoteAccess);
    let only = |va: u64, key: u32| packet(rc::WRITE_ONLY).reth(va, key, 8).payload(&[7; 8]);
    let cases = [
        ("a key that does not exist", VA, key ^ 1),
        ("before the region", VA - 1, key),
        ("beyond the region", VA + 2041, key),
        ("far beyond it", VA + 4096, key),
        ("a range that passes 2^64", u64::MAX - 3, key),
        ("address 0", 0, key),
    ];
    for (what, va, key) in cases {
        refused(what, refusal, &[only(va, key)]);
    }
    // The whole message is checked at its FIRST.
    let first = packet(rc::WRITE_FIRST)
        .reth(VA, key, 2049)
        .payload(&[7; 256]);
    refused(
        "a message that would end beyond the region",
        refusal,
        &[first],
    );
    let huge = packet(rc::WRITE_FIRST)
        .reth(VA, key, 0x8000_0000)
        .payload(&[7; 256]);
    refused("2^31 bytes into a small region", refusal, &[huge]);
}

#[test]
fn a_region_that_is_not_for_writing_is_not_written() {
    let bytes = Bytes::filled(64, 0);
    let mut rkey = RKey(0);
    let config = small();
    let mut pair = Pair::new(&config);
    for access in [Access::NONE, Access::LOCAL_WRITE | Access::REMOTE_READ] {
        rkey = pair.ends[1]
            .endpoint
            .register_memory(bytes.clone(), VA, access)
            .unwrap()
            .rkey;
    }
    pair.capture();
    let write = packet(rc::WRITE_ONLY).reth(VA, rkey.0, 8).payload(&[7; 8]);
    pair.inject(1, write.frame(&config, 0));
    assert!(pair.run(LONG));
    assert_eq!(answers(&pair.sent, 1), [(FIRST, Syndrome::NakRemoteAccess)]);
    assert!(bytes.copy().iter().all(|b| *b == 0));
}

#[test]
fn a_region_bound_to_one_qp_is_out_of_reach_over_another() {
    let config = small();
    let write = |bind: &[Option<Qpn>]| {
        let mut pair = Pair::new(&config);
        let (bytes, region) = target(&mut pair, 64);
        for qpn in bind {
            assert!(pair.ends[1].endpoint.bind_region(region.rkey, *qpn));
        }
        pair.capture();
        let write = packet(rc::WRITE_ONLY)
            .reth(VA, region.rkey.0, 8)
            .payload(&[7; 8])
            .asking();
        pair.inject(1, write.frame(&config, 0));
        assert!(pair.run(LONG));
        let written = bytes.copy()[..8] == [7; 8];
        assert_eq!(written, bytes.copy().iter().any(|b| *b != 0));
        (answers(&pair.sent, 1), written)
    };
    let served = (vec![(FIRST, ACK)], true);
    let refused = (vec![(FIRST, Syndrome::NakRemoteAccess)], false);
    let other = Qpn::new(QPNS[1].get() + 1);
    assert_eq!(write(&[]), served);
    assert_eq!(write(&[Some(QPNS[1])]), served);
    assert_eq!(write(&[Some(other)]), refused);
    assert_eq!(write(&[Some(other), None]), served);

    let mut pair = Pair::new(&config);
    assert!(!pair.ends[1].endpoint.bind_region(RKey(1), None));
}

#[test]
fn a_region_bound_elsewhere_in_the_middle_of_a_message_ends_it() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 2048);
    let first = packet(rc::WRITE_FIRST)
        .reth(VA, region.rkey.0, 600)
        .payload(&[7; 256]);
    pair.inject(1, first.frame(&config, 0));
    assert!(pair.run(LONG));
    let endpoint = &mut pair.ends[1].endpoint;
    assert!(endpoint.bind_region(region.rkey, Some(QPNS[0])));
    pair.capture();
    let middle = Craft::new(0, rc::WRITE_MIDDLE, FIRST.add(1)).payload(&[7; 256]);
    pair.inject(1, middle.frame(&config, 0));
    assert!(pair.run(LONG));
    assert_eq!(
        answers(&pair.sent, 1),
        [(FIRST.add(1), Syndrome::NakRemoteAccess)]
    );
    assert!(bytes.copy()[256..].iter().all(|b| *b == 0));
}

#[test]
fn a_qp_that_serves_no_writes_calls_them_invalid() {
    let config = PairConfig {
        access: Access::REMOTE_READ,
        ..small()
    };
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 64);
    pair.capture();
    pair.post_send(
        0,
        send_wr(1, common::write_op(&region), &Bytes::of(pattern(64, 1)), 64),
    )
    .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        answers(&pair.sent, 1),
        [(FIRST, Syndrome::NakInvalidRequest)]
    );
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::RemInvReqErr)]
    );
    assert!(bytes.copy().iter().all(|b| *b == 0));
}

#[test]
fn a_write_of_nothing_needs_no_key() {
    let none = packet(rc::WRITE_ONLY)
        .reth(0xdead_0000, 0xdead_beef, 0)
        .asking();
    let (answers, pair) = feed(&[none.clone(), none], |_, _| {});
    assert_eq!(answers, [(FIRST, ACK), (FIRST.add(1), ACK)]);
    let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    assert_eq!((info.msn, info.state), (2, QpState::Rts));
}

#[test]
fn a_region_withdrawn_in_the_middle_of_a_message_ends_it() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 2048);
    let first = packet(rc::WRITE_FIRST)
        .reth(VA, region.rkey.0, 600)
        .payload(&[7; 256]);
    pair.inject(1, first.frame(&config, 0));
    assert!(pair.run(LONG));
    assert!(pair.ends[1].endpoint.deregister_memory(region.rkey));
    pair.capture();
    let middle = Craft::new(0, rc::WRITE_MIDDLE, FIRST.add(1)).payload(&[7; 256]);
    pair.inject(1, middle.frame(&config, 0));
    assert!(pair.run(LONG));
    assert_eq!(
        answers(&pair.sent, 1),
        [(FIRST.add(1), Syndrome::NakRemoteAccess)]
    );
    assert!(
        bytes.copy()[..256].iter().all(|b| *b == 7) && bytes.copy()[256..].iter().all(|b| *b == 0)
    );
}

#[test]
fn memory_that_faults_is_a_remote_operational_error() {
    let config = small();
    let mut pair = Pair::new(&config);
    let (bytes, region) = target(&mut pair, 64);
    bytes.take_away();
    pair.capture();
    pair.post_send(
        0,
        send_wr(1, common::write_op(&region), &Bytes::of(pattern(64, 1)), 64),
    )
    .unwrap();
    pair.post_send(
        0,
        send_wr(2, common::write_op(&region), &Bytes::of(pattern(64, 1)), 64),
    )
    .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        answers(&pair.sent, 1),
        [(FIRST, Syndrome::NakRemoteOperational)]
    );
    let failed = [
        (1, CqeOpcode::Write, Status::RemOpErr),
        (2, CqeOpcode::Write, Status::WrFlushErr),
    ];
    assert_eq!(outcomes(&mut pair, 0), failed);
}

#[test]
fn a_send_longer_than_its_receive_request_fails_at_both_ends() {
    let mut pair = Pair::new(&small());
    let inbox = Bytes::filled(1000, 0);
    pair.post_recv(1, recv_wr(5, &inbox, 600)).unwrap();
    pair.post_recv(1, recv_wr(6, &inbox, 600)).unwrap();
    pair.post_send(
        0,
        send_wr(1, SendOp::Send, &Bytes::of(pattern(700, 1)), 700),
    )
    .unwrap();
    pair.capture();
    assert!(pair.run(LONG));
    // Soft-RoCE answers remote operational error here; the standard wants invalid request.
    assert_eq!(
        answers(&pair.sent, 1),
        [(FIRST.add(2), Syndrome::NakInvalidRequest)]
    );
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::RemInvReqErr)]
    );
    let ended = [
        (5, CqeOpcode::Recv, Status::LocLenErr),
        (6, CqeOpcode::Recv, Status::WrFlushErr),
    ];
    assert_eq!(outcomes(&mut pair, 1), ended);
    assert!(
        inbox.copy()[600..].iter().all(|b| *b == 0),
        "no byte beyond the receive request"
    );
}

#[test]
fn each_nak_of_the_peer_ends_the_request_with_its_status() {
    for (syndrome, status) in [
        (Syndrome::NakInvalidRequest, Status::RemInvReqErr),
        (Syndrome::NakRemoteAccess, Status::RemAccessErr),
        (Syndrome::NakRemoteOperational, Status::RemOpErr),
    ] {
        let config = small();
        let mut pair = Pair::new(&config);
        let (_, region) = target(&mut pair, 64);
        for n in 0..3 {
            pair.post_send(
                0,
                send_wr(n, common::write_op(&region), &Bytes::of(pattern(64, 1)), 64),
            )
            .unwrap();
        }
        pair.script = Some(Box::new(|_, _, _, _| rocexdp_sim::pair::Fate::Drop));
        pair.run(core::time::Duration::ZERO);
        let nak = Craft::new(1, rc::ACKNOWLEDGE, FIRST.add(1)).aeth(syndrome);
        pair.inject(0, nak.frame(&config, 1));
        assert!(pair.run(LONG));
        assert_eq!(
            outcomes(&mut pair, 0),
            [
                (0, CqeOpcode::Write, Status::Success),
                (1, CqeOpcode::Write, status),
                (2, CqeOpcode::Write, Status::WrFlushErr),
            ]
        );
    }
}
