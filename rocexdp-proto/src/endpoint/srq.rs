//! Commands: shared receive queues come and go.
//!
//! Where several endpoints (workers) serve one address, one makes the queue, and QPs of all may take from it.
//!
//! Must not: touch a QP.

use std::sync::Arc;

use super::limit::{at_most, room};
use super::{Endpoint, VerbsError};
use crate::ids::{Pd, SrqNum};
use crate::verbs::{RecvQueue, SrqAttr};

const MAX_WR: &str = "max_srq_wr: the depth of a shared receive queue";
const LIMIT: &str = "limit: the requests below which a shared receive queue tells, of its depth";

impl Endpoint {
    /// A shared receive queue (`ibv_create_srq(3)`). It takes requests at once.
    ///
    /// # Errors
    /// The number is taken, the domain is unknown, or the device allows no more of them, none so deep, or none with so many
    /// ranges; the depth is 0 (drivers/infiniband/sw/rxe/rxe_srq.c `rxe_srq_chk_init`); the limit is larger than the depth.
    pub fn create_srq(&mut self, attr: &SrqAttr) -> Result<Arc<RecvQueue>, VerbsError> {
        self.pds.check(attr.pd)?;
        let limits = &self.config.limits;
        room(
            "shared receive queues (max_srq)",
            self.srqs.len(),
            limits.max_srq,
        )?;
        at_most(MAX_WR, attr.max_wr, limits.max_srq_wr)?;
        if attr.max_wr == 0 {
            return Err(VerbsError::SrqDepth {
                srq: attr.num,
                depth: 0,
                held: 0,
            });
        }
        at_most(
            "max_srq_sge: the ranges of a receive request",
            attr.max_sge,
            limits.max_srq_sge,
        )?;
        at_most(LIMIT, attr.limit, attr.max_wr)?;
        if !self.srqs.insert(attr.num) {
            return Err(VerbsError::SrqTaken(attr.num));
        }
        self.pds.used(attr.pd);
        Ok(RecvQueue::shared(attr))
    }

    /// Gives a shared receive queue, which this endpoint made, another depth, arms its limit, or both (`ibv_modify_srq(3)`,
    /// `IBV_SRQ_MAX_WR`, `IBV_SRQ_LIMIT`). What is in it stays, in order. [`RecvQueue::arm_limit`] does the latter alone, from
    /// any thread.
    ///
    /// # Errors
    /// The depth is 0, more than the device allows, less than the limit (drivers/infiniband/sw/rxe/rxe_srq.c
    /// `rxe_srq_chk_attr`), or less than the requests that have not completed; the limit is larger than the depth; or the queue
    /// is none of this endpoint's. Nothing has changed.
    pub fn modify_srq(
        &mut self,
        srq: &Arc<RecvQueue>,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbsError> {
        let (num, _) = self.own_srq(srq)?;
        let depth = max_wr.unwrap_or(srq.capacity());
        at_most(MAX_WR, depth, self.config.limits.max_srq_wr)?;
        at_most(LIMIT, limit.unwrap_or(srq.limit()), depth)?;
        if max_wr.is_some() {
            let resized = if depth == 0 {
                Err(srq.len())
            } else {
                srq.resize(depth)
            };
            resized.map_err(|held| VerbsError::SrqDepth {
                srq: num,
                depth,
                held,
            })?;
        }
        if let Some(limit) = limit {
            // It fits, as was just seen.
            let _ = srq.arm_limit(limit);
        }
        Ok(())
    }

    fn own_srq(&self, srq: &Arc<RecvQueue>) -> Result<(SrqNum, Pd), VerbsError> {
        let parts = srq.srq_num().zip(srq.pd());
        parts
            .filter(|(num, _)| self.srqs.contains(num))
            .ok_or(VerbsError::NotSrq)
    }

    /// Removes a shared receive queue, which this endpoint made. Requests in it never complete.
    ///
    /// # Errors
    /// QPs take from it, here or at another endpoint; or it is none of this endpoint's.
    pub fn destroy_srq(&mut self, srq: &Arc<RecvQueue>) -> Result<(), VerbsError> {
        let (num, pd) = self.own_srq(srq)?;
        let users = srq.users();
        if users > 0 {
            return Err(VerbsError::SrqBusy { srq: num, users });
        }
        self.srqs.remove(&num);
        self.pds.unused(pd);
        Ok(())
    }
}
