//! The bytes of work requests: ranges of memory and lists of them.
//!
//! Must not: know what a request does with them.

use core::fmt;
use std::sync::Arc;

use super::{Memory, MemoryFault};
use crate::ids::Pd;

/// A range of application memory, held by reference: the bytes are read when a packet leaves, and again when it is sent
/// again, so they must stay as they are until the request completes.
#[derive(Clone)]
pub struct Segment {
    mem: Option<Arc<dyn Memory>>,
    offset: u64,
    len: u32,
}

impl Segment {
    /// `len` bytes of `mem` from `offset` on. Checked when posted.
    #[must_use]
    pub fn new(mem: Arc<dyn Memory>, offset: u64, len: u32) -> Self {
        Self {
            mem: Some(mem),
            offset,
            len,
        }
    }

    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            mem: None,
            offset: 0,
            len: 0,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// True for no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory, unless there are no bytes.
    pub(crate) fn memory(&self) -> Option<&Arc<dyn Memory>> {
        self.mem.as_ref()
    }

    /// Whether the range lies within its memory.
    fn is_valid(&self) -> bool {
        let there = self.mem.as_ref().map_or(0, |m| m.len());
        self.len == 0
            || self
                .offset
                .checked_add(u64::from(self.len))
                .is_some_and(|end| end <= there)
    }

    /// The memory and the place in it of byte `at` of the range.
    fn place(&self, at: u32) -> Result<(&dyn Memory, u64), MemoryFault> {
        self.mem
            .as_deref()
            .zip(self.offset.checked_add(u64::from(at)))
            .ok_or(MemoryFault)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} B at {})", self.len, self.offset)
    }
}

/// The bytes of a work request: ranges of memory, one behind the other (the scatter/gather list), or a copy taken when it was
/// posted (inline data, `IBV_SEND_INLINE`).
#[derive(Clone)]
pub struct SgList {
    bytes: u64,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    One(Segment),
    Many(Arc<[Segment]>),
    Inline(Arc<[u8]>),
}

impl SgList {
    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            bytes: 0,
            kind: Kind::One(Segment::empty()),
        }
    }

    /// These ranges, in order.
    #[must_use]
    pub fn of(segments: &[Segment]) -> Self {
        match segments {
            [] => Self::empty(),
            [one] => one.clone().into(),
            many => Self {
                bytes: many.iter().map(|s| u64::from(s.len)).sum(),
                kind: Kind::Many(many.into()),
            },
        }
    }

    /// A copy of `bytes`, which may change at once. For send requests only.
    #[must_use]
    pub fn inline(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.len() as u64,
            kind: Kind::Inline(bytes.into()),
        }
    }

    /// Bytes. A list longer than 2^32 - 1 can't be posted, and counts as that long.
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.bytes).unwrap_or(u32::MAX)
    }

    /// True for no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The ranges; none for inline data.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        match &self.kind {
            Kind::One(one) => core::slice::from_ref(one),
            Kind::Many(many) => many,
            Kind::Inline(_) => &[],
        }
    }

    /// Bytes of inline data; `None` for a list of ranges.
    #[must_use]
    pub fn inline_len(&self) -> Option<usize> {
        match &self.kind {
            Kind::Inline(bytes) => Some(bytes.len()),
            _ => None,
        }
    }

    /// Whether a work request of a QP of protection domain `pd` may read the memory, or write to it if `needs_write`
    /// (rxe_mr.c `lookup_mr`, `RXE_LOOKUP_LOCAL`). Looked at when the request is taken; a range without bytes is not.
    ///
    /// # Errors
    /// [`MemoryFault`]: another domain's region, one that was withdrawn, or one without [`super::Access::LOCAL_WRITE`].
    pub(crate) fn check(&self, pd: Pd, needs_write: bool) -> Result<(), MemoryFault> {
        let may = |s: &Segment| {
            s.len == 0
                || s.memory()
                    .is_some_and(|m| m.pd().is_none_or(|p| p == pd) && m.permits(needs_write))
        };
        if self.segments().iter().all(may) {
            Ok(())
        } else {
            Err(MemoryFault)
        }
    }

    /// Whether every range lies within its memory.
    pub(crate) fn is_valid(&self) -> bool {
        self.segments().iter().all(Segment::is_valid)
    }

    /// Copies `dst.len()` bytes of the list from byte `at` on.
    pub(crate) fn read(&self, at: u32, dst: &mut [u8]) -> Result<(), MemoryFault> {
        if let Kind::Inline(bytes) = &self.kind {
            let start = at as usize;
            let end = start.checked_add(dst.len()).ok_or(MemoryFault)?;
            dst.copy_from_slice(bytes.get(start..end).ok_or(MemoryFault)?);
            return Ok(());
        }
        let mut done = 0;
        self.walk(at, dst.len(), |mem, offset, n| {
            let part = dst.get_mut(done..done + n).ok_or(MemoryFault)?;
            done += n;
            mem.read(offset, part)
        })
    }

    /// Copies `src` to byte `at` of the list on.
    pub(crate) fn write(&self, at: u32, src: &[u8]) -> Result<(), MemoryFault> {
        let mut done = 0;
        self.walk(at, src.len(), |mem, offset, n| {
            let part = src.get(done..done + n).ok_or(MemoryFault)?;
            done += n;
            mem.write(offset, part)
        })
    }

    /// The stretches of memory under bytes `at..at + len` of the list.
    fn walk(
        &self,
        at: u32,
        len: usize,
        mut each: impl FnMut(&dyn Memory, u64, usize) -> Result<(), MemoryFault>,
    ) -> Result<(), MemoryFault> {
        let (mut skip, mut left) = (at, len);
        for segment in self.segments() {
            if left == 0 {
                break;
            }
            if skip >= segment.len {
                skip -= segment.len;
                continue;
            }
            let n = left.min((segment.len - skip) as usize);
            let (mem, offset) = segment.place(skip)?;
            each(mem, offset, n)?;
            (skip, left) = (0, left - n);
        }
        if left == 0 { Ok(()) } else { Err(MemoryFault) }
    }
}

impl From<Segment> for SgList {
    fn from(one: Segment) -> Self {
        Self {
            bytes: u64::from(one.len),
            kind: Kind::One(one),
        }
    }
}

impl fmt::Debug for SgList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Inline(bytes) => write!(f, "inline({} B)", bytes.len()),
            _ => f.debug_list().entries(self.segments()).finish(),
        }
    }
}
