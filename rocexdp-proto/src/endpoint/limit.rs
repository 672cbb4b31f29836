//! The ways in which a limit of the device is reached, and the completion queues in use, which the endpoint sees only at its QPs.
//!
//! Must not: know what is limited.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{DeviceAttr, VerbsError};
use crate::verbs::{CompletionQueue, MAX_CQE};

/// Room for one object more where there are `n`.
///
/// # Errors
/// As many as the device has are there.
pub(super) fn room(what: &'static str, n: usize, limit: u32) -> Result<(), VerbsError> {
    if n < limit as usize {
        return Ok(());
    }
    let limit = u64::from(limit);
    Err(VerbsError::Limit { what, limit })
}

/// A value of an object that is asked for.
///
/// # Errors
/// It is larger than the device allows.
pub(super) fn at_most(
    what: &'static str,
    asked: impl Into<u64>,
    limit: impl Into<u64>,
) -> Result<(), VerbsError> {
    let (asked, limit) = (asked.into(), limit.into());
    if asked <= limit {
        return Ok(());
    }
    Err(VerbsError::Exceeds { what, asked, limit })
}

/// Completion queues that QPs use, by address, and by how many QPs' sides. They are made outside: several endpoints share
/// one.
#[derive(Default)]
pub(super) struct Cqs(BTreeMap<usize, u32>);

impl Cqs {
    /// Whether a QP may use these two.
    ///
    /// # Errors
    /// One is deeper than the device allows, or one too many.
    pub(super) fn check(
        &self,
        cqs: [&Arc<CompletionQueue>; 2],
        limits: &DeviceAttr,
    ) -> Result<(), VerbsError> {
        let deepest = limits.max_cqe.min(MAX_CQE);
        for cq in cqs {
            at_most(
                "max_cqe: the places of a completion queue",
                cq.asked(),
                deepest,
            )?;
        }
        let [a, b] = cqs.map(address);
        let new = |cq| usize::from(!self.0.contains_key(&cq));
        let more = new(a) + if a == b { 0 } else { new(b) };
        match (self.0.len() + more).checked_sub(1) {
            Some(n) if more > 0 => room("completion queues (max_cq)", n, limits.max_cq),
            _ => Ok(()),
        }
    }

    /// A QP uses one.
    pub(super) fn used(&mut self, cq: &Arc<CompletionQueue>, limits: &DeviceAttr) {
        cq.bound(limits.max_cqe);
        *self.0.entry(address(cq)).or_default() += 1;
    }

    /// A QP that used it is gone.
    pub(super) fn unused(&mut self, cq: &Arc<CompletionQueue>) {
        let at = address(cq);
        if let Some(n) = self.0.get_mut(&at) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.0.remove(&at);
            }
        }
    }
}

/// The QPs hold what is counted, so no other queue comes to this address meanwhile.
fn address(cq: &Arc<CompletionQueue>) -> usize {
    Arc::as_ptr(cq).addr()
}
