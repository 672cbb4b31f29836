//! The captures of `tests/captures`, and what their README tells of how each came about.

use std::path::PathBuf;

/// Where the captures are.
pub fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/captures")
}

/// The frames of a pcap file, little-endian, microseconds or nanoseconds.
pub fn frames(file: &[u8]) -> Vec<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    assert!(
        matches!(word(0), Some(0xa1b2_c3d4 | 0xa1b2_3c4d)),
        "a pcap file"
    );
    let (mut at, mut out) = (24, Vec::new());
    while let Some((captured, whole)) = word(at + 8).zip(word(at + 12)) {
        assert_eq!(captured, whole, "frames are captured whole");
        out.push(&file[at + 16..at + 16 + captured as usize]);
        at += 16 + captured as usize;
    }
    out
}

/// A command to host B's verbs shell, and its answer.
#[derive(Debug)]
pub struct Command {
    pub words: Vec<String>,
    pub answer: Vec<String>,
}

impl Command {
    /// The value of `key=value` among these words: a number, decimal or hexadecimal.
    pub fn number(words: &[String], key: &str) -> Option<u64> {
        let value = words
            .iter()
            .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))?;
        parse(value)
    }

    /// The `n`-th word as a number.
    pub fn at(&self, n: usize) -> Option<u64> {
        parse(self.words.get(n)?)
    }
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The commands to host B in the log of a capture.
#[allow(clippy::disallowed_methods)] // Reads the log; the core does not.
pub fn commands(capture: &str) -> Vec<Command> {
    let text = std::fs::read_to_string(captures().join("README.md")).unwrap();
    let heading = format!("## {capture}.pcap\n");
    let section = text
        .split_once(&heading)
        .expect("a section of the README")
        .1;
    let section = section.split("\n## ").next().unwrap();
    let words = |line: &str| {
        line.split_whitespace()
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let mut commands: Vec<Command> = Vec::new();
    let mut mine = false;
    for line in section.lines() {
        if let Some(command) = line.strip_prefix("B> ") {
            mine = true;
            commands.push(Command {
                words: words(command),
                answer: Vec::new(),
            });
        } else if let (true, Some(last)) = (mine && line.starts_with("  "), commands.last_mut()) {
            last.answer.extend(words(line));
        } else {
            mine = false;
        }
    }
    commands
}
