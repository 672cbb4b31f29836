//! `cargo xtask model --mutants`: is the model test able to fail?
//!
//! A mutant is a `mutant!("NAME")` in the transport's code that makes it wrong in one way. All are in one build
//! (`--cfg rocexdp_mutants`), in a target directory of its own; each is run on the model's seeds until one fails, and one that
//! passes them all is an error. The names are found in the source, so that none is forgotten.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::{paths, sh};

/// There must be at least so many.
const LEAST: usize = 20;
/// What marks one in the source.
const MARK: &str = "mutant!(\"";

/// How a mutant fared.
struct Verdict {
    name: String,
    caught: bool,
}

/// Builds and runs all mutants, or those whose name contains `only`.
///
/// # Errors
/// One can't be built, or survives.
pub fn run(seeds: u64, from: u64, only: Option<&str>) -> Result<()> {
    let start = Instant::now();
    let mut names = BTreeSet::new();
    collect(&paths::root().join("rocexdp-proto/src"), &mut names)?;
    if names.len() < LEAST {
        bail!(
            "{} mutants in rocexdp-proto/src, {LEAST} are asked for",
            names.len()
        );
    }
    let mut todo: Vec<String> = names.into_iter().collect();
    todo.retain(|name| only.is_none_or(|part| name.contains(part)));
    let count = todo.len();
    let todo = Mutex::new(todo);
    let program = build()?;
    let workers = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    let verdicts: Result<Vec<Vec<Verdict>>> = thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|_| {
                let (todo, program) = (&todo, &program);
                scope.spawn(move || worker(program, todo, seeds, from))
            })
            .collect();
        let join = |h: thread::ScopedJoinHandle<'_, _>| {
            h.join().unwrap_or_else(|_| bail!("a worker panicked"))
        };
        handles.into_iter().map(join).collect()
    });
    let mut survivors = Vec::new();
    for verdict in verdicts?.into_iter().flatten() {
        if !verdict.caught {
            survivors.push(verdict.name);
        }
    }
    println!(
        "{} of {count} mutants caught, {:.0} s",
        count - survivors.len(),
        start.elapsed().as_secs_f64()
    );
    if survivors.is_empty() {
        return Ok(());
    }
    bail!("the model test does not notice: {}", survivors.join(", "))
}

fn worker(
    program: &Path,
    todo: &Mutex<Vec<String>>,
    seeds: u64,
    from: u64,
) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    loop {
        let Some(name) = todo.lock().ok().and_then(|mut names| names.pop()) else {
            return Ok(verdicts);
        };
        let start = Instant::now();
        let caught = check(program, &name, seeds, from)?;
        let seconds = start.elapsed().as_secs_f64();
        match &caught {
            Some(why) => {
                let why: String = why.chars().take(150).collect();
                println!("{name}: caught, {seconds:.1} s: {why}");
            }
            None => println!("{name}: NOT CAUGHT, {seconds:.1} s"),
        }
        verdicts.push(Verdict {
            name,
            caught: caught.is_some(),
        });
    }
}

fn build() -> Result<PathBuf> {
    let target = paths::root().join("target").join("mutants");
    let host = host()?;
    let mut cargo = sh::cargo();
    cargo
        .args(["build", "--quiet", "--profile", "mutant"])
        .args(["--package", "rocexdp-sim", "--bin", "rocexdp-model"])
        // With `--target`, macros are built without these flags.
        .args(["--target", &host, "--config"])
        .arg("build.rustflags=[\"--cfg\", \"rocexdp_mutants\"]")
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    sh::run(&mut cargo)?;
    Ok(target.join(host).join("mutant").join("rocexdp-model"))
}

/// What the first failing seed showed; `None`: all passed.
fn check(program: &Path, name: &str, seeds: u64, from: u64) -> Result<Option<String>> {
    let output = Command::new(program)
        .args(["--mutant", name, "--quick", "--threads", "1"])
        .args(["--seeds", &seeds.to_string(), "--from", &from.to_string()])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Some(if said.is_empty() {
        // An assertion of the transport's own.
        String::from_utf8_lossy(&output.stderr).trim().to_owned()
    } else {
        said
    }))
}

fn collect(dir: &Path, names: &mut BTreeSet<String>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, names)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let found = text
                .split(MARK)
                .skip(1)
                .filter_map(|rest| rest.split('"').next());
            names.extend(found.map(str::to_owned));
        }
    }
    Ok(())
}

fn host() -> Result<String> {
    let text = sh::output(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}
