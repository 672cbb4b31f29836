//! What the demo prints about a copy.

use super::{host::Station, sampler::Sample};
use crate::{
    control::copy::CopyReport,
    lab::Lab,
    maps::QpView,
    out,
    sys::clock,
    view::{
        lab::{drops_line, wire_table},
        plot, qp, text,
    },
};

/// Width where standard output is no terminal.
const DEFAULT_WIDTH: usize = 100;
/// Lines of the plot.
const PLOT_HEIGHT: usize = 8;

/// Both hosts' tables of the copy's QP, from their BPF maps.
pub fn tables(a: &Station, b: &Station, report: &CopyReport) -> anyhow::Result<()> {
    for (station, qpn) in [(a, report.qpn), (b, report.peer_qpn)] {
        let mut qps = station.qps()?;
        qps.retain(|qp: &QpView| qp.config.qpn == qpn);
        out::line(format_args!(
            "\nHost {}, QP of this copy (rocexdp --netns {} qp list):",
            station.host(),
            station.namespace()
        ))?;
        let table = qp::list(&qps, clock::monotonic_ns());
        out::write(table.render(text::terminal_width()).as_bytes())?;
    }
    Ok(())
}

/// What the wire did, and what the links lost by themselves.
pub fn links(lab: &Lab) -> anyhow::Result<()> {
    let counters = lab.counters()?;
    let drops = lab.link_drops()?;
    let text = format!(
        "\nWire, since it is up:\n{}{}",
        wire_table(&counters).render(None),
        drops_line(&drops)
    );
    out::write(text.as_bytes())
}

/// How loss and congestion were met.
pub fn recovery(report: &CopyReport, samples: &[Sample]) -> anyhow::Result<()> {
    out::line(format_args!(
        "\nLoss:       b saw {} packets out of sequence; a sent {} packets again ({} B), {} times told by a NAK and {} \
         times by a timeout",
        report.receiver.out_of_sequence,
        report.retransmitted_packets,
        report.retransmitted_bytes,
        report.packet_seq_err,
        report.local_ack_timeout_err
    ))?;
    let lowest = report
        .min_rate
        .map_or_else(|| "n/a (never paced)".to_owned(), text::rate);
    out::line(format_args!(
        "Congestion: b answered CE marks with {} CNPs, a handled {}; DCQCN's lowest rate {lowest}",
        report.receiver.np_cnp_sent, report.rp_cnp_handled
    ))?;
    // Before the first CNP the QP is not paced: there is no rate to show.
    let paced: Vec<_> = samples
        .iter()
        .filter(|s| s.qpn == report.qpn)
        .skip_while(|s| s.rate == 0)
        .collect();
    let (Some(first), Some(last)) = (paced.first(), paced.last()) else {
        return out::line("DCQCN rate: n/a (the QP was never paced while it was looked at)");
    };
    out::line(format_args!(
        "\nDCQCN rate of a's QP over time, lowest of each column, from the maps ({} samples, first CNP after {:.0} ms, \
         {} at the end):",
        paced.len(),
        first.at.as_secs_f64() * 1e3,
        text::rate(last.rate)
    ))?;
    // Back at its ceiling the QP is unpaced again: the axis' top.
    let top = paced.iter().map(|s| s.rate).max().unwrap_or(0);
    let rate = |s: &Sample| if s.rate == 0 { top } else { s.rate };
    let points: Vec<_> = paced
        .iter()
        .map(|s| (s.at.as_secs_f64(), rate(s) as f64))
        .collect();
    let width = text::terminal_width().unwrap_or(DEFAULT_WIDTH).min(160);
    out::write(plot::plot(&points, width, PLOT_HEIGHT, |bps| text::rate(bps as u64)).as_bytes())
}

/// What one can try while everything is kept.
pub fn look_around(a: &Station, b: &Station) -> anyhow::Result<()> {
    out::line(format_args!(
        "\n== Kept until Ctrl-C. To look around:\n\
         rocexdp --netns {a} qp list\n\
         rocexdp --netns {b} counters\n\
         rocexdp --netns {b} qp watch",
        a = a.namespace(),
        b = b.namespace()
    ))
}
