//! What operations do to the endpoints, and what the model then expects.
//!
//! Must not: judge (the oracle does).

use std::sync::Arc;

use rocexdp_proto::QpTransition;
use rocexdp_proto::ids::{RKey, WrId};
use rocexdp_proto::mem::{Segment, SgList};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{PostError, RecvWr, SendWr};

use super::io::qpn;
use super::program::{Args, flag};
use super::state::{Receive, RegionInfo, SLOTS, SOURCE_LEN, TARGETS, WrRef, source};
use super::watch::{Role, Watched};
use super::world::{World, access};

/// Bytes that a receive request posted at the end of a program has.
const ROOM: u32 = 1 << 20;

impl World {
    fn memory(&self, end: usize, role: Role) -> Arc<Watched> {
        Arc::new(Watched {
            state: Arc::clone(&self.state),
            end,
            role,
        })
    }

    fn list(&self, end: usize, role: Role, ranges: &[(u64, u32)]) -> SgList {
        let segments: Vec<Segment> = ranges
            .iter()
            .map(|&(at, len)| Segment::new(self.memory(end, role), at, len))
            .collect();
        SgList::of(&segments)
    }

    /// Posts a send request.
    pub(super) fn post(&mut self, pair: usize, end: usize, a: &Args) {
        let Some(qp) = self.qps[pair][end].clone() else {
            return;
        };
        let Some(msg) = self.state().message(pair, end, a) else {
            return;
        };
        let ranges: Vec<(u64, u32)> = msg.src.iter().map(|&(at, n)| (u64::from(at), n)).collect();
        let local = if msg.fetches() {
            self.list(end, Role::Landing, &msg.land)
        } else if msg.flags & flag::INLINE != 0 {
            let bytes: Vec<u8> = msg
                .src
                .iter()
                .flat_map(|&(at, n)| &source()[at as usize..(at + n) as usize])
                .copied()
                .collect();
            SgList::inline(&bytes)
        } else {
            self.list(end, Role::Source, &ranges)
        };
        let mut wr = SendWr::new(
            WrId(msg.wr),
            self.state().operation(1 - end, &msg, a),
            local,
        );
        wr.signaled = msg.signaled();
        wr.solicited = msg.flags & flag::SOLICITED != 0;
        wr.fence = msg.flags & flag::FENCE != 0;
        match qp.sq.post(wr) {
            Ok(()) => self.state().tally.posted += 1,
            Err(e) => {
                let mut state = self.state();
                let depth = state.setup.sends;
                let full = u64::from(qp.sq.len()) >= depth;
                let usable = state.pairs[pair][end].connected || state.pairs[pair][end].erred;
                if (e == PostError::Full && !full) || (matches!(e, PostError::QpState(_)) && usable)
                {
                    state.wrong(|| format!("end {end} pair {pair}: posting {msg:?}: {e}"));
                }
                state.unpost(pair, end);
                return;
            }
        }
        self.endpoints[end].work_posted(Timestamp::from_nanos(self.now), qpn(pair, end));
    }

    /// Posts a receive request.
    pub(super) fn receive(&mut self, pair: usize, end: usize, a: &Args) {
        self.post_receive(pair, end, a.len as u32, a.segs, a.src);
    }

    fn post_receive(&mut self, pair: usize, end: usize, room: u32, segs: u64, seed: u64) {
        let Some(qp) = self.qps[pair][end].clone() else {
            return;
        };
        let (wr, list) = {
            let mut state = self.state();
            let list = state.buffers(end, room, segs, seed);
            let generation = state.pairs[pair][end].generation;
            let index = state.incoming(pair, end).recvs.len();
            let wr = state.name(WrRef {
                end,
                pair,
                generation,
                is_recv: true,
                index,
            });
            let named = list.clone();
            state
                .incoming(pair, end)
                .recvs
                .push(Receive { wr, list, room });
            (wr, named)
        };
        let local = self.list(end, Role::Receive, &list);
        match qp.rq.post(RecvWr::new(WrId(wr), local)) {
            Ok(()) => self.state().tally.posted += 1,
            Err(e) => {
                let mut state = self.state();
                let full = u64::from(qp.rq.len()) >= state.setup.recvs;
                let usable = state.pairs[pair][end].connected || state.pairs[pair][end].erred;
                if (e == PostError::Full && !full) || (matches!(e, PostError::QpState(_)) && usable)
                {
                    state
                        .wrong(|| format!("end {end} pair {pair}: posting a receive request: {e}"));
                }
                state.incoming(pair, end).recvs.pop();
                state.wrs.pop();
                return;
            }
        }
        self.endpoints[end].work_posted(Timestamp::from_nanos(self.now), qpn(pair, end));
    }

    /// Posts receive requests for all messages that `end` is still to receive.
    pub(super) fn feed(&mut self, pair: usize, end: usize) {
        loop {
            {
                let mut state = self.state();
                if !state.healthy(pair) {
                    return;
                }
                let s = state.incoming(pair, end);
                if s.recvs.len() >= s.consumers.len() {
                    return;
                }
            }
            let before = self.state().incoming(pair, end).recvs.len();
            self.post_receive(pair, end, ROOM, 1, 0);
            if self.state().incoming(pair, end).recvs.len() == before {
                return;
            }
        }
    }

    pub(super) fn enter_err(&mut self, pair: usize, end: usize) {
        let state = {
            let Some(info) = self.endpoints[end].qp_info(qpn(pair, end)) else {
                return;
            };
            info.state
        };
        if state == rocexdp_proto::QpState::Reset {
            return;
        }
        {
            let mut state = self.state();
            state.pairs[pair][end].erred = true;
            state.left(pair, end);
        }
        self.modify(pair, end, QpTransition::Err);
    }

    pub(super) fn enter_reset(&mut self, pair: usize, end: usize) {
        if self.qps[pair][end].is_none() {
            return;
        }
        self.modify(pair, end, QpTransition::Reset);
        self.state().forget(pair, end);
    }

    pub(super) fn destroy(&mut self, pair: usize, end: usize) {
        if self.qps[pair][end].take().is_none() {
            return;
        }
        if let Err(e) = self.endpoints[end].destroy_qp(qpn(pair, end)) {
            self.state().wrong(|| format!("end {end}: destroy: {e}"));
        }
        let mut state = self.state();
        state.forget(pair, end);
        state.pairs[pair][end].exists = false;
    }

    pub(super) fn register(&mut self, end: usize, a: &Args) {
        let (slot, mem) = (a.slot as usize % SLOTS, a.kind as usize % TARGETS);
        if self.state().ends[end].slots[slot].is_some() {
            return;
        }
        let va = 0x10_0000 * (slot as u64 + 1);
        let allowed = access(a.a);
        let memory = self.memory(end, Role::Target(mem));
        let region = self.endpoints[end]
            .register_memory(memory, va, allowed)
            .expect("a region");
        let mut state = self.state();
        let index = state.ends[end].regions.len();
        state.ends[end].regions.push(RegionInfo {
            rkey: region.rkey.0,
            va,
            mem,
            len: region.len,
            access: allowed,
            live: true,
        });
        state.ends[end].slots[slot] = Some(index);
    }

    pub(super) fn deregister(&mut self, end: usize, slot: usize) {
        let region = {
            let mut state = self.state();
            let Some(index) = state.ends[end]
                .slots
                .get_mut(slot % SLOTS)
                .and_then(Option::take)
            else {
                return;
            };
            state.ends[end].regions[index].live = false;
            state.ends[end].regions[index]
        };
        if !self.endpoints[end].deregister_memory(RKey(region.rkey)) {
            self.state()
                .wrong(|| format!("end {end}: deregister: no such key"));
        }
    }

    pub(super) fn poke(&mut self, end: usize, a: &Args) {
        let mut state = self.state();
        let mem = a.kind as usize % TARGETS;
        let (at, len) = (a.at as usize, (a.len as usize).min(4096));
        let from = (a.src % u64::from(SOURCE_LEN - 4096)) as usize;
        state.poke(end, mem, at as u64, &source()[from..from + len]);
    }
}
