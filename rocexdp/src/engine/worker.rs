//! One worker: a thread that runs its queue to completion, busy or sleeping by policy.
//!
//! Each turn: commands, doorbells, congestion news from the maps, then the transport's own step
//! (receive, timers, transmit) over AF_XDP. Nothing here allocates per packet.

use std::{cell::Cell, num::NonZeroU64, sync::Arc, time::Duration};

use rocexdp_proto::{Endpoint, Event, drive, time::Timestamp};
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::{ClockId, Timespec, clock_gettime},
};

use super::{PollPolicy, bell::Bell, io::XskIo, pause, publish::Publisher, signals::Signals};
use crate::maps::Maps;
use std::os::fd::AsFd as _;

/// Packets received, and packets sent, per turn at most.
const BUDGET: usize = 64;
/// How often the maps get the engine's numbers while traffic flows.
const PUBLISH_EVERY: Duration = Duration::from_millis(1);
/// How often they are published after the last packet.
const LOOKS: u32 = 2;
/// Idle time before a worker with [`PollPolicy::Adaptive`] sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// A timer nearer than this is waited for by spinning: a sleep would overshoot it.
const NEAR: Duration = Duration::from_micros(20);
/// Longest sleep. Whatever has to be done sooner wakes the worker; this bounds what a lost wake-up could cost.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// Sleep while the TX ring is full and the device does not take more.
const BACKPRESSURE_SLEEP: Duration = Duration::from_micros(50);

thread_local! {
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is a worker's.
pub fn is_this_thread() -> bool {
    WORKS.get()
}

/// What commands may touch.
pub struct Core {
    /// The transport.
    pub endpoint: Endpoint,
    /// The maps.
    pub maps: Arc<Maps>,
    /// Congestion news.
    pub signals: Signals,
    /// Numbers for the maps.
    pub publisher: Publisher,
}

/// Something to do on the worker's thread, between two steps.
pub type Command = Box<dyn FnOnce(&mut Core, Timestamp) + Send>;

/// What the worker tells: events of its QPs, and errors of its device.
#[derive(Debug)]
pub enum WorkerEvent {
    /// From the transport.
    Transport(Event),
    /// From the socket.
    Device(std::io::Error),
    /// The worker's thread panicked: its QPs are dead.
    Died,
}

/// A worker before it runs.
pub struct Worker {
    /// What commands may touch.
    pub core: Core,
    /// Frames.
    pub io: XskIo,
    /// Pauses that the link's other end asks for; `None`: they are not honoured.
    pub pauses: Option<pause::Received>,
    /// Pauses that we ask for; `None`: never.
    pub pausing: Option<pause::Sender>,
    /// The device's Ethernet address.
    pub mac: [u8; 6],
    /// How others reach us.
    pub bell: Arc<Bell<Command>>,
    /// When to sleep.
    pub policy: PollPolicy,
    /// Where events go.
    pub tell: Box<dyn FnMut(WorkerEvent) + Send>,
    /// What to do when the thread panics.
    pub died: Box<dyn Fn() + Send>,
}

/// Closes the bell however the worker ends, so that nobody waits for an answer from it.
struct CloseAtEnd {
    bell: Arc<Bell<Command>>,
    died: Box<dyn Fn() + Send>,
}

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.bell.close();
        if std::thread::panicking() {
            (self.died)();
        }
    }
}

/// CLOCK_MONOTONIC, which is also what XDP's `bpf_ktime_get_ns` reads.
pub fn now() -> Timestamp {
    let t = clock_gettime(ClockId::Monotonic);
    Timestamp::from_nanos(
        (t.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(t.tv_nsec as u64),
    )
}

impl Worker {
    /// Runs until the bell says stop.
    pub fn run(mut self) {
        let _closed = CloseAtEnd {
            bell: Arc::clone(&self.bell),
            died: std::mem::replace(&mut self.died, Box::new(|| ())),
        };
        WORKS.set(true);
        // The default slack of 50 us would make every paced packet late; failure only costs that.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut idle_since: Option<Timestamp> = None;
        let mut published = Timestamp::ZERO;
        // How often the maps still want the numbers. Twice after the last packet, since trackers are judged by two looks.
        let mut looks = LOOKS;
        while !self.bell.stopped() {
            let time = now();
            let commanded = self.commands(time);
            let (step, news) = self.step(time);
            let busy = commanded || step.received > 0 || step.transmitted > 0;
            if looks > 0 && time.saturating_since(published) >= PUBLISH_EVERY {
                self.publish();
                published = time;
                looks -= 1;
            }
            // What a timer did is news, though nothing may be sent any more: a QP whose retries are spent, a rate that has recovered.
            // So are CNPs and pauses that XDP took, and the time that a pause takes.
            if busy || news || step.timers > 0 || self.held(time) {
                looks = LOOKS;
            }
            if busy {
                idle_since = None;
                continue;
            }
            let idle = time.saturating_since(*idle_since.get_or_insert(time));
            if let Some(longest) = self.may_sleep(time, idle, step.backpressure) {
                self.sleep(if looks > 0 {
                    longest.min(PUBLISH_EVERY)
                } else {
                    longest
                });
            } else {
                std::hint::spin_loop();
            }
        }
        self.publish();
    }

    fn commands(&mut self, time: Timestamp) -> bool {
        let mut any = false;
        for command in self.bell.take_commands() {
            command(&mut self.core, time);
            any = true;
        }
        while let Some(qpn) = self.bell.take_doorbell() {
            self.core.endpoint.work_posted(time, qpn);
            any = true;
        }
        if self.bell.take_all_qps() {
            let Core {
                endpoint,
                publisher,
                ..
            } = &mut self.core;
            for qpn in publisher.qpns() {
                endpoint.work_posted(time, qpn);
            }
            any = true;
        }
        any
    }

    /// What it did, and whether XDP had news.
    fn step(&mut self, time: Timestamp) -> (drive::Step, bool) {
        let mut news = false;
        let Core {
            endpoint,
            maps,
            signals,
            ..
        } = &mut self.core;
        signals.drain(maps, |qpn, signal| {
            news = true;
            endpoint.handle_congestion(time, qpn, signal);
        });
        if let Some(pauses) = &mut self.pauses {
            pauses.drain(maps, |priority, until| {
                news = true;
                endpoint.handle_pause(time, priority, until);
            });
        }
        if let Some(pausing) = &mut self.pausing {
            let (waiting, entries) = self.io.rx_fill();
            if let Some((classes, quanta)) = pausing.look(time, waiting, entries) {
                self.io.send_pause(&pause::frame(self.mac, classes, quanta));
            }
        }
        let step = drive::step(endpoint, time, &mut self.io, BUDGET);
        while let Some(event) = endpoint.poll_event() {
            (self.tell)(WorkerEvent::Transport(event));
        }
        if let Some(error) = self.io.take_error() {
            (self.tell)(WorkerEvent::Device(error));
        }
        (step, news)
    }

    fn publish(&mut self) {
        let Core {
            endpoint,
            maps,
            publisher,
            ..
        } = &mut self.core;
        publisher.publish(maps, endpoint, &self.io);
    }

    /// Whether a pause holds something back.
    fn held(&mut self, time: Timestamp) -> bool {
        self.pauses.is_some() && self.core.endpoint.is_held(time)
    }

    /// How long the worker may sleep now; `None`: go on spinning.
    fn may_sleep(
        &mut self,
        time: Timestamp,
        idle: Duration,
        backpressure: bool,
    ) -> Option<Duration> {
        let spin = match self.policy {
            PollPolicy::Busy => return None,
            PollPolicy::Adaptive => SPIN,
            PollPolicy::Sleep => Duration::ZERO,
        };
        if idle < spin {
            return None;
        }
        let until_timer = match self.core.endpoint.poll_timeout() {
            Some(at) => at.saturating_since(time),
            None => LONGEST_SLEEP,
        };
        if until_timer < NEAR {
            return None;
        }
        let mut longest = until_timer.min(LONGEST_SLEEP);
        // What a pause holds back may go as soon as its end is told, which wakes nobody.
        if self.held(time) {
            longest = longest.min(BACKPRESSURE_SLEEP);
        }
        if let Some(renew) = self.pausing.as_ref().and_then(pause::Sender::next) {
            longest = longest.min(renew.saturating_since(time));
        }
        if !self.io.is_down() && (backpressure || self.io.unsent() > 0) {
            longest = longest.min(BACKPRESSURE_SLEEP);
        }
        Some(longest)
    }

    fn sleep(&mut self, longest: Duration) {
        if !self.bell.prepare_sleep() {
            return;
        }
        // A worker that hands a frame over rings after pushing it, so look once more.
        if !self.io.has_handed_over() {
            let timeout = Timespec {
                tv_sec: longest.as_secs() as i64,
                tv_nsec: i64::from(longest.subsec_nanos()),
            };
            let mut fds = [
                PollFd::from_borrowed_fd(self.io.xsk().as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.fd(), PollFlags::IN),
            ];
            // EINTR is a wake-up like any other; other errors can't occur with these arguments.
            let _ = poll(&mut fds, Some(&timeout));
        }
        self.bell.finish_sleep();
    }
}
