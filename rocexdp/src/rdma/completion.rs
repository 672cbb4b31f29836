//! Completions and the queues they come by: polled, awaited, or waited for at a file descriptor.
//!
//! Must not: know requests.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use rocexdp_proto::{
    ids::Qpn,
    verbs::{self, Cqe, CqeOpcode, Status},
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::sync::Notify;

use super::{Error, WindowKey};
use crate::node::{Node, OnDeath};

/// A completion. What it brought is seen only by [`Self::result`]: nothing of a failed request means anything.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use = "a completion may be a failure"]
pub struct Completion(Cqe);

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.result() {
            Ok(done) => done.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}

impl Completion {
    /// The request's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.wr_id.0
    }

    /// The local queue pair's number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.0.qpn.get()
    }

    /// What the request brought.
    ///
    /// # Errors
    /// It failed; its queue pair then has failed too, and what was posted behind it completes with
    /// [`Status::WrFlushErr`].
    pub fn result(&self) -> Result<Done, WorkError> {
        let cqe = &self.0;
        match cqe.status {
            Status::Success => Ok(Done {
                id: self.id(),
                qpn: self.qpn(),
                opcode: cqe.opcode,
                byte_len: cqe.byte_len,
                imm: cqe.imm,
                invalidated: cqe.invalidated.map(|key| WindowKey(key.0)),
                src_qpn: cqe.src_qpn,
            }),
            status => Err(WorkError {
                id: self.id(),
                qpn: self.qpn(),
                status,
            }),
        }
    }
}

/// A request that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The request's.
    pub id: u64,
    /// The local queue pair's number.
    pub qpn: u32,
    /// Kind of request.
    pub opcode: CqeOpcode,
    /// Bytes of the message; of a receive request those that came.
    pub byte_len: u32,
    /// The peer's 32 bits, of a receive request.
    pub imm: Option<u32>,
    /// The window that the peer's SEND has given back, of a receive request: the key of the bind ([`Wr::<Bind>::key`](super::Wr::key)).
    pub invalidated: Option<WindowKey>,
    /// The sender's queue pair, of a receive request of UD. [`Origin::read`](super::Origin::read) tells where it is.
    pub src_qpn: Option<Qpn>,
}

/// A request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("request {id} of QP 0x{qpn:06x} failed: {status}")]
pub struct WorkError {
    /// The request's.
    pub id: u64,
    /// The local queue pair's number.
    pub qpn: u32,
    /// How.
    pub status: Status,
}

/// Whom to tell that something completed.
#[derive(Debug, Default)]
struct News {
    tasks: Notify,
    fd: OnceLock<Arc<OwnedFd>>,
    /// Why nothing may come any more.
    dead: OnceLock<Arc<str>>,
}

impl OnDeath for News {
    fn died(&self, why: &Arc<str>) {
        let _ = self.dead.set(Arc::clone(why));
        // Whoever is woken finds the queue empty, and the reason; and wakes the next one.
        self.tell();
    }
}

impl News {
    /// Runs on the engine's thread.
    fn tell(&self) {
        self.tasks.notify_one();
        if let Some(fd) = self.fd.get() {
            ring(fd);
        }
    }
}

fn ring(fd: &OwnedFd) {
    // Can only fail when the counter is full, and then it is readable.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

#[derive(Debug)]
struct Queue {
    ring: Arc<verbs::CompletionQueue>,
    news: Arc<News>,
    /// The devices of its queue pairs.
    nodes: Mutex<Vec<Weak<Node>>>,
}

/// A completion queue: for any number of queue pairs, polled from any thread. Cloning gives another handle to the same queue.
#[derive(Clone)]
pub struct CompletionQueue(Arc<Queue>);

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.ring.fmt(f)
    }
}

impl CompletionQueue {
    /// A queue for `depth` completions (at least 1): as many as requests may be outstanding that complete into it. A completion that
    /// finds it full is lost, and its queue pair fails.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        let ring = Arc::new(verbs::CompletionQueue::new(depth));
        let news = Arc::new(News::default());
        let told = Arc::clone(&news);
        ring.set_waker(Box::new(move || told.tell()));
        let nodes = Mutex::default();
        Self(Arc::new(Queue { ring, news, nodes }))
    }

    /// A queue pair of this device will complete into it.
    pub(super) fn serve(&self, node: &Arc<Node>) {
        let mut nodes = self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes
            .iter()
            .any(|known| known.as_ptr() == Arc::as_ptr(node))
        {
            return;
        }
        nodes.push(Arc::downgrade(node));
        let news: Weak<News> = Arc::downgrade(&self.0.news);
        node.on_death(news);
    }

    /// Why nothing may complete any more: a worker of a device has died, which is a fault of this crate. The text names the device. What
    /// had completed before can be polled.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let why = self.0.news.dead.get()?;
        Some(Error::Device(anyhow::anyhow!("{why}")))
    }

    pub(super) fn ring(&self) -> &Arc<verbs::CompletionQueue> {
        &self.0.ring
    }

    /// The oldest completion.
    pub fn poll(&self) -> Option<Completion> {
        self.0.ring.poll().map(Completion)
    }

    /// The oldest completion, waited for. May be dropped at any time without losing one; several tasks may wait at once.
    ///
    /// # Errors
    /// There is none, and none may ever come: see [`Self::failure`].
    pub async fn next(&self) -> Result<Completion, Error> {
        loop {
            // Before the queue is looked at: what completed before the death is given first.
            let failure = self.failure();
            // A completion between the two lines leaves a permit.
            if let Some(completion) = self.poll() {
                // One call tells of all until the queue was found empty, and this waiter may not look again: the next one does.
                self.0.news.tasks.notify_one();
                return Ok(completion);
            }
            if let Some(failure) = failure {
                self.0.news.tasks.notify_one();
                return Err(failure);
            }
            self.0.news.tasks.notified().await;
        }
    }

    /// The oldest completion, waited for by this thread; `None` after `timeout`, without end for [`Duration::MAX`]. One thread at a time
    /// may wait, and not beside a [`CompletionChannel`].
    ///
    /// # Errors
    /// No eventfd can be made, or poll(2) fails; or there is no completion, and none may ever come: see [`Self::failure`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<Completion>, Error> {
        // Later than any clock goes: no end.
        let until = Instant::now().checked_add(timeout);
        loop {
            let failure = self.failure();
            if let Some(completion) = self.poll() {
                return Ok(Some(completion));
            }
            if let Some(failure) = failure {
                return Err(failure);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let channel = self.eventfd()?;
            let left = left.and_then(|left| rustix::time::Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&channel, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => channel.clear(),
                Err(error) => return Err(system("waiting for a completion")(error)),
            }
        }
    }

    /// A file descriptor that becomes readable when something completes (the completion channel): for a runtime or an event loop of any
    /// kind. The queue has one; asking again gives another handle to it.
    ///
    /// When it is readable, [`CompletionChannel::clear`] it, then [`Self::poll`] until there is nothing: only then the next completion
    /// makes it readable again. It is readable when asked for, so that what completed before is not missed; and when nothing may come any
    /// more ([`Self::failure`]).
    ///
    /// # Errors
    /// No eventfd can be made.
    pub fn channel(&self) -> Result<CompletionChannel, Error> {
        let channel = self.eventfd()?;
        ring(&channel.0);
        Ok(channel)
    }

    fn eventfd(&self) -> Result<CompletionChannel, Error> {
        let slot = &self.0.news.fd;
        if let Some(fd) = slot.get() {
            return Ok(CompletionChannel(Arc::clone(fd)));
        }
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system("making an eventfd"))?;
        // Another thread may have been faster.
        let fd = slot.get_or_init(|| Arc::new(made));
        // Something may have completed since the queue was looked at.
        ring(fd);
        Ok(CompletionChannel(Arc::clone(fd)))
    }

    /// Completions not polled yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.ring.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.ring.is_empty()
    }

    /// Completions that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.ring.capacity()
    }

    /// Gives it `depth` places (at least 1); what is in it stays, in order (`ibv_resize_cq(3)`).
    ///
    /// # Errors
    /// More completions are in it; nothing has changed.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        let resized = self.0.ring.resize(depth);
        resized.map_err(|error| Error::Device(error.into()))
    }

    /// Whether a completion was ever lost because the queue was full.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.0.ring.overflowed()
    }
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |error| Error::System {
        what,
        error: io::Error::from(error),
    }
}

/// See [`CompletionQueue::channel`].
#[derive(Clone, Debug)]
pub struct CompletionChannel(Arc<OwnedFd>);

impl CompletionChannel {
    /// Makes it unreadable until something completes after the queue was found empty.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        // Nothing to read is as well.
        let _ = rustix::io::read(&*self.0, &mut counter);
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_proto::{
        CreateQp, Endpoint, EndpointConfig, QpHandle, QpTransition,
        ids::{Qpn, WrId},
        mem::Access,
        time::Timestamp,
        verbs::{RecvWr, SgList},
    };

    use super::*;

    /// A queue, and a failed queue pair that gives each receive request back at once.
    struct Source {
        endpoint: Endpoint,
        qp: QpHandle,
    }

    impl Source {
        fn new(cq: &CompletionQueue) -> Self {
            let mut endpoint = Endpoint::new(EndpointConfig::default(), 1);
            let qpn = Qpn::new(0x80_0001);
            let qp = endpoint
                .create_qp(CreateQp::rc(qpn, cq.ring(), cq.ring()))
                .unwrap();
            let access = Access::NONE;
            for to in [QpTransition::Init { access }, QpTransition::Err] {
                endpoint.modify_qp(Timestamp::ZERO, qpn, to).unwrap();
            }
            Self { endpoint, qp }
        }

        fn complete(&mut self, id: u64) {
            let wr = RecvWr::new(WrId(id), SgList::empty());
            self.qp.rq.post(wr).unwrap();
            self.endpoint.work_posted(Timestamp::ZERO, self.qp.qpn);
        }
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_when_another_waiter_took_all_there_was() {
        let cq = CompletionQueue::new(8);
        let mut source = Source::new(&cq);
        let waiter = || {
            let cq = cq.clone();
            tokio::spawn(async move { cq.next().await.unwrap().id() })
        };
        let (first, second) = (waiter(), waiter());
        // Both find nothing, and wait.
        tokio::task::yield_now().await;
        source.complete(1);
        let limit = Duration::from_secs(10);
        assert_eq!(
            tokio::time::timeout(limit, first).await.unwrap().unwrap(),
            1
        );
        source.complete(2);
        let second = tokio::time::timeout(limit, second).await;
        assert_eq!(second.expect("a wake-up").unwrap(), 2);
    }

    #[tokio::test]
    async fn when_a_worker_has_died_every_waiter_is_told_after_what_had_completed() {
        let cq = CompletionQueue::new(8);
        let mut source = Source::new(&cq);
        let waiter = || {
            let cq = cq.clone();
            tokio::spawn(async move { cq.next().await.map_err(|error| error.to_string()) })
        };
        let waiters = [waiter(), waiter()];
        tokio::task::yield_now().await;
        let why: Arc<str> = "eth0, queue 0: its worker has died".into();
        cq.0.news.died(&why);
        for waiter in waiters {
            let limit = Duration::from_secs(10);
            let told = tokio::time::timeout(limit, waiter).await.unwrap().unwrap();
            assert_eq!(told, Err(why.to_string()));
        }
        source.complete(1);
        assert_eq!(cq.next().await.unwrap().id(), 1);
        assert!(cq.wait(Duration::MAX).is_err() && cq.failure().is_some());
    }

    #[test]
    fn a_thread_may_wait_without_end() {
        let cq = CompletionQueue::new(8);
        let mut source = Source::new(&cq);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cq.wait(Duration::MAX));
            std::thread::sleep(Duration::from_millis(20));
            source.complete(1);
            let got = waiter.join().unwrap().unwrap();
            assert_eq!(got.map(|completion| completion.id()), Some(1));
        });
        assert_eq!(cq.wait(Duration::from_millis(1)).unwrap(), None);
    }
}
