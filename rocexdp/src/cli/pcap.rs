//! `rocexdp pcap`: what a capture says, file by file; the analysis is rocexdp-observe's.
//!
//! Exit codes beside the common ones: 3 a capture is cut or damaged (what came before is reported), 4 no capture, or of a
//! kind that is not read. Standard input ends at Ctrl-C, as a capture of it does, with the report of what came.

mod again;
mod two;

use std::{
    io::{self, IsTerminal, Read},
    net::IpAddr,
    os::fd::AsFd,
    path::{Path, PathBuf},
    slice,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use rocexdp_common::ids::Gid;
use rocexdp_observe::{
    analyse::{Analyser, Options},
    annotate::Spool,
    capture::{CaptureError, Reader},
    csv,
    report::Report,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ChildStatus;
use crate::{
    control::settings::UsageError,
    out,
    process::{self, Cancel},
    view::{pcap, text},
};

/// A capture is cut or damaged.
const CUT: u8 = 3;
/// A file is no capture.
const NO_CAPTURE: u8 = 4;
/// Packets between two looks at the clock, the bar and the signals.
const PACKETS_PER_LOOK: u64 = 4096;

/// Options of `rocexdp pcap`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Several files are one stream, ordered by their first packets (parts of one capture); frames are \
numbered on from file to file. Exit codes: 3 a capture is cut or damaged (what came before is reported), 4 a file is no \
capture."
)]
pub struct Args {
    /// Captures (pcap, pcapng; packed with gzip or zstd or not); `-`: standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print the report as JSON (docs/pcap-json.md)
    #[arg(long)]
    json: bool,
    /// Print the QP pairs as CSV, a line for each and for each of its directions
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Compare with a capture of when all was good: what got worse
    #[arg(long, value_name = "GOOD", conflicts_with = "csv")]
    diff: Option<PathBuf>,
    /// The two FILEs are taps of the same traffic: between which of them, or where else, packets were lost
    #[arg(long, conflicts_with_all = ["csv", "diff", "plot", "out", "qps", "addresses", "no_icrc", "top"])]
    merge: bool,
    /// Only QP pairs with this QP number at either end, as 0x11 or 17; again for more
    #[arg(long = "qp", value_name = "QPN", value_parser = parse_qpn)]
    qps: Vec<u32>,
    /// Only packets from or to this address; again for more
    #[arg(long = "address", value_name = "ADDR")]
    addresses: Vec<IpAddr>,
    /// QP pairs to list, those with findings first, then the largest; 0: all
    #[arg(long, value_name = "N", default_value_t = 25, conflicts_with = "json")]
    top: usize,
    /// Don't check ICRCs (faster; a corrupt packet then passes for a good one)
    #[arg(long)]
    no_icrc: bool,
    /// Draw PSNs over time, packets sent again, CE marks and CNPs, of the most troubled QP pairs
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the packets with the findings as comments, for Wireshark
    #[arg(long, value_name = "FILE.pcapng")]
    out: Option<PathBuf>,
}

fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number <= 0xff_ffff => Ok(number),
        _ => Err("a QP number is 0 to 0xffffff, such as 0x11".to_owned()),
    }
}

/// Analyses captures.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let streams = args.files.iter().filter(|file| is_stdin(file)).count();
    if streams > 0 && args.files.len() > 1 {
        return Err(UsageError("standard input (-) goes with no other file".to_owned()).into());
    }
    if args.merge && (args.files.len() != 2 || streams > 0) {
        return Err(UsageError(
            "--merge takes two FILEs, read twice: no standard input".to_owned(),
        )
        .into());
    }
    if args.files.len() > 1 && (args.out.is_some() || args.plot.is_some()) {
        return Err(UsageError(
            "--out and --plot take one FILE (join files with mergecap -a)".to_owned(),
        )
        .into());
    }
    for target in [&args.out, &args.plot].into_iter().flatten() {
        if args.files.iter().any(|file| same_file(file, target)) {
            return Err(UsageError(format!(
                "{} is the capture itself and would be overwritten",
                target.display()
            ))
            .into());
        }
    }
    process::on_own_thread(move |cancel| work(&args, &cancel))
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

fn gid(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn work(args: &Args, cancel: &Arc<Cancel>) -> anyhow::Result<()> {
    if let (true, [a, b]) = (args.merge, args.files.as_slice()) {
        return two::merge(a, b, args.json);
    }
    let mut spool = None;
    let (report, ended) = analyse(args, &args.files, cancel, &mut spool)?;
    for warning in &report.warnings {
        out::note(format_args!("rocexdp: warning: {warning}"));
    }
    let mut cut = ended.cut;
    if let Some(good) = &args.diff {
        let (good, of_good) = analyse(args, slice::from_ref(good), cancel, &mut None)?;
        cut |= of_good.cut;
        two::diff(&report, &good, args.json)?;
    } else if args.json {
        out::json(&report)?;
    } else if args.csv {
        out::write(csv::csv(&report).as_bytes())?;
    } else {
        let top = if args.top == 0 { usize::MAX } else { args.top };
        out::write(pcap::text(&report, text::terminal_width(), top).as_bytes())?;
    }
    again::again(args, &report, spool)?;
    if ended.interrupted && !report.complete {
        cancel.check()?;
    }
    if cut {
        return Err(ChildStatus(CUT).into());
    }
    Ok(())
}

/// Reads captures, one after the other as they were taken, and analyses them.
fn analyse(
    args: &Args,
    files: &[PathBuf],
    cancel: &Arc<Cancel>,
    spool: &mut Option<Spool>,
) -> anyhow::Result<(Report, Ended)> {
    let mut analyser = Analyser::new(Options {
        no_icrc: args.no_icrc,
        qps: args.qps.clone(),
        addresses: args.addresses.iter().copied().map(gid).collect(),
    });
    let mut ended = Ended::default();
    let mut last = None;
    for file in in_time_order(files)? {
        let mut reader = if is_stdin(&file) {
            let keep = args.out.is_some() || args.plot.is_some();
            stdin_reader(cancel, keep, spool)?
        } else {
            open(&file)?
        };
        let name = if is_stdin(&file) {
            "standard input".to_owned()
        } else {
            file.display().to_string()
        };
        analyser.begin_file(name.as_str());
        let from = read(&mut reader, &mut analyser, cancel, &name, &mut ended)?;
        if let (Some((last_name, last_time)), Some((first, _))) = (&last, from)
            && first < *last_time
        {
            ended.warnings.push(format!(
                "{last_name} and {name} overlap in time: their packets were read one file after the other (two taps of one path: --merge)"
            ));
        }
        if let Some((_, until)) = from {
            last = Some((name.clone(), until));
        }
        for warning in reader.warnings() {
            ended.warnings.push(format!("{name}: {warning}"));
        }
        if ended.interrupted {
            break;
        }
    }
    let mut report = analyser.finish();
    report.complete = !ended.cut && (!ended.interrupted || files.iter().any(|f| is_stdin(f)));
    report.warnings.splice(0..0, ended.warnings.iter().cloned());
    Ok((report, ended))
}

/// How reading ended.
#[derive(Default)]
struct Ended {
    cut: bool,
    interrupted: bool,
    warnings: Vec<String>,
}

/// Parts of one capture, in order of time.
fn in_time_order(files: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    if let [only] = files {
        return Ok(vec![only.clone()]);
    }
    let mut dated = Vec::new();
    for file in files {
        let mut reader = open(file)?;
        let first = reader.next().ok().flatten().map(|packet| packet.time_ns);
        dated.push((first.unwrap_or(i64::MAX), file));
    }
    dated.sort_by_key(|(time, _)| *time);
    Ok(dated.into_iter().map(|(_, file)| file.clone()).collect())
}

fn open(path: &Path) -> anyhow::Result<Reader> {
    Reader::open(path).map_err(|error| refused(&path.display().to_string(), error))
}

/// An error that leaves nothing to report.
fn refused(name: &str, error: CaptureError) -> anyhow::Error {
    match error {
        CaptureError::NotACapture(_)
        | CaptureError::Unsupported(_)
        | CaptureError::Link(_)
        | CaptureError::Cut { .. }
        | CaptureError::Damaged { .. } => {
            out::complain(&anyhow!(error).context(name.to_owned()));
            ChildStatus(NO_CAPTURE).into()
        }
        // Names the file itself.
        CaptureError::Open { .. } => anyhow!(error),
        CaptureError::Io { .. } => anyhow!(error).context(name.to_owned()),
    }
}

fn stdin_reader(
    cancel: &Arc<Cancel>,
    keep: bool,
    spool: &mut Option<Spool>,
) -> anyhow::Result<Reader> {
    let source = Stdin {
        cancel: Arc::clone(cancel),
    };
    let reader = if keep {
        let (kept, source) =
            Spool::of(source).context("keeping standard input for a second look")?;
        *spool = Some(kept);
        Reader::from_reader(source)
    } else {
        Reader::from_reader(source)
    };
    reader.map_err(|error| refused("standard input", error))
}

/// Standard input, which ends when a signal comes.
struct Stdin {
    cancel: Arc<Cancel>,
}

/// How long a signal may wait for a stream in which nothing comes.
const PATIENCE: Duration = Duration::from_millis(100);

impl Read for Stdin {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        let patience = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        loop {
            if self.cancel.check().is_err() {
                return Ok(0);
            }
            let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut ready, Some(&patience)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(rustix::io::read(stdin.as_fd(), buffer)?),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Reads one capture to its end; first and last time.
fn read(
    reader: &mut Reader,
    analyser: &mut Analyser,
    cancel: &Cancel,
    name: &str,
    ended: &mut Ended,
) -> anyhow::Result<Option<(i64, i64)>> {
    let bar = progress(reader.total_bytes());
    let mut times = None;
    let mut left = PACKETS_PER_LOOK;
    let outcome = loop {
        match reader.next() {
            Ok(Some(packet)) => {
                let time = packet.time_ns;
                let (first, last) = times.unwrap_or((time, time));
                times = Some((first, last.max(time)));
                analyser.push(&packet);
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        left -= 1;
        if left == 0 {
            left = PACKETS_PER_LOOK;
            if let Some(bar) = &bar {
                bar.set_position(reader.bytes_read());
                bar.set_message(format!(
                    "{} packets, {} flows",
                    text::count(analyser.frames()),
                    text::count(analyser.directions() as u64)
                ));
            }
            if cancel.check().is_err() {
                break Ok(());
            }
        }
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    ended.interrupted = cancel.check().is_err();
    match outcome {
        Ok(()) => {}
        // A stream that a signal ended ends anywhere.
        Err(CaptureError::Cut { .. }) if ended.interrupted => {}
        Err(error) if error.is_partial() => {
            ended.cut = true;
            ended.warnings.push(format!("{name}: {error}"));
        }
        Err(error) => return Err(refused(name, error)),
    }
    Ok(times)
}

/// A bar on a terminal. Of a stream the length is not known.
fn progress(total: Option<u64>) -> Option<ProgressBar> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let (bar, style) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{bar:32} {percent:>3} % of {binary_total_bytes}  {binary_bytes_per_sec}  {msg}",
        ),
        None => (
            ProgressBar::no_length(),
            "{spinner} {binary_bytes}  {binary_bytes_per_sec}  {msg}",
        ),
    };
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    Some(bar)
}
