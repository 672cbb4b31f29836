//! One RDMA endpoint: all its QPs, memory regions and timers, with no I/O of its own.
//!
//! Inputs: [`Endpoint::handle_frame`], [`Endpoint::handle_congestion`], [`Endpoint::handle_timeout`],
//! [`Endpoint::work_posted`]. Commands: create, modify, destroy a QP, register memory. After any of them, the outputs:
//! [`Endpoint::poll_transmit`] until it gives nothing, [`Endpoint::poll_event`], then [`Endpoint::poll_timeout`] for when to
//! come again. The contract is quinn-proto's.
//!
//! QPs that have something to say wait in queues (CNPs; answers without data; requests and READ responses; in this order of
//! precedence, and each by priority: `traffic`), QPs that wait for a time in the timer heap: no cost grows with the number of QPs. In steady state nothing is
//! allocated.
//!
//! Must not: read a clock, or decide anything that the peer sees (the QP's parts do).

mod commands;
mod datagram;
mod device;
mod digest;
mod draw;
mod input;
mod limit;
mod memory;
mod modify;
mod output;
mod pause;
mod port;
mod srq;
mod traffic;
mod types;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

pub use device::DeviceAttr;
pub use pause::{PauseState, pause_time};
pub use traffic::{ClassService, Marking, PRIORITIES, TrafficClasses, Trust};
pub use types::{
    AsyncError, CongestionSignal, CreateQp, EndpointConfig, EndpointCounters, ErrorCause, Event,
    IcrcMode, MAX_QUEUE_DEPTH, QpHandle, QpInfo, VerbsError,
};

use limit::Cqs;
use memory::Pds;
use pause::Pauses;
use port::Port;
use rocexdp_common::maps::QpEngine;
use traffic::{Lines, Scheduler};

use crate::hash::NumberHash;
use crate::ids::{Gid, Qpn, SrqNum};
use crate::mem::RegionTable;
use crate::qp::{AnswerData, Budget, Congestion, Due, Qp};
use crate::rate::{Controller, RateController as _};
use crate::rng::SecretRng;
use crate::time::{Rate, Timestamp};
use crate::timer::{TimerKind, TimerQueue};
use crate::wire::HeaderBuf;

/// One RDMA endpoint.
pub struct Endpoint {
    config: EndpointConfig,
    rng: SecretRng,
    /// By slot; a slot is used again. Queues and timers name slots, and an entry that outlived its QP is recognised by the
    /// new QP's own marks.
    qps: Vec<Option<Box<Qp>>>,
    free: Vec<u32>,
    slots: HashMap<u32, u32, NumberHash>,
    regions: RegionTable,
    /// DCQCN's state of a QP that has seen no traffic.
    congestion: Arc<Congestion>,
    pds: Pds,
    cqs: Cqs,
    /// Shared receive queues, by number.
    srqs: BTreeSet<SrqNum>,
    /// Multicast groups: the slots of the QPs attached.
    groups: BTreeMap<Gid, Vec<u32>>,
    /// Room for requests that came ahead of a missing one.
    reorder: Arc<Budget>,
    timers: TimerQueue,
    /// QPs that owe a CNP.
    cnps: VecDeque<u32>,
    /// Their priority.
    cnp_priority: u8,
    /// QPs that owe an answer of headers only.
    acks: Lines,
    /// QPs that may send data: a request, or a READ response.
    senders: Lines,
    scheduler: Scheduler,
    pauses: Pauses,
    port: Port,
    events: VecDeque<Event>,
    counters: EndpointCounters,
    headers: HeaderBuf,
    /// What the packet that left last carries, if it is a READ response.
    answer: Option<AnswerData>,
    /// The QP without acknowledgements whose packet the driver has: done with it when it asks for the next one.
    handed: Option<u32>,
    /// Steps in a row whose receive queue was not emptied, so that timers had to wait.
    pub(crate) deferred: u32,
}

impl core::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Endpoint")
            .field("qps", &self.slots.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint without QPs. What it draws at random (keys, QPNs, PSNs) follows from `seed`, which is
    /// a secret: whoever knows it knows them.
    #[must_use]
    pub fn new(config: EndpointConfig, seed: u64) -> Self {
        let reorder = Arc::new(Budget::new(config.reorder_packets_total));
        let port_rate = config.port_rate;
        let congestion = Congestion::new(
            &config.np,
            &config.rp,
            config.rate_control,
            config.line_rate,
        );
        Self {
            congestion: Arc::new(congestion),
            cnp_priority: config.classes.priority(Marking {
                dscp: config.np.cnp_dscp,
                pcp: config.np.cnp_802p_prio,
            }),
            scheduler: Scheduler::new(&config.classes.service),
            config,
            rng: SecretRng::new(seed),
            qps: Vec::new(),
            free: Vec::new(),
            slots: HashMap::default(),
            regions: RegionTable::default(),
            pds: Pds::default(),
            cqs: Cqs::default(),
            srqs: BTreeSet::new(),
            groups: BTreeMap::new(),
            reorder,
            timers: TimerQueue::default(),
            cnps: VecDeque::new(),
            acks: Lines::new(),
            senders: Lines::new(),
            pauses: Pauses::new(),
            port: Port::new(port_rate),
            events: VecDeque::new(),
            counters: EndpointCounters::default(),
            headers: HeaderBuf::default(),
            answer: None,
            handed: None,
            deferred: 0,
        }
    }

    /// What the endpoint was made with.
    #[must_use]
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// When to call [`Endpoint::handle_timeout`] if nothing else happens before; `None`: never. May be earlier than needed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        [self.timers.next(), self.pauses.next(), self.port.next()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Bits of the priorities that something waits in.
    fn waiting(&self) -> u8 {
        let cnps = u8::from(!self.cnps.is_empty()) << (self.cnp_priority & 7);
        self.senders.waiting() | self.acks.waiting() | cnps
    }

    /// Whether [`Endpoint::poll_transmit`] may have a packet; false: it has none until something else happens.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.waiting() & !self.pauses.paused() != 0 || self.handed.is_some()
    }

    /// The oldest event not taken yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> &EndpointCounters {
        &self.counters
    }

    /// The QPs, in no order that means anything, but the same in each run.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.qps.iter().flatten().map(|qp| qp.qpn)
    }

    /// A QP's state.
    #[must_use]
    pub fn qp_info(&self, qpn: Qpn) -> Option<QpInfo<'_>> {
        let qp = self.qp(qpn)?;
        let (expected_psn, msn) = qp.received();
        Some(QpInfo {
            state: qp.state(),
            send_psn: qp.send.psn(qp.send.high),
            unacked_psn: qp.send.psn(qp.send.una),
            expected_psn,
            msn,
            marking: modify::marking(&self.config, qp),
            priority: qp.priority,
            rate: qp.congestion.control.rate(),
            target: qp.congestion.control.target(),
            alpha: qp.congestion.control.alpha(),
            stats: &qp.stats,
        })
    }

    /// Writes a QP's state and counters in the form of the map that shows them. False, and nothing written, without such a
    /// QP.
    pub fn fill(&self, qpn: Qpn, out: &mut QpEngine) -> bool {
        let Some((qp, info)) = self.qp(qpn).zip(self.qp_info(qpn)) else {
            return false;
        };
        let bps = |rate: Option<Rate>| rate.map_or(0, Rate::as_bps);
        let rp = qp.congestion.control.counters();
        *out = QpEngine {
            state: info.state as u32,
            send_psn: info.send_psn.get(),
            unacked_psn: info.unacked_psn.get(),
            expected_psn: info.expected_psn.get(),
            msn: info.msn,
            alpha: ((info.alpha * 1024.0) as u32).min(1023),
            rate: bps(info.rate),
            target_rate: bps(info.target),
            rp_cnp_handled: rp.cnps,
            rate_cuts: rp.cuts,
            rate_increases: rp.increases,
            dscp: info.marking.dscp,
            pcp: info.marking.pcp,
            priority: info.priority,
            rate_control: self.config.rate_control.code(),
            window: qp.send.window(),
            outstanding: u64::from(qp.sq.len()) + u64::from(qp.rq.len()),
            ..*qp.stats
        };
        true
    }

    /// A QP's rate controller as of its last input. A copy of it can be taken on to the present.
    #[must_use]
    pub fn controller(&self, qpn: Qpn) -> Option<&Controller> {
        Some(&self.qp(qpn)?.congestion.control)
    }

    fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        let slot = *self.slots.get(&qpn.get())?;
        self.qps.get(slot as usize)?.as_deref()
    }

    /// After anything has happened to a QP: reports what it reports, puts it where it has to wait, sets its timers.
    fn settle(&mut self, slot: u32) {
        let Some(qp) = qp_at(&mut self.qps, slot) else {
            return;
        };
        if let Some(srq) = qp.rq.take_limit_reached() {
            self.events.push_back(Event::SrqLimitReached { srq });
        }
        for cq in qp.take_overflows() {
            self.events.push_back(Event::CqOverflow { cq });
        }
        let qpn = qp.qpn;
        if qp.take_drained() {
            self.events.push_back(Event::SqDrained { qpn });
        }
        if qp.take_last_wqe() {
            self.events.push_back(Event::LastWqeReached { qpn });
        }
        if let Some(cause) = qp.take_failure() {
            self.events.push_back(Event::QpError { qpn: qp.qpn, cause });
        }
        qp.send.bound(qp.congestion.control.window());
        if qp.cnp_owed && !qp.waiting.cnp {
            qp.waiting.cnp = true;
            self.cnps.push_back(slot);
        }
        let due = qp.answer_due();
        if due == Due::Control && !qp.waiting.ack {
            qp.waiting.ack = true;
            self.acks.push(slot, qp.answer_priority);
        }
        if !qp.waiting.send && !qp.waiting.pace && (due == Due::Data || qp.may_send()) {
            qp.waiting.send = true;
            self.senders.push(slot, qp.priority);
        }
        let (t, q) = (&mut qp.timers, &mut self.timers);
        let deadline = qp.send.answer_deadline();
        if t.is_changed(TimerKind::Ack, deadline) {
            qp.paused_mark = self.pauses.mark(qp.priority);
        }
        q.set(t, slot, TimerKind::Ack, deadline);
        q.set(t, slot, TimerKind::Rnr, qp.send.rnr_until);
        q.set(
            t,
            slot,
            TimerKind::Rate,
            qp.congestion.control.poll_timeout(),
        );
        q.set(t, slot, TimerKind::Cnp, qp.congestion.np.poll_timeout());
        if qp.waiting.pace {
            // Another rate moves it.
            let at = qp.congestion.pacer.earliest(Timestamp::ZERO);
            q.set(t, slot, TimerKind::Pace, Some(at));
        }
        self.sweep_timers();
    }

    /// Entries of timers that no longer count are dropped once they are most of them: O(1) for each one that was set.
    fn sweep_timers(&mut self) {
        if self.timers.needs_sweep() {
            let qps = &self.qps;
            let timers = |slot: u32| Some(&qps.get(slot as usize)?.as_ref()?.timers);
            self.timers.sweep(timers);
        }
    }
}

/// The QP in a slot. A function of the slots alone, so that the endpoint's other parts can be used beside the QP.
fn qp_at(qps: &mut [Option<Box<Qp>>], slot: u32) -> Option<&mut Qp> {
    qps.get_mut(slot as usize)?.as_deref_mut()
}
