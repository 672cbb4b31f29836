//! The public Rust API between two hosts of a lab, as applications use it.

mod change;
mod connect;
mod data;
mod handshake;
mod lifetimes;
mod queues;
mod ud;
mod windows;

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::FileExt as _,
    time::{Duration, Instant},
};

use rocexdp::{
    lab::{Host, Lab, LabConfig},
    mem::{Buffer, MappedFile},
    rdma::{
        Access, Behaviour, Completion, CompletionQueue, Connect, CqeOpcode, Device, Done, Error,
        Incoming, Listener, NodeConfig, PathMtu, PostFault, ProtectionDomain, QpState, QueueError,
        QueuePair, RefuseCode, RemoteRegion, Source, Status, Target, Token, Uc, ViewError, Wr,
    },
};
use tokio::sync::Barrier;

/// Whatever takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 7200;

fn server() -> SocketAddr {
    (Host::B.ipv4(), PORT).into()
}

/// A lab with this prefix; `None` without the rights for one.
fn lab(test: &str) -> Option<Lab> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: not root");
        return None;
    }
    let config = LabConfig::named(test);
    let name = format!("{}{}", config.name, std::process::id());
    Some(Lab::up(LabConfig { name, ..config }).unwrap())
}

/// One end on each host of a new lab: see [`on_lab`].
fn on_hosts(
    test: &str,
    token: Option<Token>,
    a: impl AsyncFnOnce(Device) + Send,
    b: impl AsyncFnOnce(Device, Listener) + Send,
) {
    if let Some(lab) = lab(test) {
        on_lab(&lab, token, a, b);
    }
}

/// One end on each host: `b` gets a listener, `a` starts when it listens.
fn on_lab(
    lab: &Lab,
    token: Option<Token>,
    a: impl AsyncFnOnce(Device) + Send,
    b: impl AsyncFnOnce(Device, Listener) + Send,
) {
    let listening = Barrier::new(2);
    let device = || Device::open_with(NodeConfig::new(lab.host_interface())).unwrap();
    let end_a = || {
        run(async {
            let device = device();
            listening.wait().await;
            a(device).await;
        });
    };
    let end_b = || {
        run(async {
            let device = device();
            let listener = Listener::bind(server(), token).await.unwrap();
            listening.wait().await;
            b(device, listener).await;
        });
    };
    std::thread::scope(|scope| {
        let on_b = scope.spawn(|| lab.host(Host::B).run(end_b));
        let on_a = lab.host(Host::A).run(end_a);
        on_b.join().unwrap().unwrap();
        on_a.unwrap();
    });
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(LIMIT, work)
            .await
            .expect("an end within the limit");
    });
}

/// A completion, which must come in time.
async fn next(cq: &CompletionQueue) -> Completion {
    tokio::time::timeout(LIMIT, cq.next())
        .await
        .expect("a completion")
        .expect("a device that lives")
}

async fn done(cq: &CompletionQueue) -> Done {
    next(cq).await.result().expect("a success")
}

async fn failure(cq: &CompletionQueue) -> Status {
    next(cq).await.result().expect_err("a failure").status
}

/// Accepts the next peer with a queue pair that has `receives` receive requests of no bytes, ids from 0.
async fn accept(
    incoming: Incoming,
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    receives: u64,
    data: &[u8],
) -> QueuePair {
    let qp = pd.queue_pair(cq).build().unwrap();
    for id in 0..receives {
        qp.post_recv(id, Target::empty()).unwrap();
    }
    incoming.accept(qp, data).await.unwrap()
}

/// A connected queue pair of host a.
async fn connect(pd: &ProtectionDomain, cq: &CompletionQueue) -> QueuePair {
    let qp = pd.queue_pair(cq).build().unwrap();
    qp.connect(server(), &Connect::new()).await.unwrap()
}
