//! Receive requests that several QPs share: who takes them, what is left when one of the QPs fails, and what the owner is told.

mod common;

use std::sync::Arc;

use common::responder::{ACK, FIRST};
use common::{Craft, replies};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{PathMtu, Pd, Qpn, SrqNum, WrId};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{
    CompletionQueue, CqeOpcode, RecvQueue, RecvWr, Segment, SrqAttr, Status,
};
use rocexdp_proto::wire::RxMeta;
use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, Event, QpHandle, QpState, QpTransition, RtrAttr,
};
use rocexdp_sim::pair::{Bytes, PairConfig, QPNS, Sent, path};

const NUM: SrqNum = SrqNum(3);

/// An endpoint whose QPs, all with the same peer address, share one receive queue.
struct Sharing {
    ep: Endpoint,
    srq: Arc<RecvQueue>,
    cq: Arc<CompletionQueue>,
    qps: Vec<QpHandle>,
    config: PairConfig,
    inbox: Arc<Bytes>,
}

impl Sharing {
    fn new(qps: u32, limit: u32) -> Self {
        let config = PairConfig {
            path_mtu: PathMtu::Mtu256,
            ..PairConfig::default()
        };
        let mut ep = Endpoint::new(EndpointConfig::default(), 1);
        let attr = SrqAttr {
            num: NUM,
            pd: Pd::default(),
            max_wr: 8,
            max_sge: 1,
            limit,
        };
        let srq = ep.create_srq(&attr).unwrap();
        let cq = Arc::new(CompletionQueue::new(64));
        let qps = (0..qps).map(|n| {
            let create = CreateQp {
                srq: Some(srq.clone()),
                ..CreateQp::rc(Qpn::new(QPNS[1].get() + n), &cq, &cq)
            };
            let qp = ep.create_qp(create).unwrap();
            let rtr = RtrAttr {
                dest_qpn: QPNS[0],
                path_mtu: config.path_mtu,
                rq_psn: FIRST,
                min_rnr_timer: 5,
                max_dest_rd_atomic: 1,
                path: path(&config, 1),
                selective: None,
            };
            let access = config.access;
            for to in [QpTransition::Init { access }, QpTransition::Rtr(rtr)] {
                ep.modify_qp(Timestamp::ZERO, qp.qpn, to).unwrap();
            }
            qp
        });
        Self {
            qps: qps.collect(),
            ep,
            srq,
            cq,
            config,
            inbox: Bytes::filled(4096, 0),
        }
    }

    fn post(&self, id: u64, len: u32) {
        let local = Segment::new(self.inbox.clone(), 0, len);
        self.srq.post(RecvWr::new(WrId(id), local)).unwrap();
    }

    /// A packet to QP `qp`, its `n`-th; gives the syndromes of the answers.
    fn serve(&mut self, qp: usize, n: u32, mut craft: Craft) -> Vec<(i32, Syndrome)> {
        craft.bth.psn = FIRST.add(n);
        craft.bth.dest_qpn = self.qps[qp].qpn;
        let frame = craft.frame(&self.config, 0);
        let _ = self
            .ep
            .handle_frame(Timestamp::ZERO, &RxMeta::default(), &[&frame]);
        let mut sent = Vec::new();
        while let Some(t) = self.ep.poll_transmit(Timestamp::ZERO) {
            let mut frame = vec![0; t.len()];
            t.write(&mut [&mut frame]).unwrap();
            sent.push(Sent {
                at: Timestamp::ZERO,
                end: 1,
                bth: Craft::new(1, rc::ACKNOWLEDGE, FIRST).bth,
                frame,
            });
        }
        replies(&sent, 1)
            .iter()
            .map(|r| (r.psn.diff(FIRST), r.aeth.unwrap().0))
            .collect()
    }

    /// A SEND of 8 bytes, or its first packet of 256.
    fn send(&mut self, qp: usize, n: u32) -> Vec<(i32, Syndrome)> {
        let craft = Craft::new(0, rc::SEND_ONLY, FIRST);
        self.serve(qp, n, craft.payload(&[1; 8]).asking())
    }

    fn begin(&mut self, qp: usize, n: u32) -> Vec<(i32, Syndrome)> {
        let craft = Craft::new(0, rc::SEND_FIRST, FIRST);
        self.serve(qp, n, craft.payload(&[1; 256]))
    }

    /// Which QP got which request, and how it ended.
    fn done(&self) -> Vec<(usize, u64, Status)> {
        core::iter::from_fn(|| self.cq.poll())
            .map(|c| {
                assert_eq!(c.opcode, CqeOpcode::Recv);
                let qp = c.qpn.get() - QPNS[1].get();
                (qp as usize, c.wr_id.0, c.status)
            })
            .collect()
    }

    fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.ep.poll_event())
            .filter(|e| !matches!(e, Event::CommunicationEstablished { .. }))
            .collect()
    }

    fn fail(&mut self, qp: usize) {
        let qpn = self.qps[qp].qpn;
        let to = QpTransition::Err;
        self.ep.modify_qp(Timestamp::ZERO, qpn, to).unwrap();
    }
}

#[test]
fn qps_take_from_the_shared_queue_in_the_order_of_their_messages() {
    let mut s = Sharing::new(2, 0);
    for id in 0..3 {
        s.post(id, 512);
    }
    // A message holds its request from its first packet on.
    assert_eq!(s.begin(0, 0), []);
    assert_eq!(s.send(1, 0), [(0, ACK)]);
    let last = Craft::new(0, rc::SEND_LAST, FIRST)
        .payload(&[2; 8])
        .asking();
    assert_eq!(s.serve(0, 1, last), [(1, ACK)]);
    assert_eq!(s.send(1, 1), [(1, ACK)]);
    let ok = Status::Success;
    assert_eq!(s.done(), [(1, 1, ok), (0, 0, ok), (1, 2, ok)]);
    assert_eq!((s.srq.len(), s.srq.capacity()), (0, 8));
}

#[test]
fn an_empty_shared_queue_is_receiver_not_ready_to_each_qp() {
    let mut s = Sharing::new(2, 0);
    for qp in 0..2 {
        assert_eq!(s.send(qp, 0), [(0, Syndrome::RnrNak(5))]);
    }
    s.post(7, 64);
    assert_eq!(s.send(1, 0), [(0, ACK)]);
    assert_eq!(
        s.send(0, 0),
        [(0, Syndrome::RnrNak(5))],
        "it was the only one"
    );
}

#[test]
fn a_qp_in_err_ends_what_it_has_taken_and_leaves_the_rest() {
    let mut s = Sharing::new(2, 0);
    for id in 0..3 {
        s.post(id, 512);
    }
    s.begin(0, 0);
    s.fail(0);
    assert_eq!(s.done(), [(0, 0, Status::WrFlushErr)]);
    let qpn = s.qps[0].qpn;
    assert_eq!(s.events(), [Event::LastWqeReached { qpn }]);
    assert_eq!(s.srq.len(), 2);
    // The other one goes on.
    assert_eq!(s.send(1, 0), [(0, ACK)]);
    assert_eq!(s.done(), [(1, 1, Status::Success)]);
    // So does a doorbell of the failed one change nothing.
    s.ep.work_posted(Timestamp::ZERO, qpn);
    assert_eq!((s.done(), s.srq.len()), (vec![], 1));
}

#[test]
fn a_request_that_ends_the_connection_takes_one_receive_request_with_it() {
    let mut s = Sharing::new(2, 0);
    for id in 0..3 {
        s.post(id, 100);
    }
    // Longer than the receive request.
    let too_long = Craft::new(0, rc::SEND_ONLY, FIRST).payload(&[1; 200]);
    assert_eq!(s.serve(0, 0, too_long), [(0, Syndrome::NakInvalidRequest)]);
    assert_eq!(s.done(), [(0, 0, Status::LocLenErr)]);
    let state = s.ep.qp_info(s.qps[0].qpn).unwrap().state;
    assert_eq!((state, s.srq.len()), (QpState::Err, 2));
    let events = s.events();
    let qpn = s.qps[0].qpn;
    assert!(
        events.contains(&Event::LastWqeReached { qpn }),
        "{events:?}"
    );
    assert!(
        matches!(events[..], [_, _]) && events.iter().any(|e| matches!(e, Event::QpError { .. }))
    );
    assert_eq!(s.send(1, 0), [(0, ACK)]);
}

#[test]
fn reset_and_destroy_give_back_the_place_of_what_was_taken_and_touch_nothing_else() {
    for destroy in [false, true] {
        let mut s = Sharing::new(2, 0);
        for id in 0..3 {
            s.post(id, 512);
        }
        s.begin(0, 0);
        assert_eq!(s.srq.len(), 3);
        let qpn = s.qps[0].qpn;
        if destroy {
            s.ep.destroy_qp(qpn).unwrap();
        } else {
            let to = QpTransition::Reset;
            s.ep.modify_qp(Timestamp::ZERO, qpn, to).unwrap();
        }
        assert_eq!((s.done(), s.srq.len()), (vec![], 2));
        assert_eq!(s.send(1, 0), [(0, ACK)]);
        assert_eq!(s.done(), [(1, 1, Status::Success)]);
    }
}

#[test]
fn the_limit_is_reported_once_when_fewer_are_left() {
    let mut s = Sharing::new(1, 2);
    for id in 0..4 {
        s.post(id, 64);
    }
    for (n, events) in [
        (0, vec![]),
        (1, vec![]),
        (2, vec![Event::SrqLimitReached { srq: NUM }]),
        (3, vec![]),
    ] {
        assert_eq!(s.send(0, n), [(n as i32, ACK)]);
        assert_eq!(s.events(), events, "{n}");
    }
}

/// A WRITE with immediate takes a request at its end, out of the shared queue as well.
#[test]
fn a_write_with_immediate_takes_from_the_shared_queue() {
    let mut s = Sharing::new(1, 0);
    let write = Craft::new(0, rc::WRITE_ONLY_IMM, FIRST)
        .reth(0, 0, 0)
        .immediate(9);
    assert_eq!(s.serve(0, 0, write.clone()), [(0, Syndrome::RnrNak(5))]);
    s.post(4, 0);
    assert_eq!(s.serve(0, 0, write.asking()), [(0, ACK)]);
    let done = s.cq.poll().unwrap();
    assert_eq!(
        (done.opcode, done.wr_id, done.imm),
        (CqeOpcode::RecvWriteImm, WrId(4), Some(9))
    );
}
