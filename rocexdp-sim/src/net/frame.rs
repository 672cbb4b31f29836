//! A RoCEv2 frame without its payload: the headers as they are on the wire, and how long what follows is.
//!
//! Zeros are not worth keeping, copying or summing up: a model's memory holds nothing else. The ICRC is neither: what a link has
//! changed is marked, and the receiver told that the ICRC is wrong, as it would find.
//!
//! Must not: be sent anywhere but in a simulation.

use std::cell::RefCell;

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

/// Headers in memory.
#[derive(Clone, Debug)]
struct Headers {
    bytes: [u8; HEADERS],
    len: u8,
}

thread_local! {
    /// Headers that no frame has any more: used again, the last ones first, so that no frame is allocated in steady state and
    /// what is written next is in the cache. Of the thread, since a network runs in one; nothing depends on which they are.
    #[allow(clippy::vec_box)] // The boxes are what is used again.
    static FREE: RefCell<Vec<Box<Headers>>> = const { RefCell::new(Vec::new()) };
}

/// A frame. What switches ask for is in it, its headers are elsewhere: a large network lives on how few cache lines a hop takes.
#[derive(Debug)]
pub struct Frame {
    /// `None` only while it is dropped.
    headers: Option<Box<Headers>>,
    hash: u32,
    host: u16,
    nic: u8,
    len: u8,
    /// Payload, pad and ICRC.
    tail: u16,
    priority: u8,
    ecn_capable: bool,
    corrupt: bool,
}

impl Headers {
    fn of(headers: &[u8]) -> Option<Box<Self>> {
        let mut new = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| {
            Box::new(Self {
                bytes: [0; HEADERS],
                len: 0,
            })
        });
        new.bytes.get_mut(..headers.len())?.copy_from_slice(headers);
        new.len = headers.len() as u8;
        Some(new)
    }
}

impl Clone for Frame {
    fn clone(&self) -> Self {
        Self {
            headers: Headers::of(self.headers()),
            ..*self
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(headers) = self.headers.take() {
            // While the thread ends there may be no list any more.
            let _ = FREE.try_with(|free| free.borrow_mut().push(headers));
        }
    }
}

impl Frame {
    /// Of these headers, from Ethernet on, IPv4 without a VLAN tag, and a payload of this length. `None`: it is no such frame.
    pub(super) fn new(headers: &[u8], payload: usize, priorities: &[u8; 64]) -> Option<Self> {
        let (ip, _) = headers.get(ETH..)?.split_first_chunk::<{ IPV4 + UDP }>()?;
        if headers.get(12..14)? != [8, 0] || ip[0] != 0x45 {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
        Some(Self {
            hash: routes::mix(word(12), routes::mix(word(16), word(IPV4))),
            host: u16::from_be_bytes([ip[17], ip[18]]),
            nic: ip[19].wrapping_sub(1),
            len: headers.len() as u8,
            tail: (payload as u16).next_multiple_of(4) + ICRC,
            priority: priorities[usize::from(ip[1] >> 2)],
            ecn_capable: ip[1] & 3 != 0,
            corrupt: false,
            headers: Some(Headers::of(headers)?),
        })
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        let headers = self.headers.as_deref();
        headers.map_or(&[], |h| &h.bytes[..usize::from(h.len)])
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

    fn headers_mut(&mut self) -> &mut [u8] {
        let headers = self.headers.as_deref_mut();
        headers.map_or(&mut [], |h| &mut h.bytes[..usize::from(h.len)])
    }

    fn covered(&self) -> Option<Covered> {
        Some(Covered {
            ip: ETH,
            ipv6: false,
            bth: ETH + IPV4 + UDP,
            length: usize::from(self.len) - (ETH + IPV4 + UDP) + usize::from(self.tail - ICRC),
            first: *self.headers().get(ETH..)?.first_chunk()?,
        })
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
        self.ecn_capable
    }

    fn mark(&mut self) {
        let Some(mark) = self.covered().and_then(|c| c.mark()) else {
            return;
        };
        let headers = self.headers_mut();
        headers[mark.at] = mark.value;
        if let Some(at) = mark.ipv4_checksum_at {
            let sum = mark.checksum([headers[at], headers[at + 1]]);
            headers[at..at + 2].copy_from_slice(&sum);
        }
    }
}

impl Packet for Frame {
    #[inline]
    fn destination(&self) -> HostId {
        HostId(u32::from(self.host))
    }

    #[inline]
    fn destination_nic(&self) -> PortId {
        PortId(u16::from(self.nic))
    }

    #[inline]
    fn flow_hash(&self) -> u32 {
        self.hash
    }

    fn corrupt(&mut self, entropy: u64) {
        // A byte of the payload, which is not kept, is changed all the same.
        self.corrupt = true;
        let Some((at, mask)) = self.covered().map(|c| c.corruption(entropy)) else {
            return;
        };
        if let Some(byte) = self.headers_mut().get_mut(at) {
            *byte ^= mask;
        }
    }

    fn write_frame(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.headers());
    }
}
