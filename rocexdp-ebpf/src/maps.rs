//! The maps of [`rocexdp_common::maps`], and the verdict's [`Env`] over them.
//!
//! One writer an entry: this program, on one receive queue. Plain loads and stores, so a reader in userspace sees
//! whole words, not a consistent entry. Entries of `FLOWS` have several writers when a flow moves between queues;
//! counts may be lost then. Sizes given here are what stands in the object; the loader sets the real ones.

use core::{
    ptr::{self, NonNull},
    sync::atomic::{Ordering, compiler_fence},
};

use aya_ebpf::{
    Global,
    bindings::{xdp_action, xdp_md},
    helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
    macros::map,
    maps::{Array, HashMap, LruHashMap, RingBuf, XskMap},
};
use rocexdp_common::{
    ids::Gid,
    maps::{
        DEFAULT_FLOWS, DEFAULT_SLOTS, DirtyLine, EVENTS_BYTES, Event, FlowKey, FlowState,
        LinkControl, MAX_ADDRESSES, QpConfig, QpCounters, QpEngine, QueueCounters, QueueEngine,
    },
    news::News,
    parse::Packet,
    verdict::{Env, Outcome},
    watch::tap::{TX_TAP_SLOTS, TxTap},
};

use crate::{
    flows,
    tap::{self, XdpSource},
};

/// `BPF_F_MMAPABLE` of include/uapi/linux/bpf.h.
const MMAPABLE: u32 = aya_ebpf::bindings::BPF_F_MMAPABLE;

/// As many entries as there are, not as many as there may be.
const NO_PREALLOC: u32 = aya_ebpf::bindings::BPF_F_NO_PREALLOC;

#[map]
static QP_CONFIG: Array<QpConfig> = Array::with_max_entries(DEFAULT_SLOTS, MMAPABLE);
#[map]
static QP_COUNTERS: Array<QpCounters> = Array::with_max_entries(DEFAULT_SLOTS, MMAPABLE);
/// Written by the engine only; lives here so that whoever finds the program finds it.
#[map]
static QP_ENGINE: Array<QpEngine> = Array::with_max_entries(DEFAULT_SLOTS, MMAPABLE);
#[map]
static QUEUE_COUNTERS: Array<QueueCounters> = Array::with_max_entries(1, MMAPABLE);
/// Written by the engine only.
#[map]
static QUEUE_ENGINE: Array<QueueEngine> = Array::with_max_entries(1, MMAPABLE);
#[map]
static DIRTY: Array<DirtyLine> = Array::with_max_entries(DEFAULT_SLOTS.div_ceil(64), MMAPABLE);
#[map]
static DIRTY_INDEX: Array<DirtyLine> =
    Array::with_max_entries(DEFAULT_SLOTS.div_ceil(4096), MMAPABLE);
#[map]
static FLOWS: LruHashMap<FlowKey, FlowState> = LruHashMap::with_max_entries(DEFAULT_FLOWS, 0);
#[map]
static LOCAL_ADDRS: HashMap<Gid, u32> = HashMap::with_max_entries(MAX_ADDRESSES, NO_PREALLOC);
#[map]
static LINK_CONTROL: Array<LinkControl> = Array::with_max_entries(1, MMAPABLE);
/// Written by the engine only.
#[map]
static TX_TAP: Array<TxTap> = Array::with_max_entries(TX_TAP_SLOTS, MMAPABLE);
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(EVENTS_BYTES, 0);
#[map]
static XSKS: XskMap = XskMap::with_max_entries(1, 0);

/// Receive queues that the maps have room for.
#[unsafe(no_mangle)]
static N_QUEUES: Global<u32> = Global::new(1);
/// QP slots - 1.
#[unsafe(no_mangle)]
static SLOT_MASK: Global<u32> = Global::new(DEFAULT_SLOTS - 1);

/// 1: log each refusal, malformed packets included. The verifier removes what a 0 here makes dead.
#[unsafe(no_mangle)]
static LOG_REFUSALS: Global<u8> = Global::new(0);

/// Whether to log refusals.
#[inline(always)]
pub fn log_refusals() -> bool {
    LOG_REFUSALS.load() != 0
}

/// Picoseconds of a pause quantum.
#[unsafe(no_mangle)]
static QUANTUM_PS: Global<u32> = Global::new(0);

/// Of include/uapi/linux/bpf.h.
const BPF_RB_NO_WAKEUP: u64 = aya_ebpf::bindings::BPF_RB_NO_WAKEUP as u64;

/// The maps as one frame uses them.
pub struct Maps {
    source: XdpSource,
    queue: u32,
    queues: u32,
    counters: NonNull<QueueCounters>,
}

impl Maps {
    /// `None`: there is no entry to count in.
    #[inline(always)]
    pub fn of(ctx: *mut xdp_md) -> Option<Self> {
        // SAFETY: the context is the kernel's.
        let queue = unsafe { (*ctx).rx_queue_index };
        let queues = N_QUEUES.load();
        let counters = NonNull::new(QUEUE_COUNTERS.get_ptr_mut(entry(queue, queues))?)?;
        Some(Self {
            source: XdpSource(ctx),
            queue,
            queues,
            counters,
        })
    }

    /// The receive queue.
    pub fn queue_index(&self) -> u32 {
        self.queue
    }

    #[inline(always)]
    fn entry(&self) -> u32 {
        entry(self.queue, self.queues)
    }

    /// Books the frame on its queue.
    #[inline(always)]
    pub fn book(&mut self, outcome: Outcome) {
        // SAFETY: a map value; one writer.
        unsafe { self.counters.as_mut() }.book(outcome);
    }
}

/// The entry of a queue; all queues that the maps have no room for share the last.
#[inline(always)]
fn entry(queue: u32, queues: u32) -> u32 {
    if queue < queues { queue } else { queues }
}

impl Env for Maps {
    #[inline(always)]
    fn queue(&self) -> u32 {
        self.queue
    }

    #[inline(always)]
    fn queues(&self) -> u32 {
        self.queues
    }

    #[inline(always)]
    fn slot_mask(&self) -> u32 {
        SLOT_MASK.load()
    }

    #[inline(always)]
    fn now_ns(&self, exact: bool) -> u64 {
        if exact {
            // SAFETY: a helper call without arguments.
            return unsafe { bpf_ktime_get_ns() };
        }
        // The kernel makes a load of this call (kernel/bpf/verifier.c, `do_misc_fixups`); the other is a real one.
        // SAFETY: a helper call without arguments.
        let tick = unsafe { bpf_jiffies64() };
        // SAFETY: a map value; one writer, and no reference to it is held.
        let counters = unsafe { &mut *self.counters.as_ptr() };
        if counters.tick != tick {
            counters.tick = tick;
            // SAFETY: a helper call without arguments.
            counters.tick_ns = unsafe { bpf_ktime_get_coarse_ns() };
        }
        counters.tick_ns
    }

    #[inline(always)]
    fn local_address(&self, gid: &Gid) -> u32 {
        // SAFETY: a map value that is read at once; userspace replaces it whole.
        unsafe { LOCAL_ADDRS.get(gid) }.copied().unwrap_or(0)
    }

    #[inline(always)]
    fn with_config<R>(&self, slot: u32, read: impl FnOnce(&QpConfig) -> R) -> Option<R> {
        let entry = QP_CONFIG.get_ptr(slot)?;
        // SAFETY: a field of a map value.
        let generation = unsafe { ptr::addr_of!((*entry).generation) };
        // SAFETY: a map value, which userspace may write at the same time: hence volatile.
        let before = unsafe { generation.read_volatile() };
        if before == 0 {
            return None;
        }
        compiler_fence(Ordering::Acquire);
        // SAFETY: a map value; if it was written while it was read, what was read is thrown away.
        let was_read = read(unsafe { &*entry });
        compiler_fence(Ordering::Acquire);
        // SAFETY: as above.
        let after = unsafe { generation.read_volatile() };
        if before == after {
            Some(was_read)
        } else {
            None
        }
    }

    #[inline(always)]
    fn qp(&mut self, index: u32) -> Option<&mut QpCounters> {
        let entry = QP_COUNTERS.get_ptr_mut(index)?;
        // SAFETY: a map value; one writer.
        Some(unsafe { &mut *entry })
    }

    #[inline(always)]
    fn flow(&mut self, key: &FlowKey) -> Option<(&mut FlowState, bool)> {
        flows::entry(&FLOWS, key)
    }

    #[inline(always)]
    fn flow_inserted(&mut self) {
        // SAFETY: a map value; one writer.
        unsafe { self.counters.as_mut() }.flow_inserts += 1;
    }

    #[inline(always)]
    fn mark_dirty(&mut self, slot: u32) {
        compiler_fence(Ordering::Release);
        mark(&DIRTY, slot);
        mark(&DIRTY_INDEX, slot / 64);
    }

    #[inline(always)]
    fn quantum_ps(&self) -> u32 {
        QUANTUM_PS.load()
    }

    #[inline(always)]
    fn link_control(&mut self) -> Option<&mut LinkControl> {
        let entry = LINK_CONTROL.get_ptr_mut(self.entry())?;
        // SAFETY: a map value; one writer.
        Some(unsafe { &mut *entry })
    }

    #[inline(always)]
    fn event(&mut self, news: News, packet: &Packet) {
        let now = self.now_ns(true);
        // SAFETY: a map value; one writer.
        let book = unsafe { &mut self.counters.as_mut().events };
        if !book.allow(now) {
            return;
        }
        let Some(mut record) = EVENTS.reserve::<Event>(0) else {
            book.lost += 1;
            return;
        };
        record.write(news.record(packet, self.queue, now));
        // Nobody is woken: the reader looks by itself.
        record.submit(BPF_RB_NO_WAKEUP);
        book.sent += 1;
    }

    #[inline(always)]
    fn tap(&mut self, headers: u32) {
        tap::record(&self.source, Some(headers));
    }

    #[inline(always)]
    fn redirect(&mut self, index: u32) -> bool {
        XSKS.redirect(index, u64::from(xdp_action::XDP_PASS)) == Ok(xdp_action::XDP_REDIRECT)
    }
}

/// Sets byte `number` of a map of lines of 64.
#[inline(always)]
fn mark(map: &Array<DirtyLine>, number: u32) {
    let Some(line) = map.get_ptr_mut(number / 64) else {
        return;
    };
    // SAFETY: a map value.
    let line = unsafe { &mut *line };
    if let Some(byte) = line.0.get_mut((number % 64) as usize) {
        // SAFETY: a reference. Volatile, so that the two marks are stored in this order.
        unsafe { ptr::from_mut(byte).write_volatile(1) };
    }
}
