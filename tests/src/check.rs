//! What must be true of the counters, whatever happened.

use std::time::Duration;

use rocexdp::lab::Host;
use serde_json::Value;

use crate::{process::eventually, rig::Rig};

/// A number in JSON.
pub fn number(value: &Value, pointer: &str) -> u64 {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{pointer} is no number in {value:#}"))
}

/// The items of an array in JSON.
pub fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("{key} is no array in {value:#}"))
}

fn sum(value: &Value, pointer: &str) -> u64 {
    let all = value.pointer(pointer).and_then(Value::as_object);
    all.unwrap_or_else(|| panic!("{pointer} is no object in {value:#}"))
        .values()
        .map(|number| number.as_u64().expect("a number"))
        .sum()
}

/// Nothing was lost between XDP and the engine, or between the engine and the device.
pub fn nothing_lost_at_the_sockets(counters: &Value) {
    for queue in items(counters, "queues") {
        for name in [
            "xsk_rx_dropped",
            "xsk_rx_ring_full",
            "xsk_rx_invalid",
            "xsk_tx_invalid",
            "xsk_rx_bad_desc",
            "tx_device_drops",
        ] {
            let pointer = format!("/engine/{name}");
            assert_eq!(number(queue, &pointer), 0, "{name}: {queue:#}");
        }
    }
}

impl Rig {
    /// Waits until a host's counters no longer move, and returns `counters --json`.
    pub fn at_rest(&self, host: Host) -> Value {
        let still = Duration::from_millis(50);
        let look = || {
            let mut counters = self.counters(host);
            counters["time_ns"] = Value::Null;
            counters
        };
        eventually("the counters come to rest", Duration::from_secs(20), || {
            let first = look();
            std::thread::sleep(still);
            let second = look();
            std::thread::sleep(still);
            (first == second && second == look()).then_some(first)
        })
    }

    /// The books of every queue of a host, at quiescence. Returns what they are about.
    pub fn books_hold(&self, host: Host) -> Value {
        let counters = self.at_rest(host);
        let mut redirected = 0;
        for queue in items(&counters, "queues") {
            let xdp = |name: &str| number(queue, &format!("/xdp/{name}"));
            let engine = |name: &str| number(queue, &format!("/engine/{name}"));
            assert_eq!(
                xdp("frames"),
                xdp("redirected")
                    + xdp("consumed")
                    + xdp("dropped")
                    + xdp("passed_rocev2")
                    + xdp("passed_other"),
                "every frame went one way: {queue:#}"
            );
            assert_eq!(
                xdp("redirected"),
                engine("rx_packets") + engine("xsk_rx_dropped") + engine("xsk_rx_ring_full"),
                "what XDP gave to the socket was received, or lost there by name: {queue:#}"
            );
            assert_eq!(
                engine("rx_packets")
                    + engine("rx_handed_over")
                    + engine("rx_copied")
                    + engine("rx_looped"),
                engine("rx_accepted")
                    + engine("rx_icrc_errors")
                    + sum(queue, "/engine/drops")
                    + engine("rx_handed_away")
                    + engine("rx_handover_full"),
                "what was received was accepted, handed over, or dropped by name: {queue:#}"
            );
            redirected += xdp("redirected");
        }
        // All QPs are still there: those of finished copies are kept.
        let qps = self.qp_list(host);
        let mut by_qp = 0;
        for qp in items(&qps, "qps") {
            let [given, looped, copies, accepted, dropped] = [
                "/xdp/redirected",
                "/engine/rx_looped",
                "/engine/rx_mcast",
                "/engine/rx_accepted",
                "/engine/rx_dropped",
            ]
            .map(|pointer| number(qp, pointer));
            assert_eq!(
                given + looped + copies,
                accepted + dropped,
                "a QP's own books: {qp:#}"
            );
            by_qp += given;
        }
        assert_eq!(
            by_qp, redirected,
            "the QPs' redirected packets are the queues'"
        );
        counters
    }

    /// As on a clean wire: nothing sent again, nothing out of order, nothing dropped, nothing lost.
    pub fn assert_clean(&self) {
        for host in [Host::A, Host::B] {
            let counters = self.books_hold(host);
            for queue in items(&counters, "queues") {
                assert_eq!(number(queue, "/engine/rx_icrc_errors"), 0, "{queue:#}");
                assert_eq!(sum(queue, "/engine/drops"), 0, "{queue:#}");
                assert_eq!(number(queue, "/xdp/dropped"), 0, "{queue:#}");
            }
            for qp in items(&self.qp_list(host), "qps") {
                for name in [
                    "retransmitted_packets",
                    "retransmitted_bytes",
                    "local_ack_timeout_err",
                    "packet_seq_err",
                    "implied_nak_seq_err",
                    "rnr_naks_received",
                    "tx_naks",
                    "tx_rnr_naks",
                    "duplicate_request",
                    "out_of_sequence",
                    "icrc_errors",
                    "rx_dropped",
                    "completions_err",
                    "outstanding",
                ] {
                    let pointer = format!("/engine/{name}");
                    assert_eq!(number(qp, &pointer), 0, "{host}: {name}: {qp:#}");
                }
                for stream in ["requests", "responses"] {
                    for name in ["out_of_sequence", "gaps", "missing", "duplicates"] {
                        let pointer = format!("/xdp/{stream}/{name}");
                        assert_eq!(number(qp, &pointer), 0, "{host}: {stream} {name}: {qp:#}");
                    }
                }
                assert_eq!(number(qp, "/xdp/no_socket"), 0, "{qp:#}");
                assert_eq!(sum(qp, "/xdp/naks"), 0, "{qp:#}");
            }
        }
        for port in self.lab().counters().unwrap() {
            let faults = [
                port.dropped,
                port.corrupted,
                port.marked,
                port.duplicated,
                port.reordered,
            ];
            assert_eq!(faults, [0; 5], "{port:?}");
        }
        self.assert_nothing_lost_unasked();
    }
}
