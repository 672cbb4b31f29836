//! `cargo xtask test`: every test of the workspace, in two runs.
//!
//! First whether the tables of rules lead to tests at all. Then the tests that need nothing, as the user, and, as root and one at a time, those marked
//! `#[ignore = "needs root: run by cargo xtask test"]`: they make namespaces, load programs and measure. They find the optimised
//! binary in `ROCEXDP_BIN`. A test that can't run on this machine prints a line `SKIP: <reason>` and returns; these are counted, and
//! on a CI machine (`CI=true`) one is a failure.
//!
//! Tests as root share the machine's processors with whatever else runs there, and a peer that the scheduler forgets for 100 ms is a
//! lost one to any transport. So what fails as root is run once more, by itself: what fails again has failed; what passes is
//! named in the summary as unsteady, with what it said, for somebody to look at. More than [`UNSTEADY`] of these are a failure.

use std::{
    io::{self, BufRead, BufReader, IsTerminal as _, Read, Write},
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context as _, Result};

use crate::{
    conformance,
    product::{self, Profile},
    sh,
};

/// How many tests may fail at first and pass by themselves.
const UNSTEADY: usize = 3;
/// Lines of a panic's message that are repeated in the summary.
const PANIC_LINES: usize = 6;

#[derive(Default)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// The names of those that failed.
    failures: Vec<String>,
    /// What panics said: all of them where output is not captured, expected ones too.
    panics: Vec<String>,
    /// Lines of the panic's message that are still to come.
    of_panic: usize,
    /// Within libtest's list of failures.
    listing: bool,
}

/// Runs the tests whose name contains `name` (all without one); the exit code says whether all is well. With `full`, `interop` runs its
/// whole matrix and writes `docs/interop.md`.
///
/// # Errors
/// Something can't be built or started.
pub fn run(name: Option<&str>, full: bool) -> Result<ExitCode> {
    conformance::run()?;
    let binary = product::build(Profile::Optimised)?;
    // Tests run them as users do, beside the binary.
    product::build_examples(Profile::Optimised)?;
    let mut counts = Counts::default();
    // --show-output: else a passed test's SKIP line is not seen.
    let unprivileged = stage(&mut counts, tests(name, &[]).args(["--show-output"]))?;
    let as_root = |counts: &mut Counts, names: &[String]| {
        let filter = if names.is_empty() { name } else { None };
        let mut cargo = tests(filter, &["--lib", "--bins", "--tests"]);
        sh::programs_as_root(
            cargo
                .env("ROCEXDP_BIN", &binary)
                .env("ROCEXDP_INTEROP", if full { "full" } else { "" }),
            "testing XDP and network namespaces",
        )?;
        cargo.args(["--ignored", "--test-threads=1", "--nocapture"]);
        if !names.is_empty() {
            cargo.arg("--exact").args(names);
        }
        stage(counts, &mut cargo)
    };
    let mut first = Counts::default();
    let mut privileged = as_root(&mut first, &[])?;
    if !first.failures.is_empty() && first.failures.len() <= UNSTEADY {
        let mut again = Counts::default();
        privileged = as_root(&mut again, &first.failures)?;
        first.passed += again.passed;
        first.failed = again.failed;
        for name in &first.failures {
            if again.failures.contains(name) {
                println!("FAILED twice: {name}");
            } else {
                println!("UNSTEADY, failed at first and passed by itself: {name}");
            }
        }
    }
    if !first.failures.is_empty() {
        println!("what panicked as root:\n{}", first.panics.join("\n"));
    }
    counts.add_all(&first);
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
        counts.add_all(&part);
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
    fn add_all(&mut self, part: &Self) {
        self.passed += part.passed;
        self.failed += part.failed;
        self.skipped += part.skipped;
        self.failures.extend_from_slice(&part.failures);
        self.panics.extend_from_slice(&part.panics);
    }

    /// Counts a line of libtest's output.
    fn add(&mut self, line: &str) {
        if line.contains("' panicked at ") || line.contains(") panicked at ") {
            self.of_panic = PANIC_LINES;
        }
        if self.of_panic > 0 {
            self.of_panic -= 1;
            self.panics.push(line.trim_end().to_owned());
        }
        match line.strip_prefix("    ") {
            Some(name) if self.listing => self.failures.push(name.trim().to_owned()),
            _ => self.listing = line == "failures:\n" || self.listing && line == "\n",
        }
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

    #[test]
    fn failures_are_named_and_their_panics_kept() {
        let mut counts = Counts::default();
        let said = "test c ... \nthread 'c' (7) panicked at tests/c.rs:1:2:\nleft is not right\nFAILED\ntest d ... ok\n\n\n\n\n\nfailures:\n\nfailures:\n    c\n    of::e\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n    not::a::failure\n";
        for line in said.split_inclusive('\n') {
            counts.add(line);
        }
        assert_eq!(counts.failures, ["c", "of::e"]);
        assert_eq!(counts.panics[1], "left is not right");
        assert_eq!(counts.panics.len(), super::PANIC_LINES);
    }
}
