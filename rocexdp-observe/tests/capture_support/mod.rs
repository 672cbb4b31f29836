//! The captures of Soft-RoCE that the tests read.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::PathBuf;

/// Where they are.
pub fn dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/captures"))
}

/// All of them, in order of name.
pub fn all() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    files.sort();
    assert!(files.len() >= 55, "{} captures", files.len());
    files
}
