//! The maps in plain memory: the oracle that the XDP program is compared with.

use rocexdp_common::{
    bytes::Bytes,
    ids::Gid,
    maps::{Event, FlowKey, FlowState, LinkControl, QpConfig, QpCounters, QueueCounters},
    news::News,
    parse::Packet,
    verdict::{self, Env, Outcome},
};

/// All maps, seen from one receive queue.
#[derive(Clone, Debug)]
pub struct Model {
    pub queue: u32,
    pub queues: u32,
    pub now: u64,
    /// `QP_CONFIG`; a power of two of them.
    pub configs: Vec<QpConfig>,
    /// `QP_COUNTERS`.
    pub counters: Vec<QpCounters>,
    /// `QUEUE_COUNTERS`, with the entry for other queues.
    pub queue_counters: Vec<QueueCounters>,
    pub flows: Vec<(FlowKey, FlowState)>,
    pub addresses: Vec<(Gid, u32)>,
    /// Entries of `XSKS` that hold a socket.
    pub sockets: Vec<u32>,
    /// `DIRTY`, byte by byte.
    pub dirty: Vec<u8>,
    /// `LINK_CONTROL`, with the entry for other queues.
    pub link_control: Vec<LinkControl>,
    pub quantum_ps: u32,
    /// What went into `EVENTS`.
    pub events: Vec<Event>,
    /// Header bytes of what the tap was offered.
    pub tapped: Vec<u32>,
}

impl Model {
    pub fn new(slots: usize, queues: usize) -> Self {
        Self {
            queue: 0,
            queues: queues as u32,
            now: 1,
            configs: vec![QpConfig::default(); slots],
            counters: vec![QpCounters::ZERO; slots * queues],
            queue_counters: vec![QueueCounters::default(); queues + 1],
            flows: vec![],
            addresses: vec![],
            sockets: vec![],
            dirty: vec![0; slots],
            link_control: vec![LinkControl::default(); queues + 1],
            quantum_ps: 0,
            events: vec![],
            tapped: vec![],
        }
    }

    /// Sets up a QP in its slot.
    pub fn add(&mut self, config: QpConfig) {
        let slot = config.qpn & self.slot_mask();
        self.configs[slot as usize] = config;
    }

    /// Runs one frame and books it.
    pub fn run<B: Bytes + ?Sized>(&mut self, frame: &B) -> Outcome {
        let outcome = verdict::run(frame, self);
        self.books().book(outcome);
        outcome
    }

    /// The queue's counters.
    pub fn books(&mut self) -> &mut QueueCounters {
        let entry = self.queue.min(self.queues);
        &mut self.queue_counters[entry as usize]
    }

    /// The counters of a slot on this queue.
    pub fn qp(&self, slot: u32) -> &QpCounters {
        &self.counters[(slot * self.queues + self.queue) as usize]
    }
}

impl Env for Model {
    fn queue(&self) -> u32 {
        self.queue
    }

    fn queues(&self) -> u32 {
        self.queues
    }

    fn slot_mask(&self) -> u32 {
        self.configs.len() as u32 - 1
    }

    fn now_ns(&self, _exact: bool) -> u64 {
        self.now
    }

    fn local_address(&self, gid: &Gid) -> u32 {
        self.addresses
            .iter()
            .find(|(g, _)| g == gid)
            .map_or(0, |(_, flags)| *flags)
    }

    fn with_config<R>(&self, slot: u32, read: impl FnOnce(&QpConfig) -> R) -> Option<R> {
        self.configs
            .get(slot as usize)
            .filter(|c| c.generation != 0)
            .map(read)
    }

    fn qp(&mut self, index: u32) -> Option<&mut QpCounters> {
        self.counters.get_mut(index as usize)
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
        self.books().flow_inserts += 1;
    }

    fn mark_dirty(&mut self, slot: u32) {
        self.dirty[slot as usize] = 1;
    }

    fn quantum_ps(&self) -> u32 {
        self.quantum_ps
    }

    fn link_control(&mut self) -> Option<&mut LinkControl> {
        let entry = self.queue.min(self.queues);
        self.link_control.get_mut(entry as usize)
    }

    fn event(&mut self, news: News, packet: &Packet) {
        let now = self.now;
        if self.books().events.allow(now) {
            self.books().events.sent += 1;
            self.events.push(news.record(packet, self.queue, now));
        }
    }

    fn tap(&mut self, headers: u32) {
        self.tapped.push(headers);
    }

    fn redirect(&mut self, index: u32) -> bool {
        self.sockets.contains(&index)
    }
}
