//! Rights that come and go: memory windows, regions of one queue pair. And FLUSH, which asks what became of the bytes.

use rocexdp::rdma::{Bind, LocalInvalidate, MemoryWindow, Placement, Type1, Type2};

use super::*;

/// Posts a request of this host's own, which must do well.
async fn carried_out(qp: &QueuePair, wr: Wr<Bind>) -> RemoteRegion {
    let remote = wr.remote();
    qp.post(wr.id(77)).unwrap();
    let done = done(qp.send_cq()).await;
    assert_eq!((done.id, done.opcode), (77, CqeOpcode::BindMw));
    remote
}

/// Tells the peer of a window, and waits for it to have heard.
async fn tell(qp: &QueuePair, remote: RemoteRegion) {
    qp.post(Wr::send(Source::inline(&remote.to_bytes())).id(78))
        .unwrap();
    assert_eq!(done(qp.send_cq()).await.id, 78);
}

/// A connection of host a, and its peer's windows as they are told.
struct Peer {
    qp: QueuePair,
    cq: CompletionQueue,
    inbox: rocexdp::rdma::Region<rocexdp::rdma::ReadWrite>,
}

impl Peer {
    async fn new(pd: &ProtectionDomain) -> Self {
        let cq = CompletionQueue::new(16);
        let inbox = pd.register(Buffer::map(64).unwrap(), Access::NONE).unwrap();
        let qp = pd.queue_pair(&cq).build().unwrap();
        for id in 0..8 {
            qp.post_recv(id, inbox.slice(..24).unwrap()).unwrap();
        }
        let qp = qp.connect(server(), &Connect::new()).await.unwrap();
        Self { qp, cq, inbox }
    }

    async fn told(&self) -> RemoteRegion {
        assert_eq!(done(&self.cq).await.byte_len, 24);
        let mut bytes = [0; 24];
        self.inbox.read(0, &mut bytes).unwrap();
        RemoteRegion::from_bytes(&bytes).unwrap()
    }

    /// WRITEs 8 bytes to the window's end.
    fn write(&self, to: RemoteRegion, byte: u8) {
        let to = to.slice(to.len() - 8, 8).unwrap();
        self.qp
            .post(Wr::write(Source::inline(&[byte; 8]), to).id(9))
            .unwrap();
    }

    async fn may_write(&self, to: RemoteRegion, byte: u8) {
        self.write(to, byte);
        assert_eq!(done(&self.cq).await.id, 9);
    }

    async fn is_refused(&self) {
        assert_eq!(failure(&self.cq).await, Status::RemAccessErr);
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn windows_give_and_take_rights_to_parts_of_regions() {
    let step = Barrier::new(2);
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        // Type 2, given back with a SEND.
        let peer = Peer::new(&pd).await;
        let window = peer.told().await;
        assert_eq!((window.len(), window.access()), (64, Access::REMOTE_WRITE));
        peer.may_write(window, 1).await;
        let back = Wr::send(Source::empty()).invalidate(window);
        peer.qp.post(back.id(10)).unwrap();
        assert_eq!(done(&peer.cq).await.id, 10);
        // Bound again under another key, to another part; the old key is nobody's.
        let again = peer.told().await;
        assert_ne!(again.rkey(), window.rkey());
        peer.may_write(again, 2).await;
        peer.write(window, 3);
        peer.is_refused().await;
        drop(peer);
        // Over another queue pair; beyond its end; against its rights; taken by its owner.
        for n in 0..4 {
            let peer = Peer::new(&pd).await;
            let window = peer.told().await;
            let (rkey, va, access) = (window.rkey(), window.va(), window.access());
            match n {
                0 => {
                    peer.may_write(window, 4).await;
                    let other = Peer::new(&pd).await;
                    other.write(window, 5);
                    other.is_refused().await;
                    continue;
                }
                1 => peer.write(RemoteRegion::new(rkey, va, 72, access), 6),
                2 => {
                    let from = window.slice(0, 8).unwrap();
                    let into = peer.inbox.slice(32..40).unwrap();
                    peer.qp.post(Wr::read(into, from)).unwrap();
                }
                _ => {
                    peer.may_write(window, 7).await;
                    step.wait().await;
                    // The next word comes once the window was taken.
                    peer.told().await;
                    peer.write(window, 8);
                }
            }
            peer.is_refused().await;
        }
        // Type 1, which any queue pair reaches; its old key when bound anew; unbound; its region dropped.
        let peer = Peer::new(&pd).await;
        let first = peer.told().await;
        let into = peer.inbox.slice(32..40).unwrap();
        let read = |from: RemoteRegion| Wr::read(&into, from.slice(0, 8).unwrap()).id(11);
        peer.qp.post(read(first)).unwrap();
        assert_eq!(done(&peer.cq).await.id, 11);
        let other = Peer::new(&pd).await;
        other.qp.post(read(first)).unwrap();
        assert_eq!(done(&other.cq).await.id, 11);
        step.wait().await;
        let second = peer.told().await;
        other.qp.post(read(first)).unwrap();
        other.is_refused().await;
        drop(other);
        peer.qp.post(read(second)).unwrap();
        assert_eq!(done(&peer.cq).await.id, 11);
        step.wait().await;
        assert_eq!(peer.told().await.len(), 0, "unbound");
        peer.qp.post(read(second)).unwrap();
        peer.is_refused().await;
        drop(peer);
        let peer = Peer::new(&pd).await;
        let window = peer.told().await;
        peer.qp.post(read(window)).unwrap();
        assert_eq!(done(&peer.cq).await.id, 11);
        step.wait().await;
        peer.told().await;
        peer.qp.post(read(window)).unwrap();
        peer.is_refused().await;
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let region = || pd.register(Buffer::map(4096).unwrap(), Access::MW_BIND);
        let memory = region().unwrap();
        assert_eq!(memory.remote(), None, "reached through windows only");
        let mut next = async || {
            let cq = CompletionQueue::new(16);
            accept(listener.next().await.unwrap(), &pd, &cq, 2, &[]).await
        };
        let bound = async |qp: &QueuePair, window: &MemoryWindow<Type2>, at: u64| {
            let bind = Wr::bind(window, &memory, at..at + 64, Access::REMOTE_WRITE);
            let bind = bind.unwrap();
            let key = bind.key();
            tell(qp, carried_out(qp, bind).await).await;
            key
        };
        let word = |byte: u8| Ok(u64::from_ne_bytes([byte; 8]));

        let qp = next().await;
        let window = pd.window::<Type2>().unwrap();
        assert!(!window.is_bound());
        let key = bound(&qp, &window, 100).await;
        assert!(window.is_bound() && window.key() == key);
        let back = done(qp.recv_cq()).await;
        assert_eq!(
            (back.opcode, back.invalidated),
            (CqeOpcode::Recv, Some(key))
        );
        assert!(!window.is_bound());
        bound(&qp, &window, 1000).await;
        qp.closed().await;
        assert_eq!(memory.load(1056), word(2));
        drop(qp);
        assert!(!window.is_bound(), "it went with its queue pair");

        for n in 0..4 {
            let qp = next().await;
            let key = bound(&qp, &window, 2000).await;
            if n == 0 {
                let other = next().await;
                other.closed().await;
            }
            if n == 3 {
                step.wait().await;
                let take: Wr<LocalInvalidate> = Wr::local_invalidate(key);
                qp.post(take.id(79)).unwrap();
                let taken = done(qp.send_cq()).await;
                assert_eq!((taken.id, taken.opcode), (79, CqeOpcode::LocalInvalidate));
                tell(&qp, RemoteRegion::new(0, 0, 0, Access::NONE)).await;
            }
            qp.closed().await;
            drop(qp);
        }
        assert_eq!(memory.load(2056), word(7));

        let window = pd.window::<Type1>().unwrap();
        let bind = |region| Wr::bind(&window, region, ..64, Access::REMOTE_READ).unwrap();
        let qp = next().await;
        let first = carried_out(&qp, bind(&memory)).await;
        tell(&qp, first).await;
        let other = next().await;
        step.wait().await;
        let second = carried_out(&qp, bind(&memory)).await;
        assert_ne!(first.rkey(), second.rkey());
        tell(&qp, second).await;
        other.closed().await;
        step.wait().await;
        let nothing = carried_out(&qp, Wr::unbind(&window)).await;
        tell(&qp, nothing).await;
        qp.closed().await;
        drop(qp);
        let qp = next().await;
        let lent = region().unwrap();
        tell(&qp, carried_out(&qp, bind(&lent)).await).await;
        step.wait().await;
        drop(lent);
        tell(&qp, RemoteRegion::new(0, 0, 0, Access::NONE)).await;
        qp.closed().await;
    };
    on_hosts("rdma-mw", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn what_can_not_be_bound_is_refused_here_or_completes_with_an_error() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let window = pd.window::<Type2>().unwrap();
        let map = || Buffer::map(64).unwrap();
        let plain = pd.register(map(), Access::REMOTE_READ).unwrap();
        let bindable = pd.register(map(), Access::MW_BIND).unwrap();
        let fixed = pd.register_read_only(map(), Access::MW_BIND).unwrap();
        let refused = |wr: Result<Wr<Bind>, Error>, part: &str| {
            let error = wr.unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        };
        let read = Access::REMOTE_READ;
        refused(Wr::bind(&window, &plain, .., read), "Access::MW_BIND");
        let local = Access::LOCAL_WRITE;
        refused(Wr::bind(&window, &bindable, .., local), "to peers only");
        let write = Access::REMOTE_WRITE;
        refused(Wr::bind(&window, &fixed, .., write), "for reading only");
        refused(Wr::bind(&window, &bindable, ..65, read), "of 64 B");
        refused(Wr::bind(&window, &bindable, 8..8, read), "of 64 B");
        assert_eq!(bindable.remote(), None);
        assert_eq!(plain.remote().unwrap().access(), read);
        // Bound already; of another domain; no key of a window.
        let cq = CompletionQueue::new(16);
        let qp = connect(&pd, &cq).await;
        carried_out(&qp, Wr::bind(&window, &fixed, ..8, read).unwrap()).await;
        qp.post(Wr::bind(&window, &fixed, ..8, read).unwrap())
            .unwrap();
        assert_eq!(failure(&cq).await, Status::MwBindErr);
        // What failed left the window behind.
        window.resync();
        drop(qp);
        let qp = connect(&pd, &cq).await;
        carried_out(&qp, Wr::bind(&window, &fixed, ..8, read).unwrap()).await;
        let other = device.protection_domain().unwrap();
        let foreign = other.window::<Type1>().unwrap();
        qp.post(Wr::bind(&foreign, &bindable, .., read).unwrap())
            .unwrap();
        assert_eq!(failure(&cq).await, Status::MwBindErr);
        let qp = connect(&pd, &cq).await;
        qp.post(Wr::local_invalidate(window.key())).unwrap();
        assert_eq!(failure(&cq).await, Status::LocQpOpErr, "another bound it");
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let mut qps = Vec::new();
        for _ in 0..3 {
            qps.push(accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await);
        }
        for qp in &qps {
            qp.closed().await;
        }
    };
    on_hosts("rdma-mwbad", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_region_of_one_queue_pair_is_refused_over_others() {
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let peer = Peer::new(&pd).await;
        let other = Peer::new(&pd).await;
        let region = peer.told().await;
        peer.may_write(region, 1).await;
        other.write(region, 2);
        other.is_refused().await;
        peer.may_write(region, 3).await;
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let map = || Buffer::map(64).unwrap();
        let none = pd.register(map(), Access::NONE).unwrap();
        let memory = pd.register(map(), Access::REMOTE_WRITE).unwrap();
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        let other = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        assert!(matches!(none.restrict_to(&qp), Err(Error::Access(_))));
        memory.restrict_to(&qp).unwrap();
        tell(&qp, memory.remote().unwrap()).await;
        other.closed().await;
        qp.closed().await;
        assert_eq!(memory.load(56), Ok(u64::from_ne_bytes([3; 8])));
    };
    on_hosts("rdma-one", None, a, b);
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn flush_places_what_was_written_where_memory_and_rights_allow_it() {
    let step = Barrier::new(2);
    let a = async |device: Device| {
        let pd = device.protection_domain().unwrap();
        let peer = Peer::new(&pd).await;
        let file = peer.told().await;
        peer.may_write(file, 1).await;
        let part = file.slice(0, file.len()).unwrap();
        let whole = [Placement::Visible, Placement::Persistent, Placement::Both];
        for placement in whole {
            peer.qp.post(Wr::flush(part, placement).id(20)).unwrap();
            let flushed = done(&peer.cq).await;
            assert_eq!((flushed.id, flushed.opcode), (20, CqeOpcode::Flush));
        }
        let all = Wr::flush_region(file, Placement::Persistent);
        peer.qp.post(all.id(21)).unwrap();
        assert_eq!(done(&peer.cq).await.id, 21);
        // Anonymous memory is gone with its host; a region without the right.
        step.wait().await;
        let anonymous = peer.told().await;
        let visible = Wr::flush_region(anonymous, Placement::Visible);
        peer.qp.post(visible.id(22)).unwrap();
        assert_eq!(done(&peer.cq).await.id, 22);
        let persistent = Wr::flush_region(anonymous, Placement::Persistent);
        peer.qp.post(persistent).unwrap();
        assert_eq!(failure(&peer.cq).await, Status::RemOpErr);
        drop(peer);
        let peer = Peer::new(&pd).await;
        let plain = peer.told().await;
        let flush = Wr::flush_region(plain, Placement::Visible);
        peer.qp.post(flush).unwrap();
        peer.is_refused().await;
    };
    let b = async |device: Device, mut listener: Listener| {
        let pd = device.protection_domain().unwrap();
        let cq = CompletionQueue::new(8);
        let rights = Access::REMOTE_WRITE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapped = MappedFile::map(&file, 8192).unwrap();
        let mapped = pd.register(mapped, rights).unwrap();
        let anonymous = pd.register(Buffer::map(64).unwrap(), rights).unwrap();
        let plain = pd.register(Buffer::map(64).unwrap(), Access::REMOTE_WRITE);
        let plain = plain.unwrap();
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        tell(&qp, mapped.remote().unwrap()).await;
        step.wait().await;
        tell(&qp, anonymous.remote().unwrap()).await;
        qp.closed().await;
        let mut end = [0; 8];
        file.read_exact_at(&mut end, 8184).unwrap();
        assert_eq!(end, [1; 8]);
        let qp = accept(listener.next().await.unwrap(), &pd, &cq, 0, &[]).await;
        tell(&qp, plain.remote().unwrap()).await;
        qp.closed().await;
    };
    on_hosts("rdma-flush", None, a, b);
}
