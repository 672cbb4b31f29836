//! What a worker sends, for `rocexdp record`: frames of AF_XDP sockets pass no program that could record them.
//!
//! Off, it costs a load and a branch a packet. Must not delay or drop a packet: what the recorder does not read in time is
//! overwritten, and the numbers tell it how much.

use std::{
    mem::offset_of,
    sync::{Arc, atomic::Ordering},
};

use rocexdp_common::watch::tap::{OFF, TX_TAP_DATA, TX_TAP_SLOTS, TapControl, TxTap};

use crate::{maps::Maps, sys::clock::monotonic_ns};

/// One worker's part of `TX_TAP`.
#[derive(Debug)]
pub struct Tap {
    maps: Arc<Maps>,
    queue: u32,
    /// Records so far.
    written: u64,
}

impl Tap {
    /// Of the worker of `queue`.
    pub fn new(maps: Arc<Maps>, queue: u32) -> Self {
        Self {
            maps,
            queue,
            written: 0,
        }
    }

    /// Whether somebody records.
    pub fn is_on(&self) -> bool {
        let mode = self
            .maps
            .tap_control
            .u32_at(0, offset_of!(TapControl, mode));
        mode.is_some_and(|mode| mode.load(Ordering::Relaxed) != OFF)
    }

    /// Records a frame of `len` bytes.
    pub fn record(&mut self, pieces: &[&mut [u8]], len: usize) {
        let mut out = TxTap {
            number: self.written + 1,
            time_ns: monotonic_ns(),
            wire_len: len as u32,
            captured: len.min(TX_TAP_DATA) as u32,
            reserved: [0; 2],
            data: [0; TX_TAP_DATA],
        };
        let bytes = pieces.iter().flat_map(|piece| piece.iter());
        for (to, from) in out.data.iter_mut().zip(bytes.take(len)) {
            *to = *from;
        }
        let slot = (self.written % u64::from(TX_TAP_SLOTS)) as u32;
        self.maps
            .tx_tap
            .store_numbered(self.queue * TX_TAP_SLOTS + slot, &out);
        self.written += 1;
    }
}
