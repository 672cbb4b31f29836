//! `rocexdp bench`: RDMA WRITE against plain AF_XDP, on the same virtual links in the same run.
//!
//! Numbers of different runs, machines or loads can't be compared; the ratio within one run can. So both are measured in
//! turn, several rounds, in one lab, and the medians are compared. Plain AF_XDP (`plain`) is two sockets with no protocol
//! and no work on the payload behind a program that redirects everything, with frames as long as RDMA's; RDMA (`rdma`) is
//! two whole nodes in this process. Both are given as payload per second: what is in a frame beside the path MTU's bytes is not counted.

mod plain;
mod rdma;

use std::time::Duration;

use anyhow::{Context, bail};
use rocexdp_proto::ids::PathMtu;
use serde::Serialize;

use crate::{
    control::{settings::UsageError, units::Span},
    lab::{Lab, LabConfig, LinkDrops},
    out,
    process::{Cancel, on_own_thread},
    view::{
        table::{Column, Table},
        text,
    },
};

/// What is measured: the largest path MTU, and the one that an Ethernet MTU of 1500 carries.
const PATH_MTUS: [PathMtu; 2] = [PathMtu::Mtu4096, PathMtu::Mtu1024];
/// Version of the JSON.
const VERSION: u32 = 1;

/// Options of `rocexdp bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds; medians are compared
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// Length of each measurement
    #[arg(long, value_name = "TIME", default_value = "2s")]
    time: Span,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Fail if RDMA moves less than this share of plain AF_XDP at path MTU 4096
    #[arg(long, value_name = "SHARE")]
    min_ratio: Option<f64>,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
struct Bench {
    /// Version of the JSON.
    version: u32,
    /// Length of each measurement.
    seconds: f64,
    /// By path MTU.
    results: Vec<Comparison>,
    /// Frames that the links lost under RDMA, all rounds. Plain AF_XDP has no flow control: what it loses is not counted.
    rdma_link_drops: u64,
}

/// One path MTU.
#[derive(Clone, Debug, Default, Serialize)]
struct Comparison {
    /// Bytes.
    path_mtu: u32,
    /// Plain AF_XDP, payload, Gb/s, by round.
    plain_gbps: Vec<f64>,
    /// RDMA WRITE, payload, Gb/s, by round.
    rdma_gbps: Vec<f64>,
    /// Their medians.
    plain_median: f64,
    /// Their medians.
    rdma_median: f64,
    /// `rdma_median / plain_median`.
    ratio: f64,
    /// RDMA packets sent again, all rounds.
    retransmitted_packets: u64,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !(1..=100).contains(&args.rounds) {
        return Err(UsageError("--rounds: 1 to 100".to_owned()).into());
    }
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&args.time.0) {
        return Err(UsageError("--time: 100ms to 60s".to_owned()).into());
    }
    let args = args.clone();
    on_own_thread(move |cancel| measure(&args, &cancel))
}

fn measure(args: &Args, cancel: &Cancel) -> anyhow::Result<()> {
    let name = format!("rocexdp-bench{}", std::process::id());
    let lab = Lab::up(LabConfig::named(name))?;
    if cfg!(debug_assertions) {
        out::note(
            "note: not an optimised build: neither number says what rocexdp can do (cargo xtask bench builds one)",
        );
    }
    let mut results: Vec<_> = PATH_MTUS
        .iter()
        .map(|mtu| Comparison {
            path_mtu: mtu.bytes(),
            ..Comparison::default()
        })
        .collect();
    let mut rdma_link_drops = 0;
    for round in 1..=args.rounds {
        out::note(format_args!("round {round} of {}", args.rounds));
        let plain =
            plain::measure(&lab, &PATH_MTUS, args.time.0, cancel).context("plain AF_XDP")?;
        let before = lost(&lab)?;
        let rdma = rdma::measure(&lab, &PATH_MTUS, args.time.0, cancel).context("RDMA WRITE")?;
        rdma_link_drops += lost(&lab)?.saturating_sub(before);
        for ((result, plain), rdma) in results.iter_mut().zip(plain).zip(rdma) {
            result.plain_gbps.push(plain);
            result.rdma_gbps.push(rdma.gigabits_per_second);
            result.retransmitted_packets += rdma.retransmitted_packets;
        }
    }
    for result in &mut results {
        result.plain_median = median(&result.plain_gbps);
        result.rdma_median = median(&result.rdma_gbps);
        result.ratio = if result.plain_median > 0.0 {
            result.rdma_median / result.plain_median
        } else {
            0.0
        };
    }
    lab.down()?;
    let bench = Bench {
        version: VERSION,
        seconds: args.time.0.as_secs_f64(),
        results,
        rdma_link_drops,
    };
    if args.json {
        out::json(&bench)?;
    } else {
        out::write(describe(&bench, args.rounds).as_bytes())?;
    }
    check(&bench, args.min_ratio)
}

/// Frames that the links lost so far.
fn lost(lab: &Lab) -> anyhow::Result<u64> {
    Ok(lab.link_drops()?.iter().map(LinkDrops::total).sum())
}

fn describe(bench: &Bench, rounds: u32) -> String {
    let mut table = Table::new(&[
        Column::number("PATH MTU", 0),
        Column::number("PLAIN AF_XDP", 0),
        Column::number("(LOWEST-HIGHEST)", 2),
        Column::number("RDMA WRITE", 0),
        Column::number("(LOWEST-HIGHEST)", 2),
        Column::number("RATIO", 0),
        Column::number("RETRANSMITTED", 1),
    ]);
    for result in &bench.results {
        table.row([
            result.path_mtu.to_string(),
            format!("{:.2} Gb/s", result.plain_median),
            range(&result.plain_gbps),
            format!("{:.2} Gb/s", result.rdma_median),
            range(&result.rdma_gbps),
            format!("{:.2}", result.ratio),
            result.retransmitted_packets.to_string(),
        ]);
    }
    format!(
        "payload, medians of {rounds} rounds of {:.1} s each, taken in turn\n{}links: {} frames lost under RDMA\n",
        bench.seconds,
        table.render(text::terminal_width()),
        bench.rdma_link_drops
    )
}

fn range(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    format!("{low:.2}-{high:.2}")
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    if sorted.len().is_multiple_of(2) && middle > 0 {
        f64::midpoint(at(middle - 1), at(middle))
    } else {
        at(middle)
    }
}

fn check(bench: &Bench, min_ratio: Option<f64>) -> anyhow::Result<()> {
    let Some(least) = min_ratio else {
        return Ok(());
    };
    let large = bench
        .results
        .iter()
        .find(|r| r.path_mtu == PathMtu::Mtu4096.bytes());
    let ratio = large.map_or(0.0, |r| r.ratio);
    if ratio < least {
        bail!("RDMA moved {ratio:.2} of what plain AF_XDP did, less than {least:.2}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn a_ratio_too_low_fails() {
        let result = Comparison {
            path_mtu: 4096,
            plain_gbps: vec![10.0, 12.0],
            rdma_gbps: vec![4.0, 6.0],
            plain_median: 11.0,
            rdma_median: 5.0,
            ratio: 5.0 / 11.0,
            retransmitted_packets: 3,
        };
        let bench = Bench {
            version: VERSION,
            seconds: 1.0,
            results: vec![result],
            rdma_link_drops: 0,
        };
        assert!(check(&bench, None).is_ok() && check(&bench, Some(0.4)).is_ok());
        assert!(check(&bench, Some(0.5)).is_err());
        let text = describe(&bench, 2);
        assert!(
            text.contains("11.00 Gb/s") && text.contains("4.00-6.00") && text.contains("0.45"),
            "{text}"
        );
    }
}
