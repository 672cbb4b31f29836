//! SQD: what has begun is carried out, what was posted waits, receiving goes on, and the end of it is told if asked for.

mod common;

use std::time::Duration;

use common::{LONG, outcomes, pattern, recv_wr, send_wr, target, write_op};
use rocexdp_proto::mem::Access;
use rocexdp_proto::verbs::{CqeOpcode, QpState, SendOp, Status};
use rocexdp_proto::{Event, ModifyQp, QpTransition};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS};

fn drain(pair: &mut Pair, notify: bool) {
    let change = ModifyQp {
        en_sqd_async_notify: Some(notify),
        ..ModifyQp::to(QpState::Sqd)
    };
    let now = pair.now();
    let ep = &mut pair.ends[0].endpoint;
    ep.modify_qp(now, QPNS[0], change).unwrap();
}

fn back(pair: &mut Pair) {
    let now = pair.now();
    let ep = &mut pair.ends[0].endpoint;
    ep.modify_qp(now, QPNS[0], ModifyQp::to(QpState::Rts))
        .unwrap();
}

#[test]
fn what_has_begun_is_sent_again_and_done_and_what_is_posted_waits() {
    let mut pair = Pair::new(&PairConfig::default());
    // The fourth packet is lost once: the message is not done before SQD.
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n == 3 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let (bytes, region) = target(&mut pair, 8192);
    let source = Bytes::of(pattern(8192, 4));
    pair.post_send(0, send_wr(1, write_op(&region), &source, 8192))
        .unwrap();
    pair.run(Duration::from_nanos(1_500));
    drain(&mut pair, true);
    let draining = |pair: &Pair| pair.ends[0].endpoint.query_qp(QPNS[0]).unwrap().0;
    assert!(draining(&pair).sq_draining);
    pair.post_send(0, send_wr(2, write_op(&region), &source, 64))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::Success)]
    );
    assert_eq!(bytes.copy(), source.copy());
    let drained = Event::SqDrained { qpn: QPNS[0] };
    assert_eq!(pair.ends[0].events, [drained]);
    let now = draining(&pair);
    assert_eq!((now.state, now.sq_draining), (QpState::Sqd, false));
    back(&mut pair);
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(2, CqeOpcode::Write, Status::Success)]
    );
    assert_eq!(pair.ends[0].events, [drained], "once");
}

#[test]
fn an_idle_queue_is_drained_at_once_and_says_so_only_if_asked() {
    for notify in [false, true] {
        let mut pair = Pair::new(&PairConfig::default());
        drain(&mut pair, notify);
        assert!(pair.run(LONG));
        let told = pair.ends[0].events == [Event::SqDrained { qpn: QPNS[0] }];
        assert_eq!(told, notify, "{:?}", pair.ends[0].events);
    }
}

#[test]
fn receiving_goes_on() {
    let mut pair = Pair::new(&PairConfig::default());
    drain(&mut pair, false);
    let (source, inbox) = (Bytes::of(pattern(64, 5)), Bytes::filled(64, 0));
    pair.post_recv(0, recv_wr(7, &inbox, 64)).unwrap();
    pair.post_send(1, send_wr(1, SendOp::Send, &source, 64))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(
        outcomes(&mut pair, 0),
        [(7, CqeOpcode::Recv, Status::Success)]
    );
    assert_eq!(
        outcomes(&mut pair, 1),
        [(1, CqeOpcode::Send, Status::Success)]
    );
    assert_eq!(inbox.copy(), source.copy());
}

#[test]
fn what_waits_is_flushed_in_err() {
    let mut pair = Pair::new(&PairConfig::default());
    let (_, region) = target(&mut pair, 64);
    let source = Bytes::filled(64, 1);
    drain(&mut pair, false);
    pair.post_send(0, send_wr(1, write_op(&region), &source, 64))
        .unwrap();
    assert!(pair.run(LONG));
    assert_eq!(outcomes(&mut pair, 0), []);
    let now = pair.now();
    let ep = &mut pair.ends[0].endpoint;
    ep.modify_qp(now, QPNS[0], QpTransition::Err).unwrap();
    assert_eq!(
        outcomes(&mut pair, 0),
        [(1, CqeOpcode::Write, Status::WrFlushErr)]
    );
}

/// A change of attributes in SQD, after the request of a READ was lost; whether the READ completes.
fn completes_after(config: &PairConfig, change: ModifyQp) -> bool {
    let mut pair = Pair::new(config);
    // The request, once.
    pair.script = Some(Box::new(|end, n, _, _| {
        if end == 0 && n == 0 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let there = Bytes::of(pattern(64, 4));
    let ep = &mut pair.ends[1].endpoint;
    let region = ep
        .register_memory(there.clone(), 0x10_0000, access)
        .unwrap();
    let inbox = Bytes::filled(64, 0);
    let op = SendOp::Read {
        va: region.va,
        rkey: region.rkey,
    };
    pair.post_send(0, send_wr(1, op, &inbox, 64)).unwrap();
    pair.run(Duration::from_micros(5));
    drain(&mut pair, false);
    let now = pair.now();
    let ep = &mut pair.ends[0].endpoint;
    ep.modify_qp(now, QPNS[0], change).unwrap();
    assert!(pair.run(LONG));
    outcomes(&mut pair, 0) == [(1, CqeOpcode::Read, Status::Success)]
        && inbox.copy() == there.copy()
}

#[test]
fn a_timeout_that_is_set_while_an_answer_is_due_runs_from_then_on() {
    let never = PairConfig {
        timeout: 0,
        ..PairConfig::default()
    };
    assert!(!completes_after(&never, ModifyQp::default()));
    let change = ModifyQp {
        timeout: Some(8),
        ..ModifyQp::default()
    };
    assert!(completes_after(&never, change));
}

#[test]
fn a_read_that_has_begun_is_sent_again_whatever_the_initiator_depth_is_now() {
    let change = ModifyQp {
        max_rd_atomic: Some(0),
        ..ModifyQp::default()
    };
    assert!(completes_after(&PairConfig::default(), change));
}
