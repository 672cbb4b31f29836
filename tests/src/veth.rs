//! Two nodes in this process, in two namespaces joined by a veth pair with nothing between: for tests of the engine itself.

use std::{net::IpAddr, process::Command, sync::Arc, time::Duration};

use rocexdp::{
    mem::Buffer,
    node::{ConnectAttr, Node, NodeConfig, NodeQp},
    sys::netns::NetNs,
};
use rocexdp_proto::{
    ids::{PathMtu, RKey, WrId},
    mem::{Access, Memory},
    verbs::{Segment, SendOp, SendWr, Status},
};

/// Address of end `a`.
pub const A: &str = "10.79.0.1";
/// Address of end `b`.
pub const B: &str = "10.79.0.2";
/// IPv6 address of end `a`.
pub const A6: &str = "fd79::1";
/// IPv6 address of end `b`.
pub const B6: &str = "fd79::2";
/// Bytes of each message that [`write_all`] sends.
pub const MESSAGE: u32 = 1 << 20;

/// Two namespaces joined by a veth pair; removed on drop.
pub struct Pair(String);

impl Pair {
    /// Makes them, with so many receive queues.
    pub fn up(queues: u32) -> Self {
        let pair = Self(format!("rxp{}", std::process::id()));
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
            "-n {a} link add name eth0 mtu 4200 numrxqueues {queues} numtxqueues {queues} type veth peer name eth1 numrxqueues {queues} numtxqueues {queues}"
        ));
        run(format!("-n {a} link set eth1 netns {b} name eth0"));
        run(format!("-n {b} link set eth0 mtu 4200"));
        for (ns, ipv4, ipv6) in [(&a, A, A6), (&b, B, B6)] {
            run(format!("-n {ns} address add {ipv4}/24 dev eth0"));
            run(format!("-n {ns} address add {ipv6}/64 dev eth0 nodad"));
            run(format!("-n {ns} link set eth0 up"));
        }
        pair
    }

    fn name(&self, end: &str) -> String {
        format!("{}-{end}", self.0)
    }

    /// A node on an end, `a` or `b`.
    pub fn node(&self, end: &str) -> Node {
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

/// Waits until the books of a node hold: of each queue what was received was accepted, handed over, or dropped by name; of each QP what
/// XDP gave to it, or came another way, was accepted or dropped; and all that XDP gave was some QP's that is still there.
pub fn books_hold(node: &Node) {
    let maps = node.maps();
    let mut open = String::new();
    for _ in 0..200 {
        open.clear();
        let (mut given, mut of_qps) = (0, 0);
        for queue in 0..maps.queues {
            let xdp = maps.queue_counters.load(queue).expect("a queue");
            let e = maps.queue_engine.load(queue).expect("a queue");
            given += xdp.redirected;
            let came = e.rx_packets + e.rx_handed_over + e.rx_copied + e.rx_looped;
            let went = e.rx_accepted
                + e.rx_icrc_errors
                + e.drops.iter().sum::<u64>()
                + e.rx_handed_away
                + e.rx_handover_full;
            if xdp.redirected != e.rx_packets || came != went {
                open += &format!("queue {queue}: {} given, {e:?}\n", xdp.redirected);
            }
        }
        for slot in 0..maps.slots {
            let config = maps.qp_config.load(slot).expect("a slot");
            if config.generation == 0 {
                continue;
            }
            let redirected = maps.counters(slot).expect("a slot").redirected;
            let e = maps.qp_engine.load(slot).expect("a slot");
            of_qps += redirected;
            if redirected + e.rx_looped + e.rx_mcast != e.rx_accepted + e.rx_dropped {
                open += &format!("QP {:#x}: {redirected} given, {e:?}\n", config.qpn);
            }
        }
        if given != of_qps {
            open += &format!("{given} given, {of_qps} to QPs\n");
        }
        if open.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the books do not hold:\n{open}");
}

fn attributes(local: &str, peer: &str, other: &NodeQp) -> ConnectAttr {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    ConnectAttr {
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        cnp: true,
        ..ConnectAttr::new(
            address(local),
            address(peer),
            other.qpn(),
            other.psn(),
            PathMtu::Mtu4096,
        )
    }
}

/// Connects two QPs of end `a` with one another.
pub async fn connect_at_a(one: &NodeQp, other: &NodeQp) {
    for (qp, peer) in [(one, other), (other, one)] {
        qp.connect(attributes(A, A, peer))
            .await
            .expect("connecting");
    }
}

/// Connects a QP of end `a` with one of end `b`.
pub async fn connect(a: &NodeQp, b: &NodeQp) {
    b.connect(attributes(B, A, a)).await.expect("connecting b");
    a.connect(attributes(A, B, b)).await.expect("connecting a");
}

/// Memory of `node` that its peers may write.
pub fn target(node: &Node, len: usize) -> (Arc<Buffer>, RKey) {
    let buffer = Buffer::new(len).expect("memory");
    let memory: Arc<dyn Memory> = buffer.clone();
    let region = node
        .register(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
        .expect("a region");
    (buffer, region.rkey)
}

/// Writes the whole of `source`, a multiple of [`MESSAGE`], to the same place at the peer, and waits for it.
pub async fn write_all(qp: &NodeQp, source: &Arc<Buffer>, rkey: RKey) {
    let messages = source.len() / u64::from(MESSAGE);
    for n in 0..messages {
        let offset = n * u64::from(MESSAGE);
        let memory: Arc<dyn Memory> = source.clone();
        qp.post_send(SendWr {
            wr_id: WrId(n),
            op: SendOp::Write { va: offset, rkey },
            local: Segment::new(memory, offset, MESSAGE).into(),
            signaled: true,
            solicited: false,
            fence: false,
            to: None,
        })
        .expect("posting");
    }
    for _ in 0..messages {
        let done = tokio::time::timeout(Duration::from_secs(30), qp.completion())
            .await
            .expect("a completion")
            .expect("a living worker");
        assert_eq!(done.status, Status::Success);
    }
}
