//! A frame as XDP sees it: its first buffer read directly, what lies behind it by helper.
//!
//! `bpf_xdp_load_bytes` and `bpf_xdp_get_buff_len` (net/core/filter.c) exist since kernel 5.18, in programs with and
//! without `frags`. A call costs as much as all direct reads of a packet together, so they are for frames of several
//! buffers whose headers do not all stand in the first.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
};
use rocexdp_common::bytes::Bytes;

/// Offsets up to this are tried in the first buffer. The verifier tracks packet pointers up to 0xffff.
const MAX_DIRECT: usize = 0x1fff;

/// The same value, of which the compiler knows nothing: bounds check and access then use one register. Computed in two
/// ways, as the compiler likes it, the verifier would take them for two unrelated packet pointers.
#[inline(always)]
fn opaque(mut value: usize) -> usize {
    // SAFETY: no instruction at all.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) value, options(pure, nomem, nostack)) };
    value
}

/// Words of the longest header that is read at once.
const MAX_WORDS: usize = 5;

/// A header in words of 8 bytes, in memory order; what is behind its end is 0.
///
/// Headers stand at any alignment, and for the BPF target the compiler then loads byte by byte: some forty instructions
/// for an IPv4 header. The processors that BPF runs on load words from anywhere (the kernel's verifier allows it where
/// CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS is set), so words are loaded by the instruction itself. They stay words until
/// both ways of loading have met: only then does the compiler see a swap of bytes in what the parser makes of them.
type Words = [u64; MAX_WORDS];

macro_rules! word_at {
    ($name:ident, $size:literal) => {
        #[doc = concat!("The ", $size, " bits at `at`, which must lie within the frame.")]
        #[inline(always)]
        fn $name(at: usize) -> u64 {
            let word: u64;
            // SAFETY: reads the frame. The verifier refuses the program if this may lie outside.
            unsafe {
                core::arch::asm!(
                    concat!("{0} = *(u", $size, " *)({1} + 0)"),
                    lateout(reg) word, in(reg) at, options(pure, readonly, nostack)
                )
            };
            word
        }
    };
}
word_at!(eight, "64");
word_at!(four, "32");
word_at!(two, "16");
word_at!(one, "8");

/// The `N` bytes at `at`, which must lie within the frame.
#[inline(always)]
fn near<const N: usize>(at: usize) -> Words {
    let mut words = [0; MAX_WORDS];
    for (i, word) in words.iter_mut().enumerate() {
        let at = at + i * 8;
        let left = N.saturating_sub(i * 8);
        if left >= 8 {
            *word = eight(at);
            continue;
        }
        // At most one of each size, in the order of memory.
        let mut done = 0;
        if left & 4 != 0 {
            *word = four(at);
            done = 4;
        }
        if left & 2 != 0 {
            *word |= two(at + done) << (done * 8);
            done += 2;
        }
        if left & 1 != 0 {
            *word |= one(at + done) << (done * 8);
        }
    }
    words
}

/// The first `N` bytes.
#[inline(always)]
fn bytes<const N: usize>(words: Words) -> [u8; N] {
    let mut out = [0; N];
    for (i, byte) in out.iter_mut().enumerate() {
        if let Some(word) = words.get(i / 8) {
            *byte = (word >> (i % 8 * 8)) as u8;
        }
    }
    out
}

/// The frame of one context.
pub struct Frame {
    ctx: *mut xdp_md,
    data: usize,
    data_end: usize,
}

impl Frame {
    /// `ctx` must be the context that the kernel passed to the program.
    #[inline(always)]
    pub fn new(ctx: *mut xdp_md) -> Self {
        // SAFETY: the context is the kernel's.
        let data = unsafe { (*ctx).data } as usize;
        // SAFETY: the context is the kernel's.
        let data_end = unsafe { (*ctx).data_end } as usize;
        Self {
            ctx,
            data,
            data_end,
        }
    }
}

impl Frame {
    /// The `N` bytes at an offset, by helper.
    #[inline(always)]
    fn far<const N: usize>(&self, offset: usize) -> Option<Words> {
        let mut words: Words = [0; MAX_WORDS];
        // SAFETY: the context is the kernel's, the buffer has N bytes or more.
        let status = unsafe {
            bpf_xdp_load_bytes(self.ctx, offset as u32, words.as_mut_ptr().cast(), N as u32)
        };
        if status == 0 { Some(words) } else { None }
    }
}

impl Bytes for Frame {
    #[inline(always)]
    fn len(&self) -> usize {
        // SAFETY: the context is the kernel's.
        (unsafe { bpf_xdp_get_buff_len(self.ctx) }) as usize
    }

    #[inline(always)]
    fn reaches(&self, end: usize) -> bool {
        end <= self.data_end - self.data || end <= self.len()
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        const { assert!(N <= MAX_WORDS * 8) };
        let at = opaque(offset);
        let words = 'read: {
            if at <= MAX_DIRECT {
                let start = opaque(self.data + at);
                if start + N <= self.data_end {
                    break 'read near::<N>(start);
                }
            }
            self.far::<N>(offset)?
        };
        Some(bytes(words))
    }

    #[inline(always)]
    fn load_rare<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let mut bytes = MaybeUninit::<[u8; N]>::uninit();
        // SAFETY: the context is the kernel's, the buffer has N bytes.
        let status = unsafe {
            bpf_xdp_load_bytes(self.ctx, offset as u32, bytes.as_mut_ptr().cast(), N as u32)
        };
        if status != 0 {
            return None;
        }
        // SAFETY: the helper succeeded, so that it has written all N bytes.
        Some(unsafe { bytes.assume_init() })
    }
}
