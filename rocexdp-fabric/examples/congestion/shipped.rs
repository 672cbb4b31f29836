//! The section of docs/congestion.md about the shipped transport: the reference's experiments with other hosts, one thing changed at
//! a time, and the table of losses.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rayon::prelude::*;
use rocexdp_fabric::reference::stats::Sample;
use rocexdp_fabric::reference::{self, Case, CaseResult, Outcome, Settings};
use rocexdp_fabric::shipped::{self, Control, Transport};
use rocexdp_proto::ids::PathMtu;

use crate::losses::losses;
use crate::shipped_text::{HEAD, INCAST, LATE, PFC, TROUGH, WEBSEARCH_HEAD};
use crate::svg::{Line, chart};
use crate::{entries, load};

/// What the section begins with in the document, and what follows it.
pub const BEGIN: &str = "\n## The shipped transport\n";
/// The end of the section.
pub const END: &str = "\n<!-- end of the shipped transport -->\n";

/// A host that is run.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    /// `None`: the reference's host.
    transport: Option<Transport>,
    /// What Pmax of the switches is multiplied with.
    pmax: f64,
}

/// Parts of the section: groups of experiments, and the table of losses.
pub const GROUPS: [&str; 5] = ["incast", "late", "pfc", "fct", "loss"];

/// Places in [`variants`].
const REFERENCE: usize = 0;
const NEAR: usize = 1;
const GBN_1024: usize = 4;
const GBN_4096: usize = 5;
const SELECTIVE_4096: usize = 7;
const WINDOWED: usize = 9;
const FIXED: usize = 10;
const CONNECTX: usize = 12;

/// The hosts that are run, each another than one before in one thing.
fn variants() -> [Variant; 14] {
    let near = Transport::near_reference();
    let exact = Transport {
        whole_nanoseconds: false,
        ..near
    };
    let shipped = Transport::default();
    let coalesced = Transport {
        ack_interval: shipped.ack_interval,
        ..exact
    };
    let large = |of| Transport {
        mtu: PathMtu::Mtu4096,
        ..of
    };
    let selective = |of| Transport {
        selective: true,
        ..of
    };
    let control = |control, of| Transport { control, ..of };
    let variant = |name, transport| Variant {
        name,
        transport: Some(transport),
        pmax: 1.0,
    };
    [
        Variant {
            name: "reference",
            transport: None,
            pmax: 1.0,
        },
        variant("a: near the reference's", near),
        variant("b: a, exact time", exact),
        variant("c: b, ACK per 32", coalesced),
        variant("**go-back-N, 1024**: c, window 128", shipped),
        variant("**go-back-N, 4096**", large(shipped)),
        variant("**selective repeat, 1024**", selective(shipped)),
        variant("**selective repeat, 4096**", selective(large(shipped))),
        variant("d: c, MTU 4096", large(coalesced)),
        variant(
            "`dcqcn-window`: c, BDP window",
            control(Control::DcqcnWindow, coalesced),
        ),
        variant("`fixed`, window 128", control(Control::Fixed, shipped)),
        variant("`fixed`: c", control(Control::Fixed, coalesced)),
        variant(
            "f: d, ConnectX's defaults",
            Transport {
                connectx: true,
                ..large(coalesced)
            },
        ),
        Variant {
            pmax: 4.0,
            ..variant("e: d, Pmax x 4", large(coalesced))
        },
    ]
}

/// A run that is wanted.
struct Job {
    group: &'static str,
    path: PathBuf,
    variant: usize,
}

/// What came of it.
struct Ran {
    case: Case,
    first: Outcome,
    result: CaseResult,
}

/// By group, experiment and host.
type Results = BTreeMap<(&'static str, String, usize), Ran>;

/// WebSearch's experiments that are run here, and with which hosts.
const WEBSEARCH: [(&str, &[usize]); 4] = [
    (
        "ws50_mlx25",
        &[
            REFERENCE,
            GBN_1024,
            GBN_4096,
            SELECTIVE_4096,
            WINDOWED,
            FIXED,
        ],
    ),
    ("ws50_paperT25", &[REFERENCE, GBN_1024, SELECTIVE_4096]),
    ("ws50_dcqcn_win", &[REFERENCE, GBN_1024, SELECTIVE_4096]),
    ("ws50_nocc", &[REFERENCE, GBN_1024]),
];
/// Hosts of late and leaving flows, and of PFC.
const SOME: [usize; 4] = [REFERENCE, GBN_1024, GBN_4096, SELECTIVE_4096];

fn jobs(data: &Path, only: Option<&str>) -> Result<Vec<Job>, Box<dyn Error>> {
    let mut jobs = Vec::new();
    let wanted = |group: &str| only.is_none_or(|only| only == group);
    let mut add = |group, path: &Path, variants: &[usize]| {
        jobs.extend(variants.iter().map(|variant| Job {
            group,
            path: path.to_owned(),
            variant: *variant,
        }));
    };
    if wanted("fct") {
        for (name, variants) in WEBSEARCH {
            let path = data.join("fct").join(format!("{name}_config.txt"));
            add("fct", &path, variants);
        }
    }
    let everything: Vec<usize> = (0..variants().len()).collect();
    let named = |path: &Path, part: &str| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(part)
    };
    for (group, variants) in [("late", &SOME[..]), ("incast", &everything), ("pfc", &SOME)] {
        if !wanted(group) {
            continue;
        }
        for path in entries(&data.join(group), "")? {
            // The parameter sets that the published ones vary from.
            if named(&path, "np") || named(&path, "zhu40ns3") {
                continue;
            }
            add(group, &path, variants);
        }
    }
    Ok(jobs)
}

fn run_one(case: &Case, variant: Variant, seed: u64) -> Result<Outcome, String> {
    let settings = Settings {
        seed,
        keep: if seed == 1 && case.flows.len() < 64 {
            (2_000_000, 100_000)
        } else {
            (0, 0)
        },
    };
    match variant.transport {
        None => reference::run(case, settings, |_| true).map_err(|e| e.to_string()),
        Some(transport) => shipped::run(case, transport, settings, |_| true),
    }
}

fn run_all(
    data: &Path,
    seeds: u64,
    only: Option<&str>,
    variants: &[Variant],
) -> Result<Results, Box<dyn Error>> {
    let results: Mutex<Results> = Mutex::default();
    let work = |job: &Job| -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut case = load(&job.path)?;
        let variant = variants[job.variant];
        for pmax in case.config.pmax.values_mut() {
            *pmax = (*pmax * variant.pmax).min(1.0);
        }
        let outcomes: Vec<Outcome> = (1..=seeds)
            .map(|seed| run_one(&case, variant, seed))
            .collect::<Result<_, _>>()?;
        let result = CaseResult::of(&outcomes).ok_or("no run")?;
        eprintln!("{}/{}: {}", job.group, case.name, variant.name);
        let first = outcomes.into_iter().next().ok_or("no run")?;
        let key = (job.group, case.name.clone(), job.variant);
        let ran = Ran {
            case,
            first,
            result,
        };
        results.lock().map_err(|_| "poisoned")?.insert(key, ran);
        Ok(())
    };
    jobs(data, only)?
        .par_iter()
        .try_for_each(work)
        .map_err(|e| e.to_string())?;
    Ok(results.into_inner().map_err(|_| "poisoned")?)
}

/// What a part of the section begins with, by its group of experiments.
fn mark(group: &str) -> String {
    format!("\n<!-- shipped: {group} -->\n")
}

/// A part of a section that is there already.
fn kept<'a>(document: &'a str, group: &str) -> Option<&'a str> {
    let begin = document.find(&mark(group))? + mark(group).len();
    let part = document.get(begin..)?;
    let end = part.find("\n<!-- ").unwrap_or(part.len());
    part.get(..end)
}

/// The section, its plots written to `plots`. With `only` a group, the others' parts are those of the document.
pub fn section(
    data: &Path,
    plots: &Path,
    seeds: u64,
    (document, only): (&str, Option<&str>),
) -> Result<String, Box<dyn Error>> {
    let variants = variants();
    let results = run_all(data, seeds, only, &variants)?;
    let mut out = HEAD.to_owned();
    for group in GROUPS {
        out.push_str(&mark(group));
        if only.is_some_and(|only| only != group) {
            let part = kept(document, group).unwrap_or_default();
            out.push_str(part);
            continue;
        }
        if group != "loss" {
            let _ = writeln!(out, "\nRuns of each experiment that follow: {seeds}.");
        }
        match group {
            "incast" => {
                incast(&mut out, &results, &variants);
                trough(&mut out, &results);
            }
            "late" => late(&mut out, &results, &variants),
            "pfc" => pfc(&mut out, &results, &variants),
            "fct" => websearch(&mut out, &results, &variants),
            _ => losses(&mut out, data)?,
        }
        draw(&mut out, plots, &results, group)?;
    }
    Ok(out)
}

/// Experiments of a group in the order of their names.
fn names<'a>(results: &'a Results, group: &str) -> Vec<&'a str> {
    let mut names: Vec<&str> = results
        .keys()
        .filter(|(g, ..)| *g == group)
        .map(|(_, name, _)| name.as_str())
        .collect();
    names.dedup();
    names
}

/// Runs of an experiment with the hosts that were run.
fn runs<'a>(
    results: &'a Results,
    variants: &'a [Variant],
    group: &'static str,
    name: &'a str,
) -> impl Iterator<Item = (&'static str, &'a Ran)> {
    let all = variants.iter().enumerate();
    all.filter_map(move |(n, variant)| {
        let ran = results.get(&(group, name.to_owned(), n))?;
        Some((variant.name, ran))
    })
}

fn incast(out: &mut String, results: &Results, variants: &[Variant]) {
    out.push_str(INCAST);
    for name in names(results, "incast") {
        let _ = writeln!(
            out,
            "\n| {name} | utilisation | Jain | goodput, Gb/s | queue mean, B | queue p99, B | marked, % | CNPs/s | cuts/flow/ms | mean alpha | pauses | sent again, % |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
        );
        for (host, ran) in runs(results, variants, "incast", name) {
            let s = &ran.result.summary;
            let _ = writeln!(
                out,
                "| {host} | {:.4} | {:.4} | {:.2} ({:.2} to {:.2}) | {:.0} | {:.0} | {:.3} | {:.0} | {:.3} | {:.5} | {:.0} | {} |",
                s.util,
                s.jain_window,
                s.goodput_sum_gbps,
                s.goodput_min_gbps,
                s.goodput_max_gbps,
                s.q_mean_bytes,
                s.q_p99,
                s.mark_frac * 100.0,
                s.cnp_per_s,
                s.cuts_per_flow_per_ms,
                s.alpha_mean,
                s.pfc_pauses,
                again(ran),
            );
        }
    }
}

/// The first transient with ConnectX's defaults, sample by sample.
fn trough(out: &mut String, results: &Results) {
    let Some(ran) = results.get(&("incast", TROUGH_OF.to_owned(), CONNECTX)) else {
        return;
    };
    out.push_str(TROUGH);
    let micros = [
        20, 30, 40, 60, 80, 100, 140, 180, 220, 300, 380, 440, 460, 480, 600, 800, 1000, 1200,
        1400, 1600, 2000,
    ];
    for at in micros {
        let Some(s) = ran.first.series.iter().find(|s| s.at == at * 1000) else {
            continue;
        };
        let rates: Vec<String> = s
            .flows
            .iter()
            .map(|f| format!("{:.3} ({})", f.rate as f64 / 1e9, f.cuts))
            .collect();
        let alphas: Vec<String> = s.flows.iter().map(|f| format!("{:.3}", f.alpha)).collect();
        let _ = writeln!(
            out,
            "| {at} | {} | {} | {} |",
            s.queue,
            rates.join(", "),
            alphas.join(", ")
        );
    }
}

/// Packets with data that were sent again, in percent; of the reference's hosts it is not known.
fn again(ran: &Ran) -> String {
    let (sent, again) = ran.first.sent;
    let share = (sent > 0).then(|| again as f64 * 100.0 / sent as f64);
    or_dash(share, 3)
}

/// The last sample up to a time.
fn at(series: &[Sample], time: u64) -> Option<&Sample> {
    series.iter().rev().find(|s| s.at <= time)
}

/// Of a flow that came late: its goodput over the millisecond that ends so long after its start, over the mean of all flows.
fn share(ran: &Ran, flow: usize, after: u64) -> Option<f64> {
    let start = ran.case.flows.get(flow)?.start - ran.case.config.monitor.start;
    let series = &ran.first.series;
    let (a, b) = (
        at(series, start + after - 1_000_000)?,
        at(series, start + after)?,
    );
    let gained: Vec<f64> = a
        .flows
        .iter()
        .zip(&b.flows)
        .map(|(a, b)| (b.received - a.received) as f64)
        .collect();
    let mean = gained.iter().sum::<f64>() / gained.len() as f64;
    Some(gained.get(flow)? / mean)
}

/// How long after another flow's end the first flow has so much of the line rate, ms.
fn refilled(ran: &Ran, of_line: f64) -> Option<f64> {
    let done = ran.first.done.first()?;
    let flow = ran.case.flows.get(done.flow as usize)?;
    let end = flow.start + done.fct - ran.case.config.monitor.start;
    let line = ran.result.summary.link_gbps * 1e9;
    let reached = ran.first.series.iter().filter(|s| s.at > end).find(|s| {
        s.flows
            .first()
            .is_some_and(|f| f.rate as f64 >= of_line * line)
    })?;
    Some((reached.at - end) as f64 / 1e6)
}

pub fn or_dash(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.decimals$}"))
}

fn late(out: &mut String, results: &Results, variants: &[Variant]) {
    out.push_str(LATE);
    for name in names(results, "late") {
        for (n, (host, ran)) in runs(results, variants, "late", name).enumerate() {
            let last = ran.case.flows.len() - 1;
            let leaves = name.ends_with("leave");
            let share = |ms: u64| match leaves {
                true => None,
                false => share(ran, last, ms * 1_000_000),
            };
            let refilled = |of: f64| match leaves {
                true => refilled(ran, of),
                false => None,
            };
            let s = &ran.result.summary;
            let _ = writeln!(
                out,
                "| {} | {host} | {} | {} | {} | {} | {} | {:.4} | {:.0} | {:.3} | {:.5} |",
                if n == 0 { name } else { "" },
                or_dash(share(1), 2),
                or_dash(share(5), 2),
                or_dash(share(20), 2),
                or_dash(refilled(0.9), 1),
                or_dash(refilled(0.99), 1),
                s.util,
                s.q_mean_bytes,
                s.cuts_per_flow_per_ms,
                s.alpha_mean,
            );
        }
    }
}

fn pfc(out: &mut String, results: &Results, variants: &[Variant]) {
    out.push_str(PFC);
    for name in names(results, "pfc") {
        for (n, (host, ran)) in runs(results, variants, "pfc", name).enumerate() {
            let r = &ran.result;
            let s = &r.summary;
            let _ = writeln!(
                out,
                "| {} | {host} | {:.0} | {:.0} | {:.0} | {:.4} | {:.4} | {:.0} | {:.0} | {:.0} | {:.0} | {} |",
                if n == 0 { name } else { "" },
                s.pfc_pauses,
                r.pauses_first,
                r.pause_time_sum_us,
                s.util,
                s.jain_window,
                s.q_mean_bytes,
                s.q_max_all,
                s.cnp_per_s,
                s.drops,
                again(ran),
            );
        }
    }
}

const BINS: [&str; 6] = ["<10KB", "10-100KB", "100KB-1MB", "1-10MB", ">10MB", "all"];

fn websearch(out: &mut String, results: &Results, variants: &[Variant]) {
    out.push_str(WEBSEARCH_HEAD);
    for name in names(results, "fct") {
        for (n, (host, ran)) in runs(results, variants, "fct", name).enumerate() {
            let _ = write!(out, "| {} | {host} |", if n == 0 { name } else { "" });
            for bin in BINS {
                let row = ran.result.fct.iter().find(|row| row.size_bin == bin);
                let _ = match row {
                    Some(row) => write!(out, " {:.2} / {:.1} |", row.avg_slowdown, row.p99),
                    None => write!(out, " - |"),
                };
            }
            let s = &ran.result.summary;
            let _ = writeln!(
                out,
                " {:.0} | {:.0} | {:.0} | {} |",
                ran.result.flows as f64 - ran.result.flows_done,
                s.pfc_pauses,
                s.drops,
                again(ran)
            );
        }
    }
}

const COLOURS: [&str; 4] = ["#f0a030", "#2050a0", "#107030", "#e07070"];

/// Queues and rates of some hosts beside the reference's.
fn draw(
    out: &mut String,
    plots: &Path,
    results: &Results,
    group: &'static str,
) -> Result<(), Box<dyn Error>> {
    if group != "incast" && group != "late" {
        return Ok(());
    }
    let wanted = [
        (REFERENCE, "reference"),
        (NEAR, "a"),
        (GBN_1024, "go-back-N 1024"),
        (SELECTIVE_4096, "selective 4096"),
    ];
    for name in names(results, group) {
        let lines = |of: &dyn Fn(&Sample) -> Option<f64>| -> Vec<Line> {
            let runs = wanted
                .iter()
                .zip(COLOURS)
                .filter_map(|((n, called), colour)| {
                    let ran = results.get(&(group, name.to_owned(), *n))?;
                    let series = ran.first.series.iter();
                    let points: Vec<(f64, f64)> = series
                        .filter_map(|s| Some((s.at as f64 / 1e6, of(s)?)))
                        .collect();
                    let step = points.len().div_ceil(900).max(1);
                    Some(Line {
                        name: (*called).to_owned(),
                        colour,
                        points: points.into_iter().step_by(step).collect(),
                    })
                });
            runs.collect()
        };
        let queue = lines(&|s| Some(s.queue as f64 / 1e3));
        let rate = lines(&|s| {
            let last = s.flows.last().filter(|f| f.active)?;
            Some(last.rate as f64 / 1e9)
        });
        for (kind, unit, what, lines) in [
            ("queue", "kB", "queue of the bottleneck", queue),
            ("rates", "Gb/s", "rate of the last flow", rate),
        ] {
            let file = format!("shipped_{name}_{kind}.svg");
            let title = format!("{name}: {what}");
            fs::write(plots.join(&file), chart(&title, "ms", unit, &lines))?;
            let _ = writeln!(out, "\n![{title}](congestion/{file})");
        }
    }
    Ok(())
}

/// The experiment whose first transient is shown.
const TROUGH_OF: &str = "mlx100_4to1";
