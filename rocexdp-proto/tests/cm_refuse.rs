//! Connections that are refused, and why; who is not heard.

mod common;

use common::cm::*;
use rocexdp_common::mad::CmMessage;
use rocexdp_proto::Transport;
use rocexdp_proto::cm::{
    Accept, CmConfig, CmError, Connect, Event, Ignored, Manager, RejReason, Resolve, Route,
    SidrAnswer, port_space,
};
use rocexdp_proto::ids::{PathMtu, Qpn};

#[test]
fn each_refusal_names_its_reason() {
    type Change = fn(&mut Connect);
    let cases: [(Change, RejReason); 5] = [
        (|c| c.service_id += 1, RejReason::INVALID_SERVICE_ID),
        (
            |c| c.transport = Transport::Uc,
            RejReason::INVALID_TRANSPORT_TYPE,
        ),
        (|c| c.qpn = Qpn::new(1), RejReason::NO_QP),
        (
            |c| c.service_id = DATAGRAMS,
            RejReason::INVALID_TRANSPORT_TYPE,
        ),
        (|c| c.ip = None, RejReason::UNSUPPORTED),
    ];
    for (change, why) in cases {
        let mut w = World::new();
        let mut ask = connect();
        change(&mut ask);
        let a = w.ends[0].connect(w.now, &ask).unwrap();
        let Event::Refused { id, reason, .. } = w.event(0) else {
            panic!("a refusal")
        };
        assert_eq!((id, reason), (a, why));
        w.none(1);
        while w.pass() {}
        assert_eq!((w.ends[0].connections(), w.ends[1].connections()), (0, 0));
    }
    assert_eq!(
        RejReason::INVALID_SERVICE_ID.to_string(),
        "invalid service ID (reason 8)"
    );
}

#[test]
fn a_path_mtu_that_is_too_large_is_refused_with_the_largest() {
    let mut w = World::new();
    w.ends[1].unlisten(SERVICE);
    let mut small = listen(SERVICE, Transport::Rc);
    small.path_mtu = PathMtu::Mtu512;
    w.ends[1].listen(small).unwrap();
    w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Refused { reason, info, .. } = w.event(0) else {
        panic!("a refusal")
    };
    assert_eq!((reason, info), (RejReason::INVALID_MTU, vec![2]));
}

#[test]
fn an_application_refuses_with_its_own_words_at_either_end() {
    let mut w = World::new();
    let a = w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Request(b, _) = w.event(1) else {
        panic!("a request")
    };
    let own = RejReason::CONSUMER_DEFINED;
    w.ends[1].reject(w.now, b, own, b"not today").unwrap();
    let Event::Refused {
        id,
        reason,
        private_data,
        ..
    } = w.event(0)
    else {
        panic!("a refusal")
    };
    assert_eq!((id, reason), (a, own));
    assert_eq!(
        (&private_data[..9], private_data.len()),
        (&b"not today"[..], 148)
    );

    let mut w = World::new();
    let (a, b) = w.up_to_reply();
    w.ends[0].reject(w.now, a, own, &[]).unwrap();
    let Event::Refused { id, reason, .. } = w.event(1) else {
        panic!("a refusal")
    };
    assert_eq!((id, reason), (b, own));

    // Given up while nobody has answered.
    let mut w = World::new();
    let a = w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Request(b, _) = w.event(1) else {
        panic!("a request")
    };
    w.ends[0].reject(w.now, a, RejReason::TIMEOUT, &[]).unwrap();
    let Event::Refused { id, reason, .. } = w.event(1) else {
        panic!("a refusal")
    };
    assert_eq!((id, reason), (b, RejReason::TIMEOUT));
}

#[test]
fn a_peer_that_has_forgotten_is_told_that_its_connection_is_stale() {
    // It comes back with the same QP.
    let mut w = World::new();
    let (_, b) = w.connected();
    w.ends[0] = Manager::new(CmConfig::new(1), 99);
    let again = w.ends[0].connect(w.now, &connect()).unwrap();
    let Event::Refused { id, reason, .. } = w.event(0) else {
        panic!("a refusal")
    };
    assert_eq!((id, reason), (again, RejReason::STALE_CONN));
    assert_eq!(
        w.event(1),
        Event::Disconnected {
            id: b,
            by_peer: true
        }
    );
    // Now the way is free.
    w.connected();

    // It comes back with the same communication ID, and another QP.
    let mut w = World::new();
    let (_, b) = w.connected();
    w.ends[0] = manager(1);
    let other = Connect {
        qpn: Qpn::new(0x55),
        ..connect()
    };
    w.ends[0].connect(w.now, &other).unwrap();
    let Event::Refused { reason, .. } = w.event(0) else {
        panic!("a refusal")
    };
    assert_eq!(reason, RejReason::STALE_CONN);
    assert_eq!(
        w.event(1),
        Event::Disconnected {
            id: b,
            by_peer: true
        }
    );
    w.connected();
}

#[test]
fn requests_that_nobody_decides_on_are_bounded() {
    let mut w = World::new();
    let mut refused = 0;
    for n in 0..10 {
        let ask = Connect {
            qpn: Qpn::new(0x100 + n),
            ..connect()
        };
        w.ends[0].connect(w.now, &ask).unwrap();
        w.settle();
        if let Some(Event::Refused { reason, .. }) = w.ends[0].poll_event() {
            assert_eq!(reason, RejReason::NO_RESOURCES);
            refused += 1;
        }
    }
    assert_eq!(
        (refused, w.ends[1].half_open(), w.ends[1].connections()),
        (6, 4, 4)
    );
    // The decision makes room.
    let Some(Event::Request(b, _)) = w.ends[1].poll_event() else {
        panic!("a request")
    };
    w.ends[1]
        .reject(w.now, b, RejReason::CONSUMER_DEFINED, &[])
        .unwrap();
    w.settle();
    assert_eq!(w.ends[1].half_open(), 3);
    while w.ends[0].poll_event().is_some() {}
    // Who listens anew finds those that wait, each of which is counted until it is decided on.
    w.ends[1].unlisten(SERVICE);
    w.ends[1].listen(listen(SERVICE, Transport::Rc)).unwrap();
    let mut taken = 0;
    for n in 0..4 {
        let ask = Connect {
            qpn: Qpn::new(0x200 + n),
            ..connect()
        };
        w.ends[0].connect(w.now, &ask).unwrap();
        w.settle();
        taken += u32::from(!matches!(
            w.ends[0].poll_event(),
            Some(Event::Refused { .. })
        ));
    }
    assert_eq!((taken, w.ends[1].half_open()), (1, 4));
}

#[test]
fn only_the_peer_is_heard() {
    let mut w = World::new();
    let (a, _) = w.up_to_reply();
    w.ends[0].ready(a, &[]).unwrap();
    let rtu = w.ends[0].poll_transmit().unwrap().mad;
    let another = Route {
        local: B,
        peer: [7; 16],
    };
    let end = &mut w.ends[1];
    assert_eq!(
        end.handle_mad(w.now, another, GSI, &rtu),
        Err(Ignored::NotThePeer)
    );
    let right = Route { local: B, peer: A };
    assert_eq!(
        end.handle_mad(w.now, right, Qpn::new(9), &rtu),
        Err(Ignored::NotFromGsi)
    );
    assert_eq!(end.handle_mad(w.now, right, GSI, &rtu), Ok(()));
    // A request whose addresses are not the packet's.
    let mut asker = manager(3);
    asker.connect(w.now, &connect()).unwrap();
    let req = asker.poll_transmit().unwrap().mad;
    assert_eq!(
        end.handle_mad(w.now, another, GSI, &req),
        Err(Ignored::Refused)
    );
    let out = end.poll_transmit().unwrap();
    assert!(matches!(
        message(&out.mad),
        CmMessage::Rej {
            reason: 12,
            info_length: 16,
            ..
        }
    ));
}

#[test]
fn commands_at_the_wrong_time_or_with_wrong_values_fail_and_change_nothing() {
    let mut w = World::new();
    let (a, b) = w.up_to_reply();
    let now = w.now;
    let [active, passive] = &mut w.ends;
    let state = |error: CmError| matches!(error, CmError::State { .. });
    assert!(active.accept(now, a, &accept()).is_err_and(state));
    assert!(active.disconnect(now, a).is_err_and(state));
    assert!(passive.accept(now, b, &accept()).is_err_and(state));
    assert!(passive.ready(b, &[]).is_err_and(state));
    let error = active.ready(a, &[0; 225]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "225 bytes of private data are more than the 224 that a RTU has room for"
    );
    let ask = connect();
    let long = Connect {
        private_data: vec![0; 57],
        ..ask.clone()
    };
    assert!(active.connect(now, &long).is_err());
    assert!(active.connect(now, &Connect { ip: None, ..long }).is_ok());
    assert!(
        active
            .connect(
                now,
                &Connect {
                    retry_count: 8,
                    ..ask.clone()
                }
            )
            .is_err()
    );
    assert!(
        active
            .connect(
                now,
                &Connect {
                    transport: Transport::Ud,
                    ..ask
                }
            )
            .is_err()
    );
    let taken = passive.listen(listen(SERVICE, Transport::Rc));
    assert_eq!(taken, Err(CmError::ServiceTaken(SERVICE)));
    let b2 = Accept {
        rnr_retry_count: 8,
        ..accept()
    };
    assert!(passive.accept(now, b, &b2).is_err());
    active.ready(a, &[]).unwrap();
    let own = RejReason::CONSUMER_DEFINED;
    assert!(active.reject(now, a, own, &[]).is_err_and(state));
}

#[test]
fn a_reply_whose_name_was_a_connections_that_has_ended_is_taken_and_a_living_ones_is_not_answered()
{
    let again = |end: bool| {
        let mut w = World::new();
        let (a, b) = w.connected();
        if end {
            w.ends[0].disconnect(w.now, a).unwrap();
            w.event(0);
            assert_eq!(w.ends[0].connections(), 1, "timewait");
        }
        // B's next connection has the first one's name: its numbers begin anew.
        w.ends[1] = manager(2);
        w.ends[1].listen(listen(SERVICE, Transport::Rc)).unwrap();
        let other = Connect {
            qpn: Qpn::new(0x12),
            ..connect()
        };
        let now = w.now;
        let a2 = w.ends[0].connect(now, &other).unwrap();
        let Event::Request(b2, _) = w.event(1) else {
            panic!("a request")
        };
        assert_eq!(b2, b);
        let now = w.now;
        let how = Accept {
            qpn: Qpn::new(0x23),
            ..accept()
        };
        w.ends[1].accept(now, b2, &how).unwrap();
        w.settle();
        (w, a2)
    };
    let (mut w, a2) = again(true);
    assert!(matches!(w.event(0), Event::Reply(id, _) if id == a2));
    w.ends[0].ready(a2, &[]).unwrap();
    assert!(matches!(w.event(1), Event::Established(_)));
    // The end of the first one's timewait does not take the name from the second.
    while w.pass() {}
    assert_eq!(w.ends[0].connections(), 1);

    let (mut w, _) = again(false);
    w.none(0);
    assert_eq!(w.sent("REJ"), 0);
    assert_eq!(w.ends[0].counters().ignored(Ignored::Duplicate), 1);
}

#[test]
fn datagram_requests_that_there_is_no_room_for_are_not_answered_and_come_again() {
    let mut w = World::new();
    let config = CmConfig {
        max_sidr: 4,
        ..CmConfig::new(2)
    };
    w.ends[1] = Manager::new(config, 2);
    w.ends[1].listen(listen(DATAGRAMS, Transport::Ud)).unwrap();
    let ask = |peer| {
        let route = Route { local: A, peer };
        let ip = Some(ip(route, port_space::UDP));
        Resolve {
            route,
            service_id: DATAGRAMS,
            ip,
            private_data: Vec::new(),
        }
    };
    let mut strangers = Vec::new();
    for n in 0..4 {
        let mut stranger = Manager::new(CmConfig::new(9), n);
        stranger.resolve(w.now, &ask(B)).unwrap();
        let mad = stranger.poll_transmit().unwrap().mad;
        let peer = [n as u8 + 1; 16];
        let from = Route { local: B, peer };
        w.ends[1].handle_mad(w.now, from, GSI, &mad).unwrap();
        let Some(Event::Wanted { id, .. }) = w.ends[1].poll_event() else {
            panic!("a request")
        };
        strangers.push(id);
    }
    let a = w.ends[0].resolve(w.now, &ask(B)).unwrap();
    w.settle();
    w.none(0);
    w.none(1);
    assert_eq!(w.sent("SIDR_REP"), 0);
    assert_eq!(w.ends[1].counters().ignored(Ignored::NoRoom), 1);
    // One that is answered gives its place to the next copy.
    let found = SidrAnswer::Found {
        qpn: Qpn::new(0x77),
        qkey: 5,
    };
    w.ends[1].answer(strangers[2], found, &[]).unwrap();
    while w.ends[1].poll_transmit().is_some() {}
    let Event::Wanted { id, .. } = w.event(1) else {
        panic!("a request")
    };
    w.ends[1].answer(id, found, &[]).unwrap();
    assert!(matches!(w.event(0), Event::Resolved { id, .. } if id == a));
    assert_eq!(w.sent("SIDR_REQ"), 2);
    for forgotten in strangers {
        let known = w.ends[1].answer(forgotten, found, &[]).is_ok();
        assert_eq!(known, forgotten.route().peer != [3; 16]);
    }
    while w.pass() {}
    assert_eq!(w.ends[1].poll_timeout(), None);
}
