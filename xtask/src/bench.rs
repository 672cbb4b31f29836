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
        Some((name, rest)) if name == "pcap" => pcap(rest),
        Some((name, rest)) if name == "proto" => proto(rest),
        Some((name, rest)) if name == "interop" => interop(rest),
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

/// `rocexdp pcap` against tshark (`rocexdp-observe/benches/pcap.rs`); needs no root.
fn pcap(args: &[String]) -> Result<()> {
    let binary = product::build(product::Profile::Release)?;
    let mut cargo = sh::cargo();
    cargo
        .args([
            "bench",
            "--package",
            "rocexdp-observe",
            "--bench",
            "pcap",
            "--",
            "--rocexdp",
        ])
        .arg(binary)
        .args(args);
    sh::run(&mut cargo)
}

/// The transport, without a network (`rocexdp-proto/benches/proto`); needs no root.
fn proto(args: &[String]) -> Result<()> {
    let mut cargo = sh::cargo();
    cargo
        .args([
            "bench",
            "--package",
            "rocexdp-proto",
            "--bench",
            "proto",
            "--",
        ])
        .args(args);
    sh::run(&mut cargo)
}

/// rocexdp beside the kernel's Soft-RoCE in one virtual machine (`tests/benches/beside.rs`), which is only driven from here: what is measured
/// is the binary.
fn interop(args: &[String]) -> Result<()> {
    let binary = product::build(product::Profile::Release)?;
    let mut cargo = sh::cargo();
    cargo
        .args(["bench", "--profile", "dev", "--package", "rocexdp-tests"])
        .args(["--bench", "beside", "--"])
        .args(args)
        .env("ROCEXDP_BIN", binary);
    sh::programs_as_root(&mut cargo, "a virtual machine with a tap")?;
    sh::run(&mut cargo)
}
