//! UMEM: the packet memory shared with the kernel, and who owns which chunk of it.
//!
//! Memory is cut into chunks of one size (aligned mode). A [`Frame`] is the right to touch one chunk: it can be
//! neither copied nor made from a number, it is given up when the chunk is lent to the kernel, and it comes back only
//! through a descriptor that this file has checked. So a chunk used twice does not compile:
//!
//! ```
//! # fn lend(umem: &mut rocexdp::xsk::umem::Umem, frame: rocexdp::xsk::umem::Frame) {
//! umem.lend_to_fill(frame);
//! # }
//! ```
//! ```compile_fail,E0382
//! # fn lend(umem: &mut rocexdp::xsk::umem::Umem, frame: rocexdp::xsk::umem::Frame) {
//! umem.lend_to_fill(frame);
//! umem.lend_to_tx(frame, 64);
//! # }
//! ```
//!
//! A ledger holds each chunk's owner. A descriptor from the kernel is believed only if it names a chunk that was lent
//! on that path, and only as far as it stays within that chunk; this holds in release builds too. (Kernel side:
//! `net/xdp/xdp_umem.c` for the limits, `xsk_buff_pool.c` for how addresses are formed.)
//!
//! This file knows no rings and makes no system calls: it takes any memory, so its tests need no kernel.

use std::sync::atomic::{AtomicU32, Ordering};

use super::sys::Mapping;

/// Chunk sizes that the kernel takes in aligned mode: 2048 up to a page, a power of two (`xdp_umem_reg`).
pub const CHUNK_SIZES: [u32; 2] = [2048, 4096];

/// What the kernel keeps free at the start of a receive chunk, before `headroom` (`XDP_PACKET_HEADROOM`).
pub const XDP_PACKET_HEADROOM: u32 = 256;

/// Exclusive right to the bytes of one chunk while userspace has it. See the module's head.
#[derive(Debug)]
pub struct Frame {
    chunk: u32,
    umem: u32,
}

/// A chunk that came back filled by the kernel: a frame and where the packet's bytes stand in it.
#[derive(Debug)]
pub struct RxFrame {
    frame: Frame,
    offset: u32,
    len: u32,
}

impl RxFrame {
    /// Bytes of the packet in this chunk.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if no byte of the packet is here.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the packet and keeps the chunk.
    pub fn into_frame(self) -> Frame {
        self.frame
    }
}

/// Why a descriptor from the kernel was not believed.
#[derive(Debug)]
pub enum BadDescriptor {
    /// The address lies outside the UMEM.
    OutsideUmem,
    /// The chunk was not lent to the kernel on this path, so its bytes are not ours to take.
    NotLent,
    /// The chunk is right, but address + length leaves it. The chunk itself is given back.
    OutsideChunk(Frame),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    User,
    Fill,
    Tx,
}

/// The packet memory and its ledger.
pub struct Umem {
    memory: Mapping,
    chunk_size: u32,
    ledger: Box<[Owner]>,
    lent_to_fill: usize,
    lent_to_tx: usize,
    id: u32,
}

impl Umem {
    /// Divides `memory` into chunks of `chunk_size` bytes (one of [`CHUNK_SIZES`]); a rest is left unused. Returns the
    /// UMEM and one frame per chunk, in order of address.
    pub(super) fn new(memory: Mapping, chunk_size: u32) -> (Self, Vec<Frame>) {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let chunks = u32::try_from(memory.len() / chunk_size as usize).unwrap_or(u32::MAX);
        let umem = Self {
            memory,
            chunk_size,
            ledger: vec![Owner::User; chunks as usize].into_boxed_slice(),
            lent_to_fill: 0,
            lent_to_tx: 0,
            id,
        };
        (
            umem,
            (0..chunks).map(|chunk| Frame { chunk, umem: id }).collect(),
        )
    }

    /// Address of the first byte, for `XDP_UMEM_REG`.
    pub(super) fn address(&self) -> u64 {
        self.memory.as_ptr().as_ptr().addr() as u64
    }

    /// Bytes per chunk.
    pub fn chunk_size(&self) -> u32 {
        self.chunk_size
    }

    /// Number of chunks.
    pub fn chunks(&self) -> usize {
        self.ledger.len()
    }

    /// Chunks that the kernel has to receive into, or has filled and not yet shown.
    pub fn lent_to_fill(&self) -> usize {
        self.lent_to_fill
    }

    /// Chunks that the kernel has to send, or has sent and not yet completed.
    pub fn lent_to_tx(&self) -> usize {
        self.lent_to_tx
    }

    /// Gives a chunk to the kernel to receive into. The address goes into the fill ring.
    pub fn lend_to_fill(&mut self, frame: Frame) -> u64 {
        self.lent_to_fill += 1;
        self.lend(frame, Owner::Fill)
    }

    /// Gives a chunk to the kernel to send its first `len` bytes. The descriptor, its options 0, goes into the TX ring.
    pub fn lend_to_tx(&mut self, frame: Frame, len: u32) -> libc::xdp_desc {
        self.lent_to_tx += 1;
        let len = len.min(self.chunk_size);
        libc::xdp_desc {
            addr: self.lend(frame, Owner::Tx),
            len,
            options: 0,
        }
    }

    fn lend(&mut self, frame: Frame, to: Owner) -> u64 {
        self.assert_ours(&frame);
        if let Some(owner) = self.ledger.get_mut(frame.chunk as usize) {
            *owner = to;
        }
        u64::from(frame.chunk) * u64::from(self.chunk_size)
    }

    /// Takes back a chunk that the RX ring shows with `len` bytes of a packet at `addr`.
    ///
    /// # Errors
    /// [`BadDescriptor`]: nothing of the chunk may be read.
    pub fn take_received(&mut self, addr: u64, len: u32) -> Result<RxFrame, BadDescriptor> {
        let frame = self.take(addr, Owner::Fill)?;
        self.lent_to_fill -= 1;
        // Below the chunk size, so it fits.
        let offset = (addr % u64::from(self.chunk_size)) as u32;
        if len > self.chunk_size - offset {
            return Err(BadDescriptor::OutsideChunk(frame));
        }
        Ok(RxFrame { frame, offset, len })
    }

    /// Takes back a chunk whose sending the completion ring reports.
    ///
    /// # Errors
    /// [`BadDescriptor`]: the address is none that is being sent.
    pub fn take_completed(&mut self, addr: u64) -> Result<Frame, BadDescriptor> {
        let frame = self.take(addr, Owner::Tx)?;
        self.lent_to_tx -= 1;
        Ok(frame)
    }

    fn take(&mut self, addr: u64, from: Owner) -> Result<Frame, BadDescriptor> {
        let chunk = u32::try_from(addr / u64::from(self.chunk_size))
            .map_err(|_| BadDescriptor::OutsideUmem)?;
        let owner = self
            .ledger
            .get_mut(chunk as usize)
            .ok_or(BadDescriptor::OutsideUmem)?;
        if *owner != from {
            return Err(BadDescriptor::NotLent);
        }
        *owner = Owner::User;
        Ok(Frame {
            chunk,
            umem: self.id,
        })
    }

    /// The packet's bytes in a received chunk.
    pub fn received<'a>(&'a self, rx: &'a RxFrame) -> &'a [u8] {
        self.assert_ours(&rx.frame);
        let start = self.chunk_start(&rx.frame).wrapping_add(rx.offset as usize);
        // SAFETY: `take_received` checked that offset + len stays in the chunk, which lies in the mapping; the frame is
        // the only right to the chunk, userspace has it, and it stays borrowed with the slice.
        unsafe { std::slice::from_raw_parts(start, rx.len as usize) }
    }

    /// The whole chunk, to write a packet into.
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.assert_ours(frame);
        let start = self.chunk_start(frame);
        // SAFETY: the chunk lies in the mapping; the frame is the only right to it and is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(start, self.chunk_size as usize) }
    }

    fn chunk_start(&self, frame: &Frame) -> *mut u8 {
        self.memory
            .as_ptr()
            .as_ptr()
            .wrapping_add(frame.chunk as usize * self.chunk_size as usize)
    }

    /// A frame of another UMEM names memory that someone else owns: a bug in the caller, not an input.
    fn assert_ours(&self, frame: &Frame) {
        assert_eq!(frame.umem, self.id, "frame of another UMEM");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn umem(chunks: usize, chunk_size: u32) -> (Umem, Vec<Frame>) {
        Umem::new(
            Mapping::anonymous(chunks * chunk_size as usize).unwrap(),
            chunk_size,
        )
    }

    #[test]
    fn every_chunk_is_somewhere_and_nowhere_twice() {
        let (mut umem, mut user) = umem(64, 2048);
        let (mut filling, mut sending) = (Vec::new(), Vec::new());
        let mut state = 0x1234_5678_9abc_def1_u64;
        let mut random = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) as usize % bound
        };
        for _ in 0..10_000 {
            match random(4) {
                0 if !user.is_empty() => {
                    let frame = user.swap_remove(random(user.len()));
                    filling.push(umem.lend_to_fill(frame));
                }
                1 if !user.is_empty() => {
                    let frame = user.swap_remove(random(user.len()));
                    sending.push(umem.lend_to_tx(frame, 100).addr);
                }
                2 if !filling.is_empty() => {
                    let addr = filling.swap_remove(random(filling.len()));
                    let rx = umem.take_received(addr + 256, 2048 - 256).unwrap();
                    assert_eq!(umem.received(&rx).len(), 2048 - 256);
                    assert!(
                        matches!(umem.take_received(addr, 1), Err(BadDescriptor::NotLent)),
                        "given twice"
                    );
                    user.push(rx.into_frame());
                }
                3 if !sending.is_empty() => {
                    let addr = sending.swap_remove(random(sending.len()));
                    user.push(umem.take_completed(addr).unwrap());
                    assert!(
                        matches!(umem.take_completed(addr), Err(BadDescriptor::NotLent)),
                        "completed twice"
                    );
                }
                _ => {}
            }
            assert_eq!(
                (umem.lent_to_fill(), umem.lent_to_tx()),
                (filling.len(), sending.len())
            );
            assert_eq!(user.len() + filling.len() + sending.len(), umem.chunks());
            let mut chunks: Vec<u64> = user
                .iter()
                .map(|frame| u64::from(frame.chunk) * 2048)
                .collect();
            chunks.extend(filling.iter().chain(&sending));
            chunks.sort_unstable();
            chunks.dedup();
            assert_eq!(chunks.len(), umem.chunks());
        }
    }

    #[test]
    fn descriptors_outside_the_umem_or_the_chunk_are_refused() {
        let (mut umem, mut user) = umem(4, 4096);
        let fill = umem.lend_to_fill(user.remove(1));
        assert_eq!(fill, 4096);
        for addr in [
            4 * 4096,
            4 * 4096 + 1,
            u64::from(u32::MAX) * 4096,
            (1 << 45) + 4096,
            u64::MAX,
        ] {
            assert!(
                matches!(umem.take_received(addr, 1), Err(BadDescriptor::OutsideUmem)),
                "{addr:#x}"
            );
            assert!(
                matches!(umem.take_completed(addr), Err(BadDescriptor::OutsideUmem)),
                "{addr:#x}"
            );
        }
        // Not lent at all, lent on the other path.
        assert!(matches!(
            umem.take_received(0, 1),
            Err(BadDescriptor::NotLent)
        ));
        assert!(matches!(
            umem.take_completed(fill),
            Err(BadDescriptor::NotLent)
        ));
        // Too long by one, by all of u32: the chunk comes back, so that nothing leaks.
        for len in [4096 - 256 + 1, u32::MAX] {
            let Err(BadDescriptor::OutsideChunk(frame)) = umem.take_received(fill + 256, len)
            else {
                panic!("length {len} accepted");
            };
            assert_eq!(umem.lent_to_fill(), 0);
            assert_eq!(umem.lend_to_fill(frame), fill);
        }
        // The last byte of the chunk is still good.
        assert_eq!(umem.take_received(fill + 4095, 1).unwrap().len(), 1);
    }

    #[test]
    fn bytes_written_stand_in_the_chunk_and_nowhere_else() {
        let (mut umem, mut user) = umem(3, 2048);
        let mut middle = user.remove(1);
        umem.bytes_mut(&mut middle).fill(0xa5);
        let addr = umem.lend_to_fill(middle);
        for neighbour in &mut user {
            assert!(umem.bytes_mut(neighbour).iter().all(|byte| *byte == 0));
        }
        let rx = umem.take_received(addr, 2048).unwrap();
        assert!(umem.received(&rx).iter().all(|byte| *byte == 0xa5));
    }

    #[test]
    #[should_panic(expected = "frame of another UMEM")]
    fn a_frame_works_on_its_own_umem_only() {
        let (_, mut stranger) = umem(1, 2048);
        let (mut umem, _user) = umem(1, 2048);
        umem.lend_to_fill(stranger.remove(0));
    }
}
