//! Programs for `cargo xtask bench xdp` only; the product does not embed them.
//!
//! `BPF_PROG_TEST_RUN` repeats one frame. A real stream has sequence numbers that advance and QPs that take turns, so a
//! wrapper writes both into the frame before each run. Programs that do only that, or nothing, or a bare redirect, are
//! the baselines of the same run.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod endpoint;
mod flows;
mod frame;
mod maps;
mod tap;

use aya_ebpf::{
    bindings::xdp_action,
    macros::{map, xdp},
    maps::{Array, XskMap},
    programs::XdpContext,
};

use crate::endpoint::program;

/// What the wrapper writes: see the benchmark (`tests/benches/xdp.rs`), which has the same layout.
#[repr(C)]
pub struct Turn {
    /// Where the BTH begins in the frame.
    bth_at: u32,
    /// QPs that take turns.
    qps: u32,
    /// Steps from one to the next; has no factor in common with `qps`, so that each has its turn.
    stride: u32,
    /// First QP number.
    base: u32,
    /// Whose turn it is.
    at: u32,
    /// PSN of this round.
    psn: u32,
    /// Packets of this round so far.
    taken: u32,
    /// PSNs from one round to the next.
    psns: u32,
}

#[map]
static TURN: Array<Turn> = Array::with_max_entries(1, 0);
#[map]
static BARE_XSKS: XskMap = XskMap::with_max_entries(64, 0);

/// Nothing.
#[xdp(frags)]
pub fn empty(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_PASS
}

/// A redirect to the socket of the queue.
#[xdp(frags)]
pub fn redirect(ctx: XdpContext) -> u32 {
    bare(&ctx)
}

/// The wrapper, then nothing.
#[xdp(frags)]
pub fn turn_empty(ctx: XdpContext) -> u32 {
    turn(&ctx);
    xdp_action::XDP_PASS
}

/// The wrapper, then a redirect.
#[xdp(frags)]
pub fn turn_redirect(ctx: XdpContext) -> u32 {
    turn(&ctx);
    bare(&ctx)
}

/// The endpoint's program, as it ships.
#[xdp(frags)]
pub fn endpoint_alone(ctx: XdpContext) -> u32 {
    program(&ctx)
}

/// The wrapper, then the endpoint's program.
#[xdp(frags)]
pub fn turn_endpoint(ctx: XdpContext) -> u32 {
    turn(&ctx);
    program(&ctx)
}

#[inline(always)]
fn bare(ctx: &XdpContext) -> u32 {
    // SAFETY: the context is the kernel's.
    let queue = unsafe { (*ctx.ctx).rx_queue_index };
    match BARE_XSKS.redirect(queue, 0) {
        Ok(action) | Err(action) => action,
    }
}

/// Writes the next QP and PSN into the frame.
#[inline(always)]
fn turn(ctx: &XdpContext) {
    let Some(turn) = TURN.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a map value; only one program runs in a benchmark.
    let turn = unsafe { &mut *turn };
    turn.at += turn.stride;
    if turn.at >= turn.qps {
        turn.at -= turn.qps;
    }
    turn.taken += 1;
    if turn.taken >= turn.qps {
        turn.taken = 0;
        turn.psn = (turn.psn + turn.psns) & 0xff_ffff;
    }
    let qpn = turn.base + turn.at;
    let bth_at = (turn.bth_at & 0xff) as usize;
    write(ctx, bth_at + 4, qpn);
    write(ctx, bth_at + 8, turn.psn);
}

/// Writes the low three bytes of a number behind one that is left alone.
#[inline(always)]
fn write(ctx: &XdpContext, at: usize, number: u32) {
    let start = ctx.data() + at;
    if start + 4 > ctx.data_end() {
        return;
    }
    let bytes = number.to_be_bytes();
    for i in 1..4 {
        let Some(byte) = bytes.get(i) else { return };
        // SAFETY: within the frame, as just checked.
        unsafe { *((start + i) as *mut u8) = *byte };
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
