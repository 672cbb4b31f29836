//! What needs the packets a second time, when the findings are known: the annotated copy and the plot.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use anyhow::Context;
use rocexdp_observe::{
    annotate::{self, Notes, Spool},
    capture::Reader,
    plot::{Plot, Track},
    report::Report,
};

use super::{Args, gid, open};
use crate::{out, view::pcap};

/// Panels of a plot.
const MOST_PANELS: usize = 6;

/// What needs the packets a second time.
pub(super) fn again(args: &Args, report: &Report, spool: Option<Spool>) -> anyhow::Result<()> {
    if args.out.is_none() && args.plot.is_none() {
        return Ok(());
    }
    let [file] = args.files.as_slice() else {
        return Ok(());
    };
    let kept = spool
        .map(Spool::again)
        .transpose()
        .context("keeping standard input for a second look")?;
    let reader = || match &kept {
        Some(kept) => {
            let mut kept = kept.try_clone()?;
            io::Seek::rewind(&mut kept)?;
            Ok(Reader::from_reader(kept)?)
        }
        None => open(file),
    };
    if let Some(target) = &args.out {
        write_annotated(reader()?, report, target)?;
    }
    if let Some(target) = &args.plot {
        write_plot(reader()?, report, target)?;
    }
    Ok(())
}

fn write_annotated(reader: Reader, report: &Report, target: &Path) -> anyhow::Result<()> {
    let mut notes = Notes::new();
    for finding in &report.findings {
        notes.add(
            &finding.frames,
            &format!("{}: {}", finding.kind.name(), finding.text),
        );
    }
    let context = || format!("writing {}", target.display());
    let file = File::create(target).with_context(context)?;
    let about = format!(
        "rocexdp pcap: {} findings in {} frames",
        report.findings.len(),
        report.packets
    );
    let (copied, mut file) =
        annotate::copy(reader, &notes, &about, BufWriter::new(file)).with_context(context)?;
    file.flush().with_context(context)?;
    out::note(format_args!(
        "rocexdp: {}: {} packets, {} with comments",
        target.display(),
        copied.packets,
        copied.with_comments
    ));
    Ok(())
}

fn write_plot(mut reader: Reader, report: &Report, target: &Path) -> anyhow::Result<()> {
    let mut plot = Plot::new(tracks(report));
    while let Ok(Some(packet)) = reader.next() {
        plot.push(&packet);
    }
    let title = report
        .files
        .first()
        .map_or_else(String::new, |file| file.name.clone());
    std::fs::write(target, plot.svg(&title))
        .with_context(|| format!("writing {}", target.display()))
}

/// The directions to draw: those with findings first, in the findings' order, then the busiest.
fn tracks(report: &Report) -> Vec<Track> {
    let mut order: Vec<usize> = report.findings.iter().filter_map(|f| f.flow).collect();
    order.extend(pcap::by_size(report));
    let mut seen = Vec::new();
    let mut tracks = Vec::new();
    for index in order {
        if seen.contains(&index) {
            continue;
        }
        seen.push(index);
        let Some(flow) = report.flows.get(index) else {
            continue;
        };
        for way in &flow.directions {
            let Some(to) = way.to.qpn else {
                continue;
            };
            if way.metrics.operations == Default::default() || tracks.len() >= MOST_PANELS {
                continue;
            }
            tracks.push(Track {
                title: format!(
                    "{} QP {to:#x}, {} > {}",
                    flow.transport, way.from.address, way.to.address
                ),
                requester: gid(way.from.address),
                responder: gid(way.to.address),
                responder_qpn: to,
                requester_qpn: way.from.qpn,
            });
        }
    }
    tracks
}
