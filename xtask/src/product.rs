//! Builds the `rocexdp` binary with the eBPF objects inside, and runs it.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{bpf, sh};

/// Builds objects and binary; returns the binary's path.
///
/// # Errors
/// A build fails.
pub fn build(release: bool) -> Result<PathBuf> {
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
    ]);
    if release {
        cargo.arg("--release");
    }
    eprintln!(
        "+ cargo build --package rocexdp{}",
        if release { " --release" } else { "" }
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

/// Builds the examples, optimised, which cargo puts beside the binary.
///
/// # Errors
/// The build fails.
pub fn build_examples() -> Result<()> {
    let examples = ["--package", "rocexdp", "--examples", "--release"];
    sh::run(sh::cargo().arg("build").args(examples))
}

/// `run`: the demonstration, or with arguments the daemon. Does not return on success.
///
/// # Errors
/// A build fails, root can't be had, or the binary can't be started.
pub fn run(args: Vec<String>) -> Result<()> {
    let command = if args.is_empty() { "demo" } else { "run" };
    exec_as_root(command, args)
}

/// `bench`. Does not return on success.
///
/// # Errors
/// As [`run`].
pub fn bench(args: Vec<String>) -> Result<()> {
    exec_as_root("bench", args)
}

fn exec_as_root(command: &str, args: Vec<String>) -> Result<()> {
    let binary = build(true)?;
    let mut product = sh::as_root(binary, "XDP and network namespaces")?;
    sh::exec(product.arg(command).args(args)).map(drop)
}
