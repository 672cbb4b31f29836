//! Two receive queues, so two workers: a QP's packets come in on the queue that its peer's worker sends on, and are handed
//! to the worker that owns it.

use std::{net::IpAddr, process::Command, sync::Arc, time::Duration};

use rocexdp::{
    mem::Buffer,
    node::{ConnectAttr, Node, NodeConfig, NodeQp},
    sys::netns::NetNs,
};
use rocexdp_proto::{
    ids::{PathMtu, WrId},
    mem::{Access, Memory},
    verbs::{Segment, SendOp, SendWr, Status},
};

const MESSAGE: u32 = 1 << 20;
const MESSAGES: u64 = 8;

/// Two namespaces joined by a veth pair of two queues; removed on drop.
struct Pair(String);

impl Pair {
    fn up() -> Self {
        let pair = Self(format!("rxq{}", std::process::id()));
        for end in ["a", "b"] {
            NetNs::create(&pair.name(end)).expect("making a namespace");
        }
        let (a, b) = (pair.name("a"), pair.name("b"));
        let run = |line: String| {
            let done = Command::new("ip")
                .args(line.split_whitespace())
                .status()
                .expect("running ip");
            assert!(done.success(), "ip {line}");
        };
        run(format!(
            "-n {a} link add name eth0 mtu 4200 numrxqueues 2 numtxqueues 2 type veth peer name eth1 numrxqueues 2 numtxqueues 2"
        ));
        run(format!("-n {a} link set eth1 netns {b} name eth0"));
        run(format!("-n {b} link set eth0 mtu 4200"));
        for (ns, address) in [(&a, "10.79.0.1/24"), (&b, "10.79.0.2/24")] {
            run(format!("-n {ns} address add {address} dev eth0"));
            run(format!("-n {ns} link set eth0 up"));
        }
        pair
    }

    fn name(&self, end: &str) -> String {
        format!("{}-{end}", self.0)
    }

    fn node(&self, end: &str) -> Node {
        NetNs::open(&self.name(end))
            .expect("opening the namespace")
            .run(|| Node::open(NodeConfig::new("eth0")))
            .expect("entering the namespace")
            .expect("opening the node")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for end in ["a", "b"] {
            let _ = NetNs::delete(&self.name(end));
        }
    }
}

fn attributes(local: &str, peer: &str, other: &NodeQp) -> ConnectAttr {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    ConnectAttr {
        local: address(local),
        peer: address(peer),
        peer_qpn: other.qpn(),
        peer_psn: other.psn(),
        path_mtu: PathMtu::Mtu4096,
        timeout: 15,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 12,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn packets_that_come_in_on_another_workers_queue_reach_their_qp() {
    let pair = Pair::up();
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
    let len = MESSAGES as usize * MESSAGE as usize;
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
            let target = Buffer::new(len).expect("memory");
            let memory: Arc<dyn Memory> = target.clone();
            let region = b
                .register(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
                .expect("a region");
            at_b.connect(attributes("10.79.0.2", "10.79.0.1", at_a))
                .await
                .expect("connecting b");
            at_a.connect(attributes("10.79.0.1", "10.79.0.2", at_b))
                .await
                .expect("connecting a");
            for n in 0..MESSAGES {
                let offset = n * u64::from(MESSAGE);
                let memory: Arc<dyn Memory> = source.clone();
                let op = SendOp::Write {
                    va: offset,
                    rkey: region.rkey,
                };
                let local = Segment::new(memory, offset, MESSAGE);
                at_a.post_send(SendWr {
                    wr_id: WrId(n),
                    op,
                    local,
                    signaled: true,
                    solicited: false,
                })
                .expect("posting");
            }
            for _ in 0..MESSAGES {
                let done = tokio::time::timeout(Duration::from_secs(30), at_a.completion())
                    .await
                    .expect("a completion");
                assert_eq!(done.status, Status::Success);
            }
            let mut back = vec![0; len];
            target.read(0, &mut back).expect("reading back");
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
        let (mut given, mut taken) = (0, 0);
        for queue in 0..2 {
            given += node
                .maps()
                .queue_counters
                .load(queue)
                .expect("a queue")
                .redirected;
            let engine = node.maps().queue_engine.load(queue).expect("a queue");
            taken += engine.rx_accepted + engine.rx_icrc_errors + engine.drops.iter().sum::<u64>();
        }
        assert_eq!(
            given, taken,
            "packets between XDP and the transport of {who}"
        );
    }
}
