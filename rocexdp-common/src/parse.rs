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
    ids::Gid,
    maps::{FlowKey, Reason},
    opcode::{Opcode, Operation, Position, ext, extensions_len},
};

/// VLAN tags followed.
pub const MAX_VLAN_TAGS: u8 = 2;
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
    /// Source and destination address, destination QPN.
    pub flow: FlowKey,
    /// Where the IP header begins.
    pub ip_at: u32,
    /// Where the UDP header begins; the BTH follows it. RoCEv1 has none: there the BTH stands 8 bytes behind this all
    /// the same.
    pub udp_at: u32,
    /// Where the ICRC, and with it the packet, ends: all bytes of the frame but padding.
    pub end: u32,
    /// Payload bytes, without pad; of an undefined opcode all bytes between BTH and ICRC.
    pub payload: u32,
    /// RETH length, where the opcode has a RETH (0 otherwise).
    pub reth_length: u32,
    /// AETH, where the opcode has one.
    pub aeth: Option<Aeth>,
    /// Base transport header.
    pub bth: Bth,
    /// What it does and its place in its message; `None`: undefined opcode.
    pub operation: Option<(Operation, Position)>,
    /// IP version.
    pub ip: IpVersion,
    /// ECN codepoint: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    pub ecn: u8,
    /// VLAN tags before the IP header, 0..=2.
    pub vlan_tags: u8,
}

impl Packet {
    /// Nothing parsed yet.
    pub const EMPTY: Self = Self {
        flow: FlowKey {
            src: [0; 16],
            dst: [0; 16],
            dest_qpn: 0,
            reserved: 0,
        },
        ip_at: 0,
        udp_at: 0,
        end: 0,
        payload: 0,
        reth_length: 0,
        aeth: None,
        bth: Bth::parse(&[0; Bth::LEN]),
        operation: None,
        ip: IpVersion::V4,
        ecn: 0,
        vlan_tags: 0,
    };

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

pub(crate) const ETH_IPV4: u16 = u16::from_be(EtherType::Ipv4 as u16);
pub(crate) const ETH_IPV6: u16 = u16::from_be(EtherType::Ipv6 as u16);
const ETH_VLAN: u16 = u16::from_be(EtherType::Ieee8021q as u16);
const ETH_QINQ: u16 = u16::from_be(EtherType::Ieee8021ad as u16);
const ETH_QINQ_OLD: u16 = u16::from_be(EtherType::Ieee8021QinQ1 as u16);

pub(crate) const fn is_vlan(ether_type: u16) -> bool {
    matches!(ether_type, ETH_VLAN | ETH_QINQ | ETH_QINQ_OLD)
}

pub(crate) const UDP: u8 = IpProto::Udp as u8;
pub(crate) const GRE: u8 = IpProto::Gre as u8;
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

/// Whether what follows an IP header is looked at.
const fn follows<const TUNNELS: bool>(protocol: u8) -> bool {
    protocol == UDP || (TUNNELS && protocol == GRE)
}

/// Makes an all-zero GID that of an IPv4 address.
#[inline(always)]
fn map_ipv4(gid: &mut Gid, [a, b, c, d]: [u8; 4]) {
    gid[10] = 0xff;
    gid[11] = 0xff;
    gid[12] = a;
    gid[13] = b;
    gid[14] = c;
    gid[15] = d;
}

/// Whether it is an IPv4 address written as an IPv6 address.
const fn is_v4_mapped(gid: &Gid) -> bool {
    matches!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..])
}

/// Parses one frame.
///
/// # Errors
/// [`NotParsed::Other`] for whatever is not UDP to port 4791; [`NotParsed::Malformed`] with the first check that
/// failed. Checks behind the port (see [`Reason::is_rocev2`]) concern RoCEv2 packets only.
pub fn parse<B: Bytes + ?Sized>(frame: &B) -> Result<Packet, NotParsed> {
    let mut packet = Packet::EMPTY;
    parse_into(frame, &mut packet)?;
    Ok(packet)
}

/// [`parse`] into a [`Packet::EMPTY`]. BPF's stack (512 bytes) has no room to return a packet by value.
///
/// # Errors
/// As [`parse`]. The packet then tells how far it came: `ip_at` is 0 until the EtherType is known, `udp_at` is 0 until
/// IP has said that UDP follows.
#[inline(always)]
pub fn parse_into<B: Bytes + ?Sized>(frame: &B, p: &mut Packet) -> Result<(), NotParsed> {
    match ethernet(frame, p, 0)? {
        ETH_IPV4 => ipv4::<_, false>(frame, p)?,
        ETH_IPV6 => ipv6::<_, false>(frame, p)?,
        _ => return Err(NotParsed::Other),
    };
    let bth = udp(frame, p)?;
    transport(frame, &bth, p)
}

/// Reads an Ethernet header at `at`; returns the EtherType behind the VLAN tags.
#[inline(always)]
pub(crate) fn ethernet<B: Bytes + ?Sized>(
    frame: &B,
    p: &mut Packet,
    at: usize,
) -> Result<u16, NotParsed> {
    let header: [u8; EthHdr::LEN] = frame.load(at).ok_or(Reason::EthTruncated)?;
    let ether_type = u16::from_be_bytes([header[12], header[13]]);
    tags(frame, p, at + EthHdr::LEN, ether_type)
}

/// Follows VLAN tags: `ether_type` says what stands at `at`. Returns the EtherType behind them.
#[inline(always)]
pub(crate) fn tags<B: Bytes + ?Sized>(
    frame: &B,
    p: &mut Packet,
    mut at: usize,
    mut ether_type: u16,
) -> Result<u16, NotParsed> {
    // One round more than tags may be, to tell too many from enough. A counted loop: the verifier follows it.
    for tags in 0..=MAX_VLAN_TAGS {
        if !is_vlan(ether_type) {
            p.ip_at = at as u32;
            p.vlan_tags = tags;
            return Ok(ether_type);
        }
        if tags < MAX_VLAN_TAGS {
            let tag: [u8; VlanHdr::LEN] = frame.load_rare(at).ok_or(Reason::EthTruncated)?;
            ether_type = u16::from_be_bytes([tag[2], tag[3]]);
            at += VlanHdr::LEN;
        }
    }
    Err(Reason::VlanDepth.into())
}

/// Reads the IPv4 header at `ip_at`; returns the protocol behind it: UDP, with `TUNNELS` also GRE.
#[inline(always)]
pub(crate) fn ipv4<B: Bytes + ?Sized, const TUNNELS: bool>(
    frame: &B,
    p: &mut Packet,
) -> Result<u8, NotParsed> {
    let h: [u8; Ipv4Hdr::LEN] = frame.load(p.ip_at as usize).ok_or(Reason::Ipv4Malformed)?;
    let header_len = u32::from(h[0] & 0xf) * 4;
    if h[0] >> 4 != 4 || header_len < Ipv4Hdr::LEN as u32 {
        return Err(Reason::Ipv4Malformed.into());
    }
    if !follows::<TUNNELS>(h[9]) {
        return Err(NotParsed::Other);
    }
    if !frame.reaches((p.ip_at + header_len) as usize) {
        return Err(Reason::Ipv4Malformed.into());
    }
    // More fragments, or an offset.
    if u16::from_be_bytes([h[6], h[7]]) & 0x3fff != 0 {
        return Err(Reason::Ipv4Fragment.into());
    }
    let total = u32::from(u16::from_be_bytes([h[2], h[3]]));
    if total < header_len || !frame.reaches((p.ip_at + total) as usize) {
        return Err(Reason::Ipv4Length.into());
    }
    p.ip = IpVersion::V4;
    p.ecn = h[1] & 3;
    map_ipv4(&mut p.flow.src, [h[12], h[13], h[14], h[15]]);
    map_ipv4(&mut p.flow.dst, [h[16], h[17], h[18], h[19]]);
    p.udp_at = p.ip_at + header_len;
    p.end = p.ip_at + total;
    Ok(h[9])
}

/// Reads the IPv6 header at `ip_at`; returns the protocol behind it and its extensions, as [`ipv4`] does.
#[inline(always)]
pub(crate) fn ipv6<B: Bytes + ?Sized, const TUNNELS: bool>(
    frame: &B,
    p: &mut Packet,
) -> Result<u8, NotParsed> {
    let h: [u8; 8] = frame.load(p.ip_at as usize).ok_or(Reason::Ipv6Malformed)?;
    p.flow.src = frame
        .load(p.ip_at as usize + 8)
        .ok_or(Reason::Ipv6Malformed)?;
    p.flow.dst = frame
        .load(p.ip_at as usize + 24)
        .ok_or(Reason::Ipv6Malformed)?;
    if h[0] >> 4 != 6 {
        return Err(Reason::Ipv6Malformed.into());
    }
    let mut next = h[6];
    let mut at = p.ip_at + Ipv6Hdr::LEN as u32;
    for _ in 0..MAX_IPV6_EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let [following, len] = frame.load_rare(at as usize).ok_or(Reason::Ipv6Extension)?;
        // `ipv6_optlen` and `ipv6_authlen` of include/net/ipv6.h.
        at += if next == AUTHENTICATION {
            (u32::from(len) + 2) * 4
        } else {
            (u32::from(len) + 1) * 8
        };
        next = following;
    }
    if next == FRAGMENT {
        // Every fragment names what it is a fragment of.
        let [inner] = frame.load_rare(at as usize).ok_or(Reason::Ipv6Extension)?;
        return Err(if follows::<TUNNELS>(inner) || is_extension(inner) {
            Reason::Ipv6Fragment.into()
        } else {
            NotParsed::Other
        });
    }
    if is_extension(next) {
        return Err(Reason::Ipv6Extension.into());
    }
    if !follows::<TUNNELS>(next) {
        return Err(NotParsed::Other);
    }
    let end = p.ip_at + Ipv6Hdr::LEN as u32 + u32::from(u16::from_be_bytes([h[4], h[5]]));
    if !frame.reaches(end as usize) {
        return Err(Reason::Ipv6Length.into());
    }
    if at > end {
        return Err(Reason::Ipv6Extension.into());
    }
    // A v4-mapped address never stands on a wire; here it would pass for the IPv4 address.
    if is_v4_mapped(&p.flow.src) || is_v4_mapped(&p.flow.dst) {
        return Err(Reason::Ipv6Malformed.into());
    }
    p.ip = IpVersion::V6;
    p.ecn = (h[1] >> 4) & 3;
    p.udp_at = at;
    p.end = end;
    Ok(next)
}

/// Checks the UDP header, and reads the BTH with it.
#[inline(always)]
pub(crate) fn udp<B: Bytes + ?Sized>(frame: &B, p: &Packet) -> Result<[u8; Bth::LEN], NotParsed> {
    // Behind the IP packet stands padding, which is no header.
    if p.udp_len() < UdpHdr::LEN as u32 {
        return Err(Reason::UdpTruncated.into());
    }
    let (udp, bth) = match frame.load::<{ UdpHdr::LEN + Bth::LEN }>(p.udp_at as usize) {
        Some([u0, u1, u2, u3, u4, u5, u6, u7, bth @ ..]) => {
            ([u0, u1, u2, u3, u4, u5, u6, u7], Some(bth))
        }
        None => {
            let udp = frame.load_rare(p.udp_at as usize);
            (udp.ok_or(Reason::UdpTruncated)?, None)
        }
    };
    if u16::from_be_bytes([udp[2], udp[3]]) != ROCE_UDP_PORT {
        return Err(NotParsed::Other);
    }
    if u32::from(u16::from_be_bytes([udp[4], udp[5]])) != p.udp_len() {
        return Err(Reason::UdpLength.into());
    }
    bth.ok_or(Reason::BthTruncated.into())
}

/// What the parser needs to know of an opcode.
#[derive(Clone, Copy)]
struct OpcodeInfo {
    operation: Option<(Operation, Position)>,
    /// Bytes of all its extension headers.
    headers: u8,
    /// Bytes of those before RETH or AETH.
    before: u8,
    has_reth: bool,
    has_aeth: bool,
}

/// One look instead of the table's many branches: the verifier would walk each.
static OPCODES: [OpcodeInfo; 256] = {
    let mut table = [OpcodeInfo {
        operation: None,
        headers: 0,
        before: 0,
        has_reth: false,
        has_aeth: false,
    }; 256];
    let mut code = 0;
    while code < 256 {
        let opcode = Opcode(code as u8);
        if let Some(e) = opcode.extensions() {
            // rxe_opcode.c has the offset of each header.
            let before = e & (ext::SRETH | ext::RDETH | ext::DETH | ext::XRCETH | ext::FETH);
            table[code] = OpcodeInfo {
                operation: opcode.decode(),
                headers: extensions_len(e) as u8,
                before: extensions_len(before) as u8,
                has_reth: e & ext::RETH != 0,
                has_aeth: e & ext::AETH != 0,
            };
        }
        code += 1;
    }
    table
};

#[inline(always)]
pub(crate) fn transport<B: Bytes + ?Sized>(
    frame: &B,
    bth: &[u8; Bth::LEN],
    p: &mut Packet,
) -> Result<(), NotParsed> {
    let Some(room) = p
        .udp_len()
        .checked_sub((UdpHdr::LEN + Bth::LEN + ICRC_LEN) as u32)
    else {
        return Err(Reason::BthTruncated.into());
    };
    p.bth = Bth::parse(bth);
    p.flow.dest_qpn = p.bth.dest_qpn.get();
    if p.bth.version != 0 {
        return Err(Reason::BthVersion.into());
    }
    let info = &OPCODES[usize::from(p.bth.opcode.0)];
    p.operation = info.operation;
    p.payload = room;
    if info.operation.is_none() {
        return Ok(());
    }
    let Some(payload) = room.checked_sub(u32::from(info.headers) + u32::from(p.bth.pad)) else {
        return Err(Reason::ExtensionTruncated.into());
    };
    p.payload = payload;
    let at = p.udp_at as usize + UdpHdr::LEN + Bth::LEN + usize::from(info.before);
    if info.has_reth {
        let reth = frame.load(at).ok_or(Reason::ExtensionTruncated)?;
        p.reth_length = Reth::parse(&reth).length;
    } else if info.has_aeth {
        let aeth = frame.load(at).ok_or(Reason::ExtensionTruncated)?;
        p.aeth = Some(Aeth::parse(&aeth));
    }
    Ok(())
}
