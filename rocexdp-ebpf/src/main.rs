//! The endpoint's XDP programs: per-QP state at the driver hook, packets of local QPs to their AF_XDP socket.
//!
//! Two programs, one body: `rocexdp_frags` takes frames of several buffers, `rocexdp` is for devices and kernels
//! without (5.18 to 6.5, largest path MTU 2048). All decisions are [`rocexdp_common::verdict`]'s; this crate gives it
//! the frame ([`frame`]) and the maps ([`maps`]) and turns its outcome into an XDP action.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
// The macro `xdp` makes a second, undocumented function of each program.
#![expect(missing_docs)]

mod frame;
mod maps;

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    macros::xdp,
    programs::XdpContext,
};
use rocexdp_common::verdict::{self, Action};

use crate::{frame::Frame, maps::Maps};

/// For devices that can hand over a frame in several buffers.
#[xdp(frags)]
pub fn rocexdp_frags(ctx: XdpContext) -> u32 {
    program(ctx.ctx)
}

/// For all others.
#[xdp]
pub fn rocexdp(ctx: XdpContext) -> u32 {
    program(ctx.ctx)
}

#[inline(always)]
fn program(ctx: *mut xdp_md) -> u32 {
    // SAFETY: the kernel gave us the context.
    let queue = unsafe { (*ctx).rx_queue_index };
    let Some(mut maps) = Maps::of_queue(queue) else {
        return xdp_action::XDP_PASS;
    };
    let frame = Frame::new(ctx);
    let outcome = verdict::run(&frame, &mut maps);
    maps.book(outcome);
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
