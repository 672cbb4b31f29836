//! The document itself.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use rocexdp_fabric::reference::CaseResult;
use serde_json::Value;

use crate::Pair;
use crate::published::{self, Row, number, rows};
use crate::svg::{Line, chart};

/// How far a number may be off, as a share of the reference's.
fn off(ours: f64, theirs: f64) -> f64 {
    if ours == theirs {
        0.0
    } else {
        ours / theirs - 1.0
    }
}

/// `ours (+1.2 %)`, bold beyond `allowed`.
fn cell(ours: f64, theirs: f64, decimals: usize, allowed: f64) -> String {
    let share = off(ours, theirs);
    let text = format!("{ours:.decimals$} ({:+.1} %)", share * 100.0);
    if share.abs() > allowed {
        format!("**{text}**")
    } else {
        text
    }
}

/// A result by the names of its columns.
fn columns(result: &CaseResult) -> Result<BTreeMap<String, f64>, Box<dyn Error>> {
    let Value::Object(map) = serde_json::to_value(result)? else {
        return Err("a result is an object".into());
    };
    let numbers = map.into_iter().filter_map(|(k, v)| Some((k, v.as_f64()?)));
    Ok(numbers.collect())
}

/// Columns of `incast_summary.csv` that are compared: name, heading, decimals, what is allowed.
const COMPARED: [(&str, &str, usize, f64); 7] = [
    ("util", "utilisation", 4, 0.01),
    ("q_mean_bytes", "queue mean, B", 0, 0.05),
    ("q_p99", "queue p99, B", 0, 0.10),
    ("cuts_per_flow_per_ms", "cuts/flow/ms", 3, 0.05),
    ("alpha_mean", "mean alpha", 5, 0.05),
    ("cnp_per_s", "CNPs/s", 0, 0.05),
    ("jain_window", "Jain", 4, f64::INFINITY),
];

/// The least Jain's index over the window that is not marked.
const LEAST_JAIN: f64 = 0.995;

pub fn document(
    data: &Path,
    plots: &Path,
    pairs: &[(&str, Pair)],
    refused: &[String],
    seeds: u64,
) -> Result<String, Box<dyn Error>> {
    let group = |name: &'static str| {
        pairs
            .iter()
            .filter(move |(g, _)| *g == name)
            .map(|(_, p)| p)
    };
    let mut out = HEAD.replace("{seeds}", &seeds.to_string());
    samples(&mut out, group("incast").chain(group("late")))?;
    incast(&mut out, data, group("incast"), seeds)?;
    late(&mut out, group("late"))?;
    pfc(&mut out, data, group("pfc"), seeds)?;
    fct(&mut out, data, group("fct"), refused, seeds)?;
    for pair in group("incast").chain(group("late")) {
        draw(plots, pair)?;
    }
    slowdowns(plots, data, group("fct"))?;
    out.push_str(PLOTS);
    for pair in group("incast").chain(group("late")) {
        let _ = writeln!(
            out,
            "\n### {0}\n\n![queue](congestion/{0}_queue.svg)\n![rates](congestion/{0}_rates.svg)",
            pair.name
        );
    }
    let _ = writeln!(out, "\n### FCT slowdown by size\n");
    for pair in group("fct") {
        let _ = writeln!(out, "![slowdown](congestion/{}_slowdown.svg)", pair.name);
    }
    Ok(out)
}

const HEAD: &str = "# DCQCN against its reference

Written by `cargo xtask congestion DATA`; not edited by hand.

The reference is the HPCC simulator (alibaba-edu/High-Precision-Congestion-Control, ns-3, commit 9f4be2a), whose \"Mellanox\" DCQCN is
the model that later work builds on. Its runs are published as configuration, topology, flow list and resulting series. Here each
of them is run again: `rocexdp-proto`'s reaction point, `rocexdp-sim`'s switch and network, and a host that sends as the reference's
does (`rocexdp-fabric/src/reference/host.rs`: windowless paced sender, an acknowledgement per packet). `rocexdp sim reference DIR`
runs any directory in that format.

What is compared, from the inside out:

1. **Event by event.** Fed the CNP times of the four published logs of a reaction point, every following row (12 681 in all: time,
   rate and target in b/s, alpha, stage) comes out identical: `rocexdp-proto/tests/dcqcn_trace.rs`.
2. **Sample by sample.** The reference draws which packets to mark from a generator that can be followed (MRG32k3a, a stream per
   decision: `reference/random.rs`). With run 1, the published one, a run here makes the very same draws, and its samples can be
   compared one by one, to the byte.
3. **In the mean.** The mean of {seeds} runs with other numbers (`RngRun` 2 and up) against the published one: what is left is
   chance, of one run on the reference's side.

Bold marks what is off by more than: utilisation 1 %, mean queue, cuts, alpha and CNPs 5 %, p99 of the queue 10 %, mean slowdown 10 %, p99
of the slowdown 15 % (only where a bin has 200 flows); and a Jain's index below 0.995.

Where the reference's rules come from: `rdma-hw.cc` (hosts), `qbb-net-device.cc` (NIC), `switch-mmu.cc`, `switch-node.cc` (switch),
`third.cc` (setup). Things that must be followed to get there, each found by a sample that differed:

* whole nanoseconds, cut off after a division of doubles: 60 B at 40 Gb/s take 11 ns, not 12;
* of events at one nanosecond the one that was scheduled first comes first, so that a CNP still counts for an alpha tick of the same
  nanosecond where alpha's period is shorter than an acknowledgement's flight;
* a NIC that has nothing to send looks again at the earliest send time of any QP with bytes left, even one that its window holds.
";

const PLOTS: &str = "
## Plots

Thick: reference; thin: here, run 1. The first 2 ms in steps of 10 us, then as published.
";

fn samples<'a>(
    out: &mut String,
    pairs: impl Iterator<Item = &'a Pair>,
) -> Result<(), Box<dyn Error>> {
    out.push_str("\n## Sample by sample\n\nRows of `queue.csv` (queue, marks, packets sent) and `flows.csv` (rate, bytes received, CNPs, cuts) of the whole run.\n\n| run | rows compared | identical |\n|---|---|---|\n");
    for pair in pairs {
        let (compared, same) = published::samples(&pair.directory, &pair.case, &pair.own)?;
        let _ = writeln!(out, "| {} | {compared} | {same} |", pair.name);
    }
    Ok(())
}

fn incast<'a>(
    out: &mut String,
    data: &Path,
    pairs: impl Iterator<Item = &'a Pair>,
    seeds: u64,
) -> Result<(), Box<dyn Error>> {
    let published: BTreeMap<String, Row> = rows(&data.join("incast_summary.csv"))?
        .into_iter()
        .map(|r| (r["case"].clone(), r))
        .collect();
    out.push_str("\n## Incast\n\nOver the last three quarters of each run.\n\n| run | |");
    for (_, heading, ..) in COMPARED {
        let _ = write!(out, " {heading} |");
    }
    out.push_str("\n|---|---|---|---|---|---|---|---|---|\n");
    for pair in pairs {
        let Some(row) = published.get(&pair.name) else {
            continue;
        };
        let (own, others) = (columns(&pair.own_result)?, columns(&pair.others)?);
        let _ = write!(out, "| {} | reference |", pair.name);
        for (column, _, decimals, _) in COMPARED {
            let _ = write!(out, " {:.decimals$} |", number(row, column));
        }
        for (name, ours) in [
            ("run 1".to_owned(), &own),
            (format!("mean of {seeds}"), &others),
        ] {
            let _ = write!(out, "\n| | {name} |");
            for (column, _, decimals, allowed) in COMPARED {
                let ours = ours.get(column).copied().unwrap_or(f64::NAN);
                let text = cell(ours, number(row, column), decimals, allowed);
                let _ = if column == "jain_window" && ours < LEAST_JAIN {
                    write!(out, " **{text}** |")
                } else {
                    write!(out, " {text} |")
                };
            }
        }
        out.push('\n');
    }
    Ok(())
}

fn late<'a>(out: &mut String, pairs: impl Iterator<Item = &'a Pair>) -> Result<(), Box<dyn Error>> {
    out.push_str("\n## A flow comes late, a flow leaves\n\nCompletion times of flows that end, nanoseconds; how the rates move is in the plots.\n\n| run | flow | reference | run 1 |\n|---|---|---|---|\n");
    for pair in pairs {
        let Ok(text) = fs::read_to_string(pair.directory.join("fct.txt")) else {
            continue;
        };
        for (line, done) in text.lines().zip(&pair.own.done) {
            let theirs = line.split_whitespace().nth(6).unwrap_or("-");
            let _ = writeln!(
                out,
                "| {} | {} | {theirs} | {} |",
                pair.name, done.flow, done.fct
            );
        }
    }
    Ok(())
}

fn pfc<'a>(
    out: &mut String,
    data: &Path,
    pairs: impl Iterator<Item = &'a Pair>,
    seeds: u64,
) -> Result<(), Box<dyn Error>> {
    let published: BTreeMap<String, Row> = rows(&data.join("pfc_summary.csv"))?
        .into_iter()
        .map(|r| (r["case"].clone(), r))
        .collect();
    let _ = writeln!(
        out,
        "\n## PFC\n\nRuns of 20 ms; `cc0` is without rate control. Pauses received, before and after 5 ms; largest queue.\n\n| run | pauses: reference | run 1 | mean of {seeds} | first 5 ms: reference | run 1 | time paused, us: reference | run 1 | max queue, B: reference | run 1 | drops |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for pair in pairs {
        let Some(row) = published.get(&pair.name) else {
            continue;
        };
        let own = &pair.own_result;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.0} | {} | {} | {} | {:.1} | {} | {} | {} |",
            pair.name,
            row["pauses_total_20ms"],
            own.summary.pfc_pauses,
            pair.others.summary.pfc_pauses,
            row["pauses_first5ms"],
            own.pauses_first,
            row["pause_time_sum_us"],
            own.pause_time_sum_us,
            row["q_max_bytes"],
            own.summary.q_max_all,
            own.summary.drops,
        );
    }
    Ok(())
}

fn fct<'a>(
    out: &mut String,
    data: &Path,
    pairs: impl Iterator<Item = &'a Pair>,
    refused: &[String],
    seeds: u64,
) -> Result<(), Box<dyn Error>> {
    let published = rows(&data.join("fct/fct_summary.csv"))?;
    let _ = writeln!(
        out,
        "\n## WebSearch on a leaf-spine\n\n32 hosts at 25 Gb/s, two spines at 100 Gb/s, half load, 2 882 flows. Slowdown by size.\n\n| run | size | flows | mean: reference | run 1 | mean of {seeds} | p99: reference | run 1 | mean of {seeds} |\n|---|---|---|---|---|---|---|---|---|"
    );
    let mut exact = String::new();
    for pair in pairs {
        let (same, all) = published::flows(&pair.directory, &pair.case, &pair.own)?;
        let _ = writeln!(
            exact,
            "| {} | {all} | {same} | {} |",
            pair.name,
            pair.own.flows - pair.own.done.len()
        );
        let variant = pair.name.split_once('_').map_or("", |(_, v)| v);
        for row in published.iter().filter(|r| r["variant"] == variant) {
            let find = |result: &CaseResult| {
                result
                    .fct
                    .iter()
                    .find(|f| f.size_bin == row["size_bin"])
                    .cloned()
                    .unwrap_or_default()
            };
            let (own, others) = (find(&pair.own_result), find(&pair.others));
            let (mean, p99) = (number(row, "avg_slowdown"), number(row, "p99"));
            let tail = if number(row, "n") < 200.0 {
                f64::INFINITY
            } else {
                0.15
            };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {mean:.3} | {} | {} | {p99:.3} | {} | {} |",
                pair.name,
                row["size_bin"],
                row["n"],
                cell(own.avg_slowdown, mean, 3, 0.10),
                cell(others.avg_slowdown, mean, 3, 0.10),
                cell(own.p99, p99, 3, tail),
                cell(others.p99, p99, 3, tail),
            );
        }
    }
    let _ = writeln!(
        out,
        "\nFlows of run 1 whose completion time is the reference's to the nanosecond:\n\n| run | flows that ended there | identical here | not ended here |\n|---|---|---|---|\n{exact}"
    );
    out.push_str("Refused by name, since their controllers are not here:\n\n");
    for why in refused {
        let _ = writeln!(out, "* `{why}`");
    }
    Ok(())
}

fn draw(plots: &Path, pair: &Pair) -> Result<(), Box<dyn Error>> {
    let time = |row: &Row| number(row, "t_us") / 1e3;
    let queue = pair.directory.join("queue.csv");
    if queue.exists() {
        let theirs = rows(&queue)?;
        let lines = [
            Line {
                name: "reference".into(),
                colour: "#f0a030",
                points: theirs
                    .iter()
                    .map(|r| (time(r), number(r, "egress_qlen_bytes") / 1e3))
                    .collect(),
            },
            Line {
                name: "here".into(),
                colour: "#2050a0",
                points: pair
                    .own
                    .series
                    .iter()
                    .map(|s| (s.at as f64 / 1e6, s.queue as f64 / 1e3))
                    .collect(),
            },
        ];
        let title = format!("{}: queue of the bottleneck", pair.name);
        fs::write(
            plots.join(format!("{}_queue.svg", pair.name)),
            chart(&title, "ms", "kB", &thin(lines)),
        )?;
    }
    let flows = pair.directory.join("flows.csv");
    if flows.exists() {
        let first = pair.case.flows.first().map_or(0, |f| f.source.0);
        let last = pair.case.flows.iter().enumerate().next_back();
        let mut lines = Vec::new();
        let theirs = rows(&flows)?;
        for (source, place, colours) in [
            Some((first, 0, ["#f0a030", "#2050a0"])),
            last.map(|(n, f)| (f.source.0, n, ["#e07070", "#107030"])),
        ]
        .into_iter()
        .flatten()
        {
            let of = theirs
                .iter()
                .filter(|r| number(r, "src") == f64::from(source));
            lines.push(Line {
                name: format!("reference {source}"),
                colour: colours[0],
                points: of.map(|r| (time(r), number(r, "rate_gbps"))).collect(),
            });
            let here = pair
                .own
                .series
                .iter()
                .filter_map(|s| Some((s, s.flows.get(place)?)))
                .filter(|(_, f)| f.active);
            lines.push(Line {
                name: format!("here {source}"),
                colour: colours[1],
                points: here
                    .map(|(s, f)| (s.at as f64 / 1e6, f.rate as f64 / 1e9))
                    .collect(),
            });
        }
        let title = format!("{}: rates of the first and last flow", pair.name);
        fs::write(
            plots.join(format!("{}_rates.svg", pair.name)),
            chart(&title, "ms", "Gb/s", &thin(lines)),
        )?;
    }
    Ok(())
}

/// At most about 1 200 points a line, so that a plot stays small.
fn thin(lines: impl IntoIterator<Item = Line>) -> Vec<Line> {
    let fewer = |line: Line| {
        let step = line.points.len().div_ceil(1_200).max(1);
        Line {
            points: line.points.into_iter().step_by(step).collect(),
            ..line
        }
    };
    lines.into_iter().map(fewer).collect()
}

fn slowdowns<'a>(
    plots: &Path,
    data: &Path,
    pairs: impl Iterator<Item = &'a Pair>,
) -> Result<(), Box<dyn Error>> {
    let published = rows(&data.join("fct/fct_summary.csv"))?;
    for pair in pairs {
        let variant = pair.name.split_once('_').map_or("", |(_, v)| v);
        let theirs: Vec<&Row> = published
            .iter()
            .filter(|r| r["variant"] == variant && r["size_bin"] != "all")
            .collect();
        let here = |of: fn(&rocexdp_fabric::reference::fct::FctRow) -> f64| {
            (1..)
                .zip(pair.own_result.fct.iter().filter(|r| r.size_bin != "all"))
                .map(|(n, r)| (f64::from(n), of(r)))
                .collect::<Vec<_>>()
        };
        let there = |column: &str| {
            (1..)
                .zip(&theirs)
                .map(|(n, r)| (f64::from(n), number(r, column)))
                .collect::<Vec<_>>()
        };
        let lines = [
            Line {
                name: "mean, reference".into(),
                colour: "#f0a030",
                points: there("avg_slowdown"),
            },
            Line {
                name: "mean, here".into(),
                colour: "#2050a0",
                points: here(|r| r.avg_slowdown),
            },
            Line {
                name: "p99, reference".into(),
                colour: "#e07070",
                points: there("p99"),
            },
            Line {
                name: "p99, here".into(),
                colour: "#107030",
                points: here(|r| r.p99),
            },
        ];
        let title = format!("{}: slowdown", pair.name);
        fs::write(
            plots.join(format!("{}_slowdown.svg", pair.name)),
            chart(
                &title,
                "1: below 10 kB, 2: to 100 kB, 3: to 1 MB, 4: to 10 MB, 5: above",
                "times",
                &lines,
            ),
        )?;
    }
    Ok(())
}
