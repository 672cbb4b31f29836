//! `cargo xtask`: set-up, build, run, test, bench and checks of this workspace.
//!
//! It builds with the stable compiler alone, before anything else is there, and must therefore depend on no other crate of the
//! workspace. What it does on the user's machine it says first: a command it runs is printed, and so is why a package is installed.

mod bench;
mod bpf;
mod ci;
mod conformance;
mod example;
mod fuzz;
mod layers;
mod model;
mod mutants;
mod paths;
mod product;
mod setup;
mod sh;
mod test;
mod toolchain;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Set-up, build, run, test and checks of rocexdp"
)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what building the eBPF objects needs; does nothing where all is there
    Setup {
        /// Only report; exit code 1 if something is missing
        #[arg(long)]
        check: bool,
    },
    /// Build the eBPF objects, then the rocexdp binary with them inside
    Build {
        /// With optimisation, as `run` and `bench` do
        #[arg(long)]
        release: bool,
    },
    /// Build, then run the demonstration in network namespaces; with arguments, `rocexdp run ARGS`
    Run {
        /// Arguments for `rocexdp run`, for instance `--iface eth1`
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGS"
        )]
        args: Vec<String>,
    },
    /// All tests, those that need root included
    Test {
        /// Only tests whose name contains this: for instance `interop`, rocexdp with the kernel's Soft-RoCE in a virtual machine
        name: Option<String>,
        /// Of `interop` the whole matrix, which writes the table in docs/interop.md
        #[arg(long)]
        full: bool,
    },
    /// Build, then measure (as root but for `pcap` and `proto`): `xdp` the XDP program, `pcap` the analysis of captures, `proto` the transport, `interop` rocexdp beside the kernel's Soft-RoCE in a virtual machine; otherwise `rocexdp bench ARGS`, RDMA against plain AF_XDP
    Bench {
        /// What to measure, or arguments for `rocexdp bench`
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGS"
        )]
        args: Vec<String>,
    },
    /// Build, then run an example of the Rust API in a lab: `pingpong` or `kv`
    Example {
        /// Which
        name: String,
        /// For its client: command and options, for instance `--size 4096`
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGS"
        )]
        args: Vec<String>,
    },
    /// The fuzz targets, each for a bounded time; `fuzz xdp`: random and mutated packets through the XDP and TCX programs in the kernel
    Fuzz {
        /// Seconds for each target but `xdp` [default: 60]
        #[arg(long)]
        seconds: Option<u32>,
        /// Of `xdp`: packets for each program [default: 1000000]
        #[arg(long, value_name = "N")]
        packets: Option<u32>,
        /// Of `xdp`: where its random numbers begin [default: 24301]
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// Only this target
        target: Option<String>,
    },
    /// The model test: random verbs programs over a faulty link, judged by an oracle
    Model {
        /// How many seeds
        #[arg(long, default_value_t = model::SEEDS)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Run this program instead, as a failing run printed it
        #[arg(long, value_name = "FILE")]
        replay: Option<PathBuf>,
        /// Build each mutant of the transport and require that a seed fails with it; with a value, those whose name contains it
        #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
        mutants: Option<String>,
    },
    /// Run the reference simulator's published experiments and write docs/congestion.md with its plots
    Congestion {
        /// Directory with the published runs: incast/, late/, pfc/, fct/ and their summaries
        data: PathBuf,
        /// Runs with other random numbers than the published ones, for the mean
        #[arg(long, default_value_t = 5)]
        seeds: u64,
        /// Only the section about the shipped transport; the rest of the document stays
        #[arg(long)]
        shipped: bool,
        /// Of that section only this part: incast, late, pfc, fct or loss
        #[arg(long, requires = "shipped")]
        only: Option<String>,
    },
    /// File sizes, module heads, where `unsafe` may stand, and the direction of dependencies
    Layers,
    /// Whether the tables of rules and scenarios in docs lead to functions and tests that exist
    Conformance,
    /// What CI checks: fmt, clippy, doc, layers, conformance, tests
    Ci {
        /// All but the tests
        #[arg(long)]
        skip_test: bool,
    },
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup { check: true } => return setup::report(),
        Task::Setup { check: false } => setup::install()?,
        Task::Build { release } => {
            let profile = if release {
                product::Profile::Release
            } else {
                product::Profile::Dev
            };
            product::build(profile).map(drop)?;
        }
        Task::Run { args } => product::run(args)?,
        Task::Test { name, full } => return test::run(name.as_deref(), full),
        Task::Bench { args } => bench::run(args)?,
        Task::Example { name, args } => example::run(&name, &args)?,
        Task::Fuzz {
            seconds,
            packets,
            seed,
            target,
        } => match (
            target.as_deref(),
            seconds,
            packets.is_some() || seed.is_some(),
        ) {
            (Some(fuzz::KERNEL), None, _) => {
                fuzz::run_in_kernel(packets.unwrap_or(1_000_000), seed.unwrap_or(0x5eed))?;
            }
            (Some(fuzz::KERNEL), Some(_), _) => {
                anyhow::bail!("--seconds: fuzz {} ends by --packets", fuzz::KERNEL)
            }
            (_, _, true) => {
                anyhow::bail!("--packets and --seed are of `fuzz {}` alone", fuzz::KERNEL)
            }
            (target, seconds, false) => fuzz::run(seconds.unwrap_or(60), target)?,
        },
        Task::Model {
            seeds,
            from,
            mutants: Some(name),
            ..
        } => mutants::run(seeds, from, Some(&name))?,
        Task::Model {
            seeds,
            from,
            replay,
            ..
        } => model::run(&model::Options {
            seeds,
            from,
            replay: replay.as_deref(),
        })?,
        Task::Congestion {
            data,
            seeds,
            shipped,
            only,
        } => sh::run(
            sh::cargo()
                .current_dir(paths::root())
                .args(["run", "--release", "-p", "rocexdp-fabric"])
                .args(["--example", "congestion", "--"])
                .args(shipped.then_some("--shipped"))
                .arg(std::path::absolute(data)?)
                .arg("docs")
                .arg(seeds.to_string())
                .args(only),
        )?,
        Task::Layers => layers::run()?,
        Task::Conformance => conformance::run()?,
        Task::Ci { skip_test } => return ci::run(skip_test),
    }
    Ok(ExitCode::SUCCESS)
}
