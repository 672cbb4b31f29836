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
    verbs::{Cqe, RecvWr, Segment, SendOp, SendWr, SgList, Status},
    wire::{GRH_ROOM, Grh},
};
use rocexdp_tests::{
    eventually,
    veth::{A, B, Pair},
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
        let sent = within("send completion", self.qp.completion()).await;
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
        let got = within("message", at_b.qp.completion()).await;
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
        let got = within("answer", at_a.qp.completion()).await;
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
    });
}

async fn mad(gsi: &Gsi) -> Box<ReceivedMad> {
    loop {
        match within("MAD", gsi.next()).await {
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
