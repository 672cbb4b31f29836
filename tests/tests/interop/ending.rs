//! Connections by RDMA CM that end without anybody's wish: the peer's program is killed, or its machine; whom it is told to, by what, and
//! within which time.
//!
//! A program that is killed is ended by its kernel, which disconnects for it (cm.c, `cm_destroy_id`). A machine says nothing. Must not:
//! disconnect in good order.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use rocexdp::{
    lab::Host,
    mem::Buffer,
    rdma::{
        Access, Behaviour, Closed, CompletionQueue, CqeOpcode, Error, Init, QueuePair, Rc,
        ReadWrite, Region, Status, Wr, cm::Cm,
    },
    rping,
};
use rocexdp_tests::eventually;
use tokio::time::timeout;

use crate::{
    cm::{LIMIT, listens, name, plan},
    faults::AFTERWARDS,
    run::{Expect, Family, Role, Run},
};

const SIGKILL: u8 = 9;
/// Of rping: an address, a key and a size.
const INFO: u64 = 16;
const IDLE_PORT: u16 = 7175;
const PORT: u16 = 7174;
/// The tap has gone with the machine, and what is sent to it then.
const SILENCE: Expect = Expect::OneOf(&[], AFTERWARDS);

/// The peer's programs are killed.
pub fn programs(run: &mut Run, cm: &Cm) {
    // What was on its way when the peer's queue pair went is sent again until the connection has ended, too.
    let told = Expect::Repaired(&["no_answer", "retry_exceeded", "rnr", "one_direction"]);
    let what = "the peer's program is killed";
    run.case(&name(what, Role::Requester, Family::V4), told, |run| {
        server_killed(run, cm);
    });
    run.case(&name(what, Role::Responder, Family::V4), told, |run| {
        client_killed(run, cm);
    });
}

/// The peer's machine is killed; another one follows.
pub fn machines(run: &mut Run) {
    let cm = {
        let _inside = run.runtime.enter();
        // That of other cases is closed when the last connection of theirs is.
        eventually("the communication manager is free", LIMIT, || {
            Cm::open(&run.device).ok()
        })
    };
    let what = "the peer's machine is killed";
    run.case(&name(what, Role::Requester, Family::V4), SILENCE, |run| {
        servers_machine_killed(run, &cm);
    });
    run.reboot();
    // The guest asks for so long a timer that this takes half a minute.
    if run.full() {
        run.case(&name(what, Role::Responder, Family::V4), SILENCE, |run| {
            clients_machine_killed(run, &cm);
        });
        run.reboot();
    }
}

/// A queue pair with a receive request posted, as rping's client begins.
struct End {
    cq: CompletionQueue,
    memory: Region<ReadWrite>,
}

const RECV: u64 = 1;
const SEND: u64 = 2;

impl End {
    fn new(cm: &Cm) -> (Self, QueuePair<Rc, Init>) {
        let pd = cm.device().protection_domain().unwrap();
        let cq = CompletionQueue::new(16);
        let memory = pd.register(Buffer::map(4096).unwrap(), Access::NONE);
        let memory = memory.unwrap();
        let behaviour = Behaviour {
            retry_cnt: 3,
            ..Behaviour::default()
        };
        let qp = pd.queue_pair(&cq).depths(16, 16).behaviour(behaviour);
        let qp = qp.build().unwrap();
        qp.post_recv(RECV, memory.slice(..INFO).unwrap()).unwrap();
        (Self { cq, memory }, qp)
    }

    fn send(&self, qp: &QueuePair) {
        let data = self.memory.slice(INFO..2 * INFO).unwrap();
        qp.post(Wr::send(data).id(SEND)).unwrap();
    }

    /// The next completion is a failure.
    async fn fails(&self, id: u64, status: Status) {
        let next = timeout(LIMIT, self.cq.next()).await.expect("it completes");
        let error = next.unwrap().result().expect_err("a failure");
        assert_eq!((error.id, error.status), (id, status));
    }

    /// A request that nobody answers fails, and with it what else is outstanding.
    async fn is_given_up(&self, qp: &QueuePair) {
        self.send(qp);
        self.fails(SEND, Status::RetryExcErr).await;
        self.fails(RECV, Status::WrFlushErr).await;
    }
}

fn server_of(port: u16) -> SocketAddr {
    SocketAddr::new(Family::V4.of(Host::B), port)
}

/// The guest's program has accepted our connections: one that is idle, and one with pings under way.
fn server_killed(run: &mut Run, cm: &Cm) {
    let guest = run.site.guest();
    let address = Family::V4.of(Host::B);
    let mut idle = guest.start(&format!("rping -s -a {address} -p {IDLE_PORT} -v"));
    let mut busy = guest.start(&format!("rping -s -a {address} -p {PORT} -S 100 -v"));
    listens(guest, IDLE_PORT);
    listens(guest, PORT);
    let (end, qp) = End::new(cm);
    let qp = run
        .runtime
        .block_on(cm.connect(qp, server_of(IDLE_PORT), &[]))
        .unwrap();
    let endless = rping::Plan {
        count: 0,
        ..plan(PORT)
    };
    let pings = {
        let cm = cm.clone();
        run.runtime
            .spawn(async move { rping::client(&cm, server_of(PORT), &endless).await })
    };
    busy.says(LIMIT, "server ping data: rdma-ping-");
    for program in [&mut idle, &mut busy] {
        program.signal(SIGKILL);
    }
    run.runtime.block_on(async {
        let how = timeout(LIMIT, qp.closed()).await.expect("it is told");
        assert_eq!(how, Closed::ByPeer);
        end.fails(RECV, Status::WrFlushErr).await;
        let pings = timeout(LIMIT, pings).await.expect("it ends").unwrap();
        let why = pings.expect_err("it was cut off").to_string();
        assert_eq!(why, "the server has ended the connection");
    });
}

/// We have accepted the guest's connections.
fn client_killed(run: &mut Run, cm: &Cm) {
    let mut listener = cm.listen(IDLE_PORT).unwrap();
    let serving = {
        let cm = cm.clone();
        let endless = rping::Plan {
            count: 0,
            ..plan(PORT)
        };
        run.runtime
            .spawn(async move { rping::serve(&cm, &endless).await })
    };
    let address = Family::V4.of(Host::A);
    let guest = run.site.guest();
    let mut idle = guest.start(&format!("rping -c -a {address} -p {IDLE_PORT} -v"));
    let (end, qp) = End::new(cm);
    let qp = run.runtime.block_on(async {
        let incoming = timeout(LIMIT, listener.next()).await.unwrap().unwrap();
        incoming.accept(qp, &[]).await.unwrap()
    });
    // It waits for its rping to be answered, which nobody does.
    let came = end.cq.wait(LIMIT).unwrap().expect("its first message");
    assert_eq!(came.result().unwrap().opcode, CqeOpcode::Recv);
    qp.post_recv(RECV, end.memory.slice(..INFO).unwrap())
        .unwrap();
    let mut busy = guest.start(&format!(
        "sleep 1; exec rping -c -a {address} -p {PORT} -S 100 -v -V"
    ));
    busy.says(LIMIT, "ping data: rdma-ping-");
    for program in [&mut idle, &mut busy] {
        program.signal(SIGKILL);
    }
    run.runtime.block_on(async {
        let how = timeout(LIMIT, qp.closed()).await.expect("it is told");
        assert_eq!(how, Closed::ByPeer);
        end.fails(RECV, Status::WrFlushErr).await;
        // A server's client may leave whenever it likes.
        let served = timeout(LIMIT, serving).await.expect("it ends").unwrap();
        served.unwrap();
    });
}

/// Our connections were accepted: one with a request outstanding, an idle one that is disconnected, and one that is asked for.
fn servers_machine_killed(run: &mut Run, cm: &Cm) {
    let guest = run.site.guest();
    let address = Family::V4.of(Host::B);
    let _servers = [PORT, IDLE_PORT].map(|port| {
        let server = guest.start(&format!("rping -s -a {address} -p {port} -v"));
        listens(guest, port);
        server
    });
    let [(end, qp), (_idle_end, idle)] = [PORT, IDLE_PORT].map(|port| {
        let (end, qp) = End::new(cm);
        let connected = cm.connect(qp, server_of(port), &[]);
        (end, run.runtime.block_on(connected).unwrap())
    });
    run.kill();
    let began = Instant::now();
    run.runtime.block_on(async {
        let disconnects = async {
            timeout(LIMIT, idle.disconnect()).await.expect("it is done");
        };
        let asks = async {
            let (_, qp) = End::new(cm);
            let asked = cm.connect(qp, server_of(PORT), &[]);
            let none = timeout(LIMIT, asked).await.expect("it is given up");
            let error = none.unwrap_err();
            assert!(!matches!(error, Error::Rejected(_)), "{error}");
            let why = error.to_string();
            assert!(why.contains("no answer to the REQ, sent 8 times"), "{why}");
        };
        tokio::join!(end.is_given_up(&qp), disconnects, asks);
    });
    // The longest of the three: 8 messages, 1.2 s apart, and the machine's load.
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}

/// The guest asked: a connection with a request outstanding, and one that is accepted too late.
fn clients_machine_killed(run: &mut Run, cm: &Cm) {
    let address = Family::V4.of(Host::A);
    let mut listener = cm.listen(PORT).unwrap();
    let guest = run.site.guest();
    let [(_client, incoming), (_late_client, late)] = [(); 2].map(|()| {
        let client = guest.start(&format!("rping -c -a {address} -p {PORT} -v"));
        let asked = async { timeout(LIMIT, listener.next()).await };
        let incoming = run.runtime.block_on(asked).expect("it asks");
        (client, incoming.unwrap())
    });
    let (end, qp) = End::new(cm);
    let accepted = incoming.accept(qp, &[]);
    let qp = run.runtime.block_on(accepted).unwrap();
    let came = end.cq.wait(LIMIT).unwrap().expect("its first message");
    assert_eq!(came.result().unwrap().opcode, CqeOpcode::Recv);
    qp.post_recv(RECV, end.memory.slice(..INFO).unwrap())
        .unwrap();
    run.kill();
    let began = Instant::now();
    run.runtime.block_on(async {
        let accepts = async {
            let (_, qp) = End::new(cm);
            let accepted = late.accept(qp, &[]);
            let none = timeout(2 * LIMIT, accepted).await.expect("it is given up");
            let why = none.unwrap_err().to_string();
            assert!(why.contains("no answer to the REP, sent "), "{why}");
        };
        let fails = async {
            // 8 tries of the timer that the guest has asked for.
            timeout(2 * LIMIT, end.is_given_up(&qp)).await.unwrap();
        };
        tokio::join!(fails, accepts);
    });
    assert!(began.elapsed() < 2 * LIMIT, "{:?}", began.elapsed());
}
