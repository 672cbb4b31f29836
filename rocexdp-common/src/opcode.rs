//! The BTH opcode table: what an opcode is and which extension headers follow the BTH.
//!
//! The same table as the kernel's (drivers/infiniband/sw/rxe/rxe_opcode.c; values in
//! include/rdma/ib_pack.h). Pure; used by the XDP program and by userspace.
//!
//! Of the manufacturer range, 0xC0..=0xDF are rocexdp's selective repeat: the low five bits are those of RC, so that a packet
//! does what RC's does, and says besides where it belongs (docs/wire-extensions.md). The rest of the range is unknown.

mod names;

pub use names::{UNKNOWN, name};

/// Transport service, the top three bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Transport {
    /// Reliable Connection.
    Rc = 0,
    /// Unreliable Connection.
    Uc = 1,
    /// Reliable Datagram. ConnectX's DC uses this range too (Wireshark reads it so), with
    /// other headers: no packet tells which of both it is.
    Rd = 2,
    /// Unreliable Datagram.
    Ud = 3,
    /// CNP (0x81) and the rest of its range.
    Cnp = 4,
    /// Extended Reliable Connection.
    Xrc = 5,
    /// Manufacturer range (0xC0 and up); selective repeat's half of it belongs to RC ([`Opcode::service`]).
    Manufacturer = 6,
}

/// What a packet does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Operation {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Acknowledge,
    /// ATOMIC acknowledge.
    AtomicAcknowledge,
    /// COMPARE SWAP.
    CompareSwap,
    /// FETCH ADD.
    FetchAdd,
    /// FLUSH (IBTA 1.6).
    Flush,
    /// ATOMIC WRITE (IBTA 1.6).
    AtomicWrite,
    /// RESYNC (RD only).
    Resync,
    /// Congestion notification.
    Cnp,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

/// The opcode byte of a BTH, as it came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode(pub u8);

/// Extension headers that follow the BTH, as a set of bits.
pub mod ext {
    /// RDETH, 4 B (RD only).
    pub const RDETH: u16 = 1;
    /// DETH, 8 B.
    pub const DETH: u16 = 2;
    /// XRCETH, 4 B.
    pub const XRCETH: u16 = 4;
    /// FETH, 4 B (FLUSH).
    pub const FETH: u16 = 8;
    /// RETH, 16 B.
    pub const RETH: u16 = 16;
    /// AtomicETH, 28 B.
    pub const ATOMIC: u16 = 32;
    /// AETH, 4 B.
    pub const AETH: u16 = 64;
    /// AtomicAckETH, 8 B.
    pub const ATOMIC_ACK: u16 = 128;
    /// ImmDt, 4 B.
    pub const IMM: u16 = 256;
    /// IETH, 4 B.
    pub const IETH: u16 = 512;
    /// SRETH, 8 B (selective repeat). Stands before all others.
    pub const SRETH: u16 = 1024;
    /// SACK, 40 B (selective repeat's acknowledgement). Stands behind the AETH.
    pub const SACK: u16 = 2048;
}

/// RC opcodes that the transport sends.
pub mod rc {
    #![allow(missing_docs)]
    use super::Opcode;
    pub const SEND_FIRST: Opcode = Opcode(0x00);
    pub const SEND_MIDDLE: Opcode = Opcode(0x01);
    pub const SEND_LAST: Opcode = Opcode(0x02);
    pub const SEND_LAST_IMM: Opcode = Opcode(0x03);
    pub const SEND_ONLY: Opcode = Opcode(0x04);
    pub const SEND_ONLY_IMM: Opcode = Opcode(0x05);
    pub const WRITE_FIRST: Opcode = Opcode(0x06);
    pub const WRITE_MIDDLE: Opcode = Opcode(0x07);
    pub const WRITE_LAST: Opcode = Opcode(0x08);
    pub const WRITE_LAST_IMM: Opcode = Opcode(0x09);
    pub const WRITE_ONLY: Opcode = Opcode(0x0a);
    pub const WRITE_ONLY_IMM: Opcode = Opcode(0x0b);
    pub const READ_REQUEST: Opcode = Opcode(0x0c);
    pub const READ_RESPONSE_FIRST: Opcode = Opcode(0x0d);
    pub const READ_RESPONSE_MIDDLE: Opcode = Opcode(0x0e);
    pub const READ_RESPONSE_LAST: Opcode = Opcode(0x0f);
    pub const READ_RESPONSE_ONLY: Opcode = Opcode(0x10);
    pub const ACKNOWLEDGE: Opcode = Opcode(0x11);
    pub const ATOMIC_ACKNOWLEDGE: Opcode = Opcode(0x12);
    pub const COMPARE_SWAP: Opcode = Opcode(0x13);
    pub const FETCH_ADD: Opcode = Opcode(0x14);
    pub const SEND_LAST_INVALIDATE: Opcode = Opcode(0x16);
    pub const SEND_ONLY_INVALIDATE: Opcode = Opcode(0x17);
    pub const FLUSH: Opcode = Opcode(0x1c);
    pub const ATOMIC_WRITE: Opcode = Opcode(0x1d);
}

/// Congestion notification packet (IBTA annex A17).
pub const CNP: Opcode = Opcode(0x81);

/// Selective repeat's form of an RC opcode is that opcode with these bits set.
const SELECTIVE: u8 = 0xc0;

/// The low five bits say the operation for the four services that have data.
const SEND_INVALIDATE_LAST: u8 = 0x16;
const SEND_INVALIDATE_ONLY: u8 = 0x17;

impl Opcode {
    /// The transport service, whether or not the whole opcode is defined.
    pub const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            3 => Transport::Ud,
            4 => Transport::Cnp,
            5 => Transport::Xrc,
            _ => Transport::Manufacturer,
        }
    }

    /// The service whose rules the packet follows: [`Opcode::transport`], but RC for selective repeat.
    #[inline(always)]
    pub const fn service(self) -> Transport {
        if self.is_selective() {
            Transport::Rc
        } else {
            self.transport()
        }
    }

    /// Whether it lies in selective repeat's range, defined or not.
    #[inline(always)]
    pub const fn is_selective(self) -> bool {
        self.0 & 0xe0 == SELECTIVE
    }

    /// Selective repeat's form of an RC opcode; any other opcode as it is.
    #[must_use]
    pub const fn selective(self) -> Self {
        match self.transport() {
            Transport::Rc => Self(self.0 | SELECTIVE),
            _ => self,
        }
    }

    /// The RC opcode of a selective repeat's one; any other opcode as it is.
    #[must_use]
    pub const fn standard(self) -> Self {
        if self.is_selective() {
            Self(self.0 & !SELECTIVE)
        } else {
            self
        }
    }

    /// What it does and where in its message it stands; `None` for an undefined opcode.
    pub const fn decode(self) -> Option<(Operation, Position)> {
        use Operation::*;
        use Position::*;
        let low = self.0 & 0x1f;
        match self.transport() {
            Transport::Cnp => {
                return if low == 1 { Some((Cnp, Only)) } else { None };
            }
            Transport::Manufacturer if !self.is_selective() => return None,
            // UD has SEND ONLY and SEND ONLY with immediate.
            Transport::Ud => {
                return if low == 4 || low == 5 {
                    Some((Send, Only))
                } else {
                    None
                };
            }
            // UC ends with WRITE ONLY with immediate.
            Transport::Uc if low > 0x0b => return None,
            Transport::Rd if low > 0x15 => return None,
            _ => {}
        }
        Some(match low {
            0x00 => (Send, First),
            0x01 => (Send, Middle),
            0x02 | 0x03 | SEND_INVALIDATE_LAST => (Send, Last),
            0x04 | 0x05 | SEND_INVALIDATE_ONLY => (Send, Only),
            0x06 => (Write, First),
            0x07 => (Write, Middle),
            0x08 | 0x09 => (Write, Last),
            0x0a | 0x0b => (Write, Only),
            0x0c => (ReadRequest, Only),
            0x0d => (ReadResponse, First),
            0x0e => (ReadResponse, Middle),
            0x0f => (ReadResponse, Last),
            0x10 => (ReadResponse, Only),
            0x11 => (Acknowledge, Only),
            0x12 => (AtomicAcknowledge, Only),
            0x13 => (CompareSwap, Only),
            0x14 => (FetchAdd, Only),
            0x15 if matches!(self.transport(), Transport::Rd) => (Resync, Only),
            0x1c if matches!(self.service(), Transport::Rc) => (Flush, Only),
            0x1d if matches!(self.service(), Transport::Rc) => (AtomicWrite, Only),
            _ => return None,
        })
    }

    /// Extension headers between the BTH and the payload ([`ext`] bits); `None` for an undefined opcode.
    pub const fn extensions(self) -> Option<u16> {
        use Operation::*;
        let Some((operation, position)) = self.decode() else {
            return None;
        };
        let low = self.0 & 0x1f;
        let starts = matches!(position, Position::First | Position::Only);
        let mut e = match operation {
            Send => match low {
                0x03 | 0x05 => ext::IMM,
                SEND_INVALIDATE_LAST | SEND_INVALIDATE_ONLY => ext::IETH,
                _ => 0,
            },
            Write => {
                (if starts { ext::RETH } else { 0 })
                    | (if low == 0x09 || low == 0x0b {
                        ext::IMM
                    } else {
                        0
                    })
            }
            ReadRequest | AtomicWrite => ext::RETH,
            ReadResponse => {
                if matches!(position, Position::Middle) {
                    0
                } else {
                    ext::AETH
                }
            }
            Acknowledge => ext::AETH,
            AtomicAcknowledge => ext::AETH | ext::ATOMIC_ACK,
            CompareSwap | FetchAdd => ext::ATOMIC,
            Flush => ext::FETH | ext::RETH,
            Resync | Cnp => 0,
        };
        match self.transport() {
            Transport::Ud => e |= ext::DETH,
            Transport::Rd => {
                e |= ext::RDETH;
                // Responses carry RDETH only; requests add DETH.
                if !matches!(operation, ReadResponse | Acknowledge | AtomicAcknowledge) {
                    e |= ext::DETH;
                }
            }
            Transport::Xrc
                if !matches!(operation, ReadResponse | Acknowledge | AtomicAcknowledge) =>
            {
                e |= ext::XRCETH;
            }
            // A WRITE says its place in each packet. An acknowledgement has no serial: nothing is lost with it that the next
            // one does not say.
            Transport::Manufacturer => {
                e |= match operation {
                    Acknowledge => ext::SACK,
                    Write => ext::SRETH | ext::RETH,
                    _ => ext::SRETH,
                };
            }
            _ => {}
        }
        Some(e)
    }

    /// Whether the packet is an answer to a request: it belongs to the response PSN stream.
    pub const fn is_response(self) -> bool {
        matches!(
            self.decode(),
            Some((
                Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge,
                _
            ))
        )
    }
}

/// Bytes of a set of extension headers.
pub const fn extensions_len(e: u16) -> usize {
    let mut n = 0;
    if e & ext::SRETH != 0 {
        n += 8;
    }
    if e & ext::SACK != 0 {
        n += 40;
    }
    if e & ext::RDETH != 0 {
        n += 4;
    }
    if e & ext::DETH != 0 {
        n += 8;
    }
    if e & ext::XRCETH != 0 {
        n += 4;
    }
    if e & ext::FETH != 0 {
        n += 4;
    }
    if e & ext::RETH != 0 {
        n += 16;
    }
    if e & ext::ATOMIC != 0 {
        n += 28;
    }
    if e & ext::AETH != 0 {
        n += 4;
    }
    if e & ext::ATOMIC_ACK != 0 {
        n += 8;
    }
    if e & ext::IMM != 0 {
        n += 4;
    }
    if e & ext::IETH != 0 {
        n += 4;
    }
    n
}
