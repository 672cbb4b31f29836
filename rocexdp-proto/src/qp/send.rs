//! The send side's state, which requester and completer share and which is all that either knows of the other.
//!
//! Packets are numbered from 0 without wrap; a PSN is made of that number when it goes out, and turned back into one when it
//! comes in, relative to the oldest packet that is not acknowledged. So a message of 2^23 packets needs no care at the wrap.
//!
//! Must not: build or read packets.

use core::time::Duration;
use std::collections::VecDeque;

use super::attr::{RtsAttr, ack_timeout};
use crate::ids::{PathMtu, Psn};
use crate::time::Timestamp;
use crate::verbs::SendWr;

/// A request that was taken from the send queue and has not completed.
#[derive(Debug)]
pub(crate) struct Wqe {
    pub(crate) wr: SendWr,
    /// Number of its first packet.
    pub(crate) first: u64,
    /// How many packets it has.
    pub(crate) packets: u32,
}

impl Wqe {
    /// Number of the first packet behind it.
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }
}

/// State of the send side.
#[derive(Debug)]
pub(crate) struct SendState {
    /// PSN of packet 0.
    start: Psn,
    /// Oldest packet not acknowledged.
    pub(crate) una: u64,
    /// Next packet to send: behind `una` by what is in flight, and back at `una` when sending again.
    pub(crate) next: u64,
    /// Behind the newest packet ever sent.
    pub(crate) high: u64,
    /// Behind the newest packet of all requests taken.
    pub(crate) tail: u64,
    /// Behind the newest packet sent with AckReq: up to there an answer is due.
    pub(crate) asked: u64,
    /// Requests taken, oldest first; the front one holds `una`.
    pub(crate) wqes: VecDeque<Wqe>,
    /// Which of them holds `next`; their number when `next` is at the tail.
    pub(crate) cursor: usize,
    /// When an answer is overdue.
    pub(crate) ack_deadline: Option<Timestamp>,
    /// A packet that asked for an answer, sent once and not answered, and when it left: one at a time is timed.
    pub(crate) timed: Option<(u64, Timestamp)>,
    /// No packet before this time: the peer was not ready.
    pub(crate) rnr_until: Option<Timestamp>,
    pub(crate) retry_left: u8,
    pub(crate) rnr_left: u8,
    /// Attributes.
    pub(crate) path_mtu: PathMtu,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) window: u64,
    pub(crate) ack_interval: u64,
}

impl SendState {
    pub(crate) fn new(depth: u32, window: u32, ack_interval: u32) -> Self {
        let window = u64::from(window.clamp(1, MAX_WINDOW));
        Self {
            start: Psn::new(0),
            una: 0,
            next: 0,
            high: 0,
            tail: 0,
            asked: 0,
            wqes: VecDeque::with_capacity(depth as usize),
            cursor: 0,
            ack_deadline: None,
            timed: None,
            rnr_until: None,
            retry_left: 0,
            rnr_left: 0,
            path_mtu: PathMtu::Mtu1024,
            timeout: None,
            retry_cnt: 0,
            rnr_retry: 0,
            window,
            ack_interval: u64::from(ack_interval.max(1)),
        }
    }

    /// Starts numbering, at RTS.
    pub(crate) fn start(&mut self, attr: &RtsAttr, path_mtu: PathMtu) {
        self.reset();
        self.start = attr.sq_psn;
        self.path_mtu = path_mtu;
        self.timeout = ack_timeout(attr.timeout);
        self.retry_cnt = attr.retry_cnt;
        self.rnr_retry = attr.rnr_retry;
        self.reload_retries();
    }

    /// Forgets all requests.
    pub(crate) fn reset(&mut self) {
        self.wqes.clear();
        (
            self.una,
            self.next,
            self.high,
            self.tail,
            self.asked,
            self.cursor,
        ) = (0, 0, 0, 0, 0, 0);
        self.ack_deadline = None;
        self.timed = None;
        self.rnr_until = None;
    }

    pub(crate) fn reload_retries(&mut self) {
        self.retry_left = self.retry_cnt;
        self.rnr_left = self.rnr_retry;
    }

    /// PSN of a packet.
    pub(crate) fn psn(&self, packet: u64) -> Psn {
        self.start.add((packet & 0xff_ffff) as u32)
    }

    /// The packet with this PSN that is nearest to the oldest one not acknowledged; `None` before packet 0.
    pub(crate) fn packet(&self, psn: Psn) -> Option<u64> {
        self.una
            .checked_add_signed(i64::from(psn.diff(self.psn(self.una))))
    }

    /// Everything before `packet` is acknowledged. True if that is news.
    pub(crate) fn acknowledge(&mut self, packet: u64) -> bool {
        if packet <= self.una {
            return false;
        }
        self.una = packet;
        // What was about to be sent again has arrived after all.
        if self.next < packet {
            self.next = packet;
            self.cursor = self
                .wqes
                .iter()
                .position(|w| packet < w.end())
                .unwrap_or(self.wqes.len());
        }
        true
    }

    /// Sends again from the oldest packet that is not acknowledged.
    pub(crate) fn go_back(&mut self) {
        self.next = self.una;
        self.cursor = 0;
        self.asked = self.una;
        self.ack_deadline = None;
        // Which of the two is answered could not be told (Karn's rule).
        self.timed = None;
    }

    /// How long the timed packet waited, if it is before `packet`, which is acknowledged now.
    pub(crate) fn take_round_trip(&mut self, packet: u64, now: Timestamp) -> Option<Duration> {
        let (_, since) = self.timed.take_if(|(timed, _)| *timed < packet)?;
        Some(now.saturating_since(since))
    }

    /// Removes the oldest request, which has completed.
    pub(crate) fn pop(&mut self) -> Option<Wqe> {
        let wqe = self.wqes.pop_front()?;
        self.cursor = self.cursor.saturating_sub(1);
        Some(wqe)
    }
}

/// Most packets in flight: PSNs must stay comparable (2^23), and this is far below.
pub(crate) const MAX_WINDOW: u32 = 1 << 16;
