//! The way from a frame's first byte to the packet in it, through at most one tunnel.

use core::cell::Cell;

use super::{
    Pfc,
    encap::{self, Outer, TunnelAt},
    ether_type_of_ip,
};
use crate::{
    bytes::Bytes,
    headers::{Bth, Grh, ICRC_LEN},
    ids::Gid,
    parse::{self, ETH_IPV4, ETH_IPV6, IpVersion, NotParsed, Packet},
    reason::Reason,
};
use network_types::udp::UdpHdr;

/// EtherType of RoCEv1.
pub const ETH_ROCE_V1: u16 = 0x8915;
/// EtherType of MAC control frames, pause among them.
pub const ETH_MAC_CONTROL: u16 = 0x8808;
/// EtherType of LLDP.
pub const ETH_LLDP: u16 = 0x88cc;

const PAUSE: u16 = 0x0001;
const PRIORITY_PAUSE: u16 = 0x0101;

/// What stands at an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// An Ethernet header.
    Ethernet(u32),
    /// What the EtherType says.
    EtherType(u32, u16),
    /// An IP header, whose first bits tell its version.
    Ip(u32),
}

/// What is in a tunnel, and of the headers before it what can't be read again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inside {
    /// The tunnel's header.
    pub tunnel: TunnelAt,
    /// What it carries.
    pub start: Start,
    /// Where the outer IP packet ends.
    pub end: u32,
    /// Where the outer IP header begins.
    pub outer_ip_at: u32,
    /// Its version.
    pub outer_ip: IpVersion,
    /// Outer source address.
    pub src: Gid,
    /// Outer destination address.
    pub dst: Gid,
    /// ECN codepoint of the outer IP header.
    pub ecn: u8,
}

/// What was met on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// The tunnel.
    pub inside: Option<Inside>,
    /// Where the innermost IP header (or GRH) begins, if there is a whole one.
    pub ip_at: Option<u32>,
    /// Its version.
    pub ip_version: IpVersion,
}

impl Way {
    /// At the start.
    pub const NEW: Self = Self {
        inside: None,
        ip_at: None,
        ip_version: IpVersion::V4,
    };
}

/// What was found at the end of the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// RoCEv2; the packet is filled in.
    RoceV2,
    /// RoCEv1; the packet is filled in.
    RoceV1,
    /// Priority flow control.
    Pfc(Pfc),
    /// Pause of all priorities.
    GlobalPause {
        /// In units of 512 bit times.
        quanta: u16,
    },
    /// Link layer discovery.
    Lldp,
    /// None of these.
    Other,
    /// Malformed, not followed or not captured.
    Stopped(Reason),
}

/// A part of a frame, that tells whether something was missing in the capture.
struct Window<'a, B: ?Sized> {
    frame: &'a B,
    end: usize,
    missed: Cell<bool>,
}

impl<B: Bytes + ?Sized> Bytes for Window<'_, B> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.frame.len().min(self.end)
    }

    #[inline(always)]
    fn reaches(&self, end: usize) -> bool {
        end <= self.end && self.frame.reaches(end)
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N)?;
        if end > self.end {
            return None;
        }
        let bytes = self.frame.load(offset);
        if bytes.is_none() && self.frame.is_missing(end) {
            self.missed.set(true);
        }
        bytes
    }

    #[inline(always)]
    fn load_rare<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N)?;
        if end > self.end {
            return None;
        }
        let bytes = self.frame.load_rare(offset);
        if bytes.is_none() && self.frame.is_missing(end) {
            self.missed.set(true);
        }
        bytes
    }
}

/// Why a level ends.
enum End {
    Found(Found),
    Tunnel(TunnelAt, Start),
}

impl From<NotParsed> for End {
    #[inline(always)]
    fn from(e: NotParsed) -> Self {
        Self::Found(match e {
            NotParsed::Other => Found::Other,
            NotParsed::Malformed(reason) => Found::Stopped(reason),
        })
    }
}

impl From<Reason> for End {
    #[inline(always)]
    fn from(reason: Reason) -> Self {
        Self::Found(Found::Stopped(reason))
    }
}

/// Finds the packet in a frame. `p` shall be [`Packet::EMPTY`] and `way` [`Way::NEW`]; `p` means something only with
/// [`Found::RoceV2`] and [`Found::RoceV1`].
#[inline(always)]
pub fn trace<B: Bytes + ?Sized>(frame: &B, start: Start, p: &mut Packet, way: &mut Way) -> Found {
    for _ in 0..2 {
        if let Some(found) = step(frame, start, p, way) {
            return found;
        }
    }
    Found::Stopped(Reason::TunnelDepth)
}

/// One step of [`trace`]: to the packet, or into the tunnel that stands in the way (`None`), where the next call goes on.
/// For BPF, whose stack has room for one step at a time.
#[inline(always)]
pub fn step<B: Bytes + ?Sized>(
    frame: &B,
    start: Start,
    p: &mut Packet,
    way: &mut Way,
) -> Option<Found> {
    let (start, end) = match &way.inside {
        None => (start, usize::MAX),
        Some(inside) => (inside.start, inside.end as usize),
    };
    let window = Window {
        frame,
        end,
        missed: Cell::new(false),
    };
    match level(&window, start, p, way) {
        // A header that could not be read is wrong, or was not captured.
        End::Found(Found::Stopped(_)) if window.missed.get() => {
            Some(Found::Stopped(Reason::NotCaptured))
        }
        End::Found(found) => Some(found),
        End::Tunnel(..) if way.inside.is_some() => Some(Found::Stopped(Reason::TunnelDepth)),
        End::Tunnel(tunnel, carried) => {
            way.inside = Some(encap::inside(p, tunnel, carried));
            *p = Packet::EMPTY;
            None
        }
    }
}

/// From one header to the packet or the next tunnel.
#[inline(always)]
fn level<B: Bytes + ?Sized>(
    frame: &Window<'_, B>,
    start: Start,
    p: &mut Packet,
    way: &mut Way,
) -> End {
    match walk(frame, start, p, way) {
        Ok(end) | Err(end) => end,
    }
}

#[inline(always)]
fn walk<B: Bytes + ?Sized>(
    frame: &Window<'_, B>,
    start: Start,
    p: &mut Packet,
    way: &mut Way,
) -> Result<End, End> {
    let ether_type = match start {
        Start::Ethernet(at) => parse::ethernet(frame, p, at as usize)?,
        Start::EtherType(at, ether_type) => parse::tags(frame, p, at as usize, ether_type)?,
        Start::Ip(at) => {
            p.ip_at = at;
            let [first] = frame.load(at as usize).ok_or(Reason::Ipv4Malformed)?;
            ether_type_of_ip(first).ok_or(NotParsed::Other)?
        }
    };
    let protocol = match ether_type {
        ETH_IPV4 => {
            (way.ip_at, way.ip_version) = (Some(p.ip_at), IpVersion::V4);
            parse::ipv4::<_, true>(frame, p)?
        }
        ETH_IPV6 => {
            (way.ip_at, way.ip_version) = (Some(p.ip_at), IpVersion::V6);
            parse::ipv6::<_, true>(frame, p)?
        }
        ETH_ROCE_V1 => {
            (way.ip_at, way.ip_version) = (Some(p.ip_at), IpVersion::V6);
            let bth = grh(frame, p)?;
            return transport(frame, &bth, p, Found::RoceV1);
        }
        ETH_MAC_CONTROL => return Ok(End::Found(mac_control(frame, p.ip_at)?)),
        ETH_LLDP => return Ok(End::Found(Found::Lldp)),
        _ => return Ok(End::Found(Found::Other)),
    };
    match encap::outer(frame, p, protocol)? {
        Outer::Inside(tunnel, carried) => Ok(End::Tunnel(tunnel, carried)),
        Outer::Foreign => Ok(End::Found(Found::Other)),
        Outer::No => {
            let bth = parse::udp(frame, p)?;
            transport(frame, &bth, p, Found::RoceV2)
        }
    }
}

/// The BTH and what follows. A packet that was cut behind the BTH is one all the same.
#[inline(always)]
fn transport<B: Bytes + ?Sized>(
    frame: &Window<'_, B>,
    bth: &[u8; Bth::LEN],
    p: &mut Packet,
    found: Found,
) -> Result<End, End> {
    match parse::transport(frame, bth, p) {
        Err(NotParsed::Malformed(Reason::ExtensionTruncated)) if frame.missed.get() => {
            Ok(End::Found(found))
        }
        Err(e) => Err(e.into()),
        Ok(()) => Ok(End::Found(found)),
    }
}

/// Reads the GRH of RoCEv1 into `p` and returns the BTH.
#[inline(always)]
fn grh<B: Bytes + ?Sized>(frame: &B, p: &mut Packet) -> Result<[u8; Bth::LEN], Reason> {
    let at = p.ip_at as usize;
    let header = frame.load(at).ok_or(Reason::GrhMalformed)?;
    let grh = Grh::parse(&header);
    if grh.version != 6 || grh.next_header != Grh::NEXT_BTH {
        return Err(Reason::GrhMalformed);
    }
    let bth_at = p.ip_at + Grh::LEN as u32;
    p.end = bth_at + u32::from(grh.payload_length);
    if !frame.reaches(p.end as usize) {
        return Err(Reason::GrhLength);
    }
    if usize::from(grh.payload_length) < Bth::LEN + ICRC_LEN {
        return Err(Reason::BthTruncated);
    }
    p.ip = IpVersion::V6;
    p.ecn = grh.traffic_class & 3;
    (p.flow.src, p.flow.dst) = (grh.src, grh.dst);
    // The BTH is found from here, as in a packet that has a UDP header.
    p.udp_at = bth_at - UdpHdr::LEN as u32;
    frame.load(bth_at as usize).ok_or(Reason::BthTruncated)
}

/// Pause frames; other MAC control frames are none of ours.
#[inline(always)]
pub(crate) fn mac_control<B: Bytes + ?Sized>(frame: &B, at: u32) -> Result<Found, Reason> {
    let at = at as usize;
    let opcode = frame.load_rare(at).ok_or(Reason::PauseMalformed)?;
    match u16::from_be_bytes(opcode) {
        PAUSE => {
            let quanta = frame.load_rare(at + 2).ok_or(Reason::PauseMalformed)?;
            Ok(Found::GlobalPause {
                quanta: u16::from_be_bytes(quanta),
            })
        }
        PRIORITY_PAUSE => {
            let [_, class_enable] = frame.load_rare(at + 2).ok_or(Reason::PauseMalformed)?;
            let times: [u8; 16] = frame.load_rare(at + 4).ok_or(Reason::PauseMalformed)?;
            let mut quanta = [0; 8];
            for (quanta, time) in quanta.iter_mut().zip(times.as_chunks().0) {
                *quanta = u16::from_be_bytes(*time);
            }
            Ok(Found::Pfc(Pfc {
                class_enable,
                quanta,
            }))
        }
        _ => Ok(Found::Other),
    }
}
