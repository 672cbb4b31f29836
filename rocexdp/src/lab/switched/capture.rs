//! A capture of one of a lab's links, those between switches included: each frame as it is sent into either end, as a nanosecond
//! pcap for whoever asked. Times are the lab's own, from 0 when it came up.
//!
//! The switches' thread never waits for the reader: frames that find too many waiting are left out of the capture, and counted.
//!
//! Must not: keep anything once its reader has gone.

use std::{
    io::Write as _,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use rocexdp_sim::{
    net::{Network, pcap_header},
    topology::LinkId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::station::Station;

/// Frames that may wait for the reader.
const WAITING: usize = 4096;
/// How soon it is seen that a reader has gone, where nothing is sent.
const LOOK: Duration = Duration::from_millis(200);

/// What the switches' thread knows of a capture.
#[derive(Debug)]
pub(super) struct Capture {
    link: LinkId,
    ended: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
}

impl Capture {
    /// Starts it. The other one is where records come out.
    pub(super) fn start(network: &mut Network<Station>, link: LinkId) -> (Self, Records) {
        let (put, records) = sync_channel(WAITING);
        let capture = Self {
            link,
            ended: Arc::default(),
            lost: Arc::default(),
        };
        let (ended, lost) = (Arc::clone(&capture.ended), Arc::clone(&capture.lost));
        network.set_tap(Box::new(move |tapped| {
            let record = [&tapped.pcap_record()[..], tapped.frame].concat();
            give(&put, record, &ended, &lost);
        }));
        for end in [0, 1] {
            network.tap(link, end, true);
        }
        let ended = Arc::clone(&capture.ended);
        (capture, Records { records, ended })
    }

    /// Whether its reader has gone.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Frames that it lacks.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Stops it.
    pub(super) fn stop(&self, network: &mut Network<Station>) {
        for end in [0, 1] {
            network.tap(self.link, end, false);
        }
        network.set_tap(Box::new(|_| ()));
    }
}

fn give(put: &SyncSender<Vec<u8>>, record: Vec<u8>, ended: &AtomicBool, lost: &AtomicU64) {
    match put.try_send(record) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => {
            lost.fetch_add(1, Ordering::Relaxed);
        }
        Err(TrySendError::Disconnected(_)) => ended.store(true, Ordering::Relaxed),
    }
}

/// The records of a capture.
#[derive(Debug)]
pub struct Records {
    records: Receiver<Vec<u8>>,
    ended: Arc<AtomicBool>,
}

impl Drop for Records {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Records {
    /// Writes them until the reader goes, or the lab. A reader that only says that it wants no more (by shutting down its way here)
    /// gets those that wait, and then the end.
    pub fn write_to(self, mut reader: UnixStream) {
        let mut next = pcap_header().to_vec();
        let mut looked = Instant::now();
        // That the reader has gone is how a capture ends.
        while reader.write_all(&next).is_ok() {
            next = loop {
                if looked.elapsed() >= LOOK {
                    looked = Instant::now();
                    if !wants_more(&reader) {
                        self.end(reader);
                        return;
                    }
                }
                match self.records.recv_timeout(LOOK) {
                    Ok(record) => break record,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            };
        }
    }

    fn end(self, mut reader: UnixStream) {
        self.ended.store(true, Ordering::Relaxed);
        for record in self.records.try_iter().take(WAITING) {
            if reader.write_all(&record).is_err() {
                return;
            }
        }
    }
}

/// Whether the other end has not said that it is done.
fn wants_more(reader: &UnixStream) -> bool {
    let mut fds = [PollFd::new(reader, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(
        poll(&mut fds, Some(&now)),
        Ok(0) | Err(rustix::io::Errno::INTR)
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn records_go_to_the_reader_until_it_goes() {
        let (put, records) = sync_channel(2);
        let (ended, lost) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
        let records = Records {
            records,
            ended: Arc::clone(&ended),
        };
        for byte in 1..=4 {
            give(&put, vec![byte; 20], &ended, &lost);
        }
        assert_eq!(
            lost.load(Ordering::Relaxed),
            2,
            "two wait, two are left out"
        );
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || records.write_to(writer));
        let mut bytes = [0; 24 + 40];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes[..24], &pcap_header());
        assert_eq!(&bytes[24..], [[1; 20], [2; 20]].concat());
        drop(reader);
        // Although nothing is sent any more.
        thread.join().unwrap();
        assert!(ended.load(Ordering::Relaxed));
    }

    #[test]
    fn a_reader_that_wants_no_more_gets_what_waits() {
        let (put, records) = sync_channel(8);
        let ended = Arc::new(AtomicBool::new(false));
        let records = Records {
            records,
            ended: Arc::clone(&ended),
        };
        let (mut reader, writer) = UnixStream::pair().unwrap();
        reader.shutdown(std::net::Shutdown::Write).unwrap();
        for byte in 1..=8 {
            give(&put, vec![byte; 20], &ended, &AtomicU64::new(0));
        }
        let thread = std::thread::spawn(move || records.write_to(writer));
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        thread.join().unwrap();
        assert_eq!(all.len(), 24 + 8 * 20);
        assert!(ended.load(Ordering::Relaxed));
    }
}
