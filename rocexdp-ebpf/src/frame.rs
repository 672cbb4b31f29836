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

/// The 8 bytes at `at`, which must lie within the frame.
#[inline(always)]
fn eight(at: usize) -> [u8; 8] {
    let word: u64;
    // SAFETY: reads 8 bytes of the frame. The verifier refuses the program if they may lie outside.
    unsafe { core::arch::asm!("{0} = *(u64 *)({1} + 0)", lateout(reg) word, in(reg) at, options(pure, readonly, nostack)) };
    word.to_ne_bytes()
}

/// The 4 bytes at `at`, which must lie within the frame.
#[inline(always)]
fn four(at: usize) -> [u8; 4] {
    let word: u64;
    // SAFETY: as in `eight`.
    unsafe { core::arch::asm!("{0} = *(u32 *)({1} + 0)", lateout(reg) word, in(reg) at, options(pure, readonly, nostack)) };
    (word as u32).to_ne_bytes()
}

/// The `N` bytes at `at`, which must lie within the frame.
///
/// Headers stand at any alignment, and for the BPF target the compiler then loads byte by byte: some forty instructions
/// for an IPv4 header. The processors that BPF runs on load words from anywhere (the kernel's verifier allows it where
/// CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS is set), so words are loaded by the instruction itself.
#[inline(always)]
fn words<const N: usize>(at: usize) -> [u8; N] {
    let mut out = [0; N];
    let (eights, rest) = out.as_chunks_mut::<8>();
    let done = eights.len() * 8;
    for (i, chunk) in eights.iter_mut().enumerate() {
        *chunk = eight(at + i * 8);
    }
    let (fours, rest) = rest.as_chunks_mut::<4>();
    let fours_end = done + fours.len() * 4;
    for chunk in fours {
        *chunk = four(at + done);
    }
    for (i, byte) in rest.iter_mut().enumerate() {
        // SAFETY: within the frame, as the caller has checked.
        *byte = unsafe { *((at + fours_end + i) as *const u8) };
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
        let near = opaque(offset);
        if near <= MAX_DIRECT {
            let start = opaque(self.data + near);
            if start + N <= self.data_end {
                return Some(words(start));
            }
        }
        self.load_rare(offset)
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
