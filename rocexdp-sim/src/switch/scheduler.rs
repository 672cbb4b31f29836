//! Which of a port's queues sends next.
//!
//! Deficit round robin after Shreedhar and Varghese: a queue's turn adds its quantum to its deficit, and it sends while its deficit
//! covers its first packet. Round robin by packets is `DequeueRR` of the reference simulators.
//!
//! Must not: know of pauses or buffers: its caller says which queues may send.

use super::PRIORITIES;
use super::config::Scheduler;

/// Bytes that the smallest weight gets in a round; small, so that rounds are short.
const LEAST_QUANTUM: u64 = 512;

/// Where a port's scheduler stands.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    /// Bit per priority served before all others, the highest first.
    strict: u8,
    rule: Rule,
    /// The queue whose turn it is.
    at: u8,
}

#[derive(Clone, Debug)]
enum Rule {
    /// All are strict.
    Strict,
    RoundRobin,
    Weighted {
        quantum: [u64; PRIORITIES],
        deficit: [u64; PRIORITIES],
        /// Whether the queue whose turn it is got its quantum.
        begun: bool,
    },
}

fn mask(set: &[bool; PRIORITIES]) -> u8 {
    (0..PRIORITIES)
        .filter(|p| set[*p])
        .fold(0, |mask, p| mask | 1 << p)
}

impl Turn {
    pub(super) fn new(scheduler: &Scheduler) -> Self {
        let (strict, rule) = match scheduler {
            Scheduler::Strict => (u8::MAX, Rule::Strict),
            Scheduler::RoundRobin { strict } => (mask(strict), Rule::RoundRobin),
            Scheduler::Weighted { weights, strict } => {
                let least = (0..PRIORITIES)
                    .filter(|p| !strict[*p])
                    .map(|p| u64::from(weights[p]))
                    .min();
                let unit = LEAST_QUANTUM.div_ceil(least.unwrap_or(1).max(1));
                let quantum = weights.map(|weight| u64::from(weight).max(1) * unit);
                (
                    mask(strict),
                    Rule::Weighted {
                        quantum,
                        deficit: [0; PRIORITIES],
                        begun: false,
                    },
                )
            }
        };
        Self {
            strict,
            rule,
            at: 0,
        }
    }

    /// The queue that sends next, of those whose bit is set in `ready`; `first_len` is the length of a queue's first packet.
    pub(super) fn next(&mut self, ready: u8, first_len: impl Fn(u8) -> u32) -> Option<u8> {
        let strict = ready & self.strict;
        if strict != 0 {
            return Some(strict.ilog2() as u8);
        }
        if ready == 0 {
            return None;
        }
        match &mut self.rule {
            Rule::Strict => None,
            Rule::RoundRobin => {
                // The next after the one that sent last.
                let turn = ready.rotate_right(u32::from(self.at) + 1).trailing_zeros() as u8;
                self.at = (self.at + 1 + turn) % PRIORITIES as u8;
                Some(self.at)
            }
            Rule::Weighted {
                quantum,
                deficit,
                begun,
            } => loop {
                for _ in 0..PRIORITIES {
                    let at = usize::from(self.at);
                    if ready & 1 << at != 0 {
                        if !*begun {
                            deficit[at] += quantum[at];
                            *begun = true;
                        }
                        let len = u64::from(first_len(self.at));
                        if len <= deficit[at] {
                            deficit[at] -= len;
                            return Some(self.at);
                        }
                    }
                    self.at = (self.at + 1) % PRIORITIES as u8;
                    *begun = false;
                }
                // A whole round was too little for every queue: the rounds before the one that is enough, at once.
                let rounds = (0..PRIORITIES)
                    .filter(|p| ready & 1 << p != 0)
                    .map(|p| {
                        u64::from(first_len(p as u8))
                            .saturating_sub(deficit[p])
                            .div_ceil(quantum[p])
                    })
                    .min();
                let rounds = rounds.unwrap_or(0).saturating_sub(1);
                for p in (0..PRIORITIES).filter(|p| ready & 1 << p != 0) {
                    deficit[p] += rounds * quantum[p];
                }
            },
        }
    }

    /// A queue has sent its last packet: it keeps no deficit.
    pub(super) fn emptied(&mut self, priority: u8) {
        if let Rule::Weighted { deficit, begun, .. } = &mut self.rule {
            deficit[usize::from(priority)] = 0;
            if self.at == priority {
                self.at = (self.at + 1) % PRIORITIES as u8;
                *begun = false;
            }
        }
    }
}
