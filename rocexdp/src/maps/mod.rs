//! The BPF maps in userspace: the owner's side ([`Maps`]) and the onlooker's ([`MapsView`]).
//!
//! What the maps hold, and who writes which, stands in `rocexdp_common::maps`. Counters are read
//! from memory with no system call ([`SharedArray`]).

mod flows;
mod mmap;
mod own;
mod program;
mod view;

use anyhow::{Context as _, Result, anyhow};
use aya::{
    Ebpf,
    maps::{HashMap, Map, MapData, XskMap},
};
use rocexdp_common::{
    ids::Gid,
    maps::{
        self, DirtyLine, LinkControl, QpConfig, QpCounters, QpEngine, QueueCounters, QueueEngine,
    },
    watch::tap::{TAP_CONTROL, TX_TAP, TX_TAP_SLOTS, TapControl, TxTap},
};
use std::os::fd::{AsFd as _, AsRawFd};

pub use flows::FlowReader;
pub use mmap::SharedArray;
pub use own::OwnPrograms;
pub use program::ProgramMaps;
pub use view::{AttachedAt, Attachment, MapsView, ProgramRole, QpView};

/// The maps of a program that this process loaded.
#[derive(Debug)]
pub struct Maps {
    /// Configuration per slot; written by us.
    pub qp_config: SharedArray<QpConfig>,
    /// XDP's counters per (slot, queue).
    pub qp_counters: SharedArray<QpCounters>,
    /// The engine's counters per slot; written by us.
    pub qp_engine: SharedArray<QpEngine>,
    /// XDP's counters per queue; one entry more, for frames of queues that came after us.
    pub queue_counters: SharedArray<QueueCounters>,
    /// The engine's counters per queue; written by us.
    pub queue_engine: SharedArray<QueueEngine>,
    /// Dirty marks per slot.
    pub dirty: SharedArray<DirtyLine>,
    /// Dirty marks of `dirty`'s entries.
    pub dirty_index: SharedArray<DirtyLine>,
    /// Pause frames as XDP saw them, per queue and one more.
    pub link_control: SharedArray<LinkControl>,
    /// What a recorder asks for.
    pub tap_control: SharedArray<TapControl>,
    /// What we sent, for a recorder; written by us.
    pub tx_tap: SharedArray<TxTap>,
    /// Receive queues.
    pub queues: u32,
    /// QP slots, a power of two.
    pub slots: u32,
}

/// The maps that only the control side writes.
pub struct ControlMaps {
    xsks: XskMap<MapData>,
    local_addrs: HashMap<MapData, Gid, u32>,
}

impl std::fmt::Debug for ControlMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlMaps").finish_non_exhaustive()
    }
}

impl ControlMaps {
    /// Takes the maps out of a loaded object.
    ///
    /// # Errors
    /// When the object lacks one of them.
    pub fn take(bpf: &mut Ebpf) -> Result<Self> {
        Ok(Self {
            xsks: XskMap::try_from(take(bpf, maps::XSKS)?).context("map XSKS")?,
            local_addrs: HashMap::try_from(take(bpf, maps::LOCAL_ADDRS)?)
                .context("map LOCAL_ADDRS")?,
        })
    }

    /// Steers packets of (owner, queue) to a socket: `index = owner * queues + queue`.
    ///
    /// # Errors
    /// The kernel's: EINVAL for a socket that is not bound, EBUSY, E2BIG for an index outside the map.
    pub fn set_socket(&mut self, index: u32, socket: impl AsRawFd) -> Result<()> {
        self.xsks
            .set(index, socket, 0)
            .with_context(|| format!("putting the AF_XDP socket into slot {index} of map XSKS"))
    }

    /// Declares one of our addresses, with `local_addr` flags.
    ///
    /// # Errors
    /// When the map is full.
    pub fn add_address(&mut self, gid: Gid, flags: u32) -> Result<()> {
        self.local_addrs
            .insert(gid, flags, 0)
            .context("adding an address to map LOCAL_ADDRS")
    }

    /// Withdraws one of our addresses; nothing happens when it was not there.
    pub fn remove_address(&mut self, gid: Gid) {
        let _ = self.local_addrs.remove(&gid);
    }
}

fn take(bpf: &mut Ebpf, name: &str) -> Result<Map> {
    bpf.take_map(name).ok_or_else(|| {
        anyhow!("the eBPF object has no map {name}: it does not belong to this build")
    })
}

fn data(map: Map, name: &str) -> Result<MapData> {
    match map {
        Map::Array(d) => Ok(d),
        _ => Err(anyhow!(
            "map {name} is not an array: the eBPF object does not belong to this build"
        )),
    }
}

/// Maps an array map of the object, checking that both sides mean the same layout.
fn share<T: bytemuck::Pod>(
    map: &MapData,
    name: &str,
    entries: u32,
    writable: bool,
) -> Result<SharedArray<T>> {
    let info = map.info().with_context(|| format!("map {name}"))?;
    check_layout::<T>(name, info.value_size(), info.max_entries(), entries)?;
    SharedArray::map(map.fd().as_fd(), entries, writable)
        .with_context(|| format!("mapping map {name}"))
}

/// Both sides must mean the same layout, or counters would be misread.
fn check_layout<T>(name: &str, value_size: u32, have: u32, want: u32) -> Result<()> {
    if value_size as usize != size_of::<T>() || have < want {
        return Err(anyhow!(
            "map {name} has {have} entries of {value_size} B, this rocexdp expects {want} of {} B: \
             program and tool are of different versions",
            size_of::<T>()
        ));
    }
    Ok(())
}

impl Maps {
    /// Maps the mmapable maps of a loaded object.
    ///
    /// # Errors
    /// When the object lacks one, or has another layout.
    pub fn take(bpf: &mut Ebpf, queues: u32, slots: u32) -> Result<Self> {
        fn one<T: bytemuck::Pod>(
            bpf: &mut Ebpf,
            name: &str,
            entries: u32,
        ) -> Result<SharedArray<T>> {
            let map = data(take(bpf, name)?, name)?;
            share(&map, name, entries, true)
        }
        Ok(Self {
            qp_config: one(bpf, maps::QP_CONFIG, slots)?,
            qp_counters: one(bpf, maps::QP_COUNTERS, slots * queues)?,
            qp_engine: one(bpf, maps::QP_ENGINE, slots)?,
            queue_counters: one(bpf, maps::QUEUE_COUNTERS, queues + 1)?,
            queue_engine: one(bpf, maps::QUEUE_ENGINE, queues)?,
            dirty: one(bpf, maps::DIRTY, slots.div_ceil(64))?,
            dirty_index: one(bpf, maps::DIRTY_INDEX, slots.div_ceil(4096))?,
            link_control: one(bpf, maps::LINK_CONTROL, queues + 1)?,
            tap_control: one(bpf, TAP_CONTROL, 1)?,
            tx_tap: one(bpf, TX_TAP, TX_TAP_SLOTS * queues)?,
            queues,
            slots,
        })
    }

    /// The sum over all queues of what XDP counted for `slot`; `None` outside the map.
    pub fn counters(&self, slot: u32) -> Option<QpCounters> {
        sum_queues(&self.qp_counters, slot, self.queues)
    }
}

fn sum_queues(counters: &SharedArray<QpCounters>, slot: u32, queues: u32) -> Option<QpCounters> {
    let mut sum = counters.load(slot * queues)?;
    for queue in 1..queues {
        add(&mut sum, &counters.load(slot * queues + queue)?);
    }
    Some(sum)
}

/// Adds what another queue counted; times and PSNs are those of the queue that saw the QP last.
fn add(sum: &mut QpCounters, other: &QpCounters) {
    for (a, b) in sum.kinds.iter_mut().zip(&other.kinds) {
        a.packets += b.packets;
        a.bytes += b.bytes;
    }
    for (a, b) in sum
        .ecn
        .iter_mut()
        .zip(&other.ecn)
        .chain(sum.naks.iter_mut().zip(&other.naks))
    {
        *a += b;
    }
    let later = other.last_seen_ns > sum.last_seen_ns;
    for (a, b) in [
        (&mut sum.requests, &other.requests),
        (&mut sum.responses, &other.responses),
    ] {
        a.out_of_sequence += b.out_of_sequence;
        a.gaps += b.gaps;
        a.missing += b.missing;
        a.duplicates += b.duplicates;
        if later {
            a.expected_psn = b.expected_psn;
            a.valid = b.valid;
        }
    }
    sum.cnp_bad_icrc += other.cnp_bad_icrc;
    sum.redirected += other.redirected;
    sum.no_socket += other.no_socket;
    sum.first_seen_ns = match (sum.first_seen_ns, other.first_seen_ns) {
        (0, t) | (t, 0) => t,
        (a, b) => a.min(b),
    };
    sum.last_ce_ns = sum.last_ce_ns.max(other.last_ce_ns);
    sum.last_cnp_ns = sum.last_cnp_ns.max(other.last_cnp_ns);
    if later {
        sum.last_seen_ns = other.last_seen_ns;
        sum.last_ack_psn = other.last_ack_psn;
        sum.last_ack_msn = other.last_ack_msn;
        sum.resync_seen = other.resync_seen;
        sum.in_gap = other.in_gap;
        sum.response_in_gap = other.response_in_gap;
        sum.response_open = other.response_open;
    }
}
