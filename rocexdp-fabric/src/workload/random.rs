//! Draws from a seed.

use rocexdp_proto::rng::Rng;

/// A generator for one purpose of a run: what one part of a scenario draws does not depend on what others do.
pub(crate) fn stream(seed: u64, purpose: u64) -> Rng {
    Rng::new(seed ^ purpose.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95))
}

/// Uniform in [0, 1), 53 bits.
pub(crate) fn unit(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Exponential with this mean: gaps of a Poisson process.
pub(crate) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - unit(rng)).ln() * mean
}

/// All of `0..n` in random order.
pub(crate) fn shuffled(rng: &mut Rng, n: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..n).collect();
    for end in (1..n).rev() {
        let chosen = rng.below(end as u64 + 1) as usize;
        order.swap(end, chosen);
    }
    order
}
