//! `cargo xtask bench`: the benchmarks. Each prints its cost beside a baseline of the same run.

use anyhow::Result;

use crate::{bpf, product, sh};

/// Runs the benchmark that the first argument names; without one of these names, `rocexdp bench` with all arguments.
///
/// # Errors
/// A build fails, root can't be had, or the benchmark fails.
pub fn run(args: Vec<String>) -> Result<()> {
    match args.split_first() {
        Some((name, rest)) if name == "xdp" => xdp(rest),
        _ => product::bench(args),
    }
}

/// The XDP program against a bare redirect (`tests/benches/xdp.rs`).
fn xdp(args: &[String]) -> Result<()> {
    bpf::build()?;
    bpf::build_bench()?;
    let mut cargo = sh::cargo();
    cargo
        .args([
            "bench",
            "--package",
            "rocexdp-tests",
            "--bench",
            "xdp",
            "--",
        ])
        .args(args);
    sh::programs_as_root(&mut cargo, "BPF_PROG_TEST_RUN")?;
    sh::run(&mut cargo)
}
