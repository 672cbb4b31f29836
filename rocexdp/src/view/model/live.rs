//! The lines of `rocexdp monitor --json`: documented in docs/monitor-json.md.

use std::{collections::BTreeMap, net::IpAddr, time::SystemTime};

use serde::Serialize;

use super::{super::text, VERSION};
use crate::live::{
    Direction as Rates, End as RowEnd, FlowTable, IfaceRates, PauseRate, Row, Value,
    news::{Level, News},
};

/// One interval.
#[derive(Clone, Debug, Serialize)]
pub struct Interval {
    /// [`VERSION`].
    pub version: u32,
    /// `interval`, or `summary`: the last line, over the whole time.
    pub kind: &'static str,
    /// End of the interval, seconds since 1970.
    pub time_s: f64,
    /// Each interface.
    pub ifaces: Vec<Iface>,
    /// What began, got much worse, or ended.
    pub news: Vec<NewsLine>,
}

/// An interface.
#[derive(Clone, Debug, Serialize)]
pub struct Iface {
    /// Its name.
    pub iface: String,
    /// Whose program; null: none can be read.
    pub source: Option<Source>,
    /// Why nothing can be read; null: it can.
    pub error: Option<String>,
    /// Length of the interval; 0: there was nothing to compare with.
    pub interval_s: f64,
    /// Frames that were seen, per second.
    pub frames_per_s: f64,
    /// RoCEv2 packets among them.
    pub rocev2_per_s: f64,
    /// Frames that the program dropped.
    pub dropped_per_s: f64,
    /// By reason: malformed, refused, not followed. Only those that counted.
    pub reasons_per_s: BTreeMap<&'static str, f64>,
    /// The table of flows.
    pub flow_table: Table,
    /// Flows evicted from it, per second.
    pub evictions_per_s: f64,
    /// Events that nobody read in time.
    pub events_lost_per_s: f64,
    /// Priorities that this port was ever asked to pause.
    pub pauses: Vec<Pause>,
    /// Counters of RDMA ports that moved in the interval.
    pub nic_rdma: Vec<NicRdma>,
    /// What can't be seen here.
    pub blind_spots: Vec<String>,
    /// Local QPs and flows.
    pub qps: Vec<Qp>,
    /// Lines left out by `--top`.
    pub qps_left_out: usize,
}

/// Whose program.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    /// `endpoint` or `monitor`.
    pub role: String,
    /// `XDP` or `TCX`.
    pub hook: &'static str,
    /// Mode of the hook, `n/a` for TCX.
    pub mode: String,
    /// The kernel's id.
    pub program_id: u32,
}

/// A counter of an RDMA port.
#[derive(Clone, Debug, Serialize)]
pub struct NicRdma {
    /// The device.
    pub device: String,
    /// Its port.
    pub port: u32,
    /// Whether it is Soft-RoCE or the like.
    pub software: bool,
    /// The driver's name of the counter.
    pub name: String,
    /// Per second, in the counter's own unit.
    pub per_s: f64,
    /// So far.
    pub total: u64,
}

/// The table of flows.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Table {
    /// Most flows.
    pub capacity: u32,
    /// Flows in it.
    pub live: u64,
    /// Entered so far.
    pub inserts: u64,
    /// Evicted so far.
    pub evicted: u64,
}

/// Pauses of one priority.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pause {
    /// null: the whole port (global pause).
    pub priority: Option<u8>,
    /// Frames that ask to stop.
    pub pauses_per_s: f64,
    /// Frames that allow to go on.
    pub resumes_per_s: f64,
    /// Share of the interval; null: the link's rate is not known.
    pub paused_share: Option<f64>,
    /// Whether it was paused at the end.
    pub paused: bool,
    /// Frames that ask to stop, so far.
    pub pauses: u64,
    /// `XDP` or `nic`.
    pub counted_by: &'static str,
}

/// One end.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// null: nothing that was seen names it.
    pub qpn: Option<u32>,
}

/// A local QP, or a flow or pair of flows.
#[derive(Clone, Debug, Serialize)]
pub struct Qp {
    /// Whether the source is a QP of this host's endpoint.
    pub local: bool,
    /// Who sends the bulk; the local QP whatever it does.
    pub source: End,
    /// The other.
    pub destination: End,
    /// State of a local QP.
    pub state: Option<&'static str>,
    /// null: not known.
    pub path_mtu: Option<u32>,
    /// Rate that DCQCN allows; null: see `dcqcn_na`.
    pub dcqcn_bits_per_s: Option<f64>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dcqcn_na: Option<&'static str>,
    /// Work requests posted and not completed, of a local QP.
    pub outstanding: Option<u64>,
    /// From source to destination.
    pub there: Direction,
    /// From destination to source.
    pub back: Direction,
}

/// What goes one way. null: see `na`.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Direction {
    pub packets_per_s: Option<f64>,
    pub bits_per_s: Option<f64>,
    pub ce_marked_per_s: Option<f64>,
    pub ce_share: Option<f64>,
    pub cnp_per_s: Option<f64>,
    pub gaps_per_s: Option<f64>,
    pub missing_per_s: Option<f64>,
    pub resent_per_s: Option<f64>,
    pub nak_per_s: Option<f64>,
    pub rnr_nak_per_s: Option<f64>,
    pub rtt_samples: Option<u64>,
    pub rtt_mean_ns: Option<u64>,
    pub rtt_p50_ns: Option<u64>,
    pub rtt_p99_ns: Option<u64>,
    pub rtt_max_ns: Option<u64>,
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
    /// Why numbers are null, by name (`rtt` for all of those).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub na: BTreeMap<&'static str, &'static str>,
}

/// One line of news.
#[derive(Clone, Debug, Serialize)]
pub struct NewsLine {
    /// `info`, `warning`, `error`.
    pub level: Level,
    /// What it is about.
    pub kind: &'static str,
    /// The interface.
    pub iface: String,
    /// In words.
    pub text: String,
}

impl Interval {
    /// Of an interval, at most `top` lines an interface, those with most bits.
    #[must_use]
    pub fn new(
        kind: &'static str,
        rates: &[IfaceRates],
        news: &[News],
        time: SystemTime,
        top: usize,
    ) -> Self {
        Self {
            version: VERSION,
            kind,
            time_s: time
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0.0, |t| t.as_secs_f64()),
            ifaces: rates.iter().map(|iface| iface_of(iface, top)).collect(),
            news: news
                .iter()
                .map(|n| NewsLine {
                    level: n.level,
                    kind: n.kind,
                    iface: n.iface.clone(),
                    text: n.text.clone(),
                })
                .collect(),
        }
    }
}

fn iface_of(iface: &IfaceRates, top: usize) -> Iface {
    let mut rows: Vec<&Row> = iface.rows.iter().collect();
    let bits = |row: &Row| row.both(|d| d.bits).unwrap_or(0.0);
    rows.sort_by(|a, b| bits(b).total_cmp(&bits(a)).then_with(|| a.key.cmp(&b.key)));
    let qps_left_out = rows.len().saturating_sub(top);
    rows.truncate(top);
    let FlowTable {
        capacity,
        live,
        inserts,
        evicted,
    } = iface.flow_table;
    Iface {
        iface: iface.iface.to_string(),
        source: iface.source.as_ref().map(|source| Source {
            role: source.role.to_string(),
            hook: source.hook,
            mode: source.mode.clone(),
            program_id: source.program_id,
        }),
        error: iface.error.clone(),
        interval_s: iface.seconds,
        frames_per_s: iface.frames,
        rocev2_per_s: iface.rocev2,
        dropped_per_s: iface.dropped,
        reasons_per_s: iface.reasons.iter().copied().collect(),
        flow_table: Table {
            capacity,
            live,
            inserts,
            evicted,
        },
        evictions_per_s: iface.evictions,
        events_lost_per_s: iface.events_lost,
        pauses: iface.pauses.iter().map(pause_of).collect(),
        nic_rdma: iface
            .nic
            .iter()
            .map(|rate| NicRdma {
                device: rate.device.clone(),
                port: rate.port,
                software: rate.software,
                name: rate.name.clone(),
                per_s: rate.per_second,
                total: rate.total,
            })
            .collect(),
        blind_spots: iface.blind_spots.clone(),
        qps: rows.into_iter().map(qp_of).collect(),
        qps_left_out,
    }
}

fn pause_of(pause: &PauseRate) -> Pause {
    Pause {
        priority: pause.priority,
        pauses_per_s: pause.pauses,
        resumes_per_s: pause.resumes,
        paused_share: pause.share.ok(),
        paused: pause.paused,
        pauses: pause.total,
        counted_by: pause.counted_by,
    }
}

fn end_of(end: &RowEnd) -> End {
    End {
        address: end.address(),
        qpn: end.qpn,
    }
}

fn qp_of(row: &Row) -> Qp {
    let (from, to, there, back) = row.oriented();
    Qp {
        local: row.key.local,
        source: end_of(from),
        destination: end_of(to),
        state: row.state.map(text::state),
        path_mtu: (row.path_mtu != 0).then_some(row.path_mtu),
        dcqcn_bits_per_s: row.dcqcn.ok(),
        dcqcn_na: row.dcqcn.err(),
        outstanding: row.outstanding,
        there: direction_of(there),
        back: direction_of(back),
    }
}

fn direction_of(rates: &Rates) -> Direction {
    let mut na = BTreeMap::new();
    let mut known = |name, value: Value| match value {
        Ok(value) => Some(value),
        Err(reason) => {
            na.insert(name, reason);
            None
        }
    };
    let packets_per_s = known("packets_per_s", rates.packets);
    let seen = packets_per_s.is_some();
    let mut out = Direction {
        packets_per_s,
        bits_per_s: known("bits_per_s", rates.bits),
        ce_marked_per_s: known("ce_marked_per_s", rates.ce),
        ce_share: known("ce_share", rates.ce_share),
        cnp_per_s: known("cnp_per_s", rates.cnp),
        gaps_per_s: known("gaps_per_s", rates.gaps),
        missing_per_s: known("missing_per_s", rates.missing),
        resent_per_s: known("resent_per_s", rates.resent),
        nak_per_s: known("nak_per_s", rates.naks),
        rnr_nak_per_s: known("rnr_nak_per_s", rates.rnr),
        rtt_samples: rates.rtt.map(|rtt| rtt.samples).ok(),
        rtt_mean_ns: rates.rtt.map(|rtt| rtt.mean_ns).ok(),
        rtt_p50_ns: rates.rtt.map(|rtt| rtt.p50_ns).ok(),
        rtt_p99_ns: rates.rtt.map(|rtt| rtt.p99_ns).ok(),
        rtt_max_ns: rates.rtt.map(|rtt| rtt.max_ns).ok(),
        packets: seen.then_some(rates.total_packets),
        bytes: seen.then_some(rates.total_bytes),
        na: BTreeMap::new(),
    };
    if let Err(reason) = rates.rtt {
        na.insert("rtt", reason);
    }
    out.na = na;
    out
}
