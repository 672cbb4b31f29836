//! Runs a program: two endpoints, the link, virtual time.
//!
//! Each end is driven by the shipped loop body, `drive::step`. After the last operation the link is mended and receive requests
//! are posted for every message that still needs one: then every healthy connection must come to rest within bounded time.
//! Last, every QP goes to ERR, and what has not completed must be flushed. Must not: judge (the oracle does).

use std::sync::{Arc, Mutex, MutexGuard};

use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::Operation;
use rocexdp_proto::drive::step;
use rocexdp_proto::ids::{Pd, SrqNum};
use rocexdp_proto::mem::Window;
use rocexdp_proto::qp::rnr_delay;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{CompletionQueue, Cqe, RecvQueue, SrqAttr};
use rocexdp_proto::wire::{Head, Packet};
use rocexdp_proto::{Endpoint, EndpointConfig, Event, QpHandle, QpState};

use super::io::{Io, lock, pair_of, qpn, watched_queue};
use super::link::{Link, ack_timeout_ns};
use super::program::{Fault, Hit, Op, Program, Verb};
use super::state::{State, WINDOWS};
use super::tally::Tally;

/// Frames of one program at most.
const FRAMES_MOST: u64 = 150_000;

/// Ethertype of a frame that says nothing.
const VOID: [u8; 2] = [0x88, 0xb5];

/// What a program came to.
#[derive(Debug)]
pub struct Outcome {
    /// What went wrong.
    pub violation: Option<String>,
    /// What happened.
    pub tally: Tally,
    /// The faults that hit, one by one.
    pub hits: Vec<Hit>,
}

/// The two ends, the link between them, and what the model knows.
pub(super) struct World {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) endpoints: [Endpoint; 2],
    pub(super) qps: Vec<[Option<QpHandle>; 2]>,
    pub(super) cqs: [Vec<Arc<CompletionQueue>>; 2],
    /// Receive queues that the QPs of an end share.
    pub(super) srqs: [Option<Arc<RecvQueue>>; 2],
    /// Windows in their slots.
    pub(super) windows: [[Option<Arc<Window>>; WINDOWS]; 2],
    /// A protection domain that no QP is in.
    pub(super) foreign: [Pd; 2],
    /// When completion queues are polled next, if not at once.
    next_poll: u64,
    ios: [Io; 2],
    link: Link,
    pub(super) now: u64,
    frames: u64,
}

/// Runs a program to its end, or to the first thing that is wrong.
#[must_use]
pub fn run(program: &Program) -> Outcome {
    let mut world = World::new(program);
    world.run(&program.ops);
    let hits = core::mem::take(&mut world.link.hits);
    let mut state = lock(&world.state);
    state.tally.seeds = 1;
    state.tally.time = world.now;
    Outcome {
        violation: state.violation.take(),
        tally: core::mem::take(&mut state.tally),
        hits,
    }
}

impl World {
    fn new(program: &Program) -> Self {
        let mut setup = program.setup;
        if setup.cq > 0 {
            // What completes late can't be judged as it comes.
            (setup.uc, setup.ud, setup.srq) = (0, 0, 0);
        }
        let state = Arc::new(Mutex::new(State::new(setup)));
        let config = EndpointConfig {
            max_inflight_packets: setup.window as u32,
            ack_req_interval: setup.interval as u32,
            ecn_from_frames: true,
            ..EndpointConfig::default()
        };
        let io = |end| Io::new(&state, end, &setup);
        let cqs = |end: usize| -> Vec<Arc<CompletionQueue>> {
            (0..setup.cqs.clamp(1, 8) as u32)
                .map(|n| watched_queue(&state, end, n, setup.cq))
                .collect()
        };
        let mut world = Self {
            endpoints: [
                Endpoint::new(config.clone(), setup.seed),
                Endpoint::new(config, !setup.seed),
            ],
            qps: (0..setup.pairs).map(|_| [None, None]).collect(),
            cqs: [cqs(0), cqs(1)],
            srqs: [None, None],
            windows: Default::default(),
            foreign: [Pd::default(); 2],
            next_poll: 0,
            ios: [io(0), io(1)],
            link: Link::new(program),
            now: 0,
            frames: 0,
            state: Arc::clone(&state),
        };
        for end in 0..2 {
            world.share(end);
        }
        for pair in 0..setup.pairs as usize {
            for end in 0..2 {
                world.create(pair, end);
            }
            for end in 0..2 {
                world.connect(pair, end);
            }
        }
        world
    }

    /// What the QPs of an end have together, or none of them has.
    fn share(&mut self, end: usize) {
        let setup = self.state().setup;
        match self.endpoints[end].alloc_pd() {
            Ok(pd) => self.foreign[end] = pd,
            Err(e) => self.state().wrong(|| format!("end {end}: {e}")),
        }
        if setup.srq == 0 {
            return;
        }
        let limit = setup.limit.min(setup.srq);
        let made = self.endpoints[end].create_srq(&SrqAttr {
            num: SrqNum(end as u32),
            pd: Pd::default(),
            max_wr: setup.srq as u32,
            max_sge: 16,
            limit: limit as u32,
        });
        match made {
            Ok(srq) => {
                self.srqs[end] = Some(srq);
                self.state().ends[end].shared.limit = limit;
            }
            Err(e) => self.state().wrong(|| format!("end {end}: {e}")),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn run(&mut self, ops: &[Op]) {
        let mut ops = ops.iter().peekable();
        while let Some(next) = ops.peek() {
            let at = next.at;
            self.advance(at);
            while let Some(op) = ops.next_if(|op| op.at <= self.now) {
                self.execute(op);
            }
            if self.is_wrong() {
                return;
            }
        }
        self.settle();
        if !self.is_wrong() {
            self.finish();
        }
    }

    fn is_wrong(&self) -> bool {
        self.state().violation.is_some()
    }

    fn execute(&mut self, op: &Op) {
        let a = &op.args;
        let (end, pair) = ((a.end & 1) as usize, a.pair as usize);
        if pair >= self.qps.len() {
            return;
        }
        self.state().note(3, op.at);
        // What completed before its QP is reset, or its window freed, is judged before.
        if matches!(
            op.verb,
            Verb::Err | Verb::Reset | Verb::Connect | Verb::Destroy | Verb::Free
        ) {
            self.poll_all();
            for end in 0..2 {
                self.check_flushed(end);
            }
        }
        match op.verb {
            Verb::Post => self.post(pair, end, a),
            Verb::Recv => self.receive(pair, end, a),
            Verb::Err => self.enter_err(pair, end),
            Verb::Reset => self.enter_reset(pair, end),
            Verb::Connect => self.connect(pair, end),
            Verb::Destroy => self.destroy(pair, end),
            Verb::Create => self.create(pair, end),
            Verb::Register => self.register(end, a),
            Verb::Deregister => self.deregister(end, a.slot as usize),
            Verb::TakeAway | Verb::GiveBack => {
                let mut state = self.state();
                let which = (a.kind as usize).min(state.ends[end].gone.len() - 1);
                let gone = op.verb == Verb::TakeAway;
                state.ends[end].gone[which] = gone;
                state.ends[end].was_gone[which] |= gone;
            }
            Verb::Poke => self.poke(end, a),
            Verb::Window => self.window(end, a),
            Verb::Free => self.free(end, a.slot as usize),
            Verb::Limit => self.arm(end, a.a),
            Verb::Poll => self.poll_all(),
            Verb::Blackout => self.link.black_out(end as u8, self.now + a.a),
        }
        self.turn();
    }

    /// Goes on until `until`.
    fn advance(&mut self, until: u64) {
        loop {
            self.turn();
            if self.is_wrong() {
                return;
            }
            let next = self.next_time().unwrap_or(u64::MAX).max(self.now);
            if next > until {
                self.now = self.now.max(until);
                return;
            }
            self.now = next;
        }
    }

    fn next_time(&self) -> Option<u64> {
        let timers = self.endpoints.iter().filter_map(Endpoint::poll_timeout);
        let transmitters = self.ios.iter().map(|io| io.free_at);
        timers
            .map(Timestamp::as_nanos)
            .chain(transmitters.filter(|t| *t > self.now))
            .chain(self.link.next_time())
            .chain(self.is_late().then_some(self.next_poll))
            .min()
    }

    /// Completions wait for being polled.
    fn is_late(&self) -> bool {
        self.state().setup.cq > 0 && self.cqs.iter().flatten().any(|cq| !cq.is_empty())
    }

    /// Polls all queues that are not polled at once. Receives are judged first: they are before the sends that depend on them.
    pub(super) fn poll_all(&mut self) {
        if !self.is_late() {
            return;
        }
        for end in 0..2 {
            self.overflows(end);
        }
        let polled: Vec<(usize, Cqe)> = self
            .cqs
            .iter()
            .enumerate()
            .flat_map(|(end, cqs)| cqs.iter().map(move |cq| (end, cq)))
            .flat_map(|(end, cq)| core::iter::from_fn(move || cq.poll()).map(move |c| (end, c)))
            .collect();
        let mut state = lock(&self.state);
        for is_recv in [true, false] {
            for (end, cqe) in &polled {
                let wr = state.wrs.get(cqe.wr_id.0 as usize);
                if wr.is_none_or(|wr| wr.is_recv) == is_recv {
                    state.completion(*end, cqe);
                }
            }
        }
    }

    /// Notes which completion queues have lost completions. Only a full one may.
    fn overflows(&mut self, end: usize) {
        for (n, cq) in self.cqs[end].iter().enumerate() {
            let mut state = lock(&self.state);
            let known = &mut state.ends[end].queues.overflowed;
            if !cq.overflowed() || *known >> n & 1 != 0 {
                continue;
            }
            *known |= 1 << n;
            let (len, room) = (cq.len(), cq.capacity());
            if len < room {
                state.wrong(|| {
                    format!("end {end}: completion queue {n} overflows at {len} of {room}")
                });
            }
        }
    }

    /// Everything that happens now.
    fn turn(&mut self) {
        self.state().now = self.now;
        if self.now >= self.next_poll {
            self.poll_all();
            let pause = self.state().setup.poll.max(1000);
            self.next_poll = self.now + pause;
        }
        loop {
            let mut busy = false;
            while let Some((end, frame)) = self.link.pop(self.now) {
                self.ios[usize::from(end)].received.push_back(frame);
            }
            for end in 0..2 {
                let io = &mut self.ios[end];
                io.now = self.now;
                let budget = lock(&self.state).setup.budget.max(1) as usize;
                let now = Timestamp::from_nanos(self.now);
                let done = step(&mut self.endpoints[end], now, io, budget);
                busy |= done.received + done.transmitted > 0;
                self.unready(end);
                self.overflows(end);
                while let Some(event) = self.endpoints[end].poll_event() {
                    // The completion that tells why comes before.
                    if matches!(event, Event::QpError { .. }) {
                        self.poll_all();
                    }
                    lock(&self.state).event(end, event);
                }
                self.state().check_events(end);
                while let Some(frame) = self.ios[end].sent.pop_front() {
                    self.leaving(end, frame);
                }
                self.check_flushed(end);
            }
            // A timer that is due is a turn too.
            let due = self
                .endpoints
                .iter()
                .filter_map(Endpoint::poll_timeout)
                .any(|t| t.as_nanos() <= self.now);
            if self.frames > FRAMES_MOST {
                self.state()
                    .wrong(|| format!("{FRAMES_MOST} frames, and no end"));
            }
            if (!busy && !due) || self.is_wrong() {
                return;
            }
        }
    }

    /// Who flushes is in ERR, and for a reason.
    fn check_flushed(&mut self, end: usize) {
        for pair in 0..self.qps.len() {
            if !core::mem::take(&mut self.state().pairs[pair][end].flushed) {
                continue;
            }
            let qp_state = self.endpoints[end].qp_info(qpn(pair, end)).map(|i| i.state);
            let erred = self.state().pairs[pair][end].erred;
            if !erred || qp_state != Some(QpState::Err) {
                self.state().wrong(|| {
                    format!("end {end} pair {pair} flushes, in {qp_state:?}, for no reason")
                });
            }
        }
    }

    /// A frame leaves `end`.
    fn leaving(&mut self, end: usize, frame: Vec<u8>) {
        self.frames += 1;
        // What is sent where a payload could not be read: a frame that says nothing (`wire::Transmit::write`).
        if frame.get(12..14) == Some(&VOID) {
            return;
        }
        let whole: [&[u8]; 1] = [&frame];
        let packet = Packet::parse(&Head::of(&whole), &whole)
            .ok()
            .map(|p| (p.bth, p.aeth));
        let len = frame.len() as u64;
        let faults = self.link.push(self.now, end as u8, frame);
        let mut state = lock(&self.state);
        let Some((bth, aeth)) = packet else {
            return state.wrong(|| format!("end {end} sends what is no RoCEv2 packet"));
        };
        let op = usize::from(bth.opcode.0);
        state.note(
            4 + end as u64,
            u64::from(bth.psn.get()) << 24 | len << 8 | op as u64,
        );
        state.tally.sent[op] += 1;
        for fault in &faults {
            state.tally.hit[op][*fault as usize] += 1;
            state.note(6, *fault as u64);
        }
        let Some(pair) = pair_of(bth.dest_qpn, 1 - end).filter(|p| *p < state.pairs.len()) else {
            return state.wrong(|| format!("end {end} sends to {}, which nobody is", bth.dest_qpn));
        };
        if faults.iter().any(|f| *f != Fault::Mark) {
            for e in 0..2 {
                state.outgoing(pair, e).faults.push(self.now);
            }
        }
        if let Some(aeth) = aeth
            && matches!(aeth.syndrome, Syndrome::RnrNak(_))
        {
            let twice = faults.contains(&Fault::Duplicate);
            state.incoming(pair, end).rnr_naks += 1 + u64::from(twice);
        }
        if faults.contains(&Fault::Forge) {
            state.incoming(pair, end).forged += 1;
        }
        // Of UC and UD it was judged when it was handed out.
        if !state.is_reliable(pair) && is_request(bth.opcode) {
            return;
        }
        if !is_request(bth.opcode) {
            if matches!(bth.opcode.decode(), Some((Operation::Cnp, _))) {
                for e in 0..2 {
                    state.outgoing(pair, e).paced = true;
                }
            }
            return;
        }
        if let Err(why) = state.request_leaves(pair, end, bth.psn) {
            state.wrong(|| format!("end {end} pair {pair}: {why}"));
        }
        let now = state.now;
        let quiet = state.pairs[pair][end].quiet_until;
        if now < quiet {
            state.wrong(|| {
                format!("end {end} pair {pair} sends a request; an RNR NAK asked for silence until {quiet} ns")
            });
        }
    }

    /// An end has taken RNR NAKs in: one that counts starts a silence.
    fn unready(&mut self, end: usize) {
        while let Some((pair, psn, code)) = self.ios[end].not_ready.pop() {
            let Some(info) = self.endpoints[end].qp_info(qpn(pair, end)) else {
                continue;
            };
            let mut state = lock(&self.state);
            // What is fetched has an answer of its own, by which the requester may see that it must ask again: then it may wait,
            // and need not.
            let s = state.outgoing(pair, end);
            let fetching = s.msgs.iter().skip(s.send_head).any(|m| m.wants_response());
            let side = &mut state.pairs[pair][end];
            // It acknowledges what is before it: if it was news, the oldest packet is the one that it names. The first timer
            // counts while it runs.
            if info.state != QpState::Rts || info.send_psn == psn || self.now <= side.waits_until {
                continue;
            }
            let until = self.now + rnr_delay(code).as_nanos() as u64;
            if fetching {
                side.waits_until = until;
            } else if info.unacked_psn == psn {
                (side.waits_until, side.quiet_until) = (until, until);
            }
        }
    }

    /// After the last operation: the link is mended, receive requests are posted, and time passes until all is done.
    fn settle(&mut self) {
        self.link.clean();
        for pair in 0..self.qps.len() {
            for end in 0..2 {
                self.feed(pair, end);
            }
        }
        let setup = self.state().setup;
        let patience = 200 * ack_timeout_ns(&setup)
            + 100 * rnr_delay(setup.rnr_timer as u8).as_nanos() as u64
            + 3_000_000_000;
        let limit = self.now + patience;
        while self.now < limit && !self.is_wrong() && self.unfinished().is_some() {
            let Some(next) = self.next_time() else { break };
            self.advance(next.max(self.now));
            for pair in 0..self.qps.len() {
                for end in 0..2 {
                    self.feed(pair, end);
                }
            }
        }
        if let Some((pair, end)) = self.unfinished() {
            let (now, until) = (self.now, limit);
            self.state().wrong(|| {
                format!("end {end} pair {pair}: connected, and requests have not completed ({now} of {until} ns)")
            });
        }
    }

    /// A connected end with requests that have not completed: if its peer is not there, it has to find out.
    fn unfinished(&self) -> Option<(usize, usize)> {
        (0..self.qps.len()).find_map(|pair| {
            let busy = |end: usize| {
                let qp = self.qps[pair][end].as_ref();
                self.state().pairs[pair][end].connected && qp.is_some_and(|qp| !qp.sq.is_empty())
            };
            [0, 1].into_iter().find(|e| busy(*e)).map(|e| (pair, e))
        })
    }

    /// Where nothing was lost or late and the peer was ready, nothing was sent again.
    fn sent_nothing_twice(&self, pair: usize, end: usize) {
        let mut state = self.state();
        let first = state.pairs[pair][end].generation == 1 && state.is_reliable(pair);
        let s = state.outgoing(pair, end);
        if !first || s.disturbed || s.paced || s.rnr_naks > 0 || !s.faults.is_empty() {
            return;
        }
        let info = self.endpoints[end].qp_info(qpn(pair, end));
        let again = info.map_or(0, |i| i.stats.retransmitted_packets);
        if again > 0 {
            state.wrong(|| {
                format!("end {end} pair {pair}: {again} packets sent again for no reason")
            });
        }
    }

    /// Everything to ERR: what has not completed is flushed.
    fn finish(&mut self) {
        self.poll_all();
        for pair in 0..self.qps.len() {
            let ends = if self.state().healthy(pair) {
                0..2
            } else {
                0..0
            };
            for end in ends {
                let result = self.state().all_done(pair, end);
                if let Err(why) = result {
                    self.state()
                        .wrong(|| format!("end {end} pair {pair}: {why}"));
                }
                self.sent_nothing_twice(pair, end);
            }
            for end in 0..2 {
                self.poll_all();
                self.enter_err(pair, end);
                self.turn();
                self.poll_all();
                let Some(qp) = &self.qps[pair][end] else {
                    continue;
                };
                let own = if qp.rq.is_shared() { 0 } else { qp.rq.len() };
                let left = (qp.sq.len(), own);
                let mut state = lock(&self.state);
                if left != (0, 0) && state.pairs[pair][end].erred {
                    state.wrong(|| format!("end {end} pair {pair}: {left:?} requests left in ERR"));
                }
                if let Err(why) = state.all_flushed(pair, end) {
                    state.wrong(|| format!("end {end} pair {pair}: {why}"));
                }
            }
        }
    }
}

fn is_request(opcode: rocexdp_common::opcode::Opcode) -> bool {
    !opcode.is_response() && !matches!(opcode.decode(), Some((Operation::Cnp, _)))
}
