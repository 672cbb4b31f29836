//! The invariant CRC of a RoCEv2 packet, for XDP: word by word over [`Bytes`], with a 16-entry table.
//!
//! XDP checks short packets only (CNPs); the transport has its own, fast ICRC. What is covered, and with which
//! fields masked, follows drivers/infiniband/sw/rxe/rxe_icrc.c (`rxe_icrc_hdr`); unlike it, IPv4 options and IPv6
//! extension headers are covered too, as they stand. The loop is bounded by [`MAX_WORDS`] for the verifier.

use crate::{
    bytes::Bytes,
    headers::ICRC_LEN,
    parse::{IpVersion, Packet},
};

/// Words of 4 bytes that [`check`] covers at most: IP header to payload.
pub const MAX_WORDS: u32 = 64;

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

/// Whether the packet ends with its ICRC. `None`: it can't be told, because the packet is longer than [`MAX_WORDS`]
/// words or not a whole number of words.
#[inline(always)]
pub fn check<B: Bytes + ?Sized>(frame: &B, packet: &Packet) -> Option<bool> {
    let covered = packet.end.checked_sub(packet.ip_at + ICRC_LEN as u32)?;
    if covered % 4 != 0 || covered / 4 > MAX_WORDS {
        return None;
    }
    let udp_word = (packet.udp_at - packet.ip_at) / 4;
    let words = covered / 4;
    let mut crc = AFTER_LRH;
    let mut word = 0;
    while word < MAX_WORDS && word < words {
        let bytes = frame.load::<4>((packet.ip_at + 4 * word) as usize)?;
        crc ^= u32::from_le_bytes(bytes) | mask(packet.ip, udp_word, word);
        // Four bytes are eight nibbles.
        crc = nibble(nibble(nibble(nibble(crc))));
        crc = nibble(nibble(nibble(nibble(crc))));
        word += 1;
    }
    let stored = frame.load::<ICRC_LEN>((packet.end - ICRC_LEN as u32) as usize)?;
    Some(u32::from_le_bytes(stored) == !crc)
}

/// The bits of a word, read as little-endian, that count as ones.
#[inline(always)]
const fn mask(ip: IpVersion, udp_word: u32, word: u32) -> u32 {
    // UDP: checksum. BTH: the byte of FECN, BECN and reserved bits.
    if word == udp_word + 1 {
        return u32::from_le_bytes([0, 0, 0xff, 0xff]);
    }
    if word == udp_word + 3 {
        return u32::from_le_bytes([0xff, 0, 0, 0]);
    }
    match (ip, word) {
        // Type of service; time to live and header checksum.
        (IpVersion::V4, 0) => u32::from_le_bytes([0, 0xff, 0, 0]),
        (IpVersion::V4, 2) => u32::from_le_bytes([0xff, 0, 0xff, 0xff]),
        // Traffic class and flow label; hop limit.
        (IpVersion::V6, 0) => u32::from_le_bytes([0x0f, 0xff, 0xff, 0xff]),
        (IpVersion::V6, 1) => u32::from_le_bytes([0, 0, 0, 0xff]),
        _ => 0,
    }
}
