//! What the Ethernet header says beside what follows it: addresses, VLAN tags.

use network_types::{eth::EthHdr, vlan::VlanHdr};

use crate::{
    bytes::Bytes,
    parse::{MAX_VLAN_TAGS, is_vlan},
};

/// A VLAN tag; with `vid` 0 it is a priority tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VlanTag {
    /// Tag protocol: 0x8100, 0x88a8 or 0x9100.
    pub tpid: u16,
    /// Priority, 0..=7.
    pub pcp: u8,
    /// Drop eligible.
    pub dei: bool,
    /// VLAN, 12 bits.
    pub vid: u16,
}

/// An Ethernet header with its tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkHeader {
    /// Source MAC address.
    pub src: [u8; 6],
    /// Destination MAC address.
    pub dst: [u8; 6],
    /// Tags, the outermost first.
    pub tags: [Option<VlanTag>; MAX_VLAN_TAGS as usize],
    /// EtherType behind the tags that are listed (another tag's where there are more); below 0x600 a length.
    pub ether_type: u16,
}

impl LinkHeader {
    /// Reads the header at `at`; `None` where it ends too early.
    pub fn read<B: Bytes + ?Sized>(frame: &B, at: u32) -> Option<Self> {
        let at = at as usize;
        let mut out = Self {
            dst: frame.load(at)?,
            src: frame.load(at.checked_add(6)?)?,
            tags: [None; MAX_VLAN_TAGS as usize],
            ether_type: u16::from_be_bytes(frame.load(at.checked_add(12)?)?),
        };
        let mut next = at.checked_add(EthHdr::LEN)?;
        for tag in &mut out.tags {
            if !is_vlan(out.ether_type) {
                break;
            }
            let [a, b, c, d]: [u8; VlanHdr::LEN] = frame.load(next)?;
            *tag = Some(VlanTag {
                tpid: out.ether_type,
                pcp: a >> 5,
                dei: a & 0x10 != 0,
                vid: u16::from_be_bytes([a & 0xf, b]),
            });
            out.ether_type = u16::from_be_bytes([c, d]);
            next += VlanHdr::LEN;
        }
        Some(out)
    }
}
