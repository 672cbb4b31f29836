//! `cargo xtask setup`: finds or installs what building the eBPF objects needs.
//!
//! It installs packages only where no other way is left, says which and why, and changes nothing where all is there. The finished
//! program needs nothing at run time: it speaks netlink and `bpf(2)` itself.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Result, bail};

use crate::{
    sh,
    toolchain::{Compiler, DEBIAN_PACKAGES},
};

/// `setup --check`: prints what is there and what is missing.
pub fn report() -> Result<ExitCode> {
    let mut complete = true;
    let mut line = |there: bool, text: &str| {
        println!("{} {text}", if there { "ok     " } else { "missing" });
        complete &= there;
    };
    line(
        has_c_linker(),
        "C linker (cc): rustc links every host program with it",
    );
    match Compiler::find() {
        Ok(compiler) => {
            line(true, &format!("eBPF compiler: {}", compiler.describe()));
            line(compiler.has_linker(), &compiler.describe_linker());
        }
        Err(lacks) => {
            line(false, &format!("eBPF compiler\n{}", both_ways(&lacks)));
            line(false, "bpf-linker: built once the compiler is there");
        }
    }
    if !complete {
        println!("`cargo xtask setup` installs what is missing");
    }
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `setup`: installs what is missing and says what is used.
pub fn install() -> Result<()> {
    let compiler = ensure()?;
    eprintln!("xtask: eBPF compiler: {}", compiler.describe());
    eprintln!("xtask: eBPF linker: {}", compiler.describe_linker());
    Ok(())
}

/// The compiler with its linker, installed if need be; silent where nothing is to do.
pub fn ensure() -> Result<Compiler> {
    if !has_c_linker() {
        apt_install(
            &["gcc", "libc6-dev"],
            "rustc links host programs with a C linker",
        )?;
    }
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(lacks) => install_compiler(&lacks)?,
    };
    if !compiler.has_linker() {
        eprintln!(
            "xtask: building {} into target/tools (about a minute): it makes the eBPF objects from rustc's bitcode",
            compiler.describe_linker()
        );
        compiler.install_linker()?;
        if !compiler.has_linker() {
            bail!("bpf-linker was built, but does not run");
        }
    }
    Ok(compiler)
}

fn install_compiler(lacks: &[String; 2]) -> Result<Compiler> {
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("no compiler for the eBPF programs\n{}", both_ways(lacks));
    }
    apt_install(
        &DEBIAN_PACKAGES,
        "the eBPF programs need `core` built from source, which stable Rust can't do (rustup's nightly with rust-src would be used \
         instead if it were here)",
    )?;
    match Compiler::find() {
        Ok(compiler) => Ok(compiler),
        Err(lacks) => bail!(
            "still no compiler for the eBPF programs\n{}",
            both_ways(&lacks)
        ),
    }
}

fn both_ways([nightly, debian]: &[String; 2]) -> String {
    format!(
        "  either rustup's nightly: `rustup toolchain install nightly --component rust-src`\n    (now: {nightly})\n  \
         or, on Debian, `apt-get install {}`\n    (now: {debian})",
        DEBIAN_PACKAGES.join(" ")
    )
}

fn has_c_linker() -> bool {
    sh::on_path("cc").is_some()
}

fn apt_install(packages: &[&str], why: &str) -> Result<()> {
    eprintln!("xtask: installing {}: {why}", packages.join(", "));
    let apt = || -> Result<Command> {
        let mut command = sh::as_root("env", "installing packages")?;
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet=2"]);
        Ok(command)
    };
    sh::run(apt()?.arg("update"))?;
    sh::run(
        apt()?
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages),
    )
}
