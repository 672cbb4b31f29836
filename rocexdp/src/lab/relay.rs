//! The userspace wire: the sans-IO model of [`rocexdp_sim::wire`], driven in real time over two AF_XDP sockets.
//!
//! The wire's XDP program hands it all frames; it holds, copies, changes and sends them. One thread for both directions.
//! It never drops a frame that the model delivers: when a port can't take more it waits. Frames are copied and allocated
//! one by one: this is a lab's wire, not the engine.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rocexdp_common::fault::Faults;
use rocexdp_sim::wire::Wire;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Error, PortCounters, wire::XdpWire};
use crate::{
    net::IfIndex,
    sys::netns::NetNs,
    xsk::{TxError, Xsk, XskConfig},
};

/// Frames taken from a port at once.
const BATCH: usize = 64;
/// Chunks to receive into, for each port: 64 MiB, 8192 frames of path MTU 4096.
const RING: u32 = 16_384;
/// How long the thread sleeps at most, so that it sees a request to stop.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// How long it waits for a port that can't take more.
const BUSY_SLEEP: Duration = Duration::from_micros(50);
/// How long stopping may take: what is still on the way then is lost.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

enum Request {
    Faults([Faults; 2]),
    Stop,
}

/// The running userspace wire.
#[derive(Debug)]
pub struct Relay {
    requests: Sender<Request>,
    counters: Arc<Mutex<[PortCounters; 2]>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Relay {
    /// Opens a socket on each port, puts them into the wire's map and starts the thread. Frames come once the program is
    /// told to send them.
    ///
    /// # Errors
    /// A socket can't be opened or put into the map.
    pub fn start(
        namespace: &NetNs,
        ports: [(&str, IfIndex); 2],
        wire: &mut XdpWire,
        faults: [Faults; 2],
    ) -> Result<Self, Error> {
        let open = |(name, index): (&str, IfIndex)| {
            let mut config = XskConfig::new(name, index.0, 0);
            // Nothing holds the hosts back while this thread does not run: room for what they send meanwhile.
            config.rx_size = RING;
            config.fill_size = RING;
            config.frames_rx = RING;
            Xsk::open(&config).map_err(Error::Socket)
        };
        let [a, b] = ports;
        let sockets = namespace
            .run(|| -> Result<_, Error> { Ok([open(a)?, open(b)?]) })
            .map_err(Error::step("entering the wire's namespace"))??;
        let mut map = wire.sockets()?;
        for (port, socket) in (0..).zip(&sockets) {
            map.set(port, FdNumber(socket), 0)
                .map_err(Error::bpf("adding a socket to the wire's map"))?;
        }
        let (requests, inbox) = channel();
        let counters = Arc::new(Mutex::new([PortCounters::default(); 2]));
        let shared = Arc::clone(&counters);
        let thread = std::thread::Builder::new()
            .name("lab-wire".to_owned())
            .spawn(move || Loop::new(sockets, faults, shared).run(&inbox))
            .map_err(Error::step("starting the userspace wire's thread"))?;
        Ok(Self {
            requests,
            counters,
            thread: Some(thread),
        })
    }

    /// Changes the faults. Packets are numbered from 0 again; what is on the way comes out at once.
    pub fn configure(&self, faults: [Faults; 2]) {
        // The thread ends only when asked to, or when its interfaces are gone.
        let _ = self.requests.send(Request::Faults(faults));
    }

    /// What happened so far to the frames that entered each port.
    pub fn counters(&self) -> [PortCounters; 2] {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is on the way, stops the thread and returns its counters. The program must have stopped sending frames.
    ///
    /// # Errors
    /// What ended the thread early.
    pub fn stop(mut self) -> Result<[PortCounters; 2], Error> {
        let result = self.join();
        result
            .map_err(Error::step("running the userspace wire"))
            .map(|()| self.counters())
    }

    fn join(&mut self) -> io::Result<()> {
        let _ = self.requests.send(Request::Stop);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("its thread died")),
            None => Ok(()),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.join();
    }
}

/// aya's map takes `AsRawFd`.
pub(super) struct FdNumber<'a>(pub(super) &'a Xsk);

impl std::os::fd::AsRawFd for FdNumber<'_> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        use std::os::fd::AsFd;
        self.0.as_fd().as_raw_fd()
    }
}

struct Loop {
    sockets: [Xsk; 2],
    wire: Wire,
    start: Instant,
    /// A frame that its port could not take yet.
    stuck: Option<(u32, Vec<u8>)>,
    /// What former models counted.
    before: [PortCounters; 2],
    shared: Arc<Mutex<[PortCounters; 2]>>,
}

impl Loop {
    fn new(sockets: [Xsk; 2], faults: [Faults; 2], shared: Arc<Mutex<[PortCounters; 2]>>) -> Self {
        Self {
            sockets,
            wire: Wire::new(faults),
            start: Instant::now(),
            stuck: None,
            before: Default::default(),
            shared,
        }
    }

    fn run(mut self, inbox: &Receiver<Request>) -> io::Result<()> {
        let mut stopping: Option<Instant> = None;
        loop {
            let received = self.receive();
            match inbox.try_recv() {
                Ok(Request::Faults(faults)) => {
                    self.deliver(u64::MAX)?;
                    self.before = self.counters();
                    self.wire = Wire::new(faults);
                }
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => {
                    stopping.get_or_insert_with(|| Instant::now() + STOP_TIMEOUT);
                }
                Err(TryRecvError::Empty) => {}
            }
            let now = if stopping.is_some() {
                u64::MAX
            } else {
                self.now()
            };
            self.deliver(now)?;
            let counters = self.counters();
            *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = counters;
            if let Some(deadline) = stopping {
                let empty = received == 0
                    && self.wire.next_time().is_none()
                    && self.stuck.is_none()
                    && self.sockets.iter_mut().all(|socket| socket.unsent() == 0);
                if empty || Instant::now() >= deadline {
                    return Ok(());
                }
            }
            if received == 0 {
                self.sleep(stopping.is_some())?;
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn receive(&mut self) -> usize {
        // Back-pressure: what can't be sent on is not taken, and overflows where a wire's frames would.
        if self.stuck.is_some() {
            return 0;
        }
        let now = self.now();
        let mut received = 0;
        for (port, socket) in (0..).zip(&mut self.sockets) {
            let wire = &mut self.wire;
            received += socket.receive(BATCH, |pieces| wire.push(now, port, pieces.concat()));
        }
        received
    }

    /// Sends what the model lets out by `now`, as far as the ports take it.
    fn deliver(&mut self, now: u64) -> io::Result<()> {
        while let Some((port, frame)) = self.stuck.take().or_else(|| self.wire.pop(now)) {
            let Some(socket) = self.sockets.get_mut(port as usize) else {
                continue;
            };
            let sent = socket.transmit(frame.len(), |pieces| {
                let mut rest = frame.as_slice();
                for piece in pieces {
                    let (now, later) = rest.split_at(piece.len().min(rest.len()));
                    piece.copy_from_slice(now);
                    rest = later;
                }
            });
            match sent {
                Ok(()) => {}
                Err(TxError::Full) => {
                    self.stuck = Some((port, frame));
                    break;
                }
                // No frame that was received is too long to send; a runt of no bytes does not exist.
                Err(TxError::Length { .. }) => {}
            }
        }
        for socket in &mut self.sockets {
            socket.flush()?;
        }
        Ok(())
    }

    fn sleep(&mut self, stopping: bool) -> io::Result<()> {
        let busy = stopping
            || self.stuck.is_some()
            || self.sockets.iter_mut().any(|socket| socket.unsent() > 0);
        let timeout = match self.wire.next_time() {
            _ if busy => BUSY_SLEEP,
            None => MAX_SLEEP,
            Some(time) => Duration::from_nanos(time.saturating_sub(self.now())).min(MAX_SLEEP),
        };
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let [a, b] = &self.sockets;
        // A frame that waits makes a socket readable: don't spin on it while nothing can be taken.
        let events = if self.stuck.is_some() {
            PollFlags::empty()
        } else {
            PollFlags::IN
        };
        let mut fds = [PollFd::new(a, events), PollFd::new(b, events)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn counters(&self) -> [PortCounters; 2] {
        let mut counters = self.before;
        for ((total, now), socket) in counters
            .iter_mut()
            .zip(self.wire.counters())
            .zip(&self.sockets)
        {
            *total = total.plus(&PortCounters::from(now));
            // The socket counts from its opening.
            total.failed += socket
                .statistics()
                .map_or(0, |statistics| statistics.rx_lost());
        }
        counters
    }
}
