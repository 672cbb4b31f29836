//! What a packet-hop costs: `cargo run --release -p rocexdp-sim --example hops [big]`.
//!
//! Networks of hosts that run the shipped transport, each for some simulated time: packets sent on links (hops, acknowledgements
//! and all), and the time that one took. The baseline is one event pushed to and popped from a `BinaryHeap` in the same run:
//! machines differ, the quotient less. `big` adds the leaf-spine of 1024 hosts for 5 ms.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark reads the clock, and the file that tells its memory"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Duration;

use rocexdp_common::fault::Faults;
use rocexdp_proto::EndpointConfig;
use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::rng::Rng;
use rocexdp_proto::time::Rate;
use rocexdp_sim::net::rc::{Connection, Message, Op, RcHost};
use rocexdp_sim::net::{Network, Options};
use rocexdp_sim::picos::Picos;
use rocexdp_sim::switch::{
    EcnConfig, MarkOn, PfcConfig, PfcThreshold, PortConfig, Scheduler, SwitchConfig, headroom,
};
use rocexdp_sim::topology::{
    HostId, HostSpec, LinkSpec, Node, PortId, SwitchId, SwitchSpec, Topology,
};
use rustix::time::{ClockId, clock_gettime};

/// Parts of a measurement: the fastest tells what the code costs, the mean what the machine made of it.
const SLICES: u64 = 20;
const RATE: Rate = Rate::from_gbps(100);
const DELAY: Picos = Picos::from_micros(1);

/// Nanoseconds that this process has had of a processor: what others take of a busy machine does not count.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds to push and pop an event among so many.
fn heap(waiting: u64) -> f64 {
    let mut rng = Rng::new(7);
    let mut heap = BinaryHeap::new();
    for n in 0..waiting {
        heap.push(Reverse((rng.below(1 << 20), n, 0u32)));
    }
    const ROUNDS: u64 = 100_000;
    let slices = (0..SLICES).map(|slice| {
        let start = cpu();
        for n in 0..ROUNDS {
            if let Some(Reverse((at, _, what))) = heap.pop() {
                let number = waiting + slice * ROUNDS + n;
                heap.push(Reverse((at + rng.below(1 << 20), number, what)));
            }
        }
        black_box(&heap);
        (cpu() - start) / ROUNDS as f64
    });
    slices.fold(f64::INFINITY, f64::min)
}

fn switch(name: String, ports: usize) -> SwitchSpec {
    let port = PortConfig {
        rate: RATE,
        delay: Duration::from_micros(1),
        ecn: [Some(EcnConfig {
            kmin: 400_000,
            kmax: 1_600_000,
            pmax: 0.2,
        }); 8],
        scheduler: Scheduler::Strict,
        headroom: headroom(RATE, Duration::from_micros(1), Duration::ZERO, 5_000),
        alpha: None,
    };
    SwitchSpec {
        name,
        config: SwitchConfig {
            ports: vec![port; ports],
            buffer: 32 << 20,
            reserved: 4096,
            mark_on: MarkOn::Dequeue,
            pfc: Some(PfcConfig {
                priorities: core::array::from_fn(|p| p == 0),
                threshold: PfcThreshold::Dynamic(0.125),
                resume_offset: 3 << 10,
                quanta: None,
            }),
            tail_drop: None,
        },
    }
}

fn link(a: Node, b: Node) -> LinkSpec {
    LinkSpec {
        ends: [a, b],
        rate: RATE,
        delay: DELAY,
        overhead: 0,
        faults: [Faults::default(); 2],
        down: Vec::new(),
    }
}

/// `leaves` switches with `per_leaf` hosts each, joined by `spines` switches; one leaf without spines is a star.
fn leaf_spine(leaves: u32, per_leaf: u32, spines: u32) -> Topology {
    let hosts = (0..leaves * per_leaf).map(|h| HostSpec {
        name: format!("h{h}"),
    });
    let leaf = (0..leaves).map(|l| switch(format!("leaf{l}"), (per_leaf + spines) as usize));
    let spine = (0..spines).map(|s| switch(format!("spine{s}"), leaves as usize));
    let mut links = Vec::new();
    for l in 0..leaves {
        for h in 0..per_leaf {
            let host = Node::Host(HostId(l * per_leaf + h));
            links.push(link(host, Node::Switch(SwitchId(l))));
        }
        for s in 0..spines {
            let spine = Node::Switch(SwitchId(leaves + s));
            links.push(link(Node::Switch(SwitchId(l)), spine));
        }
    }
    Topology {
        hosts: hosts.collect(),
        switches: leaf.chain(spine).collect(),
        links,
    }
}

/// Who sends to whom.
enum Pattern {
    /// Each host to `flows` others.
    Spread { flows: u32 },
    /// All to host 0.
    Incast,
}

fn build(topology: Topology, pattern: &Pattern, with: &Connection) -> Network<RcHost> {
    let n = topology.hosts.len() as u32;
    let config = EndpointConfig {
        line_rate: Some(RATE),
        max_inflight_packets: 512,
        ..EndpointConfig::default()
    };
    let hosts = (0..n).map(|h| RcHost::new(HostId(h), core::slice::from_ref(&config), 1));
    let hosts = hosts.collect();
    let options = Options {
        seed: 1,
        ..Options::default()
    };
    let mut net = Network::new(topology, hosts, &options).expect("a network");
    let mut rng = Rng::new(3);
    let mut pairs = Vec::new();
    match pattern {
        Pattern::Incast => pairs.extend((1..n).map(|h| (h, 0))),
        Pattern::Spread { flows } => {
            for f in 0..*flows {
                // Half-way round, and with more flows to others too.
                let shift = if f == 0 {
                    n / 2
                } else {
                    1 + rng.below(u64::from(n - 1)) as u32
                };
                pairs.extend((0..n).map(|h| (h, (h + shift) % n)));
            }
        }
    }
    for (a, b) in pairs {
        let ends = RcHost::connect(net.hosts_mut([HostId(a), HostId(b)]), [PortId(0); 2], with);
        let [end, _] = ends.expect("a connection");
        net.host_mut(HostId(a)).post(
            end,
            Message {
                tag: 0,
                start: Picos::ZERO,
                bytes: u64::MAX,
                op: Op::Write,
            },
        );
    }
    net
}

/// Resident memory, MB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|n| n.parse::<f64>().ok());
    pages.unwrap_or(0.0) * 4096.0 / 1e6
}

fn measure(name: &str, mut net: Network<RcHost>, span: Picos, per_event: f64) {
    // Until everything has its size, and queues are as they stay.
    net.run_until(Picos(span.0 / 4));
    let before = net.work();
    let (mut took, mut least, mut last) = (0.0, f64::INFINITY, before.1);
    for slice in 1..=SLICES {
        let start = cpu();
        net.run_until(Picos(span.0 / 4 + span.0 * slice / SLICES));
        let ns = cpu() - start;
        let hops = net.work().1;
        least = least.min(ns / (hops - last) as f64);
        (took, last) = (took + ns / 1e9, hops);
    }
    let after = net.work();
    let (events, hops) = (after.0 - before.0, after.1 - before.1);
    let totals = net.totals();
    assert!(totals.balance(), "{totals:?}");
    println!(
        "{name:<30} {hops:>10} {:>7.2} {:>6.0} {:>6.0} {:>7.1} {:>7.2} {:>7.0} {:>7.1} {:>5.0}",
        events as f64 / hops as f64,
        took * 1e9 / hops as f64,
        least,
        least / per_event,
        1e3 / least,
        net.waiting() as f64,
        took,
        memory(),
    );
    assert_eq!(totals.lost(), 0, "{totals:?}");
}

fn main() {
    let big = std::env::args().any(|a| a == "big");
    let only = std::env::args().nth(1).filter(|a| a != "big");
    let base = [16, 1024, 65_536].map(|n| (n, heap(n)));
    for (n, ns) in base {
        println!("BinaryHeap of {n}: pop and push {ns:.1} ns");
    }
    let base = base[1].1;
    println!(
        "{:<30} {:>10} {:>7} {:>6} {:>6} {:>7} {:>7} {:>7} {:>7} {:>5}",
        "network", "hops", "ev/hop", "mean", "least", "x heap", "Mhop/s", "events", "s", "MB"
    );
    let small = Connection::default();
    let large = Connection {
        path_mtu: PathMtu::Mtu4096,
        ..Connection::default()
    };
    let selective = Connection {
        selective: Some(rocexdp_proto::SelectiveRepeat { paths: 1 }),
        ..Connection::default()
    };
    let run = |name: &str, net: &dyn Fn() -> Network<RcHost>, us: u64| {
        if only.as_deref().is_none_or(|o| name.contains(o)) {
            measure(name, net(), Picos::from_micros(us), base);
        }
    };
    let one = Pattern::Spread { flows: 1 };
    run(
        "pair, MTU 1024",
        &|| build(leaf_spine(1, 2, 0), &one, &small),
        40_000,
    );
    run(
        "pair, MTU 4096",
        &|| build(leaf_spine(1, 2, 0), &one, &large),
        100_000,
    );
    run(
        "pair, selective repeat",
        &|| build(leaf_spine(1, 2, 0), &one, &selective),
        40_000,
    );
    run(
        "incast 8:1",
        &|| build(leaf_spine(1, 9, 0), &Pattern::Incast, &small),
        60_000,
    );
    for (leaves, hosts, spines) in [(2, 4, 4), (4, 8, 8), (8, 16, 16), (32, 32, 32)] {
        let n = leaves * hosts;
        run(
            &format!("leaf-spine, {n} hosts"),
            &|| build(leaf_spine(leaves, hosts, spines), &one, &small),
            50_000 / u64::from(n),
        );
    }
    for flows in [16, 128] {
        run(
            &format!("32 hosts, {flows} flows each"),
            &|| build(leaf_spine(4, 8, 8), &Pattern::Spread { flows }, &small),
            1_000,
        );
    }
    if big {
        run(
            "leaf-spine, 1024 hosts, 5 ms",
            &|| build(leaf_spine(32, 32, 32), &one, &small),
            4_000,
        );
    }
}
