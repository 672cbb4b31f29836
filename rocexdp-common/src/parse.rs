//! From a frame to a RoCEv2 packet: Ethernet, VLAN tags, IPv4 or IPv6, UDP, BTH and the extension headers that the
//! tracking needs (RETH, AETH).
//!
//! Reads only through [`Bytes`] and at no fixed offset; checks what must hold for any of the packet's fields to mean
//! something (lengths, fragments, versions), and nothing else: whose packet it is, and whether it is legal for that
//! QP, are questions for [`crate::verdict`] and the transport. Every loop is bounded, so that it passes the BPF
//! verifier. Header layouts: include/uapi/linux/{if_ether,ip,ipv6}.h, drivers/infiniband/sw/rxe/rxe_hdr.h. As in
//! rxe_net.c (`rxe_udp_encap_recv`) the UDP header's length rules, not the buffer's; unlike there it must agree with IP's.

use network_types::{
    eth::{EthHdr, EtherType},
    ip::{IpProto, Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
    vlan::VlanHdr,
};

use crate::{
    bytes::Bytes,
    headers::{Aeth, Bth, ICRC_LEN, ROCE_UDP_PORT, Reth},
    ids::{Gid, gid_from_ipv4},
    maps::Reason,
    opcode::{Operation, Position, ext, extensions_len},
};

/// VLAN tags followed.
pub const MAX_VLAN_TAGS: usize = 2;
/// IPv6 extension headers followed.
pub const MAX_IPV6_EXTENSIONS: usize = 4;

/// IP version and what the ICRC needs to know of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpVersion {
    /// IPv4, with or without options.
    V4,
    /// IPv6, with or without extension headers.
    V6,
}

/// A well-formed RoCEv2 packet; offsets are into the frame, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Bytes of the whole frame, padding behind the IP packet included.
    pub frame_len: u32,
    /// VLAN tags before the IP header, 0..=2.
    pub vlan_tags: u8,
    /// IP version.
    pub ip: IpVersion,
    /// ECN codepoint: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Where the IP header begins.
    pub ip_at: u32,
    /// Where the UDP header begins; the BTH follows it.
    pub udp_at: u32,
    /// Where the ICRC, and with it the packet, ends.
    pub end: u32,
    /// Base transport header.
    pub bth: Bth,
    /// What it does and its place in its message; `None`: undefined opcode.
    pub operation: Option<(Operation, Position)>,
    /// Payload bytes, without pad; of an undefined opcode all bytes between BTH and ICRC.
    pub payload: u32,
    /// RETH length, where the opcode has a RETH (0 otherwise).
    pub reth_length: u32,
    /// AETH, where the opcode has one.
    pub aeth: Option<Aeth>,
}

impl Packet {
    /// Bytes of UDP header and payload.
    #[inline(always)]
    pub const fn udp_len(&self) -> u32 {
        self.end - self.udp_at
    }
}

/// Why there is no [`Packet`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotParsed {
    /// Not RoCEv2, and not malformed as far as was looked.
    Other,
    /// Malformed, or more than the parser follows.
    Malformed(Reason),
}

impl From<Reason> for NotParsed {
    #[inline(always)]
    fn from(reason: Reason) -> Self {
        Self::Malformed(reason)
    }
}

const ETH_IPV4: u16 = u16::from_be(EtherType::Ipv4 as u16);
const ETH_IPV6: u16 = u16::from_be(EtherType::Ipv6 as u16);
const ETH_VLAN: u16 = u16::from_be(EtherType::Ieee8021q as u16);
const ETH_QINQ: u16 = u16::from_be(EtherType::Ieee8021ad as u16);
const ETH_QINQ_OLD: u16 = u16::from_be(EtherType::Ieee8021QinQ1 as u16);

const fn is_vlan(ether_type: u16) -> bool {
    matches!(ether_type, ETH_VLAN | ETH_QINQ | ETH_QINQ_OLD)
}

const UDP: u8 = IpProto::Udp as u8;
const HOP_BY_HOP: u8 = IpProto::HopOpt as u8;
const ROUTING: u8 = IpProto::Ipv6Route as u8;
const FRAGMENT: u8 = IpProto::Ipv6Frag as u8;
const DESTINATION: u8 = IpProto::Ipv6Opts as u8;
const MOBILITY: u8 = IpProto::MobilityHeader as u8;
const HIP: u8 = IpProto::Hip as u8;
const SHIM6: u8 = IpProto::Shim6 as u8;
const AUTHENTICATION: u8 = IpProto::Ah as u8;

/// Whether `next` is an IPv6 extension header, the fragment header not included.
const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION | MOBILITY | HIP | SHIM6
    )
}

/// Whether a GID is an IPv4 address written as an IPv6 address.
const fn is_v4_mapped(gid: &Gid) -> bool {
    matches!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..])
}

/// What an IP header said.
#[derive(Clone, Copy)]
struct Ip {
    version: IpVersion,
    ecn: u8,
    src: Gid,
    dst: Gid,
    /// Where the UDP header begins.
    udp_at: usize,
    /// Where the IP packet ends.
    end: usize,
}

/// Parses one frame.
///
/// # Errors
/// [`NotParsed::Other`] for whatever is not UDP to port 4791; [`NotParsed::Malformed`] with the first check that
/// failed. Checks behind the port (see [`Reason::is_rocev2`]) concern RoCEv2 packets only.
#[inline(always)]
pub fn parse<B: Bytes + ?Sized>(frame: &B) -> Result<Packet, NotParsed> {
    let frame_len = frame.len();
    let (ether_type, ip_at, vlan_tags) = ethernet(frame)?;
    let ip = match ether_type {
        ETH_IPV4 => ipv4(frame, frame_len, ip_at)?,
        ETH_IPV6 => ipv6(frame, frame_len, ip_at)?,
        _ => return Err(NotParsed::Other),
    };
    let udp: [u8; UdpHdr::LEN] = frame.load(ip.udp_at).ok_or(Reason::UdpTruncated)?;
    if u16::from_be_bytes([udp[2], udp[3]]) != ROCE_UDP_PORT {
        return Err(NotParsed::Other);
    }
    // A v4-mapped address never stands on a wire; here it would pass for the IPv4 address.
    if ip.version == IpVersion::V6 && (is_v4_mapped(&ip.src) || is_v4_mapped(&ip.dst)) {
        return Err(Reason::Ipv6Malformed.into());
    }
    let udp_len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    if udp_len != ip.end - ip.udp_at {
        return Err(Reason::UdpLength.into());
    }
    let bth_at = ip.udp_at + UdpHdr::LEN;
    if udp_len < UdpHdr::LEN + Bth::LEN + ICRC_LEN {
        return Err(Reason::BthTruncated.into());
    }
    let bth = Bth::parse(&frame.load(bth_at).ok_or(Reason::BthTruncated)?);
    if bth.version != 0 {
        return Err(Reason::BthVersion.into());
    }
    let room = udp_len - UdpHdr::LEN - Bth::LEN - ICRC_LEN;
    let mut packet = Packet {
        frame_len: frame_len as u32,
        vlan_tags,
        ip: ip.version,
        ecn: ip.ecn,
        src: ip.src,
        dst: ip.dst,
        ip_at: ip_at as u32,
        udp_at: ip.udp_at as u32,
        end: ip.end as u32,
        bth,
        operation: bth.opcode.decode(),
        payload: room as u32,
        reth_length: 0,
        aeth: None,
    };
    let Some(extensions) = bth.opcode.extensions() else {
        return Ok(packet);
    };
    let beside_payload = extensions_len(extensions) + usize::from(bth.pad);
    if room < beside_payload {
        return Err(Reason::ExtensionTruncated.into());
    }
    packet.payload = (room - beside_payload) as u32;
    // RETH and AETH stand behind what else an opcode puts before them (rxe_opcode.c: RDETH, DETH, XRCETH, FETH).
    let behind = bth_at + Bth::LEN;
    let before = extensions_len(extensions & (ext::RDETH | ext::DETH | ext::XRCETH | ext::FETH));
    if extensions & ext::RETH != 0 {
        let reth = frame
            .load(behind + before)
            .ok_or(Reason::ExtensionTruncated)?;
        packet.reth_length = Reth::parse(&reth).length;
    } else if extensions & ext::AETH != 0 {
        let aeth = frame
            .load(behind + before)
            .ok_or(Reason::ExtensionTruncated)?;
        packet.aeth = Some(Aeth::parse(&aeth));
    }
    Ok(packet)
}

/// EtherType behind the VLAN tags, where its header begins, number of tags.
#[inline(always)]
fn ethernet<B: Bytes + ?Sized>(frame: &B) -> Result<(u16, usize, u8), NotParsed> {
    let header: [u8; EthHdr::LEN] = frame.load(0).ok_or(Reason::EthTruncated)?;
    let mut ether_type = u16::from_be_bytes([header[12], header[13]]);
    let mut at = EthHdr::LEN;
    let mut tags = 0;
    while is_vlan(ether_type) {
        if tags == MAX_VLAN_TAGS as u8 {
            return Err(Reason::VlanDepth.into());
        }
        let tag: [u8; VlanHdr::LEN] = frame.load(at).ok_or(Reason::EthTruncated)?;
        ether_type = u16::from_be_bytes([tag[2], tag[3]]);
        at += VlanHdr::LEN;
        tags += 1;
    }
    Ok((ether_type, at, tags))
}

#[inline(always)]
fn ipv4<B: Bytes + ?Sized>(frame: &B, frame_len: usize, at: usize) -> Result<Ip, NotParsed> {
    let h: [u8; Ipv4Hdr::LEN] = frame.load(at).ok_or(Reason::Ipv4Malformed)?;
    let header_len = usize::from(h[0] & 0xf) * 4;
    if h[0] >> 4 != 4 || header_len < Ipv4Hdr::LEN {
        return Err(Reason::Ipv4Malformed.into());
    }
    if h[9] != UDP {
        return Err(NotParsed::Other);
    }
    if frame_len < at + header_len {
        return Err(Reason::Ipv4Malformed.into());
    }
    // More fragments, or an offset.
    if u16::from_be_bytes([h[6], h[7]]) & 0x3fff != 0 {
        return Err(Reason::Ipv4Fragment.into());
    }
    let total = usize::from(u16::from_be_bytes([h[2], h[3]]));
    if total < header_len || at + total > frame_len {
        return Err(Reason::Ipv4Length.into());
    }
    if total < header_len + UdpHdr::LEN {
        return Err(Reason::UdpTruncated.into());
    }
    Ok(Ip {
        version: IpVersion::V4,
        ecn: h[1] & 3,
        src: gid_from_ipv4([h[12], h[13], h[14], h[15]]),
        dst: gid_from_ipv4([h[16], h[17], h[18], h[19]]),
        udp_at: at + header_len,
        end: at + total,
    })
}

#[inline(always)]
fn ipv6<B: Bytes + ?Sized>(frame: &B, frame_len: usize, at: usize) -> Result<Ip, NotParsed> {
    let h: [u8; Ipv6Hdr::LEN] = frame.load(at).ok_or(Reason::Ipv6Malformed)?;
    if h[0] >> 4 != 6 {
        return Err(Reason::Ipv6Malformed.into());
    }
    let mut next = h[6];
    let mut udp_at = at + Ipv6Hdr::LEN;
    for _ in 0..MAX_IPV6_EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let [following, len] = frame.load(udp_at).ok_or(Reason::Ipv6Extension)?;
        // `ipv6_optlen` and `ipv6_authlen` of include/net/ipv6.h.
        udp_at += if next == AUTHENTICATION {
            (usize::from(len) + 2) * 4
        } else {
            (usize::from(len) + 1) * 8
        };
        next = following;
    }
    if next == FRAGMENT {
        // Every fragment names what it is a fragment of.
        let [inner] = frame.load(udp_at).ok_or(Reason::Ipv6Extension)?;
        return Err(if inner == UDP || is_extension(inner) {
            Reason::Ipv6Fragment.into()
        } else {
            NotParsed::Other
        });
    }
    if is_extension(next) {
        return Err(Reason::Ipv6Extension.into());
    }
    if next != UDP {
        return Err(NotParsed::Other);
    }
    let end = at + Ipv6Hdr::LEN + usize::from(u16::from_be_bytes([h[4], h[5]]));
    if end > frame_len {
        return Err(Reason::Ipv6Length.into());
    }
    if udp_at > end {
        return Err(Reason::Ipv6Extension.into());
    }
    if udp_at + UdpHdr::LEN > end {
        return Err(Reason::UdpTruncated.into());
    }
    Ok(Ip {
        version: IpVersion::V6,
        ecn: (h[1] >> 4) & 3,
        src: [
            h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15], h[16], h[17], h[18], h[19],
            h[20], h[21], h[22], h[23],
        ],
        dst: [
            h[24], h[25], h[26], h[27], h[28], h[29], h[30], h[31], h[32], h[33], h[34], h[35],
            h[36], h[37], h[38], h[39],
        ],
        udp_at,
        end,
    })
}
