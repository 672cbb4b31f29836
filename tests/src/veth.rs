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
        for (ns, address) in [(&a, format!("{A}/24")), (&b, format!("{B}/24"))] {
            run(format!("-n {ns} address add {address} dev eth0"));
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

fn attributes(local: &str, peer: &str, other: &NodeQp) -> ConnectAttr {
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    ConnectAttr {
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        ..ConnectAttr::new(
            address(local),
            address(peer),
            other.qpn(),
            other.psn(),
            PathMtu::Mtu4096,
        )
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
            .expect("a completion");
        assert_eq!(done.status, Status::Success);
    }
}
