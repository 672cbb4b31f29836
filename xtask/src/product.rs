//! Builds the `rocexdp` binary with the eBPF objects inside, and runs it.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{bpf, sh};

/// How much time a build spends on the speed of what it builds: profiles of `Cargo.toml`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Not optimised but for the crates that packets pass.
    Dev,
    /// Optimised crate by crate: what tests and the demonstration run, built in a third of the time.
    Optimised,
    /// Optimised as a whole: what users run, and what is measured.
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Optimised => "optimised",
            Self::Release => "release",
        }
    }
}

/// Builds objects and binary; returns the binary's path.
///
/// # Errors
/// A build fails.
pub fn build(profile: Profile) -> Result<PathBuf> {
    bpf::build()?;
    let mut cargo = sh::cargo();
    // The diagnostics stay readable on standard error; the messages tell where the binary went, whatever the target directory.
    cargo.args([
        "build",
        "--package",
        "rocexdp",
        "--bin",
        "rocexdp",
        "--message-format=json-render-diagnostics",
        "--profile",
        profile.name(),
    ]);
    eprintln!(
        "+ cargo build --package rocexdp --profile {}",
        profile.name()
    );
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("building rocexdp failed ({})", output.status);
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .next_back()
        .context("cargo named no executable for rocexdp")
}

/// Builds the examples, which cargo puts beside the binary of the same profile.
///
/// # Errors
/// The build fails.
pub fn build_examples(profile: Profile) -> Result<()> {
    let examples = ["--package", "rocexdp", "--examples", "--profile"];
    sh::run(sh::cargo().arg("build").args(examples).arg(profile.name()))
}

/// `run`: the demonstration, or with arguments the daemon. Does not return on success.
///
/// The demonstration comes in the build that tests run: as quick, and there minutes sooner.
///
/// # Errors
/// A build fails, root can't be had, or the binary can't be started.
pub fn run(args: Vec<String>) -> Result<()> {
    if args.is_empty() {
        exec_as_root(Profile::Optimised, "demo", args)
    } else {
        exec_as_root(Profile::Release, "run", args)
    }
}

/// `bench`. Does not return on success.
///
/// # Errors
/// As [`run`].
pub fn bench(args: Vec<String>) -> Result<()> {
    exec_as_root(Profile::Release, "bench", args)
}

fn exec_as_root(profile: Profile, command: &str, args: Vec<String>) -> Result<()> {
    let binary = build(profile)?;
    let mut product = sh::as_root(binary, "XDP and network namespaces")?;
    sh::exec(product.arg(command).args(args)).map(drop)
}
