//! The requester of UC and UD: RC's, but nothing is acknowledged. What has been handed out is as good as acknowledged, so there
//! is no window, no timer and no sending again, and what lets a packet out is DCQCN's pacer alone. A request completes once its
//! last packet has been handed out and read from memory.
//!
//! UC's opcodes are RC's in another range (rxe_opcode.c). A request that fails here stops the sending half only: the QP goes to
//! SQE (`qp_state_table` of drivers/infiniband/core/verbs.c has it for UC and UD).
//!
//! Follows drivers/infiniband/sw/rxe/rxe_req.c (`next_opcode_uc`, `init_req_packet`) and the captures of UC and UD: AckReq is
//! clear. Must not: know how a packet is carried.

use rocexdp_common::opcode::{Opcode, Transport};

use super::completions::Completions;
use super::requester::Request;
use super::send::SendState;
use super::service::Service;
use super::{ErrorCause, Qp, completer, ud};
use crate::ids::Qpn;
use crate::verbs::{QpState, Status};

/// Makes of RC's packet, which was booked as sent last, the service's; or why its request can't be sent.
pub(super) fn adapt(
    s: &mut SendState,
    service: &Service,
    qpn: Qpn,
    mut request: Request,
) -> Result<Request, Status> {
    s.ack_deadline = None;
    s.timed = None;
    request.ack_req = false;
    request.opcode = opcode(request.opcode, service.transport());
    if let Service::Datagram(own) = service {
        let wr = s.wqes.get(request.wqe).map(|wqe| &wqe.wr);
        let deth = wr.and_then(|wr| ud::deth(own, qpn, wr));
        request.deth = Some(deth.ok_or(Status::LocQpOpErr)?);
    }
    Ok(request)
}

/// RC's opcode in the range of another service.
fn opcode(rc: Opcode, transport: Transport) -> Opcode {
    Opcode(rc.0 | (transport as u8) << 5)
}

impl Qp {
    /// The payload of the packets handed out so far has been read: without acknowledgements, that completes requests.
    pub(crate) fn handed_out(&mut self) {
        if self.service.is_reliable() || !self.state.sends() {
            return;
        }
        let mut cq = Completions {
            qpn: self.qpn,
            cq: &self.send_cq,
            stats: &mut self.stats,
            lost: false,
        };
        self.send.acknowledge(self.send.next);
        completer::complete(&mut self.send, &self.sq, &mut cq);
        let lost = cq.lost;
        self.settle_sends(lost);
    }

    /// In SQE: completes every send that is posted. Where their queue is full, that fails the QP as a whole.
    pub(crate) fn flush_stopped(&mut self) {
        if self.flush_sends() {
            self.fail(ErrorCause::CqOverflow);
        }
    }

    /// A request has failed here, and all behind it are flushed: RC fails as a whole, UC and UD as senders.
    pub(super) fn sends_failed(&mut self, status: Status, lost: bool) {
        if self.service.is_reliable() {
            self.fail(ErrorCause::Request(status));
        } else if lost {
            self.fail(ErrorCause::CqOverflow);
        } else {
            self.set_state(QpState::Sqe);
            // In SQD the queue has kept what was posted.
            self.flush_stopped();
        }
    }
}
