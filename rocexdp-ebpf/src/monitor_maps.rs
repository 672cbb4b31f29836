//! The monitor's maps, and the [`WatchEnv`] over them.
//!
//! One writer an entry: XDP on one receive queue, TCX on one CPU (both run with softirqs off, so that nothing interrupts
//! them there). Entries of `FLOWS` have several writers when a flow's packets come on several queues; counts may then be
//! lost. Sizes given here are what stands in the object; the loader sets the real ones.

use core::{mem::MaybeUninit, ptr::NonNull};

use aya_ebpf::{
    Global,
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
    macros::map,
    maps::{Array, LruHashMap, PerCpuArray, RingBuf},
};
use rocexdp_common::{
    dissect::Way,
    maps::{
        DEFAULT_FLOWS, EGRESS, EVENTS_BYTES, Event, FlowKey, FlowState, LinkControl, Pending,
        PendingKey, QueueCounters,
    },
    parse::Packet,
    verdict::Outcome,
    watch::{DEFAULT_PENDING, News, WatchEnv},
};

use crate::tap::{self, Source};

const MMAPABLE: u32 = aya_ebpf::bindings::BPF_F_MMAPABLE;

#[map]
static FLOWS: LruHashMap<FlowKey, FlowState> = LruHashMap::with_max_entries(DEFAULT_FLOWS, 0);
#[map]
static PENDING: LruHashMap<PendingKey, Pending> = LruHashMap::with_max_entries(DEFAULT_PENDING, 0);
#[map]
static QUEUE_COUNTERS: Array<QueueCounters> = Array::with_max_entries(1, MMAPABLE);
#[map]
static TCX_COUNTERS: Array<QueueCounters> = Array::with_max_entries(1, MMAPABLE);
#[map]
static LINK_CONTROL: Array<LinkControl> = Array::with_max_entries(1, MMAPABLE);
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(EVENTS_BYTES, 0);

/// What the stack has no room for. Of the CPU's own, and nothing interrupts a program there (see above).
#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// What one frame's run writes down.
#[repr(C, align(8))]
struct Scratch {
    packet: MaybeUninit<Packet>,
    way: MaybeUninit<Way>,
}

/// A packet and a way, both at their start.
#[inline(always)]
pub fn scratch() -> Option<(&'static mut Packet, &'static mut Way)> {
    let scratch = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: a map value of this CPU, used by this run alone.
    let scratch = unsafe { &mut *scratch };
    Some((
        scratch.packet.write(Packet::EMPTY),
        scratch.way.write(Way::NEW),
    ))
}

/// Receive queues that the maps have room for.
#[unsafe(no_mangle)]
static N_QUEUES: Global<u32> = Global::new(1);
/// CPUs that they have room for.
#[unsafe(no_mangle)]
static N_CPUS: Global<u32> = Global::new(1);
/// Picoseconds of a pause quantum.
#[unsafe(no_mangle)]
static QUANTUM_PS: Global<u32> = Global::new(0);

/// Which hook the program is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// XDP on a receive queue.
    Xdp(u32),
    /// TCX ingress.
    Ingress,
    /// TCX egress.
    Egress,
}

/// The maps as one frame uses them.
pub struct Maps<S> {
    source: S,
    hook: Hook,
    /// Entry of `LINK_CONTROL`.
    link: u32,
    counters: NonNull<QueueCounters>,
}

impl<S: Source> Maps<S> {
    /// `None`: there is no entry to count in.
    #[inline(always)]
    pub fn of(hook: Hook, source: S) -> Option<Self> {
        let (queues, cpus) = (N_QUEUES.load(), N_CPUS.load());
        let (link, counters) = if let Hook::Xdp(queue) = hook {
            let entry = if queue < queues { queue } else { queues };
            (entry, QUEUE_COUNTERS.get_ptr_mut(entry)?)
        } else {
            // SAFETY: a helper call without arguments.
            let cpu = unsafe { bpf_get_smp_processor_id() };
            let side = if hook == Hook::Egress { cpus } else { 0 };
            (queues + 1 + cpu, TCX_COUNTERS.get_ptr_mut(side + cpu)?)
        };
        Some(Self {
            source,
            hook,
            link,
            counters: NonNull::new(counters)?,
        })
    }

    /// Books the frame.
    #[inline(always)]
    pub fn book(&mut self, outcome: Outcome) {
        self.counters().book(outcome);
    }

    #[inline(always)]
    fn counters(&mut self) -> &mut QueueCounters {
        // SAFETY: a map value; one writer.
        unsafe { self.counters.as_mut() }
    }
}

impl<S: Source> WatchEnv for Maps<S> {
    #[inline(always)]
    fn egress(&self) -> bool {
        self.hook == Hook::Egress
    }

    #[inline(always)]
    fn now_ns(&self, exact: bool) -> u64 {
        if exact {
            // SAFETY: a helper call without arguments.
            unsafe { bpf_ktime_get_ns() }
        } else {
            // SAFETY: a helper call without arguments.
            unsafe { bpf_ktime_get_coarse_ns() }
        }
    }

    #[inline(always)]
    fn quantum_ps(&self) -> u32 {
        QUANTUM_PS.load()
    }

    #[inline(always)]
    fn with_flow(&mut self, key: &FlowKey, work: impl FnOnce(&mut FlowState)) -> Option<bool> {
        let (entry, inserted) = match FLOWS.get_ptr_mut(key) {
            Some(entry) => (entry, false),
            None => {
                static ZERO: FlowState = FlowState::ZERO;
                // By reference: a copy would not fit the 512 B of a BPF program's stack.
                #[expect(
                    clippy::needless_borrows_for_generic_args,
                    reason = "a copy overflows the stack"
                )]
                FLOWS.insert(key, &ZERO, 0).ok()?;
                (FLOWS.get_ptr_mut(key)?, true)
            }
        };
        // SAFETY: a map value; an LRU map does not free it, at worst it becomes another flow's.
        work(unsafe { &mut *entry });
        Some(inserted)
    }

    #[inline(always)]
    fn flow_inserted(&mut self) {
        self.counters().flow_inserts += 1;
    }

    #[inline(always)]
    fn with_link(&mut self, work: impl FnOnce(&mut LinkControl)) {
        if let Some(entry) = LINK_CONTROL.get_ptr_mut(self.link) {
            // SAFETY: a map value; one writer.
            work(unsafe { &mut *entry });
        }
    }

    #[inline(always)]
    fn pending(&mut self, key: &PendingKey) -> Option<Pending> {
        // SAFETY: a map value that is copied at once; one that is replaced meanwhile gives a time that is a moment old.
        unsafe { PENDING.get(key) }.copied()
    }

    #[inline(always)]
    fn set_pending(&mut self, key: &PendingKey, value: &Pending) {
        // When there is no room, no time is taken.
        let _ = PENDING.insert(key, value, 0);
    }

    #[inline(always)]
    fn clear_pending(&mut self, key: &PendingKey) {
        // Another CPU may have taken it.
        let _ = PENDING.remove(key);
    }

    #[inline(always)]
    fn event(&mut self, news: News, packet: Option<&Packet>) {
        let now = self.now_ns(true);
        if !self.counters().events.allow(now) {
            return;
        }
        let Some(mut record) = EVENTS.reserve::<Event>(0) else {
            self.counters().events.lost += 1;
            return;
        };
        let queue = match self.hook {
            Hook::Xdp(queue) => queue,
            Hook::Ingress => 0,
            Hook::Egress => EGRESS,
        };
        record.write(Event {
            time_ns: now,
            kind: news.kind as u32,
            queue,
            src: packet.map_or([0; 16], |p| p.flow.src),
            dst: packet.map_or([0; 16], |p| p.flow.dst),
            dest_qpn: packet.map_or(0, |p| p.flow.dest_qpn),
            psn: packet.map_or(0, |p| p.bth.psn.get()),
            detail: news.detail,
            opcode: packet.map_or(0, |p| u32::from(p.bth.opcode.0)),
        });
        record.submit(0);
        self.counters().events.sent += 1;
    }

    #[inline(always)]
    fn tap(&mut self, headers: Option<u32>) {
        tap::record(&self.source, headers);
    }
}
