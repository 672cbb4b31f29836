//! Writing to standard output and standard error.
//!
//! Rust programs ignore SIGPIPE, and `println!` panics when the reader has left (`rocexdp qp list | head -1`); here that is
//! an ordinary error, [`Closed`], which ends the program in silence.

use std::{
    fmt,
    io::{self, Write},
};

use anyhow::Context;
use serde::Serialize;

/// Nobody reads standard output any more.
#[derive(Clone, Copy, Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for Closed {}

/// Writes to standard output.
///
/// # Errors
/// [`Closed`], or the system's.
pub fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        done => done.context("writing to standard output"),
    }
}

/// Writes a text and a line end to standard output.
///
/// # Errors
/// As [`write()`].
pub fn line(text: impl fmt::Display) -> anyhow::Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Writes JSON, indented, to standard output.
///
/// # Errors
/// As [`write()`].
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value).context("writing JSON")?)
}

/// Writes JSON on one line to standard output.
///
/// # Errors
/// As [`write()`].
pub fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string(value).context("writing JSON")?)
}

/// Writes a note to standard error.
pub fn note(text: impl fmt::Display) {
    // If it can't be written there is nowhere to say so.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error with its causes to standard error.
pub fn complain(error: &anyhow::Error) {
    note(format_args!("rocexdp: {}", crate::control::chain(error)));
}
