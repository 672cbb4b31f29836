//! What the lab's wire or switches did, and what its links lost.

use super::{
    live::{bits, per_second, share},
    table::{Column, Table},
};
use crate::lab::{
    LinkDrops, PortCounters,
    keeper::SwitchedStatus,
    switched::status::{HostStatus, SwitchStatus},
};

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

/// A lab with switches: who there is, and what was counted.
#[must_use]
pub fn switched(status: &SwitchedStatus, width: Option<usize>) -> String {
    let network = &status.network;
    let mut text = format!(
        "lab {} of {}, kept by process {}, up {:.1} s{}\n\n",
        status.name,
        status.file,
        status.keeper,
        network.time,
        if network.held_back > 0.0 {
            format!(
                "; its clock was held back by {:.3} s, which the machine did not give it",
                network.held_back
            )
        } else {
            String::new()
        }
    );
    text.push_str(&hosts_table(&network.hosts).render(width));
    for switch in &network.switches {
        text.push_str(&format!(
            "\nswitch {} in {}: buffer {} B now, {} B at most; {} of {} B shared; {} frames without a way\n",
            switch.name,
            switch.namespace,
            switch.buffer[0],
            switch.buffer[1],
            switch.shared[0],
            switch.shared[1],
            switch.no_route
        ));
        text.push_str(&ports_table(switch).render(width));
    }
    text.push('\n');
    text.push_str(&drops_line(&network.drops));
    text
}

fn hosts_table(hosts: &[HostStatus]) -> Table {
    let mut table = Table::new(&[
        Column::text("HOST", 0),
        Column::text("NAMESPACE", 1),
        Column::text("NIC", 0),
        Column::text("ADDRESSES", 0),
        Column::text("TO", 0),
        Column::number("RATE", 0),
        Column::number("SENT", 0),
        Column::number("RECEIVED", 0),
        Column::number("WAITING", 2),
        Column::number("PAUSES", 2),
        Column::number("LOST", 0),
        Column::number("UNKNOWN", 3),
    ]);
    for host in hosts {
        for nic in &host.nics {
            let c = &nic.counters;
            let addresses: Vec<_> = nic.addresses.iter().map(ToString::to_string).collect();
            let lost = c.tx_full + c.rx_full + nic.link.lost_fault + nic.link.lost_down;
            table.row(
                [
                    host.name.clone(),
                    host.namespace.clone(),
                    nic.interface.clone(),
                    addresses.join(", "),
                    nic.to.clone(),
                    bits(nic.rate as f64),
                ]
                .into_iter()
                .chain(
                    [
                        c.tx_frames,
                        c.rx_frames,
                        c.waiting,
                        c.pauses_received,
                        lost,
                        c.unknown_destination,
                    ]
                    .map(|n| n.to_string()),
                ),
            );
        }
    }
    table
}

fn ports_table(switch: &SwitchStatus) -> Table {
    let mut table = Table::new(&[
        Column::text("PORT", 0),
        Column::text("TO", 0),
        Column::number("RATE", 1),
        Column::text("PRIO", 0),
        Column::number("IN", 0),
        Column::number("OUT", 0),
        Column::number("CE-MARKED", 0),
        Column::number("DROPPED", 0),
        Column::number("QUEUE", 0),
        Column::number("QUEUE-MAX", 1),
        Column::number("XOFF-SENT", 2),
        Column::number("XOFF-HEARD", 2),
        Column::number("PAUSED", 2),
    ]);
    for (number, port) in switch.ports.iter().enumerate() {
        let name = port.interface.clone().unwrap_or_else(|| number.to_string());
        for p in &port.priorities {
            let paused = format!("{:.3} s", p.paused);
            let numbers = [
                p.rx_frames,
                p.tx_frames,
                p.marked,
                p.dropped(),
                p.queue,
                p.queue_max,
            ]
            .map(|n| n.to_string());
            table.row(
                [
                    name.clone(),
                    port.to.clone(),
                    bits(port.rate as f64),
                    p.priority.to_string(),
                ]
                .into_iter()
                .chain(numbers)
                .chain([
                    p.pauses_sent.to_string(),
                    p.pauses_received.to_string(),
                    paused,
                ]),
            );
        }
    }
    table
}

/// What a lab's switches did between two looks: rates and means over that time, and what there is now.
#[must_use]
pub fn switched_since(
    before: &SwitchedStatus,
    after: &SwitchedStatus,
    width: Option<usize>,
) -> String {
    let (from, to) = (&before.network, &after.network);
    let time = to.time - from.time;
    let held = to.held_back - from.held_back;
    let mut text = format!("lab {} of {}, up {:.1} s", after.name, after.file, to.time);
    if held > 0.001 {
        text.push_str(&format!(
            "; of the last {:.2} s the machine did not give it {held:.2} s",
            time + held
        ));
    }
    text.push('\n');
    for (was, switch) in from.switches.iter().zip(&to.switches) {
        text.push_str(&format!(
            "\nswitch {}: buffer {} B, {} B at most\n",
            switch.name, switch.buffer[0], switch.buffer[1]
        ));
        text.push_str(&rates_table(was, switch, time).render(width));
    }
    text.push('\n');
    text.push_str(&drops_line(&to.drops));
    text
}

fn rates_table(before: &SwitchStatus, after: &SwitchStatus, time: f64) -> Table {
    let mut table = Table::new(&[
        Column::text("PORT", 0),
        Column::text("TO", 0),
        Column::number("RATE", 2),
        Column::number("LOAD%", 0),
        Column::text("PRIO", 0),
        Column::number("IN", 0),
        Column::number("OUT", 0),
        Column::number("QUEUE", 0),
        Column::number("MEAN", 1),
        Column::number("MAX", 2),
        Column::number("CE/s", 0),
        Column::number("DROP/s", 0),
        Column::number("XOFF/s", 1),
        Column::number("PAUSED%", 1),
    ]);
    let over = |part: f64| if time > 0.0 { part / time } else { 0.0 };
    let count = |now: u64, then: u64| now.saturating_sub(then) as f64;
    for (number, port) in after.ports.iter().enumerate() {
        let was = before.ports.get(number);
        let name = port.interface.clone().unwrap_or_else(|| number.to_string());
        let busy = port.link.busy - was.map_or(0.0, |was| was.link.busy);
        for p in &port.priorities {
            let then = was
                .and_then(|was| {
                    was.priorities
                        .iter()
                        .find(|then| then.priority == p.priority)
                })
                .copied()
                .unwrap_or_default();
            table.row([
                name.clone(),
                port.to.clone(),
                bits(port.rate as f64),
                share(over(busy)),
                p.priority.to_string(),
                bits(8.0 * over(count(p.rx_bytes, then.rx_bytes))),
                bits(8.0 * over(count(p.tx_bytes, then.tx_bytes))),
                bits(p.queue as f64),
                bits(over(p.queue_seconds - then.queue_seconds)),
                bits(p.queue_max as f64),
                per_second(over(count(p.marked, then.marked))),
                per_second(over(count(p.dropped(), then.dropped()))),
                per_second(over(count(p.pauses_sent, then.pauses_sent))),
                share(over(p.paused - then.paused)),
            ]);
        }
    }
    table
}
