//! What precedes a UD message in the receiver's memory: 40 bytes, the room of an InfiniBand GRH, in which RoCEv2 receivers put
//! the IP header.
//!
//! IPv6: the header as it came. IPv4: 20 zeros, then the header as it came, without options (`union rdma_network_hdr` of
//! include/rdma/ib_verbs.h; capture ud-send). That it carries the sender's address is what makes answers possible.
//!
//! Must not: judge the header (the parser has).

use super::take;
use crate::ids::{Gid, gid_from_ipv4};

/// Bytes before a UD message.
pub const GRH_ROOM: usize = 40;
/// Where the IPv4 header starts.
const IPV4_AT: usize = 20;

/// The 40 bytes before a UD message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh([u8; GRH_ROOM]);

impl Grh {
    /// As read from a receive request's memory.
    #[must_use]
    pub const fn new(bytes: [u8; GRH_ROOM]) -> Self {
        Self(bytes)
    }

    pub(crate) fn ipv6(header: [u8; 40]) -> Self {
        Self(header)
    }

    pub(crate) fn ipv4(header: [u8; 20]) -> Self {
        let mut bytes = [0; GRH_ROOM];
        super::put(&mut bytes, IPV4_AT, &header);
        Self(bytes)
    }

    /// All of it.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; GRH_ROOM] {
        &self.0
    }

    /// Whether the message came by IPv4 (else by IPv6).
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        take(&self.0, 0) == Some([0; IPV4_AT])
    }

    /// The sender's address.
    #[must_use]
    pub fn src(&self) -> Gid {
        self.address(12, 8)
    }

    /// The address it was sent to: the receiver's, or a group.
    #[must_use]
    pub fn dst(&self) -> Gid {
        self.address(16, 24)
    }

    /// IPv4 TOS or IPv6 traffic class: DSCP and ECN.
    #[must_use]
    pub fn traffic_class(&self) -> u8 {
        if self.is_ipv4() {
            let [tos] = self.part(IPV4_AT + 1);
            tos
        } else {
            let word = u16::from_be_bytes(self.part(0));
            (word >> 4) as u8
        }
    }

    /// IPv6 flow label; 0 by IPv4.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        u32::from_be_bytes(self.part(0)) & 0xf_ffff
    }

    /// TTL or hop limit, as it arrived.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        let [hops] = self.part(if self.is_ipv4() { IPV4_AT + 8 } else { 7 });
        hops
    }

    fn address(&self, ipv4: usize, ipv6: usize) -> Gid {
        if self.is_ipv4() {
            gid_from_ipv4(self.part(IPV4_AT + ipv4))
        } else {
            self.part(ipv6)
        }
    }

    /// `N` bytes from `at` on, which lie within the 40.
    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        take(&self.0, at).unwrap_or([0; N])
    }
}
