//! The monitor's maps in plain memory: the oracle.

use std::collections::HashMap;

use rocexdp_common::{
    dissect::Way,
    maps::{Event, FlowKey, FlowState, LinkControl, Pending, PendingKey, QueueCounters},
    news::News,
    parse::Packet,
    verdict::Outcome,
    watch::{self, Notes, WatchEnv},
};

/// Receive queues that the programs are told of.
pub const QUEUES: u32 = 2;
/// CPUs.
pub const CPUS: u32 = 64;
/// Picoseconds of a pause quantum: 512 bit times at 10 Gb/s.
pub const QUANTUM_PS: u32 = 51_200;

/// All maps, as one hook sees them.
#[derive(Default)]
pub struct Model {
    pub egress: bool,
    pub now: u64,
    pub counters: QueueCounters,
    pub flows: Vec<(FlowKey, FlowState)>,
    pub link: LinkControl,
    pub pending: HashMap<[u8; 40], Pending>,
    pub events: Vec<Event>,
    /// Header bytes of what the tap was offered.
    pub tapped: Vec<Option<u32>>,
}

fn bytes(key: &PendingKey) -> [u8; 40] {
    bytemuck::cast(*key)
}

impl Model {
    /// Runs one frame and books it.
    pub fn run(&mut self, frame: &[u8]) -> Outcome {
        self.now += 1_000_000;
        let (mut packet, mut way) = (Packet::EMPTY, Way::NEW);
        let found = watch::find(frame, &mut packet, &mut way)
            .or_else(|| watch::find(frame, &mut packet, &mut way))
            .expect("two steps find it");
        let outcome = watch::count(frame, found, &packet, &mut Notes::default(), self);
        self.counters.book(outcome);
        outcome
    }
}

impl WatchEnv for Model {
    fn egress(&self) -> bool {
        self.egress
    }

    fn now_ns(&self, _exact: bool) -> u64 {
        self.now
    }

    fn quantum_ps(&self) -> u32 {
        QUANTUM_PS
    }

    fn flow(&mut self, key: &FlowKey) -> Option<(&mut FlowState, bool)> {
        let known = self.flows.iter().position(|(k, _)| k == key);
        let at = known.unwrap_or(self.flows.len());
        if known.is_none() {
            self.flows.push((*key, FlowState::ZERO));
        }
        Some((&mut self.flows[at].1, known.is_none()))
    }

    fn flow_inserted(&mut self) {
        self.counters.flow_inserts += 1;
    }

    fn with_link(&mut self, work: impl FnOnce(&mut LinkControl)) {
        work(&mut self.link);
    }

    fn pending(&mut self, key: &PendingKey) -> Option<Pending> {
        self.pending.get(&bytes(key)).copied()
    }

    fn set_pending(&mut self, key: &PendingKey, value: &Pending) {
        self.pending.insert(bytes(key), *value);
    }

    fn clear_pending(&mut self, key: &PendingKey) {
        self.pending.remove(&bytes(key));
    }

    fn event(&mut self, news: News, packet: &Packet) {
        if self.counters.events.allow(self.now) {
            self.events.push(news.record(packet, 0, self.now));
            self.counters.events.sent += 1;
        }
    }

    fn tap(&mut self, headers: Option<u32>) {
        self.tapped.push(headers);
    }
}
