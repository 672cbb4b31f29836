//! A queue pair: requester, completer and responder, and what holds them together.
//!
//! The three never call each other. Requester and completer share the send side's state (`send.rs`), the responder has its
//! own; this file gives each its part of the QP, and carries out what they report: a failed QP goes to ERR, which completes
//! every request that was posted.
//!
//! UC and UD share the send side's state too; `service` says whose rules a QP follows, and only here is it looked at.
//!
//! Must not: know timers, other QPs, or the order in which QPs send (the endpoint does).

mod attr;
mod cause;
mod change;
mod completer;
mod completions;
mod congestion;
mod lazy;
mod local;
mod modify;
mod requester;
mod responder;
mod rto;
mod send;
mod service;
mod sr;
mod ud;
mod unacked;

use std::sync::Arc;

pub use crate::verbs::QpState;
pub use attr::{
    MAX_PATHS, MAX_RD_ATOMIC, QpTransition, RtrAttr, RtsAttr, SelectiveRepeat, UdAttr, ack_timeout,
    rnr_delay,
};
pub use cause::{AsyncError, ErrorCause};
pub use change::{QpAttr, QpInitAttr};
pub(crate) use congestion::Congestion;
pub(crate) use lazy::{Lazy, Stats};
pub use modify::{AttrMask, MigrationState, ModifyError, ModifyQp};
pub(crate) use requester::Request;
pub(crate) use send::{SendLimits, SendState};
pub(crate) use service::Service;
pub(crate) use sr::Budget;
pub(crate) use ud::Own;

use completer::Outcome;
use completions::Completions;
use local::Local;
use requester::Step;
pub(crate) use responder::{Answer, AnswerData, Due};
use responder::{Context, RecvState, Served};

use crate::drop::DropReason;
use crate::ids::{CqNum, Pd, Psn, Qpn};
use crate::mem::RegionTable;
use crate::time::Timestamp;
use crate::timer::Timers;
use crate::verbs::{CompletionQueue, QueueCaps, RecvQueue, SendQueue, Status};
use crate::wire::{HeaderTemplate, Packet, Path};

/// The way to the peer, once there is one.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) peer: Qpn,
    /// Of requests and answers. CNPs are rare: theirs is made when one leaves.
    pub(crate) data: HeaderTemplate,
    /// Of the paths behind the first.
    pub(crate) others: Vec<HeaderTemplate>,
}

/// In which of the endpoint's queues the QP waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) cnp: bool,
    pub(crate) ack: bool,
    pub(crate) send: bool,
    /// For the pacer's timer.
    pub(crate) pace: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) pd: Pd,
    pub(crate) service: Service,
    /// What the peer agreed to.
    pub(crate) selective: Option<SelectiveRepeat>,
    state: QpState,
    pub(crate) sq: Arc<SendQueue>,
    pub(crate) rq: Arc<RecvQueue>,
    /// The receive queue is shared with other QPs.
    shared_rq: bool,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    pub(crate) route: Option<Route>,
    pub(crate) send: SendState,
    recv: RecvState,
    pub(crate) congestion: Lazy<Congestion>,
    /// The peer understands CNPs.
    pub(crate) cnp_wanted: bool,
    /// A CNP is to be sent.
    pub(crate) cnp_owed: bool,
    pub(crate) waiting: Waiting,
    /// Priority of its data, and of answers without.
    pub(crate) priority: u8,
    pub(crate) answer_priority: u8,
    /// How long the priority had been paused when the ACK timer was set.
    pub(crate) paused_mark: u32,
    /// A request had the last turn to send data.
    pub(crate) requested_last: bool,
    pub(crate) timers: Timers,
    pub(crate) stats: Stats,
    kept: change::Kept,
    /// The peer's first packet has not come yet.
    silent: bool,
    /// Reported once.
    failed: Option<ErrorCause>,
    /// In SQD: to be reported once nothing is left that had begun.
    draining: bool,
    /// In ERR, with a shared receive queue: not reported yet.
    last_wqe: bool,
}

/// What an endpoint gives a new QP.
pub(crate) struct NewQp {
    pub(crate) qpn: Qpn,
    pub(crate) pd: Pd,
    pub(crate) service: Service,
    pub(crate) srq: Option<Arc<RecvQueue>>,
    pub(crate) max_send: u32,
    pub(crate) max_recv: u32,
    pub(crate) send_caps: QueueCaps,
    pub(crate) recv_caps: QueueCaps,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) send: SendState,
    pub(crate) congestion: Lazy<Congestion>,
}

impl Qp {
    pub(crate) fn new(new: NewQp) -> Self {
        Self {
            qpn: new.qpn,
            pd: new.pd,
            service: new.service,
            selective: None,
            state: QpState::Reset,
            sq: Arc::new(SendQueue::new(new.max_send).with_caps(new.send_caps)),
            shared_rq: new.srq.is_some(),
            rq: new
                .srq
                .unwrap_or_else(|| Arc::new(RecvQueue::new(new.max_recv).with_caps(new.recv_caps))),
            send_cq: new.send_cq,
            recv_cq: new.recv_cq,
            route: None,
            send: new.send,
            recv: RecvState::default(),
            congestion: new.congestion,
            cnp_wanted: true,
            cnp_owed: false,
            waiting: Waiting::default(),
            priority: 0,
            answer_priority: 0,
            paused_mark: 0,
            requested_last: false,
            timers: Timers::default(),
            stats: Stats::default(),
            kept: change::Kept::default(),
            silent: true,
            failed: None,
            draining: false,
            last_wqe: false,
        }
    }

    pub(crate) fn state(&self) -> QpState {
        self.state
    }

    /// Where its send and its receive requests complete.
    pub(crate) fn cqs(&self) -> [&Arc<CompletionQueue>; 2] {
        [&self.send_cq, &self.recv_cq]
    }

    fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.sq.set_state(state);
        // A shared queue has no state of any QP.
        if !self.shared_rq {
            self.rq.set_state(state);
        }
    }

    /// Whether a request may leave, as far as window and queue go.
    pub(crate) fn may_send(&self) -> bool {
        self.state.sends() && requester::may_send(&self.send, &self.sq)
    }

    /// The next request packet, which counts as sent.
    pub(crate) fn next_request(
        &mut self,
        now: Timestamp,
        regions: &mut RegionTable,
    ) -> Option<Request> {
        let mut local = Local {
            regions,
            pd: self.pd,
            qpn: self.qpn,
        };
        while self.state.sends() {
            match requester::next(&mut self.send, &self.sq, &mut local, now) {
                Step::Packet(request) if self.service.is_reliable() => return Some(request),
                Step::Packet(request) => {
                    match unacked::adapt(&mut self.send, &self.service, self.qpn, request) {
                        Ok(request) => return Some(request),
                        Err(status) => {
                            self.fail_request(self.send.next.saturating_sub(1), status);
                        }
                    }
                }
                Step::Nothing => break,
                Step::Local => {
                    let mut cq = Completions {
                        qpn: self.qpn,
                        cq: &self.send_cq,
                        stats: &mut self.stats,
                        lost: false,
                    };
                    completer::complete(&mut self.send, &self.sq, &mut cq);
                    let lost = cq.lost;
                    self.settle_sends(lost);
                }
            }
        }
        None
    }

    /// After requests have completed: a completion may have been lost, or the oldest request that is left may have failed here.
    fn settle_sends(&mut self, lost: bool) {
        if let Some(status) = self.send.front_failure() {
            let mut cq = Completions {
                qpn: self.qpn,
                cq: &self.send_cq,
                stats: &mut self.stats,
                lost: false,
            };
            completer::fail_oldest(&mut self.send, &self.sq, &mut cq, status);
            let lost = lost || cq.lost;
            self.sends_failed(status, lost);
        } else if lost {
            self.fail(ErrorCause::CqOverflow);
        }
    }

    /// The peer agreed to selective repeat; at RTR. Keeps at most `limit` packets ahead of a missing one.
    pub(crate) fn repeat_selectively(
        &mut self,
        with: SelectiveRepeat,
        limit: u32,
        budget: &Arc<Budget>,
    ) {
        self.selective = Some(with);
        let first = self.recv.expected;
        let receiver = sr::Receiver::new(with.paths, first, limit, Arc::clone(budget));
        self.recv.selective = Some(Box::new(receiver));
        let answers = sr::Answers::new(with.paths, sr::first_serial(first));
        self.recv.answers = Some(Box::new(answers));
    }

    /// What the responder has to say, or, with selective repeat, the completer of answers.
    pub(crate) fn answer_due(&self) -> Due {
        if self.send.owes_sack() {
            return Due::Control;
        }
        responder::due(&self.recv)
    }

    /// The answer that is due, which counts as sent.
    pub(crate) fn answer(&mut self, now: Timestamp, regions: &RegionTable) -> Option<Answer> {
        if let Some(sack) = self.send.take_sack() {
            return Some(responder::of_answers(&self.recv, sack));
        }
        let answer = responder::answer(&mut self.recv, regions, self.pd, self.qpn, now)?;
        if let Some(reason) = answer.fatal {
            self.fail(ErrorCause::Peer(reason));
        }
        Some(answer)
    }

    /// PSN expected next, and messages completed.
    pub(crate) fn received(&self) -> (Psn, u32) {
        (self.recv.expected, self.recv.msn)
    }

    /// Why the QP has failed since the last call.
    pub(crate) fn take_failure(&mut self) -> Option<ErrorCause> {
        self.failed.take()
    }

    /// Completion queues of a failed QP that have lost a completion, each once.
    pub(crate) fn take_overflows(&self) -> impl Iterator<Item = CqNum> + use<> {
        let failed = self.state == QpState::Err;
        let of = |cq: &CompletionQueue| if failed { cq.take_overflow() } else { None };
        [of(&self.send_cq), of(&self.recv_cq)].into_iter().flatten()
    }

    /// True once, when all that had begun before SQD is done.
    pub(crate) fn take_drained(&mut self) -> bool {
        let done = self.draining && self.state == QpState::Sqd && self.send.wqes.is_empty();
        self.draining &= !done;
        done
    }

    /// True once, when the QP takes no more from its shared receive queue.
    pub(crate) fn take_last_wqe(&mut self) -> bool {
        core::mem::take(&mut self.last_wqe)
    }

    /// True once, when the peer's first packet has come.
    pub(crate) fn take_established(&mut self) -> bool {
        self.state == QpState::Rtr && core::mem::replace(&mut self.silent, false)
    }

    /// A request of the peer; a packet that has passed all checks that need no transport.
    pub(crate) fn request(
        &mut self,
        now: Timestamp,
        regions: &mut RegionTable,
        p: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let _ = now;
        if !self.state.receives() {
            return Err(DropReason::QpState);
        }
        let mut cx = Context {
            qpn: self.qpn,
            pd: self.pd,
            regions,
            rq: &self.rq,
            shared: self.shared_rq,
            cq: &self.recv_cq,
            stats: &mut self.stats,
            lost: false,
        };
        let served = match self.service {
            Service::Unreliable => responder::uc::serve(&mut self.recv, &mut cx, p),
            _ if p.sreth.is_some() => responder::selective::serve(&mut self.recv, &mut cx, p),
            _ => responder::serve(&mut self.recv, &mut cx, p),
        };
        let lost = cx.lost;
        self.served(served, lost)
    }

    /// What the responder reports of a request.
    fn served(&mut self, served: Served, lost: bool) -> Result<(), DropReason> {
        match served {
            Served::Accepted if lost => self.fail(ErrorCause::CqOverflow),
            Served::Accepted => {}
            Served::Refused(reason) => {
                if lost {
                    self.fail(ErrorCause::CqOverflow);
                }
                return Err(reason);
            }
            Served::Fatal(reason) => {
                self.fail(ErrorCause::Peer(reason));
                return Err(reason);
            }
        }
        Ok(())
    }

    /// An answer to a request of ours; as for [`Qp::request`].
    pub(crate) fn response(&mut self, now: Timestamp, p: &Packet<'_>) -> Result<(), DropReason> {
        if let Some(sack) = p.sack.filter(|sack| sack.answers) {
            // Before anything of it is believed.
            if self.state.sends() {
                completer::selective::check(&self.send, p)?;
            }
            responder::arrived(&mut self.recv, &sack, now)?;
            if !self.state.sends() {
                return Ok(());
            }
        }
        if !self.state.sends() {
            return Err(DropReason::QpState);
        }
        let mut cq = Completions {
            qpn: self.qpn,
            cq: &self.send_cq,
            stats: &mut self.stats,
            lost: false,
        };
        let outcome = completer::answered(&mut self.send, &self.sq, &mut cq, p, now)?;
        let lost = cq.lost;
        match outcome {
            Outcome::Retry => self.stats.packet_seq_err += 1,
            Outcome::ImpliedRetry => self.stats.implied_nak_seq_err += 1,
            Outcome::Wait => self.stats.rnr_naks_received += 1,
            Outcome::Fatal { at, status } => self.fail_request(at, status),
            Outcome::Nothing | Outcome::Progress => {}
        }
        self.settle_sends(lost);
        Ok(())
    }

    /// An ACK or RNR timer is due.
    pub(crate) fn handle_timeout(&mut self, now: Timestamp) {
        if !self.state.sends() {
            return;
        }
        match completer::timeout(&mut self.send, now) {
            Outcome::Retry => self.stats.local_ack_timeout_err += 1,
            Outcome::Fatal { at, status } => {
                self.stats.local_ack_timeout_err += 1;
                self.fail_request(at, status);
            }
            Outcome::Nothing | Outcome::Progress | Outcome::ImpliedRetry | Outcome::Wait => {}
        }
    }

    /// The payload of the packet that was just sent could not be read. Requests before it complete first, if they are answered.
    pub(crate) fn payload_failed(&mut self) {
        if !self.state.sends() {
            return;
        }
        if self.service.is_reliable() {
            self.send.fail_here(Status::LocProtErr);
            self.settle_sends(false);
        } else {
            self.fail_request(self.send.latest, Status::LocProtErr);
        }
    }

    /// The payload of the READ response that was just sent could not be read.
    pub(crate) fn response_failed(&mut self) {
        if self.state.receives() || self.state == QpState::Err {
            let reason = responder::response_failed(&mut self.recv);
            self.fail(ErrorCause::Peer(reason));
        }
    }

    /// The request that holds packet `at` has failed, and with it the QP, or, of a QP without acknowledgements, its send side.
    fn fail_request(&mut self, at: u64, status: Status) {
        let mut cq = Completions {
            qpn: self.qpn,
            cq: &self.send_cq,
            stats: &mut self.stats,
            lost: false,
        };
        completer::fail(&mut self.send, &self.sq, &mut cq, at, status);
        let lost = cq.lost;
        self.sends_failed(status, lost);
    }

    fn fail(&mut self, cause: ErrorCause) {
        if self.state != QpState::Err {
            self.failed = Some(cause);
            self.enter_error();
        }
    }

    /// To ERR: every posted request is flushed. A NAK that ends the connection still leaves, and the answers before it.
    pub(crate) fn enter_error(&mut self) {
        // What was handed out before has left.
        self.handed_out();
        self.set_state(QpState::Err);
        self.last_wqe = self.shared_rq && !mutant!("last_wqe_unsaid");
        if !self.recv.owes_end() {
            responder::forget_answers(&mut self.recv);
        }
        self.cnp_owed = false;
        self.flush();
    }

    /// In SQE and ERR: completes every send that is posted. True if a completion was lost.
    fn flush_sends(&mut self) -> bool {
        let mut cq = Completions {
            qpn: self.qpn,
            cq: &self.send_cq,
            stats: &mut self.stats,
            lost: false,
        };
        completer::flush(&mut self.send, &self.sq, &mut cq);
        cq.lost
    }

    /// In ERR: completes everything that is posted.
    pub(crate) fn flush(&mut self) {
        // What was lost is seen at the queues.
        let _ = self.flush_sends();
        // No region is looked at.
        let mut regions = RegionTable::default();
        let mut cx = Context {
            qpn: self.qpn,
            pd: self.pd,
            regions: &mut regions,
            rq: &self.rq,
            shared: self.shared_rq,
            cq: &self.recv_cq,
            stats: &mut self.stats,
            lost: false,
        };
        responder::flush(&mut self.recv, &mut cx);
    }

    /// To RESET: every posted request is forgotten.
    pub(crate) fn reset(&mut self) {
        self.set_state(QpState::Reset);
        self.sq.completed(self.send.wqes.len() as u32);
        for _ in 0..self.sq.capacity() {
            if self.sq.take().is_none() {
                break;
            }
            self.sq.completed(1);
        }
        self.send.reset();
        responder::reset(&mut self.recv, &self.rq, self.shared_rq);
        self.congestion.reset();
        // The pacer is new; a timer that still comes finds nothing to do.
        self.waiting.pace = false;
        self.route = None;
        self.selective = None;
        self.cnp_wanted = true;
        self.cnp_owed = false;
        self.silent = true;
        self.failed = None;
        self.draining = false;
        self.last_wqe = false;
    }
}
