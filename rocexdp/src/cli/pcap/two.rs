//! `rocexdp pcap --merge` and `--diff`: two captures, as text or JSON.

use std::{io::IsTerminal, path::Path};

use anyhow::anyhow;
use indicatif::ProgressBar;
use rocexdp_observe::{
    diff::diff as compare,
    merge::{MergeReport, merge as merge_taps},
    report::Report,
};

use super::{CUT, refused};
use crate::{cli::ChildStatus, out, view::text};

/// Two taps of one path.
pub(super) fn merge(a: &Path, b: &Path, json: bool) -> anyhow::Result<()> {
    let bar = std::io::stderr()
        .is_terminal()
        .then(ProgressBar::new_spinner);
    let report = merge_taps(a, b, |packets| {
        if let Some(bar) = &bar {
            bar.set_message(format!("{} packets compared", text::count(packets)));
            bar.tick();
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report =
        report.map_err(|error| refused(&error.path.display().to_string(), error.source))?;
    let mut cut = false;
    for (path, tap) in [a, b].into_iter().zip(&report.taps) {
        cut |= !tap.complete;
        for warning in &tap.warnings {
            out::note(format_args!(
                "rocexdp: warning: {}: {warning}",
                path.display()
            ));
        }
    }
    if json {
        out::json(&report)?;
    } else {
        out::line(format_args!("A is {}, B is {}.", a.display(), b.display()))?;
        out::write(report.to_string().as_bytes())?;
    }
    if strangers(&report) {
        return Err(anyhow!(
            "the captures share no packet: are they of the same traffic, at the same time?"
        ));
    }
    if cut {
        return Err(ChildStatus(CUT).into());
    }
    Ok(())
}

fn strangers(report: &MergeReport) -> bool {
    report
        .directions
        .iter()
        .all(|direction| direction.both == 0)
}

/// A capture beside a good one.
pub(super) fn diff(now: &Report, good: &Report, json: bool) -> anyhow::Result<()> {
    let diff = compare(now, good);
    if json {
        out::json(&diff)
    } else {
        out::write(diff.to_string().as_bytes())
    }
}
