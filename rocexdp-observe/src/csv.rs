//! The QP pairs of a report as CSV (RFC 4180): a line of names, then a line per QP pair and, behind it, one per direction.
//!
//! Names are those of the JSON, joined by underscores; what can't be known is empty. Columns are only ever added at the end.

use std::fmt::Write;

use crate::report::{Endpoint, Flow, Metrics, Report, TiedBy, Volume};

/// A column of counts: its name, and what stands in it.
type Column = (&'static str, fn(&Metrics) -> String);

/// What identifies a line.
const KEYS: [&str; 10] = [
    "flow",
    "row",
    "transport",
    "tied_by",
    "from_address",
    "from_qpn",
    "to_address",
    "to_qpn",
    "one_direction",
    "path_mtu",
];

fn option<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

macro_rules! volumes {
    ($($name:ident),*) => {
        &[$(
            (concat!(stringify!($name), "_messages"), |m| messages(m.operations.$name)),
            (concat!(stringify!($name), "_bytes"), |m| bytes(m.operations.$name)),
        )*]
    };
}

fn messages(volume: Volume) -> String {
    volume.messages.to_string()
}

fn bytes(volume: Volume) -> String {
    volume.bytes.to_string()
}

const COUNTS: &[Column] = &[
    ("packets", |m| m.packets.to_string()),
    ("bytes", |m| m.bytes.to_string()),
    ("first_s", |m| m.first_s.to_string()),
    ("last_s", |m| m.last_s.to_string()),
    ("messages", |m| m.messages.to_string()),
    ("message_bytes", |m| m.message_bytes.to_string()),
    ("psn_gaps", |m| option(m.psn_gaps)),
    ("psns_missing", |m| option(m.psns_missing)),
    ("retransmissions_packets", |m| {
        m.retransmissions.packets.to_string()
    }),
    ("retransmissions_bytes", |m| {
        m.retransmissions.bytes.to_string()
    }),
    ("retransmissions_first_s", |m| {
        option(m.retransmissions.first_s)
    }),
    ("retransmissions_last_s", |m| {
        option(m.retransmissions.last_s)
    }),
    ("duplicates", |m| m.duplicates.to_string()),
    ("reordered", |m| m.reordered.to_string()),
    ("naks_sequence", |m| m.naks.sequence.to_string()),
    ("naks_invalid_request", |m| {
        m.naks.invalid_request.to_string()
    }),
    ("naks_remote_access", |m| m.naks.remote_access.to_string()),
    ("naks_remote_operational", |m| {
        m.naks.remote_operational.to_string()
    }),
    ("naks_other", |m| m.naks.other.to_string()),
    ("rnrs", |m| m.rnrs.to_string()),
    ("timeouts", |m| m.timeouts.to_string()),
    ("ce_marked", |m| m.ce_marked.to_string()),
    ("ce_share", |m| m.ce_share.to_string()),
    ("cnp", |m| m.cnp.to_string()),
    ("cnp_rate", |m| option(m.cnp_rate)),
    ("ack_delay_samples", |m| {
        option(m.ack_delay.map(|d| d.samples))
    }),
    ("ack_delay_p50_ns", |m| {
        option(m.ack_delay.map(|d| d.p50_ns))
    }),
    ("ack_delay_p99_ns", |m| {
        option(m.ack_delay.map(|d| d.p99_ns))
    }),
    ("ack_delay_max_ns", |m| {
        option(m.ack_delay.map(|d| d.max_ns))
    }),
    ("icrc_errors", |m| m.icrc_errors.to_string()),
    ("icrc_unknown", |m| m.icrc_unknown.to_string()),
];

const OPERATIONS: &[Column] = volumes!(
    send,
    write,
    read,
    compare_swap,
    fetch_add,
    flush,
    atomic_write
);

/// All QP pairs.
#[must_use]
pub fn csv(report: &Report) -> String {
    let mut out = KEYS.join(",");
    for (name, _) in COUNTS.iter().chain(OPERATIONS) {
        _ = write!(out, ",{name}");
    }
    out.push_str("\r\n");
    for (index, flow) in report.flows.iter().enumerate() {
        let [a, b] = &flow.endpoints;
        line(&mut out, index, "both", flow, (a, b), &flow.metrics);
        for direction in &flow.directions {
            let ends = (&direction.from, &direction.to);
            line(&mut out, index, "direction", flow, ends, &direction.metrics);
        }
    }
    out
}

/// No value holds a comma, a quote or a line end: numbers, addresses and fixed words.
fn line(
    out: &mut String,
    index: usize,
    row: &str,
    flow: &Flow,
    (from, to): (&Endpoint, &Endpoint),
    metrics: &Metrics,
) {
    let tied = match flow.tied_by {
        TiedBy::Cm => "cm",
        TiedBy::Deth => "deth",
        TiedBy::Heuristic => "heuristic",
        TiedBy::None => "none",
    };
    _ = write!(
        out,
        "{index},{row},{},{tied},{},{},{},{},{},{}",
        flow.transport,
        from.address,
        option(from.qpn),
        to.address,
        option(to.qpn),
        flow.one_direction,
        option(flow.path_mtu),
    );
    for (_, value) in COUNTS.iter().chain(OPERATIONS) {
        _ = write!(out, ",{}", value(metrics));
    }
    out.push_str("\r\n");
}
