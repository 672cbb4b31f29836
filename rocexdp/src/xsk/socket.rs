//! The two paths of a bound socket: receive and send.
//!
//! Both work in batches: rings are published once per call of [`Xsk::receive`] or [`Xsk::flush`], and system calls are
//! made only when the kernel needs one. Nothing here allocates. Nothing here drops a packet silently: what is refused
//! is counted in [`XskCounters`], and a full TX ring is an answer to the caller, not a loss.
//!
//! Send calls follow `__xsk_generic_xmit` of `net/xdp/xsk.c`: EAGAIN means that packets are still on the ring (budget,
//! socket buffer, stopped device queue), EBUSY that the device dropped one packet and the rest are still on the ring.

use std::array;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::MAX_FRAGS;
use super::ring::{Consumer, Producer};
use super::stats::{XskCounters, XskStatistics};
use super::umem::{BadDescriptor, Frame, RxFrame, Umem};

/// How packets get between the driver and the packet memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The driver reads and writes the packet memory itself.
    ZeroCopy,
    /// The kernel copies each packet.
    Copy,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copy => "copy",
        })
    }
}

/// Why a packet was not put on the TX ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// No ring entry or no chunk is free: flush, and try again later.
    Full,
    /// The socket can never send a packet of this length.
    Length {
        /// Asked for.
        len: usize,
        /// Largest possible; the smallest is 1.
        max: usize,
    },
}

impl fmt::Display for TxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("TX ring full: flush and try again"),
            Self::Length { len, max } => {
                write!(f, "packet of {len} B: this socket sends 1 to {max} B")
            }
        }
    }
}

impl std::error::Error for TxError {}

/// The pieces of a packet whose last piece has not been seen yet.
struct Pending {
    pieces: [Option<RxFrame>; MAX_FRAGS],
    len: usize,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Deliver,
    BadDescriptor,
    TooManyFrags,
}

/// What [`Xsk::new`] takes, made by `open`.
pub(super) struct Parts {
    pub socket: OwnedFd,
    pub umem: Umem,
    pub rx: Consumer<libc::xdp_desc>,
    pub tx: Producer<libc::xdp_desc>,
    pub fill: Producer<u64>,
    pub comp: Consumer<u64>,
    pub spare: Vec<Frame>,
    pub free: Vec<Frame>,
    pub multi_buffer: bool,
    pub tx_budget: u32,
}

impl Parts {
    /// Has the driver look at the fill ring.
    fn wake_receiver(&self) -> rustix::io::Result<()> {
        rustix::net::recv(&self.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT).map(drop)
    }
}

/// An AF_XDP socket bound to one queue of one interface. Belongs to one thread at a time; may be moved.
pub struct Xsk {
    parts: Parts,
    pending: Pending,
    mode: Mode,
    zero_copy_refused: Option<Errno>,
    counters: XskCounters,
}

impl Xsk {
    pub(super) fn new(parts: Parts) -> Self {
        let pending = Pending {
            pieces: array::from_fn(|_| None),
            len: 0,
            fate: Fate::Deliver,
        };
        Self {
            parts,
            pending,
            mode: Mode::Copy,
            zero_copy_refused: None,
            counters: XskCounters::default(),
        }
    }

    pub(super) fn bound(&mut self, mode: Mode, zero_copy_refused: Option<Errno>) {
        self.mode = mode;
        self.zero_copy_refused = zero_copy_refused;
    }

    /// The mode in force, as the kernel reports it.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why the kernel refused zero-copy, if it was tried and refused.
    pub fn zero_copy_refused(&self) -> Option<Errno> {
        self.zero_copy_refused
    }

    /// Descriptors that one send call handles in copy mode.
    pub fn tx_budget(&self) -> u32 {
        self.parts.tx_budget
    }

    /// Takes up to `max_packets` received packets off the ring and shows each to `f` as 1 to [`MAX_FRAGS`] pieces in
    /// order. Afterwards the chunks go back to the kernel. Returns the number of packets shown.
    ///
    /// A packet is shown whole or not at all; if its last piece is not there yet it waits for a later call. Packets with
    /// a descriptor that is not believable, or with too many pieces, are dropped and counted.
    pub fn receive(&mut self, max_packets: usize, mut f: impl FnMut(&[&[u8]])) -> usize {
        let mut shown = 0;
        // Dropped packets don't count as shown: bound the descriptors too.
        let mut descriptors = max_packets.saturating_mul(MAX_FRAGS);
        while shown < max_packets && descriptors > 0 {
            let Some(descriptor) = self.parts.rx.pop() else {
                break;
            };
            descriptors -= 1;
            self.gather(&descriptor);
            if descriptor.options & libc::XDP_PKT_CONTD == 0 && self.finish_packet(&mut f) {
                shown += 1;
            }
        }
        self.parts.rx.release();
        self.refill();
        shown
    }

    /// Descriptors that wait on the RX ring, and how many it holds.
    pub fn rx_fill(&mut self) -> (u32, u32) {
        self.parts.rx.fill()
    }

    /// Adds one descriptor's chunk to the pending packet.
    fn gather(&mut self, descriptor: &libc::xdp_desc) {
        let Parts { umem, spare, .. } = &mut self.parts;
        let pending = &mut self.pending;
        match umem.take_received(descriptor.addr, descriptor.len) {
            Ok(piece) => match pending.pieces.get_mut(pending.len) {
                Some(slot) if pending.fate == Fate::Deliver => {
                    *slot = Some(piece);
                    pending.len += 1;
                }
                slot => {
                    if slot.is_none() && pending.fate == Fate::Deliver {
                        pending.fate = Fate::TooManyFrags;
                    }
                    spare.push(piece.into_frame());
                }
            },
            Err(bad) => {
                pending.fate = Fate::BadDescriptor;
                if let BadDescriptor::OutsideChunk(frame) = bad {
                    spare.push(frame);
                }
            }
        }
    }

    /// Shows the pending packet if it is sound, and keeps its chunks. True if it was shown.
    fn finish_packet(&mut self, f: &mut impl FnMut(&[&[u8]])) -> bool {
        let Parts { umem, spare, .. } = &mut self.parts;
        let pending = &mut self.pending;
        let shown = pending.fate == Fate::Deliver && pending.len > 0;
        if shown {
            let mut pieces: [&[u8]; MAX_FRAGS] = [&[]; MAX_FRAGS];
            for (piece, received) in pieces.iter_mut().zip(pending.pieces.iter().flatten()) {
                *piece = umem.received(received);
                self.counters.rx_bytes += received.len() as u64;
            }
            self.counters.rx_packets += 1;
            f(pieces.get(..pending.len).unwrap_or_default());
        } else if pending.fate == Fate::TooManyFrags {
            self.counters.rx_too_many_frags += 1;
        } else {
            self.counters.rx_bad_descriptor += 1;
        }
        spare.extend(
            pending
                .pieces
                .iter_mut()
                .take(pending.len)
                .filter_map(Option::take)
                .map(RxFrame::into_frame),
        );
        pending.len = 0;
        pending.fate = Fate::Deliver;
        shown
    }

    /// Gives spare chunks to the kernel to receive into, and wakes it if it asks for that.
    pub(super) fn refill(&mut self) {
        let Parts {
            umem, fill, spare, ..
        } = &mut self.parts;
        let mut room = fill.free(u32::try_from(spare.len()).unwrap_or(u32::MAX));
        while room > 0 {
            let Some(frame) = spare.pop() else { break };
            // Cannot be refused: `room` says so. If it were, the ledger would still hold the chunk as lent.
            let pushed = fill.push(umem.lend_to_fill(frame));
            debug_assert!(pushed.is_ok());
            room -= 1;
        }
        fill.publish();
        if fill.needs_wakeup() {
            self.counters.fill_kicks += 1;
            // The answer says nothing that `wait` and `flush` do not say.
            let _ = self.parts.wake_receiver();
        }
    }

    /// Largest packet that can be sent, in bytes.
    pub fn tx_max_len(&self) -> usize {
        let pieces = if self.parts.multi_buffer {
            MAX_FRAGS
        } else {
            1
        };
        pieces * self.parts.umem.chunk_size() as usize
    }

    fn pieces_of(&self, len: usize) -> Result<usize, TxError> {
        let max = self.tx_max_len();
        if len == 0 || len > max {
            return Err(TxError::Length { len, max });
        }
        Ok(len.div_ceil(self.parts.umem.chunk_size() as usize))
    }

    /// How many packets of `len` bytes can be put on the TX ring now. Reads completions if it has to. 0 also if the
    /// length can never be sent (see [`Xsk::tx_max_len`]).
    pub fn tx_room(&mut self, len: usize) -> usize {
        let Ok(pieces) = self.pieces_of(len) else {
            return 0;
        };
        self.reap();
        let entries = self.parts.tx.free(u32::MAX) as usize;
        entries.min(self.parts.free.len()) / pieces
    }

    /// Puts a packet of `len` bytes on the TX ring. `fill` writes it into pieces whose lengths sum to `len`, each but the
    /// last a whole chunk; what stood in them before is undefined. Sent by the next [`Xsk::flush`].
    ///
    /// # Errors
    /// [`TxError::Full`]: nothing was done, `fill` was not called. [`TxError::Length`]: never possible on this socket.
    pub fn transmit(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [&mut [u8]]),
    ) -> Result<(), TxError> {
        let fill = |pieces: &mut [&mut [u8]]| {
            fill(pieces);
            true
        };
        self.transmit_if(len, fill).map(drop)
    }

    /// As [`Xsk::transmit`], unless `fill` says by `false` that the packet, once written, is not to be sent after all: then its chunks
    /// are free again. Whether it was put on the ring.
    ///
    /// # Errors
    /// As [`Xsk::transmit`].
    pub fn transmit_if(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [&mut [u8]]) -> bool,
    ) -> Result<bool, TxError> {
        let count = self.pieces_of(len)?;
        if self.parts.free.len() < count {
            self.reap();
        }
        let Parts { umem, tx, free, .. } = &mut self.parts;
        if free.len() < count || (tx.free(count as u32) as usize) < count {
            return Err(TxError::Full);
        }
        let mut frames: [Option<Frame>; MAX_FRAGS] = array::from_fn(|_| None);
        for frame in frames.iter_mut().take(count) {
            *frame = free.pop();
        }
        let send = {
            let mut pieces: [&mut [u8]; MAX_FRAGS] = array::from_fn(|_| &mut [][..]);
            let mut left = len;
            for (piece, frame) in pieces.iter_mut().zip(frames.iter_mut().flatten()) {
                let (now, _) = umem
                    .bytes_mut(frame)
                    .split_at_mut(left.min(umem.chunk_size() as usize));
                left -= now.len();
                *piece = now;
            }
            fill(pieces.get_mut(..count).unwrap_or_default())
        };
        if !send {
            free.extend(frames.into_iter().flatten());
            return Ok(false);
        }
        let mut left = len as u32;
        for frame in frames.into_iter().flatten() {
            let mut descriptor = umem.lend_to_tx(frame, left);
            left -= descriptor.len;
            if left > 0 {
                descriptor.options = libc::XDP_PKT_CONTD;
            }
            let pushed = tx.push(descriptor);
            debug_assert!(pushed.is_ok());
        }
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        Ok(true)
    }

    /// Hands everything on the TX ring to the kernel, makes it send, and takes back what is sent. Call it also when
    /// nothing is new: what back-pressure left on the ring goes out then.
    ///
    /// # Errors
    /// The interface is down or gone (`ENETDOWN`, `ENXIO`). Back-pressure is none: see [`Xsk::unsent`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.parts.tx.publish();
        let result = match self.mode {
            Mode::Copy => self.send_copied(),
            Mode::ZeroCopy => self.wake_driver(),
        };
        self.reap();
        result
    }

    fn kick(&mut self) -> Result<(), Errno> {
        self.counters.tx_kicks += 1;
        rustix::net::send(&self.parts.socket, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// In copy mode the send call itself transmits, up to the budget.
    fn send_copied(&mut self) -> io::Result<()> {
        let mut left = self.parts.tx.outstanding();
        // Every turn takes at least one descriptor off the ring, or leaves.
        while left > 0 {
            let result = self.kick();
            let before = std::mem::replace(&mut left, self.parts.tx.outstanding());
            match result {
                Ok(()) => {}
                Err(Errno::BUSY) => self.counters.tx_device_drops += 1,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR)
                    if before - left >= self.parts.tx_budget => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {
                    self.counters.tx_backpressure += 1;
                    break;
                }
                Err(errno) => return Err(errno.into()),
            }
            if left >= before {
                break;
            }
        }
        Ok(())
    }

    /// In zero-copy mode the driver looks at the ring itself, unless it asks to be woken.
    fn wake_driver(&mut self) -> io::Result<()> {
        if self.parts.tx.needs_wakeup() && self.parts.tx.outstanding() > 0 {
            match self.kick() {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::BUSY | Errno::INTR) => {
                    self.counters.tx_backpressure += 1
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Takes sent chunks back from the completion ring.
    fn reap(&mut self) {
        let Parts {
            umem, comp, free, ..
        } = &mut self.parts;
        while let Some(addr) = comp.pop() {
            match umem.take_completed(addr) {
                Ok(frame) => {
                    self.counters.tx_completed_descs += 1;
                    free.push(frame);
                }
                Err(_) => self.counters.tx_bad_completion += 1,
            }
        }
        comp.release();
    }

    /// Descriptors that the kernel has not taken off the TX ring yet, as of the last flush.
    pub fn unsent(&mut self) -> usize {
        self.parts.tx.outstanding() as usize
    }

    /// Chunks given to the kernel to send and not back yet: on the TX ring, in device queues, or completed and not
    /// read. 0 means that everything ever sent has left.
    pub fn in_flight(&self) -> usize {
        self.parts.umem.lent_to_tx()
    }

    /// Sleeps until a packet is there, or the time is up. True if there is one. In copy mode the kernel also sends what
    /// is on the TX ring (`xsk_poll`).
    ///
    /// # Errors
    /// What `poll` says. With no packet there: `ENETDOWN` while the interface is down, `ENXIO` once it is gone, which
    /// `poll` itself never reports for these sockets.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.parts.socket, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).map_err(|_| Errno::INVAL)?;
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [fd] = fds;
        if fd.revents().contains(PollFlags::IN) {
            return Ok(true);
        }
        match self.parts.wake_receiver() {
            Err(errno @ (Errno::NETDOWN | Errno::NXIO)) => Err(errno.into()),
            _ => Ok(false),
        }
    }

    /// The kernel's counts (a system call).
    ///
    /// # Errors
    /// What `getsockopt(XDP_STATISTICS)` says.
    pub fn statistics(&self) -> io::Result<XskStatistics> {
        let kernel = sockopt::xdp_statistics(&self.parts.socket)?;
        Ok(XskStatistics {
            rx_dropped: kernel.rx_dropped,
            rx_invalid_descs: kernel.rx_invalid_descs,
            tx_invalid_descs: kernel.tx_invalid_descs,
            rx_ring_full: kernel.rx_ring_full,
            rx_fill_ring_empty_descs: kernel.rx_fill_ring_empty_descs,
            tx_ring_empty_descs: kernel.tx_ring_empty_descs,
        })
    }

    /// Our own counts.
    pub fn counters(&self) -> &XskCounters {
        &self.counters
    }
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.parts.socket.as_fd()
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
