//! Programs of verbs on two connected ends, of arbitrary steps: requests of every kind with right, stale and wrong keys,
//! receives, registrations, windows, changes of state; and an arbitrary fate for each frame between them.
//!
//! Checked is what needs no model of the bytes: every request completes at most once, in order, and all of them in the end.
//! Shared by tests and fuzzing; must not: draw anything itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rocexdp_common::headers::{Feth, FlushRange};
use rocexdp_proto::ids::{PathMtu, Pd, Psn, RKey, WrId};
use rocexdp_proto::mem::{Access, SgList, WindowKind};
use rocexdp_proto::verbs::{Cqe, RecvWr, Segment, SendOp, SendWr, Status};
use rocexdp_proto::{QpState, QpTransition};
use rocexdp_sim::pair::{Bytes, Fate, Pair, PairConfig, QPNS};

use super::LONG;
use super::choices::Choices;

/// Bytes of each end's memory.
const MEMORY: usize = 8192;
/// Where regions begin.
const VA: u64 = 0x10_0000;

/// One end as the application knows it.
#[derive(Default)]
struct Side {
    /// Requests that may still complete, oldest first, with whether success shows.
    sends: VecDeque<(u64, bool)>,
    receives: VecDeque<u64>,
    /// Keys of regions and windows, those that are gone among them.
    keys: Vec<RKey>,
    windows: Vec<RKey>,
    next: u64,
}

/// What happens to the next frames that leave.
type Fates = Rc<RefCell<VecDeque<(Fate, u8)>>>;

/// A program in progress.
pub struct Program {
    pair: Pair,
    config: PairConfig,
    sides: [Side; 2],
    memory: [Arc<Bytes>; 2],
    fates: Fates,
    /// Completions seen, successes among them.
    pub completions: (u64, u64),
}

/// All that a QP may serve.
fn of_qp() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::FLUSH_GLOBAL
}

/// All that a region may allow.
fn all_access() -> Access {
    of_qp() | Access::MW_BIND
}

impl Program {
    /// Two ends, connected as `c` says, each with a region.
    pub fn new(c: &mut impl Choices) -> Self {
        let depths = c.of(&[(8, 8), (1, 1), (8, 2), (2, 8)]);
        let config = PairConfig {
            path_mtu: c.of(&[PathMtu::Mtu1024, PathMtu::Mtu256]),
            depth: 8,
            retry_cnt: c.of(&[7, 1, 0]),
            // Never for ever: a receive may never be posted.
            rnr_retry: c.of(&[3, 1, 0]),
            min_rnr_timer: 1,
            psn: [
                c.of(&[Psn::new(0xff_fff8), Psn::new(1)]),
                c.of(&[Psn::new(0x7f_fff8), Psn::new(0xff_ffff)]),
            ],
            max_rd_atomic: depths.0,
            max_dest_rd_atomic: depths.1,
            access: of_qp(),
            seed: c.below(256),
            ..PairConfig::default()
        };
        let mut pair = Pair::new(&config);
        let fates = Fates::default();
        let of_script = fates.clone();
        pair.script = Some(Box::new(move |_, _, _, frame| {
            let next = of_script.borrow_mut().pop_front();
            let (fate, damage) = next.unwrap_or((Fate::Pass, 0));
            if damage != 0 {
                let at = usize::from(damage) % frame.len();
                frame[at] ^= damage;
            }
            fate
        }));
        let mut program = Self {
            pair,
            config,
            sides: Default::default(),
            memory: [Bytes::filled(MEMORY, 1), Bytes::filled(MEMORY, 2)],
            fates,
            completions: (0, 0),
        };
        for end in 0..2 {
            program.register(end, all_access());
        }
        program
    }

    fn register(&mut self, end: usize, access: Access) {
        let memory = self.memory[end].clone();
        let region = self.pair.ends[end]
            .endpoint
            .register_memory(memory, VA, access)
            .expect("a region");
        self.sides[end].keys.push(region.rkey);
    }

    /// A key of this end: mostly its first one.
    fn key(&self, c: &mut impl Choices, end: usize) -> RKey {
        let side = &self.sides[end];
        let first = side.keys.first().copied().unwrap_or(RKey(0));
        match c.below(64) {
            0 => RKey(c.below(1 << 32) as u32),
            1..=3 => side.windows.last().copied().unwrap_or(first),
            4 | 5 => side.keys.last().copied().unwrap_or(first),
            _ => first,
        }
    }

    /// One step.
    pub fn step(&mut self, c: &mut impl Choices) {
        let end = c.below(2) as usize;
        let failed = |end: usize| {
            let info = self.pair.ends[end].endpoint.qp_info(QPNS[end]);
            info.is_none_or(|i| i.state != QpState::Rts)
        };
        if (failed(0) || failed(1)) && c.once_in(4) {
            self.reconnect();
        }
        match c.below(16) {
            0..=6 => self.send(c, end),
            7..=9 => self.receive(c, end),
            10 => {
                let span = c.of(&[2, 10, 100, 1500, 20_000]);
                self.pair.run(Duration::from_micros(span));
            }
            11 if c.once_in(2) => self.memory_step(c, end),
            12 if c.once_in(4) => self.modify(c, end),
            _ => {
                let fate = match c.below(6) {
                    0 => Fate::Drop,
                    1 => Fate::Twice,
                    2 => Fate::Late(Duration::from_micros(c.of(&[3, 30, 3000]))),
                    _ => Fate::Pass,
                };
                let damage = if c.once_in(4) { c.below(256) as u8 } else { 0 };
                self.fates.borrow_mut().push_back((fate, damage));
            }
        }
        self.poll();
    }

    fn list(&self, c: &mut impl Choices, end: usize, len: u32, may_inline: bool) -> SgList {
        let segment = |at, len| Segment::new(self.memory[end].clone(), at, len);
        match c.below(4) {
            0 if may_inline && len <= 64 => SgList::inline(&vec![7; len as usize]),
            1 => SgList::of(&[segment(0, len / 3), segment(4096, len - len / 3)]),
            _ => segment(64, len).into(),
        }
    }

    fn send(&mut self, c: &mut impl Choices, end: usize) {
        let odd = c.once_in(32);
        let places: &[u64] = if odd { &[4, 8000] } else { &[0, 8, 2048] };
        let (va, rkey) = (VA + c.of(places), self.key(c, 1 - end));
        let mut len = c.of(&[8, 0, 100, 1024, 3000, 1]);
        let what = Feth {
            global_visibility: true,
            persistence: odd && c.once_in(2),
            placement_reserved: 0,
            selectivity: c.of(&[FlushRange::Range, FlushRange::Region]),
        };
        let op = match c.below(12) {
            0 => SendOp::Send,
            1 => SendOp::SendImm(1),
            2 if odd || c.once_in(8) => SendOp::SendInvalidate(rkey),
            3 => SendOp::Write { va, rkey },
            4 => SendOp::WriteImm { va, rkey, imm: 2 },
            5 | 6 => SendOp::Read { va, rkey },
            7 => SendOp::CompareSwap {
                va,
                rkey,
                compare: 1,
                swap: 2,
            },
            8 => SendOp::FetchAdd { va, rkey, add: 1 },
            9 => SendOp::AtomicWrite { va, rkey },
            10 => SendOp::Flush {
                va,
                rkey,
                len,
                what,
            },
            11 if !self.sides[end].windows.is_empty() || odd => self.local_op(c, end),
            _ => SendOp::Write { va, rkey },
        };
        let atomic = matches!(
            op,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. }
        );
        if atomic && !odd {
            len = 8;
        }
        let none = op.is_local() || matches!(op, SendOp::Flush { .. });
        let local = if none {
            SgList::empty()
        } else {
            self.list(c, end, len, !op.fetches())
        };
        let side = &mut self.sides[end];
        side.next += 1;
        let mut wr = SendWr::new(WrId(side.next), op, local);
        wr.signaled = !c.once_in(4);
        wr.fence = c.once_in(4);
        wr.solicited = c.once_in(4);
        let entry = (side.next, wr.signaled);
        if self.pair.post_send(end, wr).is_ok() {
            self.sides[end].sends.push_back(entry);
        }
    }

    /// A window is bound, or a key withdrawn.
    fn local_op(&mut self, c: &mut impl Choices, end: usize) -> SendOp {
        let side = &mut self.sides[end];
        let region = side.keys.first().copied().unwrap_or(RKey(0));
        let Some(window) = side.windows.last_mut() else {
            return SendOp::LocalInvalidate(region);
        };
        if c.once_in(3) {
            return SendOp::LocalInvalidate(*window);
        }
        let rkey = RKey(window.0 & !0xff | (window.0 + 1) & 0xff);
        let bind = SendOp::BindMw {
            window: *window,
            rkey,
            region,
            va: VA,
            len: c.of(&[4096, 0, 9000]),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        };
        *window = rkey;
        bind
    }

    fn receive(&mut self, c: &mut impl Choices, end: usize) {
        let len = c.of(&[3000, 3000, 3000, 4000, 3000, 0, 100, 3000]);
        let local = self.list(c, end, len, false);
        let side = &mut self.sides[end];
        side.next += 1;
        let id = side.next;
        if self
            .pair
            .post_recv(end, RecvWr::new(WrId(id), local))
            .is_ok()
        {
            self.sides[end].receives.push_back(id);
        }
    }

    fn memory_step(&mut self, c: &mut impl Choices, end: usize) {
        match c.below(4) {
            0 => self.register(end, c.of(&[all_access(), Access::REMOTE_READ])),
            1 => {
                let key = self.key(c, end);
                self.pair.ends[end].endpoint.deregister_memory(key);
            }
            2 => {
                let endpoint = &mut self.pair.ends[end].endpoint;
                let kind = c.of(&[WindowKind::Type2, WindowKind::Type1]);
                if let Ok(window) = endpoint.alloc_window(Pd::default(), kind) {
                    self.sides[end].windows.push(window.rkey());
                }
            }
            _ => {
                let key = self.key(c, end);
                let _ = self.pair.ends[end].endpoint.dealloc_window(key);
            }
        }
    }

    fn modify(&mut self, c: &mut impl Choices, end: usize) {
        if c.once_in(2) {
            let now = self.pair.now();
            self.pair.ends[end]
                .endpoint
                .modify_qp(now, QPNS[end], QpTransition::Err)
                .expect("to ERR from any state");
            return;
        }
        self.reconnect();
    }

    /// Both QPs through RESET to RTS again. Old frames are still on their way, as they may be.
    fn reconnect(&mut self) {
        self.poll();
        self.pair.reconnect(&self.config);
        for side in &mut self.sides {
            side.sends.clear();
            side.receives.clear();
        }
    }

    /// Takes the completions of both ends.
    fn poll(&mut self) {
        for end in 0..2 {
            for done in self.pair.completions(end) {
                self.completed(end, &done);
            }
        }
    }

    fn completed(&mut self, end: usize, done: &Cqe) {
        let ok = done.status == Status::Success;
        self.completions.0 += 1;
        self.completions.1 += u64::from(ok);
        let side = &mut self.sides[end];
        if side.receives.front() == Some(&done.wr_id.0) {
            side.receives.pop_front();
            return;
        }
        while let Some((id, signaled)) = side.sends.pop_front() {
            if id == done.wr_id.0 {
                assert!(signaled || !ok, "an unsignalled success shows: {done:?}");
                return;
            }
            assert!(!signaled, "request {id} was passed over by {done:?}");
        }
        panic!("completes for the second time, or out of order: {done:?}");
    }

    /// The end: the wire is whole again, everything ends, and in ERR nothing is left.
    pub fn finish(mut self) -> (u64, u64) {
        self.fates.borrow_mut().clear();
        assert!(self.pair.run(LONG), "it comes to rest");
        self.poll();
        let now = self.pair.now();
        for (end, qpn) in self.pair.ends.iter_mut().zip(QPNS) {
            end.endpoint
                .modify_qp(now, qpn, QpTransition::Err)
                .expect("to ERR from any state");
        }
        self.pair.run(LONG);
        self.poll();
        for (end, side) in self.sides.iter().enumerate() {
            assert!(side.receives.is_empty(), "end {end}: {:?}", side.receives);
            assert!(
                side.sends.iter().all(|(_, signaled)| !signaled),
                "end {end}: {:?}",
                side.sends
            );
            let qp = &self.pair.ends[end].qp;
            assert!(qp.sq.is_empty() && qp.rq.is_empty(), "end {end}");
        }
        self.completions
    }
}
