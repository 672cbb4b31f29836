//! Tunnels that carry mirrored or overlaid RoCE: VXLAN, GENEVE, GRE, ERSPAN.
//!
//! From a tunnel's header to what it carries, one tunnel deep. Layouts: include/net/vxlan.h (`vxlanhdr`),
//! include/net/geneve.h (`genevehdr`), include/net/gre.h, include/net/erspan.h.

use network_types::udp::UdpHdr;

use super::{Inside, Start, Way, ether_type_of_ip};
use crate::{
    bytes::Bytes,
    ids::Gid,
    parse::{ETH_IPV4, ETH_IPV6, GRE, Packet},
    reason::Reason,
};

/// UDP destination port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;
/// UDP destination port of GENEVE.
pub const GENEVE_PORT: u16 = 6081;

/// EtherType of Ethernet in GRE and GENEVE.
const TEB: u16 = 0x6558;
/// GRE protocol of ERSPAN type I (no sequence number, the mirrored frame follows at once; SONiC's Everflow) and II.
const ERSPAN: u16 = 0x88be;
/// GRE protocol of ERSPAN type III.
const ERSPAN3: u16 = 0x22eb;

/// Flags of the GRE header's first word: checksum, routing, key, sequence number, version.
mod gre {
    pub const CHECKSUM: u16 = 0x8000;
    pub const ROUTING: u16 = 0x4000;
    pub const KEY: u16 = 0x2000;
    pub const SEQUENCE: u16 = 0x1000;
    pub const VERSION: u16 = 7;
}

/// Which tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunnelKind {
    /// VXLAN.
    Vxlan {
        /// Network, 24 bits.
        vni: u32,
    },
    /// GENEVE.
    Geneve {
        /// Network, 24 bits.
        vni: u32,
    },
    /// GRE with an Ethernet frame or an IP packet in it.
    Gre {
        /// EtherType of what it carries.
        protocol: u16,
        /// Key, where there is one (NVGRE's network and flow).
        key: Option<u32>,
    },
    /// A switch's mirror.
    Erspan {
        /// 1, 2 or 3.
        version: u8,
        /// Session, 10 bits; type I has none.
        session: Option<u16>,
    },
}

/// The tunnel around a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Which.
    pub kind: TunnelKind,
    /// Outer source address.
    pub src: Gid,
    /// Outer destination address.
    pub dst: Gid,
    /// ECN codepoint of the outer IP header.
    pub ecn: u8,
}

impl Tunnel {
    /// Reads what the tunnel's header and the IP header before it tell.
    pub(super) fn read<B: Bytes + ?Sized>(frame: &B, way: &Way) -> Option<Self> {
        let inside = way.inside?;
        Some(Self {
            kind: inside.tunnel.kind(frame)?,
            src: inside.src,
            dst: inside.dst,
            ecn: inside.ecn,
        })
    }
}

/// Where a tunnel's header stands, and of which tunnel it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunnelAt {
    /// VXLAN header.
    Vxlan(u32),
    /// GENEVE header.
    Geneve(u32),
    /// GRE header.
    Gre(u32),
    /// ERSPAN header of this version, behind the GRE header.
    Erspan(u8, u32),
}

impl TunnelAt {
    fn kind<B: Bytes + ?Sized>(self, frame: &B) -> Option<TunnelKind> {
        Some(match self {
            Self::Vxlan(at) => TunnelKind::Vxlan {
                vni: vni(frame, at)?,
            },
            Self::Geneve(at) => TunnelKind::Geneve {
                vni: vni(frame, at)?,
            },
            Self::Gre(at) => {
                let [a, b, c, d] = frame.load(at as usize)?;
                let flags = u16::from_be_bytes([a, b]);
                let checksum = if flags & gre::CHECKSUM != 0 { 4 } else { 0 };
                let key = (flags & gre::KEY != 0)
                    .then(|| frame.load(at as usize + 4 + checksum))
                    .flatten();
                TunnelKind::Gre {
                    protocol: u16::from_be_bytes([c, d]),
                    key: key.map(u32::from_be_bytes),
                }
            }
            Self::Erspan(1, _) => TunnelKind::Erspan {
                version: 1,
                session: None,
            },
            Self::Erspan(version, at) => {
                let [_, _, a, b] = frame.load(at as usize)?;
                TunnelKind::Erspan {
                    version,
                    session: Some(u16::from_be_bytes([a & 3, b])),
                }
            }
        })
    }
}

/// The VNI of a VXLAN or GENEVE header: bytes 4 to 6 of both.
fn vni<B: Bytes + ?Sized>(frame: &B, at: u32) -> Option<u32> {
    let [a, b, c] = frame.load(at as usize + 4)?;
    Some(u32::from_be_bytes([0, a, b, c]))
}

/// What stands behind an outer IP header.
pub(super) enum Outer {
    /// No tunnel.
    No,
    /// A tunnel with something inside that may be RoCE.
    Inside(TunnelAt, Start),
    /// A tunnel with something inside that is neither Ethernet nor IP.
    Foreign,
}

/// Looks for a tunnel behind the IP header that `p` has; `protocol` is that header's.
#[inline(always)]
pub(super) fn outer<B: Bytes + ?Sized>(
    frame: &B,
    p: &Packet,
    protocol: u8,
) -> Result<Outer, Reason> {
    if protocol == GRE {
        return through_gre(frame, p.udp_at, p.end);
    }
    if p.udp_len() < UdpHdr::LEN as u32 {
        return Ok(Outer::No);
    }
    // Too short for a tunnel's port: the parser says so.
    let Some([_, _, a, b, c, d]) = frame.load_rare::<6>(p.udp_at as usize) else {
        return Ok(Outer::No);
    };
    let port = u16::from_be_bytes([a, b]);
    if port != VXLAN_PORT && port != GENEVE_PORT {
        return Ok(Outer::No);
    }
    if u32::from(u16::from_be_bytes([c, d])) != p.udp_len() {
        return Err(Reason::TunnelMalformed);
    }
    let at = p.udp_at + UdpHdr::LEN as u32;
    if port == VXLAN_PORT {
        through_vxlan(frame, at, p.end)
    } else {
        through_geneve(frame, at, p.end)
    }
}

/// Loads a tunnel's header, which must end before `end`.
#[inline(always)]
fn header<const N: usize, B: Bytes + ?Sized>(
    frame: &B,
    at: u32,
    end: u32,
) -> Result<[u8; N], Reason> {
    if at + N as u32 > end {
        return Err(Reason::TunnelMalformed);
    }
    frame.load_rare(at as usize).ok_or(Reason::TunnelMalformed)
}

/// As `vxlan_rcv` of drivers/net/vxlan: no VNI flag, no VXLAN. With VXLAN-GPE's flag of a next protocol (0x04) the
/// payload is no Ethernet frame.
#[inline(always)]
fn through_vxlan<B: Bytes + ?Sized>(frame: &B, at: u32, end: u32) -> Result<Outer, Reason> {
    let [flags, ..]: [u8; 8] = header(frame, at, end)?;
    if flags & 0x0c != 0x08 {
        return Err(Reason::TunnelUnfollowed);
    }
    Ok(Outer::Inside(TunnelAt::Vxlan(at), Start::Ethernet(at + 8)))
}

#[inline(always)]
fn through_geneve<B: Bytes + ?Sized>(frame: &B, at: u32, end: u32) -> Result<Outer, Reason> {
    let [first, _, a, b, ..]: [u8; 8] = header(frame, at, end)?;
    if first >> 6 != 0 {
        return Err(Reason::TunnelUnfollowed);
    }
    let inner = at + 8 + u32::from(first & 0x3f) * 4;
    if inner > end {
        return Err(Reason::TunnelMalformed);
    }
    Ok(carried(
        TunnelAt::Geneve(at),
        u16::from_be_bytes([a, b]),
        inner,
    ))
}

/// Ethernet or IP.
#[inline(always)]
fn carried(tunnel: TunnelAt, protocol: u16, at: u32) -> Outer {
    match protocol {
        TEB => Outer::Inside(tunnel, Start::Ethernet(at)),
        ETH_IPV4 | ETH_IPV6 => Outer::Inside(tunnel, Start::EtherType(at, protocol)),
        _ => Outer::Foreign,
    }
}

#[inline(always)]
fn through_gre<B: Bytes + ?Sized>(frame: &B, at: u32, end: u32) -> Result<Outer, Reason> {
    let [a, b, c, d] = header(frame, at, end)?;
    let flags = u16::from_be_bytes([a, b]);
    let protocol = u16::from_be_bytes([c, d]);
    // Version 1 is PPTP's, whose payload is PPP.
    if flags & gre::VERSION != 0 {
        return Ok(Outer::Foreign);
    }
    if flags & gre::ROUTING != 0 {
        return Err(Reason::TunnelUnfollowed);
    }
    let words = (flags & gre::CHECKSUM != 0) as u32
        + (flags & gre::KEY != 0) as u32
        + (flags & gre::SEQUENCE != 0) as u32;
    let inner = at + 4 + 4 * words;
    if inner > end {
        return Err(Reason::TunnelMalformed);
    }
    match protocol {
        ERSPAN if flags & gre::SEQUENCE == 0 => Ok(Outer::Inside(
            TunnelAt::Erspan(1, inner),
            Start::Ethernet(inner),
        )),
        ERSPAN => {
            let [version, ..]: [u8; 8] = header(frame, inner, end)?;
            if version >> 4 != 1 {
                return Err(Reason::TunnelUnfollowed);
            }
            Ok(Outer::Inside(
                TunnelAt::Erspan(2, inner),
                Start::Ethernet(inner + 8),
            ))
        }
        ERSPAN3 => through_erspan3(frame, inner, end),
        _ => Ok(carried(TunnelAt::Gre(at), protocol, inner)),
    }
}

/// Its last two bytes: P (an Ethernet frame is there), frame type (5 bits: 0 Ethernet, 2 IP), hardware, direction,
/// granularity (`erspan_md2`), and O: a platform's own 8 bytes follow.
#[inline(always)]
fn through_erspan3<B: Bytes + ?Sized>(frame: &B, at: u32, end: u32) -> Result<Outer, Reason> {
    let h: [u8; 12] = header(frame, at, end)?;
    if h[0] >> 4 != 2 {
        return Err(Reason::TunnelUnfollowed);
    }
    let inner = at + 12 + if h[11] & 1 != 0 { 8 } else { 0 };
    if inner > end {
        return Err(Reason::TunnelMalformed);
    }
    let tunnel = TunnelAt::Erspan(3, at);
    match (h[10] >> 2) & 0x1f {
        0 => Ok(Outer::Inside(tunnel, Start::Ethernet(inner))),
        2 => {
            let [first] = header(frame, inner, end)?;
            Ok(match ether_type_of_ip(first) {
                Some(ether_type) => Outer::Inside(tunnel, Start::EtherType(inner, ether_type)),
                None => Outer::Foreign,
            })
        }
        _ => Err(Reason::TunnelUnfollowed),
    }
}

/// The outer header's part of a [`Way`].
#[inline(always)]
pub(super) fn inside(p: &Packet, tunnel: TunnelAt, start: Start) -> Inside {
    Inside {
        tunnel,
        start,
        end: p.end,
        outer_ip_at: p.ip_at,
        outer_ip: p.ip,
        src: p.flow.src,
        dst: p.flow.dst,
        ecn: p.ecn,
    }
}
