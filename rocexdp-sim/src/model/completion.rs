//! The oracle, queue half: which completion may come now, with which status, and which events and silences must follow.
//!
//! Completions are taken at the moment they are pushed (by the queue's waker), so what the model knows of memory then is what
//! a polling application could see. Must not: know how an endpoint does it.

use rocexdp_proto::verbs::{Cqe, CqeOpcode, Status};
use rocexdp_proto::{ErrorCause, Event};

use super::io::pair_of;
use super::link::ack_timeout_ns;
use super::program::kind;
use super::state::{Msg, State, Stream, WrRef};
use super::unreliable::said_of;

impl State {
    /// A completion was pushed at `end`.
    pub fn completion(&mut self, end: usize, cqe: &Cqe) {
        self.tally.statuses[cqe.status as usize] += 1;
        self.note(1, cqe.wr_id.0 << 8 | cqe.status as u64);
        let wr = self.wrs.get(cqe.wr_id.0 as usize).copied();
        let pair = pair_of(cqe.qpn, end).filter(|p| *p < self.pairs.len());
        let result = match (wr, pair) {
            (Some(wr), Some(pair)) if wr.end == end && wr.shared => {
                let generation = self.pairs[pair][end].generation;
                let wr = WrRef {
                    pair,
                    generation,
                    ..wr
                };
                self.receive_completion(wr, cqe)
            }
            (Some(wr), Some(pair)) if wr.end == end && pair == wr.pair => {
                if wr.is_recv {
                    self.receive_completion(wr, cqe)
                } else {
                    self.send_completion(wr, cqe)
                }
            }
            _ => Err("no such request was posted there".into()),
        };
        if let Err(why) = result {
            self.wrong(|| format!("end {end}: completion {cqe:?}: {why}"));
        }
    }

    fn send_completion(&mut self, wr: WrRef, cqe: &Cqe) -> Result<(), String> {
        let s = &mut self.streams[wr.pair][wr.end][wr.generation];
        if s.send_closed {
            return Err("the QP was reset or destroyed before".into());
        }
        if wr.index < s.send_head {
            return Err("the request has completed before".into());
        }
        let head = s.send_head;
        s.send_head = wr.index + 1;
        let failed_before = s.send_failed.is_some();
        // Those in between succeeded in silence.
        // Completions are lost where the queue overflowed; who lost one has failed.
        let lossy = self.ends[wr.end].queues.overflowed != 0 && cqe.status != Status::Success;
        if let Some(skipped) = s.msgs[head..wr.index]
            .iter()
            .find(|m| m.signaled() || failed_before)
            .filter(|_| !lossy)
        {
            return Err(format!(
                "request {} before it has not completed",
                skipped.wr
            ));
        }
        for index in head..wr.index {
            if lossy {
                self.settled(wr, index, false);
            } else {
                self.succeeded(wr, index)?;
            }
        }
        let msg = self.streams[wr.pair][wr.end][wr.generation].msgs[wr.index].clone();
        if cqe.status == Status::Success {
            if failed_before {
                return Err("a request before it has failed".into());
            }
            if !msg.signaled() {
                return Err("it was not signalled".into());
            }
            let expected = send_opcode(msg.kind);
            let bytes = if msg.kind == kind::FLUSH { 0 } else { msg.len };
            if cqe.opcode != expected || cqe.byte_len != bytes {
                return Err(format!("it must say {expected:?}, {bytes} B"));
            }
            return self.succeeded(wr, wr.index);
        }
        // A local fault at a later request flushes those before it that are still unanswered. So does a refusal, where the
        // response to the first of them was lost: the peer, in ERR, gives it no more.
        let s = &self.streams[wr.pair][wr.end][wr.generation];
        let lost = s.flushed_first.is_some_and(|n| s.msgs[n].wants_response());
        let late = s.send_failed == Some(Status::WrFlushErr)
            && match cqe.status {
                _ if lossy => true,
                Status::LocProtErr => true,
                Status::RemInvReqErr | Status::RemAccessErr | Status::RemOpErr => lost,
                _ => false,
            };
        if failed_before && !late {
            if cqe.status != Status::WrFlushErr {
                return Err("after a failure everything must be flushed".into());
            }
        } else {
            let s = &mut self.streams[wr.pair][wr.end][wr.generation];
            s.send_failed = Some(cqe.status);
            s.flushed_first.get_or_insert(wr.index);
            if cqe.status != Status::WrFlushErr {
                self.may_fail(wr, &msg, cqe.status)?;
                self.pairs[wr.pair][wr.end].erred = true;
            }
        }
        self.settled(wr, wr.index, false);
        if self.is_reliable(wr.pair) {
            self.pairs[wr.pair][wr.end].flushed = true;
        }
        Ok(())
    }

    /// A send request is over: what it does to a window is done, or not.
    fn settled(&mut self, wr: WrRef, index: usize, done: bool) {
        let s = &self.streams[wr.pair][wr.end][wr.generation];
        if let Some(change) = s.msgs.get(index).and_then(|m| m.change) {
            self.window_settled(&change, done);
        }
    }

    /// A send request succeeded: its effects, and those of everything before it, must be there.
    fn succeeded(&mut self, wr: WrRef, index: usize) -> Result<(), String> {
        self.settled(wr, index, true);
        let peer_lossy = self.ends[1 - wr.end].queues.overflowed != 0;
        if !self.is_reliable(wr.pair) {
            let m = self.streams[wr.pair][wr.end][wr.generation].msgs[index].clone();
            if m.bad.is_some() && m.is_local() {
                return Err("it can't be carried out".into());
            }
            return self.has_left(wr.pair, wr.end, &m);
        }
        let s = &mut self.streams[wr.pair][wr.end][wr.generation];
        s.reach(index + 1)?;
        let m = &s.msgs[index];
        if m.fetches() && m.landed != m.len {
            return Err(format!("{} B of {} have landed", m.landed, m.len));
        }
        if m.recv.is_some_and(|n| n >= s.received)
            && !s.recv_closed
            && s.recv_failed.is_none()
            && !peer_lossy
        {
            return Err("the peer's receive request has not completed".into());
        }
        Ok(())
    }

    /// Whether the first failure of a send queue may be this one.
    fn may_fail(&mut self, wr: WrRef, msg: &Msg, status: Status) -> Result<(), String> {
        let (retry, rnr_retry) = (self.setup.retry, self.setup.rnr_retry);
        let target = 1 - wr.end;
        let s = &self.streams[wr.pair][wr.end][wr.generation];
        let own = &self.ends[wr.end].was_gone;
        let legal = match status {
            // One fault costs two tries where a NAK for it comes just after the timer. With fewer resources than are used, one
            // lost answer can't be had again.
            Status::RetryExcErr if !self.is_reliable(wr.pair) => false,
            Status::RetryExcErr => {
                let faults = self.recent_faults(s);
                let few = self.setup.resources < self.setup.depth;
                s.disturbed || s.paced || 2 * faults > retry || (few && faults > 0)
            }
            Status::RnrRetryExcErr => rnr_retry < 7 && msg.recv.is_some() && s.rnr_naks > rnr_retry,
            Status::LocProtErr => own[0] || (own[2] && msg.fetches()),
            Status::RemAccessErr | Status::RemOpErr | Status::RemInvReqErr => {
                let resources = msg.wants_response() && self.setup.resources < self.setup.depth;
                self.refusals(target, wr.pair, msg).contains(&status)
                    || (status == Status::RemInvReqErr && resources)
                    || (status == Status::RemOpErr && self.faulted(target, msg))
            }
            Status::MwBindErr | Status::LocQpOpErr => {
                let withdrawn = msg.change.and_then(|c| c.grant).is_some_and(|g| {
                    let own = &self.ends[wr.end];
                    let region = own.grants.get(g).and_then(|g| own.regions.get(g.region));
                    region.is_some_and(|r| !r.live)
                });
                let kind = if status == Status::MwBindErr {
                    kind::BIND
                } else {
                    kind::LOCAL_INV
                };
                msg.kind == kind && (withdrawn || !self.change_is_certain(msg))
            }
            Status::BadRespErr => s.forged > 0 && msg.wants_response(),
            Status::LocLenErr => msg.bad == Some(status) || (s.forged > 0 && msg.wants_response()),
            _ => false,
        };
        if !legal {
            return Err(format!(
                "nothing can have made request {msg:?} fail so ({} faults, {} RNR NAKs)",
                s.faults.len(),
                s.rnr_naks
            ));
        }
        // An RNR NAK that comes twice, or late, can make a request fail that was carried out meanwhile.
        let stale = status == Status::RnrRetryExcErr && !s.faults.is_empty();
        let forged = matches!(status, Status::BadRespErr | Status::LocLenErr) && s.forged > 0;
        let local = matches!(status, Status::LocProtErr | Status::RetryExcErr);
        if self.is_reliable(wr.pair) && !local && !stale && !forged {
            let s = &mut self.streams[wr.pair][wr.end][wr.generation];
            s.reach(wr.index)?;
            if s.msgs[wr.index].executed && !msg.traceless() {
                return Err("it was executed".into());
            }
        }
        Ok(())
    }

    /// Faults that the last tries of a connection may have met: as many timeouts ago as there are tries, and as a frame may be
    /// late.
    fn recent_faults(&self, s: &Stream) -> u64 {
        let span = if s.rnr_naks > 0 {
            u64::MAX
        } else {
            (self.setup.retry + 8) * ack_timeout_ns(&self.setup)
        };
        let since = self.now.saturating_sub(span);
        s.faults.iter().filter(|t| **t >= since).count() as u64
    }

    fn faulted(&self, target: usize, msg: &Msg) -> bool {
        let gone = &self.ends[target].was_gone;
        let region = msg.region.and_then(|r| self.ends[target].regions.get(r));
        (msg.recv.is_some() && gone[1]) || region.is_some_and(|r| gone[3 + r.mem])
    }

    fn receive_completion(&mut self, wr: WrRef, cqe: &Cqe) -> Result<(), String> {
        let generation = wr.generation;
        let s = &mut self.streams[wr.pair][1 - wr.end][generation];
        if s.recv_closed {
            return Err("the QP was reset or destroyed before".into());
        }
        if !self.is_reliable(wr.pair) {
            return self.datagram_completion(wr.pair, wr.end, wr.index, cqe);
        }
        if self.shares() {
            self.shared_completes(wr.pair, wr.end, wr.index)?;
        }
        let lossy = self.ends[wr.end].queues.overflowed != 0 && cqe.status != Status::Success;
        let s = &mut self.streams[wr.pair][1 - wr.end][generation];
        if !wr.shared {
            if wr.index != s.recv_head && !(lossy && wr.index > s.recv_head) {
                return Err(format!("receive request {} comes first", s.recv_head));
            }
            s.recv_head = wr.index + 1;
        }
        if cqe.status == Status::Success {
            if s.recv_failed.is_some() {
                return Err("a request before it has failed".into());
            }
            let Some(&index) = s.consumers.get(s.received) else {
                return Err("the peer has sent nothing that consumes it".into());
            };
            s.reach(index)?;
            let m = s.msgs[index].clone();
            if m.bad.is_some() {
                return Err(format!("message {m:?} must fail"));
            }
            if m.len > 0 {
                s.reach(index + 1)?;
            }
            s.received += 1;
            let said = (cqe.opcode, cqe.byte_len, cqe.imm, cqe.solicited);
            let key = m.change.filter(|_| m.kind == kind::SEND_INV).map(|c| c.old);
            if said != said_of(&m, 0) || cqe.invalidated.map(|k| k.0) != key {
                return Err(format!("the message was {m:?}"));
            }
            if !self.may_invalidate(wr.end, &m) {
                return Err("the key that it invalidates was gone".into());
            }
            if let Some(change) = m.change {
                self.window_changed(&change);
            }
            return Ok(());
        }
        let failed_before = s.recv_failed.is_some() && !lossy;
        s.recv_failed.get_or_insert(cqe.status);
        self.pairs[wr.pair][wr.end].flushed = true;
        if cqe.status == Status::WrFlushErr {
            return Ok(());
        }
        if failed_before {
            return Err("after a failure everything must be flushed".into());
        }
        let own = self.ends[wr.end].was_gone;
        let legal = match cqe.status {
            Status::LocProtErr => own[1] || own[3..].contains(&true),
            Status::LocLenErr | Status::RemAccessErr | Status::RemInvReqErr => true,
            _ => false,
        };
        if legal && self.may_refuse(wr.pair, wr.end) {
            self.pairs[wr.pair][wr.end].erred = true;
            return Ok(());
        }
        Err("nothing can have made it fail so".into())
    }

    /// Something that an endpoint reports.
    pub fn event(&mut self, end: usize, event: Event) {
        self.note(2, end as u64);
        let (qpn, cause) = match event {
            Event::QpError { qpn, cause } => (qpn, Some(cause)),
            Event::LastWqeReached { qpn } => (qpn, None),
            Event::SrqLimitReached { .. } => return self.limit_reached(end),
            Event::CqOverflow { cq } => return self.queue_overflowed(end, cq.0),
            _ => return,
        };
        let Some(pair) = pair_of(qpn, end).filter(|p| *p < self.pairs.len()) else {
            return self.wrong(|| format!("end {end}: {event}: no such QP"));
        };
        let Some(cause) = cause else {
            let twice = core::mem::replace(&mut self.pairs[pair][end].last_wqe, true);
            if twice || !self.shares() {
                self.wrong(|| format!("end {end}: {event}: for no reason"));
            }
            return;
        };
        self.tally.events[2] += 1;
        let generation = self.pairs[pair][end].generation;
        let lossy = self.ends[end].queues.overflowed != 0;
        let legal = match cause {
            ErrorCause::Request(status) => {
                lossy || self.streams[pair][end][generation].send_failed == Some(status)
            }
            ErrorCause::Peer(_) => self.may_refuse(pair, end),
            ErrorCause::CqOverflow => lossy,
        };
        if !legal {
            self.wrong(|| format!("end {end}: {event}: for no reason"));
        }
        self.pairs[pair][end].erred = true;
        self.left(pair, end);
    }
}

/// The opcode of a send request's completion.
fn send_opcode(k: u64) -> CqeOpcode {
    match k {
        kind::WRITE | kind::WRITE_IMM => CqeOpcode::Write,
        kind::READ => CqeOpcode::Read,
        kind::COMPARE_SWAP => CqeOpcode::CompareSwap,
        kind::FETCH_ADD => CqeOpcode::FetchAdd,
        kind::ATOMIC_WRITE => CqeOpcode::AtomicWrite,
        kind::FLUSH => CqeOpcode::Flush,
        kind::BIND => CqeOpcode::BindMw,
        kind::LOCAL_INV => CqeOpcode::LocalInvalidate,
        _ => CqeOpcode::Send,
    }
}
