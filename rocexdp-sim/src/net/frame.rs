//! A RoCEv2 frame without its payload: the headers as they are on the wire, and how long what follows is.
//!
//! Zeros are not worth keeping, copying or summing up: a model's memory holds nothing else. The ICRC is neither: what a link has
//! changed is marked, and the receiver told that the ICRC is wrong, as it would find.
//!
//! Must not: be sent anywhere but in a simulation.

use rocexdp_common::fault::Covered;

use super::{Packet, routes};
use crate::switch::Queued;
use crate::topology::{HostId, PortId};

/// Room for headers: Ethernet with a VLAN tag, IPv4, UDP, BTH, and selective repeat's acknowledgement (SRETH, AETH, SACK) or an
/// atomic request.
const HEADERS: usize = 112;
const ETH: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const ICRC: u16 = 4;

/// Address of a host's NIC, IPv4: 10.(host, 16 bits).(NIC and 1).
pub(super) const fn address(host: HostId, nic: PortId) -> [u8; 4] {
    [10, (host.0 >> 8) as u8, host.0 as u8, nic.0 as u8 + 1]
}

/// A frame.
#[derive(Clone, Debug)]
pub struct Frame {
    head: [u8; HEADERS],
    len: u8,
    priority: u8,
    corrupt: bool,
    /// Payload, pad and ICRC.
    tail: u16,
    hash: u32,
}

impl Frame {
    /// Of these headers, from Ethernet on, IPv4 without a VLAN tag, and a payload of this length. `None`: it is no such frame.
    pub(super) fn new(headers: &[u8], payload: usize, priorities: &[u8; 64]) -> Option<Self> {
        let mut head = [0; HEADERS];
        head.get_mut(..headers.len())?.copy_from_slice(headers);
        if head[12..15] != [8, 0, 0x45] {
            return None;
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let hash = routes::mix(
            word(ETH + 12),
            routes::mix(word(ETH + 16), word(ETH + IPV4)),
        );
        Some(Self {
            len: headers.len() as u8,
            priority: priorities[usize::from(head[ETH + 1] >> 2)],
            corrupt: false,
            tail: (payload as u16).next_multiple_of(4) + ICRC,
            hash,
            head,
        })
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        &self.head[..usize::from(self.len)]
    }

    /// Bytes behind them: payload, pad and ICRC.
    #[must_use]
    pub fn tail(&self) -> usize {
        usize::from(self.tail)
    }

    /// Whether its ICRC is right.
    #[must_use]
    pub fn icrc_is_right(&self) -> bool {
        !self.corrupt
    }

    fn covered(&self) -> Covered {
        Covered {
            ip: ETH,
            ipv6: false,
            bth: ETH + IPV4 + UDP,
            length: usize::from(self.len) - (ETH + IPV4 + UDP) + usize::from(self.tail - ICRC),
            first: [self.head[ETH], self.head[ETH + 1]],
        }
    }
}

impl Queued for Frame {
    #[inline]
    fn wire_len(&self) -> u32 {
        u32::from(self.len) + u32::from(self.tail)
    }

    #[inline]
    fn priority(&self) -> u8 {
        self.priority
    }

    #[inline]
    fn ecn_capable(&self) -> bool {
        self.head[ETH + 1] & 3 != 0
    }

    fn mark(&mut self) {
        let Some(mark) = self.covered().mark() else {
            return;
        };
        self.head[mark.at] = mark.value;
        if let Some(at) = mark.ipv4_checksum_at {
            let sum = mark.checksum([self.head[at], self.head[at + 1]]);
            self.head[at..at + 2].copy_from_slice(&sum);
        }
    }
}

impl Packet for Frame {
    #[inline]
    fn destination(&self) -> HostId {
        let [high, low] = [self.head[ETH + 17], self.head[ETH + 18]];
        HostId(u32::from(high) << 8 | u32::from(low))
    }

    #[inline]
    fn destination_nic(&self) -> PortId {
        PortId(u16::from(self.head[ETH + 19]).wrapping_sub(1))
    }

    #[inline]
    fn flow_hash(&self) -> u32 {
        self.hash
    }

    fn corrupt(&mut self, entropy: u64) {
        // A byte of the payload, which is not kept, is changed all the same.
        self.corrupt = true;
        let (at, mask) = self.covered().corruption(entropy);
        if let Some(byte) = self.head[..usize::from(self.len)].get_mut(at) {
            *byte ^= mask;
        }
    }

    fn write_frame(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.headers());
    }
}
