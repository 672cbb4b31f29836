//! Connecting by an exchange of the application's own, with every attribute that a foreign peer may need.

use rocexdp::rdma::{Agreed, End, FlowLabel, Psn, Qpn};
use rocexdp_tests::hop::Hop;
use rustix::net::{AddressFamily, RecvFlags, SocketType, eth, sockopt};
use tokio::sync::oneshot;

use super::*;

/// What a RoCEv2 packet over IPv4 without options says of its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    from: [u8; 4],
    tos: u8,
    ttl: u8,
    port: u16,
    qpn: u32,
    opcode: u8,
    psn: u32,
}

fn seen(frame: &[u8]) -> Option<Seen> {
    let ip = frame.get(14..)?;
    let (udp, bth) = (ip.get(20..28)?, ip.get(28..40)?);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b));
    let ours = ip[0] == 0x45 && ip[9] == 17 && number(&udp[2..4]) == 4791;
    ours.then(|| Seen {
        from: [ip[12], ip[13], ip[14], ip[15]],
        tos: ip[1],
        ttl: ip[8],
        port: number(&udp[..2]) as u16,
        qpn: number(&bth[5..8]),
        opcode: bth[0],
        psn: number(&bth[9..12]),
    })
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn every_attribute_that_a_foreign_peer_may_need_is_set_and_seen_on_the_wire() {
    let Some(lab) = lab("rdma-own") else {
        return;
    };
    let hop = Hop::insert(&lab, Host::A);
    let capture = hop.ns().run(|| {
        let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, Some(eth::ALL));
        let socket = socket.unwrap();
        sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        let quiet = Some(Duration::from_millis(300));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, quiet).unwrap();
        socket
    });
    let capture = capture.unwrap();
    let agreed = |max_rd_atomic| Agreed {
        path_mtu: PathMtu::Mtu1024,
        max_rd_atomic,
        selective: None,
    };
    let (tell_a, of_b) = oneshot::channel::<(End, Vec<u8>)>();
    let (tell_b, of_a) = oneshot::channel::<End>();
    let (ready_a, a_is_ready) = oneshot::channel::<()>();
    let (ready_b, b_is_ready) = oneshot::channel::<()>();
    let (done_a, a_is_done) = oneshot::channel::<()>();
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let memory = pd.register(Buffer::map(20_000).unwrap(), Access::NONE);
        let memory = memory.unwrap();
        memory.write(0, &[0x5a; 10_000]).unwrap();
        // Its requests wrap.
        let built = pd.queue_pair(&cq).psn(Psn::new(0xff_fffe)).build();
        let mut qp = built.unwrap();
        assert_eq!(qp.psn(), Psn::new(0xff_fffe));
        let end = End {
            address: Host::A.ipv4().into(),
            qpn: qp.qpn(),
            psn: qp.psn(),
        };
        tell_b.send(end).unwrap();
        let (peer, offer) = of_b.await.unwrap();
        let remote = RemoteRegion::from_bytes(&offer).unwrap();
        // The peer is known: now it is clear how to behave.
        qp.set_behaviour(Behaviour {
            timeout: 16,
            retry_cnt: 6,
            rnr_retry: 5,
            min_rnr_timer: 20,
            max_dest_rd_atomic: 3,
            dscp: Some(46),
            hop_limit: 7,
            flow_label: FlowLabel::of_port(0xc123).unwrap(),
            ..Behaviour::default()
        });
        let qp = qp.connect_to(end.address, peer, agreed(2)).await.unwrap();
        ready_a.send(()).unwrap();
        b_is_ready.await.unwrap();
        assert_eq!((qp.peer(), qp.agreed()), (peer, agreed(2)));
        qp.post(Wr::send(memory.slice(..10_000).unwrap()).id(1))
            .unwrap();
        assert_eq!(done(&cq).await.id, 1);
        for id in 2..6 {
            let from = remote.slice(0, 10_000).unwrap();
            qp.post(Wr::read(memory.slice(10_000..).unwrap(), from).id(id))
                .unwrap();
        }
        for id in 2..6 {
            assert_eq!(done(&cq).await.id, id);
        }
        assert_eq!(memory.load(19_992), Ok(0x3c3c_3c3c_3c3c_3c3c));
        let stats = qp.stats().await.unwrap();
        assert_eq!(stats.retransmitted_packets, 0, "nothing was lost");
        done_a.send(()).unwrap();
    };
    let b = async |device: Device, _| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let rights = Access::REMOTE_READ;
        let memory = pd.register(Buffer::map(10_000).unwrap(), rights).unwrap();
        memory.write(0, &[0x3c; 10_000]).unwrap();
        let inbox = pd.register(Buffer::map(10_000).unwrap(), Access::NONE);
        let inbox = inbox.unwrap();
        // Two READs at a time and no more: the peer must keep to it.
        let qp = pd.queue_pair(&cq).behaviour(Behaviour {
            max_dest_rd_atomic: 2,
            ..Behaviour::default()
        });
        let qp = qp.build().unwrap();
        qp.post_recv(1, inbox.slice(..).unwrap()).unwrap();
        let end = End {
            address: Host::B.ipv4().into(),
            qpn: qp.qpn(),
            psn: qp.psn(),
        };
        let offer = memory.remote().unwrap().to_bytes().to_vec();
        tell_a.send((end, offer)).unwrap();
        let peer = of_a.await.unwrap();
        let qp = qp.connect_to(end.address, peer, agreed(3)).await.unwrap();
        ready_b.send(()).unwrap();
        a_is_ready.await.unwrap();
        assert_eq!(done(&cq).await.byte_len, 10_000);
        assert_eq!(inbox.load(9_992), Ok(0x5a5a_5a5a_5a5a_5a5a));
        a_is_done.await.unwrap();
        drop(qp);
    };
    on_lab(&lab, None, a, b);

    let mut buffer = vec![0; 16_384];
    let mut ours = Vec::new();
    while let Ok((len, _)) = rustix::net::recv(&capture, &mut buffer[..], RecvFlags::empty()) {
        ours.extend(seen(&buffer[..len]));
    }
    let [from_a, from_b] = [Host::A, Host::B].map(|host| {
        let of = ours.iter().filter(|s| s.from == host.ipv4().octets());
        of.copied().collect::<Vec<Seen>>()
    });
    assert!(from_a.len() >= 14 && from_b.len() >= 40, "{ours:?}");
    // The bridge's two ports show each packet once or twice.
    let first = from_a[0];
    assert_eq!((first.opcode, first.psn), (0, 0xff_fffe), "SEND First");
    for packet in &from_a {
        assert_eq!((packet.tos, packet.ttl), (46 << 2 | 2, 7), "{packet:?}");
        assert_eq!(packet.port, 0xc123, "{packet:?}");
        assert!(packet.psn >= 0xff_fffe || packet.psn < 60, "{packet:?}");
    }
    let (a, b) = (Qpn::new(from_b[0].qpn), Qpn::new(first.qpn));
    for packet in &from_b {
        assert_eq!((packet.tos, packet.ttl), (2, 64), "{packet:?}");
        assert_eq!(packet.port, FlowLabel::COMPUTED.port(b, a), "{packet:?}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_is_out_of_its_range_is_named() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let peer = End {
            address: Host::B.ipv4().into(),
            qpn: Qpn::new(0x80_0017),
            psn: Psn::new(0),
        };
        let agreed = Agreed {
            path_mtu: PathMtu::Mtu1024,
            max_rd_atomic: 1,
            selective: None,
        };
        let attempt = async |behaviour: Behaviour, local: Ipv4Addr, peer: End, agreed: Agreed| {
            let qp = pd.queue_pair(&cq).behaviour(behaviour).build().unwrap();
            let error = qp.connect_to(local.into(), peer, agreed).await;
            error.unwrap_err().to_string()
        };
        let usual = Behaviour::default();
        let own = Host::A.ipv4();
        type Change = fn(&mut Behaviour);
        let cases: [(Change, &str); 7] = [
            (|b| b.timeout = 32, "timeout is 0..=31"),
            (|b| b.retry_cnt = 8, "retry_cnt is 0..=7"),
            (|b| b.rnr_retry = 8, "rnr_retry is 0..=7"),
            (|b| b.min_rnr_timer = 32, "min_rnr_timer is 0..=31"),
            (|b| b.max_dest_rd_atomic = 129, "max_dest_rd_atomic"),
            (|b| b.dscp = Some(64), "a DSCP below 64"),
            (|b| b.hop_limit = 0, "hop limit of at least 1"),
        ];
        for (change, part) in cases {
            let mut behaviour = usual;
            change(&mut behaviour);
            let error = attempt(behaviour, own, peer, agreed).await;
            assert!(error.contains(part), "{part}: {error}");
        }
        let deep = Agreed {
            max_rd_atomic: 129,
            ..agreed
        };
        let error = attempt(usual, own, peer, deep).await;
        assert!(error.contains("max_rd_atomic"), "{error}");
        let foreign = Ipv4Addr::new(192, 0, 2, 1);
        let error = attempt(usual, foreign, peer, agreed).await;
        assert!(error.contains("192.0.2.1 is no address of"), "{error}");
        let reserved = End {
            qpn: Qpn::new(1),
            ..peer
        };
        let error = attempt(usual, own, reserved, agreed).await;
        assert!(error.contains("dest_qpn"), "{error}");
    };
    on_hosts("rdma-range", None, a, async |_, _| ());
}
