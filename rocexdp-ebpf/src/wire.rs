//! The lab's wire: what enters one port leaves by the other, with faults on the way.
//!
//! Forwards every frame in XDP, of any size (`xdp.frags`), and does to RoCEv2 packets what [`rocexdp_common::fault`]
//! decides: drop, change a byte that the invariant CRC covers, mark Congestion Experienced. Faults that need frames held
//! or copied are not for XDP: with `to_sockets` set, all frames go to the keeper's AF_XDP sockets instead and nothing is
//! counted but that. It is no switch: it knows two ports and no address.
//!
//! Maps: see [`rocexdp_common::wire`]. The counters are plain stores: a port has one receive queue, hence one writer.
#![no_std]
#![no_main]

use aya_ebpf::{
    EbpfContext,
    bindings::{xdp_action, xdp_md},
    helpers::generated::{bpf_redirect, bpf_xdp_load_bytes, bpf_xdp_store_bytes},
    macros::{map, xdp},
    maps::{Array, XskMap},
    programs::XdpContext,
};
use rocexdp_common::{
    fault::{self, Covered, Load},
    wire::{WireConfig, WireCounters},
};

#[map]
static WIRE_CONFIG: Array<WireConfig> = Array::with_max_entries(1, 0);
#[map]
static WIRE_COUNTERS: Array<WireCounters> = Array::with_max_entries(2, 0);
#[map]
static WIRE_SOCKETS: XskMap = XskMap::with_max_entries(2, 0);

/// A frame, read and written by helper because it may be in fragments.
struct Frame<'a>(&'a XdpContext);

impl Load for Frame<'_> {
    #[inline(always)]
    fn load<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0u8; N];
        // SAFETY: the context is the one the kernel gave us and the buffer is N bytes long.
        let status = unsafe {
            bpf_xdp_load_bytes(self.0.ctx, at as u32, bytes.as_mut_ptr().cast(), N as u32)
        };
        if status == 0 { Some(bytes) } else { None }
    }
}

impl Frame<'_> {
    #[inline(always)]
    fn store<const N: usize>(&self, at: usize, mut bytes: [u8; N]) -> Option<()> {
        // SAFETY: the context is the one the kernel gave us and the buffer is N bytes long.
        let status = unsafe {
            bpf_xdp_store_bytes(self.0.ctx, at as u32, bytes.as_mut_ptr().cast(), N as u32)
        };
        if status == 0 { Some(()) } else { None }
    }

    /// Sets Congestion Experienced. `Ok(false)` when the packet is not ECN-capable.
    #[inline(always)]
    fn mark(&self, covered: &Covered) -> Option<bool> {
        let Some(mark) = covered.mark() else {
            return Some(false);
        };
        self.store(mark.at, [mark.value])?;
        if let Some(at) = mark.ipv4_checksum_at {
            self.store(at, mark.checksum(self.load(at)?))?;
        }
        Some(true)
    }

    #[inline(always)]
    fn corrupt(&self, covered: &Covered, entropy: u64) -> Option<()> {
        let (at, mask) = covered.corruption(entropy);
        let [byte] = self.load::<1>(at)?;
        self.store(at, [byte ^ mask])
    }
}

/// Forwards between the wire's two ports.
#[xdp(frags)]
pub fn wire(ctx: XdpContext) -> u32 {
    forward(&ctx).unwrap_or(xdp_action::XDP_ABORTED)
}

#[inline(always)]
fn forward(ctx: &XdpContext) -> Option<u32> {
    let config = WIRE_CONFIG.get(0)?;
    let md: *const xdp_md = ctx.as_ptr().cast();
    // SAFETY: the kernel gave us the context.
    let entered = unsafe { (*md).ingress_ifindex };
    let port = if entered == config.ports[0] {
        0
    } else if entered == config.ports[1] {
        1
    } else {
        return None;
    };
    let counters = WIRE_COUNTERS.get_ptr_mut(port)?;
    // SAFETY: a map value, which no other CPU writes.
    let counters = unsafe { &mut *counters };

    if config.to_sockets != 0 {
        counters.to_sockets += 1;
        return Some(
            WIRE_SOCKETS
                .redirect(port, 0)
                .unwrap_or_else(|action| action),
        );
    }

    let frame = Frame(ctx);
    match fault::find(&frame) {
        None => counters.other += 1,
        Some(covered) => {
            let (faults, base) = if port == 0 {
                (&config.faults[0], config.base[0])
            } else {
                (&config.faults[1], config.base[1])
            };
            let decision = fault::decide(faults, port, counters.packets.wrapping_sub(base));
            counters.packets += 1;
            if decision.drop {
                counters.dropped += 1;
                return Some(xdp_action::XDP_DROP);
            }
            if decision.mark {
                match frame.mark(&covered) {
                    Some(true) => counters.marked += 1,
                    Some(false) => {}
                    None => counters.failed += 1,
                }
            }
            if decision.corrupt {
                match frame.corrupt(&covered, decision.entropy) {
                    Some(()) => counters.corrupted += 1,
                    None => counters.failed += 1,
                }
            }
        }
    }
    counters.forwarded += 1;
    let leaves = if port == 0 {
        config.ports[1]
    } else {
        config.ports[0]
    };
    // SAFETY: a helper call without pointers.
    Some(unsafe { bpf_redirect(leaves, 0) } as u32)
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
