//! `cargo xtask test`: every test of the workspace, in two runs.
//!
//! First whether the tables of rules lead to tests at all. Then the tests that need nothing, as the user, and, as root and one at a time, those marked
//! `#[ignore = "needs root: run by cargo xtask test"]`: they make namespaces, load programs and measure. They find the optimised
//! binary in `ROCEXDP_BIN`. A test that can't run on this machine prints a line `SKIP: <reason>` and returns; these are counted, and
//! on a CI machine (`CI=true`) one is a failure.

use std::{
    io::{self, BufRead, BufReader, IsTerminal as _, Read, Write},
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context as _, Result};

use crate::{conformance, product, sh};

#[derive(Clone, Copy, Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Runs the tests whose name contains `name` (all without one); the exit code says whether all is well.
///
/// # Errors
/// Something can't be built or started.
pub fn run(name: Option<&str>) -> Result<ExitCode> {
    conformance::run()?;
    let binary = product::build(true)?;
    // Tests run them as users do, beside the binary.
    product::build_examples()?;
    let mut counts = Counts::default();
    // --show-output: else a passed test's SKIP line is not seen.
    let unprivileged = stage(&mut counts, tests(name, &[]).args(["--show-output"]))?;
    let privileged = {
        let mut cargo = tests(name, &["--lib", "--bins", "--tests"]);
        sh::programs_as_root(
            cargo.env("ROCEXDP_BIN", &binary),
            "testing XDP and network namespaces",
        )?;
        stage(
            &mut counts,
            cargo.args(["--ignored", "--test-threads=1", "--nocapture"]),
        )?
    };
    // A test that skipped itself counts as passed in libtest's summary.
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed.saturating_sub(counts.skipped),
        counts.failed,
        counts.skipped
    );
    let skipped_in_ci = sh::in_ci() && counts.skipped > 0;
    if skipped_in_ci {
        eprintln!("xtask: error: a CI machine must run every test");
    }
    Ok(if unprivileged && privileged && !skipped_in_ci {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `cargo test .. NAME --`: the same packages and features in both runs, so that the second builds nothing.
fn tests(name: Option<&str>, kinds: &[&str]) -> Command {
    let mut cargo = sh::cargo();
    cargo
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(kinds)
        .args(name)
        .arg("--");
    cargo
}

/// Runs one `cargo test`, passing its output on and adding up its results.
fn stage(counts: &mut Counts, cargo: &mut Command) -> Result<bool> {
    let args: Vec<_> = cargo
        .get_args()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    eprintln!("+ cargo {}", args.join(" "));
    let color = if io::stderr().is_terminal() {
        "always"
    } else {
        "auto"
    };
    let mut child = cargo
        .env("CARGO_TERM_COLOR", color)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    // A test may print its SKIP line to either.
    let errors = child
        .stderr
        .take()
        .map(|errors| thread::spawn(move || pass_on(errors, io::stderr())));
    let from_output = child
        .stdout
        .take()
        .map(|output| pass_on(output, io::stdout()))
        .unwrap_or_default();
    let from_errors = errors
        .and_then(|errors| errors.join().ok())
        .unwrap_or_default();
    for part in [from_output, from_errors] {
        counts.passed += part.passed;
        counts.failed += part.failed;
        counts.skipped += part.skipped;
    }
    Ok(child.wait().context("wait for cargo test")?.success())
}

fn pass_on(from: impl Read, mut to: impl Write) -> Counts {
    let mut counts = Counts::default();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        counts.add(&String::from_utf8_lossy(&line));
        // Nobody reads it any more: the results still count.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        line.clear();
    }
    counts
}

impl Counts {
    /// Counts a line of libtest's output.
    fn add(&mut self, line: &str) {
        // With --nocapture, `test name ... ` stands before the test's first line.
        if line.starts_with("SKIP: ") || line.contains(" ... SKIP: ") {
            self.skipped += 1;
        }
        let Some((_, results)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for result in results.split(';') {
            match result.trim().split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn results_and_skips_are_counted() {
        let mut counts = Counts::default();
        for line in [
            "test a ... ok\n",
            "test b ... SKIP: no such kernel\n",
            "SKIP: no peer\n",
            "test c prints that it did not SKIP: nothing\n",
            "test result: FAILED. 3 passed; 1 failed; 7 ignored; 0 measured; 2 filtered out; finished in 0.00s\n",
            "test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n",
        ] {
            counts.add(line);
        }
        assert_eq!((counts.passed, counts.failed, counts.skipped), (13, 1, 2));
    }
}
