//! The invariant CRC of a RoCEv2 packet, for XDP: word by word over [`Bytes`], with a 16-entry table.
//!
//! XDP checks short packets only (CNPs); the transport has its own, fast ICRC. What is covered, and with which
//! fields masked, follows drivers/infiniband/sw/rxe/rxe_icrc.c (`rxe_icrc_hdr`); unlike it, IPv4 options and IPv6
//! extension headers are covered too, as they stand. The loops are bounded by [`MAX_WORDS`] for the verifier.

use network_types::{
    ip::{Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
};

use crate::{
    bytes::Bytes,
    headers::{Bth, ICRC_LEN},
    parse::{IpVersion, Packet},
};

/// Words of 4 bytes that [`check`] takes at most in each part of a packet that has no fixed size.
pub const MAX_WORDS: u32 = 16;

/// State after the 8 bytes 0xff that stand for the local route header of InfiniBand.
const AFTER_LRH: u32 = 0xdebb_20e3;

/// CRC-32 (reflected 0x04c11db7) of each nibble.
static NIBBLES: [u32; 16] = {
    let mut table = [0u32; 16];
    let mut i = 0;
    while i < 16 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 4 {
            crc = if crc & 1 != 0 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[inline(always)]
fn nibble(crc: u32) -> u32 {
    (crc >> 4) ^ NIBBLES[(crc & 0xf) as usize]
}

/// Takes four bytes, read as little-endian. Kept a function of its own: it is called in many places.
#[inline(never)]
fn feed(crc: u32, word: u32) -> u32 {
    let crc = crc ^ word;
    let crc = nibble(nibble(nibble(nibble(crc))));
    nibble(nibble(nibble(nibble(crc))))
}

/// Takes a header, with the bits of `ones` counted as ones.
#[inline(always)]
fn header<const N: usize>(crc: u32, bytes: &[u8; N], ones: &[u8; N]) -> u32 {
    let (words, _) = bytes.as_chunks::<4>();
    let (masks, _) = ones.as_chunks::<4>();
    let mut crc = crc;
    for (word, mask) in words.iter().zip(masks) {
        crc = feed(crc, u32::from_le_bytes(*word) | u32::from_le_bytes(*mask));
    }
    crc
}

/// Takes the words from `from` up to `to`; `None`: too many.
#[inline(always)]
fn words<B: Bytes + ?Sized>(frame: &B, mut crc: u32, from: u32, to: u32) -> Option<u32> {
    let mut at = from;
    for _ in 0..=MAX_WORDS {
        if at == to {
            return Some(crc);
        }
        crc = feed(crc, u32::from_le_bytes(frame.load_rare(at as usize)?));
        at += 4;
    }
    None
}

/// Bytes that count as ones. IPv4: type of service, time to live, checksum.
const IPV4_ONES: [u8; Ipv4Hdr::LEN] = {
    let mut ones = [0; Ipv4Hdr::LEN];
    ones[1] = 0xff;
    ones[8] = 0xff;
    ones[10] = 0xff;
    ones[11] = 0xff;
    ones
};
/// IPv6: traffic class, flow label, hop limit.
const IPV6_ONES: [u8; Ipv6Hdr::LEN] = {
    let mut ones = [0; Ipv6Hdr::LEN];
    ones[0] = 0x0f;
    ones[1] = 0xff;
    ones[2] = 0xff;
    ones[3] = 0xff;
    ones[7] = 0xff;
    ones
};
const UDP_BTH_LEN: usize = UdpHdr::LEN + Bth::LEN;
/// UDP: checksum. BTH: the byte of FECN, BECN and reserved bits.
const UDP_BTH_ONES: [u8; UDP_BTH_LEN] = {
    let mut ones = [0; UDP_BTH_LEN];
    ones[6] = 0xff;
    ones[7] = 0xff;
    ones[UdpHdr::LEN + 4] = 0xff;
    ones
};

/// Whether the packet ends with its ICRC. `None`: not told, because more than [`MAX_WORDS`] words stand between IP
/// and UDP header or behind the BTH, or no whole number of them.
#[inline(always)]
pub fn check<B: Bytes + ?Sized>(frame: &B, packet: &Packet) -> Option<bool> {
    let ip_at = packet.ip_at as usize;
    let (crc, options_at) = match packet.ip {
        IpVersion::V4 => (
            header(AFTER_LRH, &frame.load_rare(ip_at)?, &IPV4_ONES),
            Ipv4Hdr::LEN,
        ),
        IpVersion::V6 => (
            header(AFTER_LRH, &frame.load_rare(ip_at)?, &IPV6_ONES),
            Ipv6Hdr::LEN,
        ),
    };
    let crc = words(frame, crc, packet.ip_at + options_at as u32, packet.udp_at)?;
    let crc = header(
        crc,
        &frame.load_rare(packet.udp_at as usize)?,
        &UDP_BTH_ONES,
    );
    let stored_at = packet.end.checked_sub(ICRC_LEN as u32)?;
    let crc = words(frame, crc, packet.udp_at + UDP_BTH_LEN as u32, stored_at)?;
    Some(u32::from_le_bytes(frame.load_rare(stored_at as usize)?) == !crc)
}
