//! A fast, fixed hash for maps keyed by QPN or rkey. Those numbers are drawn on this side, so nobody outside chooses them
//! to collide; order never shows, since such maps are not iterated (clippy.toml).
//!
//! Multiplicative hashing with the golden ratio (Knuth, TAOCP 3, 6.4).

use core::hash::{BuildHasherDefault, Hasher};

/// Build-hasher of the number maps.
pub(crate) type NumberHash = BuildHasherDefault<NumberHasher>;

/// Hashes one `u32`.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u32(u32::from(*b));
        }
    }
    fn write_u32(&mut self, n: u32) {
        let x = (self.0 ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = x ^ (x >> 32);
    }
}
