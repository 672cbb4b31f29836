//! Builds the eBPF objects and puts them where `rocexdp/build.rs` embeds them from.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{paths, setup, sh, toolchain};

/// The objects that the product embeds: binaries of the eBPF crate.
const OBJECTS: [&str; 3] = ["rocexdp", "monitor", "wire"];
/// The object that only `bench xdp` loads.
const BENCH: &str = "bench";

/// Builds all objects, after setting up what that needs.
///
/// # Errors
/// No compiler can be had, or the programs do not compile.
pub fn build() -> Result<()> {
    build_objects(&OBJECTS)
}

/// Builds what `bench xdp` loads.
///
/// # Errors
/// As [`build`].
pub fn build_bench() -> Result<()> {
    build_objects(&[BENCH])
}

fn build_objects(objects: &[&str]) -> Result<()> {
    let compiler = setup::ensure()?;
    let mut cargo = compiler.cargo("build");
    for object in objects {
        cargo.args(["--bin", object]);
    }
    sh::run(&mut cargo)?;
    let built = paths::bpf_target().join(toolchain::TARGET).join("release");
    fs::create_dir_all(paths::bpf_objects()).context("create target/bpf")?;
    for object in objects {
        copy_if_changed(&built.join(object), &paths::bpf_objects().join(object))?;
    }
    Ok(())
}

/// Copies only what differs: a new time stamp would make cargo build `rocexdp` again. The target is replaced whole.
fn copy_if_changed(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let new = to.with_extension("new");
    fs::write(&new, &bytes).with_context(|| format!("write {}", new.display()))?;
    fs::rename(&new, to).with_context(|| format!("write {}", to.display()))
}
