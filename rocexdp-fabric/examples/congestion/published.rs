//! The published files: rows by column, and how many of their samples and flows come out the same here.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use rocexdp_fabric::reference::{Case, CaseResult, Outcome, busiest};

/// A row by its columns.
pub type Row = BTreeMap<String, String>;

/// A CSV file without quoting.
pub fn rows(file: &Path) -> Result<Vec<Row>, Box<dyn Error>> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    Ok(lines
        .map(|line| {
            let values = header.iter().zip(line.split(','));
            values
                .map(|(k, v)| ((*k).to_owned(), v.to_owned()))
                .collect()
        })
        .collect())
}

/// A number of a row; NaN if there is none.
pub fn number(row: &Row, column: &str) -> f64 {
    row.get(column)
        .and_then(|v| v.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Rows of `queue.csv` and `flows.csv` that were compared, and those that are the same.
pub fn samples(
    directory: &Path,
    case: &Case,
    own: &Outcome,
) -> Result<(usize, usize), Box<dyn Error>> {
    let (mut compared, mut same) = (0, 0);
    let by_time: BTreeMap<u64, _> = own.series.iter().map(|s| (s.at, s)).collect();
    let at = |row: &Row| (number(row, "t_us") * 1e3).round() as u64;
    let queue = directory.join("queue.csv");
    if queue.exists() {
        for row in rows(&queue)? {
            let Some(sample) = by_time.get(&at(&row)) else {
                continue;
            };
            compared += 1;
            same += usize::from(
                sample.queue as f64 == number(&row, "egress_qlen_bytes")
                    && sample.marked as f64 == number(&row, "ecn_marked_pkts_cum")
                    && sample.sent_packets as f64 == number(&row, "tx_data_pkts_cum"),
            );
        }
    }
    let flows = directory.join("flows.csv");
    if flows.exists() {
        let to = busiest(case);
        for row in rows(&flows)? {
            let source = number(&row, "src") as u32;
            let mut watched = case.flows.iter().filter(|f| f.destination == to);
            let place = watched.position(|f| f.source.0 == source);
            let (Some(sample), Some(place)) = (by_time.get(&at(&row)), place) else {
                continue;
            };
            let Some(flow) = sample.flows.get(place).filter(|f| f.active) else {
                continue;
            };
            compared += 1;
            let rate = flow.rate as f64 / 1e9 - number(&row, "rate_gbps");
            same += usize::from(
                rate.abs() < 0.000_051
                    && flow.received as f64 == number(&row, "rx_inorder_bytes")
                    && flow.cnps as f64 == number(&row, "cnp_cum")
                    && flow.cuts as f64 == number(&row, "ratecut_cum"),
            );
        }
    }
    Ok((compared, same))
}

/// Flows of `NAME_fct.csv` whose time is the same to the nanosecond, and all of them.
pub fn flows(config: &Path, case: &Case, own: &Outcome) -> Result<(usize, usize), Box<dyn Error>> {
    let file = config.with_file_name(format!("{}_fct.csv", case.name));
    let mut times: BTreeMap<String, f64> = BTreeMap::new();
    let published = rows(&file)?;
    for row in &published {
        let key = format!("{}-{}-{}", row["src"], row["dst"], row["sport"]);
        times.insert(key, number(row, "fct_ns"));
    }
    let same = own.done.iter().filter(|done| {
        let Some(flow) = case.flows.get(done.flow as usize) else {
            return false;
        };
        let key = format!(
            "{}-{}-{}",
            flow.source.0, flow.destination.0, flow.source_port
        );
        times.get(&key) == Some(&(done.fct as f64))
    });
    Ok((same.count(), published.len()))
}

/// Columns of `pfc_summary.csv` that differ from a run here, with both numbers.
pub fn pauses(data: &Path, own: &CaseResult) -> Result<Vec<String>, Box<dyn Error>> {
    let published = rows(&data.join("pfc_summary.csv"))?;
    let row = published
        .iter()
        .find(|r| r["case"] == own.summary.case)
        .ok_or("no row of pfc_summary.csv")?;
    let s = &own.summary;
    let columns = [
        ("pauses_total_20ms", s.pfc_pauses),
        ("pauses_first5ms", own.pauses_first),
        ("pauses_after5ms", own.pauses_after),
        ("pause_time_sum_us", own.pause_time_sum_us),
        ("drops", s.drops),
        ("util_after5ms", s.util),
        ("jain_after5ms", s.jain_window),
        ("q_mean_after5ms_bytes", s.q_mean_bytes),
        ("q_max_bytes", s.q_max_all),
    ];
    Ok(columns
        .into_iter()
        .filter_map(|(column, ours)| {
            let theirs = row.get(column)?;
            let decimals = theirs.split_once('.').map_or(0, |(_, d)| d.len());
            let ours = format!("{ours:.decimals$}");
            (ours != *theirs).then(|| format!("{column} {theirs} here {ours}"))
        })
        .collect())
}
