//! Shared receive queues: who takes from them, the limit, what a QP in ERR leaves alone.

mod common;

use std::sync::Arc;

use common::{LONG, outcomes, recv_wr, replace_qp};
use rocexdp_proto::ids::{Pd, Qpn, SrqNum, WrId};
use rocexdp_proto::mem::{Access, Segment, SgList};
use rocexdp_proto::verbs::{
    CompletionQueue, CqeOpcode, PostError, RecvQueue, RecvWr, SendOp, SendWr, SrqAttr, Status,
};
use rocexdp_proto::{CreateQp, Endpoint, EndpointConfig, Event, QpTransition, VerbsError};
use rocexdp_sim::pair::{Bytes, Pair, PairConfig, QPNS};

const NUM: SrqNum = SrqNum(9);

fn attr(pd: Pd, limit: u32) -> SrqAttr {
    SrqAttr {
        num: NUM,
        pd,
        max_wr: 8,
        max_sge: 2,
        limit,
    }
}

fn with_srq(limit: u32) -> (Pair, Arc<RecvQueue>) {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    let srq = pair.ends[1]
        .endpoint
        .create_srq(&attr(Pd::default(), limit))
        .unwrap();
    replace_qp(&mut pair, &config, 1, |qp| CreateQp {
        srq: Some(srq.clone()),
        ..qp
    });
    (pair, srq)
}

fn send(pair: &mut Pair, id: u64) {
    let message = SgList::inline(&[id as u8; 8]);
    pair.post_send(0, SendWr::new(WrId(id), SendOp::Send, message))
        .unwrap();
    assert!(pair.run(LONG));
}

#[test]
fn a_shared_receive_queue_without_room_is_refused_by_name() {
    let mut ep = Endpoint::new(EndpointConfig::default(), 9);
    let deep = attr(Pd::default(), 0);
    let refused = ep.create_srq(&SrqAttr { max_wr: 0, ..deep }).unwrap_err();
    let (srq, depth, held) = (NUM, 0, 0);
    assert_eq!(refused, VerbsError::SrqDepth { srq, depth, held });
    // Nothing has changed: the number is free.
    ep.create_srq(&SrqAttr { max_wr: 1, ..deep }).unwrap();
}

#[test]
fn the_limit_fires_once_when_fewer_requests_are_left_and_again_when_armed_again() {
    let (mut pair, srq) = with_srq(3);
    let inbox = Bytes::filled(64, 0);
    for n in 0..5 {
        srq.post(recv_wr(n, &inbox, 64)).unwrap();
    }
    let reached = [Event::SrqLimitReached { srq: NUM }];
    // 4 and 3 are left: not fewer than 3.
    send(&mut pair, 1);
    send(&mut pair, 2);
    assert_eq!((pair.ends[1].events.as_slice(), srq.limit()), (&[][..], 3));
    send(&mut pair, 3);
    assert_eq!(pair.ends[1].events, reached);
    assert_eq!((srq.limit(), srq.available()), (0, 2));
    send(&mut pair, 4);
    assert_eq!(pair.ends[1].events, reached, "once");
    srq.arm_limit(8).unwrap();
    assert_eq!(pair.ends[1].events, reached, "arming looks at nothing");
    send(&mut pair, 5);
    assert_eq!(pair.ends[1].events.len(), 2);
    assert!(srq.arm_limit(9).is_err(), "deeper than the queue");
    let ids: Vec<u64> = outcomes(&mut pair, 1).iter().map(|o| o.0).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
}

#[test]
fn without_requests_the_peer_waits_as_for_a_queue_of_the_qps_own() {
    let (mut pair, srq) = with_srq(0);
    let inbox = Bytes::filled(64, 0);
    let message = SgList::inline(&[7; 8]);
    pair.post_send(0, SendWr::new(WrId(1), SendOp::Send, message))
        .unwrap();
    assert!(!pair.run(std::time::Duration::from_millis(1)));
    srq.post(recv_wr(5, &inbox, 64)).unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Send, Status::Success)]
    );
    assert_eq!(
        outcomes(&mut pair, 1),
        [(5, CqeOpcode::Recv, Status::Success)]
    );
    assert_eq!(&inbox.copy()[..8], [7; 8]);
}

#[test]
fn a_qp_in_err_leaves_the_requests_to_the_others_and_says_so() {
    let (mut pair, srq) = with_srq(0);
    let inbox = Bytes::filled(64, 0);
    for n in 0..3 {
        srq.post(recv_wr(n, &inbox, 64)).unwrap();
    }
    let now = pair.now();
    let end = &mut pair.ends[1];
    end.endpoint
        .modify_qp(now, QPNS[1], QpTransition::Err)
        .unwrap();
    assert_eq!(
        end.endpoint.poll_event(),
        Some(Event::LastWqeReached { qpn: QPNS[1] })
    );
    assert_eq!(end.endpoint.poll_event(), None);
    assert_eq!((srq.available(), end.cq.len()), (3, 0));
    // The queue has no state of any QP.
    srq.post(recv_wr(3, &inbox, 64)).unwrap();
    end.endpoint
        .modify_qp(now, QPNS[1], QpTransition::Reset)
        .unwrap();
    assert_eq!(srq.available(), 4);
    pair.reconnect(&PairConfig::default());
    send(&mut pair, 1);
    assert_eq!(
        outcomes(&mut pair, 1),
        [(0, CqeOpcode::Recv, Status::Success)]
    );
}

#[test]
fn a_message_cut_off_in_the_middle_completes_only_the_request_it_had_taken() {
    let (mut pair, srq) = with_srq(0);
    let inbox = Bytes::filled(4096, 0);
    srq.post(recv_wr(1, &inbox, 4096)).unwrap();
    srq.post(recv_wr(2, &inbox, 4096)).unwrap();
    // Only the first of two packets arrives.
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n > 0 {
            rocexdp_sim::pair::Fate::Drop
        } else {
            rocexdp_sim::pair::Fate::Pass
        }
    }));
    let source = Bytes::filled(2048, 7);
    pair.post_send(0, common::send_wr(1, SendOp::Send, &source, 2048))
        .unwrap();
    pair.run(std::time::Duration::from_micros(200));
    assert_eq!(srq.available(), 1);
    let now = pair.now();
    let end = &mut pair.ends[1];
    end.endpoint
        .modify_qp(now, QPNS[1], QpTransition::Err)
        .unwrap();
    assert_eq!(
        outcomes(&mut pair, 1),
        [(1, CqeOpcode::Recv, Status::WrFlushErr)]
    );
    assert_eq!((srq.available(), srq.len()), (1, 1));
}

#[test]
fn qps_of_two_endpoints_take_from_one_queue() {
    let mut workers = [1, 2].map(|seed| Endpoint::new(EndpointConfig::default(), seed));
    let srq = workers[0].create_srq(&attr(Pd::default(), 0)).unwrap();
    let cq = Arc::new(CompletionQueue::new(8));
    for (n, worker) in workers.iter_mut().enumerate() {
        let create = CreateQp {
            srq: Some(srq.clone()),
            ..CreateQp::rc(Qpn::new(0x80_0000 + n as u32), &cq, &cq)
        };
        assert!(Arc::ptr_eq(&worker.create_qp(create).unwrap().rq, &srq));
    }
    assert_eq!(srq.users(), 2);
    assert_eq!(workers[1].destroy_srq(&srq), Err(VerbsError::NotSrq));
    for (n, worker) in workers.iter_mut().enumerate() {
        worker.destroy_qp(Qpn::new(0x80_0000 + n as u32)).unwrap();
    }
    assert_eq!(srq.users(), 0);
    workers[0].destroy_srq(&srq).unwrap();
}

#[test]
fn memory_is_checked_against_the_queues_own_domain() {
    let config = PairConfig::default();
    for same in [true, false] {
        let mut pair = Pair::new(&config);
        let ep = &mut pair.ends[1].endpoint;
        let pd = ep.alloc_pd().unwrap();
        let srq = ep.create_srq(&attr(pd, 0)).unwrap();
        let of = if same { pd } else { Pd::default() };
        let mr = ep
            .register_region(of, Bytes::filled(64, 0), 0, Access::LOCAL_WRITE)
            .unwrap();
        // The QP's own domain is the default one.
        replace_qp(&mut pair, &config, 1, |qp| CreateQp {
            srq: Some(srq.clone()),
            ..qp
        });
        srq.post(RecvWr::new(WrId(5), mr.segment(0, 64).unwrap()))
            .unwrap();
        send(&mut pair, 1);
        let status = if same {
            Status::Success
        } else {
            Status::LocProtErr
        };
        assert_eq!(outcomes(&mut pair, 1), [(5, CqeOpcode::Recv, status)]);
    }
}

#[test]
fn a_resized_queue_keeps_what_is_in_it_in_order_and_is_as_deep_as_asked_for() {
    let config = PairConfig::default();
    let mut pair = Pair::new(&config);
    let ep = &mut pair.ends[1].endpoint;
    let srq = ep.create_srq(&attr(Pd::default(), 0)).unwrap();
    let deepest = ep.device_attr().max_srq_wr;
    replace_qp(&mut pair, &config, 1, |qp| CreateQp {
        srq: Some(srq.clone()),
        ..qp
    });
    let inbox = Bytes::filled(2048, 0);
    for n in 0..5 {
        srq.post(recv_wr(n, &inbox, 2048)).unwrap();
    }
    // One request is taken, by a message that has not ended: it counts too.
    pair.script = Some(Box::new(|_, n, _, _| {
        if n > 0 {
            rocexdp_sim::pair::Fate::Drop
        } else {
            rocexdp_sim::pair::Fate::Pass
        }
    }));
    let long = SendWr::new(
        WrId(9),
        SendOp::Send,
        Segment::new(Bytes::filled(2048, 9), 0, 2048),
    );
    pair.post_send(0, long).unwrap();
    pair.run(std::time::Duration::from_micros(100));
    let ep = &mut pair.ends[1].endpoint;
    let depth = |depth, held| VerbsError::SrqDepth {
        srq: NUM,
        depth,
        held,
    };
    assert_eq!(ep.modify_srq(&srq, Some(4), None), Err(depth(4, 5)));
    assert_eq!(ep.modify_srq(&srq, Some(0), None), Err(depth(0, 5)));
    let (asked, limit) = (u64::from(deepest) + 1, u64::from(deepest));
    let too_deep = ep.modify_srq(&srq, Some(deepest + 1), None);
    assert!(
        matches!(too_deep, Err(VerbsError::Exceeds { asked: a, limit: l, .. }) if (a, l) == (asked, limit)),
        "{too_deep:?}"
    );
    assert!(ep.modify_srq(&srq, Some(6), Some(7)).is_err());
    assert_eq!((srq.capacity(), srq.limit()), (8, 0), "nothing has changed");
    ep.modify_srq(&srq, Some(5), Some(3)).unwrap();
    assert_eq!((srq.capacity(), srq.limit()), (5, 3));
    assert_eq!(srq.post(recv_wr(5, &inbox, 2048)), Err(PostError::Full));
    assert!(
        ep.modify_srq(&srq, Some(2), None).is_err(),
        "less than the limit"
    );
    ep.modify_srq(&srq, Some(deepest), Some(0)).unwrap();
    for n in 5..200 {
        srq.post(recv_wr(n, &inbox, 2048)).unwrap();
    }
    assert_eq!((srq.len(), srq.limit()), (200, 0));
    let other = Endpoint::new(EndpointConfig::default(), 9).modify_srq(&srq, Some(9), None);
    assert_eq!(other, Err(VerbsError::NotSrq));
    pair.script = None;
    let now = pair.now();
    pair.ends[1]
        .endpoint
        .modify_qp(now, QPNS[1], QpTransition::Err)
        .unwrap();
    assert_eq!(
        outcomes(&mut pair, 1),
        [(0, CqeOpcode::Recv, Status::WrFlushErr)]
    );
    pair.reconnect(&PairConfig::default());
    pair.completions(0);
    for n in 1..200 {
        send(&mut pair, n);
        pair.completions(0);
        assert_eq!(
            outcomes(&mut pair, 1),
            [(n, CqeOpcode::Recv, Status::Success)]
        );
    }
}

#[test]
fn limits_numbers_and_users_are_checked() {
    let mut config = EndpointConfig::default();
    config.limits.max_srq = 2;
    config.limits.max_srq_wr = 8;
    config.limits.max_srq_sge = 2;
    let mut ep = Endpoint::new(config, 1);
    let ok = attr(Pd::default(), 8);
    for bad in [
        SrqAttr { max_wr: 9, ..ok },
        SrqAttr { max_sge: 3, ..ok },
        SrqAttr { limit: 9, ..ok },
    ] {
        assert!(
            matches!(ep.create_srq(&bad), Err(VerbsError::Exceeds { .. })),
            "{bad:?}"
        );
    }
    let srq = ep.create_srq(&ok).unwrap();
    assert_eq!(ep.create_srq(&ok).unwrap_err(), VerbsError::SrqTaken(NUM));
    ep.create_srq(&SrqAttr {
        num: SrqNum(1),
        ..ok
    })
    .unwrap();
    let third = SrqAttr {
        num: SrqNum(2),
        ..ok
    };
    assert!(matches!(
        ep.create_srq(&third),
        Err(VerbsError::Limit { limit: 2, .. })
    ));
    let three = [(); 3].map(|()| Segment::new(Bytes::filled(8, 0), 0, 1));
    let wr = RecvWr::new(WrId(1), SgList::of(&three));
    assert_eq!(srq.post(wr), Err(PostError::TooManySegments(2)));
    let cq = Arc::new(CompletionQueue::new(8));
    let create = CreateQp {
        srq: Some(srq.clone()),
        ..CreateQp::rc(QPNS[0], &cq, &cq)
    };
    let qp = ep.create_qp(create).unwrap();
    assert_eq!(
        ep.destroy_srq(&srq),
        Err(VerbsError::SrqBusy { srq: NUM, users: 1 })
    );
    // A QP's own queue is nobody else's.
    let own = ep.create_qp(CreateQp::rc(Qpn::new(77), &cq, &cq)).unwrap();
    let create = CreateQp {
        srq: Some(own.rq),
        ..CreateQp::rc(Qpn::new(78), &cq, &cq)
    };
    assert!(matches!(
        ep.create_qp(create),
        Err(VerbsError::InvalidAttr { .. })
    ));
    assert_eq!(ep.query_qp(QPNS[0]).unwrap().1.srq, Some(NUM));
    ep.destroy_qp(qp.qpn).unwrap();
    ep.destroy_srq(&srq).unwrap();
    assert_eq!(ep.destroy_srq(&srq), Err(VerbsError::NotSrq));
}
