//! Connections: how they begin and end, what is lost, what comes twice, what is refused and why.

mod common;

use std::time::Duration;

use common::cm::*;
use rocexdp_proto::Transport;
use rocexdp_proto::cm::{
    CmError, Event, Ignored, RejReason, Resolve, Route, SidrAnswer, port_space,
};
use rocexdp_proto::ids::{PathMtu, Psn, Qpn};

#[test]
fn both_ends_learn_what_the_other_said() {
    let mut w = World::new();
    let a = w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Request(b, request) = w.event(1) else {
        panic!("a request")
    };
    assert_eq!((request.route.local, request.route.peer), (B, A));
    assert_eq!(request.transport, Transport::Rc);
    // A PSN is that of the requests of who gets the message.
    assert_eq!(
        (request.qpn, request.psn),
        (Qpn::new(0x11), Psn::new(0x100))
    );
    assert_eq!(request.path_mtu, PathMtu::Mtu1024);
    // Depths have changed sides.
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (8, 4)
    );
    assert_eq!((request.retry_count, request.rnr_retry_count), (6, 5));
    // Ours (15) and twice the packet's life time (14).
    assert_eq!(request.ack_timeout, 16);
    assert_eq!(
        request.ip.map(|ip| (ip.src, ip.dst, ip.port)),
        Some((A, B, 7174))
    );
    assert_eq!(
        (&request.private_data[..5], request.private_data.len()),
        (&b"hello"[..], 56)
    );
    w.ends[1].accept(w.now, b, &accept()).unwrap();
    let Event::Reply(id, reply) = w.event(0) else {
        panic!("a reply")
    };
    assert_eq!(id, a);
    assert_eq!((reply.qpn, reply.psn), (Qpn::new(0x22), Psn::new(0x200)));
    assert_eq!((reply.responder_resources, reply.initiator_depth), (4, 8));
    assert_eq!(
        (reply.rnr_retry_count, reply.srq, reply.ack_timeout),
        (3, true, 16)
    );
    assert_eq!(
        (&reply.private_data[..7], reply.private_data.len()),
        (&b"welcome"[..], 196)
    );
    w.ends[0].ready(a, &[]).unwrap();
    assert_eq!(w.event(1), Event::Established(b));
    assert_eq!(w.log, [(0, "REQ"), (1, "REP"), (0, "RTU")]);
    // Established: nothing is due.
    assert_eq!(
        (w.ends[0].poll_timeout(), w.ends[1].poll_timeout()),
        (None, None)
    );
    w.ends[1].disconnect(w.now, b).unwrap();
    assert_eq!(
        w.event(0),
        Event::Disconnected {
            id: a,
            by_peer: true
        }
    );
    assert_eq!(
        w.event(1),
        Event::Disconnected {
            id: b,
            by_peer: false
        }
    );
    assert_eq!(w.log[3..], [(1, "DREQ"), (0, "DREP")]);
    // And after timewait nothing is left.
    while w.pass() {}
    assert_eq!((w.ends[0].connections(), w.ends[1].connections()), (0, 0));
}

#[test]
fn what_is_lost_is_sent_again() {
    for (lost, n) in [("REQ", 3), ("REP", 3), ("RTU", 3), ("REQ", 7), ("RTU", 7)] {
        let mut w = World::new();
        w.lose.insert(lost, n);
        let (a, b) = w.connected();
        assert_eq!(w.sent(lost), n as usize + 1, "{lost}");
        w.lose.insert("DREQ", 2);
        w.lose.insert("DREP", 2);
        w.ends[0].disconnect(w.now, a).unwrap();
        assert_eq!(
            w.event(1),
            Event::Disconnected {
                id: b,
                by_peer: true
            }
        );
        assert_eq!(
            w.event(0),
            Event::Disconnected {
                id: a,
                by_peer: false
            }
        );
        assert_eq!((w.sent("DREQ"), w.sent("DREP")), (5, 3));
    }
}

#[test]
fn copies_change_nothing_and_are_answered_as_the_first() {
    let mut w = World::new();
    w.twice = true;
    let (a, b) = w.up_to_reply();
    // The application decides late: copies of the REQ are answered by a MRA.
    assert!(w.sent("MRA") > 0);
    w.ends[0].ready(a, &[]).unwrap();
    assert_eq!(w.event(1), Event::Established(b));
    w.none(0);
    w.none(1);
    w.ends[1].disconnect(w.now, b).unwrap();
    w.settle();
    assert_eq!(
        w.event(0),
        Event::Disconnected {
            id: a,
            by_peer: true
        }
    );
    assert_eq!(
        w.event(1),
        Event::Disconnected {
            id: b,
            by_peer: false
        }
    );
    w.none(0);
    w.none(1);
    assert!(w.ends[1].counters().ignored(Ignored::Duplicate) > 0);
}

#[test]
fn a_lost_rtu_is_made_up_for_by_the_first_packet() {
    let mut w = World::new();
    w.lose.insert("RTU", 100);
    let (a, b) = w.up_to_reply();
    w.ends[0].ready(a, &[]).unwrap();
    w.settle();
    w.none(1);
    w.ends[1].heard(b);
    assert_eq!(w.event(1), Event::Established(b));
    assert_eq!(w.ends[1].poll_timeout(), None);
    w.ends[1].heard(b);
    w.none(1);
}

#[test]
fn who_never_answers_is_given_up_and_told() {
    let mut w = World::new();
    w.lose.insert("REQ", 100);
    let a = w.ends[0].connect(w.now, &connect()).unwrap();
    let begin = w.now;
    let unreachable = |id, message| Event::Unreachable {
        id,
        message,
        sent: 8,
    };
    assert_eq!(w.event(0), unreachable(a, "REQ"));
    let took = w.now.saturating_since(begin);
    assert!(
        took > Duration::from_secs(8) && took < Duration::from_secs(11),
        "{took:?}"
    );
    assert_eq!(w.log.last(), Some(&(0, "REJ")));

    // Whose answers are lost gives up, and says so to the asker, who does not know its name.
    let mut w = World::new();
    w.lose.insert("REP", 100);
    let a = w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Request(b, _) = w.event(1) else {
        panic!("a request")
    };
    w.ends[1].accept(w.now, b, &accept()).unwrap();
    assert_eq!(w.event(1), unreachable(b, "REP"));
    let Event::Refused { id, reason, .. } = w.event(0) else {
        panic!("a refusal")
    };
    assert_eq!((id, reason), (a, RejReason::TIMEOUT));

    // A peer that is gone after its REQ.
    let mut w = World::new();
    w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Request(b, _) = w.event(1) else {
        panic!("a request")
    };
    w.ends[0] = manager(1);
    w.ends[1].accept(w.now, b, &accept()).unwrap();
    assert_eq!(w.event(1), unreachable(b, "REP"));
    while w.pass() {}
    assert_eq!(w.ends[1].connections(), 0);
}

#[test]
fn an_application_that_takes_its_time_is_waited_for() {
    let mut w = World::new();
    let a = w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Request(b, _) = w.event(1) else {
        panic!("a request")
    };
    // 17 s of the MRA, then copies again: without it, A had given up after 10 s.
    let begin = w.now;
    while w.now.saturating_since(begin) < Duration::from_secs(20) {
        assert!(w.pass());
    }
    assert_eq!(w.sent("MRA"), w.sent("REQ") - 1);
    assert!(w.sent("REQ") < 5);
    w.ends[1].accept(w.now, b, &accept()).unwrap();
    assert!(matches!(w.event(0), Event::Reply(id, _) if id == a));
    // And so is the asker's.
    let begin = w.now;
    while w.now.saturating_since(begin) < Duration::from_secs(15) {
        assert!(w.pass());
    }
    w.ends[0].ready(a, &[]).unwrap();
    assert_eq!(w.event(1), Event::Established(b));
}

#[test]
fn an_application_that_never_decides_is_decided_for() {
    let mut w = World::new();
    w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Request(b, _) = w.event(1) else {
        panic!("a request")
    };
    let begin = w.now;
    let Event::Refused { reason, .. } = w.event(1) else {
        panic!("an end")
    };
    assert_eq!(reason, RejReason::TIMEOUT);
    assert_eq!(w.now.saturating_since(begin), Duration::from_secs(60));
    assert_eq!(w.ends[1].half_open(), 0);
    assert_eq!(
        w.ends[1].accept(w.now, b, &accept()),
        Err(CmError::Unknown(b))
    );
}

#[test]
fn a_connection_that_is_not_known_any_more_is_ended_at_the_peer_too() {
    let mut w = World::new();
    let (a, _) = w.connected();
    w.ends[1] = manager(2);
    w.ends[0].disconnect(w.now, a).unwrap();
    assert_eq!(
        w.event(0),
        Event::Disconnected {
            id: a,
            by_peer: false
        }
    );
    assert_eq!(w.ends[1].counters().ignored(Ignored::UnknownConnection), 1);
}

#[test]
fn both_may_end_it_at_once_and_a_peer_that_is_gone_does_not_hold_it_up() {
    let mut w = World::new();
    let (a, b) = w.connected();
    w.ends[0].disconnect(w.now, a).unwrap();
    w.ends[1].disconnect(w.now, b).unwrap();
    assert_eq!(
        w.event(0),
        Event::Disconnected {
            id: a,
            by_peer: false
        }
    );
    assert_eq!(
        w.event(1),
        Event::Disconnected {
            id: b,
            by_peer: false
        }
    );

    let mut w = World::new();
    let (a, _) = w.connected();
    w.lose.insert("DREQ", 100);
    w.ends[0].disconnect(w.now, a).unwrap();
    assert_eq!(
        w.event(0),
        Event::Disconnected {
            id: a,
            by_peer: false
        }
    );
    assert_eq!(w.sent("DREQ"), 8);
}

#[test]
fn datagram_services_are_resolved_lost_or_not() {
    for lost in ["", "SIDR_REQ", "SIDR_REP"] {
        let mut w = World::new();
        w.lose.insert(lost, 3);
        let route = Route { local: A, peer: B };
        let ask = Resolve {
            route,
            service_id: DATAGRAMS,
            ip: Some(ip(route, port_space::UDP)),
            private_data: b"who".to_vec(),
        };
        let a = w.ends[0].resolve(w.now, &ask).unwrap();
        let Event::Wanted {
            id,
            service_id,
            private_data,
            ip,
        } = w.event(1)
        else {
            panic!("a request")
        };
        assert_eq!(
            (service_id, &private_data[..3], private_data.len()),
            (DATAGRAMS, &b"who"[..], 180)
        );
        assert_eq!(ip.map(|ip| ip.src), Some(A));
        let found = SidrAnswer::Found {
            qpn: Qpn::new(0x77),
            qkey: 0x0123_4567,
        };
        w.ends[1].answer(id, found, b"me").unwrap();
        assert_eq!(w.ends[1].answer(id, found, &[]), Err(CmError::NoRequest));
        let Event::Resolved {
            id,
            qpn,
            qkey,
            private_data,
        } = w.event(0)
        else {
            panic!("an answer")
        };
        assert_eq!((id, qpn, qkey), (a, Qpn::new(0x77), 0x0123_4567));
        assert_eq!((&private_data[..2], private_data.len()), (&b"me"[..], 136));
        w.none(0);
        w.none(1);
        while w.pass() {}
        w.none(0);
        w.none(1);
    }
}

#[test]
fn a_datagram_service_that_is_not_there_is_refused_and_a_silent_one_given_up() {
    let mut w = World::new();
    let route = Route { local: A, peer: B };
    let ask = |service_id| Resolve {
        route,
        service_id,
        ip: None,
        private_data: Vec::new(),
    };
    for service in [DATAGRAMS + 1, SERVICE, DATAGRAMS] {
        let a = w.ends[0].resolve(w.now, &ask(service)).unwrap();
        assert_eq!(w.event(0), Event::NotResolved { id: a, status: 1 });
    }
    w.lose.insert("SIDR_REQ", 100);
    let a = w.ends[0].resolve(w.now, &ask(5)).unwrap();
    let gone = Event::Unreachable {
        id: a,
        message: "SIDR_REQ",
        sent: 8,
    };
    assert_eq!(w.event(0), gone);
}
