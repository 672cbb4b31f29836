//! `rocexdp top`: see [`crate::top`].

use std::{
    sync::mpsc::sync_channel,
    time::{Duration, SystemTime},
};

use tokio::task::JoinSet;

use super::{
    UsageError,
    watched::{Watch, Watched},
};
use crate::{
    control::{events, units::Span},
    lab::keeper::{self, Status},
    out,
    process::{Background, on_own_thread},
    top,
};

/// Events that wait for the next interval; more are counted.
const MOST_WAITING: usize = 4096;
/// Events from before the start are shown, if they are not older than this.
const PAST: Duration = Duration::from_secs(300);

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
        let (tell, heard) = sync_channel(MOST_WAITING);
        let since = SystemTime::now() - PAST;
        let since = since
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let since_ns = u64::try_from(since.as_nanos()).unwrap_or(0);
        let ifaces: Vec<String> = first.ifaces.iter().map(|at| at.iface.clone()).collect();
        let _followers = Background::start("follower", async move {
            let mut followers = JoinSet::new();
            for iface in ifaces {
                let tell = tell.clone();
                let tell = move |heard| tell.try_send(heard).is_ok();
                followers.spawn(events::follow(iface, since_ns, tell));
            }
            while followers.join_next().await.is_some() {}
        })?;
        let options = top::Options {
            interval,
            notes,
            events: heard,
        };
        top::run(first, move || watched.look(), options, &cancel)
    })
}
