//! The monitor's programs: they count what passes and let everything pass.
//!
//! One body on three hooks: XDP (with and without frames of several buffers), TCX ingress where another XDP program owns
//! the NIC, TCX egress for what the kernel's stack sends. All of it is [`rocexdp_common::watch`]'s; this crate gives it the
//! frame ([`frame`], [`skb`]) and the maps ([`monitor_maps`]). Returns `XDP_PASS` and `TCX_NEXT`, whatever happens.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod flows;
mod frame;
mod monitor_maps;
mod skb;
mod tap;

use aya_ebpf::{
    bindings::{__sk_buff, xdp_action, xdp_md},
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

use rocexdp_common::bytes::Bytes;

use crate::{
    frame::Frame,
    monitor_maps::{Hook, Maps, Scratch},
    skb::{ANY_OFFSET, Skb, SkbSource, opaque},
    tap::XdpSource,
};

/// `TCX_NEXT` of include/uapi/linux/bpf.h: the next program decides, or the frame passes.
const TCX_NEXT: i32 = -1;

/// For devices that can hand over a frame in several buffers.
#[xdp(frags)]
pub fn rocexdp_mon_f(ctx: XdpContext) -> u32 {
    on_xdp(ctx.ctx)
}

/// For all others.
#[xdp]
pub fn rocexdp_mon(ctx: XdpContext) -> u32 {
    on_xdp(ctx.ctx)
}

/// What is received, where XDP is not to be had.
#[classifier]
pub fn rocexdp_mon_in(ctx: TcContext) -> i32 {
    on_tcx::<false>(ctx.skb.skb)
}

/// What the kernel's stack sends.
#[classifier]
pub fn rocexdp_mon_out(ctx: TcContext) -> i32 {
    on_tcx::<true>(ctx.skb.skb)
}

/// A frame of which a load knows nothing of the loads before it; see [`ANY_OFFSET`].
struct Anywhere(Frame);

impl Bytes for Anywhere {
    #[inline(always)]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn reaches(&self, end: usize) -> bool {
        self.0.reaches(end)
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.load(opaque(offset) & ANY_OFFSET)
    }

    #[inline(always)]
    fn load_rare<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.load_rare(offset)
    }
}

#[inline(always)]
fn on_xdp(md: *mut xdp_md) -> u32 {
    if let Some(scratch) = Scratch::of_this_cpu() {
        find_in_xdp(md, scratch);
        if scratch.is_in_tunnel() {
            find_in_xdp(md, scratch);
        }
        count_in_xdp(md, scratch);
    }
    xdp_action::XDP_PASS
}

#[inline(always)]
fn on_tcx<const EGRESS: bool>(ctx: *mut __sk_buff) -> i32 {
    if let Some(scratch) = Scratch::of_this_cpu() {
        find_in_skb(ctx, scratch);
        if scratch.is_in_tunnel() {
            find_in_skb(ctx, scratch);
        }
        count_in_skb::<EGRESS>(ctx, scratch);
    }
    TCX_NEXT
}

// Functions of their own, for two reasons: the stack of each is then free for the next (512 bytes for all that are active),
// and the verifier forgets between them how the way to the packet was, instead of walking the rest once for every way.

#[inline(never)]
fn find_in_xdp(md: *mut xdp_md, scratch: &mut Scratch) {
    scratch.find(&Anywhere(Frame::new(md)));
}

#[inline(never)]
fn find_in_skb(ctx: *mut __sk_buff, scratch: &mut Scratch) {
    scratch.find(&Skb::new(ctx));
}

#[inline(never)]
fn count_in_xdp(md: *mut xdp_md, scratch: &mut Scratch) {
    // SAFETY: the kernel gave us the context.
    let queue = unsafe { (*md).rx_queue_index };
    if let Some(mut maps) = Maps::of(Hook::Xdp(queue), XdpSource(md)) {
        let outcome = scratch.count(&Anywhere(Frame::new(md)), &mut maps);
        maps.book(outcome);
    }
}

#[inline(never)]
fn count_in_skb<const EGRESS: bool>(ctx: *mut __sk_buff, scratch: &mut Scratch) {
    let (hook, egress) = if EGRESS {
        (Hook::Egress, true)
    } else {
        (Hook::Ingress, false)
    };
    if let Some(mut maps) = Maps::of(hook, SkbSource { ctx, egress }) {
        let outcome = scratch.count(&Skb::new(ctx), &mut maps);
        maps.book(outcome);
    }
}

/// The licence the kernel checks before it allows GPL-only helpers.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
