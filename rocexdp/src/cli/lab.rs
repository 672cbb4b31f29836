//! `rocexdp lab up|down|exec|impair|status`: see [`crate::lab::keeper`].

use std::ffi::OsString;

use anyhow::Context;

use super::run_program;
use crate::{
    lab::{self, Host, Impairment, LabConfig, keeper},
    out,
    process::own_program,
    sys::netns::NetNs,
    view::lab::{drops_line, wire_table},
};

/// Which lab.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// The lab's name; its namespaces are NAME-a, NAME-b and NAME-wire
    #[arg(long, value_name = "NAME", default_value = "rocexdp")]
    name: String,
}

/// `rocexdp lab ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a lab and keep it: host a (10.77.0.1) - wire - host b (10.77.0.2)
    Up {
        #[command(flatten)]
        name: Name,
        /// MTU of the links; 4200 carries path MTU 4096
        #[arg(long, value_name = "BYTES", default_value_t = 4200)]
        mtu: u32,
        /// Put the hosts' addresses on a VLAN device, so that frames carry a tag
        #[arg(long, value_name = "ID")]
        vlan: Option<u16>,
    },
    /// Remove a lab
    Down {
        #[command(flatten)]
        name: Name,
    },
    /// Run a command on a host, as `rocexdp lab exec a -- ping 10.77.0.2`
    Exec {
        #[command(flatten)]
        name: Name,
        /// a or b
        host: Host,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Make the wire bad: drop=1%,ce=5%,corrupt=0.1%,dup=1%,reorder=1%,delay=100us,seed=7; or clean
    Impair {
        #[command(flatten)]
        name: Name,
        /// What happens to RoCEv2 packets
        faults: Impairment,
        /// Only to what this host sends; what the other sends stays clean
        #[arg(long, value_name = "a|b")]
        from: Option<Host>,
    },
    /// What the wire did, and what the links lost
    Status {
        #[command(flatten)]
        name: Name,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// The process that keeps a lab; started by `up`
    #[command(hide = true)]
    Keeper,
}

/// Runs one of them.
pub(super) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up { name, mtu, vlan } => {
            let config = LabConfig {
                mtu,
                vlan,
                ..LabConfig::named(name.name)
            };
            let status = keeper::up(&own_program()?, &["lab", "keeper"], &config)?;
            out::write(describe(&status).as_bytes())
        }
        Command::Down { name } => {
            let removed = keeper::down(&name.name)?;
            out::line(format_args!("removed {}", removed.join(", ")))
        }
        Command::Exec {
            name,
            host,
            command,
        } => {
            // Asking the keeper gives the better error when there is no lab.
            keeper::status(&name.name)?;
            let names = lab::namespaces(&name.name);
            let namespace = names
                .get(host.index())
                .context("the lab has no such host")?;
            run_program(&NetNs::open(namespace)?, &command)
        }
        Command::Impair { name, faults, from } => {
            let mut each = [faults; 2];
            if let Some(other) = from.map(Host::peer)
                && let Some(clean) = each.get_mut(other.index())
            {
                *clean = Impairment::default();
            }
            keeper::impair(&name.name, each)?;
            Ok(())
        }
        Command::Status { name, json } => {
            let status = keeper::status(&name.name)?;
            if json {
                out::json(&status)
            } else {
                out::write(describe(&status).as_bytes())
            }
        }
        Command::Keeper => Ok(keeper::keeper_main()?),
    }
}

fn describe(status: &keeper::LabStatus) -> String {
    let config = &status.config;
    let mut text = format!(
        "lab {}: {}-a ({}) - {} wire - {}-b ({}), interface {}, MTU {}, kept by process {}\n",
        config.name,
        config.name,
        addresses(Host::A, status.ipv6),
        status.wire,
        config.name,
        addresses(Host::B, status.ipv6),
        status.interface,
        config.mtu,
        status.keeper
    );
    let [from_a, from_b] = &status.impairments;
    text.push_str(&format!("wire: from a {from_a}; from b {from_b}\n"));
    text.push_str(&wire_table(&status.counters).render(None));
    text.push_str(&drops_line(&status.drops));
    text
}

fn addresses(host: Host, ipv6: bool) -> String {
    if ipv6 {
        format!("{}, {}", host.ipv4(), host.ipv6())
    } else {
        host.ipv4().to_string()
    }
}
