//! The responder: serves the peer's requests.
//!
//! A request passes, in this order: `check_psn` -> `check_op_seq` -> `check_op_valid` -> `check_resource` -> `check_length`
//! -> `check_rkey` -> `execute` -> `acknowledge`, as in drivers/infiniband/sw/rxe/rxe_resp.c. Until `execute` nothing has
//! changed but counters and the answer that is owed, so a refused packet can come again.
//!
//! | file | role |
//! |---|---|
//! | `check.rs` | the checks |
//! | `execute.rs` | the payload of one packet placed, apart from that the state moved on |
//! | `resources.rs` | READs, atomics, FLUSHes and ATOMIC WRITEs as they were carried out, and what is left of their answers |
//! | `answer.rs` | which answer leaves next |
//! | `selective.rs` | the same where the peer repeats selectively: what comes early is placed, or kept |
//! | `flush.rs` | receive requests that end without a message |
//! | `uc.rs` | the same for UC: other ends, no answers |
//!
//! Must not: know of our own requests, or change the QP's state: it reports what is fatal.

mod answer;
mod check;
mod execute;
mod flush;
mod resources;
pub(super) mod selective;
pub(super) mod uc;

use rocexdp_common::headers::Syndrome;
use rocexdp_common::maps::QpEngine;
use rocexdp_common::opcode::{Operation, Position};

pub(crate) use answer::{
    Answer, AnswerData, Due, answer, arrived, due, of_answers, response_failed,
};
use answer::{Owed, Unanswered, acknowledge, note_dropped};
use check::{check_length, check_op_seq, check_op_valid, check_psn, check_resource, check_rkey};
use execute::execute;
pub(crate) use flush::{flush, forget_answers, reset};
use resources::{Again, Resources};

use super::attr::RtrAttr;
use super::completions::Completions;
use super::sr::{Answers, Receiver};
use crate::drop::DropReason;
use crate::ids::{PathMtu, Pd, Psn, Qpn, RKey};
use crate::mem::{Access, MemoryFault, Place, RegionTable};
use crate::verbs::{CompletionQueue, CqeOpcode, RecvQueue, RecvWr, Status};
use crate::wire::Packet;

/// A message, or a request of one packet. While it lasts it is kept as of behind the packet that came last.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    operation: Operation,
    /// Unless SEND: where the next byte is, and under which key.
    va: u64,
    rkey: RKey,
    /// SEND: bytes that came. Else: bytes to come.
    bytes: u32,
    /// Unless SEND: bytes of the message.
    total: u32,
}

/// State of the receive side.
#[derive(Debug)]
pub(crate) struct RecvState {
    /// PSN of the next request.
    pub(crate) expected: Psn,
    /// Its number: request packets, counted from 0 without wrap; a READ counts as many as its answer has.
    received: u64,
    /// Messages completed, 24 bits.
    pub(crate) msn: u32,
    /// The present gap, or unreadiness, was reported: more of it is dropped in silence.
    nak_sent: bool,
    /// What the answer that is owed has to cover besides.
    unanswered: Unanswered,
    message: Option<Incoming>,
    /// The receive request that the message (SEND), or its end (WRITE with immediate), consumes.
    current: Option<RecvWr>,
    owed: Owed,
    resources: Resources,
    /// Selective repeat, where the peer agreed to it.
    pub(crate) selective: Option<Box<Receiver>>,
    /// And its books of our answers.
    pub(crate) answers: Option<Box<Answers>>,
    /// PSN of the packet that [`answer`] gave last.
    answered: Psn,
    /// Attributes.
    pub(crate) path_mtu: PathMtu,
    pub(crate) access: Access,
    pub(crate) min_rnr_timer: u8,
}

impl Default for RecvState {
    fn default() -> Self {
        Self {
            expected: Psn::new(0),
            received: 0,
            msn: 0,
            nak_sent: false,
            unanswered: Unanswered::default(),
            message: None,
            current: None,
            owed: Owed::Nothing,
            resources: Resources::default(),
            selective: None,
            answers: None,
            answered: Psn::new(0),
            path_mtu: PathMtu::Mtu1024,
            access: Access::NONE,
            min_rnr_timer: 0,
        }
    }
}

impl RecvState {
    /// Starts, at RTR.
    pub(crate) fn start(&mut self, attr: &RtrAttr) {
        self.expected = attr.rq_psn;
        self.path_mtu = attr.path_mtu;
        self.min_rnr_timer = attr.min_rnr_timer;
        self.resources = Resources::new(attr.max_dest_rd_atomic);
    }

    /// Another number of responder resources. What is kept already stays until its place is needed.
    pub(crate) fn set_max_dest_rd_atomic(&mut self, depth: u8) {
        self.resources.set_depth(depth);
    }

    /// Whether the answer that ends the connection has not left yet.
    pub(crate) fn owes_end(&self) -> bool {
        matches!(self.owed, Owed::Fatal(..))
    }

    /// Number of the packet with this PSN, that nearest to the expected one; `None` before packet 0.
    fn number(&self, psn: Psn) -> Option<u64> {
        let distance = i64::from(psn.diff(self.expected));
        self.received.checked_add_signed(distance)
    }

    /// PSN of a packet that came before the expected one.
    fn psn(&self, number: u64) -> Psn {
        let behind = self.received.wrapping_sub(number);
        self.expected.sub((behind & 0xff_ffff) as u32)
    }
}

/// What the responder works with besides its state.
pub(crate) struct Context<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) pd: Pd,
    pub(crate) regions: &'a mut RegionTable,
    pub(crate) rq: &'a RecvQueue,
    /// The receive queue is shared with other QPs (SRQ).
    pub(crate) shared: bool,
    pub(crate) cq: &'a CompletionQueue,
    pub(crate) stats: &'a mut QpEngine,
    /// A completion was lost: the queue was full.
    pub(crate) lost: bool,
}

impl Context<'_> {
    /// The memory, and where in it `len` bytes from `va` on lie, if this key allows the QP's peer to do so.
    fn locate(
        &self,
        rkey: RKey,
        va: u64,
        len: u64,
        right: Access,
    ) -> Result<(Place<'_>, u64), Refusal> {
        let reach = self.regions.reach(rkey, self.pd, self.qpn);
        reach
            .and_then(|r| r.locate(va, len, right))
            .ok_or(Refusal::ACCESS)
    }

    /// Whether a receive request's memory is of the QP's protection domain (of the shared queue's, if it is one), live and may
    /// be written to.
    ///
    /// # Errors
    /// [`MemoryFault`] if not.
    pub(crate) fn may_receive(&self, wr: &RecvWr) -> Result<(), MemoryFault> {
        wr.local.check(self.rq.pd().unwrap_or(self.pd), true)
    }

    /// First address and bytes of all that this key names.
    fn whole(&self, rkey: RKey) -> Result<(u64, u64), Refusal> {
        let reach = self.regions.reach(rkey, self.pd, self.qpn);
        reach.and_then(|r| r.whole()).ok_or(Refusal::ACCESS)
    }

    /// The receive request is done.
    #[allow(clippy::too_many_arguments)] // A completion has so many fields.
    fn finish(
        &mut self,
        wr: &RecvWr,
        opcode: CqeOpcode,
        status: Status,
        bytes: u32,
        imm: Option<u32>,
        invalidated: Option<RKey>,
        solicited: bool,
    ) {
        self.rq.completed(1);
        let mut cq = Completions {
            qpn: self.qpn,
            cq: self.cq,
            stats: self.stats,
            lost: false,
        };
        cq.done(status);
        cq.received(wr.wr_id, opcode, status, bytes, imm, invalidated, solicited);
        self.lost |= cq.lost;
    }

    /// The receive request ends without a message.
    fn fail(&mut self, wr: &RecvWr, status: Status) {
        self.finish(wr, CqeOpcode::Recv, status, 0, None, None, false);
    }
}

/// Why a request is not served.
enum Refusal {
    /// Before the expected PSN: answered again.
    Duplicate,
    /// Behind a gap.
    Gap,
    /// No receive request.
    NotReady,
    /// Ends the connection: what the peer is told, and how the receive request in use ends.
    Fatal {
        syndrome: Syndrome,
        reason: DropReason,
        status: Status,
    },
}

impl Refusal {
    const INVALID: Self = Self::Fatal {
        syndrome: Syndrome::NakInvalidRequest,
        reason: DropReason::InvalidRequest,
        status: Status::RemInvReqErr,
    };
    const TOO_LONG: Self = Self::Fatal {
        syndrome: Syndrome::NakInvalidRequest,
        reason: DropReason::InvalidRequest,
        status: Status::LocLenErr,
    };
    const ACCESS: Self = Self::Fatal {
        syndrome: Syndrome::NakRemoteAccess,
        reason: DropReason::RemoteAccess,
        status: Status::RemAccessErr,
    };
    /// The key to invalidate is none (rxe_resp.c `RESPST_ERR_INVALIDATE_RKEY` gives the receive request this status).
    const INVALIDATE: Self = Self::Fatal {
        syndrome: Syndrome::NakRemoteAccess,
        reason: DropReason::RemoteAccess,
        status: Status::RemInvReqErr,
    };
    const FAULT: Self = Self::Fatal {
        syndrome: Syndrome::NakRemoteOperational,
        reason: DropReason::RemoteOperational,
        status: Status::LocProtErr,
    };
}

/// How a request was dealt with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// Executed, or a duplicate.
    Accepted,
    /// Refused; the connection goes on.
    Refused(DropReason),
    /// Refused, and the QP has failed.
    Fatal(DropReason),
}

/// Serves a request packet whose ICRC, addresses and transport are right.
pub(crate) fn serve(s: &mut RecvState, cx: &mut Context<'_>, p: &Packet<'_>) -> Served {
    // The parser knows the opcode.
    let Some((operation, position)) = p.bth.opcode.decode() else {
        return Served::Refused(DropReason::UnknownOpcode);
    };
    match chain(s, cx, p, operation, position) {
        Ok(()) => Served::Accepted,
        Err(refusal) => refuse(s, cx, p, operation, refusal),
    }
}

fn chain(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    operation: Operation,
    position: Position,
) -> Result<(), Refusal> {
    check_psn(s, p)?;
    check_op_seq(s, operation, position)?;
    check_op_valid(s, p, operation)?;
    check_resource(s, cx, p, operation, position)?;
    let message = check_length(s, p, operation, position)?;
    check_rkey(s, cx, p, &message)?;
    execute(s, cx, p, message, position)?;
    acknowledge(s, &p.bth, operation);
    Ok(())
}

/// The other way out of the chain: the answer to a request that is not served.
fn refuse(
    s: &mut RecvState,
    cx: &mut Context<'_>,
    p: &Packet<'_>,
    operation: Operation,
    refusal: Refusal,
) -> Served {
    match refusal {
        Refusal::Duplicate => {
            cx.stats.duplicate_request += 1;
            if mutant!("atomic_twice")
                && let Ok(m) = check_length(s, p, operation, Position::Only)
                && matches!(operation, Operation::CompareSwap | Operation::FetchAdd)
            {
                let _ = execute::atomic(cx, p, &m);
            }
            duplicate_request(s, p, operation)
        }
        Refusal::Gap => {
            cx.stats.out_of_sequence += 1;
            note_dropped(s, &p.bth);
            Served::Refused(DropReason::OutOfSequence)
        }
        Refusal::NotReady => {
            s.nak_sent = true;
            s.unanswered.asked |= p.bth.ack_req;
            s.owed = Owed::NotReady;
            Served::Refused(DropReason::ReceiverNotReady)
        }
        Refusal::Fatal {
            syndrome,
            reason,
            status,
        } => {
            s.owed = Owed::Fatal(syndrome, s.expected);
            if let Some(wr) = s.current.take() {
                cx.fail(&wr, status);
            }
            Served::Fatal(reason)
        }
    }
}

/// A request that was carried out already (rxe_resp.c `duplicate_request`). SEND and WRITE are acknowledged again, always, even
/// without AckReq, since the ACK may have been lost (C9-105); the others are answered from what is kept of them, and what can't
/// be is dropped in silence.
fn duplicate_request(s: &mut RecvState, p: &Packet<'_>, operation: Operation) -> Served {
    // None: before the first packet of all.
    let number = s.number(p.bth.psn);
    let asked = match operation {
        Operation::Send | Operation::Write => {
            if !mutant!("duplicate_not_acknowledged") {
                s.acknowledge_again(number);
            }
            return Served::Accepted;
        }
        Operation::ReadRequest => p.reth.filter(|_| p.payload.is_empty()).map(Again::Read),
        _ => Some(Again::Other(operation)),
    };
    let answered = number
        .zip(asked)
        .is_some_and(|(n, a)| match &mut s.answers {
            Some(answers) => {
                let sent = s.resources.sent_of(n, a, s.path_mtu);
                let known = sent.is_some();
                sent.into_iter().flatten().for_each(|n| answers.suspect(n));
                known
            }
            None => s.resources.again(n, a, s.path_mtu),
        });
    if answered {
        Served::Accepted
    } else {
        Served::Refused(DropReason::DuplicateUnanswered)
    }
}
