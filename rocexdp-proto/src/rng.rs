//! The core's source of randomness: a generator that the caller seeds, so that two runs with one seed are bit-identical.
//!
//! xoshiro256** by Blackman and Vigna, seeded through SplitMix64 (Steele, Lea, Flood). Not for cryptography: rkeys are as
//! hard to guess as the seed is, so a product seeds it from the system's entropy.
//!
//! Must not: reach for ambient randomness.

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        Self(core::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.0;
        let out = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s1 << 17;
        let (s2, s3) = (s2 ^ s0, s3 ^ s1);
        self.0 = [s0 ^ s3, s1 ^ s2, s2 ^ t, s3.rotate_left(45)];
        out
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number below `n` (0 for `n` = 0), with a bias below `n` / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro_matches_its_reference_implementation() {
        // From the authors' C code with state {1, 2, 3, 4}.
        let mut r = Rng([1, 2, 3, 4]);
        let got: Vec<u64> = (0..4).map(|_| r.next_u64()).collect();
        assert_eq!(got, [11520, 0, 1509978240, 1215971899390074240]);
        // SplitMix64 of seed 0, first output.
        assert_eq!(Rng::new(0).0[0], 0xe220_a839_7b1d_cdaf);
        assert!((0..1000).all(|_| r.below(7) < 7));
    }
}
