//! The reference's chance: which packets its switches mark, draw by draw.
//!
//! ns-3's generator is MRG32k3a (L'Ecuyer, "Good Parameters and Implementations for Combined Multiple Recursive Random Number
//! Generators", Operations Research 47, 1999) cut into streams 2^127 apart and substreams 2^76 apart (L'Ecuyer et al., "An
//! Object-Oriented Random-Number Package", Operations Research 50, 2002). `ShouldSendCN` makes a new variable for each decision, so
//! that each decision is the first number of a stream of its own, in the order in which decisions are made anywhere; a pause frame
//! uses one up too, for its identification. The run's number (`RngRun`) is the substream.
//!
//! With it a run here makes the very decisions of the published run, as long as all else is the same: what differs then is a
//! difference in the rules, not in luck.
//!
//! Must not: be used where the shipped simulator draws its own.

use std::sync::{Arc, Mutex, PoisonError};

use rocexdp_sim::net::Losses;
use rocexdp_sim::switch::Draws;
use rocexdp_sim::topology::LinkId;

const M1: u64 = 4_294_967_087;
const M2: u64 = 4_294_944_443;
/// Factors of the two recurrences; those that are subtracted are negative modulo M1 and M2.
const A12: u64 = 1_403_580;
const A13N: u64 = 810_728;
const A21: u64 = 527_612;
const A23N: u64 = 1_370_589;
/// 1 / (M1 + 1).
const NORM: f64 = 2.328_306_549_295_728e-10;
/// `RngSeed` unless somebody sets it: all six numbers of the first state.
const SEED: u64 = 1;

type Vector = [u64; 3];
type Matrix = [Vector; 3];

fn product(a: &Matrix, v: &Vector, modulus: u64) -> Vector {
    a.map(|row| row.iter().zip(v).map(|(x, y)| x * y % modulus).sum::<u64>() % modulus)
}

fn square(a: &Matrix, modulus: u64) -> Matrix {
    let [p, q, r] = a;
    a.map(|[x, y, z]| {
        let column = |i: usize| [p, q, r].map(|row| row.get(i).copied().unwrap_or(0));
        [0, 1, 2].map(|i| {
            let [u, v, w] = column(i);
            (x * u % modulus + y * v % modulus + z * w % modulus) % modulus
        })
    })
}

/// `a` applied 2^`exponent` times.
fn power_of_two(a: Matrix, exponent: u32, modulus: u64) -> Matrix {
    (0..exponent).fold(a, |a, _| square(&a, modulus))
}

/// One of the generator's two halves.
#[derive(Clone, Debug)]
struct Half {
    modulus: u64,
    /// To the next stream.
    stream: Matrix,
    /// State of the next stream's chosen substream.
    state: Vector,
}

impl Half {
    fn new(step: Matrix, modulus: u64, run: u64) -> Self {
        let substream = power_of_two(step, 76, modulus);
        let state = (0..run).fold([SEED; 3], |v, _| product(&substream, &v, modulus));
        Self {
            modulus,
            stream: power_of_two(step, 127, modulus),
            state,
        }
    }

    fn skip(&mut self) {
        self.state = product(&self.stream, &self.state, self.modulus);
    }
}

/// What the two recurrences give next.
fn outputs(a: u64, b: u64, c: u64, d: u64) -> (u64, u64) {
    let p1 = (A12 * b + (M1 - A13N) * a % M1) % M1;
    let p2 = (A21 * d + (M2 - A23N) * c % M2) % M2;
    (p1, p2)
}

/// The number that they come to.
fn uniform(p1: u64, p2: u64) -> f64 {
    let difference = if p1 > p2 { p1 - p2 } else { p1 + M1 - p2 };
    difference as f64 * NORM
}

/// First numbers of one stream after the other.
#[derive(Clone, Debug)]
pub struct Streams {
    first: Half,
    second: Half,
}

impl Streams {
    /// From stream `used` on, of the run with this number (`RngRun`; the published ones are run 1).
    #[must_use]
    pub fn new(run: u64, used: u64) -> Self {
        let first = Half::new([[0, 1, 0], [0, 0, 1], [M1 - A13N, A12, 0]], M1, run);
        let second = Half::new([[0, 1, 0], [0, 0, 1], [M2 - A23N, 0, A21]], M2, run);
        let mut streams = Self { first, second };
        for _ in 0..used {
            streams.skip();
        }
        streams
    }

    fn skip(&mut self) {
        self.first.skip();
        self.second.skip();
    }

    /// The next stream's first number, above 0 and below 1.
    pub fn next_first(&mut self) -> f64 {
        let [a, b, _] = self.first.state;
        let [c, _, d] = self.second.state;
        let (p1, p2) = outputs(a, b, c, d);
        self.skip();
        uniform(p1, p2)
    }
}

/// What all switches of a run draw from.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Mutex<Streams>>);

impl Shared {
    /// Streams that are used up before the first packet: each node's network stack makes six random variables
    /// (`Ipv4GlobalRouting` one, the `Ipv6Extension`s five), the error model of all links two, that of a link with a rate of its
    /// own two more. Found from the published marks, and explained by the source.
    #[must_use]
    pub fn new(run: u64, nodes: u32, own_error_rates: usize) -> Self {
        let used = 6 * u64::from(nodes) + 2 + 2 * own_error_rates as u64;
        Self(Arc::new(Mutex::new(Streams::new(run, used))))
    }
}

impl Draws for Shared {
    fn draw(&mut self) -> f64 {
        // Nobody panics while holding it.
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.next_first()
    }

    fn pause_frame(&mut self) {
        self.draw();
    }
}

/// A stream's numbers, one after the other.
#[derive(Clone, Debug)]
struct Stream {
    first: Vector,
    second: Vector,
}

impl Stream {
    /// Stream `number` of a run.
    fn new(run: u64, number: u64) -> Self {
        let state = |half: Half| {
            (0..64)
                .filter(|bit| number >> bit & 1 == 1)
                .fold(half.state, |v, bit| {
                    product(
                        &power_of_two(half.stream, bit, half.modulus),
                        &v,
                        half.modulus,
                    )
                })
        };
        let Streams { first, second } = Streams::new(run, 0);
        Self {
            first: state(first),
            second: state(second),
        }
    }

    fn next(&mut self) -> f64 {
        let [a, b, e] = self.first;
        let [c, f, d] = self.second;
        let (p1, p2) = outputs(a, b, c, d);
        self.first = [b, e, p1];
        self.second = [f, d, p2];
        uniform(p1, p2)
    }
}

/// `SetStream(50)` of `third.cc`: streams that are asked for by number are in the upper half.
const ERROR_STREAM: u64 = (1 << 63) + 50;

/// The error models of the links (`RateErrorModel`, asked on every arrival): one for all links that name no rate, and one for each
/// that does. All start at the same number of the same stream.
pub struct ErrorModels {
    /// Of each link: the share that is lost, and whose numbers decide.
    links: Vec<(f64, usize)>,
    streams: Vec<Stream>,
}

impl ErrorModels {
    /// Of links with these rates, each the link's own or not. `None`: nothing is ever lost.
    #[must_use]
    pub fn new(run: u64, rates: &[(f64, bool)]) -> Option<Self> {
        if rates.iter().all(|(rate, _)| *rate <= 0.0) {
            return None;
        }
        let stream = Stream::new(run, ERROR_STREAM);
        let mut streams = vec![stream.clone()];
        let links = rates.iter().map(|(rate, own)| {
            if *own {
                streams.push(stream.clone());
                (*rate, streams.len() - 1)
            } else {
                (*rate, 0)
            }
        });
        Some(Self {
            links: links.collect(),
            streams,
        })
    }
}

impl Losses for ErrorModels {
    fn lost(&mut self, link: LinkId) -> bool {
        let Some((rate, stream)) = self.links.get(link.0 as usize) else {
            return false;
        };
        match self.streams.get_mut(*stream) {
            Some(stream) => stream.next() < *rate,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_start_with_the_numbers_of_an_independent_computation() {
        // Seed 1, run 1, stream 0; from an independent computation in unbounded integers.
        let mut streams = Streams::new(1, 0);
        let expected = [
            0.816_532_044_168_251,
            0.835_150_073_680_844,
            0.943_898_466_259_912,
            0.985_290_813_013_093_8,
            0.660_734_362_535_352_8,
        ];
        for number in expected {
            let drawn = streams.next_first();
            assert!((drawn - number).abs() < 1e-14, "{drawn} {number}");
        }
        let mut third = Streams::new(1, 2);
        assert!((third.next_first() - 0.943_898_466_259_912).abs() < 1e-14);
    }
}
