//! The model test's command: runs seeds on every core, or a replay. `cargo xtask model` calls it.
//!
//! Exit code 0: all seeds passed and everything that has to occur did. Must not: judge anything itself.
#![allow(clippy::disallowed_methods)] // A program may start threads, read a file and a clock: the library may not.
#![allow(clippy::disallowed_types)]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rocexdp_sim::model::{
    self, Program, REQUIRED_STATUSES, Tally, generate, required_opcodes, shrink,
};

/// Runs of the cutting down of a failure at most.
const SHRINK_RUNS: usize = 4000;
/// How often everything must occur in so many seeds.
const OFTEN: (u64, u64) = (100, 10_000);

struct Options {
    seeds: u64,
    from: u64,
    threads: usize,
    replay: Option<String>,
    /// Print the program of seed `from`, and nothing else.
    show: bool,
    /// Stop at the first failure, without cutting it down or asking what occurred.
    quick: bool,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::from(2);
        }
    };
    if options.show {
        print!("{}", generate::program(options.from));
        return ExitCode::SUCCESS;
    }
    match &options.replay {
        Some(file) => replay(file),
        None => seeds(&options),
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seeds: 10_000,
        from: 0,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        replay: None,
        show: false,
        quick: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_| format!("`{text}` is no number"))
        };
        match arg.as_str() {
            "--seeds" => options.seeds = number(value()?)?,
            "--from" => options.from = number(value()?)?,
            "--threads" => options.threads = number(value()?)?.clamp(1, 256) as usize,
            "--replay" => options.replay = Some(value()?),
            "--show" => options.show = true,
            "--quick" => options.quick = true,
            #[cfg(rocexdp_mutants)]
            "--mutant" => rocexdp_proto::mutant::choose(&value()?),
            _ => {
                return Err(format!(
                    "there is no option {arg}: --seeds N --from S --threads N --replay FILE --show --quick"
                ));
            }
        }
    }
    Ok(options)
}

fn replay(file: &str) -> ExitCode {
    let program = std::fs::read_to_string(file)
        .map_err(|e| e.to_string())
        .and_then(|text| Program::parse(&text));
    let program = match program {
        Ok(program) => program,
        Err(e) => {
            eprintln!("error: {file}: {e}");
            return ExitCode::from(2);
        }
    };
    let outcome = model::run(&program);
    print!("{}", outcome.tally.report());
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(why) => {
            eprintln!("{file}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn seeds(options: &Options) -> ExitCode {
    let start = Instant::now();
    let end = options.from + options.seeds;
    let next = AtomicU64::new(options.from);
    let failed = AtomicU64::new(u64::MAX);
    let total = Mutex::new(Tally::none());
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                let mut tally = Tally::none();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    // The first seed that fails is the same whatever the number of threads.
                    if seed >= end || seed >= failed.load(Ordering::Relaxed) {
                        break;
                    }
                    // An assertion of the transport's own is a failure too.
                    match std::panic::catch_unwind(|| model::seed(seed)) {
                        Ok(outcome) => {
                            if outcome.violation.is_some() {
                                failed.fetch_min(seed, Ordering::Relaxed);
                            }
                            tally.add(&outcome.tally);
                        }
                        Err(_) => {
                            eprintln!("model: seed {seed} panics");
                            failed.fetch_min(seed, Ordering::Relaxed);
                        }
                    }
                    let done = seed + 1 - options.from;
                    if !options.quick && done.is_multiple_of(1000) {
                        let pace = done as f64 / start.elapsed().as_secs_f64();
                        eprintln!(
                            "model: {done} of {} seeds, {pace:.0} per second",
                            options.seeds
                        );
                    }
                }
                if let Ok(mut total) = total.lock() {
                    total.add(&tally);
                }
            });
        }
    });
    let failed = failed.into_inner();
    if failed != u64::MAX {
        return report_failure(failed, options.quick);
    }
    if options.quick {
        return ExitCode::SUCCESS;
    }
    let Ok(total) = total.into_inner() else {
        return ExitCode::FAILURE;
    };
    print!("{}", total.report());
    println!(
        "{:.1} s on {} threads",
        start.elapsed().as_secs_f64(),
        options.threads
    );
    let least = OFTEN.0 * options.seeds / OFTEN.1;
    let missing = total.missing(&required_opcodes(), REQUIRED_STATUSES, least);
    if !missing.is_empty() {
        eprintln!("model: less than {least} of: {}", missing.join("; "));
        return ExitCode::FAILURE;
    }
    println!(
        "every required opcode with every fault, and every required status, at least {least} times"
    );
    ExitCode::SUCCESS
}

fn report_failure(seed: u64, quick: bool) -> ExitCode {
    let program = generate::program(seed);
    if quick {
        let why = model::run(&program).violation.unwrap_or_default();
        println!("seed {seed}: {why}");
        return ExitCode::FAILURE;
    }
    let (small, why) = shrink::shrink(&program, SHRINK_RUNS);
    eprintln!("model: seed {seed} fails: {why}");
    eprintln!(
        "model: cut down to {} operations and {} faults; replay with `cargo xtask model --replay FILE`, then keep it under rocexdp-sim/tests/model_regressions:",
        small.ops.len(),
        small.faults.as_ref().map_or(0, Vec::len)
    );
    println!("# seed {seed}: {why}\n{small}");
    ExitCode::FAILURE
}
