//! `cargo xtask bench proto`: what the transport costs, beside the least that its work can cost, in the same run.
//!
//! Arguments: none for all; `icrc`, `packets [NAME]`, `qps`, `memory` for one part; `count QPS` is what it runs itself as under
//! callgrind. Aims that do not depend on the machine's mood (allocations, instructions, bytes) make the run fail when missed.
// The core has no clock; what measures it has.
#![allow(clippy::disallowed_types)]

mod ground;
mod icrc;
mod packets;
mod qps;
mod rig;

use std::process::ExitCode;

fn main() -> ExitCode {
    // `cargo bench` adds an option of libtest's.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let missed = match args.as_slice() {
        [] => {
            icrc::measure();
            let allocated = packets::measure(None);
            qps::cold();
            judge(allocated) + qps::instructions() + qps::memory()
        }
        ["icrc"] => {
            icrc::measure();
            0
        }
        ["packets"] => judge(packets::measure(None)),
        ["packets", name] => judge(packets::measure(Some(name))),
        ["qps"] => {
            qps::cold();
            qps::instructions()
        }
        ["memory"] => qps::memory(),
        ["count", n] => {
            qps::count(n.parse().expect("a number of QPs"));
            0
        }
        other => {
            eprintln!("unknown {other:?}: icrc, packets [NAME], qps, memory, or nothing for all");
            return ExitCode::FAILURE;
        }
    };
    if missed == 0 {
        return ExitCode::SUCCESS;
    }
    println!("{missed} aim(s) missed");
    ExitCode::FAILURE
}

/// No packet may allocate.
fn judge(allocated: u64) -> u32 {
    if allocated > 0 {
        println!("packets allocated memory {allocated} times, aim 0 (missed)");
    }
    u32::from(allocated > 0)
}
