//! What `rocexdp monitor` prints: a table for each interval, lines of news, and a summary at the end.

use super::{
    live::{METRICS, Metric, ends, pause, per_second, share},
    table::{Column, Table},
    text,
};
use crate::live::{Direction, IfaceRates, Row, Value, news::News};

/// Least important columns first out, by [`Column::rank`].
const fn rank(metric: Metric) -> u8 {
    match metric {
        Metric::Rate => 0,
        Metric::Ce | Metric::Cnp => 1,
        Metric::RttP99 | Metric::Gaps => 2,
        Metric::Resent => 3,
        Metric::Back => 4,
        Metric::Packets => 5,
        Metric::Nak => 6,
        Metric::RttP50 => 7,
        Metric::Dcqcn => 8,
        Metric::Rnr => 9,
        Metric::RttMax => 10,
    }
}

/// The lines of all interfaces with packets in the interval, those with most bits first, at most `top`.
fn busiest(interval: &[IfaceRates], top: usize) -> (Vec<&Row>, usize) {
    let all = interval.iter().flat_map(|iface| &iface.rows);
    let mut rows: Vec<&Row> = all.filter(|row| row.active()).collect();
    let bits = |row: &Row| row.both(|d| d.bits).unwrap_or(0.0);
    rows.sort_by(|a, b| bits(b).total_cmp(&bits(a)).then_with(|| a.key.cmp(&b.key)));
    let active = rows.len();
    rows.truncate(top);
    (rows, active)
}

/// One interval: a line for each interface, a table of QPs and flows.
#[must_use]
pub fn interval(interval: &[IfaceRates], clock: &str, top: usize, width: Option<usize>) -> String {
    let mut out = String::new();
    for iface in interval {
        out.push_str(&format!("{clock} {}\n", heading(iface)));
    }
    let (rows, active) = busiest(interval, top);
    let known: usize = interval.iter().map(|iface| iface.rows.len()).sum();
    if rows.is_empty() {
        out.push_str(&if interval.iter().any(|iface| iface.rocev2 > 0.0) {
            format!(
                "the QPs of these RoCEv2 packets came and went within the interval, or the packets were refused; \
                 {known} QPs and flows known\n"
            )
        } else {
            format!("no RoCEv2 packets in this interval ({known} QPs and flows known)\n")
        });
        return out;
    }
    let several = interval.len() > 1;
    let mut columns = Vec::new();
    if several {
        columns.push(Column::text("IFACE", 0));
    }
    columns.push(Column::text("SOURCE/QP", 0));
    columns.push(Column::text("DESTINATION/QP", 0));
    columns.extend(METRICS.map(|metric| Column::number(metric.name(), rank(metric))));
    columns.push(Column::text("STATE", 11));
    let mut table = Table::new(&columns);
    for row in &rows {
        let mut cells = Vec::new();
        if several {
            cells.push(row.key.iface.to_string());
        }
        cells.extend(ends(row));
        cells.extend(METRICS.iter().map(|metric| metric.cell(row)));
        cells.push(row.state.map_or("flow", text::state).to_owned());
        table.row(cells);
    }
    out.push_str(&table.render(width));
    if active > rows.len() {
        out.push_str(&format!(
            "{} more with less traffic (see --top)\n",
            active - rows.len()
        ));
    }
    out
}

/// An interface on one line.
#[must_use]
pub fn heading(iface: &IfaceRates) -> String {
    let name = &iface.iface;
    if let Some(error) = &iface.error {
        return format!("{name}: {error}");
    }
    let mut text = format!(
        "{name}: {} RoCEv2 of {} frames/s, {} of {} flows",
        per_second(iface.rocev2),
        per_second(iface.frames),
        iface.flow_table.live,
        iface.flow_table.capacity
    );
    if iface.flow_table.evicted > 0 {
        text.push_str(&format!(
            ", {} evicted ({}/s)",
            iface.flow_table.evicted,
            per_second(iface.evictions)
        ));
    }
    if iface.dropped > 0.0 {
        text.push_str(&format!(", {} dropped/s", per_second(iface.dropped)));
    }
    for (reason, rate) in &iface.reasons {
        text.push_str(&format!(", {reason} {}/s", per_second(*rate)));
    }
    match pause(iface).as_str() {
        "-" => {}
        paused => text.push_str(&format!(", paused {paused}")),
    }
    for line in nic(iface) {
        text.push_str(&format!("\n  {line}"));
    }
    text
}

/// What RDMA ports counted, a line each: traffic of hardware is there only.
fn nic(iface: &IfaceRates) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut port = None;
    for rate in &iface.nic {
        let this = (rate.device.as_str(), rate.port);
        if port != Some(this) {
            port = Some(this);
            let kind = if rate.software {
                "software"
            } else {
                "hardware"
            };
            lines.push(format!(
                "{} port {} ({kind}, the NIC's own counters, per second):",
                rate.device, rate.port
            ));
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(&format!(" {} {}", rate.name, per_second(rate.per_second)));
        }
    }
    lines
}

/// News, a line each.
#[must_use]
pub fn news(news: &[News], clock: &str) -> String {
    news.iter()
        .map(|news| format!("{clock} {}\n", news.text))
        .collect()
}

/// The whole time: what each QP or flow did in sum.
#[must_use]
pub fn summary(whole: &[IfaceRates], top: usize, width: Option<usize>) -> String {
    let mut out = String::new();
    for iface in whole {
        let seconds = iface.seconds;
        let total = |rate: f64| (rate * seconds).round() as u64;
        out.push_str(&format!("{}: ", iface.iface));
        if seconds <= 0.0 {
            let why = iface
                .error
                .as_deref()
                .unwrap_or("nothing could be compared");
            out.push_str(&format!("no summary: {why}\n"));
            continue;
        }
        out.push_str(&format!(
            "over {seconds:.1} s {} frames, {} of them RoCEv2, {} QPs and flows",
            total(iface.frames),
            total(iface.rocev2),
            iface.rows.len()
        ));
        if iface.evictions > 0.0 {
            out.push_str(&format!(
                ", {} flows evicted, whose counters are lost",
                total(iface.evictions)
            ));
        }
        for (reason, rate) in &iface.reasons {
            out.push_str(&format!(", {reason} {}", total(*rate)));
        }
        for pause in &iface.pauses {
            let what = pause
                .priority
                .map_or_else(|| "port".to_owned(), |p| format!("priority {p}"));
            let time = match pause.share {
                Ok(value) => format!("{} %", share(value)),
                Err(reason) => format!("n/a: {reason}"),
            };
            out.push_str(&format!(
                ", {what} paused by {} frames ({time} of the time)",
                total(pause.pauses)
            ));
        }
        out.push('\n');
    }
    let (rows, active) = busiest(whole, top);
    if rows.is_empty() {
        return out;
    }
    let mut table = Table::new(&[
        Column::text("SOURCE/QP", 0),
        Column::text("DESTINATION/QP", 0),
        Column::number("PKTS", 3),
        Column::number("BYTES", 1),
        Column::number("BACK", 8),
        Column::number("CE", 1),
        Column::number("CE %", 4),
        Column::number("CNP", 1),
        Column::number("GAPS", 2),
        Column::number("MISSING", 5),
        Column::number("RESENT", 2),
        Column::number("NAK", 3),
        Column::number("RNR", 4),
        Column::number("RTT p50", 6),
        Column::number("RTT p99", 2),
        Column::number("RTT max", 7),
    ]);
    for row in &rows {
        let seconds = whole
            .iter()
            .find(|iface| iface.iface == row.key.iface)
            .map_or(0.0, |iface| iface.seconds);
        let (_, _, there, back) = row.oriented();
        let [from, to] = ends(row);
        let count = |value: Value| match value {
            Ok(v) => text::count((v * seconds).round() as u64),
            Err(_) => "n/a".to_owned(),
        };
        let bytes = |d: &Direction| match d.bits {
            Ok(v) => text::bytes((v * seconds / 8.0).round() as u64),
            Err(_) => "n/a".to_owned(),
        };
        table.row([
            from,
            to,
            count(row.both(|d| d.packets)),
            bytes(there),
            bytes(back),
            count(row.both(|d| d.ce)),
            Metric::Ce.cell(row),
            count(row.both(|d| d.cnp)),
            count(row.both(|d| d.gaps)),
            count(row.both(|d| d.missing)),
            count(row.both(|d| d.resent)),
            count(row.both(|d| d.naks)),
            count(row.both(|d| d.rnr)),
            Metric::RttP50.cell(row),
            Metric::RttP99.cell(row),
            Metric::RttMax.cell(row),
        ]);
    }
    out.push_str(&table.render(width));
    if active > rows.len() {
        out.push_str(&format!("{} more with less traffic\n", active - rows.len()));
    }
    out
}
