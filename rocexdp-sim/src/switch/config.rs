//! How a switch is set up, and what is refused.
//!
//! Must not: know how the rules are carried out; see the other files of [`super`].

use core::fmt;
use core::time::Duration;

use rocexdp_proto::time::Rate;

use super::PRIORITIES;
use crate::picos::Picos;
use crate::topology::PortId;

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
    /// Bytes of the shared buffer.
    Static(u64),
    /// This share of the shared buffer that is free: alpha (dynamic thresholds after Choudhury and Hahne). The shared buffer
    /// is what [`SwitchConfig::reserved`] and [`PortConfig::headroom`] leave. The reference simulators shift right by 3: 1/8.
    Dynamic(f64),
}

/// PFC.
#[derive(Clone, PartialEq, Debug)]
pub struct PfcConfig {
    /// Priorities that are lossless.
    pub priorities: [bool; PRIORITIES],
    /// An ingress queue is paused once it takes this much of the shared buffer (what it has beyond its reserved bytes), or any
    /// headroom.
    pub threshold: PfcThreshold,
    /// It is resumed at this many bytes below it, or when it takes nothing of the shared buffer; never before its headroom is
    /// empty.
    pub resume_offset: u64,
    /// Quanta (512 bit times) in a pause frame, which is sent again when half of them are over; `None`: a pause holds until it is
    /// resumed (the reference simulators).
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
    /// Alpha of this port, where it differs from [`PfcConfig::threshold`]'s: for its lossless ingress queues, and its lossy egress
    /// queues where [`SwitchConfig::tail_drop`] is `None`.
    pub alpha: Option<f64>,
}

/// A switch.
#[derive(Clone, PartialEq, Debug)]
pub struct SwitchConfig {
    /// Its ports.
    pub ports: Vec<PortConfig>,
    /// Buffer in all, bytes.
    pub buffer: u64,
    /// Bytes of it that each lossless ingress queue has to itself.
    pub reserved: u64,
    /// When marks are decided.
    pub mark_on: MarkOn,
    /// Flow control; `None`: full means drop.
    pub pfc: Option<PfcConfig>,
    /// Lossy priorities: bytes an egress queue may hold; `None`: the port's alpha of what is free of the shared buffer (without
    /// one, PFC's; without that, 1).
    pub tail_drop: Option<u64>,
}

impl SwitchConfig {
    /// Whether this can be built.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with port, priority and value.
    pub fn check(&self) -> Result<(), ConfigError> {
        let whole = |problem| ConfigError {
            port: None,
            priority: None,
            problem,
        };
        if self.ports.is_empty() || self.ports.len() > usize::from(u16::MAX) {
            return Err(whole(Problem::Ports(self.ports.len())));
        }
        for (number, port) in self.ports.iter().enumerate() {
            port.check(PortId(number as u16))?;
        }
        let taken = self.set_aside();
        if taken >= self.buffer {
            return Err(whole(Problem::BufferTooSmall {
                taken,
                buffer: self.buffer,
            }));
        }
        if self.tail_drop == Some(0) {
            return Err(whole(Problem::ZeroTailDrop));
        }
        let Some(pfc) = &self.pfc else { return Ok(()) };
        match pfc.threshold {
            PfcThreshold::Static(bytes) if bytes > self.buffer - taken => {
                return Err(whole(Problem::ThresholdAboveBuffer {
                    bytes,
                    shared: self.buffer - taken,
                }));
            }
            PfcThreshold::Static(bytes) if bytes < pfc.resume_offset => {
                return Err(whole(Problem::ResumeBelowZero {
                    offset: pfc.resume_offset,
                    threshold: bytes,
                }));
            }
            PfcThreshold::Dynamic(alpha) if !good_alpha(alpha) => {
                return Err(whole(Problem::Alpha(alpha)));
            }
            _ => {}
        }
        if pfc.quanta == Some(0) {
            return Err(whole(Problem::ZeroQuanta));
        }
        Ok(())
    }

    /// Bytes of the buffer that are nobody else's: headroom and reserved ones of the lossless ingress queues.
    #[must_use]
    pub fn set_aside(&self) -> u64 {
        let lossless =
            self.pfc
                .as_ref()
                .map_or(0, |pfc| pfc.priorities.iter().filter(|l| **l).count()) as u64;
        self.ports
            .iter()
            .map(|port| {
                port.headroom
                    .saturating_add(self.reserved)
                    .saturating_mul(lossless)
            })
            .fold(0, u64::saturating_add)
    }
}

impl PortConfig {
    fn check(&self, port: PortId) -> Result<(), ConfigError> {
        let wrong = |priority, problem| ConfigError {
            port: Some(port),
            priority,
            problem,
        };
        if self.rate.as_bps() == 0 {
            return Err(wrong(None, Problem::ZeroRate));
        }
        if let Some(alpha) = self.alpha.filter(|alpha| !good_alpha(*alpha)) {
            return Err(wrong(None, Problem::Alpha(alpha)));
        }
        for (priority, ecn) in self.ecn.iter().enumerate() {
            let Some(ecn) = ecn else { continue };
            let priority = Some(priority as u8);
            if ecn.kmin > ecn.kmax {
                return Err(wrong(
                    priority,
                    Problem::MarkingOrder {
                        kmin: ecn.kmin,
                        kmax: ecn.kmax,
                    },
                ));
            }
            if !(0.0..=1.0).contains(&ecn.pmax) {
                return Err(wrong(priority, Problem::Pmax(ecn.pmax)));
            }
        }
        if let Scheduler::Weighted { weights, strict } = &self.scheduler {
            let zero = (0..PRIORITIES).find(|p| weights[*p] == 0 && !strict[*p]);
            if let Some(priority) = zero {
                return Err(wrong(Some(priority as u8), Problem::ZeroWeight));
            }
        }
        Ok(())
    }
}

fn good_alpha(alpha: f64) -> bool {
    alpha.is_finite() && alpha > 0.0
}

/// What a switch can't be built with, and where.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConfigError {
    /// Which port's setting; `None`: the switch's.
    pub port: Option<PortId>,
    /// Which priority's; `None`: the port's.
    pub priority: Option<u8>,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a [`SwitchConfig`]. Bytes, unless said.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Problem {
    /// How many ports: none, or more than can be numbered.
    Ports(usize),
    /// The link's rate is 0.
    ZeroRate,
    /// A weight of 0 would never be served.
    ZeroWeight,
    /// `kmin` above `kmax`.
    MarkingOrder {
        /// Bytes.
        kmin: u64,
        /// Bytes.
        kmax: u64,
    },
    /// Not a probability.
    Pmax(f64),
    /// Alpha is not above zero and finite.
    Alpha(f64),
    /// Headroom and reserved bytes leave nothing to share.
    BufferTooSmall {
        /// What they take.
        taken: u64,
        /// Buffer in all.
        buffer: u64,
    },
    /// The PFC threshold is above the shared buffer.
    ThresholdAboveBuffer {
        /// The threshold.
        bytes: u64,
        /// The shared buffer.
        shared: u64,
    },
    /// The resume offset is above the threshold.
    ResumeBelowZero {
        /// Offset.
        offset: u64,
        /// Threshold.
        threshold: u64,
    },
    /// A pause of 0 quanta is a resume.
    ZeroQuanta,
    /// An egress queue that may hold nothing.
    ZeroTailDrop,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.priority) {
            (Some(port), Some(priority)) => write!(f, "port {}, priority {priority}: ", port.0)?,
            (Some(port), None) => write!(f, "port {}: ", port.0)?,
            _ => {}
        }
        write!(f, "{}", self.problem)
    }
}

impl core::error::Error for ConfigError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ports(n) => write!(f, "{n} ports: a switch has 1 to {}", u16::MAX),
            Self::ZeroRate => write!(f, "the link's rate is 0"),
            Self::ZeroWeight => write!(
                f,
                "its weight is 0, so it would never send: give it a weight or make it strict"
            ),
            Self::MarkingOrder { kmin, kmax } => {
                write!(f, "kmin ({kmin} B) is above kmax ({kmax} B)")
            }
            Self::Pmax(p) => write!(f, "pmax is {p}: a probability lies between 0 and 1"),
            Self::Alpha(a) => write!(f, "alpha is {a}: it must be above 0 and finite"),
            Self::BufferTooSmall { taken, buffer } => write!(
                f,
                "headroom and reserved bytes of all ports take {taken} B of a buffer of {buffer} B: nothing is left to share"
            ),
            Self::ThresholdAboveBuffer { bytes, shared } => write!(
                f,
                "the PFC threshold ({bytes} B) is above the shared buffer ({shared} B once headroom and reserved bytes are off)"
            ),
            Self::ResumeBelowZero { offset, threshold } => {
                write!(
                    f,
                    "the resume offset ({offset} B) is above the PFC threshold ({threshold} B)"
                )
            }
            Self::ZeroQuanta => write!(f, "a pause of 0 quanta would be a resume"),
            Self::ZeroTailDrop => write!(f, "the tail-drop limit is 0: no packet would pass"),
        }
    }
}

/// How long `quanta` of a pause frame last on a link of this rate: 512 bit times each.
#[must_use]
pub fn quanta_time(quanta: u16, rate: Rate) -> Picos {
    Picos::serialise(u64::from(quanta) * 64, rate)
}

/// Headroom that makes a lossless ingress queue lossless, bytes.
///
/// What still comes after the pause was decided: what the link holds in both directions (`2 * delay`), the largest frame that
/// has just begun at each end (ours delays the pause frame, the peer's can't be stopped), the pause frame itself, and
/// `reaction` of the peer. The reference simulators take `3 * rate * delay`, which has no term for frames: too small for
/// short links, and for peers whose link is faster.
#[must_use]
pub fn headroom(rate: Rate, delay: Duration, reaction: Duration, largest_frame: u64) -> u64 {
    const PAUSE_FRAME: u64 = 64;
    const BIT_NANOS_PER_BYTE_SECOND: u128 = 8 * 1_000_000_000;
    let waits = 2 * delay.as_nanos() + reaction.as_nanos();
    let under_way = (waits * u128::from(rate.as_bps())).div_ceil(BIT_NANOS_PER_BYTE_SECOND);
    u64::try_from(under_way)
        .unwrap_or(u64::MAX)
        .saturating_add(2 * largest_frame + PAUSE_FRAME)
}
