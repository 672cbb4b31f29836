//! `rocexdp copy`: by the daemon on the interface, or with a node of its own where there is none.

use std::{
    fs::File,
    io::IsTerminal,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rocexdp_proto::{RateControl, time::Rate};
use tokio::sync::watch;

use super::block_on;
use crate::{
    control::{
        config::{Assignment, RunOptions},
        copy::{
            CopyProgress, CopyReport,
            send::{self, CopyJob},
        },
        exchange::SILENCE,
        local::{self, Daemon, Reply, Request},
        settings,
        target::Target,
        token::Token,
        units::ByteSize,
    },
    loader::AttachWish,
    net::{Link, neigh::Route},
    node::Node,
    out,
    view::text,
};

/// Options of `rocexdp copy`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file
    file: PathBuf,
    /// Where to: HOST:PATH, HOST:PORT:PATH, [IPv6]:PATH; PATH is below the host's receive directory
    #[arg(value_name = "PEER:PATH")]
    target: Target,
    /// Interface [default: the one that the route to PEER takes]
    #[arg(long, value_name = "IF")]
    iface: Option<String>,
    /// File whose first line is the token shared with PEER
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Control socket of the daemon [default: the one on the interface]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Selective repeat instead of go-back-N, if the peer has it too, over so many UDP source ports (1 to 16: as many ways through
    /// a network with ECMP)
    #[arg(long, value_name = "PORTS",
        value_parser = clap::value_parser!(u8).range(1..=16))]
    selective_repeat: Option<u8>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// No daemon: how to attach the XDP program
    #[arg(long, value_name = "auto|driver|generic")]
    mode: Option<AttachWish>,
    /// No daemon: largest path MTU to use
    #[arg(long, value_name = "BYTES")]
    path_mtu: Option<u32>,
    /// No daemon: rate of the link, for DCQCN
    #[arg(long, value_name = "RATE")]
    line_rate: Option<Rate>,
    /// No daemon: what decides how fast the copy is sent, as for rocexdp run
    #[arg(long, value_name = "NAME[=VALUE]")]
    rate_control: Option<RateControl>,
    /// No daemon: a DCQCN parameter; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    cc: Vec<Assignment>,
}

/// Copies and says how it went.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let what = format!("{} to {}", args.file.display(), args.target);
    let report = copy(&args).with_context(|| format!("copying {what}"))?;
    if args.json {
        return out::json(&report);
    }
    out::line(summary(&args.file, &args.target, &report))
}

fn copy(args: &Args) -> anyhow::Result<CopyReport> {
    let file = File::open(&args.file).context("opening the file")?;
    let token = args
        .token_file
        .as_deref()
        .map(Token::from_file)
        .transpose()?;
    let to = args.target.resolve(args.iface.as_deref(), |name| {
        Ok(Link::by_name(name)?.index.0)
    })?;
    let iface = match &args.iface {
        Some(iface) => iface.clone(),
        None => interface_to(to.ip())?,
    };
    let name = args
        .file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let path = args.target.path_for(name);
    if path.is_empty() {
        bail!(
            "the file's name is no text: say a path behind {}",
            args.target
        );
    }
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => local::default_path(&iface)?,
    };
    let (tell, progress) = watch::channel(CopyProgress::default());
    let job = CopyJob {
        file,
        to,
        path,
        token,
        selective: settings::selective(args.selective_repeat.unwrap_or(0)),
        linger: Duration::ZERO,
    };
    block_on(async {
        let shown = tokio::spawn(show(progress));
        let done = match Daemon::connect(&socket).await? {
            Some(daemon) => through_daemon(daemon, job, &tell).await,
            None if args.socket.is_some() => {
                Err(anyhow!("no daemon answers at {}", socket.display()))
            }
            None => on_own_node(args, iface, job, &tell).await,
        };
        drop(tell);
        // It ends with the channel.
        let _ = shown.await;
        done
    })
}

/// The interface that packets to `peer` leave by.
fn interface_to(peer: IpAddr) -> anyhow::Result<String> {
    let route = Route::lookup(peer, None, None)?;
    if route.local {
        bail!("{peer} is this host: a copy needs two hosts (or two network namespaces)");
    }
    Ok(route.name)
}

async fn through_daemon(
    mut daemon: Daemon,
    job: CopyJob,
    tell: &watch::Sender<CopyProgress>,
) -> anyhow::Result<CopyReport> {
    let request = Request::Copy {
        to: job.to,
        path: job.path,
        token: job.token.as_ref().map(|token| token.reveal().to_vec()),
        selective_paths: job.selective.map_or(0, |with| with.paths),
    };
    daemon.ask(request, Some(&job.file)).await?;
    loop {
        // The daemon bounds its own waits; this is in case it hangs.
        match daemon.reply(4 * SILENCE).await? {
            Reply::Progress(now) => {
                tell.send_replace(now);
            }
            Reply::Done(report) => return Ok(*report),
            Reply::Failed(reason) => return Err(anyhow!(reason)),
            _ => bail!("the daemon answers another question"),
        }
    }
}

async fn on_own_node(
    args: &Args,
    iface: String,
    job: CopyJob,
    tell: &watch::Sender<CopyProgress>,
) -> anyhow::Result<CopyReport> {
    let options = RunOptions {
        iface: Some(iface),
        mode: args.mode,
        path_mtu: args.path_mtu,
        line_rate: args.line_rate,
        rate_control: args.rate_control,
        cc: args.cc.clone(),
        ..RunOptions::default()
    };
    let node = Arc::new(Node::open(settings::node_config(&options)?)?);
    out::note(format_args!("rocexdp: no daemon here; {}", node.report()));
    send::copy(&node, job, tell).await
}

/// Shows progress: a bar on a terminal, else a line every few seconds.
async fn show(mut progress: watch::Receiver<CopyProgress>) {
    const LINES: Duration = Duration::from_secs(2);
    let terminal = std::io::stderr().is_terminal();
    let mut bar: Option<ProgressBar> = None;
    let mut last = Instant::now();
    while progress.changed().await.is_ok() {
        let now = *progress.borrow_and_update();
        if terminal {
            let bar = bar.get_or_insert_with(|| new_bar(now.total));
            bar.set_position(now.placed);
            bar.set_message(state(&now));
        } else if last.elapsed() >= LINES && now.total > 0 {
            last = Instant::now();
            out::note(format_args!(
                "rocexdp: {} of {} ({:.0} %){}",
                ByteSize(now.placed),
                ByteSize(now.total),
                now.placed as f64 * 100.0 / now.total as f64,
                state(&now)
            ));
        }
    }
    if let Some(bar) = bar {
        bar.finish();
    }
}

fn new_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = "{bar:32} {percent:>3} % of {binary_total_bytes}  {decimal_bytes_per_sec}{msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

fn state(now: &CopyProgress) -> String {
    let mut text = String::new();
    if now.retransmitted_packets > 0 {
        text.push_str(&format!(
            ", {} retransmitted",
            text::count(now.retransmitted_packets)
        ));
    }
    if now.rp_cnp_handled > 0 {
        let rate = text::rate(now.rate);
        text.push_str(&format!(
            ", {} CNPs, DCQCN {rate}",
            text::count(now.rp_cnp_handled)
        ));
    }
    text
}

/// The result in a few lines.
fn summary(file: &Path, target: &Target, report: &CopyReport) -> String {
    let rate = report.gigabits_per_second.map_or_else(
        || "n/a: too short to measure".to_owned(),
        |rate| format!("{rate:.2} Gb/s"),
    );
    let lowest = report.min_rate.map_or_else(
        || "unpaced".to_owned(),
        |rate| format!("lowest rate {}", text::rate(rate)),
    );
    format!(
        "{} -> {target}: {} bytes in {:.3} s, {rate} ({:.3} s with connection and disk)\n\
         QP {} to QP {} at {}, path MTU {}{}: {} packets, {} retransmitted, {} CNPs handled, {lowest}\n\
         SHA-256 {} on both sides",
        file.display(),
        report.bytes,
        report.transfer_seconds,
        report.total_seconds,
        text::qpn(report.qpn),
        text::qpn(report.peer_qpn),
        report.peer,
        report.path_mtu,
        text::repeat(0, report.selective_paths),
        report.tx_packets,
        report.retransmitted_packets,
        report.rp_cnp_handled,
        report.sha256,
    )
}
