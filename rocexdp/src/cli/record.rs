//! `rocexdp record`: the flight recorder.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rocexdp_common::watch::tap::TX_TAP_DATA;

use super::UsageError;
use crate::{
    control::units::{ByteSize, Span},
    maps::{Attachment, ProgramRole},
    monitor::{Ingress, Monitor, MonitorWish, TapReader},
    net::{IfIndex, Link},
    out,
    process::{Cancel, on_own_thread},
    record::{News, Plan, Recorder, expr::Expr},
    sys::clock::monotonic_ns,
};

/// Bytes of a tap's ring buffer in the kernel: some tens of ms at the rates that one core can write.
const TAP_BYTES: u32 = 1 << 24;
/// How often the taps are looked at.
const TURN: Duration = Duration::from_millis(2);
/// How often it is looked whether the interfaces and endpoints are still there, and whether they are back.
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
    at: At,
}

/// Where its packets come from.
enum At {
    /// The tap of the endpoint there, of this program.
    Endpoint(u32),
    /// A monitor's that was started here.
    Monitor(Box<Monitor>),
    /// From nowhere now.
    Gone {
        /// An endpoint is waited for: what one leaves is no place for a monitor, which would keep the next one out.
        endpoint: bool,
        /// Why it could not be opened again, as it was said.
        error: String,
    },
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
    let ifaces = one_of_each_device(args.iface)?;
    // Before anything is attached: there may be no memory for it.
    let mut recorder = Recorder::new(plan, ifaces.clone())?;
    let mut places = Vec::new();
    for (index, iface) in ifaces.into_iter().enumerate() {
        let (at, tap) = open(&iface, &wish)?;
        recorder.attach(index, tap);
        places.push(Place { iface, at });
    }
    out::note(what);
    let mut teller = Teller::default();
    let mut checked = Instant::now();
    let end = loop {
        if let Err(error) = teller.tell(recorder.turn(monotonic_ns())) {
            break error;
        }
        if let Err(interrupted) = cancel.check() {
            break interrupted;
        }
        if checked.elapsed() >= CHECK {
            checked = Instant::now();
            let mut news = Vec::new();
            for (index, place) in places.iter_mut().enumerate() {
                place.check(index, &mut recorder, &wish, &mut news);
            }
            if let Err(error) = teller.tell(news) {
                break error;
            }
        }
        if !recorder.hurries() {
            thread::sleep(TURN);
        }
    };
    // However it ends, what a trigger waits for is written.
    let told = teller.tell(recorder.finish());
    let tally = recorder.tally();
    out::note(format_args!(
        "{} packets seen, {} lost before they were seen, {} triggers, {} files",
        tally.recorded, tally.lost, tally.triggers, tally.files
    ));
    told.and(Err(end))
}

/// Two names of one device (an alternative name, a VLAN and its parent) are recorded once, by the first.
fn one_of_each_device(ifaces: Vec<String>) -> anyhow::Result<Vec<String>> {
    let mut kept = Vec::<(IfIndex, String)>::new();
    for iface in ifaces {
        let device = Link::by_name(&iface)?.xdp_device()?;
        match kept.iter().find(|(index, _)| *index == device.index) {
            Some((_, same)) if *same == iface => {}
            Some((_, same)) => out::note(format_args!(
                "{iface}: its packets are those of {}, which is recorded already as {same}",
                device.name
            )),
            None => kept.push((device.index, iface)),
        }
    }
    Ok(kept.into_iter().map(|(_, iface)| iface).collect())
}

impl Place {
    /// Looks whether packets can still come from there, and after that whether they can again.
    fn check(
        &mut self,
        index: usize,
        recorder: &mut Recorder,
        wish: &MonitorWish,
        news: &mut Vec<News>,
    ) {
        let iface = &self.iface;
        let gone = match &self.at {
            At::Endpoint(program) => match Attachment::all(iface) {
                Ok(all) if all.iter().any(|there| there.program_id == *program) => None,
                Ok(_) => Some(format!(
                    "{iface}: the endpoint there has ended (program {program}); recording again when there is another"
                )),
                Err(error) => Some(format!(
                    "{iface}: {}; recording again when there is an endpoint",
                    out::chain(&error)
                )),
            },
            At::Monitor(monitor) => monitor.check().err().map(|error| {
                format!(
                    "{iface}: {}; recording again when it is back",
                    out::chain(&error)
                )
            }),
            At::Gone { .. } => None,
        };
        if let Some(gone) = gone {
            out::note(gone);
            news.extend(recorder.detach(index));
            self.at = At::Gone {
                endpoint: matches!(self.at, At::Endpoint(_)),
                error: String::new(),
            };
        }
        let At::Gone { endpoint, error } = &mut self.at else {
            return;
        };
        let opened = match endpoint_on(iface) {
            Ok(Some(there)) => open_endpoint(iface, &there),
            Ok(None) if !*endpoint => open_monitor(iface, wish),
            // Not yet.
            Ok(None) | Err(_) => return,
        };
        match opened {
            Ok((at, tap)) => {
                recorder.attach(index, tap);
                self.at = at;
                out::note(format_args!("{iface}: recording again"));
            }
            Err(why) => {
                let why = out::chain(&why);
                if why != *error {
                    out::note(format_args!("{iface}: {why}; trying again"));
                    *error = why;
                }
            }
        }
    }
}

/// The tap of the endpoint that is on the interface, else of a monitor started here.
fn open(iface: &str, wish: &MonitorWish) -> anyhow::Result<(At, TapReader)> {
    match endpoint_on(iface)? {
        Some(endpoint) => open_endpoint(iface, &endpoint),
        None => open_monitor(iface, wish),
    }
}

fn endpoint_on(iface: &str) -> anyhow::Result<Option<Attachment>> {
    let all = Attachment::all(iface)?;
    Ok(all
        .into_iter()
        .find(|there| there.role == ProgramRole::Endpoint))
}

fn open_endpoint(iface: &str, endpoint: &Attachment) -> anyhow::Result<(At, TapReader)> {
    let index = Link::by_name(iface)?.xdp_device()?.index.0;
    let tap = TapReader::of_program(endpoint.program_id, index)
        .with_context(|| format!("interface {iface}"))?;
    out::note(format_args!(
        "{iface}: recording what the endpoint there receives and sends ({}, program {}); of what it sends the first {} \
         bytes; not seen from here: what the kernel's stack sends",
        endpoint.at, endpoint.program_id, TX_TAP_DATA
    ));
    Ok((At::Endpoint(endpoint.program_id), tap))
}

fn open_monitor(iface: &str, wish: &MonitorWish) -> anyhow::Result<(At, TapReader)> {
    let monitor = Monitor::start(iface, wish)?;
    out::note(monitor.report());
    for spot in monitor.blind_spots() {
        out::note(format_args!("not seen from here: {spot}"));
    }
    let tap = monitor.tap()?;
    Ok((At::Monitor(Box::new(monitor)), tap))
}

/// Tells news. When standard output is closed, files are told on standard error.
#[derive(Default)]
struct Teller {
    closed: bool,
}

impl Teller {
    /// Tells all of it.
    ///
    /// # Errors
    /// Standard output can't be written; said once.
    fn tell(&mut self, news: Vec<News>) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        for news in news {
            match news {
                News::Triggered(what) => out::note(what),
                News::Written(written) => {
                    let late = match written.late {
                        0 => String::new(),
                        late => format!(", {late} of them behind later ones"),
                    };
                    let text = format!(
                        "{}: {} packets{late}, from {:.3} s before the trigger",
                        written.path.display(),
                        written.packets,
                        written.before.as_secs_f64()
                    );
                    if !self.closed {
                        let Err(error) = out::line(&text) else {
                            continue;
                        };
                        self.closed = true;
                        outcome = Err(error);
                    }
                    out::note(text);
                }
                News::Failed(error) => out::complain(&error),
                News::Lost(count) => out::note(format_args!(
                    "{count} packets were lost: this process did not keep up with the tap"
                )),
            }
        }
        outcome
    }
}
