//! The control plane: the daemon, its socket, the exchange between hosts, and copies.
//!
//! Works on [`crate::node`] and knows nothing of the command line or of output, but for what the daemon says. What comes
//! from a peer or a local client is checked where it enters ([`frame`], [`exchange`], [`confine`], [`local`]).

pub mod config;
pub mod confine;
pub mod copy;
pub mod daemon;
pub mod exchange;
pub mod frame;
pub mod hex;
pub mod local;
pub mod settings;
pub mod target;
pub mod token;
pub mod units;

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
