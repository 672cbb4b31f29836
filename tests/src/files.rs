//! Files to copy: bytes that depend on their place, so that a piece in the wrong place shows, and digests of the test's own.

use std::{
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// A file to copy, and its digest.
#[derive(Debug)]
pub struct SourceFile {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// SHA-256.
    pub digest: String,
}

/// Bytes after which a file repeats itself but for a number: a prime, so that no packet or chunk is like another.
const PERIOD: usize = 1_048_583;

impl SourceFile {
    /// Makes a file of pseudo-random bytes.
    pub fn create(path: PathBuf, size: u64) -> Self {
        let mut file = File::create(&path).unwrap();
        let mut hash = Sha256::new();
        let mut block: Vec<u8> = (0..PERIOD as u64 / 8 + 1)
            .flat_map(|n| mixed(size ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes())
            .collect();
        let mut left = size;
        let mut number = 0_u64;
        while left > 0 {
            block[..8].copy_from_slice(&number.to_le_bytes());
            let len = PERIOD.min(usize::try_from(left).unwrap());
            hash.update(&block[..len]);
            file.write_all(&block[..len]).unwrap();
            left -= len as u64;
            number += 1;
        }
        Self {
            path,
            size,
            digest: hex(&hash.finalize()),
        }
    }
}

/// The output function of SplitMix64.
fn mixed(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SHA-256 of a file in hexadecimal.
pub fn digest(path: &Path) -> String {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut block).unwrap();
        if read == 0 {
            return hex(&hash.finalize());
        }
        hash.update(&block[..read]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
