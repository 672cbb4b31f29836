//! What many QPs cost: instructions and time per packet with 1, 1 000 and 100 000 of them, and the memory of an idle one.
//!
//! Instructions are counted by callgrind, since virtual machines seldom have the counters: this program runs itself under it.

use std::{process::Command, time::Instant};

use rocexdp_proto::{
    CreateQp, Endpoint, EndpointConfig,
    ids::{PathMtu, Qpn, WrId},
    verbs::{CompletionQueue, Segment, SendOp, SendWr},
};

use crate::{
    ground::{live, noted},
    rig::{End, Rig, VA},
};

const QPS: [u32; 3] = [1, 1000, 100_000];
/// Depth of the queues where there are many.
const DEPTH: u32 = 4;
/// Bytes of each WRITE: small, so that what the QP costs shows.
const LEN: u32 = 64;
/// Exchanges under callgrind.
const COUNTED: u32 = 20_000;
/// Aim of the instructions: this near each other.
const NEAR: f64 = 2.0;
/// Aim of the memory of an idle QP besides its queues, bytes.
const IDLE: f64 = 1024.0;

/// The next QP: far from the one before, so that neighbours do not share what a prefetcher brings.
fn next(qp: u32, qps: u32) -> u32 {
    (qp + ((f64::from(qps) * 0.618) as u32 | 1)) % qps
}

/// A WRITE over a QP, not yet sent.
fn post(rig: &mut Rig, qp: u32) {
    let at = u64::from(qp % 1000) * 64;
    let local = Segment::new(rig.ends[0].memory.clone(), at, LEN);
    let (va, rkey) = (VA + at, rig.ends[1].region.rkey);
    let wr = SendWr::new(WrId(1), SendOp::Write { va, rkey }, local);
    assert!(rig.post_send(qp as usize, wr), "a WRITE is taken");
}

/// Request out, request in, answer out, answer in.
fn exchange(rig: &mut Rig) {
    rig.counted_transmit(0);
    rig.counted_receive(1);
    rig.counted_transmit(1);
    rig.counted_receive(0);
    while rig.ends[0].cq.poll().is_some() {}
}

/// What callgrind watches.
pub fn count(qps: u32) {
    let mut rig = Rig::new(qps, DEPTH, PathMtu::Mtu1024);
    // Each QP once, not counted: what a QP needs for sending is allocated when it first sends.
    for qp in 0..qps {
        post(&mut rig, qp);
        for end in [0, 1] {
            rig.transmit(end);
            rig.receive(1 - end);
        }
        while rig.ends[0].cq.poll().is_some() {}
    }
    let mut qp = 0;
    for _ in 0..COUNTED {
        qp = next(qp, qps);
        post(&mut rig, qp);
        exchange(&mut rig);
    }
    assert_eq!(
        rig.ends[1].endpoint.counters().accepted,
        u64::from(COUNTED + qps)
    );
}

/// Prints the instructions per packet; how many aims were missed.
pub fn instructions() -> u32 {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions: n/a (valgrind is not installed)\n");
        return 0;
    }
    let me = std::env::current_exe().expect("this program has a path");
    println!(
        "instructions per exchange of a WRITE of {LEN} B and its ACK (four packets made or taken), QPs in turn (callgrind)"
    );
    let (mut first, mut missed) = (None, 0);
    for qps in QPS {
        let run = Command::new("valgrind")
            .args([
                "--tool=callgrind",
                "--callgrind-out-file=/dev/null",
                "--collect-atstart=no",
                "--toggle-collect=*counted_*",
            ])
            .arg(&me)
            .args(["count", &qps.to_string()])
            .output()
            .expect("valgrind runs");
        let text = String::from_utf8_lossy(&run.stderr);
        let total: Option<f64> = text
            .lines()
            .find_map(|l| l.split("Collected :").nth(1)?.trim().parse().ok());
        let Some(total) = total.filter(|_| run.status.success()) else {
            panic!("callgrind counted nothing: {text}");
        };
        let each = total / f64::from(COUNTED);
        let first = *first.get_or_insert(each);
        let off = (each / first - 1.0) * 100.0;
        missed += u32::from(off.abs() > NEAR);
        println!("{qps:>8} QPs {each:>9.1}  {off:+.2} %");
    }
    println!(
        "aim: within {NEAR} % of each other ({})\n",
        if missed == 0 { "met" } else { "missed" }
    );
    missed
}

/// Prints the time per exchange where each one finds its QP's state in no cache, beside one QP's.
pub fn cold() {
    println!(
        "nanoseconds per exchange of a WRITE of {LEN} B and its ACK, QPs in turn, fastest of 5 rounds"
    );
    for qps in QPS {
        let mut rig = Rig::new(qps, DEPTH, PathMtu::Mtu1024);
        let mut qp = 0;
        let mut best = f64::MAX;
        for _ in 0..5 {
            let mut ns = 0;
            for _ in 0..qps.max(20_000) {
                qp = next(qp, qps);
                post(&mut rig, qp);
                let start = Instant::now();
                exchange(&mut rig);
                ns += start.elapsed().as_nanos() as u64;
            }
            best = best.min(ns as f64 / f64::from(qps.max(20_000)));
        }
        println!("{qps:>8} QPs {best:>8.0}");
    }
    println!();
}

/// Bytes of each of `n` idle QPs of an endpoint, with queues of this depth.
fn idle(n: u32, depth: u32) -> f64 {
    let before = live();
    let end = End::new(0, n, depth, PathMtu::Mtu1024);
    let of_all = live() - before;
    let none = live();
    drop(end);
    let before = live();
    let alone = End::new(0, 0, depth, PathMtu::Mtu1024);
    let of_none = live() - before;
    drop(alone);
    assert!(none > live(), "it was freed");
    (of_all - of_none) as f64 / f64::from(n)
}

/// Prints the memory of an idle QP; how many aims were missed.
pub fn memory() -> u32 {
    // What doubles as it grows (tables of all QPs) is filled alike at both depths, and to the brim of a power of two.
    let n = 1 << 16;
    let (shallow, deep) = (idle(n, 1), idle(n, 17));
    let per_entry = (deep - shallow) / 16.0;
    let besides = shallow - per_entry;
    let met = besides <= IDLE;
    println!("memory of an idle QP in RTS, of {n}");
    println!(
        "{besides:>8.0} B besides what grows with its queues, aim {IDLE:.0} ({})",
        if met { "met" } else { "missed" }
    );
    println!(
        "{per_entry:>8.0} B for each entry of its send queue and its receive queue together ({:.0} KiB at 128 deep each)",
        per_entry * 128.0 / 1024.0
    );
    let cq = std::sync::Arc::new(CompletionQueue::new(16));
    let mut endpoint = Endpoint::new(EndpointConfig::default(), 1);
    let mut create = |qpn| {
        let create = CreateQp {
            max_send: 1,
            max_recv: 1,
            ..CreateQp::rc(Qpn::new(qpn), &cq, &cq)
        };
        drop(endpoint.create_qp(create));
    };
    // The first ones make the endpoint's own tables grow.
    for qpn in 2..1000 {
        create(qpn);
    }
    let sizes = noted(|| create(1000));
    println!("its allocations with queues of one entry, bytes: {sizes:?}\n");
    u32::from(!met)
}
