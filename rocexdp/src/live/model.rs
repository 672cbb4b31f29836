//! What was read at one moment: a copy of the maps of every interface watched. No rates, no judgement, no text for tables.
//!
//! What the numbers are stands with the maps' layouts in `rocexdp_common::maps`.

use std::{fmt, sync::Arc, time::SystemTime};

use rocexdp_common::maps::{FlowKey, FlowState, LinkControl, QueueCounters, QueueEngine};

use crate::{maps::QpView, nic::NicCounters};

/// All interfaces watched, at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When it was begun, ns of CLOCK_MONOTONIC: the clock of the maps' times.
    pub time_ns: u64,
    /// The same moment by the wall clock.
    pub time: SystemTime,
    /// In the order asked for, one for each, whether it could be read or not.
    pub ifaces: Vec<IfaceSnapshot>,
}

/// Who loaded the program whose maps are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `rocexdp run`: local QPs, and flows that are not theirs.
    Endpoint,
    /// `rocexdp monitor`, `top` or `record`: flows only.
    Monitor,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Endpoint => "endpoint",
            Self::Monitor => "monitor",
        })
    }
}

/// Where the numbers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Whose program.
    pub role: Role,
    /// `XDP` or `TCX`.
    pub hook: &'static str,
    /// Mode of the hook as the kernel has it, such as `driver`, `generic`; `n/a` where there is none.
    pub mode: String,
    /// The kernel's id of the program.
    pub program_id: u32,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.role, self.hook)?;
        if self.mode != "n/a" {
            write!(f, " {}", self.mode)?;
        }
        write!(f, ", program {}", self.program_id)
    }
}

/// How full the table of flows is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTable {
    /// Most flows at a time.
    pub capacity: u32,
    /// Flows in it.
    pub live: u64,
    /// Flows entered since the program was loaded.
    pub inserts: u64,
    /// Flows that made room for others: inserts less the live ones (none is ever deleted). Their counters are lost.
    pub evicted: u64,
}

/// What a NIC counted, and when: ns of CLOCK_MONOTONIC.
#[derive(Clone, Debug)]
pub struct NicReadings {
    /// The reading before, for a rate where the interval is shorter than between two readings.
    pub earlier: Option<(u64, Arc<NicCounters>)>,
    /// The last reading.
    pub latest: (u64, Arc<NicCounters>),
}

/// One interface.
#[derive(Clone, Debug)]
pub struct IfaceSnapshot {
    /// Its name.
    pub iface: String,
    /// When its maps were read, ns of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Whose maps; `None`: none could be read.
    pub source: Option<Source>,
    /// Why it could not be read (vanished, no program): the lists below are then empty.
    pub error: Option<String>,
    /// Local QPs of an endpoint, by slot.
    pub qps: Vec<QpView>,
    /// RoCEv2 flows that are not local QPs', in no order.
    pub flows: Vec<(FlowKey, FlowState)>,
    /// Per receive queue: what XDP counted, and the engine where there is one. The last entry, without engine, is of frames
    /// of queues that came later than the program.
    pub queues: Vec<(QueueCounters, Option<QueueEngine>)>,
    /// What a monitor's TCX program counted of received frames, per CPU.
    pub tcx_received: Vec<QueueCounters>,
    /// The same of sent frames.
    pub tcx_sent: Vec<QueueCounters>,
    /// Pause frames and the like, per receive queue; empty where the program does not count them.
    pub link_control: Vec<LinkControl>,
    /// How full the table of flows is.
    pub flow_table: FlowTable,
    /// What the NIC itself counts, where the sampler reads it.
    pub nic: Option<NicReadings>,
    /// What can't be seen here, each with its reason, for people.
    pub blind_spots: Vec<String>,
}

impl IfaceSnapshot {
    /// An interface that can't be read, and why.
    #[must_use]
    pub fn failed(iface: String, time_ns: u64, error: String) -> Self {
        Self {
            iface,
            time_ns,
            source: None,
            error: Some(error),
            qps: Vec::new(),
            flows: Vec::new(),
            queues: Vec::new(),
            tcx_received: Vec::new(),
            tcx_sent: Vec::new(),
            link_control: Vec::new(),
            flow_table: FlowTable::default(),
            nic: None,
            blind_spots: Vec::new(),
        }
    }

    /// All receive queues together, and what TCX counted.
    #[must_use]
    pub fn total(&self) -> QueueCounters {
        let mut sum = QueueCounters::default();
        let queues = self.queues.iter().map(|(xdp, _)| xdp);
        for xdp in queues.chain(&self.tcx_received).chain(&self.tcx_sent) {
            sum.frames += xdp.frames;
            sum.rocev2 += xdp.rocev2;
            sum.redirected += xdp.redirected;
            sum.consumed += xdp.consumed;
            sum.dropped += xdp.dropped;
            sum.passed_rocev2 += xdp.passed_rocev2;
            sum.passed_other += xdp.passed_other;
            sum.flow_inserts += xdp.flow_inserts;
            sum.events.sent += xdp.events.sent;
            sum.events.suppressed += xdp.events.suppressed;
            sum.events.lost += xdp.events.lost;
            for (a, b) in sum.reasons.iter_mut().zip(&xdp.reasons) {
                *a += b;
            }
        }
        sum
    }
}
