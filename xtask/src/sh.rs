//! Running other programs: printed before they run, an error that names them when they fail, and root only where needed.

use std::{
    convert::Infallible,
    env,
    ffi::OsStr,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};

/// Runs `command` with the terminal's input and output, after printing it.
///
/// # Errors
/// It can't be started, or ends with another exit code than 0.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", shown(command));
    let status = command.status().with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs `command` silently and returns its standard output.
///
/// # Errors
/// It can't be started, or fails: the error carries what it wrote to standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| cannot_start(command))?;
    if !output.status.success() {
        bail!(
            "`{}` failed ({}): {}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("output of `{}`", shown(command)))
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that runs `program` as root: itself if we are root, else through sudo.
///
/// # Errors
/// We are not root and there is no sudo; `why` says what root is needed for.
pub fn as_root(program: impl AsRef<OsStr>, why: &str) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    if on_path("sudo").is_none() {
        bail!("{why} needs root, and there is no sudo here: run this as root");
    }
    eprintln!("xtask: {why} needs root: using sudo");
    let mut command = Command::new("sudo");
    command.arg("--").arg(program);
    Ok(command)
}

/// Makes `cargo test` or `cargo bench` run the programs it builds, but not the compiler, as root.
///
/// # Errors
/// We are not root and can't become it.
pub fn programs_as_root(cargo: &mut Command, why: &str) -> Result<()> {
    if is_root() {
        return Ok(());
    }
    // Asked here, where the prompt is not lost among the programs' output.
    run(as_root("true", why)?.stdin(Stdio::inherit()))?;
    let host = output(Command::new("rustc").arg("-vV"))?;
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("`rustc -vV` names no host")?;
    let variable = format!(
        "CARGO_TARGET_{}_RUNNER",
        host.to_uppercase().replace('-', "_")
    );
    cargo.env(variable, "sudo -E");
    Ok(())
}

/// Replaces this process by `command`, so that signals (Ctrl-C) reach it and its exit code is ours.
///
/// # Errors
/// Returns only if the program can't be started.
pub fn exec(command: &mut Command) -> Result<Infallible> {
    eprintln!("+ {}", shown(command));
    let error = command.exec();
    Err(anyhow!(error)).with_context(|| cannot_start(command))
}

/// The first executable named `program` on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// The cargo that runs us (the stable toolchain's), to be used for all but the eBPF crate.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::paths::root());
    command
}

/// Whether a CI machine runs us: nothing may be skipped and lock files must be right.
pub fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0")
}

fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}`", command.get_program().to_string_lossy())
}
