//! Extension headers that only some transport services and operations have, and RoCEv1's global route header.
//!
//! As in the parent: fixed sizes, values as they came, reserved bits ignored on the way in and 0 on the way out.
//! Layouts: drivers/infiniband/sw/rxe/rxe_hdr.h (`rxe_rdeth`, `rxe_deth`, `rxe_atmeth`, `rxe_atmack`, `rxe_immdt`,
//! `rxe_ieth`, `rxe_feth`), drivers/infiniband/core/ud_header.c (`grh_table`).

use crate::ids::{Gid, Qpn};

/// The bytes from `at` on; `N` must reach no further than `M`, which is checked when it is compiled.
#[inline(always)]
pub(crate) const fn part<const AT: usize, const N: usize, const M: usize>(b: &[u8; M]) -> [u8; N] {
    const { assert!(AT + N <= M) };
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = b[AT + i];
        i += 1;
    }
    out
}

/// Puts bytes at `AT`.
#[inline(always)]
pub(crate) const fn put<const AT: usize, const N: usize, const M: usize>(
    b: &mut [u8; M],
    bytes: [u8; N],
) {
    const { assert!(AT + N <= M) };
    let mut i = 0;
    while i < N {
        b[AT + i] = bytes[i];
        i += 1;
    }
}

/// The low 24 bits of a big-endian word.
#[inline(always)]
pub(crate) const fn low24([_, a, b, c]: [u8; 4]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// Reliable Datagram Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rdeth {
    /// End-to-end context, 24 bits.
    pub ee_context: u32,
}

impl Rdeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 4]) -> Self {
        Self {
            ee_context: low24(*b),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 4]) {
        *b = (self.ee_context & 0xff_ffff).to_be_bytes();
    }
}

/// Datagram Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// The sender's QP.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 8]) -> Self {
        Self {
            qkey: u32::from_be_bytes(part::<0, 4, 8>(b)),
            src_qpn: Qpn::new(low24(part::<4, 4, 8>(b))),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 8]) {
        put::<0, 4, 8>(b, self.qkey.to_be_bytes());
        put::<4, 4, 8>(b, self.src_qpn.get().to_be_bytes());
    }
}

/// XRC Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Xrceth {
    /// Number of the shared receive queue, 24 bits.
    pub xrcsrq: u32,
}

impl Xrceth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 4]) -> Self {
        Self { xrcsrq: low24(*b) }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 4]) {
        *b = (self.xrcsrq & 0xff_ffff).to_be_bytes();
    }
}

/// What a FLUSH shall reach (`FETH_SEL_MASK`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushRange {
    /// The range that the RETH names.
    Range,
    /// The whole memory region of its rkey.
    Region,
    /// Reserved value, 2 or 3.
    Reserved(u8),
}

/// FLUSH Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// Visible to all of the responder (bit 0 of the placement type).
    pub global_visibility: bool,
    /// Persistent (bit 1).
    pub persistence: bool,
    /// Bits 2 and 3 of the placement type, reserved.
    pub placement_reserved: u8,
    /// What is flushed.
    pub selectivity: FlushRange,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 4]) -> Self {
        let bits = b[3];
        Self {
            global_visibility: bits & 1 != 0,
            persistence: bits & 2 != 0,
            placement_reserved: (bits >> 2) & 3,
            selectivity: match (bits >> 4) & 3 {
                0 => FlushRange::Range,
                1 => FlushRange::Region,
                other => FlushRange::Reserved(other),
            },
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 4]) {
        let selectivity = match self.selectivity {
            FlushRange::Range => 0,
            FlushRange::Region => 1,
            FlushRange::Reserved(other) => other & 3,
        };
        *b = [
            0,
            0,
            0,
            (selectivity << 4)
                | ((self.placement_reserved & 3) << 2)
                | ((self.persistence as u8) << 1)
                | self.global_visibility as u8,
        ];
    }
}

/// Atomic Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// What to write (compare and swap), or to add.
    pub swap_or_add: u64,
    /// What to compare with.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 28]) -> Self {
        Self {
            va: u64::from_be_bytes(part::<0, 8, 28>(b)),
            rkey: u32::from_be_bytes(part::<8, 4, 28>(b)),
            swap_or_add: u64::from_be_bytes(part::<12, 8, 28>(b)),
            compare: u64::from_be_bytes(part::<20, 8, 28>(b)),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 28]) {
        put::<0, 8, 28>(b, self.va.to_be_bytes());
        put::<8, 4, 28>(b, self.rkey.to_be_bytes());
        put::<12, 8, 28>(b, self.swap_or_add.to_be_bytes());
        put::<20, 8, 28>(b, self.compare.to_be_bytes());
    }
}

/// Atomic ACK Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAckEth {
    /// What stood there before.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 8]) -> Self {
        Self {
            original: u64::from_be_bytes(*b),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 8]) {
        *b = self.original.to_be_bytes();
    }
}

/// Immediate Data Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmDt {
    /// The immediate, as a big-endian number.
    pub data: u32,
}

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 4]) -> Self {
        Self {
            data: u32::from_be_bytes(*b),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 4]) {
        *b = self.data.to_be_bytes();
    }
}

/// Invalidate Extended Transport Header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ieth {
    /// The remote key that becomes invalid.
    pub rkey: u32,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 4]) -> Self {
        Self {
            rkey: u32::from_be_bytes(*b),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 4]) {
        *b = self.rkey.to_be_bytes();
    }
}

/// Global Route Header: what RoCEv1 has in place of IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// 6, as that of IPv6.
    pub version: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes behind this header, ICRC included.
    pub payload_length: u16,
    /// What follows: [`Grh::NEXT_BTH`].
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub src: Gid,
    /// Destination GID.
    pub dst: Gid,
}

impl Grh {
    /// Bytes on the wire.
    pub const LEN: usize = 40;
    /// A BTH follows (`IB_GRH_NEXT_HDR` of include/rdma/ib_verbs.h).
    pub const NEXT_BTH: u8 = 0x1b;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 40]) -> Self {
        let first = u32::from_be_bytes(part::<0, 4, 40>(b));
        Self {
            version: (first >> 28) as u8,
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_length: u16::from_be_bytes(part::<4, 2, 40>(b)),
            next_header: b[6],
            hop_limit: b[7],
            src: part::<8, 16, 40>(b),
            dst: part::<24, 16, 40>(b),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 40]) {
        let first = ((self.version as u32) << 28)
            | ((self.traffic_class as u32) << 20)
            | (self.flow_label & 0xf_ffff);
        put::<0, 4, 40>(b, first.to_be_bytes());
        put::<4, 2, 40>(b, self.payload_length.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        put::<8, 16, 40>(b, self.src);
        put::<24, 16, 40>(b, self.dst);
    }
}
