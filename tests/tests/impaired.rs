//! Copies over a wire that harms: whatever it does, the bytes arrive, in bounded time, and the counters tell what was done.

use rocexdp::lab::{Host, PortCounters};
use rocexdp_tests::{
    Rig,
    check::{items, number},
    rig::COPY,
};
use serde_json::Value;

const SIZE: u64 = (32 << 20) + 1234;
/// Packets of [`SIZE`] at path MTU 4096.
const PACKETS: u64 = SIZE.div_ceil(4096);

/// A copy under these faults in both directions. Returns its report and what the wire did to each host's packets.
fn copy_under(rig: &mut Rig, faults: &str, size: u64) -> (Value, [PortCounters; 2]) {
    let before = rig.lab().counters().unwrap();
    rig.impair(&format!("{faults},seed=11"));
    let name = faults.replace(['=', '%', ','], "-");
    let file = rig.file(&name, size);
    let outcome = rig.copy(&file, &name);
    let seconds = outcome.elapsed.as_secs_f64();
    let report = outcome.json();
    rig.arrived(&file, &name, &report);
    for host in [Host::A, Host::B] {
        rig.books_hold(host);
    }
    // Stops the userspace wire, so that its counts are final.
    rig.impair("clean");
    let after = rig.lab().counters().unwrap();
    let done = [0, 1].map(|port| less(&after[port], &before[port]));
    println!(
        "{faults}: {} MiB in {seconds:.2} s, {} retransmitted, {} timeouts; wire {done:?}",
        size >> 20,
        report["retransmitted_packets"],
        report["local_ack_timeout_err"]
    );
    rig.assert_nothing_lost_unasked();
    (report, done)
}

fn less(after: &PortCounters, before: &PortCounters) -> PortCounters {
    PortCounters {
        packets: after.packets - before.packets,
        forwarded: after.forwarded - before.forwarded,
        dropped: after.dropped - before.dropped,
        corrupted: after.corrupted - before.corrupted,
        marked: after.marked - before.marked,
        duplicated: after.duplicated - before.duplicated,
        reordered: after.reordered - before.reordered,
        other: after.other - before.other,
        failed: after.failed - before.failed,
    }
}

/// The QP that received the copy.
fn receiver(rig: &Rig, report: &Value) -> Value {
    let qps = rig.qp_list(Host::B);
    let found = items(&qps, "qps")
        .iter()
        .find(|qp| qp["qpn"] == report["peer_qpn"]);
    found.expect("b keeps the QP").clone()
}

/// About `percent` of the packets.
fn about(count: u64, percent: u64, packets: u64) {
    let expected = packets * percent / 100;
    assert!(
        (expected / 2..=2 * expected).contains(&count),
        "{count} of {packets} packets are not about {percent} %"
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_survives_loss() {
    let Some(mut rig) = Rig::running("til") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "drop=1%", SIZE);
    about(wire[0].dropped, 1, wire[0].packets);
    assert!(number(&report, "/retransmitted_packets") >= wire[0].dropped);
    let qp = receiver(&rig, &report);
    assert!(number(&qp, "/engine/out_of_sequence") > 0);
    assert!(number(&qp, "/engine/tx_naks") > 0);
    assert!(number(&report, "/packet_seq_err") > 0);
    assert_eq!(number(&qp, "/engine/icrc_errors"), 0);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_survives_corruption_and_no_corrupt_packet_is_taken() {
    let Some(mut rig) = Rig::running("tic") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "corrupt=1%", SIZE);
    about(wire[0].corrupted, 1, wire[0].packets);
    assert!(number(&report, "/retransmitted_packets") > 0);
    // A corrupt packet has a wrong ICRC, or no longer looks like one of the QP's, or is no RoCEv2 packet at all.
    let counters = rig.counters(Host::B);
    let [mut icrc, mut refused] = [0; 2];
    for queue in items(&counters, "queues") {
        icrc += number(queue, "/engine/rx_icrc_errors");
        refused += number(queue, "/xdp/dropped") + number(queue, "/xdp/passed_rocev2");
        for name in [
            "ipv4_malformed",
            "ipv4_checksum",
            "ipv4_length",
            "not_udp",
            "not_roce",
        ] {
            refused += number(queue, &format!("/engine/drops/{name}"));
        }
    }
    assert!(icrc > 0, "{counters:#}");
    assert!(
        icrc + refused <= wire[0].corrupted,
        "{icrc} + {refused} of {} corrupt ones",
        wire[0].corrupted
    );
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_survives_duplicates_which_are_acknowledged_and_nothing_more() {
    let Some(mut rig) = Rig::running("tid") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "dup=1%", SIZE);
    about(wire[0].duplicated, 1, wire[0].packets);
    let qp = receiver(&rig, &report);
    assert!(number(&qp, "/engine/duplicate_request") >= wire[0].duplicated);
    assert!(number(&qp, "/xdp/requests/duplicates") >= wire[0].duplicated);
    assert_eq!(
        number(&qp, "/engine/rx_bytes"),
        SIZE,
        "no byte is taken twice"
    );
    assert_eq!(number(&qp, "/engine/out_of_sequence"), 0);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_file_survives_reordering() {
    let Some(mut rig) = Rig::running("tir") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "reorder=1%", SIZE);
    about(wire[0].reordered, 1, wire[0].packets);
    let qp = receiver(&rig, &report);
    assert!(number(&qp, "/engine/out_of_sequence") > 0);
    assert!(number(&qp, "/xdp/requests/gaps") > 0);
    assert!(number(&report, "/retransmitted_packets") > 0);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_delay_slows_a_copy_and_nothing_is_sent_twice() {
    let Some(mut rig) = Rig::running("tiy") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "delay=2ms", SIZE);
    assert_eq!(number(&report, "/retransmitted_packets"), 0);
    assert_eq!(wire[0].packets, PACKETS);
    // 128 packets may be under way in a round trip of 4 ms.
    let least = PACKETS as f64 / 128.0 * 0.004;
    let took = report["transfer_seconds"].as_f64().unwrap();
    assert!(took >= 0.9 * least, "{took} s, not {least} s");
    rig.assert_clean();
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn marks_harm_nothing() {
    let Some(mut rig) = Rig::running("tie") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "ce=5%", SIZE);
    assert_eq!(number(&report, "/retransmitted_packets"), 0);
    let qp = receiver(&rig, &report);
    let [marked, plain] = ["ce", "ect0"].map(|ecn| number(&qp, &format!("/xdp/ecn/{ecn}")));
    about(marked, 5, PACKETS);
    assert_eq!(marked + plain, PACKETS, "{qp:#}");
    // The acknowledgements are marked too, and a answers that with CNPs, which may be marked themselves.
    let cnps = number(&rig.qp_list(Host::A)["qps"][0], "/engine/np_cnp_sent");
    assert_eq!(wire[0].packets, PACKETS + cnps);
    assert!((marked..=marked + cnps).contains(&wire[0].marked));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_large_file_survives_one_percent_of_loss() {
    let Some(mut rig) = Rig::running("til") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "drop=1%", 256 << 20);
    about(wire[0].dropped, 1, wire[0].packets);
    assert!(number(&report, "/retransmitted_packets") >= wire[0].dropped);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_large_file_survives_duplicates_reordering_and_corruption_at_once() {
    let Some(mut rig) = Rig::running("tia") else {
        return;
    };
    let (report, wire) = copy_under(&mut rig, "dup=1%,reorder=1%,corrupt=1%", 256 << 20);
    about(wire[0].duplicated, 1, wire[0].packets);
    about(wire[0].reordered, 1, wire[0].packets);
    about(wire[0].corrupted, 1, wire[0].packets);
    assert!(number(&report, "/retransmitted_packets") > 0);
    let qp = receiver(&rig, &report);
    for name in ["icrc_errors", "out_of_sequence", "duplicate_request"] {
        assert!(number(&qp, &format!("/engine/{name}")) > 0, "{name}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn everything_at_once_over_ipv6_at_the_smallest_path_mtu() {
    let Some(mut rig) = Rig::up("tis") else {
        return;
    };
    if !rig.lab().has_ipv6() {
        println!("SKIP: no IPv6");
        return;
    }
    rig.start_receiver(&[]);
    rig.start_sender(&["--path-mtu", "256"]);
    rig.impair("drop=1%,dup=1%,reorder=1%,corrupt=1%,ce=1%,delay=50us,seed=5");
    let file = rig.file("file", (2 << 20) + 77);
    let report = rig
        .start_copy(&file, Host::B.ipv6().into(), "file")
        .finish(COPY)
        .json();
    rig.arrived(&file, "file", &report);
    rig.books_hold(Host::A);
    rig.books_hold(Host::B);
    rig.assert_nothing_lost_unasked();
}
