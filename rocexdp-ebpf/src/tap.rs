//! The tap of both objects: a packet's headers, or all of it, into the ring buffer `TAP`, while a recorder listens.
//!
//! Off, [`record`] is a load and a branch. See [`rocexdp_common::watch::tap`] for the layout and for why a ring buffer.

use core::ptr;

use aya_ebpf::{
    bindings::xdp_md,
    helpers::generated::{
        bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_xdp_get_buff_len, bpf_xdp_load_bytes,
    },
    macros::map,
    maps::{Array, RingBuf},
};
use rocexdp_common::watch::tap::{
    HEADERS, OFF, TAP_BYTES, TAP_CPUS, TAP_SIZES, TapBook, TapControl, TapHead,
};

const MMAPABLE: u32 = aya_ebpf::bindings::BPF_F_MMAPABLE;
/// `BPF_RB_NO_WAKEUP`: the recorder looks by itself, some hundred times a second; waking it for a packet costs more than
/// the packet.
const NO_WAKEUP: u64 = 1;

#[map]
static TAP_CONTROL: Array<TapControl> = Array::with_max_entries(1, MMAPABLE);
#[map]
static TAP: RingBuf = RingBuf::with_byte_size(TAP_BYTES, 0);
#[map]
static TAP_BOOK: Array<TapBook> = Array::with_max_entries(TAP_CPUS, MMAPABLE);

/// A context whose frame can be copied.
pub trait Source {
    /// Bytes of the frame.
    fn len(&self) -> u32;
    /// Copies its first `len` bytes; false when it can't.
    ///
    /// # Safety
    /// There must be room for `len` bytes.
    unsafe fn copy(&self, to: *mut u8, len: u32) -> bool;
    /// What the record's head says of hook and interface.
    fn describe(&self, head: &mut TapHead);
}

/// A frame that XDP sees.
pub struct XdpSource(pub *mut xdp_md);

impl Source for XdpSource {
    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context is the kernel's.
        (unsafe { bpf_xdp_get_buff_len(self.0) }) as u32
    }

    #[inline(always)]
    unsafe fn copy(&self, to: *mut u8, len: u32) -> bool {
        // SAFETY: as the caller promises.
        (unsafe { bpf_xdp_load_bytes(self.0, 0, to.cast(), len) }) == 0
    }

    #[inline(always)]
    fn describe(&self, head: &mut TapHead) {
        // SAFETY: the context is the kernel's.
        head.queue = unsafe { (*self.0).rx_queue_index };
        // SAFETY: the context is the kernel's.
        head.ifindex = unsafe { (*self.0).ingress_ifindex };
        (head.vlan_proto, head.vlan_tci) = (0, 0);
    }
}

/// Hands a frame to the recorder, if there is one. `headers`: its bytes before the payload, where known.
#[inline(always)]
pub fn record<S: Source>(source: &S, headers: Option<u32>) {
    let Some(control) = TAP_CONTROL.get_ptr(0) else {
        return;
    };
    // SAFETY: a map value.
    let mode = unsafe { ptr::addr_of!((*control).mode) };
    // SAFETY: a map value, which userspace may write at any time: hence volatile.
    let mode = unsafe { mode.read_volatile() };
    if mode != OFF {
        take(source, mode, headers);
    }
}

#[inline(always)]
fn take<S: Source>(source: &S, mode: u32, headers: Option<u32>) {
    let [small, large, whole] = TAP_SIZES;
    let len = source.len();
    let wanted = if mode == HEADERS {
        // Of a malformed packet what a small record holds.
        headers.unwrap_or(small).min(len)
    } else {
        len
    };
    let recorded = if wanted <= small {
        fill::<S, { TAP_SIZES[0] as usize }>(source, len, wanted.min(small))
    } else if wanted <= large || mode == HEADERS {
        fill::<S, { TAP_SIZES[1] as usize }>(source, len, wanted.min(large))
    } else {
        fill::<S, { TAP_SIZES[2] as usize }>(source, len, wanted.min(whole))
    };
    // SAFETY: a helper call without arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() } & (TAP_CPUS - 1);
    if let Some(book) = TAP_BOOK.get_ptr_mut(cpu) {
        // SAFETY: a map value; one writer.
        let book = unsafe { &mut *book };
        if recorded {
            book.recorded += 1;
        } else {
            book.lost += 1;
        }
    }
}

/// A record with room for `N` bytes of the frame.
#[repr(C, align(8))]
struct Record<const N: usize> {
    head: TapHead,
    data: [u8; N],
}

#[inline(always)]
fn fill<S: Source, const N: usize>(source: &S, wire_len: u32, captured: u32) -> bool {
    if captured == 0 {
        return false;
    }
    let Some(mut record) = TAP.reserve::<Record<N>>(0) else {
        return false;
    };
    // The verifier wants to see the bounds where the length is used.
    let len = bounded::<N>(captured);
    let at: *mut Record<N> = record.as_mut_ptr();
    // SAFETY: a field of the record.
    let data: *mut u8 = unsafe { ptr::addr_of_mut!((*at).data) }.cast();
    // SAFETY: there are N bytes.
    if !unsafe { source.copy(data, len) } {
        record.discard(NO_WAKEUP);
        return false;
    }
    // SAFETY: a field of the record; all its bytes are written here.
    let head = unsafe { &mut (*at).head };
    // SAFETY: a helper call without arguments.
    head.time_ns = unsafe { bpf_ktime_get_ns() };
    head.wire_len = wire_len;
    head.captured = len;
    head.reserved = 0;
    source.describe(head);
    record.submit(NO_WAKEUP);
    true
}

/// From 1 to `N`, in one register that the compiler does not look into.
///
/// The helpers take no length of 0, and the verifier of kernel 6.1 learns nothing from `len != 0`
/// (kernel/bpf/verifier.c, `reg_set_min_max`): so it is the length less 1 whose bound is checked.
#[inline(always)]
fn bounded<const N: usize>(len: u32) -> u32 {
    let mut below = u64::from(len.wrapping_sub(1));
    // SAFETY: no instruction at all.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) below, options(pure, nomem, nostack)) };
    let most = N as u64 - 1;
    (if below > most { most } else { below }) as u32 + 1
}
