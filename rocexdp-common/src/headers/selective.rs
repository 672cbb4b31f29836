//! The extension headers of selective repeat, which two rocexdp ends may agree on (docs/wire-extensions.md).
//!
//! As in the parent: fixed sizes, values as they came, reserved bits ignored on the way in and 0 on the way out.
//! Must not: know what is done with them.

use super::extended::{low24, part, put};

/// Selective Repeat Extended Transport Header: where a packet belongs, and which transmission of it this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sreth {
    /// Number of this transmission among those of the path, requests and answers apart; a packet sent again has a new one.
    pub serial: u32,
    /// Path, 0 and up.
    pub path: u8,
    /// Place of the packet in its message, 24 bits: the message's first packet has PSN - index. Of a READ's answer: in what its
    /// request asked for.
    pub index: u32,
}

impl Sreth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 8]) -> Self {
        Self {
            serial: u32::from_be_bytes(part::<0, 4, 8>(b)),
            path: b[4],
            index: low24(part::<4, 4, 8>(b)),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 8]) {
        put::<0, 4, 8>(b, self.serial.to_be_bytes());
        put::<4, 4, 8>(b, (self.index & 0xff_ffff).to_be_bytes());
        b[4] = self.path;
    }
}

/// How many serials below the highest one a [`Sack`] tells of.
pub const SACK_BITS: u32 = 256;

/// Selective acknowledgement: which transmissions of one path have arrived. The PSN in the BTH is cumulative, as in RC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sack {
    /// The path, 7 bits.
    pub path: u8,
    /// It tells of answers that have arrived, not of requests.
    pub answers: bool,
    /// Of answers: PSN before which none is missing. With an RNR NAK: the low bits of the refused transmission's serial. 24 bits.
    pub mark: u32,
    /// The highest serial that has arrived.
    pub highest: u32,
    /// Bit `i % 64` of word `i / 64`: serial `highest - 1 - i` has arrived.
    pub below: [u64; 4],
}

impl Sack {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// Reads the header.
    #[inline(always)]
    pub const fn parse(b: &[u8; 40]) -> Self {
        Self {
            path: b[0] & 0x7f,
            answers: b[0] & 0x80 != 0,
            mark: low24(part::<0, 4, 40>(b)),
            highest: u32::from_be_bytes(part::<4, 4, 40>(b)),
            below: [
                u64::from_be_bytes(part::<8, 8, 40>(b)),
                u64::from_be_bytes(part::<16, 8, 40>(b)),
                u64::from_be_bytes(part::<24, 8, 40>(b)),
                u64::from_be_bytes(part::<32, 8, 40>(b)),
            ],
        }
    }

    /// Writes the header.
    pub const fn emit(&self, b: &mut [u8; 40]) {
        *b = [0; 40];
        put::<0, 4, 40>(b, (self.mark & 0xff_ffff).to_be_bytes());
        b[0] = self.path & 0x7f | if self.answers { 0x80 } else { 0 };
        put::<4, 4, 40>(b, self.highest.to_be_bytes());
        let [w0, w1, w2, w3] = self.below;
        put::<8, 8, 40>(b, w0.to_be_bytes());
        put::<16, 8, 40>(b, w1.to_be_bytes());
        put::<24, 8, 40>(b, w2.to_be_bytes());
        put::<32, 8, 40>(b, w3.to_be_bytes());
    }

    /// Whether it says that this serial has arrived. False for one that it does not reach back to.
    #[must_use]
    pub fn has(&self, serial: u32) -> bool {
        match self.highest.wrapping_sub(serial) {
            0 => true,
            n if n <= SACK_BITS => {
                let i = n - 1;
                self.below
                    .get((i / 64) as usize)
                    .is_some_and(|word| word >> (i % 64) & 1 != 0)
            }
            _ => false,
        }
    }
}
