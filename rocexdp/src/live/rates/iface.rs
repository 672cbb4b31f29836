//! An interface's totals, its pauses, and its lines.

use std::{collections::HashMap, sync::Arc};

use rocexdp_common::maps::{LinkControl, PausePriority, QueueCounters, REASON_NAMES};

use super::{
    super::model::{FlowTable, IfaceSnapshot, Snapshot, Source},
    flow, local,
    nic::{Between, NicRate},
    row::Row,
    value::{Reason, Value, gained},
};

const NO_RATE: Reason = "the link's rate is unknown: frames are counted, times are not";

/// Pauses of one priority that came in on an interface: what this port was asked to stop sending.
#[derive(Clone, Debug)]
pub struct PauseRate {
    /// The priority; `None`: global pause, of the whole port.
    pub priority: Option<u8>,
    /// Frames that ask to stop, per second.
    pub pauses: f64,
    /// Frames that allow to go on, per second.
    pub resumes: f64,
    /// Share of the interval that it was paused, 0 to 1.
    pub share: Value,
    /// Whether it is paused at the end of the interval.
    pub paused: bool,
    /// Frames that ask to stop, since the counters began.
    pub total: u64,
    /// Who counted: `XDP`, or the NIC (`nic`), whose MAC keeps pause frames from programs.
    pub counted_by: &'static str,
}

/// What changed on an interface.
#[derive(Clone, Debug)]
pub struct IfaceRates {
    /// Its name.
    pub iface: Arc<str>,
    /// Whose maps.
    pub source: Option<Source>,
    /// Why there is nothing.
    pub error: Option<String>,
    /// Length of the interval, s.
    pub seconds: f64,
    /// Frames per second.
    pub frames: f64,
    /// RoCEv2 packets per second, whoever's.
    pub rocev2: f64,
    /// Packets per second that the program dropped, or passed with a reason: those counted in the interval.
    pub reasons: Vec<(&'static str, f64)>,
    /// Dropped per second.
    pub dropped: f64,
    /// Flows evicted from the table per second.
    pub evictions: f64,
    /// How full the table of flows is.
    pub flow_table: FlowTable,
    /// Events that nobody read in time, per second.
    pub events_lost: f64,
    /// Priorities that were ever paused.
    pub pauses: Vec<PauseRate>,
    /// Local QPs, then flows.
    pub rows: Vec<Row>,
    /// What the NIC itself counted: traffic of RDMA hardware, which no program sees, is there only.
    pub nic: Vec<NicRate>,
    /// What can't be seen here.
    pub blind_spots: Vec<String>,
}

/// What changed between two snapshots, for each interface of the later one. An interface that could not be read before, or whose
/// program is another one now, has no lines yet.
#[must_use]
pub fn rates(before: &Snapshot, after: &Snapshot) -> Vec<IfaceRates> {
    after
        .ifaces
        .iter()
        .map(|now| {
            let old = before.ifaces.iter().find(|old| old.iface == now.iface);
            one(old, now)
        })
        .collect()
}

fn one(before: Option<&IfaceSnapshot>, after: &IfaceSnapshot) -> IfaceRates {
    let iface: Arc<str> = Arc::from(after.iface.as_str());
    let mut out = IfaceRates {
        iface: Arc::clone(&iface),
        source: after.source.clone(),
        error: after.error.clone(),
        seconds: 0.0,
        frames: 0.0,
        rocev2: 0.0,
        reasons: Vec::new(),
        dropped: 0.0,
        evictions: 0.0,
        flow_table: after.flow_table,
        events_lost: 0.0,
        pauses: Vec::new(),
        rows: Vec::new(),
        nic: Vec::new(),
        blind_spots: after.blind_spots.clone(),
    };
    let same = |old: &&IfaceSnapshot| old.source.is_some() && old.source == after.source;
    let Some(before) = before.filter(same) else {
        return out;
    };
    let seconds = after.time_ns.saturating_sub(before.time_ns) as f64 / 1e9;
    if seconds <= 0.0 {
        return out;
    }
    out.seconds = seconds;
    let (old, new) = (before.total(), after.total());
    let rate =
        |pick: &dyn Fn(&QueueCounters) -> u64| gained(pick(&old), pick(&new)) as f64 / seconds;
    out.frames = rate(&|q| q.frames);
    out.rocev2 = rate(&|q| q.rocev2);
    out.dropped = rate(&|q| q.dropped);
    out.events_lost = rate(&|q| q.events.lost);
    for (index, name) in REASON_NAMES.iter().enumerate() {
        let per_second = rate(&|q| q.reasons.get(index).copied().unwrap_or(0));
        if per_second > 0.0 {
            out.reasons.push((name, per_second));
        }
    }
    // While flows come it may be some lower than it was.
    let evicted = after
        .flow_table
        .evicted
        .saturating_sub(before.flow_table.evicted);
    out.evictions = evicted as f64 / seconds;
    out.pauses = pauses(before, after, seconds);
    if let Some(nic) = Between::new(before, after) {
        out.nic = nic.counters();
        let seen = out.pauses.len();
        for pause in nic.pauses() {
            // What both count is the program's to tell: it knows the time.
            let known = out.pauses.iter().take(seen);
            if !known.into_iter().any(|p| p.priority == pause.priority) {
                out.pauses.push(pause);
            }
        }
    }
    let qps: HashMap<_, _> = before
        .qps
        .iter()
        .map(|qp| ((qp.slot, qp.config.generation, qp.config.qpn), qp))
        .collect();
    out.rows.extend(after.qps.iter().map(|qp| {
        let old = qps.get(&(qp.slot, qp.config.generation, qp.config.qpn));
        local::row(&iface, old.copied(), qp, seconds)
    }));
    out.rows
        .extend(flow::rows(&iface, &before.flows, &after.flows, seconds));
    out
}

fn pauses(before: &IfaceSnapshot, after: &IfaceSnapshot, seconds: f64) -> Vec<PauseRate> {
    type Pick = fn(&LinkControl, usize) -> Option<&PausePriority>;
    let pfc: Pick = |control, priority| control.pfc.get(priority);
    let global: Pick = |control, _| Some(&control.global);
    let all = (0..8).map(|p| (Some(p), pfc)).chain([(None, global)]);
    all.filter_map(|(priority, pick)| {
        let at = usize::from(priority.unwrap_or(0));
        pause(
            priority,
            &|control| pick(control, at),
            before,
            after,
            seconds,
        )
    })
    .collect()
}

/// Frames of one priority may come in on any queue: their pauses are taken together.
fn pause(
    priority: Option<u8>,
    pick: &dyn Fn(&LinkControl) -> Option<&PausePriority>,
    before: &IfaceSnapshot,
    after: &IfaceSnapshot,
    seconds: f64,
) -> Option<PauseRate> {
    let old = PausePriority::default();
    let (mut pauses, mut resumes, mut total, mut paused_ns) = (0, 0, 0, 0);
    let (mut timed, mut paused) = (true, false);
    for (queue, control) in after.link_control.iter().enumerate() {
        let now = pick(control)?;
        let old = before
            .link_control
            .get(queue)
            .and_then(pick)
            .unwrap_or(&old);
        total += now.pauses;
        pauses += gained(old.pauses, now.pauses);
        resumes += gained(old.resumes, now.resumes);
        paused_ns += gained(
            old.paused_until(before.time_ns),
            now.paused_until(after.time_ns),
        );
        paused |= now.paused(after.time_ns);
        // Quanta were counted, but no time: the program was not told the link's rate.
        timed &= now.pauses == 0 || now.paused_ns > 0 || now.until_ns > now.since_ns;
    }
    (total > 0).then(|| PauseRate {
        priority,
        pauses: pauses as f64 / seconds,
        resumes: resumes as f64 / seconds,
        share: if timed {
            Ok((paused_ns as f64 / 1e9 / seconds).min(1.0))
        } else {
            Err(NO_RATE)
        },
        paused,
        total,
        counted_by: "XDP",
    })
}
