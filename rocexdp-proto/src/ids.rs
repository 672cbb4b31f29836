//! Newtypes of the numbers that cross modules: QPNs, PSNs, GIDs, keys, work request ids, the path MTU.
//!
//! Numbers only: nothing here reads a packet or knows a QP.

pub use rocexdp_common::ids::{Gid, Psn, Qpn, gid_from_ipv4};

use core::fmt;

use rocexdp_common::opcode::Position;

/// Names a memory region to the peer: who knows it may reach the region. Drawn at random, so it can't be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RKey(pub u32);

impl fmt::Display for RKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// Names a memory region to the host's own work requests (`ibv_sge`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LKey(pub u32);

/// A protection domain: QPs, memory regions and windows work together only within one. Numbers are the owner's to give.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pd(pub u32);

/// Number of a shared receive queue: the owner's to give, comes back in events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SrqNum(pub u32);

/// Number of a completion queue: the owner's to give, comes back in events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CqNum(pub u32);

/// The caller's name for a work request: comes back in its completion, means nothing here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WrId(pub u64);

/// Largest payload of one packet of a QP: 256, 512, 1024, 2048 or 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 B.
    Mtu256 = 1,
    /// 512 B.
    Mtu512 = 2,
    /// 1024 B.
    Mtu1024 = 3,
    /// 2048 B.
    Mtu2048 = 4,
    /// 4096 B.
    Mtu4096 = 5,
}

impl PathMtu {
    /// Every path MTU, in order.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// The path MTU of exactly `bytes`, if there is one.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::Mtu256),
            512 => Some(Self::Mtu512),
            1024 => Some(Self::Mtu1024),
            2048 => Some(Self::Mtu2048),
            4096 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        1 << self.log2()
    }

    /// log2 of the bytes: 8 to 12.
    #[must_use]
    pub const fn log2(self) -> u8 {
        7 + self as u8
    }

    /// Packets of a message of `length` bytes: at least one.
    #[must_use]
    pub const fn packets(self, length: u32) -> u32 {
        let n = length.div_ceil(self.bytes());
        if n == 0 { 1 } else { n }
    }

    /// Whether a packet at this place of its message may carry `length` bytes: FIRST and MIDDLE are full, LAST is not empty,
    /// ONLY is at most full (rxe_resp.c `check_length`).
    #[must_use]
    pub const fn allows(self, position: Position, length: u32) -> bool {
        match position {
            Position::First | Position::Middle => length == self.bytes(),
            Position::Last => length > 0 && length <= self.bytes(),
            Position::Only => length <= self.bytes(),
        }
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtu_sizes_and_packet_counts() {
        assert_eq!(
            PathMtu::ALL.map(PathMtu::bytes),
            [256, 512, 1024, 2048, 4096]
        );
        for m in PathMtu::ALL {
            assert_eq!(PathMtu::from_bytes(m.bytes()), Some(m));
            assert_eq!(m.packets(0), 1);
            assert_eq!(m.packets(m.bytes()), 1);
            assert_eq!(m.packets(m.bytes() + 1), 2);
        }
        assert_eq!(PathMtu::from_bytes(1500), None);
        assert_eq!(PathMtu::Mtu256.packets(1 << 31), 1 << 23);
    }
}
