//! The monitor's programs on packet fixtures in the real kernel: every map's change against the pure function.

#[path = "../../../rocexdp-common/tests/support/mod.rs"]
mod support;

mod kernel;
mod model;

use kernel::Kernel;
use rocexdp_common::watch::PROGRAMS;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_verifiers_work_stays_below_its_limit() {
    for program in PROGRAMS {
        let walked = Kernel::load(program).verified();
        eprintln!("{program}: the verifier walked {walked} of 1000000 instructions");
        assert!(walked < 500_000, "{program}: {walked}");
    }
}
