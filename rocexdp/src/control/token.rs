//! The token that peers share, and how one proves to the other that it has it.
//!
//! The listening side sends a fresh nonce; the connecting side answers with HMAC-SHA-256 (RFC 2104) under the token of the
//! nonce and of its request as it was sent. So the token itself never crosses the network, an answer can't be replayed, and
//! the request can't be changed underway. The comparison takes the same time wherever the first difference lies.
//! The exchange is not encrypted, and neither is RoCEv2.
//!
//! A token is never written anywhere: not to logs, not by `Debug`.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, bail};
use hmac::{Hmac, KeyInit, Mac};
use rand::Rng;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::hex;

/// Shortest token, in bytes.
pub const MIN_TOKEN: usize = 8;
/// Longest token, in bytes.
pub const MAX_TOKEN: usize = 4096;
/// Separates these authentications from any other use of the same token.
const CONTEXT: &[u8] = b"rocexdp exchange 1\0";

/// A shared secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A number used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(#[serde(with = "hex::array")] pub [u8; 32]);

/// The proof of having the token.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tag(#[serde(with = "hex::array")] pub [u8; 32]);

impl Nonce {
    /// A new one.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        rand::rng().fill_bytes(&mut bytes);
        Self(bytes)
    }
}

impl Token {
    /// The token in a file: its first line, without the end of line. Warns on standard error when others may read it.
    ///
    /// # Errors
    /// The file can't be read, or its first line is shorter than [`MIN_TOKEN`] or longer than [`MAX_TOKEN`] bytes.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        use std::os::unix::fs::MetadataExt;

        let read = || {
            let mut file = File::open(path)?;
            let mode = file.metadata()?.mode();
            let mut text = Vec::new();
            file.by_ref()
                .take(MAX_TOKEN as u64 + 2)
                .read_to_end(&mut text)?;
            Ok::<_, std::io::Error>((text, mode))
        };
        let (text, mode) = read().with_context(|| format!("token file {}", path.display()))?;
        if mode & 0o077 != 0 {
            eprintln!(
                "rocexdp: warning: token file {} is open to others (mode {:03o}); chmod 600 it",
                path.display(),
                mode & 0o777
            );
        }
        Self::from_text(&text).with_context(|| format!("token file {}", path.display()))
    }

    /// The token in a file's text.
    ///
    /// # Errors
    /// As [`Token::from_file`].
    pub fn from_text(text: &[u8]) -> anyhow::Result<Self> {
        let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line.len() {
            0..MIN_TOKEN => bail!(
                "its first line is the token and must have at least {MIN_TOKEN} bytes, but has {} \
                 (make one with: head -c 32 /dev/urandom | base64)",
                line.len()
            ),
            MIN_TOKEN..=MAX_TOKEN => Ok(Self(line.to_vec())),
            _ => bail!("its first line is longer than {MAX_TOKEN} bytes"),
        }
    }

    /// The text to hand over on the local control socket, which only its owner may open.
    pub(crate) fn reveal(&self) -> &[u8] {
        &self.0
    }

    /// The proof for one nonce and one request.
    #[must_use]
    pub fn tag(&self, nonce: &Nonce, request: &[u8]) -> Tag {
        // HMAC takes a key of any length: the error can't occur, and a wrong tag is refused.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else {
            return Tag([0; 32]);
        };
        mac.update(CONTEXT);
        mac.update(&nonce.0);
        mac.update(request);
        Tag(mac.finalize().into_bytes().into())
    }

    /// Whether a proof is right, in constant time.
    #[must_use]
    pub fn verify(&self, nonce: &Nonce, request: &[u8], tag: &Tag) -> bool {
        self.tag(nonce, request).0.ct_eq(&tag.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mac_is_hmac_sha256() {
        // RFC 4231, test case 2.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        assert_eq!(
            hex::encode(&mac.finalize().into_bytes()),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn the_first_line_is_the_token() {
        let token = Token::from_text(b"correct horse\r\nsecond line\n").unwrap();
        assert_eq!(token, Token::from_text(b"correct horse").unwrap());
        assert_ne!(token, Token::from_text(b"correct horses").unwrap());
    }

    #[test]
    fn a_short_or_empty_token_is_refused_with_advice() {
        for text in [&b""[..], b"\n", b"\r\n", b"1234567\nlonger second line"] {
            let error = Token::from_text(text).unwrap_err().to_string();
            assert!(error.contains("at least 8 bytes"), "{error}");
        }
        assert!(Token::from_text(&vec![b'x'; MAX_TOKEN + 1]).is_err());
    }

    #[test]
    fn a_proof_holds_for_its_token_nonce_and_request_only() {
        let token = Token::from_text(b"correct horse").unwrap();
        let other = Token::from_text(b"correct house").unwrap();
        let nonce = Nonce::random();
        let tag = token.tag(&nonce, b"request");
        assert!(token.verify(&nonce, b"request", &tag));
        assert!(!other.verify(&nonce, b"request", &tag));
        assert!(!token.verify(&Nonce::random(), b"request", &tag));
        assert!(!token.verify(&nonce, b"requesT", &tag));
        let mut near = tag;
        near.0[31] ^= 1;
        assert!(!token.verify(&nonce, b"request", &near));
    }

    #[test]
    fn debug_output_hides_the_token() {
        let token = Token::from_text(b"correct horse").unwrap();
        assert!(!format!("{token:?}").contains("horse"));
    }
}
