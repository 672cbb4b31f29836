//! How the parser reads a frame: by copies of fixed size, never by reference.
//!
//! A frame may be in pieces (XDP fragments, UMEM chunks) and may be shared memory that changes under the reader, so a
//! header is copied once and then judged. XDP implements [`Bytes`] with `bpf_xdp_load_bytes`, userspace over slices.

/// A frame that can be read at any offset.
pub trait Bytes {
    /// Bytes of the frame, from the Ethernet header on.
    fn len(&self) -> usize;

    /// Whether the frame has all bytes before `end`. What [`Bytes::len`] would tell, where that is dearer to ask.
    #[inline(always)]
    fn reaches(&self, end: usize) -> bool {
        end <= self.len()
    }

    /// Whether bytes before `end` belong to the frame and yet can't be loaded, because less was captured.
    #[inline(always)]
    fn is_missing(&self, _end: usize) -> bool {
        false
    }

    /// Whether there are none.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `N` bytes from `offset` on, or `None` when the frame ends before.
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;

    /// [`Bytes::load`], for loops and for headers that few packets have: XDP then has one way to read them, not the fast one
    /// and the other, so that the verifier has fewer paths to walk.
    #[inline(always)]
    fn load_rare<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.load(offset)
    }
}

impl Bytes for [u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk().copied()
    }
}

/// A frame in several pieces, in order.
impl Bytes for [&[u8]] {
    #[inline]
    fn len(&self) -> usize {
        self.iter().map(|piece| <[u8]>::len(piece)).sum()
    }

    fn load<const N: usize>(&self, mut offset: usize) -> Option<[u8; N]> {
        let mut out = [0u8; N];
        let mut rest = out.as_mut_slice();
        for piece in self {
            let Some(piece) = piece.get(offset..) else {
                offset -= <[u8]>::len(piece);
                continue;
            };
            offset = 0;
            let n = <[u8]>::len(piece).min(<[u8]>::len(rest));
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(piece.get(..n)?);
            rest = tail;
        }
        if rest.is_empty() { Some(out) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_read_as_one_frame() {
        let whole: Vec<u8> = (0..40).collect();
        for a in 0..=40 {
            for b in a..=40 {
                let pieces: [&[u8]; 3] = [&whole[..a], &whole[a..b], &whole[b..]];
                assert_eq!(Bytes::len(&pieces[..]), 40);
                for at in 0..45 {
                    assert_eq!(
                        pieces[..].load::<7>(at),
                        whole[..].load::<7>(at),
                        "{a} {b} {at}"
                    );
                }
            }
        }
        assert_eq!(whole[..].load::<1>(usize::MAX), None);
        assert_eq!([&whole[..]][..].load::<1>(usize::MAX), None);
    }
}
