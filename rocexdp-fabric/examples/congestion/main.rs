//! Writes docs/congestion.md: the reference's experiments here and there, side by side, with plots.
//!
//! `cargo xtask congestion DATA`, or
//! `cargo run --release -p rocexdp-fabric --example congestion -- DATA docs [SEEDS [NAME...]]`.
//! DATA is the directory with the published runs (incast/, late/, pfc/, fct/ and their summaries). With names of experiments only
//! those are run, with run 1, and what came out is printed; nothing is written. With `--shipped` before them all it writes the section
//! about the shipped transport alone, and leaves the rest of the document as it is; without, it keeps that section.

mod losses;
mod published;
mod shipped;
mod shipped_text;
mod svg;
mod text;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rayon::prelude::*;
use rocexdp_fabric::reference::{Case, CaseResult, Outcome, Settings, run};

/// An experiment: the run with the reference's own random numbers, and the mean of runs with others.
pub struct Pair {
    /// Name of the experiment.
    pub name: String,
    /// Its directory, or its configuration.
    pub directory: PathBuf,
    /// What was run.
    pub case: Case,
    /// Run 1, with samples.
    pub own: Outcome,
    /// The same, summed up.
    pub own_result: CaseResult,
    /// The mean over seeds 2, 3, ...
    pub others: CaseResult,
}

fn load(path: &Path) -> Result<Case, Box<dyn Error + Send + Sync>> {
    let config = if path.is_dir() {
        path.join("config.txt")
    } else {
        path.to_owned()
    };
    let text = fs::read_to_string(&config)?;
    let beside = config.parent().unwrap_or(Path::new(""));
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = file.trim_end_matches("_config.txt");
    let load = |named: &str| fs::read_to_string(beside.join(named)).map_err(|e| e.to_string());
    // Messages end up in the document: no paths of this machine.
    Ok(Case::load(name, (&format!("{file}"), &text), load)?)
}

fn entries(directory: &Path, suffix: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    paths.retain(|p| p.to_string_lossy().ends_with(suffix));
    paths.sort();
    Ok(paths)
}

/// Run 1, whose samples are compared where there are published ones.
fn first_run(group: &str) -> Settings {
    Settings {
        seed: 1,
        keep: if group == "fct" {
            (0, 0)
        } else {
            (2_000_000, 50_000)
        },
    }
}

/// Runs one experiment and says how much of what was published came out.
fn single(data: &Path, group: &str, path: &Path) -> Result<(), Box<dyn Error>> {
    let case = load(path).map_err(|e| e.to_string())?;
    let own = run(&case, first_run(group), |_| true)?;
    let (compared, same) = published::samples(path, &case, &own)?;
    println!("{}: rows {same}/{compared}", case.name);
    if group == "fct" {
        let (same, all) = published::flows(path, &case, &own)?;
        println!(
            "  flows {same}/{all}, {} of {} ended",
            own.done.len(),
            own.flows
        );
    }
    if group == "pfc" {
        let result = CaseResult::of(std::slice::from_ref(&own)).ok_or("no run")?;
        println!("  differs: {:?}", published::pauses(data, &result)?);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let usage = "congestion [--shipped] DATA DOCS [SEEDS [NAME...]]";
    let shipped = args.next_if(|arg| arg == "--shipped").is_some();
    let data = PathBuf::from(args.next().ok_or(usage)?);
    let docs = PathBuf::from(args.next().ok_or(usage)?);
    let seeds: u64 = args.next().map_or(Ok(5), |s| s.parse())?;
    let (file, plots) = (docs.join("congestion.md"), docs.join("congestion"));
    if shipped {
        fs::create_dir_all(&plots)?;
        let document = fs::read_to_string(&file)?;
        let only = args.next();
        if let Some(unknown) = (only.as_deref()).filter(|only| !shipped::GROUPS.contains(only)) {
            return Err(format!("{unknown}: the parts are {}", shipped::GROUPS.join(", ")).into());
        }
        let section = shipped::section(&data, &plots, seeds, (&document, only.as_deref()))?;
        return Ok(fs::write(&file, spliced(&document, &section))?);
    }
    let names: Vec<String> = args.collect();
    let mut jobs: Vec<(&str, PathBuf)> = Vec::new();
    for (group, suffix) in [
        ("incast", ""),
        ("late", ""),
        ("pfc", ""),
        ("fct", "_config.txt"),
    ] {
        jobs.extend(
            entries(&data.join(group), suffix)?
                .into_iter()
                .map(|p| (group, p)),
        );
    }
    let named = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        names
            .iter()
            .any(|n| *n == name.trim_end_matches("_config.txt"))
    };
    if !names.is_empty() {
        for (group, path) in jobs.iter().filter(|(_, path)| named(path)) {
            single(&data, group, path)?;
        }
        return Ok(());
    }
    // One core is left for others.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads((cores - 1).max(1))
        .build()?;
    let pairs: Mutex<Vec<(&str, Pair)>> = Mutex::default();
    let refused: Mutex<Vec<String>> = Mutex::default();
    let work =
        |(group, path): &(&'static str, PathBuf)| -> Result<(), Box<dyn Error + Send + Sync>> {
            let case = match load(path) {
                Ok(case) => case,
                Err(why) => {
                    refused
                        .lock()
                        .map_err(|_| "poisoned")?
                        .push(why.to_string());
                    return Ok(());
                }
            };
            let own = run(&case, first_run(group), |_| true)?;
            let own_result = CaseResult::of(std::slice::from_ref(&own)).ok_or("no run")?;
            let others: Vec<Outcome> = (2..2 + seeds)
                .into_par_iter()
                .map(|seed| run(&case, Settings::seeded(seed), |_| true))
                .collect::<Result<_, _>>()?;
            let others = CaseResult::of(&others).ok_or("no seeds")?;
            eprintln!("{group}/{}", case.name);
            let pair = Pair {
                name: case.name.clone(),
                directory: path.clone(),
                case,
                own,
                own_result,
                others,
            };
            pairs.lock().map_err(|_| "poisoned")?.push((group, pair));
            Ok(())
        };
    pool.install(|| jobs.par_iter().try_for_each(work))
        .map_err(|e| e.to_string())?;
    let mut pairs = pairs.into_inner().map_err(|_| "poisoned")?;
    pairs.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    let mut refused = refused.into_inner().map_err(|_| "poisoned")?;
    refused.sort();
    fs::create_dir_all(&plots)?;
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let document = text::document(&data, &plots, &pairs, &refused, seeds)?;
    let document = match around(&kept) {
        Some((_, section, _)) => spliced(&document, section),
        None => document,
    };
    fs::write(file, document)?;
    Ok(())
}

/// What stands before the section about the shipped transport, the section, and what follows.
fn around(document: &str) -> Option<(&str, &str, &str)> {
    let (begin, end) = (document.find(shipped::BEGIN)?, document.find(shipped::END)?);
    Some((
        document.get(..begin)?,
        document.get(begin..end)?,
        document.get(end + shipped::END.len()..)?,
    ))
}

/// The document with this section, where it has been or else before the plots.
fn spliced(document: &str, section: &str) -> String {
    let (before, after) = match around(document) {
        Some((before, _, after)) => (before, after),
        None => document.split_at(document.find("\n## Plots").unwrap_or(document.len())),
    };
    format!("{before}{section}{}{after}", shipped::END)
}
