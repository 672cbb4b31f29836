//! Commands: shared receive queues come and go.
//!
//! Where several endpoints (workers) serve one address, one makes the queue, and QPs of all may take from it.
//!
//! Must not: touch a QP.

use std::sync::Arc;

use super::{Endpoint, VerbsError};
use crate::verbs::{RecvQueue, SrqAttr};

impl Endpoint {
    /// A shared receive queue (`ibv_create_srq(3)`). It takes requests at once.
    ///
    /// # Errors
    /// The number is taken, the domain is unknown, or the device allows no more of them, none so deep, or none with so many
    /// ranges; the limit is larger than the depth.
    pub fn create_srq(&mut self, attr: &SrqAttr) -> Result<Arc<RecvQueue>, VerbsError> {
        self.pds.check(attr.pd)?;
        let limits = &self.config.limits;
        let most = |what, asked: u64, limit: u32| {
            if asked <= u64::from(limit) {
                return Ok(());
            }
            let limit = u64::from(limit);
            Err(VerbsError::Limit { what, limit })
        };
        most(
            "shared receive queues",
            self.srqs.len() as u64 + 1,
            limits.max_srq,
        )?;
        most(
            "requests of a shared receive queue",
            attr.max_wr.into(),
            limits.max_srq_wr,
        )?;
        most(
            "ranges of a receive request",
            attr.max_sge.into(),
            limits.max_srq_sge,
        )?;
        most(
            "requests below the limit of this queue",
            attr.limit.into(),
            attr.max_wr,
        )?;
        if !self.srqs.insert(attr.num) {
            return Err(VerbsError::SrqTaken(attr.num));
        }
        self.pds.used(attr.pd);
        Ok(RecvQueue::shared(attr))
    }

    /// Removes a shared receive queue, which this endpoint made. Requests in it never complete.
    ///
    /// # Errors
    /// QPs take from it, here or at another endpoint; or it is none of this endpoint's.
    pub fn destroy_srq(&mut self, srq: &Arc<RecvQueue>) -> Result<(), VerbsError> {
        let (num, pd) = srq.srq_num().zip(srq.pd()).ok_or(VerbsError::NotSrq)?;
        if !self.srqs.contains(&num) {
            return Err(VerbsError::NotSrq);
        }
        let users = srq.users();
        if users > 0 {
            return Err(VerbsError::SrqBusy { srq: num, users });
        }
        self.srqs.remove(&num);
        self.pds.unused(pd);
        Ok(())
    }
}
