//! Results as tables for people: a line per run, and of a single run its flows, queues and links that matter.

use std::fmt::Write;

use rocexdp_proto::time::Rate;

use super::{Bin, Ended, Report, Run};

/// Lines of a part that are shown of one run.
const MOST: usize = 16;

/// The whole report as text.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    if report.partial {
        _ = writeln!(
            out,
            "PARTIAL: {} of {} runs have results",
            report.runs.len(),
            report.planned
        );
    }
    for failure in &report.failures {
        let swept: String = failure
            .parameters
            .iter()
            .map(|(key, value)| format!(", {key} = {value}"))
            .collect();
        _ = writeln!(
            out,
            "FAILED: seed {}{swept}: {}",
            failure.seed, failure.reason
        );
    }
    overview(report, &mut out);
    if let [run] = &report.runs[..] {
        details(run, &mut out);
    }
    for (n, run) in report.runs.iter().enumerate() {
        if run.warmup_missed {
            _ = writeln!(
                out,
                "NOTE: run {n} (seed {}) ended at {}, before run.warmup had passed: no means and rates are of the time after it",
                run.seed,
                time(run.simulated_s)
            );
        }
        for deadlock in &run.deadlocks {
            _ = writeln!(
                out,
                "DEADLOCK in run {n} (seed {}): priority {} since {}: {}",
                run.seed,
                deadlock.priority,
                time(deadlock.since_s),
                deadlock.cycle.join(" -> ")
            );
        }
    }
    out
}

/// Rows under a head, columns as wide as they need; numbers to the right.
pub fn columns(head: &[&str], rows: &[Vec<String>], out: &mut String) {
    let width = |n: usize| {
        let cells = rows.iter().filter_map(|row| row.get(n));
        cells
            .map(|cell| cell.chars().count())
            .chain([head[n].len()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let numeric = |n: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(n));
        cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-'))
    };
    let right: Vec<_> = (0..head.len()).map(numeric).collect();
    let head: Vec<_> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(&widths).zip(&right) {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            _ = if *right {
                write!(line, "{pad}{cell}  ")
            } else {
                write!(line, "{cell}{pad}  ")
            };
        }
        _ = writeln!(out, "{}", line.trim_end());
    }
}

fn overview(report: &Report, out: &mut String) {
    let keys: Vec<&String> = report
        .runs
        .first()
        .map(|run| run.parameters.keys().collect())
        .unwrap_or_default();
    // The last part of a path says enough, unless two are the same.
    let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
    let short: Vec<String> = keys
        .iter()
        .map(|key| {
            let same = keys.iter().filter(|other| last(other) == last(key)).count();
            if same > 1 { (*key).clone() } else { last(key) }
        })
        .collect();
    let slow = report.runs.iter().any(|run| run.slowdown.is_some());
    let jain = report.runs.iter().any(|run| run.jain.is_some());
    let mut head = vec!["run", "seed"];
    head.extend(short.iter().map(String::as_str));
    head.extend([
        "time",
        "flows",
        "goodput",
        "max queue",
        "marked",
        "cnps",
        "resent",
        "pauses",
        "dropped",
    ]);
    if jain {
        head.push("jain");
    }
    if slow {
        head.extend(["slowdown mean", "p99"]);
    }
    head.push("ended");
    let rows: Vec<_> = report
        .runs
        .iter()
        .enumerate()
        .map(|(n, run)| {
            let t = &run.totals;
            let mut row = vec![n.to_string(), run.seed.to_string()];
            row.extend(
                keys.iter()
                    .map(|key| run.parameters.get(*key).cloned().unwrap_or_default()),
            );
            let queue = run
                .queues
                .iter()
                .map(|queue| queue.max_bytes)
                .max()
                .unwrap_or(0);
            row.extend([
                time(run.simulated_s),
                format!("{}/{}", t.finished, t.flows),
                rate(t.goodput_bps),
                bytes(queue as f64),
                t.marked.to_string(),
                t.cnps.to_string(),
                t.retransmissions.to_string(),
                t.pauses.to_string(),
                t.dropped.to_string(),
            ]);
            if jain {
                row.push(
                    run.jain
                        .map_or_else(|| "-".to_owned(), |jain| format!("{jain:.4}")),
                );
            }
            if slow {
                let all = run.slowdown.as_ref().map(|slowdown| &slowdown.all);
                row.push(all.map_or_else(|| "-".to_owned(), |all| format!("{:.2}", all.mean)));
                row.push(all.map_or_else(|| "-".to_owned(), |all| format!("{:.2}", all.p99)));
            }
            row.push(ended(run.ended).to_owned());
            row
        })
        .collect();
    columns(&head, &rows, out);
}

/// As people say it.
const fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::FlowsDone => "all flows done",
        Ended::Duration => "duration",
        Ended::Idle => "nothing left to happen",
        Ended::Deadlock => "DEADLOCK",
        Ended::Interrupted => "INTERRUPTED",
    }
}

fn details(run: &Run, out: &mut String) {
    if let Some(slowdown) = &run.slowdown
        && slowdown.all.flows > MOST
    {
        out.push_str("\nFCT slowdown by size\n");
        let row = |bin: &Bin| {
            let number = |value: f64| format!("{value:.2}");
            vec![
                bin.size.to_owned(),
                bin.flows.to_string(),
                number(bin.mean),
                number(bin.p50),
                number(bin.p95),
                number(bin.p99),
                number(bin.max),
            ]
        };
        let rows: Vec<_> = slowdown
            .bins
            .iter()
            .chain([&slowdown.all])
            .map(row)
            .collect();
        columns(
            &["size", "flows", "mean", "p50", "p95", "p99", "max"],
            &rows,
            out,
        );
    }
    flows(run, out);
    queues(run, out);
    links(run, out);
    if run.totals.dropped > 0 {
        out.push_str("\nDropped packets\n");
        let lost = run.drops.iter().filter(|(_, count)| **count > 0);
        let rows: Vec<_> = lost
            .map(|(reason, count)| vec![(*reason).to_owned(), count.to_string()])
            .collect();
        columns(&["reason", "packets"], &rows, out);
    }
}

fn more(shown: usize, all: usize, what: &str, out: &mut String) {
    if shown < all {
        _ = writeln!(
            out,
            "... and {} more {what}; all in --json and --csv",
            all - shown
        );
    }
}

fn flows(run: &Run, out: &mut String) {
    out.push_str("\nFlows\n");
    let dash = || "-".to_owned();
    let count = |value: Option<u64>| value.map_or_else(dash, |value| value.to_string());
    let rows: Vec<_> = run
        .flows
        .iter()
        .take(MOST)
        .map(|flow| {
            vec![
                flow.from.clone(),
                flow.to.clone(),
                flow.bytes
                    .map_or_else(|| "endless".to_owned(), |size| bytes(size as f64)),
                time(flow.start_s),
                flow.fct_s.map_or_else(dash, time),
                flow.slowdown
                    .map_or_else(dash, |slowdown| format!("{slowdown:.2}")),
                rate(flow.goodput_bps),
                count(flow.cnps),
                count(flow.retransmissions),
                flow.error.clone().unwrap_or_default(),
            ]
        })
        .collect();
    columns(
        &[
            "from", "to", "size", "start", "fct", "slowdown", "goodput", "cnps", "resent", "",
        ],
        &rows,
        out,
    );
    more(rows.len(), run.flows.len(), "flows", out);
}

fn queues(run: &Run, out: &mut String) {
    let mut queues: Vec<_> = run.queues.iter().collect();
    if queues.is_empty() {
        return;
    }
    queues.sort_by(|a, b| b.mean_bytes.total_cmp(&a.mean_bytes));
    out.push_str("\nQueues, the longest first\n");
    let rows: Vec<_> = queues
        .iter()
        .take(MOST)
        .map(|q| {
            vec![
                format!("{}>{}", q.switch, q.to),
                q.priority.to_string(),
                bytes(q.mean_bytes),
                bytes(q.max_bytes as f64),
                q.packets.to_string(),
                percent(q.marked as f64, q.packets as f64),
                q.pauses_sent.to_string(),
                percent(q.paused_s, run.simulated_s),
                q.dropped.to_string(),
            ]
        })
        .collect();
    columns(
        &[
            "port",
            "priority",
            "mean",
            "max",
            "packets",
            "marked",
            "pauses sent",
            "paused",
            "dropped",
        ],
        &rows,
        out,
    );
    more(rows.len(), queues.len(), "queues", out);
}

fn links(run: &Run, out: &mut String) {
    let mut links: Vec<_> = run
        .links
        .iter()
        .filter(|link| link.packets > 0 || link.utilisation > 0.0)
        .collect();
    links.sort_by(|a, b| b.utilisation.total_cmp(&a.utilisation));
    out.push_str("\nLinks, the busiest first\n");
    let rows: Vec<_> = links
        .iter()
        .take(MOST)
        .map(|l| {
            vec![
                format!("{}>{}", l.from, l.to),
                Rate::from_bps(l.rate_bps).to_string(),
                percent(l.utilisation, 1.0),
                l.packets.to_string(),
                (l.lost_fault + l.lost_down).to_string(),
                l.pause_frames.to_string(),
            ]
        })
        .collect();
    columns(
        &["link", "rate", "busy", "packets", "lost", "pause frames"],
        &rows,
        out,
    );
    more(rows.len(), links.len(), "links", out);
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.2}%", part / whole * 100.0)
    } else {
        "-".to_owned()
    }
}

/// A time in the unit that fits.
#[must_use]
pub fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_owned(),
        s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

/// A number of bytes in the unit that fits, powers of ten.
#[must_use]
pub fn bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1e3 => format!("{b:.0} B"),
        b if b < 1e6 => format!("{:.1} KB", b / 1e3),
        b if b < 1e9 => format!("{:.2} MB", b / 1e6),
        b => format!("{:.2} GB", b / 1e9),
    }
}

/// A rate in the unit that fits.
#[must_use]
pub fn rate(bps: f64) -> String {
    Rate::from_bps(bps as u64).to_string()
}
