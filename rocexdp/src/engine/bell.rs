//! How other threads reach a worker: commands, doorbells of QPs, and waking it when it sleeps.
//!
//! A worker that runs sees a flag; a worker that sleeps in poll(2) has an eventfd there. Who rings
//! writes the eventfd only when the worker said that it is going to sleep, so a posted work request
//! costs no system call while the engine is busy.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering, fence},
    },
};

use crossbeam_queue::ArrayQueue;
use rocexdp_proto::ids::Qpn;
use rustix::event::{EventfdFlags, eventfd};

/// Doorbells that fit before all QPs are looked at instead.
const DOORBELLS: usize = 1024;

/// What is pending for a worker whose commands are of type `C`.
pub struct Bell<C> {
    commands: Mutex<Vec<C>>,
    has_commands: AtomicBool,
    doorbells: ArrayQueue<Qpn>,
    all_qps: AtomicBool,
    stop: AtomicBool,
    sleeping: AtomicBool,
    wake: OwnedFd,
}

// Commands are closures, which have nothing to show.
impl<C> std::fmt::Debug for Bell<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bell")
            .field("stop", &self.stop)
            .field("sleeping", &self.sleeping)
            .finish_non_exhaustive()
    }
}

impl<C> Bell<C> {
    /// Makes a bell.
    ///
    /// # Errors
    /// The error of eventfd(2).
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            commands: Mutex::new(Vec::new()),
            has_commands: AtomicBool::new(false),
            doorbells: ArrayQueue::new(DOORBELLS),
            all_qps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn ring(&self) {
        // Pairs with the fence in `prepare_sleep`: either the worker sees what we stored, or we see
        // that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::Relaxed) {
            // Can only fail when the counter is full, and then the worker wakes anyway.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Hands over a command; drops it when the worker was asked to end.
    pub fn command(&self, command: C) {
        {
            let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock, so that `close` finds every command that was accepted.
            if self.stopped() {
                return;
            }
            commands.push(command);
        }
        self.has_commands.store(true, Ordering::Release);
        self.ring();
    }

    /// The worker has ended: commands that it did not get to are dropped, as are later ones.
    pub fn close(&self) {
        self.stop.store(true, Ordering::Release);
        self.commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Says that something was posted to a QP.
    pub fn doorbell(&self, qpn: Qpn) {
        if self.doorbells.push(qpn).is_err() {
            self.all_qps.store(true, Ordering::Release);
        }
        self.ring();
    }

    /// Wakes the worker to look at its inputs.
    pub fn wake(&self) {
        self.ring();
    }

    /// Asks the worker to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether the worker was asked to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Takes the commands, oldest first.
    pub fn take_commands(&self) -> Vec<C> {
        if !self.has_commands.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a QP that has something new.
    pub fn take_doorbell(&self) -> Option<Qpn> {
        self.doorbells.pop()
    }

    /// Whether doorbells overflowed: all QPs are to be looked at.
    pub fn take_all_qps(&self) -> bool {
        self.all_qps.swap(false, Ordering::Acquire)
    }

    /// To be called before sleeping on [`Self::fd`]. `false`: do not sleep, something is pending.
    pub fn prepare_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let pending = self.has_commands.load(Ordering::Acquire)
            || !self.doorbells.is_empty()
            || self.all_qps.load(Ordering::Acquire)
            || self.stopped();
        if pending {
            self.sleeping.store(false, Ordering::Relaxed);
        }
        !pending
    }

    /// To be called after sleeping.
    pub fn finish_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut counter);
    }

    /// Readable when someone rang while the worker slept.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_forbids_sleep() {
        let bell: Bell<u32> = Bell::new().unwrap();
        assert!(bell.prepare_sleep());
        bell.finish_sleep();
        bell.command(7);
        assert!(!bell.prepare_sleep());
        assert_eq!(bell.take_commands(), [7]);
        assert!(bell.prepare_sleep());
        bell.finish_sleep();
        bell.doorbell(Qpn::new(3));
        assert!(!bell.prepare_sleep());
        assert_eq!(bell.take_doorbell(), Some(Qpn::new(3)));
        for n in 0..=DOORBELLS as u32 {
            bell.doorbell(Qpn::new(n));
        }
        assert!(bell.take_all_qps());
        bell.stop();
        assert!(!bell.prepare_sleep());
    }

    #[test]
    fn a_sleeper_is_woken_whenever_it_slept() {
        use rustix::event::{PollFd, PollFlags, poll};
        let bell: Bell<u32> = Bell::new().unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut got = 0;
                loop {
                    got += bell.take_commands().len();
                    if got == 1000 {
                        break;
                    }
                    if bell.prepare_sleep() {
                        let mut fds = [PollFd::new(&bell.wake, PollFlags::IN)];
                        let ten = rustix::time::Timespec {
                            tv_sec: 10,
                            tv_nsec: 0,
                        };
                        assert_eq!(poll(&mut fds, Some(&ten)).unwrap(), 1, "never woken");
                        bell.finish_sleep();
                    }
                }
            });
            for n in 0..1000 {
                bell.command(n);
                if n % 7 == 0 {
                    std::thread::yield_now();
                }
            }
        });
    }
}
