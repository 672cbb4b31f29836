//! The report of a capture as text: what it holds, the QP pairs, the findings.
//!
//! The same report as JSON is rocexdp-observe's own; nothing is worked out here.

use std::fmt::Write;

use rocexdp_observe::{
    findings::{Severity, words::Many},
    report::{Endpoint, Flow, Metrics, Report, TiedBy, Volume},
};

use super::{
    table::{Column, Table},
    text::{bytes, count},
};

/// Where a finding's text begins in its lines after the first.
const INDENT: usize = 9;

/// The whole report. `top`: QP pairs to list at most.
#[must_use]
pub fn text(report: &Report, width: Option<usize>, top: usize) -> String {
    let mut text = head(report);
    text.push_str(&opcodes(report, width));
    text.push_str(&flows(report, width, top));
    text.push_str(&findings(report, width));
    text
}

/// Indices of the flows, the largest first.
#[must_use]
pub fn by_size(report: &Report) -> Vec<usize> {
    let mut order: Vec<usize> = (0..report.flows.len()).collect();
    let size = |index: &usize| {
        report
            .flows
            .get(*index)
            .map_or(0, |flow| flow.metrics.bytes)
    };
    order.sort_by_key(|index| std::cmp::Reverse(size(index)));
    order
}

fn span(ns: u64) -> String {
    rocexdp_observe::findings::words::Span(ns).to_string()
}

fn head(report: &Report) -> String {
    let names: Vec<&str> = report.files.iter().map(|file| file.name.as_str()).collect();
    let name = match names.as_slice() {
        [only] => (*only).to_owned(),
        [first, .., last] => format!("{} files, {first} to {last}", names.len()),
        [] => "no file".to_owned(),
    };
    let mut parts = vec![format!("{} RoCEv2 packets", report.rocev2_packets)];
    let mut part = |n: u64, what: &str| {
        if n > 0 {
            parts.push(format!("{n} {what}"));
        }
    };
    part(report.rocev1_packets, "RoCEv1 packets");
    part(report.left_out, "of other QP pairs, left out");
    part(report.tunnelled, "in tunnels");
    part(report.malformed, "malformed");
    part(report.unfollowed, "not followed");
    part(report.truncated, "captured in part");
    part(report.icrc_errors, "with a wrong ICRC");
    part(report.icrc_unknown, "with an unknown ICRC");
    part(report.ce_marked, "CE-marked");
    part(report.cnp, "CNPs");
    part(report.pfc_frames, "PFC frames");
    part(report.pause_frames, "pause frames");
    part(report.lldp_frames, "LLDP frames");
    format!(
        "{name}: {} frames in {}{}\n{}\n",
        report.packets,
        span((report.duration_s * 1e9) as u64),
        if report.complete {
            ""
        } else {
            " (not all was read)"
        },
        parts.join(", ")
    )
}

fn opcodes(report: &Report, width: Option<usize>) -> String {
    if report.opcodes.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[Column::text("OPCODE", 0), Column::number("PACKETS", 0)]);
    let mut list: Vec<_> = report.opcodes.iter().collect();
    list.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    for (name, n) in list {
        table.row([name.clone(), n.to_string()]);
    }
    let mut text = format!("\n{}", table.render(width));
    if !report.cm_messages.is_empty() {
        let list = report.cm_messages.iter();
        let list: Vec<_> = list.map(|(name, n)| format!("{n} {name}")).collect();
        text.push_str(&format!("connection manager: {}\n", list.join(", ")));
    }
    text
}

fn endpoint(end: &Endpoint) -> String {
    match end.qpn {
        Some(qpn) => format!("{} {qpn:#x}", end.address),
        None => format!("{} ?", end.address),
    }
}

const fn tied(flow: &Flow) -> &'static str {
    match flow.tied_by {
        TiedBy::Cm => "CM",
        TiedBy::Deth => "DETH",
        TiedBy::Heuristic => "PSN",
        TiedBy::None if flow.one_direction => "one way",
        TiedBy::None => "no",
    }
}

fn volume(volume: Volume) -> String {
    if volume.messages == 0 && volume.bytes == 0 {
        return "-".to_owned();
    }
    format!("{} / {}", count(volume.messages), bytes(volume.bytes))
}

fn atomics(metrics: &Metrics) -> String {
    let all = &metrics.operations;
    let n = all.compare_swap.messages + all.fetch_add.messages + all.atomic_write.messages;
    if n == 0 { "-".to_owned() } else { count(n) }
}

fn flows(report: &Report, width: Option<usize>, top: usize) -> String {
    if report.flows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        Column::text("A", 0),
        Column::text("B", 0),
        Column::text("TYPE", 2),
        Column::text("TIED", 6),
        Column::number("PACKETS", 1),
        Column::number("SEND", 3),
        Column::number("WRITE", 3),
        Column::number("READ", 3),
        Column::number("ATOMIC", 7),
        Column::number("RETRANS", 0),
        Column::number("GAPS", 1),
        Column::number("DUP", 10),
        Column::number("NAK", 1),
        Column::number("RNR", 1),
        Column::number("TIMEOUT", 2),
        Column::number("CE %", 4),
        Column::number("CNP", 4),
        Column::number("CNP/s", 8),
        Column::number("ACK p50", 5),
        Column::number("p99", 5),
        Column::number("max", 6),
        Column::number("MTU", 9),
        Column::number("ICRC ERR", 9),
    ]);
    let mut order: Vec<usize> = report.findings.iter().filter_map(|f| f.flow).collect();
    order.sort_unstable();
    order.dedup();
    let troubled = order.clone();
    order.extend(
        by_size(report)
            .into_iter()
            .filter(|index| troubled.binary_search(index).is_err()),
    );
    for flow in order
        .iter()
        .take(top)
        .filter_map(|index| report.flows.get(*index))
    {
        let m = &flow.metrics;
        let [a, b] = &flow.endpoints;
        let delay = |of: fn(&rocexdp_observe::report::AckDelay) -> u64| {
            m.ack_delay
                .as_ref()
                .map_or("n/a".to_owned(), |d| span(of(d)))
        };
        let known = |n: Option<u64>| n.map_or("n/a".to_owned(), count);
        table.row([
            endpoint(a),
            endpoint(b),
            flow.transport.to_owned(),
            tied(flow).to_owned(),
            count(m.packets),
            volume(m.operations.send),
            volume(m.operations.write),
            volume(m.operations.read),
            atomics(m),
            count(m.retransmissions.packets),
            known(m.psn_gaps),
            count(m.duplicates),
            count(m.naks.total()),
            count(m.rnrs),
            count(m.timeouts),
            format!("{:.1}", m.ce_share * 100.0),
            count(m.cnp),
            m.cnp_rate
                .map_or("n/a".to_owned(), |rate| format!("{rate:.1}")),
            delay(|d| d.p50_ns),
            delay(|d| d.p99_ns),
            delay(|d| d.max_ns),
            flow.path_mtu
                .map_or("n/a".to_owned(), |mtu| mtu.to_string()),
            count(m.icrc_errors),
        ]);
    }
    let mut text = format!("\n{}", table.render(width));
    let left = report.flows.len().saturating_sub(top);
    if left > 0 {
        let _ = writeln!(text, "({left} more QP pairs: --top 0 lists all)");
    }
    text
}

fn findings(report: &Report, width: Option<usize>) -> String {
    if report.findings.is_empty() {
        let packets = report.rocev2_packets + report.rocev1_packets;
        return match (packets, report.left_out) {
            (0, 0) => "\nNo RoCE packets, so nothing to find.\n".to_owned(),
            (0, n) => format!(
                "\nNothing matches --qp or --address: all {} are of other QP pairs (without a filter they are listed).\n",
                Many(n, "RoCE packet")
            ),
            _ => "\nNo findings.\n".to_owned(),
        };
    }
    let mut text = match report.findings.len() {
        1 => "\n1 finding:\n".to_owned(),
        n => format!("\n{n} findings, most serious first:\n"),
    };
    for finding in &report.findings {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
        };
        let frames: Vec<String> = finding.frames.iter().map(u64::to_string).collect();
        let at = if frames.is_empty() {
            String::new()
        } else {
            format!(" [frames {}]", frames.join(" "))
        };
        let line = format!(
            "{severity:<INDENT$}{}: {}{at}",
            finding.kind.name(),
            finding.text
        );
        text.push_str(&wrapped(&line, width));
    }
    text
}

/// Lines of at most `width` characters, broken at spaces; those after the first are indented.
fn wrapped(line: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width > 2 * INDENT) else {
        return format!("{line}\n");
    };
    let mut text = String::new();
    let mut used = 0;
    for word in line.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if used > INDENT && used + length > width {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(&" ".repeat(INDENT));
            used = INDENT;
        }
        text.push_str(word);
        used += word.chars().count();
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_findings_are_broken_at_spaces() {
        let line = "warning  packet_loss: one two three four five six seven";
        assert_eq!(
            wrapped(line, Some(30)),
            "warning  packet_loss: one two\n         three four five six\n         seven\n"
        );
        assert_eq!(wrapped(line, None), format!("{line}\n"));
        let long = wrapped(&format!("warning  x: {} end", "y".repeat(80)), Some(30));
        assert!(long.lines().all(|line| line.len() <= 89), "{long}");
    }
}
