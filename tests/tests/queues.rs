//! Two receive queues, so two workers: a QP's packets come in on the queue that its peer's worker sends on, and are handed
//! to the worker that owns it.

use std::time::Duration;

use rocexdp::{mem::Buffer, node::NodeQp};
use rocexdp_proto::mem::Memory as _;
use rocexdp_tests::veth::{MESSAGE, Pair, books_hold, connect, target, write_all};

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn packets_that_come_in_on_another_workers_queue_reach_their_qp() {
    let pair = Pair::up(2);
    let (a, b) = (pair.node("a"), pair.node("b"));
    assert_eq!((a.report().queues, b.report().queues), (2, 2));
    // Slots go to the workers in turn: with one more QP at b, each QP of a talks to one of the other worker.
    let shift = b.create_qp(1, 1).expect("a QP");
    let qps: Vec<(NodeQp, NodeQp)> = (0..2)
        .map(|_| {
            (
                a.create_qp(16, 1).expect("a QP"),
                b.create_qp(1, 1).expect("a QP"),
            )
        })
        .collect();
    let len = 8 * MESSAGE as usize;
    let pattern: Vec<u8> = (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let source = Buffer::new(len).expect("memory");
    source.write(0, &pattern).expect("filling it");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for (at_a, at_b) in &qps {
            let (memory, rkey) = target(&b, len);
            connect(at_a, at_b).await;
            write_all(at_a, &source, rkey).await;
            let mut back = vec![0; len];
            memory.read(0, &mut back).expect("reading back");
            assert!(back == pattern, "bytes differ");
            assert_eq!(at_a.info().await.expect("numbers").retransmitted_packets, 0);
        }
    });
    drop(shift);
    // Numbers are published within a millisecond of the last packet.
    std::thread::sleep(Duration::from_millis(50));
    for (node, who) in [(&a, "a"), (&b, "b")] {
        let handed: u64 = (0..2)
            .filter_map(|q| node.maps().queue_engine.load(q))
            .map(|e| e.rx_handed_over)
            .sum();
        assert!(handed > 0, "nothing was handed over at {who}");
        books_hold(node);
    }
}
