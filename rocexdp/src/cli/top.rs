//! `rocexdp top`: see [`crate::top`].

use std::time::Duration;

use super::{
    UsageError,
    watched::{Watch, Watched},
};
use crate::{
    control::units::Span,
    lab::keeper::{self, Status},
    out,
    process::on_own_thread,
    top,
};

/// Options of `rocexdp top`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    watch: Watch,
    /// Look at the switches of this lab instead (`rocexdp lab up --topology`): ports, queues, marks, pauses
    #[arg(long, value_name = "NAME", conflicts_with = "iface")]
    lab: Option<String>,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Span,
}

/// Shows it until a key or a signal ends it.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let interval = args.interval.0;
    if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) {
        return Err(UsageError("--interval: 100ms to 60s".to_owned()).into());
    }
    // Before anything is attached.
    top::check_terminal()?;
    if let Some(lab) = args.lab {
        return on_own_thread(move |cancel| {
            let look = || match keeper::look(&lab)? {
                Status::Switched(status) => Ok(*status),
                Status::Wire(_) => anyhow::bail!(
                    "lab {lab} has no switches: look at its hosts (rocexdp lab exec a -- rocexdp top)"
                ),
            };
            top::lab::run(look, interval, &cancel)
        });
    }
    on_own_thread(move |cancel| {
        // The verifier may take a second.
        out::note("rocexdp: attaching ...");
        let mut watched = args.watch.open()?;
        let first = watched.look();
        Watched::check(&first)?;
        let mut notes = watched.notes.clone();
        let spots = Watched::blind_spots(&first);
        notes.extend(spots.iter().map(|spot| format!("not seen: {spot}")));
        let options = top::Options { interval, notes };
        top::run(first, move || watched.look(), options, &cancel)
    })
}
