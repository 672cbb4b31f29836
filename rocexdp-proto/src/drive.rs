//! The loop body, written once: receive, timers, transmit.
//!
//! Backends implement [`FrameIo`]: AF_XDP sockets, the simulator's hosts, an in-memory link. Local back-pressure delays and
//! never drops: a packet is asked for only when there is room for it. Must not: wait or read a clock.

use crate::endpoint::Endpoint;
use crate::mem::MemoryFault;
use crate::time::Timestamp;
use crate::wire::{Frags, RxMeta, Transmit};

/// Steps in a row that may put timers off because frames still wait to be received.
const MAX_DEFERRED: u32 = 16;

/// A way to receive and send frames.
pub trait FrameIo {
    /// Gives up to `budget` received frames to `sink`; how many there were.
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&RxMeta, Frags<'_>)) -> usize;

    /// Whether there is room for one frame of the largest size.
    fn tx_room(&mut self) -> bool;

    /// Sends a frame of `len` bytes, which `fill` writes into pieces whose lengths sum to `len`. Called only after
    /// [`FrameIo::tx_room`] said that there is room.
    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]]));

    /// Sends a packet, by [`FrameIo::transmit`]. A backend that keeps no payload takes [`Transmit::headers`] instead.
    ///
    /// # Errors
    /// [`MemoryFault`]: the payload could not be read.
    fn transmit_packet(&mut self, packet: &Transmit<'_>) -> Result<(), MemoryFault> {
        let mut written = Ok(());
        self.transmit(packet.len(), &mut |pieces| written = packet.write(pieces));
        written
    }

    /// Hands what was transmitted to the device.
    fn flush(&mut self);
}

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// Frames received.
    pub received: usize,
    /// Frames sent.
    pub transmitted: usize,
    /// Timers that were due: a QP may have changed though nothing was received or sent.
    pub timers: usize,
    /// There was more to send, perhaps, but no room.
    pub backpressure: bool,
}

/// One turn: up to `budget` frames in, what is due, up to `budget` frames out.
///
/// Timers run after the frames that have arrived, and, within bounds, only once all of those are in: an answer that waits in
/// the receive queue is no lost answer.
pub fn step<I: FrameIo>(ep: &mut Endpoint, now: Timestamp, io: &mut I, budget: usize) -> Step {
    let received = io.receive(budget, &mut |meta, frame| {
        // Counted inside, by reason.
        let _ = ep.handle_frame(now, meta, frame);
    });
    let mut step = Step {
        received,
        ..Step::default()
    };
    if received < budget || ep.deferred >= MAX_DEFERRED {
        ep.deferred = 0;
        step.timers = ep.handle_timeout(now);
    } else {
        ep.deferred += 1;
    }

    while step.transmitted < budget {
        if !io.tx_room() {
            step.backpressure = true;
            break;
        }
        let Some(packet) = ep.poll_transmit(now) else {
            break;
        };
        let qpn = packet.qpn();
        if io.transmit_packet(&packet).is_err() {
            ep.transmit_failed(now, qpn);
        }
        step.transmitted += 1;
    }
    io.flush();
    step
}
