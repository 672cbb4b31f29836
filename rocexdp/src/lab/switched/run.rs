//! The thread that drives a lab's network in real time: frames from its sockets in, events up to now, frames out.
//!
//! The network's time is the machine's, but for what the machine kept this thread waiting beyond what it had meant to sleep:
//! that is taken off, since frames that came meanwhile can't be said when they came, and links that worked on without them
//! would show idle times that the hosts did not cause. How much was taken off is counted.
//!
//! One thread for all switches and ports; frames move by a copy in and one out. Links between switches have no socket.

use std::{
    io,
    sync::mpsc::{
        Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rocexdp_common::dissect::Pfc;
use rocexdp_proto::time::Rate;
use rocexdp_sim::{
    net::Network,
    picos::Picos,
    switch::{PRIORITIES, quanta_time},
    topology::LinkId,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{
    super::Error,
    capture::{Capture, Records},
    frame::{Arrival, Frame, NicId, Reader, pfc_frame},
    station::{PauseNews, Station},
    status::{self, Names, NetworkStatus},
};
use crate::{
    net::Mac,
    sys::realtime::run_first,
    xsk::{TxError, Xsk},
};

/// Frames taken from a socket at once.
const BATCH: usize = 64;
/// How long the thread sleeps at most, so that it sees requests.
const MAX_SLEEP: Duration = Duration::from_millis(10);
/// How long it sleeps at least: events that come closer are handled together, each at its own time.
const MIN_SLEEP: Duration = Duration::from_micros(50);
/// Coming late by less is not held against the machine.
const LATE: Duration = Duration::from_micros(300);
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Buffers kept for frames to come.
const SPARE: usize = 1024;

/// A NIC's port: its socket.
pub struct Port {
    pub nic: NicId,
    pub socket: Xsk,
    /// Of the link, for the quanta of pauses.
    pub rate: Rate,
    /// What PFC frames to the host come from.
    pub mac: Mac,
}

enum Request {
    Status(SyncSender<NetworkStatus>),
    /// Answered with `None` while there is another one.
    Capture(LinkId, SyncSender<Option<Records>>),
    Stop,
}

/// The running thread.
#[derive(Debug)]
pub struct Driver {
    requests: Sender<Request>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Driver {
    pub fn start(
        network: Network<Station>,
        ports: Vec<Port>,
        reader: Reader,
        names: Names,
    ) -> Result<Self, Error> {
        let (requests, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("lab-switch".to_owned())
            .spawn(move || Loop::new(network, ports, reader, names).run(&inbox))
            .map_err(Error::step("starting the switches' thread"))?;
        Ok(Self {
            requests,
            thread: Some(thread),
        })
    }

    pub fn status(&self) -> Result<NetworkStatus, Error> {
        self.ask(Request::Status)
    }

    /// What is sent into a link from now on; `None`: another link is being captured.
    pub fn capture(&self, link: LinkId) -> Result<Option<Records>, Error> {
        self.ask(|answer| Request::Capture(link, answer))
    }

    fn ask<T>(&self, request: impl FnOnce(SyncSender<T>) -> Request) -> Result<T, Error> {
        let (answer, answered) = sync_channel(1);
        let asked = self.requests.send(request(answer));
        let gone = || io::Error::other("their thread has ended");
        asked.map_err(|_| Error::Step("asking the switches", gone()))?;
        answered.recv_timeout(TIMEOUT).map_err(|error| {
            let error = match error {
                RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
                RecvTimeoutError::Disconnected => gone(),
            };
            Error::Step("asking the switches", error)
        })
    }

    /// Stops the thread; what is under way is lost.
    pub fn stop(&mut self) -> Result<(), Error> {
        let _ = self.requests.send(Request::Stop);
        let result = match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("their thread died")),
            None => Ok(()),
        };
        result.map_err(Error::step("running the switches"))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.stop();
    }
}

/// The network's time. See the module's head.
struct Clock {
    start: Instant,
    last: Instant,
    held_back: Duration,
}

impl Clock {
    fn new(now: Instant) -> Self {
        Self {
            start: now,
            last: now,
            held_back: Duration::ZERO,
        }
    }

    /// The time at `now`, after `meant` was slept on purpose, at most.
    fn read(&mut self, now: Instant, meant: Duration) -> Picos {
        let late = now.duration_since(self.last).saturating_sub(meant + LATE);
        self.held_back += late;
        self.last = now;
        let time = now
            .duration_since(self.start)
            .saturating_sub(self.held_back);
        Picos::from_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

struct Loop {
    network: Network<Station>,
    ports: Vec<Port>,
    reader: Reader,
    names: Names,
    clock: Clock,
    capture: Option<Capture>,
    /// Frames that captures which have ended lacked.
    capture_lost: u64,
    spare: Vec<Vec<u8>>,
}

impl Loop {
    fn new(network: Network<Station>, ports: Vec<Port>, reader: Reader, names: Names) -> Self {
        Self {
            network,
            ports,
            reader,
            names,
            clock: Clock::new(Instant::now()),
            capture: None,
            capture_lost: 0,
            spare: Vec::new(),
        }
    }

    fn run(mut self, inbox: &Receiver<Request>) -> io::Result<()> {
        // A switch does not compete with its hosts. Where that is not allowed, the clock says what it cost.
        let _ = run_first();
        self.clock = Clock::new(Instant::now());
        let mut meant = Duration::ZERO;
        loop {
            let now = self.clock.read(Instant::now(), meant);
            // What comes in now comes after what has happened by now.
            self.network.run_until(now);
            let received = self.receive();
            if received > 0 {
                self.network.run_until(now);
            }
            let stuck = self.deliver()?;
            match inbox.try_recv() {
                // Whoever asked may have given up.
                Ok(Request::Status(answer)) => {
                    let _ = answer.send(self.status());
                }
                Ok(Request::Capture(link, answer)) => {
                    let _ = answer.send(self.start_capture(link));
                }
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {}
            }
            if self.capture.as_ref().is_some_and(Capture::has_ended) {
                self.stop_capture();
            }
            meant = Duration::ZERO;
            // A full batch: there may be more.
            if received < BATCH {
                meant = self.sleep(now, stuck)?;
            }
        }
    }

    fn status(&self) -> NetworkStatus {
        let lost = self.capture.as_ref().map_or(0, Capture::lost);
        NetworkStatus {
            capture_lost: self.capture_lost + lost,
            ..status::status(
                &self.network,
                &self.names,
                self.clock.held_back.as_secs_f64(),
            )
        }
    }

    fn start_capture(&mut self, link: LinkId) -> Option<Records> {
        if self.capture.as_ref().is_some_and(Capture::has_ended) {
            self.stop_capture();
        }
        if self.capture.is_some() {
            return None;
        }
        let (capture, records) = Capture::start(&mut self.network, link);
        self.capture = Some(capture);
        Some(records)
    }

    fn stop_capture(&mut self) {
        if let Some(capture) = self.capture.take() {
            capture.stop(&mut self.network);
            self.capture_lost += capture.lost();
        }
    }

    /// Takes what hosts have sent. Returns the most frames of one port.
    fn receive(&mut self) -> usize {
        let mut most = 0;
        for port in &mut self.ports {
            let (network, reader, spare) = (&mut self.network, &self.reader, &mut self.spare);
            let (host, nic) = port.nic;
            let received = port.socket.receive(BATCH, |pieces| {
                let mut bytes = spare.pop().unwrap_or_default();
                bytes.clear();
                pieces
                    .iter()
                    .for_each(|piece| bytes.extend_from_slice(piece));
                take(network, reader, (host, nic), bytes, spare);
            });
            most = most.max(received);
        }
        most
    }

    /// Gives hosts what has arrived for them. True: some port could not take all.
    fn deliver(&mut self) -> io::Result<bool> {
        let mut stuck = false;
        for port in &mut self.ports {
            let (host, number) = port.nic;
            let waits = self.network.host(host).nics.get(usize::from(number.0));
            let idle = waits.is_none_or(|nic| nic.received.is_empty() && nic.news().is_none());
            if idle && port.socket.unsent() == 0 {
                continue;
            }
            if !idle && let Some(nic) = self.network.host_mut(host).nic(number) {
                while let Some(news) = nic.news() {
                    let frame = pfc_frame(port.mac, news.priority, quanta(&news, port.rate));
                    if !send(&mut port.socket, &frame) {
                        break;
                    }
                    nic.told(news.priority);
                }
                while nic.news().is_none()
                    && let Some(frame) = nic.received.front()
                    && send(&mut port.socket, &frame.bytes)
                {
                    if let Some(frame) = nic.received.pop_front() {
                        keep(&mut self.spare, frame.bytes);
                    }
                }
                stuck |= nic.news().is_some() || !nic.received.is_empty();
            }
            port.socket.flush()?;
            stuck |= port.socket.unsent() > 0;
        }
        Ok(stuck)
    }

    /// Sleeps until something may have to be done. Returns how long that was meant to be.
    fn sleep(&mut self, now: Picos, stuck: bool) -> io::Result<Duration> {
        let next = self.network.next_event();
        let next = next.map_or(MAX_SLEEP, |at| Duration::from_nanos((at - now).as_nanos()));
        let timeout = if stuck {
            MIN_SLEEP
        } else {
            next.clamp(MIN_SLEEP, MAX_SLEEP)
        };
        let limit = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let sockets = self.ports.iter().map(|port| &port.socket);
        let mut fds: Vec<_> = sockets
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(timeout),
            Err(error) => Err(error.into()),
        }
    }
}

fn keep(spare: &mut Vec<Vec<u8>>, bytes: Vec<u8>) {
    if spare.len() < SPARE {
        spare.push(bytes);
    }
}

/// Something from a host.
fn take(
    network: &mut Network<Station>,
    reader: &Reader,
    (host, nic): NicId,
    bytes: Vec<u8>,
    spare: &mut Vec<Vec<u8>>,
) {
    let arrival = reader.read(bytes);
    let Some(state) = network.host_mut(host).nic(nic) else {
        return;
    };
    match arrival {
        Arrival::Frame(frame) => state.send(frame),
        Arrival::Flood(bytes) => {
            state.counters.flooded += 1;
            let copies: Vec<Frame> = reader.copies(&bytes, host);
            copies.into_iter().for_each(|copy| state.send(copy));
            keep(spare, bytes);
        }
        Arrival::Unknown(bytes) => {
            state.counters.unknown_destination += 1;
            keep(spare, bytes);
        }
        Arrival::Pfc(Pfc {
            class_enable,
            quanta,
        }) => {
            state.counters.pauses_sent += 1;
            for (priority, quanta) in (0..PRIORITIES as u8).zip(quanta) {
                if class_enable & 1 << priority != 0 {
                    network.send_pause(host, nic, priority, quanta);
                }
            }
        }
    }
}

/// As many quanta as this pause lasts, rounded up, so that it does not end early.
fn quanta(news: &PauseNews, rate: Rate) -> u16 {
    let one = quanta_time(1, rate).0.max(1);
    u16::try_from(news.span.0.div_ceil(one)).unwrap_or(u16::MAX)
}

/// False: the socket can't take it now.
fn send(socket: &mut Xsk, frame: &[u8]) -> bool {
    let sent = socket.transmit(frame.len(), |pieces| {
        let mut rest = frame;
        for piece in pieces {
            let (now, later) = rest.split_at(piece.len().min(rest.len()));
            piece.copy_from_slice(now);
            rest = later;
        }
    });
    // No frame that was received is too long to send.
    !matches!(sent, Err(TxError::Full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_the_machine_took_is_taken_off() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        let ms = Duration::from_millis;
        assert_eq!(clock.read(start + ms(1), ms(1)), Picos::from_micros(1_000));
        // Woken early, and just a little late.
        assert_eq!(clock.read(start + ms(2), ms(10)), Picos::from_micros(2_000));
        assert_eq!(
            clock.read(start + ms(2) + LATE, Duration::ZERO),
            Picos::from_micros(2_300)
        );
        // 20 ms instead of 1 ms.
        assert_eq!(
            clock.read(start + ms(22) + LATE, ms(1)),
            Picos::from_micros(3_600)
        );
        assert_eq!(clock.held_back, ms(19) - LATE);
        assert_eq!(
            clock.read(start + ms(23) + LATE, ms(1)),
            Picos::from_micros(4_600)
        );
    }

    #[test]
    fn quanta_cover_the_pause() {
        let rate = Rate::from_mbps(100);
        let news = |span| PauseNews { priority: 3, span };
        assert_eq!(quanta(&news(quanta_time(700, rate)), rate), 700);
        assert_eq!(
            quanta(&news(Picos(quanta_time(700, rate).0 + 1)), rate),
            701
        );
        assert_eq!(quanta(&news(Picos::MAX), rate), u16::MAX);
        assert_eq!(quanta(&news(Picos::ZERO), rate), 0);
    }
}
