//! The options that choose this host's end of a test between two hosts: `perf` and `pingpong` have them alike.

use std::net::IpAddr;

use crate::{
    control::config::RunOptions, engine::PollPolicy, loader::AttachWish, oob::place::Wish,
};

/// Interface, address, and how the engine runs there.
#[derive(Debug, clap::Args)]
pub(super) struct End {
    /// Interface [default: the one that the connection takes]
    #[arg(short = 'd', long, alias = "ib-dev", value_name = "IF")]
    iface: Option<String>,
    /// Use this address of the interface [default: that of the connection, or one like the peer's]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Use an IPv6 address of the interface
    #[arg(long)]
    ipv6: bool,
    /// How to attach the XDP program
    #[arg(long, value_name = "auto|driver|generic")]
    mode: Option<AttachWish>,
    /// When the engine sleeps: never, after a short while, at once
    #[arg(long, value_name = "busy|adaptive|sleep")]
    poll: Option<PollPolicy>,
}

impl End {
    /// For the engine, and for the choice of an address.
    pub(super) fn chosen(self) -> (RunOptions, Wish) {
        let options = RunOptions {
            iface: self.iface,
            mode: self.mode,
            poll: self.poll,
            ..RunOptions::default()
        };
        let wish = Wish {
            address: self.address,
            ipv6: self.ipv6,
        };
        (options, wish)
    }
}
