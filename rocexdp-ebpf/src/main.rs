//! The endpoint's XDP programs: per-QP state at the driver hook, packets of local QPs to their AF_XDP socket.
//!
//! Two programs, one body: `rocexdp_frags` takes frames of several buffers, `rocexdp` is for devices and kernels
//! without (5.18 to 6.5, largest path MTU 2048). All decisions are [`rocexdp_common::verdict`]'s; this crate gives it
//! the frame ([`frame`]) and the maps ([`maps`]) and turns its outcome into an XDP action.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod frame;
mod maps;

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    macros::xdp,
    programs::XdpContext,
};
use aya_log_ebpf::info;
use rocexdp_common::verdict::{self, Action};

use crate::{frame::Frame, maps::Maps};

/// For devices that can hand over a frame in several buffers.
#[xdp(frags)]
pub fn rocexdp_frags(ctx: XdpContext) -> u32 {
    program(&ctx)
}

/// For all others.
#[xdp]
pub fn rocexdp(ctx: XdpContext) -> u32 {
    program(&ctx)
}

#[inline(always)]
fn program(ctx: &XdpContext) -> u32 {
    let md: *mut xdp_md = ctx.ctx;
    // SAFETY: the kernel gave us the context.
    let queue = unsafe { (*md).rx_queue_index };
    let Some(mut maps) = Maps::of_queue(queue) else {
        return xdp_action::XDP_PASS;
    };
    let outcome = verdict::run(&Frame::new(md), &mut maps);
    maps.book(outcome);
    if maps::log_refusals()
        && let Some(reason) = outcome.reason()
    {
        // The reason's number: names would need a string for each here. Userspace has them.
        info!(ctx, "refused: reason {}, queue {}", reason as u8, queue);
    }
    match outcome.action() {
        Action::Pass => xdp_action::XDP_PASS,
        Action::Drop => xdp_action::XDP_DROP,
        Action::Redirect => xdp_action::XDP_REDIRECT,
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
