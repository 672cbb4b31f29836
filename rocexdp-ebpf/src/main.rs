//! The endpoint's XDP programs: per-QP state at the driver hook, packets of local QPs to their AF_XDP socket.
//!
//! Two programs, one body: `rocexdp_frags` takes frames of several buffers, `rocexdp` is for devices and kernels
//! without (5.18 to 6.5, largest path MTU 2048). All decisions are [`rocexdp_common::verdict`]'s; this crate gives it
//! the frame ([`frame`]) and the maps ([`maps`]) and turns its outcome into an XDP action.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod endpoint;
mod flows;
mod frame;
mod maps;
mod tap;

use aya_ebpf::{macros::xdp, programs::XdpContext};

use crate::endpoint::program;

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

/// The licence the kernel checks before it allows GPL-only helpers.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
