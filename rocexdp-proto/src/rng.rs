//! The core's sources of randomness: generators that the caller seeds, so that two runs with one seed are bit-identical.
//!
//! [`Rng`] for simulation and choice: xoshiro256** by Blackman and Vigna, seeded through SplitMix64 (Steele, Lea, Flood).
//! [`SecretRng`] for what peers must not guess (keys, QPNs, PSNs): ChaCha20 (RFC 8439, section 2.3), since a peer that was given
//! some keys could compute the state of the other one. It is as hard to guess as the seed is, so a product seeds it from the
//! system's entropy.
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

/// A seeded generator whose numbers tell nothing of those that follow.
#[derive(Clone)]
pub struct SecretRng {
    key: [u32; 8],
    /// Number of the next block.
    counter: u64,
    block: [u32; 16],
    /// How many words of it are used.
    used: usize,
}

/// Without the state, which is a secret; blocks used tell states apart.
impl core::fmt::Debug for SecretRng {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SecretRng({}, {})", self.counter, self.used)
    }
}

impl SecretRng {
    /// The generator of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut expand = Rng::new(seed);
        Self {
            key: core::array::from_fn(|_| expand.next_u32()),
            counter: 0,
            block: [0; 16],
            used: 16,
        }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used >= self.block.len() {
            let [low, high] = [self.counter as u32, (self.counter >> 32) as u32];
            self.block = chacha20(&self.key, [low, high, 0, 0]);
            self.counter = self.counter.wrapping_add(1);
            self.used = 0;
        }
        let word = self.block.get(self.used).copied().unwrap_or(0);
        self.used += 1;
        word
    }
}

/// One block; `input` is counter and nonce.
fn chacha20(key: &[u32; 8], input: [u32; 4]) -> [u32; 16] {
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let [i0, i1, i2, i3] = input;
    let start = [
        0x6170_7865,
        0x3320_646e,
        0x7962_2d32,
        0x6b20_6574,
        k0,
        k1,
        k2,
        k3,
        k4,
        k5,
        k6,
        k7,
        i0,
        i1,
        i2,
        i3,
    ];
    let [mut a, mut b, mut c, mut d] = rows(&start);
    for _ in 0..10 {
        quarter_rounds(&mut a, &mut b, &mut c, &mut d);
        // The diagonals become columns, and back.
        (b, c, d) = (turned::<1>(b), turned::<2>(c), turned::<3>(d));
        quarter_rounds(&mut a, &mut b, &mut c, &mut d);
        (b, c, d) = (turned::<3>(b), turned::<2>(c), turned::<1>(d));
    }
    let mut out = start;
    for (out, word) in out.iter_mut().zip([a, b, c, d].into_iter().flatten()) {
        *out = out.wrapping_add(word);
    }
    out
}

fn rows(state: &[u32; 16]) -> [[u32; 4]; 4] {
    let mut rows = [[0; 4]; 4];
    for (row, words) in rows.iter_mut().zip(state.as_chunks::<4>().0) {
        *row = *words;
    }
    rows
}

/// The row, begun `N` places later.
fn turned<const N: usize>(mut row: [u32; 4]) -> [u32; 4] {
    row.rotate_left(N);
    row
}

/// A quarter round on each column.
fn quarter_rounds(a: &mut [u32; 4], b: &mut [u32; 4], c: &mut [u32; 4], d: &mut [u32; 4]) {
    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
        *a = a.wrapping_add(*b);
        *d = (*d ^ *a).rotate_left(16);
        *c = c.wrapping_add(*d);
        *b = (*b ^ *c).rotate_left(12);
        *a = a.wrapping_add(*b);
        *d = (*d ^ *a).rotate_left(8);
        *c = c.wrapping_add(*d);
        *b = (*b ^ *c).rotate_left(7);
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

    #[test]
    fn chacha20_matches_the_vector_of_rfc_8439() {
        // Section 2.3.2: key 00 01 .. 1f, counter 1, nonce 00 00 00 09 00 00 00 4a 00 00 00 00.
        let key = core::array::from_fn(|i| {
            let first = 4 * i as u8;
            u32::from_le_bytes([first, first + 1, first + 2, first + 3])
        });
        let block = chacha20(&key, [1, 0x0900_0000, 0x4a00_0000, 0]);
        let bytes: Vec<u8> = block.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(
            bytes,
            [
                0x10, 0xf1, 0xe7, 0xe4, 0xd1, 0x3b, 0x59, 0x15, 0x50, 0x0f, 0xdd, 0x1f, 0xa3, 0x20,
                0x71, 0xc4, 0xc7, 0xd1, 0xf4, 0xc7, 0x33, 0xc0, 0x68, 0x03, 0x04, 0x22, 0xaa, 0x9a,
                0xc3, 0xd4, 0x6c, 0x4e, 0xd2, 0x82, 0x64, 0x46, 0x07, 0x9f, 0xaa, 0x09, 0x14, 0xc2,
                0xd7, 0x05, 0xd9, 0x8b, 0x02, 0xa2, 0xb5, 0x12, 0x9c, 0xd1, 0xde, 0x16, 0x4e, 0xb9,
                0xcb, 0xd0, 0x83, 0xe8, 0xa2, 0x50, 0x3c, 0x4e,
            ]
        );
        let mut rng = SecretRng::new(1);
        let first: Vec<u32> = (0..40).map(|_| rng.next_u32()).collect();
        let mut again = SecretRng::new(1);
        assert!(first.iter().all(|w| *w == again.next_u32()));
        assert!(first.windows(16).skip(1).all(|w| *w != first[..16]));
    }
}
