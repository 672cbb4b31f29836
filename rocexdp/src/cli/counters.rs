//! `rocexdp counters`.

use super::qp::Source;
use crate::{
    out,
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
    if !args.source.json {
        return out::write(counters::table(&queues, text::terminal_width()).as_bytes());
    }
    out::json(&Counters {
        version: VERSION,
        iface,
        program_id: maps.program_id(),
        time_ns: text::monotonic_ns(),
        queues: queues
            .iter()
            .enumerate()
            .map(|(queue, (xdp, engine))| Queue {
                queue,
                xdp: xdp.into(),
                engine: engine.into(),
            })
            .collect(),
    })
}
