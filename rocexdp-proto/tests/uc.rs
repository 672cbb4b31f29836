//! UC: what arrives, when requests complete, and what becomes of those that fail here.

mod common;

use common::uc::{config, silent};
use common::{LONG, outcomes, pattern, recv_wr, send_wr, state, stats, target, write_op};
use rocexdp_proto::ids::{PathMtu, Pd, Psn, RKey, WrId};
use rocexdp_proto::mem::{Access, SgList, WindowKind};
use rocexdp_proto::verbs::{CqeOpcode, PostError, SendOp, SendWr, Status};
use rocexdp_proto::{
    CongestionSignal, ErrorCause, Event, ModifyQp, QpState, QpTransition, RtsAttr, Transport,
};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS, datagram};

const FIRST: Psn = Psn::new(0xff_fff0);
const VA: u64 = 0x10_0000;

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
fn in_sqd_a_message_that_has_begun_goes_on_and_the_next_one_waits() {
    let mut pair = Pair::new(&config());
    pair.capture();
    let source = Bytes::of(pattern(600, 1));
    for n in 1..=2 {
        pair.post_send(0, send_wr(n, SendOp::Send, &source, 600))
            .unwrap();
    }
    let now = pair.now();
    let end = &mut pair.ends[0];
    let t = end.endpoint.poll_transmit(now).unwrap();
    let mut frame = vec![0; t.len()];
    t.write(&mut [&mut frame]).unwrap();
    let drain = ModifyQp {
        en_sqd_async_notify: Some(true),
        ..ModifyQp::to(QpState::Sqd)
    };
    end.endpoint.modify_qp(now, QPNS[0], drain).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::Success)]
    );
    assert_eq!(pair.sent.len(), 2, "besides the one that we took");
    assert_eq!(pair.ends[0].events, [Event::SqDrained { qpn: QPNS[0] }]);
    pair.ends[0]
        .endpoint
        .modify_qp(now, QPNS[0], ModifyQp::to(QpState::Rts))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(2, CqeOpcode::Send, Status::Success)]
    );
}

#[test]
fn a_send_that_fails_in_sqd_flushes_those_that_waited() {
    let mut pair = Pair::new(&config());
    let source = Bytes::of(pattern(600, 1));
    for n in 1..=2 {
        pair.post_send(0, send_wr(n, SendOp::Send, &source, 600))
            .unwrap();
    }
    let now = pair.now();
    let end = &mut pair.ends[0];
    assert!(end.endpoint.poll_transmit(now).is_some());
    end.endpoint
        .modify_qp(now, QPNS[0], ModifyQp::to(QpState::Sqd))
        .unwrap();
    source.take_away();
    assert!(pair.run(LONG));
    assert_eq!(state(&pair, 0), QpState::Sqe);
    assert_eq!(
        outcomes(&mut pair, 0),
        [
            (1, CqeOpcode::Send, Status::LocProtErr),
            (2, CqeOpcode::Send, Status::WrFlushErr)
        ]
    );
}

#[test]
fn a_memory_window_is_bound_and_written_to_over_uc() {
    let mut pair = Pair::new(&config());
    let bytes = Bytes::filled(256, 0);
    let bindable = Access::LOCAL_WRITE | Access::MW_BIND;
    let ep = &mut pair.ends[1].endpoint;
    let region = ep
        .register_region(Pd::default(), bytes.clone(), VA, bindable)
        .unwrap();
    let window = ep.alloc_window(Pd::default(), WindowKind::Type2).unwrap();
    let rkey = window.next_rkey();
    let bind = SendOp::BindMw {
        window: window.rkey(),
        rkey,
        region: region.rkey(),
        va: VA + 64,
        len: 64,
        access: Access::REMOTE_WRITE,
    };
    pair.post_send(1, SendWr::new(WrId(1), bind, SgList::empty()))
        .unwrap();
    assert!(pair.run(LONG));
    let success = |opcode| [(1, opcode, Status::Success)];
    assert_eq!(outcomes(&mut pair, 1), success(CqeOpcode::BindMw));
    let write = SendOp::Write { va: VA + 64, rkey };
    let source = Bytes::filled(64, 7);
    pair.post_send(0, send_wr(2, write, &source, 64)).unwrap();
    assert!(pair.run(LONG));
    let now = bytes.copy();
    assert!(now[64..128] == [7; 64] && now[..64] == [0; 64] && now[128..] == [0; 128]);
    let invalidate = SendOp::LocalInvalidate(rkey);
    pair.post_send(1, SendWr::new(WrId(1), invalidate, SgList::empty()))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(outcomes(&mut pair, 1), success(CqeOpcode::LocalInvalidate));
    pair.post_send(0, send_wr(2, write, &Bytes::filled(64, 9), 64))
        .unwrap();
    assert!(pair.run(LONG));
    assert!(bytes.copy() == now, "withdrawn");
    // Once more fails, and stops sending only.
    pair.post_send(1, SendWr::new(WrId(3), invalidate, SgList::empty()))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 1),
        [(3, CqeOpcode::LocalInvalidate, Status::LocQpOpErr)]
    );
    assert_eq!(state(&pair, 1), QpState::Sqe);
}

#[test]
fn a_completion_lost_while_sends_are_flushed_fails_the_qp_at_once() {
    // Room for the error and one flushed request.
    for posted_later in [false, true] {
        let config = PairConfig {
            depth: 1,
            ..config()
        };
        let mut pair = Pair::new(&config);
        common::replace_qp(&mut pair, &config, 0, |qp| rocexdp_proto::CreateQp {
            transport: Transport::Uc,
            max_send: 8,
            ..qp
        });
        let gone = Bytes::filled(8, 0);
        let first = if posted_later { 1 } else { 4 };
        for n in 0..first {
            pair.post_send(0, send_wr(n, SendOp::Send, &gone, 8))
                .unwrap();
        }
        gone.take_away();
        assert!(pair.run(LONG));
        if posted_later {
            assert_eq!(state(&pair, 0), QpState::Sqe);
            let source = Bytes::filled(8, 0);
            for n in 1..4 {
                pair.post_send(0, send_wr(n, SendOp::Send, &source, 8))
                    .unwrap();
            }
        }
        assert!(pair.run(LONG));
        assert_eq!(
            state(&pair, 0),
            QpState::Err,
            "posted later: {posted_later}"
        );
        let cause = ErrorCause::CqOverflow;
        let qpn = QPNS[0];
        let failed = Event::QpError { qpn, cause };
        assert!(
            pair.ends[0].events.contains(&failed),
            "{:?}",
            pair.ends[0].events
        );
        assert_eq!(outcomes(&mut pair, 0).len(), 2);
    }
}
