//! FLUSH: when what was written to a peer's memory is visible to all, or survives.
//!
//! Must not: decide what a peer's memory can (the peer refuses).

use rocexdp_common::headers::{Feth, FlushRange};
use rocexdp_proto::verbs::{self, SendOp, SgList};

use super::{PostFault, RemoteRegion, RemoteSlice, Wr, request::Operation};

/// How far FLUSH makes what was written go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Placement {
    /// Visible to all of the peer's host. Needs [`Access::FLUSH_GLOBAL`](super::Access::FLUSH_GLOBAL).
    Visible,
    /// Survives the peer's host losing power. Needs [`Access::FLUSH_PERSISTENT`](super::Access::FLUSH_PERSISTENT), and memory that can: of
    /// rocexdp's, a mapped file ([`MappedFile`](crate::mem::MappedFile)), which is synced to its disk meanwhile.
    Persistent,
    /// Both.
    Both,
}

/// FLUSH of a part of the peer's memory, or of a region.
#[derive(Clone, Debug)]
pub struct Flush {
    what: RemoteSlice,
    range: FlushRange,
    placement: Placement,
}

impl Wr<Flush> {
    /// Completes when all that this queue pair wrote to `what` before is placed so. Needs a peer that has the operation: rocexdp, Soft-RoCE
    /// since Linux 6.2.
    pub fn flush(what: RemoteSlice, placement: Placement) -> Self {
        Self::of(Flush {
            what,
            range: FlushRange::Range,
            placement,
        })
    }

    /// As [`Wr::flush`], of all of a region or window.
    pub fn flush_region(what: RemoteRegion, placement: Placement) -> Self {
        let start = RemoteSlice {
            rkey: what.key(),
            va: what.va(),
            len: 0,
        };
        Self::of(Flush {
            what: start,
            range: FlushRange::Region,
            placement,
        })
    }
}

impl Operation for Flush {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let RemoteSlice { rkey, va, len } = self.what;
        let Ok(len) = u32::try_from(len) else {
            return Err(PostFault::Queue(verbs::PostError::TooLong));
        };
        let what = Feth {
            global_visibility: matches!(self.placement, Placement::Visible | Placement::Both),
            persistence: matches!(self.placement, Placement::Persistent | Placement::Both),
            placement_reserved: 0,
            selectivity: self.range,
        };
        let op = SendOp::Flush {
            va,
            rkey,
            len,
            what,
        };
        Ok((op, SgList::empty()))
    }
}
