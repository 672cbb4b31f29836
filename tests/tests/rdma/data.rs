//! What operations do to memory, and what they may not.

use super::*;

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn every_operation_of_rc_does_what_it_says() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(64);
        let memory = pd
            .register(Buffer::map(16384).unwrap(), Access::NONE)
            .unwrap();
        let qp = connect(&pd, &cq).await;
        let remote = RemoteRegion::from_bytes(qp.private_data()).unwrap();
        assert_eq!(remote.len(), 16384);
        let bytes: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        memory.write(0, &bytes).unwrap();
        let slice = |range: std::ops::Range<u64>| memory.slice(range).unwrap();

        // SEND: inline with immediate, gathered from two slices, none at all.
        qp.post(Wr::send(Source::inline(b"inline")).immediate(7).id(1))
            .unwrap();
        let parts = [slice(100..200), slice(5000..9000)];
        qp.post(Wr::send(Source::gather(&parts)).id(2)).unwrap();
        qp.post(Wr::send(Source::empty()).id(3).unsignaled())
            .unwrap();
        // WRITE without, and with immediate.
        let to = remote.slice(8, 8192).unwrap();
        qp.post(Wr::write(slice(0..8192), to).id(4)).unwrap();
        let to = remote.slice(0, 8).unwrap();
        qp.post(Wr::write(Source::inline(&[0xff; 8]), to).immediate(9).id(5))
            .unwrap();
        for (id, opcode, len) in [
            (1, CqeOpcode::Send, 6),
            (2, CqeOpcode::Send, 4100),
            (4, CqeOpcode::Write, 8192),
            (5, CqeOpcode::Write, 8),
        ] {
            let done = done(&cq).await;
            assert_eq!((done.id, done.opcode), (id, opcode));
            assert_eq!(done.byte_len, len, "{done:?}");
        }
        // READ it back, behind it an atomic and another, fenced.
        let from = remote.slice(4, 8196).unwrap();
        qp.post(Wr::read(slice(8192..8192 + 8196 - 4), remote.slice(4, 8192).unwrap()).id(6))
            .unwrap();
        let error = qp.post(Wr::read(slice(0..8), from)).unwrap_err();
        assert_eq!(error.why, PostFault::ReadLength { len: 8196, room: 8 });
        let named = format!("QP {}: ", qp.qpn());
        assert!(error.to_string().starts_with(&named), "{error}");
        let answer = memory.word(0).unwrap();
        let at = remote.word(0).unwrap();
        // Fenced: unfenced, it may be carried out before the READ's last packet is filled.
        qp.post(Wr::fetch_add(&answer, at, 2).id(7).fenced())
            .unwrap();
        assert_eq!(done(&cq).await.opcode, CqeOpcode::Read);
        assert_eq!(done(&cq).await.opcode, CqeOpcode::FetchAdd);
        assert_eq!(answer.load(), u64::MAX, "what stood there");
        let mut back = vec![0; 8192];
        memory.read(8192, &mut back).unwrap();
        assert_eq!(back[..4], [0xff; 4]);
        assert!(back[4..] == bytes[..8188]);
        qp.post(Wr::compare_swap(&answer, at, 1, 0x1122).fenced().id(8))
            .unwrap();
        assert_eq!(done(&cq).await.opcode, CqeOpcode::CompareSwap);
        assert_eq!(answer.load(), 1, "the sum, modulo 2^64");
        qp.post(Wr::compare_swap(&answer, at, 1, 0).id(9)).unwrap();
        assert_eq!(done(&cq).await.id, 9);
        assert_eq!(
            answer.load(),
            0x1122,
            "not swapped: something else stood there"
        );
        qp.post(Wr::atomic_write(0x3344, at).id(10)).unwrap();
        assert_eq!(done(&cq).await.opcode, CqeOpcode::AtomicWrite);
        qp.post(Wr::send(Source::empty()).id(11)).unwrap();
        assert_eq!(done(&cq).await.id, 11);
        let stats = qp.stats().await.unwrap();
        assert_eq!(stats.retransmitted_packets, 0, "nothing was lost");
        qp.closed().await;
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(64);
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let memory = pd.register(Buffer::map(16384).unwrap(), rights).unwrap();
        let inbox = pd
            .register(Buffer::map(8192).unwrap(), Access::NONE)
            .unwrap();
        let qp = pd.queue_pair(&cq).build().unwrap();
        qp.post_recv(0, inbox.slice(..100).unwrap()).unwrap();
        let halves = [
            inbox.slice(100..1000).unwrap(),
            inbox.slice(1000..).unwrap(),
        ];
        qp.post_recv(1, Target::scatter(&halves)).unwrap();
        for id in 2..5 {
            qp.post_recv(id, Target::empty()).unwrap();
        }
        let offer = memory.remote().unwrap().to_bytes();
        let qp = listener
            .next()
            .await
            .unwrap()
            .accept(qp, &offer)
            .await
            .unwrap();
        let mut bytes = [0; 6];
        let first = done(&cq).await;
        assert_eq!((first.id, first.byte_len, first.imm), (0, 6, Some(7)));
        inbox.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"inline");
        let second = done(&cq).await;
        assert_eq!((second.byte_len, second.imm), (4100, None));
        let mut gathered = vec![0; 4100];
        inbox.read(100, &mut gathered).unwrap();
        let expected = (100..200).chain(5000..9000).map(|i| (i % 251) as u8);
        assert!(expected.eq(gathered.iter().copied()));
        let third = done(&cq).await;
        assert_eq!((third.id, third.byte_len), (2, 0));
        let written = done(&cq).await;
        assert_eq!(
            (written.opcode, written.imm),
            (CqeOpcode::RecvWriteImm, Some(9))
        );
        assert_eq!((written.id, written.byte_len), (3, 8));
        // The WRITE before is there by now.
        let mut body = vec![0; 8192];
        memory.read(8, &mut body).unwrap();
        assert!((0..8192).map(|i| (i % 251) as u8).eq(body));
        assert_eq!(done(&cq).await.id, 4);
        assert_eq!(memory.load(0), Ok(0x3344));
        drop(qp);
    };
    on_hosts("rdma-ops", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn regions_of_other_domains_withdrawn_ones_and_rights_not_given_are_refused() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let memory = pd.register(Buffer::map(64).unwrap(), Access::NONE).unwrap();
        // Ours, of another domain.
        let other = device.protection_domain().unwrap();
        let foreign = other
            .register(Buffer::map(64).unwrap(), Access::NONE)
            .unwrap();
        let qp = connect(&pd, &cq).await;
        qp.post(Wr::send(foreign.slice(..).unwrap())).unwrap();
        assert_eq!(failure(&cq).await, Status::LocProtErr);
        drop(qp);
        // The peer's: of another domain, withdrawn, for reading only.
        for n in 0..3 {
            let qp = connect(&pd, &cq).await;
            let remote = RemoteRegion::from_bytes(qp.private_data()).unwrap();
            let to = remote.slice(0, 64).unwrap();
            qp.post(Wr::write(memory.slice(..).unwrap(), to)).unwrap();
            assert_eq!(failure(&cq).await, Status::RemAccessErr, "{n}");
        }
        let qp = connect(&pd, &cq).await;
        let remote = RemoteRegion::from_bytes(qp.private_data()).unwrap();
        qp.post(Wr::read(
            memory.slice(..).unwrap(),
            remote.slice(0, 64).unwrap(),
        ))
        .unwrap();
        assert_eq!(done(&cq).await.byte_len, 64);
        assert_eq!(memory.load(0), Ok(0x0505_0505_0505_0505));
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let region = |pd: &ProtectionDomain, rights| {
            let mut memory = Buffer::map(64).unwrap();
            memory.as_mut_slice().fill(5);
            pd.register(memory, rights).unwrap()
        };
        let other = device.protection_domain().unwrap();
        let foreign = region(&other, Access::REMOTE_WRITE);
        let withdrawn = region(&pd, Access::REMOTE_WRITE);
        let gone = withdrawn.remote().unwrap();
        drop(withdrawn);
        let readable = {
            let mut memory = Buffer::map(64).unwrap();
            memory.as_mut_slice().fill(5);
            pd.register_read_only(memory, Access::REMOTE_READ).unwrap()
        };
        let offers = [
            foreign.remote().unwrap(),
            gone,
            readable.remote().unwrap(),
            readable.remote().unwrap(),
        ];
        let first = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        first.closed().await;
        for offer in offers {
            let incoming = listener.next().await.unwrap();
            let qp = accept(incoming, &pd, &cq, 0, &offer.to_bytes()).await;
            qp.closed().await;
        }
        assert_eq!(
            foreign.load(0),
            Ok(0x0505_0505_0505_0505),
            "nothing was written"
        );
        let refused = pd.register_read_only(Buffer::map(8).unwrap(), Access::REMOTE_WRITE);
        assert!(matches!(refused, Err(Error::Access(_))));
    };
    on_hosts("rdma-rights", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn memory_in_use_is_not_lent_and_outlives_its_region() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let mut memory = pd.register(Buffer::map(64).unwrap(), Access::NONE).unwrap();
        memory.as_mut_slice().unwrap().fill(0x42);
        let slice = memory.slice(..8).unwrap();
        assert_eq!(memory.as_mut_slice(), Err(ViewError::InUse));
        drop(slice);
        let qp = connect(&pd, &cq).await;
        qp.post(Wr::send(memory.slice(..).unwrap())).unwrap();
        assert_eq!(done(&cq).await.byte_len, 64);
        // The engine forgets the request soon after it completed.
        let until = Instant::now() + LIMIT;
        while memory.as_mut_slice().is_err() {
            assert!(Instant::now() < until, "the request still holds the memory");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Dropped while a request uses it: the bytes are sent all the same. The request waits for a receive request of the peer.
        let last = pd
            .register(Buffer::map(64).unwrap(), Access::REMOTE_READ)
            .unwrap();
        last.write(0, &[0x43; 64]).unwrap();
        qp.post(Wr::send(last.slice(..).unwrap())).unwrap();
        drop(last);
        assert_eq!(done(&cq).await.byte_len, 64);
        // A file's.
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0x44; 64], 0).unwrap();
        let mapped = MappedFile::map(&file, 64).unwrap();
        let mut mapped = pd.register(mapped, Access::NONE).unwrap();
        assert_eq!(mapped.as_mut_slice(), Err(ViewError::NotOurs));
        qp.post(Wr::send(mapped.slice(..).unwrap())).unwrap();
        drop(mapped);
        assert_eq!(done(&cq).await.byte_len, 64);
        let mut shared = pd
            .register(Buffer::map(8).unwrap(), Access::REMOTE_READ)
            .unwrap();
        assert_eq!(shared.as_mut_slice(), Err(ViewError::Remote));
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let inbox = pd.register(Buffer::map(64).unwrap(), Access::NONE).unwrap();
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        for byte in [0x42, 0x43, 0x44] {
            tokio::time::sleep(Duration::from_millis(50)).await;
            qp.post_recv(1, inbox.slice(..).unwrap()).unwrap();
            assert_eq!(done(&cq).await.byte_len, 64);
            assert_eq!(inbox.load(56), Ok(u64::from_ne_bytes([byte; 8])));
        }
        qp.closed().await;
    };
    on_hosts("rdma-memory", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn uc_carries_messages_and_writes() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let qp = pd.queue_pair_of::<Uc>(&cq).build().unwrap();
        let qp = qp.connect(server(), &Connect::new()).await.unwrap();
        let remote = RemoteRegion::from_bytes(qp.private_data()).unwrap();
        let bytes = pd
            .register(Buffer::map(9000).unwrap(), Access::NONE)
            .unwrap();
        bytes.write(0, &[0x77; 9000]).unwrap();
        let all = bytes.slice(..).unwrap();
        qp.post(
            Wr::write(&all, remote.slice(0, 9000).unwrap())
                .immediate(5)
                .id(1),
        )
        .unwrap();
        qp.post(Wr::send(&all).id(2)).unwrap();
        assert_eq!((done(&cq).await.id, done(&cq).await.id), (1, 2));
        qp.closed().await;
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let memory = pd
            .register(Buffer::map(9000).unwrap(), Access::REMOTE_WRITE)
            .unwrap();
        let inbox = pd
            .register(Buffer::map(9000).unwrap(), Access::NONE)
            .unwrap();
        let qp = pd.queue_pair_of::<Uc>(&cq).build().unwrap();
        qp.post_recv(1, Target::empty()).unwrap();
        qp.post_recv(2, inbox.slice(..).unwrap()).unwrap();
        let offer = memory.remote().unwrap().to_bytes();
        let qp = listener
            .next()
            .await
            .unwrap()
            .accept(qp, &offer)
            .await
            .unwrap();
        let written = done(&cq).await;
        assert_eq!((written.id, written.imm), (1, Some(5)));
        assert_eq!(memory.load(8992), Ok(0x7777_7777_7777_7777));
        let sent = done(&cq).await;
        assert_eq!((sent.id, sent.byte_len), (2, 9000));
        assert_eq!(inbox.load(8992), Ok(0x7777_7777_7777_7777));
        drop(qp);
    };
    on_hosts("rdma-uc", None, a, b);
}
