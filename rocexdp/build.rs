//! Finds the eBPF objects that the binary embeds, and names them to `include_bytes_aligned!` as `ROCEXDP_BPF_ROCEXDP`,
//! `ROCEXDP_BPF_MONITOR` and `ROCEXDP_BPF_WIRE` (absolute paths). It builds none: they need another compiler, which `cargo xtask build` sees to.

use std::{env, error::Error, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    match find() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn find() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=ROCEXDP_BPF_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    let dir = match env::var_os("ROCEXDP_BPF_DIR") {
        Some(dir) => PathBuf::from(dir),
        // The workspace's own target directory, whatever CARGO_TARGET_DIR says: the objects are built once for all profiles.
        None => PathBuf::from(
            env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets no CARGO_MANIFEST_DIR")?,
        )
        .join("../target/bpf"),
    };
    for name in ["rocexdp", "monitor", "wire"] {
        println!("cargo::rerun-if-changed={}", dir.join(name).display());
        let Ok(object) = dir.join(name).canonicalize() else {
            return Err("eBPF objects not built: run `cargo xtask build`".into());
        };
        println!(
            "cargo::rustc-env=ROCEXDP_BPF_{}={}",
            name.to_uppercase(),
            object.display()
        );
    }
    Ok(())
}
