//! The reference's `config.txt`: every key that its simulator and its monitors know, each used, known to mean nothing here, or
//! refused.
//!
//! Keys are those of the HPCC simulator's `third.cc`, and those that the runs' monitors added (`MON_*`, `NP_CNP_INTERVAL_NS`).
//! Where a key is missing, the default is that program's.
//!
//! Must not: guess. A key of another simulator, a controller that is not here, or a mode that would give other results than
//! the reference's is an error.

use std::collections::BTreeMap;

use rocexdp_proto::time::Rate;

use super::text::{FileError, Words};

/// Who sets the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Nobody: the line's rate (`CC_MODE 0`).
    Off,
    /// DCQCN, the "Mellanox" form (`CC_MODE 1`).
    Dcqcn,
}

/// A `config.txt`, in the units it is written in unless said otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file's own name, for messages.
    pub file: String,
    /// Name of the file with the topology.
    pub topology_file: String,
    /// Name of the file with the flows.
    pub flow_file: String,
    /// End of the run, nanoseconds.
    pub stop: u64,
    /// Who sets the rates.
    pub controller: Controller,
    /// Whether switches mark.
    pub marking: bool,
    /// Bytes of payload in a packet.
    pub payload: u32,
    /// Period of alpha, whole microseconds.
    pub alpha_resume_interval: u64,
    /// Period of the cut ticks, whole microseconds.
    pub rate_decrease_interval: u64,
    /// Time between increases, whole microseconds.
    pub rp_timer: u64,
    /// Every cut sets the target.
    pub clamp_target_rate: bool,
    /// g.
    pub ewma_gain: f64,
    /// F.
    pub fast_recovery_times: u32,
    /// Additive step.
    pub rate_ai: Rate,
    /// Hyper step.
    pub rate_hai: Rate,
    /// Floor.
    pub min_rate: Rate,
    /// Share of packets lost on each link that names none itself.
    pub error_rate: f64,
    /// Bytes after which a receiver acknowledges everything.
    pub ack_interval: u32,
    /// Whatever the interval, it acknowledges what ends at a multiple of this; 0: of nothing.
    pub chunk: u32,
    /// A QP may have one window of bytes in flight.
    pub window: bool,
    /// One window for all: that of the pair with the largest bandwidth-delay product.
    pub global_window: bool,
    /// The window shrinks with the rate.
    pub variable_window: bool,
    /// The pacer uses the rate; else the line's.
    pub rate_bound: bool,
    /// A host's acknowledgements go even while its data is paused.
    pub ack_high_priority: bool,
    /// Kmin by link rate in b/s, units of 1000 B.
    pub kmin: BTreeMap<u64, u32>,
    /// Kmax by link rate.
    pub kmax: BTreeMap<u64, u32>,
    /// Pmax by link rate.
    pub pmax: BTreeMap<u64, f64>,
    /// Buffer of a switch, MiB.
    pub buffer: u32,
    /// Least time between packets whose acknowledgements carry the CNP flag, nanoseconds.
    pub cnp_interval: u64,
    /// Samples: period, first, end; nanoseconds.
    pub monitor: Monitor,
}

/// When the state is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// Period, nanoseconds.
    pub interval: u64,
    /// Zero of the samples' time, nanoseconds. The first is one period later.
    pub start: u64,
    /// No sample at or after this, nanoseconds.
    pub end: u64,
}

/// Controllers of the reference that are not here.
const OTHER_CONTROLLERS: [(u64, &str); 4] =
    [(3, "HPCC"), (7, "TIMELY"), (8, "DCTCP"), (10, "HPCC-PINT")];

/// Keys with one value that can't change a result here: names of outputs, and what other controllers or traces are told.
const NO_EFFECT: [&str; 27] = [
    "USE_DYNAMIC_PFC_THRESHOLD", // read, never used: thresholds are always dynamic
    "DATA_RATE",
    "LINK_DELAY",
    "TRACE_FILE",
    "TRACE_OUTPUT_FILE",
    "FCT_OUTPUT_FILE",
    "PFC_OUTPUT_FILE",
    "DCTCP_RATE_AI",
    "FAST_REACT",
    "U_TARGET",
    "MI_THRESH",
    "INT_MULTI",
    "MULTI_RATE",
    "SAMPLE_FEEDBACK",
    "PINT_LOG_BASE",
    "PINT_PROB",
    "ENABLE_TRACE",
    "QLEN_MON_FILE",
    "QLEN_MON_START",
    "QLEN_MON_END",
    "MON_PREFIX",
    "MON_FLOWS",
    "MON_EV_FILE",
    "MON_EV_NODE",
    "MON_EV_END",
    "MON_EV_QP",
    "MON_PFC_FILE",
];

/// Keys of the relatives of this simulator, with their owner.
fn relative(key: &str) -> Option<&'static str> {
    match key {
        "PACKET_LEVEL_ECMP"
        | "FLOW_LEVEL_ECMP"
        | "TCP_FLOW_FILE"
        | "SEND_IN_CHUNKS"
        | "APP_START_TIME"
        | "APP_STOP_TIME"
        | "CNP_INTERVAL"
        | "NP_SAMPLING_INTERVAL"
        | "CLAMP_TARGET_RATE_AFTER_TIMER"
        | "BYTE_COUNTER"
        | "DCTCP_GAIN"
        | "KMAX"
        | "KMIN"
        | "PMAX"
        | "L2_WAIT_FOR_ACK" => {
            Some("of ns3-rdma, the simulator of DCQCN's authors, whose hosts differ")
        }
        "ENABLE_IRN"
        | "ENABLE_PFC"
        | "LB_MODE"
        | "FLOW_INPUT_FILE"
        | "CNP_OUTPUT_FILE"
        | "VOQ_MON_FILE"
        | "VOQ_MON_DETAIL_FILE"
        | "UPLINK_MON_FILE"
        | "CONN_MON_FILE"
        | "EST_ERROR_MON_FILE"
        | "SW_MONITORING_INTERVAL"
        | "FLOWGEN_START_TIME"
        | "FLOWGEN_STOP_TIME"
        | "LOAD"
        | "RANDOM_SEED" => Some("of ConWeave's simulator, whose hosts and switches differ"),
        "ECN_CTRL" | "ECN_SCHED" => Some(
            "of the study of threshold controllers: thresholds that change during a run are not here",
        ),
        _ => None,
    }
}

impl Config {
    /// What `third.cc` starts with; `rp_timer` and the steps have no default there.
    fn unset(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            topology_file: String::new(),
            flow_file: String::new(),
            stop: 3_010_000_000,
            controller: Controller::Dcqcn,
            marking: true,
            payload: 1_000,
            alpha_resume_interval: 55,
            rate_decrease_interval: 4,
            rp_timer: 0,
            clamp_target_rate: false,
            ewma_gain: 1.0 / 16.0,
            fast_recovery_times: 5,
            rate_ai: Rate::ZERO,
            rate_hai: Rate::ZERO,
            min_rate: Rate::from_mbps(100),
            error_rate: 0.0,
            ack_interval: 0,
            chunk: 0,
            window: true,
            global_window: true,
            variable_window: false,
            rate_bound: true,
            ack_high_priority: false,
            kmin: BTreeMap::new(),
            kmax: BTreeMap::new(),
            pmax: BTreeMap::new(),
            buffer: 16,
            cnp_interval: 0,
            monitor: Monitor {
                interval: 10_000,
                start: 2_000_000_000,
                end: 0,
            },
        }
    }

    /// Reads the text of `file`.
    ///
    /// # Errors
    /// The first word that is no key, no value of its key, or asks for what is not here; or a key that must be there.
    pub fn read(file: &str, text: &str) -> Result<Self, FileError> {
        let mut config = Self::unset(file);
        let mut words = Words::new(file, text);
        while let Some(key) = words.next() {
            if let Some(other) = relative(key.text) {
                return Err(words.error_here(format!("{} is a key {other}", key.text)));
            }
            if NO_EFFECT.contains(&key.text) {
                words.word(key.text)?;
            } else {
                config.set(key.text, &mut words)?;
            }
        }
        config.check()?;
        Ok(config)
    }

    fn set(&mut self, key: &str, words: &mut Words<'_>) -> Result<(), FileError> {
        const MICROS: std::ops::RangeInclusive<f64> = 1.0..=4e9;
        match key {
            "TOPOLOGY_FILE" => self.topology_file = words.word(key)?.text.to_owned(),
            "FLOW_FILE" => self.flow_file = words.word(key)?.text.to_owned(),
            "SIMULATOR_STOP_TIME" => self.stop = words.seconds(key)?,
            "CC_MODE" => self.controller = controller(words)?,
            "ENABLE_QCN" => self.marking = words.flag(key)?,
            "PACKET_PAYLOAD_SIZE" => self.payload = small(words, key, 1..=65_000)?,
            // A double that `MicroSeconds()` takes as a whole number.
            "ALPHA_RESUME_INTERVAL" => {
                self.alpha_resume_interval = words.number(key, MICROS)? as u64;
            }
            "RATE_DECREASE_INTERVAL" => {
                self.rate_decrease_interval = words.number(key, MICROS)? as u64;
            }
            "RP_TIMER" => self.rp_timer = words.number(key, MICROS)? as u64,
            "CLAMP_TARGET_RATE" => self.clamp_target_rate = words.flag(key)?,
            "EWMA_GAIN" => self.ewma_gain = words.number(key, 1.0 / 4096.0..=1.0)?,
            "FAST_RECOVERY_TIMES" => self.fast_recovery_times = small(words, key, 0..=31)?,
            "RATE_AI" => self.rate_ai = words.rate(key)?,
            "RATE_HAI" => self.rate_hai = words.rate(key)?,
            "MIN_RATE" => self.min_rate = words.rate(key)?,
            "ERROR_RATE_PER_LINK" => self.error_rate = words.number(key, 0.0..=1.0)?,
            "L2_ACK_INTERVAL" => self.ack_interval = ack_interval(words)?,
            "L2_CHUNK_SIZE" => self.chunk = small(words, key, 0..=u64::from(u32::MAX))?,
            "L2_BACK_TO_ZERO" => {
                if words.flag(key)? {
                    return Err(words.error_here(
                        "L2_BACK_TO_ZERO 1, going back to a chunk's start, is not here: set it to 0 (go-back-N)",
                    ));
                }
            }
            "HAS_WIN" => self.window = words.flag(key)?,
            "GLOBAL_T" => self.global_window = words.flag(key)?,
            "VAR_WIN" => self.variable_window = words.flag(key)?,
            "RATE_BOUND" => self.rate_bound = words.flag(key)?,
            "ACK_HIGH_PRIO" => self.ack_high_priority = words.flag(key)?,
            "PAUSE_TIME" => {
                // A pause holds until it is resumed; 0 would be read as a resume.
                words.number(key, 1.0..=65_535.0)?;
            }
            "LINK_DOWN" => {
                let at = words.whole(key, 0..=u64::MAX)?;
                words.whole(key, 0..=u64::MAX)?;
                words.whole(key, 0..=u64::MAX)?;
                if at != 0 {
                    return Err(words.error_here(
                        "LINK_DOWN with a time is not here: set it to 0 0 0, or write the scenario as TOML",
                    ));
                }
            }
            "KMAX_MAP" => self.kmax = map(words, key, |w| small(w, key, 0..=4_000_000))?,
            "KMIN_MAP" => self.kmin = map(words, key, |w| small(w, key, 0..=4_000_000))?,
            "PMAX_MAP" => self.pmax = map(words, key, |w| w.number(key, 0.0..=1.0))?,
            "BUFFER_SIZE" => self.buffer = small(words, key, 1..=4_095)?,
            "NP_CNP_INTERVAL_NS" => self.cnp_interval = words.whole(key, 0..=1_000_000_000)?,
            "MON_INTERVAL" => self.monitor.interval = words.whole(key, 1..=1_000_000_000)?,
            "MON_START" => self.monitor.start = words.whole(key, 0..=u64::MAX)?,
            "MON_END" => self.monitor.end = words.whole(key, 0..=u64::MAX)?,
            _ => {
                return Err(words.error_here(format!(
                    "{key} is no key of the reference's configuration: correct or remove it"
                )));
            }
        }
        Ok(())
    }

    /// What must be there, and fit together.
    fn check(&mut self) -> Result<(), FileError> {
        let missing = |key: &str| Err(self.error(format!("{key} is missing")));
        if self.topology_file.is_empty() {
            return missing("TOPOLOGY_FILE");
        }
        if self.flow_file.is_empty() {
            return missing("FLOW_FILE");
        }
        if self.ack_interval == 0 {
            return missing("L2_ACK_INTERVAL (1: an acknowledgement per packet)");
        }
        if self.controller == Controller::Dcqcn {
            if self.rp_timer == 0 {
                return missing("RP_TIMER");
            }
            if self.rate_ai == Rate::ZERO {
                return missing("RATE_AI");
            }
            if self.rate_hai == Rate::ZERO {
                return missing("RATE_HAI");
            }
        }
        for (rate, kmin) in &self.kmin {
            match self.kmax.get(rate) {
                Some(kmax) if kmin > kmax => {
                    return Err(self.error(format!(
                        "KMIN_MAP has {kmin} KB for {rate} b/s, above KMAX_MAP's {kmax} KB"
                    )));
                }
                _ => {}
            }
        }
        if self.monitor.end == 0 {
            self.monitor.end = self.stop;
        }
        if self.monitor.start >= self.stop {
            return Err(self.error(format!(
                "MON_START, {} ns, is not before SIMULATOR_STOP_TIME, {} ns",
                self.monitor.start, self.stop
            )));
        }
        if self.monitor.end <= self.monitor.start {
            return Err(self.error(format!(
                "MON_END, {} ns, is not after MON_START, {} ns",
                self.monitor.end, self.monitor.start
            )));
        }
        Ok(())
    }

    /// An error of the file as a whole.
    pub(super) fn error(&self, reason: impl Into<String>) -> FileError {
        FileError {
            file: self.file.clone(),
            line: None,
            reason: reason.into(),
        }
    }
}

fn small(
    words: &mut Words<'_>,
    key: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u32, FileError> {
    let value = words.whole(key, range)?;
    u32::try_from(value).map_err(|_| words.error_here(format!("{key}: {value} is too large")))
}

fn controller(words: &mut Words<'_>) -> Result<Controller, FileError> {
    let mode = words.whole("CC_MODE", 0..=u64::MAX)?;
    match mode {
        0 => Ok(Controller::Off),
        1 => Ok(Controller::Dcqcn),
        _ => {
            let name = OTHER_CONTROLLERS
                .iter()
                .find(|(number, _)| *number == mode)
                .map_or("unknown to the reference too", |(_, name)| name);
            Err(words.error_here(format!(
                "CC_MODE {mode} ({name}) is not here: there are 0 (no rate control) and 1 (DCQCN)"
            )))
        }
    }
}

fn ack_interval(words: &mut Words<'_>) -> Result<u32, FileError> {
    let interval = small(words, "L2_ACK_INTERVAL", 0..=u64::from(u32::MAX))?;
    if interval == 0 {
        return Err(words.error_here(
            "L2_ACK_INTERVAL 0 is no acknowledgement at all, so that no flow would end: set it to 1",
        ));
    }
    Ok(interval)
}

/// A count, then as many pairs of a link rate in b/s and a value.
fn map<T>(
    words: &mut Words<'_>,
    key: &str,
    mut value: impl FnMut(&mut Words<'_>) -> Result<T, FileError>,
) -> Result<BTreeMap<u64, T>, FileError> {
    let pairs = words.whole(key, 0..=1_000)?;
    (0..pairs)
        .map(|_| Ok((words.whole(key, 1..=u64::MAX)?, value(words)?)))
        .collect()
}
