//! Waiting for completions, sharing receive requests.

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn completions_are_waited_for_by_tasks_threads_and_file_descriptors() {
    const MESSAGES: u64 = 60;
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(128);
        let qp = pd.queue_pair(&cq).depths(4, 4).build().unwrap();
        let qp = qp.connect(server(), &Connect::new()).await.unwrap();
        for n in 0..MESSAGES {
            // Bursts of four, then a pause, so that the other end sleeps.
            qp.post(Wr::send(Source::empty()).id(n)).unwrap();
            if n % 4 == 3 {
                for id in n - 3..=n {
                    assert_eq!(done(&cq).await.id, id);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(128);
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 100, &[]).await;
        // Two tasks at once: both get some, none gets lost.
        let task = async || {
            let mut got = 0;
            while got < 10 {
                done(&cq).await;
                got += 1;
            }
        };
        tokio::join!(task(), task());
        // A thread.
        for _ in 0..20 {
            cq.wait(LIMIT).unwrap().unwrap().result().unwrap();
        }
        // An event loop of any kind.
        let channel = cq.channel().unwrap();
        let mut got = 0;
        while got < 20 {
            let limit = rustix::time::Timespec::try_from(LIMIT).unwrap();
            let mut fds = [PollFd::new(&channel, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "never readable");
            channel.clear();
            while let Some(completion) = cq.poll() {
                completion.result().unwrap();
                got += 1;
            }
        }
        assert_eq!(got, 20);
        qp.closed().await;
        // Its other receive requests are given back; then nothing comes, and waiting ends in time.
        for _ in MESSAGES..100 {
            assert_eq!(failure(&cq).await, Status::WrFlushErr);
        }
        let begun = Instant::now();
        assert!(cq.wait(Duration::from_millis(50)).unwrap().is_none());
        assert!(begun.elapsed() >= Duration::from_millis(50));
    };
    on_hosts("rdma-wait", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn queue_pairs_share_receive_requests_and_the_device_tells_when_few_are_left() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let (first, second) = (connect(&pd, &cq).await, connect(&pd, &cq).await);
        for (n, qp) in [(1, &first), (2, &second), (3, &first)] {
            let wr = Wr::send(Source::inline(&[n as u8; 8])).id(n);
            qp.post(wr).unwrap();
            assert_eq!(done(&cq).await.id, n);
        }
        first.closed().await;
    };
    let b = async |device: Device, mut listener: Listener| {
        let mut events = device.events();
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let srq = pd.shared_receive_queue(4).unwrap();
        assert!(srq.arm_limit(5).is_err(), "deeper than the queue");
        srq.arm_limit(2).unwrap();
        let inbox = pd.register(Buffer::map(32).unwrap(), Access::NONE).unwrap();
        for n in 0..4 {
            srq.post_recv(n, inbox.slice(8 * n..8 * n + 8).unwrap())
                .unwrap();
        }
        let full = srq.post_recv(4, Target::empty()).unwrap_err();
        assert_eq!(full.why, PostFault::Queue(QueueError::Full));
        assert!(full.is_full() && full.to_string().starts_with("shared receive queue"));
        let mut qps = Vec::new();
        for _ in 0..2 {
            let qp = pd.queue_pair(&cq).shared_receive_queue(&srq).build();
            let incoming = listener.next().await.unwrap();
            qps.push(incoming.accept(qp.unwrap(), &[]).await.unwrap());
        }
        for (n, of) in [(0, 0), (1, 1), (2, 0)] {
            let done = done(&cq).await;
            assert_eq!((done.id, done.qpn), (n, qps[of].qpn().get()));
            let bytes = u64::from_ne_bytes([n as u8 + 1; 8]);
            assert_eq!(inbox.load(8 * n), Ok(bytes));
        }
        assert_eq!(srq.len(), 1);
        let told = async {
            while !events
                .recv()
                .await
                .unwrap()
                .to_string()
                .contains("below its limit")
            {}
        };
        tokio::time::timeout(LIMIT, told).await.expect("an event");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    on_hosts("rdma-srq", None, a, b);
}
