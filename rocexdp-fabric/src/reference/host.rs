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
//! Of events at one nanosecond the one that was planned first comes first; the network sees to that for packets, and for what the
//! host plans. The reaction point's timers are looked at late, so when each was planned is worked out (`Qp::run_timers`).
//!
//! The rate is `rocexdp_proto`'s reaction point; the rest of the shipped transport is not here on purpose.
//!
//! Must not: know routes or queues of switches.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use rocexdp_proto::dcqcn::RpParams;
use rocexdp_proto::time::Rate;
use rocexdp_sim::net::Host;
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::PRIORITIES;
use rocexdp_sim::topology::PortId;

use super::clock::transmission;
use super::packet::{ACK_LEN, Kind, RefPacket};
pub use super::qp::{Assigned, Look, Qp};

/// A flow's start is due ([`rocexdp_sim::net::Network::plan`]): each flow's once, in the order of the list.
pub const START: u8 = 0;
/// It starts: last of all that happens then, since the reference's application plans it so, twice over.
const STARTED: u8 = 1;
/// The NIC looks again.
const LOOK: u8 = 2;
/// Bytes of a pause frame.
const PAUSE_LEN: u64 = 43;
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

/// A receiver's queue pair.
#[derive(Clone, Debug, Default)]
struct Receiver {
    expected: u64,
    /// What had come before it was made anew.
    before: u64,
    nack_again: Picos,
    last_nack: u64,
    /// No CNP flag before this.
    cnp_open: Picos,
    /// It was made anew for what came after the flow's end.
    again: bool,
}

/// A host.
pub struct RefHost {
    params: Rc<HostParams>,
    line: Rate,
    /// Of its link.
    delay: Picos,
    /// Of the flows that start here, by start; those before `started` have.
    qps: Vec<Qp>,
    started: usize,
    /// Started and, as far as the NIC has noticed, not finished.
    active: Vec<usize>,
    turn: usize,
    acks: VecDeque<RefPacket>,
    paused: [bool; PRIORITIES],
    /// Pauses received, how long they held, and since when those do that hold.
    pauses: (u64, Picos, [Picos; PRIORITIES]),
    /// When the NIC looks again.
    look_again: Option<Picos>,
    /// When that was planned.
    look_planned: Picos,
    /// What the network is still to be told.
    plan: Option<(Picos, u8)>,
    /// The latest input makes the NIC look.
    asks: bool,
    /// When the latest input was, and when it was planned.
    cause: (Picos, Picos),
    /// When the latest packet was begun: then the NIC's being free was planned.
    began: Picos,
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
    /// Whose sender has finished: the reference then forgets the receiver (`qp_finish` of `third.cc`).
    pub finished: RefCell<BTreeSet<u32>>,
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
        let qps = flows
            .iter()
            .map(|assigned| Qp::new(*assigned, params.rp.as_ref(), line));
        Self {
            line,
            delay,
            qps: qps.collect(),
            started: 0,
            active: Vec::new(),
            turn: 0,
            acks: VecDeque::new(),
            paused: [false; PRIORITIES],
            pauses: (0, Picos::ZERO, [Picos::ZERO; PRIORITIES]),
            look_again: None,
            look_planned: Picos::ZERO,
            plan: None,
            asks: false,
            cause: (Picos::ZERO, Picos::ZERO),
            began: Picos::ZERO,
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

    /// Pauses received, and how long those held that have ended (as the published sums count them), over all priorities.
    #[must_use]
    pub fn paused(&self) -> (u64, Picos) {
        (self.pauses.0, self.pauses.1)
    }

    /// Bytes of a flow that ends here that have arrived in order.
    #[must_use]
    pub fn received(&self, flow: u32) -> u64 {
        self.places
            .receiver
            .get(flow as usize)
            .and_then(|at| self.receivers.get(*at as usize))
            .map_or(0, |r| r.expected.max(r.before))
    }

    /// What takes so many bytes on this host's link was planned, when it arrives, as it was begun at the other end.
    fn flight(&self, bytes: u64) -> Picos {
        self.delay + transmission(bytes, self.line)
    }

    /// `ReceiveUdp` and `ReceiverCheckSeq`. Whether there is something to send.
    fn data(&mut self, now: Picos, packet: &RefPacket) -> bool {
        let Some(receiver) = self
            .places
            .receiver
            .get(packet.flow as usize)
            .and_then(|at| self.receivers.get_mut(*at as usize))
        else {
            return false;
        };
        if !receiver.again && self.places.finished.borrow().contains(&packet.flow) {
            *receiver = Receiver {
                before: receiver.expected,
                again: true,
                ..Receiver::default()
            };
        }
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
        let Some(kind) = kind else { return false };
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
        true
    }

    /// `ReceiveAck`. Whether the NIC looks: not for a flow that is over.
    fn acknowledgement(&mut self, now: Picos, packet: &RefPacket) -> bool {
        let flight = self.flight(ACK_LEN.into());
        let Some(qp) = self
            .places
            .sender
            .get(packet.flow as usize)
            .and_then(|at| self.qps.get_mut(*at as usize))
        else {
            return false;
        };
        if qp.finished.is_some() {
            return false;
        }
        qp.acknowledged = qp.acknowledged.max(packet.sequence.into());
        if packet.kind == Kind::Nack {
            qp.next = qp.acknowledged;
        }
        if packet.cnp {
            qp.cnps += 1;
            qp.congested(now, flight);
        }
        if qp.is_finished() {
            qp.finished = Some(now);
            self.places.finished.borrow_mut().insert(packet.flow);
        }
        true
    }

    /// `GetNextQindex` without the acknowledgements: the place in `active` of the QP whose turn it is. Finished ones are taken
    /// out, those that were passed over.
    fn next_active(&mut self, now: Picos, planned: Picos) -> Option<usize> {
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
            if !paused && qp.left() > 0 && !qp.is_window_bound((now, planned), line, variable) {
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
    fn send(&mut self, now: Picos, planned: Picos, place: usize) -> Option<RefPacket> {
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
            qp.rate_at(now, planned, self.line)
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
        self.look_planned = now;
        self.plan = self.look_again.map(|at| (at, LOOK));
    }
}

impl Host for RefHost {
    type Packet = RefPacket;

    fn receive(&mut self, now: Picos, _: PortId, packet: RefPacket) {
        self.cause = (now, now - self.flight(packet.bytes().into()));
        self.asks = match packet.kind {
            Kind::Data => self.data(now, &packet),
            Kind::Ack | Kind::Nack => self.acknowledgement(now, &packet),
        };
    }

    fn pause(&mut self, now: Picos, _: PortId, priority: u8, until: Picos) {
        self.cause = (now, now - self.flight(PAUSE_LEN));
        // `Receive`: only a resume makes it look.
        self.asks = until <= now;
        let at = usize::from(priority);
        let (count, time, since) = &mut self.pauses;
        if let (Some(paused), Some(since)) = (self.paused.get_mut(at), since.get_mut(at)) {
            match (*paused, until > now) {
                (false, true) => *since = now,
                (true, false) => *time = *time + (now - *since),
                _ => {}
            }
            *count += u64::from(until > now);
            *paused = until > now;
        }
    }

    fn handle_timeout(&mut self, _: Picos) {}

    fn poll_transmit(&mut self, now: Picos, _: PortId) -> Option<RefPacket> {
        let blocked = !self.params.ack_high_priority && self.paused.get(3) == Some(&true);
        if !blocked && let Some(ack) = self.acks.pop_front() {
            self.began = now;
            return Some(ack);
        }
        let planned = match self.cause {
            (at, planned) if at == now => planned,
            _ => self.began,
        };
        match self.next_active(now, planned) {
            Some(place) => {
                self.began = now;
                self.send(now, planned, place)
            }
            None => {
                self.remember(now);
                None
            }
        }
    }

    fn poll_timeout(&self) -> Option<Picos> {
        None
    }

    fn asks(&self, _: PortId) -> bool {
        self.asks
    }

    fn poll_planned(&mut self) -> Option<(Picos, u8)> {
        self.plan.take()
    }

    fn handle_planned(&mut self, now: Picos, what: u8) {
        self.asks = true;
        self.cause = (now, now);
        match what {
            START => {
                self.asks = false;
                self.plan = Some((now, STARTED));
            }
            STARTED => {
                if let Some(qp) = self.qps.get_mut(self.started) {
                    qp.next_send = now;
                    self.active.push(self.started);
                    self.started += 1;
                }
            }
            _ => {
                self.look_again = None;
                self.cause = (now, self.look_planned);
            }
        }
    }
}
