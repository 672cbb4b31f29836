//! rocexdp with the kernel's Soft-RoCE: every operation, in both roles, on a clean wire and a faulty one.
//!
//! A guest is booted and runs all cases, each recorded on its tap and judged by `rocexdp pcap`. `docs/interop.md` has the results: the
//! run fails where they differ. `ROCEXDP_INTEROP=full`, as `cargo xtask test interop --full` sets it, runs the whole matrix with kernel
//! 6.1, the short one with 6.12, and writes the table anew. `ROCEXDP_INTEROP_ONLY=PART|PART` runs the cases whose name has one of the
//! parts, `ROCEXDP_INTEROP_KERNEL=6.12` takes that kernel alone; of a full run, such a part is added to the table.
//! `ROCEXDP_INTEROP_KEEP=DIR` keeps the captures.
//!
//! A new case: a function that takes a [`run::Run`], and a line in [`cases`]. A program in the guest: `run.site.guest().start(..)`.

mod busy;
mod clean;
mod cm;
mod cnp;
mod ending;
mod ends;
mod faults;
mod inside;
mod nvme;
mod ops;
mod programs;
mod refusals;
mod run;
mod table;
mod ud;

use rocexdp_tests::softroce::{Kernel, Site};
use run::Run;
use table::Table;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn interop_with_soft_roce() {
    let kernels = match (Kernel::asked_for(), table::full()) {
        (Some(kernel), _) => vec![kernel],
        (None, false) => vec![Kernel::V6_1],
        (None, true) => Kernel::EACH.to_vec(),
    };
    let mut table = Table::default();
    for kernel in kernels {
        // The newer kernel runs the short form: what differs between the two is rxe.
        let full = table::full() && kernel == Kernel::V6_1;
        // A thread of its own: it moves into host a's namespace, and stays.
        let all = std::thread::spawn(move || of_kernel(kernel, full));
        let Some(results) = all.join().unwrap() else {
            return;
        };
        table.add_all(results);
    }
    table.finish();
}

/// All cases with a guest of this kernel; `None`, said, where there can't be one.
fn of_kernel(kernel: Kernel, full: bool) -> Option<Table> {
    let site = Site::up("rxi", kernel)?;
    println!("interop: guest\n{}", site.guest().versions());
    let table = programs::cases(&site, full);
    let mut run = Run::new(site, table, full);
    cases(&mut run);
    Some(run.finish())
}

fn cases(run: &mut Run) {
    clean::cases(run);
    ud::cases(run);
    busy::cases(run);
    refusals::cases(run);
    cm::cases(run);
    cnp::cases(run);
    faults::cases(run);
    ending::machines(run);
    // The last: nobody is there afterwards.
    faults::killed(run);
}
