//! What is dropped is given back, whoever drops it.

use rocexdp::mem::Borrowed;

use super::*;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_is_dropped_is_given_back() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let qp = connect(&pd, &cq).await;
        let memory = pd.register(Buffer::map(8).unwrap(), Access::NONE).unwrap();
        qp.post_recv(1, memory.slice(..).unwrap()).unwrap();
        drop(qp);
        // More than the device has places for, unless each is given back.
        for n in 0..=device.node().maps().slots {
            let built = pd.queue_pair(&cq).depths(1, 1).build();
            built.unwrap_or_else(|error| panic!("queue pair {n}: {error}"));
        }
        // Nobody connects where nobody listens; and no queue pair is left of it.
        for _ in 0..3 {
            let qp = pd.queue_pair(&cq).build().unwrap();
            let nobody = (Host::B.ipv4(), PORT + 1).into();
            qp.connect(nobody, &Connect::new()).await.unwrap_err();
        }
        let qp = pd.queue_pair(&cq).build().unwrap();
        let long = Connect::new().private_data(&[0; 4097]);
        let error = qp.connect(server(), &long).await.unwrap_err();
        assert!(error.to_string().contains("4097 bytes"), "{error}");
        let mut memory = memory;
        assert!(memory.as_mut_slice().is_ok(), "the request has gone");
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        qp.closed().await;
    };
    on_hosts("rdma-back", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn the_engine_may_drop_an_owner_of_memory_that_owns_a_region() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let qp = connect(&pd, &cq).await;
        let map = || Buffer::map(4096).unwrap();
        let owned = pd.register(map(), Access::REMOTE_READ).unwrap();
        let bytes: &'static mut [u8] = Box::leak(vec![0; 4096].into_boxed_slice());
        // SAFETY: leaked, so it is there for ever; the only reference to it was consumed.
        let borrowed = unsafe { Borrowed::new(std::ptr::NonNull::from(bytes).cast(), 4096, owned) };
        let region = pd.register(borrowed, Access::NONE).unwrap();
        qp.post_recv(1, region.slice(..).unwrap()).unwrap();
        // The request is the last that holds the memory, and ends on the engine's thread.
        drop(region);
        qp.fail();
        assert_eq!(failure(&cq).await, Status::WrFlushErr);
        assert_eq!(qp.state().await.unwrap(), QpState::Err);
        pd.register(map(), Access::REMOTE_READ).unwrap();
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        qp.closed().await;
    };
    on_hosts("rdma-owner", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn when_a_worker_dies_waiting_and_posting_end_with_an_error_that_names_the_device() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let (cq, idle) = (CompletionQueue::new(8), CompletionQueue::new(8));
        let qp = connect(&pd, &cq).await;
        qp.post_recv(1, Target::empty()).unwrap();
        let waiting = tokio::spawn({
            let cq = cq.clone();
            async move { cq.next().await.map_err(|error| error.to_string()) }
        });
        let (told, blocked) = std::sync::mpsc::channel();
        std::thread::spawn({
            let cq = idle.clone();
            let qp = pd.queue_pair(&idle).build().unwrap();
            move || {
                let waited = cq.wait(Duration::MAX).map_err(|error| error.to_string());
                told.send(waited).unwrap();
                drop(qp);
            }
        });
        tokio::task::yield_now().await;
        let engine = device.node().engine();
        let die = |_: &mut _, _| panic!("the fault that this test makes");
        for slot in 0..engine.workers() * rocexdp::engine::LINE {
            let _ = engine.call_qp(rocexdp::rdma::Qpn::new(slot), die);
        }
        let iface = &device.node().report().iface;
        let named = |error: &str| {
            assert!(error.contains(&format!("{iface}, queue")), "{error}");
            assert!(error.contains("has died"), "{error}");
        };
        let waited = tokio::time::timeout(LIMIT, waiting).await.unwrap();
        named(&waited.unwrap().unwrap_err());
        named(&blocked.recv_timeout(LIMIT).unwrap().unwrap_err());
        let error = qp.post(Wr::send(Source::empty())).unwrap_err();
        assert_eq!(error.why, PostFault::Dead);
        let error = qp.post_recv(2, Target::empty()).unwrap_err();
        assert_eq!(error.why, PostFault::Dead);
        assert!(qp.state().await.is_err());
        assert!(pd.queue_pair(&cq).build().is_err());
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        qp.closed().await;
    };
    on_hosts("rdma-dead", None, a, b);
}
