//! rocexdp with the kernel's Soft-RoCE: every operation, in both roles, on a clean wire and a faulty one.
//!
//! One guest is booted and runs all cases, each recorded on its tap and judged by `rocexdp pcap`. `docs/interop.md` has the results: the
//! run fails where they differ. `ROCEXDP_INTEROP=full`, as `cargo xtask test interop --full` sets it, runs the whole matrix and writes
//! the table anew. `ROCEXDP_INTEROP_ONLY=PART|PART` runs the cases whose name has one of the parts, `ROCEXDP_INTEROP_KEEP=DIR` keeps the
//! captures, `ROCEXDP_INTEROP_KERNEL=6.12` takes the newer kernel.
//!
//! A new case: a function that takes a [`run::Run`], and a line in [`cases`]. A program in the guest: `run.site.guest().start(..)`.

mod busy;
mod clean;
mod cm;
mod cnp;
mod ends;
mod faults;
mod ops;
mod programs;
mod refusals;
mod run;
mod table;

use rocexdp_tests::softroce::{Kernel, Site};
use run::Run;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn interop_with_soft_roce() {
    // A thread of its own: it moves into host a's namespace, and stays.
    let all = std::thread::spawn(|| {
        let Some(site) = Site::up("rxi", Kernel::wanted()) else {
            return;
        };
        let table = programs::cases(&site, run::full());
        let mut run = Run::new(site, table);
        cases(&mut run);
        run.finish();
    });
    all.join().unwrap();
}

fn cases(run: &mut Run) {
    clean::cases(run);
    busy::cases(run);
    refusals::cases(run);
    cm::cases(run);
    cnp::cases(run);
    faults::cases(run);
    // The last: nobody is there afterwards.
    faults::killed(run);
}
