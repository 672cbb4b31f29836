//! Where things are. All of it lies inside the checkout, and none of it depends on the directory `xtask` is started in.

use std::path::{Path, PathBuf};

/// The workspace's root: the parent of this package.
pub fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// The eBPF crate, which is no workspace member.
pub fn bpf_crate() -> PathBuf {
    root().join("rocexdp-ebpf")
}

/// Tools built for this checkout (bpf-linker); removing the directory only costs the time to build them again.
pub fn tools() -> PathBuf {
    root().join("target").join("tools")
}

/// The finished eBPF objects, where `rocexdp/build.rs` looks for them whatever `CARGO_TARGET_DIR` says.
pub fn bpf_objects() -> PathBuf {
    root().join("target").join("bpf")
}

/// Cargo's target directory for the eBPF crate.
pub fn bpf_target() -> PathBuf {
    root().join("target").join("bpf-build")
}

/// The fuzz targets, which are no workspace member either.
pub fn fuzz() -> PathBuf {
    root().join("fuzz")
}

/// The manifests of the workspace and of what stands beside it.
pub fn manifests() -> [PathBuf; 3] {
    [root().to_owned(), bpf_crate(), fuzz()].map(|dir| dir.join("Cargo.toml"))
}
