//! Bytes as lower-case hexadecimal, for digests and nonces in JSON and in output.

use std::fmt::Write;

/// Two digits for each byte.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The bytes of exactly `2 * N` digits; `None` for anything else.
#[must_use]
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let digit = |c: u8| (c as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = match pair {
            [high, low] => digit(*high)? << 4 | digit(*low)?,
            _ => return None,
        };
    }
    Some(bytes)
}

/// The bytes of any even number of digits; `None` for anything else.
#[must_use]
pub fn decode_any(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| decode::<1>(std::str::from_utf8(pair).ok()?).map(|[byte]| byte))
        .collect()
}

/// For `#[serde(with)]` on `Vec<u8>`.
pub mod bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the bytes as text.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::encode(bytes))
    }

    /// Reads any number of bytes.
    ///
    /// # Errors
    /// Text of an odd length, or with another character.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::decode_any(&text).ok_or_else(|| D::Error::custom("not bytes in hexadecimal"))
    }
}

/// For `#[serde(with)]` on `[u8; N]`.
pub mod array {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the bytes as text.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer, const N: usize>(
        bytes: &[u8; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::encode(bytes))
    }

    /// Reads exactly `N` bytes.
    ///
    /// # Errors
    /// Text of another length, or with another character.
    pub fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[u8; N], D::Error> {
        let text = String::deserialize(deserializer)?;
        super::decode(&text)
            .ok_or_else(|| D::Error::custom(format!("not {N} bytes in hexadecimal")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_number_of_digits_is_taken() {
        assert_eq!(decode::<3>("00ffA5"), Some([0, 0xff, 0xa5]));
        assert_eq!(encode(&[0, 0xff, 0xa5]), "00ffa5");
        for bad in ["", "00ff", "00ffa5a5", "00ffg5", "+0ffa5", "00ffé"] {
            assert_eq!(decode::<3>(bad), None, "{bad:?}");
        }
        assert_eq!(decode_any("00ffA5"), Some(vec![0, 0xff, 0xa5]));
        assert_eq!(decode_any(""), Some(vec![]));
        for bad in ["0", "00f", "0g", "+0ff", "é", "é0"] {
            assert_eq!(decode_any(bad), None, "{bad:?}");
        }
    }
}
