//! `cargo xtask fuzz`: the fuzz targets of `fuzz/`, each for a bounded time, on the stable compiler.
//!
//! `cargo fuzz` wants a nightly compiler for the address sanitizer, which has little to find in code without `unsafe`. What makes
//! libFuzzer see its way, the coverage that LLVM's own pass adds, stable has too: the flags here are those of `cargo fuzz
//! --sanitizer none`. Inputs found before and kept, `fuzz/corpus`, are where it starts. The layout of `fuzz/` is `cargo fuzz`'s, so that it can be used as well where nightly is.
//!
//! What the kernel runs has no coverage to follow: `cargo xtask fuzz xdp` gives its programs random and mutated packets, by
//! `BPF_PROG_TEST_RUN`, and compares verdict and maps with the pure function's.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{bpf, paths, sh};

/// Targets, and the longest input each is given, in bytes.
const TARGETS: &[(&str, u32)] = &[
    ("parser", 600),
    ("verdict", 6000),
    ("capture", 20_000),
    ("hostile", 2000),
    ("operations", 1000),
    ("cm", 1000),
];

/// The name of the programs in the kernel, beside [`TARGETS`].
pub const KERNEL: &str = "xdp";

/// As `cargo fuzz` sets them, without a sanitizer.
const FLAGS: &[&str] = &[
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Seconds that one input may take.
const SECONDS_PER_INPUT: u32 = 10;
/// Memory that a target may take, MiB.
const MEMORY_MIB: u32 = 1024;

/// Runs the target of this name, or all, each for `seconds`. Inputs found are kept in `target/fuzz/corpus` and used again.
///
/// # Errors
/// A build fails, or a target found an input that makes it fail; the message says how to repeat it.
pub fn run(seconds: u32, name: Option<&str>) -> Result<()> {
    let chosen: Vec<_> = TARGETS
        .iter()
        .filter(|(target, _)| name.is_none_or(|name| name == *target))
        .collect();
    if chosen.is_empty() {
        let all: Vec<_> = TARGETS.iter().map(|(target, _)| *target).collect();
        bail!(
            "no fuzz target `{}`: there are {}, {KERNEL}",
            name.unwrap_or_default(),
            all.join(", ")
        );
    }
    if sh::on_path("c++").is_none() {
        bail!("libFuzzer is built from C++, and there is no c++ here: install the package g++");
    }
    let home = paths::root().join("target").join("fuzz");
    let host = host()?;
    let programs = build(&home, &host)?;
    for (target, longest) in chosen {
        fuzz(&home, &programs, target, *longest, seconds)?;
    }
    Ok(())
}

/// Gives each program of the endpoint and of the monitor so many random and mutated packets.
///
/// # Errors
/// A build fails, root can't be had, or a packet's verdict or what it does to the maps is not the pure function's.
pub fn run_in_kernel(packets: u32, seed: u64) -> Result<()> {
    bpf::build()?;
    let mut cargo = sh::cargo();
    cargo
        .args(["test", "--package", "rocexdp-tests"])
        .args(["--test", "xdp_testrun", "--test", "monitor_testrun"])
        .args(["--", "--ignored", "--nocapture", "--test-threads=1"])
        .arg("random_and_mutated_packets")
        .env("ROCEXDP_XDP_PACKETS", packets.to_string())
        .env("ROCEXDP_XDP_SEED", seed.to_string());
    sh::programs_as_root(&mut cargo, "BPF_PROG_TEST_RUN")?;
    sh::run(&mut cargo)
}

/// The compiler's own target.
fn host() -> Result<String> {
    let version = sh::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|l| l.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_string())
}

/// A cargo for the fuzz package, whose output goes to a directory of its own.
fn cargo(home: &Path, command: &str) -> Command {
    let mut cargo = sh::cargo();
    cargo
        .args([command, "--locked", "--manifest-path"])
        .arg(paths::fuzz().join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", home.join("build"))
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo
}

/// Builds the targets and what they start from; returns the targets' directory.
fn build(home: &Path, host: &str) -> Result<PathBuf> {
    let mut seeds = cargo(home, "run");
    sh::run(
        seeds
            .args(["--quiet", "--example", "seeds", "--"])
            .arg(home.join("seeds")),
    )?;
    let mut targets = cargo(home, "build");
    // With `--target`, build scripts and macros are built without these flags, which they would not link with.
    sh::run(
        targets
            .args(["--release", "--bins", "--target", host])
            .env("RUSTFLAGS", FLAGS.join(" ")),
    )?;
    Ok(home.join("build").join(host).join("release"))
}

/// Runs one target.
fn fuzz(home: &Path, programs: &Path, target: &str, longest: u32, seconds: u32) -> Result<()> {
    let corpus = home.join("corpus").join(target);
    let artifacts = home.join("artifacts").join(target);
    for dir in [&corpus, &artifacts] {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let program = programs.join(target);
    let mut command = Command::new(&program);
    command
        .args([
            format!("-max_total_time={seconds}"),
            format!("-timeout={SECONDS_PER_INPUT}"),
            format!("-rss_limit_mb={MEMORY_MIB}"),
            format!("-max_len={longest}"),
            // The trailing separator makes it a directory.
            format!("-artifact_prefix={}/", artifacts.display()),
            "-print_final_stats=1".into(),
            "-verbosity=0".into(),
        ])
        .arg(&corpus)
        .arg(home.join("seeds").join(target));
    let kept = paths::fuzz().join("corpus").join(target);
    if kept.is_dir() {
        command.arg(kept);
    }
    sh::run(&mut command).with_context(|| {
        format!(
            "fuzz target `{target}` failed: the input is in {}; `{} FILE` repeats it",
            artifacts.display(),
            program.display()
        )
    })
}
