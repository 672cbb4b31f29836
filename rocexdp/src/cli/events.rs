//! `rocexdp events`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::builder::PossibleValuesParser;

use super::{block_on, qp::only_interface};
use crate::{
    control::{
        events::{self, FOREVER},
        local::{Daemon, Reply, Request, WAIT},
    },
    events::KINDS,
    out,
};

/// Options of `rocexdp events`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interface that `rocexdp run` or `rocexdp monitor` is on; need not be given where there is only one
    #[arg(long, value_name = "IFACE")]
    iface: Option<String>,
    /// Control socket, if not the usual one
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// After the latest 1024 events go on with the new ones, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Only events of these kinds, as `nak` or `pfc_storm`
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = PossibleValuesParser::new(KINDS), hide_possible_values = true)]
    kind: Vec<String>,
    /// Print a line of JSON for each
    #[arg(long)]
    json: bool,
}

/// Prints the events that the process on the interface has.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    block_on(print(args))
}

async fn connect(args: &Args) -> anyhow::Result<Daemon> {
    if let Some(path) = &args.socket {
        return Daemon::connect(path)
            .await?
            .with_context(|| format!("nobody answers at {}", path.display()));
    }
    let iface = args.iface.clone().map_or_else(only_interface, Ok)?;
    if let Some(daemon) = events::connect(&iface).await? {
        return Ok(daemon);
    }
    bail!(
        "nothing of rocexdp runs on {iface}: start `rocexdp run --iface {iface}` or `rocexdp monitor --iface {iface}` first"
    )
}

async fn print(args: &Args) -> anyhow::Result<()> {
    let mut daemon = connect(args).await?;
    let follow = args.follow;
    daemon.ask(Request::Events { follow }, None).await?;
    loop {
        let wait = if follow { FOREVER } else { WAIT };
        match daemon.reply(wait).await? {
            Reply::Event(event) => {
                if !args.kind.is_empty() && !args.kind.contains(&event.kind) {
                    continue;
                }
                if args.json {
                    out::json_line(&event)?;
                } else {
                    out::line(event)?;
                }
            }
            Reply::Missed(missed) => out::note(format_args!(
                "{missed} events were missed: this program did not keep up"
            )),
            Reply::End => return Ok(()),
            Reply::Failed(text) => bail!("{text}"),
            other => bail!("unexpected answer {other:?}: the daemon is of another version"),
        }
    }
}
