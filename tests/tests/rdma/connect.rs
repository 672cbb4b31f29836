//! Connecting, refusing, parting.

use rocexdp::rdma::cm::Cm;
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

use super::*;

/// Whether the peer has closed it, whatever it said before.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut said = Vec::new();
    let all = stream.read_to_end(&mut said);
    timeout(Duration::from_millis(200), all).await.is_ok()
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn ends_agree_on_the_least_of_what_both_can_and_pass_private_data() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(4);
        let qp = pd.queue_pair(&cq).behaviour(Behaviour {
            path_mtu: Some(PathMtu::Mtu1024),
            max_rd_atomic: 100,
            max_dest_rd_atomic: 3,
            ..Behaviour::default()
        });
        let say = Connect::new().private_data(b"from a");
        let qp = qp.build().unwrap().connect(server(), &say).await.unwrap();
        let agreed = qp.agreed();
        assert_eq!(
            (agreed.path_mtu, agreed.max_rd_atomic),
            (PathMtu::Mtu1024, 5)
        );
        assert_eq!(qp.private_data(), b"from b");
        assert_eq!(qp.peer().address, Host::B.ipv4());
        assert_eq!(qp.state().await.unwrap(), QpState::Rts);
        let bytes = pd
            .register(Buffer::map(5000).unwrap(), Access::NONE)
            .unwrap();
        qp.post(Wr::send(bytes.slice(..).unwrap())).unwrap();
        assert_eq!(done(&cq).await.byte_len, 5000);
        assert_eq!(qp.stats().await.unwrap().tx_packets, 5, "of 1024 B");
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(4);
        let inbox = pd
            .register(Buffer::map(5000).unwrap(), Access::NONE)
            .unwrap();
        let qp = pd.queue_pair(&cq).behaviour(Behaviour {
            max_rd_atomic: 16,
            max_dest_rd_atomic: 5,
            ..Behaviour::default()
        });
        let qp = qp.build().unwrap();
        qp.post_recv(1, inbox.slice(..).unwrap()).unwrap();
        let incoming = listener.next().await.unwrap();
        assert_eq!(incoming.private_data(), b"from a");
        assert_eq!(incoming.from().ip(), Host::A.ipv4());
        let qp = incoming.accept(qp, b"from b").await.unwrap();
        let agreed = qp.agreed();
        assert_eq!(
            (agreed.path_mtu, agreed.max_rd_atomic),
            (PathMtu::Mtu1024, 3)
        );
        assert_eq!(done(&cq).await.byte_len, 5000);
        qp.closed().await;
        assert_eq!(qp.state().await.unwrap(), QpState::Err);
    };
    on_hosts("rdma-agree", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn who_has_no_token_or_no_business_is_refused_and_who_is_silent_holds_up_nobody() {
    let token = |text: &str| Token::from_text(text.as_bytes()).unwrap();
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(4);
        let attempt = async |say: Connect| {
            let qp = pd.queue_pair(&cq).build().unwrap();
            qp.connect(server(), &say).await
        };
        // Who is silent is sent away after a while. Were others held up by it until then, none of them would find it still there; on a
        // machine with much to do, one try may.
        let mut held_up = true;
        for _ in 0..10 {
            let mut silent = TcpStream::connect(server()).await.unwrap();
            attempt(Connect::new()).await.unwrap_err();
            held_up = is_closed(&mut silent).await;
            if !held_up {
                break;
            }
        }
        assert!(!held_up, "held up by the silent one");
        let error = attempt(Connect::new().token(token("another token")))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Refused(r) if r.code == RefuseCode::Token),
            "{error}"
        );
        assert!(error.to_string().contains("wrong token"), "{error}");
        let error = attempt(Connect::new()).await.unwrap_err().to_string();
        assert!(error.contains("asks for a token"), "{error}");
        let right = Connect::new().token(token("the right token"));
        let error = attempt(right.clone()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Refused(r) if r.code == RefuseCode::Rejected),
            "{error}"
        );
        assert!(error.to_string().ends_with("closed on Mondays"), "{error}");
        // Another service than the peer's queue pair has.
        let uc = pd.queue_pair_of::<Uc>(&cq).build().unwrap();
        let error = uc.connect(server(), &right).await.unwrap_err().to_string();
        assert!(error.contains("RC, not UC"), "{error}");
        // A fault of the peer's own: it keeps the reason to itself.
        let error = attempt(right.clone()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Refused(r) if r.code == RefuseCode::Internal),
            "{error}"
        );
        assert!(!error.to_string().contains("5000"), "{error}");
        attempt(right).await.unwrap();
        let nobody = SocketAddr::from((Ipv4Addr::new(10, 77, 0, 2), 1));
        let qp = pd.queue_pair(&cq).build().unwrap();
        let error = qp.connect(nobody, &Connect::new()).await.unwrap_err();
        assert!(error.to_string().contains("10.77.0.2:1"), "{error}");
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(4);
        let first = listener.next().await.unwrap();
        first.refuse("closed on Mondays").await;
        let second = listener.next().await.unwrap();
        let qp = pd.queue_pair(&cq).build().unwrap();
        let error = second.accept(qp, &[]).await.unwrap_err().to_string();
        assert!(error.contains("RC, not UC"), "{error}");
        let third = listener.next().await.unwrap();
        let qp = pd.queue_pair(&cq).build().unwrap();
        let error = third.accept(qp, &[0; 5000]).await.unwrap_err().to_string();
        assert!(error.contains("5000 bytes"), "{error}");
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        qp.closed().await;
    };
    on_hosts("rdma-refuse", Some(token("the right token")), a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn when_an_end_is_dropped_the_other_one_fails_and_its_requests_complete() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let qp = connect(&pd, &cq).await;
        for id in [1, 2] {
            qp.post_recv(id, Target::empty()).unwrap();
        }
        qp.post(Wr::send(Source::inline(b"leave")).id(3)).unwrap();
        assert_eq!(done(&cq).await.id, 3);
        qp.closed().await;
        assert_eq!(failure(&cq).await, Status::WrFlushErr);
        assert_eq!(failure(&cq).await, Status::WrFlushErr);
        // A failed queue pair takes requests, and gives them back.
        qp.post(Wr::send(Source::empty()).id(4).unsignaled())
            .unwrap();
        assert_eq!(next(&cq).await.id(), 4);
        assert_eq!(qp.state().await.unwrap(), QpState::Err);
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(4);
        let incoming = listener.next().await.unwrap();
        let inbox = pd.register(Buffer::map(8).unwrap(), Access::NONE).unwrap();
        let qp = pd.queue_pair(&cq).build().unwrap();
        qp.post_recv(1, inbox.slice(..).unwrap()).unwrap();
        let qp = incoming.accept(qp, &[]).await.unwrap();
        assert_eq!(done(&cq).await.byte_len, 5);
        // The acknowledgement is on its way: the peer's request completes before it hears that we left.
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(qp);
    };
    on_hosts("rdma-drop", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_communication_manager_can_be_opened_as_soon_as_the_one_before_was_dropped() {
    let Some(lab) = lab("rdma-cm") else {
        return;
    };
    let a = || {
        run(async {
            let device = Device::open_with(NodeConfig::new(lab.host_interface())).unwrap();
            for _ in 0..3 {
                let cm = Cm::open(&device).unwrap();
                let twice = Cm::open(&device).unwrap_err().to_string();
                assert!(twice.contains("QP 1 is open already"), "{twice}");
                // Its task waits for MADs now.
                tokio::task::yield_now().await;
                drop(cm);
            }
        });
    };
    lab.host(Host::A).run(a).unwrap();
}
