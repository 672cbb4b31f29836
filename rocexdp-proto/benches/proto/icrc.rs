//! The ICRC: crates that compute CRC-32 side by side, on payloads and on headers.
//!
//! Candidates for `wire/icrc.rs` must compute IEEE's polynomial, go on from a given state, choose carry-less multiply at run
//! time and have a fallback without it. Those written in C are left out.

use std::{hint::black_box, time::Instant};

/// The state behind the 8 bytes 0xff in which every ICRC begins, as a finished CRC.
const SEED: u32 = !0xdebb_20e3;
/// Aim, bytes per nanosecond on 4 KiB.
const AIM: f64 = 20.0;
/// Bytes: BTH, UDP to BTH, IPv4 to BTH, payloads.
const SIZES: [usize; 6] = [12, 28, 40, 256, 1024, 4096];
const ROUNDS: usize = 60;

type Crc = (&'static str, fn(&[u8]) -> u32);

/// The first one is what the transport uses.
const CANDIDATES: [Crc; 4] = [
    ("crc32fast", |bytes| {
        let mut crc = crc32fast::Hasher::new_with_initial(SEED);
        crc.update(bytes);
        crc.finalize()
    }),
    ("crc-fast", |bytes| {
        use crc_fast::{CrcAlgorithm, Digest};
        let mut crc = Digest::new_with_init_state(CrcAlgorithm::Crc32IsoHdlc, u64::from(!SEED));
        crc.update(bytes);
        crc.finalize() as u32
    }),
    ("zlib-rs", |bytes| zlib_rs::crc32::crc32(SEED, bytes)),
    ("crc32fast without clmul", |bytes| {
        let mut crc = crc32fast::Hasher::internal_new_baseline(SEED, 0);
        crc.update(bytes);
        crc.finalize()
    }),
];

/// Nanoseconds of one call: the fastest of some rounds.
fn nanoseconds(bytes: &[u8], crc: fn(&[u8]) -> u32) -> f64 {
    let calls = 400_000 / bytes.len().max(64);
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(crc(black_box(bytes)));
        }
        best = best.min(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    best
}

/// Prints the table.
pub fn measure() {
    println!(
        "ICRC: nanoseconds per call (GB/s), fastest of {ROUNDS} rounds, in the first-level cache\n"
    );
    print!("{:<26}", "");
    for size in SIZES {
        print!(" {:>15}", format!("{size} B"));
    }
    println!();
    let mut of_4k = Vec::new();
    for (name, crc) in CANDIDATES {
        print!("{name:<26}");
        for size in SIZES {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
            assert_eq!(crc(&bytes), CANDIDATES[3].1(&bytes), "{name}, {size} B");
            let ns = nanoseconds(&bytes, crc);
            print!(" {:>15}", format!("{ns:.1} ({:.1})", size as f64 / ns));
            if size == 4096 {
                of_4k.push(size as f64 / ns);
            }
        }
        println!();
    }
    let (ours, best) = (of_4k[0], of_4k.iter().copied().fold(0.0, f64::max));
    println!(
        "\nthe transport's: {ours:.1} GB/s on 4 KiB, aim {AIM} ({}); the best here: {best:.1}",
        if ours >= AIM { "met" } else { "missed" }
    );
    passes();
}

/// What a second pass over bytes that were just copied costs: the price of not fusing copy and CRC.
fn passes() {
    let mut memory: Vec<u8> = (0..3 * 4096).map(|i| (i * 7) as u8).collect();
    // Not at one offset in their pages, as payload in a frame is not: some processors copy 20 times slower then (AMD Zen 3's
    // `rep movsb`, when the destination is 1 to 31 B further in its page than the source).
    let (from, to) = memory.split_at_mut(4096 + 314);
    let (from, to) = (&from[..4096], &mut to[..4096]);
    let calls = 2000;
    let mut best = [f64::MAX; 3];
    for _ in 0..ROUNDS * 5 {
        for (i, best) in best.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..calls {
                if i != 1 {
                    to.copy_from_slice(black_box(from));
                    black_box(&mut *to);
                }
                if i != 0 {
                    black_box(CANDIDATES[0].1(black_box(&*to)));
                }
            }
            *best = best.min(start.elapsed().as_nanos() as f64 / f64::from(calls));
        }
    }
    let [copy, crc, both] = best;
    println!(
        "4 KiB copied: {copy:.0} ns; its CRC alone: {crc:.0} ns; copied, then its CRC: {both:.0} ns. One fused pass could \
         save at most the smaller of the two, {:.0} % of both\n",
        copy.min(crc) / both * 100.0
    );
}
