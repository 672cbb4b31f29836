//! RoCEv2 transport headers: one definition, used by the XDP program and by userspace.
//!
//! Each header has a fixed size and is parsed from, and emitted into, an array of that size, so
//! neither can fail. Values are as they came: checks live in the verdict and the transport.
//! Layouts: drivers/infiniband/sw/rxe/rxe_hdr.h.

mod extended;
mod selective;

pub use extended::{
    AtomicAckEth, AtomicEth, Deth, Feth, FlushRange, Grh, Ieth, ImmDt, Rdeth, Xrceth,
};
pub(crate) use extended::{part, put};
pub use selective::{SACK_BITS, Sack, Sreth};

use crate::{
    ids::{Psn, Qpn},
    opcode::Opcode,
};

/// UDP destination port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = 4791;
/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;
/// Largest payload of one packet, path MTU 4096.
pub const MAX_PATH_MTU: usize = 4096;

/// Base Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration request: hardware sends 1, Soft-RoCE 0; not checked.
    pub mig_req: bool,
    /// Pad bytes after the payload, 0..=3.
    pub pad: u8,
    /// Transport version, 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// FECN bit of byte 4.
    pub fecn: bool,
    /// BECN bit of byte 4: set in a CNP.
    pub becn: bool,
    /// Destination QP.
    pub dest_qpn: Qpn,
    /// The responder shall acknowledge this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 12]) -> Self {
        Self {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: (b[1] >> 4) & 3,
            version: b[1] & 0xf,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qpn: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    /// Writes the header; reserved bits become 0.
    #[inline(always)]
    pub const fn emit(&self, b: &mut [u8; 12]) {
        b[0] = self.opcode.0;
        b[1] = ((self.solicited as u8) << 7)
            | ((self.mig_req as u8) << 6)
            | ((self.pad & 3) << 4)
            | (self.version & 0xf);
        let pkey = self.pkey.to_be_bytes();
        b[2] = pkey[0];
        b[3] = pkey[1];
        b[4] = ((self.fecn as u8) << 7) | ((self.becn as u8) << 6);
        let qpn = self.dest_qpn.get().to_be_bytes();
        b[5] = qpn[1];
        b[6] = qpn[2];
        b[7] = qpn[3];
        b[8] = (self.ack_req as u8) << 7;
        let psn = self.psn.get().to_be_bytes();
        b[9] = psn[1];
        b[10] = psn[2];
        b[11] = psn[3];
    }
}

/// RDMA Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 16]) -> Self {
        Self {
            va: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            length: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; 16]) {
        let (va, rest) = b.split_at_mut(8);
        va.copy_from_slice(&self.va.to_be_bytes());
        let (rkey, length) = rest.split_at_mut(4);
        rkey.copy_from_slice(&self.rkey.to_be_bytes());
        length.copy_from_slice(&self.length.to_be_bytes());
    }
}

/// What an AETH syndrome says (rxe_hdr.h `AETH_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledged; credit code 0..=0x1f (0x1f: credits not used).
    Ack(u8),
    /// Receiver not ready; timer code 0..=0x1f.
    RnrNak(u8),
    /// PSN sequence error.
    NakSequence,
    /// Invalid request.
    NakInvalidRequest,
    /// Remote access error.
    NakRemoteAccess,
    /// Remote operational error.
    NakRemoteOperational,
    /// Invalid RD request.
    NakInvalidRd,
    /// Reserved value.
    Reserved(u8),
}

impl Syndrome {
    /// Decodes the syndrome byte; bit 7 is reserved and makes it [`Syndrome::Reserved`].
    #[inline(always)]
    pub const fn from_byte(b: u8) -> Self {
        match b {
            0..=0x1f => Self::Ack(b),
            0x20..=0x3f => Self::RnrNak(b & 0x1f),
            0x60 => Self::NakSequence,
            0x61 => Self::NakInvalidRequest,
            0x62 => Self::NakRemoteAccess,
            0x63 => Self::NakRemoteOperational,
            0x64 => Self::NakInvalidRd,
            _ => Self::Reserved(b),
        }
    }

    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(c) => c & 0x1f,
            Self::RnrNak(t) => 0x20 | (t & 0x1f),
            Self::NakSequence => 0x60,
            Self::NakInvalidRequest => 0x61,
            Self::NakRemoteAccess => 0x62,
            Self::NakRemoteOperational => 0x63,
            Self::NakInvalidRd => 0x64,
            Self::Reserved(b) => b,
        }
    }
}

/// ACK Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// ACK, NAK or RNR NAK.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages completed by the responder.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 4]) -> Self {
        Self {
            syndrome: Syndrome::from_byte(b[0]),
            msn: u32::from_be_bytes([0, b[1], b[2], b[3]]),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 4]) {
        let msn = self.msn.to_be_bytes();
        b[0] = self.syndrome.to_byte();
        b[1] = msn[1];
        b[2] = msn[2];
        b[3] = msn[3];
    }
}
