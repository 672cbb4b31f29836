//! Selective repeat at the sender: which transmission of which packet is on the way, which has arrived, which is lost.
//!
//! Each transmission has a serial number of its path, so one that was sent again differs from the first. A transmission is
//! lost as soon as one that left enough later on the same path has arrived and it has not: so a lost retransmission is found like
//! any other loss, by what was sent after it, and no reordering between paths looks like one. Enough is, whichever is reached
//! first, more packets later than the path has shown to overtake ([`TxPath::tolerance`]), or more time later (RACK's rule, RFC
//! 8985, 6.2; [`TxPath::reordering`]): what leaves seldom, as READ requests do, has few behind it. Where what was sent later is
//! too close, a transmission is lost once its own round trip has passed, and that time besides (RACK's timer).
//!
//! Silence is news only where an answer is due: a path's packet asks for one also where half a round trip has passed since the
//! last that did ([`Sender::asks`]), so that a QP that is paced slowly, as a congested one is, hears within the time of a probe.
//!
//! What nothing was sent after (the tail) is found by a probe: after about two round trips of silence on a path, its oldest
//! packet goes again; after twice that, everything on it. (Of requests: the requester also asks again for the answers that it
//! misses, which is how the tail of those is found.)
//!
//! Must not: know requests, or what packets hold.

mod path;

use core::time::Duration;
use std::collections::VecDeque;

use rocexdp_common::headers::{SACK_BITS, Sack};

use super::{Places, Unused};
use crate::qp::MAX_PATHS;
use crate::time::Timestamp;
use path::{Sent, TxPath};

/// Packets between the oldest not acknowledged and the newest one sent, at most: what the receiver tracks.
pub(crate) const SPAN: u32 = 8192;
/// Of a packet whose transmissions mean nothing any more.
const NO_PATH: u8 = u8::MAX;
/// Transmissions, and packets found lost, that there is room for from the start.
const ROOM: usize = 256;
/// A path is probed after this silence at the earliest: batches at the receiver are no loss.
const PROBE_MIN: Duration = Duration::from_micros(20);
/// Doublings of the time between probes, at most.
const BACKOFF_MAX: u32 = 12;

/// State of a packet, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// Not sent, or acknowledged.
    #[default]
    Idle,
    /// On the way.
    InFlight,
    /// At the peer, which waits for one before it.
    Arrived,
    /// To be sent again.
    Lost,
}

/// A packet: its state, and which transmission of it was the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Slot {
    serial: u32,
    path: u8,
    state: State,
    /// It was refused, or its response was lost: that it arrives is no news.
    again: bool,
}

impl Unused for Slot {
    fn is_unused(&self) -> bool {
        *self == Self::default()
    }
}

/// What an acknowledgement brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct News {
    /// A packet beyond the cumulative PSN has arrived.
    pub(crate) arrived: bool,
    /// Packets found lost.
    pub(crate) lost: u32,
    /// Packets that had been taken for lost have arrived.
    pub(crate) spurious: u32,
}

/// The sender's half of selective repeat.
#[derive(Debug)]
pub(crate) struct Sender {
    paths: Box<[TxPath]>,
    /// By packet number modulo [`SPAN`].
    slots: Places<Slot>,
    /// Packets found lost, in this order; some may have arrived since.
    lost: VecDeque<u64>,
    in_flight: u32,
    /// Path that is looked at first for the next packet.
    turn: usize,
    /// Smoothed round trip and its deviation (RFC 6298).
    rtt: Option<(Duration, Duration)>,
    /// Packets before this one have been carried out by the peer.
    pub(crate) executed: u64,
    /// Since when the oldest packet waits for the peer, which has it, and how often it was asked for since.
    pub(crate) waits_since: Timestamp,
    pub(crate) asked_again: u32,
}

impl Sender {
    /// Nothing sent, over 1..=[`MAX_PATHS`] paths, each of which starts with serial `first`.
    pub(crate) fn new(paths: u8, first: u32) -> Self {
        // Room that is enough for what is on its way as a rule: beside the slots it is little.
        let path = |_| TxPath::new(first, ROOM);
        Self {
            paths: (0..paths.clamp(1, MAX_PATHS)).map(path).collect(),
            slots: Places(vec![Slot::default(); SPAN as usize].into()),
            lost: VecDeque::with_capacity(ROOM),
            in_flight: 0,
            turn: 0,
            rtt: None,
            executed: 0,
            waits_since: Timestamp::ZERO,
            asked_again: 0,
        }
    }

    /// Packets on the way: not known to have arrived, nor to be lost.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The packet that is to be sent again next.
    pub(crate) fn next_lost(&self) -> Option<u64> {
        self.lost.front().copied()
    }

    /// Lets go of lost packets that have arrived, or were sent again: the first one left is lost. Comes behind every change.
    fn trim_lost(&mut self, una: u64) {
        while let Some(&packet) = self.lost.front() {
            if packet >= una && self.slot_mut(packet).state == State::Lost {
                return;
            }
            self.lost.pop_front();
        }
    }

    /// A packet leaves, on this path and with this serial. It must lie within [`SPAN`] of the oldest one.
    pub(crate) fn sent(&mut self, packet: u64, now: Timestamp) -> (u8, u32) {
        let index = self.choose();
        let Some(path) = self.paths.get_mut(index) else {
            return (0, 0);
        };
        let serial = path.next;
        path.next = serial.wrapping_add(1);
        // Bounded, also if the peer never tells of this path. What is not tracked any more is found by a probe.
        if path.sent.len() >= SPAN as usize {
            path.settle(0);
            path.sent.pop_front();
        }
        path.sent.push_back(Sent {
            packet: Some(packet),
            at: now,
        });
        if path.open == 0 {
            path.since = now;
        }
        path.open += 1;
        let slot = self.slot_mut(packet);
        let before = core::mem::replace(&mut slot.state, State::InFlight);
        (slot.serial, slot.path) = (serial, index as u8);
        if before != State::InFlight {
            self.in_flight += 1;
        }
        // Whatever lies before it is no matter here: it is not acknowledged.
        self.trim_lost(0);
        (index as u8, serial)
    }

    /// The path with the least on the way, silent ones last; in turn where that is the same.
    fn choose(&mut self) -> usize {
        let n = self.paths.len();
        let mut best = None;
        for i in (self.turn..n).chain(0..self.turn) {
            let Some(path) = self.paths.get(i) else {
                continue;
            };
            let load = (path.probes, path.open);
            if best.is_none_or(|(_, least)| load < least) {
                best = Some((i, load));
            }
        }
        let chosen = best.map_or(0, |(i, _)| i);
        self.turn = if chosen + 1 < n { chosen + 1 } else { 0 };
        chosen
    }

    /// Packets `from..to` are acknowledged for good.
    pub(crate) fn acknowledged(&mut self, from: u64, to: u64) {
        // A READ of many packets has numbers beyond the span; its slots are passed once.
        for packet in from..to.min(from + u64::from(SPAN)) {
            let slot = slot_of(&mut self.slots, packet);
            slot.again = false;
            if core::mem::take(&mut slot.state) == State::InFlight {
                self.in_flight -= 1;
                if let Some(path) = self.paths.get_mut(usize::from(slot.path)) {
                    path.settle_serial(slot.serial, packet);
                }
            }
        }
        self.paths.iter_mut().for_each(TxPath::trim);
        self.trim_lost(to);
    }

    /// A selective acknowledgement, behind [`Sender::acknowledged`] of its cumulative part. `None`: it tells of what was never
    /// sent, and nothing has changed.
    pub(crate) fn sack(&mut self, sack: &Sack, una: u64, now: Timestamp) -> Option<News> {
        let path = self.paths.get_mut(usize::from(sack.path))?;
        // Serials from the highest one on, itself included.
        let behind = path.next.wrapping_sub(sack.highest);
        if behind == 0 || behind > 1 << 31 {
            return None;
        }
        let mut news = News::default();
        let count = path.sent.len() as u32;
        let first = path.next.wrapping_sub(count);
        let reached = (count + 1).saturating_sub(behind);

        let rtt = self.rtt;
        if let Some(latest) = reached.checked_sub(1)
            && let Some(sent) = path.sent.get(latest as usize)
        {
            path.newest = path.newest.max(sent.at);
        }
        for i in (0..path.gone.len()).rev() {
            let Some(&(serial, packet, at)) = path.gone.get(i) else {
                continue;
            };
            let overtaken = sack.highest.wrapping_sub(serial);
            if sack.has(serial) {
                path.gone.remove(i);
                path.turned_up(overtaken, at);
                news.spurious += 1;
                if packet >= una {
                    let slot = slot_of(&mut self.slots, packet);
                    match core::mem::replace(&mut slot.state, State::Arrived) {
                        State::InFlight => self.in_flight -= 1,
                        State::Idle => slot.state = State::Idle,
                        State::Arrived | State::Lost => {}
                    }
                    news.arrived |= !slot.again;
                }
            } else if overtaken > SACK_BITS && overtaken < 1 << 31 {
                path.gone.remove(i);
            }
        }

        for i in 0..reached {
            let Some(sent) = path.sent.get(i as usize).copied() else {
                break;
            };
            let Some(packet) = sent.packet else { continue };
            let serial = first.wrapping_add(i);
            let has = sack.has(serial);
            if serial == sack.highest {
                smooth(&mut self.rtt, now.saturating_since(sent.at));
            }
            let slot = slot_of(&mut self.slots, packet);
            let last = slot.serial == serial && slot.path == sack.path;
            if packet < una || slot.state == State::Idle {
                path.settle(i as usize);
            } else if has {
                match core::mem::replace(&mut slot.state, State::Arrived) {
                    State::InFlight => self.in_flight -= 1,
                    State::Lost => news.spurious += 1,
                    State::Idle | State::Arrived => {}
                }
                news.arrived |= !slot.again;
                path.settle(i as usize);
            } else if sack.highest.wrapping_sub(serial) > path.tolerance
                || sent.at.saturating_add(path.window(rtt)) < path.newest
            {
                // Sent again meanwhile, or known already: nothing more is asked of this transmission.
                if last && slot.state == State::InFlight {
                    slot.state = State::Lost;
                    self.in_flight -= 1;
                    self.lost.push_back(packet);
                    news.lost += 1;
                    path.lost(serial, packet, sent.at);
                }
                path.settle(i as usize);
            }
        }
        if reached > 0 || news.spurious > 0 {
            path.since = now;
            path.probes = 0;
        }
        path.trim();
        self.trim_lost(una);
        Some(news)
    }

    /// The packet goes again, whatever was known of it: the peer refused it, or its response was lost. What is heard of its
    /// earlier transmissions from now on means nothing.
    pub(crate) fn again(&mut self, packet: u64) {
        for path in &mut self.paths {
            for i in 0..path.sent.len() {
                if path.sent.get(i).is_some_and(|s| s.packet == Some(packet)) {
                    path.settle(i);
                }
            }
            path.trim();
            path.gone.retain(|(_, gone, _)| *gone != packet);
        }
        let slot = self.slot_mut(packet);
        (slot.again, slot.path) = (true, NO_PATH);
        match core::mem::replace(&mut slot.state, State::Lost) {
            State::InFlight => self.in_flight -= 1,
            State::Lost => return,
            State::Arrived | State::Idle => {}
        }
        self.lost.push_back(packet);
    }

    /// The packet's own answer has come, so it has arrived, whatever the peer says of transmissions.
    pub(crate) fn answered(&mut self, packet: u64, now: Timestamp) {
        let slot = slot_of(&mut self.slots, packet);
        if slot.state != State::InFlight {
            return;
        }
        slot.state = State::Arrived;
        self.in_flight -= 1;
        let Some(path) = self.paths.get_mut(usize::from(slot.path)) else {
            return;
        };
        // Of one that was sent again it could not be told which is answered (Karn's rule).
        if let Some(sent) = path.settle_serial(slot.serial, packet)
            && !slot.again
        {
            path.newest = path.newest.max(sent.at);
            smooth(&mut self.rtt, now.saturating_since(sent.at));
        }
        path.trim();
        (path.since, path.probes) = (now, 0);
    }

    /// The packet goes again if it is on the way: what is heard of it in the meantime still counts.
    pub(crate) fn suspect(&mut self, packet: u64) {
        let slot = self.slot_mut(packet);
        if slot.state == State::InFlight {
            slot.state = State::Lost;
            self.in_flight -= 1;
            self.lost.push_back(packet);
        }
    }

    /// The packet does not go again.
    pub(crate) fn forget(&mut self, packet: u64, una: u64) {
        let slot = self.slot_mut(packet);
        if core::mem::take(&mut slot.state) == State::InFlight {
            self.in_flight -= 1;
        }
        self.trim_lost(una);
    }

    fn slot(&self, packet: u64) -> Slot {
        let slot = self.slots.get((packet % u64::from(SPAN)) as usize);
        slot.copied().unwrap_or_default()
    }

    /// Whether the peer has the packet, as it was sent last, and has not acknowledged it for good.
    pub(crate) fn has_arrived(&self, packet: u64) -> bool {
        self.slot(packet).state == State::Arrived
    }

    /// Whether the packet is on the way, or is going to be.
    pub(crate) fn is_under_way(&self, packet: u64) -> bool {
        matches!(self.slot(packet).state, State::InFlight | State::Lost)
    }

    /// Whether the transmission with these low bits of its serial is the last one of the packet, and it was not said already
    /// that this means nothing.
    pub(crate) fn is_latest(&self, packet: u64, path: u8, serial: u32) -> bool {
        let slot = self.slot(packet);
        slot.state != State::Idle && slot.path == path && slot.serial & 0xff_ffff == serial
    }

    /// Whether a packet that leaves on this path asks for an acknowledgement, if it does not for another reason.
    pub(crate) fn asks(&mut self, path: u8, now: Timestamp, asks: bool) -> bool {
        let rtt = self.rtt;
        let Some(path) = self.paths.get_mut(usize::from(path)) else {
            return asks;
        };
        let due = rtt.is_some_and(|(smoothed, _)| path.asked.saturating_add(smoothed / 2) <= now);
        if asks || due {
            path.asked = now;
        }
        asks || due
    }

    /// How long an answer may take before it is overdue; `None`: nothing is known of the way yet.
    pub(crate) fn patience(&self, tries: u32) -> Option<Duration> {
        Some(self.silence()? * (1 << tries.min(BACKOFF_MAX)))
    }

    /// Nothing was heard for the whole of the fixed timeout: all that is on the way, and the oldest packet in any case, goes
    /// again, be it the rest of a READ.
    pub(crate) fn all_lost(&mut self, una: u64, next: u64) {
        self.lost.clear();
        for packet in una..next.min(una + u64::from(SPAN)) {
            let slot = self.slot_mut(packet);
            if packet == una || matches!(slot.state, State::InFlight | State::Lost) {
                slot.state = State::Lost;
                self.lost.push_back(packet);
            }
        }
        self.in_flight = 0;
        for path in &mut self.paths {
            path.sent.clear();
            path.open = 0;
        }
    }

    /// When [`Sender::probe`] is due.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        let silence = self.silence()?;
        self.paths
            .iter()
            .filter(|p| p.open > 0)
            .map(|p| {
                let probe = p.since.saturating_add(silence * (1 << p.probes));
                p.overdue(self.rtt).map_or(probe, |at| at.min(probe))
            })
            .min()
    }

    /// Nothing could leave for this long.
    pub(crate) fn put_off(&mut self, time: Duration) {
        self.waits_since = self.waits_since + time;
        for path in &mut self.paths {
            path.since = path.since + time;
        }
    }

    fn silence(&self) -> Option<Duration> {
        let (smoothed, deviation) = self.rtt?;
        Some((2 * smoothed + 4 * deviation).max(PROBE_MIN))
    }

    /// The time of [`Sender::deadline`] may have come. True: packets are to be sent again.
    pub(crate) fn probe(&mut self, una: u64, now: Timestamp) -> bool {
        let Some(silence) = self.silence() else {
            return false;
        };
        let mut any = self.expire(una, now);
        for (index, path) in self.paths.iter_mut().enumerate() {
            if path.open == 0 || path.since.saturating_add(silence * (1 << path.probes)) > now {
                continue;
            }
            let first = path.next.wrapping_sub(path.sent.len() as u32);
            let all = path.probes > 0;
            let mut found = false;
            let mut since = now;
            for i in 0..path.sent.len() {
                let Some(packet) = path.sent.get(i).and_then(|s| s.packet) else {
                    continue;
                };
                let serial = first.wrapping_add(i as u32);
                let slot = slot_of(&mut self.slots, packet);
                let last = slot.serial == serial && usize::from(slot.path) == index;
                if packet >= una && last && slot.state == State::InFlight {
                    if found && !all {
                        break;
                    }
                    // Silent only since it was sent: what kept the path from being idle before is settled.
                    let at = path.sent.get(i).map_or(now, |s| s.at);
                    if !found && at.saturating_add(silence * (1 << path.probes)) > now {
                        since = at;
                        break;
                    }
                    found = true;
                    slot.state = State::Lost;
                    self.in_flight -= 1;
                    self.lost.push_back(packet);
                    // It is no loss yet: the record stays, for the answer that may still come.
                } else if packet < una
                    || !matches!(slot.state, State::InFlight | State::Lost)
                    || !last
                {
                    path.settle(i);
                }
            }
            path.trim();
            path.since = since;
            if found {
                path.probes = (path.probes + 1).min(BACKOFF_MAX);
                any = true;
            }
            if all && since == now {
                path.sent.clear();
                path.open = 0;
            }
        }
        any
    }

    /// What was overtaken by little is lost when its time has passed. True: something is.
    fn expire(&mut self, una: u64, now: Timestamp) -> bool {
        let mut any = false;
        for (index, path) in self.paths.iter_mut().enumerate() {
            while path.overdue(self.rtt).is_some_and(|at| at <= now) {
                let serial = path.next.wrapping_sub(path.sent.len() as u32);
                let Some(&sent) = path.sent.front() else {
                    break;
                };
                path.settle(0);
                path.trim();
                let Some(packet) = sent.packet else { continue };
                let slot = slot_of(&mut self.slots, packet);
                let last = slot.serial == serial && usize::from(slot.path) == index;
                if packet >= una && last && slot.state == State::InFlight {
                    slot.state = State::Lost;
                    self.in_flight -= 1;
                    self.lost.push_back(packet);
                    path.lost(serial, packet, sent.at);
                    any = true;
                }
            }
        }
        any
    }

    fn slot_mut(&mut self, packet: u64) -> &mut Slot {
        slot_of(&mut self.slots, packet)
    }
}

#[allow(clippy::indexing_slicing)] // As many slots as the modulus.
fn slot_of(slots: &mut [Slot], packet: u64) -> &mut Slot {
    &mut slots[(packet % u64::from(SPAN)) as usize]
}

/// RFC 6298, 2.2 and 2.3.
fn smooth(rtt: &mut Option<(Duration, Duration)>, sample: Duration) {
    *rtt = Some(match *rtt {
        None => (sample, sample / 2),
        Some((smoothed, deviation)) => (
            (7 * smoothed + sample) / 8,
            (3 * deviation + smoothed.abs_diff(sample)) / 4,
        ),
    });
}

#[cfg(test)]
mod tests;
