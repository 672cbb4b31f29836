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

use crate::published::{Row, number, rows};
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

/// Hosts, and what the sections of the experiments show of them.
struct Variants {
    all: [Variant; 14],
}

const REFERENCE: usize = 0;
const NEAR: usize = 1;
const SELECTIVE_4096: usize = 7;
const CONNECTX: usize = 12;
const GBN_1024: usize = 4;
const GBN_4096: usize = 5;

impl Variants {
    fn new() -> Self {
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
        Self {
            all: [
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
            ],
        }
    }
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
        &[REFERENCE, GBN_1024, GBN_4096, SELECTIVE_4096, 9, 10],
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
    let everything: Vec<usize> = (0..14).collect();
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
    variants: &Variants,
) -> Result<Results, Box<dyn Error>> {
    let results: Mutex<Results> = Mutex::default();
    let work = |job: &Job| -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut case = load(&job.path)?;
        let variant = variants.all[job.variant];
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
    let variants = Variants::new();
    let results = run_all(data, seeds, only, &variants)?;
    let mut out = HEAD.replace("{seeds}", &seeds.to_string());
    for group in ["incast", "late", "pfc", "fct", "loss"] {
        out.push_str(&mark(group));
        if only.is_some_and(|only| only != group) {
            let part = kept(document, group).unwrap_or_default();
            out.push_str(part);
            continue;
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
    variants: &'a Variants,
    group: &'static str,
    name: &'a str,
) -> impl Iterator<Item = (&'static str, &'a Ran)> {
    let all = variants.all.iter().enumerate();
    all.filter_map(move |(n, variant)| {
        let ran = results.get(&(group, name.to_owned(), n))?;
        Some((variant.name, ran))
    })
}

fn incast(out: &mut String, results: &Results, variants: &Variants) {
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

fn or_dash(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.decimals$}"))
}

fn late(out: &mut String, results: &Results, variants: &Variants) {
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

fn pfc(out: &mut String, results: &Results, variants: &Variants) {
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

fn websearch(out: &mut String, results: &Results, variants: &Variants) {
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

/// The table that the test `rocexdp-sim/tests/loss_table.rs` keeps and checks.
const KEPT: &str = include_str!("../../../rocexdp-sim/tests/loss_table.txt");

/// Shares of that table: by title, round trip in microseconds, payload, and loss as written there.
fn kept_losses() -> BTreeMap<(String, u32, u32, String), f64> {
    let mut all = BTreeMap::new();
    for part in KEPT.split("\n\n") {
        let mut lines = part.lines();
        let title = lines.next().unwrap_or_default();
        let heads = lines.next().unwrap_or_default().replace(" %", "%");
        let losses: Vec<String> = heads
            .split_whitespace()
            .skip(2)
            .map(|loss| loss.replace('%', " %"))
            .collect();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [rtt, _, packet, shares @ ..] = &words[..] else {
                continue;
            };
            for (loss, share) in losses.iter().zip(shares) {
                if let (Ok(rtt), Ok(packet), Ok(share)) =
                    (rtt.parse(), packet.parse(), share.parse())
                {
                    all.insert((title.to_owned(), rtt, packet, loss.clone()), share);
                }
            }
        }
    }
    all
}

/// Mean goodput share of the published runs: loss on data only, no rate control.
fn published_loss(rows: &[Row], hop: u32, loss: f64, scheme: &str) -> Option<f64> {
    let shares: Vec<f64> = rows
        .iter()
        .filter(|r| {
            number(r, "hop_delay_ns") == f64::from(hop)
                && (number(r, "loss_prob") - loss).abs() < 1e-9
                && r["data_only"] == "1"
                && r["cc"] == "0"
                && r["scheme"] == scheme
        })
        .map(|r| number(r, "goodput_fraction"))
        .collect();
    (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

fn losses(out: &mut String, data: &Path) -> Result<(), Box<dyn Error>> {
    out.push_str(LOSSES);
    let published = rows(&data.join("loss/loss_goodput.csv"))?;
    let kept = kept_losses();
    for (rtt, hop) in [(4, 1_000), (40, 10_000)] {
        for (name, loss) in [("0.1 %", 0.001), ("1 %", 0.01), ("5 %", 0.05)] {
            let _ = write!(out, "| {rtt} us | {name} | {:.3} |", 1.0 - loss);
            for scheme in ["GBN", "IRN"] {
                let share = published_loss(&published, hop, loss, scheme);
                let _ = write!(out, " {} |", or_dash(share, 3));
            }
            for title in [
                "go-back-N, WRITE",
                "selective repeat, WRITE",
                "go-back-N, READ",
                "selective repeat, READ",
            ] {
                for packet in [1024, 4096] {
                    let key = (title.to_owned(), rtt, packet, name.to_owned());
                    let share = kept.get(&key).ok_or("the table of losses has changed")?;
                    let _ = write!(out, " {share:.3} |");
                }
            }
            out.push('\n');
        }
    }
    Ok(())
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

const HEAD: &str = "
## The shipped transport

Written by `cargo xtask congestion --shipped DATA`, which leaves the rest of this page alone. Means of {seeds} seed(s).

The same experiments (networks, flows, DCQCN parameters, switches), with hosts that run what `rocexdp run` runs
(`rocexdp-fabric/src/shipped.rs`). So that a difference can be laid to its cause, hosts change by one thing at a time:

| host | what it is |
|---|---|
| reference | the reference's host: 1000 B in 1048 B on the wire, an acknowledgement per packet that carries the CNP flag, no window |
| a | the shipped transport with go-back-N, path MTU 1024, an acknowledgement per packet, no window of packets (65536), and links in whole nanoseconds as the reference's |
| b | a, but links take exact time |
| c | b, but an acknowledgement is asked for on every 32nd packet, as shipped |
| go-back-N, 1024 | c, but 128 packets may be on the way, as shipped: this is `rocexdp run` |
| go-back-N, 4096; selective repeat, 1024 and 4096 | the same with that path MTU, with that repair |
| d | c with path MTU 4096: no window of packets |
| e | d, and the switches' Pmax four times as large |
| f | d, and DCQCN with ConnectX's defaults, which `rocexdp run` has, instead of the experiment's parameters |
| `dcqcn-window` | c with that controller: a window of one bandwidth-delay product that shrinks with the rate, none of packets |
| `fixed` | line rate whatever the network says: with the window of 128 packets, and without (c) |

What changes, and why; each cause is a pair of rows that differ in nothing else (`rocexdp-fabric/tests/shipped_runs.rs` keeps small ones):

* **The transport itself: nothing but the frames** (reference, a). Queue, cuts, alpha and CNPs are the reference's, as far as one run's chance
  allows (compare \"mean of 5\" above). Goodput at the same utilisation is less by 0.8 %: 58 B of headers around 1024 B, 48 B around 1000 B there.
* **Exact time** (a, b). The reference cuts a frame's time down to whole nanoseconds, so its links carry up to 1 % more than their rate; ours
  do not. Utilisation falls by at most that, to 1.
* **Coalesced acknowledgements: nothing, to the last digit** (b, c). Without a window an acknowledgement lets nothing out, and a CNP is a packet
  of its own that waits for none. With a window they return in time for it.
* **The window of 128 packets** (c, go-back-N 1024) holds 138 kB of each flow. Where that, times the flows, less what the link holds, stays below Kmin
  (2:1 at 100 Gb/s), nothing is ever marked: full link, perfect shares, DCQCN asleep, whatever its parameters. Between Kmin and Kmax (4:1 at 100 Gb/s)
  it takes half of the cuts' work, and since marks are rare the shares move towards one another more slowly (Jain's index of the whole run is lower). At 8:1, and at 25 and 40 Gb/s, whose
  thresholds are lower, it does little or nothing. With path MTU 4096 it is four times as large and hardly ever holds (go-back-N 4096, d).
* **Path MTU 4096** (c, d). Goodput is 4 % more for the headers saved. Marks are drawn per packet, and there are a quarter as many: for
  as many CNPs per second the queue must stand higher, by half to three quarters in the mean; where the thresholds leave little room (`zhu40`: Kmin is one packet) it passes Kmax
  at times, all are marked and cut together, CNPs multiply and 1 to 2 % of the link are lost. With Pmax four times as large (e) marks come as often as with 1000 B: the thresholds that
  were tuned with the one packet size do not fit the other.
* **Selective repeat: 24 B more of headers per packet** (2 % at 1024, 0.6 % at 4096), nothing else, since nothing is lost. Before these runs it was more: where DCQCN
  paces a QP slowly, the acknowledgement of every 32nd packet came later than the probe for a lost tail, which sent up to 5 % of all packets again. A packet
  now asks for its acknowledgement where half a round trip has passed since the last that did.
* **`dcqcn-window`** (c, `dcqcn-window`) bounds the queue to one bandwidth-delay product a flow: there are no marks below 8:1, and all shares are equal. **`fixed`** hears the marks and does
  nothing: with the window of 128 packets the queue is what the windows hold, without it what PFC lets in.
* **ConnectX's defaults** (d, f; \"The first transient\" below). Their steps are 5 and 50 Mb/s whatever the line rate, a tenth to a quarter of the other sets', and alpha starts at 1 with a cut every 4 us: the queue of the
  first microseconds is still draining, and marked, while the rate is halved ten or fifteen times, to some 10 Mb/s. After 300 us without a CNP one increase takes it half-way back to the line rate. That is the
  defaults' own; what was ours was that the pacer kept the send time that it had set at the bottom, where a packet of 4 KiB takes up to 33 ms (at the floor of 1 Mb/s), while the rate was
  at 50 Gb/s again. The flows that slept found the link taken and no marks to make the others give way: 49 against 16 Gb/s for 300 ms. The pacer now pays what is owed at the rate of
  the moment (`dcqcn/pacer.rs`).
* **PFC.** At path MTU 1024 the pauses are the reference's, within a quarter or so: its windows hold as much as the buffer. At 4096 queues stand higher, for the reason above, and pass the PFC
  threshold of a small buffer more often: with 2 MB, 8:1 has eight times and 16:1 six times as many pauses. Headroom for the larger packets is enough: there are no drops.
";
const INCAST: &str = "\n### Incast\n";
/// The experiment whose first transient is shown.
const TROUGH_OF: &str = "mlx100_4to1";
const TROUGH: &str = "
### The first transient with ConnectX's defaults

4:1 at 100 Gb/s (`mlx100_4to1`, host f): rates of the four flows with the number of their cuts, and alphas.

| us | queue, B | rates, Gb/s (cuts) | alpha |
|---|---|---|---|
";
const LATE: &str = "
### A flow comes late, a flow leaves

Share: goodput of the flow that came last over the millisecond that ends 1, 5 and 20 ms after its start, 1 is fair. Refilled: from one flow's end until
the other's rate is 90 and 99 % of the line.

| run | host | share at 1 ms | 5 ms | 20 ms | refilled to 90 %, ms | 99 % | utilisation | queue mean, B | cuts/flow/ms | mean alpha |
|---|---|---|---|---|---|---|---|---|---|---|
";
const PFC: &str = "
### PFC

| run | host | pauses | first 5 ms | time paused, us | utilisation | Jain | queue mean, B | queue max, B | CNPs/s | drops | sent again, % |
|---|---|---|---|---|---|---|---|---|---|---|---|
";
const WEBSEARCH_HEAD: &str = "
### WebSearch on a leaf-spine

Slowdown by size, mean / p99, against the reference's ideal time.

| run | host | <10KB | 10-100KB | 100KB-1MB | 1-10MB | >10MB | all | not ended | pauses | drops | sent again, % |
|---|---|---|---|---|---|---|---|---|---|---|---|
";
const LOSSES: &str = "
### Loss

One QP at 100 Gb/s, loss of what goes the way of the data; the share of the link that it uses. On the left the published runs (ConWeave's simulator, 1000 B; go-back-N
and IRN, whose lost retransmissions wait for a timer), on the right ours: the table that `rocexdp-sim/tests/loss_table.rs` runs and keeps.

| round trip | loss | ideal, 1 - loss | go-back-N | IRN | ours: go-back-N, WRITE 1024 | 4096 | selective repeat, WRITE 1024 | 4096 | go-back-N, READ 1024 | 4096 | selective repeat, READ 1024 | 4096 |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
";
