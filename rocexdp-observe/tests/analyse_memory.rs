//! Memory is bounded by the number of flows, however many packets there are and however much goes wrong.
//!
//! The only test of this program: what another one takes meanwhile would count too.

#[path = "capture_support/traffic.rs"]
mod traffic;

use rocexdp_observe::{
    analyse::{Analyser, Options},
    capture::{LinkType, PacketRef},
};
use traffic::{Lost, Plan, Qp, Verb, make};

const PAIRS: usize = 60;

/// KiB of this process that are in memory, at most so far.
fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[test]
fn memory_does_not_grow_with_packets_nor_with_what_happens_to_them() {
    let qp = |index: usize| Qp {
        verb: [Verb::Write, Verb::Send, Verb::Read][index % 3],
        mtu: 256,
        message: 4096,
        messages: 1500,
        gap_ns: 1000,
    };
    let plan = Plan {
        qps: (0..PAIRS).map(qp).collect(),
        loss_one_in: 50,
        places: vec![Lost::Before, Lost::Between, Lost::After],
        ce_one_in: 20,
        seed: 7,
        start: 1_700_000_000_000_000_000,
        delay_ns: 5000,
    };
    let mut analyser = Analyser::new(Options::default());
    analyser.begin_file("made");
    let mut frames = 0_u64;
    let mut early = None;
    make(&plan, |wire| {
        let Some(time_ns) = wire.near else { return };
        frames += 1;
        analyser.push(&PacketRef {
            number: frames,
            time_ns,
            interface: 0,
            link: LinkType::Ethernet,
            wire_len: wire.frame.len() as u32,
            data: wire.frame,
        });
        if frames == 500_000 {
            early = peak_kib();
        }
    });
    let late = peak_kib();
    let report = analyser.finish();
    assert!(frames > 1_800_000, "{frames}");
    assert_eq!(report.flows.len(), PAIRS);
    assert!(report.findings.len() > 500, "{}", report.findings.len());
    let (Some(early), Some(late)) = (early, late) else {
        println!("SKIP: no /proc/self/status");
        return;
    };
    println!("{early} KiB after 500000 packets, {late} KiB after {frames}");
    // What is left of every packet, were it a byte, would be 1.5 MB.
    assert!(late - early < 1000, "{early} KiB, then {late} KiB");
}
