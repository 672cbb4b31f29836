//! The receive and send paths with the test in the kernel's place: rings in plain memory, odd descriptors, no device.

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::plain::Plain;
use super::super::sys::Mapping;
use super::*;

const CHUNK: u64 = 2048;
const NONE: libc::xdp_desc = libc::xdp_desc {
    addr: 0,
    len: 0,
    options: 0,
};

/// The kernel's halves of a socket's rings.
struct Kernel {
    rx: Producer<libc::xdp_desc>,
    tx: Consumer<libc::xdp_desc>,
    fill: Consumer<u64>,
    comp: Producer<u64>,
    fill_flags: Arc<Plain<u64>>,
    /// The other end of what stands for the socket.
    _peer: UnixDatagram,
}

fn socket(frames: usize) -> (Xsk, Kernel) {
    let start = u32::MAX - 5;
    let (rx, tx) = (Plain::new(16, start, NONE), Plain::new(16, start, NONE));
    let (fill, comp) = (Plain::new(16, start, 0), Plain::new(16, start, 0));
    let (umem, mut spare) = Umem::new(
        Mapping::anonymous(2 * frames * CHUNK as usize).unwrap(),
        CHUNK as u32,
    );
    let free = spare.split_off(frames);
    let (ours, peer) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut xsk = Xsk::new(Parts {
        socket: ours.into(),
        umem,
        rx: rx.consumer_half(),
        tx: tx.producer_half(),
        fill: fill.producer_half(),
        comp: comp.consumer_half(),
        spare,
        free,
        multi_buffer: true,
        tx_budget: 32,
    });
    xsk.refill();
    let kernel = Kernel {
        rx: rx.producer_half(),
        tx: tx.consumer_half(),
        fill: fill.consumer_half(),
        comp: comp.producer_half(),
        fill_flags: fill,
        _peer: peer,
    };
    (xsk, kernel)
}

impl Kernel {
    /// Takes a chunk to receive into.
    fn take(&mut self) -> u64 {
        let addr = self.fill.pop().expect("a chunk on the fill ring");
        self.fill.release();
        addr
    }

    /// Shows `len` bytes of a packet in the chunk at `addr`, behind the usual headroom.
    fn show(&mut self, addr: u64, len: u32, more: bool) {
        let options = if more { libc::XDP_PKT_CONTD } else { 0 };
        self.rx
            .push(libc::xdp_desc {
                addr: addr + 256,
                len,
                options,
            })
            .expect("room on the RX ring");
        self.rx.publish();
    }

    fn sent(&mut self) -> Vec<libc::xdp_desc> {
        let sent = std::iter::from_fn(|| self.tx.pop()).collect();
        self.tx.release();
        sent
    }

    fn complete(&mut self, addr: u64) {
        self.comp.push(addr).expect("room on the completion ring");
        self.comp.publish();
    }
}

/// Lengths of the pieces of each packet shown.
fn receive(xsk: &mut Xsk) -> Vec<Vec<usize>> {
    let mut packets = Vec::new();
    xsk.receive(64, |pieces| {
        packets.push(pieces.iter().map(|piece| piece.len()).collect())
    });
    packets
}

/// Every receive chunk is spare or lent: none is lost.
fn assert_no_rx_chunk_lost(xsk: &Xsk, frames: usize) {
    assert_eq!(
        xsk.parts.spare.len() + xsk.parts.umem.lent_to_fill() + xsk.pending.len,
        frames
    );
}

#[test]
fn a_packet_is_never_shown_before_its_last_piece() {
    let (mut xsk, mut kernel) = socket(8);
    let chunks: Vec<u64> = (0..3).map(|_| kernel.take()).collect();
    kernel.show(chunks[0], 1792, true);
    assert_eq!(receive(&mut xsk), Vec::<Vec<usize>>::new());
    kernel.show(chunks[1], 1792, true);
    assert_eq!(receive(&mut xsk), Vec::<Vec<usize>>::new());
    assert_no_rx_chunk_lost(&xsk, 8);
    kernel.show(chunks[2], 586, false);
    assert_eq!(receive(&mut xsk), vec![vec![1792, 1792, 586]]);
    assert_no_rx_chunk_lost(&xsk, 8);
    assert_eq!((xsk.counters.rx_packets, xsk.counters.rx_bytes), (1, 4170));
}

#[test]
fn a_packet_with_a_bad_descriptor_is_dropped_whole_and_the_next_one_is_sound() {
    let (mut xsk, mut kernel) = socket(8);
    let bad: [(u64, u32); 4] = [
        (u64::MAX - 300, 60),        // outside the memory
        (15 * CHUNK, 60),            // a chunk of the send side
        (0, 1793),                   // leaves its chunk (address replaced below)
        (7 * CHUNK + (1 << 40), 60), // index beyond u32 arithmetic
    ];
    for (turn, (addr, len)) in bad.into_iter().enumerate() {
        let (first, last) = (kernel.take(), kernel.take());
        let own = if addr == 0 { Some(kernel.take()) } else { None };
        kernel.show(first, 100, true);
        kernel.show(own.unwrap_or(addr), len, true);
        kernel.show(last, 100, false);
        let good = kernel.take();
        kernel.show(good, 60, false);
        assert_eq!(receive(&mut xsk), vec![vec![60]], "turn {turn}");
        assert_eq!(xsk.counters.rx_bad_descriptor, turn as u64 + 1);
        assert_no_rx_chunk_lost(&xsk, 8);
    }
}

#[test]
fn a_chunk_shown_twice_is_believed_once() {
    let (mut xsk, mut kernel) = socket(8);
    let chunk = kernel.take();
    kernel.show(chunk, 60, false);
    kernel.show(chunk, 60, false);
    assert_eq!(receive(&mut xsk), vec![vec![60]]);
    assert_eq!(xsk.counters.rx_bad_descriptor, 1);
}

#[test]
fn a_packet_of_too_many_pieces_is_dropped_and_counted() {
    let (mut xsk, mut kernel) = socket(16);
    for more in [true; MAX_FRAGS].into_iter().chain([false]) {
        let chunk = kernel.take();
        kernel.show(chunk, 10, more);
    }
    for more in [true; MAX_FRAGS - 1].into_iter().take(2).chain([false]) {
        let chunk = kernel.take();
        kernel.show(chunk, 20, more);
    }
    assert_eq!(receive(&mut xsk), vec![vec![20, 20, 20]]);
    assert_eq!(xsk.counters.rx_too_many_frags, 1);
    assert_no_rx_chunk_lost(&xsk, 16);
}

#[test]
fn the_kernel_is_woken_to_refill_only_when_it_asks() {
    let (mut xsk, kernel) = socket(8);
    receive(&mut xsk);
    assert_eq!(xsk.counters.fill_kicks, 0);
    kernel
        .fill_flags
        .flags
        .store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
    receive(&mut xsk);
    assert_eq!(xsk.counters.fill_kicks, 1);
}

#[test]
fn sent_pieces_sum_to_the_length_and_only_the_last_ends_the_packet() {
    let (mut xsk, mut kernel) = socket(16);
    for len in [1_usize, 2047, 2048, 2049, 4170, 16384] {
        xsk.transmit(len, |pieces| {
            assert_eq!(pieces.iter().map(|piece| piece.len()).sum::<usize>(), len);
            pieces.iter_mut().for_each(|piece| piece.fill(len as u8));
        })
        .unwrap();
        assert!(
            kernel.sent().is_empty(),
            "nothing is published before flush"
        );
        xsk.flush().unwrap();
        let sent = kernel.sent();
        assert_eq!(
            sent.iter().map(|desc| desc.len as usize).sum::<usize>(),
            len
        );
        let more: Vec<bool> = sent
            .iter()
            .map(|desc| desc.options & libc::XDP_PKT_CONTD != 0)
            .collect();
        assert_eq!(
            more,
            (1..=sent.len())
                .map(|piece| piece < sent.len())
                .collect::<Vec<_>>()
        );
        for desc in &sent {
            assert_eq!(desc.addr % CHUNK, 0);
            assert!(u64::from(desc.len) <= CHUNK);
            kernel.complete(desc.addr);
        }
        assert_eq!(xsk.in_flight(), sent.len());
        xsk.flush().unwrap();
        assert_eq!(xsk.in_flight(), 0);
    }
    for len in [0, 16385, usize::MAX] {
        assert_eq!(
            xsk.transmit(len, |_| panic!("called")),
            Err(TxError::Length { len, max: 16384 })
        );
        assert_eq!(xsk.tx_room(len), 0);
    }
}

#[test]
fn a_full_ring_refuses_and_loses_nothing() {
    let (mut xsk, mut kernel) = socket(20);
    // 16 entries, 20 chunks: the ring is the limit, and a packet of two pieces needs two entries.
    assert_eq!((xsk.tx_room(60), xsk.tx_room(2049)), (16, 8));
    for number in 0..15_u8 {
        xsk.transmit(60, |pieces| pieces[0].fill(number)).unwrap();
    }
    assert_eq!(xsk.transmit(2049, |_| panic!("called")), Err(TxError::Full));
    xsk.transmit(60, |pieces| pieces[0].fill(15)).unwrap();
    assert_eq!(xsk.transmit(60, |_| panic!("called")), Err(TxError::Full));
    xsk.flush().unwrap();
    assert_eq!(xsk.unsent(), 16);
    let sent = kernel.sent();
    assert_eq!(sent.len(), 16);
    // Entries are free again, chunks are the limit now: 4 left.
    assert_eq!(xsk.tx_room(60), 4);
    // A completion that names nothing in flight frees nothing; each true one frees one chunk, once.
    for addr in [sent[0].addr, sent[0].addr, 3, 1 << 50] {
        kernel.complete(addr);
    }
    assert_eq!(xsk.tx_room(60), 5);
    assert_eq!(
        (
            xsk.counters.tx_completed_descs,
            xsk.counters.tx_bad_completion
        ),
        (1, 3)
    );
}
