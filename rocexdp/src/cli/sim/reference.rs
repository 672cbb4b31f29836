//! `rocexdp sim reference DIR...`: runs experiments in the format of the HPCC simulator (ns-3), and prints the numbers that the
//! published runs are summed up in (docs/congestion.md).

use std::{
    fs,
    io::{self, IsTerminal},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use rocexdp_fabric::reference::{Case, CaseResult, Outcome, Settings, run as simulate};

use crate::{
    out,
    process::{self, Cancel},
};

/// How often the bar and the signals are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Steps of the bar in a run.
const PARTS: u64 = 1_000;
/// What follows an experiment's name where several share a directory.
const SUFFIX: &str = "_config.txt";

/// Options of `rocexdp sim reference`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directories with a config.txt, or files called NAME_config.txt; topology and flows are where the configuration says,
    /// beside it
    #[arg(required = true, value_name = "DIR")]
    cases: Vec<PathBuf>,
    /// Print one JSON object a line for each, with the columns of incast_summary.csv and, as `fct`, those of fct_summary.csv
    #[arg(long)]
    json: bool,
    /// First seed of the marks: the reference's RngRun, 1 in its published runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Seeds from the first on; what is printed is the mean over them
    #[arg(long, value_name = "N", default_value = "1")]
    seeds: NonZeroUsize,
    /// Runs at once; else as many as there are cores
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// Runs the experiments.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    process::on_own_thread(move |cancel| work(&args, &cancel))
}

fn work(args: &Args, cancel: &Cancel) -> anyhow::Result<()> {
    let cases: Vec<Case> = args
        .cases
        .iter()
        .map(|path| read(path))
        .collect::<anyhow::Result<_>>()?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads.map_or(0, NonZeroUsize::get))
        .build()
        .context("starting threads")?;
    for case in &cases {
        let result = under_watch(args, &pool, case, cancel)?;
        if args.json {
            out::json_line(&result)?;
        } else {
            out::line(&result)?;
        }
        if result.partial {
            cancel.check()?;
        }
    }
    Ok(())
}

/// Runs a case with all seeds while the bar and the signals are looked at.
fn under_watch(
    args: &Args,
    pool: &rayon::ThreadPool,
    case: &Case,
    cancel: &Cancel,
) -> anyhow::Result<CaseResult> {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let one = |seed: u64| {
        let mut told = 0;
        simulate(case, Settings::seeded(seed), |share| {
            let parts = (share * PARTS as f64) as u64;
            done.fetch_add(parts - told, Ordering::Relaxed);
            told = parts;
            !stop.load(Ordering::Relaxed)
        })
    };
    let seeds = args.seeds.get() as u64;
    let all = || {
        (0..seeds)
            .into_par_iter()
            .map(|n| one(args.seed.saturating_add(n)))
            .collect::<Result<Vec<Outcome>, _>>()
    };
    let outcomes = thread::scope(|scope| {
        let work = scope.spawn(|| pool.install(all));
        let bar = bar(&case.name, seeds);
        while !work.is_finished() {
            if cancel.check().is_err() && !stop.swap(true, Ordering::Relaxed) {
                out::note("rocexdp: interrupted: ending, with what there is");
            }
            bar.set_position(done.load(Ordering::Relaxed));
            thread::sleep(LOOK);
        }
        bar.finish_and_clear();
        work.join()
    });
    let outcomes = outcomes
        .map_err(|_| anyhow!("{}: a run died", case.name))?
        .with_context(|| case.config.file.clone())?;
    CaseResult::of(&outcomes).ok_or_else(|| anyhow!("{}: no run", case.name))
}

/// Reads a case by its directory or configuration.
fn read(path: &Path) -> anyhow::Result<Case> {
    let config = if path.is_dir() {
        path.join("config.txt")
    } else {
        path.to_owned()
    };
    if path.is_dir() && !config.exists() {
        bail!("{}", without_config(path));
    }
    let text =
        fs::read_to_string(&config).with_context(|| format!("reading {}", config.display()))?;
    let beside = config.parent().unwrap_or(Path::new(""));
    let case = Case::load(
        &name(&config),
        (&config.display().to_string(), &text),
        |named| {
            let path = beside.join(named);
            fs::read_to_string(&path).map_err(|error| error.to_string())
        },
    )?;
    Ok(case)
}

/// What stands before `_config.txt`; of a plain `config.txt`, its directory.
fn name(config: &Path) -> String {
    let file = config
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    if let Some(name) = file.strip_suffix(SUFFIX) {
        return name.to_owned();
    }
    let whole = fs::canonicalize(config).unwrap_or_else(|_| config.to_owned());
    let directory = whole.parent().and_then(Path::file_name);
    directory.map_or(file, |d| d.to_string_lossy().into_owned())
}

fn without_config(directory: &Path) -> String {
    let mut there: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(SUFFIX))
        .collect();
    there.sort();
    let shown = directory.display();
    match there.first() {
        None => format!("{shown} has no config.txt"),
        Some(first) => format!(
            "{shown} has no config.txt, but {} files NAME{SUFFIX}: give one of them, as {}",
            there.len(),
            directory.join(first).display()
        ),
    }
}

fn bar(name: &str, seeds: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(PARTS * seeds);
    let style =
        ProgressStyle::with_template("[{elapsed_precise}] {wide_bar} {percent}% {msg}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(name.to_owned());
    bar
}
