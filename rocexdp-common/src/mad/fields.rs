//! Fields of messages: [`layout!`] and [`messages!`] make, of one table of places, the function that reads and the one that writes.

use super::cm::Data;
use crate::ids::{Gid, Psn, Qpn};

/// A value of at most 128 bits.
pub(super) trait Value: Copy {
    fn from_bits(bits: u128) -> Self;
    fn to_bits(self) -> u128;
}

macro_rules! unsigned {
    ($($ty:ty)*) => {$(
        impl Value for $ty {
            fn from_bits(bits: u128) -> Self {
                bits as Self
            }
            fn to_bits(self) -> u128 {
                self.into()
            }
        }
    )*};
}
unsigned!(u8 u16 u32 u64);

impl Value for bool {
    fn from_bits(bits: u128) -> Self {
        bits != 0
    }
    fn to_bits(self) -> u128 {
        self.into()
    }
}

impl Value for Qpn {
    fn from_bits(bits: u128) -> Self {
        Self::new(bits as u32)
    }
    fn to_bits(self) -> u128 {
        self.get().into()
    }
}

impl Value for Psn {
    fn from_bits(bits: u128) -> Self {
        Self::new(bits as u32)
    }
    fn to_bits(self) -> u128 {
        self.get().into()
    }
}

impl Value for Gid {
    fn from_bits(bits: u128) -> Self {
        bits.to_be_bytes()
    }
    fn to_bits(self) -> u128 {
        u128::from_be_bytes(self)
    }
}

const fn mask(bits: usize) -> u128 {
    u128::MAX >> (128 - bits)
}

/// Bits behind the field in its last byte.
const fn rest(end: usize) -> usize {
    end.next_multiple_of(8) - end
}

/// The value of `BITS` bits from bit `AT` of the message on.
pub(super) fn get<const AT: usize, const BITS: usize, V: Value>(d: &Data) -> V {
    const { assert!(BITS > 0 && AT % 8 + BITS <= 128 && AT + BITS <= 8 * super::DATA_LEN) };
    let bytes = &d[AT / 8..(AT + BITS).div_ceil(8)];
    let all = bytes
        .iter()
        .fold(0, |all: u128, b| all << 8 | u128::from(*b));
    V::from_bits(all >> rest(AT + BITS) & mask(BITS))
}

/// Puts a value there; of one that has more bits, the low ones.
pub(super) fn set<const AT: usize, const BITS: usize, V: Value>(d: &mut Data, value: V) {
    const { assert!(BITS > 0 && AT % 8 + BITS <= 128 && AT + BITS <= 8 * super::DATA_LEN) };
    let mut bits = (value.to_bits() & mask(BITS)) << rest(AT + BITS);
    let mut clear = mask(BITS) << rest(AT + BITS);
    for byte in d[AT / 8..(AT + BITS).div_ceil(8)].iter_mut().rev() {
        *byte = *byte & !(clear as u8) | bits as u8;
        bits >>= 8;
        clear >>= 8;
    }
}

/// A module per table, with `read` and `write`. A field is `name: byte, bit, bits;`; a structure, after them, `+ name: table;`.
macro_rules! layout {
    ($(mod $table:ident: $ty:ident {
        $($f:ident: $byte:literal, $bit:literal, $bits:literal;)*
        $(+ $p:ident: $part:ident;)*
    })*) => {$(
        mod $table {
            use super::{Data, $ty};
            use crate::mad::fields::{get, set};

            pub(super) fn read(d: &Data) -> $ty {
                $ty {
                    $($f: get::<{ 8 * $byte + $bit }, $bits, _>(d),)*
                    $($p: super::$part::read(d),)*
                }
            }

            pub(super) fn write(m: &$ty, d: &mut Data) {
                $(set::<{ 8 * $byte + $bit }, $bits, _>(d, m.$f);)*
                $(super::$part::write(&m.$p, d);)*
            }
        }
    )*};
}

/// [`CmMessage`](super::CmMessage)'s `parse`, `attribute` and `emit`.
macro_rules! messages {
    (
        $($sattr:literal => $s:ident($table:ident)),*;
        $($attr:literal => $m:ident {
            $($f:ident: $byte:literal, $bit:literal, $bits:literal;)*
            $(+ $p:ident: $part:ident;)*
        })*
    ) => {
        impl CmMessage {
            /// Reads the data of a MAD of the communication manager; `None`: no message has this attribute.
            pub fn parse(attribute: u16, d: &Data) -> Option<Self> {
                Some(match attribute {
                    $($sattr => Self::$s($table::read(d)),)*
                    $($attr => Self::$m {
                        $($f: crate::mad::fields::get::<{ 8 * $byte + $bit }, $bits, _>(d),)*
                        $($p: $part::read(d),)*
                    },)*
                    _ => return None,
                })
            }

            /// The attribute of a MAD that carries it.
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$s(_) => $sattr,)*
                    $(Self::$m { .. } => $attr,)*
                }
            }

            /// Writes its fields into the data of a MAD, and nothing else; of a value with more bits than its field, the low ones.
            pub fn emit(&self, d: &mut Data) {
                match self {
                    $(Self::$s(m) => $table::write(m, d),)*
                    $(Self::$m { $($f,)* $($p,)* } => {
                        $(crate::mad::fields::set::<{ 8 * $byte + $bit }, $bits, _>(d, *$f);)*
                        $($part::write($p, d);)*
                    })*
                }
            }
        }
    };
}

pub(super) use {layout, messages};
