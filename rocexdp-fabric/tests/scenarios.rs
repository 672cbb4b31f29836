//! Every file in `scenarios/` does what its first lines say.

use std::{fs, path::Path};

use rocexdp_fabric::{
    Source, plots,
    results::{Ended, Report, csv, table},
    run::{self, Watch},
    scenario::Study,
};

fn read(name: &str) -> Study {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let text = fs::read_to_string(directory.join(name)).unwrap();
    let mut load =
        |file: &str| fs::read_to_string(directory.join(file)).map_err(|error| error.to_string());
    Study::read(Source::new(name, &text), &mut load).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a scenario, and writes its results in every form.
fn run(name: &str) -> Report {
    let study = read(name);
    assert_eq!(study.warnings, []);
    let report = run::study(&study, None, &Watch::default(), None).unwrap();
    assert!(!report.partial && report.runs.len() == report.planned);
    assert!(table::text(&report).contains("goodput"));
    for (file, text) in csv::files(&report) {
        let mut lines = text.lines();
        let columns = lines.next().unwrap().split(',').count();
        assert!(
            columns > 4 && lines.all(|line| line.split(',').count() >= columns),
            "{name}: {file}"
        );
    }
    for (file, text) in plots::files(&report) {
        assert!(
            text.starts_with("<svg ") && text.ends_with("</svg>\n"),
            "{name}: {file}"
        );
        assert!(
            !text.contains("NaN") && !text.contains("inf "),
            "{name}: {file}"
        );
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["version"], 1);
    report
}

#[test]
fn an_incast_shares_its_receiver() {
    for run in run("incast.toml").runs {
        assert!(
            run.totals.goodput_bps > 80e9 && run.totals.dropped == 0,
            "{:?}",
            run.totals
        );
        assert!(run.totals.cnps > 0);
    }
}

#[test]
fn losses_cost_go_back_n_more_than_selective_repeat() {
    let report = run("loss.toml");
    let mean = |selective: &str| {
        let runs = report
            .runs
            .iter()
            .filter(|run| run.parameters["transport.selective_repeat"] == selective);
        let times: Vec<f64> = runs.map(|run| run.flows[0].fct_s.unwrap()).collect();
        assert_eq!(times.len(), 3);
        let [a, b, c] = times[..] else { unreachable!() };
        assert!(
            a != b && b != c && a != c,
            "seeds draw other losses: {times:?}"
        );
        times.iter().sum::<f64>() / 3.0
    };
    assert!(
        mean("true") * 1.2 < mean("false"),
        "{} {}",
        mean("true"),
        mean("false")
    );
}

#[test]
fn a_ring_ends_in_a_deadlock() {
    let report = run("deadlock.toml");
    assert_eq!(
        (report.runs[0].ended, report.runs[0].deadlocks.len()),
        (Ended::Deadlock, 1)
    );
}

#[test]
fn all_flows_of_the_flow_mode_end() {
    let report = run("hadoop-flow.toml");
    let run = &report.runs[0];
    assert!(
        run.totals.flows > 100 && run.totals.finished == run.totals.flows,
        "{:?}",
        run.totals
    );
}

#[test]
fn websearch_is_read_with_its_sweep() {
    // Running it takes a minute without optimisation: `rocexdp sim scenarios/websearch.toml`.
    let study = read("websearch.toml");
    assert_eq!(study.scenarios.len(), 2);
    let flows = study.scenarios[1].workload.flows(1);
    assert!(flows.len() > 50);
}
