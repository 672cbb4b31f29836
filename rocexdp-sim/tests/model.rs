//! The model test within `cargo test`: some hundred seeds, what failed once, and that a seed repeats itself.
//!
//! `cargo xtask model` runs more seeds and asks for coverage.
#![allow(clippy::disallowed_methods)] // Replays are files.

use rocexdp_sim::model::{self, Program, generate, shrink};

/// Seeds that run here.
const SEEDS: u64 = 300;

#[test]
fn programs_of_seeds_pass() {
    for seed in 0..SEEDS {
        let outcome = model::seed(seed);
        if outcome.violation.is_some() {
            let (small, why) = shrink::shrink(&generate::program(seed), 1000);
            panic!("seed {seed}: {why}\n{small}");
        }
    }
}

#[test]
fn programs_that_failed_once_pass() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model_regressions");
    let mut ran = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "model") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let program = Program::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let outcome = model::run(&program);
        assert_eq!(outcome.violation, None, "{}", path.display());
        ran += 1;
    }
    assert!(ran > 0);
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in 0..40 {
        let (a, b) = (model::seed(seed), model::seed(seed));
        assert_eq!(a.tally.hash, b.tally.hash, "seed {seed}");
        assert_eq!(a.hits, b.hits);
    }
    assert_ne!(model::seed(1).tally.hash, model::seed(2).tally.hash);
}

#[test]
fn faults_one_by_one_are_the_faults_of_the_seed() {
    for seed in 0..40 {
        let mut program = generate::program(seed);
        let first = model::run(&program);
        program.faults = Some(first.hits.clone());
        assert_eq!(
            model::run(&program).tally.hash,
            first.tally.hash,
            "seed {seed}"
        );
    }
}
