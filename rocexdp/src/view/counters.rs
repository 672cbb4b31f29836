//! The table of `rocexdp counters`: what came in on each queue, and where it went.

use rocexdp_common::maps::{QueueCounters, QueueEngine, REASON_NAMES};
use rocexdp_proto::DropReason;

use super::table::{Column, Table};

/// All queues side by side, reasons only where one counted, and whether the books close.
#[must_use]
pub fn table(queues: &[(QueueCounters, QueueEngine)], width: Option<usize>) -> String {
    let mut columns = vec![Column::text("XDP, at ingress", 0)];
    columns.extend(
        queues
            .iter()
            .enumerate()
            .map(|(queue, _)| Column::number(queue_name(queue), 0)),
    );
    let mut table = Table::new(&columns);
    let mut row = |name: &str, pick: &dyn Fn(&QueueCounters, &QueueEngine) -> u64| {
        let values = queues
            .iter()
            .map(|(xdp, engine)| pick(xdp, engine).to_string());
        table.row(std::iter::once(name.to_owned()).chain(values));
    };
    row("frames", &|x, _| x.frames);
    row("  redirected to the socket", &|x, _| x.redirected);
    row("  consumed (CNPs of local QPs)", &|x, _| x.consumed);
    row("  dropped", &|x, _| x.dropped);
    row("  passed, RoCEv2", &|x, _| x.passed_rocev2);
    row("  passed, other", &|x, _| x.passed_other);
    row("of them RoCEv2", &|x, _| x.rocev2);
    for (index, name) in REASON_NAMES.iter().enumerate() {
        let of = |x: &QueueCounters| x.reasons.get(index).copied().unwrap_or(0);
        if queues.iter().any(|(x, _)| of(x) > 0) {
            row(&format!("reason {name}"), &|x, _| of(x));
        }
    }
    row("socket, rx_dropped", &|_, e| e.xsk_rx_dropped);
    row("socket, rx_ring_full", &|_, e| e.xsk_rx_ring_full);
    row("socket, rx_fill_ring_empty_descs", &|_, e| {
        e.xsk_rx_fill_ring_empty
    });
    row("socket, rx_invalid_descs", &|_, e| {
        e.xsk_rx_invalid + e.xsk_rx_bad_desc
    });
    row("socket, tx_invalid_descs", &|_, e| e.xsk_tx_invalid);
    row("socket, tx_ring_empty_descs", &|_, e| e.xsk_tx_ring_empty);
    row("events of packets (rocexdp events)", &|x, _| x.events.sent);
    row("  held back by the rate limit", &|x, _| x.events.suppressed);
    row("  lost, nobody read", &|x, _| x.events.lost);
    row("engine, received", &|_, e| e.rx_packets);
    row("  accepted", &|_, e| e.rx_accepted);
    row("  wrong ICRC", &|_, e| e.rx_icrc_errors);
    for (index, reason) in DropReason::ALL.iter().enumerate() {
        let of = |e: &QueueEngine| e.drops.get(index).copied().unwrap_or(0);
        if queues.iter().any(|(_, e)| of(e) > 0) {
            row(&format!("  dropped, {reason}"), &|_, e| of(e));
        }
    }
    row("engine, handed over by other queues", &|_, e| {
        e.rx_handed_over
    });
    row("engine, handed to other queues", &|_, e| e.rx_handed_away);
    row("  dropped, the other did not keep up", &|_, e| {
        e.rx_handover_full
    });
    row("engine, copies of groups' packets", &|_, e| e.rx_copied);
    row("engine, from QPs of this host", &|_, e| e.rx_looped);
    row("engine, sent", &|_, e| e.tx_packets);
    row("  descriptors the device is done with", &|_, e| {
        e.tx_completed
    });
    row("  waits for room (nothing lost)", &|_, e| e.tx_backpressure);
    row("  dropped by the device", &|_, e| e.tx_device_drops);
    row("engine, sent to QPs of this host", &|_, e| e.tx_looped);
    row("engine, pauses honoured", &|_, e| e.pauses_honoured);
    row("engine, time paused (ns)", &|_, e| e.paused_ns);
    row("engine, pause frames sent", &|_, e| e.pfc_sent);
    let mut text = table.render(width);
    for (queue, (xdp, _)) in queues.iter().enumerate() {
        let went =
            xdp.redirected + xdp.consumed + xdp.dropped + xdp.passed_rocev2 + xdp.passed_other;
        if went != xdp.frames {
            text.push_str(&format!(
                "queue {queue}: frames and where they went differ by {} (a few while packets come are normal)\n",
                xdp.frames.abs_diff(went)
            ));
        }
    }
    text
}

fn queue_name(queue: usize) -> &'static str {
    const NAMES: [&str; 16] = [
        "QUEUE 0", "QUEUE 1", "QUEUE 2", "QUEUE 3", "QUEUE 4", "QUEUE 5", "QUEUE 6", "QUEUE 7",
        "QUEUE 8", "QUEUE 9", "QUEUE 10", "QUEUE 11", "QUEUE 12", "QUEUE 13", "QUEUE 14",
        "QUEUE 15",
    ];
    NAMES.get(queue).copied().unwrap_or("QUEUE")
}

#[cfg(test)]
mod tests {
    use rocexdp_common::maps::Reason;

    use super::*;

    #[test]
    fn only_reasons_that_counted_are_shown_and_open_books_are_said() {
        let mut xdp = QueueCounters {
            frames: 10,
            redirected: 6,
            dropped: 2,
            passed_other: 2,
            ..QueueCounters::default()
        };
        xdp.reasons[Reason::UnknownQpn as usize] = 2;
        let mut engine = QueueEngine {
            rx_packets: 6,
            rx_accepted: 5,
            ..QueueEngine::default()
        };
        engine.drops[DropReason::GhostAck.index()] = 1;
        let text = table(
            &[
                (xdp, engine),
                (QueueCounters::default(), QueueEngine::default()),
            ],
            None,
        );
        assert!(
            text.contains("reason unknown_qpn") && text.contains("dropped, ghost_ack"),
            "{text}"
        );
        assert!(
            !text.contains("cnp_icrc") && !text.contains("differ"),
            "{text}"
        );
        xdp.frames += 1;
        assert!(
            table(&[(xdp, engine)], None)
                .contains("queue 0: frames and where they went differ by 1")
        );
    }
}
