//! UD QPs and QP 1 of nodes, below the public API: who is reached, what is refused, what is counted.

use std::{net::IpAddr, sync::Arc, time::Duration};

use rocexdp::{
    mem::Buffer,
    node::{Gsi, GsiEvent, HandleAttr, Node, NodeQp, ReceivedMad},
};
use rocexdp_common::mad::{GSI_QPN, MAD_LEN};
use rocexdp_proto::{
    DropReason,
    ids::{Qpn, WrId},
    mem::Memory,
    verbs::{Cqe, MULTICAST_QPN, RecvWr, Segment, SendOp, SendWr, SgList, Status},
    wire::{GRH_ROOM, Grh},
};
use rocexdp_tests::{
    eventually,
    veth::{A, A6, B, B6, MESSAGE, Pair, books_hold, connect_at_a, target, write_all},
};

const LIMIT: Duration = Duration::from_secs(30);
const QKEY: u32 = 0x1234_5678;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work)
        .await
        .unwrap_or_else(|_| panic!("no {what} in time"))
}

/// A UD QP with its receive memory.
struct End {
    qp: NodeQp,
    inbox: Arc<Buffer>,
}

const PLACE: u32 = 4200;

impl End {
    async fn open(node: &Node, local: &str) -> Self {
        let qp = node.create_ud_qp(16, 16).expect("a UD QP");
        let inbox = Buffer::new(16 * PLACE as usize).expect("memory");
        let end = Self { qp, inbox };
        for place in 0..16 {
            end.receive(place);
        }
        end.qp
            .open_datagram(address(local), QKEY)
            .await
            .expect("opening it");
        end
    }

    fn receive(&self, place: u64) {
        let memory: Arc<dyn Memory> = self.inbox.clone();
        let into = Segment::new(memory, place * u64::from(PLACE), PLACE);
        self.qp
            .post_recv(RecvWr::new(WrId(place), into))
            .expect("posting a receive");
    }

    /// What a completion brought: the header, and the message.
    fn message(&self, cqe: &Cqe) -> (Grh, Vec<u8>) {
        let mut bytes = vec![0; cqe.byte_len as usize];
        self.inbox
            .read(cqe.wr_id.0 * u64::from(PLACE), &mut bytes)
            .expect("reading it");
        let message = bytes.split_off(GRH_ROOM);
        (Grh::new(bytes.try_into().expect("40 bytes")), message)
    }

    async fn send(&self, node: &Node, attr: HandleAttr, qpn: Qpn, qkey: u32, bytes: &[u8]) {
        let way = node.address_handle(attr).await.expect("a way");
        let request = SendWr::new(WrId(99), SendOp::SendImm(7), SgList::inline(bytes));
        self.qp
            .post_send(request.to(way.to(qpn, qkey)))
            .expect("posting");
        let sent = within("send completion", self.qp.completion())
            .await
            .unwrap();
        assert_eq!((sent.wr_id, sent.status), (WrId(99), Status::Success));
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn datagrams_go_both_ways_and_the_answer_finds_its_way_by_the_header() {
    let pair = Pair::up(2);
    let (a, b) = (pair.node("a"), pair.node("b"));
    runtime().block_on(async {
        let at_a = End::open(&a, A).await;
        let at_b = End::open(&b, B).await;
        let to_b = HandleAttr::new(address(A), address(B));
        at_a.send(&a, to_b, at_b.qp.qpn(), QKEY, b"question").await;
        let got = within("message", at_b.qp.completion()).await.unwrap();
        assert_eq!(
            (got.status, got.src_qpn, got.imm),
            (Status::Success, Some(at_a.qp.qpn()), Some(7))
        );
        let (grh, message) = at_b.message(&got);
        assert_eq!(message, b"question");
        assert!(grh.is_ipv4());
        let back = HandleAttr::answering(address(B), &grh);
        assert_eq!(back.peer, address(A));
        at_b.send(&b, back, at_a.qp.qpn(), QKEY, b"answer").await;
        let got = within("answer", at_a.qp.completion()).await.unwrap();
        assert_eq!(at_a.message(&got).1, b"answer");

        // Another Q_Key.
        at_a.send(&a, to_b, at_b.qp.qpn(), QKEY + 1, b"wrong").await;
        eventually("the drop is counted", LIMIT, || {
            let dropped: u64 = (0..2)
                .filter_map(|queue| b.maps().queue_engine.load(queue))
                .map(|engine| engine.drops[DropReason::QKey.index()])
                .sum();
            (dropped == 1).then_some(())
        });
        assert!(at_b.qp.try_completion().is_none());
        assert_eq!(at_b.qp.info().await.expect("numbers").rx_dropped, 1);
        assert_eq!(at_b.qp.counters().redirected, 2);
        books_hold(&a);
        books_hold(&b);
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn datagrams_go_over_ipv6_and_are_as_long_as_the_path_mtu() {
    let pair = Pair::up(1);
    let (a, b) = (pair.node("a"), pair.node("b"));
    runtime().block_on(async {
        let (at_a, at_b) = (End::open(&a, A6).await, End::open(&b, B6).await);
        let way = HandleAttr {
            flow_label: 0x4_5678,
            hop_limit: 9,
            dscp: Some(34),
            ..HandleAttr::new(address(A6), address(B6))
        };
        let sent: Vec<u8> = (0..4096_u32).map(|n| (n * 7) as u8).collect();
        at_a.inbox.write(0, &sent).expect("writing");
        let memory: Arc<dyn Memory> = at_a.inbox.clone();
        let request = SendWr::new(WrId(1), SendOp::Send, Segment::new(memory, 0, 4096));
        let handle = a.address_handle(way).await.expect("a way");
        assert_eq!(handle.path_mtu().bytes(), 4096);
        at_a.qp
            .post_send(request.to(handle.to(at_b.qp.qpn(), QKEY)))
            .expect("posting");
        let got = within("message", at_b.qp.completion()).await.unwrap();
        let (grh, message) = at_b.message(&got);
        assert!(message == sent);
        assert!(!grh.is_ipv4());
        assert_eq!(
            (grh.flow_label(), grh.hop_limit(), grh.traffic_class() >> 2),
            (0x4_5678, 9, 34)
        );
        books_hold(&b);
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn qps_of_one_host_reach_one_another_without_the_wire() {
    let pair = Pair::up(2);
    let a = pair.node("a");
    let len = 4 * MESSAGE as usize;
    let pattern: Vec<u8> = (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let source = Buffer::new(len).expect("memory");
    source.write(0, &pattern).expect("filling it");
    // Twelve pairs at once, over both workers: more packets in flight than may wait for a worker.
    let all: Vec<NodeQp> = (0..24).map(|_| a.create_qp(16, 1).expect("a QP")).collect();
    std::thread::scope(|scope| {
        for two in all.chunks(2) {
            let (a, source, pattern) = (&a, &source, &pattern);
            scope.spawn(move || {
                runtime().block_on(async {
                    let [one, other] = two else { unreachable!() };
                    connect_at_a(one, other).await;
                    let (memory, rkey) = target(a, len);
                    write_all(one, source, rkey).await;
                    let mut back = vec![0; len];
                    memory.read(0, &mut back).expect("reading back");
                    assert!(back == *pattern, "bytes differ");
                });
            });
        }
    });
    runtime().block_on(async {
        for qp in &all {
            let info = qp.info().await.expect("numbers");
            assert_eq!(qp.counters().redirected, 0, "XDP saw none of it");
            assert_eq!(info.rx_dropped + info.icrc_errors, 0);
            assert!(info.rx_looped > 0);
        }
        // A UD QP, another of another worker, itself, and from the IPv6 address.
        let (one, other) = (End::open(&a, A).await, End::open(&a, A).await);
        let six = End::open(&a, A6).await;
        let way = HandleAttr::new(address(A), address(A));
        one.send(&a, way, other.qp.qpn(), QKEY, b"neighbour").await;
        let got = within("message", other.qp.completion()).await.unwrap();
        assert_eq!(other.message(&got).1, b"neighbour");
        let way6 = HandleAttr::new(address(A6), address(A6));
        six.send(&a, way6, six.qp.qpn(), QKEY, b"itself").await;
        let got = within("message", six.qp.completion()).await.unwrap();
        let (grh, message) = six.message(&got);
        assert_eq!(
            (&message[..], got.src_qpn),
            (&b"itself"[..], Some(six.qp.qpn()))
        );
        assert_eq!(HandleAttr::answering(address(A6), &grh).peer, address(A6));
        one.send(&a, way, other.qp.qpn(), QKEY + 1, b"wrong").await;
        eventually("the same checks are made", LIMIT, || {
            let queues = (0..2).filter_map(|queue| a.maps().queue_engine.load(queue));
            let dropped: u64 = queues.map(|e| e.drops[DropReason::QKey.index()]).sum();
            (dropped == 1).then_some(())
        });
        // QP 1 as well.
        let gsi = a.open_gsi().expect("QP 1");
        let to = a.address_handle(way).await.expect("a way");
        gsi.send(1, &to, GSI_QPN, &[3; MAD_LEN]).expect("posting");
        assert_eq!(mad(&gsi).await.mad, [3; MAD_LEN]);
        books_hold(&a);
        let sum = |pick: fn(&rocexdp_common::maps::QueueEngine) -> u64| -> u64 {
            let queues = (0..2).filter_map(|queue| a.maps().queue_engine.load(queue));
            queues.map(|engine| pick(&engine)).sum()
        };
        // Each worker tells its own numbers, in its own time.
        eventually("what was sent was received", LIMIT, || {
            let (sent, received) = (sum(|e| e.tx_looped), sum(|e| e.rx_looped));
            (sent == received && sent > 12 * 4 * 256).then_some(())
        });
        assert_eq!(sum(|e| e.tx_packets), 0, "nothing went to the wire");
    });
}

async fn multicast(group: &str, [local_a, local_b]: [&str; 2], pair: &Pair) {
    let (a, b) = (pair.node("a"), pair.node("b"));
    let group = address(group);
    let at_a = End::open(&a, local_a).await;
    let mut at_b = Vec::new();
    // Over both workers, and one that joins nothing.
    for _ in 0..4 {
        at_b.push(End::open(&b, local_b).await);
    }
    let alone = at_b.pop().expect("four");
    let to_group = HandleAttr::new(address(local_a), group);
    at_a.send(&a, to_group, MULTICAST_QPN, QKEY, b"nobody")
        .await;
    eventually("nobody is in it, counted so", LIMIT, || {
        (to_no_group_of(&b) == 1).then_some(())
    });
    for end in &at_b {
        end.qp.join(group).await.expect("joining");
        end.qp.join(group).await.expect("again changes nothing");
    }
    for n in 0..20_u8 {
        at_a.send(&a, to_group, MULTICAST_QPN, QKEY, &[n; 33]).await;
        for end in &at_b {
            let got = within("copy", end.qp.completion()).await.unwrap();
            let (grh, message) = end.message(&got);
            assert_eq!(message, [n; 33]);
            assert_eq!(rocexdp::loader::address_of(grh.dst()), group);
            end.receive(got.wr_id.0);
        }
    }
    // The sender hears itself once it is in the group, too.
    at_a.qp.join(group).await.expect("joining");
    at_a.send(&a, to_group, MULTICAST_QPN, QKEY, b"all").await;
    let got = within("own copy", at_a.qp.completion()).await.unwrap();
    assert_eq!(at_a.message(&got).1, b"all");
    for end in &at_b {
        let got = within("copy", end.qp.completion()).await.unwrap();
        assert_eq!(end.message(&got).1, b"all");
    }
    assert!(alone.qp.try_completion().is_none());
    let before = to_no_group_of(&b);
    at_b[0].qp.leave(group);
    at_b[1].qp.leave(group);
    // As the third did, by ending.
    books_hold(&a);
    books_hold(&b);
    let gone = at_b.pop().expect("three");
    drop(gone);
    at_a.send(&a, to_group, MULTICAST_QPN, QKEY, b"nobody")
        .await;
    eventually("nobody is left", LIMIT, || {
        (to_no_group_of(&b) == before + 1).then_some(())
    });
    assert!(at_b.iter().all(|end| end.qp.try_completion().is_none()));
    let error = alone.qp.join(address(local_b)).await.expect_err("no group");
    assert!(error.to_string().contains("no multicast group"), "{error}");
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn each_qp_of_a_group_gets_its_copy_and_nobody_else_does() {
    let pair = Pair::up(2);
    runtime().block_on(multicast("239.7.8.9", [A, B], &pair));
    runtime().block_on(multicast("ff15::7:8:9", [A6, B6], &pair));
}

/// Packets to groups that no QP of the node is in.
fn to_no_group_of(node: &Node) -> u64 {
    let queues = (0..node.maps().queues).filter_map(|queue| node.maps().queue_counters.load(queue));
    queues
        .map(|xdp| xdp.reasons[rocexdp_common::maps::Reason::UnknownGroup as usize])
        .sum()
}

/// Polls it once; whether it is ready.
async fn poll_once<F: Future>(mut work: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(work.as_mut().poll(cx).is_ready())).await
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn hosts_that_are_not_there_hold_up_no_other() {
    let pair = Pair::up(1);
    let (a, _b) = (pair.node("a"), pair.node("b"));
    let way = |host: u8| {
        let peer = IpAddr::from([10, 79, 0, host]);
        a.address_handle(HandleAttr::new(address(A), peer))
    };
    runtime().block_on(async {
        let mut nobody: Vec<_> = (100..140).map(|host| Box::pin(way(host))).collect();
        for one in &mut nobody {
            assert!(!poll_once(one.as_mut()).await);
        }
        let first = nobody.swap_remove(0);
        // Some give up.
        nobody.truncate(20);
        tokio::select! {
            biased;
            error = first => panic!("an answer before that of who is there: {error:?}"),
            way = within("way", way(2)) => drop(way.expect("a way")),
        }
        for one in nobody {
            let error = within("answer", one).await.expect_err("nobody is there");
            assert!(format!("{error:#}").contains("10.79.0.1"), "{error:#}");
        }
    });
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_group_that_was_given_up_halfway_is_not_joined_and_can_be() {
    let pair = Pair::up(1);
    let (a, b) = (pair.node("a"), pair.node("b"));
    let group = address("239.7.8.10");
    let [from_a, from_b] = [A, B].map(|local| HandleAttr::new(address(local), group));
    runtime().block_on(async {
        let (at_a, at_b) = (End::open(&a, A).await, End::open(&b, B).await);
        for turns in 1..6 {
            let mut join = Box::pin(at_a.qp.join(group));
            let mut joined = false;
            for _ in 0..turns {
                if !joined {
                    joined = poll_once(join.as_mut()).await;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            drop(join);
            if joined {
                at_a.qp.leave(group);
            }
        }
        within("end of the membership", async {
            while to_no_group_of(&a) == 0 {
                at_b.send(&b, from_b, MULTICAST_QPN, QKEY, b"nobody").await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        while at_a.qp.try_completion().is_some() {}
        at_a.send(&a, from_a, MULTICAST_QPN, QKEY, b"nobody").await;
        within("join", at_a.qp.join(group)).await.expect("joining");
        at_a.send(&a, from_a, MULTICAST_QPN, QKEY, b"me").await;
        let got = within("own copy", at_a.qp.completion()).await.unwrap();
        assert_eq!(at_a.message(&got).1, b"me");
    });
}

async fn mad(gsi: &Gsi) -> Box<ReceivedMad> {
    loop {
        match within("MAD", gsi.next()).await.unwrap() {
            GsiEvent::Received(mad) => return mad,
            GsiEvent::Sent { status, .. } => assert_eq!(status, Status::Success),
        }
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn mads_are_echoed_and_without_a_gsi_they_are_for_an_unknown_qp() {
    let pair = Pair::up(2);
    let (a, b) = (pair.node("a"), pair.node("b"));
    runtime().block_on(async {
        let at_a = a.open_gsi().expect("QP 1");
        let error = a.open_gsi().expect_err("it is open").to_string();
        assert!(error.contains("QP 1 is open already"), "{error}");
        let to_b = a.address_handle(HandleAttr::new(address(A), address(B)));
        let to_b = to_b.await.expect("a way");
        let unknown = || -> u64 {
            let queues = (0..2).filter_map(|queue| b.maps().queue_counters.load(queue));
            queues
                .map(|xdp| xdp.reasons[rocexdp_common::maps::Reason::UnknownQpn as usize])
                .sum()
        };
        at_a.send(1, &to_b, GSI_QPN, &[1; MAD_LEN])
            .expect("posting");
        eventually("it is refused at b", LIMIT, || {
            (unknown() == 1).then_some(())
        });

        let at_b = b.open_gsi().expect("QP 1");
        // More than there are places, so that each is used again.
        for n in 0..600_u32 {
            let mut bytes = [0x5a; MAD_LEN];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            at_a.send(u64::from(n), &to_b, GSI_QPN, &bytes)
                .expect("posting");
            let there = mad(&at_b).await;
            assert_eq!((there.from, there.to), (address(A), address(B)));
            assert_eq!((there.src_qpn, there.mad), (GSI_QPN, bytes));
            let back = b.address_handle(there.answering()).await.expect("a way");
            at_b.send(0, &back, there.src_qpn, &there.mad)
                .expect("posting");
            assert_eq!(mad(&at_a).await.mad, bytes);
        }
        drop(at_b);
        at_a.send(1, &to_b, GSI_QPN, &[1; MAD_LEN])
            .expect("posting");
        eventually("closed, it is refused", LIMIT, || {
            (unknown() == 2).then_some(())
        });
        let again = b.open_gsi().expect("QP 1 once more");
        at_a.send(1, &to_b, GSI_QPN, &[2; MAD_LEN])
            .expect("posting");
        assert_eq!(mad(&again).await.mad, [2; MAD_LEN]);
        assert_eq!(again.discarded(), 0);
    });
}
