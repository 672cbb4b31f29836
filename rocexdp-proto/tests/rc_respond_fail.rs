//! READs that can't be answered to their end: the peer always hears of it (`shared/scenarios.md` 26), and what of the QP.

mod common;

use core::time::Duration;

use common::responder::{ACK, FIRST, Responder};
use common::{LONG, Reply, outcomes, replies, send_wr};
use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::rc;
use rocexdp_proto::ids::{PathMtu, RKey};
use rocexdp_proto::time::Rate;
use rocexdp_proto::verbs::{CqeOpcode, SendOp, Status};
use rocexdp_proto::{DropReason, ErrorCause, Event, QpState};
use rocexdp_sim::pair::{Bytes, PairConfig, QPNS};

/// A responder on a link that needs 2.6 us for a response of 256 bytes.
fn slow() -> Responder {
    Responder::new(PairConfig {
        path_mtu: PathMtu::Mtu256,
        link_rate: Some(Rate::from_mbps(1000)),
        ..PairConfig::default()
    })
}

fn state(r: &Responder, end: usize) -> QpState {
    r.pair.ends[end].endpoint.qp_info(QPNS[end]).unwrap().state
}

/// Two READs arrive; after the first packets of the first one, `spoil` does something. Gives all answers.
fn spoiled(spoil: impl FnOnce(&mut Responder)) -> (Vec<Reply>, Responder) {
    let mut r = slow();
    for read in [r.read(0, 0, 1024), r.read(4, 0, 256)] {
        r.pair.inject(1, read.frame(&r.config, 0));
    }
    assert!(!r.pair.run(Duration::from_nanos(4000)));
    assert!(!r.pair.sent.is_empty());
    spoil(&mut r);
    assert!(r.pair.run(LONG));
    (replies(&r.pair.sent, 1), r)
}

/// The answers end with this NAK at the first packet that is missing, and the QP is in ERR for that reason.
fn ends(replies: &[Reply], r: &Responder, syndrome: Syndrome, reason: DropReason) {
    let (nak, before) = replies.split_last().unwrap();
    assert!((1..4).contains(&before.len()), "{}", before.len());
    assert!(before.iter().all(|a| a.aeth.is_none_or(|(s, _)| s == ACK)));
    assert_eq!(
        (nak.opcode, nak.psn, nak.aeth.map(|(s, _)| s)),
        (
            rc::ACKNOWLEDGE,
            FIRST.add(before.len() as u32),
            Some(syndrome)
        )
    );
    assert_eq!(state(r, 1), QpState::Err);
    assert_eq!(
        r.pair.ends[1].events,
        [Event::QpError {
            qpn: QPNS[1],
            cause: ErrorCause::Peer(reason)
        }]
    );
}

#[test]
fn a_region_withdrawn_while_its_read_is_being_answered_is_a_remote_access_error() {
    let (replies, r) = spoiled(|r| {
        assert!(r.pair.ends[1].endpoint.deregister_memory(r.rkey));
    });
    ends(
        &replies,
        &r,
        Syndrome::NakRemoteAccess,
        DropReason::RemoteAccess,
    );
}

#[test]
fn memory_that_faults_while_its_read_is_being_answered_is_a_remote_operational_error() {
    let (replies, r) = spoiled(|r| r.bytes.take_away());
    ends(
        &replies,
        &r,
        Syndrome::NakRemoteOperational,
        DropReason::RemoteOperational,
    );
}

#[test]
fn a_read_whose_memory_faults_at_once_ends_at_its_requester() {
    for (spoil, status) in [(true, Status::RemOpErr), (false, Status::RemAccessErr)] {
        let mut r = slow();
        let sink = Bytes::filled(1024, 0);
        let op = SendOp::Read {
            va: common::responder::VA,
            rkey: r.rkey,
        };
        for id in 0..2 {
            r.pair.post_send(0, send_wr(id, op, &sink, 1024)).unwrap();
        }
        // The request is on its way.
        assert!(!r.pair.run(Duration::from_nanos(5000)));
        if spoil {
            r.bytes.take_away();
        } else {
            assert!(r.pair.ends[1].endpoint.deregister_memory(r.rkey));
        }
        assert!(r.pair.run(LONG));
        assert_eq!(
            outcomes(&mut r.pair, 0),
            [
                (0, CqeOpcode::Read, status),
                (1, CqeOpcode::Read, Status::WrFlushErr)
            ]
        );
        assert_eq!([state(&r, 0), state(&r, 1)], [QpState::Err; 2]);
    }
}

/// The network may keep a READ request while the peer has its answer and the application has taken its memory back.
#[test]
fn a_stale_duplicate_read_of_a_region_that_is_gone_does_not_end_the_connection() {
    let mut r = Responder::small();
    let read = r.read(0, 0, 300);
    r.feed(core::slice::from_ref(&read));
    assert!(r.pair.ends[1].endpoint.deregister_memory(r.rkey));
    let answers = r.feed(&[read, r.packet(2, rc::WRITE_ONLY).reth(0, 0, 0).asking()]);
    assert_eq!(
        answers.iter().map(|a| (a.psn, a.aeth)).collect::<Vec<_>>(),
        [
            (FIRST, Some((Syndrome::NakRemoteAccess, 2))),
            (FIRST.add(2), Some((ACK, 2)))
        ],
        "a peer that waits is told, one that has gone on is not disturbed"
    );
    assert_eq!(state(&r, 1), QpState::Rts);
}

#[test]
fn the_answers_to_what_came_before_a_refused_request_leave_before_its_nak() {
    let mut r = Responder::small();
    let mut wrong = r.read(3, 0, 8);
    wrong.extensions[8..12].copy_from_slice(&RKey(r.rkey.0 ^ 1).0.to_be_bytes());
    let answers = r.feed(&[r.read(0, 0, 512), r.add(2, 0, 1), wrong]);
    let ends: Vec<_> = answers
        .iter()
        .map(|a| (a.opcode, a.psn.diff(FIRST)))
        .collect();
    assert_eq!(
        ends,
        [
            (rc::READ_RESPONSE_FIRST, 0),
            (rc::READ_RESPONSE_LAST, 1),
            (rc::ATOMIC_ACKNOWLEDGE, 2),
            (rc::ACKNOWLEDGE, 3)
        ]
    );
    assert_eq!(answers[3].aeth, Some((Syndrome::NakRemoteAccess, 2)));
    assert_eq!(state(&r, 1), QpState::Err);
    // In ERR nothing more is answered.
    assert_eq!(r.answers(&[r.read(0, 0, 512)]), []);
}

#[test]
fn a_qp_taken_to_err_by_its_owner_answers_nothing_more() {
    let (replies, r) = spoiled(|r| {
        let (now, to) = (r.pair.now(), rocexdp_proto::QpTransition::Err);
        let end = &mut r.pair.ends[1].endpoint;
        end.modify_qp(now, QPNS[1], to).unwrap();
    });
    assert!(replies.len() < 4);
    assert!(replies.iter().all(|a| a.aeth.is_none_or(|(s, _)| s == ACK)));
    assert_eq!(r.pair.ends[1].events, []);
}
