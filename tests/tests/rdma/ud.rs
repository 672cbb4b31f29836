//! UD by the public API: datagrams both ways, groups, and queue pairs of one device.

use std::net::IpAddr;

use rocexdp::rdma::{HandleAttr, Open, Origin, Qpn, Ud};

use super::*;

const QKEY: u32 = 0x1111_1111;
/// Room of a receive request.
const PLACE: u64 = 2048;

struct End {
    device: Device,
    sent: CompletionQueue,
    received: CompletionQueue,
    memory: rocexdp::rdma::Region<rocexdp::rdma::ReadWrite>,
    qp: QueuePair<Ud, Open>,
}

impl End {
    /// With eight receive requests, and the same room behind them to send from.
    async fn open(device: &Device, local: IpAddr) -> Self {
        let pd = device.protection_domain().unwrap();
        // Of their own: a message may come before a request of ours completes.
        let (sent, received) = (CompletionQueue::new(64), CompletionQueue::new(64));
        let memory = Buffer::map(9 * PLACE as usize).unwrap();
        let memory = pd.register(memory, Access::NONE).unwrap();
        let qp = pd.queue_pair_of::<Ud>(&sent);
        let qp = qp.recv_cq(&received).build().unwrap();
        for place in 0..8 {
            let into = memory.slice(place * PLACE..(place + 1) * PLACE).unwrap();
            qp.post_recv(place, into).unwrap();
        }
        let qp = qp.open(local, QKEY).await.unwrap();
        Self {
            device: device.clone(),
            sent,
            received,
            memory,
            qp,
        }
    }

    async fn send(&self, to: HandleAttr, qpn: Qpn, bytes: &[u8]) {
        let way = self.device.address_handle(to).await.unwrap();
        self.memory.write(8 * PLACE, bytes).unwrap();
        let data = self
            .memory
            .slice(8 * PLACE..8 * PLACE + bytes.len() as u64)
            .unwrap();
        let request = Wr::send(data).immediate(5).id(100);
        self.qp.post(request, &way.to(qpn, QKEY)).unwrap();
        assert_eq!(done(&self.sent).await.id, 100);
    }

    /// The next message: from where, of which queue pair, and its bytes.
    async fn receive(&self) -> (Origin, Qpn, Vec<u8>) {
        let done = done(&self.received).await;
        assert_eq!((done.opcode, done.imm), (CqeOpcode::Recv, Some(5)));
        let at = done.id * PLACE;
        let origin = Origin::read(&self.memory, at).unwrap();
        let mut bytes = vec![0; (u64::from(done.byte_len) - Origin::ROOM) as usize];
        self.memory.read(at + Origin::ROOM, &mut bytes).unwrap();
        let into = self.memory.slice(at..at + PLACE).unwrap();
        self.qp.post_recv(done.id, into).unwrap();
        (origin, done.src_qpn.unwrap(), bytes)
    }

    /// The next message that is not this one.
    async fn receive_other(&self, than: &[u8]) -> (Origin, Qpn, Vec<u8>) {
        loop {
            let received = self.receive().await;
            if received.2 != than {
                return received;
            }
        }
    }
}

/// A host's address, its peer's, and a group, in both families.
fn ends(host: Host) -> [(IpAddr, IpAddr, IpAddr); 2] {
    let [v4, v6] = host.addresses();
    let [peer4, peer6] = host.peer().addresses();
    let group = |text: &str| text.parse().unwrap();
    [
        (v4, peer4, group("239.77.1.2")),
        (v6, peer6, group("ff15::77:1:2")),
    ]
}

/// `b` tells `a` its queue pair's number in a group, whose members both are; then they talk, over IPv4 and IPv6.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn datagrams_find_their_way_and_back_and_groups_reach_all() {
    const HELLO: &[u8] = b"who is there?";
    on_hosts(
        "rdud",
        None,
        async |device| {
            for (local, _, group) in ends(Host::A) {
                let end = End::open(&device, local).await;
                end.qp.join(group).await.unwrap();
                // Both are in the group when b says so, by a message of its own.
                let (origin, b, hello) = end.receive().await;
                assert_eq!((origin.to, &hello[..]), (group, HELLO));
                let back = origin.answering(local);
                let long: Vec<u8> = (0..1024_u32).map(|n| n as u8).collect();
                end.send(back, b, &long).await;
                let (origin, from, echo) = end.receive_other(HELLO).await;
                assert_eq!((origin.to, from), (local, b));
                assert!(echo == long);
            }
        },
        async |device, _| {
            for (local, peer, group) in ends(Host::B) {
                let end = End::open(&device, local).await;
                end.qp.join(group).await.unwrap();
                let (_, a, long) = loop {
                    // Until a is in it.
                    end.send(HandleAttr::new(local, group), Qpn::new(0), HELLO)
                        .await;
                    let wait = Duration::from_millis(300);
                    let heard = tokio::time::timeout(wait, end.receive_other(HELLO));
                    if let Ok(answer) = heard.await {
                        break answer;
                    }
                };
                let way = HandleAttr::new(local, peer);
                end.send(way, a, &long).await;
                let stats = end.qp.stats().await.unwrap();
                assert!(stats.rx_looped > 0 && stats.rx_dropped == 0);
            }
        },
    );
}
