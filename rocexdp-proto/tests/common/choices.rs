//! Where a test's decisions come from: a seeded generator, or a fuzzer's bytes. Must not: know what is decided.

use rocexdp_proto::rng::Rng;

/// A source of decisions.
pub trait Choices {
    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64;

    /// Any number.
    fn word(&mut self) -> u64 {
        self.below(1 << 32) << 32 | self.below(1 << 32)
    }

    /// One of these.
    fn of<T: Copy>(&mut self, all: &[T]) -> T
    where
        Self: Sized,
    {
        all[self.below(all.len() as u64) as usize]
    }

    /// True once in `n`.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }
}

impl Choices for Rng {
    fn below(&mut self, n: u64) -> u64 {
        Rng::below(self, n)
    }
}

/// A fuzzer's bytes: as few as tell the choices apart. Behind their end all choices are the first.
pub struct Given<'a>(pub &'a [u8]);

impl Given<'_> {
    /// Whether all bytes are used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Choices for Given<'_> {
    fn below(&mut self, n: u64) -> u64 {
        let (mut value, mut span) = (0, 1u64);
        while span < n {
            let (byte, rest) = self.0.split_first().unwrap_or((&0, &[]));
            value = value << 8 | u64::from(*byte);
            self.0 = rest;
            span <<= 8;
        }
        value % n
    }
}
