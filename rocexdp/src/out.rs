//! Writing to standard output and standard error, and errors as text. Knows nothing of the rest.
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
    note(format_args!("rocexdp: {}", chain(error)));
}

/// An error with its causes on one line, each said once: many errors already end with the text of their cause.
#[must_use]
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    shortened(text)
}

/// A verifier's log has megabytes; what matters stands at both ends.
fn shortened(text: String) -> String {
    const ENDS: usize = 1500;
    let length = text.chars().count();
    if length <= 3 * ENDS {
        return text;
    }
    let head: String = text.chars().take(ENDS).collect();
    let tail: String = text.chars().skip(length - ENDS).collect();
    format!(
        "{head}\n... {} characters left out ...\n{tail}",
        length - 2 * ENDS
    )
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    #[test]
    fn a_long_text_keeps_its_ends() {
        let error = anyhow::anyhow!("begin {} end", "x".repeat(1 << 20));
        let text = super::chain(&error);
        assert!(text.len() < 5000 && text.starts_with("begin") && text.ends_with(" end"));
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = std::io::Error::other("no room");
        let middle = anyhow::anyhow!("writing: no room").context("copying");
        assert_eq!(super::chain(&middle), "copying: writing: no room");
        let error = Err::<(), _>(inner)
            .context("writing: no room")
            .context("copying");
        assert_eq!(
            super::chain(&error.unwrap_err()),
            "copying: writing: no room"
        );
    }
}
