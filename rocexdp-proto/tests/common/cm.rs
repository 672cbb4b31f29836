//! Two communication managers and the network between them, which loses what a test tells it to; and any MADs at one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rocexdp_common::mad::{CmMessage, DATA_LEN, Mad};
use rocexdp_proto::Transport;
use rocexdp_proto::cm::{
    Accept, CmConfig, ConnId, Connect, Event, Ignored, IpCm, Listen, MadBytes, Manager, RejReason,
    Resolve, Route, SidrAnswer, port_space,
};
use rocexdp_proto::ids::{Gid, PathMtu, Psn, Qpn, gid_from_ipv4};
use rocexdp_proto::time::Timestamp;

use super::choices::Choices;

pub const A: Gid = gid_from_ipv4([192, 0, 2, 1]);
pub const B: Gid = gid_from_ipv4([192, 0, 2, 2]);
/// What B listens to.
pub const SERVICE: u64 = IpCm::service_id(port_space::TCP, 7174);
pub const DATAGRAMS: u64 = IpCm::service_id(port_space::UDP, 7174);
pub const GSI: Qpn = Qpn::new(1);

/// A manager with short times.
pub fn manager(guid: u64) -> Manager {
    Manager::new(CmConfig::new(guid), guid)
}

pub fn listen(service_id: u64, transport: Transport) -> Listen {
    Listen {
        service_id,
        transport,
        path_mtu: PathMtu::Mtu4096,
        max_half_open: 4,
    }
}

pub fn ip(route: Route, port_space: u8) -> IpCm {
    IpCm {
        version: 0,
        ip_version: 4,
        port_space,
        port: 7174,
        src_port: 40_000,
        src: route.local,
        dst: route.peer,
    }
}

/// A connection from A to B.
pub fn connect() -> Connect {
    let route = Route { local: A, peer: B };
    Connect {
        route,
        service_id: SERVICE,
        ip: Some(ip(route, port_space::TCP)),
        transport: Transport::Rc,
        qpn: Qpn::new(0x11),
        psn: Psn::new(0x100),
        path_mtu: PathMtu::Mtu1024,
        responder_resources: 4,
        initiator_depth: 8,
        retry_count: 6,
        rnr_retry_count: 5,
        srq: false,
        traffic_class: 0,
        hop_limit: 64,
        private_data: b"hello".to_vec(),
    }
}

pub fn accept() -> Accept {
    Accept {
        qpn: Qpn::new(0x22),
        psn: Psn::new(0x200),
        responder_resources: 8,
        initiator_depth: 4,
        rnr_retry_count: 3,
        srq: true,
        private_data: b"welcome".to_vec(),
    }
}

pub fn message(mad: &MadBytes) -> CmMessage {
    let (head, data) = mad.split_first_chunk().unwrap();
    let data: &[u8; DATA_LEN] = data.try_into().unwrap();
    CmMessage::parse(Mad::parse(head).attribute, data).unwrap()
}

/// A and B.
pub struct World {
    pub ends: [Manager; 2],
    pub now: Timestamp,
    /// Every message that was sent: by whom, what.
    pub log: Vec<(usize, &'static str)>,
    /// Messages to lose: kind, and how many of them.
    pub lose: BTreeMap<&'static str, u32>,
    /// Every message arrives twice.
    pub twice: bool,
}

impl World {
    pub fn new() -> Self {
        let mut ends = [manager(1), manager(2)];
        ends[1].listen(listen(SERVICE, Transport::Rc)).unwrap();
        ends[1].listen(listen(DATAGRAMS, Transport::Ud)).unwrap();
        Self {
            ends,
            now: Timestamp::from_micros(1),
            log: Vec::new(),
            lose: BTreeMap::new(),
            twice: false,
        }
    }

    /// Until nothing is on its way. Each end's inputs may have one or two messages as answer, never more.
    pub fn settle(&mut self) {
        let mut on_way: VecDeque<(usize, Route, Box<MadBytes>)> = VecDeque::new();
        loop {
            for (from, end) in self.ends.iter_mut().enumerate() {
                while let Some(out) = end.poll_transmit() {
                    let kind = message(&out.mad).name();
                    self.log.push((from, kind));
                    if let Some(left) = self.lose.get_mut(kind).filter(|left| **left > 0) {
                        *left -= 1;
                        continue;
                    }
                    let there = Route {
                        local: out.route.peer,
                        peer: out.route.local,
                    };
                    let to = 1 - from;
                    if self.twice {
                        on_way.push_back((to, there, out.mad.clone()));
                    }
                    on_way.push_back((to, there, out.mad));
                }
            }
            let Some((to, route, mad)) = on_way.pop_front() else {
                return;
            };
            // Copies are not taken, and counted.
            let _ = self.ends[to].handle_mad(self.now, route, GSI, &mad);
        }
    }

    /// The next deadline of either end.
    pub fn pass(&mut self) -> bool {
        let next = self.ends.iter().filter_map(Manager::poll_timeout).min();
        let Some(next) = next else {
            return false;
        };
        self.now = self.now.max(next);
        for end in &mut self.ends {
            end.handle_timeout(self.now);
        }
        self.settle();
        true
    }

    /// Time passes until this end has news.
    pub fn event(&mut self, end: usize) -> Event {
        self.settle();
        for _ in 0..100 {
            if let Some(event) = self.ends[end].poll_event() {
                return event;
            }
            assert!(self.pass(), "nothing is due, and no news");
        }
        panic!("no news");
    }

    pub fn none(&mut self, end: usize) {
        assert_eq!(self.ends[end].poll_event(), None);
    }

    /// A asks, B accepts; the IDs of both.
    pub fn up_to_reply(&mut self) -> (ConnId, ConnId) {
        let now = self.now;
        let a = self.ends[0].connect(now, &connect()).unwrap();
        let b = match self.event(1) {
            Event::Request(b, _) => b,
            other => panic!("{other:?}"),
        };
        let now = self.now;
        self.ends[1].accept(now, b, &accept()).unwrap();
        match self.event(0) {
            Event::Reply(id, _) => assert_eq!(id, a),
            other => panic!("{other:?}"),
        }
        (a, b)
    }

    /// A connection of both ends.
    pub fn connected(&mut self) -> (ConnId, ConnId) {
        let (a, b) = self.up_to_reply();
        self.ends[0].ready(a, &[]).unwrap();
        assert_eq!(self.event(1), Event::Established(b));
        (a, b)
    }

    pub fn sent(&self, kind: &str) -> usize {
        self.log.iter().filter(|(_, k)| *k == kind).count()
    }
}

/// A manager that gets any MADs, right, nearly right and wrong, from several peers, while its user does any of what users do.
pub struct Target {
    manager: Manager,
    now: Timestamp,
    /// What it sent, for answers that nearly fit.
    sent: Vec<(Route, Box<MadBytes>)>,
    ids: Vec<ConnId>,
    seen: BTreeMap<&'static str, u64>,
}

impl Target {
    pub fn new() -> Self {
        let config = CmConfig {
            max_half_open: 6,
            max_sidr: 3,
            ..CmConfig::new(2)
        };
        let mut manager = Manager::new(config, 7);
        manager.listen(listen(SERVICE, Transport::Rc)).unwrap();
        manager.listen(listen(DATAGRAMS, Transport::Ud)).unwrap();
        Self {
            manager,
            now: Timestamp::from_micros(1),
            sent: Vec::new(),
            ids: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    pub fn step(&mut self, choices: &mut impl Choices) {
        match choices.below(8) {
            0..=4 => self.packet(choices),
            5 => {
                let later = choices.of(&[1, 30_000, 2_000_000, 70_000_000]);
                self.now = self.now.saturating_add(Duration::from_micros(later));
                self.manager.handle_timeout(self.now);
                assert!(self.manager.poll_timeout().is_none_or(|at| at > self.now));
            }
            _ => self.command(choices),
        }
        self.drain();
    }

    fn packet(&mut self, choices: &mut impl Choices) {
        let peer = choices.of(&[A, [1; 16]]);
        let route = Route { local: B, peer };
        let mut mad;
        if let (false, Some((_, sent))) = (choices.once_in(3), self.sent.last()) {
            // An answer to what it sent, or its copy.
            mad = **sent;
            if !choices.once_in(4) {
                // Both names change places.
                let (ours, theirs): ([u8; 4], [u8; 4]) = (
                    mad[24..28].try_into().unwrap(),
                    mad[28..32].try_into().unwrap(),
                );
                mad[24..28].copy_from_slice(&theirs);
                mad[28..32].copy_from_slice(&ours);
                if theirs == [0; 4] {
                    mad[27] = 1 + choices.below(3) as u8;
                }
            }
            mad[17] = 0x10 + choices.below(11) as u8;
            // As far as it goes: of a REP and of a DREQ the QP.
            mad[24 + 12..24 + 15].copy_from_slice(&[0, 0, 0x20 + choices.below(2) as u8]);
            mad[24 + 8..24 + 11].copy_from_slice(&[choices.of(&[0, 0x40, 0x80]), 0, 0x22]);
        } else {
            let request = Connect {
                route: Route {
                    local: peer,
                    peer: B,
                },
                ip: Some(ip(route, port_space::TCP)),
                qpn: Qpn::new(0x30 + choices.below(6) as u32),
                ..connect()
            };
            let mut asker = Manager::new(CmConfig::new(9), choices.below(12));
            if choices.once_in(4) {
                let ask = Resolve {
                    route: request.route,
                    service_id: DATAGRAMS,
                    ip: Some(ip(route, port_space::UDP)),
                    private_data: Vec::new(),
                };
                asker.resolve(self.now, &ask).unwrap();
            } else {
                asker.connect(self.now, &request).unwrap();
            }
            mad = *asker.poll_transmit().unwrap().mad;
        }
        if choices.once_in(4) {
            let at = choices.below(256) as usize;
            mad[at] = choices.below(256) as u8;
        }
        let src_qpn = if choices.once_in(50) {
            Qpn::new(5)
        } else {
            GSI
        };
        let before = self.manager.counters().sent;
        let taken = self.manager.handle_mad(self.now, route, src_qpn, &mad);
        *self
            .seen
            .entry(taken.err().map_or("taken", Ignored::name))
            .or_default() += 1;
        // A refusal, and the end of a stale connection: no more, whatever it was.
        assert!(
            self.manager.counters().sent - before <= 2,
            "{:?}",
            message(&mad)
        );
    }

    fn command(&mut self, choices: &mut impl Choices) {
        let now = self.now;
        let at = choices.below(self.ids.len().max(1) as u64) as usize;
        let id = self.ids.get(at).copied();
        match (choices.below(7), id) {
            (0, _) | (_, None) => {
                let ask = Connect {
                    route: Route { local: B, peer: A },
                    ..connect()
                };
                self.ids.push(self.manager.connect(now, &ask).unwrap());
            }
            (6, Some(id)) => self.manager.heard(id),
            // Whether there is such a connection, and where it is, is the manager's to say.
            (which, Some(id)) => {
                let _ = match which {
                    1..=2 => self.manager.accept(now, id, &accept()),
                    3 => self.manager.ready(id, &[]),
                    4 => self.manager.disconnect(now, id),
                    _ => self
                        .manager
                        .reject(now, id, RejReason::CONSUMER_DEFINED, b"no"),
                };
            }
        }
    }

    fn drain(&mut self) {
        while let Some(out) = self.manager.poll_transmit() {
            assert_eq!(out.route.local, B);
            message(&out.mad);
            self.sent.push((out.route, out.mad));
        }
        let first = self.sent.len().saturating_sub(8);
        self.sent.drain(..first);
        while let Some(event) = self.manager.poll_event() {
            let name = match event {
                Event::Request(id, _) => {
                    self.ids.push(id);
                    "request"
                }
                Event::Wanted { id, .. } => {
                    let found = SidrAnswer::Found {
                        qpn: Qpn::new(7),
                        qkey: 1,
                    };
                    if self.seen.get("wanted").is_some_and(|n| n % 2 == 0) {
                        self.manager.answer(id, found, &[]).unwrap();
                    }
                    "wanted"
                }
                Event::Reply(..) => "reply",
                Event::Established(_) => "established",
                Event::Refused { .. } => "refused",
                Event::Unreachable { .. } => "unreachable",
                Event::Disconnected { .. } => "disconnected",
                Event::Resolved { .. } | Event::NotResolved { .. } => "resolved",
            };
            *self.seen.entry(name).or_default() += 1;
        }
        while self.ids.len() > 12 {
            self.ids.remove(0);
        }
        assert!(self.manager.half_open() <= 6);
    }

    /// What happened, by name, once all timers have run out: nothing half open is left then.
    pub fn finish(mut self) -> BTreeMap<&'static str, u64> {
        for _ in 0..10_000 {
            let Some(at) = self.manager.poll_timeout() else {
                break;
            };
            self.now = at;
            self.manager.handle_timeout(at);
            self.drain();
        }
        assert_eq!(self.manager.poll_timeout(), None, "a timer for ever");
        assert_eq!(self.manager.half_open(), 0);
        self.seen
    }
}
