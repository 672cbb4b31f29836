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
                // SAFETY: these bytes lie within the first buffer; an array of bytes needs no alignment.
                return Some(unsafe { *(start as *const [u8; N]) });
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
