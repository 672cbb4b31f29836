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
    bytes::Bytes,
    dissect::{Found, Pfc, Way},
    maps::{
        DEFAULT_FLOWS, EGRESS, EVENTS_BYTES, Event, FlowKey, FlowState, LinkControl, Pending,
        PendingKey, QueueCounters, Reason,
    },
    news::News,
    parse::Packet,
    verdict::Outcome,
    watch::{self, DEFAULT_PENDING, Notes, WatchEnv},
};

use crate::{
    flows,
    skb::opaque,
    tap::{self, Source},
};

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
static SCRATCH: PerCpuArray<MaybeUninit<Scratch>> = PerCpuArray::with_max_entries(1, 0);

/// What one frame's run writes down.
pub struct Scratch {
    packet: Packet,
    way: Way,
    found: u32,
    reason: Reason,
    pfc: Pfc,
    notes: Notes,
}

// What was found, as [`Scratch::found`]; what goes with it has fields of its own. The enum as a whole can't stand in
// memory: where a variant leaves bytes of it unset, the compiler stores registers that were never written, which the
// verifier refuses.
const IN_TUNNEL: u32 = 0;
const ROCE_V2: u32 = 1;
const ROCE_V1: u32 = 2;
const PFC: u32 = 3;
const GLOBAL_PAUSE: u32 = 4;
const LLDP: u32 = 5;
const OTHER: u32 = 6;
const STOPPED: u32 = 7;

impl Scratch {
    /// The present CPU's, at its start.
    #[inline(always)]
    pub fn of_this_cpu() -> Option<&'static mut Self> {
        let scratch: *mut Self = SCRATCH.get_ptr_mut(0)?.cast();
        // Field by field, and all that are read: what the last run left is of no type until then, and the whole on the
        // stack would take a third of it.
        // SAFETY: a field of a map value.
        let packet = unsafe { &raw mut (*scratch).packet };
        // SAFETY: a field of a map value.
        let way = unsafe { &raw mut (*scratch).way };
        // SAFETY: a field of a map value.
        let found = unsafe { &raw mut (*scratch).found };
        // SAFETY: a field of a map value.
        let reason = unsafe { &raw mut (*scratch).reason };
        // SAFETY: a map value of this CPU, used by this run alone.
        unsafe { packet.write(Packet::EMPTY) };
        // SAFETY: as above.
        unsafe { way.write(Way::NEW) };
        // SAFETY: as above.
        unsafe { found.write(IN_TUNNEL) };
        // SAFETY: as above.
        unsafe { reason.write(Reason::EthTruncated) };
        // Of numbers only, for which whatever was left is a value.
        // SAFETY: as above.
        Some(unsafe { &mut *scratch })
    }

    /// Finds the packet in a frame, or the tunnel that it is in.
    #[inline(always)]
    pub fn find<B: Bytes>(&mut self, frame: &B) {
        self.found = match watch::find(frame, &mut self.packet, &mut self.way) {
            None => IN_TUNNEL,
            Some(Found::RoceV2) => ROCE_V2,
            Some(Found::RoceV1) => ROCE_V1,
            Some(Found::Pfc(pfc)) => {
                self.pfc = pfc;
                PFC
            }
            Some(Found::GlobalPause { quanta }) => {
                let [first, ..] = &mut self.pfc.quanta;
                *first = quanta;
                GLOBAL_PAUSE
            }
            Some(Found::Lldp) => LLDP,
            Some(Found::Other) => OTHER,
            Some(Found::Stopped(reason)) => {
                self.reason = reason;
                STOPPED
            }
        };
    }

    /// Whether that is to be called again.
    #[inline(always)]
    pub fn is_in_tunnel(&self) -> bool {
        self.found == IN_TUNNEL
    }

    /// Counts what was found.
    #[inline(always)]
    pub fn count<B: Bytes, E: WatchEnv>(&mut self, frame: &B, env: &mut E) -> Outcome {
        let [quanta, ..] = self.pfc.quanta;
        let found = match self.found {
            ROCE_V2 => Found::RoceV2,
            ROCE_V1 => Found::RoceV1,
            PFC => Found::Pfc(self.pfc),
            GLOBAL_PAUSE => Found::GlobalPause { quanta },
            LLDP => Found::Lldp,
            STOPPED => Found::Stopped(self.reason),
            // Two calls always find something.
            _ => Found::Other,
        };
        watch::count(frame, found, &self.packet, &mut self.notes, env)
    }
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

    /// Books the frame, which passes whatever it is.
    #[inline(always)]
    pub fn book(&mut self, outcome: Outcome) {
        let reason = outcome.reason();
        let counters = self.counters();
        counters.book(if let Outcome::PassedRoce(_) = outcome {
            Outcome::PassedRoce(None)
        } else {
            Outcome::PassedOther(None)
        });
        // Apart, for the verifier: bounds check and access must use one register.
        if let Some(reason) = reason
            && let Some(count) = counters.reasons.get_mut(opaque(reason as usize))
        {
            *count += 1;
        }
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
    fn flow(&mut self, key: &FlowKey) -> Option<(&mut FlowState, bool)> {
        flows::entry(&FLOWS, key)
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
    fn event(&mut self, news: News, packet: &Packet) {
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
        record.write(news.record(packet, queue, now));
        record.submit(0);
        self.counters().events.sent += 1;
    }

    #[inline(always)]
    fn tap(&mut self, headers: Option<u32>) {
        tap::record(&self.source, headers);
    }
}
