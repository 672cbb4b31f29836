//! Work requests: what an application asks for.
//!
//! Must not: hold state of the transport; a posted request does not change.

use core::fmt;
use std::sync::Arc;

use crate::ids::{RKey, WrId};
use crate::mem::Memory;

/// Bytes of the largest message, 2^31 (rxe: `RXE_PORT_MAX_MSG_SZ`, 0x8000_0000).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// A range of application memory, held by reference: the bytes are read when a packet leaves, and again when it is sent
/// again, so they must stay as they are until the request completes.
#[derive(Clone)]
pub struct Segment {
    pub(crate) mem: Option<Arc<dyn Memory>>,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Segment {
    /// `len` bytes of `mem` from `offset` on. Checked when posted.
    #[must_use]
    pub fn new(mem: Arc<dyn Memory>, offset: u64, len: u32) -> Self {
        Self {
            mem: Some(mem),
            offset,
            len,
        }
    }

    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            mem: None,
            offset: 0,
            len: 0,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// True for no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the range lies within its memory.
    pub(crate) fn is_valid(&self) -> bool {
        let there = self.mem.as_ref().map_or(0, |m| m.len());
        self.len == 0
            || self
                .offset
                .checked_add(u64::from(self.len))
                .is_some_and(|end| end <= there)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} B at {})", self.len, self.offset)
    }
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Into the peer's next receive request.
    Send,
    /// SEND with 32 bits for the peer's completion.
    SendImm(u32),
    /// Into the peer's memory; consumes no receive request and shows in no completion there.
    Write {
        /// Address in the peer's region.
        va: u64,
        /// Its key.
        rkey: RKey,
    },
    /// WRITE that then completes a receive request of the peer with 32 bits.
    WriteImm {
        /// Address in the peer's region.
        va: u64,
        /// Its key.
        rkey: RKey,
        /// The 32 bits.
        imm: u32,
    },
}

/// A request for the send queue.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: WrId,
    /// What to do.
    pub op: SendOp,
    /// With which bytes.
    pub local: Segment,
    /// Whether success makes a completion; an error always does.
    pub signaled: bool,
    /// Sets the solicited event bit in the message's last packet (SEND, and WRITE with immediate).
    pub solicited: bool,
}

/// A request for the receive queue.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: WrId,
    /// Where the message goes.
    pub local: Segment,
}
