//! `rocexdp qp list|show|watch` and what they share with `counters`: the interface and its maps.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use serde::Serialize;

use crate::{
    control::{settings::UsageError, units::Span},
    maps::{Attachment, MapsView, QpView},
    net::Link,
    out,
    sys::clock,
    view::{
        model::{Flow, Qp, QpList, VERSION},
        qp, text,
    },
};

/// Which interface to look at.
#[derive(Clone, Debug, clap::Args)]
pub struct Source {
    /// Interface [default: the one that rocexdp runs on, if it is only one]
    #[arg(long, value_name = "IF")]
    pub iface: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `rocexdp qp ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// All QPs
    List {
        #[command(flatten)]
        source: Source,
        /// Also the RoCEv2 flows that pass by and are not local QPs'
        #[arg(long)]
        flows: bool,
    },
    /// All that is known about one QP
    Show {
        /// QP number, as 0x800012 or 8388626
        #[arg(value_parser = parse_qpn)]
        qpn: u32,
        #[command(flatten)]
        source: Source,
    },
    /// Rates of all QPs, again and again until Ctrl-C
    Watch {
        #[command(flatten)]
        source: Source,
        /// Time between two looks
        #[arg(long, value_name = "TIME", default_value = "1s")]
        interval: Span,
        /// End after this many
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
}

fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number <= 0xff_ffff => Ok(number),
        _ => Err("a QP number is 0 to 0xffffff, such as 0x800012".to_owned()),
    }
}

impl Source {
    /// The interface's name and its maps.
    pub(super) fn open(&self) -> anyhow::Result<(String, MapsView)> {
        let iface = self.iface.clone().map_or_else(only_interface, Ok)?;
        let maps = MapsView::of_interface(&iface)?;
        Ok((iface, maps))
    }
}

/// The one interface with our program, XDP or TCX, of this network namespace.
pub(super) fn only_interface() -> anyhow::Result<String> {
    let mut ours = Vec::new();
    let mut others = Vec::new();
    for link in Link::all()? {
        // What is on a VLAN device's parent is the parent's.
        if link.vlan.is_none() && !Attachment::all(&link.name)?.is_empty() {
            ours.push(link.name);
        } else if !link.xdp.is_empty() {
            others.push(link.name);
        }
    }
    if ours.is_empty() {
        // A single one is taken as it is: what is wrong with it is the better message.
        ours = others;
        ours.truncate(1);
    }
    match ours.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "rocexdp runs on no interface of this network namespace (start it with `rocexdp run --iface IF`, or name \
             another namespace with --netns)"
        ),
        several => Err(UsageError(format!(
            "rocexdp runs on {}: say which with --iface",
            several.join(", ")
        ))
        .into()),
    }
}

/// Runs one of them.
pub(super) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { source, flows } => list(&source, flows),
        Command::Show { source, qpn } => show(&source, qpn),
        Command::Watch {
            source,
            interval,
            count,
        } => watch(&source, interval.0, count),
    }
}

fn snapshot(iface: &str, maps: &MapsView, flows: bool) -> anyhow::Result<(QpList, Vec<QpView>)> {
    let time_ns = clock::monotonic_ns();
    let views = maps.qps();
    let flows = if flows {
        Some(maps.flows()?.iter().map(Flow::from).collect())
    } else {
        None
    };
    let list = QpList {
        version: VERSION,
        iface: iface.to_owned(),
        program_id: maps.program_id(),
        time_ns,
        queues: maps.queues(),
        slots: maps.slots(),
        qps: views.iter().map(Qp::from).collect(),
        flows,
    };
    Ok((list, views))
}

fn list(source: &Source, flows: bool) -> anyhow::Result<()> {
    let (iface, maps) = source.open()?;
    let (list, views) = snapshot(&iface, &maps, flows)?;
    if source.json {
        return out::json(&list);
    }
    let width = text::terminal_width();
    if views.is_empty() {
        out::line(format_args!("{iface}: no QPs"))?;
    } else {
        out::write(qp::list(&views, list.time_ns).render(width).as_bytes())?;
    }
    match list.flows {
        Some(flows) if flows.is_empty() => {
            out::line(format_args!("{iface}: no other RoCEv2 flows"))
        }
        Some(flows) => out::write(qp::flows(&flows, list.time_ns).render(width).as_bytes()),
        None => Ok(()),
    }
}

fn show(source: &Source, qpn: u32) -> anyhow::Result<()> {
    let (iface, maps) = source.open()?;
    let (mut list, views) = snapshot(&iface, &maps, false)?;
    let found = views
        .iter()
        .find(|view| view.config.qpn == qpn)
        .ok_or_else(|| {
            anyhow!(
                "{iface}: there is no QP {} (see: rocexdp qp list)",
                text::qpn(qpn)
            )
        })?;
    if source.json {
        list.qps.retain(|qp| qp.qpn == qpn);
        return out::json(&list);
    }
    out::write(qp::full(found, list.time_ns).as_bytes())
}

/// Ends by SIGINT's default action: there is nothing to clean up.
fn watch(source: &Source, interval: Duration, count: Option<u64>) -> anyhow::Result<()> {
    if interval < Duration::from_millis(10) {
        return Err(UsageError("--interval: at least 10ms".to_owned()).into());
    }
    let (iface, maps) = source.open()?;
    let program_id = maps.program_id();
    let mut before = (Instant::now(), maps.qps());
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        thread::sleep(interval);
        // The maps outlive the daemon as long as they are mapped here: ask whether it is still the same.
        let attached = Link::by_name(&iface)?
            .xdp_device()?
            .xdp
            .first()
            .map(|xdp| xdp.id);
        if attached != Some(program_id) {
            bail!("{iface}: rocexdp was stopped, or started again");
        }
        let now = Instant::now();
        let (list, views) = snapshot(&iface, &maps, false)?;
        let seconds = now.duration_since(before.0).as_secs_f64();
        if source.json {
            out::json_line(&Look {
                interval_s: seconds,
                qps: &list,
            })?;
        } else {
            show_rates(&iface, &before.1, &views, seconds)?;
        }
        before = (now, views);
        shown += 1;
    }
    Ok(())
}

/// One look of `watch --json`: a line each.
#[derive(Serialize)]
struct Look<'a> {
    /// Seconds since the last one.
    interval_s: f64,
    #[serde(flatten)]
    qps: &'a QpList,
}

fn show_rates(
    iface: &str,
    before: &[QpView],
    after: &[QpView],
    seconds: f64,
) -> anyhow::Result<()> {
    let width = text::terminal_width();
    // On a terminal: home, and clear to the end.
    let clear = if width.is_some() { "\x1b[H\x1b[J" } else { "" };
    let table = qp::rates(before, after, seconds);
    let rows = if table.is_empty() {
        "no QPs\n".to_owned()
    } else {
        table.render(width)
    };
    out::write(format!("{clear}{iface}, per second over {seconds:.2} s\n{rows}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qp_numbers_are_hexadecimal_or_decimal() {
        assert_eq!(parse_qpn("0x800012"), Ok(0x80_0012));
        assert_eq!(parse_qpn("17"), Ok(17));
        for bad in ["", "0x", "0x1000000", "-1", "QP", "800012h"] {
            assert!(parse_qpn(bad).is_err(), "{bad:?}");
        }
    }
}
