//! Nanoseconds and allocations per packet, per operation, at each of the four places where a packet costs: the requester
//! makes it, the responder takes it, makes the answer, and the requester takes that.
//!
//! Messages are of one packet, which is the dearest: each one is posted, completed and acknowledged. Beside it, in the same
//! run, the least that carrying its payload takes: one copy and one CRC, by the same crate, over the same memory.

use std::{hint::black_box, time::Instant};

use rocexdp_common::headers::{Feth, FlushRange};
use rocexdp_proto::{
    SelectiveRepeat, Transport,
    ids::{PathMtu, WrId},
    verbs::{Segment, SendOp, SendWr},
    wire::GRH_ROOM,
};

use crate::{
    ground::allocations,
    rig::{MEMORY, Rig, VA},
};

/// Batches measured, and those before, which fill caches and queues.
const BATCHES: usize = 4000;
const WARM: usize = 200;

/// A row: name, operation, bytes, and messages in a batch.
struct Case {
    name: String,
    transport: Transport,
    /// Selective repeat over one path.
    selective: bool,
    op: fn(&Rig, u64) -> SendOp,
    len: u32,
    batch: usize,
    path_mtu: PathMtu,
    recv: bool,
}

/// Where the cost falls.
const PLACES: [&str; 4] = ["request out", "request in", "answer out", "answer in"];

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |name: &str, len: u32, batch: usize, op: fn(&Rig, u64) -> SendOp, recv: bool| {
        let transport = match name.get(..2) {
            Some("UC") => Transport::Uc,
            Some("UD") => Transport::Ud,
            _ => Transport::Rc,
        };
        let size = if len >= 1024 {
            format!("{} KiB", len / 1024)
        } else {
            format!("{len} B")
        };
        all.push(Case {
            name: format!("{name} {size}"),
            transport,
            selective: name.starts_with("SR"),
            op,
            len,
            batch,
            path_mtu: if len <= 1024 {
                PathMtu::Mtu1024
            } else {
                PathMtu::Mtu4096
            },
            recv,
        });
    };
    for len in [1024, 4096] {
        add("SEND", len, 32, |_, _| SendOp::Send, true);
        add("WRITE", len, 32, write, false);
        add(
            "WRITE with immediate",
            len,
            32,
            |rig, at| {
                let (va, rkey) = (VA + at, rig.ends[1].region.rkey);
                SendOp::WriteImm { va, rkey, imm: 7 }
            },
            true,
        );
        add("READ", len, 16, read, false);
    }
    for len in [64, 1024, 4096] {
        add("UC SEND", len, 32, |_, _| SendOp::Send, true);
        add("UC WRITE", len, 32, write, false);
        add("UD SEND", len, 32, |_, _| SendOp::Send, true);
    }
    for len in [1024, 4096] {
        add("SR SEND", len, 32, |_, _| SendOp::Send, true);
        add("SR WRITE", len, 32, write, false);
        add("SR READ", len, 16, read, false);
    }
    add("SR WRITE in 16 packets", 16 * 4096, 4, write, false);
    add("SR READ in 16 packets", 16 * 4096, 4, read, false);
    add("WRITE in 16 packets", 16 * 4096, 4, write, false);
    add("READ in 16 packets", 16 * 4096, 4, read, false);
    add(
        "FETCH_ADD",
        8,
        16,
        |rig, at| SendOp::FetchAdd {
            va: VA + at,
            rkey: rig.ends[1].region.rkey,
            add: 1,
        },
        false,
    );
    add(
        "COMPARE_SWAP",
        8,
        16,
        |rig, at| SendOp::CompareSwap {
            va: VA + at,
            rkey: rig.ends[1].region.rkey,
            compare: 1,
            swap: 2,
        },
        false,
    );
    add(
        "ATOMIC WRITE",
        8,
        16,
        |rig, at| SendOp::AtomicWrite {
            va: VA + at,
            rkey: rig.ends[1].region.rkey,
        },
        false,
    );
    add(
        "FLUSH",
        0,
        16,
        |rig, at| SendOp::Flush {
            va: VA + at,
            rkey: rig.ends[1].region.rkey,
            len: 64,
            what: Feth {
                global_visibility: true,
                persistence: false,
                placement_reserved: 0,
                selectivity: FlushRange::Range,
            },
        },
        false,
    );
    all
}

fn write(rig: &Rig, at: u64) -> SendOp {
    let (va, rkey) = (VA + at, rig.ends[1].region.rkey);
    SendOp::Write { va, rkey }
}

fn read(rig: &Rig, at: u64) -> SendOp {
    let (va, rkey) = (VA + at, rig.ends[1].region.rkey);
    SendOp::Read { va, rkey }
}

/// What a batch cost in one place.
#[derive(Clone, Copy, Default)]
struct Cost {
    packets: u64,
    ns: u64,
    allocations: u64,
}

/// One batch of messages there and back. `None`: the transport does not carry the operation out.
fn batch(rig: &mut Rig, case: &Case, at: &mut u64) -> Option<[Cost; 4]> {
    for _ in 0..case.batch {
        let end = MEMORY as u64 - u64::from(case.len) - GRH_ROOM as u64;
        *at = ((*at + u64::from(case.len.max(64))) % end) & !63;
        if case.recv {
            let room = match case.transport {
                Transport::Ud => GRH_ROOM as u32,
                _ => 0,
            };
            rig.post_recv(0, *at, case.len + room);
        }
        let local = Segment::new(rig.ends[0].memory.clone(), *at, case.len);
        let mut wr = SendWr::new(WrId(1), (case.op)(rig, *at), local);
        if case.transport == Transport::Ud {
            wr = wr.to(rig.to_peer.clone());
        }
        if !rig.post_send(0, wr) {
            return None;
        }
    }
    let mut costs = [Cost::default(); 4];
    // Until nothing more comes: READs are asked for in chunks.
    loop {
        let mut moved = 0;
        for (place, cost) in costs.iter_mut().enumerate() {
            let (before, start) = (allocations(), Instant::now());
            let packets = match place {
                0 => rig.counted_transmit(0),
                1 => rig.counted_receive(1),
                2 => rig.counted_transmit(1),
                _ => rig.counted_receive(0),
            };
            cost.ns += start.elapsed().as_nanos() as u64;
            cost.packets += packets as u64;
            cost.allocations += allocations() - before;
            moved += packets;
        }
        if moved == 0 {
            break;
        }
    }
    let done = rig.completions(0);
    assert_eq!(done, case.batch, "{}", case.name);
    rig.completions(1);
    Some(costs)
}

/// Copies and CRCs as many bytes as the operation's payload takes, between the same memory and frames: nanoseconds each.
fn baseline(rig: &mut Rig, memory: &[u8], len: usize) -> f64 {
    let (mut at, n) = (0, 32);
    let start = Instant::now();
    for (_, frame) in rig.frames.iter_mut().take(n) {
        at = (at + len) % (MEMORY - len);
        let payload = &mut frame[58..58 + len];
        payload.copy_from_slice(&memory[at..at + len]);
        let mut crc = crc32fast::Hasher::new();
        crc.update(payload);
        black_box(crc.finalize());
    }
    start.elapsed().as_nanos() as f64 / n as f64
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the table; how many times a packet allocated something.
pub fn measure(wanted: Option<&str>) -> u64 {
    println!(
        "nanoseconds per packet, medians of {BATCHES} batches; payload: one copy and one CRC of as many bytes, in turn with them\n"
    );
    print!("{:<28} {:>8}", "operation", "payload");
    for place in PLACES {
        print!(" {place:>12}");
    }
    println!(" {:>12}", "allocations");
    let memory: Vec<u8> = (0..MEMORY).map(|i| (i * 7) as u8).collect();
    let mut allocated = 0;
    for case in cases() {
        if wanted.is_none_or(|w| case.name.contains(w)) {
            allocated += row(&case, &memory);
        }
    }
    println!(
        "\nAn answer is one ACK for a batch of SENDs or WRITEs, which completes all of them where it comes in; one packet for \
         each packet of a READ and for each atomic. SR: selective repeat, which acknowledges READ requests and responses besides.\n"
    );
    allocated
}

fn row(case: &Case, memory: &[u8]) -> u64 {
    print!("{:<28}", case.name);
    let selective = case.selective.then_some(SelectiveRepeat { paths: 1 });
    let mut rig = Rig::of(case.transport, selective, 1, 64, case.path_mtu);
    let payload = (case.len as usize).clamp(1, case.path_mtu.bytes() as usize);
    let (mut at, mut allocated) = (0, 0);
    let (mut least, mut places) = (Vec::new(), [const { Vec::new() }; 4]);
    for n in 0..WARM + BATCHES {
        let Some(costs) = batch(&mut rig, case, &mut at) else {
            println!("n/a: the transport does not carry it out");
            return 0;
        };
        let base = baseline(&mut rig, memory, payload);
        if n < WARM {
            continue;
        }
        least.push(base);
        for (place, cost) in places.iter_mut().zip(costs) {
            if cost.packets > 0 {
                place.push(cost.ns as f64 / cost.packets as f64);
            }
            allocated += cost.allocations;
        }
    }
    print!(" {:>8.0}", median(&mut least));
    for place in &mut places {
        if place.is_empty() {
            print!(" {:>12}", "-");
        } else {
            print!(" {:>12.0}", median(place));
        }
    }
    println!(" {allocated:>12}");
    allocated
}
