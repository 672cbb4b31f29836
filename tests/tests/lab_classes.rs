//! Traffic classes at the sender, judged by the switch of a lab: of what leaves, each class has its share, and a strict one all.

use std::{
    net::IpAddr,
    num::NonZeroU16,
    sync::Arc,
    time::{Duration, Instant},
};

use rocexdp::{
    lab::switched::status::NetworkStatus,
    mem::Buffer,
    node::{ConnectAttr, Node, NodeConfig, NodeQp},
    sys::netns::NetNs,
};
use rocexdp_proto::{
    ClassService,
    ids::{PathMtu, RKey, WrId},
    mem::{Access, Memory},
    time::Rate,
    verbs::{Segment, SendOp, SendWr},
};
use rocexdp_tests::{
    eventually,
    switch_rig::{LONG, SLOW, SwitchRig},
    veth::target,
};

/// Bytes of a WRITE.
const MESSAGE: u32 = 32 << 20;
/// What the sender's port sends: half of what its link takes, so that what waits does so at the sender, however slow the lab is.
const PORT: u64 = 50;
/// A class: its priority's DSCP, its QPs, their path MTU.
type Class = (u8, u32, PathMtu);
/// The one with the smallest weight has the most QPs, and the longest packets.
const CLASSES: [Class; 3] = [
    (0, 4, PathMtu::Mtu4096),
    (26, 2, PathMtu::Mtu2048),
    (34, 1, PathMtu::Mtu1024),
];
/// Served before all others.
const STRICT: u8 = 46;

fn node(rig: &SwitchRig, host: u32, set: impl FnOnce(&mut NodeConfig)) -> Node {
    let mut config = NodeConfig::new("eth0");
    config.endpoint.max_inflight_packets = 512;
    set(&mut config);
    let netns = NetNs::open(&rig.namespace(host)).unwrap();
    netns.run(|| Node::open(config)).unwrap().unwrap()
}

/// A connected pair of QPs whose data have this DSCP.
async fn connect(nodes: [&Node; 2], dscp: u8, path_mtu: PathMtu) -> [NodeQp; 2] {
    let qps = nodes.map(|node| node.create_qp(32, 1).unwrap());
    let address = |host: usize| -> IpAddr { format!("10.78.0.{}", host + 1).parse().unwrap() };
    for here in [1, 0] {
        let peer = &qps[1 - here];
        let attributes = ConnectAttr {
            dscp: Some(dscp),
            // 0.5 s: nothing is lost here, and a busy machine must not look so.
            timeout: 17,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            ..ConnectAttr::new(
                address(here),
                address(1 - here),
                peer.qpn(),
                peer.psn(),
                path_mtu,
            )
        };
        qps[here].connect(attributes).await.unwrap();
    }
    qps
}

fn write(qp: &NodeQp, source: &Arc<Buffer>, rkey: RKey, messages: u64) {
    for n in 0..messages {
        let memory: Arc<dyn Memory> = source.clone();
        let op = SendOp::Write { va: 0, rkey };
        let wr = SendWr::new(WrId(n), op, Segment::new(memory, 0, MESSAGE));
        qp.post_send(wr).unwrap();
    }
}

/// Bytes of each priority that have come from the sender.
fn bytes(network: &NetworkStatus) -> [u64; 8] {
    let mut bytes = [0; 8];
    for p in &network.switches[0].ports[0].priorities {
        bytes[usize::from(p.priority)] = p.rx_bytes;
    }
    bytes
}

/// What came in so many seconds of the lab's time: in how many seconds of the sender's, which the lab may be behind, and bytes of each
/// priority.
fn look(rig: &SwitchRig, seconds: f64) -> (f64, [u64; 8]) {
    let begun = Instant::now();
    let from = rig.network();
    let to = eventually("time passes", LONG, || {
        std::thread::sleep(Duration::from_millis(50));
        Some(rig.network()).filter(|network| network.time >= from.time + seconds)
    });
    let (was, is) = (bytes(&from), bytes(&to));
    (
        begun.elapsed().as_secs_f64(),
        core::array::from_fn(|p| is[p] - was[p]),
    )
}

fn shares(rig: &SwitchRig, weights: [u16; 3]) {
    let priorities = CLASSES.map(|(dscp, ..)| usize::from(dscp / 8));
    let sender = node(rig, 0, |config| {
        config.endpoint.port_rate = Some(Rate::from_mbps(PORT));
        let service = &mut config.endpoint.classes.service;
        for (priority, weight) in priorities.into_iter().zip(weights) {
            service[priority] = ClassService::Weighted(NonZeroU16::new(weight).unwrap());
        }
        service[usize::from(STRICT / 8)] = ClassService::Strict;
    });
    let receiver = node(rig, 1, |_| {});
    let (_memory, rkey) = target(&receiver, MESSAGE as usize);
    let source = Buffer::new(MESSAGE as usize).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut qps = Vec::new();
    for (dscp, count, path_mtu) in CLASSES {
        for _ in 0..count {
            qps.push(runtime.block_on(connect([&sender, &receiver], dscp, path_mtu)));
        }
    }
    let strict = runtime.block_on(connect([&sender, &receiver], STRICT, PathMtu::Mtu4096));
    for [qp, _] in &qps {
        write(qp, &source, rkey, 16);
    }
    let all: u16 = weights.iter().sum();
    let judge = |when: &str| {
        look(rig, 0.5);
        let (seconds, bytes) = look(rig, 5.0);
        let sum: u64 = bytes.iter().sum();
        let rate = sum as f64 * 8.0 / seconds;
        let shares = priorities.map(|p| bytes[p] as f64 / sum as f64);
        println!("{weights:?} {when}: shares {shares:.4?} of {rate:.0} b/s");
        for (share, weight) in shares.into_iter().zip(weights) {
            let fair = f64::from(weight) / f64::from(all);
            assert!((share / fair - 1.0).abs() < 0.05, "{share} is not {fair}");
        }
        // Frames without what the link adds to them; how much less than the port may send a busy machine does not matter.
        let most = PORT as f64 * 1e6;
        assert!((0.5 * most..1.02 * most).contains(&rate), "{rate}");
    };
    judge("before");
    write(&strict[0], &source, rkey, 1);
    look(rig, 0.2);
    let (_, bytes) = look(rig, 2.0);
    let sum: u64 = bytes.iter().sum();
    let share = bytes[usize::from(STRICT / 8)] as f64 / sum as f64;
    println!("{weights:?}: the strict class has {share:.4}");
    assert!(share > 0.98, "{share}");
    let done = runtime.block_on(strict[0].completion()).unwrap();
    assert_eq!(done.status, rocexdp_proto::verbs::Status::Success);
    judge("behind the strict class");
    for [qp, _] in &qps {
        let numbers = runtime.block_on(qp.info()).unwrap();
        assert_eq!(numbers.retransmitted_packets, 0);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn classes_share_a_port_by_their_weights_behind_the_strict_one() {
    let topology = SLOW.incast(1).replace("ecn = [{", "ecn = [] #");
    let Some(rig) = SwitchRig::up("tsc", &topology) else {
        return;
    };
    shares(&rig, [10, 30, 60]);
    shares(&rig, [1, 1, 1]);
    shares(&rig, [8, 1, 2]);
}
