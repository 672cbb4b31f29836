//! `rocexdp run`.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;

use crate::{
    control::{config::RunOptions, daemon},
    metrics::{DEFAULT_TOP, Listener, Serving, check_top},
};

/// Options of `rocexdp run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// TOML file with the same names as these options; an option given here goes before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: RunOptions,
}

/// Merges the configuration and runs the daemon.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let options = match &args.config {
        Some(path) => args.options.over(RunOptions::from_file(path)?),
        None => args.options,
    };
    // First of all, so that nothing has started when the address is taken.
    let metrics = match options.metrics {
        Some(address) => {
            let top = options.metrics_top.unwrap_or(DEFAULT_TOP);
            check_top("--metrics-top", top)?;
            let ifaces = options.iface.iter().cloned().collect();
            Some(Serving::start(Listener::bind(address)?, top, ifaces)?)
        }
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let done = runtime.block_on(async {
        match metrics {
            None => daemon::run(options).await,
            Some(metrics) => metrics.beside(daemon::run(options)).await,
        }
    });
    // A thread that reads a file on a dead server must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(2));
    done
}
