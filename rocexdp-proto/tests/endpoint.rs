//! The endpoint's commands, many QPs on one endpoint, and the completion queue that overflows.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Craft, LONG, outcomes, pattern, recv_wr, send_wr, target, write_op};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::{CNP, rc};
use rocexdp_proto::drive::{FrameIo, step};
use rocexdp_proto::ids::{CqNum, PathMtu, Pd, Psn, Qpn, WrId, gid_from_ipv4};
use rocexdp_proto::mem::{Access, Region};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{
    CompletionQueue, CqeOpcode, PostError, RecvWr, Segment, SendOp, SendWr, Status,
};
use rocexdp_proto::wire::{Frags, Path, RxMeta, dest_qpn};
use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, ErrorCause, Event, QpHandle, QpState, QpTransition,
    RtrAttr, RtsAttr, Transport, VerbsError,
};
use rocexdp_sim::memory::NoBytes;
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS};

const QPN: Qpn = Qpn::new(0x80_0001);

fn create(qpn: Qpn) -> CreateQp {
    let cq = Arc::new(CompletionQueue::new(64));
    CreateQp {
        max_send: 8,
        max_recv: 8,
        ..CreateQp::rc(qpn, &cq, &cq)
    }
}

fn rtr() -> RtrAttr {
    RtrAttr {
        dest_qpn: Qpn::new(0x80_0099),
        path_mtu: PathMtu::Mtu1024,
        rq_psn: Psn::new(1),
        min_rnr_timer: 1,
        max_dest_rd_atomic: 16,
        path: Path {
            src_mac: [2; 6],
            dst_mac: [4; 6],
            vlan: None,
            sl: 0,
            src: gid_from_ipv4([10, 0, 0, 1]),
            dst: gid_from_ipv4([10, 0, 0, 2]),
            hop_limit: 64,
            dscp: None,
            flow_label: 0,
        },
        selective: None,
    }
}

const RTS: RtsAttr = RtsAttr {
    sq_psn: Psn::new(5),
    timeout: 14,
    retry_cnt: 7,
    rnr_retry: 7,
    max_rd_atomic: 16,
};
const INIT: QpTransition = QpTransition::Init {
    access: Access::NONE,
};
const NOW: Timestamp = Timestamp::ZERO;

fn ready(ep: &mut Endpoint, qpn: Qpn) -> QpHandle {
    let qp = ep.create_qp(create(qpn)).unwrap();
    for to in [INIT, QpTransition::Rtr(rtr()), QpTransition::Rts(RTS)] {
        ep.modify_qp(NOW, qpn, to).unwrap();
    }
    qp
}

fn write(memory: &Arc<NoBytes>, len: u32) -> SendWr {
    SendWr {
        wr_id: WrId(1),
        op: SendOp::Write {
            va: 0,
            rkey: rocexdp_proto::ids::RKey(1),
        },
        local: Segment::new(memory.clone(), 0, len).into(),
        signaled: true,
        solicited: false,
        fence: false,
        to: None,
    }
}

#[test]
fn commands_out_of_range_are_refused_and_change_nothing() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    for reserved in [0, 1, 0xff_ffff] {
        let qpn = Qpn::new(reserved);
        assert_eq!(
            ep.create_qp(create(qpn)).unwrap_err(),
            VerbsError::QpnTaken(qpn)
        );
    }
    let deep = CreateQp {
        max_send: 65_537,
        ..create(QPN)
    };
    assert!(matches!(
        ep.create_qp(deep),
        Err(VerbsError::Exceeds { limit: 65_536, .. })
    ));
    let rd = CreateQp {
        transport: Transport::Rd,
        ..create(QPN)
    };
    assert!(matches!(
        ep.create_qp(rd),
        Err(VerbsError::InvalidAttr { .. })
    ));
    assert_eq!(
        ep.modify_qp(NOW, QPN, INIT),
        Err(VerbsError::UnknownQp(QPN))
    );
    assert_eq!(ep.destroy_qp(QPN), Err(VerbsError::UnknownQp(QPN)));

    ep.create_qp(create(QPN)).unwrap();
    assert_eq!(
        ep.create_qp(create(QPN)).unwrap_err(),
        VerbsError::QpnTaken(QPN)
    );
    let state = |ep: &Endpoint| ep.qp_info(QPN).unwrap().state;
    let refused = |ep: &mut Endpoint, to: QpTransition| {
        let before = state(ep);
        let result = ep.modify_qp(NOW, QPN, to);
        assert_eq!(state(ep), before);
        result.unwrap_err()
    };
    let invalid = |from, to| VerbsError::InvalidTransition { qpn: QPN, from, to };
    assert_eq!(
        refused(&mut ep, QpTransition::Rtr(rtr())),
        invalid(QpState::Reset, QpState::Rtr)
    );
    assert_eq!(
        refused(&mut ep, QpTransition::Rts(RTS)),
        invalid(QpState::Reset, QpState::Rts)
    );
    ep.modify_qp(NOW, QPN, INIT).unwrap();
    let mut mixed = rtr();
    mixed.path.dst = [0xfd; 16];
    let mut nobody = rtr();
    nobody.path.src = gid_from_ipv4([0, 0, 0, 0]);
    let mut tag = rtr();
    tag.path.vlan = Some(4096);
    for bad in [
        mixed,
        nobody,
        tag,
        RtrAttr {
            min_rnr_timer: 32,
            ..rtr()
        },
    ] {
        assert!(matches!(
            refused(&mut ep, QpTransition::Rtr(bad)),
            VerbsError::InvalidAttr { .. }
        ));
    }
    ep.modify_qp(NOW, QPN, QpTransition::Rtr(rtr())).unwrap();
    assert_eq!(refused(&mut ep, INIT), invalid(QpState::Rtr, QpState::Init));
    for bad in [
        RtsAttr { timeout: 32, ..RTS },
        RtsAttr {
            retry_cnt: 8,
            ..RTS
        },
        RtsAttr {
            rnr_retry: 8,
            ..RTS
        },
    ] {
        assert!(matches!(
            refused(&mut ep, QpTransition::Rts(bad)),
            VerbsError::InvalidAttr { .. }
        ));
    }
    ep.modify_qp(NOW, QPN, QpTransition::Rts(RTS)).unwrap();
    ep.modify_qp(NOW, QPN, QpTransition::Err).unwrap();
    assert_eq!(
        refused(&mut ep, QpTransition::Rts(RTS)),
        invalid(QpState::Err, QpState::Rts)
    );
    ep.modify_qp(NOW, QPN, QpTransition::Reset).unwrap();
    assert_eq!(state(&ep), QpState::Reset);
}

#[test]
fn posting_follows_the_state() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let memory = Arc::new(NoBytes(100));
    let qp = ep.create_qp(create(QPN)).unwrap();
    let steps = [
        (None, false, false),
        (Some(INIT), false, true),
        (Some(QpTransition::Rtr(rtr())), false, true),
        (Some(QpTransition::Rts(RTS)), true, true),
        (Some(QpTransition::Err), true, true),
        (Some(QpTransition::Reset), false, false),
    ];
    for (to, sends, receives) in steps {
        if let Some(to) = to {
            ep.modify_qp(NOW, QPN, to).unwrap();
        }
        let recv = RecvWr {
            wr_id: WrId(1),
            local: Segment::empty().into(),
        };
        let (s, r) = (qp.sq.post(write(&memory, 1)), qp.rq.post(recv));
        assert_eq!((s.is_ok(), r.is_ok()), (sends, receives), "{to:?}");
        assert!(
            sends || matches!(s, Err(PostError::QpState(_))),
            "{to:?}: {s:?}"
        );
    }
    let outside = SendWr {
        local: Segment::new(memory.clone(), 50, 51).into(),
        ..write(&memory, 1)
    };
    ep.destroy_qp(QPN).unwrap();
    ready(&mut ep, QPN);
    let qp2 = ready(&mut ep, Qpn::new(0x80_0002));
    assert_eq!(qp2.sq.post(outside), Err(PostError::InvalidSegment));
    assert_eq!(
        qp.sq.post(write(&memory, 1)),
        Err(PostError::QpState(QpState::Reset)),
        "a destroyed QP's queue"
    );
}

#[test]
#[allow(clippy::disallowed_methods)] // The queue is what threads meet at; the core itself has none.
fn a_post_that_races_with_reset_is_not_sent_in_the_qps_next_life() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let memory = Arc::new(NoBytes(8));
    let qp = ready(&mut ep, QPN);
    let stop = AtomicBool::new(false);
    let posted = AtomicU64::new(0);
    std::thread::scope(|threads| {
        let poster = threads.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let recv = RecvWr::new(WrId(1), Segment::empty());
                let (s, r) = (qp.sq.post(write(&memory, 1)), qp.rq.post(recv));
                let taken = u64::from(s.is_ok()) + u64::from(r.is_ok());
                posted.fetch_add(taken, Ordering::Relaxed);
            }
        });
        let mut lives = 0;
        while (lives < 5_000 || posted.load(Ordering::Relaxed) < 5_000) && !poster.is_finished() {
            ep.modify_qp(NOW, QPN, QpTransition::Reset).unwrap();
            let left = (qp.sq.len(), qp.rq.len(), qp.rq.available());
            assert_eq!(left, (0, 0, 0), "life {lives}");
            for to in [INIT, QpTransition::Rtr(rtr()), QpTransition::Rts(RTS)] {
                ep.modify_qp(NOW, QPN, to).unwrap();
            }
            lives += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Keeps what is sent; what is received was there before.
#[derive(Default)]
struct Sink(Vec<Vec<u8>>, VecDeque<Vec<u8>>);

impl FrameIo for Sink {
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&RxMeta, Frags<'_>)) -> usize {
        let n = budget.min(self.1.len());
        for frame in self.1.drain(..n) {
            sink(&RxMeta::default(), &[&frame]);
        }
        n
    }
    fn tx_room(&mut self) -> bool {
        true
    }
    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]])) {
        let mut frame = vec![0; len];
        fill(&mut [&mut frame]);
        self.0.push(frame);
    }
    fn flush(&mut self) {}
}

#[test]
fn qps_take_turns_packet_by_packet() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let memory = Arc::new(NoBytes(1 << 20));
    let qps: Vec<_> = (0..10)
        .map(|n| ready(&mut ep, Qpn::new(0x80_0100 + n)))
        .collect();
    for (n, qp) in qps.iter().enumerate() {
        qp.sq.post(write(&memory, 20 * 1024)).unwrap();
        if n != 4 {
            ep.work_posted(NOW, qp.qpn);
        }
    }
    let mut io = Sink::default();
    assert_eq!(step(&mut ep, NOW, &mut io, 45).transmitted, 45);
    let mut count = [0; 10];
    for frame in &io.0 {
        // The UDP source port tells the flows apart; all go to one peer QPN here.
        assert_eq!(dest_qpn(&[frame]), Some(Qpn::new(0x80_0099)));
    }
    for (n, qp) in qps.iter().enumerate() {
        count[n] = ep.qp_info(qp.qpn).unwrap().stats.tx_packets;
    }
    assert_eq!(
        count,
        [5, 5, 5, 5, 0, 5, 5, 5, 5, 5],
        "the one whose doorbell did not ring waits"
    );

    // A destroyed QP sends nothing more, and its slot's next owner only its own.
    ep.destroy_qp(qps[0].qpn).unwrap();
    let fresh = ready(&mut ep, Qpn::new(0x80_0200));
    step(&mut ep, NOW, &mut io, 1000);
    assert_eq!(ep.qp_info(fresh.qpn).unwrap().stats.tx_packets, 0);
    fresh.sq.post(write(&memory, 1)).unwrap();
    ep.work_posted(NOW, fresh.qpn);
    let before = io.0.len();
    step(&mut ep, NOW, &mut io, 1000);
    assert_eq!(io.0.len(), before + 1);
    assert_eq!(ep.qpns().count(), 10);
}

#[test]
fn a_changed_next_hop_shows_in_the_next_frame() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let memory = Arc::new(NoBytes(1 << 20));
    assert!(!ep.set_dest_mac(QPN, [9; 6]));
    let qp = ready(&mut ep, QPN);
    assert!(ep.set_dest_mac(QPN, [9; 6]));
    qp.sq.post(write(&memory, 10)).unwrap();
    ep.work_posted(NOW, QPN);
    let mut io = Sink::default();
    step(&mut ep, NOW, &mut io, 10);
    assert_eq!(io.0[0][..12], [9, 9, 9, 9, 9, 9, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn keys_are_random_and_differ() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let mut other = Endpoint::new(EndpointConfig::default(), 2);
    let memory = Arc::new(NoBytes(8));
    let mut keys: Vec<u32> = (0..1000)
        .map(|_| {
            ep.register_memory(memory.clone(), 0, Access::REMOTE_WRITE)
                .unwrap()
                .rkey
                .0
        })
        .collect();
    let first = other
        .register_memory(memory.clone(), 0, Access::REMOTE_WRITE)
        .unwrap()
        .rkey;
    assert_ne!(first.0, keys[0]);
    let elsewhere = Region::new(first, Pd::default(), memory, 0, Access::NONE).unwrap();
    ep.add_region(&elsewhere).unwrap();
    let taken = ep.add_region(&elsewhere);
    assert_eq!(taken, Err(VerbsError::KeyTaken(first)));
    // Spread over the whole range: each of the top four bits' values occurs.
    assert_eq!(
        (0..16)
            .filter(|t| keys.iter().any(|k| k >> 28 == *t))
            .count(),
        16
    );
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 1000);
}

#[test]
fn a_full_completion_queue_is_an_error_of_the_qp() {
    let config = PairConfig {
        depth: 4,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let (_, region) = target(&mut pair, 64);
    let source = Bytes::of(pattern(64, 1));
    // The queue holds 8 completions; nobody polls.
    for n in 0..9 {
        pair.post_send(0, send_wr(n, write_op(&region), &source, 64))
            .unwrap();
        assert!(pair.run(LONG));
    }
    assert!(pair.ends[0].cq.overflowed());
    assert_eq!(
        pair.ends[0].events,
        [
            Event::CqOverflow {
                cq: CqNum::default()
            },
            Event::QpError {
                qpn: QPNS[0],
                cause: ErrorCause::CqOverflow
            }
        ]
    );
    assert_eq!(outcomes(&mut pair, 0).len(), 8);
    assert_eq!(
        pair.ends[0].endpoint.qp_info(QPNS[0]).unwrap().state,
        QpState::Err
    );
}

#[test]
fn the_first_packet_in_rtr_is_reported_and_answered() {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    pair.script = Some(Box::new(|_, _, _, _| Fate::Pass));
    let end = &mut pair.ends[1];
    let attr = RtrAttr {
        dest_qpn: QPNS[0],
        path_mtu: config.path_mtu,
        rq_psn: config.psn[0],
        min_rnr_timer: 1,
        max_dest_rd_atomic: 16,
        path: rocexdp_sim::pair::path(&config, 1),
        selective: None,
    };
    for to in [QpTransition::Reset, INIT, QpTransition::Rtr(attr)] {
        end.endpoint.modify_qp(NOW, QPNS[1], to).unwrap();
    }
    // A CNP says nothing of the peer.
    let cnp = Craft::new(0, CNP, Psn::new(0)).payload(&[0; 16]);
    pair.inject(1, cnp.frame(&config, 0));
    assert!(pair.run(LONG));
    let stats = pair.ends[1].endpoint.qp_info(QPNS[1]).unwrap().stats;
    assert_eq!(stats.rx_accepted, 1);
    assert!(pair.ends[1].events.is_empty());
    let inbox = Bytes::filled(64, 0);
    pair.post_recv(1, recv_wr(3, &inbox, 64)).unwrap();
    pair.post_send(0, send_wr(1, SendOp::Send, &Bytes::of(pattern(64, 1)), 64))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        pair.ends[1].events,
        [Event::CommunicationEstablished { qpn: QPNS[1] }]
    );
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::Success)]
    );
    assert!(inbox.copy() == pattern(64, 1));
}

/// The ACK timer has run out, but the ACK is there: behind more frames than one step takes in.
#[test]
fn an_answer_that_waits_in_the_receive_queue_is_not_lost() {
    let config = PairConfig::default();
    let late = Timestamp::from_micros(5_000);
    let run = |with_ack: bool, junk: usize| {
        let mut pair = Pair::new(&config);
        let (_, region) = target(&mut pair, 64);
        let wr = send_wr(1, write_op(&region), &Bytes::of(pattern(64, 1)), 64);
        pair.post_send(0, wr).unwrap();
        let ep = &mut pair.ends[0].endpoint;
        let mut io = Sink::default();
        step(ep, NOW, &mut io, 64);
        io.1.extend((0..junk).map(|_| vec![0; 60]));
        if with_ack {
            let ack = Craft::new(1, rc::ACKNOWLEDGE, config.psn[0]).aeth(Syndrome::Ack(31));
            io.1.push_back(ack.frame(&config, 1));
        }
        let mut steps = 0;
        while ep.qp_info(QPNS[0]).unwrap().stats.local_ack_timeout_err == 0 && steps < 40 {
            step(ep, late, &mut io, 64);
            steps += 1;
        }
        steps
    };
    assert_eq!(run(true, 200), 40, "no timeout");
    assert_eq!(run(false, 0), 1);
    assert_eq!(run(false, 200), 4, "as soon as all frames are in");
    assert_eq!(run(false, 100_000), 17, "a flood does not stop the timers");
}

#[test]
fn a_step_in_which_a_qp_is_given_up_says_that_a_timer_did_something() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    let qp = ready(&mut ep, QPN);
    qp.sq.post(write(&Arc::new(NoBytes(1 << 20)), 64)).unwrap();
    ep.work_posted(NOW, QPN);
    let mut io = Sink::default();
    let first = step(&mut ep, NOW, &mut io, 64);
    assert_eq!((first.transmitted, first.timers), (1, 0));
    let mut last = first;
    while ep.qp_info(QPN).unwrap().state == QpState::Rts {
        let at = ep.poll_timeout().unwrap();
        last = step(&mut ep, at, &mut io, 64);
    }
    // Nothing is sent any more: a driver that looks at its frames alone would not see that the QP is in ERR.
    assert_eq!((last.received, last.transmitted, last.timers), (0, 0, 1));
    assert_eq!(io.0.len(), 8);
}
