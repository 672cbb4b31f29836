//! Connection management by the standard: librdmacm's programs, unmodified, at the other end, in both roles; what is refused, and what is
//! lost of the exchange itself.
//!
//! Must not: connect by hand.

use std::{
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::Command,
    sync::Arc,
    time::Duration,
};

use rocexdp::{
    control::config::RunOptions,
    lab::{HOST_INTERFACE, Host},
    mem::Buffer,
    node::HandleAttr,
    rdma::{
        Access, CompletionQueue, CqeOpcode, Error, QueuePair, ReadWrite, Region, Wr,
        cm::{Cm, CmOptions, DATAGRAM_QKEY},
    },
    rping::{self, Plan},
};
use rocexdp_proto::{
    cm::RejReason,
    ids::{Qpn, WrId},
    mem::Memory,
    verbs::{CqeOpcode as Kind, RecvWr, Segment, SendOp, SendWr},
    wire::{GRH_ROOM, Grh},
};
use rocexdp_tests::{
    Running, eventually,
    softroce::{Guest, NEAR_TAP},
};
use tokio::time::timeout;

use crate::{
    ending, nvme,
    run::{Expect, Family, Name, Role, Run},
};

/// How long the guest's programs may take.
pub const LIMIT: Duration = Duration::from_secs(90);
/// Messages of a connection each way, and their bytes.
const COUNT: u64 = 4;
const SIZE: u64 = 100;

pub fn name(what: &str, role: Role, family: Family) -> Name {
    Name {
        what: format!("RDMA CM: {what}"),
        role,
        family,
        path_mtu: 4096,
    }
}

/// The role is that of who asks for the connection.
pub fn cases(run: &mut Run) {
    let cm = {
        let _inside = run.runtime.enter();
        let options = CmOptions {
            // As the guest's own: within it, nothing is sent again.
            packet_life_time: Some(18),
            ..CmOptions::default()
        };
        Cm::open_with(&run.device, options).unwrap()
    };
    for family in Family::EACH {
        run.case(
            &name("rping", Role::Requester, family),
            Expect::Clean,
            |run| rping_to_guest(run, &cm, family),
        );
        run.case(
            &name("rping", Role::Responder, family),
            Expect::Clean,
            |run| rping_from_guest(run, &cm, family),
        );
    }
    type Body = fn(&mut Run, &Cm);
    let programs: [(&str, Role, Body); 9] = [
        ("ucmatose", Role::Requester, |run, cm| {
            let listen = format!("ucmatose -b {} -c 2 -C {COUNT} -S {SIZE}", guest());
            connect_to_guest(run, cm, &listen, 7471, 2, COUNT, Turn::TheirsFirst);
        }),
        ("ucmatose", Role::Responder, |run, cm| {
            let ask = format!("ucmatose -s {} -c 2 -C {COUNT} -S {SIZE}", ours());
            connect_from_guest(run, cm, &ask, 7471, 2, COUNT, Turn::OursFirst);
        }),
        ("rdma_server", Role::Requester, |run, cm| {
            let listen = format!("rdma_server -s {} -p 7472", guest());
            connect_to_guest(run, cm, &listen, 7472, 1, 1, Turn::OursFirst);
        }),
        ("rdma_client", Role::Responder, |run, cm| {
            let ask = format!("rdma_client -s {} -p 7472", ours());
            connect_from_guest(run, cm, &ask, 7472, 1, 1, Turn::TheirsFirst);
        }),
        ("udaddy", Role::Requester, udaddy_to_guest),
        ("udaddy", Role::Responder, udaddy_from_guest),
        (
            "no datagram service",
            Role::Requester,
            no_datagrams_at_guest,
        ),
        ("no listener", Role::Requester, refused_by_guest),
        ("no listener", Role::Responder, refused_by_us),
    ];
    for (what, role, body) in programs {
        let expect = match what {
            "no listener" => Expect::Findings(&["cm_rejected"], &[]),
            "no datagram service" => Expect::Findings(&[], &["cm_rejected"]),
            _ => Expect::Clean,
        };
        run.case(&name(what, role, Family::V4), expect, |run| body(run, &cm));
    }
    for (lost, role) in [
        ("REQ", Role::Requester),
        ("REP", Role::Requester),
        ("RTU", Role::Requester),
        ("DREQ", Role::Requester),
        ("REQ", Role::Responder),
        ("REP", Role::Responder),
        ("RTU", Role::Responder),
        ("DREQ", Role::Responder),
    ] {
        let what = format!("the first {lost} is lost");
        // A request that is asked for again is none, where its answer was lost.
        let may = Expect::Findings(&[], &["cm_rejected"]);
        run.case(&name(&what, role, Family::V4), may, |run| {
            lossy(run, &cm, lost, role)
        });
    }
    nvme::cases(run, &cm);
    ending::programs(run, &cm);
}

fn ours() -> IpAddr {
    Family::V4.of(Host::A)
}

fn guest() -> IpAddr {
    Family::V4.of(Host::B)
}

/// Until the guest listens on a port.
pub fn listens(guest: &Guest, port: u16) {
    eventually("the guest listens", LIMIT, || {
        let said = guest.run("rdma resource show cm_id").stdout;
        said.lines()
            .any(|line| line.contains("LISTEN") && line.contains(&format!(":{port}")))
            .then_some(())
    });
}

pub fn plan(port: u16) -> Plan {
    Plan {
        server: None,
        port,
        options: RunOptions::default(),
        count: COUNT,
        size: SIZE as u32,
        verbose: false,
        validate: true,
        persistent: false,
        patience: Duration::from_secs(60),
        packet_life_time: None,
    }
}

fn rping_to_guest(run: &mut Run, cm: &Cm, family: Family) {
    let address = family.of(Host::B);
    let guest = run.site.guest();
    let server = guest.start(&format!("rping -s -a {address} -C {COUNT} -S {SIZE} -v"));
    listens(guest, 7174);
    let plan = plan(7174);
    let pings = rping::client(cm, SocketAddr::new(address, 7174), &plan);
    let done = run.runtime.block_on(pings).unwrap();
    assert_eq!(done.pings, COUNT);
    let said = server.finish(LIMIT).stdout;
    assert_eq!(
        said.matches("server ping data: rdma-ping-").count(),
        4,
        "{said}"
    );
}

fn rping_from_guest(run: &mut Run, cm: &Cm, family: Family) {
    let address = family.of(Host::A);
    let client = format!("sleep 1; rping -c -a {address} -C {COUNT} -S {SIZE} -v -V");
    let client = run.site.guest().start(&client);
    run.runtime.block_on(rping::serve(cm, &plan(7174))).unwrap();
    let said = client.finish(LIMIT).stdout;
    // It compares, and shows what came back.
    assert_eq!(said.matches("ping data: rdma-ping-").count(), 4, "{said}");
}

/// Whose messages go first, the other's after they have come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    OursFirst,
    TheirsFirst,
}

/// A queue pair's messages.
struct Talk {
    cq: CompletionQueue,
    memory: Region<ReadWrite>,
    count: u64,
    size: u64,
}

impl Talk {
    /// With receive requests posted.
    fn new(
        cm: &Cm,
        count: u64,
        size: u64,
    ) -> (Self, QueuePair<rocexdp::rdma::Rc, rocexdp::rdma::Init>) {
        let pd = cm.device().protection_domain().unwrap();
        let cq = CompletionQueue::new(64);
        let memory = pd.register(Buffer::map(2 * size as usize).unwrap(), Access::NONE);
        let memory = memory.unwrap();
        let qp = pd.queue_pair(&cq).depths(16, 16).build().unwrap();
        for id in 0..count {
            qp.post_recv(id, memory.slice(..size).unwrap()).unwrap();
        }
        let talk = Self {
            cq,
            memory,
            count,
            size,
        };
        (talk, qp)
    }

    async fn done(&self, what: CqeOpcode) {
        for _ in 0..self.count {
            let done = timeout(LIMIT, self.cq.next()).await.unwrap().unwrap();
            let done = done.result().unwrap();
            // Theirs may come while ours complete: the turns see to it that they don't.
            assert_eq!(done.opcode, what);
            if what == CqeOpcode::Recv {
                assert_eq!(u64::from(done.byte_len), self.size);
            }
        }
    }

    async fn send(&self, qp: &QueuePair) {
        for id in 0..self.count {
            let data = self.memory.slice(self.size..).unwrap();
            qp.post(Wr::send(data).id(id)).unwrap();
        }
        self.done(CqeOpcode::Send).await;
    }
}

/// The messages of all connections: the guest's programs wait for those of all before they send any.
async fn talk(open: &[(Talk, QueuePair)], turn: Turn) {
    let turns = match turn {
        Turn::OursFirst => [true, false],
        Turn::TheirsFirst => [false, true],
    };
    for ours in turns {
        for (talk, qp) in open {
            if ours {
                talk.send(qp).await;
            } else {
                talk.done(CqeOpcode::Recv).await;
            }
        }
    }
}

fn size_of(count: u64) -> u64 {
    // rdma_client's and rdma_server's one message has 16 bytes.
    if count == 1 { 16 } else { SIZE }
}

fn connect_to_guest(
    run: &mut Run,
    cm: &Cm,
    program: &str,
    port: u16,
    qps: usize,
    count: u64,
    turn: Turn,
) {
    let guest_runs = run.site.guest().start(program);
    listens(run.site.guest(), port);
    run.runtime.block_on(async {
        let mut open = Vec::new();
        for _ in 0..qps {
            let (talk, qp) = Talk::new(cm, count, size_of(count));
            let peer = SocketAddr::new(guest(), port);
            open.push((talk, cm.connect(qp, peer, b"rocexdp").await.unwrap()));
        }
        talk(&open, turn).await;
        part(open, turn).await;
    });
    guest_runs.finish(LIMIT).ok();
}

fn connect_from_guest(
    run: &mut Run,
    cm: &Cm,
    program: &str,
    port: u16,
    qps: usize,
    count: u64,
    turn: Turn,
) {
    let mut listener = cm.listen(port).unwrap();
    let guest_runs = run.site.guest().start(program);
    run.runtime.block_on(async {
        let mut open = Vec::new();
        for _ in 0..qps {
            let incoming = timeout(LIMIT, listener.next()).await.unwrap().unwrap();
            assert_eq!(incoming.from().ip(), guest());
            let (talk, qp) = Talk::new(cm, count, size_of(count));
            open.push((talk, incoming.accept(qp, b"rocexdp").await.unwrap()));
        }
        talk(&open, turn).await;
        part(open, turn).await;
    });
    guest_runs.finish(LIMIT).ok();
}

/// Who had the last word waits for the other to end it: it may not have arrived.
async fn part(open: Vec<(Talk, QueuePair)>, turn: Turn) {
    for (_, qp) in open {
        if turn == Turn::TheirsFirst {
            timeout(LIMIT, qp.closed()).await.unwrap();
        }
        timeout(LIMIT, qp.disconnect()).await.unwrap();
    }
}

/// A UD queue pair of the device with memory for messages.
struct Datagrams {
    qp: rocexdp::node::NodeQp,
    place: Arc<Buffer>,
}

impl Datagrams {
    async fn new(cm: &Cm, local: IpAddr) -> Self {
        let qp = cm.device().node().create_ud_qp(16, 16).unwrap();
        qp.open_datagram(local, DATAGRAM_QKEY).await.unwrap();
        let place = Arc::new(Buffer::map(4096).unwrap());
        for id in 0..COUNT {
            let memory: Arc<dyn Memory> = place.clone();
            let room = Segment::new(memory, 0, (GRH_ROOM as u64 + SIZE) as u32);
            qp.post_recv(RecvWr::new(WrId(id), room)).unwrap();
        }
        Self { qp, place }
    }

    /// All that come: who sent the last, from where.
    async fn receive(&self) -> (Qpn, IpAddr) {
        let (mut received, mut last) = (0, None);
        while received < COUNT {
            let cqe = timeout(LIMIT, self.qp.completion()).await.unwrap().unwrap();
            if cqe.opcode != Kind::Recv {
                continue;
            }
            assert_eq!(u64::from(cqe.byte_len), GRH_ROOM as u64 + SIZE);
            received += 1;
            last = cqe.src_qpn;
            // Its number, as udaddy says it.
            assert_eq!(cqe.imm, last.map(Qpn::get));
        }
        let mut grh = [0; GRH_ROOM];
        self.place.read(0, &mut grh).unwrap();
        let HandleAttr { peer, .. } = HandleAttr::answering(ours(), &Grh::new(grh));
        (last.unwrap(), peer)
    }

    async fn send(&self, cm: &Cm, to: IpAddr, qpn: Qpn, qkey: u32) {
        let node = cm.device().node();
        let way = node
            .address_handle(HandleAttr::new(ours(), to))
            .await
            .unwrap();
        for id in 0..COUNT {
            let memory: Arc<dyn Memory> = self.place.clone();
            let data = Segment::new(memory, 1024, SIZE as u32);
            let op = SendOp::SendImm(self.qp.qpn().get());
            let wr = SendWr::new(WrId(id), op, data).to(way.to(qpn, qkey));
            self.qp.post_send(wr).unwrap();
        }
    }
}

fn udaddy_to_guest(run: &mut Run, cm: &Cm) {
    let program = format!("udaddy -b {} -C {COUNT} -S {SIZE}", guest());
    let guest_runs = run.site.guest().start(&program);
    listens(run.site.guest(), 7174);
    run.runtime.block_on(async {
        let peer = SocketAddr::new(guest(), 7174);
        let found = cm.resolve(peer, b"rocexdp").await.unwrap();
        assert_eq!(found.qkey, DATAGRAM_QKEY);
        let ours = Datagrams::new(cm, found.local).await;
        ours.send(cm, found.address, found.qpn, found.qkey).await;
        assert_eq!(ours.receive().await, (found.qpn, guest()));
    });
    guest_runs.finish(LIMIT).ok();
}

fn no_datagrams_at_guest(run: &mut Run, cm: &Cm) {
    let none = run
        .runtime
        .block_on(cm.resolve(SocketAddr::new(guest(), 7175), &[]));
    let why = none.unwrap_err().to_string();
    assert!(
        why.contains("no such datagram service: unsupported (status 1)"),
        "{why}"
    );
}

fn udaddy_from_guest(run: &mut Run, cm: &Cm) {
    let mut listener = cm.listen_datagrams(7174).unwrap();
    let program = format!("udaddy -s {} -b {} -C {COUNT} -S {SIZE}", ours(), guest());
    let guest_runs = run.site.guest().start(&program);
    run.runtime.block_on(async {
        let request = timeout(LIMIT, listener.next()).await.unwrap().unwrap();
        assert_eq!(request.from(), guest());
        let ours = Datagrams::new(cm, request.local()).await;
        request.accept(ours.qp.qpn(), DATAGRAM_QKEY, &[]).unwrap();
        let (qpn, from) = ours.receive().await;
        ours.send(cm, from, qpn, DATAGRAM_QKEY).await;
        // Until the guest has them: they are sent once.
        guest_runs.finish(LIMIT).ok();
    });
}

fn refused_by_guest(run: &mut Run, cm: &Cm) {
    let (_, qp) = Talk::new(cm, 1, 16);
    let peer = SocketAddr::new(guest(), 7999);
    let refused = run.runtime.block_on(cm.connect(qp, peer, &[]));
    let error = refused.unwrap_err();
    let text = error.to_string();
    let Error::Rejected(rejected) = error else {
        panic!("{text}")
    };
    assert_eq!(rejected.reason, RejReason::INVALID_SERVICE_ID);
    assert_eq!(
        text,
        format!("{peer} refused the connection: invalid service ID (reason 8)")
    );
}

fn refused_by_us(run: &mut Run, _cm: &Cm) {
    let ask = format!("rping -c -a {} -p 7999 -C 1", ours());
    let client = run.site.guest().start(&ask);
    let said = client.finish(LIMIT);
    assert!(
        said.stderr.contains("RDMA_CM_EVENT_REJECTED, error 8"),
        "{said:?}"
    );
}

/// Runs nft where the guest's tap is.
fn nft(run: &Run, line: &str) -> String {
    let mut command = Command::new("nft");
    command.arg(line);
    run.site.lab().spawn_in(Host::B, &mut command).unwrap();
    let nft = Running::start(command, format!("nft {line}"));
    nft.finish(LIMIT).ok().stdout
}

/// The first of these messages is dropped in the bridge between the tap and the wire.
fn lossy(run: &mut Run, cm: &Cm, lost: &str, role: Role) {
    let attribute = match lost {
        "REQ" => 0x10,
        "REP" => 0x13,
        "RTU" => 0x14,
        _ => 0x15,
    };
    // From the asking end: REQ, RTU; of rping, DREQ comes from the client, who asked.
    let from_us = (role == Role::Requester) == (lost != "REP");
    let from = if from_us { HOST_INTERFACE } else { NEAR_TAP };
    nft(run, "add table bridge cm");
    nft(
        run,
        "add chain bridge cm c { type filter hook forward priority 0; }",
    );
    // QP 1, the attribute; an IP packet of 308 bytes is within the quota once.
    let rule = format!(
        "add rule bridge cm c iifname {from} ether type ip udp dport 4791 @th,104,24 1 @th,352,16 {attribute} quota until 400 bytes counter drop"
    );
    nft(run, &rule);
    let said = catch_unwind(AssertUnwindSafe(|| match role {
        Role::Requester => rping_to_guest(run, cm, Family::V4),
        _ => rping_from_guest(run, cm, Family::V4),
    }));
    let counted = nft(run, "list table bridge cm");
    nft(run, "delete table bridge cm");
    if let Err(why) = said {
        resume_unwind(why);
    }
    assert!(
        counted.contains("packets 1 "),
        "nothing was lost: {counted}"
    );
}
