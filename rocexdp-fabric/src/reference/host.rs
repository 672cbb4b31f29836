//! The reference's host: one NIC, queue pairs that send by their rate, an acknowledgement for each packet, go-back-N.
//!
//! Follows `rdma-hw.cc` (sender's and receiver's rules), `qbb-net-device.cc` (choice of the next packet, when the NIC looks
//! again) and `rdma-queue-pair.cc` (window) of the HPCC simulator, oddities included: they are part of its results. Those are
//!
//! * send times are whole nanoseconds, `now + size / rate`, and a rate change moves none that is set;
//! * the NIC remembers one time to look again. It is set only when nothing can go, to the earliest send time of any QP that has
//!   bytes left, if that is still to come: a QP that its window holds may hide the send time of another, and a time that is
//!   set is not moved forward when a QP becomes ready earlier. Every packet that arrives makes the NIC look too;
//! * the turn of the round robin is a place in the list of QPs, and keeps its number when finished ones are taken out;
//! * there is no retransmission timer: a loss is repaired by a NACK (one per gap, again after 500 us), or never.
//!
//! The rate is `rocexdp_proto`'s reaction point; the rest of the shipped transport is not here on purpose.
//!
//! Must not: know routes or queues of switches.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use rocexdp_proto::dcqcn::{ReactionPoint, RpParams};
use rocexdp_proto::time::{Rate, Timestamp, nanos};
use rocexdp_sim::net::Host;
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::PRIORITIES;
use rocexdp_sim::topology::{HostId, PortId};

use super::clock::transmission;
use super::files::Flow;
use super::packet::{ACK_LEN, Kind, RefPacket};

/// A NACK for the same gap is repeated after this.
const NACK_INTERVAL: Picos = Picos::from_micros(500);

/// What all hosts of a run share.
#[derive(Clone, Debug)]
pub struct HostParams {
    /// Reaction points; `None`: rates stay at the line's.
    pub rp: Option<RpParams>,
    /// Bytes of payload in a packet.
    pub payload: u32,
    /// Bytes from which on everything is acknowledged.
    pub ack_interval: u32,
    /// What ends at a multiple of this is acknowledged in any case; 0: nothing is.
    pub chunk: u32,
    /// The window shrinks with the rate.
    pub variable_window: bool,
    /// Send times follow the rate; else the line's.
    pub rate_bound: bool,
    /// Acknowledgements go even while data is paused.
    pub ack_high_priority: bool,
    /// Least time between two CNP flags of a QP; zero: every marked packet's acknowledgement has it.
    pub cnp_interval: Picos,
}

/// A flow with its ends in the simulator.
#[derive(Clone, Copy, Debug)]
pub struct Assigned {
    /// Its place in the case's list.
    pub number: u32,
    /// As listed.
    pub flow: Flow,
    /// Its source.
    pub source: HostId,
    /// Its destination.
    pub destination: HostId,
    /// Most bytes in flight; 0: no limit.
    pub window: u64,
}

/// A sender's queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its flow.
    pub assigned: Assigned,
    /// When the last byte was acknowledged.
    pub finished: Option<Picos>,
    /// Packets handed to the NIC, again sent ones included.
    pub sent: u64,
    /// CNP flags received.
    pub cnps: u64,
    rp: Option<ReactionPoint>,
    alpha_period: Duration,
    first_cnp: Option<Timestamp>,
    next: u64,
    acknowledged: u64,
    next_send: Picos,
}

impl Qp {
    fn left(&self) -> u64 {
        self.assigned.flow.size.saturating_sub(self.next)
    }

    fn is_finished(&self) -> bool {
        self.acknowledged >= self.assigned.flow.size
    }

    /// The rate at `now`.
    fn rate_at(&mut self, now: Picos, line: Rate) -> Rate {
        let Some(rp) = &mut self.rp else { return line };
        if self.finished.is_none() {
            rp.handle_timeout(now.timestamp());
        }
        rp.rate().unwrap_or(line)
    }

    /// `cnp_received_mlx`. Of events at one nanosecond the one that was scheduled first comes first: a CNP's acknowledgement was
    /// when it was sent to this host, `flight` ago, alpha's tick one period ago. So with alpha's period below that the CNP still
    /// counts for a tick of the same nanosecond. (The reaction point puts timers first, which holds for the longer ones.)
    fn congested(&mut self, now: Picos, flight: Picos) {
        let Some(rp) = &mut self.rp else { return };
        let now = now.timestamp();
        let first = *self.first_cnp.get_or_insert(now);
        let since = now.saturating_since(first);
        let period = self.alpha_period;
        let ticks_now = since > Duration::ZERO && nanos(since).is_multiple_of(nanos(period).max(1));
        let counted = if ticks_now && Picos::from_nanos(nanos(period)) < flight {
            now.saturating_sub(Duration::from_nanos(1))
        } else {
            now
        };
        // The line rate is known, so there is always a rate to cut from.
        let _ = rp.on_cnp(counted, 1);
    }

    /// `GetWin`: the window, by the rate where it is variable, at least 1 byte.
    fn is_window_bound(&mut self, now: Picos, line: Rate, variable: bool) -> bool {
        let window = self.assigned.window;
        if window == 0 {
            return false;
        }
        let window = if variable {
            let rate = u128::from(self.rate_at(now, line).as_bps());
            let scaled = u128::from(window) * rate / u128::from(line.as_bps().max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
        } else {
            window
        };
        self.next.saturating_sub(self.acknowledged) >= window
    }

    /// Rate cuts as of the latest input.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.rp.as_ref().map_or(0, |rp| rp.counters().cuts)
    }

    /// What it shows at `now`, which must not be before anything that happened to it.
    #[must_use]
    pub fn look(&self, now: Picos, line: Rate) -> Look {
        let mut look = Look {
            rate: line,
            target: line,
            alpha: 1.0,
            cuts: 0,
            increases: 0,
        };
        if let Some(mut rp) = self.rp.clone() {
            // The timers of one that has finished stopped then.
            rp.handle_timeout(self.finished.unwrap_or(now).timestamp());
            look.rate = rp.rate().unwrap_or(line);
            look.target = rp.target().unwrap_or(line);
            look.alpha = rp.alpha();
            look.cuts = rp.counters().cuts;
            look.increases = rp.counters().increases;
        }
        look
    }
}

/// What a sender's queue pair shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Rate.
    pub rate: Rate,
    /// Target rate.
    pub target: Rate,
    /// Alpha; 1 before the first CNP and without rate control.
    pub alpha: f64,
    /// Rate cuts so far.
    pub cuts: u64,
    /// Rate increases so far.
    pub increases: u64,
}

/// A receiver's queue pair.
#[derive(Clone, Debug, Default)]
struct Receiver {
    expected: u64,
    nack_again: Picos,
    last_nack: u64,
    /// No CNP flag before this.
    cnp_open: Picos,
}

/// A host.
pub struct RefHost {
    params: Rc<HostParams>,
    line: Rate,
    /// From an acknowledgement's start at the switch to its arrival here.
    flight: Picos,
    /// Of the flows that start here, by start; those before `started` have.
    qps: Vec<Qp>,
    started: usize,
    /// Started and, as far as the NIC has noticed, not finished.
    active: Vec<usize>,
    turn: usize,
    acks: VecDeque<RefPacket>,
    paused: [bool; PRIORITIES],
    look_again: Option<Picos>,
    /// Of all flows of the case, by number; those that don't end here stay as they are.
    places: Rc<Places>,
    receivers: Vec<Receiver>,
}

/// Where each flow's queue pairs are.
#[derive(Debug, Default)]
pub struct Places {
    /// In its source's list.
    pub sender: Vec<u32>,
    /// In its destination's list.
    pub receiver: Vec<u32>,
}

impl RefHost {
    /// A host whose link has this rate and delay, with the flows that start here, by start; `receivers` flows end here.
    #[must_use]
    pub fn new(
        params: Rc<HostParams>,
        (line, delay): (Rate, Picos),
        flows: &[Assigned],
        receivers: usize,
        places: Rc<Places>,
    ) -> Self {
        let qps = flows.iter().map(|assigned| Qp {
            assigned: *assigned,
            finished: None,
            sent: 0,
            cnps: 0,
            rp: params
                .rp
                .as_ref()
                .map(|rp| ReactionPoint::new(rp, Some(line))),
            alpha_period: params
                .rp
                .as_ref()
                .map_or(Duration::ZERO, |rp| rp.dce_tcp_rtt),
            first_cnp: None,
            next: 0,
            acknowledged: 0,
            next_send: Picos::ZERO,
        });
        Self {
            line,
            flight: delay + transmission(ACK_LEN.into(), line),
            qps: qps.collect(),
            started: 0,
            active: Vec::new(),
            turn: 0,
            acks: VecDeque::new(),
            paused: [false; PRIORITIES],
            look_again: None,
            places,
            receivers: vec![Receiver::default(); receivers],
            params,
        }
    }

    /// Its queue pairs that send, those that are still to start included, in the order of their flows.
    #[must_use]
    pub fn senders(&self) -> &[Qp] {
        &self.qps
    }

    /// Rate of its link.
    #[must_use]
    pub const fn line(&self) -> Rate {
        self.line
    }

    /// The sender of a flow that starts here.
    #[must_use]
    pub fn sender(&self, flow: u32) -> Option<&Qp> {
        let at = *self.places.sender.get(flow as usize)?;
        self.qps
            .get(at as usize)
            .filter(|qp| qp.assigned.number == flow)
    }

    /// Whether a sender has started.
    #[must_use]
    pub fn has_started(&self, flow: u32) -> bool {
        let at = self.places.sender.get(flow as usize);
        at.is_some_and(|at| (*at as usize) < self.started)
    }

    /// Bytes of a flow that ends here that have arrived in order.
    #[must_use]
    pub fn received(&self, flow: u32) -> u64 {
        self.places
            .receiver
            .get(flow as usize)
            .and_then(|at| self.receivers.get(*at as usize))
            .map_or(0, |r| r.expected)
    }

    /// `ReceiveUdp` and `ReceiverCheckSeq`.
    fn data(&mut self, now: Picos, packet: &RefPacket) {
        let Some(receiver) = self
            .places
            .receiver
            .get(packet.flow as usize)
            .and_then(|at| self.receivers.get_mut(*at as usize))
        else {
            return;
        };
        let sequence = u64::from(packet.sequence);
        let kind = if sequence == receiver.expected {
            receiver.expected += u64::from(packet.payload);
            let chunk = u64::from(self.params.chunk);
            let due = receiver.expected >= u64::from(self.params.ack_interval)
                || chunk > 0 && receiver.expected.is_multiple_of(chunk);
            due.then_some(Kind::Ack)
        } else if sequence > receiver.expected
            && (now >= receiver.nack_again || receiver.last_nack != receiver.expected)
        {
            receiver.nack_again = now + NACK_INTERVAL;
            receiver.last_nack = receiver.expected;
            Some(Kind::Nack)
        } else {
            None
        };
        let Some(kind) = kind else { return };
        let cnp = packet.ce && now >= receiver.cnp_open;
        if cnp {
            receiver.cnp_open = now + self.params.cnp_interval;
        }
        self.acks.push_back(RefPacket {
            kind,
            flow: packet.flow,
            source: packet.target,
            target: packet.source,
            destination: packet.origin,
            origin: packet.destination,
            source_port: packet.destination_port,
            destination_port: packet.source_port,
            sequence: u32::try_from(receiver.expected).unwrap_or(u32::MAX),
            payload: 0,
            priority: packet.priority,
            ce: false,
            cnp,
        });
    }

    /// `ReceiveAck`.
    fn acknowledgement(&mut self, now: Picos, packet: &RefPacket) {
        let Some(qp) = self
            .places
            .sender
            .get(packet.flow as usize)
            .and_then(|at| self.qps.get_mut(*at as usize))
        else {
            return;
        };
        if qp.finished.is_some() {
            return;
        }
        qp.acknowledged = qp.acknowledged.max(packet.sequence.into());
        if packet.kind == Kind::Nack {
            qp.next = qp.acknowledged;
        }
        if packet.cnp {
            qp.cnps += 1;
            qp.congested(now, self.flight);
        }
        if qp.is_finished() {
            qp.finished = Some(now);
        }
    }

    /// `GetNextQindex` without the acknowledgements: the place in `active` of the QP whose turn it is. Finished ones are taken
    /// out, those that were passed over.
    fn next_active(&mut self, now: Picos) -> Option<usize> {
        let count = self.active.len();
        let (line, variable) = (self.line, self.params.variable_window);
        let mut found = None;
        let mut finished = None;
        for step in 1..=count {
            let place = (step + self.turn) % count;
            let Some(qp) = self.active.get(place).and_then(|i| self.qps.get_mut(*i)) else {
                continue;
            };
            let priority = usize::from(qp.assigned.flow.priority);
            let paused = self.paused.get(priority).copied().unwrap_or(false);
            if !paused && qp.left() > 0 && !qp.is_window_bound(now, line, variable) {
                if qp.next_send > now {
                    continue;
                }
                found = Some(place);
                break;
            }
            if qp.is_finished() {
                finished = Some(finished.map_or(place, |f: usize| f.min(place)));
            }
        }
        if let Some(first) = finished {
            found = self.sweep(first, found);
        }
        found
    }

    /// Takes finished QPs out from `first` on; where `found` is then. The first goes in any case: it is finished.
    fn sweep(&mut self, first: usize, mut found: Option<usize>) -> Option<usize> {
        let mut kept = first;
        for place in first + 1..self.active.len() {
            let Some(&qp) = self.active.get(place) else {
                break;
            };
            if self.qps.get(qp).is_some_and(Qp::is_finished) {
                continue;
            }
            if found == Some(place) {
                found = Some(kept);
            }
            if let Some(slot) = self.active.get_mut(kept) {
                *slot = qp;
            }
            kept += 1;
        }
        self.active.truncate(kept);
        found
    }

    /// `GetNxtPacket` and `UpdateNextAvail`.
    fn send(&mut self, now: Picos, place: usize) -> Option<RefPacket> {
        self.turn = place;
        let qp = self.qps.get_mut(*self.active.get(place)?)?;
        let payload = qp.left().min(self.params.payload.into());
        let flow = qp.assigned.flow;
        let packet = RefPacket {
            kind: Kind::Data,
            flow: qp.assigned.number,
            source: flow.source,
            target: flow.destination,
            destination: qp.assigned.destination,
            origin: qp.assigned.source,
            source_port: flow.source_port,
            destination_port: flow.destination_port,
            sequence: u32::try_from(qp.next).unwrap_or(u32::MAX),
            payload: u32::try_from(payload).unwrap_or(u32::MAX),
            priority: flow.priority,
            ce: false,
            cnp: false,
        };
        qp.next += payload;
        qp.sent += 1;
        let rate = if self.params.rate_bound {
            qp.rate_at(now, self.line)
        } else {
            self.line
        };
        qp.next_send = now + transmission(packet.bytes().into(), rate);
        Some(packet)
    }

    /// Nothing can go: when to look again.
    fn remember(&mut self, now: Picos) {
        if self.look_again.is_some() {
            return;
        }
        let qps = self.active.iter().filter_map(|i| self.qps.get(*i));
        self.look_again = qps
            .filter(|qp| qp.left() > 0)
            .map(|qp| qp.next_send)
            .min()
            .filter(|at| *at > now);
    }
}

impl Host for RefHost {
    type Packet = RefPacket;

    fn receive(&mut self, now: Picos, _: PortId, packet: RefPacket) {
        match packet.kind {
            Kind::Data => self.data(now, &packet),
            Kind::Ack | Kind::Nack => self.acknowledgement(now, &packet),
        }
    }

    fn pause(&mut self, now: Picos, _: PortId, priority: u8, until: Picos) {
        if let Some(paused) = self.paused.get_mut(usize::from(priority)) {
            *paused = until > now;
        }
    }

    fn handle_timeout(&mut self, now: Picos) {
        if self.look_again.is_some_and(|at| at <= now) {
            self.look_again = None;
        }
        while let Some(qp) = self.qps.get_mut(self.started)
            && Picos::from_nanos(qp.assigned.flow.start) <= now
        {
            qp.next_send = now;
            self.active.push(self.started);
            self.started += 1;
        }
    }

    fn poll_transmit(&mut self, now: Picos, _: PortId) -> Option<RefPacket> {
        let blocked = !self.params.ack_high_priority && self.paused.get(3) == Some(&true);
        if !blocked && let Some(ack) = self.acks.pop_front() {
            return Some(ack);
        }
        match self.next_active(now) {
            Some(place) => self.send(now, place),
            None => {
                self.remember(now);
                None
            }
        }
    }

    fn poll_timeout(&self) -> Option<Picos> {
        let start = self
            .qps
            .get(self.started)
            .map(|qp| Picos::from_nanos(qp.assigned.flow.start));
        match (self.look_again, start) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
