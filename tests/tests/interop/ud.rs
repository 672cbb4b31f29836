//! Unreliable datagrams: SEND in both roles, to one peer and to multicast groups; what is not taken, and by whom.
//!
//! UD's path MTU is the interface's. rxe takes a group's packets where the guest's interface is in the group too (`vsh.c`, `join`). Must
//! not: connect, know faulty wires.

use std::{net::IpAddr, time::Duration};

use rocexdp::{
    lab::Host,
    rdma::{
        AddressHandle, CompletionQueue, CqeOpcode, HandleAttr, Open, Origin, Qpn, QueuePair,
        Recipient, Ud, Wr,
    },
};

use crate::{
    ends::{done, guest_done},
    run::{Expect, Family, IN, Name, OUT, Role, Run},
};

const MTU: u16 = 4096;
/// The sizes of messages: none, one byte, 3 bytes of padding, the largest but one, the largest.
const SIZES: [u64; 5] = [0, 1, 33, MTU as u64 - 1, MTU as u64];
const QKEY: u32 = 0x1357_9bdf;
const IMMEDIATE: u32 = 0x0bad_cafe;
/// From one receiver's place to the next one's.
const STRIDE: u64 = 64 << 10;

fn name(what: &str, role: Role, family: Family) -> Name {
    Name {
        what: format!("UD {what}"),
        role,
        family,
        path_mtu: MTU,
    }
}

pub fn cases(run: &mut Run) {
    for family in Family::EACH {
        for role in Role::EACH {
            for imm in [None, Some(IMMEDIATE)] {
                let what = imm.map_or("SEND", |_| "SEND with immediate");
                run.case(&name(what, role, family), Expect::Clean, |run| {
                    let pair = Pair::open(run, family);
                    for (id, size) in (1..).zip(SIZES) {
                        pair.message(run, role, Message { id, size, imm });
                    }
                    pair.close(run);
                });
            }
            let what = "SEND to a multicast group";
            run.case(&name(what, role, family), Expect::Clean, |run| {
                to_group(run, role, family);
            });
        }
    }
    for role in Role::EACH {
        let what = "SEND with another Q_Key";
        run.case(&name(what, role, Family::V4), Expect::Clean, |run| {
            other_qkey(run, role);
        });
        let what = "SEND longer than the path MTU";
        run.case(&name(what, role, Family::V4), Expect::Clean, |run| {
            too_long(run, role);
        });
    }
}

/// A message; its id is the seed of its bytes.
#[derive(Clone, Copy)]
struct Message {
    id: u64,
    size: u64,
    imm: Option<u32>,
}

impl Message {
    fn new(id: u64, size: u64) -> Self {
        let imm = Some(IMMEDIATE);
        Self { id, size, imm }
    }

    /// Of the receive request: an IP header stands before the message.
    fn room(self) -> u64 {
        Origin::ROOM + self.size
    }
}

/// A queue pair of rocexdp.
struct Ours {
    qp: QueuePair<Ud, Open>,
    cq: CompletionQueue,
}

impl Ours {
    fn open(run: &Run, family: Family) -> Self {
        let cq = CompletionQueue::new(64);
        let qp = run.pd.queue_pair_of::<Ud>(&cq).build().unwrap();
        let opened = qp.open(family.of(Host::A), QKEY);
        let qp = run.runtime.block_on(opened).unwrap();
        Self { qp, cq }
    }

    /// Sends a message, which is in our memory then.
    fn send(&self, run: &Run, message: Message, to: &Recipient) {
        let Message { id, size, imm } = message;
        run.fill(OUT, size, id);
        let data = run.memory.slice(OUT..OUT + size).unwrap();
        match imm {
            None => self.qp.post(Wr::send(data).id(id), to),
            Some(imm) => self.qp.post(Wr::send(data).immediate(imm).id(id), to),
        }
        .unwrap();
        done(&self.cq, id, CqeOpcode::Send);
    }

    /// Makes a place ready for a message.
    fn expect(&self, run: &Run, at: u64, message: Message) {
        run.expect_here(at + Origin::ROOM, message.size, message.id);
        let into = run.memory.slice(at..at + message.room()).unwrap();
        self.qp.post_recv(message.id, into).unwrap();
    }

    /// It must be the next that has come, sent by the guest's QP to an address or a group.
    fn received(&self, run: &Run, at: u64, message: Message, qpn: u32, [from, to]: [IpAddr; 2]) {
        let received = done(&self.cq, message.id, CqeOpcode::Recv);
        assert_eq!(u64::from(received.byte_len), message.room());
        assert_eq!(received.imm, message.imm);
        assert_eq!(received.src_qpn.map(Qpn::get), Some(qpn));
        run.arrived_here(at + Origin::ROOM, message.size, message.id);
        let origin = Origin::read(&run.memory, at).unwrap();
        assert_eq!([origin.from, origin.to], [from, to]);
    }
}

/// A queue pair of the guest.
struct Theirs {
    name: &'static str,
    qpn: u32,
}

impl Theirs {
    fn open(run: &mut Run, name: &'static str) -> Self {
        let qpn = run.vsh.ask(&format!("qp {name} ud")).number("qpn");
        run.vsh.ask(&format!("connect {name} qkey={QKEY}"));
        let qpn = u32::try_from(qpn).unwrap();
        Self { name, qpn }
    }

    /// Sends a message; `to` are the shell's words for where.
    fn send(&self, run: &mut Run, message: Message, to: &str) {
        let Message { id, size, imm } = message;
        let imm = imm.map_or(String::new(), |imm| format!(" imm={imm}"));
        run.vsh.all(&[
            format!("fill m {OUT} {size} seed={id}"),
            format!("send {} m {OUT} {size} id={id}{imm} {to}", self.name),
        ]);
        guest_done(&run.vsh.poll(1)[0], id, "SEND", None);
    }

    fn expect(&self, run: &mut Run, at: u64, message: Message) {
        run.expect_there(at + Origin::ROOM, message.size, message.id);
        let (room, id) = (message.room(), message.id);
        run.vsh
            .ask(&format!("recv {} m {at} {room} id={id}", self.name));
    }

    /// It must be among what the guest received, sent by our QP to an address or a group.
    fn received(
        &self,
        run: &mut Run,
        received: &[rocexdp_tests::softroce::Wc],
        at: u64,
        message: Message,
        qpn: Qpn,
        addresses: [IpAddr; 2],
    ) {
        let of_this = |wc: &&rocexdp_tests::softroce::Wc| wc.get("qpn") == Some(self.qpn.into());
        let wc = received.iter().find(of_this).expect("one of this QP");
        guest_done(wc, message.id, "RECV", Some(message.room()));
        assert_eq!(
            (wc.get("imm"), wc.get("src")),
            (message.imm.map(u64::from), Some(qpn.get().into())),
            "guest: {}",
            wc.text()
        );
        run.arrived_there(at + Origin::ROOM, message.size, message.id);
        // At the end of an IPv4 header, which stands at the room's end; in front of the end of an IPv6 header.
        let header = run.vsh.ask(&format!("hex m {at} {}", Origin::ROOM));
        let right: String = addresses.map(digits).concat();
        assert!(
            header.details[0].ends_with(&right),
            "{right} in {}",
            header.details[0]
        );
    }

    fn close(self, run: &mut Run) {
        run.vsh.ask(&format!("destroy {}", self.name));
    }
}

fn digits(address: IpAddr) -> String {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The way from our address.
fn way(run: &Run, family: Family, to: IpAddr) -> AddressHandle {
    let attr = HandleAttr::new(family.of(Host::A), to);
    let handle = run.device.address_handle(attr);
    let way = run.runtime.block_on(handle).unwrap();
    assert_eq!(way.path_mtu().bytes(), u32::from(MTU));
    way
}

/// One of each end, and the ways between them, the guest's called `h`.
struct Pair {
    ours: Ours,
    theirs: Theirs,
    way: AddressHandle,
    family: Family,
}

impl Pair {
    fn open(run: &mut Run, family: Family) -> Self {
        let way = way(run, family, family.of(Host::B));
        let ours = Ours::open(run, family);
        let theirs = Theirs::open(run, "u");
        run.vsh.ask(&format!("ah h gid={}", family.of(Host::A)));
        Self {
            ours,
            theirs,
            way,
            family,
        }
    }

    /// Where our messages go, and where the guest's do, with a Q_Key.
    fn to(&self, qkey: u32) -> (Recipient, String) {
        (
            self.way.to(Qpn::new(self.theirs.qpn), qkey),
            format!("ah=h qpn={} qkey={qkey}", self.ours.qp.qpn().get()),
        )
    }

    /// A message; `role` is ours.
    fn message(&self, run: &mut Run, role: Role, message: Message) {
        let Self { ours, theirs, .. } = self;
        let (there, here) = self.to(QKEY);
        let [a, b] = [Host::A, Host::B].map(|host| self.family.of(host));
        if role == Role::Requester {
            theirs.expect(run, IN, message);
            ours.send(run, message, &there);
            let received = run.vsh.poll(1);
            theirs.received(run, &received, IN, message, ours.qp.qpn(), [a, b]);
        } else {
            ours.expect(run, IN, message);
            theirs.send(run, message, &here);
            ours.received(run, IN, message, theirs.qpn, [b, a]);
        }
    }

    fn close(self, run: &mut Run) {
        self.theirs.close(run);
        run.vsh.ask("destroy h");
    }
}

/// Two members get every message, a queue pair that has not joined gets none.
fn to_group(run: &mut Run, role: Role, family: Family) {
    let group: IpAddr = match family {
        Family::V4 => "239.77.0.9".parse().unwrap(),
        Family::V6 => "ff15::77:9".parse().unwrap(),
    };
    let [a, b] = [Host::A, Host::B].map(|host| family.of(host));
    let places = [IN, IN + STRIDE];
    let messages = (1..).zip(SIZES).map(|(id, size)| Message::new(id, size));
    if role == Role::Requester {
        let ours = Ours::open(run, family);
        let to = way(run, family, group).to_group(QKEY);
        let members = ["u", "v"].map(|name| Theirs::open(run, name));
        for member in &members {
            run.vsh.ask(&format!("join {} gid={group}", member.name));
        }
        let stranger = Theirs::open(run, "w");
        stranger.expect(run, IN + 2 * STRIDE, Message::new(99, 4096));
        for message in messages {
            for (member, at) in members.iter().zip(places) {
                member.expect(run, at, message);
            }
            ours.send(run, message, &to);
            let received = run.vsh.poll(members.len());
            for (member, at) in members.iter().zip(places) {
                let from = ours.qp.qpn();
                member.received(run, &received, at, message, from, [a, group]);
            }
        }
        let more = run.vsh.attempt("poll 1 ms=0");
        assert!(!more.is_ok(), "guest: {:?}", more.details);
        for member in members {
            run.vsh.ask(&format!("leave {} gid={group}", member.name));
            member.close(run);
        }
        stranger.close(run);
    } else {
        let members = [(); 2].map(|()| Ours::open(run, family));
        for member in &members {
            run.runtime.block_on(member.qp.join(group)).unwrap();
        }
        let stranger = Ours::open(run, family);
        stranger.expect(run, IN + 2 * STRIDE, Message::new(99, 4096));
        let theirs = Theirs::open(run, "u");
        run.vsh.ask(&format!("ah h gid={group}"));
        for message in messages {
            for (member, at) in members.iter().zip(places) {
                member.expect(run, at, message);
            }
            theirs.send(run, message, "ah=h qpn=0xffffff");
            for (member, at) in members.iter().zip(places) {
                member.received(run, at, message, theirs.qpn, [b, group]);
            }
        }
        let more = stranger.cq.wait(Duration::ZERO).unwrap();
        assert!(more.is_none(), "{more:?}");
        theirs.close(run);
        run.vsh.ask("destroy h");
    }
}

/// Nobody hears of a message with another Q_Key, and it takes no receive request.
fn other_qkey(run: &mut Run, role: Role) {
    let pair = Pair::open(run, Family::V4);
    let (there, here) = pair.to(QKEY + 1);
    let wrong = Message::new(1, 33);
    if role == Role::Requester {
        pair.ours.send(run, wrong, &there);
    } else {
        pair.theirs.send(run, wrong, &here);
    }
    pair.message(run, role, Message::new(2, 33));
    if role == Role::Responder {
        let stats = run.runtime.block_on(pair.ours.qp.stats()).unwrap();
        assert_eq!(stats.rx_dropped, 1, "the wrong one is counted");
    }
    pair.close(run);
}

/// rocexdp refuses to send one; rxe completes it and sends nothing, as the standard has it (rxe_req.c, C10-93.1.1).
fn too_long(run: &mut Run, role: Role) {
    let pair = Pair::open(run, Family::V4);
    let (there, here) = pair.to(QKEY);
    let size = u64::from(MTU) + 1;
    if role == Role::Requester {
        let data = run.memory.slice(OUT..OUT + size).unwrap();
        let refused = pair.ours.qp.post(Wr::send(data), &there).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("path MTU"), "{text}");
    } else {
        pair.theirs.send(run, Message::new(1, size), &here);
    }
    // The next one comes, and nothing before it.
    pair.message(run, role, Message::new(2, 33));
    pair.close(run);
}
