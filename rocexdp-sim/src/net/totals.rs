//! What a network has counted.
//!
//! Must not: change anything.

use super::link::LinkCounters;
use super::{Host, Network, Totals};
use crate::switch::{DropReason, PRIORITIES};
use crate::topology::{LinkId, Node, PortId};

impl<H: Host> Network<H> {
    /// What was counted of a link: from its first end, and from its second.
    #[must_use]
    pub fn link(&self, link: LinkId) -> [LinkCounters; 2] {
        let first = 2 * link.0 as usize;
        [
            self.directions[first].counters,
            self.directions[first + 1].counters,
        ]
    }

    /// Events so far, and packets sent on links: what a run's cost is told by.
    #[must_use]
    pub fn work(&self) -> (u64, u64) {
        let hops = self.directions.iter().map(|d| d.counters.packets);
        (self.events, hops.sum())
    }

    /// Events that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Where all packets are and went. Costs a look at everything.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut t = Totals::default();
        for (d, (node, _)) in self.directions.iter().zip(&self.from) {
            let c = &d.counters;
            if matches!(node, Node::Host(_)) {
                t.sent += c.packets;
            }
            t.duplicated += c.duplicated;
            t.lost_fault += c.lost_fault;
            t.lost_down += c.lost_down;
            t.under_way += d.under_way();
        }
        t.received = self.host_sides.iter().map(|h| h.received).sum();
        for side in &self.switches {
            t.no_route += side.no_route;
            for port in 0..side.ports.len() {
                for priority in 0..PRIORITIES as u8 {
                    let c = side
                        .switch
                        .counters(self.now, PortId(port as u16), priority);
                    t.queued += c.queue_packets;
                    for (n, reason) in t.dropped.iter_mut().zip(DropReason::ALL) {
                        *n += c.dropped(reason);
                    }
                }
            }
        }
        t
    }
}
