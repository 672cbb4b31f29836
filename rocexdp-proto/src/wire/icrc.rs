//! The invariant CRC: CRC-32 over everything that no router changes.
//!
//! Covered, in order: 8 bytes 0xff (the LRH of native InfiniBand), the IP header with TOS, TTL and checksum (IPv6: traffic
//! class, flow label, hop limit) as ones, the UDP header with its checksum as ones, the BTH with byte 4 as ones, the rest up
//! to and with the pad. On the wire it is little-endian. drivers/infiniband/sw/rxe/rxe_icrc.c; shared vectors in the tests.
//!
//! Must not: find the headers (the parser does).

use super::{UDP_HEADER, put};

/// CRC-32 of 8 bytes 0xff; the running state there is 0xdebb20e3 (rxe_icrc.c).
const SEED: u32 = !0xdebb_20e3;
/// Headers that fit: IPv6 with its extension headers, UDP and BTH.
const MAX_MASKED: usize = 256;

/// A CRC in progress.
#[derive(Clone)]
pub struct Icrc(crc32fast::Hasher);

impl Icrc {
    /// The CRC over the masked headers. `headers` starts at the IP header and ends behind the BTH; `udp` is where the UDP
    /// header starts in it.
    ///
    /// `None` if the headers are longer than 256 bytes or too short.
    #[must_use]
    pub fn over_headers(headers: &[u8], udp: usize) -> Option<Self> {
        let mut copy = [0u8; MAX_MASKED];
        let masked = copy.get_mut(..headers.len())?;
        masked.copy_from_slice(headers);
        if headers.len() < udp + UDP_HEADER + 12 {
            return None;
        }
        match headers.first()? >> 4 {
            4 => {
                put(masked, 1, &[0xff]);
                put(masked, 8, &[0xff]);
                put(masked, 10, &[0xff, 0xff]);
            }
            _ => {
                put(masked, 0, &[0x6f, 0xff, 0xff, 0xff]);
                put(masked, 7, &[0xff]);
            }
        }
        put(masked, udp + 6, &[0xff, 0xff]);
        put(masked, udp + UDP_HEADER + 4, &[0xff]);
        Some(Self::seeded(masked))
    }

    /// The CRC over headers that are masked already.
    #[must_use]
    pub fn seeded(masked: &[u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new_with_initial(SEED);
        hasher.update(masked);
        Self(hasher)
    }

    /// Goes on over `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The four bytes on the wire.
    #[must_use]
    pub fn finish(self) -> [u8; 4] {
        self.0.finalize().to_le_bytes()
    }
}
