//! The switch itself: what happens to a packet from its arrival to its departure.
//!
//! Must not: decide what its parts decide ([`super::buffer`], [`super::scheduler`]).

use std::collections::VecDeque;

use rocexdp_proto::rng::Rng;
use rocexdp_proto::time::Rate;

use super::buffer::Buffer;
use super::config::{ConfigError, EcnConfig, MarkOn, SwitchConfig, quanta_time};
use super::counters::{BufferUse, DropReason, QueueCounters};
use super::queue::{Fifo, Held, Store};
use super::scheduler::Turn;
use super::timers::{Timer, Timers};
use super::{PRIORITIES, Queued};
use crate::picos::Picos;
use crate::topology::PortId;

/// What a switch wants its caller to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a pause frame by a port, before the packets that wait there.
    Pause {
        /// The port.
        port: PortId,
        /// The priority that it is about.
        priority: u8,
        /// Quanta, [`quanta_time`]; `None`: until resumed.
        quanta: Option<u16>,
    },
    /// Send a pause frame of 0 quanta by a port, before the packets that wait there: the peer may go on.
    Resume {
        /// The port.
        port: PortId,
        /// The priority that it is about.
        priority: u8,
    },
    /// A pause has run out: if the port's transmitter is free, [`Switch::dequeue`] may have something.
    Ready(PortId),
}

/// A packet that was not admitted.
#[derive(Clone, Debug)]
pub struct Dropped<P> {
    /// Why.
    pub reason: DropReason,
    /// The packet.
    pub packet: P,
}

/// The state of one priority of a port, both ways.
#[derive(Clone, Debug)]
struct Queue {
    fifo: Fifo,
    ecn: Option<EcnConfig>,
    /// Until when the peer asked for silence; [`Picos::ZERO`]: not paused.
    paused_until: Picos,
    paused_since: Picos,
    /// Since when the peer is told to be silent.
    pausing_since: Option<Picos>,
    /// When it must be told again.
    refresh_at: Picos,
    /// When `queue_integral` was brought up to date.
    counted_at: Picos,
    counters: QueueCounters,
}

#[derive(Clone, Debug)]
struct Port {
    queues: [Queue; PRIORITIES],
    turn: Turn,
    rate: Rate,
    /// Bit per priority that has packets.
    occupied: u8,
    /// Bit per priority whose `paused_until` is not zero.
    paused: u8,
}

/// Where a switch's chance comes from.
pub trait Draws: Send {
    /// Uniform over 0 to 1, 1 excluded: one per packet that a queue between its thresholds may mark.
    fn draw(&mut self) -> f64;
    /// A pause or resume frame is sent. (The reference simulators draw its identification from the same source.)
    fn pause_frame(&mut self) {}
}

impl Draws for Rng {
    fn draw(&mut self) -> f64 {
        // 53 random bits: every f64 of [0, 1) that is a multiple of 2^-53.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A shared-buffer switch.
pub struct Switch<P> {
    ports: Vec<Port>,
    store: Store<P>,
    buffer: Buffer,
    mark_on: MarkOn,
    /// Quanta of a pause; `None`: until resumed.
    quanta: Option<u16>,
    draws: Box<dyn Draws>,
    timers: Timers,
    outputs: VecDeque<Output>,
}

impl Queue {
    /// Brings the integral of the queue's length up to `now`.
    fn count(&mut self, now: Picos) {
        let span = now - self.counted_at;
        self.counters.queue_integral += u128::from(self.counters.queue) * u128::from(span.0);
        self.counted_at = now;
    }

    /// The peer's silence is over, at `at`.
    fn end_pause(&mut self, at: Picos) {
        self.counters.paused = self.counters.paused + (at - self.paused_since);
        self.paused_until = Picos::ZERO;
    }
}

impl Port {
    /// Ends the pauses that have run out.
    fn expire(&mut self, now: Picos) {
        for (priority, queue) in self.queues.iter_mut().enumerate() {
            if self.paused & 1 << priority != 0 && queue.paused_until <= now {
                queue.end_pause(queue.paused_until);
                self.paused &= !(1 << priority);
            }
        }
    }
}

impl<P: Queued> Switch<P> {
    /// A switch whose marks are drawn from `seed`.
    ///
    /// # Errors
    ///
    /// [`SwitchConfig::check`]'s.
    pub fn new(config: &SwitchConfig, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let ports = config.ports.iter().map(|port| Port {
            queues: port.ecn.map(|ecn| Queue {
                fifo: Fifo::EMPTY,
                ecn,
                paused_until: Picos::ZERO,
                paused_since: Picos::ZERO,
                pausing_since: None,
                refresh_at: Picos::MAX,
                counted_at: Picos::ZERO,
                counters: QueueCounters::default(),
            }),
            turn: Turn::new(&port.scheduler),
            rate: port.rate,
            occupied: 0,
            paused: 0,
        });
        Ok(Self {
            ports: ports.collect(),
            store: Store::new(),
            buffer: Buffer::new(config),
            mark_on: config.mark_on,
            quanta: config.pfc.as_ref().and_then(|pfc| pfc.quanta),
            draws: Box::new(Rng::new(seed)),
            timers: Timers::default(),
            outputs: VecDeque::new(),
        })
    }

    /// Draws from here instead of from its seed.
    pub fn set_draws(&mut self, draws: Box<dyn Draws>) {
        self.draws = draws;
    }

    /// From now on it is as the reference simulators' (`switch-mmu.cc`, `switch-node.cc`): a lossless packet that fits neither the
    /// headroom nor the threshold is refused even where the reserve has room, the shared part is bounded by thresholds alone, and
    /// a packet that is refused makes nobody pause.
    pub fn follow_reference(&mut self) {
        self.buffer.follow_reference();
    }

    /// A packet has arrived by `from` and leaves by `to`. Ports are those of the configuration; a priority above 7 counts as 7.
    ///
    /// # Errors
    ///
    /// Not admitted: the packet, and why.
    pub fn receive(
        &mut self,
        now: Picos,
        from: PortId,
        to: PortId,
        packet: P,
    ) -> Result<(), Dropped<P>> {
        let priority = packet.priority().min(PRIORITIES as u8 - 1);
        let (at, len) = (usize::from(priority), packet.wire_len());
        let arrived = &mut self.ports[usize::from(from.0)].queues[at].counters;
        arrived.rx_packets += 1;
        arrived.rx_bytes += u64::from(len);
        let queued = self.ports[usize::from(to.0)].queues[at].counters.queue;
        if let Err(reason) = self
            .buffer
            .admit([from.0, to.0], priority, len.into(), queued)
        {
            let port = if reason == DropReason::HeadroomFull {
                from
            } else {
                to
            };
            let counters = &mut self.ports[usize::from(port.0)].queues[at].counters;
            match reason {
                DropReason::QueueFull => counters.dropped_queue_full += 1,
                DropReason::BufferFull => counters.dropped_buffer_full += 1,
                DropReason::HeadroomFull => counters.dropped_headroom_full += 1,
            }
            // A peer that can't be heard out must stop, whatever it still holds here.
            if !self.buffer.follows_reference() {
                self.check_pause(now, from, priority);
            }
            return Err(Dropped { reason, packet });
        }
        self.enqueue(now, [from, to], priority, packet);
        self.check_pause(now, from, priority);
        Ok(())
    }

    fn enqueue(&mut self, now: Picos, [from, to]: [PortId; 2], priority: u8, mut packet: P) {
        let len = packet.wire_len();
        let port = &mut self.ports[usize::from(to.0)];
        port.occupied |= 1 << priority;
        let queue = &mut port.queues[usize::from(priority)];
        if self.mark_on == MarkOn::Enqueue {
            mark(self.draws.as_mut(), queue, &mut packet);
        }
        queue.count(now);
        let counters = &mut queue.counters;
        counters.queue += u64::from(len);
        counters.queue_packets += 1;
        counters.queue_max = counters.queue_max.max(counters.queue);
        self.store.push(
            &mut queue.fifo,
            Held {
                packet,
                len,
                in_port: from.0,
            },
        );
    }

    /// Takes the next packet of a port whose transmitter is free; `None`: nothing waits, or what waits is paused.
    pub fn dequeue(&mut self, now: Picos, by: PortId) -> Option<P> {
        let port = &mut self.ports[usize::from(by.0)];
        if port.occupied == 0 {
            return None;
        }
        if port.paused != 0 {
            port.expire(now);
        }
        let (queues, store) = (&port.queues, &self.store);
        let first_len = |priority: u8| store.first_len(&queues[usize::from(priority)].fifo);
        let priority = port.turn.next(port.occupied & !port.paused, first_len)?;
        let queue = &mut port.queues[usize::from(priority)];
        let Held {
            mut packet,
            len,
            in_port,
        } = self.store.pop(&mut queue.fifo)?;
        if queue.fifo.is_empty() {
            port.occupied &= !(1 << priority);
            port.turn.emptied(priority);
        }
        queue.count(now);
        queue.counters.queue -= u64::from(len);
        queue.counters.queue_packets -= 1;
        queue.counters.tx_packets += 1;
        queue.counters.tx_bytes += u64::from(len);
        self.buffer.release(in_port, priority, len.into());
        if self.mark_on == MarkOn::Dequeue {
            mark(self.draws.as_mut(), queue, &mut packet);
        }
        self.check_resume(now, PortId(in_port), priority);
        Some(packet)
    }

    /// A pause frame from a port's peer: the priority is silent until `until` ([`Picos::MAX`]: until told otherwise; `now`: it may
    /// go on). Its time counts from the frame's arrival: `now + quanta_time(quanta, rate)`.
    pub fn handle_pause(&mut self, now: Picos, port: PortId, priority: u8, until: Picos) {
        let (number, state) = (port.0, &mut self.ports[usize::from(port.0)]);
        let priority = priority.min(PRIORITIES as u8 - 1);
        state.expire(now);
        let queue = &mut state.queues[usize::from(priority)];
        let was_paused = state.paused & 1 << priority != 0;
        if until <= now {
            queue.counters.resumes_received += 1;
            if was_paused {
                queue.end_pause(now);
                state.paused &= !(1 << priority);
            }
            return;
        }
        queue.counters.pauses_received += 1;
        if !was_paused {
            queue.paused_since = now;
            state.paused |= 1 << priority;
        }
        if queue.paused_until != until {
            queue.paused_until = until;
            if until != Picos::MAX {
                self.timers.set(until, Timer::Expiry(number, priority));
            }
        }
    }

    /// When [`Switch::handle_timeout`] has something to do; it may turn out to be nothing. `None`: never.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Picos> {
        self.timers.next()
    }

    /// The time is `now`: pauses end or are told again.
    pub fn handle_timeout(&mut self, now: Picos) {
        while let Some((at, timer)) = self.timers.due(now) {
            match timer {
                Timer::Expiry(number, priority) => {
                    let port = &mut self.ports[usize::from(number)];
                    port.expire(now);
                    if port.occupied & 1 << priority & !port.paused != 0 {
                        self.outputs.push_back(Output::Ready(PortId(number)));
                    }
                }
                Timer::Refresh(number, priority) => {
                    let queue = &self.ports[usize::from(number)].queues[usize::from(priority)];
                    if queue.refresh_at == at && queue.pausing_since.is_some() {
                        self.send_pause(now, PortId(number), priority);
                    }
                }
            }
        }
    }

    /// What the caller has to do, in order, until `None`.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn check_pause(&mut self, now: Picos, port: PortId, priority: u8) {
        let queue = &mut self.ports[usize::from(port.0)].queues[usize::from(priority)];
        // A queue that holds nothing would never be resumed: it is resumed as a packet leaves.
        if queue.pausing_since.is_none()
            && self.buffer.ingress(port.0, priority) != (0, 0)
            && self.buffer.must_pause(port.0, priority)
        {
            queue.pausing_since = Some(now);
            self.send_pause(now, port, priority);
        }
    }

    fn send_pause(&mut self, now: Picos, port: PortId, priority: u8) {
        let state = &mut self.ports[usize::from(port.0)];
        let queue = &mut state.queues[usize::from(priority)];
        queue.counters.pauses_sent += 1;
        self.draws.pause_frame();
        if let Some(quanta) = self.quanta {
            queue.refresh_at = now + Picos(quanta_time(quanta, state.rate).0 / 2);
            self.timers
                .set(queue.refresh_at, Timer::Refresh(port.0, priority));
        }
        self.outputs.push_back(Output::Pause {
            port,
            priority,
            quanta: self.quanta,
        });
    }

    fn check_resume(&mut self, now: Picos, port: PortId, priority: u8) {
        let queue = &mut self.ports[usize::from(port.0)].queues[usize::from(priority)];
        let Some(since) = queue.pausing_since else {
            return;
        };
        if self.buffer.may_resume(port.0, priority) {
            queue.pausing_since = None;
            queue.refresh_at = Picos::MAX;
            queue.counters.pausing = queue.counters.pausing + (now - since);
            queue.counters.resumes_sent += 1;
            self.draws.pause_frame();
            self.outputs.push_back(Output::Resume { port, priority });
        }
    }

    /// Counters of one priority of a port, times and integrals up to `now`.
    #[must_use]
    pub fn counters(&self, now: Picos, port: PortId, priority: u8) -> QueueCounters {
        let state = &self.ports[usize::from(port.0)];
        let mut queue = state.queues[usize::from(priority)].clone();
        queue.count(now);
        if state.paused & 1 << priority != 0 {
            queue.end_pause(now.min(queue.paused_until));
        }
        let (ingress, headroom) = self.buffer.ingress(port.0, priority);
        let pausing = queue.pausing_since.map_or(Picos::ZERO, |since| now - since);
        QueueCounters {
            ingress,
            headroom,
            pausing: queue.counters.pausing + pausing,
            ..queue.counters
        }
    }

    /// Bytes in the egress queue of one priority of a port.
    #[must_use]
    pub fn queue(&self, port: PortId, priority: u8) -> u64 {
        self.ports[usize::from(port.0)].queues[usize::from(priority)]
            .counters
            .queue
    }

    /// Whether a port has packets that wait, paused or not.
    #[must_use]
    pub fn has_queued(&self, port: PortId) -> bool {
        self.ports[usize::from(port.0)].occupied != 0
    }

    /// Priorities of a port that its peer has paused at `now`, a bit each: edges of a cyclic buffer dependency.
    #[must_use]
    pub fn paused(&self, now: Picos, port: PortId) -> u8 {
        let state = &self.ports[usize::from(port.0)];
        (0..PRIORITIES)
            .filter(|p| state.paused & 1 << p != 0 && state.queues[*p].paused_until > now)
            .fold(0, |mask, p| mask | 1 << p)
    }

    /// Whether a queue holds a packet that came in by `from`. Looks at the whole queue.
    #[must_use]
    pub fn holds(&self, port: PortId, priority: u8, from: PortId) -> bool {
        let queue = &self.ports[usize::from(port.0)].queues[usize::from(priority)];
        self.store.any(&queue.fifo, |held| held.in_port == from.0)
    }

    /// Whether a port's peer is told to be silent on this priority.
    #[must_use]
    pub fn pausing(&self, port: PortId, priority: u8) -> bool {
        self.ports[usize::from(port.0)].queues[usize::from(priority)]
            .pausing_since
            .is_some()
    }

    /// The PFC threshold of a port's ingress queues now, bytes of the shared buffer.
    #[must_use]
    pub fn threshold(&self, port: PortId) -> u64 {
        self.buffer.threshold(port.0)
    }

    /// What the buffer holds.
    #[must_use]
    pub fn buffer(&self) -> BufferUse {
        self.buffer.usage()
    }

    /// How many ports it has.
    #[must_use]
    pub fn ports(&self) -> usize {
        self.ports.len()
    }
}

/// RED on the instantaneous length of the queue (`ShouldSendCN` of the reference); one draw per packet between the thresholds. A
/// packet that is not ECN-capable passes: DCQCN's fabrics carry nothing that would have to be dropped instead.
fn mark<P: Queued>(draws: &mut dyn Draws, queue: &mut Queue, packet: &mut P) {
    let Some(ecn) = queue.ecn.filter(|_| packet.ecn_capable()) else {
        return;
    };
    let held = queue.counters.queue;
    if held <= ecn.kmin {
        return;
    }
    let chosen = held > ecn.kmax || {
        let share = ecn.pmax * (held - ecn.kmin) as f64 / (ecn.kmax - ecn.kmin) as f64;
        draws.draw() < share
    };
    if chosen {
        queue.counters.marked += 1;
        packet.mark();
    }
}
