//! `rocexdp counters`.

use super::qp::Source;
use crate::{
    out,
    sys::clock,
    view::{
        counters,
        model::{Counters, Queue, VERSION},
        text,
    },
};

/// Options of `rocexdp counters`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
}

/// Shows the queues' counters.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let (iface, maps) = args.source.open()?;
    let queues = maps.queue_counters();
    let frames_of_new_queues = maps.frames_of_new_queues();
    if !args.source.json {
        let mut table = counters::table(&queues, text::terminal_width());
        if frames_of_new_queues > 0 {
            table.push_str(&format!(
                "{frames_of_new_queues} frames came on queues that {iface} got later: restart rocexdp to serve them\n"
            ));
        }
        return out::write(table.as_bytes());
    }
    out::json(&Counters {
        version: VERSION,
        iface,
        program_id: maps.program_id(),
        time_ns: clock::monotonic_ns(),
        frames_of_new_queues,
        queues: queues
            .iter()
            .enumerate()
            .map(|(queue, (xdp, engine))| Queue {
                queue,
                xdp: xdp.into(),
                events: (&xdp.events).into(),
                engine: engine.into(),
            })
            .collect(),
    })
}
