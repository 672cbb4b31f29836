//! Attributes after connecting: asked for, changed, and what the device enforces of those that it was built with.

use rocexdp::rdma::FlowLabel;
use tokio::sync::oneshot;

use super::*;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_query_gives_what_was_set_and_a_drained_queue_pair_takes_changes() {
    let (post, may_receive) = oneshot::channel::<()>();
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let mut behaviour = Behaviour {
            timeout: 16,
            retry_cnt: 6,
            rnr_retry: 7,
            min_rnr_timer: 3,
            max_rd_atomic: 9,
            max_dest_rd_atomic: 8,
            dscp: Some(12),
            hop_limit: 33,
            flow_label: FlowLabel::new(0x12345).unwrap(),
            access: Access::REMOTE_READ,
            ..Behaviour::default()
        };
        let qp = pd.queue_pair(&cq).behaviour(behaviour).depths(7, 5);
        let qp = qp.max_sge(3, 2).max_inline(100).build().unwrap();
        let qp = qp.connect(server(), &Connect::new()).await.unwrap();
        let (attr, made) = qp.query().await.unwrap();
        let numbers = (made.max_send, made.max_recv, made.max_inline);
        assert_eq!(numbers, (7, 5, 100));
        assert_eq!((made.max_send_sge, made.max_recv_sge), (3, 2));
        let as_set = async |behaviour: Behaviour| {
            let (attr, _) = qp.query().await.unwrap();
            let timers = (attr.timeout, attr.retry_cnt, attr.rnr_retry);
            let Behaviour {
                timeout,
                retry_cnt,
                rnr_retry,
                ..
            } = behaviour;
            assert_eq!(timers, (timeout, retry_cnt, rnr_retry));
            let depths = (attr.max_rd_atomic, attr.max_dest_rd_atomic);
            assert_eq!(depths.0, behaviour.max_rd_atomic);
            assert_eq!(depths.1, behaviour.max_dest_rd_atomic);
            assert_eq!(attr.min_rnr_timer, behaviour.min_rnr_timer);
            assert_eq!(attr.access, behaviour.access);
            let path = attr.path.unwrap();
            assert_eq!(path.dscp, behaviour.dscp);
            assert_eq!(path.hop_limit, behaviour.hop_limit);
            assert_eq!(path.flow_label, behaviour.flow_label.get());
        };
        as_set(behaviour).await;
        assert_eq!((attr.state, attr.sq_psn), (QpState::Rts, qp.psn()));
        let peer = qp.peer();
        assert_eq!((attr.dest_qpn, attr.rq_psn), (Some(peer.qpn), peer.psn));
        assert_eq!(attr.path_mtu, qp.agreed().path_mtu);

        // What it was built with is enforced.
        let memory = pd.register(Buffer::map(64).unwrap(), Access::NONE).unwrap();
        let slice = memory.slice(..8).unwrap();
        let four = [&slice; 4].map(Clone::clone);
        let error = qp.post(Wr::send(Source::gather(&four))).unwrap_err();
        assert_eq!(error.why, PostFault::Queue(QueueError::TooManySegments(3)));
        let error = qp.post_recv(1, Target::scatter(&four[..3])).unwrap_err();
        assert_eq!(error.why, PostFault::Queue(QueueError::TooManySegments(2)));
        let error = qp.post(Wr::send(Source::inline(&[0; 101]))).unwrap_err();
        assert_eq!(error.why, PostFault::Queue(QueueError::InlineTooLong(100)));
        let limits = device.limits().await.unwrap();
        let too_much = pd.queue_pair(&cq).max_sge(limits.max_sge + 1, 1).build();
        let error = too_much.unwrap_err().to_string();
        assert!(error.contains("max_sge"), "{error}");
        let too_much = pd.queue_pair(&cq).max_inline(limits.max_inline + 1);
        let error = too_much.build().unwrap_err().to_string();
        assert!(error.contains("max_inline"), "{error}");

        // While a SEND is unanswered the queue pair is not drained; given up, it sends again.
        qp.set_access(Access::NONE).await.unwrap();
        behaviour.access = Access::NONE;
        as_set(behaviour).await;
        qp.post(Wr::send(Source::inline(b"1")).id(1)).unwrap();
        while qp.stats().await.unwrap().tx_packets == 0 {
            tokio::task::yield_now().await;
        }
        let limit = Duration::from_millis(100);
        let drained = tokio::time::timeout(limit, qp.drain()).await;
        assert!(drained.is_err(), "its SEND has no answer");
        assert_eq!(qp.state().await.unwrap(), QpState::Rts);
        post.send(()).unwrap();
        let drained = qp.drain().await.unwrap();
        assert_eq!(done(&cq).await.id, 1);
        qp.post(Wr::send(Source::inline(b"2")).id(2)).unwrap();
        let wrong = Behaviour {
            retry_cnt: 8,
            timeout: 1,
            ..behaviour
        };
        let error = drained.set_behaviour(wrong).await.unwrap_err().to_string();
        assert!(error.contains("retry_cnt is 0..=7"), "{error}");
        as_set(behaviour).await;
        let next = Behaviour {
            timeout: 17,
            retry_cnt: 5,
            rnr_retry: 6,
            min_rnr_timer: 20,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 1,
            dscp: None,
            hop_limit: 9,
            flow_label: FlowLabel::COMPUTED,
            ..behaviour
        };
        drained.set_behaviour(next).await.unwrap();
        as_set(next).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(cq.is_empty(), "it is drained");
        drop(drained);
        assert_eq!(done(&cq).await.id, 2);
        qp.fail();
        let error = qp.drain().await.unwrap_err().to_string();
        assert!(error.contains(&qp.qpn().to_string()), "{error}");
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let inbox = pd.register(Buffer::map(8).unwrap(), Access::NONE).unwrap();
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        may_receive.await.unwrap();
        for id in [1, 2] {
            qp.post_recv(id, inbox.slice(..).unwrap()).unwrap();
        }
        for id in [1, 2] {
            assert_eq!(done(&cq).await.id, id);
        }
        qp.closed().await;
    };
    on_hosts("rdma-change", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_completion_queue_in_use_is_resized_without_losing_any() {
    const MESSAGES: u64 = 40;
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(64);
        let qp = connect(&pd, &cq).await;
        for id in 0..MESSAGES {
            qp.post(Wr::send(Source::empty()).id(id)).unwrap();
        }
        let held = async || {
            let until = Instant::now() + LIMIT;
            while cq.len() < MESSAGES as usize {
                assert!(Instant::now() < until, "{} completions", cq.len());
                tokio::task::yield_now().await;
            }
        };
        held().await;
        let error = cq.resize(MESSAGES as u32 - 1).unwrap_err().to_string();
        assert!(error.contains("holds 40 completions"), "{error}");
        cq.resize(200).unwrap();
        assert_eq!(cq.capacity(), 200);
        for id in 0..MESSAGES {
            assert_eq!(done(&cq).await.id, id);
        }
        assert!(!cq.overflowed());
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(64);
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, MESSAGES, &[]).await;
        qp.closed().await;
    };
    on_hosts("rdma-resize", None, a, b);
}
