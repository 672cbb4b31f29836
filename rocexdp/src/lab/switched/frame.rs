//! A frame in a lab's switches: its bytes, and what a switch must know of them, read once as it comes in.
//!
//! Must not: trust a length in the frame.

use std::collections::HashMap;

use rocexdp_common::{
    dissect::{self, ETH_MAC_CONTROL, Kind, Pfc},
    fault::{self, Covered},
};
use rocexdp_sim::{
    net::{Packet, routes},
    switch::Queued,
    topology::{HostId, PortId},
};

use crate::net::Mac;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const ETH_IPV4: u16 = 0x0800;
const ETH_IPV6: u16 = 0x86dd;
const ETH_TAGS: [u16; 2] = [0x8100, 0x88a8];
/// The shortest frame, without its FCS.
const SHORTEST: usize = 60;
/// Where MAC control frames go (scapy's contrib/mac_control.py).
pub const MAC_CONTROL: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 1]);
const PFC_OPCODE: u16 = 0x0101;

/// A NIC of the lab.
pub type NicId = (HostId, PortId);

/// A frame under way.
#[derive(Clone, Debug)]
pub struct Frame {
    pub bytes: Vec<u8>,
    to: NicId,
    priority: u8,
    ip: Option<Ip>,
}

/// Where an IP header begins, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ip {
    at: usize,
    v6: bool,
}

/// What came from a host.
#[derive(Debug)]
pub enum Arrival {
    /// For another NIC.
    Frame(Frame),
    /// For all others: copies are made by [`Reader::copies`].
    Flood(Vec<u8>),
    /// A priority flow control frame.
    Pfc(Pfc),
    /// For nobody here, or no frame at all.
    Unknown(Vec<u8>),
}

/// Reads frames: who is where, and which priority is whose.
#[derive(Debug)]
pub struct Reader {
    nics: HashMap<[u8; 6], NicId>,
    priorities: [u8; 64],
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(pair.try_into().ok()?))
}

impl Reader {
    pub fn new(nics: impl IntoIterator<Item = ([u8; 6], NicId)>, priorities: [u8; 64]) -> Self {
        Self {
            nics: nics.into_iter().collect(),
            priorities,
        }
    }

    pub fn read(&self, bytes: Vec<u8>) -> Arrival {
        let Some(to) = bytes.first_chunk::<6>() else {
            return Arrival::Unknown(bytes);
        };
        if be16(&bytes, 12) == Some(ETH_MAC_CONTROL) {
            return match dissect::dissect(bytes.as_slice()).kind {
                Kind::Pfc(pfc) => Arrival::Pfc(pfc),
                _ => Arrival::Unknown(bytes),
            };
        }
        if to[0] & 1 != 0 {
            return Arrival::Flood(bytes);
        }
        match self.nics.get(to).copied() {
            Some(to) => Arrival::Frame(self.frame(bytes, to)),
            None => Arrival::Unknown(bytes),
        }
    }

    /// A copy for each NIC of the other hosts.
    pub fn copies(&self, bytes: &[u8], from: HostId) -> Vec<Frame> {
        let mut others: Vec<NicId> = self
            .nics
            .values()
            .copied()
            .filter(|(h, _)| *h != from)
            .collect();
        others.sort_unstable();
        others
            .into_iter()
            .map(|to| self.frame(bytes.to_vec(), to))
            .collect()
    }

    fn frame(&self, bytes: Vec<u8>, to: NicId) -> Frame {
        let (tag, ip) = network_layer(&bytes);
        let dscp = ip.and_then(|ip| Some(traffic_class(&bytes, ip)? >> 2));
        // As a ConnectX with trust DSCP: the tag only counts without an IP header.
        let priority = match dscp {
            Some(dscp) => self.priorities.get(usize::from(dscp)).copied().unwrap_or(0),
            None => tag.map_or(0, |tag| (tag >> 13) as u8),
        };
        Frame {
            bytes,
            to,
            priority,
            ip,
        }
    }
}

/// The first VLAN tag, and the IP header.
fn network_layer(bytes: &[u8]) -> (Option<u16>, Option<Ip>) {
    let mut tag = None;
    let mut at = ETHERNET;
    let mut ether_type = be16(bytes, 12);
    for _ in 0..2 {
        if !ether_type.is_some_and(|t| ETH_TAGS.contains(&t)) {
            break;
        }
        tag = tag.or(be16(bytes, at));
        ether_type = be16(bytes, at + 2);
        at += TAG;
    }
    let ip = match ether_type {
        Some(ETH_IPV4) if bytes.len() >= at + 20 => Some(Ip { at, v6: false }),
        Some(ETH_IPV6) if bytes.len() >= at + 40 => Some(Ip { at, v6: true }),
        _ => None,
    };
    (tag, ip)
}

/// DSCP and ECN.
fn traffic_class(bytes: &[u8], ip: Ip) -> Option<u8> {
    let first = be16(bytes, ip.at)?;
    Some(if ip.v6 {
        (first >> 4) as u8
    } else {
        first as u8
    })
}

impl Queued for Frame {
    fn wire_len(&self) -> u32 {
        self.bytes.len().max(SHORTEST) as u32
    }

    fn priority(&self) -> u8 {
        self.priority
    }

    fn ecn_capable(&self) -> bool {
        let class = self.ip.and_then(|ip| traffic_class(&self.bytes, ip));
        class.is_some_and(|class| class & 3 != 0)
    }

    fn mark(&mut self) {
        let Some(ip) = self.ip else { return };
        let Some(first) = self
            .bytes
            .get(ip.at..ip.at + 2)
            .and_then(|b| b.try_into().ok())
        else {
            return;
        };
        // What stands behind the IP header does not matter for a mark.
        let header = Covered {
            ip: ip.at,
            ipv6: ip.v6,
            bth: 0,
            length: 0,
            first,
        };
        let Some(mark) = header.mark() else { return };
        if let Some(byte) = self.bytes.get_mut(mark.at) {
            *byte = mark.value;
        }
        if let Some(sum) = mark
            .ipv4_checksum_at
            .and_then(|at| self.bytes.get_mut(at..at + 2))
            && let Ok(old) = <[u8; 2]>::try_from(&*sum)
        {
            sum.copy_from_slice(&mark.checksum(old));
        }
    }
}

impl Packet for Frame {
    fn destination(&self) -> HostId {
        self.to.0
    }

    fn destination_nic(&self) -> PortId {
        self.to.1
    }

    /// Of both addresses and, where the next header has them, both ports; fragments of one packet may part.
    fn flow_hash(&self) -> u32 {
        let Some(ip) = self.ip else { return 0 };
        let (addresses, ports) = if ip.v6 {
            (ip.at + 8..ip.at + 40, ip.at + 40)
        } else {
            let words = self
                .bytes
                .get(ip.at)
                .map_or(5, |first| usize::from(first & 15));
            (ip.at + 12..ip.at + 20, ip.at + 4 * words)
        };
        let bytes =
            [addresses, ports..ports + 4].map(|range| self.bytes.get(range).unwrap_or_default());
        let words = bytes.into_iter().flat_map(|b| b.as_chunks::<4>().0);
        words.fold(0, |hash, word| routes::mix(u32::from_be_bytes(*word), hash))
    }

    fn corrupt(&mut self, entropy: u64) {
        // As on the lab's wire: only RoCEv2, where its ICRC tells.
        if let Some(covered) = fault::find(self.bytes.as_slice()) {
            let (at, mask) = covered.corruption(entropy);
            if let Some(byte) = self.bytes.get_mut(at) {
                *byte ^= mask;
            }
        }
    }

    fn write_frame(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
    }
}

/// A PFC frame about one priority, from this Ethernet address.
pub fn pfc_frame(from: Mac, priority: u8, quanta: u16) -> [u8; SHORTEST] {
    let mut frame = [0; SHORTEST];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        if let Some(place) = frame.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        at += bytes.len();
    };
    put(&MAC_CONTROL.0);
    put(&from.0);
    put(&ETH_MAC_CONTROL.to_be_bytes());
    put(&PFC_OPCODE.to_be_bytes());
    put(&[0, 1 << (priority & 7)]);
    for class in 0..8 {
        put(&if class == priority { quanta } else { 0 }.to_be_bytes());
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn reader() -> Reader {
        let nic = |n| (HostId(n), PortId(0));
        Reader::new(
            [(A.0, nic(0)), (B.0, nic(1)), ([2, 0, 0, 0, 0, 3], nic(2))],
            core::array::from_fn(|d| d as u8 >> 3),
        )
    }

    fn sum(header: &[u8]) -> u16 {
        let sum: u32 = header
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        (folded + (folded >> 16)) as u16
    }

    /// An IPv4 UDP frame with a right checksum.
    fn ipv4(tags: &[u8], tos: u8, port: u16) -> Vec<u8> {
        let mut ip = vec![
            0x45, tos, 0, 40, 0, 1, 0, 0, 64, 17, 0, 0, 10, 78, 0, 1, 10, 78, 0, 2,
        ];
        let check = !sum(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        let mut frame = [&B.0[..], &A.0, tags, &[8, 0]].concat();
        frame.extend(ip);
        frame.extend(port.to_be_bytes());
        frame.extend([0; 18]);
        frame
    }

    fn ipv6(class: u8) -> Vec<u8> {
        let mut frame = [&B.0[..], &A.0, &[0x86, 0xdd, 0x60 | class >> 4, class << 4]].concat();
        frame.resize(14 + 40 + 20, 7);
        frame
    }

    fn read(bytes: Vec<u8>) -> Frame {
        match reader().read(bytes) {
            Arrival::Frame(frame) => frame,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn priority_is_by_dscp_and_without_ip_by_the_tag() {
        assert_eq!(read(ipv4(&[], 26 << 2, 1)).priority(), 3);
        assert_eq!(read(ipv4(&[0x81, 0, 0xa0, 5], 26 << 2, 1)).priority(), 3);
        assert_eq!(read(ipv6(48 << 2 | 2)).priority(), 6);
        let mut arp = [&B.0[..], &A.0, &[0x81, 0, 0xa0, 5, 8, 6]].concat();
        arp.resize(60, 0);
        assert_eq!(
            (read(arp.clone()).priority(), read(arp).wire_len()),
            (5, 60)
        );
    }

    #[test]
    fn a_mark_keeps_the_header_checksum_right_and_leaves_others_alone() {
        for ecn in [1, 2, 3] {
            let mut frame = read(ipv4(&[0x81, 0, 0, 5], 26 << 2 | ecn, 1));
            assert!(frame.ecn_capable());
            frame.mark();
            assert_eq!(frame.bytes[19], 26 << 2 | 3);
            assert_eq!(sum(&frame.bytes[18..38]), 0xffff, "ECN {ecn}");
        }
        let frame = read(ipv4(&[], 26 << 2, 1));
        assert!(!frame.ecn_capable());
        let mut frame = read(ipv6(26 << 2 | 2));
        let before = frame.bytes.clone();
        frame.mark();
        assert_eq!(
            traffic_class(&frame.bytes, frame.ip.unwrap()),
            Some(26 << 2 | 3)
        );
        assert_eq!(
            (&frame.bytes[..14], &frame.bytes[16..]),
            (&before[..14], &before[16..])
        );
    }

    #[test]
    fn flows_are_told_apart_by_their_ports() {
        let hashes: Vec<u32> = (0..8)
            .map(|port| read(ipv4(&[], 0, port)).flow_hash())
            .collect();
        let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), 8);
        assert_eq!(hashes[3], read(ipv4(&[], 255, 3)).flow_hash());
    }

    #[test]
    fn what_is_for_all_goes_to_all_others_once() {
        let mut arp = [&[0xff; 6][..], &A.0, &[8, 6]].concat();
        arp.resize(60, 0);
        let Arrival::Flood(bytes) = reader().read(arp) else {
            panic!()
        };
        let to: Vec<_> = reader()
            .copies(&bytes, HostId(0))
            .iter()
            .map(Packet::destination)
            .collect();
        assert_eq!(to, [HostId(1), HostId(2)]);
        assert!(matches!(reader().read(vec![1, 2, 3]), Arrival::Unknown(_)));
        let mut stranger = ipv4(&[], 0, 1);
        stranger[5] = 9;
        assert!(matches!(reader().read(stranger), Arrival::Unknown(_)));
    }

    #[test]
    fn a_pfc_frame_is_read_as_it_was_written() {
        let frame = pfc_frame(A, 3, 0x1234);
        let Arrival::Pfc(pfc) = reader().read(frame.to_vec()) else {
            panic!()
        };
        assert_eq!(
            pfc,
            Pfc {
                class_enable: 8,
                quanta: [0, 0, 0, 0x1234, 0, 0, 0, 0]
            }
        );
    }

    #[test]
    fn short_and_odd_frames_are_read_without_harm() {
        for whole in [
            ipv4(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 5], 2, 7),
            ipv6(2),
            pfc_frame(A, 1, 1).to_vec(),
        ] {
            for len in 0..whole.len() {
                if let Arrival::Frame(mut frame) = reader().read(whole[..len].to_vec()) {
                    let _ = (frame.flow_hash(), frame.ecn_capable());
                    frame.mark();
                    frame.corrupt(u64::MAX);
                }
            }
        }
    }
}
