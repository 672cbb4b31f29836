//! The XDP program's log of refused packets, as events of the node.
//!
//! The program logs only when it was loaded to (`LoadConfig::log_refusals`); its counters by reason are always there.

use anyhow::{Context as _, Result};
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use tokio::sync::broadcast;

use super::NodeEvent;

/// Where the program's log lines go.
pub struct Sink(broadcast::Sender<NodeEvent>);

impl Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Nobody may be listening.
        let _ = self.0.send(NodeEvent::Refused(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// Reads the log of the program with this id.
///
/// # Errors
/// When the program has no log.
pub fn of_program(id: u32, events: broadcast::Sender<NodeEvent>) -> Result<EbpfLogger<Sink>> {
    EbpfLogger::init_from_id_with_logger(id, Sink(events))
        .context("reading the XDP program's log of refused packets")
}
