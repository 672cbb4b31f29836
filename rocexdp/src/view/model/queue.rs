//! Receive queues as JSON.

use std::collections::BTreeMap;

use rocexdp_common::maps::{EventBook, QueueCounters, QueueEngine, REASON_NAMES};
use rocexdp_proto::DropReason;
use serde::Serialize;

/// `rocexdp counters --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Counters {
    /// [`super::VERSION`].
    pub version: u32,
    /// The interface asked for.
    pub iface: String,
    /// The kernel's id of the program.
    pub program_id: u32,
    /// When the maps were read.
    pub time_ns: u64,
    /// Frames of queues that the interface got after the program was loaded: passed to the kernel, served by no socket.
    pub frames_of_new_queues: u64,
    /// By receive queue.
    pub queues: Vec<Queue>,
}

/// A receive queue.
#[derive(Clone, Debug, Serialize)]
pub struct Queue {
    /// Its number.
    pub queue: usize,
    /// What XDP counted.
    pub xdp: QueueXdp,
    /// Rare events that its packets raised.
    pub events: QueueEvents,
    /// What the engine and the socket counted.
    pub engine: QueueTransport,
}

/// Rare events: `rocexdp_common::maps::EventBook`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QueueEvents {
    /// Put into the ring, for `rocexdp events`.
    pub sent: u64,
    /// Held back by the rate limit.
    pub suppressed: u64,
    /// Lost: the ring was full.
    pub lost: u64,
}

impl From<&EventBook> for QueueEvents {
    fn from(book: &EventBook) -> Self {
        Self {
            sent: book.sent,
            suppressed: book.suppressed,
            lost: book.lost,
        }
    }
}

macro_rules! queue {
    ($name:ident, $from:ident, $doc:literal, $map:ident, $names:expr, $($field:ident),* $(,)?) => {
        #[doc = $doc]
        #[derive(Clone, Debug, Serialize)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $field: u64,)*
            /// By reason, all of them.
            pub $map: BTreeMap<&'static str, u64>,
        }

        impl From<&$from> for $name {
            fn from(counters: &$from) -> Self {
                Self {
                    $($field: counters.$field,)*
                    $map: $names.zip(counters.$map).collect(),
                }
            }
        }
    };
}

queue!(
    QueueXdp,
    QueueCounters,
    "What XDP counted on a queue: `rocexdp_common::maps::QueueCounters`.",
    reasons,
    REASON_NAMES.iter().copied(),
    frames,
    rocev2,
    redirected,
    consumed,
    dropped,
    passed_rocev2,
    passed_other,
    flow_inserts,
);

queue!(
    QueueTransport,
    QueueEngine,
    "What the engine and the socket counted on a queue: `rocexdp_common::maps::QueueEngine`.",
    drops,
    DropReason::ALL.iter().map(|reason| reason.name()),
    rx_packets,
    rx_bytes,
    rx_accepted,
    rx_icrc_errors,
    tx_packets,
    tx_bytes,
    tx_completed,
    tx_backpressure,
    xsk_rx_dropped,
    xsk_rx_ring_full,
    xsk_rx_fill_ring_empty,
    xsk_rx_invalid,
    xsk_tx_invalid,
    xsk_tx_ring_empty,
    xsk_rx_bad_desc,
    tx_device_drops,
    rx_handed_over,
    rx_handed_away,
    rx_handover_full,
    rx_copied,
    rx_looped,
    tx_looped,
    pfc_sent,
    pauses_honoured,
    paused_ns,
);

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(value: &serde_json::Value) -> usize {
        value.as_object().unwrap().len()
    }

    #[test]
    fn every_reason_has_its_own_key() {
        let mut xdp = QueueCounters::default();
        let mut engine = QueueEngine::default();
        for (i, n) in xdp.reasons.iter_mut().chain(&mut engine.drops).enumerate() {
            *n = i as u64;
        }
        let json = serde_json::to_value(QueueXdp::from(&xdp)).unwrap();
        assert_eq!(keys(&json["reasons"]), REASON_NAMES.len());
        assert_eq!(json["reasons"][REASON_NAMES[3]], 3);
        let json = serde_json::to_value(QueueTransport::from(&engine)).unwrap();
        assert_eq!(keys(&json["drops"]), DropReason::ALL.len());
        assert_eq!(json["drops"][DropReason::ALL[2].name()], 42);
    }
}
