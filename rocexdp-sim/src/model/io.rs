//! What an endpoint of the model is driven through: its frames, and its completion queues.
//!
//! Frames are given to the endpoint one at a time, so that the oracle knows whose packet touches memory. Must not: judge.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rocexdp_common::headers::Syndrome;
use rocexdp_proto::drive::FrameIo;
use rocexdp_proto::ids::{CqNum, Psn, Qpn};
use rocexdp_proto::verbs::CompletionQueue;
use rocexdp_proto::wire::{Frags, Head, Packet, RxMeta};

use super::program::Setup;
use super::state::State;
use super::unreliable::Came;

/// A QP's number.
#[must_use]
pub fn qpn(pair: usize, end: usize) -> Qpn {
    Qpn::new(0x80_0100 | (pair as u32) << 1 | end as u32)
}

/// The pair that a QP's number belongs to, at an end.
pub(super) fn pair_of(n: Qpn, end: usize) -> Option<usize> {
    let pair = (n.get() as usize >> 1) & 0x7f;
    (qpn(pair, end) == n).then_some(pair)
}

/// The frames of one end.
pub(super) struct Io {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) end: usize,
    pub(super) received: VecDeque<Vec<u8>>,
    pub(super) sent: VecDeque<Vec<u8>>,
    /// RNR NAKs taken in: the pair, the PSN, the timer code.
    pub(super) not_ready: Vec<(usize, Psn, u8)>,
    pub(super) piece: usize,
    pub(super) gap: u64,
    pub(super) now: u64,
    pub(super) free_at: u64,
}

impl Io {
    /// Nothing received, nothing sent.
    pub(super) fn new(state: &Arc<Mutex<State>>, end: usize, setup: &Setup) -> Self {
        Self {
            state: Arc::clone(state),
            end,
            received: VecDeque::new(),
            sent: VecDeque::new(),
            not_ready: Vec::new(),
            piece: match setup.piece {
                0 => usize::MAX,
                n => n as usize,
            },
            gap: setup.gap,
            now: 0,
            free_at: 0,
        }
    }
}

impl FrameIo for Io {
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&RxMeta, Frags<'_>)) -> usize {
        for n in 0..budget {
            let Some(frame) = self.received.pop_front() else {
                return n;
            };
            let whole: [&[u8]; 1] = [&frame];
            let packet = Packet::parse(&Head::of(&whole), &whole).ok();
            let pairs = lock(&self.state).pairs.len();
            let pair = packet
                .and_then(|p| pair_of(p.bth.dest_qpn, self.end))
                .filter(|p| *p < pairs);
            {
                let mut state = lock(&self.state);
                state.receiving = pair.map(|p| (self.end, p));
                if let Some((p, pair)) = packet.zip(pair)
                    && !state.is_reliable(pair)
                    && p.icrc_is_right(&Head::of(&whole))
                {
                    let came = Came {
                        transport: p.bth.opcode.transport(),
                        psn: p.bth.psn,
                        deth: p.deth,
                        frame: &frame,
                        ipv6: state.setup.ipv6 != 0,
                    };
                    state.arrives(pair, self.end, &came);
                }
            }
            let pieces: Vec<&[u8]> = frame.chunks(self.piece.min(frame.len()).max(1)).collect();
            sink(&RxMeta::default(), &pieces);
            if let Some((p, pair)) = packet.zip(pair)
                && let Some(Syndrome::RnrNak(code)) = p.aeth.map(|a| a.syndrome)
                && p.icrc_is_right(&Head::of(&whole))
            {
                self.not_ready.push((pair, p.bth.psn, code));
            }
            let mut state = lock(&self.state);
            if let Some(pair) = pair {
                state.arrived(pair, self.end);
            }
            state.receiving = None;
        }
        budget
    }

    fn tx_room(&mut self) -> bool {
        self.free_at <= self.now
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]])) {
        let mut frame = vec![0xa5; len];
        let mut pieces: Vec<&mut [u8]> = frame.chunks_mut(self.piece.min(len).max(1)).collect();
        fill(&mut pieces);
        self.free_at = self.now + self.gap;
        {
            let mut state = lock(&self.state);
            if state.setup.uc | state.setup.ud != 0 {
                state.handed_out(self.end, &frame);
            }
        }
        self.sent.push_back(frame);
    }

    fn flush(&mut self) {}
}

pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A completion queue whose completions are judged when they are pushed, or, if it has a depth, when it is polled.
pub(super) fn watched_queue(
    state: &Arc<Mutex<State>>,
    end: usize,
    num: u32,
    depth: u64,
) -> Arc<CompletionQueue> {
    if depth > 0 {
        return Arc::new(CompletionQueue::numbered(depth as u32, CqNum(num)));
    }
    let cq = Arc::new(CompletionQueue::numbered(4096, CqNum(num)));
    let (state, queue) = (Arc::clone(state), Arc::downgrade(&cq));
    cq.set_waker(Box::new(move || {
        let Some(cq) = queue.upgrade() else { return };
        while let Some(cqe) = cq.poll() {
            lock(&state).completion(end, &cqe);
        }
    }));
    cq
}
