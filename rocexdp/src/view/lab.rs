//! What the lab's wire did, and what its links lost.

use super::table::{Column, Table};
use crate::lab::{LinkDrops, PortCounters};

/// What happened on the wire, by sending host.
#[must_use]
pub fn wire_table(counters: &[PortCounters; 2]) -> Table {
    let mut table = Table::new(&[
        Column::text("FROM", 0),
        Column::number("RoCEv2", 0),
        Column::number("DROPPED", 0),
        Column::number("CE-MARKED", 0),
        Column::number("CORRUPTED", 0),
        Column::number("DUPLICATED", 0),
        Column::number("REORDERED", 0),
        Column::number("OTHER", 0),
        Column::number("FAILED", 0),
    ]);
    for (host, c) in ["a", "b"].into_iter().zip(counters) {
        let numbers = [
            c.packets,
            c.dropped,
            c.marked,
            c.corrupted,
            c.duplicated,
            c.reordered,
            c.other,
            c.failed,
        ];
        table.row(std::iter::once(host.to_owned()).chain(numbers.map(|n| n.to_string())));
    }
    table
}

/// What the links lost by themselves.
#[must_use]
pub fn drops_line(drops: &[LinkDrops]) -> String {
    let lost: Vec<_> = drops
        .iter()
        .filter(|end| end.total() > 0)
        .map(|end| {
            format!(
                "{} of {} lost {}",
                end.interface,
                end.namespace,
                end.total()
            )
        })
        .collect();
    if lost.is_empty() {
        "links: no frame lost\n".to_owned()
    } else {
        format!("links: {}\n", lost.join(", "))
    }
}
