//! The JSON's contract: names and shapes that programs rely on, and that `docs/pcap-json.md` describes each of them.

mod analyse_support;

use std::collections::BTreeSet;

use analyse_support::{analyse, load};
use rocexdp_observe::findings::Kind;
use serde_json::Value;

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn report(file: &str) -> Value {
    serde_json::to_value(analyse(&load(file))).unwrap()
}

const COUNTS: &[&str] = &[
    "packets",
    "bytes",
    "first_s",
    "last_s",
    "messages",
    "message_bytes",
    "operations",
    "psn_gaps",
    "psns_missing",
    "retransmissions",
    "duplicates",
    "reordered",
    "naks",
    "rnrs",
    "timeouts",
    "ce_marked",
    "ce_share",
    "cnp",
    "cnp_rate",
    "ack_delay",
    "icrc_errors",
    "icrc_unknown",
];

#[test]
fn names_are_fixed() {
    let json = report("rc-loss-mixed.pcap");
    let sorted = |list: &[&'static str]| list.iter().copied().collect::<BTreeSet<_>>();
    let of = |value: &Value| {
        keys(value)
            .into_iter()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    let same = |value: &Value, list: &[&'static str]| {
        assert_eq!(
            of(value),
            sorted(list).into_iter().map(str::to_owned).collect()
        );
    };
    same(
        &json,
        &[
            "version",
            "files",
            "complete",
            "warnings",
            "start_ns",
            "duration_s",
            "packets",
            "rocev2_packets",
            "rocev1_packets",
            "left_out",
            "tunnelled",
            "malformed",
            "malformed_reasons",
            "unfollowed",
            "unfollowed_reasons",
            "truncated",
            "icrc_errors",
            "icrc_unknown",
            "opcodes",
            "cm_messages",
            "cnp",
            "ce_marked",
            "pfc_frames",
            "pause_frames",
            "lldp_frames",
            "flows",
            "findings",
        ],
    );
    let flow = [
        "transport",
        "tied_by",
        "endpoints",
        "one_direction",
        "path_mtu",
        "connection",
        "restarts",
        "directions",
        "notes",
    ];
    same(&json["flows"][0], &[COUNTS, &flow].concat());
    same(
        &json["flows"][0]["directions"][0],
        &[COUNTS, &["from", "to"]].concat(),
    );
    same(
        &json["flows"][0]["retransmissions"],
        &["packets", "bytes", "first_s", "last_s"],
    );
    same(
        &json["flows"][0]["ack_delay"],
        &["samples", "p50_ns", "p99_ns", "max_ns"],
    );
    same(
        &json["findings"][0],
        &[
            "kind", "severity", "qpn", "flow", "time_s", "frames", "text",
        ],
    );
}

#[test]
fn values_are_what_the_capture_shows() {
    let json = report("rc-loss-mixed.pcap");
    assert_eq!(json["version"], 1);
    assert_eq!(json["packets"], 12);
    assert_eq!(json["malformed"], 0);
    assert_eq!(json["opcodes"]["RC RDMA Read Response Last"], 2);
    let flow = &json["flows"][0];
    assert_eq!(flow["tied_by"], "heuristic");
    assert_eq!(flow["endpoints"][0]["address"], "10.77.0.2");
    assert_eq!(flow["endpoints"][0]["qpn"], 51);
    assert_eq!(flow["operations"]["read"]["messages"], 1);
    assert_eq!(flow["operations"]["read"]["bytes"], 2048);
    assert_eq!(flow["retransmissions"]["packets"], 3);
    assert_eq!(flow["directions"][0]["to"]["address"], "10.77.0.3");
    let finding = &json["findings"][0];
    assert_eq!(finding["kind"], "read_response_lost");
    assert_eq!(finding["severity"], "warning");
    assert_eq!(finding["qpn"], 51);
    assert_eq!(finding["frames"], serde_json::json!([4, 6, 9, 12]));
    let cm = report("cm-rping.pcap");
    assert_eq!(
        cm["cm_messages"],
        serde_json::json!({"REQ": 1, "REP": 1, "RTU": 1, "DREQ": 1, "DREP": 1})
    );
    // What can't be known is null: a datagram QP has no gaps, a QP that never answered no number.
    assert_eq!(report("ud-send.pcap")["flows"][0]["psn_gaps"], Value::Null);
    let silent = report("rc-no-such-qp.pcap");
    assert_eq!(silent["flows"][0]["endpoints"][0]["qpn"], Value::Null);
    assert_eq!(silent["flows"][0]["ack_delay"], Value::Null);
}

/// All names that an object has, at any depth; the names of opcodes and reasons are data.
fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                into.insert(key.clone());
                if !matches!(
                    key.as_str(),
                    "opcodes" | "cm_messages" | "malformed_reasons" | "unfollowed_reasons"
                ) {
                    names(value, into);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| names(value, into)),
        _ => {}
    }
}

#[test]
fn the_document_names_every_field_and_kind() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pcap-json.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut all = BTreeSet::new();
    for file in ["rc-loss-mixed.pcap", "cm-rping.pcap", "rc-rnr.pcap"] {
        names(&report(file), &mut all);
    }
    all.extend(Kind::ALL.iter().map(|kind| kind.name().to_owned()));
    for name in all {
        assert!(
            text.contains(&format!("`{name}`")),
            "{name} is not in docs/pcap-json.md"
        );
    }
}
