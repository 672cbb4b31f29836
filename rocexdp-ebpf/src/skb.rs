//! A frame as TCX sees it: the linear part of a socket buffer read directly, what lies behind it by helper.
//!
//! The Ethernet header is in front on ingress and on egress. A VLAN tag may stand beside the frame instead of in it
//! ([`Skb::tag`]): on ingress the outermost always does (net/core/dev.c, `__netif_receive_skb_core` calls
//! `skb_vlan_untag` before TCX).

use core::mem::MaybeUninit;

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_skb_load_bytes};
use rocexdp_common::{bytes::Bytes, maps::EGRESS, watch::tap::TapHead};

use crate::tap::Source;

/// Offsets up to this are tried in the linear part. The verifier tracks packet pointers up to 0xffff.
const MAX_DIRECT: usize = 0x1fff;

/// All bits that an offset can have. Masked by it, an offset keeps its value, and the verifier forgets that it is at least
/// what an earlier load found. On kernel 6.1 that matters: where such an offset is compared as `8192 > offset`, the
/// form in which the compiler has it, the verifier does not see that a branch can't be taken (kernel/bpf/verifier.c,
/// `is_branch_taken`), walks it with a lower bound above the upper one, and refuses the access.
pub const ANY_OFFSET: usize = 0x7fff_ffff;

/// The same value, of which the compiler knows nothing; see `frame`.
#[inline(always)]
pub fn opaque(mut value: usize) -> usize {
    // SAFETY: no instruction at all.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) value, options(pure, nomem, nostack)) };
    value
}

/// The frame of one context.
pub struct Skb {
    ctx: *mut __sk_buff,
    data: usize,
    data_end: usize,
}

impl Skb {
    /// `ctx` must be the context that the kernel passed to the program.
    #[inline(always)]
    pub fn new(ctx: *mut __sk_buff) -> Self {
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

    /// Protocol (host order) and value of the tag beside the frame; zeros: there is none.
    #[inline(always)]
    pub fn tag(ctx: *mut __sk_buff) -> (u16, u16) {
        // SAFETY: the context is the kernel's.
        if unsafe { (*ctx).vlan_present } == 0 {
            return (0, 0);
        }
        // SAFETY: the context is the kernel's.
        let proto = unsafe { (*ctx).vlan_proto } as u16;
        // SAFETY: the context is the kernel's.
        let tci = unsafe { (*ctx).vlan_tci } as u16;
        (u16::from_be(proto), tci)
    }
}

impl Bytes for Skb {
    #[inline(always)]
    fn len(&self) -> usize {
        // SAFETY: the context is the kernel's.
        (unsafe { (*self.ctx).len }) as usize
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let near = opaque(offset) & ANY_OFFSET;
        if near <= MAX_DIRECT {
            let start = opaque(self.data + near);
            if start + N <= self.data_end {
                // SAFETY: these bytes lie within the linear part; an array of bytes needs no alignment.
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
            bpf_skb_load_bytes(
                self.ctx.cast(),
                offset as u32,
                bytes.as_mut_ptr().cast(),
                N as u32,
            )
        };
        if status != 0 {
            return None;
        }
        // SAFETY: the helper succeeded, so that it has written all N bytes.
        Some(unsafe { bytes.assume_init() })
    }
}

/// A frame that TCX sees.
pub struct SkbSource {
    /// The context.
    pub ctx: *mut __sk_buff,
    /// Whether it is sent.
    pub egress: bool,
}

impl Source for SkbSource {
    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context is the kernel's.
        unsafe { (*self.ctx).len }
    }

    #[inline(always)]
    unsafe fn copy(&self, to: *mut u8, len: u32) -> bool {
        // SAFETY: as the caller promises.
        (unsafe { bpf_skb_load_bytes(self.ctx.cast(), 0, to.cast(), len) }) == 0
    }

    #[inline(always)]
    fn describe(&self, head: &mut TapHead) {
        // SAFETY: the context is the kernel's.
        head.ifindex = unsafe { (*self.ctx).ifindex };
        head.queue = if self.egress {
            EGRESS
        } else {
            // `skb_record_rx_queue` stores the queue plus one; 0: not recorded.
            // SAFETY: the context is the kernel's.
            unsafe { (*self.ctx).queue_mapping }.saturating_sub(1)
        };
        (head.vlan_proto, head.vlan_tci) = Skb::tag(self.ctx);
    }
}
