//! The AF_XDP backend of the transport's loop: frames of one queue, and frames that another
//! worker's queue received for a QP of ours.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use rocexdp_common::maps::QueueEngine;
use rocexdp_proto::{
    drive::FrameIo,
    wire::{Frags, Origin, RxMeta, dest_qpn},
};

use super::{signals::worker_of, tap::Tap};
use crate::xsk::Xsk;

/// Frames that may wait for another worker; more are dropped, counted, and sent again by the peer.
const HANDOVER_DEPTH: usize = 1024;

/// Frames on their way to one worker, and the empty buffers that come back.
#[derive(Debug)]
pub struct Handover {
    frames: ArrayQueue<Vec<u8>>,
    spare: ArrayQueue<Vec<u8>>,
}

impl Handover {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            frames: ArrayQueue::new(HANDOVER_DEPTH),
            spare: ArrayQueue::new(HANDOVER_DEPTH),
        }
    }

    /// Copies a frame over; `false` when too many wait.
    fn give(&self, frame: Frags<'_>) -> bool {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        for piece in frame {
            copy.extend_from_slice(piece);
        }
        self.frames.push(copy).is_ok()
    }
}

/// Who else there is.
#[derive(Debug)]
pub struct Neighbours {
    /// One per worker, ours included.
    pub inboxes: Arc<[Handover]>,
    /// Wakes worker `n`.
    pub wake: Arc<dyn WakeWorker>,
    /// QP slots - 1.
    pub slot_mask: u32,
}

/// Wakes a worker by its number.
pub trait WakeWorker: Send + Sync + std::fmt::Debug {
    /// Wakes worker `n`.
    fn wake(&self, n: usize);
}

/// Counts that the socket does not keep.
#[derive(Clone, Copy, Debug, Default)]
pub struct IoCounters {
    /// Frames given to another worker.
    pub handed_away: u64,
    /// Frames got from another worker.
    pub handed_over: u64,
    /// Frames dropped because the other worker did not keep up.
    pub handover_full: u64,
    /// Times there was no room to send.
    pub backpressure: u64,
}

/// One worker's frames.
pub struct XskIo {
    xsk: Xsk,
    queue: u32,
    max_frame: usize,
    neighbours: Neighbours,
    counters: IoCounters,
    tap: Tap,
    error: Option<std::io::Error>,
    /// The error that stands: told once, until a flush succeeds or fails otherwise.
    standing: Option<std::io::ErrorKind>,
}

impl XskIo {
    /// Frames of `queue`; none sent is larger than `max_frame` bytes.
    pub fn new(xsk: Xsk, queue: u32, max_frame: usize, neighbours: Neighbours, tap: Tap) -> Self {
        Self {
            xsk,
            queue,
            max_frame,
            neighbours,
            counters: IoCounters::default(),
            tap,
            error: None,
            standing: None,
        }
    }

    /// The socket.
    pub fn xsk(&self) -> &Xsk {
        &self.xsk
    }

    /// Packets put on the TX ring that the kernel has not taken yet.
    pub fn unsent(&mut self) -> usize {
        self.xsk.unsent()
    }

    /// Whether frames from other workers wait.
    pub fn has_handed_over(&self) -> bool {
        self.inbox().is_some_and(|i| !i.frames.is_empty())
    }

    /// The last error of the device (down, gone), once.
    pub fn take_error(&mut self) -> Option<std::io::Error> {
        self.error.take()
    }

    /// Whether the device takes nothing at present: it is down or gone.
    pub fn is_down(&self) -> bool {
        self.standing.is_some()
    }

    fn inbox(&self) -> Option<&Handover> {
        self.neighbours.inboxes.get(self.queue as usize)
    }

    /// Adds what this queue counted; the kernel's statistics cost a system call.
    pub fn fill(&self, out: &mut QueueEngine) {
        let ours = self.xsk.counters();
        out.rx_packets = ours.rx_packets;
        out.rx_bytes = ours.rx_bytes;
        out.tx_packets = ours.tx_packets;
        out.tx_bytes = ours.tx_bytes;
        out.tx_completed = ours.tx_completed_descs;
        out.tx_backpressure = self.counters.backpressure;
        out.tx_device_drops = ours.tx_device_drops;
        out.xsk_rx_bad_desc = ours.rx_bad_descriptor + ours.rx_too_many_frags;
        out.rx_handed_over = self.counters.handed_over;
        out.rx_handed_away = self.counters.handed_away;
        out.rx_handover_full = self.counters.handover_full;
        if let Ok(kernel) = self.xsk.statistics() {
            out.xsk_rx_dropped = kernel.rx_dropped;
            out.xsk_rx_ring_full = kernel.rx_ring_full.unwrap_or(0);
            out.xsk_rx_fill_ring_empty = kernel.rx_fill_ring_empty_descs.unwrap_or(0);
            out.xsk_rx_invalid = kernel.rx_invalid_descs;
            out.xsk_tx_invalid = kernel.tx_invalid_descs;
            out.xsk_tx_ring_empty = kernel.tx_ring_empty_descs.unwrap_or(0);
        }
    }
}

impl FrameIo for XskIo {
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&RxMeta, Frags<'_>)) -> usize {
        let meta = RxMeta {
            queue: self.queue,
            origin: Origin::Wire,
        };
        let workers = self.neighbours.inboxes.len();
        if workers <= 1 {
            return self.xsk.receive(budget, |frame| sink(&meta, frame));
        }
        let Self {
            xsk,
            neighbours,
            counters,
            queue,
            ..
        } = self;
        let mut received = xsk.receive(budget, |frame| {
            let owner = dest_qpn(frame).map_or(*queue, |q| {
                worker_of(q.get() & neighbours.slot_mask, workers as u32)
            });
            if owner == *queue {
                sink(&meta, frame);
                return;
            }
            match neighbours.inboxes.get(owner as usize) {
                Some(inbox) if inbox.give(frame) => {
                    counters.handed_away += 1;
                    neighbours.wake.wake(owner as usize);
                }
                _ => counters.handover_full += 1,
            }
        });
        if let Some(inbox) = neighbours.inboxes.get(*queue as usize) {
            for _ in 0..budget {
                let Some(frame) = inbox.frames.pop() else {
                    break;
                };
                sink(&meta, &[&frame]);
                counters.handed_over += 1;
                received += 1;
                let _ = inbox.spare.push(frame);
            }
        }
        received
    }

    fn tx_room(&mut self) -> bool {
        let room = self.xsk.tx_room(self.max_frame) > 0;
        self.counters.backpressure += u64::from(!room);
        room
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]])) {
        let Self { xsk, tap, .. } = self;
        let sent = xsk.transmit(len, |pieces| {
            fill(pieces);
            if tap.is_on() {
                tap.record(pieces, len);
            }
        });
        if let Err(e) = sent {
            // `tx_room` was asked first, so this is a frame larger than `max_frame`.
            self.error = Some(std::io::Error::other(format!("queue {}: {e}", self.queue)));
        }
    }

    fn flush(&mut self) {
        match self.xsk.flush() {
            Ok(()) => self.standing = None,
            Err(e) => {
                let kind = e.kind();
                if self.standing != Some(kind) {
                    self.error = Some(e);
                }
                self.standing = Some(kind);
            }
        }
    }
}
