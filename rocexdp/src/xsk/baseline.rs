//! What plain AF_XDP moves between two sockets, one thread each: the yardstick for anything built on top.
//!
//! No protocol, no payload work: the sender writes only the given header into each frame, the receiver only looks at
//! the first byte of each packet. Both threads busy-poll. Compare within one run only: the machine's other load weighs
//! as much as anything measured.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{TxError, Xsk};

/// Packets per receive call and per flush.
const BATCH: usize = 64;

/// After the sender stops, the receiver goes on until nothing has come for this long.
const QUIET: Duration = Duration::from_millis(50);

/// What went through, counted at the receiver.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    /// Frames put on the sender's ring.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Bytes received, whole frames from Ethernet header to the last byte given.
    pub bytes: u64,
    /// How long the sender sent.
    pub elapsed: Duration,
}

impl Throughput {
    /// Received frames per second.
    pub fn frames_per_second(&self) -> f64 {
        self.received as f64 / self.elapsed.as_secs_f64()
    }

    /// Received 10^9 bits per second, whole frames.
    pub fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.elapsed.as_secs_f64()
    }
}

/// Sends frames of `len` bytes that begin with `header` from `sender` to `receiver` for `duration`, each socket on a
/// thread of its own, and counts what arrives. The receiver's XDP program must redirect such frames to it.
///
/// # Errors
/// A socket's error, or `InvalidInput` if the sender can't send frames of this length.
pub fn run(
    sender: &mut Xsk,
    receiver: &mut Xsk,
    header: &[u8],
    len: usize,
    duration: Duration,
) -> io::Result<Throughput> {
    let sending = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(receiver, &sending));
        let sent = send(sender, header, len, duration);
        sending.store(false, Ordering::Release);
        let (received, bytes) = receiving
            .join()
            .map_err(|_| io::Error::other("the receiving thread panicked"))?;
        let (sent, elapsed) = sent?;
        Ok(Throughput {
            sent,
            received,
            bytes,
            elapsed,
        })
    })
}

fn send(
    sender: &mut Xsk,
    header: &[u8],
    len: usize,
    duration: Duration,
) -> io::Result<(u64, Duration)> {
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < duration {
        for _ in 0..BATCH {
            let put = sender.transmit(len, |pieces| {
                if let Some(first) = pieces.first_mut() {
                    first
                        .iter_mut()
                        .zip(header)
                        .for_each(|(byte, value)| *byte = *value);
                }
            });
            match put {
                Ok(()) => sent += 1,
                Err(TxError::Full) => break,
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
            }
        }
        sender.flush()?;
    }
    let elapsed = start.elapsed();
    // What is still on the ring counts as sent: let it go.
    while sender.in_flight() > 0 && start.elapsed() < elapsed + QUIET {
        sender.flush()?;
    }
    Ok((sent, elapsed))
}

fn receive(receiver: &mut Xsk, sending: &AtomicBool) -> (u64, u64) {
    let (mut frames, mut bytes) = (0, 0);
    let mut first_bytes = 0_u64;
    let mut last = Instant::now();
    loop {
        let count = receiver.receive(BATCH, |pieces| {
            bytes += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
            first_bytes += pieces
                .first()
                .and_then(|piece| piece.first())
                .map_or(0, |byte| u64::from(*byte));
        });
        frames += count as u64;
        if count > 0 {
            last = Instant::now();
        } else if !sending.load(Ordering::Acquire) && last.elapsed() > QUIET {
            break;
        } else {
            // Leaves the core's other hardware thread to the sender.
            std::hint::spin_loop();
        }
    }
    std::hint::black_box(first_bytes);
    (frames, bytes)
}
