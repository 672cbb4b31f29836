//! What is drawn is what was captured: counts, places of marks, and text that can't break the SVG.

mod capture_support;
#[path = "capture_support/traffic.rs"]
mod traffic;

use rocexdp_common::ids::gid_from_ipv4;
use rocexdp_observe::{
    capture::Reader,
    plot::{Plot, Track},
};
use traffic::{Lost, Plan, Qp, Tap, Verb, make, qpn};

/// The traffic of two QPs with losses and congestion, drawn.
fn drawn(tied: bool) -> String {
    let qp = |verb, mtu, messages| Qp {
        verb,
        mtu,
        message: 100_000,
        messages,
        gap_ns: 4_000,
    };
    let plan = Plan {
        qps: vec![qp(Verb::Write, 1024, 30), qp(Verb::Read, 4096, 60)],
        loss_one_in: 300,
        places: vec![Lost::After],
        ce_one_in: 40,
        seed: 3,
        start: 1_700_000_000_000_000_000,
        delay_ns: 20_000,
    };
    let mut tap = Tap::new(Vec::new());
    make(&plan, |wire| {
        if let Some(time) = wire.near {
            tap.push(time, wire.settled, wire.frame);
        }
    });
    let track = |index: usize| Track {
        title: format!("QP {:#x} <&\"a\">", qpn(index)),
        requester: gid_from_ipv4([10, 0, 0, 1 + index as u8]),
        responder: gid_from_ipv4([10, 0, 1, 1 + index as u8]),
        responder_qpn: qpn(index),
        requester_qpn: tied.then_some(qpn(index) + 0x1000),
    };
    let mut plot = Plot::new(vec![track(0), track(1)]);
    let mut reader = Reader::from_reader(std::io::Cursor::new(tap.finish())).unwrap();
    while let Some(packet) = reader.next().unwrap() {
        plot.push(&packet);
    }
    plot.svg("two QPs & their losses")
}

#[test]
fn marks_are_drawn_and_text_is_escaped() {
    let svg = drawn(true);
    if let Some(path) = std::env::var_os("ROCEXDP_PLOT_OUT") {
        std::fs::write(path, &svg).unwrap();
    }
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("QP 0x100 &lt;&amp;&quot;a&quot;&gt;"));
    for text in [
        "sent again",
        "READ response",
        "acknowledged",
        "NAK",
        "CNP/s",
    ] {
        assert!(svg.contains(text), "no {text}");
    }
    let untied = drawn(false);
    assert!(untied.contains("answers not tied") && !untied.contains("acknowledged"));
    assert!(svg.len() < 1_000_000, "{}", svg.len());
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn a_capture_with_nothing_to_draw_is_drawn_as_such() {
    let mut plot = Plot::new(Vec::new());
    let mut reader = Reader::open(capture_support::dir().join("ud-send.pcap")).unwrap();
    while let Some(packet) = reader.next().unwrap() {
        plot.push(&packet);
    }
    assert!(
        plot.svg("")
            .contains("no reliable or unreliable connection")
    );
}
