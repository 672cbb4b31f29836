//! The monitor's programs: they count what passes and let everything pass.
//!
//! One body on three hooks: XDP (with and without frames of several buffers), TCX ingress where another XDP program owns
//! the NIC, TCX egress for what the kernel's stack sends. All of it is [`rocexdp_common::watch`]'s; this crate gives it the
//! frame ([`frame`], [`skb`]) and the maps ([`monitor_maps`]). Returns `XDP_PASS` and `TCX_NEXT`, whatever happens.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod frame;
mod monitor_maps;
mod skb;
mod tap;

use aya_ebpf::{
    bindings::{__sk_buff, xdp_action, xdp_md},
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use rocexdp_common::{
    bytes::Bytes,
    watch::{WatchEnv, watch},
};

use crate::{
    frame::Frame,
    monitor_maps::{Hook, Maps, scratch},
    skb::{Skb, SkbSource},
    tap::{Source, XdpSource},
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
    on_tcx(ctx.skb.skb, Hook::Ingress)
}

/// What the kernel's stack sends.
#[classifier]
pub fn rocexdp_mon_out(ctx: TcContext) -> i32 {
    on_tcx(ctx.skb.skb, Hook::Egress)
}

#[inline(always)]
fn on_xdp(md: *mut xdp_md) -> u32 {
    // SAFETY: the kernel gave us the context.
    let queue = unsafe { (*md).rx_queue_index };
    body(&Frame::new(md), Hook::Xdp(queue), XdpSource(md));
    xdp_action::XDP_PASS
}

#[inline(always)]
fn on_tcx(ctx: *mut __sk_buff, hook: Hook) -> i32 {
    let egress = hook == Hook::Egress;
    body(&Skb::new(ctx), hook, SkbSource { ctx, egress });
    TCX_NEXT
}

#[inline(always)]
fn body<B: Bytes, S: Source>(frame: &B, hook: Hook, source: S)
where
    Maps<S>: WatchEnv,
{
    let Some(mut maps) = Maps::of(hook, source) else {
        return;
    };
    let Some((packet, way)) = scratch() else {
        return;
    };
    let outcome = watch(frame, packet, way, &mut maps);
    maps.book(outcome);
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
