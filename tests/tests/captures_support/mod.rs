//! The captures in `tests/captures`: where they are and what frames they hold. And a capture file made of frames.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod tshark;
pub mod view;

use std::path::{Path, PathBuf};

/// Where the captures are.
pub fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures")
}

/// All captures, by name.
pub fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir()).expect("tests/captures");
    let mut files: Vec<_> = entries
        .map(|e| e.expect("an entry of tests/captures").path())
        .filter(|p| p.extension().is_some_and(|e| e == "pcap"))
        .collect();
    files.sort();
    assert_eq!(files.len(), 60, "captures in {}", dir().display());
    files
}

/// A capture's name, for messages.
pub fn name(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The frames of a pcap file of this machine's byte order, which were captured whole.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    assert!(matches!(word(0), 0xa1b2_c3d4 | 0xa1b2_3c4d));
    let (mut at, mut out) = (24, Vec::new());
    while at < file.len() {
        let (captured, whole) = (word(at + 8), word(at + 12));
        assert_eq!(captured, whole, "{}", path.display());
        out.push(file[at + 16..at + 16 + captured as usize].to_vec());
        at += 16 + captured as usize;
    }
    out
}

/// Writes frames into a pcap file.
pub fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1u32] {
        file.extend(word.to_le_bytes());
    }
    for (second, frame) in (0u32..).zip(frames) {
        for word in [second, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    std::fs::write(path, file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
