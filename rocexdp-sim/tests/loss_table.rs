//! How much of a lossy link one QP's WRITEs and READs use, as tables that are kept: a change of one shows in a diff.
//!
//! One QP, 100 Gb/s, 1 MiB messages, no congestion control; loss at random, of what goes the way of the data only (the requests
//! of WRITEs, the responses of READs) unless a table says otherwise, so that the figures compare with those of other simulators (go-back-N in the HPCC and ConWeave ns-3 models: 0.92, 0.58 and 0.27 at 0.1, 1 and 5 %
//! and a round trip of 4 us, 1000 B packets). A share of 1 is what plain RC packets of that size carry over the full link.
//!
//! `ROCEXDP_BLESS=1 cargo test -p rocexdp-sim --test loss_table` writes the table anew.

#![allow(clippy::disallowed_methods)] // The kept table is a file.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use rocexdp_common::fault::{Faults, Share};
use rocexdp_proto::ids::{PathMtu, WrId};
use rocexdp_proto::mem::{Access, Segment};
use rocexdp_proto::time::{Rate, Timestamp};
use rocexdp_proto::verbs::{SendOp, SendWr, Status};
use rocexdp_proto::{EndpointConfig, SelectiveRepeat};
use rocexdp_sim::memory::NoBytes;
use rocexdp_sim::pair::{Pair, PairConfig};

const RATE: Rate = Rate::from_gbps(100);
const MESSAGE: u32 = 1 << 20;
/// Messages of a run; the first ones only fill the link.
const MESSAGES: u64 = 24;
const WARM_UP: u64 = 4;
const SEEDS: u64 = 3;
/// Requests posted at a time.
const DEPTH: u64 = 8;
/// Loss in millionths.
const LOSSES: [(u32, &str); 5] = [
    (0, "0"),
    (100, "0.01 %"),
    (1_000, "0.1 %"),
    (10_000, "1 %"),
    (50_000, "5 %"),
];

/// Bytes of a frame with a full payload: Ethernet, IPv4, UDP, BTH, ICRC.
const fn frame(payload: u32) -> u32 {
    14 + 20 + 8 + 12 + payload + 4
}

/// What a table is of.
#[derive(Clone, Copy, Debug)]
struct Case {
    title: &'static str,
    /// READs instead of WRITEs.
    reads: bool,
    /// Selective repeat over so many paths; 0: go-back-N.
    paths: u8,
    /// Both ways lose, so requests of READs and acknowledgements too.
    both: bool,
}

const CASES: [Case; 7] = [
    case("go-back-N, WRITE", false, 0, false),
    case("go-back-N, READ", true, 0, false),
    case("selective repeat, WRITE", false, 1, false),
    case("selective repeat, READ", true, 1, false),
    case("selective repeat, WRITE, both ways lose", false, 1, true),
    case("selective repeat, READ, both ways lose", true, 1, true),
    case(
        "selective repeat, WRITE, 4 paths, both ways lose",
        false,
        4,
        true,
    ),
];

const fn case(title: &'static str, reads: bool, paths: u8, both: bool) -> Case {
    Case {
        title,
        reads,
        paths,
        both,
    }
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    rtt: Duration,
    mtu: PathMtu,
    loss: u32,
}

/// The share of the link that one run got.
fn run(case: Case, cell: Cell, seed: u64) -> f64 {
    let bdp =
        RATE.as_bps() as f64 / 8.0 * cell.rtt.as_secs_f64() / f64::from(frame(cell.mtu.bytes()));
    let endpoint = EndpointConfig {
        // What is in flight is bounded by the link and the acknowledgements, not by this.
        max_inflight_packets: (2.0 * bdp) as u32 + 64,
        ack_req_interval: 8,
        ..EndpointConfig::default()
    };
    let wire = Faults {
        delay_ns: cell.rtt.as_nanos() as u64 / 2,
        seed,
        ..Faults::default()
    };
    let lossy = Faults {
        drop: Share::ratio(cell.loss, 1_000_000),
        ..wire
    };
    let config = PairConfig {
        endpoint: [endpoint.clone(), endpoint],
        faults: match case {
            Case { both: true, .. } => [
                lossy,
                Faults {
                    seed: !seed,
                    ..lossy
                },
            ],
            Case { reads: true, .. } => [wire, lossy],
            _ => [lossy, wire],
        },
        selective: (case.paths > 0).then_some(SelectiveRepeat { paths: case.paths }),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        link_rate: Some(RATE),
        path_mtu: cell.mtu,
        // 524 us.
        timeout: 7,
        seed,
        ..PairConfig::default()
    };
    let mut pair = Pair::new(&config);
    let length = u64::from(MESSAGE) * DEPTH;
    let memory = std::sync::Arc::new(NoBytes(length));
    let region = pair.ends[1]
        .endpoint
        .register_memory(
            std::sync::Arc::new(NoBytes(length)),
            0,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        )
        .unwrap();
    let mut posted = 0;
    let mut done = 0;
    let mut begin = Timestamp::ZERO;
    while done < MESSAGES {
        // The link is still full when the last one that counts completes: a tail is no share of it.
        while posted - done < DEPTH {
            let at = posted % DEPTH * u64::from(MESSAGE);
            let rkey = region.rkey;
            let op = if case.reads {
                SendOp::Read { va: at, rkey }
            } else {
                SendOp::Write { va: at, rkey }
            };
            let segment = Segment::new(memory.clone(), at, MESSAGE);
            pair.post_send(0, SendWr::new(WrId(posted), op, segment))
                .expect("the queue has room");
            posted += 1;
        }
        assert!(pair.run_until_completions(0, 1, Duration::from_secs(1)));
        for cqe in pair.completions(0) {
            assert_eq!((cqe.status, cqe.wr_id), (Status::Success, WrId(done)));
            done += 1;
            if done == WARM_UP {
                begin = pair.now();
            }
        }
    }
    let bytes = (MESSAGES - WARM_UP) * u64::from(MESSAGE);
    let time = pair.now().saturating_since(begin).as_secs_f64();
    let best = RATE.as_bps() as f64 / 8.0 * f64::from(cell.mtu.bytes())
        / f64::from(frame(cell.mtu.bytes()));
    bytes as f64 / time / best
}

fn table(case: Case) -> (String, Vec<(Cell, f64)>) {
    let mut out = format!("{}\n{:>6} {:>6}", case.title, "rtt", "packet");
    for (_, name) in LOSSES {
        let _ = write!(out, " {name:>7}");
    }
    out.push('\n');
    let mut cells = Vec::new();
    for micros in [4, 40] {
        for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
            let _ = write!(out, "{micros:>3} us {:>6}", mtu.bytes());
            for (loss, _) in LOSSES {
                let cell = Cell {
                    rtt: Duration::from_micros(micros),
                    mtu,
                    loss,
                };
                let sum: f64 = (1..=SEEDS).map(|seed| run(case, cell, seed)).sum();
                let share = sum / SEEDS as f64;
                let _ = write!(out, " {share:>7.3}");
                cells.push((cell, share));
            }
            out.push('\n');
        }
    }
    (out, cells)
}

#[test]
fn the_loss_table_is_what_it_was() {
    let tables = CASES.map(|case| (case, table(case)));
    let texts: Vec<&str> = tables.iter().map(|(_, (text, _))| text.as_str()).collect();
    compare(&texts.join("\n"));
    for (case, (_, cells)) in tables.iter().filter(|(case, _)| case.paths > 0) {
        for (cell, share) in cells {
            let aim = 0.95 * (1.0 - f64::from(cell.loss) / 1e6);
            let title = case.title;
            assert!(
                *share >= aim,
                "{title}: {share:.3} of at least {aim:.3}: {cell:?}"
            );
        }
    }
}

fn compare(text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loss_table.txt");
    if std::env::var_os("ROCEXDP_BLESS").is_some() {
        std::fs::write(&path, text).expect("the table can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "the table has changed; if that is meant, run again with ROCEXDP_BLESS=1. Kept:\n{kept}\nNow:\n{text}"
    );
}
