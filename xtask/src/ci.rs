//! `cargo xtask ci`: what a change must pass, in the order that fails soonest.

use std::{
    process::{Command, ExitCode},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::{bpf, conformance, fuzz, layers, model, mutants, paths, setup, sh, test};

/// Runs all checks up to the first that fails.
///
/// # Errors
/// Names the step that failed.
pub fn run(skip_test: bool) -> Result<ExitCode> {
    step("fmt", fmt)?;
    step("layers", layers::run)?;
    step("conformance", conformance::run)?;
    step("clippy of the eBPF programs", bpf_clippy)?;
    step("eBPF objects", bpf::build)?;
    step("clippy", || {
        sh::run(sh::cargo().args([
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    step("doc", || {
        let mut cargo = sh::cargo();
        sh::run(
            cargo
                .args(["doc", "--locked", "--workspace", "--no-deps"])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )
    })?;
    step("fuzz", || fuzz::run(10, None))?;
    step("model", || {
        model::run(&model::Options {
            seeds: model::SEEDS,
            from: 0,
            replay: None,
        })
    })?;
    step("mutants", || mutants::run(model::SEEDS, 0, None))?;
    if skip_test {
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    step("test", || {
        code = test::run(None, false)?;
        if code == ExitCode::SUCCESS {
            Ok(())
        } else {
            bail!("see above")
        }
    })?;
    Ok(code)
}

fn step(name: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("\n== {name}");
    let start = Instant::now();
    body().with_context(|| format!("step `{name}` failed"))?;
    eprintln!("== {name}: ok, {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn fmt() -> Result<()> {
    for manifest in paths::manifests() {
        let mut cargo = sh::cargo();
        cargo.args(["fmt", "--all", "--check", "--manifest-path"]);
        sh::run(cargo.arg(manifest))?;
    }
    Ok(())
}

/// The eBPF crate compiles only with its own toolchain, and so needs that one's clippy.
fn bpf_clippy() -> Result<()> {
    let compiler = setup::ensure()?;
    if let Err(hint) = compiler.clippy() {
        let lack = format!("its toolchain has no clippy: `{hint}`");
        if sh::in_ci() {
            bail!("{lack}");
        }
        eprintln!("xtask: skipped: {lack}");
        return Ok(());
    }
    let mut cargo: Command = compiler.cargo("clippy");
    sh::run(cargo.args(["--locked", "--bins", "--", "-D", "warnings"]))
}
