//! A received frame taken apart, by the parser that XDP uses (`rocexdp_common::parse`): what XDP steers to an endpoint and
//! what the endpoint understands is one set of frames, read in one way.
//!
//! Added here: the IPv4 header checksum, where the payload lies, and that all headers lie within the copied start of the
//! frame. The UDP checksum is not looked at: senders leave it 0, and the ICRC covers more.
//!
//! Must not: know QPs, or judge what the transport judges (order, lengths of payloads, keys).

use rocexdp_common::bytes::Bytes;
use rocexdp_common::headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, ICRC_LEN, Reth, Sack, Sreth,
};
use rocexdp_common::maps::Reason;
use rocexdp_common::opcode::{ext, extensions_len};
use rocexdp_common::parse::{self, IpVersion, NotParsed};

use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Frags, Grh, Icrc, UDP_HEADER, slices, take};
use crate::drop::DropReason;
use crate::ids::{Gid, Qpn, RKey};
use crate::mem::{Memory, MemoryFault, SgList};

/// Bytes of a frame's start that are copied before anything is read: room for all headers.
const HEAD: usize = 256;
/// The copied start of a frame.
pub struct Head {
    bytes: [u8; HEAD],
    len: usize,
}

impl Head {
    /// Copies the start of a frame, once.
    #[must_use]
    pub fn of(frags: Frags<'_>) -> Self {
        let mut head = Self {
            bytes: [0; HEAD],
            len: 0,
        };
        for part in slices(frags, 0, HEAD) {
            super::put(&mut head.bytes, head.len, part);
            head.len += part.len();
        }
        head
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    fn take<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        take(self.bytes(), at)
    }

    /// The link address that the frame is for.
    pub(crate) fn dst_mac(&self) -> Option<[u8; 6]> {
        self.take(0)
    }
}

/// The frame as the parser reads it: from the copy, so that what is judged is what is acted on. What lies behind the copy is
/// read only to tell what kind of frame it is: no packet has its headers there.
struct Copied<'a> {
    head: &'a Head,
    frags: Frags<'a>,
    len: usize,
}

impl Bytes for Copied<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.head.take(offset).or_else(|| self.frags.load(offset))
    }
}

/// The payload of a packet: a range of the frame's pieces, without pad.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    frags: Frags<'a>,
    start: usize,
    len: usize,
}

impl Payload<'_> {
    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len as u32
    }

    /// True for no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies all of it into a work request's memory, from byte `at` on.
    pub(crate) fn write_to_list(&self, list: &SgList, at: u32) -> Result<(), MemoryFault> {
        let mut at = at;
        for part in slices(self.frags, self.start, self.len) {
            list.write(at, part)?;
            at = at.checked_add(part.len() as u32).ok_or(MemoryFault)?;
        }
        Ok(())
    }

    /// The bytes from `at` on, if all `N` are there.
    pub(crate) fn take<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        if at.checked_add(N)? > self.len {
            return None;
        }
        self.frags.load(self.start + at)
    }

    /// Appends all of it to `out`.
    pub(crate) fn copy_to(&self, out: &mut Vec<u8>) {
        for part in slices(self.frags, self.start, self.len) {
            out.extend_from_slice(part);
        }
    }

    /// Copies all of it into `mem` from `offset` on.
    ///
    /// # Errors
    /// [`MemoryFault`] as `mem` reports it.
    pub fn write_to(&self, mem: &dyn Memory, offset: u64) -> Result<(), MemoryFault> {
        let mut at = offset;
        if mutant!("last_bytes_first")
            && let Some(part) = slices(self.frags, self.start, self.len).last()
        {
            mem.write(at + (self.len - part.len()) as u64, part)?;
        }
        for part in slices(self.frags, self.start, self.len) {
            mem.write(at, part)?;
            at = at.checked_add(part.len() as u64).ok_or(MemoryFault)?;
        }
        Ok(())
    }
}

/// A well-formed RoCEv2 packet. Its ICRC has not been checked: see [`Packet::icrc_is_right`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Base header.
    pub bth: Bth,
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// ECN codepoint: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// RETH, where the opcode has one.
    pub reth: Option<Reth>,
    /// AETH, where the opcode has one.
    pub aeth: Option<Aeth>,
    /// Immediate data, where the opcode has some.
    pub imm: Option<u32>,
    /// Key to invalidate (IETH), where the opcode has one.
    pub invalidate: Option<RKey>,
    /// AtomicETH, where the opcode has one.
    pub atomic: Option<AtomicEth>,
    /// What stood in the memory (AtomicAckETH), where the opcode has it.
    pub original: Option<u64>,
    /// FETH, where the opcode has one.
    pub feth: Option<Feth>,
    /// DETH, where the opcode has one.
    pub deth: Option<Deth>,
    /// SRETH, where the opcode is one of selective repeat.
    pub sreth: Option<Sreth>,
    /// SACK, where the opcode is selective repeat's acknowledgement.
    pub sack: Option<Sack>,
    /// The payload.
    pub payload: Payload<'a>,
    /// Where in the frame the IP header starts.
    ip: usize,
    /// Where the UDP header starts.
    udp: usize,
    /// Where the ICRC starts.
    icrc: usize,
}

impl Packet<'_> {
    /// The packet without the frame that it came in: its payload has its length, but no bytes.
    pub(crate) fn without_payload(&self) -> Packet<'static> {
        Packet {
            payload: Payload {
                frags: &[],
                start: 0,
                len: self.payload.len,
            },
            ..*self
        }
    }

    /// The packet with these bytes as payload, as many as it had.
    pub(crate) fn with_payload<'b>(&self, frags: Frags<'b>) -> Packet<'b> {
        Packet {
            payload: Payload {
                frags,
                start: 0,
                len: self.payload.len,
            },
            ..*self
        }
    }
}

impl Packet<'static> {
    /// No packet yet.
    pub(crate) const NONE: Self = Self {
        bth: Bth::parse(&[0; Bth::LEN]),
        src: [0; 16],
        dst: [0; 16],
        ecn: 0,
        reth: None,
        aeth: None,
        imm: None,
        invalidate: None,
        atomic: None,
        original: None,
        feth: None,
        deth: None,
        sreth: None,
        sack: None,
        payload: Payload {
            frags: &[],
            start: 0,
            len: 0,
        },
        ip: 0,
        udp: 0,
        icrc: 0,
    };
}

impl<'a> Packet<'a> {
    /// Takes a frame apart. `head` must be of `frags`.
    ///
    /// # Errors
    /// The first thing that is wrong with the frame.
    pub fn parse(head: &Head, frags: Frags<'a>) -> Result<Self, DropReason> {
        let frame = Copied {
            head,
            frags,
            len: Bytes::len(frags),
        };
        let mut p = parse::Packet::EMPTY;
        parse::parse_into(&frame, &mut p).map_err(|e| reason(e, &p, &frame))?;
        let (ip, udp) = (p.ip_at as usize, p.udp_at as usize);
        let behind_bth = udp + UDP_HEADER + Bth::LEN;
        let extensions = p.bth.opcode.extensions().ok_or(DropReason::UnknownOpcode)?;
        let start = behind_bth + extensions_len(extensions);
        // Only IPv6 extension headers can be that long.
        if start > head.len {
            return Err(DropReason::Ipv6Extension);
        }
        if p.ip == IpVersion::V4 {
            let header = head.bytes().get(ip..udp);
            if header.is_none_or(|h| ones_complement(h) != 0xffff) {
                return Err(DropReason::Ipv4Checksum);
            }
        }
        // In the order in which they stand (rxe_opcode.c; SRETH and SACK: docs/wire-extensions.md).
        let mut at = behind_bth;
        let mut next = |bit: u16, size: usize| {
            (extensions & bit != 0).then(|| {
                at += size;
                at - size
            })
        };
        let sreth = next(ext::SRETH, Sreth::LEN).and_then(|at| head.take(at));
        next(ext::RDETH, 4);
        let deth = next(ext::DETH, Deth::LEN).and_then(|at| head.take(at));
        next(ext::XRCETH, 4);
        let feth = next(ext::FETH, Feth::LEN).and_then(|at| head.take(at));
        let reth = next(ext::RETH, Reth::LEN).and_then(|at| head.take(at));
        let atomic = next(ext::ATOMIC, AtomicEth::LEN).and_then(|at| head.take(at));
        let aeth = next(ext::AETH, Aeth::LEN).and(p.aeth);
        let original = next(ext::ATOMIC_ACK, AtomicAckEth::LEN).and_then(|at| head.take(at));
        let imm = next(ext::IMM, 4).and_then(|at| head.take(at));
        let invalidate = next(ext::IETH, 4).and_then(|at| head.take(at));
        let sack = next(ext::SACK, Sack::LEN).and_then(|at| head.take(at));
        Ok(Self {
            bth: p.bth,
            src: p.flow.src,
            dst: p.flow.dst,
            ecn: p.ecn,
            reth: reth.map(|b| Reth::parse(&b)),
            aeth,
            imm: imm.map(u32::from_be_bytes),
            invalidate: invalidate.map(|b| RKey(u32::from_be_bytes(b))),
            atomic: atomic.map(|b| AtomicEth::parse(&b)),
            original: original.map(|b| AtomicAckEth::parse(&b).original),
            feth: feth.map(|b| Feth::parse(&b)),
            deth: deth.map(|b| Deth::parse(&b)),
            sreth: sreth.map(|b| Sreth::parse(&b)),
            sack: sack.map(|b| Sack::parse(&b)),
            payload: Payload {
                frags,
                start,
                len: p.payload as usize,
            },
            ip,
            udp,
            icrc: p.end as usize - ICRC_LEN,
        })
    }

    /// Bytes from the IP header to the end of the ICRC.
    #[must_use]
    pub const fn ip_len(&self) -> usize {
        self.icrc + ICRC_LEN - self.ip
    }

    /// The IP header as a UD receiver finds it before the message. `head` must be of the frame.
    #[must_use]
    pub fn grh(&self, head: &Head) -> Option<Grh> {
        if head.take::<1>(self.ip)?.first()? >> 4 == 4 {
            head.take(self.ip).map(Grh::ipv4)
        } else {
            head.take(self.ip).map(Grh::ipv6)
        }
    }

    /// Whether the ICRC is the one of the packet. Reads every byte of it, headers from the copy.
    #[must_use]
    pub fn icrc_is_right(&self, head: &Head) -> bool {
        let behind_bth = self.udp + UDP_HEADER + Bth::LEN;
        let headers = head.bytes().get(self.ip..behind_bth);
        let Some(mut crc) = headers.and_then(|h| Icrc::over_headers(h, self.udp - self.ip)) else {
            return false;
        };
        // Extension headers are taken from the copy too: they are what is acted on.
        let copied = self.payload.start.min(self.icrc);
        crc.update(head.bytes().get(behind_bth..copied).unwrap_or(&[]));
        for part in slices(self.payload.frags, copied, self.icrc - copied) {
            crc.update(part);
        }
        let mut received = [0u8; ICRC_LEN];
        let mut n = 0;
        for part in slices(self.payload.frags, self.icrc, ICRC_LEN) {
            super::put(&mut received, n, part);
            n += part.len();
        }
        n == ICRC_LEN && received == crc.finish()
    }
}

/// The destination QPN of a RoCEv2 frame that is well-formed up to its BTH; for drivers that hand a frame on to whoever has
/// the QP. Nothing else is checked.
#[must_use]
pub fn dest_qpn(frame: Frags<'_>) -> Option<Qpn> {
    destination(frame).map(|(qpn, _)| qpn)
}

/// As [`dest_qpn`], with the destination address: which group it is, of a packet to one.
#[must_use]
pub fn destination(frame: Frags<'_>) -> Option<(Qpn, Gid)> {
    Packet::parse(&Head::of(frame), frame)
        .ok()
        .map(|p| (p.bth.dest_qpn, p.dst))
}

/// Why the parser gave no packet; `p` is what it had found until then.
fn reason(e: NotParsed, p: &parse::Packet, frame: &Copied<'_>) -> DropReason {
    match e {
        NotParsed::Other if p.udp_at != 0 => DropReason::NotRoce,
        NotParsed::Other => {
            let ethertype = frame.load((p.ip_at as usize).saturating_sub(2));
            match ethertype.map(u16::from_be_bytes) {
                Some(ETHERTYPE_IPV4 | ETHERTYPE_IPV6) => DropReason::NotUdp,
                _ => DropReason::NotIp,
            }
        }
        NotParsed::Malformed(reason) => match reason {
            Reason::EthTruncated => DropReason::EthTruncated,
            Reason::VlanDepth => DropReason::VlanDepth,
            Reason::Ipv4Malformed => DropReason::Ipv4Malformed,
            Reason::Ipv4Length => DropReason::Ipv4Length,
            Reason::Ipv4Fragment => DropReason::Ipv4Fragment,
            Reason::Ipv6Malformed => DropReason::Ipv6Malformed,
            Reason::Ipv6Length => DropReason::Ipv6Length,
            Reason::Ipv6Fragment => DropReason::Ipv6Fragment,
            Reason::Ipv6Extension => DropReason::Ipv6Extension,
            Reason::UdpTruncated => DropReason::UdpTruncated,
            Reason::UdpLength => DropReason::UdpLength,
            Reason::BthTruncated => DropReason::BthTruncated,
            Reason::BthVersion => DropReason::BthVersion,
            Reason::ExtensionTruncated => DropReason::ExtensionTruncated,
            // The rest is judged behind the parser, which gives none of it.
            _ => DropReason::UnknownOpcode,
        },
    }
}

/// The ones' complement sum of a header of whole 16-bit words: 0xffff over one with a right checksum (RFC 1071).
fn ones_complement(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks_exact(2)
        .map(|w| {
            u32::from(u16::from_be_bytes([
                w.first().copied().unwrap_or(0),
                w.last().copied().unwrap_or(0),
            ]))
        })
        .sum();
    sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
