//! Looking at another process's maps: interface, its XDP program, the program's maps.
//!
//! Works for any process that loaded our program, from any mount namespace, since nothing is
//! pinned: the kernel finds maps by id. Everything is mapped read-only.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, anyhow, bail};
use aya::{
    maps::{HashMap, Map, MapData, MapInfo},
    programs::loaded_programs,
};
use rocexdp_common::maps::{
    self, FlowKey, FlowState, QpConfig, QpCounters, QpEngine, QueueCounters, QueueEngine,
};

use super::{SharedArray, check_layout, sum_queues};
use crate::net::Link;

/// One QP as the maps show it.
#[derive(Clone, Debug)]
pub struct QpView {
    /// Slot in the maps.
    pub slot: u32,
    /// Its configuration.
    pub config: QpConfig,
    /// What the engine did.
    pub engine: QpEngine,
    /// What XDP counted, summed over the receive queues.
    pub counters: QpCounters,
    /// The same per receive queue.
    pub per_queue: Vec<QpCounters>,
}

/// The maps of the rocexdp program on an interface, read-only.
#[derive(Debug)]
pub struct MapsView {
    qp_config: SharedArray<QpConfig>,
    qp_counters: SharedArray<QpCounters>,
    qp_engine: SharedArray<QpEngine>,
    queue_counters: SharedArray<QueueCounters>,
    queue_engine: SharedArray<QueueEngine>,
    flows: MapInfo,
    program_id: u32,
}

fn open<T: bytemuck::Pod>(found: &[(String, MapInfo)], name: &str) -> Result<SharedArray<T>> {
    let info = find(found, name)?;
    check_layout::<T>(name, info.value_size(), info.max_entries(), 1)?;
    let fd = info.fd().with_context(|| format!("opening map {name}"))?;
    SharedArray::map(fd.as_fd(), info.max_entries(), false)
        .with_context(|| format!("mapping map {name}"))
}

fn find<'a>(found: &'a [(String, MapInfo)], name: &str) -> Result<&'a MapInfo> {
    found
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, info)| info)
        .ok_or_else(|| {
            anyhow!("the program has no map {name}: it is of another version of rocexdp")
        })
}

impl MapsView {
    /// The maps of the rocexdp program attached to `ifname` in this network namespace.
    ///
    /// # Errors
    /// When there is no such interface, no XDP program on it, or one that is not rocexdp's; or when
    /// CAP_BPF / CAP_SYS_ADMIN is missing.
    pub fn of_interface(ifname: &str) -> Result<Self> {
        let link = Link::by_name(ifname)?.xdp_device()?;
        let Some(id) = link.xdp.first().map(|x| x.id) else {
            bail!(
                "no XDP program is attached to {ifname}: start `rocexdp run --iface {ifname}` first"
            );
        };
        Self::of_program(id)
            .with_context(|| format!("reading the maps of the XDP program on {ifname}"))
    }

    /// The maps of the loaded program `id`.
    ///
    /// # Errors
    /// As [`Self::of_interface`].
    pub fn of_program(id: u32) -> Result<Self> {
        let program = loaded_programs()
            .find_map(|p| match p {
                Ok(p) if p.id() == id => Some(Ok(p)),
                Ok(_) => None,
                Err(e) => Some(Err(e)),
            })
            .ok_or_else(|| anyhow!("the XDP program with id {id} has gone"))?
            .context("listing BPF programs (needs root, or CAP_BPF and CAP_SYS_ADMIN)")?;
        let name = program.name_as_str().unwrap_or_default().to_owned();
        if name != maps::PROGRAM_FRAGS && name != maps::PROGRAM_PLAIN {
            bail!("the XDP program with id {id} is \"{name}\", not rocexdp's");
        }
        let mut found = Vec::new();
        for map_id in program.map_ids()?.unwrap_or_default() {
            let info = MapInfo::from_id(map_id)?;
            found.push((info.name_as_str().unwrap_or_default().to_owned(), info));
        }
        let flows = find(&found, maps::FLOWS)?.id();
        Ok(Self {
            qp_config: open(&found, maps::QP_CONFIG)?,
            qp_counters: open(&found, maps::QP_COUNTERS)?,
            qp_engine: open(&found, maps::QP_ENGINE)?,
            queue_counters: open(&found, maps::QUEUE_COUNTERS)?,
            queue_engine: open(&found, maps::QUEUE_ENGINE)?,
            flows: MapInfo::from_id(flows)?,
            program_id: id,
        })
    }

    /// Id of the program whose maps these are.
    pub fn program_id(&self) -> u32 {
        self.program_id
    }

    /// Receive queues with a socket.
    pub fn queues(&self) -> u32 {
        self.queue_engine.entries()
    }

    /// QP slots.
    pub fn slots(&self) -> u32 {
        self.qp_config.entries()
    }

    /// All QPs, in order of their slots.
    pub fn qps(&self) -> Vec<QpView> {
        (0..self.slots()).filter_map(|slot| self.qp(slot)).collect()
    }

    fn qp(&self, slot: u32) -> Option<QpView> {
        let config = self.qp_config.load(slot).filter(|c| c.generation != 0)?;
        let queues = self.queues();
        Some(QpView {
            slot,
            config,
            engine: self.qp_engine.load(slot)?,
            counters: sum_queues(&self.qp_counters, slot, queues)?,
            per_queue: (0..queues)
                .filter_map(|q| self.qp_counters.load(slot * queues + q))
                .collect(),
        })
    }

    /// Frames that came in on queues that the interface got after the program was loaded; passed, and served by no socket.
    pub fn frames_of_new_queues(&self) -> u64 {
        self.queue_counters
            .load(self.queues())
            .map_or(0, |c| c.frames)
    }

    /// XDP's and the engine's counters, per receive queue.
    pub fn queue_counters(&self) -> Vec<(QueueCounters, QueueEngine)> {
        (0..self.queues())
            .filter_map(|q| Some((self.queue_counters.load(q)?, self.queue_engine.load(q)?)))
            .collect()
    }

    /// The RoCEv2 flows that are not local QPs', as many as the LRU hash still holds.
    ///
    /// # Errors
    /// When the map can't be read.
    pub fn flows(&self) -> Result<Vec<(FlowKey, FlowState)>> {
        const KEY: usize = size_of::<FlowKey>();
        const VALUE: usize = size_of::<FlowState>();
        let data = MapData::from_id(self.flows.id()).context("opening map FLOWS")?;
        let map: HashMap<MapData, [u8; KEY], [u8; VALUE]> =
            HashMap::try_from(Map::LruHashMap(data)).context("map FLOWS")?;
        map.iter()
            .map(|entry| {
                let (key, value) = entry.context("reading map FLOWS")?;
                Ok((
                    bytemuck::pod_read_unaligned(&key),
                    bytemuck::pod_read_unaligned(&value),
                ))
            })
            .collect()
    }
}
