//! Where requester side and responder put completions: the QP's queue, with the books kept.
//!
//! Must not: decide when a request is complete.

use rocexdp_common::maps::QpEngine;

use crate::ids::{Qpn, RKey, WrId};
use crate::verbs::{CompletionQueue, Cqe, CqeOpcode, Status};

/// A completion queue as one QP's side sees it.
pub(crate) struct Completions<'a> {
    pub(crate) qpn: Qpn,
    pub(crate) cq: &'a CompletionQueue,
    pub(crate) stats: &'a mut QpEngine,
    /// A completion was lost: the queue was full.
    pub(crate) lost: bool,
}

impl Completions<'_> {
    /// A work request is done.
    pub(crate) fn done(&mut self, status: Status) {
        self.stats.completions += 1;
        self.stats.completions_err += u64::from(status != Status::Success);
    }

    pub(crate) fn push(
        &mut self,
        wr_id: WrId,
        opcode: CqeOpcode,
        status: Status,
        byte_len: u32,
        imm: Option<u32>,
        solicited: bool,
    ) {
        self.put(Cqe {
            wr_id,
            qpn: self.qpn,
            opcode,
            status,
            byte_len,
            imm,
            invalidated: None,
            src_qpn: None,
            grh: false,
            solicited,
        });
    }

    /// A receive request is done.
    #[allow(clippy::too_many_arguments)] // A completion has so many fields.
    pub(crate) fn received(
        &mut self,
        wr_id: WrId,
        opcode: CqeOpcode,
        status: Status,
        byte_len: u32,
        imm: Option<u32>,
        invalidated: Option<RKey>,
        solicited: bool,
    ) {
        self.put(Cqe {
            wr_id,
            qpn: self.qpn,
            opcode,
            status,
            byte_len,
            imm,
            invalidated,
            src_qpn: None,
            grh: false,
            solicited,
        });
    }

    /// A completion as a whole.
    pub(crate) fn put(&mut self, cqe: Cqe) {
        self.lost |= !self.cq.push(cqe);
    }
}
