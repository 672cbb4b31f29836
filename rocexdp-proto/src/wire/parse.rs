//! A received frame taken apart: Ethernet, up to two VLAN tags, IPv4 with options or IPv6 with extension headers, UDP, BTH,
//! extension headers, payload, pad.
//!
//! Every length is checked against the one outside it: the frame may be longer than the IP packet (Ethernet's minimum, a
//! trailing FCS), nothing else may disagree. Nothing is read at a fixed offset. The UDP checksum is not looked at: senders
//! leave it 0, and the ICRC covers more.
//!
//! Must not: know QPs, or judge what the transport judges (order, lengths of payloads, keys).

use rocexdp_common::headers::{Aeth, Bth, ICRC_LEN, ROCE_UDP_PORT, Reth};
use rocexdp_common::opcode::{ext, extensions_len};

use super::{
    ETH_HEADER, ETHERTYPE_8021AD, ETHERTYPE_8021Q, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Frags, Icrc,
    PROTOCOL_UDP, UDP_HEADER, VLAN_TAG, slices, take,
};
use crate::drop::DropReason;
use crate::ids::{Gid, Qpn, gid_from_ipv4};
use crate::mem::{Memory, MemoryFault};

/// Bytes of a frame's start that are copied before anything is read: room for all headers.
const HEAD: usize = 256;
/// IPv6 extension headers that are followed.
const MAX_IPV6_EXTENSIONS: usize = 4;

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

    /// Copies all of it into `mem` from `offset` on.
    ///
    /// # Errors
    /// [`MemoryFault`] as `mem` reports it.
    pub fn write_to(&self, mem: &dyn Memory, offset: u64) -> Result<(), MemoryFault> {
        let mut at = offset;
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
    /// The payload.
    pub payload: Payload<'a>,
    /// Where in the frame the IP header starts.
    ip: usize,
    /// Where the UDP header starts.
    udp: usize,
    /// Where the ICRC starts.
    icrc: usize,
}

/// What IP says.
struct Ip {
    src: Gid,
    dst: Gid,
    ecn: u8,
    /// Where UDP starts, and where IP says the packet ends.
    udp: usize,
    end: usize,
}

impl<'a> Packet<'a> {
    /// Takes a frame apart. `head` must be of `frags`.
    ///
    /// # Errors
    /// The first thing that is wrong with the frame.
    pub fn parse(head: &Head, frags: Frags<'a>) -> Result<Self, DropReason> {
        let total: usize = frags.iter().map(|f| f.len()).sum();
        let (ip, ethertype) = link(head)?;
        let l3 = match ethertype {
            ETHERTYPE_IPV4 => ipv4(head, ip, total)?,
            ETHERTYPE_IPV6 => ipv6(head, ip, total)?,
            _ => return Err(DropReason::NotIp),
        };
        let udp: [u8; UDP_HEADER] = head.take(l3.udp).ok_or(DropReason::UdpTruncated)?;
        let [_, _, p0, p1, l0, l1, _, _] = udp;
        let available = l3.end.checked_sub(l3.udp).ok_or(DropReason::UdpTruncated)?;
        if available < UDP_HEADER {
            return Err(DropReason::UdpTruncated);
        }
        if u16::from_be_bytes([p0, p1]) != ROCE_UDP_PORT {
            return Err(DropReason::NotRoce);
        }
        if usize::from(u16::from_be_bytes([l0, l1])) != available {
            return Err(DropReason::UdpLength);
        }
        Self::transport(head, frags, ip, l3)
    }

    /// From the BTH on.
    fn transport(head: &Head, frags: Frags<'a>, ip: usize, l3: Ip) -> Result<Self, DropReason> {
        let at = l3.udp + UDP_HEADER;
        if l3.end < at + Bth::LEN + ICRC_LEN {
            return Err(DropReason::BthTruncated);
        }
        let bth = Bth::parse(&head.take(at).ok_or(DropReason::BthTruncated)?);
        if bth.version != 0 {
            return Err(DropReason::BthVersion);
        }
        let extensions = bth.opcode.extensions().ok_or(DropReason::UnknownOpcode)?;
        let start = at + Bth::LEN + extensions_len(extensions);
        let icrc = l3.end - ICRC_LEN;
        let len = icrc
            .checked_sub(start)
            .and_then(|n| n.checked_sub(usize::from(bth.pad)))
            .ok_or(DropReason::ExtensionTruncated)?;

        // Of the RC opcodes that have RETH, AETH or ImmDt, in this order (rxe_opcode.c); FETH stands before RETH.
        let mut at = at + Bth::LEN;
        if extensions & ext::FETH != 0 {
            at += 4;
        }
        let mut next = |bit: u16, size: usize| {
            (extensions & bit != 0).then(|| {
                at += size;
                at - size
            })
        };
        let reth = next(ext::RETH, Reth::LEN)
            .and_then(|at| head.take(at))
            .map(|b| Reth::parse(&b));
        let aeth = next(ext::AETH, Aeth::LEN)
            .and_then(|at| head.take(at))
            .map(|b| Aeth::parse(&b));
        let imm = next(ext::IMM, 4)
            .and_then(|at| head.take(at))
            .map(u32::from_be_bytes);
        Ok(Self {
            bth,
            src: l3.src,
            dst: l3.dst,
            ecn: l3.ecn,
            reth,
            aeth,
            imm,
            payload: Payload { frags, start, len },
            ip,
            udp: l3.udp,
            icrc,
        })
    }

    /// Bytes from the IP header to the end of the ICRC.
    #[must_use]
    pub const fn ip_len(&self) -> usize {
        self.icrc + ICRC_LEN - self.ip
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
    Packet::parse(&Head::of(frame), frame)
        .ok()
        .map(|p| p.bth.dest_qpn)
}

/// Where the IP header starts, and its ethertype.
fn link(head: &Head) -> Result<(usize, u16), DropReason> {
    let mut at = ETH_HEADER - 2;
    for _ in 0..3 {
        let ethertype = u16::from_be_bytes(head.take(at).ok_or(DropReason::EthTruncated)?);
        match ethertype {
            ETHERTYPE_8021Q | ETHERTYPE_8021AD => at += VLAN_TAG,
            other => return Ok((at + 2, other)),
        }
    }
    Err(DropReason::VlanDepth)
}

fn ipv4(head: &Head, at: usize, total: usize) -> Result<Ip, DropReason> {
    let fixed: [u8; 20] = head.take(at).ok_or(DropReason::Ipv4Malformed)?;
    let [
        version,
        tos,
        l0,
        l1,
        _,
        _,
        f0,
        f1,
        _,
        protocol,
        _,
        _,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ] = fixed;
    let header = usize::from(version & 0xf) * 4;
    if version >> 4 != 4 || header < 20 {
        return Err(DropReason::Ipv4Malformed);
    }
    let whole = head
        .bytes()
        .get(at..at + header)
        .ok_or(DropReason::Ipv4Malformed)?;
    if ones_complement(whole) != 0xffff {
        return Err(DropReason::Ipv4Checksum);
    }
    let end = at + usize::from(u16::from_be_bytes([l0, l1]));
    if end > total || end < at + header {
        return Err(DropReason::Ipv4Length);
    }
    // More fragments, or an offset.
    if f0 & 0x3f != 0 || f1 != 0 {
        return Err(DropReason::Ipv4Fragment);
    }
    if protocol != PROTOCOL_UDP {
        return Err(DropReason::NotUdp);
    }
    Ok(Ip {
        src: gid_from_ipv4([s0, s1, s2, s3]),
        dst: gid_from_ipv4([d0, d1, d2, d3]),
        ecn: tos & 3,
        udp: at + header,
        end,
    })
}

fn ipv6(head: &Head, at: usize, total: usize) -> Result<Ip, DropReason> {
    let [v0, v1, _, _, l0, l1, mut next, _]: [u8; 8] =
        head.take(at).ok_or(DropReason::Ipv6Malformed)?;
    if v0 >> 4 != 6 {
        return Err(DropReason::Ipv6Malformed);
    }
    let src: Gid = head.take(at + 8).ok_or(DropReason::Ipv6Malformed)?;
    let dst: Gid = head.take(at + 24).ok_or(DropReason::Ipv6Malformed)?;
    let mut udp = at + 40;
    let end = udp + usize::from(u16::from_be_bytes([l0, l1]));
    if end > total {
        return Err(DropReason::Ipv6Length);
    }
    for _ in 0..=MAX_IPV6_EXTENSIONS {
        match next {
            PROTOCOL_UDP => {
                return Ok(Ip {
                    src,
                    dst,
                    ecn: (v1 >> 4) & 3,
                    udp,
                    end,
                });
            }
            // Hop-by-hop, routing, destination options: length in 8 bytes, the first 8 not counted (RFC 8200, section 4).
            0 | 43 | 60 => {
                let [following, len]: [u8; 2] = head.take(udp).ok_or(DropReason::Ipv6Extension)?;
                next = following;
                udp += (usize::from(len) + 1) * 8;
                if udp > head.len {
                    return Err(DropReason::Ipv6Extension);
                }
            }
            44 => return Err(DropReason::Ipv6Fragment),
            _ => return Err(DropReason::NotUdp),
        }
    }
    Err(DropReason::Ipv6Extension)
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
