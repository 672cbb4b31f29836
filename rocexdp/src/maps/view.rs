//! Looking at another process's maps: interface, its rocexdp program (XDP or TCX), the program's maps.
//!
//! Works for any process that loaded our program, from any mount namespace, since nothing is
//! pinned: the kernel finds maps by id. Everything is mapped read-only.

use std::fmt;

use anyhow::{Context as _, Result, bail};
use aya::programs::{SchedClassifier, TcAttachType};
use rocexdp_common::{
    ids::Gid,
    maps::{self, FlowKey, FlowState, QpConfig, QpCounters, QpEngine, QueueCounters, QueueEngine},
    opcode::Transport,
    watch,
};

use super::{FlowReader, ProgramMaps, SharedArray, sum_queues};
use crate::net::{Link, link::XdpMode};

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

/// What a program of rocexdp is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramRole {
    /// An endpoint's: local QPs, and flows that are not theirs.
    Endpoint,
    /// A monitor's: flows only.
    Monitor,
}

impl ProgramRole {
    /// By the program's name; `None`: not rocexdp's.
    pub fn of(name: &str) -> Option<Self> {
        if name == maps::PROGRAM_FRAGS || name == maps::PROGRAM_PLAIN {
            Some(Self::Endpoint)
        } else if watch::PROGRAMS.contains(&name) {
            Some(Self::Monitor)
        } else {
            None
        }
    }
}

/// Where a program of rocexdp is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedAt {
    /// XDP, in this mode.
    Xdp(XdpMode),
    /// TCX ingress.
    TcxIngress,
    /// TCX egress.
    TcxEgress,
}

impl fmt::Display for AttachedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp(mode) => write!(f, "XDP, {mode} mode"),
            Self::TcxIngress => f.write_str("TCX ingress"),
            Self::TcxEgress => f.write_str("TCX egress"),
        }
    }
}

/// A program of rocexdp on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The kernel's id of it.
    pub program_id: u32,
    /// What it is for.
    pub role: ProgramRole,
    /// Where it is.
    pub at: AttachedAt,
}

impl Attachment {
    /// The programs of rocexdp on `ifname` (of a VLAN device, on its parent) in this network namespace, one for each set of
    /// maps: of a monitor only the one that counts received packets. An endpoint's comes first.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn all(ifname: &str) -> Result<Vec<Self>> {
        let link = Link::by_name(ifname)?.xdp_device()?;
        let mut found: Vec<Self> = link
            .xdp
            .iter()
            .filter_map(|xdp| {
                Some(Self {
                    program_id: xdp.id,
                    role: ProgramRole::of(xdp.name.as_deref()?)?,
                    at: AttachedAt::Xdp(xdp.mode),
                })
            })
            .collect();
        // A kernel without TCX has none there.
        if let Ok((_, programs)) = SchedClassifier::query_tcx(&link.name, TcAttachType::Ingress) {
            found.extend(programs.iter().filter_map(|program| {
                Some(Self {
                    program_id: program.id(),
                    role: ProgramRole::of(program.name_as_str()?)?,
                    at: AttachedAt::TcxIngress,
                })
            }));
        }
        found.sort_by_key(|a| a.role == ProgramRole::Monitor);
        Ok(found)
    }
}

/// The maps of the rocexdp program on an interface, read-only.
#[derive(Debug)]
pub struct MapsView {
    endpoint: Option<Endpoint>,
    queue_counters: SharedArray<QueueCounters>,
    tcx_counters: Option<SharedArray<QueueCounters>>,
    program_id: u32,
}

/// What only an endpoint's program has.
#[derive(Debug)]
struct Endpoint {
    qp_config: SharedArray<QpConfig>,
    qp_counters: SharedArray<QpCounters>,
    qp_engine: SharedArray<QpEngine>,
    queue_engine: SharedArray<QueueEngine>,
}

impl QpView {
    /// The peer's address and QP number; `None`: a UD QP, which has none.
    #[must_use]
    pub fn peer(&self) -> Option<(Gid, u32)> {
        let QpConfig {
            transport,
            peer_gid,
            peer_qpn,
            ..
        } = self.config;
        (transport != Transport::Ud as u8).then_some((peer_gid, peer_qpn))
    }
}

impl MapsView {
    /// The maps of the rocexdp program on `ifname` in this network namespace: an endpoint's if there is one, else a
    /// monitor's.
    ///
    /// # Errors
    /// When there is no such interface, or no program of rocexdp's on it; or when CAP_BPF / CAP_SYS_ADMIN is missing.
    pub fn of_interface(ifname: &str) -> Result<Self> {
        if let Some(found) = Attachment::all(ifname)?.first() {
            return Self::of_program(found.program_id)
                .with_context(|| format!("reading the maps of the program on {ifname}"));
        }
        let link = Link::by_name(ifname)?.xdp_device()?;
        match link.xdp.first() {
            None => bail!(
                "no XDP program is attached to {ifname}: start `rocexdp run --iface {ifname}` first"
            ),
            // Says which it is, or that its name can't be read.
            Some(other) => Self::of_program(other.id)
                .with_context(|| format!("reading the maps of the XDP program on {ifname}")),
        }
    }

    /// The maps of the loaded program `id`.
    ///
    /// # Errors
    /// As [`Self::of_interface`].
    pub fn of_program(id: u32) -> Result<Self> {
        let program = ProgramMaps::of(id)?;
        let Some(role) = ProgramRole::of(program.name()) else {
            bail!(
                "the XDP program with id {id} is \"{}\", not rocexdp's",
                program.name()
            );
        };
        let (endpoint, tcx_counters) = match role {
            ProgramRole::Endpoint => {
                let endpoint = Endpoint {
                    qp_config: program.share(maps::QP_CONFIG, false)?,
                    qp_counters: program.share(maps::QP_COUNTERS, false)?,
                    qp_engine: program.share(maps::QP_ENGINE, false)?,
                    queue_engine: program.share(maps::QUEUE_ENGINE, false)?,
                };
                (Some(endpoint), None)
            }
            ProgramRole::Monitor => (None, Some(program.share(watch::TCX_COUNTERS, false)?)),
        };
        Ok(Self {
            endpoint,
            queue_counters: program.share(maps::QUEUE_COUNTERS, false)?,
            tcx_counters,
            program_id: id,
        })
    }

    /// Id of the program whose maps these are.
    pub fn program_id(&self) -> u32 {
        self.program_id
    }

    /// What that program is for.
    pub fn role(&self) -> ProgramRole {
        if self.endpoint.is_some() {
            ProgramRole::Endpoint
        } else {
            ProgramRole::Monitor
        }
    }

    /// Receive queues that XDP counts apart.
    pub fn queues(&self) -> u32 {
        self.queue_counters.entries().saturating_sub(1)
    }

    /// QP slots; a monitor has none.
    pub fn slots(&self) -> u32 {
        self.endpoint.as_ref().map_or(0, |e| e.qp_config.entries())
    }

    /// All QPs, in order of their slots.
    pub fn qps(&self) -> Vec<QpView> {
        let Some(endpoint) = &self.endpoint else {
            return Vec::new();
        };
        let queues = endpoint.queue_engine.entries();
        (0..endpoint.qp_config.entries())
            .filter_map(|slot| endpoint.qp(slot, queues))
            .collect()
    }

    /// Frames that came in on queues that the interface got after the program was loaded; passed, and served by no socket.
    pub fn frames_of_new_queues(&self) -> u64 {
        self.queue_counters
            .load(self.queues())
            .map_or(0, |c| c.frames)
    }

    /// XDP's and the engine's counters, per receive queue. A monitor has no engine: zeros.
    pub fn queue_counters(&self) -> Vec<(QueueCounters, QueueEngine)> {
        (0..self.queues())
            .filter_map(|q| {
                let engine = match &self.endpoint {
                    Some(endpoint) => endpoint.queue_engine.load(q)?,
                    None => QueueEngine::default(),
                };
                Some((self.queue_counters.load(q)?, engine))
            })
            .collect()
    }

    /// What a monitor's TCX programs counted, per CPU: of received frames, of sent ones. Both are empty for an endpoint.
    pub fn tcx_counters(&self) -> (Vec<QueueCounters>, Vec<QueueCounters>) {
        let Some(array) = &self.tcx_counters else {
            return (Vec::new(), Vec::new());
        };
        let cpus = array.entries() / 2;
        let side = |from: u32| (from..from + cpus).filter_map(|i| array.load(i)).collect();
        (side(0), side(cpus))
    }

    /// Every set of counters there is: of the queues, of queues that came later, of TCX on each CPU. For sums over all,
    /// such as of entries made in `FLOWS`.
    pub fn all_counters(&self) -> Vec<QueueCounters> {
        let queues = (0..self.queue_counters.entries()).filter_map(|q| self.queue_counters.load(q));
        let (received, sent) = self.tcx_counters();
        queues.chain(received).chain(sent).collect()
    }

    /// The RoCEv2 flows that are not local QPs', as many as the LRU hash still holds.
    ///
    /// # Errors
    /// When the map can't be read.
    pub fn flows(&self) -> Result<Vec<(FlowKey, FlowState)>> {
        FlowReader::of_program(self.program_id)?.flows()
    }
}

impl Endpoint {
    fn qp(&self, slot: u32, queues: u32) -> Option<QpView> {
        let config = self.qp_config.load(slot).filter(|c| c.generation != 0)?;
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
}
