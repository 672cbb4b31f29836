//! Newtypes of the transport's numbers: QP numbers, packet sequence numbers, GIDs.
//!
//! Arithmetic only; nothing here reads a packet. PSN comparison follows the kernel's
//! `psn_compare` (drivers/infiniband/sw/rxe/rxe_loc.h, rxe_verbs.h): `(s32)((a - b) << 8)`.

/// A 24-bit queue pair number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The low 24 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Self(v & 0xff_ffff)
    }
    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl core::fmt::Display for Qpn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

/// A 24-bit packet sequence number; arithmetic wraps at 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `v`.
    pub const fn new(v: u32) -> Self {
        Self(v & 0xff_ffff)
    }
    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// `self + n` modulo 2^24.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// `self - n` modulo 2^24.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }
    /// Signed distance `self - other` in packets, in -2^23..2^23: negative when `self` is behind.
    pub const fn diff(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl core::fmt::Display for Psn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A RoCEv2 GID: an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d`.
pub type Gid = [u8; 16];

/// The GID of an IPv4 address.
pub const fn gid_from_ipv4(a: [u8; 4]) -> Gid {
    let mut g = [0u8; 16];
    g[10] = 0xff;
    g[11] = 0xff;
    g[12] = a[0];
    g[13] = a[1];
    g[14] = a[2];
    g[15] = a[3];
    g
}

/// Whether the address is a multicast group's: 224.0.0.0/4 or ff00::/8.
#[inline(always)]
pub const fn is_multicast(gid: &Gid) -> bool {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, ..] => *a >> 4 == 0xe,
        [first, ..] => *first == 0xff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.add(1), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), last);
        assert_eq!(Psn::new(1).diff(last), 2);
        assert_eq!(last.diff(Psn::new(1)), -2);
        assert_eq!(Psn::new(0x80_0000).diff(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).diff(Psn::new(0)), 0x7f_ffff);
    }
}
