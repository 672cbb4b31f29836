//! Access rights of regions, windows and QPs.
//!
//! Must not: know what has them.

use core::fmt;

/// Who may do what with a region, a window, or what a QP serves: a set of bits (values of `enum ibv_access_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(u16);

impl Access {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Receives, READs and atomics of ours may write here.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may WRITE. A region needs [`Access::LOCAL_WRITE`] for it.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may READ.
    pub const REMOTE_READ: Self = Self(4);
    /// Peers may do atomics. A region needs [`Access::LOCAL_WRITE`] for it.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Memory windows may be bound to it.
    pub const MW_BIND: Self = Self(16);
    /// Peers name the first byte by address 0 (`IBV_ACCESS_ZERO_BASED`).
    pub const ZERO_BASED: Self = Self(32);
    /// Peers may FLUSH it to visibility.
    pub const FLUSH_GLOBAL: Self = Self(256);
    /// Peers may FLUSH it to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(512);

    /// What changes the memory, and so needs [`Access::LOCAL_WRITE`] of its region (`ib_check_mr_access`,
    /// include/rdma/ib_verbs.h).
    const CHANGES: u16 = Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0;
    /// What a window may allow (rxe: `RXE_ACCESS_SUPPORTED_MW`).
    const OF_WINDOWS: u16 = Self::REMOTE_WRITE.0
        | Self::REMOTE_READ.0
        | Self::REMOTE_ATOMIC.0
        | Self::ZERO_BASED.0
        | Self::FLUSH_GLOBAL.0
        | Self::FLUSH_PERSISTENT.0;
    const ALL: u16 = Self::OF_WINDOWS | Self::LOCAL_WRITE.0 | Self::MW_BIND.0;

    /// The rights of these bits of `enum ibv_access_flags`; `None` if one is not known here. Mask the optional ones
    /// (`IBV_ACCESS_OPTIONAL_RANGE`) first.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !(Self::ALL as u32) == 0 {
            Some(Self(bits as u16))
        } else {
            None
        }
    }

    /// As bits of `enum ibv_access_flags`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether all of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether peers may change the memory.
    #[must_use]
    pub const fn changes_memory(self) -> bool {
        self.0 & Self::CHANGES != 0
    }

    /// All that peers may be allowed.
    #[must_use]
    pub const fn peers() -> Self {
        Self(Self::OF_WINDOWS & !Self::ZERO_BASED.0)
    }

    /// With [`Access::LOCAL_WRITE`] if the rest needs it.
    pub(crate) const fn completed(self) -> Self {
        if self.changes_memory() {
            Self(self.0 | Self::LOCAL_WRITE.0)
        } else {
            self
        }
    }

    /// Whether a window may allow all this.
    pub(crate) const fn fits_window(self) -> bool {
        self.0 & !Self::OF_WINDOWS == 0
    }
}

impl core::ops::BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The names, as `LOCAL_WRITE|REMOTE_READ`.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Access, &str); 8] = [
            (Access::LOCAL_WRITE, "LOCAL_WRITE"),
            (Access::REMOTE_WRITE, "REMOTE_WRITE"),
            (Access::REMOTE_READ, "REMOTE_READ"),
            (Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
            (Access::MW_BIND, "MW_BIND"),
            (Access::ZERO_BASED, "ZERO_BASED"),
            (Access::FLUSH_GLOBAL, "FLUSH_GLOBAL"),
            (Access::FLUSH_PERSISTENT, "FLUSH_PERSISTENT"),
        ];
        if *self == Self::NONE {
            return f.write_str("NONE");
        }
        let mut between = "";
        for (bit, name) in NAMES {
            if self.contains(bit) {
                write!(f, "{between}{name}")?;
                between = "|";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_ibv_access_flags() {
        for known in [1, 2, 4, 8, 16, 32, 256, 512] {
            assert_eq!(Access::from_bits(known).map(Access::bits), Some(known));
        }
        for unknown in [64, 128, 1024, 1 << 20] {
            assert_eq!(Access::from_bits(unknown), None, "{unknown}");
        }
        let both = Access::LOCAL_WRITE | Access::REMOTE_READ;
        assert_eq!(format!("{both:?}"), "LOCAL_WRITE|REMOTE_READ");
        assert!(!both.changes_memory() && Access::REMOTE_ATOMIC.changes_memory());
    }
}
