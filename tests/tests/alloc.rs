//! The running engine allocates nothing per packet: over real sockets, at the sending and at the receiving worker.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use rocexdp::{mem::Buffer, node::Node};
use rocexdp_tests::veth::{MESSAGE, Pair, connect, target, write_all};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; the count touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations that the node's worker has made so far.
async fn of_worker(node: &Node) -> u64 {
    let count = |_: &mut rocexdp::engine::Core, _| ALLOCATIONS.with(Cell::get);
    node.engine()
        .call(0, count)
        .await
        .expect("asking the worker")
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_worker_allocates_nothing_per_packet() {
    let pair = Pair::up(1);
    let (a, b) = (pair.node("a"), pair.node("b"));
    let (at_a, at_b) = (
        a.create_qp(16, 1).expect("a QP"),
        b.create_qp(1, 1).expect("a QP"),
    );
    let source = Buffer::new(8 * MESSAGE as usize).expect("memory");
    let (_memory, rkey) = target(&b, 8 * MESSAGE as usize);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        connect(&at_a, &at_b).await;
        // What is made once is made by now.
        write_all(&at_a, &source, rkey).await;
        let before = [of_worker(&a).await, of_worker(&b).await];
        for _ in 0..8 {
            write_all(&at_a, &source, rkey).await;
        }
        let after = [of_worker(&a).await, of_worker(&b).await];
        // 16384 packets. Each question may cost an allocation or two itself.
        for (end, (before, after)) in before.into_iter().zip(after).enumerate() {
            assert!(
                after - before <= 4,
                "worker {end} allocated {} times",
                after - before
            );
        }
    });
}
