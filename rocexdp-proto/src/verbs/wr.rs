//! Work requests: what an application asks for.
//!
//! Must not: hold state of the transport; a posted request does not change.

use std::sync::Arc;

use rocexdp_common::headers::Feth;
pub use rocexdp_common::mad::GSI_QPN;
use rocexdp_common::opcode::Transport;

use super::ah::AddressHandle;
use super::queue::PostError;
use crate::ids::{Qpn, RKey, WrId};
use crate::mem::{Access, SgList};

/// Bytes of the largest message, 2^31 (rxe: `RXE_PORT_MAX_MSG_SZ`, 0x8000_0000).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Into the peer's next receive request.
    Send,
    /// SEND with 32 bits for the peer's completion.
    SendImm(u32),
    /// SEND that then invalidates a key of the peer (a type 2 memory window).
    SendInvalidate(RKey),
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
    /// From the peer's memory into ours.
    Read {
        /// Address in the peer's region.
        va: u64,
        /// Its key.
        rkey: RKey,
    },
    /// If the peer's 64 bits equal `compare`, `swap` takes their place; what was there comes into our 8 bytes, in host order.
    CompareSwap {
        /// Address in the peer's region, a multiple of 8.
        va: u64,
        /// Its key.
        rkey: RKey,
        /// What to compare with.
        compare: u64,
        /// What to put there.
        swap: u64,
    },
    /// Adds to the peer's 64 bits; what was there comes into our 8 bytes, in host order.
    FetchAdd {
        /// Address in the peer's region, a multiple of 8.
        va: u64,
        /// Its key.
        rkey: RKey,
        /// What to add, modulo 2^64.
        add: u64,
    },
    /// WRITE of 8 bytes that nobody sees half done.
    AtomicWrite {
        /// Address in the peer's region, a multiple of 8.
        va: u64,
        /// Its key.
        rkey: RKey,
    },
    /// Waits until what was written before to the peer's range is visible, or persistent.
    Flush {
        /// Address in the peer's region.
        va: u64,
        /// Its key.
        rkey: RKey,
        /// Bytes; not looked at if `what` selects the whole region.
        len: u32,
        /// Range or region, visibility or persistence.
        what: Feth,
    },
    /// Lets peers reach a part of a region under a key of its own. Nothing goes to the peer.
    BindMw {
        /// The window's key as it is now.
        window: RKey,
        /// Type 2: its key from now on, which differs in the low 8 bits only. Type 1: as `bind` drew it.
        rkey: RKey,
        /// Key (`MemoryRegion::rkey`) of the region, which must allow [`Access::MW_BIND`].
        region: RKey,
        /// First address of the part.
        va: u64,
        /// Bytes; 0: unbinds a type 1 window.
        len: u64,
        /// What peers may do with it.
        access: Access,
    },
    /// Withdraws a type 2 window's binding. Nothing goes to the peer.
    LocalInvalidate(RKey),
}

impl SendOp {
    /// Whether it never leaves the host.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::BindMw { .. } | Self::LocalInvalidate(_))
    }

    /// Whether the service has it (`wr_opcode_mask` of drivers/infiniband/sw/rxe/rxe_opcode.c).
    pub(crate) const fn is_of(&self, transport: Transport) -> bool {
        match transport {
            Transport::Rc => true,
            Transport::Uc => matches!(
                self,
                Self::Send
                    | Self::SendImm(_)
                    | Self::Write { .. }
                    | Self::WriteImm { .. }
                    | Self::BindMw { .. }
                    | Self::LocalInvalidate(_)
            ),
            Transport::Ud => matches!(self, Self::Send | Self::SendImm(_)),
            _ => false,
        }
    }

    /// Whether the answer brings bytes that are written to the request's memory.
    #[must_use]
    pub const fn fetches(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. }
        )
    }
}

/// The QPN that all groups have.
pub const MULTICAST_QPN: Qpn = Qpn::new(rocexdp_common::maps::MULTICAST_QPN);
/// The Q_Key of QP 1, [`GSI_QPN`] (`IB_QP1_QKEY` of include/rdma/ib_mad.h).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// To whom a UD request goes.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The way there.
    pub ah: Arc<AddressHandle>,
    /// The peer's QP; [`MULTICAST_QPN`] for a group.
    pub qpn: Qpn,
    /// Its Q_Key. With the top bit set, the sending QP's own is used (`ibv_post_send(3)`).
    pub qkey: u32,
}

/// A request for the send queue.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: WrId,
    /// What to do.
    pub op: SendOp,
    /// With which bytes: sent, or, where the operation fetches some, written.
    pub local: SgList,
    /// Whether success makes a completion; an error always does.
    pub signaled: bool,
    /// Sets the solicited event bit in the message's last packet (SEND, and WRITE with immediate).
    pub solicited: bool,
    /// Waits until all READs and atomics posted before have completed.
    pub fence: bool,
    /// UD only: to whom.
    pub to: Option<Datagram>,
}

impl SendWr {
    /// A signalled request, neither solicited nor fenced.
    #[must_use]
    pub fn new(wr_id: WrId, op: SendOp, local: impl Into<SgList>) -> Self {
        Self {
            wr_id,
            op,
            local: local.into(),
            signaled: true,
            solicited: false,
            fence: false,
            to: None,
        }
    }

    /// Whether a QP of this service takes it, whose longest datagram this is.
    pub(crate) fn check(&self, transport: Transport, max_datagram: u32) -> Result<(), PostError> {
        if !self.is_supported() || !self.op.is_of(transport) {
            return Err(PostError::Unsupported);
        }
        let datagram = transport == Transport::Ud;
        if datagram && self.local.len() > max_datagram {
            return Err(PostError::LongerThanMtu);
        }
        let right = match &self.to {
            Some(to) => datagram && to.ah.is_group() == (to.qpn == MULTICAST_QPN),
            None => !datagram,
        };
        if right {
            Ok(())
        } else {
            Err(PostError::Destination)
        }
    }

    /// Inline data can't be written to.
    fn is_supported(&self) -> bool {
        !self.op.fetches() || self.local.inline_len().is_none()
    }

    /// Success makes no completion.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// With the solicited event bit.
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Behind all READs and atomics posted before.
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }

    /// UD: to this peer.
    #[must_use]
    pub fn to(mut self, to: Datagram) -> Self {
        self.to = Some(to);
        self
    }
}

/// A request for the receive queue.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: WrId,
    /// Where the message goes. UD: behind 40 bytes for the GRH.
    pub local: SgList,
}

impl RecvWr {
    /// A receive request into this memory.
    #[must_use]
    pub fn new(wr_id: WrId, local: impl Into<SgList>) -> Self {
        Self {
            wr_id,
            local: local.into(),
        }
    }

    /// Inline data can't be written to.
    pub(crate) fn check(&self, _: Transport, _: u32) -> Result<(), PostError> {
        match self.local.inline_len() {
            None => Ok(()),
            Some(_) => Err(PostError::Unsupported),
        }
    }
}
