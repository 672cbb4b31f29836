//! What operations do to the endpoints, and what the model then expects.
//!
//! Must not: judge (the oracle does).

use std::sync::Arc;

use rocexdp_proto::QpTransition;
use rocexdp_proto::ids::{Pd, RKey, WrId};
use rocexdp_proto::mem::{Segment, SgList, WindowKind};
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{AddressHandle, Datagram, PostError, RecvWr, SendWr};

use super::connect::{QKEY, access, path};
use super::io::qpn;
use super::program::{Args, flag, kind};
use super::state::{
    Msg, Receive, RegionInfo, SLOTS, SOURCE_LEN, Service, TARGETS, WINDOWS, WrRef, source,
};
use super::watch::{Role, Watched};
use super::world::World;

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
        // What becomes of a window must be known: only where the request is taken.
        let changes = matches!(
            a.kind % kind::ALL,
            kind::BIND | kind::LOCAL_INV | kind::SEND_INV
        );
        if changes {
            let state = self.state();
            let full = u64::from(qp.sq.len()) >= state.setup.sends;
            if full || !state.pairs[pair][end].connected || state.service(pair) == Service::Datagram
            {
                return;
            }
        }
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
        if self.state().service(pair) == Service::Datagram {
            wr.to = Some(self.datagram(end, &msg, a));
        }
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

    /// To whom a datagram goes. A Q_Key with the top bit set stands for the sender's own.
    fn datagram(&self, end: usize, msg: &Msg, a: &Args) -> Datagram {
        let ipv6 = self.state().setup.ipv6 != 0;
        let qkey = match (msg.bad, a.at & 1) {
            (Some(_), _) => QKEY ^ (1 + (a.b as u32 & 0xff)),
            (None, 0) => QKEY,
            (None, _) => 1 << 31,
        };
        let ah = AddressHandle::new(path(end, ipv6));
        Datagram {
            ah: Arc::new(ah.unwrap_or_else(|| unreachable!("a path of the model's"))),
            qpn: qpn(msg.to, 1 - end),
            qkey,
        }
    }

    fn post_receive(&mut self, pair: usize, end: usize, room: u32, segs: u64, seed: u64) {
        let Some(qp) = self.qps[pair][end].clone() else {
            return;
        };
        let shared = self.state().shares();
        let (wr, list) = {
            let mut state = self.state();
            let list = state.buffers(end, room, segs, seed);
            let generation = state.pairs[pair][end].generation;
            let index = if shared {
                state.ends[end].shared.recvs.len()
            } else {
                state.incoming(pair, end).recvs.len()
            };
            let wr = state.name(WrRef {
                end,
                pair,
                generation,
                is_recv: true,
                shared,
                index,
            });
            let named = list.clone();
            let receive = Receive { wr, list, room };
            if shared {
                state.ends[end].shared.recvs.push((receive, false));
            } else {
                state.incoming(pair, end).recvs.push(receive);
            }
            (wr, named)
        };
        let local = self.list(end, Role::Receive, &list);
        match qp.rq.post(RecvWr::new(WrId(wr), local)) {
            Ok(()) => self.state().tally.posted += 1,
            Err(e) => {
                let mut state = self.state();
                let depth = if shared {
                    state.setup.srq
                } else {
                    state.setup.recvs
                };
                let full = u64::from(qp.rq.len()) >= depth;
                let side = state.pairs[pair][end];
                let usable = shared || side.connected || side.erred;
                if (e == PostError::Full && !full) || (matches!(e, PostError::QpState(_)) && usable)
                {
                    state
                        .wrong(|| format!("end {end} pair {pair}: posting a receive request: {e}"));
                }
                if shared {
                    state.ends[end].shared.recvs.pop();
                } else {
                    state.incoming(pair, end).recvs.pop();
                }
                state.wrs.pop();
                return;
            }
        }
        self.endpoints[end].work_posted(Timestamp::from_nanos(self.now), qpn(pair, end));
    }

    /// Posts receive requests for all messages that `end` is still to receive.
    pub(super) fn feed(&mut self, pair: usize, end: usize) {
        loop {
            let before = {
                let mut state = self.state();
                if !state.healthy(pair) || !state.is_reliable(pair) {
                    return;
                }
                let shares = state.shares();
                let shared = &state.ends[end].shared;
                let (left, posted) = (shared.left(), shared.recvs.len());
                let s = state.incoming(pair, end);
                let enough = if shares {
                    s.received == s.consumers.len() || left > 0
                } else {
                    s.recvs.len() >= s.consumers.len()
                };
                if enough {
                    return;
                }
                s.recvs.len() + posted
            };
            self.post_receive(pair, end, ROOM, 1, 0);
            let mut state = self.state();
            let posted = state.ends[end].shared.recvs.len();
            if state.incoming(pair, end).recvs.len() + posted == before {
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
        state.windows_of_qp_gone(pair, end);
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
        let foreign = a.b == 1;
        let made = if foreign {
            let made = self.endpoints[end].register_region(self.foreign[end], memory, va, allowed);
            made.map(|region| region.remote())
        } else {
            self.endpoints[end].register_memory(memory, va, allowed)
        };
        let region = match made {
            Ok(region) => region,
            Err(e) => return self.state().wrong(|| format!("end {end}: register: {e}")),
        };
        let mut state = self.state();
        let index = state.ends[end].regions.len();
        state.ends[end].regions.push(RegionInfo {
            rkey: region.rkey.0,
            va,
            mem,
            len: region.len,
            access: allowed,
            live: true,
            foreign,
        });
        state.ends[end].slots[slot] = Some(index);
    }

    /// A region with a window bound to it stays.
    pub(super) fn deregister(&mut self, end: usize, slot: usize) {
        let slot = slot % SLOTS;
        let Some((index, region, windows)) = ({
            let state = self.state();
            let own = &state.ends[end];
            own.slots[slot].map(|i| (i, own.regions[i], state.windows_on(end, i)))
        }) else {
            return;
        };
        let gone = self.endpoints[end].deregister_memory(RKey(region.rkey));
        let mut state = self.state();
        let (may, must) = windows;
        if (gone && must) || (!gone && !may) {
            state.wrong(|| {
                format!("end {end}: deregistered: {gone}; windows may be bound: {may}, are: {must}")
            });
        }
        if gone {
            state.ends[end].slots[slot] = None;
            state.ends[end].regions[index].live = false;
        }
    }

    pub(super) fn window(&mut self, end: usize, a: &Args) {
        let slot = a.slot as usize % WINDOWS;
        if self.windows[end][slot].is_some() {
            return;
        }
        let (foreign, type2) = (a.b == 1, a.kind != 1);
        let pd = if foreign {
            self.foreign[end]
        } else {
            Pd::default()
        };
        let kind = if type2 {
            WindowKind::Type2
        } else {
            WindowKind::Type1
        };
        match self.endpoints[end].alloc_window(pd, kind) {
            Ok(window) => {
                let key = window.rkey().0;
                self.windows[end][slot] = Some(window);
                self.state().window(end, slot, key, type2, foreign);
            }
            Err(e) => self.state().wrong(|| format!("end {end}: window: {e}")),
        }
    }

    pub(super) fn free(&mut self, end: usize, slot: usize) {
        let slot = slot % WINDOWS;
        let Some(window) = self.windows[end][slot].take() else {
            return;
        };
        if let Err(e) = self.endpoints[end].dealloc_window(window.rkey()) {
            self.state()
                .wrong(|| format!("end {end}: freeing a window: {e}"));
        }
        self.state().window_freed(end, slot);
    }

    /// Arms the limit of the shared receive queue.
    pub(super) fn arm(&mut self, end: usize, limit: u64) {
        let Some(srq) = &self.srqs[end] else { return };
        let limit = limit.min(u64::from(srq.capacity()));
        match srq.arm_limit(limit as u32) {
            Ok(()) => self.state().ends[end].shared.limit = limit,
            Err(e) => self.state().wrong(|| format!("end {end}: {e}")),
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
