//! Every operation on a clean wire, all sizes over one connection: bytes compared, nothing sent again, nothing to find in the capture.
//!
//! Must not: know faults.

use rocexdp::rdma::{CqeOpcode, Rc, Uc, Wr};

use crate::{
    ends::{Both, Ends, Tune, guest_done},
    run::{Expect, Family, IN, Name, OUT, Role, Run, WORD},
};

/// Path MTUs that both ends have.
const PATH_MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];
const IMMEDIATE: u32 = 0x0bad_cafe;

/// The sizes of messages: none, one byte, a last packet with 3 bytes of padding, around a full packet, many packets.
fn sizes(path_mtu: u16) -> [u64; 7] {
    let mtu = u64::from(path_mtu);
    [0, 1, 33, mtu - 1, mtu, mtu + 1, 1 << 20]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
}

impl Op {
    const EACH: [Self; 4] = [Self::Send, Self::SendImm, Self::Write, Self::WriteImm];

    fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND with immediate",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE with immediate",
        }
    }

    /// Whether the responder completes a receive request.
    fn receives(self) -> bool {
        self != Self::Write
    }

    fn immediate(self) -> Option<u32> {
        matches!(self, Self::SendImm | Self::WriteImm).then_some(IMMEDIATE)
    }

    /// Of the receive request: ours, and in the guest's words.
    fn received(self) -> (CqeOpcode, &'static str) {
        match self {
            Self::Write | Self::WriteImm => (CqeOpcode::RecvWriteImm, "RECV_WRITE"),
            Self::Send | Self::SendImm => (CqeOpcode::Recv, "RECV"),
        }
    }

    /// Of the request.
    fn sent(self) -> (CqeOpcode, &'static str) {
        match self {
            Self::Write | Self::WriteImm => (CqeOpcode::Write, "WRITE"),
            Self::Send | Self::SendImm => (CqeOpcode::Send, "SEND"),
        }
    }
}

pub fn cases(run: &mut Run) {
    // A short run: the usual path MTU over IPv4, the largest over IPv6, whose frames come in fragments.
    let short = |family, mtu| match family {
        Family::V4 => mtu == 1024,
        Family::V6 => mtu == 4096,
    };
    let full = run.full();
    for family in Family::EACH {
        for mtu in PATH_MTUS.iter().filter(|mtu| full || short(family, **mtu)) {
            for role in Role::EACH {
                for op in Op::EACH {
                    messages::<Rc>(run, family, *mtu, role, op);
                }
                for op in Op::EACH {
                    messages::<Uc>(run, family, *mtu, role, op);
                }
                reads(run, family, *mtu, role);
                atomics(run, family, *mtu, role);
            }
        }
    }
}

fn name(what: String, role: Role, family: Family, path_mtu: u16) -> Name {
    Name {
        what,
        role,
        family,
        path_mtu,
    }
}

/// SEND and WRITE.
fn messages<S: Both>(run: &mut Run, family: Family, mtu: u16, role: Role, op: Op) {
    let name = name(format!("{} {}", S::NAME, op.name()), role, family, mtu);
    run.case(&name, Expect::Clean, |run| {
        let ends = run.connect::<S>("q", family, mtu, &Tune::default());
        for (id, size) in (1..).zip(sizes(mtu)) {
            match role {
                Role::Requester => to_guest(run, &ends, op, id, size),
                _ => from_guest(run, &ends, op, id, size),
            }
        }
        run.disconnect(ends);
    });
}

fn to_guest<S: Both>(run: &mut Run, ends: &Ends<S>, op: Op, id: u64, size: u64) {
    let seed = id;
    run.fill(OUT, size, seed);
    run.expect_there(IN, size, seed);
    let name = &ends.name;
    match op {
        Op::Send | Op::SendImm => run.vsh.ask(&format!("recv {name} m {IN} {size} id={id}")),
        // On UC, a message behind it tells that it has come.
        Op::Write | Op::WriteImm => run.vsh.ask(&format!("recv {name} id={id}")),
    };
    let data = run.memory.slice(OUT..OUT + size).unwrap();
    let to = run.there().slice(IN, size).unwrap();
    match op {
        Op::Send => ends.qp.post(Wr::send(data).id(id)),
        Op::SendImm => ends.qp.post(Wr::send(data).immediate(IMMEDIATE).id(id)),
        Op::Write => ends.qp.post(Wr::write(data, to).id(id)),
        Op::WriteImm => ends
            .qp
            .post(Wr::write(data, to).immediate(IMMEDIATE).id(id)),
    }
    .unwrap();
    let (sent, _) = op.sent();
    let done = ends.done(id, sent);
    assert_eq!(u64::from(done.byte_len), size);
    if op.receives() {
        let [wc] = &run.vsh.poll(1)[..] else {
            panic!("one completion")
        };
        guest_done(wc, id, op.received().1, Some(size));
        assert_eq!(wc.get("imm"), op.immediate().map(u64::from));
    } else {
        let behind = Wr::send(rocexdp::rdma::Source::empty()).id(id);
        ends.qp.post(behind).unwrap();
        ends.done(id, CqeOpcode::Send);
        guest_done(&run.vsh.poll(1)[0], id, "RECV", Some(0));
    }
    run.arrived_there(IN, size, seed);
}

fn from_guest<S: Both>(run: &mut Run, ends: &Ends<S>, op: Op, id: u64, size: u64) {
    let seed = id;
    run.expect_here(IN, size, seed);
    let into = match op {
        Op::Send | Op::SendImm => size,
        Op::Write | Op::WriteImm => 0,
    };
    let into = run.memory.slice(IN..IN + into).unwrap();
    ends.qp.post_recv(id, into).unwrap();
    let name = &ends.name;
    let at = run.here(IN);
    let imm = IMMEDIATE;
    let request = match op {
        Op::Send => format!("send {name} m {OUT} {size} id={id}"),
        Op::SendImm => format!("send {name} m {OUT} {size} id={id} imm={imm}"),
        Op::Write => format!("write {name} m {OUT} {size} id={id} {at}"),
        Op::WriteImm => format!("write {name} m {OUT} {size} id={id} {at} imm={imm}"),
    };
    run.vsh
        .all(&[format!("fill m {OUT} {size} seed={seed}"), request]);
    guest_done(&run.vsh.poll(1)[0], id, op.sent().1, Some(size));
    if op.receives() {
        let done = ends.done(id, op.received().0);
        assert_eq!(u64::from(done.byte_len), size);
        assert_eq!(done.imm, op.immediate());
    } else {
        run.vsh.ask(&format!("send {name} id={id}"));
        guest_done(&run.vsh.poll(1)[0], id, "SEND", Some(0));
        ends.done(id, CqeOpcode::Recv);
    }
    run.arrived_here(IN, size, seed);
}

/// READ.
fn reads(run: &mut Run, family: Family, mtu: u16, role: Role) {
    let name = name("RC READ".to_owned(), role, family, mtu);
    run.case(&name, Expect::Clean, |run| {
        let ends = run.connect::<Rc>("q", family, mtu, &Tune::default());
        for (id, size) in (1..).zip(sizes(mtu)) {
            let seed = id;
            if role == Role::Requester {
                run.vsh.ask(&format!("fill m {OUT} {size} seed={seed}"));
                run.expect_here(IN, size, seed);
                let into = run.memory.slice(IN..IN + size).unwrap();
                let from = run.there().slice(OUT, size).unwrap();
                ends.read(Wr::read(into, from).id(id)).unwrap();
                let done = ends.done(id, CqeOpcode::Read);
                assert_eq!(u64::from(done.byte_len), size);
                run.arrived_here(IN, size, seed);
            } else {
                run.fill(OUT, size, seed);
                run.expect_there(IN, size, seed);
                let from = run.here(OUT);
                run.vsh.ask(&format!("read q m {IN} {size} id={id} {from}"));
                guest_done(&run.vsh.poll(1)[0], id, "READ", Some(size));
                run.arrived_there(IN, size, seed);
            }
        }
        run.disconnect(ends);
    });
}

/// COMPARE SWAP that does and does not, FETCH ADD that wraps.
fn atomics(run: &mut Run, family: Family, mtu: u16, role: Role) {
    let answer = WORD + 8;
    let mut case = |what: &str, body: &dyn Fn(&mut Run, &Ends<Rc>)| {
        let name = name(format!("RC {what}"), role, family, mtu);
        run.case(&name, Expect::Clean, |run| {
            let ends = run.connect::<Rc>("q", family, mtu, &Tune::default());
            body(run, &ends);
            run.disconnect(ends);
        });
    };
    let stood = 0x0123_4567_89ab_cdef_u64;
    let new = 0xfedc_ba98_7654_3210_u64;
    // (what to compare with, what then stands there)
    case("COMPARE SWAP", &|run, ends| {
        for (id, compare, then) in [(1, stood, new), (2, stood + 1, stood)] {
            if role == Role::Requester {
                run.put_word_there(WORD, stood);
                let answer = run.memory.word(answer).unwrap();
                let at = run.there().word(WORD).unwrap();
                let wr = Wr::compare_swap(&answer, at, compare, new).id(id);
                ends.qp.post(wr).unwrap();
                ends.done(id, CqeOpcode::CompareSwap);
                assert_eq!(answer.load(), stood);
                assert_eq!(run.word_there(WORD), then);
            } else {
                run.memory.word(WORD).unwrap().store(stood);
                let at = run.here(WORD);
                run.vsh.ask(&format!(
                    "cas q m {answer} id={id} cmp={compare} swap={new} {at}"
                ));
                guest_done(&run.vsh.poll(1)[0], id, "CAS", None);
                assert_eq!(run.word_there(answer), stood);
                assert_eq!(run.memory.load(WORD).unwrap(), then);
            }
        }
    });
    case("FETCH ADD", &|run, ends| {
        for (id, stood, add) in [(1, 40, 2), (2, u64::MAX, 3_u64)] {
            let sum = add.wrapping_add(stood);
            if role == Role::Requester {
                run.put_word_there(WORD, stood);
                let answer = run.memory.word(answer).unwrap();
                let at = run.there().word(WORD).unwrap();
                ends.qp
                    .post(Wr::fetch_add(&answer, at, add).id(id))
                    .unwrap();
                ends.done(id, CqeOpcode::FetchAdd);
                assert_eq!(answer.load(), stood);
                assert_eq!(run.word_there(WORD), sum);
            } else {
                run.memory.word(WORD).unwrap().store(stood);
                let at = run.here(WORD);
                run.vsh
                    .ask(&format!("fadd q m {answer} id={id} add={add} {at}"));
                guest_done(&run.vsh.poll(1)[0], id, "FADD", None);
                assert_eq!(run.word_there(answer), stood);
                assert_eq!(run.memory.load(WORD).unwrap(), sum);
            }
        }
    });
}
