//! Results as pictures: rate per flow, queue lengths, CE, PFC, slowdown, load of links.
//!
//! Must not: compute results; they come as they are.

pub mod svg;

use crate::results::{FlowSeries, PortSeries, Report, Run, series::seconds};
use svg::{Axis, Chart, Heatmap, Level, Line};

/// A file's name and its text.
pub type File = (String, String);

/// Ports that are drawn of one run: those with the most.
const PORTS: usize = 12;
/// Links that are drawn of one run: the busiest.
const LINKS: usize = 48;

/// All pictures of all runs; names begin with the run's number where there are several.
#[must_use]
pub fn files(report: &Report) -> Vec<File> {
    let mut files = Vec::new();
    for (n, run) in report.runs.iter().enumerate() {
        let front = if report.runs.len() > 1 {
            format!("run{n:04}-")
        } else {
            String::new()
        };
        let about = about(report, run);
        for (name, text) in [
            ("rates", rates(run, &about)),
            ("queues", queues(run, &about)),
            (
                "ce",
                ports(
                    run,
                    &format!("Packets marked (CE) - {about}"),
                    "share of packets marked, %",
                    "no packet was marked",
                    marked,
                ),
            ),
            (
                "pfc",
                ports(
                    run,
                    &format!("Queues paused by PFC - {about}"),
                    "share of time paused, %",
                    "no queue was paused",
                    paused,
                ),
            ),
            ("slowdown", slowdown(&[(String::new(), vec![run])], &about)),
            ("links", links(run, &about)),
        ] {
            files.push((format!("{front}{name}.svg"), text));
        }
    }
    if report.runs.len() > 1 {
        files.push((
            "slowdown.svg".to_owned(),
            slowdown(&groups(report), &report.name),
        ));
    }
    files
}

/// What a run is, in a title.
fn about(report: &Report, run: &Run) -> String {
    let mut about = format!("{}, seed {}", report.name, run.seed);
    for (key, value) in &run.parameters {
        let key = key.rsplit('.').next().unwrap_or(key);
        about.push_str(&format!(", {key} {value}"));
    }
    if run.partial {
        about.push_str(", INTERRUPTED");
    }
    about
}

/// Runs that differ in their seeds only.
fn groups(report: &Report) -> Vec<(String, Vec<&Run>)> {
    let mut groups: Vec<(String, Vec<&Run>)> = Vec::new();
    for run in &report.runs {
        let part = |(key, value): (&String, &String)| {
            format!("{} {value}", key.rsplit('.').next().unwrap_or(key))
        };
        let name = run
            .parameters
            .iter()
            .map(part)
            .collect::<Vec<_>>()
            .join(", ");
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(run),
            None => groups.push((name, vec![run])),
        }
    }
    groups
}

/// An axis of time, and what seconds are multiplied by for it.
fn time_axis(run: &Run) -> (Axis, f64) {
    let end = seconds(run.series.step) * run.series.steps as f64;
    let (unit, scale) = match end {
        e if e < 2e-6 => ("ns", 1e9),
        e if e < 2e-3 => ("\u{b5}s", 1e6),
        e if e < 2.0 => ("ms", 1e3),
        _ => ("s", 1.0),
    };
    let axis = Axis {
        label: format!("time, {unit}"),
        most: Some(end * scale),
        ..Axis::default()
    };
    (axis, scale)
}

/// A bit above the given title: what is left of the time axis at step `n` is its middle.
fn middle(run: &Run, step: usize, scale: f64) -> f64 {
    (run.series.time_s(step) + seconds(run.series.step) / 2.0) * scale
}

fn rates(run: &Run, about: &str) -> String {
    let (x, scale) = time_axis(run);
    let step = seconds(run.series.step);
    let most = run
        .series
        .flows
        .iter()
        .flat_map(|flow| &flow.bytes)
        .fold(0.0_f32, |a, b| a.max(*b));
    let (unit, per) = if f64::from(most) * 8.0 / step >= 1e9 {
        ("Gb/s", 1e9)
    } else {
        ("Mb/s", 1e6)
    };
    let line = |flow: &FlowSeries| {
        let ends = run.flows.get(flow.flow)?;
        let point = |(n, bytes): (usize, &f32)| {
            (middle(run, n, scale), f64::from(*bytes) * 8.0 / step / per)
        };
        Some(Line {
            name: format!("{} to {}", ends.from, ends.to),
            points: flow.bytes.iter().enumerate().map(point).collect(),
        })
    };
    let left = run.flows.len().saturating_sub(run.series.flows.len());
    let longest = if left > 0 {
        format!(
            " (the {} longest of {})",
            run.series.flows.len(),
            run.flows.len()
        )
    } else {
        String::new()
    };
    Chart {
        title: format!("Goodput of flows{longest} - {about}"),
        x,
        y: Axis {
            label: format!("goodput, {unit}"),
            ..Axis::default()
        },
        lines: run.series.flows.iter().filter_map(line).collect(),
        empty: "no series were recorded".to_owned(),
        ..Chart::default()
    }
    .draw()
}

/// Ports by their highest value, those that have one.
fn highest(run: &Run, of: impl Fn(&PortSeries, usize) -> f64) -> Vec<(&PortSeries, f64)> {
    let mut all: Vec<_> = run
        .series
        .ports
        .iter()
        .map(|port| {
            (
                port,
                (0..run.series.steps)
                    .map(|n| of(port, n))
                    .fold(0.0, f64::max),
            )
        })
        .filter(|(_, most)| *most > 0.0)
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(PORTS);
    // What would lie on the axis says nothing.
    let least = all.first().map_or(0.0, |first| first.1) / 100.0;
    all.retain(|(_, most)| *most >= least);
    all
}

fn value(values: &[f32], n: usize) -> f64 {
    values.get(n).copied().map_or(0.0, f64::from)
}

fn queues(run: &Run, about: &str) -> String {
    let (x, scale) = time_axis(run);
    let chosen = highest(run, |port, n| value(&port.queue, n));
    let most = chosen.first().map_or(0.0, |first| first.1);
    let (unit, per) = if most >= 2e6 {
        ("MB", 1e6)
    } else {
        ("KB", 1e3)
    };
    let lines = chosen.iter().map(|(port, _)| Line {
        name: port.name.clone(),
        points: (0..run.series.steps)
            .map(|n| (middle(run, n, scale), value(&port.queue, n) / per))
            .collect(),
    });
    // Thresholds where they are the same for all that are drawn, and not far above.
    let first = chosen.first().and_then(|(port, _)| port.thresholds);
    let same = chosen.iter().all(|(port, _)| port.thresholds == first);
    let mut levels = Vec::new();
    if let Some((kmin, kmax)) = first.filter(|_| same) {
        for (name, bytes) in [("Kmin", kmin), ("Kmax", kmax)] {
            if bytes as f64 <= most * 3.0 {
                levels.push(Level {
                    name: name.to_owned(),
                    at: bytes as f64 / per,
                });
            }
        }
    }
    Chart {
        title: format!("Queue length of switch ports - {about}"),
        x,
        y: Axis {
            label: format!("mean of each step, {unit}"),
            ..Axis::default()
        },
        lines: lines.collect(),
        levels,
        empty: "no packet waited".to_owned(),
    }
    .draw()
}

fn marked(port: &PortSeries, n: usize) -> f64 {
    let packets = value(&port.packets, n);
    if packets > 0.0 {
        value(&port.marked, n) / packets * 100.0
    } else {
        0.0
    }
}

fn paused(port: &PortSeries, n: usize) -> f64 {
    value(&port.paused, n).max(value(&port.pausing, n)) * 100.0
}

fn ports(
    run: &Run,
    title: &str,
    label: &str,
    empty: &str,
    of: fn(&PortSeries, usize) -> f64,
) -> String {
    let (x, scale) = time_axis(run);
    let lines = highest(run, of).into_iter().map(|(port, _)| Line {
        name: port.name.clone(),
        points: (0..run.series.steps)
            .map(|n| (middle(run, n, scale), of(port, n)))
            .collect(),
    });
    Chart {
        title: title.to_owned(),
        x,
        y: Axis {
            label: label.to_owned(),
            ..Axis::default()
        },
        lines: lines.collect(),
        empty: empty.to_owned(),
        ..Chart::default()
    }
    .draw()
}

/// Shares of flows whose slowdown is at most so much. A single group is split by size.
fn slowdown(groups: &[(String, Vec<&Run>)], about: &str) -> String {
    const SIZES: [(&str, u64, u64); 4] = [
        ("all", 0, u64::MAX),
        ("below 100 KB", 0, 100_000),
        ("100 KB to 1 MB", 100_000, 1_000_000),
        ("1 MB and more", 1_000_000, u64::MAX),
    ];
    let mut lines = Vec::new();
    for (name, runs) in groups {
        for (size, least, most) in
            SIZES
                .iter()
                .take(if groups.len() == 1 { SIZES.len() } else { 1 })
        {
            let flows = runs.iter().flat_map(|run| &run.flows);
            let inside = flows.filter(|flow| {
                flow.bytes
                    .is_some_and(|bytes| (*least..*most).contains(&bytes))
            });
            let mut values: Vec<f64> = inside.filter_map(|flow| flow.slowdown).collect();
            values.sort_unstable_by(f64::total_cmp);
            if values.is_empty() {
                continue;
            }
            let label = if groups.len() == 1 {
                (*size).to_owned()
            } else {
                name.clone()
            };
            lines.push(Line {
                name: format!("{label} ({} flows)", values.len()),
                points: cdf(&values),
            });
        }
    }
    Chart {
        title: format!("FCT slowdown - {about}"),
        x: Axis {
            label: "times the completion time in an empty network".to_owned(),
            least: Some(1.0),
            log: true,
            ..Axis::default()
        },
        y: Axis {
            label: "share of flows, %".to_owned(),
            most: Some(100.0),
            ..Axis::default()
        },
        lines,
        empty: "no flow has ended".to_owned(),
        ..Chart::default()
    }
    .draw()
}

/// A step for each value, or 500 where there are more.
fn cdf(sorted: &[f64]) -> Vec<(f64, f64)> {
    let steps = sorted.len().min(500);
    let mut points = vec![(sorted[0], 0.0)];
    for n in 1..=steps {
        let rank = n * sorted.len() / steps;
        let before = points.last().map_or(0.0, |point| point.1);
        let at = sorted[rank - 1];
        points.push((at, before));
        points.push((at, rank as f64 / sorted.len() as f64 * 100.0));
    }
    points
}

fn links(run: &Run, about: &str) -> String {
    let (x, _) = time_axis(run);
    let mean = |values: &[f32]| values.iter().sum::<f32>();
    let mut busy: Vec<_> = run
        .series
        .links
        .iter()
        .filter(|link| mean(&link.busy) > 0.0)
        .collect();
    let all = busy.len();
    busy.sort_by(|a, b| mean(&b.busy).total_cmp(&mean(&a.busy)));
    busy.truncate(LINKS);
    let note = if busy.len() < all {
        format!(
            "the {} busiest of {all} directions of links that carried something",
            busy.len()
        )
    } else {
        String::new()
    };
    Heatmap {
        title: format!("Load of links - {about}"),
        x,
        rows: busy
            .iter()
            .map(|link| (link.name.clone(), link.busy.clone()))
            .collect(),
        note,
        empty: "no link carried anything".to_owned(),
    }
    .draw()
}
