//! Runs a program: two endpoints, the link, virtual time.
//!
//! Each end is driven by the shipped loop body, `drive::step`. After the last operation the link is mended and receive requests
//! are posted for every message that still needs one: then every healthy connection must come to rest within bounded time.
//! Last, every QP goes to ERR, and what has not completed must be flushed. Must not: judge (the oracle does).

use std::sync::{Arc, Mutex, MutexGuard};

use rocexdp_common::headers::Syndrome;
use rocexdp_common::opcode::Operation;
use rocexdp_proto::drive::step;
use rocexdp_proto::ids::{PathMtu, Psn, gid_from_ipv4};
use rocexdp_proto::mem::Access;
use rocexdp_proto::qp::{SelectiveRepeat, rnr_delay};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::CompletionQueue;
use rocexdp_proto::wire::{Head, Packet, Path};
use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig, QpHandle, QpState, QpTransition, RtrAttr, RtsAttr,
};

use super::io::{Io, lock, pair_of, qpn, watched_queue};
use super::link::{Link, ack_timeout_ns};
use super::program::{Fault, Hit, Op, Program, Verb};
use super::state::State;
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
    cqs: [Vec<Arc<CompletionQueue>>; 2],
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
        let setup = program.setup;
        let state = Arc::new(Mutex::new(State::new(setup)));
        let config = EndpointConfig {
            max_inflight_packets: setup.window as u32,
            ack_req_interval: setup.interval as u32,
            ecn_from_frames: true,
            ..EndpointConfig::default()
        };
        let io = |end| Io::new(&state, end, &setup);
        let cqs = |end: usize| -> Vec<Arc<CompletionQueue>> {
            (0..setup.cqs.max(1))
                .map(|_| watched_queue(&state, end))
                .collect()
        };
        let mut world = Self {
            endpoints: [
                Endpoint::new(config.clone(), setup.seed),
                Endpoint::new(config, !setup.seed),
            ],
            qps: (0..setup.pairs).map(|_| [None, None]).collect(),
            cqs: [cqs(0), cqs(1)],
            ios: [io(0), io(1)],
            link: Link::new(program),
            now: 0,
            frames: 0,
            state: Arc::clone(&state),
        };
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
            .min()
    }

    /// Everything that happens now.
    fn turn(&mut self) {
        self.state().now = self.now;
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
                while let Some(event) = self.endpoints[end].poll_event() {
                    lock(&self.state).event(end, event);
                }
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

    pub(super) fn create(&mut self, pair: usize, end: usize) {
        if self.qps[pair][end].is_some() {
            return;
        }
        let setup = self.state().setup;
        let cqs = &self.cqs[end];
        let (send_cq, recv_cq) = (&cqs[pair % cqs.len()], &cqs[(pair + 1) % cqs.len()]);
        let made = self.endpoints[end].create_qp(CreateQp {
            max_send: setup.sends as u32,
            max_recv: setup.recvs as u32,
            ..CreateQp::rc(qpn(pair, end), send_cq, recv_cq)
        });
        match made {
            Ok(handle) => {
                self.qps[pair][end] = Some(handle);
                self.state().pairs[pair][end].exists = true;
            }
            Err(e) => self.state().wrong(|| format!("end {end}: create: {e}")),
        }
    }

    pub(super) fn modify(&mut self, pair: usize, end: usize, to: QpTransition) {
        let now = Timestamp::from_nanos(self.now);
        if let Err(e) = self.endpoints[end].modify_qp(now, qpn(pair, end), to) {
            self.state()
                .wrong(|| format!("end {end} pair {pair}: {to:?}: {e}"));
        }
    }

    /// From whatever state to RTS, in the connection's newest generation.
    fn connect(&mut self, pair: usize, end: usize) {
        if self.qps[pair][end].is_none() {
            return;
        }
        self.enter_reset(pair, end);
        let setup = self.state().setup;
        let generation = self.state().new_generation(pair, end);
        let psn = |e: usize| {
            let base = if e == 0 { setup.psn0 } else { setup.psn1 };
            // Far apart: what is still on its way from before belongs to no other connection.
            let n = base + pair as u64 * 0x33_0000 + (generation as u64 - 1) * 0x2f_0000;
            Psn::new((n & 0xff_ffff) as u32)
        };
        for e in 0..2 {
            self.state().streams[pair][e][generation].start = psn(e).get();
        }
        let path_mtu = PathMtu::ALL[(setup.mtu as usize - 1).min(4)];
        self.modify(
            pair,
            end,
            QpTransition::Init {
                // Binding windows is a right of regions.
                access: access(setup.access & !16),
            },
        );
        self.modify(
            pair,
            end,
            QpTransition::Rtr(RtrAttr {
                dest_qpn: qpn(pair, 1 - end),
                path_mtu,
                rq_psn: psn(1 - end),
                min_rnr_timer: setup.rnr_timer as u8,
                max_dest_rd_atomic: setup.resources as u8,
                path: path(end, setup.ipv6 != 0),
                selective: (setup.selective > 0).then_some(SelectiveRepeat {
                    paths: setup.selective as u8,
                }),
            }),
        );
        self.modify(
            pair,
            end,
            QpTransition::Rts(RtsAttr {
                sq_psn: psn(end),
                timeout: setup.timeout as u8,
                retry_cnt: setup.retry as u8,
                rnr_retry: setup.rnr_retry as u8,
                max_rd_atomic: setup.depth as u8,
            }),
        );
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

    /// Where nothing was lost or late and the peer was ready, go-back-N sent nothing again.
    fn sent_nothing_twice(&self, pair: usize, end: usize) {
        let mut state = self.state();
        let first = state.pairs[pair][end].generation == 1 && state.setup.selective == 0;
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
                self.enter_err(pair, end);
                self.turn();
                let Some(qp) = &self.qps[pair][end] else {
                    continue;
                };
                let left = (qp.sq.len(), qp.rq.len());
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

/// The bits as a set.
#[must_use]
pub(super) fn access(bits: u64) -> Access {
    [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::MW_BIND,
        Access::FLUSH_GLOBAL,
        Access::FLUSH_PERSISTENT,
    ]
    .into_iter()
    .zip([1, 2, 4, 8, 16, 256, 512])
    .filter(|(_, bit)| bits & bit != 0)
    .fold(Access::NONE, |all, (one, _)| all | one)
}

fn is_request(opcode: rocexdp_common::opcode::Opcode) -> bool {
    !opcode.is_response() && !matches!(opcode.decode(), Some((Operation::Cnp, _)))
}

fn path(end: usize, ipv6: bool) -> Path {
    let (own, peer) = if end == 0 { (1u8, 2u8) } else { (2, 1) };
    let gid = |n: u8| {
        if ipv6 {
            let mut g = [0; 16];
            (g[0], g[1], g[15]) = (0xfd, 0x77, n);
            g
        } else {
            gid_from_ipv4([10, 77, 0, n])
        }
    };
    Path {
        src_mac: [2, 0, 0, 0, 0, own],
        dst_mac: [2, 0, 0, 0, 0, peer],
        vlan: None,
        sl: 0,
        src: gid(own),
        dst: gid(peer),
        hop_limit: 64,
        dscp: None,
        flow_label: 0,
    }
}
