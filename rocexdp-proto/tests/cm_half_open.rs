//! Requests that are not connections yet: nobody keeps the places of others.

mod common;

use std::time::Duration;

use common::cm::*;
use rocexdp_common::mad::CmMessage;
use rocexdp_proto::Transport;
use rocexdp_proto::cm::{CmConfig, ConnId, Connect, Event, Listen, Manager, RejReason, Route};
use rocexdp_proto::ids::{Gid, Qpn};
use rocexdp_proto::time::Timestamp;

const PLACES: u32 = 8;

/// B, whose listener may have as many as all, or one of them more than is used here.
struct Server {
    end: Manager,
    now: Timestamp,
    asked: u32,
}

impl Server {
    fn new(of_listener: u32, of_all: u32) -> Self {
        let mut end = Manager::new(
            CmConfig {
                max_half_open: of_all,
                ..CmConfig::new(2)
            },
            2,
        );
        end.listen(Listen {
            max_half_open: of_listener,
            ..listen(SERVICE, Transport::Rc)
        })
        .unwrap();
        Self {
            end,
            now: Timestamp::from_micros(1),
            asked: 0,
        }
    }

    /// A REQ from there, which waits for no answer. `None`: it was refused.
    fn ask(&mut self, peer: Gid) -> Option<ConnId> {
        self.asked += 1;
        self.now = self.now.saturating_add(Duration::from_micros(10));
        let mut stranger = Manager::new(CmConfig::new(9), u64::from(self.asked));
        let route = Route {
            local: peer,
            peer: B,
        };
        let ask = Connect {
            route,
            qpn: Qpn::new(0x100 + self.asked),
            ..connect()
        };
        stranger.connect(self.now, &ask).unwrap();
        let mad = stranger.poll_transmit().unwrap().mad;
        let here = Route { local: B, peer };
        let taken = self.end.handle_mad(self.now, here, GSI, &mad).is_ok();
        let mut asked = None;
        while let Some(event) = self.end.poll_event() {
            if let Event::Request(id, _) = event {
                asked = Some(id);
            }
        }
        assert_eq!(taken, asked.is_some());
        asked
    }

    fn accept(&mut self, id: ConnId) {
        self.end.accept(self.now, id, &accept()).unwrap();
    }

    fn reasons(&mut self) -> Vec<(Gid, RejReason)> {
        let mut all = Vec::new();
        while let Some(out) = self.end.poll_transmit() {
            if let CmMessage::Rej { reason, .. } = message(&out.mad) {
                all.push((out.route.peer, RejReason(reason)));
            }
        }
        all
    }
}

fn stranger(n: u32) -> Gid {
    [n as u8 + 1; 16]
}

#[test]
fn an_accepted_request_waits_a_minute_whatever_its_peer_asks_for() {
    let patient = CmConfig {
        max_retries: 15,
        decision: Duration::from_secs(1000),
        ..CmConfig::new(1)
    };
    // Long between copies; or copies soon, which a MRA of the longest time answers.
    for (response_time, service_time, mras) in [(31, 22, 0), (18, 31, 1)] {
        let config = CmConfig {
            response_time,
            service_time,
            ..patient
        };
        let mut w = World::new();
        w.ends[0] = Manager::new(config, 1);
        let (_, b) = w.up_to_reply();
        let begin = w.now;
        let Event::Unreachable { id, message, .. } = w.event(1) else {
            panic!("an end")
        };
        assert_eq!((id, message), (b, "REP"));
        assert_eq!(w.now.saturating_since(begin), Duration::from_secs(60));
        assert_eq!((w.sent("MRA"), w.ends[1].half_open()), (mras, 0));
    }
}

#[test]
fn peers_that_are_silent_make_room() {
    for (of_listener, of_all) in [(PLACES, 99), (99, PLACES)] {
        let mut s = Server::new(of_listener, of_all);
        for n in 0..PLACES {
            let id = s.ask(stranger(n)).unwrap();
            s.accept(id);
        }
        s.reasons();
        // They may still answer.
        assert_eq!(s.ask(A), None);
        assert_eq!(s.reasons(), [(A, RejReason::NO_RESOURCES)]);
        s.now = s.now.saturating_add(Duration::from_secs(2));
        // As many as there are places, and no more.
        for n in 0..PLACES {
            assert!(s.ask(A).is_some());
            assert_eq!(s.reasons(), [(stranger(n), RejReason::NO_RESOURCES)]);
        }
        assert_eq!(s.ask(A), None);
        assert_eq!(s.end.half_open(), PLACES);
        assert_eq!(s.end.counters().evicted, u64::from(PLACES));
    }
}

#[test]
fn who_has_the_most_makes_room_for_others() {
    for (of_listener, of_all) in [(PLACES, 99), (99, PLACES)] {
        let mut s = Server::new(of_listener, of_all);
        let first: Vec<_> = (0..PLACES).map(|_| s.ask(stranger(0)).unwrap()).collect();
        assert_eq!(s.ask(stranger(0)), None, "it has them all");
        s.reasons();
        for _ in 0..PLACES / 2 {
            assert!(s.ask(A).is_some());
            assert_eq!(s.reasons(), [(stranger(0), RejReason::NO_RESOURCES)]);
        }
        // Each has half of them; a third has none yet.
        assert_eq!((s.ask(A), s.ask(stranger(0))), (None, None));
        assert!(s.ask(stranger(1)).is_some());
        assert_eq!(s.end.half_open(), PLACES);
        // Of the first ones, the oldest are gone.
        let known = |s: &mut Server, id| s.end.accept(s.now, id, &accept()).is_ok();
        assert!(!known(&mut s, first[0]));
        assert!(known(&mut s, first[PLACES as usize - 1]));
        // What has been decided on gives its place back.
        while let Some(at) = s.end.poll_timeout() {
            s.end.handle_timeout(at);
        }
        assert_eq!((s.end.half_open(), s.end.connections()), (0, 0));
    }
}
