//! The AF_XDP backend of the transport's loop: frames of one queue, and those that other workers have for QPs of ours.

use rocexdp_common::maps::QueueEngine;
use rocexdp_proto::{
    drive::FrameIo,
    wire::{Frags, Origin, RxMeta},
};

use super::{
    local::{Inbox, LocalCounters, Neighbours},
    tap::Tap,
};
use crate::xsk::Xsk;

/// One worker's frames.
pub struct XskIo {
    xsk: Xsk,
    queue: u32,
    max_frame: usize,
    neighbours: Neighbours,
    local: LocalCounters,
    /// Frames got from other workers.
    handed_over: u64,
    /// Frames got from QPs of this host.
    looped: u64,
    /// Times there was no room to send.
    backpressure: u64,
    /// Pause frames sent.
    pfc_sent: u64,
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
            local: LocalCounters::default(),
            handed_over: 0,
            looped: 0,
            backpressure: 0,
            pfc_sent: 0,
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

    /// Descriptors that wait on the RX ring, and its entries.
    pub fn rx_fill(&mut self) -> (u32, u32) {
        self.xsk.rx_fill()
    }

    /// Sends a pause frame, before anything else that is not on the TX ring yet. Without room it is tried again when asked again.
    pub fn send_pause(&mut self, frame: &[u8; super::pause::FRAME]) {
        let sent = self.xsk.transmit(frame.len(), |pieces| {
            if let Some(piece) = pieces.first_mut() {
                piece.copy_from_slice(frame);
            }
        });
        match sent {
            Ok(()) => self.pfc_sent += 1,
            Err(_) => self.backpressure += 1,
        }
    }

    /// Whether frames from other workers wait.
    pub fn has_handed_over(&self) -> bool {
        self.inbox()
            .is_some_and(|i| !i.received.is_empty() || !i.looped.is_empty())
    }

    /// The last error of the device (down, gone), once.
    pub fn take_error(&mut self) -> Option<std::io::Error> {
        self.error.take()
    }

    /// Whether the device takes nothing at present: it is down or gone.
    pub fn is_down(&self) -> bool {
        self.standing.is_some()
    }

    fn inbox(&self) -> Option<&Inbox> {
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
        out.tx_backpressure = self.backpressure;
        out.tx_device_drops = ours.tx_device_drops;
        out.xsk_rx_bad_desc = ours.rx_bad_descriptor + ours.rx_too_many_frags;
        out.rx_handed_over = self.handed_over;
        out.rx_handed_away = self.local.handed_away;
        out.rx_handover_full = self.local.full;
        out.rx_copied = self.local.copied;
        out.rx_looped = self.looped;
        out.tx_looped = self.local.looped;
        out.pfc_sent = self.pfc_sent;
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
        let queue = self.queue;
        let Self {
            xsk,
            neighbours,
            local,
            handed_over,
            looped,
            ..
        } = self;
        let meta = |origin| RxMeta {
            queue,
            origin,
            ..RxMeta::default()
        };
        let workers = neighbours.inboxes.len();
        let mut received = xsk.receive(budget, |frame| {
            if workers <= 1 || neighbours.distribute(queue as usize, frame, local) {
                sink(&meta(Origin::Wire), frame);
            }
        });
        if let Some(inbox) = neighbours.inboxes.get(queue as usize) {
            for (waiting, count) in [(&inbox.received, handed_over), (&inbox.looped, looped)] {
                let taken = waiting.take(budget, |origin, frame| sink(&meta(origin), frame));
                *count += taken as u64;
                received += taken;
            }
        }
        received
    }

    fn tx_room(&mut self) -> bool {
        let room = self.xsk.tx_room(self.max_frame) > 0 && self.neighbours.has_loop_room();
        self.backpressure += u64::from(!room);
        room
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]])) {
        let Self {
            xsk,
            tap,
            neighbours,
            local,
            ..
        } = self;
        let sent = xsk.transmit_if(len, |pieces| {
            fill(pieces);
            if tap.is_on() {
                tap.record(pieces, len);
            }
            neighbours.loop_back(pieces, local)
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
