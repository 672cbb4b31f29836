//! The reference's runs come out as published, sample by sample: with its hosts, its rounding and its random numbers, everything
//! that the shipped reaction point and switch decide shows in these rows.

use rocexdp_fabric::reference::stats::Sample;
use rocexdp_fabric::reference::{Case, CaseResult, Outcome, Settings, run};

mod published;

use published::{Error, case, file};

struct Published {
    name: &'static str,
    queue_rows: String,
    flow_rows: String,
}

impl Published {
    fn read(name: &'static str) -> Result<Self, Error> {
        Ok(Self {
            name,
            queue_rows: file(name, "queue.csv")?,
            flow_rows: file(name, "flows.csv")?,
        })
    }
}

/// Runs the first 4 ms, keeping what the published files keep.
fn start_of(case: &Case, seed: u64) -> Result<Outcome, Error> {
    let settings = Settings {
        seed,
        keep: (2_000_000, 50_000),
    };
    let length = (case.config.monitor.end - case.config.monitor.start) as f64;
    Ok(run(case, settings, |share| share * length < 4_000_000.0)?)
}

fn columns(row: &str) -> Vec<&str> {
    row.split(',').collect()
}

/// Every row of `queue.csv` against the sample of its time.
fn compare_queue(of: &Published, samples: &[Sample]) -> usize {
    let mut compared = 0;
    for row in of.queue_rows.lines().skip(1) {
        let published = columns(row);
        let at: u64 = published[0].parse().expect("a time");
        let Some(sample) = samples.iter().find(|s| s.at == at * 1_000) else {
            continue;
        };
        let got = [
            sample.queue,
            sample.marked,
            sample.sent_packets,
            sample.sent_bytes,
        ];
        let got = got.map(|n| n.to_string());
        assert_eq!(got.as_slice(), &published[3..7], "{} {row}", of.name);
        compared += 1;
    }
    compared
}

/// Every row of `flows.csv`. Senders are numbered as their flows are listed.
fn compare_flows(of: &Published, samples: &[Sample]) -> usize {
    let mut compared = 0;
    for row in of.flow_rows.lines().skip(1) {
        let published = columns(row);
        let number = |i: usize| published[i].parse::<f64>().expect("a number");
        let Some(sample) = samples.iter().find(|s| s.at == number(0) as u64 * 1_000) else {
            continue;
        };
        let flow = sample.flows[number(1) as usize];
        let counted = [flow.received, flow.cnps, flow.cuts].map(|n| n as f64);
        assert_eq!(
            counted,
            [number(7), number(9), number(10)],
            "{} {row}",
            of.name
        );
        // Printed with 4 and 5 decimals.
        let rate = flow.rate as f64 / 1e9;
        assert!((rate - number(4)).abs() < 0.000_051, "{} {row}", of.name);
        assert!(
            (flow.alpha - number(6)).abs() < 0.000_005_1,
            "{} {row}",
            of.name
        );
        compared += 1;
    }
    compared
}

#[test]
fn the_first_milliseconds_of_incasts_are_those_of_the_reference() -> Result<(), Error> {
    for name in [
        "mlx100_2to1",
        "mlx25_8to1",
        "mlx100np4_4to1",
        "paperT100_4to1",
        "zhu40_8to1",
        "zhu40ns3_2to1",
    ] {
        let of = Published::read(name)?;
        let outcome = start_of(&case(name)?, 1)?;
        assert_eq!(compare_queue(&of, &outcome.series), 240, "{}", of.name);
        let rows = of.flow_rows.lines().count() - 1;
        assert_eq!(compare_flows(&of, &outcome.series), rows, "{}", of.name);
    }
    Ok(())
}

#[test]
fn another_seed_marks_other_packets() -> Result<(), Error> {
    let case = case("mlx25_8to1")?;
    let marks = |seed| -> Result<u64, Error> {
        let outcome = start_of(&case, seed)?;
        Ok(outcome.series.last().map_or(0, |s| s.marked))
    };
    let (first, again, other) = (marks(1)?, marks(1)?, marks(2)?);
    assert_eq!(first, again);
    assert_ne!(first, other);
    Ok(())
}

/// Before the first sample and after the last one too.
#[test]
fn a_run_may_be_ended_at_any_time() -> Result<(), Error> {
    let mut case = case("mlx25_8to1")?;
    let settings = Settings::seeded(1);
    case.config.monitor.start += 1_000_000;
    case.config.monitor.end = case.config.monitor.start + 100_000;
    let before = run(&case, settings, |_| false)?;
    assert_eq!((before.series.len(), before.summary.q_max_all), (0, 0.0));
    // As of 100 us: nothing has started.
    assert_eq!(before.left, 2_199_900_000);
    let mut looks = 0;
    let after = run(&case, settings, |share| {
        looks += u32::from(share >= 1.0);
        looks < 3
    })?;
    // The third look behind the last sample, which is just before 80 us.
    assert_eq!(after.left, 2_200_000_000 - 2_001_079_999 - 300_000);
    assert!(after.summary.goodput_sum_gbps > 0.0);
    Ok(())
}

#[test]
fn a_run_that_is_ended_keeps_what_it_has() -> Result<(), Error> {
    let case = case("mlx25_8to1")?;
    let outcome = start_of(&case, 1)?;
    assert!(outcome.left > 0);
    let result = CaseResult::of(&[outcome]).ok_or("no run")?;
    assert!(result.partial);
    assert!(result.to_string().contains("partial"));
    Ok(())
}
