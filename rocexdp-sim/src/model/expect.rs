//! What the model expects of an operation: the message that a post makes, the generation that a connection begins, and what must
//! be done at the end.
//!
//! Must not: touch an endpoint.

use rocexdp_common::headers::Feth;
use rocexdp_proto::ids::{PathMtu, Psn, RKey};
use rocexdp_proto::mem::Access;
use rocexdp_proto::rng::Rng;
use rocexdp_proto::verbs::{SendOp, Status};

use super::program::{Args, flag, kind, mistake};
use super::state::{Msg, SLOTS, SOURCE_LEN, Service, State, Stream, WrRef};

impl State {
    /// A new message at the end of what `end` sends.
    pub(super) fn message(&mut self, pair: usize, end: usize, a: &Args) -> Option<Msg> {
        let target = 1 - end;
        let region = self.ends[target].slots[a.slot as usize % SLOTS]
            .or_else(|| self.ends[target].regions.len().checked_sub(1));
        let mut m = Msg {
            kind: kind_of(self.service(pair), a.kind % kind::ALL),
            len: a.len as u32,
            flags: a.flags,
            at: a.at,
            a: a.a,
            b: a.b,
            posted: self.now,
            to: pair,
            ..Msg::default()
        };
        match m.kind {
            kind::BIND => self.bind(pair, end, a, &mut m)?,
            kind::LOCAL_INV => self.local_invalidate(pair, end, a, &mut m)?,
            kind::SEND_INV => self.invalidating(pair, end, a, &mut m),
            _ => {}
        }
        if m.is_local() {
            m.len = 0;
            m.flags &= !flag::INLINE;
        }
        if self.service(pair) == Service::Datagram {
            m.len = m.len.min(self.mtu());
            m.to = a.to as usize;
            if self.pairs.get(m.to).is_none() || self.service(m.to) != Service::Datagram {
                m.to = pair;
            }
            if a.bad == mistake::KEY {
                m.bad = Some(Status::RemAccessErr);
            }
        }
        if m.is_atomic() {
            m.len = 8;
            if a.bad == mistake::LENGTH {
                m.len = 4;
                m.bad = Some(Status::LocLenErr);
            }
        }
        let names_memory = m.needs() != Access::NONE;
        if names_memory {
            let info = self.ends[target].regions.get(region?)?;
            m.region = region;
            m.at = a.at % info.len.saturating_sub(u64::from(m.len)).max(1);
            if m.is_atomic() {
                m.at &= !7;
            }
            match a.bad {
                mistake::KEY if m.len > 0 => {
                    m.region = None;
                    m.bad = Some(Status::RemAccessErr);
                }
                mistake::RANGE if m.len > 0 => {
                    m.at = info.len - u64::from(m.len) / 2;
                    if m.is_atomic() {
                        m.at = info.len;
                    }
                    m.bad = Some(Status::RemAccessErr);
                }
                mistake::ALIGN if m.is_atomic() => {
                    m.at |= 4;
                    m.bad = Some(Status::RemInvReqErr);
                }
                _ => {}
            }
            self.through_window(pair, end, a, &mut m);
        }
        if m.kind == kind::FETCH_ADD {
            // Told apart from every other.
            m.a |= (self.wrs.len() as u64) << 32;
        }
        if m.kind == kind::COMPARE_SWAP {
            m.b |= (self.wrs.len() as u64) << 32;
        }
        if m.kind == kind::FLUSH {
            m.flags &= !flag::INLINE;
        } else if m.fetches() {
            m.land = self.buffers(end, m.len, a.segs, a.src);
        } else {
            let mut rng = Rng::new(a.src);
            m.src = split(m.len, a.segs, a.src)
                .into_iter()
                .map(|n| (rng.below(u64::from(SOURCE_LEN - n)) as u32, n))
                .collect();
        }
        let generation = self.pairs[pair][end].generation;
        let index = self.outgoing(pair, end).msgs.len();
        m.wr = self.name(WrRef {
            end,
            pair,
            generation,
            is_recv: false,
            shared: false,
            index,
        });
        let lengths: Vec<usize> = self.ends[target]
            .targets
            .iter()
            .map(|t| t.log.len())
            .collect();
        let mem = m
            .region
            .and_then(|r| self.ends[target].regions.get(r))
            .map(|r| r.mem);
        let absent = !self.healthy(pair);
        let mtu = PathMtu::ALL[(self.setup.mtu as usize - 1).min(4)];
        m.packets = match m.kind {
            kind::BIND | kind::LOCAL_INV => 0,
            _ if m.bad == Some(Status::LocLenErr) => 0,
            kind::READ => mtu.packets(m.len),
            _ if m.wants_response() => 1,
            _ => mtu.packets(m.len),
        };
        let s = self.outgoing(pair, end);
        s.disturbed |= absent;
        m.first = s.msgs.last().map_or(0, |last| last.first + last.packets);
        if m.consumes() {
            m.recv = Some(s.consumers.len());
            s.consumers.push(index);
        }
        // If something before it is still to be executed, this changes then.
        if let Some(mem) = mem
            && s.is_executed()
        {
            m.since = lengths[mem];
        }
        s.msgs.push(m.clone());
        Some(m)
    }

    /// A request packet leaves `end`: a fence and the initiator depth must have let it.
    pub(super) fn request_leaves(
        &mut self,
        pair: usize,
        end: usize,
        psn: Psn,
    ) -> Result<(), String> {
        let depth = self.setup.depth as usize;
        let s = self.outgoing(pair, end);
        let number = psn.get().wrapping_sub(s.start) & 0xff_ffff;
        let index = s.msgs.partition_point(|m| m.first + m.packets <= number);
        let Some(m) = s.msgs.get(index) else {
            return Err(format!("sends packet {number}, which is of no request"));
        };
        // One without bytes leaves no trace of its answer.
        let waiting = |m: &&Msg| m.fetches() && m.landed < m.len;
        let before = s.msgs.iter().take(index).skip(s.landing);
        let unanswered = before.filter(waiting).count();
        if m.flags & flag::FENCE != 0 && unanswered > 0 {
            return Err(format!(
                "sends fenced request {} before what it waits for",
                m.wr
            ));
        }
        if m.fetches() && unanswered + usize::from(waiting(&m)) > depth {
            return Err(format!("request {} exceeds the initiator depth", m.wr));
        }
        Ok(())
    }

    /// The newest message was not taken.
    pub(super) fn unpost(&mut self, pair: usize, end: usize) {
        self.wrs.pop();
        let s = self.outgoing(pair, end);
        let Some(m) = s.msgs.pop() else { return };
        if m.recv.is_some() {
            s.consumers.pop();
        }
        if let Some(change) = m.change {
            self.window_settled(&change, false);
        }
    }

    pub(super) fn operation(&self, target: usize, m: &Msg, a: &Args) -> SendOp {
        if let Some(op) = m.op {
            return op;
        }
        let region = m.region.and_then(|r| self.ends[target].regions.get(r));
        let (base, mut rkey) = region.map_or((0x10_0000, RKey(a.src as u32 | 1)), |r| {
            (r.va, RKey(r.rkey))
        });
        let mut va = base + m.at;
        if let Some(g) = m.grant.and_then(|g| self.ends[target].grants.get(g)) {
            rkey = RKey(g.key);
            if g.access.contains(Access::ZERO_BASED) {
                va = m.at.wrapping_sub(g.from);
            }
        }
        match m.kind {
            kind::SEND_IMM => SendOp::SendImm(m.a as u32),
            kind::WRITE => SendOp::Write { va, rkey },
            kind::WRITE_IMM => SendOp::WriteImm {
                va,
                rkey,
                imm: m.a as u32,
            },
            kind::READ => SendOp::Read { va, rkey },
            kind::COMPARE_SWAP => SendOp::CompareSwap {
                va,
                rkey,
                compare: m.a,
                swap: m.b,
            },
            kind::FETCH_ADD => SendOp::FetchAdd { va, rkey, add: m.a },
            kind::ATOMIC_WRITE => SendOp::AtomicWrite { va, rkey },
            kind::FLUSH => SendOp::Flush {
                va,
                rkey,
                len: m.len,
                what: Feth::parse(&[0, 0, 0, 1]),
            },
            _ => SendOp::Send,
        }
    }

    /// Fresh buffers of `len` bytes in all.
    pub(super) fn buffers(
        &mut self,
        end: usize,
        len: u32,
        segs: u64,
        seed: u64,
    ) -> Vec<(u64, u32)> {
        let next = &mut self.ends[end].next_buffer;
        split(len, segs, seed)
            .into_iter()
            .map(|n| {
                let at = *next + 16;
                *next = at + u64::from(n);
                (at, n)
            })
            .collect()
    }

    /// Where `end` is connecting to: the generation that its peer has begun, or a new one.
    pub(super) fn new_generation(&mut self, pair: usize, end: usize) -> usize {
        let (own, peer) = (self.pairs[pair][end], self.pairs[pair][1 - end]);
        let generation = if peer.generation > own.generation {
            peer.generation
        } else {
            own.generation + 1
        };
        for streams in &mut self.streams[pair] {
            streams.resize_with(streams.len().max(generation + 1), Stream::default);
        }
        let side = &mut self.pairs[pair][end];
        side.generation = generation;
        side.connected = true;
        side.erred = false;
        side.flushed = false;
        (side.quiet_until, side.waits_until) = (0, 0);
        (side.run, side.holds, side.last_wqe) = (None, None, false);
        generation
    }

    /// `end` forgets its requests.
    pub(super) fn forget(&mut self, pair: usize, end: usize) {
        self.left(pair, end);
        self.windows_unsure(pair, end);
        self.outgoing(pair, end).send_closed = true;
        self.incoming(pair, end).recv_closed = true;
        let side = &mut self.pairs[pair][end];
        side.erred = false;
        (side.quiet_until, side.waits_until) = (0, 0);
        (side.holds, side.last_wqe) = (None, false);
    }

    /// After all is done: every request of a healthy end has succeeded.
    pub(super) fn all_done(&mut self, pair: usize, end: usize) -> Result<(), String> {
        let reliable = self.is_reliable(pair);
        let s = self.outgoing(pair, end);
        let count = s.msgs.len();
        if reliable {
            s.reach(count)?;
        } else if s.send_failed.is_some() {
            return Ok(());
        }
        match s.msgs.iter().skip(s.send_head).find(|m| m.signaled()) {
            Some(m) => Err(format!("request {} has no completion", m.wr)),
            None => Ok(()),
        }
    }

    /// In ERR: every request has completed.
    pub(super) fn all_flushed(&mut self, pair: usize, end: usize) -> Result<(), String> {
        let side = self.pairs[pair][end];
        if !side.erred || self.lossy(end) {
            return Ok(());
        }
        if side.holds.is_some() {
            return Err("the shared receive request that it has taken has not completed".into());
        }
        if self.shares() && !side.last_wqe {
            return Err("it has not said that it takes no more shared receive requests".into());
        }
        let s = self.incoming(pair, end);
        if s.recv_head != s.recvs.len() && !s.recv_closed {
            return Err(format!(
                "{} of {} receive requests have completed",
                s.recv_head,
                s.recvs.len()
            ));
        }
        let s = self.outgoing(pair, end);
        let failed = s.send_failed.is_some();
        if s.send_closed {
            return Ok(());
        }
        match s
            .msgs
            .iter()
            .skip(s.send_head)
            .find(|m| m.signaled() || failed)
        {
            Some(m) => Err(format!("request {} has no completion", m.wr)),
            None => Ok(()),
        }
    }
}

impl Stream {
    /// Whether the target has executed everything that leaves a trace.
    fn is_executed(&self) -> bool {
        self.msgs.iter().skip(self.cursor).all(Msg::traceless)
    }
}

/// `len` as the sum of `segs` parts, most of them different.
fn split(len: u32, segs: u64, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed ^ 0x5917);
    let mut left = len;
    let mut parts = Vec::new();
    for _ in 1..segs.clamp(1, 16) {
        let n = rng.below(u64::from(left) + 1) as u32;
        parts.push(n);
        left -= n;
    }
    parts.push(left);
    parts
}

/// The operation of a service that stands for another's.
fn kind_of(service: Service, k: u64) -> u64 {
    match (service, k) {
        (Service::Reliable, _) => k,
        (Service::Datagram, _) => k % 2,
        (Service::Unreliable, kind::SEND_INV | kind::FLUSH) => kind::SEND,
        (Service::Unreliable, kind::READ | kind::FETCH_ADD) => kind::WRITE,
        (Service::Unreliable, kind::COMPARE_SWAP | kind::ATOMIC_WRITE) => kind::WRITE_IMM,
        _ => k,
    }
}
