//! A peer's memory, as it told of it.
//!
//! Ranges are checked here against what the peer said, and by the peer against what is so. Must not: reach anything.

use rocexdp_proto::{
    ids::RKey,
    mem::{Access, Region as Object},
};

use super::OutOfRange;

/// A region of a peer, or a memory window: what one-sided requests name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    rkey: RKey,
    va: u64,
    len: u64,
    access: Access,
}

/// A part of a peer's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteSlice {
    pub(super) rkey: RKey,
    pub(super) va: u64,
    pub(super) len: u64,
}

/// 64 bits of a peer's region on an 8-byte boundary: what atomics name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteWord {
    pub(super) rkey: RKey,
    pub(super) va: u64,
}

impl RemoteRegion {
    /// Bytes of [`Self::to_bytes`].
    pub const BYTES: usize = 24;

    pub(super) fn of(region: &Object) -> Self {
        let remote = region.remote();
        Self {
            rkey: remote.rkey,
            va: remote.va,
            len: remote.len,
            access: Access::from_bits(region.access().bits() & Access::peers().bits())
                .unwrap_or_default(),
        }
    }

    /// What a peer with another RDMA stack says of a region: key, address of its first byte, bytes, and what may be done with it.
    #[must_use]
    pub const fn new(rkey: u32, va: u64, len: u64, access: Access) -> Self {
        Self {
            rkey: RKey(rkey),
            va,
            len,
            access,
        }
    }

    /// For sending: key, address, bytes, rights as bits of `enum ibv_access_flags`, in network order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = [
            &self.rkey.0.to_be_bytes()[..],
            &self.va.to_be_bytes(),
            &self.len.to_be_bytes(),
            &self.access.bits().to_be_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// As received; `None` if they are not [`Self::BYTES`] bytes of a region, with rights that are known.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (rkey, rest) = bytes.split_first_chunk::<4>()?;
        let (va, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let access = <[u8; 4]>::try_from(rest).ok()?;
        let (va, len) = (u64::from_be_bytes(*va), u64::from_be_bytes(*len));
        va.checked_add(len)?;
        Some(Self {
            rkey: RKey(u32::from_be_bytes(*rkey)),
            va,
            len,
            access: Access::from_bits(u32::from_be_bytes(access))?,
        })
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True without any bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the peer says that may be done with it.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Address of its first byte, as the peer counts.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.va
    }

    /// Its key.
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.rkey.0
    }

    /// Address of its first byte, as its owner's requests name it.
    #[must_use]
    pub const fn va(&self) -> u64 {
        self.va
    }

    pub(super) const fn key(&self) -> RKey {
        self.rkey
    }

    /// `len` bytes of it from `offset` on.
    ///
    /// # Errors
    /// They are not all in the region.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, OutOfRange> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len);
        match end.and_then(|_| self.va.checked_add(offset)) {
            Some(va) => Ok(RemoteSlice {
                rkey: self.rkey,
                va,
                len,
            }),
            None => Err(self.outside(offset, len)),
        }
    }

    /// 64 bits of it at `offset`.
    ///
    /// # Errors
    /// They are not all in the region, or their address is no multiple of 8.
    pub fn word(&self, offset: u64) -> Result<RemoteWord, OutOfRange> {
        let RemoteSlice { rkey, va, .. } = self.slice(offset, 8)?;
        if va % 8 != 0 {
            return Err(self.outside(offset, 8));
        }
        Ok(RemoteWord { rkey, va })
    }

    fn outside(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange {
            offset,
            len,
            region: self.len,
            rkey: Some(self.rkey.0),
        }
    }
}

impl RemoteSlice {
    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True for no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_survives_the_way_and_nonsense_does_not() {
        let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE;
        let region = RemoteRegion::new(0xdead_beef, 0x1234, 100, access);
        let bytes = region.to_bytes();
        assert_eq!(RemoteRegion::from_bytes(&bytes), Some(region));
        assert_eq!(RemoteRegion::from_bytes(&bytes[..23]), None);
        assert_eq!(RemoteRegion::from_bytes(&[&bytes[..], &[0]].concat()), None);
        let wraps = RemoteRegion::new(1, u64::MAX, 2, access).to_bytes();
        assert_eq!(RemoteRegion::from_bytes(&wraps), None);
        let mut rights = bytes;
        rights[20] = 0xff;
        assert_eq!(RemoteRegion::from_bytes(&rights), None);
    }

    #[test]
    fn parts_lie_in_their_region_and_words_on_their_boundary() {
        let region = RemoteRegion::new(1, 0x1000, 100, Access::REMOTE_WRITE);
        assert_eq!(
            region.slice(10, 90).map(|s| (s.va, s.len)),
            Ok((0x100a, 90))
        );
        assert!(region.slice(100, 0).is_ok());
        for (offset, len) in [(11, 90), (101, 0), (u64::MAX, 2), (0, u64::MAX)] {
            let error = region.slice(offset, len).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("the region of 100 B with key 0x00000001"),
                "{text}"
            );
        }
        assert_eq!(region.word(88).map(|w| w.va), Ok(0x1058));
        for offset in [4, 96, u64::MAX - 7] {
            assert!(region.word(offset).is_err(), "{offset}");
        }
    }
}
