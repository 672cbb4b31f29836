//! The compiler for the eBPF crate, and the linker that matches it.
//!
//! Stable Rust can't build for `bpfel-unknown-none`: there is no prebuilt `core` for it, so `core` is built from its source with
//! `-Z build-std`. Two compilers can do that here, the first one found is used:
//!
//! - **A**: rustup's nightly with its `rust-src` component;
//! - **B**: Debian's `rustc-web`, a current compiler kept for browsers, with `rust-web-src`. It is no nightly: `RUSTC_BOOTSTRAP=1`
//!   lets it take `-Z`.
//!
//! rustc emits LLVM bitcode, and `bpf-linker` makes the object from it. Bitcode is read by the LLVM that wrote it, so bpf-linker is
//! linked against the very `libLLVM` the compiler loads. That library comes with the compiler (A: in the toolchain; B: package
//! `libllvmN`, which `rustc-web` needs itself), so no LLVM package is installed. Measured with bpf-linker 0.13.0: it links
//! `libLLVM.so` dynamically, its `llvm-sys` is built without linking and without C wrappers, and so asks for no `llvm-config`, header
//! or static library. Hence `llvm-N-dev`, `libpolly-N-dev` and `libclang-N-dev`, often named for this, are not needed: of
//! `llvm-N-dev` only the link named `libLLVM.so` is used, which [`Compiler::install_linker`] makes itself; of
//! polly and clang, nothing (the finished program's only LLVM dependency is `libLLVM`).

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{paths, sh};

/// bpf-linker's version, pinned: it decides what the verifier sees.
const BPF_LINKER: &str = "0.13.0";

/// The target, as endian as the host: the kernel runs BPF in its own byte order.
pub const TARGET: &str = if cfg!(target_endian = "big") {
    "bpfeb-unknown-none"
} else {
    "bpfel-unknown-none"
};

/// Debian's packages of way B.
pub const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Nightly,
    Debian,
}

/// A compiler that can build the eBPF crate.
pub struct Compiler {
    way: Way,
    /// `rustc 1.96.0 (..)`
    pub version: String,
    /// Its LLVM's version, `22.1.8`.
    llvm_version: String,
    /// The `libLLVM` it loads.
    llvm_library: PathBuf,
}

impl Compiler {
    /// Finds the compiler, or says per way what it lacks.
    pub fn find() -> Result<Self, [String; 2]> {
        let nightly = match Self::inspect(Way::Nightly) {
            Ok(compiler) => return Ok(compiler),
            Err(error) => format!("{error:#}"),
        };
        Self::inspect(Way::Debian).map_err(|error| [nightly, format!("{error:#}")])
    }

    fn inspect(way: Way) -> Result<Self> {
        let rustc = |args: &[&str]| match way {
            Way::Nightly => sh::output(rustup_nightly("rustc").args(args)),
            Way::Debian if Path::new("/usr/bin/cargo").exists() => {
                sh::output(Command::new("/usr/bin/rustc").args(args))
            }
            Way::Debian => bail!("no /usr/bin/cargo"),
        };
        let text = rustc(&["-vV"])?;
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .with_context(|| format!("`rustc -vV` says no `{name}`"))
        };
        let version = format!("rustc {}", field("rustc ")?);
        let (release, least) = (field("release: ")?, env!("CARGO_PKG_RUST_VERSION"));
        if number(release) < number(least) {
            bail!("{version} is older than {least}");
        }
        let sysroot = PathBuf::from(rustc(&["--print=sysroot"])?.trim_end());
        if !sysroot
            .join("lib/rustlib/src/rust/library/core/src/lib.rs")
            .exists()
        {
            bail!("{version} has no source of `core`");
        }
        Ok(Self {
            way,
            llvm_version: field("LLVM version: ")?.to_owned(),
            llvm_library: loaded_llvm(&sysroot.join("bin/rustc"))?,
            version,
        })
    }

    /// `cargo SUBCOMMAND` of this toolchain for the eBPF crate, with the flags its objects need, bar the profile.
    pub fn cargo(&self, subcommand: &str) -> Command {
        let mut cargo = match self.way {
            Way::Nightly => rustup_nightly("cargo"),
            Way::Debian => {
                // `cargo clippy` would find rustup's cargo-clippy first.
                let mut cargo = Command::new(match subcommand {
                    "clippy" => "/usr/bin/cargo-clippy",
                    _ => "/usr/bin/cargo",
                });
                cargo
                    .env("CARGO", "/usr/bin/cargo")
                    .env("RUSTC", "/usr/bin/rustc")
                    .env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        };
        let arch = format!("--cfg=bpf_target_arch=\"{}\"", env::consts::ARCH);
        cargo
            .current_dir(paths::bpf_crate())
            .arg(subcommand)
            .args([
                "--target",
                TARGET,
                "-Z",
                "build-std=core",
                "--release",
                "--target-dir",
            ])
            .arg(paths::bpf_target())
            // BTF is made from debug information; 0x1f is cargo's separator.
            .env(
                "CARGO_ENCODED_RUSTFLAGS",
                [arch.as_str(), "-Cdebuginfo=2", "-Clink-arg=--btf"].join("\x1f"),
            )
            .env(
                format!(
                    "CARGO_TARGET_{}_LINKER",
                    TARGET.to_uppercase().replace('-', "_")
                ),
                linker(),
            )
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("RUSTC_WRAPPER")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        cargo
    }

    /// Whether this toolchain has clippy, and how to get it.
    pub fn clippy(&self) -> Result<(), &'static str> {
        let (there, hint) = match self.way {
            Way::Nightly => (
                sh::output(rustup_nightly("cargo-clippy").arg("--version")).is_ok(),
                "rustup component add clippy --toolchain nightly",
            ),
            Way::Debian => (
                Path::new("/usr/bin/clippy-driver").exists(),
                "apt-get install rust-web-clippy",
            ),
        };
        if there { Ok(()) } else { Err(hint) }
    }

    /// Which way this is, for people.
    pub fn describe(&self) -> String {
        let way = match self.way {
            Way::Nightly => "rustup's nightly with rust-src",
            Way::Debian => "Debian's rustc-web",
        };
        format!("{way}: {}, LLVM {}", self.version, self.llvm_version)
    }

    /// Whether bpf-linker is there, runs, and was linked for this compiler.
    pub fn has_linker(&self) -> bool {
        fs::read_to_string(stamp()).is_ok_and(|text| text == self.stamp_text())
            && sh::output(Command::new(linker()).arg("--version")).is_ok()
    }

    /// What the linker is, for people.
    pub fn describe_linker(&self) -> String {
        format!("bpf-linker {BPF_LINKER} for LLVM {}", self.llvm_version)
    }

    /// Builds bpf-linker into this checkout, against the compiler's `libLLVM`.
    ///
    /// # Errors
    /// The build fails: for one, bpf-linker's version knows no feature for this major version of LLVM.
    pub fn install_linker(&self) -> Result<()> {
        // What -lLLVM looks for, and the library's own name, which the finished program loads from here by its rpath: a rustup
        // toolchain's library directory is in no search path.
        let prefix = paths::tools().join("llvm");
        let _ = fs::remove_dir_all(&prefix);
        let lib = prefix.join("lib");
        fs::create_dir_all(&lib).with_context(|| format!("create {}", lib.display()))?;
        let own_name = self
            .llvm_library
            .file_name()
            .context("libLLVM has no file name")?;
        symlink(&self.llvm_library, lib.join(own_name)).context("link libLLVM")?;
        if own_name != "libLLVM.so" {
            symlink(&self.llvm_library, lib.join("libLLVM.so")).context("link libLLVM")?;
        }
        let feature = format!("llvm-{}", number(&self.llvm_version).0);
        sh::run(
            sh::cargo()
                .args([
                    "install",
                    "bpf-linker",
                    "--version",
                    BPF_LINKER,
                    "--locked",
                    "--force",
                    "--quiet",
                    "--root",
                ])
                .arg(paths::tools())
                .args(["--no-default-features", "--features", &feature])
                .env("LLVM_PREFIX", &prefix),
        )
        .with_context(|| {
            format!(
                "bpf-linker {BPF_LINKER} can't be built for LLVM {}",
                self.llvm_version
            )
        })?;
        fs::write(stamp(), self.stamp_text())
            .with_context(|| format!("write {}", stamp().display()))
    }

    fn stamp_text(&self) -> String {
        format!(
            "bpf-linker {BPF_LINKER}, LLVM {}, {}\n",
            self.llvm_version,
            self.llvm_library.display()
        )
    }
}

fn rustup_nightly(program: &str) -> Command {
    let mut rustup = Command::new("rustup");
    rustup.args(["run", "nightly", program]);
    rustup
}

fn linker() -> PathBuf {
    paths::tools().join("bin").join("bpf-linker")
}

fn stamp() -> PathBuf {
    paths::tools().join("bpf-linker.stamp")
}

/// The `libLLVM` that `rustc` loads, as the dynamic loader resolves it.
fn loaded_llvm(rustc: &Path) -> Result<PathBuf> {
    let libraries = sh::output(Command::new("ldd").arg(rustc))?;
    let path = libraries
        .lines()
        .filter_map(|line| line.trim().split_once(" => "))
        .find(|(name, _)| name.starts_with("libLLVM"))
        .and_then(|(_, rest)| rest.split(" (").next())
        .with_context(|| {
            format!(
                "{} loads no libLLVM, so bpf-linker can't be linked to match it",
                rustc.display()
            )
        })?;
    fs::canonicalize(path).with_context(|| format!("find {path}"))
}

/// Major and minor of a version such as `1.96.0`.
fn number(version: &str) -> (u32, u32) {
    let mut parts = version
        .split(['.', '-'])
        .map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(number("22.1.8"), (22, 1));
        assert_eq!(number("1.97.0-nightly"), (1, 97));
        assert!(number("1.100.0") > number("1.95"));
        assert!(number("1.63.0") < number("1.95"));
    }
}
