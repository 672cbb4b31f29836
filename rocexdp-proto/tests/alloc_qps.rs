//! 100 000 QPs in one endpoint: they are made and connected, some exchange messages, and each costs little memory while idle.
//!
//! The allocator counts the bytes that are held.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rocexdp_proto::drive::{FrameIo, step};
use rocexdp_proto::ids::{Qpn, WrId};
use rocexdp_proto::mem::SgList;
use rocexdp_proto::time::Timestamp;
use rocexdp_proto::verbs::{
    CompletionQueue, QpState, RecvQueue, RecvWr, SendOp, SendQueue, SendWr, Status,
};
use rocexdp_proto::wire::{Frags, RxMeta};
use rocexdp_proto::{CreateQp, Endpoint, EndpointConfig, QpHandle, QpTransition, RtrAttr};
use rocexdp_sim::pair::{Bytes, PairConfig, rtr, rts};

static HELD: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the count touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const QPS: u32 = 100_000;
/// One in so many has a peer that talks.
const EVERY: u32 = 1_000;

fn qpn(n: u32) -> Qpn {
    Qpn::new(0x10_0000 + n)
}

struct Io {
    received: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl FrameIo for Io {
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&RxMeta, Frags<'_>)) -> usize {
        for n in 0..budget {
            let Some(frame) = self.received.pop_front() else {
                return n;
            };
            sink(&RxMeta::default(), &[&frame]);
        }
        budget
    }

    fn tx_room(&mut self) -> bool {
        true
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [&mut [u8]])) {
        let mut frame = vec![0; len];
        fill(&mut [&mut frame]);
        self.sent.push(frame);
    }

    fn flush(&mut self) {}
}

/// A connected QP of end `end`, whose peer has the same number.
fn connect(
    ep: &mut Endpoint,
    end: usize,
    n: u32,
    depth: u32,
    cq: &Arc<CompletionQueue>,
) -> QpHandle {
    let config = PairConfig::default();
    let create = CreateQp {
        max_send: depth,
        max_recv: depth,
        ..CreateQp::rc(qpn(n), cq, cq)
    };
    let qp = ep.create_qp(create).unwrap();
    let rtr = RtrAttr {
        dest_qpn: qpn(n),
        ..rtr(&config, end)
    };
    let access = config.access;
    for to in [
        QpTransition::Init { access },
        QpTransition::Rtr(rtr),
        QpTransition::Rts(rts(&config, end)),
    ] {
        ep.modify_qp(Timestamp::ZERO, qp.qpn, to).unwrap();
    }
    qp
}

fn held() -> i64 {
    HELD.load(Ordering::Relaxed)
}

/// Bytes per connected QP with queues of this depth, out of `n`.
fn bytes_per_qp(n: u32, depth: u32) -> i64 {
    let cq = Arc::new(CompletionQueue::new(8));
    let before = held();
    let mut ep = Endpoint::new(EndpointConfig::default(), 1);
    for i in 0..n {
        drop(connect(&mut ep, 0, i, depth, &cq));
    }
    (held() - before) / i64::from(n)
}

#[test]
fn a_hundred_thousand_qps_work_in_one_endpoint() {
    // One test, since the count is of the whole process.
    let shallow = bytes_per_qp(QPS, 1);
    let deep = bytes_per_qp(10_000, 17);
    let per_request = (bytes_per_qp(10_000, 33) - deep) / 16;
    // An `Arc` puts two counters before the queue, which is aligned to a pair of cache lines.
    let queues =
        (size_of::<(usize, usize, SendQueue)>() + size_of::<(usize, usize, RecvQueue)>()) as i64;
    let without_queues = shallow - per_request - queues;
    println!(
        "a connected idle QP: {without_queues} B, its queues {queues} B and {per_request} B per place of both"
    );
    assert!(
        without_queues <= 1024,
        "{without_queues} B besides the queues"
    );

    let cqs = [(); 2].map(|()| Arc::new(CompletionQueue::new(4096)));
    let mut ends = [1, 2].map(|seed| Endpoint::new(EndpointConfig::default(), seed));
    let mut talk = Vec::new();
    for n in 0..QPS {
        let a = connect(&mut ends[0], 0, n, 1, &cqs[0]);
        if n % EVERY == 0 {
            talk.push([a, connect(&mut ends[1], 1, n, 1, &cqs[1])]);
        }
    }
    assert_eq!(ends[0].qpns().count(), QPS as usize);
    let inbox = Bytes::filled(64, 0);
    let mut io = [(); 2].map(|()| Io {
        received: VecDeque::new(),
        sent: Vec::new(),
    });
    let mut completed = 0;
    for round in 0..4u64 {
        let now = Timestamp::from_micros(10 * (round + 1));
        for (n, pair) in talk.iter().enumerate() {
            let from = (n + round as usize) % 2;
            let segment = rocexdp_proto::mem::Segment::new(inbox.clone(), 0, 64);
            pair[1 - from]
                .rq
                .post(RecvWr::new(WrId(0), segment))
                .unwrap();
            let message = SgList::inline(&[round as u8; 8]);
            pair[from]
                .sq
                .post(SendWr::new(WrId(n as u64), SendOp::Send, message))
                .unwrap();
            ends[from].work_posted(now, pair[from].qpn);
        }
        for _ in 0..200 {
            for end in 0..2 {
                step(&mut ends[end], now, &mut io[end], 64);
                let sent: Vec<_> = io[end].sent.drain(..).collect();
                io[1 - end].received.extend(sent);
            }
        }
        for cq in &cqs {
            while let Some(cqe) = cq.poll() {
                assert_eq!(cqe.status, Status::Success);
                completed += 1;
            }
        }
    }
    assert_eq!(completed, 4 * 2 * talk.len());
    for n in (0..QPS).step_by(2) {
        ends[0].destroy_qp(qpn(n)).unwrap();
    }
    assert_eq!(ends[0].qpns().count(), QPS as usize / 2);
    assert_eq!(ends[0].qp_info(qpn(1)).unwrap().state, QpState::Rts);
    // Places are used again.
    let before = held();
    for n in (0..QPS).step_by(2) {
        drop(connect(&mut ends[0], 0, n, 1, &cqs[0]));
    }
    let again = (held() - before) / i64::from(QPS / 2);
    assert!(
        again <= shallow,
        "{again} B for a QP in the place of another"
    );
}
