//! UC: what arrives, what is dropped, what becomes of the receive request, and that nobody is ever told.

mod common;
#[path = "common/softroce.rs"]
mod softroce;

use std::sync::Arc;

use common::{Craft, LONG, outcomes, pattern, recv_wr, send_wr, stats, target, write_op};
use rocexdp_common::opcode::{Opcode, rc};
use rocexdp_proto::ids::{PathMtu, Pd, Psn, RKey, SrqNum};
use rocexdp_proto::mem::Access;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CqeOpcode, PostError, SendOp, SrqAttr, Status};
use rocexdp_proto::{
    CongestionSignal, CreateQp, DropReason, ErrorCause, Event, QpState, QpTransition, RtsAttr,
    Transport,
};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS, datagram};
use softroce::Host;

const FIRST: Psn = Psn::new(0xff_fff0);
const VA: u64 = 0x10_0000;

fn config() -> PairConfig {
    PairConfig {
        transport: Transport::Uc,
        path_mtu: PathMtu::Mtu256,
        ..PairConfig::default()
    }
}

/// UC's opcode for what RC's does.
fn uc(rc: Opcode) -> Opcode {
    Opcode(rc.0 | 0x20)
}

/// How often end 1 dropped a packet so.
fn dropped(pair: &Pair, reason: DropReason) -> u64 {
    pair.ends[1].endpoint.counters().drops[reason.index()]
}

fn state(pair: &Pair, end: usize) -> QpState {
    pair.ends[end].endpoint.qp_info(QPNS[end]).unwrap().state
}

/// End 1 has nothing to say, ever.
fn silent(pair: &mut Pair) {
    assert!(pair.run(LONG));
    assert!(
        pair.sent.iter().all(|s| s.end == 0),
        "{:?}",
        pair.sent.last()
    );
}

#[test]
fn every_operation_and_size_arrives_intact_at_every_path_mtu() {
    for path_mtu in PathMtu::ALL {
        let mut pair = Pair::new(&PairConfig {
            path_mtu,
            ..config()
        });
        pair.capture();
        let mtu = path_mtu.bytes() as usize;
        for len in [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu, 3 * mtu + 5] {
            let data = pattern(len, len as u64);
            let (source, inbox) = (Bytes::of(data.clone()), Bytes::filled(len, 0));
            let (written, region) = target(&mut pair, len);
            let (va, rkey) = (region.va, region.rkey);
            let ops = [
                (SendOp::Send, CqeOpcode::Send, Some(CqeOpcode::Recv), None),
                (
                    SendOp::SendImm(7),
                    CqeOpcode::Send,
                    Some(CqeOpcode::Recv),
                    Some(7),
                ),
                (write_op(&region), CqeOpcode::Write, None, None),
                (
                    SendOp::WriteImm { va, rkey, imm: 9 },
                    CqeOpcode::Write,
                    Some(CqeOpcode::RecvWriteImm),
                    Some(9),
                ),
            ];
            for (op, sent, received, imm) in ops {
                if received.is_some() {
                    pair.post_recv(1, recv_wr(5, &inbox, len)).unwrap();
                }
                pair.post_send(0, send_wr(6, op, &source, len)).unwrap();
                assert!(pair.run(LONG));
                assert_eq!(outcomes(&mut pair, 0), [(6, sent, Status::Success)]);
                let got = pair.completions(1);
                let what = format!("{op:?} of {len} at {path_mtu}");
                assert_eq!(got.len(), usize::from(received.is_some()), "{what}");
                for c in got {
                    assert_eq!(
                        (
                            Some(c.opcode),
                            c.status,
                            c.byte_len,
                            c.imm,
                            c.src_qpn,
                            c.grh
                        ),
                        (received, Status::Success, len as u32, imm, None, false),
                        "{what}"
                    );
                }
                let to = match op {
                    SendOp::Write { .. } | SendOp::WriteImm { .. } => &written,
                    _ => &inbox,
                };
                assert!(to.copy() == data, "{what}");
            }
        }
        silent(&mut pair);
        assert!(
            pair.sent
                .iter()
                .all(|s| (0x20..=0x2b).contains(&s.bth.opcode.0) && !s.bth.ack_req)
        );
        assert_eq!(stats(&pair, 1).out_of_sequence, 0);
    }
}

#[test]
fn a_request_completes_though_nothing_arrives_and_is_never_sent_again() {
    let mut pair = Pair::new(&config());
    pair.capture();
    pair.script = Some(Box::new(|_, _, _, _| Fate::Drop));
    let source = Bytes::of(pattern(1000, 1));
    // More packets than any window.
    for n in 0..60 {
        pair.post_send(0, send_wr(n, SendOp::Send, &source, 1000))
            .unwrap();
    }
    let before = pair.now();
    assert!(pair.run(LONG));
    assert_eq!(pair.now(), before, "no timer ran");
    let done = outcomes(&mut pair, 0);
    assert_eq!(done.len(), 60);
    assert!(
        done.iter()
            .enumerate()
            .all(|(n, d)| *d == (n as u64, CqeOpcode::Send, Status::Success))
    );
    assert_eq!(pair.sent.len(), 240);
    assert_eq!(pair.ends[0].endpoint.poll_timeout(), None);
    assert_eq!(stats(&pair, 0).retransmitted_packets, 0);
}

#[test]
fn a_request_is_not_complete_before_its_last_packet_has_been_read() {
    let mut pair = Pair::new(&config());
    let source = Bytes::of(pattern(300, 1));
    pair.post_send(0, send_wr(1, SendOp::Send, &source, 300))
        .unwrap();
    let (now, end) = (pair.now(), &mut pair.ends[0]);
    for _ in 0..2 {
        let t = end.endpoint.poll_transmit(now).unwrap();
        let mut frame = vec![0; t.len()];
        t.write(&mut [&mut frame]).unwrap();
        assert!(end.cq.is_empty(), "its memory may still be read");
        assert_eq!(end.qp.sq.len(), 1);
    }
    assert!(end.endpoint.poll_transmit(now).is_none());
    assert_eq!((end.cq.len(), end.qp.sq.len()), (1, 0));
}

#[test]
fn an_unsignalled_request_completes_in_silence_and_frees_its_place() {
    let mut pair = Pair::new(&config());
    let source = Bytes::of(pattern(10, 1));
    let depth = u64::from(pair.ends[0].qp.sq.capacity());
    for n in 0..3 * depth {
        pair.post_send(0, send_wr(n, SendOp::Send, &source, 10).unsignaled())
            .unwrap();
        assert!(pair.run(LONG));
    }
    assert!(pair.completions(0).is_empty());
    assert_eq!(stats(&pair, 0).completions, 3 * depth);
}

#[test]
fn a_send_that_fails_here_stops_sending_only_until_the_qp_is_made_ready_again() {
    let mut pair = Pair::new(&config());
    let (source, gone) = (Bytes::of(pattern(600, 1)), Bytes::filled(600, 0));
    pair.post_send(0, send_wr(1, SendOp::Send, &source, 600))
        .unwrap();
    pair.post_send(0, send_wr(2, SendOp::Send, &gone, 600))
        .unwrap();
    pair.post_send(0, send_wr(3, SendOp::Send, &source, 600))
        .unwrap();
    gone.take_away();
    pair.capture();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [
            (1, CqeOpcode::Send, Status::Success),
            (2, CqeOpcode::Send, Status::LocProtErr),
            (3, CqeOpcode::Send, Status::WrFlushErr),
        ]
    );
    assert_eq!(state(&pair, 0), QpState::Sqe);
    // Flushed, too.
    pair.post_send(0, send_wr(4, SendOp::Send, &source, 600))
        .unwrap();
    assert_eq!(
        outcomes(&mut pair, 0),
        [(4, CqeOpcode::Send, Status::WrFlushErr)]
    );
    // Receiving goes on.
    let inbox = Bytes::filled(600, 0);
    pair.post_recv(0, recv_wr(5, &inbox, 600)).unwrap();
    pair.post_send(1, send_wr(6, SendOp::Send, &source, 600))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(5, CqeOpcode::Recv, Status::Success)]
    );
    let rts = RtsAttr {
        sq_psn: Psn::new(0),
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        max_rd_atomic: 0,
    };
    let now = pair.now();
    pair.ends[0]
        .endpoint
        .modify_qp(now, QPNS[0], QpTransition::Rts(rts))
        .unwrap();
    pair.sent.clear();
    for n in [7, 8] {
        pair.post_recv(1, recv_wr(n, &inbox, 600)).unwrap();
        pair.post_send(0, send_wr(n, SendOp::Send, &source, 600))
            .unwrap();
    }
    assert!(pair.run(LONG));
    // Three packets of request 1, the one of request 2 that could not be read.
    let first = pair.sent.first().unwrap().bth.psn;
    assert_eq!(first, FIRST.add(4), "PSNs go on");
    assert_eq!(outcomes(&mut pair, 1).len(), 3, "6, 7 and 8");
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
fn uc_has_no_reads_atomics_flushes_or_destinations() {
    let pair = Pair::new(&config());
    let source = Bytes::filled(8, 0);
    let (va, rkey) = (VA, RKey(1));
    for op in [
        SendOp::Read { va, rkey },
        SendOp::FetchAdd { va, rkey, add: 1 },
        SendOp::CompareSwap {
            va,
            rkey,
            compare: 0,
            swap: 1,
        },
        SendOp::AtomicWrite { va, rkey },
        SendOp::SendInvalidate(rkey),
    ] {
        let refused = pair.ends[0].qp.sq.post(send_wr(1, op, &source, 8));
        assert_eq!(refused, Err(PostError::Unsupported), "{op:?}");
    }
    let ud = PairConfig {
        transport: Transport::Ud,
        ..config()
    };
    let directed = send_wr(1, SendOp::Send, &source, 8).to(datagram(&ud, 0));
    assert_eq!(
        pair.ends[0].qp.sq.post(directed),
        Err(PostError::Destination)
    );
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

#[test]
fn a_full_completion_queue_is_an_error_of_the_qp() {
    let mut pair = Pair::new(&config());
    let source = Bytes::of(pattern(8, 1));
    for n in 0..=128 {
        pair.post_send(0, send_wr(n, SendOp::Send, &source, 8))
            .unwrap();
        assert!(pair.run(LONG));
    }
    assert_eq!(state(&pair, 0), QpState::Err);
    let cause = ErrorCause::CqOverflow;
    assert!(pair.ends[0].events.contains(&Event::QpError {
        qpn: QPNS[0],
        cause
    }));
}

#[test]
fn requests_posted_behind_one_that_left_are_flushed_in_err() {
    let mut pair = Pair::new(&config());
    let source = Bytes::of(pattern(300, 1));
    for n in 1..=2 {
        pair.post_send(0, send_wr(n, SendOp::Send, &source, 300))
            .unwrap();
    }
    let now = pair.now();
    let end = &mut pair.ends[0];
    for _ in 0..3 {
        let t = end.endpoint.poll_transmit(now).unwrap();
        let mut frame = vec![0; t.len()];
        t.write(&mut [&mut frame]).unwrap();
    }
    end.endpoint
        .modify_qp(now, QPNS[0], QpTransition::Err)
        .unwrap();
    assert_eq!(
        outcomes(&mut pair, 0),
        [
            (1, CqeOpcode::Send, Status::Success),
            (2, CqeOpcode::Send, Status::WrFlushErr),
        ]
    );
}

/// How long 32 messages of 100 packets take: before and after a CNP.
fn times(transport: Transport) -> [u128; 2] {
    let mut pair = Pair::new(&PairConfig {
        transport,
        link_rate: Some(rocexdp_proto::time::Rate::from_bps(10_000_000_000)),
        ..config()
    });
    let source = Bytes::of(pattern(25_600, 1));
    let (_, region) = target(&mut pair, 25_600);
    let time = |pair: &mut Pair| {
        let before = pair.now();
        for n in 0..32 {
            pair.post_send(0, send_wr(n, write_op(&region), &source, 25_600))
                .unwrap();
        }
        assert!(pair.run_until_completions(0, 32, LONG));
        assert_eq!(outcomes(pair, 0).len(), 32);
        (pair.now() - before).as_nanos()
    };
    let free = time(&mut pair);
    let (now, cnps) = (pair.now(), 1);
    let cnp = CongestionSignal { ce_marks: 0, cnps };
    pair.ends[0].endpoint.handle_congestion(now, QPNS[0], cnp);
    [free, time(&mut pair)]
}

#[test]
fn dcqcn_paces_it_as_it_does_rc() {
    let (uc, rc) = (times(Transport::Uc), times(Transport::Rc));
    assert!(uc[1] > uc[0] * 5 / 4, "{uc:?}");
    for (uc, rc) in uc.into_iter().zip(rc) {
        assert!(uc.abs_diff(rc) < rc / 20, "{uc} {rc}");
    }
}

#[test]
fn marks_are_answered_by_a_cnp() {
    let mut pair = Pair::new(&config());
    pair.capture();
    let (now, ce_marks) = (pair.now(), 1);
    let mark = CongestionSignal { ce_marks, cnps: 0 };
    pair.ends[1].endpoint.handle_congestion(now, QPNS[1], mark);
    pair.run(core::time::Duration::from_micros(100));
    let kinds: Vec<_> = pair.sent.iter().map(|s| (s.end, s.bth.opcode.0)).collect();
    assert_eq!(kinds, [(1, 0x81)]);
}

#[test]
fn our_frames_are_soft_roces() {
    let theirs = softroce::frames("uc-send-write");
    let mut a = Host::new(0, Transport::Uc, 53, false);
    let (va, rkey) = (0x562a_b8b4_6000, RKey(0x2697));
    let mut ours = Vec::new();
    for (op, len) in [
        (SendOp::Send, 10),
        (SendOp::SendImm(0x55), 10),
        (SendOp::Send, 3000),
        (SendOp::SendImm(0x55), 3000),
        (SendOp::Write { va, rkey }, 10),
        (
            SendOp::WriteImm {
                va,
                rkey,
                imm: 0x66,
            },
            10,
        ),
        (SendOp::Write { va, rkey }, 3000),
        (
            SendOp::WriteImm {
                va,
                rkey,
                imm: 0x66,
            },
            3000,
        ),
    ] {
        ours.append(&mut a.send(op, len, None));
    }
    assert_eq!((ours.len(), theirs.len()), (16, 16));
    for (n, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert!(
            softroce::alike(ours) == softroce::alike(theirs),
            "frame {}: {ours:02x?} {theirs:02x?}",
            n + 1
        );
    }
}

#[test]
fn soft_roces_messages_complete_as_at_its_own_peer() {
    let mut b = Host::new(1, Transport::Uc, 53, false);
    let written = Bytes::filled(8192, 0);
    assert!(b.ep.register_memory_as(
        RKey(0x2697),
        written.clone(),
        0x562a_b8b4_6000,
        Access::REMOTE_WRITE
    ));
    for id in 0..6 {
        b.recv(id, 4096);
    }
    for frame in softroce::frames("uc-send-write") {
        b.give(&frame).unwrap();
    }
    assert_eq!(
        b.log(),
        [
            (0, 10, None),
            (1, 10, Some(0x55)),
            (2, 3000, None),
            (3, 3000, Some(0x55)),
            (4, 10, Some(0x66)),
            (5, 3000, Some(0x66)),
        ]
    );
    let memory = softroce::memory();
    assert!(b.inbox.copy()[..3000] == memory[..3000]);
    assert!(written.copy()[..3000] == memory[..3000] && written.copy()[3000] == 0);
}

/// What B of a capture has received, when the first frame with this opcode is lost.
fn with_loss(name: &str, qpn: u32, opcode: u8) -> Vec<(u64, u32, Option<u32>)> {
    let mut b = Host::new(1, Transport::Uc, qpn, false);
    for id in 0..5 {
        b.recv(id, 4096);
    }
    let mut lost = false;
    for frame in softroce::frames(name) {
        if !lost && frame[42] == opcode {
            lost = true;
            continue;
        }
        let _ = b.give(&frame);
    }
    assert!(lost);
    b.log()
}

#[test]
fn what_soft_roce_loses_with_a_packet_we_lose_less_of() {
    // A lost FIRST: the same as Soft-RoCE.
    assert_eq!(
        with_loss("uc-loss-first", 55, 0x20),
        [(0, 50, None), (1, 2000, None)]
    );
    // A lost MIDDLE of 3000 bytes, then 2000, 50, 2000 and 50: Soft-RoCE received 50, 2000 and 50.
    assert_eq!(
        with_loss("uc-loss", 54, 0x21),
        [
            (0, 2000, None),
            (1, 50, None),
            (2, 2000, None),
            (3, 50, None)
        ]
    );
}
