//! `rocexdp rping`: the options of librdmacm's `rping`.

use std::net::IpAddr;

use super::block_on;
use crate::{
    control::{
        config::RunOptions,
        units::{ByteSize, Span},
    },
    engine::PollPolicy,
    loader::AttachWish,
    oob::place,
    rping::{self, LEAST_SIZE, MOST_SIZE, Plan},
};

use super::UsageError;

/// Options of `rocexdp rping`.
///
/// The other end runs librdmacm's `rping`, or `rocexdp rping`. A server: -s. A client: -c -a ADDRESS.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("role").required(true))]
pub struct Args {
    /// Be the server
    #[arg(short, long, group = "role")]
    server: bool,
    /// Be the client
    #[arg(short, long, group = "role", requires = "address")]
    client: bool,
    /// The server's address; of a server, the one whose interface it serves on
    #[arg(short, long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Port
    #[arg(short, long, default_value_t = 7174)]
    port: u16,
    /// Interface [default: the one that leads to, or has, the address]
    #[arg(short = 'i', long, value_name = "IF")]
    iface: Option<String>,
    /// Pings; 0: without end
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0)]
    count: u64,
    /// Bytes of a ping
    #[arg(short = 'S', long, value_name = "SIZE", default_value = "64")]
    size: ByteSize,
    /// Show each ping's text
    #[arg(short, long)]
    verbose: bool,
    /// Compare what comes back
    #[arg(short = 'V', long)]
    validate: bool,
    /// Serve one client after the other
    #[arg(short = 'P', long)]
    persistent: bool,
    /// Give up after so long without any news
    #[arg(long, value_name = "TIME", default_value = "30s")]
    patience: Span,
    /// How long a packet may be on its way: 4.096 us * 2^CODE [default: 14, 67 ms]
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u8).range(0..=24))]
    packet_life_time: Option<u8>,
    /// How to attach the XDP program
    #[arg(long, value_name = "auto|driver|generic")]
    mode: Option<AttachWish>,
    /// When the engine sleeps: never, after a short while, at once
    #[arg(long, value_name = "busy|adaptive|sleep")]
    poll: Option<PollPolicy>,
}

/// Checks the options and runs it.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let size = u32::try_from(args.size.0)
        .ok()
        .filter(|size| (LEAST_SIZE..=MOST_SIZE).contains(size))
        .ok_or_else(|| {
            UsageError(format!(
                "-S {}: must be {LEAST_SIZE} to {MOST_SIZE}",
                args.size.0
            ))
        })?;
    let iface = match (args.iface, args.address) {
        (None, Some(address)) if args.server && !address.is_unspecified() => {
            Some(place::interface_of(address)?)
        }
        (iface, _) => iface,
    };
    let plan = Plan {
        server: args.address.filter(|_| args.client),
        port: args.port,
        options: RunOptions {
            iface,
            mode: args.mode,
            poll: args.poll,
            ..RunOptions::default()
        },
        count: args.count,
        size,
        verbose: args.verbose,
        validate: args.validate,
        persistent: args.persistent,
        patience: args.patience.0,
        packet_life_time: args.packet_life_time,
    };
    block_on(rping::run(plan))
}
