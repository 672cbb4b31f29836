//! Families of one interface: what its queues, its flow table and its QPs counted.

use rocexdp_common::maps::{KIND_NAMES, QueueCounters, QueueEngine, REASON_NAMES, Rtt};
use rocexdp_proto::DropReason;

use super::{
    books::{Books, Values},
    page::{Labels, Page, Sample, labels},
    qp::{METRICS, NAK_NAMES, Place, QpKey, known},
};
use crate::{
    live::{IfaceSnapshot, Role},
    maps::QpView,
    pfc::{CHANNELS, Certainty, Channel, Report, channel_of},
    view::text,
};

/// Label values of the series that stands for all QPs without one of their own.
const OTHER: &str = "other";
/// The first bucket of a histogram of round trips ends below 2^10 ns: shorter ones are in it.
const FIRST_BUCKET: usize = 9;

/// Whose program it is, and where it is.
pub fn info(page: &mut Page, at: &IfaceSnapshot) {
    let Some(source) = &at.source else { return };
    let role = match source.role {
        Role::Endpoint => "endpoint",
        Role::Monitor => "monitor",
    };
    page.gauge(
        "interface_info",
        "Where the numbers of an interface come from: always 1",
        labels(&[
            ("iface", &at.iface),
            ("role", role),
            ("hook", source.hook),
            ("mode", &source.mode),
        ]),
        1.0,
    );
}

/// What XDP and the engine counted per queue.
pub fn queues(page: &mut Page, at: &IfaceSnapshot) {
    let iface = at.iface.as_str();
    for (index, (xdp, engine)) in at.queues.iter().enumerate() {
        let of_endpoint = at.queues.iter().any(|(_, engine)| engine.is_some());
        // The last entry without an engine counts frames of queues that an endpoint does not serve.
        let queue = match (of_endpoint, engine) {
            (true, None) => "new".to_owned(),
            _ => index.to_string(),
        };
        queue_xdp(page, iface, &queue, xdp);
        if let Some(engine) = engine {
            queue_engine(page, iface, &queue, engine);
        }
    }
    let total = at.total();
    for (name, n) in REASON_NAMES.iter().zip(total.reasons) {
        page.count(
            "xdp_refused_frames",
            "Frames that XDP or TCX did not take for a QP's packet, by reason",
            labels(&[("iface", iface), ("reason", name)]),
            n,
        );
    }
    for (index, reason) in DropReason::ALL.iter().enumerate() {
        let dropped: Vec<u64> = at
            .queues
            .iter()
            .filter_map(|(_, engine)| engine.as_ref()?.drops.get(index).copied())
            .collect();
        if !dropped.is_empty() {
            page.count(
                "engine_dropped_packets",
                "Packets that the transport dropped, by reason",
                labels(&[("iface", iface), ("reason", reason.name())]),
                dropped.iter().sum(),
            );
        }
    }
    for (fate, n) in [
        ("sent", total.events.sent),
        ("suppressed", total.events.suppressed),
        ("lost", total.events.lost),
    ] {
        page.count(
            "events",
            "Rare events: put into the ring, held back by the rate limit, lost because nobody read",
            labels(&[("iface", iface), ("fate", fate)]),
            n,
        );
    }
}

fn queue_xdp(page: &mut Page, iface: &str, queue: &str, xdp: &QueueCounters) {
    let at = || labels(&[("iface", iface), ("queue", queue)]);
    page.count(
        "queue_frames",
        "Frames that the program saw",
        at(),
        xdp.frames,
    );
    page.count(
        "queue_rocev2_packets",
        "RoCEv2 packets among the frames",
        at(),
        xdp.rocev2,
    );
    for (verdict, n) in [
        ("redirected", xdp.redirected),
        ("consumed", xdp.consumed),
        ("dropped", xdp.dropped),
        ("passed_rocev2", xdp.passed_rocev2),
        ("passed_other", xdp.passed_other),
    ] {
        let mut at = at();
        at.push(("verdict", verdict.to_owned()));
        page.count("queue_verdict_frames", "Where the frames went", at, n);
    }
}

fn queue_engine(page: &mut Page, iface: &str, queue: &str, engine: &QueueEngine) {
    let at = || labels(&[("iface", iface), ("queue", queue)]);
    for (name, help, n) in [
        (
            "queue_rx_packets",
            "Packets taken from the RX ring",
            engine.rx_packets,
        ),
        ("queue_rx_bytes", "Bytes of these packets", engine.rx_bytes),
        (
            "queue_rx_accepted_packets",
            "Packets that the transport accepted",
            engine.rx_accepted,
        ),
        (
            "queue_rx_icrc_error_packets",
            "Packets with a wrong ICRC",
            engine.rx_icrc_errors,
        ),
        (
            "queue_tx_packets",
            "Packets put into the TX ring",
            engine.tx_packets,
        ),
        ("queue_tx_bytes", "Bytes of these packets", engine.tx_bytes),
        (
            "queue_tx_completed_descriptors",
            "Descriptors that the device is done with, a packet having several where it spans chunks",
            engine.tx_completed,
        ),
        (
            "queue_tx_backpressure",
            "Times that the TX ring or the packet memory had no room; nothing is lost",
            engine.tx_backpressure,
        ),
        (
            "queue_tx_device_dropped_packets",
            "Packets that the device dropped on sending",
            engine.tx_device_drops,
        ),
        (
            "queue_handed_over_packets",
            "Packets that came in on another worker's queue",
            engine.rx_handed_over,
        ),
        (
            "queue_handed_away_packets",
            "Packets handed to the worker that owns their QP",
            engine.rx_handed_away,
        ),
        (
            "queue_handover_dropped_packets",
            "Packets dropped because that worker did not keep up",
            engine.rx_handover_full,
        ),
        (
            "queue_group_copies",
            "Copies of multicast groups' packets, besides the packets themselves, for further workers with a QP of the group",
            engine.rx_copied,
        ),
        (
            "queue_looped_received_packets",
            "Packets from QPs of this host, never on the wire",
            engine.rx_looped,
        ),
        (
            "queue_looped_sent_packets",
            "Packets sent to QPs of this host",
            engine.tx_looped,
        ),
        (
            "queue_pauses_honoured",
            "Pauses of a priority that the engine honoured",
            engine.pauses_honoured,
        ),
        (
            "queue_pause_frames_sent",
            "Pause frames that the engine sent",
            engine.pfc_sent,
        ),
    ] {
        page.count(name, help, at(), n);
    }
    for (cause, n) in [
        ("rx_dropped", engine.xsk_rx_dropped),
        ("rx_ring_full", engine.xsk_rx_ring_full),
        ("rx_fill_ring_empty_descs", engine.xsk_rx_fill_ring_empty),
        ("rx_invalid_descs", engine.xsk_rx_invalid),
        ("rx_bad_desc", engine.xsk_rx_bad_desc),
        ("tx_invalid_descs", engine.xsk_tx_invalid),
        ("tx_ring_empty_descs", engine.xsk_tx_ring_empty),
    ] {
        let mut at = at();
        at.push(("cause", cause.to_owned()));
        page.count(
            "queue_socket_events",
            "The AF_XDP socket's statistics (XDP_STATISTICS); packets are lost by rx_dropped, rx_ring_full, rx_bad_desc and the invalid ones",
            at,
            n,
        );
    }
}

/// The table of flows that are not local QPs'.
pub fn flow_table(page: &mut Page, at: &IfaceSnapshot) {
    let on = || labels(&[("iface", &at.iface)]);
    let table = &at.flow_table;
    page.gauge(
        "flow_table_entries",
        "Flows in the table",
        on(),
        table.live as f64,
    );
    page.gauge(
        "flow_table_capacity",
        "Flows that the table holds at most",
        on(),
        f64::from(table.capacity),
    );
    page.count("flow_table_inserts", "Flows entered", on(), table.inserts);
    page.count(
        "flow_table_evictions",
        "Flows that made room for others; their counts are lost",
        on(),
        table.evicted,
    );
}

/// Pause frames that XDP saw, and what was made of them.
pub fn pauses(
    page: &mut Page,
    at: &IfaceSnapshot,
    reports: &[Report],
    storms: &[[u64; 2]; CHANNELS],
) {
    let iface = at.iface.as_str();
    for (index, flagged) in storms.iter().enumerate() {
        let priority = Channel(index as u8).name();
        let on = |more: &[(&'static str, &str)]| {
            let mut all = labels(&[("iface", iface), ("priority", priority)]);
            all.extend(labels(more));
            all
        };
        if !at.link_control.is_empty() {
            let sum = |pick: fn(&rocexdp_common::maps::PausePriority) -> u64| {
                at.link_control
                    .iter()
                    .map(|c| pick(channel_of(c, index)))
                    .sum()
            };
            let help = "Pause frames that the program saw; a MAC usually keeps them to itself";
            page.count(
                "pfc_seen_frames",
                help,
                on(&[("asks", "pause")]),
                sum(|p| p.pauses),
            );
            page.count(
                "pfc_seen_frames",
                help,
                on(&[("asks", "resume")]),
                sum(|p| p.resumes),
            );
            let paused = at
                .link_control
                .iter()
                .map(|c| channel_of(c, index).paused_until(at.time_ns))
                .max();
            page.add(
                "pfc_seen_paused_seconds",
                "Time paused by the frames that the program saw; 0 where the rate of the link is not known",
                on(&[]),
                Sample::Seconds(paused.unwrap_or(0) as f64 / 1e9),
            );
        }
        for (certainty, n) in ["suspected", "storm"].iter().zip(flagged) {
            page.count(
                "pfc_storms",
                "Times that a pause storm was flagged: suspected where nobody tells whether traffic waits",
                on(&[("certainty", certainty)]),
                *n,
            );
        }
    }
    for report in reports {
        let on = || labels(&[("iface", iface), ("priority", report.channel.name())]);
        if let Ok(share) = report.share {
            page.gauge(
                "pfc_paused_ratio",
                "Share of the last window that was paused; no series where it is not known",
                on(),
                share,
            );
        }
        let level = match report.flagged {
            None => 0.0,
            Some(Certainty::Suspected) => 1.0,
            Some(Certainty::Storm) => 2.0,
        };
        page.gauge(
            "pfc_storm_state",
            "Pause storm: 0 none, 1 suspected, 2 paused with traffic waiting and none leaving",
            on(),
            level,
        );
    }
    let frames = |pick: fn(&rocexdp_common::maps::LinkControl) -> u64| {
        at.link_control.iter().map(pick).sum()
    };
    if !at.link_control.is_empty() {
        let on = || labels(&[("iface", iface)]);
        page.count(
            "mac_control_other_frames",
            "MAC control frames that are no pause frames, or are cut short",
            on(),
            frames(|c| c.other_mac_control),
        );
        page.count("lldp_frames", "LLDP frames", on(), frames(|c| c.lldp));
    }
}

/// What QPs of one kind counted.
pub fn qps(page: &mut Page, iface: &str, place: Place, books: &Books<QpKey>) {
    let whole = || labels(&[("iface", iface), ("kind", place.name())]);
    page.gauge(
        "qps",
        "QPs, or flows, that exist",
        whole(),
        books.existing() as f64,
    );
    let members: Vec<(Labels, &Values)> = books
        .members()
        .into_iter()
        .map(|(key, values)| (of_qp(iface, place, key), values))
        .chain([(other(iface, place), books.other())])
        .collect();
    let all = books.all();
    for (index, metric) in METRICS.iter().enumerate().filter(|(_, m)| known(m, place)) {
        let of = |values: &Values| values.counts.get(index).copied().unwrap_or(0);
        page.count(
            metric.name,
            &format!("{}; all QPs, those that are gone included", metric.help),
            whole(),
            of(all),
        );
        for (labels, values) in &members {
            page.count(
                &format!("qp_{}", metric.name),
                metric.help,
                labels.clone(),
                of(values),
            );
        }
    }
    let rest = all.counts.get(METRICS.len()..).unwrap_or_default();
    let (kinds, naks) = rest.split_at(KIND_NAMES.len().min(rest.len()));
    for (name, n) in KIND_NAMES.iter().zip(kinds) {
        let mut on = whole();
        on.push(("op", (*name).to_owned()));
        page.count("rx_op_packets", "RoCEv2 packets to QPs by kind", on, *n);
    }
    for (name, n) in NAK_NAMES.iter().zip(naks) {
        let mut on = whole();
        on.push(("code", (*name).to_owned()));
        page.count("rx_nak_code_packets", "NAKs to QPs by code", on, *n);
    }
    let help = "Round trips: of the engine's requests, from the first transmission to the acknowledgement; of requests that passed, to the answer in this flow (none where one direction is seen)";
    page.add("rtt_seconds", help, whole(), histogram(&all.rtt));
    for (labels, values) in members {
        page.add("qp_rtt_seconds", help, labels, histogram(&values.rtt));
    }
}

/// What a local QP is at now.
pub fn local_state(page: &mut Page, iface: &str, qps: &[QpView], books: &Books<QpKey>) {
    let mut others = 0;
    let members = books.members();
    for qp in qps {
        let key = QpKey::local(qp);
        let engine = &qp.engine;
        if members
            .binary_search_by(|(member, _)| (*member).cmp(&key))
            .is_err()
        {
            others += engine.outstanding;
            continue;
        }
        let on = || of_qp(iface, Place::Local, &key);
        page.gauge(
            "qp_outstanding_requests",
            "Work requests posted and not completed",
            on(),
            engine.outstanding as f64,
        );
        page.gauge(
            "qp_dcqcn_alpha_ratio",
            "DCQCN alpha, 0 to 1",
            on(),
            f64::from(engine.alpha) / 1023.0,
        );
        // An unpaced QP has no rate: no series, rather than 0.
        if engine.rate > 0 {
            page.gauge(
                "qp_dcqcn_rate_bytes_per_second",
                "DCQCN rate; no series while unpaced",
                on(),
                engine.rate as f64 / 8.0,
            );
            page.gauge(
                "qp_dcqcn_target_rate_bytes_per_second",
                "DCQCN target rate; no series while unpaced",
                on(),
                engine.target_rate as f64 / 8.0,
            );
        }
        let mut state = on();
        state.push(("state", text::state(engine.state).to_owned()));
        page.gauge("qp_state_info", "State of a QP: always 1", state, 1.0);
    }
    page.gauge(
        "qp_outstanding_requests",
        "Work requests posted and not completed",
        other(iface, Place::Local),
        others as f64,
    );
}

fn of_qp(iface: &str, place: Place, key: &QpKey) -> Labels {
    let [src, dst] = key.addresses();
    let qpn = text::qpn(key.qpn);
    labels(&[
        ("iface", iface),
        ("kind", place.name()),
        ("src", &src),
        ("dst", &dst),
        ("qpn", &qpn),
    ])
}

fn other(iface: &str, place: Place) -> Labels {
    labels(&[
        ("iface", iface),
        ("kind", place.name()),
        ("src", OTHER),
        ("dst", OTHER),
        ("qpn", OTHER),
    ])
}

/// Bucket `i` holds times below `2^(i+1)` ns: in whole nanoseconds its inclusive bound is one less.
fn histogram(rtt: &Rtt) -> Sample {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut short = 0;
    for (index, n) in rtt.buckets.iter().enumerate() {
        if index < FIRST_BUCKET {
            short += n;
            continue;
        }
        let bound = if index + 1 < rtt.buckets.len() {
            ((2_u64 << index) - 1) as f64 / 1e9
        } else {
            f64::INFINITY
        };
        buckets.push((bound, n + short));
        short = 0;
    }
    Sample::Histogram(rtt.sum_ns as f64 / 1e9, rtt.count(), buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_has_every_time_below_its_bound() {
        let mut rtt = Rtt::ZERO;
        for ns in [0, 1, 1023, 1024, 2047, 2048, 1 << 40] {
            rtt.take(ns);
        }
        let Sample::Histogram(sum, count, buckets) = histogram(&rtt) else {
            panic!("no histogram");
        };
        assert_eq!((count, buckets.len()), (7, 23));
        assert!((sum - (6143.0 + (1_u64 << 40) as f64) / 1e9).abs() < 1e-9);
        assert_eq!(buckets[0], (1.023e-6, 3));
        assert_eq!(buckets[1], (2.047e-6, 2));
        assert_eq!(buckets[2].1, 1);
        assert_eq!(buckets[22], (f64::INFINITY, 1));
        assert_eq!(buckets.iter().map(|(_, n)| n).sum::<u64>(), count);
    }
}
