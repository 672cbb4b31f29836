//! Completion queues: where finished work requests show.
//!
//! One queue may serve several QPs and endpoints (workers); any thread polls. A full queue loses the completion and says so
//! ([`CompletionQueue::overflowed`]); the QP then goes to ERR, as `ibv_create_cq(3)` has it, and the endpoint reports the queue.
//!
//! Whoever waits has two ways: a waker of the queue's own, called when a completion comes after the queue was found empty; or
//! the verbs' one, a channel that queues share, on which an armed queue makes one event.
//!
//! Must not: know packets or block: resizing holds others up for as long as a copy takes.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak};

use crossbeam_queue::ArrayQueue;

use super::channel::CompletionChannel;
use crate::ids::{CqNum, Qpn, RKey, WrId};

/// How a work request ended: meaning and order of `enum ibv_wc_status`, those that RC, UC and UD can give.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// Message longer than the receive request's memory.
    LocLenErr = 1,
    /// The QP could not carry the request out.
    LocQpOpErr = 2,
    /// Local memory could not be read or written.
    LocProtErr = 4,
    /// The QP went to ERR before the request was carried out.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The answer was not the one to this request.
    BadRespErr = 7,
    /// The region does not allow this locally.
    LocAccessErr = 8,
    /// The peer called the request invalid.
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    RemAccessErr = 10,
    /// The peer could not carry the request out.
    RemOpErr = 11,
    /// No answer within all retries.
    RetryExcErr = 12,
    /// The peer had no receive request within all RNR retries.
    RnrRetryExcErr = 13,
}

impl Status {
    /// All statuses.
    pub const ALL: [Self; 13] = [
        Self::Success,
        Self::LocLenErr,
        Self::LocQpOpErr,
        Self::LocProtErr,
        Self::WrFlushErr,
        Self::MwBindErr,
        Self::BadRespErr,
        Self::LocAccessErr,
        Self::RemInvReqErr,
        Self::RemAccessErr,
        Self::RemOpErr,
        Self::RetryExcErr,
        Self::RnrRetryExcErr,
    ];
}

/// The text of `ibv_wc_status_str(3)`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error",
            Self::LocQpOpErr => "local QP operation error",
            Self::LocProtErr => "local protection error",
            Self::WrFlushErr => "Work Request Flushed Error",
            Self::MwBindErr => "memory bind operation error",
            Self::BadRespErr => "bad response error",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "remote invalid request error",
            Self::RemAccessErr => "remote access error",
            Self::RemOpErr => "remote operation error",
            Self::RetryExcErr => "transport retry counter exceeded",
            Self::RnrRetryExcErr => "RNR retry counter exceeded",
        })
    }
}

/// What kind of request completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CqeOpcode {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// WRITE, with or without immediate.
    Write,
    /// READ.
    Read,
    /// COMPARE_SWAP.
    CompareSwap,
    /// FETCH_ADD.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// Bind of a memory window.
    BindMw,
    /// Local invalidate.
    LocalInvalidate,
    /// A message came by SEND.
    Recv,
    /// A WRITE with immediate came.
    RecvWriteImm,
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// The request's.
    pub wr_id: WrId,
    /// The local QP.
    pub qpn: Qpn,
    /// Kind of request. For a failed receive always [`CqeOpcode::Recv`].
    pub opcode: CqeOpcode,
    /// How it ended. Unless [`Status::Success`], only `wr_id`, `qpn` and this mean anything.
    pub status: Status,
    /// Bytes of the message. UD receive: with the 40 bytes of the GRH.
    pub byte_len: u32,
    /// The peer's 32 bits.
    pub imm: Option<u32>,
    /// The key that the peer's SEND with invalidate has withdrawn.
    pub invalidated: Option<RKey>,
    /// UD receive: the sender's QP.
    pub src_qpn: Option<Qpn>,
    /// UD receive: the first 40 bytes of the memory hold the IP header (`IBV_WC_GRH`; read it with [`crate::wire::Grh`]).
    pub grh: bool,
    /// The peer asked for a solicited event.
    pub solicited: bool,
}

/// Called when a completion comes after the queue was found empty.
type Waker = Box<dyn Fn() + Send + Sync>;

/// What the next event on the channel is armed for; a number, since it is kept in an atomic.
const UNARMED: u8 = 0;
/// A completion of a message with the solicited event bit, or one with an error.
const SOLICITED: u8 = 1;
/// Any completion.
const NEXT: u8 = 2;

/// Most places of a completion queue.
pub const MAX_CQE: u32 = 1 << 22;

/// A queue can't have so many places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResizeError {
    /// They are too few.
    #[error("the queue holds {held} completions, more than {asked}: poll it first")]
    Held {
        /// Completions in it.
        held: usize,
        /// Places asked for.
        asked: u32,
    },
    /// They are too many.
    #[error("max_cqe: {asked} places asked for, and a completion queue has at most {most}")]
    TooDeep {
        /// Places asked for.
        asked: u32,
        /// The most there may be.
        most: u32,
    },
}

/// A completion queue.
pub struct CompletionQueue {
    /// Replaced when the queue is resized.
    ring: RwLock<ArrayQueue<Cqe>>,
    /// Places that were asked for last: those of the ring, unless it was made for more than any device allows.
    asked: AtomicU32,
    /// Places that it may get: what the endpoints whose QPs use it allow.
    most: AtomicU32,
    num: CqNum,
    overflowed: AtomicBool,
    /// The overflow was reported.
    reported: AtomicBool,
    /// Set once the waker was called, cleared by a poll that finds nothing: so one call covers a burst and none is lost.
    told: AtomicBool,
    waker: RwLock<Option<Waker>>,
    armed: AtomicU8,
    /// Where to notify, and by which name.
    channel: Option<(Arc<CompletionChannel>, Weak<Self>)>,
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({} of {})", self.len(), self.capacity())
    }
}

impl CompletionQueue {
    /// A queue for `depth` completions (at least 1). One that is deeper than the device allows serves no QP: `Endpoint::create_qp`
    /// refuses it, naming the limit; where that is beyond [`MAX_CQE`], room is not even made for it.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        let places = if depth <= MAX_CQE { depth.max(1) } else { 1 };
        Self {
            ring: RwLock::new(ArrayQueue::new(places as usize)),
            asked: AtomicU32::new(depth),
            most: AtomicU32::new(MAX_CQE),
            num: CqNum::default(),
            overflowed: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            told: AtomicBool::new(false),
            waker: RwLock::new(None),
            armed: AtomicU8::new(UNARMED),
            channel: None,
        }
    }

    /// As [`CompletionQueue::new`], under a number by which events name it.
    #[must_use]
    pub fn numbered(depth: u32, num: CqNum) -> Self {
        Self {
            num,
            ..Self::new(depth)
        }
    }

    /// As [`CompletionQueue::numbered`], with events on a channel when asked for
    /// ([`CompletionQueue::request_notify`]).
    #[must_use]
    pub fn on_channel(depth: u32, num: CqNum, channel: &Arc<CompletionChannel>) -> Arc<Self> {
        channel.join();
        Arc::new_cyclic(|this| Self {
            channel: Some((Arc::clone(channel), Weak::clone(this))),
            ..Self::numbered(depth, num)
        })
    }

    /// Its number.
    #[must_use]
    pub fn num(&self) -> CqNum {
        self.num
    }

    /// Its channel.
    #[must_use]
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref().map(|(channel, _)| channel)
    }

    /// Arms the queue (`ibv_req_notify_cq(3)`): the next completion that comes makes one event on the channel; with
    /// `solicited_only`, the next one of a message with the solicited event bit, or with an error. Armed for any, it stays so.
    /// Completions that are there already make none: poll after arming. False if it has no channel.
    pub fn request_notify(&self, solicited_only: bool) -> bool {
        let asked = if solicited_only { SOLICITED } else { NEXT };
        self.armed.fetch_max(asked, Ordering::SeqCst);
        self.channel.is_some()
    }

    /// The oldest completion.
    ///
    /// After `None` the next completion calls the waker, so a thread may sleep then.
    pub fn poll(&self) -> Option<Cqe> {
        let ring = self.ring();
        if let Some(cqe) = ring.pop() {
            return Some(cqe);
        }
        // Look again: what was pushed before the store may have skipped the call.
        self.told.store(false, Ordering::SeqCst);
        ring.pop()
    }

    /// Completions not polled yet.
    pub fn len(&self) -> usize {
        self.ring().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ring().is_empty()
    }

    /// Completions that fit.
    pub fn capacity(&self) -> usize {
        self.ring().capacity()
    }

    /// Gives the queue `depth` places (at least 1); what is in it stays, in order (`ibv_resize_cq(3)`).
    ///
    /// # Errors
    /// More completions are in it, or the device allows fewer; nothing has changed.
    pub fn resize(&self, depth: u32) -> Result<(), ResizeError> {
        let asked = depth.max(1);
        let most = self.most.load(Ordering::Acquire);
        if asked > most {
            return Err(ResizeError::TooDeep { asked, most });
        }
        let new = ArrayQueue::new(asked as usize);
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        let held = ring.len();
        if held > asked as usize {
            return Err(ResizeError::Held { held, asked });
        }
        while let Some(cqe) = ring.pop() {
            // It has room, as was just seen.
            let _ = new.push(cqe);
        }
        *ring = new;
        self.asked.store(asked, Ordering::Release);
        Ok(())
    }

    /// Places that were asked for last.
    pub(crate) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// An endpoint uses it, whose device allows so many places.
    pub(crate) fn bound(&self, most: u32) {
        self.most.fetch_min(most, Ordering::AcqRel);
    }

    /// Whether a completion was ever lost because the queue was full.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// The number, once, if a completion was lost.
    pub(crate) fn take_overflow(&self) -> Option<CqNum> {
        let silent = mutant!("cq_overflow_unreported");
        (self.overflowed() && !silent && !self.reported.swap(true, Ordering::AcqRel))
            .then_some(self.num)
    }

    /// Sets what is called when a completion comes after a poll found the queue empty. It runs on the engine's thread: keep
    /// it short (an eventfd write), and don't call into the endpoint.
    pub fn set_waker(&self, waker: Box<dyn Fn() + Send + Sync>) {
        *self.waker.write().unwrap_or_else(PoisonError::into_inner) = Some(waker);
        self.told.store(false, Ordering::SeqCst);
    }

    /// Adds a completion; false if it was lost.
    pub(crate) fn push(&self, cqe: Cqe) -> bool {
        if self.ring().push(cqe).is_err() {
            if mutant!("cq_overflow_unnoticed") {
                return true;
            }
            self.overflowed.store(true, Ordering::Release);
            return false;
        }
        if !self.told.swap(true, Ordering::SeqCst)
            && let Some(wake) = self
                .waker
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .as_ref()
        {
            wake();
        }
        let armed = self.armed.load(Ordering::SeqCst);
        if armed != UNARMED {
            self.announce(armed, &cqe);
        }
        true
    }

    /// A completion has come to an armed queue.
    fn announce(&self, armed: u8, cqe: &Cqe) {
        let fires = armed == NEXT || cqe.solicited || cqe.status != Status::Success;
        if fires
            && self.armed.swap(UNARMED, Ordering::SeqCst) != UNARMED
            && let Some((channel, this)) = &self.channel
        {
            channel.notify(this);
        }
    }

    fn ring(&self) -> RwLockReadGuard<'_, ArrayQueue<Cqe>> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(n: u64) -> Cqe {
        Cqe {
            wr_id: WrId(n),
            qpn: Qpn::new(1),
            opcode: CqeOpcode::Send,
            status: Status::Success,
            byte_len: 0,
            imm: None,
            invalidated: None,
            src_qpn: None,
            grh: false,
            solicited: false,
        }
    }

    #[test]
    fn the_waker_is_called_once_after_each_time_the_queue_was_found_empty() {
        let cq = CompletionQueue::new(4);
        let calls = Arc::new(AtomicU32::new(0));
        let seen = calls.clone();
        cq.set_waker(Box::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        }));
        assert!(cq.push(cqe(1)) && cq.push(cqe(2)));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(cq.poll().unwrap().wr_id, WrId(1));
        assert!(cq.push(cqe(3)));
        assert_eq!(
            calls.load(Ordering::Relaxed),
            1,
            "the poller has not seen it empty yet"
        );
        while cq.poll().is_some() {}
        assert!(cq.push(cqe(4)));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_full_queue_reports_what_it_lost() {
        let cq = CompletionQueue::new(1);
        assert!(cq.push(cqe(1)) && !cq.overflowed());
        assert!(!cq.push(cqe(2)) && cq.overflowed());
    }

    #[test]
    fn statuses_have_the_numbers_of_ibv_wc_status() {
        assert_eq!(
            Status::ALL.map(|s| s as u8),
            [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
        );
        assert_eq!(
            Status::RetryExcErr.to_string(),
            "transport retry counter exceeded"
        );
    }
}
