//! `rocexdp sim FILE`: reads a scenario and the files that it names, runs it, writes its results.

use std::{
    fs,
    io::{self, IsTerminal, Read},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use rocexdp_fabric::{
    Source, plots,
    results::{Report, csv, table},
    run::{self, Captures, PARTS, Watch, estimate},
    scenario::{Mode, Study},
};

use crate::{
    control::{settings::UsageError, units::ByteSize},
    out,
    process::{self, Cancel},
};

/// How often the bar and the signals are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `rocexdp sim run`. They are also those of `rocexdp sim`, and no two groups of options have one name.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// The scenario, TOML (docs/sim.md); `-`: standard input
    #[arg(value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Write the results as CSV files into this directory
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Draw rates, queues, CE, PFC, slowdown and load of links as SVG files in this directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Write what goes over a link (as h0-s0) to a nanosecond pcap, which `rocexdp pcap` reads; again for more. For one run
    #[arg(long, value_name = "LINK=FILE", value_parser = capture)]
    pcap: Vec<(String, PathBuf)>,
    /// packet, or flow (rates of flows only, without packets); else as the scenario says
    #[arg(long, value_name = "MODE", value_parser = Mode::named)]
    mode: Option<Mode>,
    /// Runs at once; else as many as there are cores
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Refuse what is estimated to need more memory than this; else what is available
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Check the scenario, say what it would run and need, and end
    #[arg(long)]
    check: bool,
}

/// A link and a file.
fn capture(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((link, file)) if !link.is_empty() && !file.is_empty() => {
            Ok((link.to_owned(), PathBuf::from(file)))
        }
        _ => Err("write a link and a file, as in h0-s0=h0.pcap".to_owned()),
    }
}

/// Runs a scenario.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    if args.scenario.is_none() {
        return Err(UsageError("no scenario given: rocexdp sim FILE.toml".to_owned()).into());
    }
    process::on_own_thread(move |cancel| work(&args, &cancel))
}

fn work(args: &Args, cancel: &Arc<Cancel>) -> anyhow::Result<()> {
    let file = args.scenario.as_deref().unwrap_or(Path::new("-"));
    let study = read(file)?;
    for warning in &study.warnings {
        out::note(format_args!("rocexdp: warning: {warning}"));
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.threads.map_or(0, NonZeroUsize::get))
        .build()
        .context("starting threads")?;
    let runs = study.runs().len();
    let needed = estimate::at_once(
        &study.scenarios,
        args.mode,
        pool.current_num_threads().min(runs),
    );
    if args.check {
        return check(args, &study, needed);
    }
    let most = args.memory.map(|size| size.0).or_else(available);
    if let Some(most) = most
        && needed > most as f64
    {
        return Err(too_large(&study, file, args.mode, needed, most));
    }
    // Directories that can't be made are known before hours of work.
    for directory in [&args.csv, &args.plots].into_iter().flatten() {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let captures = captures(args, &study)?;
    let watch = Watch::default();
    let report = thread::scope(|scope| {
        let work = scope
            .spawn(|| pool.install(|| run::study(&study, args.mode, &watch, captures.as_ref())));
        let bar = bar(runs);
        while !work.is_finished() {
            if cancel.check().is_err() && !watch.stop.swap(true, Ordering::Relaxed) {
                out::note("rocexdp: interrupted: ending, with what there is");
            }
            bar.set_position(watch.progress.load(Ordering::Relaxed) as u64);
            bar.set_message(format!(
                "{} of {runs} runs done",
                watch.done.load(Ordering::Relaxed)
            ));
            thread::sleep(LOOK);
        }
        bar.finish_and_clear();
        work.join()
    });
    let report = report
        .map_err(|_| anyhow!("a run died"))?
        .map_err(|why| anyhow!("{}: {why}", file.display()))?;
    if let Some(captures) = &captures {
        captures.finish().context("writing a capture")?;
    }
    write(args, &report)?;
    if report.partial {
        cancel.check()?;
    }
    match &report.failures[..] {
        [] => Ok(()),
        [first, ..] => Err(anyhow!(
            "{}: {} of {} runs could not be built; the first, seed {}: {}",
            file.display(),
            report.failures.len(),
            report.planned,
            first.seed,
            first.reason
        )),
    }
}

/// Files of the links that shall be captured.
fn captures(args: &Args, study: &Study) -> anyhow::Result<Option<Captures>> {
    let [(scenario, _)] = &study.runs()[..] else {
        return if args.pcap.is_empty() {
            Ok(None)
        } else {
            let runs = study.runs().len();
            let why =
                format!("--pcap is for one run, and there are {runs}: give one seed and no sweep");
            Err(UsageError(why).into())
        };
    };
    if args.pcap.is_empty() {
        return Ok(None);
    }
    if args.mode.unwrap_or(scenario.run.mode) == Mode::Flow {
        return Err(UsageError("--pcap needs packets: flow mode has none".to_owned()).into());
    }
    let mut targets: Vec<(_, Box<dyn io::Write + Send>)> = Vec::new();
    for (name, path) in &args.pcap {
        let Some(link) = scenario.fabric.link(name) else {
            let some: Vec<_> = scenario
                .fabric
                .links
                .iter()
                .take(8)
                .map(|link| link.name.as_str())
                .collect();
            let why = format!(
                "no link is called {name:?}: there are {} ...",
                some.join(", ")
            );
            return Err(UsageError(why).into());
        };
        let file = fs::File::create(path).with_context(|| format!("making {}", path.display()))?;
        targets.push((link, Box::new(io::BufWriter::new(file))));
    }
    Ok(Some(Captures::new(targets)))
}

/// Reads a scenario; files that it names are looked for beside it.
fn read(file: &Path) -> anyhow::Result<Study> {
    let (name, text) = if file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .context("reading standard input")?;
        ("standard input".to_owned(), text)
    } else {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        (file.display().to_string(), text)
    };
    let beside = file.parent().unwrap_or(Path::new(""));
    let mut load = |named: &str| {
        let path = beside.join(named);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    Ok(Study::read(Source::new(&name, &text), &mut load)?)
}

fn check(args: &Args, study: &Study, needed: f64) -> anyhow::Result<()> {
    let flows: f64 = study
        .scenarios
        .iter()
        .map(|scenario| estimate::Estimate::of(scenario, args.mode).flows)
        .sum();
    let flows = flows / study.scenarios.len().max(1) as f64;
    out::line(format_args!(
        "{}: {} runs ({} combinations), about {flows:.0} flows each, about {} of memory",
        study.name,
        study.runs().len(),
        study.scenarios.len(),
        table::bytes(needed),
    ))
}

/// Memory that the system can give, if it says.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What is too large, and of what.
fn too_large(
    study: &Study,
    file: &Path,
    mode: Option<Mode>,
    needed: f64,
    most: u64,
) -> anyhow::Error {
    let of = |scenario: &Arc<_>| estimate::Estimate::of(scenario, mode);
    let largest = study
        .scenarios
        .iter()
        .map(of)
        .max_by(|a, b| a.bytes().total_cmp(&b.bytes()));
    let parts = largest.map_or_else(String::new, |e| {
        format!(
            " (a run: {} for {:.0} flows, {} for the network, {} for packets on the way, {} for series)",
            table::bytes(e.for_flows),
            e.flows,
            table::bytes(e.for_network),
            table::bytes(e.for_packets),
            table::bytes(e.for_series)
        )
    });
    // The line of what needs most.
    let of_flows = largest.is_none_or(|e| e.for_flows >= e.bytes() / 2.0);
    let (line, advice) = if of_flows {
        (
            study.workload_line,
            "shorten the run or its load, use fewer --threads, connections = \"pair\" or --mode flow",
        )
    } else {
        (
            study.fabric_line,
            "make the fabric smaller, use fewer --threads or --mode flow",
        )
    };
    let line = line.map_or_else(String::new, |line| format!(":{line}"));
    anyhow!(
        "{}{line}: about {} of memory would be needed, and {} are to be had{parts}: {advice}, or allow more with --memory",
        file.display(),
        table::bytes(needed),
        table::bytes(most as f64)
    )
}

fn bar(runs: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new((runs * PARTS) as u64);
    let style =
        ProgressStyle::with_template("[{elapsed_precise}] {wide_bar} {percent}% {msg}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn write(args: &Args, report: &Report) -> anyhow::Result<()> {
    if let Some(directory) = &args.csv {
        for (name, text) in csv::files(report) {
            put(directory, name, &text)?;
        }
    }
    if let Some(directory) = &args.plots {
        for (name, text) in plots::files(report) {
            put(directory, &name, &text)?;
        }
    }
    if args.json {
        out::json(report)
    } else {
        out::write(table::text(report).as_bytes())
    }
}

fn put(directory: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = directory.join(name);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}
