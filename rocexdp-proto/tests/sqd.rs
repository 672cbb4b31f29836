//! SQD: what has begun is carried out, what was posted waits, receiving goes on, and the end of it is told if asked for.

mod common;

use std::time::Duration;

use common::{LONG, outcomes, pattern, recv_wr, send_wr, target, write_op};
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
