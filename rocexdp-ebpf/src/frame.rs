//! A frame as XDP sees it, read through helpers that also reach behind the first buffer.
//!
//! `bpf_xdp_load_bytes` and `bpf_xdp_get_buff_len` (net/core/filter.c) exist since kernel 5.18, in programs with and
//! without `frags`.

use core::mem::MaybeUninit;

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{bpf_xdp_get_buff_len, bpf_xdp_load_bytes},
};
use rocexdp_common::bytes::Bytes;

/// The frame of one context.
pub struct Frame {
    ctx: *mut xdp_md,
    len: usize,
}

impl Frame {
    /// `ctx` must be the context that the kernel passed to the program.
    #[inline(always)]
    pub fn new(ctx: *mut xdp_md) -> Self {
        // SAFETY: the context is the kernel's.
        let len = unsafe { bpf_xdp_get_buff_len(ctx) };
        Self {
            ctx,
            len: len as usize,
        }
    }
}

impl Bytes for Frame {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
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
