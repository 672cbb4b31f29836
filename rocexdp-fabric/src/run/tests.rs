//! Small runs that show what a network of this kind must do.

use super::*;
use crate::{Source, results::Ended, scenario::Study};

fn read(text: &str) -> Study {
    Study::read(Source::new("s.toml", text), &mut |_| {
        Err("no files".to_owned())
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

fn run(text: &str) -> Report {
    study(&read(text), None, &Watch::default(), None).unwrap()
}

const INCAST: &str = "
[fabric]
defaults.link = { rate = '25Gb/s', delay = '1us' }
generate = { kind = 'incast', senders = 2 }
[[flow]]
from = 'h[0-1]'
to = 'h2'
";

#[test]
fn a_flow_alone_takes_what_an_empty_network_takes() {
    for host in ["rc", "reference"] {
        for bytes in [1_000, 100_000, 10_000_000_u64] {
            let report = run(&format!(
                "fabric = {{ defaults.link.rate = '100G', generate = {{ kind = 'pair', switches = 2 }} }}\ntransport.host = '{host}'\n[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = {bytes}\nstart = '3us'"
            ));
            let run = &report.runs[0];
            assert_eq!(
                (run.ended, run.totals.finished, run.totals.bytes),
                (Ended::FlowsDone, 1, bytes)
            );
            let slowdown = run.flows[0].slowdown.unwrap();
            assert!(slowdown < 1.05, "{host} {bytes}: {:?}", run.flows[0]);
            assert!(
                run.flows[0].fct_s.unwrap() > run.flows[0].ideal_s.unwrap() * 0.97,
                "{host} {bytes}: {:?}",
                run.flows[0]
            );
            assert_eq!((run.totals.dropped, run.totals.retransmissions), (0, 0));
        }
    }
}

#[test]
fn an_incast_is_marked_and_shared() {
    for host in ["rc", "reference"] {
        let report = run(&format!(
            "run = {{ duration = '3ms', warmup = '1ms' }}\ntransport.host = '{host}'\n{INCAST}"
        ));
        let run = &report.runs[0];
        assert_eq!((run.ended, run.partial), (Ended::Duration, false));
        assert!(
            run.totals.goodput_bps > 0.85 * 25e9,
            "{host}: {:?}",
            run.totals
        );
        assert!(run.totals.goodput_bps < 25e9, "{host}: {:?}", run.totals);
        assert!(
            run.totals.cnps > 0 && run.totals.marked > 0 && run.totals.dropped == 0,
            "{host}: {:?}",
            run.totals
        );
        assert!(run.jain.unwrap() > 0.9, "{host}: {:?}", run.jain);
        let bottleneck = run
            .queues
            .iter()
            .max_by_key(|queue| queue.max_bytes)
            .unwrap();
        assert_eq!(
            (
                bottleneck.switch.as_str(),
                bottleneck.to.as_str(),
                bottleneck.priority
            ),
            ("s0", "h2", 3)
        );
        let link = run.links.iter().find(|link| link.to == "h2").unwrap();
        assert!(link.utilisation > 0.85, "{host}: {link:?}");
        // What was recorded adds up to what was delivered.
        let recorded: f64 = run
            .series
            .flows
            .iter()
            .flat_map(|flow| &flow.bytes)
            .map(|bytes| f64::from(*bytes))
            .sum();
        assert!(
            (recorded / run.totals.bytes as f64 - 1.0).abs() < 1e-3,
            "{host}: {recorded}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_whatever_the_threads() {
    let text = format!(
        "run = {{ duration = '200us', seeds = '1-4' }}\nsweep.\"transport.mtu\" = [1024, 4096]\n{INCAST}"
    );
    let study = read(&text);
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        let report = pool
            .install(|| super::study(&study, None, &Watch::default(), None))
            .unwrap();
        let json = serde_json::to_string(&report).unwrap();
        let csv = results::csv::files(&report);
        (json, csv)
    };
    let one = with(1);
    assert_eq!(one, with(3));
    let report: serde_json::Value = serde_json::from_str(&one.0).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    assert_eq!(runs[1]["seed"], 1 + 1);
    assert_eq!(runs[4]["parameters"]["transport.mtu"], "4096");
}

#[test]
fn an_interrupted_study_keeps_what_it_has_and_says_so() {
    let study = read(&format!(
        "run = {{ duration = '10s', seeds = '1-3' }}\n{INCAST}"
    ));
    let watch = Watch::default();
    watch.stop.store(true, Ordering::Relaxed);
    let report = super::study(&study, None, &watch, None).unwrap();
    assert_eq!(
        (report.partial, report.planned, report.runs.len()),
        (true, 3, 0)
    );
    let one = one(&study.scenarios[0], 1, None, &watch, None).unwrap();
    assert_eq!((one.ended, one.partial), (Ended::Interrupted, true));
    assert!(one.simulated_s > 0.0 && one.simulated_s < 1.0);
}

#[test]
fn a_run_that_cannot_be_built_leaves_the_others_their_results() {
    let study = read(
        "
run.duration = '100us'
sweep.\"transport.host\" = ['rc', 'reference']
[fabric]
defaults.link.rate = '25Gb/s'
generate = { kind = 'pair', switches = 1 }
link = [{ ends = ['h0', 's0'] }]
[[flow]]
from = 'h0'
to = 'h1'
",
    );
    let report = super::study(&study, None, &Watch::default(), None).unwrap();
    assert_eq!((report.partial, report.runs.len()), (true, 1));
    let [failure] = &report.failures[..] else {
        panic!("{:?}", report.failures);
    };
    assert_eq!(failure.parameters["transport.host"], "reference");
    let text = results::table::text(&report);
    assert!(
        text.contains("FAILED: seed 1, transport.host = reference: reference hosts have one NIC")
    );
    let none = Study {
        scenarios: study.scenarios[1..].to_vec(),
        ..study
    };
    let error = super::study(&none, None, &Watch::default(), None).unwrap_err();
    assert!(error.contains("one NIC"), "{error}");
}

#[test]
fn a_run_that_ends_before_its_warm_up_says_so() {
    for mode in ["packet", "flow"] {
        let report = run(&format!(
            "run = {{ warmup = '1s', mode = '{mode}' }}\n{INCAST}bytes = '1MB'"
        ));
        assert!(report.runs[0].warmup_missed, "{mode}");
        let text = results::table::text(&report);
        assert!(text.contains("before run.warmup had passed"), "{text}");
    }
}

#[test]
fn losses_are_repaired_and_counted() {
    let report = run(
        "fabric = { defaults.link = { rate = '25G', faults = { drop = '1%' } }, generate = { kind = 'pair', switches = 1 } }\n[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = '2MB'",
    );
    let run = &report.runs[0];
    assert_eq!(run.totals.finished, 1);
    assert!(
        run.drops["link_fault"] > 0 && run.totals.retransmissions > 0,
        "{:?}",
        run.drops
    );
    let lost: u64 = run.links.iter().map(|link| link.lost_fault).sum();
    assert_eq!(lost, run.drops["link_fault"]);
}

#[test]
fn flows_of_a_pair_may_share_a_connection() {
    let report = run(
        "fabric = { defaults.link.rate = '25G', generate = { kind = 'pair' } }\ntransport.connections = 'pair'\n[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = '100KB'\ncount = 3",
    );
    let flows = &report.runs[0].flows;
    assert!(
        flows
            .iter()
            .all(|flow| flow.delivered == 100_000 && flow.cnps.is_none())
    );
    let ends: Vec<_> = flows.iter().map(|flow| flow.end_s.unwrap()).collect();
    assert!(
        ends.is_sorted() && ends[2] > 2.5 * ends[0],
        "one after the other: {ends:?}"
    );
}

#[test]
fn memory_grows_with_flows_and_hosts() {
    let of = |text: &str| estimate::Estimate::of(&read(text).scenarios[0], None).bytes();
    let small = of(&format!("run.duration = '1ms'\n{INCAST}"));
    let wide = of(
        "run.duration = '1ms'\nfabric = { defaults.link.rate = '100G', generate = { kind = 'leaf-spine', leaves = 32, hosts_per_leaf = 32, spines = 16 } }\n[[traffic]]\nsizes = 'fb_hadoop'\nload = 0.8",
    );
    assert!(small < 10e6 && wide > 500e6, "{small} {wide}");
    // Ways from each switch to each, which two hosts do not show.
    let long = of(
        "fabric = { defaults.link.rate = '10G', generate = { kind = 'pair', switches = 5000 } }\n[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = 1",
    );
    assert!(long > 5000.0 * 5000.0 * 8.0, "{long}");
}

#[test]
fn the_largest_flows_overflow_nothing() {
    for mode in ["packet", "flow"] {
        let report = run(&format!(
            "run = {{ duration = '100us', mode = '{mode}' }}\ntransport = {{ mtu = 256, connections = 'pair' }}\nfabric = {{ defaults.link.rate = '10G', generate.kind = 'pair' }}\n[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = '17999999TB'\ncount = 2"
        ));
        assert_eq!(report.runs[0].ended, Ended::Duration, "{mode}");
    }
}

/// A departure that comes sooner than a time in floating point can tell.
#[test]
fn a_flow_that_takes_no_time_ends() {
    let report = run(
        "run.mode = 'flow'\nfabric = { defaults.link = { rate = '18000000T', delay = 0 }, generate.kind = 'pair' }\n[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = 1\nstart = '1s'",
    );
    assert_eq!(report.runs[0].totals.finished, 1);
}

#[test]
fn a_capture_is_a_nanosecond_pcap_of_one_link() {
    let study = read(
        "fabric = { defaults.link.rate = '25G', generate = { kind = 'pair', switches = 1 } }\n[[flow]]\nfrom = 'h0'\nto = 'h1'\nbytes = '20KB'",
    );
    let scenario = &study.scenarios[0];
    let link = scenario.fabric.link("h1-s0").unwrap();
    let (file, bytes) = shared();
    let captures = Captures::new(vec![(link, Box::new(file))]);
    let run = one(scenario, 1, None, &Watch::default(), Some(&captures)).unwrap();
    captures.finish().unwrap();
    let bytes = bytes.lock().unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_3c4d);
    let (mut at, mut frames) = (24, 0);
    while at < bytes.len() {
        at += 16 + word(at + 8) as usize;
        frames += 1;
    }
    assert_eq!(at, bytes.len());
    let sent: u64 = run
        .links
        .iter()
        .filter(|side| side.name == "s0-h1")
        .map(|side| side.packets)
        .sum();
    assert!(frames > 5 && frames == sent, "{frames} of {sent}");
}

type Bytes = std::sync::Arc<std::sync::Mutex<Vec<u8>>>;

struct Shared(Bytes);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn shared() -> (Shared, Bytes) {
    let bytes = Bytes::default();
    (Shared(Bytes::clone(&bytes)), bytes)
}

/// Five switches in a ring; every flow goes two links round it, the same way, so that every link of the ring has two, and waits for
/// the next with both.
const RING: &str = "
[fabric.defaults]
link = { rate = '10Gb/s', delay = '1us' }
switch = { buffer = '1MB', ecn = [], pfc = { threshold = '50KB', quanta = 0 } }
[[fabric.host]]
name = 'h[0-4]'
[[fabric.switch]]
name = 's[0-4]'
[[fabric.link]]
ends = ['h[0-4]', 's[0-4]']
[[fabric.link]]
ends = ['s[0-4]', ['s[1-4]', 's0']]
[[flow]]
from = 'h[0-4]'
to = ['h[2-4]', 'h[0-1]']
";

#[test]
fn a_ring_that_deadlocks_is_reported() {
    let report = run(&format!(
        "run = {{ duration = '30ms', stop_at_deadlock = true }}
transport = {{ host = 'reference', congestion.control = 'none' }}
{RING}"
    ));
    let run = &report.runs[0];
    assert_eq!(run.ended, Ended::Deadlock);
    let [deadlock] = &run.deadlocks[..] else {
        panic!("{:?}", run.deadlocks)
    };
    assert_eq!((deadlock.priority, deadlock.cycle.len()), (3, 5));
    assert!(deadlock.cycle.contains(&"s4>s0".to_owned()), "{deadlock:?}");
    assert!(results::table::text(&report).contains("DEADLOCK in run 0 (seed 1): priority 3"));
}

#[test]
fn a_deadlock_before_the_end_of_the_warm_up_ends_the_run() {
    let report = run(&format!(
        "run = {{ duration = '60ms', warmup = '45ms', sample = '50ms', stop_at_deadlock = true }}
transport = {{ host = 'reference', congestion.control = 'none' }}
{RING}"
    ));
    assert_eq!(report.runs[0].ended, Ended::Deadlock);
}

/// Pauses are told again for ever, and the shipped transport excuses what waits for their end.
#[test]
fn a_run_without_a_duration_ends_with_its_deadlock() {
    for (host, quanta) in [("reference", 65_535), ("reference", 0), ("rc", 0)] {
        let ring = RING.replace("quanta = 0", &format!("quanta = {quanta}"));
        let report = run(&format!(
            "transport = {{ host = '{host}', congestion.control = 'none' }}\n{ring}bytes = '20MB'"
        ));
        let run = &report.runs[0];
        assert_eq!(run.ended, Ended::Deadlock, "{host} {quanta}");
        assert_eq!(run.deadlocks.len(), 1, "{host} {quanta}");
    }
}

#[test]
fn flow_mode_shares_links_max_min_fair() {
    // Two flows share a trunk of 10G; a third has what the first leaves of its own receiver's 25G link.
    let report = run("
run.mode = 'flow'
[fabric]
defaults.link = { rate = '25Gb/s', delay = '1us' }
generate = { kind = 'dumbbell', pairs = 3, trunk_rate = '10Gb/s' }
[[flow]]
from = ['l0', 'l1', 'r2']
to = ['r0', 'r1', 'r0']
bytes = '10MB'
");
    let run = &report.runs[0];
    assert_eq!((run.ended, run.mode), (Ended::FlowsDone, "flow"));
    let goodput: Vec<_> = run
        .flows
        .iter()
        .map(|flow| flow.goodput_bps / 1e9)
        .collect();
    // 0.98 of a link is payload.
    assert!(
        (goodput[0] - 4.9).abs() < 0.05 && (goodput[1] - 4.9).abs() < 0.05,
        "{goodput:?}"
    );
    assert!((goodput[2] - 19.6).abs() < 0.3, "{goodput:?}");
    let trunk = run
        .links
        .iter()
        .find(|link| link.from == "s0" && link.to == "s1")
        .unwrap();
    assert!(trunk.utilisation > 0.98, "{trunk:?}");
}

#[test]
fn flow_mode_and_packet_mode_agree_on_a_flow_alone() {
    for bytes in [1_000, 100_000, 10_000_000] {
        let text = format!(
            "fabric = {{ defaults.link.rate = '100G', generate = {{ kind = 'leaf-spine', leaves = 2, hosts_per_leaf = 2, spines = 2 }} }}\n[[flow]]\nfrom = 'h0'\nto = 'h3'\nbytes = {bytes}"
        );
        let study = read(&text);
        let fct = |mode| {
            super::study(&study, Some(mode), &Watch::default(), None)
                .unwrap()
                .runs[0]
                .flows[0]
                .fct_s
                .unwrap()
        };
        let (packets, rates) = (fct(Mode::Packet), fct(Mode::Flow));
        assert!(
            (packets / rates - 1.0).abs() < 0.06,
            "{bytes}: {packets} {rates}"
        );
    }
}
#[test]
fn time_that_hosts_are_paused_counts() {
    let incast = INCAST.replace(
        "generate",
        "defaults.switch = { buffer = '1MB', ecn = [] }\ngenerate",
    );
    let report = run(&format!(
        "run.duration = '3ms'\ntransport.congestion.control = 'none'\n{incast}"
    ));
    let run = &report.runs[0];
    let told = run.queues.iter().filter(|queue| queue.to != "h2");
    let pausing: f64 = told.map(|queue| queue.pausing_s).sum();
    assert!(run.totals.pauses > 0 && run.totals.paused_s == pausing);
    // Each of two senders is silent half of the time, but for what fills the buffer at first, and ends the frame that it has begun.
    let frames = run.totals.pauses as f64 * 4200.0 * 8.0 / 25e9;
    assert!(
        pausing > 0.002 && pausing - frames < 0.003,
        "{pausing} {frames}"
    );
}

/// However many flows a class has.
#[test]
fn classes_share_a_sender_by_their_weights() {
    let report = run(
        "run = { duration = '4ms', warmup = '1ms' }
transport.congestion.control = 'none'
fabric = { defaults.link.rate = '25G', generate = { kind = 'pair', switches = 1 } }
class = [{ name = 'a', dscp = 8, weight = 3 }, { name = 'b', dscp = 26 }, { name = 'c', dscp = 40, weight = 6 }]
flow = [{ from = 'h0', to = 'h1', class = 'a' }, { from = 'h0', to = 'h1', class = 'b' }, { from = 'h0', to = 'h1', class = 'c', count = 2 }]",
    );
    let flows = &report.runs[0].flows;
    let all: f64 = flows.iter().map(|flow| flow.goodput_bps).sum();
    for (class, weight) in [("a", 3.0), ("b", 1.0), ("c", 6.0)] {
        let of = flows.iter().filter(|flow| flow.class == class);
        let share = of.map(|flow| flow.goodput_bps).sum::<f64>() / all;
        let fair = weight / 10.0;
        assert!((share / fair - 1.0).abs() < 0.02, "{class}: {share}");
    }
}

#[test]
fn a_fixed_rate_is_kept() {
    let report = run(&format!(
        "run = {{ duration = '1ms', warmup = '200us' }}\ntransport.congestion = {{ control = 'fixed', rate = '5G' }}\n{INCAST}"
    ));
    let run = &report.runs[0];
    let line = 5e9;
    for flow in &run.flows {
        assert!((flow.goodput_bps / line - 0.98).abs() < 0.02, "{flow:?}");
    }
}

#[test]
fn a_flow_without_an_end_holds_up_no_other_of_its_pair() {
    let report = run("
run = { duration = '200us' }
transport.connections = 'pair'
fabric = { defaults.link.rate = '25G', generate = { kind = 'pair', switches = 1 } }
flow = [{ from = 'h0', to = 'h1' }, { from = 'h0', to = 'h1', bytes = 1000, start = '10us' }]
");
    let run = &report.runs[0];
    let [endless, short] = &run.flows[..] else {
        panic!("{:?}", run.flows)
    };
    assert!(short.fct_s.is_some(), "{short:?}");
    assert_eq!(run.totals.bytes, endless.delivered + short.delivered);
    assert!(run.totals.paused_s.is_sign_positive());
}
