//! The XDP program's log of refused packets, as events of the node.
//!
//! The program logs only when it was loaded to (`LoadConfig::log_refusals`); its counters by reason are always there.

use anyhow::{Context as _, Result};
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use tokio::sync::broadcast;

use rocexdp_common::maps::REASON_NAMES;

use super::NodeEvent;

/// Where the program's log lines go.
pub struct Sink(broadcast::Sender<NodeEvent>);

impl Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Nobody may be listening.
        let _ = self
            .0
            .send(NodeEvent::Refused(with_name(&record.args().to_string())));
    }

    fn flush(&self) {}
}

/// The program logs a reason's number, `refused: reason N, queue Q`; people want its name.
fn with_name(line: &str) -> String {
    let number = |rest: &str| {
        rest.split(',')
            .next()
            .and_then(|n| n.trim().parse::<usize>().ok())
    };
    match line.split_once("reason ") {
        Some((before, rest)) => match number(rest).and_then(|n| REASON_NAMES.get(n)) {
            Some(name) => format!(
                "{before}{name}{}",
                rest.find(',').map_or("", |at| &rest[at..])
            ),
            None => line.to_owned(),
        },
        None => line.to_owned(),
    }
}

/// Reads the log of the program with this id.
///
/// # Errors
/// When the program has no log.
pub fn of_program(id: u32, events: broadcast::Sender<NodeEvent>) -> Result<EbpfLogger<Sink>> {
    EbpfLogger::init_from_id_with_logger(id, Sink(events))
        .context("reading the XDP program's log of refused packets")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reasons_number_becomes_its_name() {
        assert_eq!(
            with_name("refused: reason 0, queue 3"),
            format!("refused: {}, queue 3", REASON_NAMES[0])
        );
        for odd in ["", "refused: reason", "reason 999, queue 1", "reason x"] {
            assert_eq!(with_name(odd), odd);
        }
    }
}
