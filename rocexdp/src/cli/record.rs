//! `rocexdp record`: the flight recorder.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use rocexdp_common::watch::tap::TX_TAP_DATA;

use super::UsageError;
use crate::{
    control::units::{ByteSize, Span},
    maps::{Attachment, ProgramRole},
    monitor::{Ingress, Monitor, MonitorWish, TapReader},
    net::Link,
    out,
    process::{Cancel, on_own_thread},
    record::{News, Plan, Recorder, expr::Expr},
    sys::clock::monotonic_ns,
};

/// Bytes of a tap's ring buffer in the kernel: some tens of ms at the rates that one core can write.
const TAP_BYTES: u32 = 1 << 24;
/// How often the taps are looked at.
const TURN: Duration = Duration::from_millis(2);
/// How often it is looked whether the interfaces are still there.
const CHECK: Duration = Duration::from_secs(1);

/// Options of `rocexdp record`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interface; may be repeated, or several separated by commas
    #[arg(long, value_name = "IF", value_delimiter = ',', required = true)]
    iface: Vec<String>,
    /// What triggers a file, such as 'nak|cnp_rate>1k': events nak, rnr, cnp, ce, malformed, icrc; comparisons (> >= < <= = !=)
    /// of qpn, opcode, syndrome, and of rates in a second, nak_rate, cnp_rate, ..., packet_rate; with & | ! ( )
    #[arg(long, value_name = "EXPR")]
    on: Expr,
    /// Memory for packets, of all interfaces together
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    ring: ByteSize,
    /// Keep the payload too, not headers only
    #[arg(long)]
    payload: bool,
    /// Time before a trigger that its file shall have
    #[arg(long, value_name = "TIME", default_value = "2s")]
    before: Span,
    /// Time after it
    #[arg(long, value_name = "TIME", default_value = "1s")]
    after: Span,
    /// Where files go
    #[arg(long, value_name = "DIR", default_value = ".")]
    out_dir: PathBuf,
    /// Keep this many files of this run; the oldest is removed for another
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_files: usize,
    /// Where received packets are taken
    #[arg(long, value_name = "auto|driver|generic|tcx", default_value = "auto")]
    ingress: Ingress,
    /// Do not record what the kernel's stack sends (TCX egress)
    #[arg(long)]
    no_egress: bool,
    /// Have the NIC take frames to other addresses meanwhile, as a mirror port needs
    #[arg(long)]
    promiscuous: bool,
}

/// An interface that is recorded.
struct Place {
    iface: String,
    /// `None`: the endpoint's own tap is read.
    monitor: Option<Monitor>,
}

/// Records until a signal.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    if args.after.0 > Duration::from_secs(3600) || args.before.0 > Duration::from_secs(86_400) {
        return Err(UsageError("--after: at most 60m; --before: at most 1440m".to_owned()).into());
    }
    on_own_thread(move |cancel| record(args, &cancel))
}

fn record(args: Args, cancel: &Cancel) -> anyhow::Result<()> {
    let wish = MonitorWish {
        ingress: args.ingress,
        egress: !args.no_egress,
        promiscuous: args.promiscuous,
        tap_bytes: Some(TAP_BYTES),
        ..MonitorWish::default()
    };
    let (mut places, mut taps) = (Vec::<Place>::new(), Vec::new());
    for iface in args.iface {
        if places.iter().any(|place| place.iface == iface) {
            continue;
        }
        let (monitor, tap) = open(&iface, &wish)?;
        taps.push((iface.clone(), tap));
        places.push(Place { iface, monitor });
    }
    let plan = Plan {
        on: args.on,
        ring_bytes: args.ring.0,
        payload: args.payload,
        before: args.before.0,
        after: args.after.0,
        out_dir: args.out_dir,
        max_files: args.max_files,
    };
    let what = format!(
        "recording {} in {}, until Ctrl-C; a file on {}",
        if plan.payload { "packets" } else { "headers" },
        args.ring,
        plan.on
    );
    let mut recorder = Recorder::start(plan, taps)?;
    out::note(what);
    let mut checked = Instant::now();
    let end = loop {
        for news in recorder.turn(monotonic_ns()) {
            tell(news)?;
        }
        if let Err(interrupted) = cancel.check() {
            break interrupted;
        }
        if checked.elapsed() >= CHECK {
            checked = Instant::now();
            places.retain(|place| match place.monitor.as_ref().map(Monitor::check) {
                Some(Err(error)) => {
                    out::note(format_args!("{error:#}: nothing more comes from there"));
                    false
                }
                _ => true,
            });
            if places.is_empty() {
                for news in recorder.finish() {
                    tell(news)?;
                }
                anyhow::bail!("no interface is left");
            }
        }
        thread::sleep(TURN);
    };
    for news in recorder.finish() {
        tell(news)?;
    }
    let tally = recorder.tally();
    out::note(format_args!(
        "{} packets seen, {} lost before they were seen, {} triggers, {} files",
        tally.recorded, tally.lost, tally.triggers, tally.files
    ));
    Err(end)
}

/// The tap of the endpoint that is on the interface, else of a monitor started here.
fn open(iface: &str, wish: &MonitorWish) -> anyhow::Result<(Option<Monitor>, TapReader)> {
    let endpoint = Attachment::all(iface)?
        .into_iter()
        .find(|there| there.role == ProgramRole::Endpoint);
    if let Some(endpoint) = endpoint {
        let index = Link::by_name(iface)?.index.0;
        let tap = TapReader::of_program(endpoint.program_id, index)?;
        out::note(format_args!(
            "{iface}: recording what the endpoint there receives and sends ({}, program {}); of what it sends the first {} \
             bytes; not seen from here: what the kernel's stack sends",
            endpoint.at, endpoint.program_id, TX_TAP_DATA
        ));
        return Ok((None, tap));
    }
    let monitor = Monitor::start(iface, wish)?;
    out::note(monitor.report());
    for spot in monitor.blind_spots() {
        out::note(format_args!("not seen from here: {spot}"));
    }
    let tap = monitor.tap()?;
    Ok((Some(monitor), tap))
}

fn tell(news: News) -> anyhow::Result<()> {
    match news {
        News::Triggered(what) => out::note(what),
        News::Written(written) => {
            out::line(format_args!(
                "{}: {} packets, from {:.3} s before the trigger",
                written.path.display(),
                written.packets,
                written.before.as_secs_f64()
            ))?;
        }
        News::Failed(error) => out::complain(&error),
        News::Lost(count) => out::note(format_args!(
            "{count} packets were lost: this process did not keep up with the tap"
        )),
    }
    Ok(())
}
