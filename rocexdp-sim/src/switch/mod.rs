//! A shared-buffer switch, sans-IO: admission, priority queues, ECN marking, PFC, scheduling. Routes are its caller's.
//!
//! The simulator drives it with small records in simulated time, the lab with frames from AF_XDP sockets in real time:
//! [`Queued`] is all it knows of a packet. It never drops silently: every refusal has a reason and a counter.
//!
//! Must not: read a clock, know addresses or routes, or look into packets.

use core::time::Duration;

use rocexdp_proto::time::Rate;

/// 802.1p priorities.
pub const PRIORITIES: usize = 8;

/// What a switch must know of a packet.
pub trait Queued {
    /// Bytes that it takes of buffers and links, as [`SwitchConfig`] counts them.
    fn wire_len(&self) -> u32;
    /// Its priority, 0..=7.
    fn priority(&self) -> u8;
    /// Whether Congestion Experienced may be set (ECT(0), ECT(1) or CE).
    fn ecn_capable(&self) -> bool;
    /// Sets Congestion Experienced.
    fn mark(&mut self);
}

/// When the decision to mark is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MarkOn {
    /// As the packet leaves its queue, by what stays behind (the reference simulators, and most hardware).
    #[default]
    Dequeue,
    /// As it enters, by what stands before it.
    Enqueue,
}

/// RED/ECN of a queue: never at up to `kmin` bytes, `pmax * (q - kmin) / (kmax - kmin)` between, always above `kmax`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EcnConfig {
    /// Bytes.
    pub kmin: u64,
    /// Bytes, at least `kmin`.
    pub kmax: u64,
    /// Share marked just below `kmax`, 0 to 1.
    pub pmax: f64,
}

/// Where an ingress queue's PFC threshold lies.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PfcThreshold {
    /// Bytes.
    Static(u64),
    /// This share of the shared buffer that is free: alpha (dynamic thresholds after Choudhury and Hahne).
    Dynamic(f64),
}

/// PFC.
#[derive(Clone, PartialEq, Debug)]
pub struct PfcConfig {
    /// Priorities that are lossless.
    pub priorities: [bool; PRIORITIES],
    /// An ingress queue above this is paused.
    pub threshold: PfcThreshold,
    /// It is resumed at this many bytes below it.
    pub resume_offset: u64,
    /// Quanta (512 bit times) in a pause frame; `None`: a pause holds until it is resumed (the reference simulators).
    pub quanta: Option<u16>,
}

/// How a port chooses between its queues.
#[derive(Clone, PartialEq, Debug)]
pub enum Scheduler {
    /// The highest priority that has a packet.
    Strict,
    /// `strict` priorities first, the highest first, the others by deficit weighted round robin.
    Weighted {
        /// Weight of each priority; what it means only where `strict` is false. 0 is refused where it is not strict.
        weights: [u32; PRIORITIES],
        /// Priorities served before all others.
        strict: [bool; PRIORITIES],
    },
    /// Round robin by packets, strict ones first (the reference simulators).
    RoundRobin {
        /// Priorities served before all others.
        strict: [bool; PRIORITIES],
    },
}

/// A port.
#[derive(Clone, PartialEq, Debug)]
pub struct PortConfig {
    /// Rate of its link.
    pub rate: Rate,
    /// Delay of its link, for headroom.
    pub delay: Duration,
    /// Marking of each priority's egress queue.
    pub ecn: [Option<EcnConfig>; PRIORITIES],
    /// Choice between its queues.
    pub scheduler: Scheduler,
    /// Headroom of each lossless ingress queue, bytes.
    pub headroom: u64,
    /// Alpha of this port's ingress queues, where it differs from [`PfcConfig::threshold`]'s.
    pub alpha: Option<f64>,
}

/// A switch.
#[derive(Clone, PartialEq, Debug)]
pub struct SwitchConfig {
    /// Its ports.
    pub ports: Vec<PortConfig>,
    /// Buffer in all, bytes.
    pub buffer: u64,
    /// Bytes of it that each ingress queue has to itself.
    pub reserved: u64,
    /// When marks are decided.
    pub mark_on: MarkOn,
    /// Flow control; `None`: full means drop.
    pub pfc: Option<PfcConfig>,
    /// Lossy priorities: bytes an egress queue may hold; `None`: by the same alpha as ingress.
    pub tail_drop: Option<u64>,
}
