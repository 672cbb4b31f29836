//! `rocexdp pingpong`: the options of libibverbs' pingpong examples.

use std::time::Duration;

use rocexdp_proto::ids::PathMtu;

use super::{UsageError, ends::End};
use crate::{
    control::units::{ByteSize, Span},
    out,
    pingpong::{self, Kind, Plan},
};

/// Options of `rocexdp pingpong`.
///
/// The other end runs the example of the service (`ibv_rc_pingpong -g INDEX`, with the GID index of a RoCE v2 address), or
/// `rocexdp pingpong`, with the same -s, -m, -n and -q; without HOST this end waits for it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Host that waits for us; without it we wait
    host: Option<String>,
    /// Which example
    #[arg(long, value_name = "SERVICE", default_value = "rc")]
    service: Kind,
    /// TCP port of the exchange
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    port: u16,
    #[command(flatten)]
    end: End,
    /// Bytes of a message [default: 4096, with UD 1024]
    #[arg(short, long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Path MTU, the same at both ends, not for UD: 256, 512, 1024, 2048 or 4096 B
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024)]
    mtu: u32,
    /// Receive requests to post at a time
    #[arg(short, long, value_name = "N", default_value_t = 500)]
    rx_depth: u32,
    /// Messages each way, of all queue pairs together
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 1000)]
    iterations: u64,
    /// Queue pairs, with --service srq [default: 16]
    #[arg(short = 'q', long = "num-qp", value_name = "N")]
    qps: Option<u32>,
    /// Sleep while waiting for a completion, at once
    #[arg(short, long)]
    events: bool,
    /// Look at what has come, one byte of each page; the client needs it too
    #[arg(short, long = "chk")]
    check: bool,
    /// Give up after so long without a completion [default: 60s, with UC and UD 10s]
    #[arg(long, value_name = "TIME")]
    patience: Option<Span>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The examples'; see --address
    #[arg(short = 'g', long, value_name = "INDEX", hide = true)]
    gid_idx: Option<u8>,
    /// The examples'; there is no port to choose
    #[arg(short = 'i', long, value_name = "PORT", hide = true)]
    ib_port: Option<u8>,
}

/// Checks the options and runs it.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    if args.gid_idx.is_some() {
        out::note(
            "rocexdp: -g is ignored: an interface has addresses here, no GID indices (--address chooses one, --ipv6 a kind)",
        );
    }
    pingpong::run(plan(args)?)
}

fn plan(args: Args) -> Result<Plan, UsageError> {
    let path_mtu = PathMtu::from_bytes(args.mtu).ok_or_else(|| {
        UsageError(format!(
            "-m {}: must be 256, 512, 1024, 2048 or 4096",
            args.mtu
        ))
    })?;
    let default = ByteSize(if args.service == Kind::Ud { 1024 } else { 4096 });
    let ByteSize(size) = args.size.unwrap_or(default);
    let size = u32::try_from(size).map_err(|_| UsageError(format!("-s {size}: at most 1G")))?;
    let patience = Duration::from_secs(match args.service {
        // What was lost does not come.
        Kind::Uc | Kind::Ud => 10,
        Kind::Rc | Kind::Srq => 60,
    });
    let (options, wish) = args.end.chosen();
    let plan = Plan {
        kind: args.service,
        host: args.host,
        port: args.port,
        options,
        wish,
        size,
        path_mtu,
        rx_depth: args.rx_depth,
        iterations: args.iterations,
        qps: args
            .qps
            .unwrap_or(if args.service == Kind::Srq { 16 } else { 1 }),
        events: args.events,
        check: args.check,
        patience: args.patience.map_or(patience, |span| span.0),
        json: args.json,
    };
    plan.checked()
}
