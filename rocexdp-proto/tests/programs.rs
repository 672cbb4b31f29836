//! Arbitrary programs of verbs over a wire that does anything to their frames: see `common/program.rs`. The model test of
//! `rocexdp-sim` checks bytes as well; this one is what the fuzz target `operations` runs, from a seed.

mod common;

use common::program::Program;
use rocexdp_proto::rng::Rng;

#[test]
fn every_request_of_any_program_completes_once_and_in_order() {
    let (mut all, mut successes) = (0, 0);
    for seed in 0..4_000 {
        let mut rng = Rng::new(seed);
        let mut program = Program::new(&mut rng);
        for _ in 0..60 {
            program.step(&mut rng);
        }
        let (n, ok) = program.finish();
        (all, successes) = (all + n, successes + ok);
    }
    println!("{all} completions, {successes} successes");
    assert!(all > 30_000 && successes > 3_000);
}
