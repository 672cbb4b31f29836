//! The engine's numbers into the maps, where `rocexdp qp`, bpftool and tests read them; and the
//! repair of XDP's PSN trackers.
//!
//! XDP tracks PSNs before the ICRC is checked, so a corrupted PSN can derail a tracker. Whenever a
//! tracker disagrees with the transport although everything that XDP redirected has been received,
//! the transport's PSN is published for XDP to adopt. It takes two such looks with no packet between
//! them: with packets on their way a correct tracker is ahead of the transport.

use std::mem::offset_of;
use std::sync::{Arc, atomic::Ordering};

use rocexdp_common::maps::{ENGINE_DROP_SLOTS, MULTICAST_QPN, QpConfig, QpEngine, QueueEngine};
use rocexdp_proto::{Endpoint, PRIORITIES, QpState, ids::Qpn, time::nanos};

use super::{io::XskIo, local::Groups};
use crate::maps::Maps;

/// QPs published per call at most, so that many QPs do not stall the loop.
const BATCH: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Live {
    slot: u32,
    qpn: Qpn,
    /// Packets that XDP had given us, at the last look at which the tracker disagreed.
    suspect_at: Option<u64>,
}

/// Writes one worker's part of `QP_ENGINE` and `QUEUE_ENGINE`.
#[derive(Debug)]
pub struct Publisher {
    queue: u32,
    live: Vec<Live>,
    next: usize,
    groups: Arc<Groups>,
}

impl Publisher {
    /// For the worker of `queue`, with room for `slots` QPs.
    pub fn new(queue: u32, slots: u32, groups: Arc<Groups>) -> Self {
        Self {
            queue,
            live: Vec::with_capacity(slots as usize),
            next: 0,
            groups,
        }
    }

    /// A QP is there.
    pub fn add(&mut self, slot: u32, qpn: Qpn) {
        self.live.push(Live {
            slot,
            qpn,
            suspect_at: None,
        });
    }

    /// A QP has gone.
    pub fn remove(&mut self, slot: u32) {
        self.live.retain(|l| l.slot != slot);
    }

    /// The QPs that are there.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.live.iter().map(|l| l.qpn)
    }

    /// Publishes the queue and up to 256 QPs, going round.
    pub fn publish(&mut self, maps: &Maps, endpoint: &Endpoint, io: &XskIo) {
        let drained = self.publish_queue(maps, endpoint, io);
        for _ in 0..self.live.len().min(BATCH) {
            if self.next >= self.live.len() {
                self.next = 0;
            }
            let Some(live) = self.live.get_mut(self.next) else {
                break;
            };
            self.next += 1;
            let mut out = QpEngine::default();
            if endpoint.fill(live.qpn, &mut out) {
                maps.qp_engine.store(live.slot, &out);
                resync(maps, live, &out, drained);
            }
        }
    }

    /// Whether all packets that XDP had redirected by now have been received, or lost and counted.
    fn publish_queue(&self, maps: &Maps, endpoint: &Endpoint, io: &XskIo) -> bool {
        let mut out = QueueEngine::default();
        io.fill(&mut out);
        let counters = endpoint.counters();
        out.rx_accepted = counters.accepted;
        out.rx_icrc_errors = counters.icrc_errors;
        let now = super::now();
        for priority in 0..PRIORITIES as u8 {
            let state = endpoint.pause_state(now, priority);
            out.pauses_honoured += state.pauses;
            out.paused_ns += nanos(state.paused);
        }
        for (to, from) in out
            .drops
            .iter_mut()
            .zip(counters.drops.iter())
            .take(ENGINE_DROP_SLOTS)
        {
            *to = *from;
        }
        maps.queue_engine.store(self.queue, &out);
        // The multicast QPN's own books: XDP counts groups' packets for it, whichever QPs they then go to.
        let groups = [counters.group_accepted, counters.group_dropped];
        self.groups
            .publish(self.queue, groups, |[rx_accepted, rx_dropped]| {
                let books = QpEngine {
                    state: QpState::Rts as u32,
                    rx_accepted,
                    rx_dropped,
                    ..QpEngine::default()
                };
                maps.qp_engine
                    .store(MULTICAST_QPN & (maps.slots - 1), &books);
            });
        let ends = |q| {
            Some((
                maps.queue_counters.load(q)?.redirected,
                maps.queue_engine.load(q)?,
            ))
        };
        (0..maps.queues)
            .filter_map(ends)
            .all(|(redirected, engine)| {
                let lost = engine.xsk_rx_dropped + engine.xsk_rx_ring_full + engine.xsk_rx_bad_desc;
                redirected == engine.rx_packets + lost
            })
    }
}

fn resync(maps: &Maps, live: &mut Live, engine: &QpEngine, drained: bool) {
    let Some(counters) = maps.counters(live.slot) else {
        return;
    };
    let tracker = counters.requests;
    if tracker.valid == 0 || tracker.expected_psn == engine.expected_psn || !drained {
        live.suspect_at = None;
        return;
    }
    if live.suspect_at != Some(counters.redirected) {
        live.suspect_at = Some(counters.redirected);
        return;
    }
    live.suspect_at = None;
    let field = |offset| maps.qp_config.u32_at(live.slot, offset);
    if let (Some(psn), Some(resync)) = (
        field(offset_of!(QpConfig, resync_request_psn)),
        field(offset_of!(QpConfig, resync)),
    ) {
        psn.store(engine.expected_psn, Ordering::Relaxed);
        resync.store(
            resync.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Release,
        );
    }
}
