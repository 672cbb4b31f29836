//! Any frame that an observer meets, told for what it is: RoCEv2 plain or in a tunnel, RoCEv1, pause frames, LLDP.
//!
//! An endpoint's XDP program uses [`crate::parse`] alone; this adds, around the same parser, what stands on a mirror
//! port or in a capture. Nothing is guessed: what is not followed, malformed or was not captured is said with its
//! [`Reason`]. [`trace`] finds the way to the packet with little memory, for BPF; [`dissect`] also reads what stands
//! beside the way. Loops are bounded, frames are read through [`Bytes`] only.

mod encap;
mod extensions;
mod link;
mod way;

pub use encap::{GENEVE_PORT, Tunnel, TunnelAt, TunnelKind, VXLAN_PORT};
pub use extensions::{Extensions, extensions};
pub use link::{LinkHeader, VlanTag};
pub(crate) use way::mac_control;
pub use way::{ETH_LLDP, ETH_MAC_CONTROL, ETH_ROCE_V1, Found, Inside, Start, Way, step, trace};

use crate::{
    bytes::Bytes,
    parse::{ETH_IPV4, ETH_IPV6, IpVersion, Packet},
    reason::Reason,
};

/// A captured frame: what was captured of it, and its length on the wire. [`Bytes::len`] and [`Bytes::reaches`] speak
/// of the wire, [`Bytes::load`] of what was captured.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// The first bytes of the frame, or all of it.
    pub data: &'a [u8],
    /// Bytes that the frame had on the wire.
    pub wire_len: u32,
}

impl Bytes for Captured<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.data.len().max(self.wire_len as usize)
    }

    #[inline]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.data.load(offset)
    }

    #[inline]
    fn is_missing(&self, end: usize) -> bool {
        end > self.data.len() && end <= self.wire_len as usize
    }
}

/// A priority flow control frame (802.1Qbb; scapy's contrib/mac_control.py).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pfc {
    /// Bit i: the time of priority i counts. The high byte of the field is reserved and not kept.
    pub class_enable: u8,
    /// Time to pause of each priority, in units of 512 bit times; 0 ends a pause.
    pub quanta: [u16; 8],
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// RoCEv2. Where a capture was cut behind the BTH, lengths and payload are those that the headers tell, but what
    /// an extension header would tell is missing: then [`extensions`] is `None` (and of an opcode with a RETH or AETH
    /// `reth_length` is 0, `aeth` is `None`).
    RoceV2(Packet),
    /// RoCEv1 (EtherType 0x8915): [`Packet::ip_at`] is where the GRH begins; see [`Packet::udp_at`].
    RoceV1(Packet),
    /// Priority flow control.
    Pfc(Pfc),
    /// The pause frame of 802.3x.
    GlobalPause {
        /// Time to pause, in units of 512 bit times; 0 ends a pause.
        quanta: u16,
    },
    /// Link layer discovery.
    Lldp,
    /// Nothing of the above, as far as the headers tell.
    Other,
    /// RoCE, or on the way to it, and wrong.
    Malformed(Reason),
    /// Perhaps RoCE: more than is followed (a fragment, a tunnel in a tunnel, too many tags), or than was captured.
    /// [`Reason::is_unfollowed`] holds.
    Unfollowed(Reason),
}

impl Kind {
    /// The packet, if it is one of RoCEv2 or RoCEv1.
    #[inline]
    pub const fn packet(&self) -> Option<&Packet> {
        match self {
            Self::RoceV2(packet) | Self::RoceV1(packet) => Some(packet),
            _ => None,
        }
    }
}

/// What a frame is, and what stands on the way to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dissected {
    /// The outermost Ethernet header; `None`: the frame begins behind it ([`dissect_at`]), or was not captured.
    pub link: Option<LinkHeader>,
    /// The tunnel around the packet.
    pub tunnel: Option<Tunnel>,
    /// The Ethernet header of a frame in a tunnel.
    pub inner_link: Option<LinkHeader>,
    /// What it is.
    pub kind: Kind,
    /// Differentiated services codepoint of the innermost IP header or GRH that was met (0: none).
    pub dscp: u8,
    /// ECN codepoint of the same header.
    pub ecn: u8,
    /// Its TTL or hop limit.
    pub ttl: u8,
    /// Its flow label, 20 bits; 0 of IPv4.
    pub flow_label: u32,
    /// UDP source port of a RoCEv2 packet; 0 of RoCEv1.
    pub udp_src_port: u16,
}

/// Takes a frame apart from the Ethernet header on.
pub fn dissect<B: Bytes + ?Sized>(frame: &B) -> Dissected {
    dissect_from(frame, Start::Ethernet(0))
}

/// Takes a frame apart from the IP header on (LINKTYPE_RAW).
pub fn dissect_ip<B: Bytes + ?Sized>(frame: &B) -> Dissected {
    dissect_from(frame, Start::Ip(0))
}

/// Takes a frame apart whose link header is no Ethernet header: `ether_type` stands at offset `at` (Linux cooked
/// captures name the EtherType). Offsets stay those of the whole frame.
pub fn dissect_at<B: Bytes + ?Sized>(frame: &B, at: u32, ether_type: u16) -> Dissected {
    dissect_from(frame, Start::EtherType(at, ether_type))
}

fn dissect_from<B: Bytes + ?Sized>(frame: &B, start: Start) -> Dissected {
    let mut packet = Packet::EMPTY;
    let mut way = Way::NEW;
    let found = trace(frame, start, &mut packet, &mut way);
    let link = match start {
        Start::Ethernet(at) => LinkHeader::read(frame, at),
        Start::EtherType(..) | Start::Ip(_) => None,
    };
    let inner_link = match way.inside {
        Some(Inside {
            start: Start::Ethernet(at),
            ..
        }) => LinkHeader::read(frame, at),
        _ => None,
    };
    let kind = match found {
        Found::RoceV2 => Kind::RoceV2(packet),
        Found::RoceV1 => Kind::RoceV1(packet),
        Found::Pfc(pfc) => Kind::Pfc(pfc),
        Found::GlobalPause { quanta } => Kind::GlobalPause { quanta },
        Found::Lldp => Kind::Lldp,
        Found::Other => Kind::Other,
        Found::Stopped(reason) if reason.is_unfollowed() => Kind::Unfollowed(reason),
        Found::Stopped(reason) => Kind::Malformed(reason),
    };
    let mut out = Dissected {
        link,
        tunnel: Tunnel::read(frame, &way),
        inner_link,
        kind,
        dscp: 0,
        ecn: 0,
        ttl: 0,
        flow_label: 0,
        udp_src_port: 0,
    };
    if let Some(ip_at) = way.ip_at
        && let Some(ip) = IpBrief::read(frame, ip_at, way.ip_version)
    {
        (out.dscp, out.ecn) = (ip.tos >> 2, ip.tos & 3);
        (out.ttl, out.flow_label) = (ip.ttl, ip.flow_label);
    }
    if let Kind::RoceV2(p) = &out.kind
        && let Some(port) = frame.load(p.udp_at as usize)
    {
        out.udp_src_port = u16::from_be_bytes(port);
    }
    out
}

/// What of an IP header (or GRH) stands beside the way.
#[derive(Clone, Copy)]
struct IpBrief {
    tos: u8,
    ttl: u8,
    flow_label: u32,
}

impl IpBrief {
    fn read<B: Bytes + ?Sized>(frame: &B, at: u32, version: IpVersion) -> Option<Self> {
        let h: [u8; 9] = frame.load(at as usize)?;
        Some(match version {
            IpVersion::V4 => Self {
                tos: h[1],
                ttl: h[8],
                flow_label: 0,
            },
            IpVersion::V6 => Self {
                tos: (h[0] << 4) | (h[1] >> 4),
                ttl: h[7],
                flow_label: u32::from_be_bytes([0, h[1] & 0xf, h[2], h[3]]),
            },
        })
    }
}

/// The EtherType that an IP header's first byte tells; `None`: no IP.
#[inline(always)]
const fn ether_type_of_ip(first: u8) -> Option<u16> {
    match first >> 4 {
        4 => Some(ETH_IPV4),
        6 => Some(ETH_IPV6),
        _ => None,
    }
}
