//! Netlink messages that `netlink-packet-route` has no types for, as bytes: building them, and walking their attributes.
//!
//! Knows nothing of what they mean. Follows the kernel's include/uapi/linux/netlink.h.

use std::{convert::Infallible, io};

use netlink_packet_core::{
    NetlinkDeserializable, NetlinkHeader, NetlinkPayload, NetlinkSerializable,
};

/// Bits of an attribute's type that are flags (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
const FLAGS: u16 = 0xc000;

/// A message: its type and what follows the netlink header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// nlmsg_type.
    pub kind: u16,
    /// The rest.
    pub body: Vec<u8>,
}

impl Raw {
    /// With a family's own header in front of the attributes.
    pub fn new(kind: u16, header: &[u8]) -> Self {
        Self {
            kind,
            body: header.to_vec(),
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.body.extend(length.to_ne_bytes());
        self.body.extend(kind.to_ne_bytes());
        self.body.extend(value);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self
    }
}

impl NetlinkSerializable for Raw {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        if let Some(buffer) = buffer.get_mut(..self.body.len()) {
            buffer.copy_from_slice(&self.body);
        }
    }
}

impl NetlinkDeserializable for Raw {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}

impl From<Raw> for NetlinkPayload<Raw> {
    fn from(message: Raw) -> Self {
        Self::InnerMessage(message)
    }
}

/// The attributes in `bytes`: type without flags, and value. Ends at the first that is cut short.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, kind) = (word(rest, 0)?, word(rest, 2)?);
        let length = usize::from(length);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !FLAGS, value))
    })
}

/// The first attribute of a type.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(found, _)| *found == kind)
        .map(|(_, value)| value)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A 32-bit number at the start of a value.
pub fn u32_of(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?))
}

/// A 64-bit number at the start of a value.
pub fn u64_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?))
}

/// A text that ends at the first zero byte.
pub fn text_of(value: &[u8]) -> String {
    let end = value
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// An answer that is not what the kernel's headers say.
pub fn unexpected(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written_and_a_cut_ends_them() {
        let message = Raw::new(1, &[9; 4])
            .with(3, b"abc\0")
            .with(0x8005, &[1; 5])
            .with(7, &[]);
        assert_eq!(message.body.len() % 4, 0);
        let all: Vec<_> = attributes(&message.body[4..]).collect();
        assert_eq!(all, [(3, &b"abc\0"[..]), (5, &[1; 5][..]), (7, &[][..])]);
        for cut in 0..message.body.len() - 4 {
            assert!(
                attributes(&message.body[4..4 + cut]).count() < 3,
                "cut at {cut}"
            );
        }
        // A length below the attribute's own header must not loop.
        assert_eq!(attributes(&[3, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(text_of(b"mlx5_0\0junk"), "mlx5_0");
    }
}
