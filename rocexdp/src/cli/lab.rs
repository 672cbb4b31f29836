//! `rocexdp lab up|down|exec|impair|status`: see [`crate::lab::keeper`].

use std::{ffi::OsString, fs, path::PathBuf};

use anyhow::Context;

use super::run_program;
use crate::{
    lab::{
        self, Host, Impairment, LabConfig, SwitchedConfig,
        keeper::{self, Order, Status},
    },
    out,
    process::own_program,
    sys::netns::NetNs,
    view::lab::{drops_line, switched, wire_table},
};

/// Which lab.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// The lab's name; its namespaces are NAME-a, NAME-b and NAME-wire, or NAME-NODE with --topology
    #[arg(long, value_name = "NAME", default_value = "rocexdp")]
    name: String,
}

/// `rocexdp lab ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a lab and keep it: host a (10.77.0.1) - wire - host b (10.77.0.2), or the hosts and switches of a file
    Up {
        #[command(flatten)]
        name: Name,
        /// Hosts and switches as this file has them (docs/fabric.md): what `rocexdp sim` simulates, in real time
        #[arg(long, value_name = "FILE", conflicts_with_all = ["mtu", "vlan"])]
        topology: Option<PathBuf>,
        /// Seed of the switches' marks and the links' faults
        #[arg(long, value_name = "N", default_value_t = 1, requires = "topology")]
        seed: u64,
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
        /// a or b; with --topology, the host's name there
        host: String,
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
        Command::Up {
            name,
            topology,
            seed,
            mtu,
            vlan,
        } => {
            let order = match topology {
                Some(path) => Order::Switched(SwitchedConfig {
                    name: name.name,
                    topology: fs::read_to_string(&path)
                        .with_context(|| format!("reading {}", path.display()))?,
                    file: path.display().to_string(),
                    seed,
                }),
                None => Order::Wire(LabConfig {
                    mtu,
                    vlan,
                    ..LabConfig::named(name.name)
                }),
            };
            let status = keeper::up(&own_program()?, &["lab", "keeper"], &order)?;
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
            let namespace = namespace(&name.name, &host)?;
            run_program(&NetNs::open(&namespace)?, &command)
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
            let status = keeper::look(&name.name)?;
            if json {
                out::json(&status)
            } else {
                out::write(describe(&status).as_bytes())
            }
        }
        Command::Keeper => Ok(keeper::keeper_main()?),
    }
}

/// A host's namespace.
fn namespace(lab: &str, host: &str) -> anyhow::Result<String> {
    // Asking the keeper gives the better error when there is no lab.
    match keeper::look(lab)? {
        Status::Wire(_) => {
            let host: Host = host.parse().map_err(anyhow::Error::msg)?;
            let names = lab::namespaces(lab);
            let name = names.get(host.index());
            name.cloned().context("the lab has no such host")
        }
        Status::Switched(status) => {
            let hosts = &status.network.hosts;
            if let Some(found) = hosts.iter().find(|found| found.name == host) {
                return Ok(found.namespace.clone());
            }
            let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
            anyhow::bail!(
                "{host:?} is no host of lab {lab}: there are {}",
                names.join(", ")
            )
        }
    }
}

fn describe(status: &Status) -> String {
    match status {
        Status::Wire(status) => describe_wire(status),
        Status::Switched(status) => switched(status, None),
    }
}

fn describe_wire(status: &keeper::LabStatus) -> String {
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
