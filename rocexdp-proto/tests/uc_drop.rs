//! UC: what is dropped, what becomes of the receive request, and that nobody is ever told.

mod common;

use std::sync::Arc;

use common::uc::{config, silent};
use common::{Craft, dropped, outcomes, pattern, recv_wr, send_wr, state, stats, target, write_op};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{Pd, Psn, SrqNum};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CqeOpcode, SendOp, SrqAttr, Status};
use rocexdp_proto::{CreateQp, DropReason, ErrorCause, Event, QpState};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS};

const FIRST: Psn = Psn::new(0xff_fff0);
const VA: u64 = 0x10_0000;

/// UC's opcode for what RC's does.
fn uc(rc: Opcode) -> Opcode {
    Opcode(rc.0 | 0x20)
}

#[test]
fn a_message_that_lost_a_packet_is_dropped_and_its_receive_request_serves_the_next() {
    // Three packets, one packet, three packets; each packet in turn is lost.
    let sizes = [600, 100, 700];
    for lost in 0..7u64 {
        let mut pair = Pair::new(&config());
        pair.script = Some(Box::new(
            move |_, n, _, _| {
                if n == lost { Fate::Drop } else { Fate::Pass }
            },
        ));
        let inboxes: Vec<_> = (0..3).map(|_| Bytes::filled(700, 0)).collect();
        for (n, inbox) in inboxes.iter().enumerate() {
            pair.post_recv(1, recv_wr(n as u64, inbox, 700)).unwrap();
        }
        let data = pattern(700, 3);
        let source = Bytes::of(data.clone());
        for len in sizes {
            pair.post_send(0, send_wr(9, SendOp::Send, &source, len))
                .unwrap();
        }
        silent(&mut pair);
        let broken = match lost {
            0..3 => 0,
            3 => 1,
            _ => 2,
        };
        let expected: Vec<_> = (0..3).filter(|m| *m != broken).map(|m| sizes[m]).collect();
        let got: Vec<_> = pair
            .completions(1)
            .iter()
            .map(|c| (c.wr_id.0, c.byte_len as usize))
            .collect();
        let want: Vec<_> = (0..).zip(expected).collect();
        assert_eq!(got, want, "packet {lost}");
        for (id, len) in want {
            assert!(
                inboxes[id as usize].copy()[..len] == data[..len],
                "packet {lost}"
            );
        }
        // The last packets of all are missed by nobody.
        assert_eq!(
            stats(&pair, 1).out_of_sequence,
            u64::from(lost != 6),
            "{lost}"
        );
        let counters = pair.ends[1].endpoint.counters();
        let drops: u64 = counters.drops.iter().sum();
        let last_of_it = [3u64, 4, 7][broken];
        // Of the message, what came behind the gap.
        assert_eq!(drops, last_of_it - lost - 1, "packet {lost}");
        assert_eq!(state(&pair, 1), QpState::Rts);
    }
}

/// Feeds packets to end 1 at these offsets from the first PSN; a region of 2048 bytes, and a receive request of 600, are there.
fn feed(packets: &[(u32, Craft)]) -> (Pair, Arc<Bytes>) {
    let config = config();
    let mut pair = Pair::new(&config);
    let (bytes, _) = target(&mut pair, 2048);
    let inbox = Bytes::filled(600, 0);
    pair.post_recv(1, recv_wr(5, &inbox, 600)).unwrap();
    pair.capture();
    for (at, craft) in packets {
        let mut craft = craft.clone();
        craft.bth.psn = FIRST.add(*at);
        pair.inject(1, craft.frame(&config, 0));
        silent(&mut pair);
    }
    assert_eq!(state(&pair, 1), QpState::Rts);
    (pair, bytes)
}

fn packet(opcode: Opcode) -> Craft {
    Craft::new(0, uc(opcode), FIRST)
}

/// The region's key is the first that end 1 draws, the same in each pair.
fn key() -> u32 {
    let mut pair = Pair::new(&config());
    target(&mut pair, 2048).1.rkey.0
}

#[test]
fn a_message_that_begins_before_the_one_before_has_ended_is_served() {
    // Where a message was cut short, Soft-RoCE drops the next one too (capture uc-loss).
    let full = pattern(256, 1);
    for (opcode, packets) in [(rc::SEND_ONLY, 1), (rc::SEND_FIRST, 2)] {
        let mut all = vec![
            (0, packet(rc::SEND_FIRST).payload(&full)),
            (1, packet(opcode).payload(&full)),
        ];
        if packets == 2 {
            all.push((2, packet(rc::SEND_LAST).payload(&[7; 4])));
        }
        let (mut pair, _) = feed(&all);
        assert_eq!(
            outcomes(&mut pair, 1),
            [(5, CqeOpcode::Recv, Status::Success)]
        );
    }
}

#[test]
fn a_message_that_goes_on_as_another_kind_is_dropped() {
    let full = pattern(256, 1);
    let (mut pair, bytes) = feed(&[
        (0, packet(rc::SEND_FIRST).payload(&full)),
        (1, packet(rc::WRITE_MIDDLE).payload(&full)),
        (2, packet(rc::WRITE_LAST).payload(&full)),
        (3, packet(rc::SEND_LAST).payload(&full)),
        (4, packet(rc::SEND_ONLY).payload(&full)),
    ]);
    assert_eq!(
        outcomes(&mut pair, 1),
        [(5, CqeOpcode::Recv, Status::Success)]
    );
    assert_eq!(dropped(&pair, DropReason::InvalidRequest), 1);
    assert_eq!(dropped(&pair, DropReason::MessageDropped), 2);
    assert!(bytes.copy().iter().all(|b| *b == 0));
}

#[test]
fn a_write_that_lost_a_packet_has_written_what_came_before_it_and_nothing_behind() {
    let full = [7; 256];
    let begin = packet(rc::WRITE_FIRST).reth(VA, key(), 768).payload(&full);
    let (mut pair, bytes) = feed(&[
        (0, begin),
        (2, packet(rc::WRITE_LAST_IMM).payload(&full)),
        (3, packet(rc::SEND_ONLY).payload(&[])),
    ]);
    let bytes = bytes.copy();
    assert!(bytes[..256] == full && bytes[256..].iter().all(|b| *b == 0));
    assert_eq!(
        outcomes(&mut pair, 1),
        [(5, CqeOpcode::Recv, Status::Success)]
    );
    assert_eq!(dropped(&pair, DropReason::OutOfSequence), 1);
}

#[test]
fn a_write_behind_a_dropped_send_consumes_no_receive_request() {
    let full = [7; 256];
    let (mut pair, bytes) = feed(&[
        (0, packet(rc::SEND_FIRST).payload(&full)),
        // The end of the SEND was lost.
        (
            2,
            packet(rc::WRITE_ONLY).reth(VA, key(), 4).payload(&[1; 4]),
        ),
    ]);
    assert_eq!(bytes.copy()[..4], [1; 4]);
    assert_eq!(outcomes(&mut pair, 1), [], "a WRITE completes nothing here");
    let mut next = packet(rc::SEND_ONLY).payload(&[2; 4]);
    next.bth.psn = FIRST.add(3);
    pair.inject(1, next.frame(&config(), 0));
    silent(&mut pair);
    assert_eq!(
        outcomes(&mut pair, 1),
        [(5, CqeOpcode::Recv, Status::Success)]
    );
}

#[test]
fn the_psn_of_a_messages_begin_is_not_looked_at() {
    // Whatever was lost or is older: rxe_resp.c `check_psn`.
    let (mut pair, _) = feed(&[(77, packet(rc::SEND_ONLY).payload(&[1; 4]))]);
    assert_eq!(outcomes(&mut pair, 1).len(), 1);
    pair.post_recv(1, recv_wr(6, &Bytes::filled(4, 0), 4))
        .unwrap();
    let mut again = packet(rc::SEND_ONLY).payload(&[1; 4]);
    again.bth.psn = FIRST.sub(100);
    pair.inject(1, again.frame(&config(), 0));
    silent(&mut pair);
    assert_eq!(outcomes(&mut pair, 1).len(), 1);
    assert_eq!(stats(&pair, 1).out_of_sequence, 2);
    let info = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap();
    assert_eq!((info.expected_psn, info.msn), (FIRST.sub(99), 2));
}

#[test]
fn a_message_without_receive_request_is_dropped_as_a_whole() {
    let mut pair = Pair::new(&config());
    pair.capture();
    let source = Bytes::of(pattern(600, 1));
    pair.post_send(0, send_wr(1, SendOp::Send, &source, 600))
        .unwrap();
    silent(&mut pair);
    assert_eq!(dropped(&pair, DropReason::NoReceive), 1);
    assert_eq!(dropped(&pair, DropReason::MessageDropped), 2);
    // The next one in sequence is not hurt by it.
    let inbox = Bytes::filled(600, 0);
    pair.post_recv(1, recv_wr(2, &inbox, 600)).unwrap();
    pair.post_send(0, send_wr(3, SendOp::Send, &source, 600))
        .unwrap();
    silent(&mut pair);
    assert_eq!(
        outcomes(&mut pair, 1),
        [(2, CqeOpcode::Recv, Status::Success)]
    );
    assert_eq!(stats(&pair, 1).out_of_sequence, 0);
}

#[test]
fn what_is_not_allowed_is_dropped_and_the_qp_goes_on() {
    let (full, key) = ([7; 256], key());
    let write = |rkey, va, len| packet(rc::WRITE_ONLY).reth(va, rkey, len);
    let wrong = [
        (
            "unknown key",
            DropReason::RemoteAccess,
            write(key ^ 1, VA, 4).payload(&[7; 4]),
        ),
        (
            "behind the region",
            DropReason::RemoteAccess,
            write(key, VA + 2045, 4).payload(&[7; 4]),
        ),
        (
            "before the region",
            DropReason::RemoteAccess,
            write(key, VA - 1, 4).payload(&[7; 4]),
        ),
        (
            "shorter than said",
            DropReason::InvalidRequest,
            write(key, VA, 8).payload(&[7; 4]),
        ),
        (
            "longer than said",
            DropReason::InvalidRequest,
            write(key, VA, 2).payload(&[7; 4]),
        ),
        (
            "an empty LAST",
            DropReason::MessageDropped,
            packet(rc::SEND_LAST).payload(&[]),
        ),
        (
            "a short FIRST",
            DropReason::InvalidRequest,
            packet(rc::SEND_FIRST).payload(&[7; 255]),
        ),
        (
            "longer than the receive request",
            DropReason::InvalidRequest,
            packet(rc::SEND_ONLY).payload(&[7; 257]),
        ),
    ];
    for (what, reason, craft) in wrong {
        let (mut pair, bytes) = feed(&[(0, craft), (1, packet(rc::SEND_ONLY).payload(&full))]);
        assert_eq!(dropped(&pair, reason), 1, "{what}");
        assert!(bytes.copy().iter().all(|b| *b == 0), "{what}");
        assert_eq!(
            outcomes(&mut pair, 1),
            [(5, CqeOpcode::Recv, Status::Success)],
            "{what}"
        );
    }
}

#[test]
fn a_qp_that_serves_no_writes_drops_them() {
    let mut pair = Pair::new(&PairConfig {
        access: Access::NONE,
        ..config()
    });
    pair.capture();
    let (bytes, region) = target(&mut pair, 600);
    let source = Bytes::of(pattern(600, 1));
    pair.post_send(0, send_wr(1, write_op(&region), &source, 600))
        .unwrap();
    silent(&mut pair);
    assert_eq!(dropped(&pair, DropReason::InvalidRequest), 1);
    assert_eq!(dropped(&pair, DropReason::MessageDropped), 2);
    assert!(bytes.copy().iter().all(|b| *b == 0));
    assert_eq!(state(&pair, 1), QpState::Rts);
}

#[test]
fn a_message_longer_than_its_receive_request_is_dropped_and_that_serves_the_next() {
    let full = [7; 256];
    let (mut pair, _) = feed(&[
        (0, packet(rc::SEND_FIRST).payload(&full)),
        (1, packet(rc::SEND_MIDDLE).payload(&full)),
        (2, packet(rc::SEND_MIDDLE).payload(&full)),
        (3, packet(rc::SEND_LAST).payload(&full)),
        (4, packet(rc::SEND_ONLY).payload(&[1; 3])),
    ]);
    let got = pair.completions(1);
    assert_eq!((got.len(), got[0].byte_len), (1, 3));
    assert_eq!(dropped(&pair, DropReason::InvalidRequest), 1);
    assert_eq!(dropped(&pair, DropReason::MessageDropped), 1);
}

#[test]
fn out_of_a_shared_queue_the_receive_request_of_a_dropped_message_completes_in_error() {
    let full = [7; 256];
    let cut_short = [
        (0, packet(rc::SEND_FIRST).payload(&full)),
        (2, packet(rc::SEND_LAST).payload(&full)),
    ];
    let too_long = [
        (0, packet(rc::SEND_FIRST).payload(&full)),
        (1, packet(rc::SEND_MIDDLE).payload(&full)),
        (2, packet(rc::SEND_LAST).payload(&full)),
    ];
    for (packets, status) in [
        (&cut_short[..], Status::RemInvReqErr),
        (&too_long[..], Status::LocLenErr),
    ] {
        let config = config();
        let mut pair = Pair::new(&config);
        let end = &mut pair.ends[1];
        let srq = end
            .endpoint
            .create_srq(&SrqAttr {
                num: SrqNum(1),
                pd: Pd::default(),
                max_wr: 4,
                max_sge: 1,
                limit: 0,
            })
            .unwrap();
        let now = Timestamp::ZERO;
        // The pair's QP again, on the shared queue.
        end.endpoint.destroy_qp(QPNS[1]).unwrap();
        end.qp = end
            .endpoint
            .create_qp(CreateQp {
                srq: Some(srq.clone()),
                ..CreateQp::uc(QPNS[1], &end.cq, &end.cq)
            })
            .unwrap();
        for to in rocexdp_sim::pair::transitions(&config, 1) {
            end.endpoint.modify_qp(now, QPNS[1], to).unwrap();
        }
        let inbox = Bytes::filled(512, 0);
        srq.post(recv_wr(5, &inbox, 512)).unwrap();
        srq.post(recv_wr(6, &inbox, 512)).unwrap();
        for (at, craft) in packets {
            let mut craft = craft.clone();
            craft.bth.psn = FIRST.add(*at);
            pair.inject(1, craft.frame(&config, 0));
        }
        let mut next = packet(rc::SEND_ONLY).payload(&[1; 4]);
        next.bth.psn = FIRST.add(9);
        pair.inject(1, next.frame(&config, 0));
        silent(&mut pair);
        assert_eq!(
            outcomes(&mut pair, 1),
            [
                (5, CqeOpcode::Recv, status),
                (6, CqeOpcode::Recv, Status::Success)
            ]
        );
        assert_eq!(state(&pair, 1), QpState::Rts);
    }
}

#[test]
fn receive_memory_that_fails_ends_the_qp_and_a_region_that_fails_drops_the_message() {
    let mut pair = Pair::new(&config());
    pair.capture();
    let (bytes, region) = target(&mut pair, 600);
    bytes.take_away();
    let source = Bytes::of(pattern(600, 1));
    pair.post_send(0, send_wr(1, write_op(&region), &source, 600))
        .unwrap();
    silent(&mut pair);
    assert_eq!(dropped(&pair, DropReason::RemoteOperational), 1);
    assert_eq!(state(&pair, 1), QpState::Rts);
    let inbox = Bytes::filled(600, 0);
    pair.post_recv(1, recv_wr(2, &inbox, 600)).unwrap();
    inbox.take_away();
    pair.post_send(0, send_wr(3, SendOp::Send, &source, 600))
        .unwrap();
    silent(&mut pair);
    assert_eq!(
        outcomes(&mut pair, 1),
        [(2, CqeOpcode::Recv, Status::LocProtErr)]
    );
    assert_eq!(state(&pair, 1), QpState::Err);
    let cause = ErrorCause::Peer(DropReason::RemoteOperational);
    assert!(pair.ends[1].events.contains(&Event::QpError {
        qpn: QPNS[1],
        cause
    }));
}

#[test]
fn packets_of_other_services_are_dropped() {
    let config = config();
    let mut pair = Pair::new(&config);
    pair.capture();
    let inbox = Bytes::filled(600, 0);
    pair.post_recv(1, recv_wr(5, &inbox, 600)).unwrap();
    for opcode in [0x04, 0x64, 0xa4] {
        let mut craft = Craft::new(0, Opcode(opcode), FIRST);
        craft.extensions = vec![0; if opcode == 0x64 { 8 } else { 4 }];
        pair.inject(1, craft.frame(&config, 0));
    }
    // UC has no acknowledgement.
    let ack = Craft::new(0, Opcode(0x31), FIRST);
    pair.inject(1, ack.frame(&config, 0));
    silent(&mut pair);
    assert_eq!(dropped(&pair, DropReason::TransportMismatch), 3);
    assert_eq!(dropped(&pair, DropReason::UnknownOpcode), 1);
    assert!(pair.completions(1).is_empty());
}
