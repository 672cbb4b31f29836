//! What a send request does or needs on this host: local operations on keys, and the right to use its memory.
//!
//! Follows drivers/infiniband/sw/rxe (rxe_req.c `rxe_do_local_ops`, rxe_mr.c `lookup_mr`). Must not: know packets.

use crate::ids::{Pd, Qpn};
use crate::mem::{RegionTable, WindowBind};
use crate::verbs::{SendOp, SendWr, Status};

/// An endpoint's keys, as a QP may use them.
pub(crate) struct Local<'a> {
    pub(crate) regions: &'a mut RegionTable,
    pub(crate) pd: Pd,
    pub(crate) qpn: Qpn,
}

impl Local<'_> {
    /// Carries out an operation that never leaves the host.
    ///
    /// # Errors
    /// How the request fails; nothing has changed.
    pub(crate) fn carry_out(&mut self, op: &SendOp) -> Result<(), Status> {
        match *op {
            SendOp::BindMw {
                window,
                rkey,
                region,
                va,
                len,
                access,
            } => {
                let bind = WindowBind {
                    window,
                    rkey,
                    region,
                    va,
                    len,
                    access,
                };
                self.regions
                    .bind_window(self.pd, self.qpn, bind)
                    .map_err(|_| Status::MwBindErr)
            }
            SendOp::LocalInvalidate(key) => self
                .regions
                .invalidate(self.pd, self.qpn, key)
                .map_err(|_| Status::LocQpOpErr),
            _ => Err(Status::LocQpOpErr),
        }
    }

    /// Looks at a request's memory when its turn comes.
    ///
    /// # Errors
    /// [`Status::LocProtErr`]: it may not be read, or not be written to where the answer brings bytes.
    pub(crate) fn check(&self, wr: &SendWr) -> Result<(), Status> {
        wr.local
            .check(self.pd, wr.op.fetches())
            .map_err(|_| Status::LocProtErr)
    }
}
