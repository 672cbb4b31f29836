//! What hosts send: flows one by one, by pattern, at random with sizes of a distribution, or from a file.
//!
//! A [`Workload`] is what was written, checked; [`Workload::flows`] makes the flows of one seed. Each part draws from a
//! generator of its own, so that adding one does not change the others. Collectives would be one more part.
//!
//! Must not: know how flows are carried.

mod build;
mod file;
pub(crate) mod random;
pub mod sizes;
#[cfg(test)]
mod tests;

use rocexdp_proto::rng::Rng;
use rocexdp_proto::time::Rate;
use rocexdp_sim::{
    picos::Picos,
    topology::{HostId, PortId},
};

use random::{exponential, shuffled, stream};
use sizes::Distribution;

/// Flows of one run at most.
pub const MOST_FLOWS: usize = 20_000_000;

/// A flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Sender.
    pub from: HostId,
    /// Its NIC.
    pub nic: PortId,
    /// Receiver.
    pub to: HostId,
    /// Its NIC.
    pub to_nic: PortId,
    /// Size; `None`: it has no end.
    pub bytes: Option<u64>,
    /// When it starts.
    pub start: Picos,
    /// Its class.
    pub class: usize,
}

/// What hosts send.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    parts: Vec<Part>,
}

/// One entry of a scenario.
#[derive(Clone, Debug)]
enum Part {
    /// As written.
    Listed(Vec<Flow>),
    /// By pattern.
    Pattern(Pattern),
    /// At random.
    Traffic(Traffic),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Permutation,
    Incast {
        to: Option<HostId>,
        senders: Option<usize>,
    },
    AllToAll,
}

#[derive(Clone, Debug)]
struct Pattern {
    kind: Kind,
    hosts: Vec<HostId>,
    bytes: Option<u64>,
    start: Picos,
    jitter: Picos,
    /// Again so far apart, until then.
    every: Option<(Picos, Picos)>,
    class: usize,
}

#[derive(Clone, Debug)]
struct Traffic {
    sizes: Distribution,
    load: f64,
    /// Hosts with the rate of their first NIC.
    hosts: Vec<(HostId, Rate)>,
    start: Picos,
    until: Picos,
    class: usize,
}

impl Workload {
    /// The flows of a seed, by start.
    #[must_use]
    pub fn flows(&self, seed: u64) -> Vec<Flow> {
        let mut flows = Vec::new();
        for (n, part) in (0_u64..).zip(&self.parts) {
            let mut rng = stream(seed, n);
            match part {
                Part::Listed(listed) => flows.extend_from_slice(listed),
                Part::Pattern(pattern) => pattern.draw(&mut rng, &mut flows),
                Part::Traffic(traffic) => traffic.draw(seed, n, &mut flows),
            }
        }
        // Stable: flows of one start stay in the order written.
        flows.sort_by_key(|flow| flow.start);
        flows
    }

    /// How many flows a run has, about.
    #[must_use]
    pub fn expected(&self) -> f64 {
        let count = |part: &Part| match part {
            Part::Listed(listed) => listed.len() as f64,
            Part::Pattern(pattern) => pattern.per_round() as f64 * pattern.rounds() as f64,
            Part::Traffic(traffic) => traffic.expected(),
        };
        self.parts.iter().map(count).sum()
    }
}

impl Pattern {
    fn per_round(&self) -> usize {
        let n = self.hosts.len();
        match self.kind {
            Kind::Permutation => n,
            Kind::Incast { senders, .. } => senders.unwrap_or(n - 1),
            Kind::AllToAll => n * (n - 1),
        }
    }

    fn rounds(&self) -> u64 {
        match self.every {
            None => 1,
            Some((every, until)) => (until - self.start).0.div_ceil(every.0.max(1)),
        }
    }

    fn draw(&self, rng: &mut Rng, flows: &mut Vec<Flow>) {
        let mut start = self.start;
        for _ in 0..self.rounds() {
            for (from, to) in self.pairs(rng) {
                let late = if self.jitter == Picos::ZERO {
                    0
                } else {
                    rng.below(self.jitter.0)
                };
                flows.push(Flow {
                    from,
                    nic: PortId(0),
                    to,
                    to_nic: PortId(0),
                    bytes: self.bytes,
                    start: start + Picos(late),
                    class: self.class,
                });
            }
            start = start + self.every.map_or(Picos::ZERO, |(every, _)| every);
        }
    }

    fn pairs(&self, rng: &mut Rng) -> Vec<(HostId, HostId)> {
        let hosts = &self.hosts;
        let n = hosts.len();
        match self.kind {
            // A random cycle: everyone sends to one and receives from one, nobody itself.
            Kind::Permutation => {
                let order = shuffled(rng, n);
                let next = order.iter().cycle().skip(1);
                order
                    .iter()
                    .zip(next)
                    .map(|(a, b)| (hosts[*a], hosts[*b]))
                    .collect()
            }
            Kind::Incast { to, senders } => {
                let order = shuffled(rng, n);
                let to = to.unwrap_or(hosts[order[0]]);
                let mut from: Vec<_> = order
                    .iter()
                    .map(|n| hosts[*n])
                    .filter(|host| *host != to)
                    .collect();
                from.truncate(senders.unwrap_or(n));
                from.sort_unstable();
                from.into_iter().map(|from| (from, to)).collect()
            }
            Kind::AllToAll => {
                let pairs = hosts.iter().flat_map(|a| hosts.iter().map(|b| (*a, *b)));
                pairs.filter(|(a, b)| a != b).collect()
            }
        }
    }
}

impl Traffic {
    fn mean_gap(&self, rate: Rate) -> f64 {
        // Picoseconds.
        self.sizes.mean() * 8e12 / (rate.as_bps() as f64 * self.load)
    }

    fn expected(&self) -> f64 {
        let span = (self.until - self.start).0 as f64;
        self.hosts
            .iter()
            .map(|(_, rate)| span / self.mean_gap(*rate))
            .sum()
    }

    /// A Poisson process per host, receivers uniform among the others: as the HPCC simulator's `traffic_gen.py`.
    fn draw(&self, seed: u64, part: u64, flows: &mut Vec<Flow>) {
        for (n, (from, rate)) in self.hosts.iter().enumerate() {
            // A host's arrivals do not depend on how many others there are.
            let mut rng = stream(seed ^ (n as u64 + 1) << 24, part);
            let gap = self.mean_gap(*rate);
            let mut at = self.start.0 as f64;
            loop {
                at += exponential(&mut rng, gap);
                if at >= self.until.0 as f64 || flows.len() >= MOST_FLOWS {
                    break;
                }
                let other = rng.below(self.hosts.len() as u64 - 1) as usize;
                let (to, _) = self.hosts[if other < n { other } else { other + 1 }];
                flows.push(Flow {
                    from: *from,
                    nic: PortId(0),
                    to,
                    to_nic: PortId(0),
                    bytes: Some(self.sizes.draw(&mut rng)),
                    start: Picos(at as u64),
                    class: self.class,
                });
            }
        }
    }
}
