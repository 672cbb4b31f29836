//! Copies whose bytes become visible in the order of their addresses, the last word last.
//!
//! An application that polls the end of what a peer WRITEs must find the rest there once it sees the end. `memcpy` promises no
//! such order: glibc's stores both ends of a short copy at once and the last vectors of a long one before its middle
//! (sysdeps/x86_64/multiarch/memmove-vec-unaligned-erms.S). Must not: check ranges (the caller has).

use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Release, compiler_fence,
};

/// Bytes between two points of a copy that keep their order: a cache line.
const LINE: usize = 64;

/// The width of a copy's last store: the widest word that ends, aligned, where the copy ends, and lies in it.
fn last_word(end: usize, len: usize) -> usize {
    [8, 4, 2]
        .into_iter()
        .find(|width| end.is_multiple_of(*width) && len >= *width)
        .unwrap_or(1)
}

/// Copies `src` to `to`: cache line by cache line in ascending order, and last, as one store with release ordering, the aligned
/// word of 8, 4, 2 or 1 bytes that the range ends with.
///
/// The order of the lines is kept by the compiler, and by processors that keep stores in order (x86-64); that of the last word
/// against all before it by every processor.
///
/// # Safety
/// `to..to + src.len()` is memory that may be written, does not overlap `src`, and others access it only atomically or by
/// copies that may tear.
pub(super) unsafe fn copy_in_order(to: *mut u8, src: &[u8]) {
    let width = last_word(to.addr().wrapping_add(src.len()), src.len());
    let Some(body) = src.len().checked_sub(width) else {
        return;
    };
    let (mut at, mut left) = (src.as_ptr(), body);
    let mut there = to;
    let mut next = (LINE - to.addr() % LINE).min(left);
    while left > 0 {
        if next == LINE {
            // SAFETY: `next` bytes of both ranges are left. A constant length, so that these are stores and no call.
            unsafe { std::ptr::copy_nonoverlapping(at, there, LINE) };
        } else {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(at, there, next) };
        }
        compiler_fence(Release);
        (at, there) = (at.wrapping_add(next), there.wrapping_add(next));
        left -= next;
        next = LINE.min(left);
    }
    // SAFETY: `width` bytes of both ranges are left, and the end is aligned to them.
    unsafe { store_last(there, at, width) };
}

/// Stores the last `width` bytes at once, behind all stores before.
///
/// # Safety
/// `width` bytes may be read at `at` and written at `to`, which is aligned to them.
unsafe fn store_last(to: *mut u8, at: *const u8, width: usize) {
    macro_rules! store {
        ($atomic:ty, $word:ty) => {{
            // SAFETY: so many bytes are there; no alignment is asked for.
            let word = unsafe { at.cast::<$word>().read_unaligned() };
            // SAFETY: aligned memory that lives during this call, others access it atomically or by copies that may tear.
            unsafe { <$atomic>::from_ptr(to.cast()) }.store(word, Release);
        }};
    }
    match width {
        8 => store!(AtomicU64, u64),
        4 => store!(AtomicU32, u32),
        2 => store!(AtomicU16, u16),
        _ => store!(AtomicU8, u8),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, atomic::Ordering},
        time::{Duration, Instant},
    };

    use rocexdp_proto::mem::Memory;

    use super::*;
    use crate::mem::Buffer;

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_else() {
        let src: Vec<u8> = (0..300).map(|i| (i * 7 + 1) as u8).collect();
        for start in 0..70 {
            for len in 0..230 {
                let mut to = vec![0u8; 400];
                // SAFETY: 230 bytes from 69 on lie in both, and nobody else looks.
                unsafe { copy_in_order(to.as_mut_ptr().wrapping_add(start), &src[..len]) };
                assert_eq!(to[start..start + len], src[..len], "{start} {len}");
                assert!(
                    to[..start]
                        .iter()
                        .chain(&to[start + len..])
                        .all(|b| *b == 0)
                );
            }
        }
    }

    #[test]
    fn the_last_store_is_the_widest_aligned_word() {
        let cases = [
            (16, 16, 8),
            (16, 7, 4),
            (12, 9, 4),
            (14, 3, 2),
            (14, 1, 1),
            (15, 15, 1),
        ];
        for (end, len, width) in cases {
            assert_eq!(last_word(end, len), width, "end {end}, {len} bytes");
        }
    }

    /// A writer puts `round` into every word of a message, over and over; a reader that sees it in the last word must see it, or
    /// a later round, in all the others. With `memcpy` (glibc 2.36 on an EPYC) in place of [`copy_in_order`] 2 to 4 of 1000 looks at
    /// messages of 256 and 512 bytes found older words.
    #[test]
    fn who_polls_the_end_of_a_message_finds_all_of_it() {
        const LOOKS: u64 = 20_000;
        for words in [2, 5, 32, 64, 128, 512] {
            let memory = Buffer::new(words * 8).unwrap();
            let looks = Arc::new(AtomicU64::new(0));
            let reader = {
                let (memory, looks) = (Arc::clone(&memory), Arc::clone(&looks));
                std::thread::spawn(move || {
                    let word = |n: usize| memory.load(n as u64 * 8).unwrap();
                    let mut last = 0;
                    while looks.load(Ordering::Relaxed) < LOOKS {
                        let seen = word(words - 1);
                        if seen == last {
                            continue;
                        }
                        last = seen;
                        for n in (0..words - 1).rev() {
                            let other = word(n);
                            assert!(
                                other >= seen,
                                "{words} words: word {n} is of round {other}, the last of {seen}"
                            );
                        }
                        looks.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            let mut message = vec![0; words * 8];
            let (mut round, until) = (0u64, Instant::now() + Duration::from_secs(60));
            while !reader.is_finished() {
                assert!(Instant::now() < until, "the reader hardly saw anything");
                round += 1;
                for word in message.chunks_exact_mut(8) {
                    word.copy_from_slice(&round.to_ne_bytes());
                }
                memory.write(0, &message).unwrap();
            }
            reader.join().unwrap();
        }
    }
}
