//! `cargo xtask model`: the model test of the transport, on every core.
//!
//! The program is `rocexdp-model` of rocexdp-sim. It is built in the dev profile, which optimises the protocol's crates too and
//! keeps overflow checks.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::sh;

/// How many seeds CI runs; every opcode with every fault, and every status, occurs often enough among them.
pub const SEEDS: u64 = 12_000;

/// What to run.
pub struct Options<'a> {
    /// How many seeds.
    pub seeds: u64,
    /// The first one.
    pub from: u64,
    /// A program in text form instead.
    pub replay: Option<&'a Path>,
}

/// Runs the seeds, or a replay.
///
/// # Errors
/// A seed fails, or something that has to occur did not.
pub fn run(options: &Options<'_>) -> Result<()> {
    let mut cargo = program();
    match options.replay {
        Some(file) => cargo.arg("--replay").arg(std::path::absolute(file)?),
        None => cargo
            .args(["--seeds", &options.seeds.to_string()])
            .args(["--from", &options.from.to_string()]),
    };
    sh::run(&mut cargo)
}

fn program() -> Command {
    let mut cargo = sh::cargo();
    cargo.args([
        "run",
        "--quiet",
        "--package",
        "rocexdp-sim",
        "--bin",
        "rocexdp-model",
        "--",
    ]);
    cargo
}
