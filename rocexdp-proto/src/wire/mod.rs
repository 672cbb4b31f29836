//! Whole frames: taken apart into a [`Packet`], put together from a [`HeaderTemplate`], and their invariant CRC.
//!
//! The headers behind UDP have one definition, `rocexdp_common::headers`. Received frames may come in pieces (a frame of
//! 4170 B spans two UMEM chunks); they are never linearised. A header is copied once and then checked, so that nobody can
//! change it in between.
//!
//! Must not: know QPs. Formats: drivers/infiniband/sw/rxe/rxe_hdr.h, rxe_net.c.

mod emit;
mod grh;
mod icrc;
mod parse;
mod path;

pub(crate) use emit::Source;
pub use emit::{HeaderBuf, HeaderTemplate, Transmit, TransmitKind};
pub use grh::{GRH_ROOM, Grh};
pub use icrc::Icrc;
pub use parse::{Head, Packet, Payload, dest_qpn, destination};
pub use path::{Path, flow_label_of_port, multicast_mac, udp_source_port};
pub(crate) use path::{is_multicast, is_unicast};

/// The pieces of a received frame, in order, from the Ethernet header on; without FCS.
pub type Frags<'a> = &'a [&'a [u8]];

/// What the driver knows of a received frame besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMeta {
    /// Receive queue.
    pub queue: u32,
    /// How it came.
    pub origin: Origin,
    /// Who checks its ICRC.
    pub icrc: IcrcSeen,
}

/// Whether somebody below has checked a frame's ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IcrcSeen {
    /// Nobody has.
    #[default]
    No,
    /// It is right or, false, wrong. The simulator, whose frames have no payload to check, knows what its links have changed.
    As(bool),
}

/// How a frame came to an endpoint. Treated the same, counted apart: who looks at the counters has seen only those of the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Origin {
    /// From the wire.
    #[default]
    Wire,
    /// From a QP of this host, never on the wire.
    Looped,
    /// A copy of a multicast group's packet, which another endpoint of the host has got from the wire.
    Copied,
}

pub(crate) const ETH_HEADER: usize = 14;
pub(crate) const VLAN_TAG: usize = 4;
pub(crate) const UDP_HEADER: usize = 8;
pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(crate) const ETHERTYPE_8021Q: u16 = 0x8100;
pub(crate) const PROTOCOL_UDP: u8 = 17;
/// Full membership of the default partition.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// `N` bytes from `at` on.
#[inline]
pub(crate) fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Writes `value` at `at` if it fits.
#[inline]
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(dst) = bytes.get_mut(at..).and_then(|b| b.get_mut(..value.len())) {
        dst.copy_from_slice(value);
    }
}

/// The bytes `start..start + len` of a frame in pieces.
pub(crate) fn slices<'a>(
    frags: Frags<'a>,
    start: usize,
    len: usize,
) -> impl Iterator<Item = &'a [u8]> {
    let (mut skip, mut left) = (start, len);
    frags.iter().filter_map(move |piece| {
        let Some(rest) = piece.get(skip..) else {
            skip -= piece.len();
            return None;
        };
        skip = 0;
        let part = rest.get(..left).unwrap_or(rest);
        left -= part.len();
        (!part.is_empty()).then_some(part)
    })
}
