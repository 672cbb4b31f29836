//! The engine: the transport driven over AF_XDP by one worker thread per receive queue.
//!
//! A QP belongs to one worker, chosen by its slot; a packet that another queue received is handed
//! over. Workers share nothing else. Control goes through [`EngineHandle`]: a closure runs on the
//! worker's thread between two steps, so the transport needs no lock.

pub mod bell;
mod io;
mod local;
pub mod pause;
mod publish;
mod signals;
mod tap;
mod worker;

use std::{str::FromStr, sync::Arc, thread::JoinHandle};

use anyhow::{Context as _, Result, anyhow};
use rocexdp_proto::{
    Endpoint, EndpointConfig,
    ids::Qpn,
    time::{Rate, Timestamp},
};
use tokio::sync::oneshot;

use crate::{maps::Maps, xsk::Xsk};
use bell::Bell;
use io::XskIo;
use local::{Inbox, Neighbours, WakeWorker};
use worker::{Command, Worker};

pub use local::Groups;
pub use signals::{LINE, worker_of};
pub use worker::{Core, WorkerEvent, now};

/// Ethernet with two tags, IPv6, UDP, BTH, RETH, ImmDt, payload, ICRC: the largest frame sent, B.
pub const fn max_frame(path_mtu: u32) -> usize {
    14 + 8 + 40 + 8 + 12 + 16 + 4 + path_mtu as usize + 4
}

/// Whether a worker sleeps when it has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollPolicy {
    /// Never: lowest latency, one core per worker.
    Busy,
    /// After 50 us without work.
    #[default]
    Adaptive,
    /// At once: least processor time.
    Sleep,
}

impl FromStr for PollPolicy {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "busy" => Ok(Self::Busy),
            "adaptive" => Ok(Self::Adaptive),
            "sleep" => Ok(Self::Sleep),
            _ => Err(format!(
                "\"{s}\" is no poll policy: use busy, adaptive or sleep"
            )),
        }
    }
}

/// What pause frames do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfcConfig {
    /// Those that XDP sees stop what they name.
    pub honour: bool,
    /// Bits of the priorities that are paused when a worker's receive ring is filled by half; 0: none ever.
    pub send: u8,
}

impl Default for PfcConfig {
    fn default() -> Self {
        Self {
            honour: true,
            send: 0,
        }
    }
}

/// What an engine is made of.
pub struct EngineConfig {
    /// The transport's settings.
    pub endpoint: EndpointConfig,
    /// Largest path MTU, B.
    pub path_mtu: u32,
    /// The device's Ethernet address: what is sent to it comes back to QPs of this engine.
    pub mac: [u8; 6],
    /// When workers sleep.
    pub policy: PollPolicy,
    /// Pause frames.
    pub pfc: PfcConfig,
    /// Picoseconds of a pause quantum; 0: the link's rate is not known.
    pub quantum_ps: u32,
    /// Where the transport's randomness starts (rkeys); from the system's generator.
    pub seed: u64,
}

/// Running workers. Dropping it stops them.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    threads: Vec<JoinHandle<()>>,
}

/// A way to the workers, to be cloned freely.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    bells: Arc<Bells>,
    groups: Arc<Groups>,
    slot_mask: u32,
}

#[derive(Debug)]
struct Bells(Vec<Arc<Bell<Command>>>);

impl WakeWorker for Bells {
    fn wake(&self, n: usize) {
        if let Some(bell) = self.0.get(n) {
            bell.wake();
        }
    }

    fn is_gone(&self, n: usize) -> bool {
        self.0.get(n).is_none_or(|bell| bell.stopped())
    }
}

impl Engine {
    /// Starts one worker per socket; socket `n` is bound to queue `n`. `tell` gets their events.
    ///
    /// # Errors
    /// When a thread or an eventfd can't be made.
    pub fn start(
        config: &EngineConfig,
        maps: &Arc<Maps>,
        sockets: Vec<Xsk>,
        tell: impl Fn(u32, WorkerEvent) + Send + Clone + 'static,
    ) -> Result<Self> {
        let workers = sockets.len() as u32;
        let inboxes: Arc<[Inbox]> = sockets.iter().map(|_| Inbox::new()).collect();
        let groups = Arc::new(Groups::new(sockets.len()));
        let bells = sockets
            .iter()
            .map(|_| Bell::new().map(Arc::new))
            .collect::<std::io::Result<_>>()
            .context("making an eventfd")?;
        let bells = Arc::new(Bells(bells));
        let handle = EngineHandle {
            bells: Arc::clone(&bells),
            groups: Arc::clone(&groups),
            slot_mask: maps.slots - 1,
        };
        let mut engine = Self {
            handle,
            threads: Vec::new(),
        };
        let neighbours = Neighbours {
            inboxes,
            wake: Arc::clone(&bells) as Arc<dyn WakeWorker>,
            groups: Arc::clone(&groups),
            slot_mask: maps.slots - 1,
            mac: config.mac,
            loops: Arc::default(),
        };
        let mut endpoint = config.endpoint.clone();
        endpoint.port_rate = endpoint.port_rate.map(|all| share(all, sockets.len()));
        for (n, xsk) in sockets.into_iter().enumerate() {
            let queue = n as u32;
            let neighbours = neighbours.clone();
            let (tell, died) = (tell.clone(), tell.clone());
            let worker = Worker {
                core: Core {
                    // Each worker has its own transport, and its own random numbers.
                    endpoint: Endpoint::new(
                        endpoint.clone(),
                        config.seed.wrapping_add(u64::from(queue)),
                    ),
                    maps: Arc::clone(maps),
                    signals: signals::Signals::new(queue, workers, maps.slots),
                    publisher: publish::Publisher::new(queue, maps.slots, Arc::clone(&groups)),
                },
                pauses: config.pfc.honour.then(|| pause::Received::new(maps.queues)),
                pausing: (config.pfc.send != 0)
                    .then(|| pause::Sender::new(config.pfc.send, config.quantum_ps)),
                mac: config.mac,
                io: XskIo::new(
                    xsk,
                    queue,
                    max_frame(config.path_mtu),
                    neighbours,
                    tap::Tap::new(Arc::clone(maps), queue),
                ),
                bell: bells
                    .0
                    .get(n)
                    .map(Arc::clone)
                    .ok_or_else(|| anyhow!("no bell for worker {n}"))?,
                policy: config.policy,
                tell: Box::new(move |event| tell(queue, event)),
                died: Box::new(move || died(queue, WorkerEvent::Died)),
            };
            let thread = std::thread::Builder::new()
                .name(format!("rocexdp-q{queue}"))
                .spawn(move || worker.run())
                .context("starting a worker thread")?;
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// A way to the workers.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for bell in &self.handle.bells.0 {
            bell.stop();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so on stderr.
            let _ = thread.join();
        }
    }
}

impl EngineHandle {
    /// Number of workers.
    pub fn workers(&self) -> u32 {
        self.bells.0.len() as u32
    }

    /// Runs `f` on the worker that owns `slot`, and gives its result.
    ///
    /// # Errors
    /// When the worker has ended.
    pub async fn call<R: Send + 'static>(
        &self,
        slot: u32,
        f: impl FnOnce(&mut Core, Timestamp) -> R + Send + 'static,
    ) -> Result<R> {
        self.send(slot, f)?.await.map_err(|_| gone())
    }

    /// As [`Self::call`], from a thread that may block.
    ///
    /// # Errors
    /// As [`Self::call`]; or this is a worker's own thread, which waits for none: `f` will run, its result is lost. Where the engine
    /// holds memory last, what its owner does when dropped is done there ([`crate::mem::Borrowed`]).
    pub fn call_blocking<R: Send + 'static>(
        &self,
        slot: u32,
        f: impl FnOnce(&mut Core, Timestamp) -> R + Send + 'static,
    ) -> Result<R> {
        // Not `blocking_recv`: it refuses to run inside a runtime, and this wait lasts microseconds.
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        self.send_with(slot, move |core, now| {
            let _ = tx.send(f(core, now));
        })?;
        if worker::is_this_thread() {
            return Err(anyhow!("a worker's thread does not wait for a worker"));
        }
        rx.recv().map_err(|_| gone())
    }

    /// Runs `f` on the worker that owns QP `qpn`, without waiting for it.
    ///
    /// # Errors
    /// When the worker has ended.
    pub fn call_qp<R>(
        &self,
        qpn: Qpn,
        f: impl FnOnce(&mut Core, Timestamp) -> R + Send + 'static,
    ) -> Result<()> {
        self.send_with(qpn.get() & self.slot_mask, move |core, now| {
            f(core, now);
        })
    }

    fn send<R: Send + 'static>(
        &self,
        slot: u32,
        f: impl FnOnce(&mut Core, Timestamp) -> R + Send + 'static,
    ) -> Result<oneshot::Receiver<R>> {
        let (tx, rx) = oneshot::channel();
        self.send_with(slot, move |core, now| {
            let _ = tx.send(f(core, now));
        })?;
        Ok(rx)
    }

    fn send_with(
        &self,
        slot: u32,
        f: impl FnOnce(&mut Core, Timestamp) + Send + 'static,
    ) -> Result<()> {
        let bell = self.bell(slot).ok_or_else(gone)?;
        if bell.stopped() {
            return Err(gone());
        }
        bell.command(Box::new(f));
        Ok(())
    }

    /// Which workers have QPs of which multicast group.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    fn bell(&self, slot: u32) -> Option<&Arc<Bell<Command>>> {
        self.bells.0.get(worker_of(slot, self.workers()) as usize)
    }

    /// Whether the worker of a QP has ended, or was asked to.
    pub fn has_ended(&self, qpn: Qpn) -> bool {
        self.bell(qpn.get() & self.slot_mask)
            .is_none_or(|bell| bell.stopped())
    }

    /// Tells the worker of a QP that something was posted.
    pub fn doorbell(&self, qpn: Qpn) {
        if let Some(bell) = self.bell(qpn.get() & self.slot_mask) {
            bell.doorbell(qpn);
        }
    }
}

fn gone() -> anyhow::Error {
    anyhow!("the engine has ended")
}

/// What each of so many workers may send of a port's rate: they know nothing of one another, and must not be more together.
fn share(all: Rate, workers: usize) -> Rate {
    Rate::from_bps((all.as_bps() / workers.max(1) as u64).max(1))
}
