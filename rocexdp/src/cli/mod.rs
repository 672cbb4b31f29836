//! The command line: options, output and exit codes. What commands do is elsewhere.
//!
//! Exit codes: 0 done; 1 failed; 2 wrong usage; 130, 143 ended by SIGINT, SIGTERM; 141 nobody reads the output any more.
//! Errors go to standard error as `rocexdp: ...`, with their causes.

mod copy;
mod counters;
mod ends;
mod events;
mod lab;
mod monitor;
mod pcap;
mod perf;
mod pingpong;
mod qp;
mod record;
mod rping;
mod run;
mod sim;
mod top;
mod watched;

use std::{ffi::OsString, fmt, io, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    bench,
    control::settings::UsageError,
    demo, out,
    process::{Interrupted, Signals},
    sys::netns::NetNs,
};

/// RDMA (RoCEv2) over any Linux NIC, with XDP and AF_XDP.
#[derive(Debug, Parser)]
#[command(name = "rocexdp", version, max_term_width = 100)]
struct Cli {
    /// Work in this network namespace, as `ip netns` names it
    #[arg(long, global = true, value_name = "NAME")]
    netns: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an interface an RDMA endpoint, and serve copies until a signal comes
    Run(Box<run::Args>),
    /// Copy a file to a host that runs `rocexdp run --receive-dir`, by RDMA WRITE
    Copy(Box<copy::Args>),
    /// Look at queue pairs, as the BPF maps show them
    #[command(subcommand)]
    Qp(qp::Command),
    /// Look at what came in on each receive queue, and where it went
    Counters(counters::Args),
    /// Watch RoCEv2 traffic of any kind on interfaces: rates, congestion, loss, round trips of each QP, as text or JSON
    Monitor(Box<monitor::Args>),
    /// Keep the last packets in memory, and write a pcapng file around each trigger
    Record(Box<record::Args>),
    /// The same on a terminal, with sorting, filters, curves and a heatmap
    Top(Box<top::Args>),
    /// Rare events: NAKs, refused packets, exhausted retries, PFC storms
    Events(events::Args),
    /// Tell what a capture says: per QP pair, and what went wrong, in plain words
    Pcap(Box<pcap::Args>),
    /// Keep a lab: two hosts and a wire between them, as network namespaces
    #[command(subcommand)]
    Lab(lab::Command),
    /// Simulate a fabric whose hosts run this transport: queues, ECN, PFC, DCQCN, completion times, at data-centre scale
    Sim(Box<sim::Args>),
    /// Make a lab, copy a file over a clean and a bad wire, show what happened, remove everything
    Demo(demo::Args),
    /// Compare RDMA WRITE with plain AF_XDP on the same virtual link
    Bench(bench::Args),
    /// Measure bandwidth or latency against a host that runs perftest (`ib_write_bw`, ...) or `rocexdp perf`
    Perf(Box<perf::Args>),
    /// Send messages there and back against a host that runs `ibv_rc_pingpong` or one like it, or `rocexdp pingpong`
    Pingpong(Box<pingpong::Args>),
    /// See whether RDMA works between two hosts: connect by the RDMA CM, then SEND, READ and WRITE, against librdmacm's `rping` or `rocexdp rping`
    Rping(Box<rping::Args>),
    /// Write a shell's completions to standard output
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// A command's own exit code, which `rocexdp` takes over in silence.
#[derive(Clone, Copy, Debug)]
struct ChildStatus(u8);

impl fmt::Display for ChildStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the command ended with {}", self.0)
    }
}

impl std::error::Error for ChildStatus {}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    match Cli::try_parse_from(std::env::args_os()) {
        Ok(cli) => finish(dispatch(cli)),
        Err(error) => {
            // Help and version go to standard output with code 0, mistakes to standard error with 2.
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            let _ = error.print();
            ExitCode::from(code)
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    if let Some(name) = &cli.netns {
        // Threads are made later and inherit it.
        NetNs::open(name)
            .and_then(|namespace| namespace.enter())
            .with_context(|| format!("--netns {name} (see: ip netns)"))?;
    }
    match cli.command {
        Command::Run(args) => run::run(*args),
        Command::Copy(args) => copy::run(*args),
        Command::Qp(command) => qp::run(command),
        Command::Counters(args) => counters::run(&args),
        Command::Monitor(args) => monitor::run(*args),
        Command::Record(args) => record::run(*args),
        Command::Top(args) => top::run(*args),
        Command::Events(args) => events::run(&args),
        Command::Pcap(args) => pcap::run(*args),
        Command::Lab(command) => lab::run(command),
        Command::Sim(args) => sim::run(*args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Perf(args) => perf::run(*args),
        Command::Pingpong(args) => pingpong::run(*args),
        Command::Rping(args) => rping::run(*args),
        Command::Completions { shell } => completions(shell),
    }
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rocexdp", &mut text);
    out::write(&text)
}

fn finish(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    if error.is::<out::Closed>() {
        return ExitCode::from(141);
    }
    if let Some(ChildStatus(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    out::complain(&error);
    if let Some(Interrupted(signal)) = error.downcast_ref() {
        return ExitCode::from(128_u8.saturating_add(*signal));
    }
    if error.is::<UsageError>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// Runs asynchronous work to its end, or until SIGINT or SIGTERM, when the work is dropped where it stands.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let done = runtime.block_on(async {
        let mut signals = Signals::new()?;
        tokio::select! {
            done = work => done,
            (number, _) = signals.next() => Err(Interrupted(number).into()),
        }
    });
    // A thread that reads a file on a dead server must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(2));
    done
}

/// Becomes another program, in the given namespace: signals and the exit code are its own.
fn run_program(namespace: &NetNs, line: &[OsString]) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt as _;

    let [program, arguments @ ..] = line else {
        return Err(UsageError("no command given".to_owned()).into());
    };
    let mut command = std::process::Command::new(program);
    command.args(arguments);
    namespace
        .confine(&mut command)
        .with_context(|| format!("entering {}", namespace.label()))?;
    let error = command.exec();
    out::complain(&anyhow::anyhow!("{}: {error}", program.to_string_lossy()));
    // As shells have it.
    let code = if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    Err(ChildStatus(code).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_know_the_commands() {
        for shell in [
            clap_complete::Shell::Bash,
            clap_complete::Shell::Zsh,
            clap_complete::Shell::Fish,
        ] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "rocexdp", &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in ["copy", "receive-dir", "counters", "impair"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
