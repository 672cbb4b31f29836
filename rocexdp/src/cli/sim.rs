//! `rocexdp sim`: networks in simulated time; the models and results are rocexdp-fabric's (docs/sim.md).
//!
//! A scenario is checked, its memory estimated, its runs spread over cores. Ctrl-C keeps what there is, marked as partial.

mod reference;
mod run;

/// Options of `rocexdp sim`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[group(skip)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Args,
}

/// `rocexdp sim ...`
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Run a scenario; the same as `rocexdp sim FILE`
    Run(run::Args),
    /// Run experiments in the format of the HPCC simulator, DCQCN's reference (docs/congestion.md)
    Reference(reference::Args),
}

/// Simulates.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        None => run::run(args.run),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Reference(args)) => reference::run(args),
    }
}
