//! A host of the lab as its network sees it: what its NICs have to send and have received, and their MACs, which honour pauses.
//!
//! A veth has no rate and no MAC. So what a host hands its veth waits here until its link takes it, as in a NIC's transmit
//! queue, and stops here while its priority is paused. The host is told of the pause too, by a frame: what it does about that is
//! its own affair; or, where the lab has no such MAC ([`PausedBy::Host`]), all that stops it.
//!
//! Must not: read a clock or touch a socket.

use std::collections::VecDeque;

use rocexdp_sim::{
    net::Host,
    picos::Picos,
    switch::{PRIORITIES, Queued},
    topology::PortId,
};
use serde::{Deserialize, Serialize};

use super::frame::Frame;

/// Bytes that may wait for a NIC's link; more are dropped. As the ring of a large NIC: 8192 descriptors of 2 KiB.
const TRANSMIT_LIMIT: u64 = 16 << 20;
/// Frames that may wait for their host to take them.
const RECEIVE_LIMIT: usize = 4096;

/// What was counted at a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicCounters {
    /// Frames that its host gave it to send.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that it gave its host.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that found too much waiting for the link.
    pub tx_full: u64,
    /// Frames that found too much waiting for the host.
    pub rx_full: u64,
    /// Frames for an address that is not in the lab.
    pub unknown_destination: u64,
    /// Frames for all hosts.
    pub flooded: u64,
    /// Pauses from the switch.
    pub pauses_received: u64,
    /// PFC frames given to the host for those and for their ends: its kernel counts them as dropped on receive, unless an XDP
    /// program keeps them.
    pub pause_frames_told: u64,
    /// PFC frames from the host.
    pub pauses_sent: u64,
    /// Bytes that wait for the link now.
    pub waiting: u64,
    /// The most that waited.
    pub waiting_max: u64,
}

/// Who stops sending when a switch pauses a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PausedBy {
    /// The lab's MAC, whatever the host does: what the host sends waits there
    #[default]
    Mac,
    /// The host alone, by the pause frames that it gets: rocexdp does, the kernel does not
    Host,
}

/// A pause that a NIC's host has to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseNews {
    pub priority: u8,
    /// For how long; [`Picos::MAX`]: until told otherwise; 0: no longer.
    pub span: Picos,
}

/// A NIC.
#[derive(Debug, Default)]
pub struct Nic {
    /// Frames by priority, with their numbers, by which they leave.
    waiting: [VecDeque<(u64, Frame)>; PRIORITIES],
    number: u64,
    /// [`Picos::ZERO`]: not paused.
    paused_until: [Picos; PRIORITIES],
    /// What the host has to be given.
    pub received: VecDeque<Frame>,
    /// By priority: the last pause, if the host was not told of it.
    news: [Option<PauseNews>; PRIORITIES],
    paused_by: PausedBy,
    pub counters: NicCounters,
}

impl Nic {
    fn new(paused_by: PausedBy) -> Self {
        Self {
            paused_by,
            ..Self::default()
        }
    }

    /// A pause to tell the host of; [`Self::told`] when it was.
    pub fn news(&self) -> Option<PauseNews> {
        self.news.iter().flatten().next().copied()
    }

    /// The host was told the news of this priority.
    pub fn told(&mut self, priority: u8) {
        if let Some(news) = self.news.get_mut(usize::from(priority)) {
            *news = None;
        }
        self.counters.pause_frames_told += 1;
    }

    /// The host sends a frame.
    pub fn send(&mut self, frame: Frame) {
        let len = u64::from(frame.wire_len());
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len;
        if self.counters.waiting + len > TRANSMIT_LIMIT {
            self.counters.tx_full += 1;
            return;
        }
        self.counters.waiting += len;
        self.counters.waiting_max = self.counters.waiting_max.max(self.counters.waiting);
        self.number += 1;
        if let Some(queue) = self.waiting.get_mut(usize::from(frame.priority())) {
            queue.push_back((self.number, frame));
        }
    }

    /// The frame that waits longest, of those that may go.
    fn next(&mut self, now: Picos) -> Option<Frame> {
        let ready = self
            .waiting
            .iter_mut()
            .zip(&self.paused_until)
            .filter(|(_, until)| **until <= now);
        let first = ready
            .map(|(queue, _)| queue)
            .filter(|queue| !queue.is_empty())
            .min_by_key(|queue| queue.front().map(|(number, _)| *number))?;
        let (_, frame) = first.pop_front()?;
        self.counters.waiting -= u64::from(frame.wire_len());
        Some(frame)
    }

    /// When a pause that holds something back ends by itself.
    fn wakes_at(&self) -> Option<Picos> {
        let held = self
            .waiting
            .iter()
            .zip(&self.paused_until)
            .filter(|(queue, _)| !queue.is_empty());
        held.map(|(_, until)| *until)
            .filter(|until| *until != Picos::ZERO && *until != Picos::MAX)
            .min()
    }

    fn pause(&mut self, now: Picos, priority: u8, until: Picos) {
        let place = usize::from(priority);
        let (Some(paused), Some(news)) =
            (self.paused_until.get_mut(place), self.news.get_mut(place))
        else {
            return;
        };
        if self.paused_by == PausedBy::Mac {
            *paused = if until > now { until } else { Picos::ZERO };
        }
        self.counters.pauses_received += u64::from(until > now);
        let span = if until == Picos::MAX {
            until
        } else {
            until - now
        };
        *news = Some(PauseNews { priority, span });
    }
}

/// A host.
#[derive(Debug)]
pub struct Station {
    pub nics: Vec<Nic>,
}

impl Station {
    pub fn new(nics: usize, paused_by: PausedBy) -> Self {
        Self {
            nics: (0..nics).map(|_| Nic::new(paused_by)).collect(),
        }
    }

    pub fn nic(&mut self, nic: PortId) -> Option<&mut Nic> {
        self.nics.get_mut(usize::from(nic.0))
    }
}

impl Host for Station {
    type Packet = Frame;

    fn receive(&mut self, _: Picos, nic: PortId, frame: Frame) {
        let Some(nic) = self.nic(nic) else { return };
        if nic.received.len() >= RECEIVE_LIMIT {
            nic.counters.rx_full += 1;
            return;
        }
        nic.counters.rx_frames += 1;
        nic.counters.rx_bytes += u64::from(frame.wire_len());
        nic.received.push_back(frame);
    }

    fn pause(&mut self, now: Picos, nic: PortId, priority: u8, until: Picos) {
        if let Some(nic) = self.nic(nic) {
            nic.pause(now, priority, until);
        }
    }

    fn handle_timeout(&mut self, now: Picos) {
        for until in self.nics.iter_mut().flat_map(|nic| &mut nic.paused_until) {
            if *until <= now {
                *until = Picos::ZERO;
            }
        }
    }

    fn poll_transmit(&mut self, now: Picos, nic: PortId) -> Option<Frame> {
        self.nic(nic)?.next(now)
    }

    fn poll_timeout(&self) -> Option<Picos> {
        self.nics.iter().filter_map(Nic::wakes_at).min()
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_sim::topology::HostId;

    use super::{
        super::frame::{Arrival, Reader},
        *,
    };

    /// A frame of this priority, by its VLAN tag, and length.
    fn frame(priority: u8, len: usize) -> Frame {
        let mut bytes = vec![0; len];
        bytes[12..14].copy_from_slice(&[0x81, 0]);
        bytes[14] = priority << 5;
        let reader = Reader::new([([0; 6], (HostId(0), PortId(0)))], [0; 64]);
        match reader.read(bytes) {
            Arrival::Frame(frame) => frame,
            other => panic!("{other:?}"),
        }
    }

    fn sent(station: &mut Station, now: Picos) -> Vec<u8> {
        let next = || station.poll_transmit(now, PortId(0));
        std::iter::from_fn(next)
            .map(|frame| frame.priority())
            .collect()
    }

    #[test]
    fn frames_leave_in_order_but_for_those_that_are_paused() {
        let mut station = Station::new(1, PausedBy::Mac);
        let until = Picos::from_micros(10);
        station.pause(Picos::ZERO, PortId(0), 3, until);
        for priority in [3, 0, 3, 6] {
            station.nics[0].send(frame(priority, 100));
        }
        assert_eq!(sent(&mut station, Picos::ZERO), [0, 6]);
        assert_eq!(station.poll_timeout(), Some(until));
        station.handle_timeout(until);
        assert_eq!(sent(&mut station, until), [3, 3]);
        assert_eq!(station.poll_timeout(), None);
        assert_eq!(station.nics[0].counters.waiting, 0);
        assert_eq!(station.nics[0].counters.waiting_max, 400);
    }

    #[test]
    fn a_pause_without_end_is_ended_by_a_resume_and_both_are_told() {
        let mut station = Station::new(1, PausedBy::Mac);
        station.pause(Picos::ZERO, PortId(0), 3, Picos::MAX);
        station.nics[0].send(frame(3, 100));
        assert!(sent(&mut station, Picos::from_micros(1)).is_empty());
        assert_eq!(station.poll_timeout(), None);
        let now = Picos::from_micros(2);
        station.pause(now, PortId(0), 3, now);
        assert_eq!(sent(&mut station, now), [3]);
        assert_eq!(station.nics[0].counters.pauses_received, 1);
    }

    #[test]
    fn a_host_is_told_the_last_pause_of_each_priority_and_no_more_wait_for_it() {
        let mut station = Station::new(1, PausedBy::Mac);
        let us = Picos::from_micros;
        for at in 0..1000 {
            station.pause(us(at), PortId(0), 3, us(at + 5));
            station.pause(us(at), PortId(0), 1, Picos::MAX);
        }
        station.pause(us(1000), PortId(0), 3, us(1000));
        let nic = &mut station.nics[0];
        let news = |priority, span| Some(PauseNews { priority, span });
        assert_eq!(nic.news(), news(1, Picos::MAX));
        nic.told(1);
        assert_eq!(nic.news(), news(3, Picos::ZERO));
        nic.told(3);
        assert_eq!((nic.news(), nic.counters.pause_frames_told), (None, 2));
    }

    #[test]
    fn without_a_mac_that_pauses_all_goes_on_but_the_host_is_told() {
        let mut station = Station::new(1, PausedBy::Host);
        station.pause(Picos::ZERO, PortId(0), 3, Picos::from_micros(10));
        station.nics[0].send(frame(3, 100));
        assert_eq!(sent(&mut station, Picos::ZERO), [3]);
        assert_eq!(station.nics[0].news().map(|news| news.priority), Some(3));
        assert_eq!(station.nics[0].counters.pauses_received, 1);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let mut station = Station::new(1, PausedBy::Mac);
        for _ in 0..TRANSMIT_LIMIT / 4096 + 3 {
            station.nics[0].send(frame(0, 4096));
        }
        assert_eq!(station.nics[0].counters.tx_full, 3);
        for _ in 0..RECEIVE_LIMIT + 2 {
            station.receive(Picos::ZERO, PortId(0), frame(0, 64));
        }
        assert_eq!(station.nics[0].counters.rx_full, 2);
    }
}
