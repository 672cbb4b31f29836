//! The network itself: hosts, switches and directions of links, and the loop that takes one event after the other.
//!
//! A transmitter sends a pause frame first, then asks its host or switch for a packet; it is asked again when it is free. A switch
//! without anything to send is not asked, so a packet through an idle switch costs one event, and through a busy one two.
//!
//! Must not: decide what hosts and switches decide.

use super::alarm::Alarm;
use super::deadlock::Watch;
use super::link::{Direction, Item, PauseFrame, Sent};
use super::queue::EventQueue;
use super::routes::{self, Routes};
use super::tap::Taps;
use super::{Ended, Host, Losses, NetworkError, Options, Packet};
use crate::picos::Picos;
use crate::switch::{Draws, Output, PRIORITIES, Switch, quanta_time};
use crate::topology::{HostId, LinkId, Node, PortId, SwitchId, Topology};

/// What happens: kind and number, in one word.
pub(super) mod what {
    const KIND: u32 = 29;
    const PLAN: u32 = 2;
    pub(super) const ARRIVAL: u32 = 0;
    pub(super) const FREE: u32 = 1;
    pub(super) const HOST: u32 = 2;
    pub(super) const SWITCH: u32 = 3;
    pub(super) const LINK: u32 = 4;
    pub(super) const RELEASE: u32 = 5;
    pub(in super::super) const WATCH: u32 = 6;
    pub(super) const PLANNED: u32 = 7;

    pub(in super::super) const fn of(kind: u32, n: usize) -> u32 {
        kind << KIND | n as u32
    }

    /// What a host has planned: which host, and what.
    pub(super) const fn planned(host: usize, what: u8) -> u32 {
        of(PLANNED, host << PLAN | (what & 3) as usize)
    }

    pub(super) const fn plan(n: usize) -> (usize, u8) {
        (n >> PLAN, n as u8 & 3)
    }

    pub(super) const fn parts(what: u32) -> (u32, usize) {
        (what >> KIND, (what & ((1 << KIND) - 1)) as usize)
    }
}

pub(super) struct HostSide {
    /// Directions out of its NICs.
    nics: Vec<u32>,
    alarm: Alarm,
    pub(super) received: u64,
}

pub(super) struct SwitchSide<P> {
    pub(super) switch: Switch<P>,
    /// Directions out of its ports.
    pub(super) ports: Vec<u32>,
    alarm: Alarm,
    seed: u32,
    pub(super) no_route: u64,
}

/// A network in simulated time. See the module's head.
pub struct Network<H: Host> {
    pub(super) topology: Topology,
    pub(super) now: Picos,
    number: u64,
    pub(super) queue: EventQueue,
    routes: Routes,
    pub(super) hosts: Vec<H>,
    pub(super) host_sides: Vec<HostSide>,
    pub(super) switches: Vec<SwitchSide<H::Packet>>,
    /// Two per link: from its first end, and from its second.
    pub(super) directions: Vec<Direction<H::Packet>>,
    /// What sends into each direction, and its port there.
    pub(super) from: Vec<(Node, PortId)>,
    /// Hosts that somebody outside has had in hands.
    touched: Vec<u32>,
    pub(super) taps: Option<Taps>,
    pub(super) watch: Option<Watch>,
    pub(super) events: u64,
    /// [`Options::reference`].
    reference: bool,
    losses: Option<Box<dyn Losses>>,
}

impl<H: Host> Network<H> {
    /// Builds it, at time 0.
    ///
    /// # Errors
    /// What is wrong with the topology or a switch's configuration, by name.
    pub fn new(topology: Topology, hosts: Vec<H>, options: &Options) -> Result<Self, NetworkError> {
        topology.check()?;
        if hosts.len() != topology.hosts.len() {
            return Err(NetworkError::Hosts {
                named: topology.hosts.len(),
                given: hosts.len(),
            });
        }
        let seeds = options.ecmp_seeds.as_deref();
        if let Some(seeds) = seeds
            && seeds.len() != topology.switches.len()
        {
            return Err(NetworkError::Seeds {
                switches: topology.switches.len(),
                given: seeds.len(),
            });
        }
        let mut switches = Vec::with_capacity(topology.switches.len());
        for (i, spec) in topology.switches.iter().enumerate() {
            let seed = options.seed ^ (i as u64 + 1) << 32;
            let mut switch =
                Switch::new(&spec.config, seed).map_err(|error| NetworkError::Switch {
                    switch: spec.name.clone(),
                    error,
                })?;
            if options.reference {
                switch.follow_reference();
            }
            switches.push(SwitchSide {
                switch,
                ports: Vec::new(),
                alarm: Alarm::default(),
                seed: match seeds {
                    Some(seeds) => seeds[i],
                    None => {
                        routes::mix(i as u32, options.seed as u32 ^ (options.seed >> 32) as u32)
                    }
                },
                no_route: 0,
            });
        }
        let mut host_sides: Vec<HostSide> = hosts
            .iter()
            .map(|_| HostSide {
                nics: Vec::new(),
                alarm: Alarm::default(),
                received: 0,
            })
            .collect();
        let mut directions = Vec::with_capacity(2 * topology.links.len());
        let mut from = Vec::with_capacity(2 * topology.links.len());
        let mut bits_per_second = 0u128;
        for (link, ports) in topology.links.iter().zip(topology.ports()) {
            bits_per_second += 2 * u128::from(link.rate.as_bps());
            for (end, port) in ports.into_iter().enumerate() {
                let d = directions.len() as u32;
                let mut faults = link.faults[end];
                faults.seed = faults.seed.wrapping_add(options.seed);
                directions.push(Direction::new(
                    link.rate,
                    link.delay,
                    link.overhead,
                    faults,
                    d,
                    options.reference,
                ));
                from.push((link.ends[end], port));
                match link.ends[end] {
                    Node::Host(h) => host_sides[h.0 as usize].nics.push(d),
                    Node::Switch(s) => switches[s.0 as usize].ports.push(d),
                }
            }
        }
        // As if all links were full of packets of 1000 B.
        let gap = 8_000u128 * 1_000_000_000_000 / bits_per_second.max(1);
        let mut network = Self {
            now: Picos::ZERO,
            number: 0,
            queue: EventQueue::new(Picos(u64::try_from(gap).unwrap_or(u64::MAX))),
            routes: Routes::new(&topology, options.reference),
            touched: (0..hosts.len() as u32).collect(),
            hosts,
            host_sides,
            switches,
            directions,
            from,
            topology,
            taps: None,
            watch: options.deadlock.map(Watch::new),
            events: 0,
            reference: options.reference,
            losses: None,
        };
        for link in 0..network.topology.links.len() {
            for i in 0..network.topology.links[link].down.len() {
                let (down, up) = network.topology.links[link].down[i];
                network.schedule(down, what::of(what::LINK, link));
                network.schedule(up, what::of(what::LINK, link));
            }
        }
        Ok(network)
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Picos {
        self.now
    }

    /// What it was built from.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A host.
    ///
    /// # Panics
    /// If it is not there; so do the others.
    #[must_use]
    pub fn host(&self, host: HostId) -> &H {
        &self.hosts[host.0 as usize]
    }

    /// A host, to give it something to do; it is asked for packets and timers when the network goes on.
    pub fn host_mut(&mut self, host: HostId) -> &mut H {
        self.touched.push(host.0);
        &mut self.hosts[host.0 as usize]
    }

    /// Two hosts, to join them.
    pub fn hosts_mut(&mut self, hosts: [HostId; 2]) -> [&mut H; 2] {
        self.touched.extend(hosts.map(|h| h.0));
        self.hosts
            .get_disjoint_mut(hosts.map(|h| h.0 as usize))
            .unwrap_or_else(|_| panic!("hosts {hosts:?} are not two hosts of the network"))
    }

    /// All hosts, in order.
    #[must_use]
    pub fn hosts(&self) -> &[H] {
        &self.hosts
    }

    /// A switch.
    #[must_use]
    pub fn switch(&self, switch: SwitchId) -> &Switch<H::Packet> {
        &self.switches[switch.0 as usize].switch
    }

    /// Has a switch draw from here instead of from the seed.
    pub fn set_draws(&mut self, switch: SwitchId, draws: Box<dyn Draws>) {
        self.switches[switch.0 as usize].switch.set_draws(draws);
    }

    /// What arrives is asked about here, and lost if it is said so.
    pub fn set_losses(&mut self, losses: Box<dyn Losses>) {
        self.losses = Some(losses);
    }

    /// Plans something for a host: [`Host::handle_planned`] is told, after what was planned for that time before. `what` is below 4.
    pub fn plan(&mut self, host: HostId, at: Picos, what: u8) {
        self.schedule(at, what::planned(host.0 as usize, what));
    }

    /// Packets that a switch dropped for want of a way.
    #[must_use]
    pub fn no_route(&self, switch: SwitchId) -> u64 {
        self.switches[switch.0 as usize].no_route
    }

    /// The link at a port of a switch or host, and which of its ends that is.
    #[must_use]
    pub fn link_at(&self, node: Node, port: PortId) -> Option<(LinkId, usize)> {
        let ports = match node {
            Node::Host(h) => &self.host_sides.get(h.0 as usize)?.nics,
            Node::Switch(s) => &self.switches.get(s.0 as usize)?.ports,
        };
        let d = *ports.get(usize::from(port.0))?;
        Some((LinkId(d / 2), d as usize % 2))
    }

    /// When the next event is; what hosts were given in the meantime counts once [`Network::run_until`] has seen it.
    pub fn next_event(&mut self) -> Option<Picos> {
        self.queue.peek()
    }

    /// A host's NIC sends a pause frame, ahead of its packets: the peer is silent on `priority` for these quanta; 0 resumes.
    pub fn send_pause(&mut self, host: HostId, nic: PortId, priority: u8, quanta: u16) {
        let nics = self.host_sides.get(host.0 as usize).map(|side| &side.nics);
        if let Some(&d) = nics.and_then(|nics| nics.get(usize::from(nic.0))) {
            self.directions[d as usize].ask(priority & 7, Some(quanta));
            self.kick(d as usize);
        }
    }

    /// Goes on until `until`, all that happens then included.
    pub fn run_until(&mut self, until: Picos) -> Ended {
        while let Some(host) = self.touched.pop() {
            self.serve_host(host as usize);
        }
        self.watch_on();
        while let Some((at, number, what)) = self.queue.pop(until) {
            self.now = at;
            self.events += 1;
            let (kind, n) = what::parts(what);
            match kind {
                what::ARRIVAL => self.arrival(n, number),
                what::FREE => {
                    self.directions[n].awaited = false;
                    self.transmit(n);
                    self.outputs_of(n);
                }
                what::HOST => {
                    self.host_sides[n].alarm.rang();
                    self.hosts[n].handle_timeout(at);
                    self.serve_host(n);
                }
                what::SWITCH => {
                    self.switches[n].alarm.rang();
                    self.switches[n].switch.handle_timeout(at);
                    self.outputs(n);
                }
                what::LINK => self.turn_link(n),
                what::PLANNED => {
                    let (host, what) = what::plan(n);
                    self.hosts[host].handle_planned(at, what);
                    self.serve_host(host);
                }
                what::WATCH => {
                    if self.look() {
                        return Ended::Deadlock;
                    }
                }
                _ => {
                    let sent = self.directions[n].release(at, &mut self.number);
                    self.sent(n, &sent);
                }
            }
        }
        self.now = self.now.max(until);
        if self.queue.len() == 0 {
            Ended::Idle
        } else {
            Ended::Time
        }
    }

    pub(super) fn schedule(&mut self, at: Picos, what: u32) {
        self.number += 1;
        self.queue.push((at, self.number, what));
    }

    /// What follows from something sent into direction `d`.
    #[inline]
    fn sent(&mut self, d: usize, sent: &Sent) {
        if let Some((at, number)) = sent.arrival {
            self.queue.push((at, number, what::of(what::ARRIVAL, d)));
        }
        if let Some(at) = sent.release {
            self.schedule(at, what::of(what::RELEASE, d));
        }
    }

    /// The transmitter of a direction, which is free, sends what comes next.
    #[inline]
    fn transmit(&mut self, d: usize) {
        let (node, port) = self.from[d];
        let (item, again) = if self.directions[d].pause.classes != 0 {
            (Item::Pause(self.directions[d].next_pause()), true)
        } else {
            match node {
                Node::Host(h) => {
                    let host = &mut self.hosts[h.0 as usize];
                    let Some(packet) = host.poll_transmit(self.now, port) else {
                        self.plans(h.0 as usize);
                        return;
                    };
                    (Item::Packet(packet), host.has_packet(port))
                }
                Node::Switch(s) => {
                    let switch = &mut self.switches[s.0 as usize].switch;
                    let Some(packet) = switch.dequeue(self.now, port) else {
                        return;
                    };
                    let again = switch.has_queued(port);
                    if self.reference {
                        self.outputs(s.0 as usize);
                    }
                    (Item::Packet(packet), again)
                }
            }
        };
        if self.directions[d].tapped {
            self.show(d, &item);
        }
        if self.reference {
            self.number += 1;
            let (number, direction) = (self.number, &mut self.directions[d]);
            direction.awaited = true;
            let sent = direction.send(self.now, item, &mut self.number);
            let free = (direction.free_at, number, what::of(what::FREE, d));
            self.queue.push(free);
            self.sent(d, &sent);
            return;
        }
        let direction = &mut self.directions[d];
        let sent = direction.send(self.now, item, &mut self.number);
        if again {
            direction.awaited = true;
            let at = direction.free_at;
            self.schedule(at, what::of(what::FREE, d));
        }
        self.sent(d, &sent);
    }

    /// A direction has something to send: now, if its transmitter is free, or when it will be.
    #[inline]
    pub(super) fn kick(&mut self, d: usize) {
        let direction = &mut self.directions[d];
        if direction.awaited {
            return;
        }
        if direction.free_at <= self.now {
            self.transmit(d);
        } else {
            direction.awaited = true;
            let at = direction.free_at;
            self.schedule(at, what::of(what::FREE, d));
        }
    }

    /// Something has arrived by direction `d`.
    fn arrival(&mut self, d: usize, number: u64) {
        let flights = &mut self.directions[d].flights;
        // What was under way when the link went down has left its event behind.
        if flights.front().is_none_or(|f| f.number != number) {
            return;
        }
        let Some(flight) = flights.pop_front() else {
            return;
        };
        if let Some(next) = flights.front() {
            let event = (next.at, next.number, what::of(what::ARRIVAL, d));
            self.queue.push(event);
        }
        let (node, port) = self.from[d ^ 1];
        if let Some(losses) = &mut self.losses
            && losses.lost(LinkId(d as u32 / 2))
        {
            self.directions[d].lose_as_fault(&flight.item);
            return;
        }
        match flight.item {
            Item::Packet(packet) => {
                self.directions[d].counters.delivered += 1;
                match node {
                    Node::Host(h) => {
                        let h = h.0 as usize;
                        self.host_sides[h].received += 1;
                        self.hosts[h].receive(self.now, port, packet);
                        self.serve_host(h);
                    }
                    Node::Switch(s) => self.through(s.0 as usize, port, packet),
                }
            }
            Item::Pause(frame) => self.paused(d, node, port, &frame),
        }
    }

    /// A packet has arrived at a switch.
    #[inline]
    fn through(&mut self, s: usize, from: PortId, packet: H::Packet) {
        let side = &mut self.switches[s];
        let ways = self
            .routes
            .ways(s, packet.destination().0, packet.destination_nic());
        let Some(to) = Routes::choose(ways, || packet.ecmp_hash(side.seed)) else {
            side.no_route += 1;
            return;
        };
        let d = side.ports[usize::from(to.0)] as usize;
        // Refusals are counted in the switch.
        if side.switch.receive(self.now, from, to, packet).is_ok() {
            if self.reference {
                self.outputs(s);
            }
            self.kick(d);
        }
        self.outputs(s);
    }

    fn paused(&mut self, d: usize, node: Node, port: PortId, frame: &PauseFrame) {
        let rate = self.directions[d].rate();
        for priority in 0..PRIORITIES as u8 {
            if frame.classes & 1 << priority == 0 {
                continue;
            }
            let until = match frame.quanta[usize::from(priority)] {
                _ if frame.endless & 1 << priority != 0 => Picos::MAX,
                quanta => self.now + quanta_time(quanta, rate),
            };
            match node {
                Node::Host(h) => {
                    self.hosts[h.0 as usize].pause(self.now, port, priority, until);
                }
                Node::Switch(s) => {
                    let switch = &mut self.switches[s.0 as usize].switch;
                    switch.handle_pause(self.now, port, priority, until);
                }
            }
        }
        match node {
            Node::Host(h) => self.serve_host(h.0 as usize),
            // Nothing of the reference's switches looks at a pause.
            Node::Switch(_) if self.reference && frame.endless != 0 => {}
            Node::Switch(s) => {
                self.kick(d ^ 1);
                self.outputs(s.0 as usize);
            }
        }
    }

    /// Asks a host for packets and for when to come again.
    #[inline]
    pub(super) fn serve_host(&mut self, h: usize) {
        self.plans(h);
        for nic in 0..self.host_sides[h].nics.len() {
            if self.hosts[h].asks(PortId(nic as u16)) {
                let d = self.host_sides[h].nics[nic] as usize;
                self.kick(d);
            }
        }
        self.set_host_alarm(h);
    }

    /// What a host has planned takes its place among the events.
    #[inline]
    fn plans(&mut self, h: usize) {
        while let Some((at, what)) = self.hosts[h].poll_planned() {
            self.schedule(at.max(self.now), what::planned(h, what));
        }
    }

    #[inline]
    fn set_host_alarm(&mut self, h: usize) {
        let at = self.hosts[h].poll_timeout();
        if let Some(at) = self.host_sides[h].alarm.set(self.now, at) {
            self.schedule(at, what::of(what::HOST, h));
        }
    }

    /// What the sender of a direction wants after its transmitter was served.
    #[inline]
    fn outputs_of(&mut self, d: usize) {
        match self.from[d].0 {
            Node::Host(h) => self.set_host_alarm(h.0 as usize),
            Node::Switch(s) => self.outputs(s.0 as usize),
        }
    }

    /// Does what a switch wants.
    #[inline]
    pub(super) fn outputs(&mut self, s: usize) {
        while let Some(output) = self.switches[s].switch.poll_output() {
            let (port, priority, quanta) = match output {
                Output::Pause {
                    port,
                    priority,
                    quanta,
                } => (port, priority, quanta),
                Output::Resume { port, priority } => (port, priority, Some(0)),
                Output::Ready(port) => {
                    self.kick(self.switches[s].ports[usize::from(port.0)] as usize);
                    continue;
                }
            };
            let d = self.switches[s].ports[usize::from(port.0)] as usize;
            self.directions[d].ask(priority, quanta);
            self.kick(d);
        }
        let side = &mut self.switches[s];
        if let Some(at) = side.alarm.set(self.now, side.switch.poll_timeout()) {
            self.schedule(at, what::of(what::SWITCH, s));
        }
    }
}
