//! `rocexdp lab up|down|exec|impair|capture|status`: see [`crate::lab::keeper`].

use std::{
    ffi::OsString,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::Shutdown,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;

use super::run_program;
use crate::{
    control::units::Span,
    lab::{
        self, Host, Impairment, LabConfig, PausedBy, SwitchedConfig,
        keeper::{self, Order, Status},
    },
    out,
    process::{Cancel, on_own_thread, own_program},
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
        /// Who stops sending when a switch pauses a host
        #[arg(
            long,
            value_name = "mac|host",
            value_enum,
            default_value_t,
            requires = "topology"
        )]
        paused_by: PausedBy,
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
    /// Write what is sent into a link of a lab with switches, both ways, as a pcap: `rocexdp lab capture leaf0-spine1 -w x.pcap`
    Capture {
        #[command(flatten)]
        name: Name,
        /// The link, by its ends; a second one between them is ...-....1
        link: String,
        /// File to write, - for standard output
        #[arg(short, long, value_name = "FILE")]
        write: PathBuf,
        /// End after so long [default: Ctrl-C ends it]
        #[arg(long = "for", value_name = "TIME")]
        limit: Option<Span>,
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
            paused_by,
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
                    paused_by,
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
        Command::Capture {
            name,
            link,
            write,
            limit,
        } => on_own_thread(move |cancel| {
            capture(&name.name, &link, &write, limit.map(|span| span.0), &cancel)
        }),
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

/// How long a capture that ends waits for frames that are on the way.
const LAST_FRAMES: Duration = Duration::from_secs(2);

fn capture(
    lab: &str,
    link: &str,
    path: &Path,
    limit: Option<Duration>,
    cancel: &Cancel,
) -> anyhow::Result<()> {
    let lost = || match keeper::look(lab) {
        Ok(Status::Switched(status)) => Some(status.network.capture_lost),
        _ => None,
    };
    let lost_before = lost();
    let mut records = keeper::capture(lab, link)?;
    let mut file = match path.to_str() {
        Some("-") => None,
        _ => Some(fs::File::create(path).with_context(|| format!("creating {}", path.display()))?),
    };
    let (start, mut frames, mut begun) = (Instant::now(), 0_u64, false);
    let (mut buffer, mut waiting) = (vec![0; 1 << 16], Vec::new());
    let mut ends = None;
    loop {
        // A signal is how it ends. What is on the way then still comes.
        if ends.is_none()
            && (cancel.check().is_err() || limit.is_some_and(|limit| start.elapsed() >= limit))
        {
            // The keeper may have gone.
            let _ = records.get_ref().shutdown(Shutdown::Write);
            ends = Some(Instant::now());
        }
        if ends.is_some_and(|since: Instant| since.elapsed() >= LAST_FRAMES) {
            break;
        }
        match records.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => waiting.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error).context("reading from the lab's keeper"),
        }
        let (whole, count) = whole_records(&waiting, &mut begun);
        frames += count;
        let ready = waiting.get(..whole).unwrap_or_default();
        match &mut file {
            Some(file) => file
                .write_all(ready)
                .with_context(|| format!("writing {}", path.display()))?,
            None => out::write(ready)?,
        }
        waiting.drain(..whole);
    }
    match (lost_before, lost()) {
        (Some(before), Some(now)) => out::note(format_args!(
            "rocexdp: {frames} frames of {link} captured; {} are missing, because they came faster than they were written",
            now.saturating_sub(before)
        )),
        _ => out::note(format_args!(
            "rocexdp: {frames} frames of {link} captured; how many are missing is not known, since the lab has gone"
        )),
    }
    Ok(())
}

/// Bytes of the records of a pcap that are whole, its header, once, included; and how many records.
fn whole_records(bytes: &[u8], begun: &mut bool) -> (usize, u64) {
    const HEADER: usize = 24;
    const RECORD: usize = 16;
    let (mut end, mut count) = (0, 0);
    if !*begun {
        if bytes.len() < HEADER {
            return (0, 0);
        }
        (end, *begun) = (HEADER, true);
    }
    // A record's third word is the length of what is kept of its frame.
    while let Some(len) = bytes.get(end + 8..).and_then(|at| at.first_chunk::<4>()) {
        let next = end + RECORD + u32::from_le_bytes(*len) as usize;
        if next > bytes.len() {
            break;
        }
        (end, count) = (next, count + 1);
    }
    (end, count)
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

#[cfg(test)]
mod tests {
    use super::whole_records;

    #[test]
    fn a_capture_ends_with_a_whole_record() {
        let mut begun = false;
        assert_eq!(whole_records(&[0; 23], &mut begun), (0, 0));
        let record =
            |len: u8| [&[0; 8][..], &[len, 0, 0, 0], &[0; 4], &vec![7; len.into()]].concat();
        let bytes = [vec![0; 24], record(60), record(100)].concat();
        assert_eq!(whole_records(&bytes, &mut begun), (24 + 76 + 116, 2));
        assert!(begun);
        let bytes = [record(60), record(100)].concat();
        for cut in 0..bytes.len() {
            let whole = if cut < 76 { (0, 0) } else { (76, 1) };
            assert_eq!(whole_records(&bytes[..cut], &mut begun), whole);
        }
    }
}
