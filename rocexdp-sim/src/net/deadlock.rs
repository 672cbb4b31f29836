//! PFC deadlocks: a cycle of paused queues, each of which waits for the next (a cyclic buffer dependency).
//!
//! An egress queue of a switch that is paused, and out of which nothing has gone for a while, waits for the switch behind that link
//! to take packets; and that one for every egress queue in which it holds packets that came over it. A cycle among those
//! never ends by itself. Looked for from time to time: nothing is kept per packet.
//!
//! Must not: end one.

use std::collections::BTreeMap;

use super::network::what;
use super::{Host, Network};
use crate::picos::Picos;
use crate::switch::PRIORITIES;
use crate::topology::{Node, PortId, SwitchId};

/// How deadlocks are looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadlockCheck {
    /// For how long nothing must have moved.
    pub after: Picos,
    /// Whether [`Network::run_until`] comes back then.
    pub stop: bool,
}

impl Default for DeadlockCheck {
    /// 10 ms, and the run goes on.
    fn default() -> Self {
        Self {
            after: Picos::from_micros(10_000),
            stop: false,
        }
    }
}

/// An egress queue of a switch.
pub type QueueId = (SwitchId, PortId, u8);

/// A cycle of queues, each of which waits for the next, and the last for the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deadlock {
    /// When the last of them moved last, no later.
    pub since: Picos,
    /// When it was noticed.
    pub noticed: Picos,
    /// The queues.
    pub queues: Vec<QueueId>,
}

/// What is known of queues that may be stuck: packets that had left each, and since when it was that many.
pub(super) struct Watch {
    check: DeadlockCheck,
    stuck: BTreeMap<QueueId, (u64, Picos)>,
    scheduled: bool,
    found: Vec<Deadlock>,
}

impl Watch {
    pub(super) fn new(check: DeadlockCheck) -> Self {
        Self {
            check,
            stuck: BTreeMap::new(),
            scheduled: false,
            found: Vec::new(),
        }
    }
}

impl<H: Host> Network<H> {
    /// Deadlocks found so far, the oldest first.
    #[must_use]
    pub fn deadlocks(&self) -> &[Deadlock] {
        self.watch.as_ref().map_or(&[], |w| &w.found)
    }

    /// Sees to it that deadlocks are looked for, while anything happens.
    pub(super) fn watch_on(&mut self) {
        let Some(watch) = self.watch.as_mut().filter(|w| !w.scheduled) else {
            return;
        };
        watch.scheduled = true;
        // Four looks in that time tell it to a quarter.
        let at = self.now + Picos((watch.check.after.0 / 4).max(1));
        self.schedule(at, what::of(what::WATCH, 0));
    }

    /// Looks for deadlocks. True: a new one was found, and the run shall stop.
    #[cold]
    pub(super) fn look(&mut self) -> bool {
        let Some(mut watch) = self.watch.take() else {
            return false;
        };
        watch.scheduled = false;
        let before = core::mem::take(&mut watch.stuck);
        for queue in self.paused_queues() {
            let (s, port, priority) = queue;
            let switch = self.switch(s);
            let left = switch.counters(self.now, port, priority).tx_packets;
            let since = match before.get(&queue) {
                Some((then, since)) if *then == left => *since,
                _ => self.now,
            };
            watch.stuck.insert(queue, (left, since));
        }
        let mut new = false;
        let old = |(_, since): &(u64, Picos)| self.now - *since >= watch.check.after;
        let stuck: Vec<QueueId> = watch
            .stuck
            .iter()
            .filter(|(_, seen)| old(seen))
            .map(|(queue, _)| *queue)
            .collect();
        for queues in self.cycles(&stuck) {
            if watch.found.iter().any(|d| d.queues == queues) {
                continue;
            }
            new = true;
            let since = queues.iter().filter_map(|q| watch.stuck.get(q));
            watch.found.push(Deadlock {
                since: since.map(|(_, since)| *since).max().unwrap_or(self.now),
                noticed: self.now,
                queues,
            });
        }
        let stop = new && watch.check.stop;
        // Without anything else to happen, and nothing that may yet turn out stuck, there is no end to looking.
        let pending = watch.stuck.len() > stuck.len();
        self.watch = Some(watch);
        if self.queue.len() > 0 || pending {
            self.watch_on();
        }
        stop
    }

    /// Egress queues with packets that their peer has paused.
    fn paused_queues(&self) -> Vec<QueueId> {
        let mut queues = Vec::new();
        for (s, side) in self.switches.iter().enumerate() {
            for port in (0..side.ports.len()).map(|p| PortId(p as u16)) {
                let paused = side.switch.paused(self.now, port);
                let waiting = (0..PRIORITIES as u8)
                    .filter(|p| paused & 1 << p != 0 && side.switch.queue(port, *p) > 0);
                queues.extend(waiting.map(|p| (SwitchId(s as u32), port, p)));
            }
        }
        queues
    }

    /// What a queue waits for, of those that are stuck.
    fn waits_for(&self, (s, port, priority): QueueId, stuck: &[QueueId]) -> Vec<usize> {
        let d = self.switches[s.0 as usize].ports[usize::from(port.0)] as usize;
        let (Node::Switch(behind), entry) = self.from[d ^ 1] else {
            return Vec::new();
        };
        let holds = |(s, port, of): QueueId| {
            s == behind && of == priority && self.switch(s).holds(port, of, entry)
        };
        (0..stuck.len()).filter(|i| holds(stuck[*i])).collect()
    }

    /// Cycles among them, each from its least queue on; a queue is in one at most.
    fn cycles(&self, stuck: &[QueueId]) -> Vec<Vec<QueueId>> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const SEEN: u8 = 2;
        let edges: Vec<Vec<usize>> = stuck.iter().map(|q| self.waits_for(*q, stuck)).collect();
        let mut state = vec![NEW; stuck.len()];
        let mut found = Vec::new();
        for root in 0..stuck.len() {
            if state[root] != NEW {
                continue;
            }
            // The way from the root, and how many edges of each were tried.
            let mut way = vec![(root, 0)];
            state[root] = OPEN;
            while let Some((at, tried)) = way.last_mut() {
                let Some(&next) = edges[*at].get(*tried) else {
                    state[*at] = SEEN;
                    way.pop();
                    continue;
                };
                *tried += 1;
                match state[next] {
                    NEW => {
                        state[next] = OPEN;
                        way.push((next, 0));
                    }
                    OPEN => {
                        let from = way.iter().position(|(n, _)| *n == next).unwrap_or(0);
                        let mut cycle: Vec<usize> = way[from..].iter().map(|(n, _)| *n).collect();
                        let least = cycle.iter().enumerate().min_by_key(|(_, n)| **n);
                        let least = least.map_or(0, |(i, _)| i);
                        cycle.rotate_left(least);
                        found.push(cycle.iter().map(|n| stuck[*n]).collect());
                    }
                    _ => {}
                }
            }
        }
        found
    }
}
